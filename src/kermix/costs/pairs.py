r"""Pairs of sets that a cost compares: checked once, then asked for statistics.

A `SamplePair` has weighted points and the kernel between them; a `MixturePair` has Gaussians with
a covariance each. Inner products of Gaussians are exact (Property 1),
$\langle p_n, q_k\rangle = N(m_n - m'_k; 0, S_n + S'_k)$, and kept as logarithms. Two scales of the
Gaussians occur, and agree where all share one variance:

- **unit norm**, $u_k = q_k / \|q_k\|$, for the residuals of Propositions 5 to 7. Their Gram
  matrices have ones on the diagonal, as those of points have, so all bounds hold.
- **unit mass**, $q = \sum_k b_k q_k$, for the densities of Propositions 4 and 5, in units of
  $\sqrt{S}$, where $S = \sum_k b_k \|q_k\|^2$ is the constant that points drop.
"""

import math
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from kermix.checks import broadcast_shape, check_pair, finite_in, normalized_weights, working_dtype
from kermix.errors import OptionError, VarianceError
from kermix.kernels.gaussian import GaussianKernel, KernelTerms, Variance, VarianceRule, as_kernel
from kermix.kernels.gram import LARGEST_EXPONENT, ScaledGram, gram_matrix, scaled_gram
from kermix.kernels.means import log_kernel_means
from kermix.linalg.cholesky import Cholesky, cholesky, default_ridge, solve_dtype, sqrt_or_zero
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
from kermix.mixtures.mixture import GaussianMixture
from kermix.mixtures.sampled_mixture import SampledMixture

__all__ = [
    "ComponentSet",
    "Mixture",
    "MixturePair",
    "SamplePair",
    "SampleSet",
    "WeightedPair",
    "WeightedSet",
    "is_mixture",
    "log_unit_gram",
    "points_as_components",
]


@dataclass(frozen=True)
class WeightedSet:
    """Points with weights that sum to 1 (None: all equal), whatever function each carries."""

    points: Tensor  # (*B, N, d)
    weights: Tensor | None  # (*B, N)

    def __len__(self) -> int:
        return self.points.shape[-2]

    def roots(self, dtype: torch.dtype, total: float) -> Tensor | None:  # (*B, N)
        """Square roots of the weights when these sum to `total`; None stands for equal weights."""
        return None if self.weights is None else sqrt_or_zero(total * self.weights.to(dtype))

    def with_roots(
        self, matrix: Tensor, total: float | None = None, axis: int | None = None
    ) -> Tensor:
        """A matrix times the roots of the weights: of its rows (`axis=-1`), its columns, or both.

        The weights sum to `total`, by default the number of points.
        """
        roots = self.roots(matrix.dtype, len(self) if total is None else total)
        if roots is None:
            return matrix
        for direction in (-1, -2) if axis is None else (axis,):
            matrix = matrix * roots.unsqueeze(direction)
        return matrix

    def log_mean(self, logarithms: Tensor) -> Tensor:  # (*B, N) -> (*B,)
        """Logarithm of the weighted mean of numbers that are given by their logarithms."""
        values, log_scale = self.scaled_exp(logarithms)
        mean = values.mean(-1) if self.weights is None else (values * self.weights).sum(-1)
        return log_scale + mean.log()

    def scaled_exp(self, logarithms: Tensor) -> tuple[Tensor, Tensor]:  # (*B, N), (*B,)
        """Numbers divided by their largest at a point of positive weight, and its logarithm."""
        seen = logarithms.detach()
        if self.weights is not None:
            seen = seen.masked_fill(self.weights <= 0, -math.inf)
        log_scale = seen.amax(-1)
        values = (logarithms - log_scale.unsqueeze(-1)).clamp(max=LARGEST_EXPONENT).exp()
        return values, log_scale

    def rooted_exp(self, logarithms: Tensor) -> tuple[Tensor, Tensor]:  # (*B, N), (*B,)
        """The same numbers times the roots of the weights, which sum to `N`."""
        values, log_scale = self.scaled_exp(logarithms)
        roots = self.roots(values.dtype, len(self))
        return values if roots is None else values * roots, log_scale


@dataclass(frozen=True)
class SampleSet(WeightedSet):
    """Points that carry a Gaussian each, all of one variance."""

    terms: KernelTerms

    def log_norm(self, dtype: torch.dtype, chunk: int | None) -> Tensor:  # (*B,)
        """Logarithm of the inner product of the density with itself."""
        rows = log_kernel_means(self.points, self.points, self.terms, self.weights, dtype, chunk)
        return self.log_mean(rows)

    def gram_factor(self, dtype: torch.dtype, ridge: float) -> Cholesky:
        """Factor of the Gram matrix of the Gaussians, scaled by the roots of weights times N."""
        matrix = gram_matrix(self.points, self.points, self.terms, dtype)
        return cholesky(self.with_roots(matrix), ridge)


class WeightedPair:
    """Data and centres with weights: where they are, and in which dtypes all is computed."""

    data: WeightedSet
    centres: WeightedSet

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return self.data.points.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the samples are used: float32 for half precision."""
        return working_dtype(self.data.points, self.centres.points)

    @property
    def weighted(self) -> bool:
        """Whether any weights were given."""
        return self.data.weights is not None or self.centres.weights is not None

    def ridge(self, asked: float | None) -> float:
        """The ridge asked for, or the default of the samples' dtype."""
        return default_ridge(self.dtype) if asked is None else asked

    def full_precision(self) -> torch.autocast:
        """A context in which autocast does not touch what is computed."""
        return torch.autocast(self.device.type, enabled=False)

    def in_callers_dtype(self, value: Tensor) -> Tensor:
        """The value in the dtype of the samples, finite if it is finite here."""
        dtype = torch.promote_types(self.data.points.dtype, self.centres.points.dtype)
        return finite_in(value, dtype)


class SamplePair(WeightedPair):
    """Data and centres, and the kernel between them.

    Args:
        x: Data, shape (*B, N, d).
        y: Centres, shape (*B, K, d).
        v: What a user may give as a variance.
        weights_x: Weights of the data, or None.
        weights_y: Weights of the centres, or None.
        unit_norm: Whether the cross kernel is that of Gaussians of unit norm, see
            `kermix.GaussianKernel`.
        densities: Whether it is that of Gaussians of unit mass, for
            `kermix.vector_weights`.
    """

    data: SampleSet
    centres: SampleSet

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        v: GaussianKernel | Variance | VarianceRule | None,
        weights_x: Tensor | None = None,
        weights_y: Tensor | None = None,
        unit_norm: bool = False,
        densities: bool = False,
    ) -> None:
        check_pair(x, y)
        if v is None:
            raise OptionError("v is missing: give a variance, or the name of a rule for one.")
        self.kernel, dimension = as_kernel(v, x), x.shape[-1]
        if weights_x is not None:
            weights_x = normalized_weights("weights_x", weights_x, x)
        if weights_y is not None:
            weights_y = normalized_weights("weights_y", weights_y, y)
        self.data = SampleSet(x, weights_x, self.kernel.data_terms(dimension))
        self.centres = SampleSet(y, weights_y, self.kernel.centre_terms(dimension))
        if densities:
            self.terms = self.kernel.density_terms(dimension)
        else:
            self.terms = self.kernel.cross_terms(dimension, unit_norm)

    def log_projection(self, dtype: torch.dtype, chunk: int | None) -> Tensor:  # (*B, K)
        """Logarithm of the inner product of each centre's Gaussian with the data density."""
        x, y = self.data, self.centres
        return log_kernel_means(y.points, x.points, self.terms, x.weights, dtype, chunk)

    def cross_gram(
        self, dtype: torch.dtype, total_x: float = 1.0, total_y: float = 1.0
    ) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix times the roots of the weights, which sum to the given totals."""
        x, y = self.data, self.centres
        cross = scaled_gram(y.points, x.points, self.terms, dtype, y.weights, x.weights)
        matrix = x.with_roots(y.with_roots(cross.matrix, total_y, -1), total_x, -2)
        return ScaledGram(matrix, cross.log_scale)


Mixture: TypeAlias = GaussianMixture | SampledMixture


def is_mixture(side: object) -> bool:
    """Whether a side of a cost has variances of its own."""
    return isinstance(side, GaussianMixture | SampledMixture)


@dataclass(frozen=True)
class ComponentSet(WeightedSet):
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
        return log_pair_sum(self.components, self.components) - log_unit(self.components)

    def log_mean(self, logarithms: Tensor) -> Tensor:  # (*B, K) -> (*B,)
        """Logarithm of the inner product with the density, from those with the unit residuals."""
        norms = log_squared_norms(self.components) / 2
        units = log_unit(self.components).unsqueeze(-1) / 2
        return super().log_mean(logarithms + norms - units)

    def gram_factor(self, dtype: torch.dtype, ridge: float) -> Cholesky:
        """Factor of the Gram matrix of the residuals, scaled by the roots of weights times K."""
        matrix = log_unit_gram(self.components, self.components).exp().to(dtype)
        return cholesky(self.with_roots(matrix), ridge)


def log_unit(components: Components) -> Tensor:  # (*B,)
    r"""Logarithm of the mean squared norm $\sum_k b_k \|q_k\|^2$ of the Gaussians."""
    powers, factors = powers_and_factors(components.weights)
    return log_of_sums([scaled_sum(powers + log_squared_norms(components), factors, -1)])


def log_unit_gram(p: Components, q: Components) -> Tensor:  # (*B, K, K')
    """Logarithms of the inner products of the Gaussians when each is scaled to unit norm."""
    norms = [log_squared_norms(side) / 2 for side in (p, q)]
    return log_gram(p, q) - norms[0].unsqueeze(-1) - norms[1].unsqueeze(-2)


class MixturePair(WeightedPair):
    """Data and centres of which at least one is a mixture.

    Args:
        x: Data: points of shape (*B, N, d), or a mixture.
        y: Centres: points of shape (*B, K, d), or a mixture.
        v: Variance of the Gaussians at the points; None if both are mixtures.
        weights_x: Weights of the data, if these are points.
        weights_y: Weights of the centres, if these are points.
    """

    data: SampleSet | ComponentSet
    centres: SampleSet | ComponentSet
    kernel: GaussianKernel | None = None  # of the points, if one side is such

    def __init__(
        self,
        x: Tensor | Mixture,
        y: Tensor | Mixture,
        v: GaussianKernel | Variance | VarianceRule | None = None,
        weights_x: Tensor | None = None,
        weights_y: Tensor | None = None,
    ) -> None:
        both = is_mixture(x) and is_mixture(y)
        if both and v is not None:
            raise OptionError(
                "v is given for two mixtures, which have their own variances; omit v. To smooth "
                "a mixture by v, add v times the dimension to its variances."
            )
        if not both and v is None:
            name = "y" if is_mixture(x) else "x"
            raise OptionError(
                f"v is missing: it is the variance of the Gaussians at the points of {name}, "
                "which the other argument, a mixture, does not define."
            )
        points = [s.means if isinstance(s, Mixture) else s for s in (x, y)]
        names = [f"{n}.means" if is_mixture(s) else n for n, s in (("x", x), ("y", y))]
        check_pair(points[0], points[1], (names[0], names[1]))
        for name, side in (("x", x), ("y", y)):
            if not isinstance(side, Mixture) and v is not None:
                self.kernel = _one_variance(name, as_kernel(v, side))
        self.data, self.of_x = _side("x", x, self.kernel, weights_x)
        self.centres, self.of_y = _side("y", y, self.kernel, weights_y)
        given = [s._dtype if isinstance(s, Mixture) else s.dtype for s in (x, y)]
        self._callers = torch.promote_types(*given)

    @property
    def weighted(self) -> bool:
        """Components always have weights."""
        return True

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which a nuclear norm is computed: float32 for half precision."""
        return working_dtype(torch.empty(0, dtype=self._callers))

    def in_callers_dtype(self, value: Tensor) -> Tensor:
        """The value in the dtype of the sides, finite if it is finite here."""
        return finite_in(value, self._callers)

    def log_projection(self, dtype: torch.dtype, chunk: int | None) -> Tensor:  # (*B, K)
        """Logarithm of the inner product of each unit residual with the data density."""
        norms = log_squared_norms(self.of_y) / 2
        units = log_unit(self.of_x).unsqueeze(-1) / 2
        return log_row_sums(self.of_y, self.of_x) - norms - units

    def log_masses(self) -> Tensor:  # (*B, K)
        """Logarithms of what turns weights of scaled residuals into weights of the Gaussians.

        The residuals have unit norm, times the root of their weight times K; the density that
        they predict is in its units.
        """
        roots = self.centres.roots(self.of_y.means.dtype, len(self.centres))
        scale = (log_unit(self.of_x).unsqueeze(-1) - log_squared_norms(self.of_y)) / 2
        return scale if roots is None else scale + roots.log()

    def cross_gram(
        self, dtype: torch.dtype, total_x: float = 1.0, total_y: float = 1.0
    ) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix of unit residuals, times the roots of the weights.

        Pairs of weight zero do not count in the search for the largest entry.
        """
        logarithms = log_unit_gram(self.of_y, self.of_x)
        present = (self.of_y.weights > 0).unsqueeze(-1) & (self.of_x.weights > 0).unsqueeze(-2)
        seen = torch.where(present, logarithms.detach(), -math.inf)
        log_scale = seen.amax((-2, -1), keepdim=True)
        exponents = torch.where(present, logarithms - log_scale, -math.inf)
        smallest = math.log(torch.finfo(dtype).tiny)
        matrix = torch.nn.functional.threshold(exponents, smallest, -math.inf).exp().to(dtype)
        matrix = self.centres.with_roots(matrix, total_y, -1)
        matrix = self.data.with_roots(matrix, total_x, -2)
        return ScaledGram(matrix, log_scale[..., 0, 0].to(dtype))


def _side(
    name: str,
    side: Tensor | Mixture,
    kernel: GaussianKernel | None,
    weights: Tensor | None,
) -> tuple[SampleSet | ComponentSet, Components]:
    if isinstance(side, Mixture):
        if weights is not None:
            raise OptionError(f"weights_{name} is given for a mixture, which has its own weights.")
        found = ComponentSet.of(side)
        return found, found.components
    assert kernel is not None
    if weights is not None:
        weights = normalized_weights(f"weights_{name}", weights, side)
    components = points_as_components(side, weights, kernel)
    return SampleSet(side, weights, kernel.data_terms(side.shape[-1])), components


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
