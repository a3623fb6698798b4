"""Tables of numbers from files, data frames, arrays and tensors.

The rules, the same for every source:

- numbers and booleans (as 0 and 1) are used; float32 stays, everything else becomes float64;
- columns of text or dates are left out and named in `Table.ignored`; a column of numbers
  with some text in it is an error that names the cell;
- rows with a missing value (an empty cell, null, NaN) are left out and counted in
  `Table.dropped`; infinite values are an error;
- an array of more than two axes has one row for each entry of its first axis.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import (
    TEXT,
    is_number,
    kind_of_file,
    listed,
    load_pyarrow,
    names_apart,
)
from kermix.data.readers.csv_files import read_csv
from kermix.data.readers.numpy_files import load_numpy
from kermix.data.readers.reading import read_whole
from kermix.data.readers.sniff import Reading
from kermix.errors import TableError

__all__ = [
    "Source",
    "Table",
    "column_numbers",
    "common_columns",
    "complete_rows",
    "read_table",
    "table_of_arrow",
]

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
        source: A path (.npy, .npz, .csv, .tsv, .parquet), a tensor, an array, a pandas data frame,
            a list of rows, or a table.
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
    if hasattr(source, "columns") and hasattr(source, "dtypes"):
        return table_of_arrow(_arrow_from_pandas(source), "data frame", columns)
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
    before, inside, named_array = str(path).rpartition(".npz:")
    if inside and array is None and not path.exists():
        path, array = Path(before + ".npz"), named_array
    if path.is_dir():
        raise TableError(f"{path}: a folder; name a file in it.")
    if not path.is_file():
        raise TableError(f"{path}: there is no such file.")
    suffix, packed = kind_of_file(path)
    if suffix in (".npy", ".npz"):
        name = path.name if array is None else f"{path.name}:{array}"
        return _from_array(load_numpy(path, array), name, columns)
    if suffix not in TEXT:
        found = read_whole(path, suffix)
        return table_of_arrow(_as_arrow(found), path.name, columns)
    table, look = read_csv(path, reading, packed)
    first_row = 2 if look.named else 1
    found = table_of_arrow(table, path.name, columns, first_row=first_row, named=look.named)
    return replace(found, said=look.notes)


def _as_arrow(table: Any) -> Any:
    return _arrow_from_pandas(table) if hasattr(table, "iloc") else table


def _arrow_from_pandas(frame: Any) -> Any:
    pyarrow = load_pyarrow()
    if not frame.columns.is_unique:
        twice = sorted({str(c) for c in frame.columns[frame.columns.duplicated()]})
        raise TableError(f"data frame: column names appear twice: {listed(twice)}.")
    arrays, names = [], [str(c) for c in frame.columns]
    for _, column in frame.items():
        try:
            arrays.append(pyarrow.Array.from_pandas(column))
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError):
            # Cells of several types: kept as text, in which numbers are looked for.
            text = column.astype(object).where(column.notna(), None)
            arrays.append(pyarrow.array([None if c is None else str(c) for c in text]))
    return pyarrow.table(arrays, names=names)


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
        numbers = column_numbers(table.column(column), name, column, first_row)
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


def column_numbers(column: Any, name: str, label: str, first_row: int) -> np.ndarray | None:
    """The column as floats, NaN where a value is missing; None if it holds no numbers."""
    pyarrow = load_pyarrow()
    from pyarrow import compute

    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        column = column.cast(kind.value_type)
        kind = column.type
    if pyarrow.types.is_null(kind):
        return np.full(len(column), np.nan)
    if pyarrow.types.is_floating(kind) and kind.bit_width == 32:
        return np.asarray(column.to_numpy(), dtype=np.float32)
    if pyarrow.types.is_boolean(kind):
        column = column.cast(pyarrow.int8())
    if any(
        test(column.type)
        for test in (
            pyarrow.types.is_integer,
            pyarrow.types.is_floating,
            pyarrow.types.is_decimal,
        )
    ):
        return np.asarray(column.cast(pyarrow.float64(), safe=False).to_numpy(), dtype=np.float64)
    if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)):
        return None
    cells = compute.utf8_trim_whitespace(column).to_pylist()
    filled = [c for c in cells if c]
    parsed = [is_number(c) for c in filled]
    if 2 * sum(parsed) <= len(filled):
        return None if filled else np.full(len(cells), np.nan)
    if not all(parsed):
        row = next(i for i, c in enumerate(cells) if c and not is_number(c))
        others = len(filled) - sum(parsed)
        raise TableError(
            f"{name}, row {row + first_row}, column {label}: {cells[row]!r} is not a number, and "
            f"{sum(parsed)} of {len(filled)} cells of this column are. Correct "
            f"{'it' if others == 1 else f'the {others} others'}, or leave the column out."
        )
    return np.array([float(c) if c else np.nan for c in cells])


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
    kept = complete_rows(values, columns, name, first_row)
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


def complete_rows(
    values: np.ndarray, columns: Sequence[str], name: str, first_row: int
) -> np.ndarray:
    """The rows without missing values; an infinite one is an error that names its cell."""
    finite = np.isfinite(values)
    if finite.all():
        return values
    infinite = np.isinf(values)
    if infinite.any():
        row, column = (int(i) for i in np.argwhere(infinite)[0])
        raise TableError(
            f"{name}, row {row + first_row}, column {columns[column]}: the value is infinite "
            f"({int(infinite.sum())} such cells); remove or replace it."
        )
    return values[finite.all(1)]
