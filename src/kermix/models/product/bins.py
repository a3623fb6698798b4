"""Columns of a table by ranks: few values for each, and where a number stands among them."""

import math
from typing import Self

import numpy as np
import torch
from torch import Tensor

from kermix.models.product.binned import Grid

__all__ = ["MOST_VALUES", "ColumnBins"]

MOST_VALUES = 128
SPREAD = math.sqrt(12)  # a uniform rank of 0 to 1 has this times smaller a deviation than 1


class ColumnBins:
    """Each column's values, about `MOST_VALUES` at most, and the rank of any number among them.

    A column with more distinct values is cut at its quantiles, and the rows in between stand for
    their mean; values that a fair share of the rows has stand for themselves, and may be as many
    again. Networks get two numbers of a column: itself, within its first and last value, and its
    rank. A number beyond is as the last one: it has been seen in no other way.

    Args:
        columns: Scaled, (n, T), float64.
        most: Values of a column at most, up to 128, where none is common.
        weights: Of the rows, (n,), all above 0.

    Attributes:
        codes: Which of its column's values each number is, (n, T), uint8.
        grid: The values, as `kermix.models.product.binned` takes them.

    Example:
        >>> bins = ColumnBins(np.array([[0.0, 5.0], [1.0, 5.0], [1.0, 7.0]]))
        >>> bins.codes.tolist()
        [[0, 0], [1, 0], [1, 1]]
        >>> bins.inputs(np.array([[0.0, 5.0]])).shape  # two numbers for each column
        torch.Size([1, 4])
    """

    def __init__(
        self,
        columns: np.ndarray,
        most: int = MOST_VALUES,
        weights: np.ndarray | None = None,
    ) -> None:
        found = [_cut(column, most, weights) for column in columns.T]
        self._values = [values for values, _, _ in found]
        self._ranks = [_ranks(counts) for _, counts, _ in found]
        self.codes: Tensor | None = torch.from_numpy(np.stack([c for _, _, c in found], 1))
        widest = max(map(len, self._values))
        # Where a column has fewer values, its last one stands again and no row has it.
        points = np.stack([np.pad(v, (0, widest - len(v)), "edge") for v in self._values], 1)
        shares = [np.pad(k / k.sum(), (0, widest - len(k))) for _, k, _ in found]
        inputs = self.inputs(points).view(widest, -1, 2).transpose(0, 1).contiguous()
        self.grid: Grid | None = Grid(inputs, torch.from_numpy(np.stack(shares)))

    def inputs(self, columns: np.ndarray) -> Tensor:  # (n, 2 T), float64
        """Each column and its rank, side by side."""
        both = np.empty((*columns.shape, 2))
        for number, (values, ranks) in enumerate(zip(self._values, self._ranks, strict=True)):
            column = np.clip(columns[:, number], values[0], values[-1])
            both[:, number, 0], both[:, number, 1] = column, np.interp(column, values, ranks)
        return torch.from_numpy(both.reshape(len(columns), -1))

    def without_rows(self) -> Self:
        """Forget the rows it was made of, which no answer needs."""
        self.codes = self.grid = None
        return self


def _cut(
    column: np.ndarray, most: int, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values in ascending order, the weight of rows that have each, and which each row has."""
    cuts = _cuts(column, most, weights)
    codes = np.searchsorted(cuts, column, side="right")
    rows = np.bincount(codes, minlength=len(cuts) + 1)
    held = rows > 0  # between two quantiles that rounding has set apart there may be no row
    codes, rows = (np.cumsum(held) - 1)[codes], rows[held]
    counts = np.bincount(codes, weights)
    sums = np.bincount(codes, column if weights is None else column * weights)
    # Rounding must not take a mean beyond its rows: ranks are looked up among rising values.
    ends, rising = np.cumsum(rows), np.sort(column)
    means = np.clip(sums / counts, rising[ends - rows], rising[ends - 1])
    return means, counts, codes.astype(np.uint8)


def _cuts(column: np.ndarray, most: int, weights: np.ndarray | None) -> np.ndarray:
    """Where all values but the first begin: at most twice as many as asked for, less two.

    Where there are too many, those that a fair share of rows has in common stay themselves, and
    the rest are cut at their own quantiles: else all quantiles of a column that is mostly zero
    would be zero.
    """
    values, places = np.unique(column, return_inverse=True)
    if len(values) <= most:
        return values[1:]
    counts = np.bincount(places, weights)
    common = counts * most >= counts.sum()
    rest = ~common[places]
    parts = most - int(common.sum())
    shares = np.arange(1, parts) / parts
    if weights is None:
        cuts = np.quantile(column[rest], shares)
    else:
        reached = np.cumsum(np.where(common, 0.0, counts))
        cuts = values[np.searchsorted(reached, shares * reached[-1])]
    after = values[1:][common[:-1]]
    cuts = np.unique(np.concatenate([cuts, values[common], after]))
    return cuts[cuts > values[0]]


def _ranks(counts: np.ndarray) -> np.ndarray:
    """Where the middle row of each value stands, with a deviation of about 1."""
    return ((np.cumsum(counts) - counts / 2) / counts.sum() - 0.5) * SPREAD
