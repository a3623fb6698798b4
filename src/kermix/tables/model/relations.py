"""Exact relations between columns: what they say, in which rows they hold, and in words.

A column that is a function of others is known to the last digit once these are: the sum of parts,
an amount as price times quantity, a country by its city. No density says so. Relations work on
*raw* cells: numbers in the units of their column, values of categories that are numbers, and codes
of all others; NaN where there is no value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from kermix.data.schema.columns import CategoryColumn, NumberColumn, rounded
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.data.schema.times import seconds_of

__all__ = [
    "LinearRelation",
    "LookupRelation",
    "OrderRelation",
    "PowerRelation",
    "RawColumns",
    "Relation",
    "StepRelation",
]

SINGLE, DOUBLE = 2e-6, 1e-9  # convention: relative, of numbers all of whose digits count


class RawColumns:
    """Cells of a schema's columns as numbers that relations compute with.

    Args:
        schema: What the columns are.
    """

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.names = [column.name for column in schema.modelled]
        self._number = {int(k): q for q, k in enumerate(schema.number_columns)}
        self._values = [_category_values(column) for column in schema.modelled]

    def is_number(self, place: int) -> bool:
        """Whether a column's cells can be added and multiplied."""
        column = self.schema.modelled[place]
        if isinstance(column, NumberColumn):
            return not column.time
        return self._values[place] is not None

    def is_time(self, place: int) -> bool:
        """Whether its cells are times."""
        column = self.schema.modelled[place]
        return isinstance(column, NumberColumn) and column.time

    def origin(self, place: int) -> float:
        """What raw cells of a column are less than its values."""
        column = self.schema.modelled[place]
        return column.origin / column.step if isinstance(column, NumberColumn) else 0.0

    def unit(self, place: int) -> float:
        """What a raw cell of a column counts: seconds for times, 1 for other numbers."""
        column = self.schema.modelled[place]
        if not isinstance(column, NumberColumn) or not column.time:
            return 1.0
        return float(column.step * seconds_of(column.time_type))

    @cached_property
    def half_units(self) -> np.ndarray:  # (D,)
        """Half of the last decimal of each column; 0 where all digits count, or none does."""
        return np.array([0.5 * 10.0**-d if d is not None else 0.0 for d in self._decimals])

    @cached_property
    def precision(self) -> np.ndarray:  # (D,)
        """Relative precision of each column."""
        single = [column.type.arrow == "float" for column in self.schema.modelled]
        return np.where(single, SINGLE, DOUBLE)

    @cached_property
    def _decimals(self) -> list[int | None]:
        found: list[int | None] = []
        for column, values in zip(self.schema.modelled, self._values, strict=True):
            if isinstance(column, NumberColumn):
                found.append(column.decimals)
            else:
                found.append(0 if values is None else _decimals_of(values))
        return found

    def number(self, place: int) -> int:
        """Which of the numbers a column is."""
        return self._number[place]

    def cells(
        self,
        encoded: EncodedTable,
        exact: np.ndarray | None = None,
        places: Sequence[int] | None = None,
    ) -> np.ndarray:
        """Raw cells of encoded rows, (N, D), rounded as they are written.

        Args:
            encoded: The rows.
            exact: Cells that are not rounded, because they were given, (N, D).
            places: Columns to look at; others are NaN.
        """
        found = np.full(encoded.codes.shape, np.nan)
        for place in range(len(self.names)) if places is None else places:
            column, codes = self.schema.modelled[place], encoded.codes[:, place]
            values = self._values[place]
            if isinstance(column, NumberColumn):
                numbers = self._numbers_of(column, codes, encoded.values[:, self._number[place]])
                free = slice(None) if exact is None else ~exact[:, place]
                numbers[free] = self.to_decimals(place, numbers[free])
                found[:, place] = numbers
            elif values is None:
                known = (codes >= 0) & (codes != column.missing_code)
                found[known, place] = codes[known]
            else:
                known = (codes >= 0) & (codes < len(values))
                found[known, place] = values[codes[known]]
        return found

    def _numbers_of(
        self, column: NumberColumn, codes: np.ndarray, scores: np.ndarray
    ) -> np.ndarray:
        """Numbers of cells; those that were given may be beyond the ends of the column."""
        numbers = column.numbers_of(codes, scores)
        at_end = (codes == 0) & ((numbers <= column.low) | (numbers >= column.high))
        beyond = column.map.inverse(scores[at_end])
        far = np.abs(beyond - numbers[at_end]) > 1e-5 * (column.high - column.low)
        numbers[at_end] = np.where(far, beyond, numbers[at_end])
        return numbers

    def write(
        self, place: int, numbers: np.ndarray, codes: np.ndarray, values: np.ndarray
    ) -> np.ndarray:
        """Put raw cells into a column of encoded rows, in place, where it can hold them.

        Args:
            place: The column.
            numbers: Raw cells, (N,); NaN stays as it is.
            codes: Of the rows, (N, D).
            values: Normal scores of the rows, (N, Q).

        Returns:
            Which cells were written, (N,).
        """
        column, known = self.schema.modelled[place], self._values[place]
        good = np.isfinite(numbers)
        if isinstance(column, NumberColumn):
            near = numbers if column.decimals is None else rounded(numbers, column.decimals)
            good &= (near >= column.low) & (near <= column.high)
            own = np.zeros(int(good.sum()), np.int64)
            if len(column.atoms):
                at = np.searchsorted(column.atoms, near[good]).clip(max=len(column.atoms) - 1)
                own = np.where(column.atoms[at] == near[good], at + 1, 0)
            scores = np.where(own == 0, column.map(near[good]), 0.0)
            codes[good, place], values[good, self._number[place]] = own, scores
        elif known is None:
            codes[good, place] = numbers[good].astype(np.int64)
        else:
            order = np.argsort(known)
            at = order[np.searchsorted(known, numbers, sorter=order).clip(max=len(known) - 1)]
            # Where half a unit is left, the nearest value may be the one below.
            below = order[(np.searchsorted(known, numbers, sorter=order) - 1).clip(min=0)]
            at = np.where(np.abs(known[below] - numbers) < np.abs(known[at] - numbers), below, at)
            good &= np.abs(known[at] - numbers) <= self.half_units[place]
            codes[good, place] = at[good]
        return good

    def to_decimals(self, place: int, numbers: np.ndarray) -> np.ndarray:
        """Numbers as the column writes them."""
        decimals = self._decimals[place]
        return numbers if decimals is None else np.asarray(rounded(numbers, decimals))


def _category_values(column: Any) -> np.ndarray | None:
    """The values of a category, if all of them are numbers."""
    if not isinstance(column, CategoryColumn) or not column.values:
        return None
    plain = all(isinstance(v, int | float) and not isinstance(v, bool) for v in column.values)
    return np.array(column.values, float) if plain else None


def _decimals_of(values: np.ndarray) -> int | None:
    return next((d for d in range(7) if np.allclose(values, np.round(values, d), 0, 1e-12)), None)


@dataclass(frozen=True, eq=False)
class Relation:
    """What one column is once others are known.

    Attributes:
        place: The column.
        sources: The others.
        share: Of rows that have all of these cells and keep it.
        empty: Share of rows in which the column is empty.
    """

    kind: ClassVar[str]
    place: int
    sources: tuple[int, ...]
    share: float
    empty: float = field(default=0.0, kw_only=True)

    @property
    def places(self) -> tuple[int, ...]:
        """All its columns."""
        return (*self.sources, self.place)

    @property
    def determines(self) -> bool:
        """Whether the sources tell the column."""
        return True

    def expected(self, cells: np.ndarray) -> np.ndarray:  # (N, D) -> (N,)
        """What the column should be, before it is rounded; NaN where that is not defined."""
        raise NotImplementedError

    def known(self, cells: np.ndarray) -> np.ndarray:  # (N,), bool
        """Rows that have all cells."""
        return np.asarray(~np.isnan(cells[:, list(self.places)]).any(1))

    def holds(self, columns: RawColumns, cells: np.ndarray) -> np.ndarray:  # (N,), bool
        """Rows that have all cells and keep it."""
        with np.errstate(all="ignore"):
            wanted = self.expected(cells)
            error = np.abs(wanted - cells[:, self.place])
            size = np.maximum(np.abs(wanted), self.magnitude(cells))
            allowed = columns.half_units[self.place] * (1 + 1e-6) + self.slack(columns, cells)
            return np.asarray(error <= allowed + columns.precision[self.place] * size)

    def magnitude(self, cells: np.ndarray) -> np.ndarray | float:
        """Size of the largest number that is computed with, whose last digits may be lost."""
        return 0.0

    def slack(self, columns: RawColumns, cells: np.ndarray) -> np.ndarray | float:
        """How far the column may be from what is expected, besides its own rounding."""
        return 0.0

    def limits(
        self, columns: RawColumns, cells: np.ndarray, source: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Between what a source is for the relation to hold, given the others; None: not known."""
        return None

    def formula(self, columns: RawColumns) -> str:
        """In words."""
        raise NotImplementedError

    def description(self, columns: RawColumns) -> str:
        """A line: "b = v / 3000, in 98.9 % of rows"."""
        if self.share >= 1:
            return f"{self.formula(columns)}, in all rows"
        return f"{self.formula(columns)}, in {np.floor(self.share * 1000) / 10:g} % of rows"

    def to_dict(self, names: Sequence[str]) -> dict[str, Any]:
        """Ready for JSON."""
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**own, "kind": self.kind, "place": names[self.place],
                "sources": [names[k] for k in self.sources]}  # fmt: skip

    @staticmethod
    def from_dict(saved: Mapping[str, Any], names: Sequence[str]) -> "Relation":
        """The inverse of `to_dict`."""
        content = {n: _tuples(v) for n, v in saved.items() if n != "kind"}
        content["place"] = names.index(saved["place"])
        content["sources"] = tuple(names.index(name) for name in saved["sources"])
        kinds: dict[str, type[Relation]] = {kind.kind: kind for kind in Relation.__subclasses__()}
        relation = kinds[saved["kind"]](**content)
        for name, shape in relation.shapes.items():
            _check_numbers(name, getattr(relation, name), shape)
        return relation

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the numbers that it computes with."""
        return {}


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list | tuple) else value


def _check_numbers(name: str, numbers: Any, shape: tuple[int, ...]) -> None:
    read = np.array(numbers)
    if read.dtype.kind not in "iuf" or read.shape != shape:
        raise ValueError(f"{name}={numbers!r:.80} of a relation, not numbers of shape {shape}")


@dataclass(frozen=True, eq=False)
class LinearRelation(Relation):
    """A constant and other columns, times a factor each: sums, differences, other units."""

    kind = "linear"
    factors: tuple[float, ...]
    constant: float = 0.0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the numbers that it computes with."""
        return {"factors": (len(self.sources),), "constant": ()}

    def expected(self, cells: np.ndarray) -> np.ndarray:
        """What the column should be, before it is rounded."""
        return np.asarray(cells[:, list(self.sources)] @ np.array(self.factors) + self.constant)

    def magnitude(self, cells: np.ndarray) -> np.ndarray | float:
        """Size of the largest term."""
        sizes = np.abs(cells[:, list(self.sources)] * np.array(self.factors))
        return np.asarray(sizes.max(1))

    def limits(
        self, columns: RawColumns, cells: np.ndarray, source: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Between what a source is for the relation to hold, given the others."""
        k = self.sources.index(source)
        others = np.delete(np.arange(len(self.sources)), k)
        rest = cells[:, self.place] - self.constant
        for j in others:
            rest = rest - self.factors[j] * cells[:, self.sources[j]]
        half = columns.half_units[self.place]
        ends = np.stack([rest - half, rest + half]) / self.factors[k]
        return ends.min(0), ends.max(0)

    def formula(self, columns: RawColumns) -> str:
        """In words."""
        constant = self.constant + columns.origin(self.place)
        constant -= sum(f * columns.origin(k) for f, k in zip(self.factors, self.sources,
                                                              strict=True))  # fmt: skip
        terms = [(f, _times(columns.names[k], abs(f))) for f, k in
                 zip(self.factors, self.sources, strict=True)]  # fmt: skip
        terms.sort(key=lambda term: term[0] < 0)  # what is added first
        timed = any(columns.is_time(k) for k in self.places)
        half = columns.half_units[self.place]
        down = bool(half and 0 <= self.constant + half < 0.2 * half)
        if abs(constant) > 1e-12 and not (timed or down):
            terms.append((constant, f"{abs(constant):.6g}"))
        told = ("-" if terms[0][0] < 0 else "") + terms[0][1]
        for factor, term in terms[1:]:
            told += f" {'-' if factor < 0 else '+'} {term}"
        return f"{columns.names[self.place]} = {told}{', rounded down' * down}"


def _times(name: str, factor: float) -> str:
    if factor == 1:
        return name
    inverse = 1 / factor
    if factor < 1 and abs(inverse - round(inverse)) < 1e-9 * inverse:
        return f"{name} / {round(inverse)}"
    return f"{factor:.6g} {name}"


@dataclass(frozen=True, eq=False)
class PowerRelation(Relation):
    """Powers of other columns, times a factor: products, ratios, roots, other units.

    Attributes:
        powers: Of the first sources.
        factor: That they are multiplied with.
        summed: How many sources, the last ones, are added; their logarithm is a factor, too.
        constant: What is added at last.
        otherwise: The column's value where the formula is not defined, as a ratio to zero.
        before_rounding: Whether it was computed from sources that were rounded afterwards.
    """

    kind = "power"
    powers: tuple[float, ...]
    factor: float = 1.0
    summed: int = 0
    constant: float = 0.0
    otherwise: float | None = None
    before_rounding: bool = False

    @property
    def _inside(self) -> list[int]:
        """Columns whose sum has the logarithm."""
        return list(self.sources[len(self.powers) :])

    def _product(self, cells: np.ndarray, without: int | None = None) -> np.ndarray:
        """The factor times all powers, but that of one source."""
        found = np.full(len(cells), self.factor)
        for k, power in zip(self.sources, self.powers, strict=False):
            found = found if k == without else found * cells[:, k] ** power
        return found

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the numbers that it computes with."""
        return {"powers": (len(self.sources) - self.summed,), "factor": (), "constant": ()}

    def expected(self, cells: np.ndarray) -> np.ndarray:
        """What the column should be, before it is rounded."""
        with np.errstate(all="ignore"):
            found = self._product(cells)
            if self.summed:
                found = found * np.log(cells[:, self._inside].sum(1))
        found = np.where(np.isfinite(found), found + self.constant, np.nan)
        if self.otherwise is None:
            return found
        there = ~np.isnan(cells[:, list(self.sources)]).any(1)
        return np.where(there & np.isnan(found), self.otherwise, found)

    def slack(self, columns: RawColumns, cells: np.ndarray) -> np.ndarray | float:
        """How far the column may be from what sources tell that were rounded afterwards."""
        if not self.before_rounding:
            return 0.0
        with np.errstate(all="ignore"):
            shares = [abs(p) * columns.half_units[k] / np.abs(cells[:, k])
                      for k, p in zip(self.sources, self.powers, strict=False)]  # fmt: skip
            found = np.abs(self.expected(cells)) * np.sum(shares, 0)
        return np.where(np.isfinite(found), found, 0.0)

    def limits(
        self, columns: RawColumns, cells: np.ndarray, source: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Between what a source is for the relation to hold, given the others."""
        own = cells[:, self.place] - self.constant
        half = columns.half_units[self.place]
        with np.errstate(all="ignore"):
            rest = self._product(cells, source)
            if source in self._inside:
                others = [k for k in self._inside if k != source]
                ends = np.exp(np.stack([own - half, own + half]) / rest)
                ends = ends - cells[:, others].sum(1)
                return ends.min(0), ends.max(0)
            if self.summed:
                rest = rest * np.log(cells[:, self._inside].sum(1))
            power = self.powers[self.sources.index(source)]
            ends = np.stack([own - half, own + half]) / rest
            ends = np.where(ends > 0, ends, 0.0) ** (1 / power)
        ends = np.where(own * rest < 0, np.nan, ends)  # no root of negative numbers
        return ends.min(0), ends.max(0)

    def formula(self, columns: RawColumns) -> str:
        """In words."""
        names, factor = columns.names, self.factor
        over = [_power(names[k], p) for k, p in zip(self.sources, self.powers, strict=False)
                if p > 0]  # fmt: skip
        under = [_power(names[k], -p) for k, p in zip(self.sources, self.powers, strict=False)
                 if p < 0]  # fmt: skip
        if self.summed:
            base, factor = _base_of(factor)
            over.append(f"{base}({' + '.join(names[k] for k in self._inside)})")
        inverse = 1 / factor
        if abs(factor) < 1 and abs(inverse - round(inverse)) < 1e-9 * abs(inverse):
            under = [*under, f"{round(inverse)}"]
        elif abs(factor - 1) > 1e-6 or not over:
            over = [f"{factor:.6g}", *over]
        told = f"{' / '.join([' * '.join(over or ['1']), *under])}"
        if self.constant:
            told += f" {'-' if self.constant < 0 else '+'} {abs(self.constant):.6g}"
        told += " up to rounding" * self.before_rounding
        if self.otherwise is not None:
            told += f", {self.otherwise:.6g} where that is not defined"
        return f"{names[self.place]} = {told}"


def _base_of(factor: float) -> tuple[str, float]:
    """A logarithm's base that makes the number before it rounder, and that number."""
    for base, name in ((math.e, "log"), (2.0, "log2"), (10.0, "log10")):
        near = factor * math.log(base)
        if abs(float(f"{near:.3g}") - near) < 1e-9 * abs(near):
            return name, near
    return "log", factor


def _power(name: str, power: float) -> str:
    return name if power == 1 else f"{name}^{power:.3g}"


@dataclass(frozen=True, eq=False)
class LookupRelation(Relation):
    """A table: rows with these cells of the sources have this cell."""

    kind = "lookup"
    keys: tuple[tuple[float, ...], ...]  # of all sources
    values: tuple[float, ...]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the numbers that it computes with."""
        return {"keys": (len(self.values), len(self.sources)), "values": (len(self.values),)}

    @cached_property
    def _table(self) -> dict[tuple[float, ...], float]:
        return dict(zip(self.keys, self.values, strict=True))

    def expected(self, cells: np.ndarray) -> np.ndarray:
        """What the column should be, before it is rounded."""
        own = cells[:, list(self.sources)]
        different, at = np.unique(own, axis=0, return_inverse=True)
        found = [self._table.get(tuple(key), np.nan) for key in different.tolist()]
        return np.asarray(np.array(found, float)[at.reshape(-1)]) if len(own) else np.empty(0)

    def formula(self, columns: RawColumns) -> str:
        """In words."""
        names = [columns.names[k] for k in self.sources]
        return f"{columns.names[self.place]} follows from {' and '.join(names)}"


@dataclass(frozen=True, eq=False)
class StepRelation(Relation):
    """A column has values in equal steps."""

    kind = "steps"
    step: float
    start: float = 0.0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the numbers that it computes with."""
        return {"step": (), "start": ()}

    @property
    def determines(self) -> bool:
        """Never: it only bounds the column."""
        return False

    def expected(self, cells: np.ndarray) -> np.ndarray:
        """What the column should be, before it is rounded."""
        own = cells[:, self.place]
        return np.asarray(np.round((own - self.start) / self.step) * self.step + self.start)

    def holds(self, columns: RawColumns, cells: np.ndarray) -> np.ndarray:
        """Rows that have all cells and keep it."""
        error = np.abs(self.expected(cells) - cells[:, self.place])
        with np.errstate(invalid="ignore"):
            return np.asarray(error <= 1e-6 * self.step)

    def formula(self, columns: RawColumns) -> str:
        """In words."""
        name, start = columns.names[self.place], self.start + columns.origin(self.place)
        rest = float(np.mod(start, self.step))
        if min(rest, self.step - rest) < 1e-6 * self.step:
            return f"{name} is a multiple of {self.step:.6g}"
        return f"{name} is {rest:.6g} plus a multiple of {self.step:.6g}"


@dataclass(frozen=True, eq=False)
class OrderRelation(Relation):
    """A column is at least another one; `ties` says whether they may be equal."""

    kind = "order"
    ties: bool = True
    shift: float = 0.0  # what is added to the source's raw cells for the column's own

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the numbers that it computes with."""
        return {"shift": ()}

    @property
    def determines(self) -> bool:
        """Never: it only bounds the column."""
        return False

    def expected(self, cells: np.ndarray) -> np.ndarray:
        """What the column should be, before it is rounded."""
        return np.asarray(np.maximum(cells[:, self.place], cells[:, self.sources[0]] + self.shift))

    def holds(self, columns: RawColumns, cells: np.ndarray) -> np.ndarray:
        """Rows that have all cells and keep it."""
        first, second = cells[:, self.sources[0]] + self.shift, cells[:, self.place]
        with np.errstate(invalid="ignore"):
            return np.asarray(first <= second if self.ties else first < second)

    def bounds(self, cells: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least end for each start, and the largest start for each end."""
        return cells[:, self.sources[0]] + self.shift, cells[:, self.place] - self.shift

    def formula(self, columns: RawColumns) -> str:
        """In words."""
        first, second = columns.names[self.sources[0]], columns.names[self.place]
        return f"{second} is {'at least' if self.ties else 'more than'} {first}"
