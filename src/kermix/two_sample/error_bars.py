"""Scalar cost, Cauchy-Schwarz divergence, MMD and energy distance of samples, with error bars.

All are made of means over pairs of rows: within `x`, within `y`, and across. One pass over all
pairs finds each row's part in them, and how much pairs differ beyond what their rows add; parts of
the samples tell the standard error.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from kermix.kernels.distances import Layout, squared_distances
from kermix.kernels.gaussian import mixed_kernel
from kermix.mixtures.mixture import InnerProducts, log_scalar_cost
from kermix.two_sample.cost_statistics import ROUNDING, SAFE, log_cross_means
from kermix.two_sample.permutation import signed_weights

__all__ = [
    "LARGEST_SCATTER",
    "Groups",
    "Halves",
    "Measure",
    "error_of_root",
    "exchanges",
    "groups",
    "halves",
    "jackknife_error",
    "jackknife_variance",
    "mean_measures",
    "standard_error",
    "unbiased_distance_error",
]


@dataclass(frozen=True)
class Measure:
    """One number between the two data sets.

    `normalized` is the form in [0, 1] where there is one. `error` is one standard error of
    `normalized`, or of `value` if there is no normalized form, and None if it cannot be estimated
    (a vector cost very close to 1); for sketches it is the certificate. `if_same` is the average
    value if both sets had the same distribution. `rows` is the number of rows of each set that
    were used: costs depend on it, and larger sets are subsampled.
    """

    name: str
    variance: float | None
    value: float
    normalized: float | None = None
    error: float | None = None
    if_same: float | None = None
    pvalue: float | None = None
    rows: tuple[int, int] | None = None  # None for sketches


# Chosen on samples of other seeds than those of results/bench/errorbars-cpu2.json.
LARGEST_SHARE = 0.6
LARGEST_SCATTER = 1.0  # of logarithms: a value that is more skewed has no error bar


@dataclass(frozen=True)
class Halves:
    """Random splits of both samples: which members are in the one half and in the other."""

    x: Tensor  # (S, 2, n // 2)
    y: Tensor  # (S, 2, m // 2)

    def __len__(self) -> int:
        return len(self.x)


def halves(n: int, m: int, count: int, generator: torch.Generator) -> Halves:
    """`count` random splits of `n` and `m` members; of an odd number, one is left out.

    All of them: halves of fewer would say too little, because costs depend on the number of rows
    that they are of, and so does how sensitive they are.
    """
    found = []
    for size in (n, m):
        order = torch.rand(count, size, generator=generator).argsort(1)
        half = max(1, size // 2)
        found.append(torch.stack([order[:, :half], order[:, size - half :]], 1))
    return Halves(found[0], found[1])


@dataclass(frozen=True)
class Groups:
    """Both samples without one group of their rows after the other."""

    x: list[Tensor]
    y: list[Tensor]

    def __len__(self) -> int:
        return len(self.x)


def groups(n: int, m: int, count: int, generator: torch.Generator) -> Groups:
    """Random groups of `n` and `m` members, at most `count`; which members are left by each.

    None where a sample has a single member: without it nothing would be left.
    """
    count = min(count, n, m)
    if count < 2:
        return Groups([], [])
    found = []
    for size in (n, m):
        label = torch.empty(size, dtype=torch.int64)
        label[torch.randperm(size, generator=generator)] = torch.arange(size) % count
        found.append([(label != k).nonzero().flatten() for k in range(count)])
    return Groups(found[0], found[1])


def exchanges(count: int) -> int:
    """How many exchanges of labels go with so many groups."""
    return max(5, count // 4)


def standard_error(rows: float, interactions: float) -> float:
    r"""Standard error of a value from the variances `A` of its rows and `B` of their interactions.

    Let the value be $\theta(\delta) = \theta_0 + L \delta + \delta^\top Q \delta$ in the
    deviation $\delta$ of the samples from their sources, with covariance
    $\Sigma$: near equal sources distances are all `Q`. What each row adds to the value, with
    the others as they are, has the variance $A = (L + 2 \delta^\top Q) \Sigma
    (L + 2 \delta^\top Q)^\top$, which is $L \Sigma L^\top + 2 B$ on average, where
    $B = 2 \operatorname{tr} (Q \Sigma)^2$ is the variance of what rows add together. So
    what is wanted is $A - B$. (A jackknife is `A`, a bootstrap `A + B`: twice and three
    times too much where `L` is nothing.) Near equal sources `A` may by chance be less than `B`,
    and half of `B` is kept: with normal $\delta$, the mean of the errors is then between
    12 % below and 9 % above the scatter, whatever `L` and `Q`.

    Example:
        >>> standard_error(5.0, 1.0), standard_error(0.0, 8.0)
        (2.0, 2.0)
    """
    return math.sqrt(max(rows - interactions, interactions / 2))


def jackknife_variance(values: Tensor) -> float:  # (G,)
    """The variance `A` of `standard_error`, from values without one group of rows each.

    Example:
        >>> jackknife_variance(torch.tensor([1.0, 3.0]))
        1.0
    """
    return float((values - values.mean()).square().mean() * (len(values) - 1))


def jackknife_error(values: Tensor, of_halves: Tensor) -> float:  # (G,), (S, 2)
    r"""Standard error of a value without a closed form, from its values at parts of the samples.

    The halves of a split deviate by $\delta + \epsilon$ and $\delta - \epsilon$,
    where $\epsilon$ is as large as $\delta$. So half the difference of their values
    has on average the variance `A`, and their mean has `B`. As many costs of half the rows are
    other numbers, only the share `B / A` comes from them, and `A` from the jackknife. The share
    is at most a half, or more where three rows and more add something together.

    Example:
        >>> jackknife_error(torch.tensor([1.0, 3.0]), torch.tensor([[1.0, 3.0], [3.0, 1.0]]))
        1.0
    """
    rows = jackknife_variance(values)
    difference = float(((of_halves[:, 0] - of_halves[:, 1]) / 2).square().mean())
    mean = float(of_halves.mean(1).var())
    share = min(mean / difference, LARGEST_SHARE) if difference > 0 else 0.0
    return standard_error(rows, share * rows)


def error_of_root(square: float, error: float) -> float:
    """Standard error of a root from that of its square, finite where the square vanishes.

    The added half of the squared error is what makes it right on average near zero too, where
    squares are as those of normal vectors.

    Example:
        >>> [round(error_of_root(square, 1.0), 4) for square in (100.0, 0.0)]
        [0.05, 0.5946]
    """
    return error / (2 * math.sqrt(math.hypot(square, error / math.sqrt(2)))) if error > 0 else 0.0


TILE = 1024


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
        products = InnerProducts(log_xy, self.yy.log(), log_xx)
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
        return standard_error(jackknife_variance(of_x) + jackknife_variance(of_y), interactions)

    energies = -pairs[0].means().squared_distance()
    bar, alike = error(energies, pairs[0].interactions()), _mean(-exchanged[0].squared_distance())
    found = [Measure("energy", None, _least_zero(energies[0]), None, bar, alike, rows=rows)]
    each = zip(grid, kernels, rates, pairs[1:], exchanged[1:], strict=True)
    for v, terms, rate, pair, same in each:
        logs = pair.xy.means.log(), pair.yx.means.log()
        near = all(float(log.sort().values[-2:][0]) > math.log(SAFE) for log in logs)
        if not near:
            logs = _log_cross(x, y, rate, layout)
        log_same, far = same.xy.log(), same.xy < SAFE
        if far.any():
            log_same[far] = log_cross_means(points, terms, *(w[far] for w in weights))
        divergences = pair.means().divergence(_without_each(*logs))
        found += _overlaps(v, pair, divergences, same.divergence(log_same), near, error)
        found.append(_distance(v, pair, same, error))
    return found


Error: TypeAlias = Callable[[Tensor, float], float | None]


def _overlaps(
    v: float, pair: Pairs, divergences: Tensor, alike: Tensor, near: bool, error: Error
) -> list[Measure]:
    """Cauchy-Schwarz divergence, of all rows and without each, and the scalar cost."""
    means, value = pair.means(), _least_zero(divergences[0])
    # Of sets so far apart that numbers underflow a few pairs count, which rows tell.
    scale = float(means.xy[0]) if near else math.inf
    joint = pair.interactions(float(means.xx[0]), scale, float(means.yy[0]))
    bar = error(divergences, joint)
    normalized = math.exp(-value)
    # With a larger scatter of its logarithm, its own is due to samples that are not these.
    tells = bar is not None and bar <= LARGEST_SCATTER
    of_scalar = error((-divergences).exp(), normalized**2 * joint) if tells else None
    full, same = normalized * float(means.xx[0]), _mean((-alike).exp())
    return [
        Measure("cauchy_schwarz", v, value, None, bar, _mean(alike), rows=pair.sizes),
        Measure("scalar", v, full, normalized, of_scalar, same, rows=pair.sizes),
    ]


def _distance(v: float, pair: Pairs, same: PairMeans, error: Error) -> Measure:
    """The maximum mean discrepancy."""
    squares = pair.means().squared_distance()
    value, bar = _least_zero(squares[0]), error(squares, pair.interactions())
    bar = None if bar is None else error_of_root(value, bar)
    alike = _mean(same.squared_distance().clamp(min=0).sqrt())
    return Measure("mmd", v, math.sqrt(value), None, bar, alike, rows=pair.sizes)


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
    return standard_error(
        jackknife_variance(of_x) + jackknife_variance(of_y), pairs.interactions()
    )


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
