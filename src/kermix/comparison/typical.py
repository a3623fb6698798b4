"""Rows that are typical of one sample and not of the other, and the columns that make them so."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kermix.comparison.column_changes import groups_of
from kermix.comparison.column_values import ComparedRows, sides_of
from kermix.comparison.telling_apart import ToldApart

__all__ = ["TypicalRows", "typical_rows"]

TOP = 0.1  # share of a sample's rows, by their score
GROUPS = 10
HALF_A_ROW = 0.5
OUTSIDE, FAR = 0.0025, 4.0  # share of a column's values at either end; what one adds
UNIFORM_SPREAD = 12**0.5  # makes a uniform distribution one of variance 1


@dataclass(frozen=True)
class TypicalRows:
    """Some rows of one sample that a classifier puts there, none of them an outlier.

    Attributes:
        rows: Their places in the sample, from 0.
        columns: Those whose values speak most for this sample, the clearest first.
        cells: What is in these columns, as text.
    """

    rows: tuple[int, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def typical_rows(
    compared: ComparedRows, apart: ToldApart, count: int = 5, most_columns: int = 6
) -> tuple[TypicalRows, TypicalRows]:
    """Of each sample, rows that are nearest to the middle of those with its highest scores.

    The scores are those of `tell_apart` for unseen rows; the middle is weighted by them.
    """
    second = apart.chosen >= compared.n
    favours = _favours(compared, apart.chosen, second.numpy())
    found = []
    for side, sign in ((~second, -1.0), (second, 1.0)):
        inside = side.nonzero()[:, 0]
        scores = sign * apart.scores[inside]
        keep = scores.argsort(descending=True, stable=True)[: max(count, int(TOP * len(inside)))]
        top, weights = inside[keep], scores[keep] - scores[keep].min()
        weights = (weights + 1e-9) / (weights + 1e-9).sum()
        near = _nearest(compared, apart.chosen[top], weights, count)
        rows = top[near]
        speak = sign * favours[rows.numpy()].mean(0)
        order = [k for k in np.argsort(-speak, kind="stable") if speak[k] > 0][:most_columns]
        chosen = apart.chosen[rows]
        found.append(_shown(compared, chosen, [compared.names[k] for k in order]))
    return found[0], found[1]


def _shown(compared: ComparedRows, chosen: Tensor, names: Sequence[str]) -> TypicalRows:
    columns = [compared.column(name, chosen) for name in names]
    cells = tuple(tuple(c.cell(k) for c in columns) for k in range(len(chosen)))
    start = torch.where(chosen >= compared.n, compared.n, 0)
    return TypicalRows(tuple((chosen - start).tolist()), tuple(names), cells)


def _nearest(compared: ComparedRows, chosen: Tensor, weights: Tensor, count: int) -> Tensor:
    """Which of some rows are nearest to their weighted middle; equal rows count once."""
    rows = compared.pooled[chosen].double()
    distances = rows.new_zeros(len(rows))
    for place in compared.places:
        if place.numbers is not None:
            ordered = compared.pooled[:, place.numbers].double().sort().values
            column = rows[:, place.numbers].contiguous()
            ends = ordered[[int(OUTSIDE * len(ordered)), -1 - int(OUTSIDE * len(ordered))]]
            below = torch.searchsorted(ordered, column).double()
            ranks = UNIFORM_SPREAD * below / len(ordered)
            distances += (ranks - weights @ ranks).square()
            # Ranks do not tell how far out the outermost values are.
            distances += FAR * ((column < ends[0]) | (column > ends[1]))
        if place.codes is not None:
            codes = rows[:, place.codes]
            shares = (codes[:, None] == codes).double() @ weights
            distances += 2 * (1 - shares)
    order = distances.argsort(stable=True)
    _, first = np.unique(rows[order].numpy(), axis=0, return_index=True)
    return order[torch.from_numpy(np.sort(first))[:count]]


def _favours(compared: ComparedRows, chosen: Tensor, second: np.ndarray) -> np.ndarray:  # (N, C)
    """For each row and column, the logarithm of how much more often the second has such values."""
    found = []
    order = np.argsort(second, kind="stable")
    n = int((~second).sum())
    for name in compared.names:
        group, count = groups_of(compared.column(name, chosen), GROUPS)
        a, b = (
            (np.bincount(g, minlength=count) + HALF_A_ROW) / (len(g) + HALF_A_ROW * count)
            for g in sides_of(group[order], n)
        )
        found.append(np.log(b / a)[group])
    return np.stack(found, 1)
