"""Gaussian mixtures with any prior, known at samples of it (Property 3)."""

import math
from dataclasses import replace
from typing import TypeAlias

import torch
from torch import Tensor

from kermix.checks import check_samples, normalized_weights
from kermix.errors import OptionError
from kermix.mixtures.closed_forms import log_power_sum
from kermix.mixtures.covariance import Components
from kermix.mixtures.mixture import ClosedForms, GaussianMixture, log_scalar_cost

__all__ = ["Mixture", "SampledMixture"]


class SampledMixture(ClosedForms):
    r"""A mixture with an arbitrary prior, given by samples $c_1, \dots, c_S$ of that prior.

    $$p(X) = E_c[w(c) \mathcal{N}(X; m(c), v(c))]
           \approx \frac{1}{S} \sum_s w(c_s) \mathcal{N}(X; m(c_s), v(c_s))$$

    `inner` and `log_prob` average over the samples. A norm averages over pairs (tuples) of
    samples: all of them, which is the norm of the sampled mixture itself and biased; or, with
    `unbiased=True`, those of different samples, whose expectation is the norm under the prior.
    That holds for the integral of p^n: a logarithm or a root of it is not unbiased.

    Args:
        weights: w(c_s), non-negative, (*B, S), not normalized; None for ones.
        means: m(c_s), (*B, S, d).
        covariances: v(c_s), (*B, S), (*B, S, d) or (*B, S, d, d), as in `GaussianMixture`.

    Example:
        >>> import torch
        >>> c = torch.randn(2000, 1, generator=torch.Generator().manual_seed(0))
        >>> p = SampledMixture(None, c, torch.full((2000,), 0.5))  # N(0, 1) plus noise: N(0, 1.5)
        >>> round(float(p.norm2(unbiased=True)), 2), round((4 * torch.pi * 1.5) ** -0.5, 2)
        (0.23, 0.23)
    """

    def __init__(self, weights: Tensor | None, means: Tensor, covariances: Tensor) -> None:
        check_samples("means", means)
        if weights is None:
            weights = means.new_ones(means.shape[-2])
        normalized_weights("weights", weights, means)  # for its checks
        components = Components.checked(weights, means, covariances)
        given = torch.promote_types(weights.dtype, means.dtype)
        self._dtype = torch.promote_types(given, covariances.dtype)
        self._components = replace(components, weights=components.weights / means.shape[-2])
        shown = components.to(self._dtype)
        self.weights, self.means, self.covariances = shown.weights, shown.means, shown.covariances
        self.batch_shape, self.event_shape = components.batch_shape, means.shape[-1:]

    def _log_power(self, n: float, unbiased: bool) -> Tensor:
        samples = self.means.shape[-2]
        if not (unbiased and isinstance(n, int)):  # no integer: there is one sample
            return log_power_sum(self._components, n)
        if n > samples:
            raise OptionError(
                f"unbiased=True with n = {n} averages over {n} different samples of the prior and "
                f"there are {samples}; draw more samples, or use unbiased=False."
            )
        # From a mean over all S^n tuples to one over the S (S - 1) ... (S - n + 1) different ones.
        fewer = sum(math.log1p(-k / samples) for k in range(n))
        return log_power_sum(self._components, n, distinct=True) - fewer

    def log_norm2(self, unbiased: bool = False) -> Tensor:
        r"""The log of `norm2`."""
        return self._log_power(2, unbiased).to(self._dtype)

    def norm2(self, unbiased: bool = False) -> Tensor:
        r"""The squared norm $E_{c,c'}[w(c) w(c') \mathcal{N}(m(c) - m(c'); 0, v(c) + v(c'))]$.

        Args:
            unbiased: Average over pairs of different samples (U-statistic) instead of all pairs
                (V-statistic).
        """
        return self._log_power(2, unbiased).exp().to(self._dtype)

    def log_lp_norm(self, n: float, unbiased: bool = False) -> Tensor:
        r"""The log of `lp_norm`."""
        return self._root_power(n, unbiased).to(self._dtype)

    def lp_norm(self, n: float, unbiased: bool = False) -> Tensor:
        r"""The norm $\|p\|_n$, the n-th root of an average over n-tuples of samples.

        Args:
            n: A positive integer; of one sample, any positive number.
            unbiased: Average over tuples of different samples, which makes $\|p\|_n^n$ unbiased.
        """
        return self._root_power(n, unbiased).exp().to(self._dtype)

    def cauchy_schwarz(self, q: ClosedForms, unbiased: bool = False) -> Tensor:
        r"""The Cauchy-Schwarz divergence; see `GaussianMixture.cauchy_schwarz`.

        Args:
            q: Another mixture.
            unbiased: Use unbiased estimates of the norms of sampled mixtures. The divergence can
                then be negative, and is returned unchanged.
        """
        if not unbiased:
            return super().cauchy_schwarz(q)
        products = self._inner_products(q, True)
        divergence = products.log_norm_x() - log_scalar_cost(products, normalized=False)
        return divergence.to(torch.promote_types(self._dtype, q._dtype))


Mixture: TypeAlias = GaussianMixture | SampledMixture
