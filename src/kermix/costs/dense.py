"""Statistics of the costs from Gram matrices that are held whole."""

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kermix.costs.components import MixturePair
from kermix.costs.formulas import Correlations, Scaled
from kermix.costs.samples import SamplePair, WeightedPair
from kermix.info import Info
from kermix.kernels.gram import ScaledGram
from kermix.linalg.cholesky import Cholesky
from kermix.linalg.nuclear import NuclearMethod, nuclear_norm

__all__ = ["GramStatistics", "SampleStatistics", "nuclear_of", "predicted_by"]


def predicted_by(projection: Tensor, log_scale: Tensor, centres: Cholesky) -> Scaled:
    r"""$P_1^\top R_F^{-1} P_1$ with `P_1 = exp(log_scale) projection`, (*B, K)."""
    whitened = centres.whiten(projection.unsqueeze(-1)).squeeze(-1)
    info = Info("cholesky", centres.ridge)
    return Scaled(whitened.square().sum(-1), 2 * log_scale, info)


def nuclear_of(cross: ScaledGram, method: NuclearMethod, tolerance: float) -> Scaled:
    """The nuclear norm of a cross Gram matrix."""
    norm, info = nuclear_norm.with_info(cross.matrix, method=method, tolerance=tolerance)
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
