"""The evidence of single columns and of pairs under each labeling, on one scale and corrected.

A pair is evidence where two columns depend on each other differently, whatever each does alone.
Within each sample, a number becomes Legendre polynomials of its rank *there*, a category the
indicators of its values, and both are whitened *there*: no column is left with a difference of its
own. What is left of a pair are correlations of these scores. Their difference is compared with
those of random labelings of the same scores. This is not exact as the test of the pooled rows is,
because the scores know the samples, but nearly so for pairs whose columns alone have moved, of
which the exact test says only that the pair is not the same.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from kermix.two_sample.column_scores import (
    COLUMNS_AT_ONCE,
    FEWEST_ROWS,
    ORDER,
    ColumnPlace,
    ColumnScores,
    ColumnsScores,
    PairScores,
    nested_sums,
)
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
    "ColumnStatistics",
    "PairStatistics",
    "dependence_pvalues",
    "pairs_to_look_at",
]

# Reasoned, no record.
MOST_PAIRS = 300
PAIRS_AT_ONCE = 32


@dataclass(frozen=True)
class ColumnStatistics:
    """The evidence of each column by itself, from its statistics."""

    scores: ColumnsScores

    def values(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """One statistic for each column."""
        found = units.signed.new_empty(len(self.scores), len(units.signed))
        for columns in self.scores.together:
            means = units.means(columns, len(columns.places) * ORDER)
            squares = (units.signed @ means).square().mT.unflatten(0, (-1, ORDER))  # (C, q, P)
            found[columns.places] = mean_evidence(evidence(nested_sums(squares.transpose(0, 1))))
        alone = list(self.scores.alone.items())
        for start in range(0, len(alone), COLUMNS_AT_ONCE):
            places, some = zip(*alone[start : start + COLUMNS_AT_ONCE], strict=True)
            widths = [s.width for s in some]

            def together(rows: Tensor, some: Sequence[ColumnScores] = some) -> Tensor:
                return torch.cat([s(rows) for s in some], 1)

            means = units.means(together, max(1, sum(widths)))
            squares = (units.signed @ means).square().mT  # (q, P)
            for place, column, part in zip(places, some, squares.split(widths), strict=True):
                found[place] = mean_evidence(evidence(column.statistics(part)))
        for place, row in zip(self.scores.places, found, strict=True):
            yield StatisticValues(place.name, row, part="columns")


def pairs_to_look_at(units: ExchangeableUnits, scores: ColumnsScores) -> list[tuple[int, int]]:
    """All pairs, or those whose ranks or codes depend most on each other in the pooled rows."""
    alone = {k: s for k, s in scores.alone.items() if s.informative}
    told = sorted([*alone, *(k for some in scores.together for k in some.places)])
    if len(told) * (len(told) - 1) // 2 <= MOST_PAIRS:
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
    best = products.flatten().topk(MOST_PAIRS).indices
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
        for start in range(0, len(self.pairs), PAIRS_AT_ONCE):
            some = PairScores(self.scores, self.pairs[start : start + PAIRS_AT_ONCE])
            means = units.means(some, len(some.pairs) * some.width)
            known = means if units.rows is units.reference else some(units.reference)
            left = some.beyond(means, known, units.reference_shares)
            squares = (units.signed @ left.flatten(1)).square().mT.unflatten(0, left.shape[1:])
            both = torch.stack([squares[:, 0], squares.sum(1)])
            for pair, row in zip(some.pairs, mean_evidence(evidence(both)), strict=True):
                name = " and ".join(self.scores.places[k].name for k in pair)
                yield StatisticValues(name, row, part="pairs")


# Reasoned, no record.
MOST_ROWS = 10_000  # of a side
SCORES = 2  # of a column
SMALLEST = 1e-6


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
    """P-values of different dependence, corrected for the number of pairs; 1 of very few rows."""
    if min(n, len(pooled) - n) < FEWEST_ROWS:
        return torch.ones(len(pairs), dtype=torch.float64)
    sides = [torch.arange(n), torch.arange(n, len(pooled))]
    if groups is None:
        sides = [s[torch.randperm(len(s), generator=generator)[:MOST_ROWS]] for s in sides]
    share = pooled.new_ones(len(pooled)) if weights is None else weights.to(pooled)
    shares = [share[s] / share[s].sum() for s in sides]
    rows = [pooled[s] for s in sides]
    used = sorted({k for pair in pairs for k in pair})
    white = {k: _in_own_margins(places[k], rows, shares) for k in used}
    labels = random_labelings(len(sides[0]), len(sides[1]), permutations, generator, groups)
    a, b = signed_weights(labels, None if weights is None else share[torch.cat(sides)])
    both = torch.cat(shares) / 2
    found = []
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        some = pairs[start : start + PAIRS_AT_ONCE]
        parts = torch.cat([_of_pair(white[i], white[j], both) for i, j in some], 1)
        squares = ((a - b) @ parts).square().mT.unflatten(0, (len(some), SCORES * SCORES))
        statistics = torch.stack([squares[:, 0], squares.sum(1)])
        found.append(mean_evidence(evidence(statistics)))
    return corrected_pvalues(torch.cat(found))


def _in_own_margins(
    place: ColumnPlace, rows: Sequence[Tensor], shares: Sequence[Tensor]
) -> Tensor:  # (N, SCORES)
    """The first scores of a column: of mean 0 and covariance 1 on each side."""
    own = [ColumnScores.of(place, *side) for side in zip(rows, shares, strict=True)]
    if any(column.ranks is None for column in own):
        # Categories, and numbers of few values: the same indicators on both sides.
        own = [ColumnScores.of(place, torch.cat([*rows]), torch.cat([*shares]) / 2)] * 2
    return torch.cat([
        _whitened(column(side)[:, :SCORES], share)
        for column, side, share in zip(own, rows, shares, strict=True)
    ])  # fmt: skip


def _whitened(scores: Tensor, shares: Tensor) -> Tensor:  # (N, up to SCORES) -> (N, SCORES)
    scores = scores - shares @ scores
    found = scores.new_zeros(len(scores), SCORES)
    for k in range(scores.shape[1]):
        before = found[:, :k]
        left = scores[:, k] - before @ (before.mT @ (shares * scores[:, k]))
        size = shares @ left.square()
        if size > SMALLEST * (shares @ scores[:, k].square()):
            found[:, k] = left / size.sqrt()
    return found


def _of_pair(first: Tensor, second: Tensor, shares: Tensor) -> Tensor:  # (N, SCORES * SCORES)
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
