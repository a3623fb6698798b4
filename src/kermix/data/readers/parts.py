"""Files of all kinds in parts that can be read by themselves, and several files as one.

What is larger than memory is read so: Parquet and NumPy from anywhere, other files from their
beginning.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, BinaryIO

import numpy as np

from kermix.data.readers.common import (
    TEXT,
    Reading,
    expand,
    is_index,
    is_remote,
    kind_of_file,
    load_pyarrow,
    opened,
    size_of,
    split_part,
)
from kermix.data.readers.delimited import CsvPart, csv_file, numeric_names
from kermix.data.readers.formats import (
    PART_BYTES,
    ROWS,
    FileLook,
    Part,
    array_header,
    numbers_of,
    parquet_errors,
    streamed,
    without_index,
    without_numbers,
)
from kermix.data.readers.frames import without_missing
from kermix.data.readers.text_columns import CellType, alike
from kermix.errors import SchemaError, TableError

__all__ = ["Files", "look_at_file", "open_files"]


def numeric_columns(schema: Any) -> tuple[str, ...]:
    """The columns that hold numbers."""
    types = load_pyarrow().types
    tests = (
        types.is_integer,
        types.is_floating,
        types.is_decimal,
        types.is_boolean,
        types.is_null,
    )
    return tuple(f.name for f in schema
                 if any(test(f.type) for test in tests) and not is_index(f.name))  # fmt: skip


def look_at_file(address: str, reading: Reading) -> FileLook:
    """Look at a file that is no text."""
    looks = {".parquet": _parquet_file, ".npy": _npy_file}
    suffix, _ = kind_of_file(address)
    if suffix not in looks:
        return _whole_file(address, reading)
    look = looks[suffix](address)
    return replace(look, parts=tuple(replace(p, missing=reading.missing) for p in look.parts))


# --- Parquet.


@dataclass(frozen=True)
class ParquetPart(Part):
    """Row groups of a Parquet file."""

    first_row: int = 0

    def piece(self, generator: np.random.Generator) -> "ParquetPart":
        """One of its row groups."""
        group = int(generator.integers(self.start, self.stop))
        size = self.size // (self.stop - self.start)
        return replace(self, start=group, stop=group + 1, size=size)

    def place(self, row: int) -> str:
        """What to call one of its rows."""
        return f"row {self.first_row + row}"

    def tables(self) -> Iterator[tuple[Any, int]]:
        """Rows of the row groups, decoded a batch at a time."""
        arrow = load_pyarrow()
        with opened(self.address) as file, parquet_errors(self.address):
            reader = _open_parquet(file)
            groups = list(range(self.start, self.stop))
            rows = sum(reader.metadata.row_group(g).num_rows for g in groups)
            for batch in reader.iter_batches(
                ROWS, row_groups=groups, columns=list(self.columns), use_threads=False
            ):
                table = without_missing(arrow.Table.from_batches([batch]), self.missing)
                yield table, self.size * len(batch) // max(1, rows)


def _open_parquet(file: BinaryIO) -> Any:
    from pyarrow import parquet

    # Streams of columns instead of whole column chunks: memory stays small with large row groups.
    return parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False)


def _parquet_file(address: str) -> FileLook:
    """Look at the footer of a Parquet file."""
    with opened(address) as file, parquet_errors(address):
        reader = _open_parquet(file)
        schema, metadata = reader.schema_arrow, reader.metadata
        sizes = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
    numbers = numeric_columns(schema)
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
            parts.append(ParquetPart(address, numbers, start, stop, share, first_row=row))
        start, row = stop, row + rows
    names = tuple(name for name in schema.names if not is_index(name))
    return FileLook(address, numbers, names, True, tuple(parts))


# --- Files that are read from their beginning.


@dataclass(frozen=True)
class WholePart(Part):
    """A file that is only read from its beginning."""

    reading: Reading = field(default_factory=Reading, hash=False)

    def piece(self, generator: np.random.Generator) -> "WholePart":
        """All of it."""
        return self

    def tables(self) -> Iterator[tuple[Any, int]]:
        """Its rows, some at a time."""
        for table in _blocks(self.address, self.reading):
            for start in range(0, len(table), ROWS):
                rows = table.slice(start, ROWS).select(list(self.columns))
                yield rows, self.size * len(rows) // max(1, self.stop)


def _blocks(address: str, reading: Reading) -> Iterator[Any]:
    path, part = split_part(address)
    if path.suffix.lower() == ".npz":
        array = numbers_of(path, part, reading.missing)
        names = [f"x{k}" for k in range(array.shape[1])]
        yield load_pyarrow().table([*array.T], names=names)
        return
    for table in streamed(path, part, reading, []):
        yield without_missing(without_index(table), reading.missing)


def _whole_file(address: str, reading: Reading) -> FileLook:
    if is_remote(address):
        raise TableError(
            f"{address}: a file of this kind is only read from this machine; copy it, or use "
            ".parquet, .csv or .npy."
        )
    rows, schema = 0, None
    for table in _blocks(address, reading):
        rows, schema = rows + len(table), table.schema
    names = () if schema is None else tuple(schema.names)
    numbers = () if schema is None else numeric_columns(schema)
    size = size_of(str(split_part(address)[0]))
    part = WholePart(address, numbers, 0, rows, size, reading=reading)
    return FileLook(address, numbers, names, not address.lower().endswith(".npz"), (part,))


# --- NumPy.


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

    def tables(self) -> Iterator[tuple[Any, int]]:
        """Arrow tables; what is no number is a gap."""
        arrow = load_pyarrow()
        for values, size in self.values():
            cells = [arrow.array(column, from_pandas=True) for column in values.T]
            yield arrow.table(cells, names=list(self.columns)), size

    def values(self) -> Iterator[tuple[np.ndarray, int]]:
        """Rows, read or mapped without the rest of the file."""
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
                yield without_numbers(values.astype(wide, copy=False), self.missing), size


def _npy_header(file: BinaryIO, address: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    try:
        shape, by_columns, dtype = array_header(file)
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


def _npy_file(address: str) -> FileLook:
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


@dataclass(frozen=True)
class Files:
    """Files of the same columns, and the parts that they are read in."""

    looks: tuple[FileLook, ...]
    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    ignored: tuple[str, ...]  # columns that are left out because they hold no numbers
    notes: tuple[str, ...] = ()  # what was assumed
    others: tuple[str, ...] = ()  # columns without numbers that are used

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the files are."""
        return tuple(look.address for look in self.looks)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    def chosen(self, columns: Sequence[str] | None = None, typed: bool = False) -> "Files":
        """The same files with other columns.

        Args:
            columns: Which; by default all that hold numbers.
            typed: Whether columns of all kinds count.
        """
        return replace(_chosen_columns(self.looks, columns, typed), notes=self.notes)


def open_files(
    sources: Sequence[str],
    columns: Sequence[str] | None = None,
    typed: bool = False,
    reading: Reading | None = None,
) -> Files:
    """Look at all files, and refuse those whose columns are not those of the first.

    Args:
        sources: Paths, globs, folders or fsspec addresses.
        columns: Which columns to use; by default all that hold numbers.
        typed: Whether columns of all kinds count.
        reading: How text files are written, where that is known, and kinds of columns.
    """
    looks = [_looked_at(address, reading or Reading()) for address in expand(sources)]
    return _chosen_columns(_alike(looks), columns, typed)


def _alike(looks: list[FileLook]) -> tuple[FileLook, ...]:
    """Text files whose columns have one type in all of them."""
    types = {look.address: dict(part.types) for look in looks for part in look.parts[:1]
             if isinstance(part, CsvPart)}  # fmt: skip
    if len(types) > 1:
        _make_alike(list(types.values()))
    return tuple(_typed(look, types.get(look.address)) for look in looks)


def _make_alike(types: Sequence[dict[str, CellType]]) -> None:
    """Change the types of columns to those in which the rows of all files can be read."""
    for name in {name for own in types for name in own}:
        having = [own for own in types if name in own]
        for own, kind in zip(having, alike([own[name] for own in having]), strict=True):
            own[name] = kind


def _typed(look: FileLook, types: Mapping[str, CellType] | None) -> FileLook:
    """A file with other types of its columns, if it is text."""
    if types is None:
        return look
    parts = tuple(replace(p, types=types) for p in look.parts)  # type: ignore[call-arg]
    return replace(look, parts=parts, columns=numeric_names(types))


def _chosen_columns(
    looks: tuple[FileLook, ...], columns: Sequence[str] | None, typed: bool
) -> Files:
    shown = [replace(k, columns=k.all_columns) if typed else k for k in looks]
    first = looks[0]
    wanted = tuple(shown[0].columns if columns is None else columns)
    if not wanted:
        raise TableError(
            f"{first.address}: no column holds numbers; it has {', '.join(first.all_columns)}."
        )
    strict = columns is None
    parts = tuple(chain.from_iterable(_parts_of(k, shown[0], wanted, strict) for k in shown))
    if not parts:
        raise TableError(f"{first.address}: there are no rows in it, nor in any other file.")
    files = Files(looks, wanted, parts, (), tuple(dict.fromkeys(_notes(looks))))
    if typed:
        return replace(files, others=tuple(c for c in first.others if c in wanted))
    return replace(files, ignored=() if columns else first.others)


def _notes(looks: Sequence[FileLook]) -> list[str]:
    return [note for look in looks for note in look.notes]


def _parts_of(
    look: FileLook, first: FileLook, wanted: tuple[str, ...], strict: bool
) -> list[Part]:
    """The parts of a file with the columns that are wanted, which must be without a fault."""
    names = _matched(look, first, wanted, strict)
    for name, fault in look.faults.items():
        if strict or name in names:
            raise SchemaError(fault)
    return [replace(part, columns=names) for part in look.parts]


def _matched(
    file: FileLook, first: FileLook, wanted: tuple[str, ...], strict: bool
) -> tuple[str, ...]:
    """The names that the wanted columns have in a file."""
    if not (file.named and first.named) and strict:
        if len(file.columns) != len(wanted):
            raise TableError(
                f"{file.address}: {len(file.columns)} columns of numbers, but {first.address} "
                f"has {len(wanted)}."
            )
        return file.columns
    for name in wanted:
        if name not in file.columns:
            raise TableError(
                file.explained.get(name, f"{file.address}: {_why_not(name, file, first)}.")
            )
    extra = [c for c in file.columns if c not in wanted]
    if strict and extra:
        raise TableError(
            f"{file.address}: column {extra[0]} is not in {first.address}. Name the columns to "
            f"use: {','.join(wanted)}."
        )
    return wanted


def _why_not(name: str, file: FileLook, first: FileLook) -> str:
    if name in file.all_columns:
        return f"column {name} holds no numbers"
    other = "it" if file is first else f"{first.address} has it, and this file"
    return f"there is no column {name}; {other} has {', '.join(file.all_columns)}"


def _looked_at(address: str, reading: Reading) -> FileLook:
    suffix, packed = kind_of_file(address)
    return csv_file(address, reading, packed) if suffix in TEXT else look_at_file(address, reading)
