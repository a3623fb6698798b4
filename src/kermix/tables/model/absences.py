"""Cells that have no value: storms that are no hurricanes have no category of hurricanes.

A column is *absent* where other columns say so: where rows of a pattern are nearly always empty,
and clearly more often than the column is on the whole. A pattern is a value of another column, a
range, or that the other is empty; or two of these together. In the search for patterns, each fifth
of the rows judges what the other rows suggest, so that none is believed on rows it was found in.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from scipy.special import betaincinv

from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema

__all__ = ["Absence", "Condition", "Found", "GapBins", "Search", "find_absences", "where_absent"]

# Reasoned, no record.
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
class GapBins:
    """The cells of a column by value: `count` is the number of values, and the bin of gaps.

    The values of a number are in increasing order.
    """

    place: int
    rows: np.ndarray  # (N,)
    count: int
    values: np.ndarray | None = None  # of a number, on the scale of normal scores


@dataclass(frozen=True, eq=False)
class Found:
    """GapBins of a column in which another one is empty, the last of which is that of gaps."""

    place: int
    bins: np.ndarray  # (count + 1,), bool
    worth: float


class Search:
    """Looks for patterns in which one column is empty.

    Args:
        columns: What the pattern may be about.
        empty: In which rows the column is empty.
    """

    def __init__(self, columns: Sequence[GapBins], empty: np.ndarray) -> None:
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

    def _counted(self, column: GapBins, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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

    def _choices(self, column: GapBins, rows: np.ndarray, empty: np.ndarray) -> Iterator[Found]:
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

    def _dependent(self, rest: np.ndarray) -> list[GapBins]:
        """Columns on which emptiness depends, most of all first."""
        found: list[tuple[float, int, GapBins]] = []
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

    def _best_pair(
        self, columns: Sequence[GapBins], rest: np.ndarray
    ) -> tuple[Found, Found] | None:
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

    def _best_of(self, column: GapBins, rest: np.ndarray) -> Found | None:
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


def _high_side(column: GapBins, rows: np.ndarray, empty: np.ndarray) -> np.ndarray:
    """GapBins of the side with more gaps, if a column is divided where the sides differ most."""
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


# Reasoned, no record.
LOOKED_AT = 10_000
# Columns with gaps times columns: a search takes half a millisecond each, so a minute at most.
MOST_PAIRS = 120_000
MOST_RULES = 4  # of a column: a sentence of more is not read
SHOWN = 4  # values in a sentence
NEAR = 1e-6  # of scores in single precision


@dataclass(frozen=True)
class Condition:
    """A column has one of some codes, or its number is in a range.

    Attributes:
        place: The column, among those that are modelled.
        codes: What it is; of a number only that it is missing. Empty for a range.
        low: Normal score above which the range begins; None if it has no beginning.
        high: Where it ends, likewise.
        ends: Normal scores of the smallest and the largest value seen in it.
    """

    place: int
    codes: tuple[int, ...] = ()
    low: float | None = None
    high: float | None = None
    ends: tuple[float, float] = (0.0, 0.0)

    def holds(self, schema: Schema, encoded: EncodedTable, positions: np.ndarray) -> np.ndarray:
        """Which rows have it, (N,); a cell that is not known has nothing."""
        codes, column = encoded.codes[:, self.place], schema.modelled[self.place]
        if self.codes or isinstance(column, CategoryColumn):
            return np.isin(codes, self.codes)
        scores = positions[:, schema.numbers.index(column)]
        inside = (codes >= 0) & (codes != column.missing_code)
        if self.low is not None:
            inside &= scores >= self.low - NEAR
        if self.high is not None:
            inside &= scores <= self.high + NEAR
        return inside

    def description(self, schema: Schema, unless: bool = False) -> str:
        """In words; with `unless`, what has to be for it not to hold, where that is shorter."""
        column = schema.modelled[self.place]
        name, missing = column.name, column.missing_code
        if missing is not None and self.codes == (missing,):
            return f"{name} is empty"
        if isinstance(column, NumberColumn):
            return f"{name} is {self._range(column)}"
        return self._values(column, unless)

    def _values(self, column: CategoryColumn, unless: bool) -> str:
        """Values of a category, or those that it has not, whichever is shorter."""
        name, missing = column.name, column.missing_code
        known = [k for k in range(column.code_count) if k != missing]
        inside = [k for k in known if k in self.codes]
        others = [k for k in known if k not in self.codes]
        if not others:
            return f"{name} is filled"
        if unless:
            return f"{name} is {_span(column, others) or _either(column, others)}"
        if len(others) < len(inside):
            not_ = "not" if len(others) == 1 else "none of"
            return f"{name} is {not_} {_either(column, others)}"
        empty = " or empty" if missing in self.codes else ""
        return f"{name} is {_span(column, inside) or _either(column, inside)}{empty}"

    def has_short_opposite(self, schema: Schema) -> bool:
        """Whether what it excludes is told more briefly than what it includes."""
        column = schema.modelled[self.place]
        if isinstance(column, NumberColumn):
            return False
        others = (
            column.code_count
            - column.has_missing
            - sum(k != column.missing_code for k in self.codes)
        )
        return 0 < others < len(self.codes)

    def _range(self, column: NumberColumn) -> str:
        low, high = (_shown(column, end) for end in self.ends)
        if self.low is None and self.high is None:
            return "filled"
        if low == high:
            return low
        if self.low is None:
            return f"{high} or earlier" if column.time else f"at most {high}"
        if self.high is None:
            return f"{low} or later" if column.time else f"at least {low}"
        return f"between {low} and {high}"

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Ready for JSON."""
        return {"column": names[self.place], "codes": list(self.codes), "low": self.low,
                "high": self.high, "ends": list(self.ends)}  # fmt: skip

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], names: Sequence[str]) -> "Condition":
        """The inverse of `to_dict`."""
        return cls(names.index(saved["column"]), tuple(saved["codes"]), saved["low"],
                   saved["high"], tuple(saved["ends"]))  # fmt: skip


@dataclass(frozen=True)
class Absence:
    """Where a column has no value: where all conditions of one of its rules hold."""

    place: int
    rules: tuple[tuple[Condition, ...], ...]

    def holds(self, schema: Schema, encoded: EncodedTable, positions: np.ndarray) -> np.ndarray:
        """Rows in which the column has no value, (N,)."""
        rules = [[c.holds(schema, encoded, positions) for c in rule] for rule in self.rules]
        return np.logical_or.reduce([np.logical_and.reduce(rule) for rule in rules])

    def description(self, schema: Schema) -> str:
        """A clause: "category is empty unless status is hurricane"."""
        name = schema.modelled[self.place].name
        first, *rest = self.rules
        if not rest and len(first) == 1 and first[0].has_short_opposite(schema):
            return f"{name} is empty unless {first[0].description(schema, unless=True)}"
        ways = [" and ".join(c.description(schema) for c in rule) for rule in self.rules]
        return f"{name} is empty where {', or where '.join(ways)}"

    @property
    def places(self) -> set[int]:
        """The columns that it depends on."""
        return {condition.place for rule in self.rules for condition in rule}

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Ready for JSON."""
        rules = [[c.to_dict(names) for c in rule] for rule in self.rules]
        return {"column": names[self.place], "rules": rules}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any], names: Sequence[str]) -> "Absence":
        """The inverse of `to_dict`."""
        rules = tuple(tuple(Condition.from_dict(c, names) for c in r) for r in saved["rules"])
        return cls(names.index(saved["column"]), rules)


def where_absent(
    schema: Schema, absences: Sequence[Absence], encoded: EncodedTable
) -> np.ndarray:  # (N, D), bool
    """Cells whose column has no value in their row, as far as the row's other codes tell."""
    found = np.zeros(encoded.codes.shape, bool)
    positions = schema.positions(encoded) if absences else encoded.values
    for absence in absences:
        found[:, absence.place] = absence.holds(schema, encoded, positions)
    return found


def find_absences(
    schema: Schema, encoded: EncodedTable, same: Sequence[tuple[str, str]] = ()
) -> tuple[Absence, ...]:
    """Where the columns of a table have no value.

    Args:
        schema: What the columns are.
        encoded: Rows of the table.
        same: Columns that are equal in all rows, which say nothing about each other.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.choice(["f", "m"], 400)
        >>> born = np.where(sex == "f", rng.integers(0, 900, 400) / 100, np.nan)
        >>> schema = Schema.infer({"sex": sex, "births": born})
        >>> [found] = find_absences(schema, schema.encode({"sex": sex, "births": born}))
        >>> found.description(schema)
        'births is empty where sex is m'
    """
    gappy = [k for k, column in enumerate(schema.modelled) if column.missing_code is not None]
    if not 0 < len(gappy) * (len(schema.modelled) - 1) <= MOST_PAIRS:
        return ()
    order = np.random.default_rng(0).permutation(len(encoded))  # rows may be sorted
    encoded = encoded[order[:LOOKED_AT]]
    bins = _bins(schema, encoded)
    # Of several columns that are equal, all have the first in common.
    first = {column.name: column.name for column in schema.modelled} | {b: a for a, b in same}
    return tuple(_absences(schema, encoded, bins, gappy, [*first.values()]))


def _absences(
    schema: Schema,
    encoded: EncodedTable,
    bins: Sequence[GapBins],
    gappy: Sequence[int],
    first: Sequence[str],
) -> Iterator[Absence]:
    positions = schema.positions(encoded)
    for place in gappy:
        empty = encoded.codes[:, place] == schema.modelled[place].missing_code
        search = Search([b for b in bins if first[b.place] != first[place]], empty)
        rules: list[tuple[Condition, ...]] = []
        rest = np.ones(len(empty), bool)
        while len(rules) < MOST_RULES and (found := search.pattern(rest)) is not None:
            rule = tuple(_condition(schema, bins[f.place], f) for f in found)
            rules.append(rule)
            holds = [c.holds(schema, encoded, positions) for c in rule]
            rest &= ~np.logical_and.reduce(holds)
        if rules:
            yield Absence(place, tuple(rules))


def _bins(schema: Schema, encoded: EncodedTable) -> list[GapBins]:
    positions, found = schema.positions(encoded), []
    for place, column in enumerate(schema.modelled):
        codes = encoded.codes[:, place]
        missing = codes == column.missing_code
        if isinstance(column, CategoryColumn):
            count = column.code_count - column.has_missing
            found.append(GapBins(place, np.where(missing, count, codes), count))
            continue
        scores = positions[:, schema.numbers.index(column)]
        values, at = np.unique(scores[~missing], return_inverse=True)
        own = np.full(len(codes), len(values))
        own[~missing] = at
        found.append(GapBins(place, own, len(values), values))
    return found


def _condition(schema: Schema, bins: GapBins, found: Found) -> Condition:
    """What was found, apart from the rows that it was found in."""
    column, chosen = schema.modelled[bins.place], np.flatnonzero(found.bins[:-1])
    missing = () if column.missing_code is None or not found.bins[-1] else (column.missing_code,)
    if bins.values is None or not len(chosen):
        return Condition(bins.place, (*(int(k) for k in chosen), *missing))
    first, last, values = chosen[0], chosen[-1], bins.values
    # Half way to the next value that is not in it.
    low = None if first == 0 else float(values[first - 1] + values[first]) / 2
    high = None if last == len(values) - 1 else float(values[last] + values[last + 1]) / 2
    ends = float(values[first]), float(values[last])
    return Condition(bins.place, (), low, high, ends)


def _either(column: CategoryColumn, codes: Sequence[int]) -> str:
    names = [_name(column, k) for k in codes]
    if len(names) > SHOWN:
        names = [*names[: SHOWN - 1], f"one of {len(names) - SHOWN + 1} others"]
    return " or ".join([*([", ".join(names[:-1])] if names[:-1] else []), names[-1]])


def _span(column: CategoryColumn, codes: Sequence[int]) -> str:
    """Several neighboring numbers as a range, if they are that."""
    numbers = [v for v in column.values if isinstance(v, int | float) and not isinstance(v, bool)]
    if len(numbers) < len(column.values) or len(codes) < 3 or codes[-1] >= len(numbers):
        return ""
    order = sorted(range(len(numbers)), key=lambda k: numbers[k])
    places = sorted(order.index(k) for k in codes)
    first, last = places[0], places[-1]
    if last - first + 1 > len(places):
        return ""
    low, high = (_name(column, order[k]) for k in (first, last))
    if first == 0:
        return f"at most {high}"
    return f"at least {low}" if last == len(order) - 1 else f"between {low} and {high}"


def _name(column: CategoryColumn, code: int) -> str:
    value = column.values[code] if code < len(column.values) else None
    if value is None:
        return "another value"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _shown(column: NumberColumn, score: float) -> str:
    cell = column.decode(np.zeros(1, np.int64), np.array([score]))[0]
    if column.time:
        number = column.map.inverse(np.array([score]))[0]
        return column.shown_time(round(float(number)))
    value = cell.as_py()
    return f"{value:.6g}" if isinstance(value, float) else str(value)
