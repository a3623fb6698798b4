"""Tables of numbers from files, data frames, arrays and tensors.

The rules, the same for every source:

- numbers and booleans (as 0 and 1) are used; float32 stays, everything else becomes float64;
- columns of text or dates are left out and named in :attr:`Table.ignored`; a column of numbers
  with some text in it is an error that names the cell;
- rows with a missing value (an empty cell, null, NaN) are left out and counted in
  :attr:`Table.dropped`; infinite values are an error;
- an array of more than two axes has one row for each entry of its first axis.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.errors import MissingExtraError, TableError

__all__ = [
    "Source",
    "Table",
    "column_numbers",
    "common_columns",
    "complete_rows",
    "csv_header",
    "listed",
    "load_pyarrow",
    "read_table",
]

Source: TypeAlias = Any  # a path, a Table, a tensor, an array, a data frame, a list of rows

DELIMITERS = ",;\t|"
SUFFIXES = (".npy", ".npz", ".csv", ".tsv", ".parquet")


@dataclass(frozen=True)
class Table:
    """Numbers in rows and named columns, and what was left out on the way to them."""

    values: Tensor  # (N, d)
    columns: list[str]
    name: str = "table"
    dropped: int = 0
    ignored: tuple[str, ...] = ()
    named: bool = True  # False: the columns had no names and are called x0, x1, ...

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
        found = []
        if self.dropped:
            total = len(self) + self.dropped
            found.append(
                f"{self.name}: {self.dropped} of {total} rows have missing values, left out."
            )
        if self.ignored:
            found.append(f"{self.name}: columns without numbers left out: {listed(self.ignored)}.")
        return found


def read_table(
    source: Source, *, columns: Sequence[str] | None = None, array: str | None = None
) -> Table:
    """Read numbers from wherever they are.

    Args:
        source: A path (.npy, .npz, .csv, .tsv, .parquet), a tensor, an array, a pandas data frame,
            a list of rows, or a table.
        columns: Which columns to use, in this order; by default all that hold numbers. Only these
            are looked at for missing values.
        array: Which array of an .npz file; needed when it holds several.

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
        return _read_file(Path(source), columns, array)
    if hasattr(source, "columns") and hasattr(source, "dtypes"):
        return _from_arrow(_arrow_from_pandas(source), "data frame", columns)
    return _from_array(_as_array(source), type(source).__name__.lower(), columns)


def common_columns(first: Table, second: Table) -> tuple[Table, Table]:
    """Bring two tables to the same columns in the same order.

    Named columns are matched by name, whatever their order; where one of the tables has no names,
    by position. Columns that only one table has are an error that says which.
    """
    if first.named and second.named:
        only = [
            f"only {a.name} has {listed(extra)}"
            for a, b in ((first, second), (second, first))
            if (extra := [c for c in a.columns if c not in b.columns])
        ]
        if only:
            both = [c for c in first.columns if c in second.columns]
            hint = (
                f"To use what both have, name the columns: {','.join(both)}."
                if both
                else "They have no column in common."
            )
            raise TableError(f"The columns differ: {'; '.join(only)}. {hint}")
        return first, second.select(first.columns)
    if len(first.columns) != len(second.columns):
        raise TableError(
            f"{first.name} has {len(first.columns)} columns of numbers and {second.name} has "
            f"{len(second.columns)}; without names they must be as many."
        )
    names = first.columns if first.named else second.columns
    named = first.named or second.named
    return tuple(replace(t, columns=names, named=named) for t in (first, second))  # type: ignore[return-value]


def _read_file(path: Path, columns: Sequence[str] | None, array: str | None) -> Table:
    before, inside, named_array = str(path).rpartition(".npz:")
    if inside and array is None and not path.exists():
        path, array = Path(before + ".npz"), named_array
    if path.is_dir():
        raise TableError(f"{path}: a folder; name a file in it.")
    if not path.is_file():
        raise TableError(f"{path}: there is no such file.")
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise TableError(f"{path}: files of type {suffix or '(none)'} are not read; use one of "
                         f"{', '.join(SUFFIXES)}.")  # fmt: skip
    if suffix in (".npy", ".npz"):
        name = path.name if array is None else f"{path.name}:{array}"
        return _from_array(_load_numpy(path, array), name, columns)
    if suffix == ".parquet":
        return _from_arrow(_load_parquet(path), path.name, columns)
    table, named = _load_csv(path)
    return _from_arrow(table, path.name, columns, first_row=2 if named else 1, named=named)


def _load_numpy(path: Path, array: str | None) -> np.ndarray:
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        reason = str(error).partition(". ")[0]  # what NumPy says next is how to load it unsafely
        raise TableError(f"{path}: not a readable NumPy file of numbers ({reason}).") from None
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        if array is None and len(loaded.files) == 1:
            array = loaded.files[0]
        if array not in loaded.files:
            asked = f"say which: {path}:{loaded.files[0]}"
            asked = asked if array is None else f"{array!r} is not among them"
            raise TableError(f"{path} holds the arrays {listed(loaded.files)}; {asked}.")
        try:
            return loaded[array]
        except ValueError as error:
            raise TableError(f"{path}, array {array}: {error}.") from None


def _load_csv(path: Path) -> tuple[Any, bool]:
    pyarrow = load_pyarrow()
    from pyarrow import csv as arrow_csv

    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        names, delimiter, named = csv_header(file.readline(), str(path))

    def read(threads: bool) -> Any:
        return arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(
                column_names=names, skip_rows=int(named), use_threads=threads
            ),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter),
            convert_options=arrow_csv.ConvertOptions(strings_can_be_null=True),
        )

    try:
        table = read(threads=True)
    except (pyarrow.ArrowInvalid, UnicodeDecodeError):
        try:
            table = read(threads=False)  # slower, but then the error tells the row
        except (pyarrow.ArrowInvalid, UnicodeDecodeError) as error:
            text = str(error).removeprefix("CSV parse error: ").replace("Row #", "row ")
            raise TableError(f"{path}{', ' if text.startswith('row') else ': '}{text}") from None
    return table.rename_columns([n.strip() for n in names]), named


def csv_header(start: str, name: str) -> tuple[list[str], str, bool]:
    """Names of the columns from the first line, the delimiter, and whether that line is names."""
    if not start:
        raise TableError(f"{name}: the file is empty.")
    if not start.strip():
        raise TableError(f"{name}: the first line is empty; a table begins there.")
    delimiter = max(DELIMITERS, key=start.count)
    try:
        first = next(csv.reader([start], delimiter=delimiter))
    except csv.Error:
        first = ["\0"]
    if any("\0" in cell for cell in first):
        raise TableError(f"{name}: not a text file in UTF-8; save it as one (CSV UTF-8).")
    # A first line of numbers is data: the file has no header.
    named = not all(_is_number(cell) or not cell.strip() for cell in first)
    names = [cell.strip() for cell in first]
    if named and len(set(names)) < len(names):
        twice = sorted({c for c in names if names.count(c) > 1})
        raise TableError(f"{name}: column names appear twice: {listed(twice)}.")
    return first if named else [f"x{i}" for i in range(len(first))], delimiter, named


def _load_parquet(path: Path) -> Any:
    pyarrow = load_pyarrow()
    from pyarrow import parquet

    try:
        return parquet.read_table(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise TableError(f"{path}: not a readable Parquet file ({error}).") from None


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


def _from_arrow(
    table: Any,
    name: str,
    columns: Sequence[str] | None,
    first_row: int = 0,
    named: bool = True,
) -> Table:
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
        raise TableError(
            f"{name}: no column holds numbers; it has {listed(ignored)}.{_about_commas(table)}"
        )
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
    parsed = [_is_number(c) for c in filled]
    if 2 * sum(parsed) <= len(filled):
        return None if filled else np.full(len(cells), np.nan)
    if not all(parsed):
        row = next(i for i, c in enumerate(cells) if c and not _is_number(c))
        others = len(filled) - sum(parsed)
        raise TableError(
            f"{name}, row {row + first_row}, column {label}: {cells[row]!r} is not a number, and "
            f"{sum(parsed)} of {len(filled)} cells of this column are. Correct "
            f"{'it' if others == 1 else f'the {others} others'}, or leave the column out."
        )
    return np.array([float(c) if c else np.nan for c in cells])


def _from_array(values: np.ndarray, name: str, columns: Sequence[str] | None) -> Table:
    if values.ndim == 0:
        raise TableError(f"{name} holds a single number; rows of numbers are needed.")
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
        raise TableError("The rows of the list are not equally many numbers each.") from None


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
    return Table(tensor, columns, name, dropped, ignored, named)


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


def _about_commas(table: Any) -> str:
    """A hint for tables whose numbers are written with commas."""
    for column in table.columns:
        cells = [str(c) for c in column.slice(0, 100).to_pylist() if c is not None]
        if cells and all(_is_number(c.replace(",", ".", 1)) for c in cells):
            return f" {cells[0]!r} has a comma in it; write numbers with a decimal point."
    return ""


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def listed(names: Iterable[str]) -> str:
    """Names with commas between; of many, the first twelve."""
    shown = [str(n) for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def load_pyarrow() -> Any:
    """PyArrow, or an error that says how to install it."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError(
            "Reading tables needs PyArrow: pip install 'kermix[tables]'."
        ) from None
    return pyarrow
