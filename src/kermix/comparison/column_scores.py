r"""Scores of single columns and of pairs: features whose means tell how a column differs.

A number's scores are Legendre polynomials of its rank among the reference rows (Neyman's smooth
test); those of a category, or of a column of few values, are indicators of its values divided by
the roots of their shares, whose sum of squares is Pearson's statistic. A gap is a value like any
other. Scores of a pair are products of both columns' first scores, less what the single columns'
scores predict of them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.comparison.column_places import ColumnPlace

__all__ = ["ColumnScores", "PairScores", "legendre"]

NESTED = (1, 2, 4, 8)
ORDER = NESTED[-1]
FEW_VALUES = 8
VALUES_OF_CATEGORIES = 64
FIRST = 2  # scores of a column that products are made of
MAIN = 4  # scores of a column that predict products
SMALLEST = 1e-12


@dataclass(frozen=True)
class ColumnScores:
    """Scores of one column.

    Attributes:
        place: Of the column in the rows.
        ordered: Its values in the reference rows in rising order, or None for a category.
        values: Its values that have an indicator of their own, most common first.
        roots: Roots of their shares.
        gap: Root of the variance of its indicator of gaps; 0 if there is none.
    """

    place: ColumnPlace
    ordered: Tensor | None
    below: Tensor | None
    values: Tensor
    roots: Tensor
    gap: float

    @classmethod
    def of(cls, place: ColumnPlace, reference: Tensor, shares: Tensor) -> "ColumnScores":
        """Ranks and shares from the reference rows."""
        gap = 0.0
        known = torch.ones(len(reference), dtype=torch.bool)
        if place.numbers is not None and place.codes is not None:
            known = reference[:, place.codes] == 0
            share = float(shares[~known].sum())
            gap = math.sqrt(max(0.0, share * (1 - share)))
        at = place.codes if place.numbers is None else place.numbers
        assert at is not None
        values, index = torch.unique(reference[known, at], return_inverse=True)
        weights = shares.new_zeros(len(values)).index_add_(0, index, shares[known])
        weights = weights / weights.sum().clamp(min=SMALLEST)
        if place.numbers is not None and len(values) > FEW_VALUES:
            empty = values[:0]
            return cls(place, values, weights.cumsum(0) - weights / 2, empty, empty, gap)
        # By share and then by value: the order of rows has no part in it.
        order = torch.argsort(weights, descending=True, stable=True)[:VALUES_OF_CATEGORIES]
        if len(values) < 2:
            order = order[:0]
        return cls(place, None, None, values[order], weights[order].sqrt(), gap)

    @property
    def width(self) -> int:
        """How many scores there are."""
        return (ORDER if self.ordered is not None else len(self.values)) + (self.gap > 0)

    @property
    def informative(self) -> bool:
        """Whether the column has more than one value."""
        return self.ordered is not None or len(self.values) > 0 or self.gap > 0

    def statistics(self, squares: Tensor) -> Tensor:  # (q, P) -> (k, P)
        """Statistics from squared differences of mean scores.

        Of a number: sums of the first 1, 2, 4 and all. Of a category: Pearson's, the sum of
        squared differences of shares, and the largest of single values, each divided by its
        variance, for a value that is new or gone. Of gaps: that of their share.
        """
        known = squares[:-1] if self.gap > 0 else squares
        found = []
        if self.ordered is not None:
            found += [known[:k].sum(0) for k in NESTED]
        elif len(self.values):
            found.append(known.sum(0))
            if len(self.values) > 2:
                shares = self.roots.square()
                found.append(shares @ known)
                found.append((known / (1 - shares)[:, None]).amax(0))
        if self.gap > 0:
            found.append(squares[-1])
        return torch.stack(found) if found else squares.new_zeros(1, squares.shape[1])

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
        column = rows[:, at].contiguous()
        if self.ordered is None or self.below is None:
            return (column[:, None] == self.values).to(rows) / self.roots
        return legendre(2 * middle_ranks(column, self.ordered, self.below) - 1, order)


def middle_ranks(column: Tensor, ordered: Tensor, below: Tensor) -> Tensor:
    """Share of the reference below each value, half of what is equal to it included."""
    right = torch.searchsorted(ordered, column).clamp(max=len(ordered) - 1)
    exact = ordered[right] == column
    left = (right - 1).clamp(min=0)
    between = torch.where(column > ordered[-1], 1.0, (below[left] + below[right]) / 2)
    return torch.where(exact, below[right], torch.where(column < ordered[0], 0.0, between))


def legendre(places: Tensor, order: int) -> Tensor:  # (N,) in [-1, 1] -> (N, order)
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
class PairScores:
    """Products of the first scores of pairs of columns, less what single columns predict."""

    columns: Sequence[ColumnScores]
    pairs: Sequence[tuple[int, int]]
    width: int = FIRST * FIRST + 2 * MAIN

    def __call__(self, rows: Tensor) -> Tensor:  # (N, d) -> (N, pairs * width)
        """For each pair the products, and then the single columns' scores."""
        used = sorted({k for pair in self.pairs for k in pair})
        scores = {k: self.columns[k](rows) for k in used}
        first = {k: _wide(s, FIRST) for k, s in scores.items()}
        main = {k: _wide(s, MAIN) for k, s in scores.items()}
        parts = []
        for i, j in self.pairs:
            products = (first[i][:, :, None] * first[j][:, None, :]).flatten(1)
            parts.append(torch.cat([products, main[i], main[j]], 1))
        return torch.stack(parts, 1).flatten(1)

    def beyond(self, means: Tensor, known: Tensor, shares: Tensor) -> Tensor:
        """What is left of mean products (R, pairs * width): (R, pairs, products), of variance 1.

        The prediction is the linear regression among the reference rows, of which `known` are
        the scores, (S, pairs * width).
        """
        shape = len(self.pairs), self.width
        count = FIRST * FIRST
        known = known.unflatten(1, shape)
        centre = torch.einsum("s,spw->pw", shares, known)
        known = known - centre
        product = torch.einsum("s,spw,spv->pwv", shares, known, known)
        inner, across = product[:, count:, count:], product[:, count:, :count]
        size = inner.diagonal(dim1=1, dim2=2).amax(1).clamp(min=SMALLEST)
        inner = inner + 1e-8 * size[:, None, None] * torch.eye(inner.shape[-1]).to(inner)
        slopes = torch.linalg.solve(inner, across)
        left = (product[:, :count, :count] - across.mT @ slopes).diagonal(dim1=1, dim2=2)
        whole = product[:, :count, :count].diagonal(dim1=1, dim2=2)
        apart = means.unflatten(1, shape) - centre
        residual = apart[..., :count] - torch.einsum("rpw,pwc->rpc", apart[..., count:], slopes)
        there = left > 1e-6 * whole.clamp(min=SMALLEST)
        return torch.where(there, residual / left.clamp(min=SMALLEST).sqrt(), 0.0)


def _wide(scores: Tensor, width: int) -> Tensor:
    """The first scores, with zeros where there are fewer."""
    return torch.nn.functional.pad(scores[:, :width], (0, max(0, width - scores.shape[1])))
