"""Statistics of the costs from Gram matrices that are held whole, of any kernel.

Gram matrices of other kernels than the Gaussian may be signed.
"""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kermix.checks import check_pair, normalized_weights
from kermix.costs.formulas import Correlations, Scaled
from kermix.costs.pairs import MixturePair, SamplePair, WeightedPair, WeightedSet
from kermix.info import Info
from kermix.kernels.gram import ScaledGram
from kermix.kernels.others import PointKernel
from kermix.linalg.cholesky import Cholesky, cholesky
from kermix.linalg.nuclear import NuclearMethod, nuclear_norm

__all__ = [
    "GramStatistics",
    "KernelPair",
    "KernelStatistics",
    "SampleStatistics",
    "nuclear_of",
    "predicted_by",
]


def predicted_by(projection: Tensor, log_scale: Tensor, centres: Cholesky) -> Scaled:
    r"""$P_1^\top R_F^{-1} P_1$ with `P_1 = exp(log_scale) projection`, (*B, K)."""
    whitened = centres.whiten(projection.unsqueeze(-1)).squeeze(-1)
    info = Info("cholesky", centres.ridge)
    return Scaled(whitened.square().sum(-1), 2 * log_scale, info)


def nuclear_of(cross: ScaledGram, method: NuclearMethod, tolerance: float) -> Scaled:
    """The nuclear norm of a cross Gram matrix."""
    norm, info = nuclear_norm(cross.matrix, method=method, tolerance=tolerance, return_info=True)
    return Scaled(norm, cross.log_scale, info)


class GramStatistics(ABC):
    """Statistics that follow from the cross Gram matrix and factors of the two others."""

    @abstractmethod
    def projection(self) -> tuple[Tensor, Tensor]:  # (*B, K), (*B,)
        """Inner products of the centres' Gaussians with the data density, and their log scale."""

    @abstractmethod
    def cross(self) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix of the Gaussians whose Gram matrices are factored."""

    @abstractmethod
    def factor_x(self) -> Cholesky:
        """The factor of `R_G`, with its ridge."""

    @abstractmethod
    def factor_y(self) -> Cholesky:
        """The factor of `R_F`, with its ridge."""

    def predicted(self) -> Scaled:
        r"""$P_1^\top R_F^{-1} P_1$."""
        return predicted_by(*self.projection(), self.factor_y())

    def total_correlation(self, data_fixed: bool) -> Scaled:
        """The sum of the squares of what `_whitened` gives."""
        matrix, log_scale, info = self._whitened(data_fixed)
        return Scaled(matrix.square().sum((-2, -1)), 2 * log_scale, info)

    def correlations(self) -> Correlations:
        """The squares on the smaller side."""
        matrix, log_scale, info = self._whitened(data_fixed=False)
        if matrix.shape[-2] > matrix.shape[-1]:
            matrix = matrix.mT
        return Correlations(matrix @ matrix.mT, 2 * log_scale, info)

    def _whitened(self, data_fixed: bool) -> tuple[Tensor, Tensor, Info]:  # (*B, K, N), (*B,)
        """Matrix whose singular values are the canonical correlations, and its log scale."""
        cross, centres = self.cross(), self.factor_y()
        whitened = centres.whiten(cross.matrix)
        if data_fixed:
            return whitened, cross.log_scale, Info("cholesky", centres.ridge)
        data = self.factor_x()
        used = torch.maximum(centres.ridge, data.ridge)
        return data.whiten(whitened.mT).mT, cross.log_scale, Info("cholesky", used)


class PairStatistics(GramStatistics):
    """Statistics of a pair of weighted sets, whatever their kernel is."""

    pair: WeightedPair

    @property
    def sizes(self) -> tuple[float, float]:
        """Numbers of points."""
        return len(self.pair.data), len(self.pair.centres)

    @property
    def weighted(self) -> bool:
        """Whether any weights were given."""
        return self.pair.weighted

    @property
    def log_traces(self) -> tuple[float, float]:
        """Of weights that sum to 1, or of points that count 1 each."""
        x, y = self.pair.data, self.pair.centres
        return (
            math.log(len(x)) if x.weights is None else 0.0,
            math.log(len(y)) if y.weights is None else 0.0,
        )


class SampleStatistics(PairStatistics):
    """Statistics of samples, or of components of mixtures.

    Args:
        pair: The samples or components.
        dtype: The dtype in which everything is computed.
        ridge: Ridge of the Gram matrices; by default that of the samples' dtype.
        chunk: Side of the tiles in which means of the kernel are evaluated.
        method: How the nuclear norm is computed.
        tolerance: Relative error that it may have.
    """

    pair: SamplePair | MixturePair

    def __init__(
        self,
        pair: SamplePair | MixturePair,
        dtype: torch.dtype,
        ridge: float | None = None,
        chunk: int | None = None,
        method: NuclearMethod = "auto",
        tolerance: float = 1e-4,
    ) -> None:
        self.pair, self.dtype, self.chunk = pair, dtype, chunk
        self.ridge = pair.ridge(ridge)
        self.method, self.tolerance = method, tolerance

    def log_cross(self) -> Tensor:  # (*B,)
        """Logarithm of the inner product of the densities."""
        return self.pair.centres.log_mean(self.pair.log_projection(self.dtype, self.chunk))

    def log_norm_x(self) -> Tensor:  # (*B,)
        """That of the data density with itself."""
        return self.pair.data.log_norm(self.dtype, self.chunk)

    def log_norm_y(self) -> Tensor:  # (*B,)
        """That of the centres' density with itself."""
        return self.pair.centres.log_norm(self.dtype, self.chunk)

    def projection(self) -> tuple[Tensor, Tensor]:  # (*B, K), (*B,)
        """Inner products of the centres' Gaussians, scaled by the roots of their weights."""
        logarithms = self.pair.log_projection(self.dtype, self.chunk)
        return self.pair.centres.rooted_exp(logarithms)

    def cross(self) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix of Gaussians scaled by the roots of their weights."""
        total_x, total_y = self.sizes
        return self.pair.cross_gram(self.dtype, total_x, total_y)

    def factor_x(self) -> Cholesky:
        """The factor of the data's Gram matrix."""
        return self.pair.data.gram_factor(self.dtype, self.ridge)

    def factor_y(self) -> Cholesky:
        """The factor of the centres' Gram matrix."""
        return self.pair.centres.gram_factor(self.dtype, self.ridge)

    def nuclear(self) -> Scaled:
        """Nuclear norm of the cross Gram matrix, of weights that sum to 1."""
        return nuclear_of(self.pair.cross_gram(self.dtype), self.method, self.tolerance)


class KernelPair(WeightedPair):
    """Data and centres, and any kernel between them.

    Args:
        x: Data, shape (*B, N, d).
        y: Centres, shape (*B, K, d).
        kernel: The kernel; what it leaves to the data is taken from `x`.
        weights_x: Weights of the data, or None.
        weights_y: Weights of the centres, or None.
        unit_norm: Whether both sets are scaled so that their kernels have the mean diagonal 1,
            which the bounds rest on. Kernels of the distance have it anyhow.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        kernel: PointKernel,
        weights_x: Tensor | None = None,
        weights_y: Tensor | None = None,
        unit_norm: bool = False,
    ) -> None:
        check_pair(x, y)
        if weights_x is not None:
            weights_x = normalized_weights("weights_x", weights_x, x)
        if weights_y is not None:
            weights_y = normalized_weights("weights_y", weights_y, y)
        self.kernel, self.unit_norm = kernel.fitted(x), unit_norm
        self.data, self.centres = WeightedSet(x, weights_x), WeightedSet(y, weights_y)


class KernelStatistics(PairStatistics):
    """Statistics of samples under any kernel, all from Gram matrices that are held whole.

    Args:
        pair: The samples and their kernel.
        dtype: The dtype in which everything is computed.
        ridge: Ridge of the Gram matrices; by default that of the samples' dtype.
        method: How the nuclear norm is computed.
        tolerance: Relative error that it may have.
    """

    pair: KernelPair

    def __init__(
        self,
        pair: KernelPair,
        dtype: torch.dtype,
        ridge: float | None = None,
        method: NuclearMethod = "auto",
        tolerance: float = 1e-4,
    ) -> None:
        self.pair, self.dtype = pair, dtype
        self.ridge = pair.ridge(ridge)
        self.method, self.tolerance = method, tolerance
        x, y = pair.data.points, pair.centres.points
        self._x = x.to(dtype)
        self._y = self._x if y is x else y.to(dtype)

    def log_cross(self) -> Tensor:  # (*B,)
        """Logarithm of the size of the means' inner product; it is squared, so no sign is lost."""
        values, log_scale = self._projection()
        return log_scale + _log_size(_mean(self.pair.centres, values))

    def log_norm_x(self) -> Tensor:  # (*B,)
        """Logarithm of the squared norm of the data's mean."""
        return self._log_norm(self.pair.data, self._x)

    def log_norm_y(self) -> Tensor:  # (*B,)
        """That of the centres' mean."""
        return self._log_norm(self.pair.centres, self._y)

    def projection(self) -> tuple[Tensor, Tensor]:  # (*B, K), (*B,)
        """Inner products with the data's mean, scaled by the roots of the centres' weights."""
        values, log_scale = self._projection()
        roots = self.pair.centres.roots(self.dtype, len(self.pair.centres))
        return values if roots is None else values * roots, log_scale

    def cross(self) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix, scaled by the roots of the weights times the numbers."""
        return self._rooted(*self.sizes)

    def factor_x(self) -> Cholesky:
        """The factor of the data's Gram matrix."""
        return self._factor(self.pair.data, self._x)

    def factor_y(self) -> Cholesky:
        """The factor of the centres' Gram matrix."""
        return self._factor(self.pair.centres, self._y)

    def nuclear(self) -> Scaled:
        """Nuclear norm of the cross Gram matrix, of weights that sum to 1."""
        return _above_zero(nuclear_of(self._rooted(1.0, 1.0), self.method, self.tolerance))

    def predicted(self) -> Scaled:
        r"""$P_1^\top R_F^{-1} P_1$."""
        return _above_zero(super().predicted())

    def total_correlation(self, data_fixed: bool) -> Scaled:
        """The sum of squared correlations."""
        return _above_zero(super().total_correlation(data_fixed))

    def correlations(self) -> Correlations:
        """The squares on the smaller side."""
        found = super().correlations()
        tiny = torch.finfo(found.squares.dtype).tiny
        eye = torch.eye(found.squares.shape[-1], dtype=self.dtype, device=self._x.device)
        return found._replace(squares=found.squares + tiny * eye)

    def _projection(self) -> tuple[Tensor, Tensor]:
        cross = self._cross()
        return _row_means(self.pair.data, cross.matrix), cross.log_scale

    def _rooted(self, total_x: float, total_y: float) -> ScaledGram:
        cross = self._cross()
        matrix = self.pair.centres.with_roots(cross.matrix, total_y, -1)
        return ScaledGram(self.pair.data.with_roots(matrix, total_x, -2), cross.log_scale)

    def _cross(self) -> ScaledGram:  # (*B, K, N)
        idle = None
        for side, axis in ((self.pair.centres, -1), (self.pair.data, -2)):
            if side.weights is not None:
                zeros = (side.weights <= 0).unsqueeze(axis)
                idle = zeros if idle is None else idle | zeros
        found = self.pair.kernel.scaled_gram(self._y, self._x, idle)
        units = self._log_unit(self.pair.data, self._x), self._log_unit(self.pair.centres, self._y)
        return ScaledGram(found.matrix, found.log_scale - (units[0] + units[1]) / 2)

    def _log_unit(self, side: WeightedSet, points: Tensor) -> Tensor:  # (*B,)
        """Logarithm of the mean diagonal, that the kernel is divided by."""
        if not self.pair.unit_norm:
            return points.new_zeros(())
        return _log_size(_mean(side, self.pair.kernel.diagonal(points)))

    def _log_norm(self, side: WeightedSet, points: Tensor) -> Tensor:
        found = self.pair.kernel.scaled_gram(points, points)
        norm = _mean(side, _row_means(side, found.matrix))
        return found.log_scale + _log_size(norm) - self._log_unit(side, points)

    def _factor(self, side: WeightedSet, points: Tensor) -> Cholesky:
        unit = self._log_unit(side, points).exp()
        matrix = self.pair.kernel.gram(points, points) / unit[..., None, None]
        return cholesky(side.with_roots(matrix), self.ridge)


def _mean(side: WeightedSet, values: Tensor) -> Tensor:  # (*B, N) -> (*B,)
    if side.weights is None:
        return values.mean(-1)
    return (values * side.weights.to(values.dtype)).sum(-1)


def _row_means(side: WeightedSet, matrix: Tensor) -> Tensor:  # (*B, K, N) -> (*B, K)
    if side.weights is None:
        return matrix.mean(-1)
    return (matrix * side.weights.to(matrix.dtype).unsqueeze(-2)).sum(-1)


def _above_zero(found: Scaled) -> Scaled:
    """Where signed kernels cancel, a number that has a logarithm, and a gradient of zero."""
    return found._replace(value=found.value.clamp(min=torch.finfo(found.value.dtype).tiny))


def _log_size(values: Tensor) -> Tensor:
    return values.abs().clamp(min=torch.finfo(values.dtype).tiny).log()
