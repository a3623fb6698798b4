r"""Whether two columns depend on each other differently in two samples, whatever each does alone.

Within each sample, a number becomes Legendre polynomials of its rank *there*, a category the
indicators of its values, and both are whitened *there*: no column is left with a difference of its
own. What is left of a pair are correlations of these scores. Their difference is compared with
those of random labellings of the same scores. This is not exact as the test of the pooled rows is,
because the scores know the samples, but nearly so for pairs whose columns alone have moved, of
which the exact test says only that the pair is not the same.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kermix.comparison.column_places import ColumnPlace
from kermix.comparison.column_scores import ColumnScores
from kermix.comparison.evidence import corrected_pvalues, evidence, mean_evidence
from kermix.comparison.permutation import labellings, signed_weights

__all__ = ["dependence_pvalues"]

FEWEST_ROWS = 10  # of a side
MOST_ROWS = 10_000  # of a side
SCORES = 2  # of a column
PAIRS_AT_ONCE = 32
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
    labels = labellings(len(sides[0]), len(sides[1]), permutations, generator, groups)
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
