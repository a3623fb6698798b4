"""Finds orders between columns (an end after its start) and columns in equal steps."""

from collections.abc import Sequence
from itertools import permutations

import numpy as np

from kermix.data.schema.columns import NumberColumn
from kermix.tables.model.relations import (
    OrderRelation,
    RawColumns,
    Relation,
    StepRelation,
)

__all__ = ["find_orders", "find_steps"]

# Convention: what people round to.
STEPS = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 25, 30, 40, 50, 60, 75, 100, 120, 125, 150, 200,
         250, 300, 400, 500, 600, 1000, 1200, 1500, 2000, 2500, 5000, 10_000)  # fmt: skip


def find_steps(
    columns: RawColumns,
    cells: np.ndarray,
    places: Sequence[int],
    share: float = 0.9,
    most_places: int = 2000,
) -> list[Relation]:
    """Columns of numbers that are multiples of more than their last decimal.

    Args:
        columns: What raw cells are.
        cells: Rows in a random order, (N, D).
        places: Columns to look at.
        share: Of rows that have such a value, at least.
        most_places: Of a lattice, from its least value to its largest.
    """
    found: list[Relation] = []
    for place in places:
        column = columns.schema.modelled[place]
        unit = 2 * columns.half_units[place]
        if not isinstance(column, NumberColumn) or column.time or not unit:
            continue
        own = cells[:, place][~np.isnan(cells[:, place])]
        values, counts = np.unique(own, return_counts=True)
        own = own[~np.isin(own, values[counts > 0.1 * len(own)])]  # one value is on any lattice
        best = _step_of(np.round(own / unit).astype(np.int64), share)
        if best is not None and np.ptp(own) > most_places * best[0] * unit:
            continue  # as good as every number
        if best is not None:
            found.append(StepRelation(place, (), 1.0, best[0] * unit, best[1] * unit))
    return found


def _step_of(own: np.ndarray, share: float, fewest: int = 40) -> tuple[int, int] | None:
    """The widest step of most whole numbers, and where it starts; taught and judged by halves."""
    if len(own) < fewest:
        return None
    found: list[tuple[float, int, int]] = []
    for step in STEPS:
        rest, counts = np.unique(own[::2] % step, return_counts=True)
        start, judged = int(rest[counts.argmax()]), own[1::2]
        on = judged % step == start
        enough = min(counts.max() / len(own[::2]), on.mean()) >= share
        if enough and len(np.unique(judged[on])) >= 6:
            found.append((float(on.mean()), step, start))
    most = max(found, default=(0.0, 0, 0))[0]
    good = [(step, start) for kept, step, start in found if kept >= most - 0.02]
    return max(good, default=None)


def find_orders(
    columns: RawColumns,
    cells: np.ndarray,
    known: Sequence[Relation],
    places: Sequence[int],
    share: float = 0.93,
    most: int = 100,
) -> list[Relation]:
    """Pairs of columns of which one is at least the other, with a sharp edge where they are equal.

    Columns that only go together, one above the other, have no such edge: the density of their
    difference passes zero smoothly.

    Args:
        columns: What raw cells are.
        cells: Rows in a random order, (N, D).
        known: Relations that are known, of which orders may follow.
        places: Columns to look at.
        share: Of rows that have the order, at least.
        most: Columns of a kind, at most.
    """
    found: list[Relation] = []
    told = {frozenset((r.place, source)) for r in known for source in r.sources}
    for kind in (columns.is_number, columns.is_time):
        some = [k for k in places if kind(k)
                and isinstance(columns.schema.modelled[k], NumberColumn)]  # fmt: skip
        pairs = _pairs_in_order(columns, cells, some[:most], told, share)
        # What follows from two others is not said.
        found += [r for (a, b), r in pairs.items()
                  if not any((a, c) in pairs and (c, b) in pairs for c in some)]  # fmt: skip
    return found


def _pairs_in_order(
    columns: RawColumns,
    cells: np.ndarray,
    places: Sequence[int],
    told: set[frozenset[int]],
    share: float,
) -> dict[tuple[int, int], Relation]:
    light = {k: ~_heavy(cells[:, k]) for k in places}
    pairs = {}
    for a, b in permutations(places, 2):
        if frozenset((a, b)) not in told and _same_unit(columns, a, b):
            relation = _order(columns, cells, a, b, light[a] & light[b], share)
            if relation is not None:
                pairs[a, b] = relation
    return pairs


def _same_unit(columns: RawColumns, a: int, b: int) -> bool:
    first, second = columns.schema.modelled[a], columns.schema.modelled[b]
    if isinstance(first, NumberColumn) and isinstance(second, NumberColumn):
        return columns.unit(a) == columns.unit(b)
    return not (columns.is_time(a) or columns.is_time(b))


def _order(
    columns: RawColumns, cells: np.ndarray, a: int, b: int, light: np.ndarray, share: float
) -> Relation | None:
    shift = columns.origin(a) - columns.origin(b)
    some = slice(None, None, max(1, len(cells) // 800))
    first, second = cells[some, a] + shift, cells[some, b]
    if (first > second).sum() > (1.05 - share) * (first <= second).sum():
        return None
    first, second = cells[light, a] + shift, cells[light, b]
    good = ~(np.isnan(first) | np.isnan(second))
    first, second = first[good], second[good]
    if len(first) < 50:
        return None
    gap = second - first
    broken = float((gap < 0).mean())
    by_chance = float((np.roll(second, len(second) // 2) < first).mean())
    if broken > 1 - share or by_chance < 0.02 or broken > 0.35 * by_chance:
        return None
    if not _has_edge(gap):
        return None
    positive = min(first.min(), second.min()) > 0
    # Small numbers are near each other, whatever they are.
    if positive and not _has_edge(np.log(second) - np.log(first), least=8.0):
        return None
    return OrderRelation(b, (a,), 1.0, bool((gap == 0).any()), shift)


def _heavy(cells: np.ndarray, share: float = 0.1) -> np.ndarray:  # (N,), bool
    """Cells of values that many rows have, such as zeros: two of them are equal by chance."""
    _, at, counts = np.unique(cells, return_inverse=True, return_counts=True)
    return np.asarray((counts > share * len(cells))[at.reshape(-1)] & ~np.isnan(cells))


def _has_edge(gap: np.ndarray, near: int = 60, least: float = 12.5) -> bool:
    """Whether the density of a difference begins at zero, rather than passing it smoothly.

    Of the differences that are nearest to zero, some are below, some just above it and some
    farther above. In the tail of a smooth density, each of three such cells has as many times more
    than the one before; the likelihood of their counts, against any counts, says whether it may
    be one.

    Args:
        gap: Differences, in the order of the rows.
        near: How many differences above zero are looked at.
        least: Twice the logarithm of the ratio of likelihoods that is asked for.
    """
    above = np.sort(gap[gap >= 0])
    if len(above) < near:
        return False
    steps = np.diff(np.unique(gap))
    unit = steps.min() if len(steps) else 0.0
    width = float(above[near - 1])
    if unit > 1e-6 * max(width, unit):  # on a lattice, cells have as many places as they are wide
        width = 2 * unit * max(1, np.ceil((width + unit) / unit / 2))
    at = np.abs(gap) <= width
    inside = at & (gap < width) if unit else at
    apart = np.count_nonzero(np.diff(np.flatnonzero(inside)) > 1)
    if apart < 0.4 * min(near, inside.sum()) and inside.mean() < 0.5:
        return False  # rows that are near each other tell but once
    counts = np.array([((gap < 0) & (gap >= -width)).sum(), ((gap >= 0) & (gap < width / 2)).sum(),
                       ((gap >= width / 2) & (gap < width)).sum()], float)  # fmt: skip
    growth = np.exp(np.linspace(0.01, 5, 200))
    smooth = np.stack([1 - growth**-2, growth - 1, growth**2 - growth])
    smooth /= smooth.sum(0)
    with np.errstate(all="ignore"):
        logs = np.where(counts > 0, np.log(counts / counts.sum()), 0.0)
    ratio = 2 * (counts @ logs - (counts @ np.log(smooth)).max())
    below, first, second = counts + 0.5
    odds = np.log(first / second) - 0.5 * np.log(below / (first + second))
    return bool(ratio >= least and odds >= 1.0)
