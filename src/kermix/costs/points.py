"""Statistics of points for the costs: by the Gaussian kernel between them, or by any other.

Gram matrices are held whole. Those of other kernels than the Gaussian may be signed.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kermix.checks import (
    LARGEST_EXPONENT,
    check_pair,
    finite_in,
    normalized_pair,
    solve_dtype,
    working_dtype,
)
from kermix.costs.formulas import Correlations, FormulaName, Scaled, Weights
from kermix.errors import OptionError
from kermix.info import Info
from kermix.kernels.gaussian import GaussianKernel, Kernel, KernelTerms, as_kernel
from kermix.kernels.gram import ScaledGram, gram_matrix, scaled_gram
from kermix.kernels.means import log_kernel_means
from kermix.kernels.others import PointKernel
from kermix.linalg.cholesky import Cholesky, cholesky, default_ridge, sqrt_or_zero
from kermix.linalg.nuclear import NuclearMethod, nuclear_norm

__all__ = [
    "DEFAULTS",
    "GaussianSet",
    "GaussianStatistics",
    "GramStatistics",
    "KernelStatistics",
    "Numerics",
    "PointSet",
    "PointStatistics",
    "SetStatistics",
    "WeightedSet",
    "predicted_by",
]


@dataclass(frozen=True)
class Numerics:
    """How statistics are computed.

    Attributes:
        solves: Whether systems are solved, in float64; else all is in the samples' dtype.
        ridge: Ridge of the Gram matrices; by default that of the samples' dtype.
        chunk: Side of the tiles in which means of the Gaussian kernel are evaluated.
        method: How the nuclear norm is computed.
        tolerance: Relative error that it may have.
    """

    solves: bool = False
    ridge: float | None = None
    chunk: int | None = None
    method: NuclearMethod = "auto"
    tolerance: float = 1e-4

    def refuse_tiles(self, what: str) -> None:
        """Refuse a size of tiles for what is not evaluated in tiles."""
        if self.chunk is not None:
            raise OptionError(
                f"chunk={self.chunk} is for points under the Gaussian kernel, not {what}."
            )


DEFAULTS = Numerics()


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
        if self.weights is None:
            return matrix
        roots = self.roots(matrix.dtype, len(self) if total is None else total)
        assert roots is not None
        for direction in (-1, -2) if axis is None else (axis,):
            matrix = matrix * roots.unsqueeze(direction)
        return matrix

    def mean(self, values: Tensor) -> Tensor:  # (*B, N) -> (*B,)
        """The weighted mean of numbers at the points."""
        if self.weights is None:
            return values.mean(-1)
        return (values * self.weights.to(values.dtype)).sum(-1)

    def row_means(self, matrix: Tensor) -> Tensor:  # (*B, K, N) -> (*B, K)
        """The weighted mean of each row."""
        if self.weights is None:
            return matrix.mean(-1)
        return (matrix * self.weights.to(matrix.dtype).unsqueeze(-2)).sum(-1)

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


class GaussianSet(WeightedSet, ABC):
    """A weighted set whose points carry a Gaussian each."""

    @abstractmethod
    def log_norm(self, dtype: torch.dtype, chunk: int | None) -> Tensor:  # (*B,)
        """Logarithm of the inner product of the density with itself."""

    @abstractmethod
    def gram_factor(self, dtype: torch.dtype, ridge: float) -> Cholesky:
        """Factor of the Gram matrix of the Gaussians, scaled by the roots of weights times N."""


@dataclass(frozen=True)
class PointSet(GaussianSet):
    """Points whose Gaussians all have one variance."""

    terms: KernelTerms

    def log_norm(self, dtype: torch.dtype, chunk: int | None) -> Tensor:  # (*B,)
        """Logarithm of the inner product of the density with itself."""
        rows = log_kernel_means(self.points, self.points, self.terms, self.weights, dtype, chunk)
        return self.log_mean(rows)

    def gram_factor(self, dtype: torch.dtype, ridge: float) -> Cholesky:
        """Factor of the Gram matrix of the Gaussians, scaled by the roots of weights times N."""
        matrix = gram_matrix(self.points, self.points, self.terms, dtype)
        return cholesky(self.with_roots(matrix), ridge)


def predicted_by(projection: Tensor, log_scale: Tensor, centers: Cholesky) -> Scaled:
    r"""$P_1^\top R_F^{-1} P_1$ with `P_1 = exp(log_scale) projection`, (*B, K)."""
    square = centers.whitened_square(projection.unsqueeze(-1))
    return Scaled(square, 2 * log_scale, Info("cholesky", centers.ridge))


class GramStatistics(ABC):
    """Statistics that follow from the cross Gram matrix and factors of the two others."""

    @abstractmethod
    def projection(self) -> tuple[Tensor, Tensor]:  # (*B, K), (*B,)
        """Inner products of the centers' Gaussians with the data density, and their log scale."""

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
        """The sum of the squares of canonical correlations; of whitened centers, if data are."""
        cross, centers = self.cross(), self.factor_y()
        data = None if data_fixed else self.factor_x()
        used = centers.ridge if data is None else torch.maximum(centers.ridge, data.ridge)
        square = centers.whitened_square(cross.matrix, data)
        return Scaled(square, 2 * cross.log_scale, Info("cholesky", used))

    def correlations(self) -> Correlations:
        """The squares on the smaller side."""
        cross, centers, data = self.cross(), self.factor_y(), self.factor_x()
        matrix = data.whiten(centers.whiten(cross.matrix).mT).mT
        if matrix.shape[-2] > matrix.shape[-1]:
            matrix = matrix.mT
        info = Info("cholesky", torch.maximum(centers.ridge, data.ridge))
        return Correlations(matrix @ matrix.mT, 2 * cross.log_scale, info)


class SetStatistics(GramStatistics):
    """Statistics of two weighted sets, whatever functions their points carry.

    Attributes:
        data: The data.
        centers: The centers.
        kernel: The kernel between points; None between two mixtures.
        numerics: How everything is computed.
    """

    data: WeightedSet
    centers: WeightedSet
    kernel: GaussianKernel | PointKernel | None
    numerics: Numerics

    @abstractmethod
    def log_cross(self) -> Tensor:  # (*B,)
        """Logarithm of the size of the inner product of the densities."""

    @abstractmethod
    def log_norm_x(self) -> Tensor:  # (*B,)
        """That of the data density with itself."""

    @abstractmethod
    def log_norm_y(self) -> Tensor:  # (*B,)
        """That of the centers' density with itself."""

    @abstractmethod
    def cross_gram(self, total_x: float = 1.0, total_y: float = 1.0) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix times the roots of the weights, which sum to the given totals."""

    @abstractmethod
    def plain_gram(self, of: Literal["xy", "xx", "yy"]) -> Tensor:  # (*B, N, K)
        """A Gram matrix without weights: its rows are the first side, its columns the second."""

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return self.data.points.device

    @property
    def working_dtype(self) -> torch.dtype:
        """The dtype in which the samples are used: float32 for half precision."""
        return working_dtype(self.data.points, self.centers.points)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which everything is computed."""
        return solve_dtype(self.device) if self.numerics.solves else self.working_dtype

    @property
    def ridge(self) -> float:
        """The ridge asked for, or the default of the samples' dtype."""
        asked = self.numerics.ridge
        return default_ridge(self.working_dtype) if asked is None else asked

    @property
    def sizes(self) -> tuple[float, float]:
        """Numbers of points."""
        return len(self.data), len(self.centers)

    @property
    def weighted(self) -> bool:
        """Whether any weights were given."""
        return self.data.weights is not None or self.centers.weights is not None

    @property
    def log_traces(self) -> tuple[float, float]:
        """Of weights that sum to 1, or of points that count 1 each."""
        x, y = (0.0 if s.weights is not None else math.log(len(s))
                for s in (self.data, self.centers))  # fmt: skip
        return x, y

    def in_callers_dtype(self, value: Tensor) -> Tensor:
        """The value in the dtype of the samples, finite if it is finite here."""
        given = torch.promote_types(self.data.points.dtype, self.centers.points.dtype)
        return finite_in(value, given)

    def answer(
        self, cost: FormulaName, found: tuple[Tensor, Info], normalized: bool, log: bool
    ) -> tuple[Tensor, Info]:
        """A cost, or its logarithm, and how it was computed.

        Args:
            cost: Which cost.
            found: Its logarithm, and what its formula tells.
            normalized: Whether it is the form in [0, 1].
            log: Whether the logarithm is asked for.
        """
        log_cost, info = found
        return self.in_callers_dtype(log_cost if log else log_cost.exp()), info

    def cross(self) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix, scaled by the roots of the weights times the numbers."""
        return self.cross_gram(*self.sizes)

    def nuclear(self) -> Scaled:
        """Nuclear norm of the cross Gram matrix, of weights that sum to 1."""
        cross, how = self.cross_gram(), self.numerics
        norm, info = nuclear_norm(
            cross.matrix, method=how.method, tolerance=how.tolerance, return_info=True
        )
        return Scaled(norm, cross.log_scale, info)


class GaussianStatistics(SetStatistics):
    """Statistics of Gaussians, whose inner products are positive and have logarithms."""

    data: GaussianSet
    centers: GaussianSet
    kernel: GaussianKernel | None

    @abstractmethod
    def log_projection(self) -> Tensor:  # (*B, K)
        """Logarithm of the inner product of each center's Gaussian with the data density."""

    @abstractmethod
    def log_masses(self) -> Tensor | None:  # (*B, K)
        """Logarithms of what turns weights of scaled Gaussians into weights; None: nothing."""

    def log_cross(self) -> Tensor:  # (*B,)
        """Logarithm of the inner product of the densities."""
        return self.centers.log_mean(self.log_projection())

    def projection(self) -> tuple[Tensor, Tensor]:  # (*B, K), (*B,)
        """Inner products of the centers' Gaussians, scaled by the roots of their weights."""
        return self.centers.rooted_exp(self.log_projection())

    def log_norm_x(self) -> Tensor:  # (*B,)
        """That of the data density with itself."""
        return self.data.log_norm(self.dtype, self.numerics.chunk)

    def log_norm_y(self) -> Tensor:  # (*B,)
        """That of the centers' density with itself."""
        return self.centers.log_norm(self.dtype, self.numerics.chunk)

    def factor_x(self) -> Cholesky:
        """The factor of the data's Gram matrix."""
        return self.data.gram_factor(self.dtype, self.ridge)

    def factor_y(self) -> Cholesky:
        """The factor of the centers' Gram matrix."""
        return self.centers.gram_factor(self.dtype, self.ridge)


class PointStatistics(GaussianStatistics):
    """Statistics of points under the Gaussian kernel.

    Args:
        x: Data, shape (*B, N, d).
        y: Centers, shape (*B, K, d).
        v: What a user may give as a variance.
        weights: Weights of the data and of the centers, or None.
        numerics: How everything is computed.
        scale: Of which Gaussians the cross kernel is: of the kernel itself, of unit norm (see
            `kermix.GaussianKernel`), or of unit mass, for `kermix.vector_weights`.
    """

    data: PointSet
    centers: PointSet
    kernel: GaussianKernel

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        v: Kernel | None,
        weights: Weights = (None, None),
        numerics: Numerics = DEFAULTS,
        scale: Literal["kernel", "norm", "mass"] = "kernel",
    ) -> None:
        check_pair(x, y)
        if v is None:
            raise OptionError("v is missing: give a variance, or the name of a rule for one.")
        self.numerics, dimension = numerics, x.shape[-1]
        self.kernel = as_kernel(v, x)
        a, b = normalized_pair(x, y, weights)
        if scale == "mass":
            self.terms = self.kernel.density_terms(dimension)
        else:
            self.terms = self.kernel.cross_terms(dimension, scale == "norm")
        of_x = of_y = self.terms
        if not self.kernel.symmetric:
            of_x, of_y = self.kernel.data_terms(dimension), self.kernel.center_terms(dimension)
        self.data, self.centers = PointSet(x, a, of_x), PointSet(y, b, of_y)

    def log_projection(self) -> Tensor:  # (*B, K)
        """Logarithm of the inner product of each center's Gaussian with the data density."""
        x, y = self.data, self.centers
        chunk = self.numerics.chunk
        return log_kernel_means(y.points, x.points, self.terms, x.weights, self.dtype, chunk)

    def log_masses(self) -> None:
        """Nothing: the kernel of unit mass has the weights of the Gaussians themselves."""

    def cross_gram(self, total_x: float = 1.0, total_y: float = 1.0) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix times the roots of the weights, which sum to the given totals."""
        x, y = self.data, self.centers
        cross = scaled_gram(y.points, x.points, self.terms, self.dtype, y.weights, x.weights)
        matrix = x.with_roots(y.with_roots(cross.matrix, total_y, -1), total_x, -2)
        return ScaledGram(matrix, cross.log_scale)

    def plain_gram(self, of: Literal["xy", "xx", "yy"]) -> Tensor:  # (*B, N, K)
        """A Gram matrix without weights."""
        x, y = self.data, self.centers
        terms = {"xy": self.terms, "xx": x.terms, "yy": y.terms}[of]
        rows, columns = (x.points if side == "x" else y.points for side in of)
        return gram_matrix(rows, columns, terms, self.dtype)


class KernelStatistics(SetStatistics):
    """Statistics of points under any kernel.

    Args:
        x: Data, shape (*B, N, d).
        y: Centers, shape (*B, K, d).
        kernel: The kernel; what it leaves to the data is taken from `x`.
        weights: Weights of the data and of the centers, or None.
        numerics: How everything is computed.
        unit_norm: Whether both sets are scaled so that their kernels have the mean diagonal 1,
            which the bounds rest on. Kernels of the distance have it anyhow.
    """

    kernel: PointKernel

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        kernel: PointKernel,
        weights: Weights = (None, None),
        numerics: Numerics = DEFAULTS,
        unit_norm: bool = False,
    ) -> None:
        check_pair(x, y)
        numerics.refuse_tiles("another kernel")
        a, b = normalized_pair(x, y, weights)
        self.numerics, self.unit_norm = numerics, unit_norm
        self.kernel = kernel.fitted(x)
        self.data, self.centers = WeightedSet(x, a), WeightedSet(y, b)
        self._x = x.to(self.dtype)
        self._y = self._x if y is x else y.to(self.dtype)

    def log_cross(self) -> Tensor:  # (*B,)
        """Logarithm of the size of the means' inner product; it is squared, so no sign is lost."""
        values, log_scale = self._projection()
        return log_scale + _log_size(self.centers.mean(values))

    def log_norm_x(self) -> Tensor:  # (*B,)
        """Logarithm of the squared norm of the data's mean."""
        return self._log_norm(self.data, self._x)

    def log_norm_y(self) -> Tensor:  # (*B,)
        """That of the centers' mean."""
        return self._log_norm(self.centers, self._y)

    def projection(self) -> tuple[Tensor, Tensor]:  # (*B, K), (*B,)
        """Inner products with the data's mean, scaled by the roots of the centers' weights."""
        values, log_scale = self._projection()
        roots = self.centers.roots(self.dtype, len(self.centers))
        return values if roots is None else values * roots, log_scale

    def factor_x(self) -> Cholesky:
        """The factor of the data's Gram matrix."""
        return self._factor(self.data, self._x)

    def factor_y(self) -> Cholesky:
        """The factor of the centers' Gram matrix."""
        return self._factor(self.centers, self._y)

    def nuclear(self) -> Scaled:
        """Nuclear norm of the cross Gram matrix, of weights that sum to 1."""
        return _above_zero(super().nuclear())

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

    def cross_gram(self, total_x: float = 1.0, total_y: float = 1.0) -> ScaledGram:  # (*B, K, N)
        """The cross Gram matrix times the roots of the weights, which sum to the given totals."""
        cross = self._cross()
        matrix = self.centers.with_roots(cross.matrix, total_y, -1)
        return ScaledGram(self.data.with_roots(matrix, total_x, -2), cross.log_scale)

    def plain_gram(self, of: Literal["xy", "xx", "yy"]) -> Tensor:  # (*B, N, K)
        """A Gram matrix without weights."""
        rows, columns = (self._x if side == "x" else self._y for side in of)
        return self.kernel.gram(rows, columns)

    def _projection(self) -> tuple[Tensor, Tensor]:
        cross = self._cross()
        return self.data.row_means(cross.matrix), cross.log_scale

    def _cross(self) -> ScaledGram:  # (*B, K, N)
        idle = None
        for side, axis in ((self.centers, -1), (self.data, -2)):
            if side.weights is not None:
                zeros = (side.weights <= 0).unsqueeze(axis)
                idle = zeros if idle is None else idle | zeros
        found = self.kernel.scaled_gram(self._y, self._x, idle)
        units = self._log_unit(self.data, self._x), self._log_unit(self.centers, self._y)
        return ScaledGram(found.matrix, found.log_scale - (units[0] + units[1]) / 2)

    def _log_unit(self, side: WeightedSet, points: Tensor) -> Tensor:  # (*B,)
        """Logarithm of the mean diagonal, that the kernel is divided by."""
        if not self.unit_norm:
            return points.new_zeros(())
        return _log_size(side.mean(self.kernel.diagonal(points)))

    def _log_norm(self, side: WeightedSet, points: Tensor) -> Tensor:
        found = self.kernel.scaled_gram(points, points)
        norm = side.mean(side.row_means(found.matrix))
        return found.log_scale + _log_size(norm) - self._log_unit(side, points)

    def _factor(self, side: WeightedSet, points: Tensor) -> Cholesky:
        unit = self._log_unit(side, points).exp()
        matrix = self.kernel.gram(points, points) / unit[..., None, None]
        return cholesky(side.with_roots(matrix), self.ridge)


def _above_zero(found: Scaled) -> Scaled:
    """Where signed kernels cancel, a number that has a logarithm, and a gradient of zero."""
    return found._replace(value=found.value.clamp(min=torch.finfo(found.value.dtype).tiny))


def _log_size(values: Tensor) -> Tensor:
    return values.abs().clamp(min=torch.finfo(values.dtype).tiny).log()
