"""Cells that have no value: storms that are no hurricanes have no category of hurricanes.

A column is *absent* where other columns say so: where rows of a pattern are nearly always empty,
and clearly more often than the column is on the whole. A pattern is a value of another column, a
range, or that the other is empty; or two of these together. Each fifth of the rows judges what the
other rows suggest, so that no pattern is believed on the rows that it was found in.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kermix.data.tables.columns import CategoryColumn, NumberColumn
from kermix.data.tables.encoded import EncodedTable
from kermix.data.tables.schema import Schema
from kermix.models.table.absence_search import Bins, Found, Search

__all__ = ["Absence", "Condition", "find_absences", "where_absent"]

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

    def told(self, schema: Schema, unless: bool = False) -> str:
        """In words; with `unless`, what has to be for it not to hold, where that is shorter."""
        column = schema.modelled[self.place]
        name, missing = column.name, column.missing_code
        if missing is not None and self.codes == (missing,):
            return f"{name} is empty"
        if isinstance(column, NumberColumn):
            return f"{name} is {self._range(column)}"
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

    def told(self, schema: Schema) -> str:
        """A clause: "category is empty unless status is hurricane"."""
        name = schema.modelled[self.place].name
        first, *rest = self.rules
        if not rest and len(first) == 1 and first[0].has_short_opposite(schema):
            return f"{name} is empty unless {first[0].told(schema, unless=True)}"
        ways = [" and ".join(c.told(schema) for c in rule) for rule in self.rules]
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
        >>> schema = Schema.of({"sex": sex, "births": born})
        >>> [found] = find_absences(schema, schema.encode({"sex": sex, "births": born}))
        >>> found.told(schema)
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
    bins: Sequence[Bins],
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


def _bins(schema: Schema, encoded: EncodedTable) -> list[Bins]:
    positions, found = schema.positions(encoded), []
    for place, column in enumerate(schema.modelled):
        codes = encoded.codes[:, place]
        missing = codes == column.missing_code
        if isinstance(column, CategoryColumn):
            count = column.code_count - column.has_missing
            found.append(Bins(place, np.where(missing, count, codes), count))
            continue
        scores = positions[:, schema.numbers.index(column)]
        values, at = np.unique(scores[~missing], return_inverse=True)
        own = np.full(len(codes), len(values))
        own[~missing] = at
        found.append(Bins(place, own, len(values), values))
    return found


def _condition(schema: Schema, bins: Bins, found: Found) -> Condition:
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
