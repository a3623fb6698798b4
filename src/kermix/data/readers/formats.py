"""Files that are no text as Arrow tables: Parquet, Feather, JSON lines, Excel, NumPy, databases.

What packed files announce is checked before memory is taken. A `Part` is what a file of any kind
is read in, where it is larger than memory.
"""

import io
import math
import sqlite3
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kermix.data.readers.common import (
    DATABASES,
    GAPS,
    JSON,
    Reading,
    check_expanded,
    is_index,
    is_number,
    kind_of_file,
    listed,
    load_pyarrow,
    most_bytes,
    one_line,
    opened,
    unpacking,
)
from kermix.data.readers.frames import column_numbers, complete_rows, without_missing
from kermix.data.readers.text_columns import read_words
from kermix.errors import MissingExtraError, SizeError, TableError

__all__ = [
    "PART_BYTES",
    "ROWS",
    "Batch",
    "FileLook",
    "Part",
    "array_header",
    "numbers_of",
    "parquet_errors",
    "read_whole",
    "streamed",
    "without_index",
    "without_numbers",
]

ROWS = 65_536  # of a batch: convention
PART_BYTES = 2**24  # of a file, that are a part: convention


class Batch(NamedTuple):
    """Complete rows, and what was read for them."""

    values: np.ndarray  # (n, d), n may be 0
    dropped: int
    size: int  # bytes, about


@dataclass(frozen=True)
class Part(ABC):
    """A piece of a file that can be read by itself, on any machine that sees the file."""

    address: str
    columns: tuple[str, ...]
    start: int
    stop: int
    size: int  # bytes
    missing: tuple[str, ...] = ()  # cells that stand for a gap, beside those that always do

    @abstractmethod
    def tables(self) -> Iterator[tuple[Any, int]]:
        """Arrow tables of its rows, some at a time, and about how many bytes each has."""

    @abstractmethod
    def piece(self, generator: np.random.Generator) -> "Part":
        """A random piece of it, small where that is possible: for a look at the data."""

    def place(self, row: int) -> str:
        """What to call one of its rows in a message."""
        return f"row {self.start + row}"

    def batches(self) -> Iterator[Batch]:
        """Its rows as numbers, without those that have a gap."""
        row = 0
        for values, size in self.values():
            place = partial(self._place_after, row)
            kept = complete_rows(values, self.columns, self.address, place)
            yield Batch(kept, len(values) - len(kept), size)
            row += len(values)

    def _place_after(self, rows: int, row: int) -> str:
        return self.place(rows + row)

    def values(self) -> Iterator[tuple[np.ndarray, int]]:
        """Its rows as numbers, NaN where there is a gap."""
        for table, size in self.tables():
            columns = [column_numbers(table.column(c)) for c in self.columns]
            text = next((n for n, c in zip(self.columns, columns, strict=True) if c is None), None)
            if text is not None:
                raise TableError(f"{self.address}, column {text}: holds no numbers.")
            yield np.stack(columns, axis=1), size  # type: ignore[arg-type]


@dataclass(frozen=True)
class FileLook:
    """What a look at a file tells."""

    address: str
    columns: tuple[str, ...]  # with numbers
    all_columns: tuple[str, ...]
    named: bool
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()  # what was assumed
    faults: Mapping[str, str] = field(default_factory=dict, hash=False)  # of columns, in words
    explained: Mapping[str, str] = field(default_factory=dict, hash=False)  # why they are text

    @property
    def others(self) -> tuple[str, ...]:
        """The columns without numbers."""
        return tuple(c for c in self.all_columns if c not in self.columns)


def read_whole(path: Path, part: str | None, reading: Reading) -> tuple[Any, list[str]]:
    """A file that is neither text nor of NumPy as an Arrow table, and what was assumed."""
    arrow = load_pyarrow()
    suffix, _ = kind_of_file(path)
    if suffix == ".parquet":
        return without_missing(_parquet(path), reading.missing), []
    notes: list[str] = []
    tables = list(streamed(path, part, reading, notes))
    whole = arrow.concat_tables(tables, promote_options="permissive")
    return without_missing(without_index(whole), reading.missing), notes


def streamed(path: Path, part: str | None, reading: Reading, notes: list[str]) -> Iterator[Any]:
    """The rows of a file in blocks, where its format has them; else all at once."""
    suffix, _ = kind_of_file(path)
    if suffix in DATABASES:
        yield from _database(path, part)
    elif suffix == ".xlsx":
        yield _excel(path, reading.sheet, notes)
    elif suffix in JSON:
        yield _json(path)
    else:
        yield from _feather(path)


def without_index(table: Any) -> Any:
    """The table without the numbers of rows that pandas wrote beside it."""
    return table.select([name for name in table.column_names if not is_index(name)])


# --- Parquet.


@contextmanager
def parquet_errors(address: str | Path) -> Iterator[None]:
    """Name the Parquet file that cannot be read."""
    arrow = load_pyarrow()
    try:
        yield
    except (arrow.ArrowException, OSError) as error:
        # Arrow reports damaged pages as an OSError without an error number.
        if isinstance(error, OSError) and error.errno is not None:
            raise TableError(f"{address}: cannot be read ({error.strerror}).") from None
        raise TableError(f"{address}: not a readable Parquet file ({one_line(error)}).") from None


def _parquet(path: Path) -> Any:
    with parquet_errors(path):
        from pyarrow import parquet

        file = parquet.ParquetFile(path)
        _check_announced(path, file)
        return without_index(file.read())


def _check_announced(path: Path, file: Any, small: int = 2**30) -> None:
    """Refuse a Parquet file of few bytes that stand for very many equal cells.

    It may have a gigabyte in any case, as Parquet is good at equal cells.
    """
    rows = file.metadata.num_rows
    total = sum(rows * _bytes_of(field.type) for field in file.schema_arrow)
    limit = most_bytes(path.stat().st_size, small)
    if total > limit:
        raise SizeError(
            f"{path}: announces {rows} rows, at least {total >> 20} MiB, more than {limit >> 20} "
            "MiB; it is not read at once. Use kermix sketch, which reads it in parts."
        )


def _bytes_of(kind: Any) -> int:
    try:
        return int(kind.bit_width + 7) // 8
    except ValueError:
        return 4  # an offset of a text


# --- Feather and JSON lines.


def _feather(path: Path) -> Iterator[Any]:
    arrow = load_pyarrow()
    from pyarrow import feather

    try:
        with arrow.memory_map(str(path)) as file:
            try:
                reader = arrow.ipc.open_file(file)
            except arrow.ArrowInvalid:  # Feather's first version
                yield feather.read_table(path)
                return
            batches = (reader.get_batch(k) for k in range(reader.num_record_batches))
            yield arrow.Table.from_batches([], reader.schema)
            for batch in batches:
                yield arrow.Table.from_batches([batch])
    except (arrow.ArrowException, OSError) as error:
        raise TableError(f"{path}: not a readable Feather file ({one_line(error)}).") from None


def _json(path: Path) -> Any:
    arrow = load_pyarrow()
    from pyarrow import json

    _, packed = kind_of_file(path)
    content = io.BytesIO(_unpacked(path, packed)) if packed else path
    try:
        found = json.read_json(content)
        found.validate(full=True)  # Arrow reads what is no UTF-8
        return found
    except (arrow.ArrowException, OSError) as error:
        raise TableError(
            f"{path}: not readable as JSON lines, an object in each ({one_line(error)})."
        ) from None


def _unpacked(path: Path, packed: str) -> bytes:
    """The content of a packed file, unpacked no further than a limit."""
    most = most_bytes(path.stat().st_size)
    content = io.BytesIO()
    with unpacking(path), load_pyarrow().input_stream(path, compression=packed) as stream:
        while part := stream.read(PART_BYTES):
            content.write(part)
            check_expanded(path, content.tell(), most)
    return content.getvalue()


# --- Excel, and other cells that are Python's objects.


def _excel(path: Path, sheet: str | None, notes: list[str]) -> Any:
    """A sheet; by default the one with most cells."""
    sheets = _sheets(path, sheet)
    filled = {name: sum(map(_filled, rows)) for name, rows in sheets.items()}
    best = max(filled, key=filled.__getitem__)
    if sum(count > 0 for count in filled.values()) > 1:
        notes.append(
            f"{path.name}: sheet {best!r} is read, which has most cells of "
            f"{listed(map(repr, sheets))}; for another, use --sheet."
        )
    return _table_of(sheets[best], f"{path}, sheet {best!r}")


def _sheets(path: Path, asked: str | None) -> dict[str, list[tuple[Any, ...]]]:
    """The rows of all sheets that are not empty, or of the one that is asked for."""
    check_declared_size(path)
    try:
        import openpyxl
    except ImportError:
        raise MissingExtraError(
            f"{path}: Excel files need openpyxl: pip install openpyxl."
        ) from None
    try:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        with closing(book):
            names = [s.title for s in book.worksheets]
            found = {name: _rows_of(book[name]) for name in names if asked in (None, name)}
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise TableError(f"{path}: not a readable Excel file ({one_line(error)}).") from None
    if not found:
        raise TableError(f"{path}: has no sheet {asked!r}; it has {listed(names)}.")
    return found


def _rows_of(sheet: Any) -> list[tuple[Any, ...]]:
    return [row for row in sheet.iter_rows(values_only=True) if _filled(row)]


def _filled(row: Sequence[Any]) -> int:
    return sum(cell is not None and cell != "" for cell in row)


def _table_of(rows: list[tuple[Any, ...]], name: str) -> Any:
    """Rows of objects, of which the first are the names."""
    if not rows:
        raise TableError(f"{name}: there are no rows in it.")
    columns = [list(cells) for cells in zip(*rows, strict=True)]
    columns = [cells for cells in columns if _filled(cells)]
    named = {}
    for place, (first, *cells) in enumerate(columns):
        label = f"Unnamed: {place}" if first in (None, "") else str(first).strip()
        if label in named:
            raise TableError(f"{name}: column names appear twice: {label}.")
        named[label] = of_objects(cells)
    return load_pyarrow().table(named)


def of_objects(cells: list[Any]) -> Any:
    """Python's objects as an Arrow array: of several types, as text."""
    arrow = load_pyarrow()
    words = [c for c in cells if isinstance(c, str)]
    if words and len(words) + cells.count(None) == len(cells):
        return read_words(arrow.array(cells, arrow.string()))
    if GAPS.issuperset(map(str.strip, words)):
        cells = [None if isinstance(c, str) else c for c in cells]
    try:
        return arrow.array(cells)
    except (arrow.ArrowException, TypeError, ValueError, OverflowError):
        return arrow.array([c if c is None else str(c) for c in cells], arrow.string())


# --- Databases: a table of a file that DuckDB or SQLite has written.


def _database(path: Path, table: str | None) -> Iterator[Any]:
    with opened(str(path)) as file:
        light = file.read(16).startswith(b"SQLite format 3")
    yield from (_sqlite if light else _duckdb)(path, table)


def _chosen_part(path: Path, names: Sequence[str], asked: str | None, what: str) -> str:
    """The name of a table or an array of a file; the only one if none is named."""
    if asked is None and len(names) == 1:
        return names[0]
    if asked is None or asked not in names:
        which = f"say which: {path}:{names[0]}" if names else "there is none"
        raise TableError(
            f"{path} holds the {what} {listed(names) if names else '(none)'}; "
            f"{which if asked is None else f'{asked!r} is not among them'}."
        )
    return asked


def _quoted(name: str) -> str:
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _duckdb(path: Path, table: str | None) -> Iterator[Any]:
    try:
        import duckdb
    except ImportError:
        raise MissingExtraError(
            f"{path}: files of DuckDB need it: pip install 'kermix[duckdb]'."
        ) from None
    try:
        with duckdb.connect(str(path), read_only=True) as base:
            names = [row[0] for row in base.execute("SHOW TABLES").fetchall()]
            chosen = _quoted(_chosen_part(path, names, table, "tables"))
            reader: Any = base.execute(f"SELECT * FROM {chosen}").to_arrow_reader(ROWS)
            yield reader.schema.empty_table()
            for batch in reader:
                yield load_pyarrow().Table.from_batches([batch])
    except duckdb.Error as error:
        raise TableError(f"{path}: not a readable file of DuckDB ({one_line(error)}).") from None


SQLITE = {"integer": "int64", "real": "float64", "text": "string"}


def _sqlite(path: Path, table: str | None) -> Iterator[Any]:
    """Columns of SQLite have no types of their own: those of their cells count, of all of them."""
    arrow = load_pyarrow()
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as base:
            found = base.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
            names = [row[0] for row in found if not row[0].startswith("sqlite_")]
            chosen = _quoted(_chosen_part(path, names, table, "tables"))
            columns = [row[1] for row in base.execute(f"PRAGMA table_info({chosen})")]
            types = [_sqlite_type(base, chosen, name) for name in columns]
            schema = arrow.schema(list(zip(columns, types, strict=True)))
            yield schema.empty_table()
            cells = ", ".join(
                f"CAST({_quoted(n)} AS TEXT)" if t == arrow.string() else _quoted(n)
                for n, t in zip(columns, types, strict=True)
            )
            rows = base.execute(f"SELECT {cells} FROM {chosen}")
            while block := rows.fetchmany(ROWS):
                arrays = [
                    arrow.array(c, t) for c, t in zip(zip(*block, strict=True), types, strict=True)
                ]
                yield arrow.table(arrays, schema=schema)
    except sqlite3.Error as error:
        raise TableError(f"{path}: not a readable file of SQLite ({one_line(error)}).") from None


def _sqlite_type(base: sqlite3.Connection, table: str, column: str) -> Any:
    arrow = load_pyarrow()
    found = base.execute(f"SELECT DISTINCT typeof({_quoted(column)}) FROM {table}").fetchall()
    kinds = {row[0] for row in found} - {"null"}
    if kinds == {"integer", "real"}:
        return arrow.float64()
    kind = kinds.pop() if len(kinds) == 1 else "text"
    return getattr(arrow, SQLITE.get(kind, "string"))()


# --- NumPy.


def _load_numpy(path: Path, array: str | None) -> np.ndarray:
    """The array of a .npy file, or one array of a .npz file."""
    if path.suffix.lower() == ".npz":
        check_declared_size(path)
    elif path.suffix.lower() == ".npy":
        _check_header(path)
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).partition(". ")[0]
        if "allow_pickle" in str(error):  # how to load it unsafely is no advice of ours
            reason = "it holds Python objects, or was not written by NumPy"
        raise TableError(f"{path}: not a readable NumPy file of numbers ({reason}).") from None
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        chosen = _chosen_part(path, loaded.files, array, "arrays")
        try:
            return loaded[chosen]
        except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile) as error:
            raise TableError(f"{path}, array {chosen}: {error}.") from None


def numbers_of(path: Path, array: str | None = None, missing: Sequence[str] = ()) -> np.ndarray:
    """The rows of a .npy file, or of one array of a .npz file; NaN for what is called missing."""
    found = _load_numpy(path, array)
    if found.ndim == 0 or found.size == 0 or found.dtype.kind not in "fiub":
        raise TableError(
            f"{path}: rows of real numbers are needed, not {found.dtype} of shape {found.shape}."
        )
    return without_numbers(found.reshape(len(found), -1), missing)


def without_numbers(values: np.ndarray, missing: Sequence[str]) -> np.ndarray:
    """The values, NaN where they are one of the numbers that are called missing."""
    gaps = [float(word) for word in missing if is_number(word)]
    return np.where(np.isin(values, gaps), np.nan, values) if gaps else values


def check_declared_size(path: Path) -> None:
    """Refuse a zip file whose parts announce to become very large, before any of it is read.

    Parts of a .npz file are looked into: what the header of an array announces counts too.
    """
    size = path.stat().st_size
    limit = most_bytes(size)
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(i.file_size for i in archive.infolist())
            for part in archive.infolist():
                if part.filename.endswith(".npy"):
                    with archive.open(part) as file:
                        total = max(total, _announced(file))
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError) as error:
        raise TableError(f"{path}: not a readable file ({error}).") from None
    if total > limit:
        raise SizeError(
            f"{path}: announces {total >> 20} MiB in a file of {size} bytes, more than "
            f"{limit >> 20} MiB; it is not read. Unpack it yourself if that is right."
        )


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            announced = _announced(file)
    except (OSError, ValueError, EOFError):
        return  # NumPy says better what is wrong
    size = path.stat().st_size
    if announced > size:
        raise TableError(
            f"{path}: not a readable NumPy file of numbers (its header announces {announced} "
            f"bytes of numbers, and the file has {size})."
        )


def _announced(file: Any) -> int:
    """Bytes of the array that a header announces."""
    shape, _, dtype = array_header(file)
    return 0 if dtype.hasobject else math.prod(map(int, shape)) * dtype.itemsize


def array_header(file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape of an array, whether it is stored column by column, and its type."""
    formats = np.lib.format
    first = formats.read_magic(file) == (1, 0)
    return (formats.read_array_header_1_0 if first else formats.read_array_header_2_0)(file)
