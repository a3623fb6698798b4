"""The search for patterns of rows in which a column is empty; see `absences`."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import betaincinv

__all__ = ["Bins", "Found", "Search"]

FOLDS = 5
MOST_FILLED = 0.05  # of the rows of a pattern
# Confidence that a pattern's share of filled cells is below that, and below half of the column's.
# The second is stricter: of 10,000 columns that are empty at random, one may be left empty.
SURE, SURER = 0.95, 0.99
BY_CHANCE = 0.05
# Where two patterns say nearly the same, causes are named before what comes with them.
VALUES, RANGE, EMPTY = 1.0, 0.95, 0.9
PAIRED = 5  # columns of which two together are tried
APART = 4.0  # standard errors by which emptiness depends on such a column


@dataclass(frozen=True, eq=False)
class Bins:
    """The cells of a column by value: `count` is the number of values, and the bin of gaps.

    The values of a number are in increasing order.
    """

    place: int
    rows: np.ndarray  # (N,)
    count: int
    values: np.ndarray | None = None  # of a number, on the scale of normal scores


@dataclass(frozen=True, eq=False)
class Found:
    """Bins of a column in which another one is empty, the last of which is that of gaps."""

    place: int
    bins: np.ndarray  # (count + 1,), bool
    worth: float


class Search:
    """Looks for patterns in which one column is empty.

    Args:
        columns: What the pattern may be about.
        empty: In which rows the column is empty.
    """

    def __init__(self, columns: Sequence[Bins], empty: np.ndarray) -> None:
        self._columns, self._empty = columns, empty
        self._most = min(MOST_FILLED, (1 - empty.mean()) / 2)
        self._folds = np.arange(len(empty)) % FOLDS

    @cached_property
    def _fewest(self) -> float:
        """Rows of a pattern without any that is filled, which are just enough."""
        return math.log(1 - SURE) / math.log1p(-self._most) if self._most > 0 else math.inf

    def _believed(self, rows: int, filled: int) -> bool:
        if not rows > filled:
            return False
        sure, surer = (betaincinv(filled + 1, rows - filled, c) for c in (SURE, SURER))
        return sure <= MOST_FILLED and surer <= (1 - self._empty.mean()) / 2

    def pattern(self, rest: np.ndarray) -> tuple[Found, ...] | None:
        """The pattern that explains most gaps of these rows, if it holds in rows apart."""
        if (rest & self._empty).sum() < self._fewest:
            return None
        return self._single(rest) or self._pair(rest)

    def _single(self, rest: np.ndarray) -> tuple[Found, ...] | None:
        counts = [self._counted(column, rest) for column in self._columns]
        best = self._best(counts, None)
        if best is None or best.worth < EMPTY * self._fewest / 2:
            return None
        rows = filled = 0
        for fold in range(FOLDS):
            found = self._best(counts, fold)
            if found is None:
                continue
            place = [c.place for c in self._columns].index(found.place)
            some, empty = (part[found.bins, fold].sum() for part in counts[place])
            rows, filled = rows + int(some), filled + int(some - empty)
        return (best,) if self._believed(rows, filled) else None

    def _counted(self, column: Bins, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows, and rows that are empty, in each bin and fold."""
        at = column.rows * FOLDS + self._folds
        shape = (column.count + 1, FOLDS)
        size = shape[0] * FOLDS
        rows = np.bincount(at[rest], minlength=size)
        empty = np.bincount(at[rest & self._empty], minlength=size)
        return rows.reshape(shape), empty.reshape(shape)

    def _best(
        self, counts: Sequence[tuple[np.ndarray, np.ndarray]], without: int | None
    ) -> Found | None:
        best = None
        for column, (rows, empty) in zip(self._columns, counts, strict=True):
            totals = [part.sum(1) if without is None else part.sum(1) - part[:, without]
                      for part in (rows, empty)]  # fmt: skip
            for found in self._choices(column, *totals):
                if best is None or found.worth > best.worth:
                    best = found
        return best

    def _choices(self, column: Bins, rows: np.ndarray, empty: np.ndarray) -> Iterator[Found]:
        """Values of a column that are best left empty, and its gaps."""
        if self._most <= 0:
            return
        # A pattern with just as many filled cells as it may have is worth nothing.
        worth = empty - (rows - empty) * (1 - self._most) / self._most
        if column.values is None:
            chosen = worth > 0
            chosen &= ~self._by_chance(rows, empty, chosen)
            share = VALUES
        else:
            chosen, share = _heaviest_run(worth[:-1]), RANGE
        if chosen[:-1].any():
            yield Found(column.place, chosen, share * float(worth[chosen].sum()))
        if worth[-1] > 0:
            gaps = np.arange(len(worth)) == column.count
            yield Found(column.place, gaps, EMPTY * float(worth[-1]))

    def _by_chance(self, rows: np.ndarray, empty: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Values so rare that all of their rows may be empty as those of other values are."""
        others = ~chosen & (rows > 0)
        usual = (empty[others].sum() + 1) / (rows[others].sum() + 2)
        # Where most other values are in the pattern, one more is likely to be.
        return usual**rows * (others.sum() + 1) / np.maximum(1, chosen.sum()) > BY_CHANCE

    def _pair(self, rest: np.ndarray) -> tuple[Found, ...] | None:
        likely = self._dependent(rest)
        best = self._best_pair(likely, rest)
        if best is None:
            return None
        rows = filled = 0
        for fold in range(FOLDS):
            here = self._folds == fold
            pair = self._best_pair(likely, rest & ~here)
            if pair is not None:
                inside = rest & here & self._inside(pair[0]) & self._inside(pair[1])
                rows += int(inside.sum())
                filled += int((inside & ~self._empty).sum())
        return best if self._believed(rows, filled) else None

    def _inside(self, found: Found) -> np.ndarray:
        column = next(c for c in self._columns if c.place == found.place)
        return found.bins[column.rows]

    def _dependent(self, rest: np.ndarray) -> list[Bins]:
        """Columns on which emptiness depends, most of all first."""
        found: list[tuple[float, int, Bins]] = []
        for place, column in enumerate(self._columns):
            rows, empty = self._counted(column, rest)
            every = _high_side(column, rows.sum(1), empty.sum(1))
            if _difference([(rows[s].sum(), empty[s].sum()) for s in (~every, every)]) < APART:
                continue  # as it looks best, and yet not much
            sums = np.zeros((2, 2))
            for fold in range(FOLDS):
                high = _high_side(column, rows.sum(1) - rows[:, fold],
                                  empty.sum(1) - empty[:, fold])  # fmt: skip
                for side, bins in enumerate((~high, high)):
                    sums[side] += rows[bins, fold].sum(), empty[bins, fold].sum()
            apart = _difference(sums)
            if apart > APART:
                found.append((-apart, place, column))
        return [column for _, _, column in sorted(found, key=lambda f: f[:2])[:PAIRED]]

    def _best_pair(self, columns: Sequence[Bins], rest: np.ndarray) -> tuple[Found, Found] | None:
        best: tuple[Found, Found] | None = None
        for first in columns:
            rows, empty = (part.sum(1) for part in self._counted(first, rest))
            begun = rest & _high_side(first, rows, empty)[first.rows]
            for second in columns:
                if second is first:
                    continue
                inside = begun
                pair: list[Found] = []
                for column in (second, first, second):  # each as it is best beside the other
                    found = self._best_of(column, inside)
                    if found is None:
                        break
                    inside = rest & found.bins[column.rows]
                    pair.append(found)
                if len(pair) == 3 and (best is None or pair[-1].worth > best[1].worth):
                    best = pair[1], pair[2]
        return best

    def _best_of(self, column: Bins, rest: np.ndarray) -> Found | None:
        counts = [part.sum(1) for part in self._counted(column, rest)]
        return max(self._choices(column, *counts), key=lambda f: f.worth, default=None)


def _heaviest_run(worth: np.ndarray) -> np.ndarray:  # (count + 1,), bool
    """The range of values with the largest sum; the bin of gaps, which is added, is not in it."""
    chosen = np.zeros(len(worth) + 1, bool)
    if not len(worth) or worth.max() <= 0:
        return chosen
    sums = np.concatenate([[0.0], worth.cumsum()])
    least = np.minimum.accumulate(sums)[:-1]
    last = int((sums[1:] - least).argmax())
    first = int(sums[: last + 1].argmin())
    chosen[first : last + 1] = True
    # No further than to values that speak for it: those without rows say nothing.
    inside = np.flatnonzero(chosen[:-1] & (worth > 0))
    chosen[: inside[0]], chosen[inside[-1] + 1 :] = False, False
    return chosen


def _high_side(column: Bins, rows: np.ndarray, empty: np.ndarray) -> np.ndarray:
    """Bins of the side with more gaps, if a column is divided where the sides differ most."""
    shares = (empty + empty.sum() / max(1, rows.sum())) / (rows + 1)
    order = np.arange(len(rows)) if column.values is not None else shares.argsort(kind="stable")
    n, e = rows[order].cumsum()[:-1], empty[order].cumsum()[:-1]
    total, share = rows.sum(), empty.sum() / max(1, rows.sum())
    gain = np.square(e - n * share) / np.maximum(1, n) / np.maximum(1, total - n)
    cut = int(gain.argmax()) + 1 if len(gain) else 0
    high = np.zeros(len(rows), bool)
    high[order[cut:]] = True
    upper, lower = (empty[s].sum() / max(1, rows[s].sum()) for s in (high, ~high))
    return high if upper >= lower else ~high


def _difference(sides: Any) -> float:
    """By how many standard errors the second side has more gaps: rows and gaps of both."""
    (rows, gaps), (more_rows, more_gaps) = sides
    mean = (gaps + more_gaps) / max(1, rows + more_rows)
    if not rows or not more_rows or not 0 < mean < 1:
        return 0.0
    error = math.sqrt(mean * (1 - mean) * (1 / rows + 1 / more_rows))
    return float(more_gaps / more_rows - gaps / rows) / error
