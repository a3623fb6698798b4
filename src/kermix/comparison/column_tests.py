"""The evidence of single columns and of pairs of columns under each labelling."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from kermix.comparison.column_scores import (
    COLUMNS_AT_ONCE,
    ORDER,
    ColumnScores,
    ColumnsScores,
    PairScores,
    nested_sums,
)
from kermix.comparison.evidence import evidence, mean_evidence
from kermix.comparison.units import Units

__all__ = ["column_evidence", "pair_evidence", "pairs_to_look_at"]

MOST_PAIRS = 300
PAIRS_AT_ONCE = 32


def column_evidence(units: Units, scores: ColumnsScores) -> Tensor:  # (C, P)
    """The evidence of each column by itself, from its statistics."""
    found = units.signed.new_empty(len(scores), len(units.signed))
    for columns in scores.together:
        means = units.means(columns, len(columns.places) * ORDER)
        squares = (units.signed @ means).square().mT.unflatten(0, (-1, ORDER))  # (C, q, P)
        found[columns.places] = mean_evidence(evidence(nested_sums(squares.transpose(0, 1))))
    alone = list(scores.alone.items())
    for start in range(0, len(alone), COLUMNS_AT_ONCE):
        places, some = zip(*alone[start : start + COLUMNS_AT_ONCE], strict=True)
        widths = [s.width for s in some]

        def together(rows: Tensor, some: Sequence[ColumnScores] = some) -> Tensor:
            return torch.cat([s(rows) for s in some], 1)

        means = units.means(together, max(1, sum(widths)))
        squares = (units.signed @ means).square().mT  # (q, P)
        for place, column, part in zip(places, some, squares.split(widths), strict=True):
            found[place] = mean_evidence(evidence(column.statistics(part)))
    return found


def pairs_to_look_at(units: Units, scores: ColumnsScores) -> list[tuple[int, int]]:
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
    first = ((first - units.shares @ first) * units.shares.sqrt()[:, None]).float()
    products = (first.mT @ first).triu_(1).abs_()
    best = products.flatten().topk(MOST_PAIRS).indices
    rows, columns_of = best // len(told), best % len(told)
    return sorted(
        (told[i], told[j]) for i, j in zip(rows.tolist(), columns_of.tolist(), strict=True)
    )


def pair_evidence(
    units: Units, scores: Sequence[ColumnScores], pairs: Sequence[tuple[int, int]]
) -> Tensor:  # (pairs, P)
    """The evidence of each pair beyond its single columns: the first product, and all of them."""
    found = []
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        some = PairScores(scores, pairs[start : start + PAIRS_AT_ONCE])
        means = units.means(some, len(some.pairs) * some.width)
        known = means if units.rows is units.reference else some(units.reference)
        left = some.beyond(means, known, units.shares)
        squares = (units.signed @ left.flatten(1)).square().mT.unflatten(0, left.shape[1:])
        both = torch.stack([squares[:, 0], squares.sum(1)])
        found.append(mean_evidence(evidence(both)))
    return torch.cat(found) if found else units.signed.new_zeros(0, len(units.signed))
