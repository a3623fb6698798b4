r"""Statistics of mixtures, whose Gaussians have a covariance each, for the costs.

Inner products of Gaussians are exact (Property 1),
$\langle p_n, q_k\rangle = N(m_n - m'_k; 0, S_n + S'_k)$, and kept as logarithms. Two scales of the
Gaussians occur, and agree where all share one variance:

- **unit norm**, $u_k = q_k / \|q_k\|$, for the residuals of Propositions 5 to 7. Their Gram
  matrices have ones on the diagonal, as those of points have, so all bounds hold.
- **unit mass**, $q = \sum_k b_k q_k$, for the densities of Propositions 4 and 5, in units of
  $\sqrt{S}$, where $S = \sum_k b_k \|q_k\|^2$ is the constant that points drop.
"""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kermix.checks import (
    broadcast_shape,
    check_pair,
    finite_in,
    normalized_weights,
    solve_dtype,
    working_dtype,
)
from kermix.costs.formulas import Weights
from kermix.costs.points import (
    DEFAULTS,
    GaussianSet,
    GaussianStatistics,
    Numerics,
    PointSet,
)
from kermix.errors import OptionError, VarianceError
from kermix.kernels.gaussian import (
    GaussianKernel,
    Kernel,
    as_kernel,
)
from kermix.kernels.gram import ScaledGram
from kermix.linalg.cholesky import Cholesky, cholesky
from kermix.mixtures.closed_forms import (
    log_gram,
    log_of_sums,
    log_pair_sum,
    log_row_sums,
    log_squared_norms,
    powers_and_factors,
    scaled_sum,
)
from kermix.mixtures.covariance import Components
from kermix.mixtures.sampled_mixture import Mixture

__all__ = ["ComponentSet", "ComponentStatistics", "log_unit_gram", "points_as_components"]


@dataclass(frozen=True)
class ComponentSet(GaussianSet):
    """Gaussians with covariances of their own, and weights that sum to 1."""

    components: Components

    @classmethod
    def of(cls, mixture: Mixture) -> "ComponentSet":
        """The components of a mixture; weights that do not sum to 1 are divided by their sum."""
        given = mixture._components
        # In float64: of many dimensions the logarithms' constants are large, and cancel.
        components = given.to(solve_dtype(given.means.device))
        weights = normalized_weights("weights", components.weights, components.means)
        components = Components(weights, components.means, components.covariances)
        return cls(mixture.means, weights, components)

    def log_norm(self, dtype: torch.dtype, chunk: int | None) -> Tensor:  # (*B,)
        """Logarithm of the squared norm of the density, in its units."""
        return log_pair_sum(self.components, self.components) - _log_unit(self.components)

    def log_mean(self, logarithms: Tensor) -> Tensor:  # (*B, K) -> (*B,)
        """Logarithm of the inner product with the density, from those with the unit residuals."""
        norms = log_squared_norms(self.components) / 2
        units = _log_unit(self.components).unsqueeze(-1) / 2
        return super().log_mean(logarithms + norms - units)

    def gram_factor(self, dtype: torch.dtype, ridge: float) -> Cholesky:
        """Factor of the Gram matrix of the residuals, scaled by the roots of weights times K."""
        matrix = log_unit_gram(self.components, self.components).exp().to(dtype)
        return cholesky(self.with_roots(matrix), ridge)


def _log_unit(components: Components) -> Tensor:  # (*B,)
    r"""Logarithm of the mean squared norm $\sum_k b_k \|q_k\|^2$ of the Gaussians."""
    powers, factors = powers_and_factors(components.weights)
    return log_of_sums([scaled_sum(powers + log_squared_norms(components), factors, -1)])


def log_unit_gram(p: Components, q: Components) -> Tensor:  # (*B, K, K')
    """Logarithms of the inner products of the Gaussians when each is scaled to unit norm."""
    norms = [log_squared_norms(side) / 2 for side in (p, q)]
    return log_gram(p, q) - norms[0].unsqueeze(-1) - norms[1].unsqueeze(-2)


class ComponentStatistics(GaussianStatistics):
    """Statistics of data and centers of which at least one is a mixture.

    Args:
        x: Data: points of shape (*B, N, d), or a mixture.
        y: Centers: points of shape (*B, K, d), or a mixture.
        v: Variance of the Gaussians at the points; None if both are mixtures.
        weights: Weights of the data and of the centers, where these are points.
        numerics: How everything is computed.
    """

    data: PointSet | ComponentSet
    centers: PointSet | ComponentSet
    kernel: GaussianKernel | None = None  # of the points, if one side is such

    def __init__(
        self,
        x: Tensor | Mixture,
        y: Tensor | Mixture,
        v: Kernel | None = None,
        weights: Weights = (None, None),
        numerics: Numerics = DEFAULTS,
    ) -> None:
        numerics.refuse_tiles("mixtures")
        sides = {"x": x, "y": y}
        _check_variance(sides, v)
        points = [s.means if isinstance(s, Mixture) else s for s in (x, y)]
        names = [f"{n}.means" if isinstance(s, Mixture) else n for n, s in sides.items()]
        check_pair(points[0], points[1], (names[0], names[1]))
        for name, side in sides.items():
            if not isinstance(side, Mixture) and v is not None:
                self.kernel = _one_variance(name, as_kernel(v, side))
        self.data, self.of_x = _side("x", x, self.kernel, weights[0])
        self.centers, self.of_y = _side("y", y, self.kernel, weights[1])
        given = [s._dtype if isinstance(s, Mixture) else s.dtype for s in (x, y)]
        self._callers = torch.promote_types(*given)
        self.numerics = numerics

    @property
    def weighted(self) -> bool:
        """Components always have weights."""
        return True

    def in_callers_dtype(self, value: Tensor) -> Tensor:
        """The value in the dtype of the samples, finite if it is finite here."""
        return finite_in(value, self._callers)

    @property
    def working_dtype(self) -> torch.dtype:
        """The dtype in which a nuclear norm is computed: float32 for half precision."""
        return working_dtype(torch.empty(0, dtype=self._callers))

    def log_projection(self) -> Tensor:  # (*B, K)
        """Logarithm of the inner product of each unit residual with the data density."""
        norms = log_squared_norms(self.of_y) / 2
        units = _log_unit(self.of_x).unsqueeze(-1) / 2
        return log_row_sums(self.of_y, self.of_x) - norms - units

    def log_masses(self) -> Tensor:  # (*B, K)
        """Logarithms of what turns weights of scaled residuals into weights of the Gaussians.

        The residuals have unit norm, times the root of their weight times K; the density that
        they predict is in its units.
        """
        roots = self.centers.roots(self.of_y.means.dtype, len(self.centers))
        scale = (_log_unit(self.of_x).unsqueeze(-1) - log_squared_norms(self.of_y)) / 2
        return scale if roots is None else scale + roots.log()

    def cross_gram(self, total_x: float = 1.0, total_y: float = 1.0) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix of unit residuals, times the roots of the weights.

        Pairs of weight zero do not count in the search for the largest entry.
        """
        logarithms = log_unit_gram(self.of_y, self.of_x)
        present = (self.of_y.weights > 0).unsqueeze(-1) & (self.of_x.weights > 0).unsqueeze(-2)
        seen = torch.where(present, logarithms.detach(), -math.inf)
        log_scale = seen.amax((-2, -1), keepdim=True)
        exponents = torch.where(present, logarithms - log_scale, -math.inf)
        smallest = math.log(torch.finfo(self.dtype).tiny)
        matrix = torch.nn.functional.threshold(exponents, smallest, -math.inf)
        matrix = self.centers.with_roots(matrix.exp().to(self.dtype), total_y, -1)
        matrix = self.data.with_roots(matrix, total_x, -2)
        return ScaledGram(matrix, log_scale[..., 0, 0].to(self.dtype))

    def plain_gram(self, of: Literal["xy", "xx", "yy"]) -> Tensor:  # (*B, N, K)
        """A Gram matrix of unit residuals without weights."""
        rows, columns = (self.of_x if side == "x" else self.of_y for side in of)
        return log_unit_gram(rows, columns).exp()


def _check_variance(sides: dict[str, Tensor | Mixture], v: object) -> None:
    """Refuse a variance of two mixtures, and points without one."""
    points = [name for name, side in sides.items() if not isinstance(side, Mixture)]
    if not points and v is not None:
        raise OptionError(
            "v is given for two mixtures, which have their own variances; omit v. To smooth "
            "a mixture by v, add v times the dimension to its variances."
        )
    if points and v is None:
        raise OptionError(
            f"v is missing: it is the variance of the Gaussians at the points of {points[0]}, "
            "which the other argument, a mixture, does not define."
        )


def _side(
    name: str, side: Tensor | Mixture, kernel: GaussianKernel | None, weights: Tensor | None
) -> tuple[PointSet | ComponentSet, Components]:
    if isinstance(side, Mixture):
        if weights is not None:
            raise OptionError(f"weights_{name} is given for a mixture, which has its own weights.")
        found = ComponentSet.of(side)
        return found, found.components
    assert kernel is not None
    if weights is not None:
        weights = normalized_weights(f"weights_{name}", weights, side)
    components = points_as_components(side, weights, kernel)
    return PointSet(side, weights, kernel.data_terms(side.shape[-1])), components


def _one_variance(name: str, kernel: GaussianKernel) -> GaussianKernel:
    if len(kernel.v_p) > 1:
        raise VarianceError(
            f"v has {len(kernel.v_p)} values together with a mixture: an average of kernels is "
            "not an inner product of Gaussians. Give one variance."
        )
    if not kernel.symmetric:
        raise VarianceError(
            "v_q differs from v, but the other argument is a mixture with its own variances; "
            f"give only v, the variance of the points of {name}."
        )
    return kernel


def points_as_components(
    points: Tensor, weights: Tensor | None, kernel: GaussianKernel
) -> Components:
    """The Gaussians at points, all of the variance of the kernel."""
    count, dimension = points.shape[-2:]
    dtype = solve_dtype(points.device)
    spread = kernel.v_p[0] * (dimension if kernel.per_dimension else 1)
    covariances = torch.as_tensor(spread, dtype=dtype, device=points.device)
    means = points.to(dtype)
    shares = means.new_full((count,), 1 / count) if weights is None else weights.to(dtype)
    batch = broadcast_shape(shares.shape[:-1], means.shape[:-2])
    return Components(
        shares.expand(*batch, count),
        means.expand(*batch, count, dimension),
        covariances.expand(*batch, count),
    )
