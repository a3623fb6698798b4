"""SVD, matrix and vector costs of samples with their error bars, from whole Gram matrices."""

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.costs.formulas import Scaled, log_matrix_cost, log_svd_cost, log_vector_cost
from kermix.costs.points import GramStatistics
from kermix.info import Info
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import KernelTerms
from kermix.kernels.gram import ScaledGram, gram_matrix, scaled_gram
from kermix.kernels.mixed import mixed_kernel
from kermix.linalg.cholesky import Cholesky, cholesky
from kermix.two_sample.cost_statistics import ROUNDING
from kermix.two_sample.error_bars import (
    LARGEST_SCATTER,
    Groups,
    Halves,
    Measure,
    error_of_root,
    jackknife_error,
)

__all__ = ["dense_measures"]


class LogCosts(NamedTuple):
    """Logarithms of the normalized costs."""

    svd: float
    matrix: float
    vector: float


def dense_measures(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    v: float,
    ridge: float,
    groups: Groups,
    halves: Halves,
    labels: Tensor,  # (E, n + m), bool
    layout: Layout | None = None,
) -> list[Measure]:
    """SVD, matrix and vector costs, and the Bures distance.

    Args:
        x: One sample.
        y: The other.
        v: The variance.
        ridge: Ridge of the matrix and the vector cost.
        groups: What is left without a group of rows each, behind the error bars.
        halves: Splits of the rows, which tell how much of that is due to rows together.
        labels: Exchanges of labels behind what the measures would be, were both samples one.
        layout: Which columns are codes.
    """
    terms = mixed_kernel(x, layout, v).cross_terms(x.shape[1])
    own_x, own_y = (gram_matrix(p, p, terms, p.dtype) for p in (x, y))
    cross = scaled_gram(y, x, terms, x.dtype)
    given = _log_costs(cross, own_x, own_y, ridge)
    same = _exchanged(torch.cat([x, y]), terms, labels, ridge)

    def costs_of(parts_x: Iterable[Tensor], parts_y: Iterable[Tensor]) -> Tensor:
        return torch.tensor([
            _log_costs(ScaledGram(cross.matrix[j][:, i], cross.log_scale), own_x[i][:, i],
                       own_y[j][:, j], ridge)
            for i, j in zip(parts_x, parts_y, strict=True)
        ], dtype=x.dtype)  # fmt: skip

    drawn = costs_of(groups.x, groups.y)
    split = costs_of(halves.x.flatten(0, 1), halves.y.flatten(0, 1))
    n, m = rows = len(x), len(y)
    bounds = (math.sqrt(n * m), min(n, m), float(own_x.mean()))
    found = []
    for k, (name, bound) in enumerate(zip(LogCosts._fields, bounds, strict=True)):
        value = math.exp(given[k])
        error = None
        if len(groups):
            error = _error(name, given[k], drawn[:, k], split[:, k].unflatten(0, (-1, 2)))
        alike = _mean([math.exp(costs[k]) for costs in same])
        found.append(Measure(name, v, value * bound, value, error, alike, rows=rows))
    fidelity, error = found[0].normalized, found[0].error
    assert fidelity is not None
    square = max(0.0, 2 - 2 * fidelity)
    error = None if error is None else error_of_root(square, 2 * error)
    alike = _mean([math.sqrt(max(0.0, 2 - 2 * math.exp(costs.svd))) for costs in same])
    found.append(Measure("bures", v, math.sqrt(square), None, error, alike, rows=rows))
    return found


def _error(name: str, log_value: float, drawn: Tensor, split: Tensor) -> float | None:
    r"""Standard error of a normalized cost; None: cannot tell.

    One minus a vector cost depends on a few points that others do not reach, and is skewed as
    lognormal numbers are: with the standard error `s` of its logarithm it is
    $\sqrt{e^{s^2} - 1}$ times what is missing. Where `s` is more than one, it depends on
    points that the samples do not have.

    Args:
        name: Which cost.
        log_value: Its logarithm.
        drawn: That of costs without a group each, (G,).
        split: That of costs of halves, (S, 2).
    """
    if name != "vector":
        return jackknife_error(drawn.exp(), split.exp())
    scatter = jackknife_error(
        *((-part.expm1()).clamp(min=ROUNDING).log() for part in (drawn, split))
    )
    if scatter > LARGEST_SCATTER:
        return None
    return max(0.0, -math.expm1(log_value)) * math.sqrt(math.expm1(scatter**2))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _exchanged(points: Tensor, terms: KernelTerms, labels: Tensor, ridge: float) -> list[LogCosts]:
    if not len(labels):
        return []
    gram = gram_matrix(points, points, terms, points.dtype)
    zero = gram.new_zeros(())
    return [
        _log_costs(ScaledGram(gram[~of_x][:, of_x], zero), gram[of_x][:, of_x],
               gram[~of_x][:, ~of_x], ridge)
        for of_x in labels
    ]  # fmt: skip


def _log_costs(cross: ScaledGram, own_x: Tensor, own_y: Tensor, ridge: float) -> LogCosts:
    pair = MatrixStatistics(cross, own_x, own_y, ridge)
    return LogCosts(
        float(log_svd_cost(pair, normalized=True)[0]),
        float(log_matrix_cost(pair, "trace", normalized=True)[0]),
        float(log_vector_cost(pair, normalized=True)[0]),
    )


class MatrixStatistics(GramStatistics):
    """Statistics of points without weights, from Gram matrices that are known already.

    Args:
        cross: The cross Gram matrix, (K, N).
        own_x: That of the data, (N, N).
        own_y: That of the centres, (K, K).
        ridge: Ridge of the latter two.
    """

    weighted = False

    def __init__(self, cross: ScaledGram, own_x: Tensor, own_y: Tensor, ridge: float) -> None:
        self._cross, self._own_x, self._own_y = cross, own_x, own_y
        self._factor_x, self._factor_y = cholesky(own_x, ridge), cholesky(own_y, ridge)
        self.sizes = len(own_x), len(own_y)
        self.log_traces = math.log(len(own_x)), math.log(len(own_y))

    def log_cross(self) -> Tensor:
        """Logarithm of the mean of the cross Gram matrix."""
        return self._cross.log_scale + self._cross.matrix.mean().log()

    def log_norm_x(self) -> Tensor:
        """That of the data's Gram matrix."""
        return self._own_x.mean().log()

    def log_norm_y(self) -> Tensor:
        """That of the centres' Gram matrix."""
        return self._own_y.mean().log()

    def projection(self) -> tuple[Tensor, Tensor]:  # (K,), ()
        """Means of the rows, and their log scale."""
        return self._cross.matrix.mean(1), self._cross.log_scale

    def cross(self) -> ScaledGram:
        """The cross Gram matrix."""
        return self._cross

    def factor_x(self) -> Cholesky:
        """The factor of the data's Gram matrix, which two costs need."""
        return self._factor_x

    def factor_y(self) -> Cholesky:
        """The factor of the centres' Gram matrix."""
        return self._factor_y

    def nuclear(self) -> Scaled:
        """From singular values alone, because no gradient is asked for."""
        norm = torch.linalg.svdvals(self._cross.matrix).sum()
        return Scaled(norm, self._cross.log_scale, Info("svd"))
