"""Pieces of Parquet and NumPy files, each of which can be read by itself."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kermix.data.readers.addresses import is_remote, opened, size_of
from kermix.data.readers.common import is_index, load_pyarrow
from kermix.data.readers.numeric_table import column_numbers, complete_rows
from kermix.data.readers.reading import read_frame
from kermix.errors import TableError

__all__ = [
    "Batch",
    "FileLook",
    "NpyPart",
    "ParquetPart",
    "Part",
    "WholePart",
    "floats",
    "npy_file",
    "parquet_file",
    "whole_file",
]

ROWS = 65_536  # of a batch
PART_BYTES = 2**24


class Batch(NamedTuple):
    """Complete rows, and what was read for them."""

    values: np.ndarray  # (n, d), n may be 0
    dropped: int
    size: int  # bytes, about


@dataclass(frozen=True)
class Part(ABC):
    """A piece of a file."""

    address: str
    columns: tuple[str, ...]
    start: int
    stop: int
    size: int  # bytes

    @abstractmethod
    def batches(self) -> Iterator[Batch]:
        """Its rows, some ten thousand at a time."""

    def tables(self) -> Iterator[tuple[Any, int]]:
        """Arrow tables of all its rows, with text and gaps, and about how many bytes each has."""
        raise TableError(f"{self.address}: holds numbers only.")

    @abstractmethod
    def piece(self, generator: np.random.Generator) -> "Part":
        """A random piece of it, small where that is possible: for a look at the data."""

    def _batch(self, values: np.ndarray, first_row: int, size: int) -> Batch:
        kept = complete_rows(values, self.columns, self.address, first_row)
        return Batch(kept, len(values) - len(kept), size)


@dataclass(frozen=True)
class FileLook:
    """What a look at the beginning (or the end) of a file tells."""

    address: str
    columns: tuple[str, ...]  # with numbers
    all_columns: tuple[str, ...]
    named: bool
    parts: tuple[Part, ...]
    notes: tuple[str, ...] = ()  # what was assumed


@dataclass(frozen=True)
class ParquetPart(Part):
    """Row groups of a Parquet file."""

    first_row: int

    def piece(self, generator: np.random.Generator) -> "ParquetPart":
        """One of its row groups."""
        group = int(generator.integers(self.start, self.stop))
        size = self.size // (self.stop - self.start)
        return replace(self, start=group, stop=group + 1, size=size)

    def batches(self) -> Iterator[Batch]:
        """Rows of the row groups, decoded a batch at a time."""
        row = self.first_row
        for batch, size in self.tables():
            columns = [floats(batch.column(c), self.address, c, row) for c in self.columns]
            yield self._batch(np.stack(columns, axis=1), row, size)
            row += len(batch)

    def tables(self) -> Iterator[tuple[Any, int]]:
        """The same as Arrow tables."""
        with opened(self.address) as file, _parquet_errors(self.address):
            reader = _open_parquet(file)
            groups = list(range(self.start, self.stop))
            rows = sum(reader.metadata.row_group(g).num_rows for g in groups)
            for batch in reader.iter_batches(
                ROWS, row_groups=groups, columns=list(self.columns), use_threads=False
            ):
                yield batch, self.size * len(batch) // max(1, rows)


@contextmanager
def _parquet_errors(address: str) -> Iterator[None]:
    arrow = load_pyarrow()
    try:
        yield
    except arrow.ArrowException as error:
        raise TableError(f"{address}: not a readable Parquet file ({_line(error)}).") from None
    except OSError as error:
        # Arrow reports damaged pages this way, without an error number.
        if error.errno is not None:
            raise
        raise TableError(f"{address}: not a readable Parquet file ({_line(error)}).") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def _open_parquet(file: BinaryIO) -> Any:
    from pyarrow import parquet

    # Streams of columns instead of whole column chunks: memory stays small with large row groups.
    return parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False)


def parquet_file(address: str) -> FileLook:
    """Look at the footer of a Parquet file."""
    with opened(address) as file, _parquet_errors(address):
        reader = _open_parquet(file)
        schema, metadata = reader.schema_arrow, reader.metadata
        sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    numbers = _numbers_of(schema)
    total, size = sum(sizes), size_of(address)
    parts, start, row = [], 0, 0
    target = max(ROWS, PART_BYTES * total // max(1, size))
    while start < len(sizes):
        stop, rows = start, 0
        while stop < len(sizes) and (stop == start or rows + sizes[stop] <= target):
            rows += sizes[stop]
            stop += 1
        if rows:
            share = size * rows // total
            parts.append(ParquetPart(address, numbers, start, stop, share, row))
        start, row = stop, row + rows
    names = tuple(name for name in schema.names if not is_index(name))
    return FileLook(address, numbers, names, True, tuple(parts))


def _numbers_of(schema: Any) -> tuple[str, ...]:
    """The columns that hold numbers."""
    types = load_pyarrow().types
    tests = (types.is_integer, types.is_floating, types.is_decimal, types.is_boolean)
    return tuple(f.name for f in schema
                 if any(test(f.type) for test in tests) and not is_index(f.name))  # fmt: skip


@dataclass(frozen=True)
class WholePart(Part):
    """A file of a kind that is only read whole: it has to fit into memory."""

    def piece(self, generator: np.random.Generator) -> "WholePart":
        """All of it."""
        return self

    def batches(self) -> Iterator[Batch]:
        """Its rows, some ten thousand at a time."""
        row = 0
        for table, size in self.tables():
            columns = [floats(table.column(c), self.address, c, row) for c in self.columns]
            yield self._batch(np.stack(columns, axis=1), row, size)
            row += len(table)

    def tables(self) -> Iterator[tuple[Any, int]]:
        """The same as Arrow tables."""
        table = _read_whole(self.address).select(list(self.columns))
        for start in range(0, len(table), ROWS):
            rows = table.slice(start, ROWS)
            yield rows, self.size * len(rows) // len(table)


def whole_file(address: str) -> FileLook:
    """Look at a Feather, JSON lines, Excel or .npz file."""
    table = _read_whole(address)
    names, numbers = tuple(table.column_names), _numbers_of(table.schema)
    size = size_of(address)
    part = WholePart(address, numbers, 0, len(table), size)
    return FileLook(address, numbers, names, not address.lower().endswith(".npz"), (part,))


def _read_whole(address: str) -> Any:
    if is_remote(address):
        raise TableError(
            f"{address}: a file of this kind is only read from this machine; copy it, or use "
            ".parquet, .csv or .npy."
        )
    return load_pyarrow().table(read_frame(address)[0].columns)


@dataclass(frozen=True)
class NpyPart(Part):
    """Rows of a NumPy file."""

    def piece(self, generator: np.random.Generator) -> "NpyPart":
        """As many of its rows as a batch has, at a random place."""
        rows = self.stop - self.start
        if rows <= ROWS:
            return self
        start = int(generator.integers(self.start, self.stop - ROWS))
        return replace(self, start=start, stop=start + ROWS, size=self.size * ROWS // rows)

    def batches(self) -> Iterator[Batch]:
        """Rows, read or mapped without the rest of the file."""
        for row, values, size in self._blocks():
            yield self._batch(values, row, size)

    def tables(self) -> Iterator[tuple[Any, int]]:
        """The same as Arrow tables; what is no number is a gap."""
        arrow = load_pyarrow()
        for _, values, size in self._blocks():
            cells = [arrow.array(column, from_pandas=True) for column in values.T]
            yield arrow.table(cells, names=list(self.columns)), size

    def _blocks(self) -> Iterator[tuple[int, np.ndarray, int]]:
        """The number of the first row, rows, and their bytes."""
        with opened(self.address) as file:
            shape, by_columns, dtype = _npy_header(file, self.address)
            width = int(np.prod(shape[1:], dtype=np.int64))
            keep = [int(c[1:]) for c in self.columns]
            mapped = None
            if by_columns:
                mapped = np.load(self.address, mmap_mode="r").reshape(shape[0], -1, order="F")
            else:
                file.seek(self.start * width * dtype.itemsize, 1)
            for row in range(self.start, self.stop, ROWS):
                count = min(ROWS, self.stop - row)
                size = count * width * dtype.itemsize
                if mapped is not None:
                    values = np.ascontiguousarray(mapped[row : row + count])
                else:
                    content = bytearray(size)
                    if file.readinto(content) < size:  # type: ignore[attr-defined]
                        raise TableError(f"{self.address}: truncated at row {row}.")
                    values = np.frombuffer(content, dtype).reshape(count, width)
                wide = np.float32 if dtype.itemsize <= 4 and dtype.kind == "f" else np.float64
                if keep != list(range(width)):
                    values = values[:, keep]
                yield row, values.astype(wide, copy=False), size


def _npy_header(file: BinaryIO, address: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    formats = np.lib.format
    try:
        version = formats.read_magic(file)
        read = (
            formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
        )
        shape, by_columns, dtype = read(file)
    except ValueError as error:
        raise TableError(f"{address}: not a readable NumPy file ({error}).") from None
    if dtype.kind not in "fiub" or not shape:
        raise TableError(
            f"{address}: holds {dtype} of shape {shape}; rows of real numbers are needed."
        )
    if len(shape) == 1:
        shape = (shape[0], 1)
    if by_columns and (len(shape) > 2 or "://" in address):
        raise TableError(
            f"{address}: stored column by column; write it with np.ascontiguousarray first."
        )
    return shape, by_columns and shape[1] > 1, dtype


def npy_file(address: str) -> FileLook:
    """Look at the header of a NumPy file."""
    with opened(address) as file:
        shape, _, dtype = _npy_header(file, address)
        begin = file.tell()
    width = int(np.prod(shape[1:], dtype=np.int64))
    line = width * dtype.itemsize
    if begin + shape[0] * line > size_of(address):
        raise TableError(
            f"{address}: truncated; its header announces {shape[0]} rows of {line} bytes."
        )
    step = max(ROWS, PART_BYTES // line // ROWS * ROWS)
    names = tuple(f"x{k}" for k in range(width))
    parts = tuple(
        NpyPart(address, names, row, min(row + step, shape[0]),
                line * (min(row + step, shape[0]) - row))
        for row in range(0, shape[0], step)
    )  # fmt: skip
    return FileLook(address, names, names, False, parts)


def floats(column: Any, name: str, label: str, first_row: int | Callable[[], int]) -> np.ndarray:
    """A column of a batch as numbers, NaN where they are missing."""
    arrow = load_pyarrow()
    if arrow.types.is_floating(column.type) and column.null_count == 0:
        return np.asarray(column)
    if callable(first_row):
        text = arrow.types.is_string(column.type)
        first_row = first_row() if text else 0
    chunked = column if isinstance(column, arrow.ChunkedArray) else arrow.chunked_array([column])
    numbers = column_numbers(chunked, name, label, first_row)
    if numbers is None:
        raise TableError(f"{name}, column {label}: from row {first_row} on it holds text.")
    return numbers
