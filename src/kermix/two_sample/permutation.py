"""What changes sides in a permutation test of means of features: rows, or blocks of many rows.

Every statistic of `kermix.two_sample.aggregate` is made of differences of means of features.
What the features depend on comes from reference rows, which are chosen among the pooled rows by
their values alone, so that all labellings are treated alike.

Permutations of labels, and p-values that are exact because the data are one of them.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from torch import Tensor

from kermix.checks import check_count, check_seed
from kermix.errors import OptionError, ShapeError
from kermix.kernels.subsets import distinct_rows, symmetric_subset
from kermix.two_sample.blocks import Blocks

__all__ = [
    "Units",
    "combined",
    "labellings",
    "orders",
    "own_generator",
    "pvalues",
    "signed_weights",
    "smallest_pvalue",
    "tied",
]


def own_generator(seed: int | torch.Generator) -> torch.Generator:
    """A generator from a seed, whose numbers are not those of a data set made with that seed.

    Were they the same, the first permutations would depend on the data, and the p-value would not
    be exact.
    """
    if isinstance(seed, torch.Generator):
        return seed
    check_seed(seed)
    return torch.Generator().manual_seed((int(seed) + 1) * 0x9E3779B97F4A7C15 % 2**63)


def labellings(
    n: int,
    m: int,
    permutations: int,
    generator: torch.Generator,
    groups: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # (permutations + 1, n + m), bool
    """Which pooled points are called `x`: as given in the first row, at random in the others.

    With groups (of repeated measurements, say), whole groups change sides: as many of them are
    called `x` as there are in `x`.
    """
    check_count("permutations", permutations)
    if groups is None:
        units, count, given = torch.arange(n + m), n + m, n
    else:
        units, count, given = _groups(groups, n, m)
    shuffled = torch.rand(permutations, count, generator=generator).argsort(1)
    chosen = torch.zeros(permutations + 1, count, dtype=torch.bool)
    chosen[0, :given] = True
    chosen[1:].scatter_(1, shuffled[:, :given], True)
    return chosen[:, units]


def orders(
    count: int, permutations: int, generator: torch.Generator
) -> Tensor:  # (permutations + 1, count)
    """Orders of so many rows: as given in the first row, at random in the others."""
    check_count("permutations", permutations)
    shuffled = torch.rand(permutations, count, generator=generator, dtype=torch.float64).argsort(1)
    return torch.cat([torch.arange(count)[None], shuffled])


def _groups(groups: tuple[Tensor, Tensor], n: int, m: int) -> tuple[Tensor, int, int]:
    """Index of each point's group, groups of `x` first; their number; how many are in `x`."""
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


def signed_weights(labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights of both sides under each labelling, summing to 1 on each: (P, N) and (P, N)."""
    share = labels.new_ones(labels.shape[1], dtype=torch.float64) if weights is None else weights
    sides = (labels * share, ~labels * share)
    return tuple(  # type: ignore[return-value]
        side / side.sum(1, keepdim=True).clamp(min=torch.finfo(side.dtype).tiny) for side in sides
    )


def pvalues(statistics: Tensor) -> Tensor:  # (..., P) -> (..., P)
    """Share of all labellings whose statistic is at least as large, for each of them."""
    ordered = statistics.sort(-1).values.contiguous()
    below = torch.searchsorted(ordered, statistics.contiguous(), right=False)
    return (statistics.shape[-1] - below).double() / statistics.shape[-1]


def tied(statistics: Tensor, noise: float) -> Tensor:  # (P,) -> (P,)
    """Statistics in which those that rounding may have told apart are equal.

    In rising order, what is no further than `noise` above the one before is equal to it. All
    labellings are treated alike, so a p-value among them stays exact.

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


def combined(statistics: Tensor) -> Tensor:  # (L, P) -> (P,)
    r"""One statistic from several: Cauchy's combination of their p-values.

    $\sum_l \tan(\pi (1/2 - p_l))$, a sum that is ruled by its smallest p-values. It treats
    all labellings alike, so its own p-value among them is exact whatever the dependence between
    the statistics.
    """
    if len(statistics) == 1:
        return statistics[0]
    half_step = 0.5 / statistics.shape[-1]
    return torch.tan(math.pi * (0.5 - (pvalues(statistics) - half_step))).mean(0)


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
