"""Data by their names, or as callers have them: rows of numbers, or of numbers and codes.

`load` reads anything by its name, `read_table` rows of numbers, `read_sources` two tables alike,
whose times are times in both however they are written.

Rows of numbers follow the same rules whatever their source:

- numbers and booleans (as 0 and 1) are used; float32 stays, everything else becomes float64;
- columns of text or dates are left out and named in `Table.ignored`;
- rows with a missing value (an empty cell, null, NaN) are left out and counted in
  `Table.dropped`; infinite values are an error;
- an array of more than two axes has one row for each entry of its first axis.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.data.dataset import TOYS, Dataset, column_names, image_rows, toy
from kermix.data.images.image_rows import STACKED, read_idx, read_image_folder, stacked_mnist
from kermix.data.images.image_sets import SIZE, is_idx, read_celeba
from kermix.data.images.labelled import LabelledImages, load_labelled
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
    ColumnType,
    Frame,
    as_frame,
    column_numbers,
    complete_rows,
)
from kermix.data.readers.reading import read_alike, read_frame
from kermix.data.schema.columns import family
from kermix.data.schema.kinds import in_common, left_out_note, only_in, without_others
from kermix.data.schema.mixed_rows import MixedRows
from kermix.data.schema.schema import Schema
from kermix.data.schema.times import ZONES, parse_times, text_format
from kermix.errors import SchemaError, TableError

__all__ = [
    "BUILT_IN",
    "IMAGE_SETS",
    "Source",
    "Sources",
    "Table",
    "common_columns",
    "is_table",
    "load",
    "read_sources",
    "read_table",
    "table_of_arrow",
    "with_same_times",
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
        own = names_apart(first.name, second.name)
        only = [
            f"only {name} has {listed(extra)}"
            for name, a, b in zip(own, (first, second), (second, first), strict=True)
            if (extra := [c for c in a.columns if c not in b.columns])
        ]
        if only:
            both = [c for c in first.columns if c in second.columns]
            hint = (
                f"To use the columns in both, name them: {','.join(both)}."
                if both
                else "They have no column in common."
            )
            raise TableError(f"The columns differ: {'; '.join(only)}. {hint}")
        return first, second.select(first.columns)
    if len(first.columns) != len(second.columns):
        raise TableError(
            f"{first.name} has {len(first.columns)} columns of numbers and {second.name} has "
            f"{len(second.columns)}; without names the numbers must match."
        )
    names = first.columns if first.named else second.columns
    named = first.named or second.named
    return tuple(replace(t, columns=names, named=named) for t in (first, second))  # type: ignore[return-value]


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
    found, ignored = {}, []
    for column in asked:
        numbers = column_numbers(table.column(column))
        if numbers is not None:
            found[column] = numbers
        elif columns is None:
            ignored.append(column)
        else:
            raise TableError(f"{name}, column {column}: holds {table.column(column).type}, "
                             "not numbers; encode it first or leave it out.")  # fmt: skip
    if not found:
        raise TableError(f"{name}: no column holds numbers; it has {listed(ignored)}.")
    dtype = np.float32 if all(v.dtype == np.float32 for v in found.values()) else np.float64
    values = np.stack([v.astype(dtype) for v in found.values()], axis=1)
    return _finished(values, list(found), name, tuple(ignored), first_row, named)


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


def with_same_times(
    frames: Sequence[Frame], known: Collection[str] = ()
) -> tuple[list[Frame], list[str]]:
    """Tables whose times are no text where they are written in several ways, and what to say.

    Args:
        frames: Tables, most columns of which have the same names.
        known: Columns whose kind is known, which stay as they are.
    """
    found, notes = list(frames), []
    for name in frames[0].columns if len(frames) > 1 else ():
        if name in known or not all(name in f.columns for f in frames):
            continue
        ways = [_way(frame, name) for frame in frames]
        if None in ways or len(set(ways)) == 1 or _written_alike(frames, name):
            continue
        shown = [f"{way[0] or 'times'} in {f.name}" for way, f in zip(ways, frames, strict=True)
                 if way is not None]  # fmt: skip
        notes.append(f"Column {name} is written as {' and '.join(shown)}; compared as times.")
        for k, way in enumerate(ways):
            assert way is not None
            column = _times(found[k].columns[name], way)
            types = {**found[k].types, name: ColumnType(str(column.type))}
            columns = {**found[k].columns, name: column}
            found[k] = replace(found[k], columns=columns, types=types)
    return found, notes


def _written_alike(frames: Sequence[Frame], name: str) -> bool:
    """Whether one way fits all tables: 01/02/2020 may be of January, but not beside 31/01/2020."""
    columns = [f.columns[name] for f in frames]
    if any(family(c.type) != "text" for c in columns):
        return False
    arrow = load_pyarrow()
    chunks = [chunk for c in columns for chunk in c.cast(arrow.string()).chunks]
    return text_format(arrow.chunked_array(chunks).drop_null().unique()) is not None


def _way(frame: Frame, name: str) -> tuple[str, str] | None:
    """How a column of times is written; empty text where it is no text, None if it is none."""
    column, kind = frame.columns[name], frame.types[name]
    types = load_pyarrow().types
    if types.is_timestamp(column.type) or types.is_date(column.type):
        return "", ""
    if family(column.type) != "text" or kind.declared is not None or kind.mixed:
        return None
    return text_format(column.drop_null().cast("string").unique())


def _times(column: Any, way: tuple[str, str]) -> Any:
    arrow = load_pyarrow()
    form, unit = way
    if form:
        times = parse_times(column.cast(arrow.string()), form, unit)
        assert times is not None
        zoned = form.endswith(ZONES)
        return times.cast(arrow.timestamp(unit, "UTC" if zoned else None))
    if not arrow.types.is_date(column.type):
        return column
    return column.cast(arrow.timestamp("s"))


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
    if any(_is_plain(s) for s in sources) and not (reading.kinds or reading.exclude):
        tables, told = _matched(
            [read_table(s, columns=reading.columns, reading=reading) for s in sources], strict
        )
        if not any(t.dropped for t in tables):
            if without:
                tables = tuple(replace(t, values=t.values[~again])
                                for t, again in zip(tables, without, strict=True))  # fmt: skip
            return Sources(tables, None, [*told, *(note for t in tables for note in t.notes())])
    found = read_alike(sources, reading)
    frames, same = with_same_times([frame for frame, _ in found], reading.kinds)
    if without:
        frames = [_kept(f, again) for f, again in zip(frames, without, strict=True)]
    notes = [*dict.fromkeys(note for _, said in found for note in said), *same]
    if len(frames) == 2 and not strict:
        frames, told = without_others(frames)
        notes = [*told, *notes]
    if not reading.kinds and all(_is_numeric(f) for f in frames):
        frames, told = _without_row_numbers(frames)
        tables, more = _matched([_numbers(f) for f in frames], strict)
        return Sources(tables, None, [*notes, *told, *more])
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
    notes += [
        *schema.notes(),
        f"{_counted(numbers, len(schema.modelled) - numbers)}; missing values are one of their "
        "own.",
    ]
    return Sources(tuple(rows), maker, notes, tuple(frames))


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
    is_integer = load_pyarrow().types.is_integer
    whole = [n for n, c in frames[0].columns.items() if is_integer(c.type) and
             all(n in f.columns for f in frames)]  # fmt: skip
    distinct = [n for n in whole if all(len(f.columns[n].unique()) == f.rows for f in frames)]
    if not distinct or any(f.kind == "array" for f in frames):
        return list(frames), []
    schema = Schema.infer(*frames, columns=distinct)
    keys = [c.name for c in schema.left_out if c.what == "key"]
    if not keys or len(keys) == len(frames[0].columns):
        return list(frames), []
    found = [replace(f, columns={n: c for n, c in f.columns.items() if n not in keys},
                     types={n: t for n, t in f.types.items() if n not in keys})
             for f in frames]  # fmt: skip
    return found, schema.notes()


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


TOY_ROWS = 20_000
IMAGE_SETS = ("mnist", "stacked-mnist", "cifar10", "celeba")
BUILT_IN = (*TOYS, *IMAGE_SETS)


def load(
    source: str,
    seed: int = 0,
    rows: int | None = None,
    *,
    split: Literal["train", "test"] = "train",
    data_root: Path | None = None,
    cache: Path | None = None,
    size: int | None = None,
    workers: int | None = None,
) -> Dataset:
    """Read a built-in data set, an image data set, a table, an IDX file or a folder of images.

    Args:
        source: Name of a data set, or a path. Image data sets are "mnist", "stacked-mnist",
            "cifar10", "celeba" and, with one of its attributes as label, "celeba:Smiling".
        seed: Random seed for a built-in data set, or for a subset of the rows of another.
        rows: Number of rows, drawn at random; by default 20,000 for a built-in data set, 128,000
            for stacked MNIST, and all rows otherwise.
        split: Which part of a set of images, or of a folder that has `train` and `test`.
        data_root: Where the files of such a set are; without them MNIST and CIFAR-10 are
            downloaded.
        cache: Folder for downloads and decoded images; see `kermix.data.images.image_cache`.
        size: Side length of images in pixels; by default unchanged (64 for CelebA).
        workers: Number of processes that decode images; by default as many as are worth starting.

    Example:
        >>> load("moons", rows=100).values.shape
        torch.Size([100, 2])
    """
    if not source.strip():
        raise TableError("The data name is empty; give a built-in data set, a file or a folder.")
    options: dict[str, Any] = {"cache": cache, "workers": workers}
    if source in TOYS:
        chosen = toy(source)
        count = TOY_ROWS if rows is None else rows
        values = chosen.sample(count, torch.Generator().manual_seed(seed))
        image = (1, 8, 8) if source == "digits" else None
        names = column_names(values.shape[1])
        return Dataset(source, values, names, image, chosen.modes, chosen.entropy)
    if source == "celeba":
        side = SIZE if size is None else size
        faces = read_celeba(data_root, split, size=side, **options)
        return _some(image_rows(source, faces.images, faces.notes), rows, seed)
    if source == "stacked-mnist":
        digits = load_labelled("mnist", split, data_root=data_root, size=size, **options)
        count = STACKED if rows is None else rows
        return _from_labelled(stacked_mnist(digits.images, digits.labels, count, seed))
    if source.partition(":")[0] in IMAGE_SETS:
        found = load_labelled(source, split, data_root=data_root, size=size, **options)
        return _some(_from_labelled(found), rows, seed)
    path = Path(source)
    if path.is_dir():
        return _some(read_image_folder(path, split=split, size=size, **options), rows, seed)
    if is_idx(path):
        return _some(read_idx(path), rows, seed)
    if not path.exists() and not path.suffix:
        raise TableError(
            f"{source}: not a file, a folder or a built-in data set; built in are "
            f"{', '.join(BUILT_IN)}."
        )
    table = read_table(path)
    whole = Dataset(path.stem, table.values, table.columns, notes=tuple(table.notes()),
                    numbers=table.numbers)  # fmt: skip
    return _some(whole, rows, seed)


def is_table(data: str | Path, arrays: bool = False) -> bool:
    """Whether a name is that of a table with named columns, or of an array, if these count."""
    path = Path(data)
    known = str(data).partition(":")[0] in BUILT_IN
    if known or path.is_dir() or (path.is_file() and is_idx(path)):
        return False
    if not path.exists() and not path.suffix:
        return False  # refused where built-in sets are listed
    return arrays or split_part(path)[0].suffix.lower() not in NUMERIC_FILES


def _from_labelled(found: LabelledImages) -> Dataset:
    dataset = image_rows(found.name, found.images, found.notes)
    return replace(dataset, labels=torch.from_numpy(found.labels), classes=found.classes)


def _some(dataset: Dataset, rows: int | None, seed: int) -> Dataset:
    if rows is None or rows >= len(dataset.stored):
        return dataset
    order = torch.randperm(len(dataset.stored), generator=torch.Generator().manual_seed(seed))
    chosen = order[:rows].sort().values
    labels = None if dataset.labels is None else dataset.labels[chosen]
    numbers = None if dataset.numbers is None else dataset.numbers[chosen]
    return replace(dataset, stored=dataset.stored[chosen], labels=labels, numbers=numbers)
