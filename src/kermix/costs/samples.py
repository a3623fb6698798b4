"""Weighted samples and the kernel between them: checked once, then asked for statistics."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.checks import check_pair, finite_in, normalized_weights, working_dtype
from kermix.errors import OptionError
from kermix.kernels.gaussian import BandwidthRule, GaussianKernel, KernelTerms, Variance, as_kernel
from kermix.kernels.gram import LARGEST_EXPONENT, ScaledGram, gram_matrix, scaled_gram
from kermix.kernels.means import log_kernel_means
from kermix.linalg.cholesky import Cholesky, cholesky, default_ridge, sqrt_or_zero

__all__ = ["SamplePair", "SampleSet", "WeightedPair", "WeightedSet"]


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
        v: GaussianKernel | Variance | BandwidthRule | None,
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
