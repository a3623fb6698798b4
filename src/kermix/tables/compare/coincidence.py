"""How likely rows are to be equal by chance, and which repeated rows that does not explain."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import Reading
from kermix.data.sources import Sources, read_sources
from kermix.tables.compare.column_changes import (
    CHANCE,
    CLEAR,
    ColumnValues,
    ComparedRows,
    share_change,
)

__all__ = [
    "Copies",
    "CountedOnce",
    "FrequentRows",
    "SharedRows",
    "chance_of_equal_rows",
    "counted_once",
    "equal_pairs_by_columns",
    "poisson_tail",
    "read_once",
    "repeats_beyond_coincidence",
    "shared_rows",
    "uncounted_copies",
]

# Reasoned, no record.
RARE = 1e-3  # so small a chance is none: of repeats in one sample alone, and of as many in all
NEGLIGIBLE = 1.05  # times an error


def chance_of_equal_rows(rows: Tensor) -> float:  # (N, c)
    r"""About the probability that two independent rows are equal, at most.

    Equal rows are equal in each column, so the smallest of the columns' probabilities is taken:
    columns may depend on each other. That of a column is the larger of two: how many of its pairs
    are equal, and $u \int f^2$ with the step `u` that all its differences are multiples of
    (of counts 1, of prices 0.01), and the density `f` of its values. Numbers of which no step is
    found have one of a ten-millionth of their range.

    Example:
        >>> x = torch.rand(500, 1, generator=torch.Generator().manual_seed(0)).double()
        >>> chance_of_equal_rows(x) < 1e-6, 0.1 < chance_of_equal_rows((10 * x).round()) < 0.4
        (True, True)
    """
    chances = [_chance_in(column.sort().values) for column in rows.mT]
    return min([1.0, *chances])


def _chance_in(ordered: Tensor, finest: float = 1e-7, safe: float = 2.0) -> float:  # (N,)
    """About the probability that two of a column's values are equal, at most.

    Args:
        ordered: The values.
        finest: Steps that are told, relative to their range.
        safe: Times the estimate.
    """
    n = len(ordered)
    if n < 2:
        return 1.0
    gaps = ordered.diff()
    width = float(ordered[-1] - ordered[0])
    if width == 0:
        return 1.0
    rounding = 2 * torch.finfo(torch.float32).eps  # of numbers that may have been float32
    step = _step(gaps, max(finest * width, rounding * float(ordered.abs().max())))
    _, counts = ordered.unique_consecutive(return_counts=True)
    equal = float((counts.double() * (counts - 1)).sum()) / (n * (n - 1))
    near = max(1, math.isqrt(n) // 2)
    spacings = (ordered[near:] - ordered[:-near]).clamp(min=step)
    return min(1.0, safe * max(equal, float((near * step / n / spacings).mean())))


def _step(gaps: Tensor, finest: float) -> float:
    """The greatest common divisor of gaps, up to rounding; not below the finest."""
    found = gaps[gaps > finest]
    if not len(found):
        return finest
    while True:
        step = found.min()
        rest = found.remainder(step)
        rest = torch.minimum(rest, step - rest)
        rest = rest[rest > finest]
        if not len(rest):
            return float(step)
        if float(rest.min()) < 4 * finest:
            return finest
        found = torch.cat([step[None], rest])


def poisson_tail(least: int, mean: float) -> float:
    """The probability of at least so many events.

    Example:
        >>> round(poisson_tail(3, 1.0), 4), poisson_tail(0, 2.0), poisson_tail(200, 0.1) < 1e-300
        (0.0803, 1.0, True)
    """
    if least <= 0:
        return 1.0
    # The lower incomplete gamma function, which does not cancel where the tail is tiny.
    shape, at = (torch.tensor(float(v), dtype=torch.float64) for v in (least, mean))
    return float(torch.special.gammainc(shape, at))


@torch.no_grad()
def repeats_beyond_coincidence(rows: ComparedRows) -> Tensor:  # (n + m,), bool
    r"""Rows that repeat an earlier row of their own sample, where coincidence does not explain it.

    Rows that coincide because there are few possible ones do so across both samples as they do
    within each, and their columns coincide one by one. So the repeats of a sample are beyond
    coincidence if two things hold, else all its rows count:

    - Rows that it repeats and the other does not have are more than rows that both have explain.
      If both had the same distribution, the mean number of the first were at most
      $n / 2m$ times that of the second, whatever the distribution.
    - They are more than columns explain: of the columns that tell rows apart, each coincides by
      itself as often where the others do as it does anywhere.

    Then of a row that the other sample does not have, the first copy counts, and of rows that
    both have, as large a share as of these. A single row of very many copies is no repeat.

    However many rows coincide, a sample that was written twice has an even number of each; of
    rows drawn independently, at most half of the numbers are even. So where all are multiples of
    one number, too many to be so by chance, a sample counts once as a whole.
    """
    n, total = rows.n, len(rows.pooled)
    kept, place, counts = rows.distinct
    found = torch.zeros(total, dtype=torch.bool)
    if len(kept) == total:
        return found
    second = (torch.arange(total) >= n).long()
    both = int((counts > 0).all(0).sum())
    sizes = n, total - n
    by_columns = None
    for k in (0, 1):
        counted = _once(counts[k])
        if counted is None:
            repeated = (counts[k] > 1) & (counts[1 - k] == 0)
            ratio = sizes[k] / (2 * sizes[1 - k])
            if _binomial_tail(int(repeated.sum()), both, ratio / (1 + ratio)) > RARE:
                continue
            if by_columns is None:
                by_columns = _equal_by_columns(rows, kept, counts)
            if poisson_tail(int(repeated.sum()), by_columns[k]) > RARE:
                continue
            # Copies of rows that both have are told by none; they are as many as of others.
            alone = (counts[k] > 0) & (counts[1 - k] == 0)
            times = counts[k][alone].mean()
            counted = torch.where(alone, 1.0, (counts[k] / times).round().clamp(min=1))
        mine = (second == k).nonzero()[:, 0]
        ordered, order = place[mine].sort(stable=True)
        earlier = torch.arange(len(mine)) - torch.searchsorted(ordered, ordered)
        found[mine[order]] = earlier >= counted[ordered]
    return found


def _once(counts: Tensor) -> Tensor | None:
    """How often each distinct row counts, if the sample is several copies of one, or None.

    Equal numbers of all rows are those of a design, or of rows that are told by the other sample.
    """
    some = counts[counts > 0].long()
    times = math.gcd(*some.tolist())
    if times < 2 or 0.5 ** len(some) > RARE or int(some.max()) == times:
        return None
    return counts / times


@dataclass(frozen=True)
class FrequentRows:
    """Rows that stand in one sample far more often than their columns explain.

    Attributes:
        distinct: How many different rows.
        counts: How often they stand in each sample, all together.
    """

    distinct: int
    counts: tuple[int, int]

    def more_often(self, sizes: tuple[int, int]) -> float:
        """By how much their share of one sample is larger than that of the other."""
        return abs(self.counts[0] / sizes[0] - self.counts[1] / sizes[1])

    def sentence(self, names: tuple[str, str]) -> str:
        """How often they stand where, which alone may be what differs.

        Example:
            >>> FrequentRows(1, (0, 100)).sentence(("a.csv", "b.csv"))
            'One row stands 100 times in b.csv and never in a.csv, which may be all that differs.'
        """
        order = (0, 1) if self.counts[0] > self.counts[1] else (1, 0)
        many, few = (self.counts[k] for k in order)
        one, two = (names[k] for k in order)
        if self.distinct == 1:
            other = {0: "never", 1: "once"}.get(few, f"{few:,} times")
            told = f"One row stands {many:,} times in {one} and {other} in {two}"
        else:
            told = f"{self.distinct:,} rows stand {many:,} times in {one} and {few:,} in {two}"
        return f"{told}, which may be all that differs."


@dataclass(frozen=True)
class Copies:
    """Rows of two samples that may be copies, each of which counts as a row of its own.

    Attributes:
        unexplained: About how many rows of each sample repeat others more often than chance
            explains, where those that coincide by chance cannot be told from them.
        coinciding: How many rows of each sample equal an earlier one, where so few rows are
            possible that none of them can be told to be a copy, but copies alone could be what
            differs.
        frequent: Rows that stand many times in one of the samples.
    """

    unexplained: tuple[int, int] = (0, 0)
    coinciding: tuple[int, int] = (0, 0)
    frequent: FrequentRows | None = None

    @property
    def possible(self) -> bool:
        """Whether copies may be all that differs."""
        return any(self.unexplained) or any(self.coinciding) or self.frequent is not None


@dataclass(frozen=True)
class SharedRows:
    """Rows that two samples both have, each counted as often as both have it.

    Attributes:
        count: How many.
        sizes: How many rows the samples have.
    """

    count: int
    sizes: tuple[int, int]

    @property
    def all_of_both(self) -> bool:
        """Whether the samples have the same rows."""
        return self.sizes == (self.count, self.count)

    def sentence(self, names: tuple[str, str]) -> str:
        """How many, and what follows.

        Example:
            >>> SharedRows(9, (9, 9)).sentence(("a.csv", "b.csv"))
            'Both have the same 9 rows, in all columns that are compared.'
            >>> SharedRows(8, (20, 9)).sentence(("a.csv", "b.csv"))[:38]
            '8 of 9 rows of b.csv are in a.csv too,'
        """
        if self.all_of_both:
            return f"Both have the same {self.count:,} rows, in all columns that are compared."
        k = 0 if self.sizes[0] < self.sizes[1] else 1
        some = f"{self.count:,} of {self.sizes[k]:,}"
        if self.count == self.sizes[k]:
            some = f"All {self.count:,}"
        return (
            f"{some} rows of {names[k]} are in {names[1 - k]} too, more than coincidence "
            "explains: the p-value takes the sets as independent, and is too large."
        )


@torch.no_grad()
def shared_rows(rows: ComparedRows, fewest: float = 0.1) -> SharedRows | None:
    """Rows that both samples have, if they are the same or so many beyond coincidence.

    Args:
        rows: Of both samples.
        fewest: Share of the smaller sample, from which on it is worth saying (convention).
    """
    _, _, counts = rows.distinct
    sizes = rows.n, len(rows.pooled) - rows.n
    found = SharedRows(int(counts.min(0).values.sum()), sizes)
    if found.all_of_both:
        return found
    if found.count < max(1, fewest * min(sizes)):
        return None
    # Rows of one distribution that coincide do so within each sample too: of independent ones, on
    # average no more rows are in both than there are rows that either has twice.
    both, twice = int((counts > 0).all(0).sum()), int((counts > 1).sum())
    if _binomial_tail(both, twice, 0.5) > RARE:
        return None
    return None if poisson_tail(both, equal_pairs_by_columns(rows)) > RARE else found


class _DistinctRows:
    """Distinct rows, how often each sample has them, and the columns that tell them apart."""

    def __init__(self, rows: ComparedRows) -> None:
        self.kept, _, counts = rows.distinct
        self.sizes = rows.n, len(rows.pooled) - rows.n
        self.counts = counts.double().numpy()
        self.codes: list[np.ndarray] = []
        self.key: list[int] = []
        if len(self.kept) < len(rows.pooled) and len(rows.names) > 1:
            self.codes = [_numbered(rows.column(name, self.kept)) for name in rows.names]
            self.key = _key(self.codes, range(len(self.codes)))
            if not _tells(self.codes, self.key):
                self.key = []

    def rest(self, j: int) -> np.ndarray:
        """The place of each row among the distinct ones of all columns of the key but one."""
        return _together(self.codes, [k for k in self.key if k != j])


@torch.no_grad()
def uncounted_copies(rows: ComparedRows, area: float | None, lower: float) -> Copies:
    r"""What copies of rows may have done to the p-value of samples that differ.

    They are left out where they cannot be all that differs. If all equal rows of a sample are
    copies of one another, errors are $\sqrt{\sum c^2 / n}$ times as large, with `c` copies of
    each: where the AUC is above chance even then, copies do not explain it. A row that is a share
    `f` of one sample more than of the other lifts the AUC to at most (1 + f) / 2.

    Args:
        rows: Of both samples.
        area: AUC of a classifier, None if there is none.
        lower: End of its interval.
    """
    distinct = _DistinctRows(rows)
    if not distinct.key:
        return Copies()
    often, frequent = _frequent(distinct)
    if frequent is not None and lower > 0.5 + frequent.more_often(distinct.sizes) / 2:
        frequent = None
    margin = 1.0 if area is None or lower <= 0.5 else (area - 0.5) / (area - lower)
    unexplained = _unexplained(distinct)
    if any(unexplained) and _times_error(distinct.counts) >= margin:
        return Copies(unexplained, frequent=frequent)
    counts = distinct.counts.copy()
    counts[:, often] = 0
    if _times_error(counts) < max(margin, NEGLIGIBLE):
        return Copies(frequent=frequent)
    first, second = (int(c.sum()) - int((c > 0).sum()) for c in counts)
    return Copies(coinciding=(first, second), frequent=frequent)


def _times_error(counts: np.ndarray) -> float:
    """How many times as large errors are, if all equal rows are copies of one another."""
    return math.sqrt(max((c @ c) / max(1.0, c.sum()) for c in counts))


def _unexplained(rows: _DistinctRows) -> tuple[int, int]:
    r"""About how many rows of each sample repeat others where columns do not explain it.

    Of the columns that tell rows apart, let $u$ be the share of a sample's pairs of rows that are
    equal, $u_j$ of those that are equal in column `j`, and $u_{-j}$ in all others. What is beyond
    columns, $u / (u_j u_{-j})$, is 1 if column `j` is independent of the others, and changed
    frequencies leave it so; copies make it larger for each `j`. The smallest excess over the
    other sample's counts if it is clear, by the variances of these numbers to first order, and if
    no more rows than there are can be behind it: where many coincide, a slightly stronger
    dependence of columns is as many pairs as many copies are, and is no reason to speak of them.
    """
    if len(rows.key) < 2:
        return 0, 0
    groups = [(rows.codes[j], rows.rest(j)) for j in rows.key]
    first, second = rows.counts
    beyond = _beyond_columns(first, groups), _beyond_columns(second, groups)
    return _copies(first, *beyond), _copies(second, *reversed(beyond))


def _frequent(rows: _DistinctRows) -> tuple[list[int], FrequentRows | None]:
    """Rows of many copies that columns do not explain, and how often the samples have them."""
    often, sizes = _often(rows), rows.sizes
    shares = rows.counts / np.array(sizes)[:, None]
    changed = [k for k in often if _clearly_other(shares[:, k], sizes, len(often))]
    sides = [[k for k in changed if shares[side, k] > shares[1 - side, k]] for side in (0, 1)]
    grown = [float(np.abs(np.diff(shares[:, some], axis=0)).sum()) for some in sides]
    more = sides[0] if grown[0] > grown[1] else sides[1]
    if not more:
        return often, None
    first, second = (int(c[more].sum()) for c in rows.counts)
    return often, FrequentRows(len(more), (first, second))


def _often(rows: _DistinctRows, fewest: int = 5) -> list[int]:
    """Rows of so many copies or more that columns do not explain.

    A column that were independent of the others would have its value in a row as often among the
    rows that agree with it on all other columns as it has anywhere.
    """
    both = rows.counts.sum(0)
    total, expected = sum(rows.sizes), np.zeros(len(both))
    for j in rows.key if len(rows.key) > 1 else ():
        rest, column = rows.rest(j), rows.codes[j]
        like_it = np.bincount(rest, both)[rest] - both
        share = (np.bincount(column, both)[column] - both) / np.maximum(1, total - both)
        expected = np.maximum(expected, like_it * share / np.maximum(1 - share, 1 / total))
    return [k for k in np.flatnonzero(both >= fewest).tolist()
            if poisson_tail(int(both[k]), float(expected[k])) <= RARE / len(both)]  # fmt: skip


def _clearly_other(shares: np.ndarray, sizes: tuple[int, int], among: int) -> bool:
    """Whether a row's share changed, beyond the chance that one of so many rows has."""
    return math.erfc(share_change(shares.tolist(), sizes) / math.sqrt(2)) * among <= CHANCE


def _beyond_columns(
    weights: np.ndarray, groups: list[tuple[np.ndarray, np.ndarray]]
) -> np.ndarray | None:  # (columns, 2): logarithms, and their variances
    size = weights.sum()

    def shares(ids: np.ndarray) -> tuple[np.ndarray, float]:
        own = (np.bincount(ids, weights)[ids] - 1) / (size - 1)
        return own, float(weights @ own / size)

    if size < 2:
        return None
    own, equal = shares(np.arange(len(weights)))
    if not equal:
        return None
    found = []
    for column, rest in groups:
        (own_j, in_column), (own_rest, in_rest) = shares(column), shares(rest)
        slope = 2 * (own / equal - own_j / in_column - own_rest / in_rest + 1)
        variance = float(weights @ slope**2) / size**2
        # Pairs of equal rows vary by themselves: they are in the slopes twice.
        variance = max(variance / 2, variance - 2 / (size**2 * equal))
        found.append((math.log(equal / in_column / in_rest), variance))
    return np.array(found)


def _copies(weights: np.ndarray, mine: np.ndarray | None, other: np.ndarray | None) -> int:
    """How many pairs of equal rows a sample has in excess of what another one has."""
    if mine is None or other is None:
        return 0
    more = mine[:, 0] - other[:, 0]
    clear = more > CLEAR * np.sqrt(mine[:, 1] + other[:, 1])
    if not clear.all():
        return 0
    excess = float(weights @ (weights - 1)) / 2 * -math.expm1(-float(more.min()))
    if math.sqrt(1 + 2 * excess / max(1.0, float(weights.sum()))) < NEGLIGIBLE:
        return 0  # of so few copies, nothing follows
    again = int(weights.sum()) - int((weights > 0).sum())
    return min(round(excess), again) if excess <= weights.sum() else 0


def _binomial_tail(successes: int, failures: int, chance: float) -> float:
    """The probability of at least so many successes among all trials."""
    trials = successes + failures
    log, rest = math.log(chance), math.log1p(-chance)
    terms = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        + k * log + (trials - k) * rest
        for k in range(successes, trials + 1)
    ]  # fmt: skip
    return min(1.0, sum(map(math.exp, terms)))


def _equal_by_columns(rows: ComparedRows, kept: Tensor, counts: Tensor) -> list[float]:
    """How many pairs of equal rows each sample would have, if columns coincided by themselves.

    A pair that agrees on all but one of the columns that tell rows apart would agree on that one
    with the probability that two values of it are equal; the largest number is taken. Where other
    columns tell rows apart too, equal rows agree on these as well, so the smallest is.
    """
    columns = [rows.column(name, kept) for name in rows.names]
    codes = [_numbered(c) for c in columns]
    every = range(len(codes))
    keys = [_key(codes, every)]
    keys += [_key(codes, [k for k in every if k != j]) for j in keys[0]]
    found = [_equal_by_key(key, columns, codes, counts) for key in keys if _tells(codes, key)]
    if not found:
        return [math.inf, math.inf]
    return [min(side) for side in zip(*found, strict=True)]


def equal_pairs_by_columns(rows: ComparedRows) -> float:
    """How many pairs of a row of each sample would be equal, if columns coincided by themselves.

    As for repeats of one sample; infinite if no columns tell rows apart.
    """
    kept, place, counts = rows.distinct
    first, other = rows.n / len(place), 1 - rows.n / len(place)
    found = _equal_by_columns(rows, kept, counts)
    return max(found[0] / first**2, found[1] / other**2) * 2 * first * other


def _equal_by_key(
    key: list[int],
    columns: list[ColumnValues],
    codes: list[np.ndarray],
    counts: Tensor,
    most_equal: float = 0.9,
) -> list[float]:
    """The same by one key. If hardly any pairs of a column differ, many equal ones follow."""
    weights = counts.sum(0).double().numpy()
    sizes = counts.sum(1)
    shares = (sizes / sizes.sum()).square().tolist()
    found = [0.0, 0.0]
    for j in key:
        groups = np.bincount(_together(codes, [k for k in key if k != j]), weights)
        unequal = float(np.square(groups).sum() - np.square(weights).sum()) / 2
        for side in (0, 1):
            chance = max(
                _chance_of_equal(columns[j], codes[j], weights, chosen)
                for chosen in (slice(None), (counts[side] > 0).numpy())
            )
            chance = min(chance, most_equal)
            expected = unequal * chance / (1 - chance) * shares[side]
            found[side] = max(found[side], expected)
    return found


def _chance_of_equal(
    values: ColumnValues, codes: np.ndarray, weights: np.ndarray, chosen: slice | np.ndarray
) -> float:
    """The probability that two values of a column are equal.

    Numbers of distinct rows count once, for a copied row repeats them; codes count as often as
    they are there.
    """
    if values.numbers is None:
        counts: np.ndarray = np.bincount(codes[chosen], weights[chosen])
        return float((np.square(counts).sum() - counts.sum()) / max(1, counts.sum() ** 2))
    numbers = values.numbers[chosen]
    filled = np.sort(numbers[~np.isnan(numbers)])
    share = len(filled) / max(1, len(numbers))
    return share**2 * _chance_in(torch.from_numpy(filled)) + (1 - share) ** 2


def _key(codes: list[np.ndarray], among: Sequence[int]) -> list[int]:
    """Few columns that tell all rows apart, none of which can be left out, if these columns do."""
    key: list[int] = []
    ids = np.zeros(len(codes[0]), np.int64)
    for k in sorted(among, key=lambda k: -int(codes[k].max())):
        finer = _numbered_pairs(ids, codes[k])
        if finer.max() > ids.max():
            key, ids = [*key, k], finer
    for k in key[:-1]:
        rest = [other for other in key if other != k]
        if _together(codes, rest).max() == ids.max():
            key = rest
    return key


def _tells(codes: list[np.ndarray], key: list[int]) -> bool:
    return int(_together(codes, key).max()) == len(codes[0]) - 1


def _together(codes: list[np.ndarray], some: list[int]) -> np.ndarray:
    """The place of each row among the distinct ones of some columns."""
    ids = np.zeros(len(codes[0]), np.int64)
    for k in some:
        ids = _numbered_pairs(ids, codes[k])
    return ids


def _numbered(values: ColumnValues) -> np.ndarray:
    """The place of each value among the distinct ones; gaps are one value."""
    cells = values.codes
    if values.numbers is not None:
        cells = np.where(np.isnan(values.numbers), np.inf, values.numbers)
    assert cells is not None
    return np.unique(cells, return_inverse=True)[1].astype(np.int64).reshape(-1)


def _numbered_pairs(one: np.ndarray, two: np.ndarray) -> np.ndarray:
    return np.unique(one * (int(two.max()) + 1) + two, return_inverse=True)[1].reshape(-1)


class CountedOnce(NamedTuple):
    """Two tables without rows that repeat others, how many were left out, and how many there were.

    Attributes:
        read: The tables. Kinds and scales of columns are of the rows that count: a key has each
            value once.
        repeated: How many rows of each were left out.
        sizes: How many rows there were.
        shared: Rows that both tables have, beyond coincidence.
    """

    read: Sources
    repeated: tuple[int, int]
    sizes: tuple[int, int]
    shared: SharedRows | None


def read_once(sources: Sequence[Any], reading: Reading, strict: bool = False) -> CountedOnce:
    """Read two tables, in which rows that repeat others beyond coincidence count once."""
    return counted_once(read_sources(sources, reading, strict), sources, reading, strict)


def counted_once(
    read: Sources, sources: Sequence[Any], reading: Reading, strict: bool
) -> CountedOnce:
    """The same of tables that are read already; they are read again if rows repeat others."""
    sizes = len(read.tables[0]), len(read.tables[1])
    rows = ComparedRows.of(read)
    again = repeats_beyond_coincidence(rows).split(sizes)
    repeated = int(again[0].sum()), int(again[1].sum())
    if any(repeated):
        read = read_sources(sources, reading, strict, without=again)
    return CountedOnce(read, repeated, sizes, shared_rows(rows))
