"""Which kind a column is of, judged by all of its values whatever their order.

Columns of several tables are judged as one, of a type that holds them all.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from kermix.data.readers.common import any_match, load_pyarrow
from kermix.data.readers.frames import (
    ColumnType,
    declared_array,
    family,
)
from kermix.data.readers.number_forms import (
    NumberForm,
    look_at_numbers,
    without_marks,
)
from kermix.data.schema.columns import (
    EXACT,
    CategoryColumn,
    Column,
    NumberColumn,
    origin_of,
    plain_numbers,
    rounded,
)
from kermix.data.schema.key_text import key_texts
from kermix.data.schema.keys import KeyPattern
from kermix.data.schema.monotone import MonotoneMap
from kermix.data.schema.times import (
    parse_times,
    resolution,
    seconds_of,
    text_format,
    ticks,
    time_note,
)
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.errors import SchemaError

__all__ = ["ColumnCells", "Judge"]

ROW_NUMBERS = re.compile(
    r"(.*[_ .-])?(id|key|index|rownames?|row[_ ]?(number|nr|no)?)|unnamed: 0|", re.I
)
MODELLED = ("numbers", "truth values", "text", "times", "nothing")


@dataclass(frozen=True)
class ColumnCells:
    """The cells of a column of one or several tables, by which its kind is judged.

    Attributes:
        name: Of the column.
        type: What it was for the caller.
        pieces: Its cells in each table, of one type.
        table: How messages begin.
        explained: Whether somebody has said why it is text.
    """

    name: str
    type: ColumnType
    pieces: Sequence[Any]
    table: str
    explained: bool = False

    @cached_property
    def filled(self) -> Any:
        """The cells of all tables that are not empty."""
        chunks = [c for p in self.pieces for c in p.chunks]
        return load_pyarrow().chunked_array(chunks, self.pieces[0].type).drop_null()

    @cached_property
    def gaps(self) -> float:
        """The share of cells that are empty."""
        return (self.rows - len(self.filled)) / max(1, self.rows)

    @property
    def rows(self) -> int:
        """How many cells there are."""
        return sum(len(p) for p in self.pieces)

    @property
    def holds(self) -> str:
        """What the cells are, in one word."""
        return family(self.pieces[0].type)

    @property
    def is_free(self) -> bool:
        """Whether nobody has declared which values there are."""
        return self.type.declared is None

    @property
    def may_be_constant(self) -> bool:
        """Whether a single value would be all that there is: no gap, and no declared value."""
        return not self.gaps and self.is_free

    @cached_property
    def counted(self) -> tuple[Any, np.ndarray]:
        """Its values, and how many cells have each."""
        from pyarrow import compute

        counted = compute.value_counts(self.filled)
        values = counted.field("values")
        if self.holds == "text":
            values = values.cast(load_pyarrow().string())
        return values, counted.field("counts").to_numpy()

    @property
    def all_differ(self) -> bool:
        """Whether no value is there twice, in all tables together or in each."""
        return len(self.counted[0]) == len(self.filled) or all(
            len(p.unique().drop_null()) == len(p) - p.null_count > 1 for p in self.pieces
        )

    def left_out(self, what: str, reason: str, sure: bool = False) -> LeftOutColumn:
        """The column as one that no model sees, with the pattern of its keys."""
        pattern = self._key_pattern(sure) if what == "key" else None
        return LeftOutColumn(self.name, self.type, self.gaps, what, reason=reason, pattern=pattern)

    def _key_pattern(self, sure: bool) -> KeyPattern | None:
        """How ids look that can be made anew."""
        interval = (self.type.pandas or "").startswith("interval[")
        if not self.is_free or self.type.mixed or interval:
            return None
        texts = key_texts(self.filled)
        return None if texts is None else KeyPattern.of(texts.unique(), len(texts), sure)

    def constant(self) -> LeftOutColumn:
        """The column as one that has a single value."""
        plain = self.filled.slice(0, 1).combine_chunks()
        if self.holds == "times" or load_pyarrow().types.is_decimal(plain.type):
            plain = plain.cast("string")
        return LeftOutColumn(self.name, self.type, 0.0, "constant", plain[0].as_py())


@dataclass(frozen=True)
class Judge:
    """The settings by which kinds are found, and what is to be said about columns.

    Attributes:
        category_up_to: Whole numbers with at most so many distinct values are a category.
        atom_share: A number that so many of the rows have is an atom.
        atoms_up_to: Of a number column with at most so many distinct values, each is an atom.
        fold_below: Values of a category that are seen less often become "other"; None: no "other".
        remarks: Sentences about columns that may be meant otherwise.
        long_text: Text of more characters, on average, is no category: a convention.
        most_categories: Text that nobody has called a category has no more values: a convention.
        rows_of_an_atom: An atom has at least so many: a convention.
    """

    category_up_to: int = 20
    atom_share: float = 0.004
    atoms_up_to: int = 300
    fold_below: int | None = None
    remarks: list[str] = field(default_factory=list)
    long_text: float = 60
    most_categories: int = 10_000
    rows_of_an_atom: int = 10

    def column(self, cells: ColumnCells, wanted: str | None) -> Column:
        """The column of these cells; `wanted` is the kind that the caller has said."""
        if wanted in ("key", "text"):
            return cells.left_out(wanted, "as you said", sure=True)
        if cells.holds not in MODELLED:
            return cells.left_out("text", f"holds {cells.filled.type}")
        if not len(cells.filled):
            return LeftOutColumn(cells.name, cells.type, cells.gaps, "constant", None)
        kind = wanted or {"numbers": "number", "times": "time"}.get(cells.holds)
        if kind == "number":
            return self._number(cells, wanted)
        if kind == "time":
            return self._time(cells, wanted)
        return self._values(cells, wanted)

    def _values(self, cells: ColumnCells, wanted: str | None) -> Column:
        """Truth values or text, whatever the text tells; or any cells as a category."""
        if wanted == "category":
            return self._category(cells)
        values, _ = cells.counted
        if len(values) == 1 and cells.may_be_constant:
            return cells.constant()
        if wanted == "constant":
            gaps = " and gaps" if cells.gaps else ""
            raise SchemaError(
                f"{cells.table}, column {cells.name}: has {len(values)} values{gaps}, so it is "
                "not a constant."
            )
        if cells.holds != "text" or not cells.is_free:
            return self._category(cells)
        if cells.type.mixed:
            return self._text(cells) or self._category(cells)
        return self._words(cells)

    def _words(self, cells: ColumnCells) -> Column:
        """Text by what it tells: times, numbers in a form, ids, free text, or a category."""
        values, counts = cells.counted
        dates = without_marks(values).drop_null()
        way = text_format(dates)
        if way is not None:
            self.remarks.extend(filter(None, [time_note(cells.name, dates, way)]))
            return self._time(cells, None, way)
        look = look_at_numbers(values, counts=counts)
        if look.form is not None:
            return self._written_numbers(cells, look.form)

        def note(becomes: str) -> str | None:
            return time_note(cells.name, dates, None, becomes) or look.note(cells.name, becomes)

        may_be_key = look.may_be_codes or note("text") is None  # what is mostly money is no id
        column = self._text(cells, may_be_key) or self._category(cells)
        natural = look.unknown and len(values) <= self.category_up_to  # few times of a day, say
        if not (cells.explained or natural):
            becomes = "text" if column.kind == "text" else f"a {column.kind}"
            self.remarks.extend(filter(None, [note(becomes)]))
        return column

    def _written_numbers(self, cells: ColumnCells, form: NumberForm) -> NumberColumn:
        numbers = form.read(cells.filled)
        gaps = (cells.rows - len(numbers) + numbers.null_count) / cells.rows
        x = numbers.drop_null().to_numpy()
        counted = np.unique(x, return_counts=True)
        decimals = _decimals(counted[0], np.float64)
        column = self._numbers(cells, counted, decimals=decimals)
        return replace(column, gaps=gaps, form=form)

    def _category(self, cells: ColumnCells) -> CategoryColumn:
        from pyarrow import compute

        values, counts = cells.counted
        if cells.is_free:
            keep = counts >= (0 if self.fold_below is None else self.fold_below)
            values = values.filter(load_pyarrow().array(keep))
            values = values.take(compute.sort_indices(values))
        else:
            values = declared_array(cells.type).cast(values.type)
        kept = values
        if cells.holds not in ("numbers", "truth values", "text"):
            kept = kept.cast("string")
        if load_pyarrow().types.is_decimal(kept.type):
            kept = kept.cast("string")
        return CategoryColumn(cells.name, cells.type, cells.gaps, tuple(kept.to_pylist()),
                              str(values.type), self.fold_below is not None)  # fmt: skip

    def _text(self, cells: ColumnCells, may_be_key: bool = True) -> LeftOutColumn | None:
        """Text that is no category: a key, or free text."""
        from pyarrow import compute

        values, _ = cells.counted
        if len(values) <= self.category_up_to:
            return None
        length = compute.mean(compute.utf8_length(values)).as_py()
        if length > self.long_text:
            reason = f"text of {length:.0f} characters"
        elif cells.all_differ:
            reason = "all different"
        elif len(values) > self.most_categories or 2 * len(values) > len(cells.filled):
            reason = f"{len(values):,} different values in {len(cells.filled):,} rows"
        else:
            return None
        if may_be_key and (length <= self.long_text or not any_match(values, r"\s")):
            found = cells.left_out("key", reason)
            if found.pattern is not None:
                return found
        return cells.left_out("text", reason)

    def _number(self, cells: ColumnCells, wanted: str | None) -> Column:
        """A number, unless nobody said so and it is something else."""
        if cells.holds == "text":
            form = look_at_numbers(cells.counted[0], sure=True).form
            if form is not None:
                return self._written_numbers(cells, form)
        numbers = PlainNumbers.of(cells)
        other = self._instead_of_number(cells, numbers) if wanted is None else None
        return other or self._numbers(cells, numbers.counted, decimals=numbers.decimals,
                                      origin=numbers.origin)  # fmt: skip

    def _instead_of_number(self, cells: ColumnCells, numbers: "PlainNumbers") -> Column | None:
        """A constant, a category of few whole numbers, or the numbers of rows."""
        different, rows = len(numbers.counted[0]), len(numbers.cells)
        if different == 1 and cells.may_be_constant:
            return cells.constant()
        few = different <= self.category_up_to and 2 * different <= rows
        if not cells.is_free or (few and numbers.are_values):
            return self._category(cells)
        if rows > self.category_up_to and numbers.are_of_rows(cells):
            return cells.left_out("key", "a row number")
        return None

    def _time(
        self, cells: ColumnCells, wanted: str | None, way: tuple[str, str] | None = None
    ) -> Column:
        filled = cells.filled
        if cells.holds == "text":
            filled = without_marks(filled).drop_null()
            way = way or text_format(filled.unique())
            if way is None:
                raise SchemaError(
                    f"{cells.table}, column {cells.name}: {filled[0].as_py()!r} and the others "
                    "are not all dates in one known format."
                )
            filled = parse_times(filled.cast(load_pyarrow().string()), *way)
        elif cells.holds != "times":
            raise SchemaError(
                f"{cells.table}, column {cells.name}: holds {filled.type}, which is not a time."
            )
        whole = ticks(filled)
        if wanted is None and way is None and cells.may_be_constant and np.ptp(whole) == 0:
            return cells.constant()
        step = resolution(whole, seconds_of(filled.type))
        origin = int(whole.min())
        counted = np.unique((whole - origin) / step, return_counts=True)
        column = self._numbers(
            cells, counted, decimals=0, origin=origin, step=step, text=way, time=True
        )
        return replace(column, gaps=(cells.rows - len(whole)) / cells.rows)

    def _numbers(
        self, cells: ColumnCells, counted: tuple[np.ndarray, np.ndarray], **more: Any
    ) -> NumberColumn:
        """A column of these numbers, with its atoms and its scale."""
        values, counts = counted
        rows = counts.sum()
        least = self.rows_of_an_atom
        all_atoms = len(values) <= self.atoms_up_to and rows >= least * len(values)
        is_atom = counts >= max(self.atom_share * rows, least)
        is_atom |= _stands_out(counts, least) | all_atoms
        rest = ~is_atom
        share = float(counts[rest].sum() / rows)
        if all_atoms or rest.sum() < 2:
            rest = np.ones_like(is_atom)
        return NumberColumn(
            cells.name, cells.type, cells.gaps, low=float(values[0]), high=float(values[-1]),
            atoms=values[is_atom], map=MonotoneMap.of(values[rest], counts[rest]),
            continuous=share, **more,
        )  # fmt: skip


def _stands_out(
    counts: np.ndarray, least: int, beside: int = 20, times: float = 8, most: int = 200
) -> np.ndarray:
    """Values that far more rows have than those beside them, such as 4500 beside 4479.

    Args:
        counts: How many rows have each value.
        least: Rows that such a value has in any case.
        beside: How many values on each side are looked at.
        times: How many times their median it has.
        most: How many there are at most.
    """
    found = np.zeros(len(counts), bool)
    if len(counts) <= 2 * beside:
        return found
    windows = np.lib.stride_tricks.sliding_window_view(counts, 2 * beside + 1)
    usual = np.pad(np.median(windows, axis=1), beside, mode="edge")
    chosen = np.flatnonzero((counts >= least) & (counts >= times * usual))
    found[chosen[np.argsort(-counts[chosen], kind="stable")][:most]] = True
    return found


@dataclass(frozen=True)
class PlainNumbers:
    """The cells of a column as numbers.

    Attributes:
        cells: All that are not empty, less the origin.
        origin: A whole number near to them.
        counted: The different ones, increasing, and how many cells have each.
        decimals: The fewest with which they can be written; None if all digits count.
        integer: Whether they are of a type of whole numbers.
    """

    cells: np.ndarray
    origin: int
    counted: tuple[np.ndarray, np.ndarray]
    decimals: int | None
    integer: bool

    @classmethod
    def of(cls, cells: ColumnCells) -> "PlainNumbers":
        """The cells of a column that holds numbers, or text of plain numbers."""
        filled = cells.filled
        integer = load_pyarrow().types.is_integer(filled.type)
        origin = origin_of(filled)
        x = plain_numbers(filled, cells.name, cells.table, origin)
        values, counts = np.unique(x, return_counts=True)
        decimals = 0 if integer else _decimals_of(values, filled.type)
        return cls(x, origin, (values, counts), decimals, integer)

    @property
    def are_values(self) -> bool:
        """Whether they may be a category: whole numbers, or those that floats do not hold."""
        exact = not self.integer or self.origin or np.abs(self.cells).max() < EXACT
        return self.decimals == 0 or not exact

    def are_of_rows(self, cells: ColumnCells) -> bool:
        """Whether whole numbers count rows, all together or in each table."""
        if self.decimals != 0:
            return False
        if _counts_rows(self.cells, self.counted[0], cells.name):
            return True
        each = [plain_numbers(p.drop_null(), cells.name, cells.table, self.origin)
                for p in cells.pieces] if len(cells.pieces) > 1 else []  # fmt: skip
        return len(each) > 1 and all(
            len(e) > 1 and _counts_rows(e, np.unique(e), cells.name) for e in each
        )


def _counts_rows(x: np.ndarray, values: np.ndarray, name: str) -> bool:
    if len(values) < len(x):
        return False
    # Numbers that are drawn, not counted, would meet twice or leave one out.
    return bool(np.ptp(np.diff(values)) == 0 or ROW_NUMBERS.fullmatch(name.strip()))


def _decimals_of(values: np.ndarray, kind: Any) -> int | None:
    """The fewest decimals with which all values of an Arrow type can be written."""
    arrow = load_pyarrow()
    if arrow.types.is_decimal(kind):
        return max(0, kind.scale)
    return _decimals(values, np.float32 if kind in (arrow.float32(), arrow.float16())
                     else np.float64)  # fmt: skip


def _decimals(values: np.ndarray, own: Any, most: int = 12) -> int | None:
    """The fewest decimals with which all values can be written in a precision, if not more."""
    given = values.astype(own)
    for decimals in range(most + 1):
        if (rounded(values, decimals).astype(own) == given).all():
            return decimals if np.abs(values).max() * 10.0**decimals < EXACT else None
    return None
