"""Scores of single columns and of pairs: features whose means tell how a column differs.

A number's scores are Legendre polynomials of its rank among the reference rows (Neyman's smooth
test); those of a category, or of a column of few values, are indicators of its values divided by
the roots of their shares, whose sum of squares is Pearson's statistic. A gap is a value like any
other. Scores of a pair are products of both columns' first scores, less what the single columns'
scores predict of them. Both are plug-ins of the permutation engine, with one statistic for each
column and each pair.

A pair is evidence where two columns depend on each other differently, whatever each does alone.
The exact test of a pair whose columns alone have moved says only that the pair is not the same;
`dependence_pvalues` says, nearly exactly, whether it is the dependence.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, combinations
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.data.schema.columns import NumberColumn
from kermix.data.sources import MixedRows
from kermix.two_sample.permutation import (
    ExchangeableUnits,
    StatisticValues,
    corrected_pvalues,
    evidence,
    mean_evidence,
    random_labelings,
    signed_weights,
)

__all__ = [
    "AT_ONCE",
    "FEWEST_ROWS",
    "ORDER",
    "ColumnPlace",
    "ColumnScores",
    "ColumnStatistics",
    "ColumnsScores",
    "MiddleRanks",
    "PairScores",
    "PairStatistics",
    "dependence_pvalues",
    "legendre",
    "nested_sums",
    "pairs_to_look_at",
    "places_of_columns",
    "places_of_names",
]


class ColumnPlace(NamedTuple):
    """Where encoded rows hold one of the user's columns.

    A column with both is a number with gaps, whose code says whether it is missing.
    """

    name: str
    numbers: int | None
    codes: int | None


def places_of_columns(maker: MixedRows) -> tuple[ColumnPlace, ...]:
    """Where mixed rows hold each of the user's columns."""
    count = len(maker.schema.numbers)
    numbers = iter(range(count))
    categories = iter(range(count, len(maker.schema.modelled)))
    marks = iter(range(len(maker.schema.modelled), count + maker.layout.codes))
    found = []
    for column in maker.schema.modelled:
        if isinstance(column, NumberColumn):
            k = next(numbers)
            gaps = next(marks) if maker.marked[k] else None
            found.append(ColumnPlace(column.name, k, gaps))
        else:
            found.append(ColumnPlace(column.name, None, next(categories)))
    return tuple(found)


def places_of_names(names: Sequence[str], codes: int = 0) -> tuple[ColumnPlace, ...]:
    """One place for each column of the rows, the last ones with codes.

    Example:
        >>> places_of_names(["height", "colour"], codes=1)[1]
        ColumnPlace(name='colour', numbers=None, codes=1)
    """
    numbers = len(names) - codes
    return tuple(
        ColumnPlace(name, k, None) if k < numbers else ColumnPlace(name, None, k)
        for k, name in enumerate(names)
    )


@dataclass(frozen=True)
class MiddleRanks:
    """Share of the reference below each number, half of what is equal to it included.

    Attributes:
        ordered: Columns of the reference in rising order.
        below: Shares of the reference before each place.

    Example:
        >>> reference = torch.tensor([[1.0], [2.0], [2.0], [5.0]]).double()
        >>> ranks = MiddleRanks.of(reference, torch.full((4,), 0.25).double())
        >>> ranks(torch.tensor([[0.0], [2.0], [3.0], [9.0]]).double())[:, 0].tolist()
        [0.0, 0.5, 0.75, 1.0]
    """

    ordered: Tensor  # (C, S)
    below: Tensor  # (C, S + 1)

    @classmethod
    def of(cls, reference: Tensor, shares: Tensor) -> "MiddleRanks":  # (S, C), (S,)
        """Ranks among reference rows with shares whose sum is 1."""
        ordered, order = reference.mT.contiguous().sort(1)
        return cls(ordered, torch.nn.functional.pad(shares[order].cumsum(1), (1, 0)))

    @property
    def values(self) -> Tensor:  # (C,)
        """How many different numbers each column of the reference has."""
        return 1 + (self.ordered[:, 1:] != self.ordered[:, :-1]).sum(1)

    def some(self, columns: Tensor) -> "MiddleRanks":
        """Those of some columns."""
        return MiddleRanks(self.ordered[columns], self.below[columns])

    def __call__(self, columns: Tensor) -> Tensor:  # (N, C) -> (N, C)
        """Ranks of other rows."""
        numbers = columns.mT.contiguous()
        first = torch.searchsorted(self.ordered, numbers)
        if self._tied:
            last = torch.searchsorted(self.ordered, numbers, right=True)
        else:  # a second search would take as long as the first
            near = first.clamp(max=self.ordered.shape[1] - 1)
            last = first + (self.ordered.gather(1, near) == numbers)
        return ((self.below.gather(1, first) + self.below.gather(1, last)) / 2).mT

    @cached_property
    def _tied(self) -> bool:
        return bool((self.values < self.ordered.shape[1]).any())


# Reasoned, no record.
NESTED = (1, 2, 4, 8)
ORDER = max(NESTED)
# A shift is what columns are compared for most (results/bench/blind-spots-cpu2.json).
NESTED_WEIGHTS = (4, 2, 1, 1)
FEW_VALUES = 8  # a number with so few is looked at value by value
FEWEST_ROWS = 10  # of a side
FIRST = 2  # scores of a column that products are made of
SMALLEST = 1e-12
LEFT = 1e-6  # of a variance: what is below is rounding
AT_ONCE = 64  # columns, or pairs of them, whose scores are found together
ROWS_OF_DEPENDENCE = 10_000  # of a side


@dataclass(frozen=True)
class ColumnScores:
    """Scores of one column.

    Attributes:
        place: Of the column in the rows.
        ranks: Of a number of many values; None for others.
        values: Its values that have an indicator of their own, most common first.
        roots: Roots of their shares.
        gap: Root of the variance of its indicator of gaps; 0 if there is none.
    """

    place: ColumnPlace
    ranks: MiddleRanks | None
    values: Tensor
    roots: Tensor
    gap: float

    @classmethod
    def of(
        cls,
        place: ColumnPlace,
        reference: Tensor,
        shares: Tensor,
        most_values: int = 64,  # reasoned, no record
    ) -> "ColumnScores":
        """Ranks and shares from the reference rows, the latter of so many values."""
        gap = 0.0
        known = torch.ones(len(reference), dtype=torch.bool)
        if place.numbers is not None and place.codes is not None:
            known = reference[:, place.codes] == 0
            share = float(shares[~known].sum())
            gap = math.sqrt(max(0.0, share * (1 - share)))
        at = place.codes if place.numbers is None else place.numbers
        assert at is not None
        weights = shares[known] / shares[known].sum().clamp(min=SMALLEST)
        if place.numbers is not None:
            ranks = MiddleRanks.of(reference[known, at, None], weights)
            if int(ranks.values) > FEW_VALUES:
                return cls.of_ranks(place, ranks, gap)
        values, index = torch.unique(reference[known, at], return_inverse=True)
        weights = shares.new_zeros(len(values)).index_add_(0, index, weights)
        # By share and then by value: the order of rows has no part in it.
        order = torch.argsort(weights, descending=True, stable=True)[:most_values]
        if len(values) < 2:
            order = order[:0]
        return cls(place, None, values[order], weights[order].sqrt(), gap)

    @classmethod
    def of_ranks(cls, place: ColumnPlace, ranks: MiddleRanks, gap: float = 0.0) -> "ColumnScores":
        """Scores of a number of many values."""
        empty = ranks.ordered.new_empty(0)
        return cls(place, ranks, empty, empty, gap)

    @property
    def width(self) -> int:
        """How many scores there are."""
        return (ORDER if self.ranks is not None else len(self.values)) + (self.gap > 0)

    @property
    def informative(self) -> bool:
        """Whether the column has more than one value."""
        return self.ranks is not None or len(self.values) > 0 or self.gap > 0

    def statistics(self, squares: Tensor) -> Tensor:  # (q, P) -> (k, P)
        """Statistics from squared differences of mean scores.

        Of a number: sums of the first 1, 2, 4 and all. Of a category: Pearson's, the sum of
        squared differences of shares, and the largest of single values, each divided by its
        variance, for a value that is new or gone. Of gaps: that of their share.
        """
        known = squares[:-1] if self.gap > 0 else squares
        found = []
        if self.ranks is not None:
            found += [*nested_sums(known)]
        elif len(self.values):
            found.append(known.sum(0))
            if len(self.values) > 2:
                shares = self.roots.square()
                found.append(shares @ known)
                found.append((known / (1 - shares)[:, None]).amax(0))
        if self.gap > 0:
            found.append(squares[-1])
        return torch.stack(found) if found else squares.new_zeros(1, squares.shape[1])

    def weights(self, count: int) -> Sequence[float]:
        """Of so many statistics."""
        if self.ranks is None:
            return (1,) * count
        return (*NESTED_WEIGHTS, 1)[:count]

    def counts(self, squares: Tensor) -> Tensor:  # (q, P) -> (k, P)
        """The share of each value alone, and of gaps: a value may be rare, new or gone."""
        if self.ranks is not None:
            return squares[ORDER:]
        count = len(self.values)
        return torch.cat([squares[:count] / (1 - self.roots.square())[:, None], squares[count:]])

    def __call__(self, rows: Tensor) -> Tensor:  # (N, d) -> (N, q)
        """Scores of rows; the last one is of gaps, where there are any."""
        found = self._known(rows)
        place = self.place
        if place.numbers is not None and place.codes is not None:
            missing = (rows[:, place.codes] != 0)[:, None]
            found = torch.where(missing, 0.0, found)
            if self.gap > 0:
                found = torch.cat([found, missing.to(found) / self.gap], 1)
        return found

    def first(self, rows: Tensor) -> Tensor:  # (N, d) -> (N,)
        """The first score alone, whether or not a number is missing."""
        found = self._known(rows, 1)
        return found[:, 0] if found.shape[1] else rows.new_zeros(len(rows))

    def _known(self, rows: Tensor, order: int = ORDER) -> Tensor:
        place = self.place
        at = place.codes if place.numbers is None else place.numbers
        column = rows[:, at, None]
        if self.ranks is None:
            return (column == self.values).to(rows) / self.roots
        return legendre(2 * self.ranks(column)[:, 0] - 1, order)


def nested_sums(squares: Tensor) -> Tensor:  # (ORDER, ...) -> (len(NESTED), ...)
    """Sums of the first 1, 2, 4 and all squares."""
    return squares.cumsum(0)[[k - 1 for k in NESTED]]


def legendre(places: Tensor, order: int) -> Tensor:  # (...) in [-1, 1] -> (..., order)
    r"""Legendre polynomials of degree 1 to `order`, of mean square 1 on a uniform distribution.

    Example:
        >>> legendre(torch.tensor([-1.0, 0.0, 1.0]), 2)
        tensor([[-1.7321,  2.2361],
                [ 0.0000, -1.1180],
                [ 1.7321,  2.2361]])
    """
    found = [torch.ones_like(places), places]
    for k in range(1, order):
        found.append(((2 * k + 1) * places * found[k] - k * found[k - 1]) / (k + 1))
    return torch.stack([math.sqrt(2 * k + 1) * found[k] for k in range(1, order + 1)], -1)


@dataclass(frozen=True)
class RankedColumns:
    """Numbers of many values and no gaps, whose scores are found together.

    Attributes:
        places: Of the columns, among all.
        at: Where the rows hold them.
        ranks: Of all of them.
    """

    places: list[int]
    at: Tensor  # (C,)
    ranks: MiddleRanks

    def some(self, places: list[int]) -> "RankedColumns":
        """Those of some of the columns."""
        at = torch.tensor([self.places.index(k) for k in places])
        return RankedColumns(places, self.at[at], self.ranks.some(at))

    def __call__(self, rows: Tensor, order: int = ORDER) -> Tensor:  # (N, d) -> (N, C * order)
        """Scores of rows, those of one column side by side."""
        return legendre(2 * self.ranks(rows[:, self.at]) - 1, order).flatten(1)


def _ranked_columns(
    places: Sequence[ColumnPlace], reference: Tensor, shares: Tensor
) -> Iterator[RankedColumns]:
    plain = [k for k, p in enumerate(places) if p.numbers is not None and p.codes is None]
    for start in range(0, len(plain), AT_ONCE):
        some = plain[start : start + AT_ONCE]
        at = torch.tensor([places[k].numbers for k in some])
        ranks = MiddleRanks.of(reference[:, at], shares)
        many = ranks.values > FEW_VALUES
        chosen = [k for k, yes in zip(some, many.tolist(), strict=True) if yes]
        if chosen:
            some_ranks = ranks if many.all() else ranks.some(many)
            yield RankedColumns(chosen, at[many], some_ranks)


class ColumnsScores(Sequence[ColumnScores]):
    """Scores of each column; of the numbers of many values, together.

    Args:
        places: Where the rows hold the columns.
        reference: Rows by which ranks and shares are found.
        shares: Of these rows.
    """

    def __init__(self, places: Sequence[ColumnPlace], reference: Tensor, shares: Tensor) -> None:
        self.places = places
        self.together = [*_ranked_columns(places, reference, shares)]
        self._ranked = {
            k: (columns, i) for columns in self.together for i, k in enumerate(columns.places)
        }
        self._known = {
            k: ColumnScores.of(place, reference, shares)
            for k, place in enumerate(places)
            if k not in self._ranked
        }

    @property
    def alone(self) -> dict[int, ColumnScores]:
        """Columns that are not among those of many values."""
        return {k: s for k, s in self._known.items() if k not in self._ranked}

    def leading(self, rows: Tensor, used: Sequence[int], count: int) -> Tensor:
        """The first scores of some columns, and zeros where there are fewer: (N, used, count)."""
        found = rows.new_empty(len(rows), len(used), count)
        for columns in self.together:
            at = [i for i, k in enumerate(used) if k in columns.places]
            if at:
                some = columns.some([used[i] for i in at])
                found[:, at] = some(rows, count).unflatten(1, (len(at), count))
        for i, k in enumerate(used):
            if k not in self._ranked:
                found[:, i] = _wide(self._known[k](rows), count)
        return found

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, k: Any) -> Any:
        if k not in self._known:
            ranked, i = self._ranked[k]
            ranks = ranked.ranks.some(torch.tensor([i]))
            self._known[k] = ColumnScores.of_ranks(self.places[k], ranks)
        return self._known[k]


@dataclass(frozen=True)
class PairScores:
    """Products of the first scores of pairs of columns, less what single columns predict.

    Attributes:
        columns: Of which.
        pairs: Places of both columns.
        predictors: How many scores of each column predict products (reasoned, no record).
    """

    columns: "ColumnsScores"
    pairs: Sequence[tuple[int, int]]
    predictors: int = 4

    @property
    def width(self) -> int:
        """Numbers for each pair."""
        return FIRST * FIRST + 2 * self.predictors

    def __call__(self, rows: Tensor) -> Tensor:  # (N, d) -> (N, pairs * width)
        """For each pair the products, and then the single columns' scores."""
        used = sorted({k for pair in self.pairs for k in pair})
        scores = self.columns.leading(rows, used, self.predictors)
        at = torch.searchsorted(torch.tensor(used), torch.tensor(self.pairs))
        left, right = scores[:, at[:, 0]], scores[:, at[:, 1]]
        products = left[..., :FIRST, None] * right[..., None, :FIRST]
        return torch.cat([products.flatten(2), left, right], 2).flatten(1)

    def beyond(self, means: Tensor, known: Tensor, shares: Tensor) -> Tensor:
        """What is left of mean products (R, pairs * width): (R, pairs, products), of variance 1.

        The prediction is the linear regression among the reference rows, of which `known` are
        the scores, (S, pairs * width).
        """
        shape = len(self.pairs), self.width
        count = FIRST * FIRST
        known = known.unflatten(1, shape)
        centre = torch.einsum("s,spw->pw", shares, known)
        known = ((known - centre) * shares.sqrt()[:, None, None]).transpose(0, 1)
        product = known.mT @ known  # (pairs, width, width)
        inner, across = product[:, count:, count:], product[:, count:, :count]
        size = inner.diagonal(dim1=1, dim2=2).amax(1).clamp(min=SMALLEST)
        inner = inner + 1e-8 * size[:, None, None] * torch.eye(inner.shape[-1]).to(inner)
        slopes = torch.linalg.solve(inner, across)
        left = (product[:, :count, :count] - across.mT @ slopes).diagonal(dim1=1, dim2=2)
        whole = product[:, :count, :count].diagonal(dim1=1, dim2=2)
        apart = means.unflatten(1, shape) - centre
        residual = apart[..., :count] - torch.einsum("rpw,pwc->rpc", apart[..., count:], slopes)
        there = left > LEFT * whole.clamp(min=SMALLEST)
        return torch.where(there, residual / left.clamp(min=SMALLEST).sqrt(), 0.0)


def _wide(scores: Tensor, width: int) -> Tensor:
    """The first scores, with zeros where there are fewer."""
    return torch.nn.functional.pad(scores[:, :width], (0, max(0, width - scores.shape[1])))


@dataclass(frozen=True)
class ColumnStatistics:
    """The evidence of each column by itself, and of its single values where it has few."""

    scores: ColumnsScores

    def values(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """One statistic for each column, and one more for what has values or gaps to count."""
        found = units.signed.new_empty(len(self.scores), len(units.signed))
        for columns in self.scores.together:
            means = units.means(columns, len(columns.places) * ORDER)
            squares = (units.signed @ means).square().mT.unflatten(0, (-1, ORDER))  # (C, q, P)
            nested = evidence(nested_sums(squares.transpose(0, 1)))
            found[columns.places] = mean_evidence(nested, NESTED_WEIGHTS)
        alone = list(self.scores.alone.items())
        for start in range(0, len(alone), AT_ONCE):
            places, some = zip(*alone[start : start + AT_ONCE], strict=True)
            widths = [s.width for s in some]

            def together(rows: Tensor, some: Sequence[ColumnScores] = some) -> Tensor:
                return torch.cat([s(rows) for s in some], 1)

            means = units.means(together, max(1, sum(widths)))
            squares = (units.signed @ means).square().mT  # (q, P)
            for place, column, part in zip(places, some, squares.split(widths), strict=True):
                table = evidence(column.statistics(part))
                found[place] = mean_evidence(table, column.weights(len(table)))
                if len(counts := column.counts(part)):
                    row = mean_evidence(evidence(counts))
                    yield StatisticValues(column.place.name, row, part="values")
        for place, row in zip(self.scores.places, found, strict=True):
            yield StatisticValues(place.name, row, part="columns")


def pairs_to_look_at(
    units: ExchangeableUnits,
    scores: ColumnsScores,
    most: int = 300,  # reasoned, no record
) -> list[tuple[int, int]]:
    """All pairs, or those whose ranks or codes depend most on each other in the pooled rows."""
    alone = {k: s for k, s in scores.alone.items() if s.informative}
    told = sorted([*alone, *(k for some in scores.together for k in some.places)])
    if len(told) * (len(told) - 1) // 2 <= most:
        return list(combinations(told, 2))
    first = units.reference.new_empty(len(units.reference), len(scores))
    for columns in scores.together:
        first[:, columns.places] = columns(units.reference, 1)
    for k, column in alone.items():
        first[:, k] = column.first(units.reference)
    first = first[:, told]
    first = (
        (first - units.reference_shares @ first) * units.reference_shares.sqrt()[:, None]
    ).float()
    products = (first.mT @ first).triu_(1).abs_()
    best = products.flatten().topk(most).indices
    rows, columns_of = best // len(told), best % len(told)
    return sorted(
        (told[i], told[j]) for i, j in zip(rows.tolist(), columns_of.tolist(), strict=True)
    )


@dataclass(frozen=True)
class PairStatistics:
    """The evidence of each pair beyond its single columns: the first product, and all of them."""

    scores: ColumnsScores
    pairs: Sequence[tuple[int, int]]

    def values(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """One statistic for each pair."""
        for start in range(0, len(self.pairs), AT_ONCE):
            some = PairScores(self.scores, self.pairs[start : start + AT_ONCE])
            means = units.means(some, len(some.pairs) * some.width)
            known = means if units.rows is units.reference else some(units.reference)
            left = some.beyond(means, known, units.reference_shares)
            squares = (units.signed @ left.flatten(1)).square().mT.unflatten(0, left.shape[1:])
            both = torch.stack([squares[:, 0], squares.sum(1)])
            for pair, row in zip(some.pairs, mean_evidence(evidence(both)), strict=True):
                name = " and ".join(self.scores.places[k].name for k in pair)
                yield StatisticValues(name, row, part="pairs")


def dependence_pvalues(
    pooled: Tensor,  # (n + m, d)
    n: int,
    places: Sequence[ColumnPlace],
    pairs: Sequence[tuple[int, int]],
    permutations: int,
    generator: torch.Generator,
    *,
    groups: tuple[Tensor, Tensor] | None = None,
    weights: Tensor | None = None,  # (n + m,)
) -> Tensor:  # (pairs,)
    """P-values of different dependence, corrected for the number of pairs; 1 of very few rows.

    Within each sample, a number becomes Legendre polynomials of its rank *there*, a category the
    indicators of its values, and both are whitened *there*: no column is left with a difference of
    its own. What is left of a pair are correlations of these scores, whose difference is compared
    with those of random labelings of the same scores. As the scores know the samples, this is not
    exact, as the test of the pooled rows is, but nearly so.
    """
    if min(n, len(pooled) - n) < FEWEST_ROWS:
        return torch.ones(len(pairs), dtype=torch.float64)
    sides = [torch.arange(n), torch.arange(n, len(pooled))]
    if groups is None:
        sides = [
            s[torch.randperm(len(s), generator=generator)[:ROWS_OF_DEPENDENCE]] for s in sides
        ]
    share = pooled.new_ones(len(pooled)) if weights is None else weights.to(pooled)
    shares = [share[s] / share[s].sum() for s in sides]
    rows = [pooled[s] for s in sides]
    used = sorted(set(chain(*pairs)))
    scores = {k: _in_own_margins(places[k], rows, shares) for k in used}
    labels = random_labelings(len(sides[0]), len(sides[1]), permutations, generator, groups)
    a, b = signed_weights(labels, None if weights is None else share[torch.cat(sides)])
    return corrected_pvalues(_dependence(scores, pairs, torch.cat(shares) / 2, a - b))


def _dependence(
    scores: Mapping[int, Tensor],  # (N, FIRST) of each column
    pairs: Sequence[tuple[int, int]],
    shares: Tensor,  # (N,)
    signed: Tensor,  # (P, N)
) -> Tensor:  # (pairs, P)
    """The evidence of each pair: its first correlation, and all of them."""
    found = []
    for start in range(0, len(pairs), AT_ONCE):
        some = pairs[start : start + AT_ONCE]
        parts = torch.cat([_of_pair(scores[i], scores[j], shares) for i, j in some], 1)
        squares = (signed @ parts).square().mT.unflatten(0, (len(some), FIRST * FIRST))
        found.append(mean_evidence(evidence(torch.stack([squares[:, 0], squares.sum(1)]))))
    return torch.cat(found)


def _in_own_margins(
    place: ColumnPlace, rows: Sequence[Tensor], shares: Sequence[Tensor]
) -> Tensor:  # (N, FIRST)
    """The first scores of a column: of mean 0 and covariance 1 on each side."""
    own = [ColumnScores.of(place, *side) for side in zip(rows, shares, strict=True)]
    if any(column.ranks is None for column in own):
        # Categories, and numbers of few values: the same indicators on both sides.
        own = [ColumnScores.of(place, torch.cat([*rows]), torch.cat([*shares]) / 2)] * 2
    return torch.cat([
        _whitened(column(side)[:, :FIRST], share)
        for column, side, share in zip(own, rows, shares, strict=True)
    ])  # fmt: skip


def _whitened(scores: Tensor, shares: Tensor) -> Tensor:  # (N, up to FIRST) -> (N, FIRST)
    scores = scores - shares @ scores
    found = scores.new_zeros(len(scores), FIRST)
    for k in range(scores.shape[1]):
        before = found[:, :k]
        left = scores[:, k] - before @ (before.mT @ (shares * scores[:, k]))
        size = shares @ left.square()
        if size > LEFT * (shares @ scores[:, k].square()):
            found[:, k] = left / size.sqrt()
    return found


def _of_pair(first: Tensor, second: Tensor, shares: Tensor) -> Tensor:  # (N, FIRST * FIRST)
    """What each row adds to the correlations, the scales it was divided by included.

    Its mean over a side is that side's correlations less those of both; without the second part
    correlations near 1 would seem to vary far more than they do.
    """
    products = first[:, :, None] * second[:, None, :]
    together = torch.einsum("n,nij->ij", shares, products)
    scales = torch.einsum("ni,nk,kj->nij", first, first, together) + torch.einsum(
        "ik,nk,nj->nij", together, second, second
    )
    return (products - scales / 2).flatten(1)
