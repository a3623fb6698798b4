"""Tables as callers have them, as rows of numbers, or of numbers and codes.

`read_table` reads rows of numbers, `read_sources` one table, or two alike, whose times are times
in both however they are written.

Rows of numbers follow the same rules whatever their source:

- numbers and booleans (as 0 and 1) are used; float32 stays, everything else becomes float64;
- columns of text or dates are left out and named in `Table.ignored`;
- rows with a missing value (an empty cell, null, NaN) are left out and counted in
  `Table.dropped`; infinite values are an error;
- an array of more than two axes has one row for each entry of its first axis.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import (
    Reading,
    check_file,
    listed,
    load_pyarrow,
    names_apart,
    split_part,
)
from kermix.data.readers.formats import numbers_of
from kermix.data.readers.frames import (
    Frame,
    as_frame,
    column_numbers,
    complete_rows,
    family,
)
from kermix.data.readers.reading import read_alike, read_frame
from kermix.data.schema.alignment import (
    in_common,
    left_out_note,
    only_in,
    with_columns,
    with_same_times,
    without_others,
)
from kermix.data.schema.columns import UNKNOWN, CategoryColumn, rounded
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.errors import OptionError, SchemaError, TableError
from kermix.kernels.distances import Layout, mismatch_of
from kermix.sketches.sketch import Sketch

__all__ = [
    "MixedRows",
    "Source",
    "Sources",
    "Table",
    "are_sketches",
    "common_columns",
    "read_sources",
    "read_table",
    "standardized",
    "table_of_arrow",
]

NUMERIC_FILES = (".npy", ".npz")
Source: TypeAlias = Any  # a path, a Table, a tensor, an array, a data frame, a list of rows


@dataclass(frozen=True)
class Table:
    """Numbers in rows and named columns, and what was left out on the way to them."""

    values: Tensor  # (N, d)
    columns: list[str]
    name: str = "table"
    dropped: int = 0
    ignored: tuple[str, ...] = ()
    named: bool = True  # False: the columns had no names and are called x0, x1, ...
    said: tuple[str, ...] = ()  # what was assumed when it was read
    numbers: Tensor | None = None  # of the rows, those left out counted: lines of a text file

    def __len__(self) -> int:
        return self.values.shape[0]

    def select(self, columns: Sequence[str]) -> "Table":
        """The given columns, in the given order."""
        missing = [c for c in columns if c not in self.columns]
        if missing:
            raise TableError(
                f"{self.name} has no column {listed(missing)}; it has {listed(self.columns)}."
            )
        order = [self.columns.index(c) for c in columns]
        return replace(self, values=self.values[:, order], columns=list(columns))

    def with_values(self, values: Tensor) -> "Table":
        """The same with other rows."""
        return replace(self, values=values)

    def notes(self) -> list[str]:
        """What was left out, one sentence each."""
        found = list(self.said)
        if self.dropped:
            total = len(self) + self.dropped
            found.append(
                f"{self.name}: {self.dropped} of {total} rows have missing values and are ignored."
            )
        if self.ignored:
            found.append(f"{self.name}: non-numeric columns are ignored: {listed(self.ignored)}.")
        return found


def read_table(
    source: Source,
    *,
    columns: Sequence[str] | None = None,
    array: str | None = None,
    reading: Reading | None = None,
) -> Table:
    """Read numbers from wherever they are.

    Args:
        source: A path, a tensor, an array, a data frame, a list of rows, or a table.
        columns: Which columns to use, in this order; by default all that hold numbers. Only these
            are looked at for missing values.
        array: Which array of an .npz file; needed when it holds several.
        reading: How a text file is written, where that is known.

    Example:
        >>> table = read_table([[1.0, 2.0], [3.0, float("nan")], [5.0, 6.0]])
        >>> table.columns, len(table), table.dropped
        (['x0', 'x1'], 2, 1)
    """
    try:
        columns = None if columns is None else list(columns)
    except TypeError:
        raise TableError(f"columns={columns!r} must be a list of names.") from None
    if isinstance(source, Table):
        return source if columns is None else source.select(columns)
    if isinstance(source, str | Path):
        return _read_file(Path(source), columns, array, reading or Reading())
    if isinstance(source, Mapping) or hasattr(source, "columns"):
        return _of_frame(as_frame(source, "data frame"), columns)
    return _from_array(_as_array(source), type(source).__name__.lower(), columns)


def common_columns(first: Table, second: Table) -> tuple[Table, Table]:
    """Bring two tables to the same columns in the same order.

    Named columns are matched by name, whatever their order; where one of the tables has no names,
    by position. Columns that only one table has are an error that says which.
    """
    if first.named and second.named:
        _check_same_columns(first, second)
        return first, second.select(first.columns)
    if len(first.columns) != len(second.columns):
        raise TableError(
            f"{first.name} has {len(first.columns)} columns of numbers and {second.name} has "
            f"{len(second.columns)}; without names the numbers must match."
        )
    names = first.columns if first.named else second.columns
    named = first.named or second.named
    return tuple(replace(t, columns=names, named=named) for t in (first, second))  # type: ignore[return-value]


def _check_same_columns(first: Table, second: Table) -> None:
    """Refuse tables of which one has a column that the other does not have."""
    own = names_apart(first.name, second.name)
    only = [
        f"only {name} has {listed(extra)}"
        for name, a, b in zip(own, (first, second), (second, first), strict=True)
        if (extra := [c for c in a.columns if c not in b.columns])
    ]
    if only:
        both = ",".join(c for c in first.columns if c in second.columns)
        hint = "They have no column in common."
        if both:
            hint = f"To use the columns in both, name them: {both}."
        raise TableError(f"The columns differ: {'; '.join(only)}. {hint}")


def _read_file(
    path: Path, columns: Sequence[str] | None, array: str | None, reading: Reading
) -> Table:
    file, part = split_part(path)
    if file.suffix.lower() not in NUMERIC_FILES:
        frame, notes = read_frame(path, reading)
        return replace(_of_frame(frame, columns), said=tuple(notes))
    check_file(file)
    array = part if array is None else array
    name = file.name if array is None else f"{file.name}:{array}"
    return _from_array(numbers_of(file, array, reading.missing), name, columns)


def _of_frame(frame: Frame, columns: Sequence[str] | None = None) -> Table:
    table = load_pyarrow().table(dict(frame.columns))
    named = frame.form is None or frame.form.named
    return table_of_arrow(table, frame.name, columns, frame.first_row, named)


def table_of_arrow(
    table: Any,
    name: str,
    columns: Sequence[str] | None,
    first_row: int = 0,
    named: bool = True,
) -> Table:
    """The columns of an Arrow table that hold numbers."""
    asked = table.column_names if columns is None else list(columns)
    missing = [c for c in asked if c not in table.column_names]
    if missing:
        raise TableError(
            f"{name} has no column {listed(missing)}; it has {listed(table.column_names)}."
        )
    every = {column: column_numbers(table.column(column)) for column in asked}
    found = {column: numbers for column, numbers in every.items() if numbers is not None}
    others = tuple(column for column in every if column not in found)
    if others and columns is not None:
        raise TableError(f"{name}, column {others[0]}: holds {table.column(others[0]).type}, "
                         "not numbers; encode it first or leave it out.")  # fmt: skip
    if not found:
        raise TableError(f"{name}: no column holds numbers; it has {listed(others)}.")
    values = np.stack([*found.values()], axis=1)  # float32, if all are
    return _finished(values, list(found), name, others, first_row, named)


def _from_array(values: np.ndarray, name: str, columns: Sequence[str] | None) -> Table:
    if values.ndim == 0:
        raise TableError(f"{name} holds a single number; expected rows of numbers.")
    if values.size == 0:
        raise TableError(f"{name} is empty: its shape is {values.shape}.")
    if values.dtype.kind not in "fiub":
        raise TableError(f"{name} has dtype {values.dtype}; rows of real numbers are needed.")
    # Points on a line become rows of one number, images rows of pixels.
    values = values.reshape(len(values), -1)
    if values.dtype != np.float32:
        values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
    names = [f"x{i}" for i in range(values.shape[1])]
    table = _finished(values, names, name, (), 0, named=False)
    return table if columns is None else table.select(columns)


def _as_array(source: Any) -> np.ndarray:
    if isinstance(source, Tensor):
        plain = source.detach().cpu()
        return plain.float().numpy() if plain.dtype == torch.bfloat16 else plain.numpy()
    if isinstance(source, np.ndarray) or hasattr(source, "__array__"):
        return np.asarray(source)
    if not isinstance(source, Iterable):
        raise TableError(f"A {type(source).__name__} cannot be read as a table of numbers.")
    try:
        return np.array(list(source), dtype=np.float64)
    except (TypeError, ValueError):
        raise TableError("The rows of the list do not all have the same length.") from None


def _finished(
    values: np.ndarray,
    columns: list[str],
    name: str,
    ignored: tuple[str, ...],
    first_row: int,
    named: bool,
) -> Table:
    kept = complete_rows(values, columns, name, lambda row: f"row {row + first_row}")
    dropped = len(values) - len(kept)
    if not len(values):
        raise TableError(f"{name}: there are no rows in it.")
    if not len(kept):
        missing = np.isnan(values).sum(0)
        raise TableError(
            f"{name}: no row is complete; column {columns[int(missing.argmax())]} alone misses "
            f"{int(missing.max())} of {len(values)} values. Leave out the columns that are mostly "
            "empty."
        )
    tensor = torch.from_numpy(np.array(kept, copy=True, order="C"))
    numbers = torch.from_numpy(np.flatnonzero(~np.isnan(values).any(1))) + first_row
    return Table(tensor, columns, name, dropped, ignored, named, numbers=numbers)


@dataclass(frozen=True, eq=False)
class MixedRows:
    """The way from encoded tables to mixed rows.

    A number becomes its normal score, atoms too, less the mean and divided by the spread of those
    that are not missing; where it is missing it is 0, and a code says so. A category is its code,
    with one for missing values.

    Attributes:
        schema: Of the tables.
        center: Means of the scores, (numbers,).
        spread: Their standard deviations, (numbers,).
        marked: Which numbers have a code for gaps, (numbers,), bool.
        layout: Of the rows.
    """

    schema: Schema
    center: np.ndarray
    spread: np.ndarray
    marked: np.ndarray
    layout: Layout

    @classmethod
    def of(
        cls, schema: Schema, encoded: Sequence[EncodedTable], *, mark_all: bool = False
    ) -> "MixedRows":
        """Scales from all rows together, whatever their order and the table they are in.

        Args:
            schema: Of the tables.
            encoded: The tables.
            mark_all: Whether also numbers without gaps so far have a code for them.
        """
        scores = np.concatenate([schema.positions(e) for e in encoded])
        gaps = np.concatenate([_gaps(schema, e) for e in encoded])
        center, spread = np.zeros(scores.shape[1]), np.ones(scores.shape[1])
        for k in range(scores.shape[1]):
            # Sums of sorted numbers do not depend, not even by rounding, on the order of rows.
            filled = np.sort(scores[~gaps[:, k], k])
            if len(filled):
                center[k] = filled.mean()
                spread[k] = filled.std() or 1.0
        marked = np.array([mark_all or c.has_missing for c in schema.numbers], bool)
        categories = _categories(schema)
        codes = np.concatenate([e.codes[:, categories] for e in encoded])
        mismatch = mismatch_of(torch.from_numpy(codes))
        columns = max(1, len(schema.modelled))
        layout = Layout(len(categories) + int(marked.sum()), mismatch, columns)
        return cls(schema, center, spread, marked, layout)

    def __call__(self, encoded: EncodedTable) -> Tensor:  # (rows, numbers + codes)
        """The rows of a table: numbers, codes of categories, codes of gaps."""
        gaps = _gaps(self.schema, encoded)
        scores = (self.schema.positions(encoded) - self.center) / self.spread
        codes = encoded.codes[:, _categories(self.schema)]
        parts = [np.where(gaps, 0.0, scores), codes, gaps[:, self.marked]]
        return torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.float64))

    def numbers(self, rows: Tensor) -> Tensor:  # (rows, numbers)
        """Numbers and times of rows whose table is gone, NaN where they are missing.

        They went to normal scores and back: the last digits of those without decimals are lost.
        """
        found = []
        marks = iter(range(rows.shape[1] - int(self.marked.sum()), rows.shape[1]))
        for k, column in enumerate(self.schema.numbers):
            scores = rows[:, k].numpy() * self.spread[k] + self.center[k]
            numbers = np.clip(column.map.inverse(scores), column.low, column.high)
            if column.decimals is not None:
                numbers = rounded(numbers, column.decimals)
            else:
                numbers = _without_last_digits(numbers, max(abs(column.low), abs(column.high)))
            if self.marked[k]:
                numbers = np.where(rows[:, next(marks)].numpy() == 0, numbers, np.nan)
            found.append(torch.from_numpy(numbers))
        return torch.stack(found, 1) if found else rows.new_zeros(len(rows), 0)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The user's columns that the rows hold."""
        return tuple(c.name for c in self.schema.modelled)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        numbers = {"centre": self.center, "spread": self.spread, "marked": self.marked}
        lists = {name: values.tolist() for name, values in numbers.items()}
        return {"schema": self.schema.to_dict(), "layout": list(self.layout), **lists}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "MixedRows":
        """What was saved."""
        codes, mismatch, columns = saved["layout"]
        return cls(
            Schema.from_dict(saved["schema"]),
            np.array(saved["centre"], dtype=np.float64),
            np.array(saved["spread"], dtype=np.float64),
            np.array(saved["marked"], dtype=bool),
            Layout(int(codes), float(mismatch), int(columns)),
        )


def _without_last_digits(numbers: np.ndarray, largest: float, digits: int = 13) -> np.ndarray:
    """As many digits as normal scores and back leave of a number; a zero is zero again."""
    if not 1e-280 < largest < 1e280:
        return numbers
    return np.round(numbers, digits - 1 - math.floor(math.log10(largest))) + 0.0


def _categories(schema: Schema) -> list[int]:
    return [k for k, c in enumerate(schema.modelled) if isinstance(c, CategoryColumn)]


def _gaps(schema: Schema, encoded: EncodedTable) -> np.ndarray:  # (rows, numbers), bool
    codes = encoded.codes[:, schema.number_columns]
    missing = [UNKNOWN if c.missing_code is None else c.missing_code for c in schema.numbers]
    return (codes == np.array(missing, dtype=np.int64)) | (codes < 0)


@dataclass(frozen=True)
class Sources:
    """Data sets with the same columns.

    Attributes:
        tables: Numbers, or mixed rows, of each.
        mixed: How mixed rows were made; None if all columns are numbers without gaps.
        notes: What was assumed and left out.
        frames: What mixed rows were made of.
    """

    tables: tuple[Table, ...]
    mixed: MixedRows | None
    notes: list[str]
    frames: tuple[Frame, ...] = ()


def read_sources(
    sources: Sequence[Any],
    reading: Reading,
    strict: bool = True,
    *,
    without: Sequence[Tensor] = (),
) -> Sources:
    """Read one or two; the schema of mixed tables and their scales are of the pooled rows.

    Args:
        sources: Files, or tables in memory.
        reading: What the user said about them.
        strict: Whether two tables must have the same columns; else those that both have count.
        without: Rows of each that are left out, (rows,), bool.
    """
    plain = _plain_sources(sources, reading, strict, without)
    if plain is not None:
        return plain
    frames, notes = _aligned(sources, reading, strict, without)
    if not reading.kinds and all(map(_is_numeric, frames)):
        frames, told = _without_row_numbers(frames)
        tables, more = _matched([_numbers(f) for f in frames], strict)
        return Sources(tables, None, [*notes, *told, *more])
    return _mixed_sources(frames, reading, notes)


def _plain_sources(
    sources: Sequence[Any], reading: Reading, strict: bool, without: Sequence[Tensor]
) -> Sources | None:
    """Sources one of which holds nothing but numbers; None if they are mixed or have gaps."""
    if reading.kinds or reading.exclude or not any(map(_is_plain, sources)):
        return None
    read = partial(read_table, columns=reading.columns, reading=reading)
    tables, told = _matched([*map(read, sources)], strict)
    if any(t.dropped for t in tables):
        return None
    notes = [*told, *(note for t in tables for note in t.notes())]
    if without:
        kept = (t.values[~again] for t, again in zip(tables, without, strict=True))
        tables = tuple(map(Table.with_values, tables, kept))
    return Sources(tables, None, notes)


def _aligned(
    sources: Sequence[Any], reading: Reading, strict: bool, without: Sequence[Tensor]
) -> tuple[list[Frame], list[str]]:
    """Tables that are read alike, with times where both have times, and what to say of them."""
    found = read_alike(sources, reading)
    frames, same = with_same_times([frame for frame, _ in found], reading.kinds)
    if without:
        frames = [_kept(f, again) for f, again in zip(frames, without, strict=True)]
    notes = [*dict.fromkeys(note for _, said in found for note in said), *same]
    if len(frames) != 2 or strict:
        return frames, notes
    frames, told = without_others(frames)
    return frames, [*told, *notes]


def _mixed_sources(frames: Sequence[Frame], reading: Reading, notes: Sequence[str]) -> Sources:
    """Tables as mixed rows, by a schema of all of their rows."""
    kinds: dict[str, Any] = dict(reading.kinds)
    schema = Schema.infer(*frames, kinds=kinds)
    if not schema.modelled:
        raise SchemaError(
            f"No column is left to compare: {listed(schema.names)} are constants, keys or text."
        )
    # Values of pooled tables are all known.
    encoded = [schema.encode(f, name=f.name) for f in frames]
    maker = MixedRows.of(schema, encoded)
    names = list(maker.column_names)
    rows = [Table(maker(e), names, f.name) for e, f in zip(encoded, frames, strict=True)]
    numbers = len(schema.numbers)
    counted = _counted(numbers, len(schema.modelled) - numbers)
    told = [*notes, *schema.notes(), f"{counted}; missing values are one of their own."]
    return Sources(tuple(rows), maker, told, tuple(frames))


def _kept(frame: Frame, without: Tensor) -> Frame:
    from pyarrow import array

    kept = array((~without).numpy())
    columns = {name: column.filter(kept) for name, column in frame.columns.items()}
    return replace(frame, columns=columns, rows=int((~without).sum()))


def _counted(numbers: int, categories: int) -> str:
    """How many columns of each kind, and what became of them."""
    found = []
    if numbers:
        found.append(f"{numbers} column{'s' * (numbers > 1)} of numbers and times, as normal "
                     "scores of all rows together")  # fmt: skip
    if categories:
        found.append(f"{categories} {'categories' if categories > 1 else 'category'}")
    return ", and ".join(found)


def _matched(tables: Sequence[Table], strict: bool) -> tuple[tuple[Table, ...], list[str]]:
    """Two tables with the same columns, and what is said about others."""
    if len(tables) != 2:
        return tuple(tables), []
    told = []
    if not strict and all(t.named for t in tables):
        names, files = [t.columns for t in tables], [t.name for t in tables]
        alone = only_in(names, files)
        if alone:
            both = in_common(names, files)
            told = [left_out_note(alone)]
            tables = [t.select(both) for t in tables]
    return common_columns(*tables), told


def _without_row_numbers(frames: Sequence[Frame]) -> tuple[list[Frame], list[str]]:
    """Tables of numbers without columns that number their rows, if others are left."""
    distinct = [name for name in frames[0].columns if _may_number_rows(name, frames)]
    if not distinct or any(f.kind == "array" for f in frames):
        return list(frames), []
    schema = Schema.infer(*frames, columns=distinct)
    keys = [c.name for c in schema.left_out if c.what == "key"]
    if not keys or len(keys) == len(frames[0].columns):
        return list(frames), []
    return [with_columns(f, [n for n in f.columns if n not in keys]) for f in frames], (
        schema.notes())  # fmt: skip


def _may_number_rows(name: str, frames: Sequence[Frame]) -> bool:
    """Whether a column has whole numbers in the first table, and different ones in each."""
    found = [f.columns[name] for f in frames if name in f.columns]
    if len(found) < len(frames) or not load_pyarrow().types.is_integer(found[0].type):
        return False
    return all(len(column.unique()) == f.rows for column, f in zip(found, frames, strict=True))


def _is_plain(source: Any) -> bool:
    """Whether a source can hold nothing but numbers."""
    if isinstance(source, str | Path):
        return split_part(source)[0].suffix.lower() in NUMERIC_FILES
    if isinstance(source, Table):
        return True
    if isinstance(source, Tensor | np.ndarray):
        return True
    return isinstance(source, list | tuple) and not all(isinstance(s, str | Path) for s in source)


def _is_numeric(frame: Frame) -> bool:
    """Whether all columns are numbers (or truth values) without gaps."""
    return all(
        family(c.type) in ("numbers", "truth values")
        and c.null_count == 0
        and frame.types[name].declared is None
        for name, c in frame.columns.items()
    )


def _numbers(frame: Frame) -> Table:
    names = list(frame.columns)
    named = names != [f"x{k}" for k in range(len(names))]
    table = load_pyarrow().table(dict(frame.columns))
    return table_of_arrow(table, frame.name, None, named=named)


def standardized(
    pooled: Tensor, asked: bool | Literal["auto"], notes: list[str], beyond: float = 10.0
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Rows divided by the spread of their columns, if asked, and by what; a note says so."""
    # Sums of sorted columns do not depend, not even by rounding, on the order of rows.
    spread, center = torch.std_mean(pooled.sort(0).values, 0)
    positive = spread[spread > 0]
    if asked == "auto":
        asked = len(positive) > 0 and bool(positive.max() > beyond * positive.min())
    if not asked:
        return pooled, None
    spread = torch.where(spread > 0, spread, 1.0)
    notes.append("Columns are divided by their pooled standard deviations.")
    return (pooled - center) / spread, (center, spread)


def are_sketches(x: Source, y: Source) -> bool:
    """Whether two sources are sketches, or the names of files of some; a single one is refused."""
    found = [
        Path(s).suffix == ".sketch" if isinstance(s, str | Path) else isinstance(s, Sketch)
        for s in (x, y)
    ]
    if any(found) and not all(found):
        raise OptionError(
            "A sketch can only be compared with another sketch: sketch the other data set first, "
            "with --landmarks-from (landmarks_from) this one."
        )
    return all(found)
