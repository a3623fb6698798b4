"""One permutation engine: units that change sides, statistics as plug-ins, exact p-values.

Units are rows, groups of rows that stay together, or random blocks of many rows
(`ExchangeableUnits`). A statistic is a class with one method, `values(units)`, which gives numbers
that grow with the difference for every labeling of the units, the given one first
(`StatisticValues`). A p-value is the share of labelings whose number is at least as large. It is
exact because the given labeling is one of them, and because whatever a statistic chooses from the
data (landmarks, scales, ranks) depends on the pooled rows alone, so that all labelings are treated
alike.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from kermix.checks import check_count, check_seed, rows_at_once
from kermix.errors import OptionError, ShapeError
from kermix.kernels.subsets import distinct_rows, symmetric_subset

__all__ = [
    "BLOCKS",
    "FEWEST_ON_A_SIDE",
    "Blocks",
    "ExchangeableUnits",
    "PermutationTest",
    "RankedRow",
    "Statistic",
    "StatisticValues",
    "cauchy_combination",
    "corrected_pvalues",
    "evidence",
    "labelings",
    "mean_evidence",
    "orders",
    "own_generator",
    "permutation_test",
    "permutations_for",
    "pvalues",
    "random_labelings",
    "ranked_rows",
    "round_to_significant",
    "signed_weights",
    "smallest_pvalue",
    "tied",
]

Labelings = TypeVar("Labelings", contravariant=True)
Groups = tuple[Tensor, Tensor]

# Conventions: what two labelings differ by in less is rounding, of the largest number of all.
PRECISION, DIGITS = 1e-12, 1e-9


class StatisticValues(NamedTuple):
    """A statistic under each labeling, the given one first, and what is needed to rank it.

    Two values that are closer than `noise` may differ by rounding alone (None: a little above the
    precision of the largest). Where values would not keep the digits by which they differ, `order`
    holds numbers that do.
    """

    name: str
    values: Tensor  # (P,)
    noise: float | None = None
    order: Tensor | None = None  # (P,)
    method: str = ""  # how it was computed, in words
    part: str = ""  # of the statistics of a test, where parts of these are weighed

    @property
    def ranked(self) -> Tensor:  # (P,)
        """What is ranked: equal where values differ by rounding alone."""
        if self.order is not None:
            return self.order.double()
        noise = PRECISION * _largest(self.values) if self.noise is None else self.noise
        return tied(self.values.double(), noise)


class Statistic(Protocol[Labelings]):
    """A plug-in of the engine."""

    def values(self, labelings: Labelings) -> Iterable[StatisticValues]:
        """One statistic, or several, under each labeling: of units, or of orders of rows."""


class PermutationTest(NamedTuple):
    """Statistics under each labeling, and one number that combines them."""

    values: tuple[StatisticValues, ...]
    table: Tensor  # (S, P), what is ranked
    total: Tensor  # (P,)

    @property
    def pvalue(self) -> float:
        """Of the combination, which accounts for all statistics."""
        return float(pvalues(self.total)[0])

    @property
    def single_pvalues(self) -> tuple[float, ...]:
        """Of each statistic, right only if it alone had been looked at."""
        return tuple(pvalues(self.table)[:, 0].tolist())

    @property
    def null(self) -> Tensor:  # (P - 1,)
        """The statistic, or the combination of several, under all but the given labeling."""
        alone = len(self.values) == 1
        return (self.values[0].values.double() if alone else self.total)[1:].cpu()

    @property
    def statistic(self) -> float:
        """The same under the given labeling."""
        return float(self.values[0].values[0] if len(self.values) == 1 else self.total[0])


def permutation_test(values: Iterable[StatisticValues]) -> PermutationTest:
    """The test of one statistic, or of several whose p-values are combined (Cauchy)."""
    values = tuple(values)
    table = torch.stack([one.ranked for one in values])
    return PermutationTest(values, table, cauchy_combination(table))


def own_generator(seed: int | torch.Generator) -> torch.Generator:
    """A generator from a seed, whose numbers are not those of a data set made with that seed.

    Were they the same, the first permutations would depend on the data, and the p-value would not
    be exact.
    """
    if isinstance(seed, torch.Generator):
        return seed
    check_seed(seed)
    return torch.Generator().manual_seed((int(seed) + 1) * 0x9E3779B97F4A7C15 % 2**63)


# Reasoned, no record.
PERMUTATIONS, MOST_PERMUTATIONS = 500, 10_000


def permutations_for(level: float, tests: int = 1) -> int:
    """How many permutations to draw: 500, or twice as many as so many tests at a level need.

    Example:
        >>> permutations_for(0.05), permutations_for(0.001), permutations_for(0.001, 12)
        (500, 2000, 10000)
    """
    return min(MOST_PERMUTATIONS, max(PERMUTATIONS, math.ceil(2 * tests / level)))


def labelings(
    n: int,
    m: int,
    permutations: int,
    generator: torch.Generator,
    groups: Groups | None = None,
) -> Tensor:  # (P, n + m), bool
    """Labelings, the given one first: all there are if they are few, else random ones."""
    check_count("permutations", permutations)
    units, count, given = _units(n, m, groups)
    if count > 64 or math.comb(count, given) > permutations + 1:
        return _random(units, count, given, permutations, generator)
    chosen = torch.zeros(math.comb(count, given), count, dtype=torch.bool)
    for k, side in enumerate(combinations(range(count), given)):
        chosen[k, list(side)] = True
    return chosen[:, units]


def random_labelings(
    n: int,
    m: int,
    permutations: int,
    generator: torch.Generator,
    groups: Groups | None = None,
) -> Tensor:  # (permutations + 1, n + m), bool
    """Which pooled points are called `x`: as given in the first row, at random in the others.

    With groups (of repeated measurements, say), whole groups change sides: as many of them are
    called `x` as there are in `x`.
    """
    check_count("permutations", permutations)
    return _random(*_units(n, m, groups), permutations, generator)


def _random(
    units: Tensor, count: int, given: int, permutations: int, generator: torch.Generator
) -> Tensor:
    shuffled = torch.rand(permutations, count, generator=generator).argsort(1)
    chosen = torch.zeros(permutations + 1, count, dtype=torch.bool)
    chosen[0, :given] = True
    chosen[1:].scatter_(1, shuffled[:, :given], True)
    return chosen[:, units]


def _units(n: int, m: int, groups: Groups | None) -> tuple[Tensor, int, int]:
    """Index of each point's unit, units of `x` first; their number; how many are in `x`."""
    if groups is None:
        return torch.arange(n + m), n + m, n
    if not isinstance(groups, tuple | list) or len(groups) != 2:
        raise OptionError("groups must be a pair: the labels of x and those of y.")
    labels = [torch.as_tensor(g).reshape(-1).cpu() for g in groups]
    for name, label, size in zip(("x", "y"), labels, (n, m), strict=True):
        if len(label) != size:
            raise ShapeError(f"{name} has {size} points and {len(label)} group labels.")
    (in_x, index_x), (in_y, index_y) = (torch.unique(g, return_inverse=True) for g in labels)
    both = in_x[torch.isin(in_x, in_y)]
    if len(both):
        raise OptionError(
            f"The group {both[0].item()} has points in x and in y; a group is permuted as a "
            "whole, so all its points must be in the same sample."
        )
    return torch.cat([index_x, len(in_x) + index_y]), len(in_x) + len(in_y), len(in_x)


def orders(
    count: int, permutations: int, generator: torch.Generator
) -> Tensor:  # (permutations + 1, count)
    """Orders of so many rows: as given in the first row, at random in the others."""
    check_count("permutations", permutations)
    shuffled = torch.rand(permutations, count, generator=generator, dtype=torch.float64).argsort(1)
    return torch.cat([torch.arange(count)[None], shuffled])


def signed_weights(labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights of both sides under each labeling, summing to 1 on each: (P, N) and (P, N)."""
    share = labels.new_ones(labels.shape[1], dtype=torch.float64) if weights is None else weights
    return _normalized(labels * share, ~labels * share)


def _normalized(*sides: Tensor) -> tuple[Tensor, Tensor]:
    tiny = torch.finfo(sides[0].dtype).tiny
    a, b = (side / side.sum(1, keepdim=True).clamp(min=tiny) for side in sides)
    return a, b


def smallest_pvalue(
    n: int, m: int, permutations: int | None, groups: Groups | None = None
) -> float:
    """The smallest p-value that so many rows and permutations, or any number of these, can give.

    With equally many rows on both sides, the labeling with both sides exchanged is as extreme.

    Example:
        >>> smallest_pvalue(3, 3, 500), smallest_pvalue(100, 100, 499)
        (0.1, 0.002)
        >>> smallest_pvalue(3, 4, None) == 1 / 35
        True
    """
    if groups is not None:
        n, m = (len(torch.unique(torch.as_tensor(g))) for g in groups)
    drawn = 0.0 if permutations is None else 1 / (permutations + 1)
    if math.lgamma(n + m + 1) - math.lgamma(n + 1) - math.lgamma(m + 1) > 40:
        return drawn
    return max(drawn, (2 if n == m else 1) / math.comb(n + m, n))


# Reasoned, no record.
BLOCKS, FEWEST_ON_A_SIDE, MOST_ON_A_SIDE = 400, 32, 1000
REFERENCE = 8000


@dataclass(frozen=True)
class Blocks:
    """Two large samples as blocks of rows; those of `x` come first.

    Rows are put into blocks of equal size at random, within their own sample. Blocks of
    independent rows from one source are exchangeable, so a test that exchanges blocks is as exact
    as one that exchanges rows; and statistics of blocks are sums that are computed once, whatever
    the number of permutations.
    """

    rows: Tensor  # (B, s), indices of pooled rows
    of_x: int
    rest: Tensor  # (n + m - B s,), rows in no block

    @classmethod
    def of(
        cls,
        n: int,
        m: int,
        generator: torch.Generator,
        blocks: int = BLOCKS,
        fewest_on_a_side: int = FEWEST_ON_A_SIDE,
    ) -> "Blocks":
        """Some four hundred blocks, with at least thirty on the smaller side."""
        size = max(1, min((n + m) // blocks, min(n, m) // fewest_on_a_side))
        parts, rest = [], []
        for count, offset in ((n, 0), (m, n)):
            order = torch.randperm(count, generator=generator) + offset
            used = min(count // size, MOST_ON_A_SIDE)
            parts.append(order[: used * size].reshape(used, size))
            rest.append(order[used * size :])
        return cls(torch.cat(parts), len(parts[0]), torch.cat(rest))

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """Rows of a block."""
        return self.rows.shape[1]


@dataclass(frozen=True)
class ExchangeableUnits:
    """Rows or blocks with their labels under each labeling, the given one first.

    Attributes:
        rows: Distinct rows in an order that depends on their values alone, so that labelings which
            exchange copies of a row are ties; or, of blocks, all rows as they were given.
        shares: Weights of the distinct rows, whose sum is 1; of blocks, of all rows.
        sides: Weights of the units on both sides, each of which sums to 1.
        blocks: Blocks of rows, if these change sides.
        used: How many rows of each side take part.
    """

    rows: Tensor  # (U, d)
    shares: Tensor  # (U,)
    sides: tuple[Tensor, Tensor]  # (P, R) each
    blocks: Blocks | None
    used: tuple[int, int]

    @classmethod
    def of(
        cls,
        pooled: Tensor,  # (n + m, d)
        n: int,
        permutations: int,
        generator: torch.Generator,
        *,
        groups: Groups | None = None,
        weights: Tensor | None = None,  # (n + m,)
        rows_up_to: int | None = None,
    ) -> "ExchangeableUnits":
        """Units of both samples, those of the first sample first.

        Rows change sides by themselves, or with their group; or, of more rows than `rows_up_to`
        that have neither groups nor weights, some four hundred blocks do.
        """
        m = len(pooled) - n
        plain = groups is None and weights is None
        if plain and rows_up_to is not None and len(pooled) > rows_up_to:
            return cls.of_blocks(pooled, Blocks.of(n, m, generator), permutations, generator)
        rows = pooled + 0.0  # minus zero becomes zero
        labels = labelings(n, m, permutations, generator, groups).to(rows.device)
        kept, place = distinct_rows(rows)
        share = rows.new_ones(len(rows)) if weights is None else weights.to(rows)
        sides = (
            rows.new_zeros(len(labels), len(kept)).index_add_(1, place, named * share)
            for named in (labels, ~labels)
        )
        total = rows.new_zeros(len(kept)).index_add_(0, place, share)
        return cls(rows[kept], total / total.sum(), _normalized(*sides), None, (n, m))

    @classmethod
    def of_blocks(
        cls, pooled: Tensor, blocks: Blocks, permutations: int, generator: torch.Generator
    ) -> "ExchangeableUnits":
        """Blocks that change sides."""
        sides = blocks.of_x, len(blocks) - blocks.of_x
        labels = labelings(*sides, permutations, generator)
        shares = pooled.new_full((len(pooled),), 1 / len(pooled))
        used = sides[0] * blocks.size, sides[1] * blocks.size
        return cls(pooled + 0.0, shares, signed_weights(labels, None), blocks, used)

    @cached_property
    def signed(self) -> Tensor:  # (P, R)
        """Weights of one side less those of the other."""
        return self.sides[0] - self.sides[1]

    @cached_property
    def reference(self) -> Tensor:  # (S, d)
        """Rows by which ranks, scales, landmarks and moments are found."""
        return self.rows if self._chosen is None else self.rows[self._chosen]

    @cached_property
    def reference_shares(self) -> Tensor:  # (S,)
        """Their weights, whose sum is 1."""
        if self._chosen is None:
            return self.shares
        if self.blocks is not None:  # of which each row weighs the same
            return self.rows.new_full((len(self.reference),), 1 / len(self.reference))
        some = self.shares[self._chosen]
        return some / some.sum()

    @cached_property
    def _chosen(self) -> Tensor | None:
        if self.blocks is None and len(self.rows) <= REFERENCE:
            return None
        return symmetric_subset(self.rows, REFERENCE)

    def chunks(self, width: int) -> Iterator[Tensor]:  # (b, s, d) each
        """The rows of some units at a time, so few that their features find room."""
        if self.blocks is None:
            for rows in self.rows.split(rows_at_once(width)):
                yield rows[:, None]
            return
        for index in self.blocks.rows.split(rows_at_once(width * self.blocks.size)):
            yield self.rows[index]

    def means(self, features: Callable[[Tensor], Tensor], width: int) -> Tensor:  # (R, width)
        """Mean features of each unit; `features` is asked about some rows at a time."""
        return torch.cat([
            features(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]).mean(1)
            for rows in self.chunks(width)
        ])  # fmt: skip

    @property
    def description(self) -> str:
        """How the permutations were made, in words."""
        if self.blocks is None:
            return "rows change sides"
        return f"{len(self.blocks)} random blocks of {self.blocks.size} rows change sides"


def pvalues(statistics: Tensor) -> Tensor:  # (..., P) -> (..., P)
    """Share of all labelings whose statistic is at least as large, for each of them."""
    ordered = statistics.sort(-1).values.contiguous()
    below = torch.searchsorted(ordered, statistics.contiguous(), right=False)
    return (statistics.shape[-1] - below).double() / statistics.shape[-1]


def corrected_pvalues(table: Tensor) -> Tensor:  # (M, P) -> (M,)
    """Share of labelings whose largest statistic is at least as large as each given one."""
    table = round_to_significant(table)
    largest = table.amax(0).sort().values
    below = torch.searchsorted(largest, table[:, 0].contiguous())
    return (table.shape[1] - below).double() / table.shape[1]


class RankedRow(NamedTuple):
    """A row of a table of statistics, its own p-value and that corrected for all rows."""

    row: int
    statistic: float
    pvalue: float
    corrected: float


def ranked_rows(table: Tensor) -> list[RankedRow]:  # (M, P)
    """All rows, the most different first."""
    if not len(table):
        return []
    own, corrected = pvalues(round_to_significant(table))[:, 0], corrected_pvalues(table)
    order = table[:, 0].argsort(descending=True, stable=True).tolist()
    return [RankedRow(k, float(table[k, 0]), float(own[k]), float(corrected[k])) for k in order]


def tied(statistics: Tensor, noise: float) -> Tensor:  # (P,) -> (P,)
    """Statistics in which those that rounding may have told apart are equal.

    In rising order, what is no further than `noise` above the one before is equal to it. All
    labelings are treated alike, so a p-value among them stays exact.

    Example:
        >>> tied(torch.tensor([3.0, 1.0, 1.1, 1.2, 2.0]), 0.15)
        tensor([3., 1., 1., 1., 2.])
    """
    ordered, order = statistics.sort()
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] - ordered[:-1] > noise
    places = torch.arange(len(ordered), device=ordered.device)
    first = torch.where(new, places, 0).cummax(0).values
    return torch.empty_like(statistics).scatter(0, order, ordered[first])


def _largest(values: Tensor) -> float:
    """Of the numbers that do not stand for infinity."""
    sizes = values.double().abs()
    return float(sizes[sizes < torch.finfo(values.dtype).max / 2].amax()) if len(sizes) else 0.0


def round_to_significant(statistics: Tensor) -> Tensor:  # (..., P)
    """Statistics to so many digits of the largest that rounding does not tell labelings apart."""
    unit = statistics.abs().amax(-1, keepdim=True) * DIGITS
    return torch.where(unit > 0, (statistics / unit.clamp(min=1e-300)).round() * unit, 0.0)


def cauchy_combination(statistics: Tensor) -> Tensor:  # (L, P) -> (P,)
    r"""One statistic from several: Cauchy's combination of their p-values.

    $\sum_l \tan(\pi (1/2 - p_l))$, a sum that is ruled by its smallest p-values. It treats
    all labelings alike, so its own p-value among them is exact whatever the dependence between
    the statistics.
    """
    if len(statistics) == 1:
        return statistics[0]
    half_step = 0.5 / statistics.shape[-1]
    return torch.tan(math.pi * (0.5 - (pvalues(statistics) - half_step))).mean(0)


def evidence(statistics: Tensor) -> Tensor:  # (..., P) -> (..., P)
    r"""Statistics on one scale, $-\log(1 - \Phi(z))$: `z` are cube roots of mean 0 and variance 1.

    Cube roots of quadratic forms are nearly normal (Wilson and Hilferty), so this is nearly minus
    the logarithm of a p-value, also far beyond those that so many labelings can tell apart.
    """
    roots = round_to_significant(statistics).clamp(min=0) ** (1 / 3)
    spread, center = torch.std_mean(roots, -1, correction=0, keepdim=True)
    apart = spread > DIGITS * roots.amax(-1, keepdim=True)
    scores = torch.where(apart, (roots - center) / spread.clamp(min=1e-300), 0.0)
    return -torch.special.log_ndtr(-scores)


def mean_evidence(
    evidence: Tensor,  # (M, ..., P)
    weights: Sequence[float] | None = None,  # (M,)
) -> Tensor:  # (..., P)
    """Evidence of several: minus the logarithm of the harmonic mean of their p-values.

    The smallest p-values rule it, and with `M` of them it is about as large by chance as that of
    one, however they depend on each other (Wilson 2019).
    """
    varies = (evidence != evidence[..., :1]).any(-1, keepdim=True)  # constants tell nothing
    counted = (varies | ~varies.any(0)).to(evidence)
    if weights is not None:
        counted *= evidence.new_tensor(weights).reshape(-1, *(1 for _ in evidence.shape[1:]))
    return (evidence + counted.log()).logsumexp(0) - counted.sum(0).log()
