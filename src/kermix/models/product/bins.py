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
    """Each column's values, at most `MOST_VALUES`, and the rank of any number among them.

    A column with more distinct values is cut at its quantiles, and the rows in between stand for
    their mean. Networks get two numbers of a column: itself, and its rank, which is also what
    numbers far from all others have in common with them.

    Args:
        columns: Scaled, (n, T), float64.
        most: Values of a column at most, up to 256.

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

    def __init__(self, columns: np.ndarray, most: int = MOST_VALUES) -> None:
        found = [_cut(column, most) for column in columns.T]
        self._values = [values for values, _, _ in found]
        self._ranks = [_ranks(counts) for _, counts, _ in found]
        self.codes: Tensor | None = torch.from_numpy(np.stack([c for _, _, c in found], 1))
        widest = max(map(len, self._values))
        # Where a column has fewer values, its last one stands again and no row has it.
        points = np.stack([np.pad(v, (0, widest - len(v)), "edge") for v in self._values], 1)
        shares = [np.pad(k / len(columns), (0, widest - len(k))) for _, k, _ in found]
        inputs = self.inputs(points).view(widest, -1, 2).transpose(0, 1).contiguous()
        self.grid: Grid | None = Grid(inputs, torch.from_numpy(np.stack(shares)))

    def inputs(self, columns: np.ndarray) -> Tensor:  # (n, 2 T), float64
        """Each column and its rank, side by side."""
        both = np.empty((*columns.shape, 2))
        both[..., 0] = columns
        for number, (values, ranks) in enumerate(zip(self._values, self._ranks, strict=True)):
            both[:, number, 1] = np.interp(columns[:, number], values, ranks)
        return torch.from_numpy(both.reshape(len(columns), -1))

    def without_rows(self) -> Self:
        """Forget the rows it was made of, which no answer needs."""
        self.codes = self.grid = None
        return self


def _cut(column: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values in ascending order, how many rows have each, and which each row has."""
    values = np.unique(column)
    if len(values) <= most:
        cuts = values[1:]
    else:
        cuts = np.unique(np.quantile(column, np.arange(1, most) / most))
        cuts = cuts[cuts > values[0]]
    codes = np.searchsorted(cuts, column, side="right")
    counts = np.bincount(codes, minlength=len(cuts) + 1)
    sums = np.bincount(codes, weights=column, minlength=len(cuts) + 1)
    held = counts > 0  # between two quantiles that rounding has set apart there may be no row
    codes = (np.cumsum(held) - 1)[codes]
    return sums[held] / counts[held], counts[held], codes.astype(np.uint8)


def _ranks(counts: np.ndarray) -> np.ndarray:
    """Where the middle row of each value stands, with a deviation of about 1."""
    return ((np.cumsum(counts) - counts / 2) / counts.sum() - 0.5) * SPREAD
