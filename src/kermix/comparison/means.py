"""Scalar cost, Cauchy-Schwarz divergence, MMD and energy distance of samples, with error bars.

All are made of means over pairs of rows: within `x`, within `y`, and across. One pass over all
pairs finds each row's part in them, and how much pairs differ beyond what their rows add.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from kermix.comparison.draws import LARGEST_SCATTER, error_of_root, jackknife, standard_error
from kermix.comparison.permutation import signed_weights
from kermix.comparison.result import Measure
from kermix.comparison.statistics import SAFE, log_cross_means
from kermix.comparison.weightings import InnerProducts
from kermix.costs.formulas import log_scalar_cost
from kermix.kernels.gram import squared_distances
from kermix.kernels.mixed import Layout, mixed_kernel

__all__ = ["mean_measures", "unbiased_distance_error"]

TILE = 1024
ROUNDING = 64 * torch.finfo(torch.float64).eps


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
        """Cauchy-Schwarz divergence; without a row, as means are corrected, it may be negative."""
        log_xx = self.xx.log()
        products = InnerProducts(log_xx, log_xy, self.yy.log())
        found = log_xx - log_scalar_cost(products, normalized=False)
        return torch.where(found.abs() <= ROUNDING, 0.0, found)


@dataclass(frozen=True)
class RowSums:
    """Sums of a function over the pairs of each row with the rows of one side, but itself."""

    means: Tensor  # (R,)
    spreads: Tensor  # (R,), sums of squares around these means

    def without_each(self, weight: int) -> Tensor:  # (1 + R,)
        """The mean of all rows, and of those without each, which take part `weight` times."""
        mean, rest = self.means.mean(), len(self.means) - weight
        return torch.cat([mean[None], mean + weight * (mean - self.means) / max(1, rest)])

    def interaction_within(self) -> float:
        r"""Second moment of what is left of $h(x_i, x_j)$ without what either row adds.

        It comes from pairs of different rows alone, without bias: of a kernel that is almost
        diagonal they are next to nothing.
        """
        n = len(self.means)
        if n < 4:
            return 0.0
        rows = (self.means - self.means.mean()).square().sum() * (n * (n - 1) / (n - 2))
        return _least_zero(self.spreads.sum() - rows) / (n * (n - 3))

    def interaction_across(self, columns: "RowSums") -> float:
        """The same of pairs of rows of both sides."""
        n, m = len(self.means), len(columns.means)
        rows = n * (columns.means - columns.means.mean()).square().sum()
        return _least_zero(self.spreads.sum() - rows) / max(1, (n - 1) * (m - 1))


@dataclass(frozen=True)
class Pairs:
    """Sums of a function of pairs of rows, which is `diagonal` of a row with itself."""

    xx: RowSums
    xy: RowSums
    yx: RowSums
    yy: RowSums
    diagonal: float

    @property
    def sizes(self) -> tuple[int, int]:
        """How many rows each side has."""
        return len(self.xx.means), len(self.yy.means)

    def means(self) -> PairMeans:  # (1 + n + m,)
        """Means over all pairs, then without each row of `x`, then without each row of `y`.

        Pairs of a row with itself are one in `n` of all; without a row they would be more.
        """
        (n, m), d = self.sizes, self.diagonal
        xx = (d + (n - 1) * self.xx.without_each(2)) / n
        yy = (d + (m - 1) * self.yy.without_each(2)) / m
        xy = torch.cat([self.xy.without_each(1), self.yx.without_each(1)[1:]])
        return PairMeans(torch.cat([xx, xx[0].expand(m)]), xy,
                         torch.cat([yy[0].expand(1 + n), yy[1:]]))  # fmt: skip

    def unbiased_distances(self) -> Tensor:  # (1 + n + m,)
        """Squared distance of means without pairs of a row and itself, then without each row."""
        n, m = self.sizes
        xx, yy = self.xx.without_each(2), self.yy.without_each(2)
        xy = torch.cat([self.xy.without_each(1), self.yx.without_each(1)[1:]])
        within_x = torch.cat([xx, xx[0].expand(m)])
        within_y = torch.cat([yy[0].expand(1 + n), yy[1:]])
        return within_x + within_y - 2 * xy

    def interactions(self, xx: float = 1.0, xy: float = 1.0, yy: float = 1.0) -> float:
        """The part `B` of the variance of the three means' sum, each relative to its scale."""
        n, m = self.sizes
        within_x = 2 * (n - 1) / n**3 * self.xx.interaction_within()
        within_y = 2 * (m - 1) / m**3 * self.yy.interaction_within()
        across = self.xy.interaction_across(self.yx) / (n * m)
        return within_x / xx**2 + (2 * math.sqrt(across) / xy) ** 2 + within_y / yy**2


def mean_measures(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    grid: Sequence[float],
    labels: Tensor,  # (E, n + m), bool
    errors: bool = True,
    layout: Layout | None = None,
) -> list[Measure]:
    """Scalar cost, Cauchy-Schwarz divergence and MMD at each variance, and energy distance.

    Args:
        x: One sample.
        y: The other.
        grid: Variances.
        labels: Exchanges of labels behind what measures would be, were both samples one.
        errors: Whether error bars are wanted; a single row has none.
        layout: Which columns are codes.
    """
    rows = len(x), len(y)
    errors = errors and min(rows) > 1
    points = torch.cat([x, y])
    kernels = [mixed_kernel(x, layout, v).cross_terms(x.shape[1]) for v in grid]
    rates = [float(terms.rates[0]) for terms in kernels]
    functions: list[Callable[[Tensor], Tensor]] = [Tensor.sqrt]
    functions += [partial(_kernel, rate) for rate in rates]
    weights = signed_weights(labels, None)
    pairs, exchanged = _sums(points, len(x), functions, *weights, layout)

    def error(values: Tensor, interactions: float) -> float | None:
        if not errors:
            return None
        of_x, of_y = values[1:].split(rows)
        return standard_error(jackknife(of_x) + jackknife(of_y), interactions)

    energies = -pairs[0].means().squared_distance()
    bar, alike = error(energies, pairs[0].interactions()), _mean(-exchanged[0].squared_distance())
    found = [Measure("energy", None, _least_zero(energies[0]), None, bar, alike, rows=rows)]
    each = zip(grid, kernels, rates, pairs[1:], exchanged[1:], strict=True)
    for v, terms, rate, pair, same in each:
        means = pair.means()
        logs = pair.xy.means.log(), pair.yx.means.log()
        near = all(float(log.sort().values[-2:][0]) > math.log(SAFE) for log in logs)
        if not near:
            logs = _log_cross(x, y, rate, layout)
        log_same, far = same.xy.log(), same.xy < SAFE
        if far.any():
            log_same[far] = log_cross_means(points, terms, *(w[far] for w in weights))
        divergences = means.divergence(_without_each(*logs))
        alike_d = same.divergence(log_same)
        value = _least_zero(divergences[0])
        # Of sets so far apart that numbers underflow a few pairs count, which rows tell.
        scale = float(means.xy[0]) if near else math.inf
        joint = pair.interactions(float(means.xx[0]), scale, float(means.yy[0]))
        bar = error(divergences, joint)
        found.append(Measure("cauchy_schwarz", v, value, None, bar, _mean(alike_d), rows=rows))
        normalized = math.exp(-value)
        full = normalized * float(means.xx[0])
        # With a larger scatter of its logarithm, its own is due to samples that are not these.
        tells = bar is not None and bar <= LARGEST_SCATTER
        bar = error((-divergences).exp(), normalized**2 * joint) if tells else None
        alike = _mean((-alike_d).exp())
        found.append(Measure("scalar", v, full, normalized, bar, alike, rows=rows))
        squares = means.squared_distance()
        value, bar = _least_zero(squares[0]), error(squares, pair.interactions())
        bar = None if bar is None else error_of_root(value, bar)
        alike = _mean(same.squared_distance().clamp(min=0).sqrt())
        found.append(Measure("mmd", v, math.sqrt(value), None, bar, alike, rows=rows))
    return found


def _kernel(rate: float, squares: Tensor) -> Tensor:
    return (squares * -rate).exp_()


def _least_zero(value: Tensor) -> float:
    return max(0.0, float(value))


def _mean(values: Tensor) -> float | None:
    return float(values.mean()) if len(values) else None


def _tiles(n: int, m: int) -> Iterator[slice]:
    """Slices of rows, of one side each."""
    for first, last in ((0, n), (n, n + m)):
        for start in range(first, last, TILE):
            yield slice(start, min(start + TILE, last))


def _sums(
    points: Tensor,  # (n + m, d)
    n: int,
    functions: Sequence[Callable[[Tensor], Tensor]],
    a: Tensor,
    b: Tensor,
    layout: Layout | None,
) -> tuple[list[Pairs], list[PairMeans]]:
    """Sums of functions of squared distances over pairs of rows, and means under weights."""
    m = len(points) - n
    sums = points.new_empty(len(functions), 2, 2, n + m)
    means = [points.new_zeros(3, len(a)) for _ in functions]
    for rows in _tiles(n, m):
        squares = squared_distances(points[rows], points, layout=layout)
        # Rounding must not make a row differ from itself.
        own = torch.arange(len(squares)), torch.arange(rows.start, rows.stop)
        squares[own] = 0
        for found, mean, function in zip(sums, means, functions, strict=True):
            block = function(squares)
            if len(a):
                of_a, of_b = block @ a.mT, block @ b.mT
                rows_a, rows_b = a[:, rows].mT, b[:, rows].mT
                mean += torch.stack([(rows_a * of_a).sum(0), (rows_a * of_b).sum(0),
                                     (rows_b * of_b).sum(0)])  # fmt: skip
            _add_rows(found, block, rows, n)
    zero = points.new_zeros(1, 1)
    return [
        _pairs(found, n, float(function(zero)))
        for found, function in zip(sums, functions, strict=True)
    ], [PairMeans(*mean) for mean in means]


def unbiased_distance_error(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    gram: Callable[[Tensor, Tensor], Tensor],
) -> float:
    """Standard error of the unbiased squared distance of means in the space of any kernel.

    Args:
        x: One sample, of at least two rows.
        y: The other.
        gram: The kernel between rows and others.
    """
    points, n, m = torch.cat([x, y]), len(x), len(y)
    sums = points.new_empty(2, 2, n + m)
    for rows in _tiles(n, m):
        _add_rows(sums, gram(points[rows], points), rows, n)
    pairs = _pairs(sums, n, 0.0)
    of_x, of_y = pairs.unbiased_distances()[1:].split((n, m))
    return standard_error(jackknife(of_x) + jackknife(of_y), pairs.interactions())


def _pairs(sums: Tensor, n: int, diagonal: float) -> Pairs:  # (2, 2, n + m)
    to_x, to_y = sums
    return Pairs(
        RowSums(*to_x[:, :n]), RowSums(*to_y[:, :n]), RowSums(*to_x[:, n:]),
        RowSums(*to_y[:, n:]), diagonal,
    )  # fmt: skip


def _add_rows(found: Tensor, block: Tensor, rows: slice, n: int) -> None:
    """Means and spreads of some rows' values with either side; the block is used up."""
    own = torch.arange(len(block)), torch.arange(rows.start, rows.stop)
    block[own] = 0
    for side, part in enumerate(block.tensor_split([n], 1)):
        itself = (rows.start >= n) == side
        average = part.sum(1) / max(1, part.shape[1] - itself)
        if itself:
            block[own] = average
        found[side, 0, rows] = average
        found[side, 1, rows] = part.sub_(average[:, None]).square_().sum(1)


def _without_each(of_x: Tensor, of_y: Tensor) -> Tensor:  # (1 + n + m,)
    """Logarithm of the mean of all rows, then without each row of `x`, then of `y`."""
    found = [of_x.logsumexp(0)[None] - math.log(len(of_x))]
    for rows in (of_x, of_y):
        nothing = rows.new_full((1,), -math.inf)
        before = torch.cat([nothing, rows.logcumsumexp(0)[:-1]])
        after = torch.cat([nothing, rows.flip(0).logcumsumexp(0)[:-1]]).flip(0)
        found.append(torch.logaddexp(before, after) - math.log(max(1, len(rows) - 1)))
    return torch.cat(found)


def _log_cross(
    x: Tensor, y: Tensor, rate: float, layout: Layout | None
) -> tuple[Tensor, Tensor]:  # (n,), (m,)
    """Logarithms of each row's mean kernel with the other side, too far for exponentials."""
    of_x, of_y = [], x.new_full((len(y),), -math.inf)
    for part in x.split(TILE):
        logs = squared_distances(part, y, layout=layout).mul_(-rate)
        of_x.append(logs.logsumexp(1))
        of_y = torch.logaddexp(of_y, logs.logsumexp(0))
    return torch.cat(of_x) - math.log(len(y)), of_y - math.log(len(x))
