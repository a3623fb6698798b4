"""Scalar cost, Cauchy-Schwarz divergence, MMD and energy distance of samples, with error bars.

All are made of means over pairs of rows: within `x`, within `y`, and across. One pass over all
pairs sums them by cells of rows; halves of the samples are halves of the cells.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.comparison.draws import error_of_root, halves, standard_error
from kermix.comparison.permutation import signed_weights
from kermix.comparison.result import Measure
from kermix.comparison.statistics import SAFE, log_cross_means
from kermix.comparison.weightings import InnerProducts
from kermix.costs.formulas import log_scalar_cost
from kermix.kernels.gram import squared_distances
from kermix.kernels.mixed import Layout, mixed_kernel

__all__ = ["mean_measures"]

CELLS = 200  # of a side: enough for error bars
SPLITS = 50  # for each that was asked for: of cells they cost nothing
TILE = 1024
ROUNDING = 64 * torch.finfo(torch.float64).eps


@dataclass(frozen=True)
class Cells:
    """Rows of both samples in random cells of equal size, up to one row; those of `x` first."""

    points: Tensor  # (N, d), cell by cell
    order: Tensor  # (N,), which of the given rows these are
    sizes: Tensor  # (B,)
    of_x: int
    n: int

    @classmethod
    def of(cls, x: Tensor, y: Tensor, generator: torch.Generator) -> "Cells":
        orders, sizes, offset = [], [], 0
        for count in (len(x), len(y)):
            orders.append(torch.randperm(count, generator=generator) + offset)
            cells = min(count, CELLS)
            sizes.append(torch.full((cells,), count // cells))
            sizes[-1][: count % cells] += 1
            offset += count
        order = torch.cat(orders)
        return cls(torch.cat([x, y])[order], order, torch.cat(sizes), len(sizes[0]), len(x))

    @property
    def starts(self) -> Any:  # (B,), of NumPy
        """Where each cell begins."""
        return (self.sizes.cumsum(0) - self.sizes).numpy()


@dataclass(frozen=True)
class PairMeans:
    """Means of a function of pairs of rows under several selections."""

    xx: Tensor  # (P,)
    xy: Tensor
    yy: Tensor

    def squared_distance(self) -> Tensor:
        """Squared distance of means in the space of a kernel; nothing within rounding is kept."""
        square = self.xx + self.yy - 2 * self.xy
        return torch.where(square.abs() <= ROUNDING * self.xy.abs(), 0.0, square)

    def divergence(self, log_xy: Tensor) -> Tensor:
        """Cauchy-Schwarz divergence; of halves, whose means are corrected, it may be negative."""
        log_xx = self.xx.log()
        products = InnerProducts(log_xx, log_xy, self.yy.log())
        found = log_xx - log_scalar_cost(products, normalized=False)
        return torch.where(found.abs() <= ROUNDING, 0.0, found)


def mean_measures(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    grid: Sequence[float],
    count: int,
    labels: Tensor,  # (E, n + m), bool
    generator: torch.Generator,
    layout: Layout | None = None,
) -> list[Measure]:
    """Scalar cost, Cauchy-Schwarz divergence and MMD at each variance, and energy distance.

    Args:
        x: One sample.
        y: The other.
        grid: Variances.
        count: Splits into halves behind the error bars.
        labels: Exchanges of labels behind what measures would be, were both samples one.
        generator: Source of cells and splits.
        layout: Which columns are codes.
    """
    cells = Cells.of(x, y, generator)
    kernels = [mixed_kernel(x, layout, v).cross_terms(x.shape[1]) for v in grid]
    rates = [float(terms.rates[0]) for terms in kernels]
    functions: list[Callable[[Tensor], Tensor]] = [Tensor.sqrt]
    functions += [partial(_kernel, rate) for rate in rates]
    weights = signed_weights(labels[:, cells.order], None)
    sums, exchanged = _sums(cells, functions, *weights, layout)
    chosen = _selections(cells, count, generator)
    rows = len(x), len(y)
    energies = -_means(cells, sums[0], 0.0, *chosen).squared_distance()
    error, alike = _error(energies), _mean(-exchanged[0].squared_distance())
    found = [Measure("energy", None, _least_zero(energies), None, error, alike, rows=rows)]
    each = zip(grid, kernels, rates, sums[1:], exchanged[1:], strict=True)
    for v, terms, rate, total, same in each:
        means = _means(cells, total, 1.0, *chosen)
        near = bool((means.xy > SAFE).all())
        log_xy = means.xy.log() if near else _log_cross(cells, rate, *chosen, layout)
        log_same, far = same.xy.log(), same.xy < SAFE
        if far.any():
            log_same[far] = log_cross_means(cells.points, terms, *(w[far] for w in weights))
        divergences, alike_d = means.divergence(log_xy), same.divergence(log_same)
        value = _least_zero(divergences)
        normalized = math.exp(-value)
        found.append(
            Measure(
                "scalar",
                v,
                normalized * float(means.xx[0]),
                normalized,
                _error((-divergences).exp()),
                _mean((-alike_d).exp()),
                rows=rows,
            )
        )
        found.append(
            Measure(
                "cauchy_schwarz", v, value, None, _error(divergences), _mean(alike_d), rows=rows
            )
        )
        squares = means.squared_distance()
        value, error = _least_zero(squares), _error(squares)
        error = None if error is None else error_of_root(value, error)
        alike = _mean(same.squared_distance().clamp(min=0).sqrt())
        found.append(Measure("mmd", v, math.sqrt(value), None, error, alike, rows=rows))
    return found


def _kernel(rate: float, squares: Tensor) -> Tensor:
    return (squares * -rate).exp_()


def _least_zero(values: Tensor) -> float:
    return max(0.0, float(values[0]))


def _error(values: Tensor) -> float | None:
    """From values of which the first is the given one, and the others those of pairs of halves."""
    return standard_error(values[1:].unflatten(0, (-1, 2))) if len(values) > 1 else None


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _sums(
    cells: Cells,
    functions: Sequence[Callable[[Tensor], Tensor]],
    a: Tensor,
    b: Tensor,
    layout: Layout | None,
) -> tuple[list[Tensor], list[PairMeans]]:
    """Sums of functions of squared distances over pairs of cells, and means under weights."""
    points, starts = cells.points, cells.starts
    bounds = _row_blocks(cells)
    sums = [torch.zeros(len(starts), len(starts), dtype=torch.float64) for _ in functions]
    means = [torch.zeros(3, len(a), dtype=torch.float64) for _ in functions]
    for first, last in bounds:
        rows = slice(int(starts[first]), int(starts[first]) + int(cells.sizes[first:last].sum()))
        squares = squared_distances(points[rows], points, layout=layout)
        # Rounding must not make a row differ from itself.
        squares[torch.arange(len(squares)), torch.arange(rows.start, rows.stop)] = 0
        for total, mean, function in zip(sums, means, functions, strict=True):
            block = function(squares)
            by_cells = np.add.reduceat(block.numpy(), starts, axis=1)
            by_cells = np.add.reduceat(by_cells, starts[first:last] - starts[first], axis=0)
            total[first:last] = torch.from_numpy(by_cells)
            if len(a):
                of_a, of_b = block @ a.mT, block @ b.mT
                rows_a, rows_b = a[:, rows].mT, b[:, rows].mT
                mean += torch.stack([(rows_a * of_a).sum(0), (rows_a * of_b).sum(0),
                                     (rows_b * of_b).sum(0)])  # fmt: skip
    return sums, [PairMeans(*mean) for mean in means]


def _row_blocks(cells: Cells) -> list[tuple[int, int]]:
    """Runs of cells with some thousand rows each: first, and one after the last."""
    step = max(1, TILE // int(cells.sizes.max()))
    count = len(cells.sizes)
    return [(k, min(k + step, count)) for k in range(0, count, step)]


def _selections(cells: Cells, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """All cells, then those of each half: (1 + 2 S, B_x) and (1 + 2 S, B_y), ones and zeros."""
    of_y = len(cells.sizes) - cells.of_x
    count *= SPLITS
    split = halves(cells.of_x, of_y, count, generator)
    found = []
    for members, size in ((split.x, cells.of_x), (split.y, of_y)):
        chosen = torch.zeros(2 * count, size, dtype=torch.float64)
        chosen.scatter_(1, members.flatten(0, 1), 1.0)
        found.append(torch.cat([torch.ones(1, size, dtype=torch.float64), chosen]))
    return found[0], found[1]


def _means(cells: Cells, sums: Tensor, diagonal: float, of_x: Tensor, of_y: Tensor) -> PairMeans:
    """Means over pairs of selected rows, each as if there were all rows.

    Pairs of a row with itself are one in `n` of all; of a half they would be two.
    """
    k = cells.of_x
    sizes = cells.sizes.double()
    count_x, count_y = of_x @ sizes[:k], of_y @ sizes[k:]
    within = []
    for chosen, block, count, total in (
        (of_x, sums[:k, :k], count_x, cells.n),
        (of_y, sums[k:, k:], count_y, len(cells.order) - cells.n),
    ):
        pairs = ((chosen @ block) * chosen).sum(1)
        others = (pairs - count * diagonal) / (count * (count - 1)).clamp(min=1)
        within.append(torch.where(count == total, pairs / total**2,
                                  diagonal / total + (1 - 1 / total) * others))  # fmt: skip
    across = ((of_x @ sums[:k, k:]) * of_y).sum(1) / (count_x * count_y)
    return PairMeans(within[0], across, within[1])


def _log_cross(
    cells: Cells, rate: float, of_x: Tensor, of_y: Tensor, layout: Layout | None
) -> Tensor:  # (P,)
    """Logarithms of means of the kernel across samples that are too far apart for exponentials."""
    k, starts, points = cells.of_x, cells.starts, cells.points
    columns, sizes = starts[k:] - cells.n, cells.sizes.numpy()
    logs = torch.empty(k, len(starts) - k, dtype=torch.float64)
    for first, last in _row_blocks(cells):
        last = min(last, k)
        if first >= k:
            break
        rows = slice(int(starts[first]), int(starts[first]) + int(sizes[first:last].sum()))
        squares = squared_distances(points[rows], points[cells.n :], layout=layout).numpy()
        within = starts[first:last] - starts[first]
        nearest = np.minimum.reduceat(np.minimum.reduceat(squares, columns, 1), within, 0)
        spread = np.repeat(np.repeat(nearest, sizes[first:last], 0), sizes[k:], 1)
        shares = np.exp(rate * (spread - squares))
        total = np.add.reduceat(np.add.reduceat(shares, columns, 1), within, 0)
        logs[first:last] = torch.from_numpy(np.log(total) - rate * nearest)
    count = (of_x @ cells.sizes[:k].double()) * (of_y @ cells.sizes[k:].double())
    both = zip(of_x.bool(), of_y.bool(), strict=True)
    return torch.stack([logs[i][:, j].flatten().logsumexp(0) for i, j in both]) - count.log()
