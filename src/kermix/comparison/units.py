r"""What changes sides in a permutation test of means of features: rows, or blocks of many rows.

Every statistic of `kermix.comparison.aggregate` is made of differences of means of features.
What the features depend on comes from reference rows, which are chosen among the pooled rows by
their values alone, so that all labellings are treated alike.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from kermix.comparison.blocks import Blocks
from kermix.comparison.permutation import labellings, signed_weights
from kermix.errors import OptionError
from kermix.kernels.subsets import distinct_rows, symmetric_subset

__all__ = ["Units", "smallest_pvalue"]

ROWS_UP_TO = 4000  # of both sides; of more, blocks change sides
ROWS_WITH_GROUPS_UP_TO = 20_000
REFERENCE = 8000
NUMBERS_AT_ONCE = 2**22


@dataclass(frozen=True)
class Units:
    """Rows or blocks with their labels, and the rows that features are made from.

    Attributes:
        rows: Distinct rows in an order that depends on their values alone, or, of blocks, all
            rows as they were given.
        signed: For each labelling the weights of the units of one side less those of the other;
            the given labelling comes first.
        reference: Rows by which ranks, scales, landmarks and moments are found.
        shares: Their weights, whose sum is 1.
        blocks: Blocks of rows, if these change sides.
        used: How many rows of each side take part.
    """

    rows: Tensor  # (U, d)
    signed: Tensor  # (P, R)
    reference: Tensor  # (S, d)
    shares: Tensor  # (S,)
    blocks: Blocks | None
    used: tuple[int, int]

    @classmethod
    def of(
        cls,
        pooled: Tensor,  # (n + m, d), float64
        n: int,
        permutations: int,
        generator: torch.Generator,
        *,
        groups: tuple[Tensor, Tensor] | None = None,
        weights: Tensor | None = None,  # (n + m,)
    ) -> "Units":
        """Units of both samples, those of the first sample first.

        Up to 4000 rows each changes sides by itself; of more, some four hundred blocks do.
        """
        m = len(pooled) - n
        rows = pooled + 0.0  # minus zero becomes zero
        if groups is None and weights is None and len(rows) > ROWS_UP_TO:
            blocks = Blocks.of(n, m, generator)
            sides = blocks.of_x, len(blocks) - blocks.of_x
            a, b = signed_weights(_labels(*sides, permutations, generator, None), None)
            reference = rows[symmetric_subset(rows, REFERENCE)]
            shares = rows.new_full((len(reference),), 1 / len(reference))
            used = sides[0] * blocks.size, sides[1] * blocks.size
            return cls(rows, a - b, reference, shares, blocks, used)
        if len(rows) > ROWS_WITH_GROUPS_UP_TO:
            raise OptionError(
                f"{len(rows)} rows with {'weights' if groups is None else 'groups'}: the "
                f"aggregate test takes up to {ROWS_WITH_GROUPS_UP_TO} of these; use a subset of "
                "the rows, or name a cost."
            )
        labels = _labels(n, m, permutations, generator, groups)
        kept, place = distinct_rows(rows)
        share = rows.new_ones(len(rows)) if weights is None else weights.to(rows)
        tiny = torch.finfo(rows.dtype).tiny
        a, b = (
            side / side.sum(1, keepdim=True).clamp(min=tiny)
            for side in (
                rows.new_zeros(len(labels), len(kept)).index_add_(1, place, named * share)
                for named in (labels, ~labels)
            )
        )
        total = rows.new_zeros(len(kept)).index_add_(0, place, share)
        distinct = rows[kept]
        if len(kept) <= REFERENCE:
            return cls(distinct, a - b, distinct, total / total.sum(), None, (n, m))
        chosen = symmetric_subset(distinct, REFERENCE)
        shares = total[chosen] / total[chosen].sum()
        return cls(distinct, a - b, distinct[chosen], shares, None, (n, m))

    def chunks(self, width: int) -> Iterator[Tensor]:  # (b, s, d) each
        """Rows of some blocks at a time, so few that their features find room."""
        assert self.blocks is not None
        together = max(1, NUMBERS_AT_ONCE // (width * self.blocks.size))
        for index in self.blocks.rows.split(together):
            yield self.rows[index]

    def means(self, features: Callable[[Tensor], Tensor], width: int) -> Tensor:  # (R, width)
        """Mean features of each unit; `features` is asked about some rows at a time."""
        if self.blocks is None:
            at_once = max(1, NUMBERS_AT_ONCE // width)
            return torch.cat([features(rows) for rows in self.rows.split(at_once)])
        return torch.cat([
            features(rows.flatten(0, 1)).unflatten(0, rows.shape[:2]).mean(1)
            for rows in self.chunks(width)
        ])  # fmt: skip

    @property
    def told(self) -> str:
        """How the permutations were made, in words."""
        if self.blocks is None:
            return "rows change sides"
        return f"{len(self.blocks)} random blocks of {self.blocks.size} rows change sides"


def smallest_pvalue(n: int, m: int, permutations: int | None) -> float:
    """The smallest p-value that so many rows and permutations, or any number of these, can give.

    With equally many rows on both sides, the labelling with both sides exchanged is as extreme.

    Example:
        >>> smallest_pvalue(3, 3, 500), smallest_pvalue(100, 100, 499)
        (0.1, 0.002)
        >>> smallest_pvalue(3, 4, None) == 1 / 35
        True
    """
    drawn = 0.0 if permutations is None else 1 / (permutations + 1)
    if math.lgamma(n + m + 1) - math.lgamma(n + 1) - math.lgamma(m + 1) > 40:
        return drawn
    return max(drawn, (2 if n == m else 1) / math.comb(n + m, n))


def _labels(
    n: int,
    m: int,
    permutations: int,
    generator: torch.Generator,
    groups: tuple[Tensor, Tensor] | None,
) -> Tensor:  # (P, n + m), bool
    """Labellings, the given one first: all there are if they are few, else random ones."""
    if groups is not None or n + m > 64 or math.comb(n + m, n) > permutations + 1:
        return labellings(n, m, permutations, generator, groups)
    found = torch.zeros(math.comb(n + m, n), n + m, dtype=torch.bool)
    for k, chosen in enumerate(combinations(range(n + m), n)):
        found[k, list(chosen)] = True
    return found
