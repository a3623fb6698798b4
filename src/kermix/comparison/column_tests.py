"""The evidence of single columns and of pairs of columns under each labelling."""

from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from kermix.comparison.column_scores import ColumnScores, PairScores
from kermix.comparison.evidence import evidence, mean_evidence
from kermix.comparison.units import Units

__all__ = ["column_evidence", "pair_evidence", "pairs_to_look_at"]

MOST_PAIRS = 300
PAIRS_AT_ONCE = 32
COLUMNS_AT_ONCE = 64


def column_evidence(units: Units, scores: Sequence[ColumnScores]) -> Tensor:  # (C, P)
    """The evidence of each column by itself, from its statistics."""
    found = []
    for start in range(0, len(scores), COLUMNS_AT_ONCE):
        some = scores[start : start + COLUMNS_AT_ONCE]
        widths = [s.width for s in some]

        def together(rows: Tensor, some: Sequence[ColumnScores] = some) -> Tensor:
            return torch.cat([s(rows) for s in some], 1)

        means = units.means(together, max(1, sum(widths)))
        squares = (units.signed @ means).square().mT  # (q, P)
        for column, part in zip(some, squares.split(widths), strict=True):
            found.append(mean_evidence(evidence(column.statistics(part))))
    return torch.stack(found)


def pairs_to_look_at(units: Units, scores: Sequence[ColumnScores]) -> list[tuple[int, int]]:
    """All pairs, or those whose ranks or codes depend most on each other in the pooled rows."""
    told = [k for k, s in enumerate(scores) if s.informative]
    if len(told) * (len(told) - 1) // 2 <= MOST_PAIRS:
        return list(combinations(told, 2))
    first = torch.stack([scores[k].first(units.reference) for k in told], 1)
    first = ((first - units.shares @ first) * units.shares.sqrt()[:, None]).float()
    products = (first.mT @ first).triu(1).abs()
    best = products.flatten().topk(MOST_PAIRS).indices
    rows, columns = best // len(told), best % len(told)
    return sorted((told[i], told[j]) for i, j in zip(rows.tolist(), columns.tolist(), strict=True))


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
