"""Pieces of text files: ranges of bytes that begin and end with a line.

Large files in batches of rows: Parquet by row groups, CSV and NumPy files by pieces.

The rules are those of `kermix.data.readers.numeric_table`, and none of these files is ever held whole;
Feather, JSON lines, Excel and .npz files are. A `Part` is a piece of one file that can be
read by itself, on any machine that sees the file.
"""

import codecs
import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from kermix.data.readers.addresses import expand, opened, size_of
from kermix.data.readers.common import TEXT, kind_of_file, load_pyarrow
from kermix.data.readers.csv_form import truth_words
from kermix.data.readers.file_parts import (
    PART_BYTES,
    Batch,
    FileLook,
    Part,
    floats,
    npy_file,
    parquet_file,
    whole_file,
)
from kermix.data.readers.numeric_table import column_numbers
from kermix.data.readers.sniff import CsvLook, Reading, latin_note, look_at_csv
from kermix.data.readers.text_numbers import code_columns, code_note
from kermix.errors import SizeError, TableError

__all__ = ["CsvPart", "Files", "csv_file", "open_files"]

CSV_BLOCK = 2**22
PIECE_BYTES = 2**18
HEAD = 2**16
LONGEST_ROW = 2**27  # bytes that are held to find its end
ONE_BYTE = ("utf-8", "ascii", "iso8859", "cp125")  # encodings in which lines end as in ASCII


@dataclass(frozen=True)
class CsvPart(Part):
    """Lines of a text file that begin in a range of bytes."""

    look: CsvLook
    types: tuple[str, ...] = ()
    packed: str | None = None
    divisible: bool = True

    def batches(self) -> Iterator[Batch]:
        """Lines, some megabytes at a time; errors name the line of the file."""
        for table, size, lines in self._tables():
            first_row = partial(self._first_row, lines)
            columns = [floats(table.column(c), self.address, c, first_row) for c in self.columns]
            values = np.stack(columns, axis=1)
            where = 0 if np.isfinite(values).all() else first_row()
            yield self._batch(values, where, size)

    def tables(self) -> Iterator[tuple[Any, int]]:
        """The same as Arrow tables, with text and gaps."""
        for table, size, _ in self._tables():
            yield table, size

    def _tables(self) -> Iterator[tuple[Any, int, int]]:
        """Rows, the bytes that they take in the file, and the lines of this part before them."""
        lines = 0 if self.start else int(self.look.named)
        with self.text() as (text, file):
            before = 0
            for block in _line_blocks(text, self.start, self.stop, bool(lines), self.address):
                table = self._table(block, lines)
                size = len(block) if text is file else file.tell() - before
                before += size
                yield table, size, lines
                lines += len(table)

    @contextmanager
    def text(self) -> Iterator[tuple[BinaryIO, BinaryIO]]:
        """The file, unpacked and with lines that end as in ASCII, and the file as it is."""
        arrow = load_pyarrow()
        with opened(self.address) as file:
            stream: Any = file
            try:
                if self.packed:
                    stream = arrow.CompressedInputStream(arrow.PythonFile(file), self.packed)
                if not _is_one_byte(self.look.encoding):
                    stream = arrow.transcoding_input_stream(
                        stream if self.packed else arrow.PythonFile(file),
                        self.look.encoding, "utf-8",
                    )  # fmt: skip
                yield (file if stream is file else io.BufferedReader(stream)), file
            except (arrow.ArrowException, UnicodeDecodeError, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:
                    raise
                what = f"cannot be unpacked or decoded ({error})"
                raise TableError(f"{self.address}: {what}.") from None

    def _table(self, block: bytes, lines: int) -> Any:
        arrow = load_pyarrow()
        names = self.look.names
        types = {n: getattr(arrow, t)() for n, t in zip(names, self.types, strict=True)}
        try:
            return _read_csv(block, self.look, types, list(self.columns))
        except (arrow.ArrowInvalid, UnicodeDecodeError) as error:
            raise TableError(self.explained(str(error), lines)) from None

    def explained(self, message: str, lines: int) -> str:
        """An error of Arrow's, after so many lines of this part, in words about the file."""
        row = re.search(r"Row #(\d+)", message)
        line = self._line(lines) + int(row[1]) if row else None
        column = re.search(r"column #(\d+)", message)
        value = re.search(r"invalid value '(.*)'", message, re.DOTALL)
        where = self.address + ("" if line is None else f", row {line}")
        if column and value:
            name = self.look.names[int(column[1])]
            return f"{where}, column {name}: {value[1]!r} is not a number."
        return f"{where}: {message.split('Row #')[-1].partition(': ')[2] or message}."

    def piece(self, generator: np.random.Generator) -> "CsvPart":
        """Some lines at a random place; all of a file that cannot be divided."""
        if self.stop - self.start <= PIECE_BYTES or not self.divisible:
            return self
        start = int(generator.integers(self.start, self.stop - PIECE_BYTES))
        return replace(self, start=start, stop=start + PIECE_BYTES, size=PIECE_BYTES)

    def _first_row(self, lines: int) -> int:
        return self._line(lines) + 1

    def _line(self, lines: int) -> int:
        """Lines before the block, in the whole file: counted only to name one of them."""
        if self.start == 0:
            return lines
        with opened(self.address) as file:
            before, left = 0, self.start
            while left > 0 and (content := file.read(min(CSV_BLOCK, left))):
                before += content.count(b"\n")
                left -= len(content)
            rest = file.readline()
        # A part begins after the line in which its range of bytes begins.
        return before + int(bool(rest)) + lines


def _is_one_byte(encoding: str) -> bool:
    return codecs.lookup(encoding).name.startswith(ONE_BYTE)


def _line_blocks(
    file: BinaryIO, start: int, stop: int, header: bool, name: str
) -> Iterator[bytes]:
    """Whole lines that begin after byte `start` and not after `stop`, in blocks."""
    carry = b""
    if start:
        file.seek(start)
    if start or header:
        position = start + len(file.readline())
    else:
        carry = file.read(3).removeprefix(codecs.BOM_UTF8)
        position = 3
    while position <= stop:
        content = file.read(min(CSV_BLOCK, stop - position) or 1)
        if not content:
            break
        position += len(content)
        if position >= stop:
            content += file.readline()
            position = max(position, stop + 1)
        block = carry + content
        cut = len(block) if position > stop else _last_line_end(block)
        carry = block[cut:]
        if len(carry) > LONGEST_ROW:
            raise SizeError(
                f"{name}: a row of more than {LONGEST_ROW >> 20} MiB; a quotation mark may be "
                "missing, or it is not a table."
            )
        if block[:cut].strip():
            yield block[:cut]
    if carry.strip():
        yield carry


def _last_line_end(block: bytes) -> int:
    """Where the last line ends that does not end inside quotation marks."""
    cut = block.rfind(b"\n") + 1
    if b'"' not in block:
        return cut
    quotes = block.count(b'"', 0, cut)
    while cut and quotes % 2:
        earlier = block.rfind(b"\n", 0, cut - 1) + 1
        quotes -= block.count(b'"', earlier, cut)
        cut = earlier
    return cut


def _read_csv(
    block: bytes,
    look: CsvLook,
    types: dict[str, Any] | None = None,
    columns: list[str] | None = None,
) -> Any:
    from pyarrow import BufferReader
    from pyarrow import csv as arrow_csv

    # Arrow says less of what it cannot decode; other encodings than these are UTF-8 already.
    if _is_one_byte(look.encoding) and codecs.lookup(look.encoding).name != "utf-8":
        block = block.decode(look.encoding).encode()
    return arrow_csv.read_csv(
        BufferReader(block),
        # One block in one thread: then errors tell the row.
        read_options=arrow_csv.ReadOptions(
            column_names=list(look.names), use_threads=False, block_size=len(block) + 1
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=look.delimiter, newlines_in_values=b'"' in block
        ),
        convert_options=arrow_csv.ConvertOptions(
            strings_can_be_null=True,
            column_types=types,
            include_columns=columns,
            decimal_point=look.decimal,
        ),
    )


def csv_file(address: str, reading: Reading, packed: str | None = None) -> FileLook:
    """Look at the first lines of a text file, and whether all of it is in UTF-8 and divisible."""
    arrow = load_pyarrow()
    size = size_of(address)
    whole = CsvPart(address, (), 0, 2**62 if packed else size, size, _UNKNOWN, (), packed)
    with whole.text() as (file, _):
        head = file.read(HEAD)
    cut = head.rfind(b"\n") + 1
    look = look_at_csv(head[:cut] if len(head) == HEAD and cut else head, address, reading)
    one_byte = _is_one_byte(look.encoding)
    whole = replace(whole, look=look, stop=whole.stop if one_byte else 2**62)
    with whole.text() as (file, _):
        block = next(_line_blocks(file, 0, min(whole.stop, CSV_BLOCK), look.named, address), b"")
    if not block:
        return FileLook(address, look.names, look.names, look.named, (), look.notes)
    quoted, decodes = _looked_through(whole, reading)
    if not decodes:
        look = replace(look, encoding="latin-1", notes=(*look.notes, latin_note(address)))
    try:
        table = _read_csv(block, look)
    except (arrow.ArrowInvalid, UnicodeDecodeError) as error:
        raise TableError(whole.explained(str(error), int(look.named))) from None
    kinds, numbers = [], []
    tests = (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_null)
    codes = _codes_of(block, look, table, reading)
    if codes:
        look = replace(look, notes=(*look.notes, code_note(address, codes)))
    for name in look.names:
        kind = table.column(name).type
        if name in reading.known_text or name in codes:
            kinds.append("string")
            continue
        if arrow.types.is_boolean(kind):
            kinds.append("bool_")
            text = _read_csv(block, look, {name: arrow.string()}, [name])
            look = replace(look, truths=truth_words(table.column(name), text.column(name)))
        elif any(test(kind) for test in tests):
            kinds.append("float64")
        else:
            kinds.append("string")
            if reading.kinds.get(name, "number") != "number" or (
                column_numbers(table.column(name), address, name, int(look.named) + 1) is None
            ):
                continue
        numbers.append(name)
    whole = replace(whole, columns=tuple(numbers), look=look, types=tuple(kinds))
    # Inside quotation marks a line may not be a row, so the file is then read from its beginning.
    if quoted or packed or not one_byte:
        parts: tuple[CsvPart, ...] = (replace(whole, divisible=False),)
    else:
        ends = [(at, min(at + PART_BYTES, size)) for at in range(0, size, PART_BYTES)]
        parts = tuple(replace(whole, start=a, stop=b, size=b - a) for a, b in ends)
    return FileLook(address, whole.columns, look.names, look.named, parts, look.notes)


def _codes_of(block: bytes, look: CsvLook, table: Any, reading: Reading) -> list[str]:
    """Columns of the first lines that look like numbers and are codes."""
    arrow = load_pyarrow()
    tests = (arrow.types.is_integer, arrow.types.is_floating)
    said = {n for n, kind in reading.kinds.items() if kind == "number"} | {*reading.known_numbers}
    names = [n for n in look.names
             if n not in said and any(test(table.column(n).type) for test in tests)]  # fmt: skip
    text = (
        _read_csv(block, look, {n: arrow.string() for n in look.names}, names) if names else None
    )
    return code_columns([text], names) if names else []


_UNKNOWN = CsvLook((), ",", False, ".", "utf-8", ())


def _looked_through(part: CsvPart, reading: Reading) -> tuple[bool, bool]:
    """Whether there is a quotation mark anywhere, and whether all is in the encoding found.

    Text columns may have their first quotation mark, or letter of Latin-1, far down.
    """
    decoder = None
    if reading.encoding is None and part.look.encoding == "utf-8":
        decoder = codecs.getincrementaldecoder("utf-8")()
    quoted, decodes = False, True
    with part.text() as (file, _):
        while block := file.read(CSV_BLOCK):
            quoted = quoted or b'"' in block
            try:
                if decoder is not None:
                    decoder.decode(block)
            except UnicodeDecodeError:
                decoder, decodes = None, False
            if decoder is None and (quoted or part.packed):
                break
    return quoted, decodes and (decoder is None or not decoder.getstate()[0])


@dataclass(frozen=True)
class Files:
    """Files of the same columns, and the parts that they are read in."""

    addresses: tuple[str, ...]
    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    ignored: tuple[str, ...]  # columns that are left out because they hold no numbers
    notes: tuple[str, ...] = ()  # what was assumed
    others: tuple[str, ...] = ()  # columns without numbers that are used

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)


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
    found = [_looked_at(address, reading or Reading()) for address in expand(sources)]
    others = tuple(c for c in found[0].all_columns if c not in found[0].columns)
    if typed:
        found = [replace(file, columns=file.all_columns) for file in found]
    first = found[0]
    wanted = tuple(first.columns if columns is None else columns)
    if not wanted:
        raise TableError(
            f"{first.address}: no column holds numbers; it has {', '.join(first.all_columns)}."
        )
    parts: list[Part] = []
    for file in found:
        names = _matched(file, first, wanted, strict=columns is None)
        parts += [replace(part, columns=names) for part in file.parts]
    if not parts:
        raise TableError(f"{first.address}: there are no rows in it, nor in any other file.")
    addresses = tuple(f.address for f in found)
    used = tuple(c for c in others if c in wanted) if typed else ()
    ignored = () if typed or columns else others
    notes = dict.fromkeys(note for file in found for note in file.notes)
    return Files(addresses, wanted, tuple(parts), ignored, tuple(notes), used)


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
    missing = [c for c in wanted if c not in file.columns]
    if missing:
        name = missing[0]
        if name in file.all_columns:
            raise TableError(f"{file.address}: column {name} holds no numbers.")
        other = "it" if file is first else f"{first.address} has it, and this file"
        raise TableError(
            f"{file.address}: there is no column {name}; {other} has "
            f"{', '.join(file.all_columns)}."
        )
    extra = [c for c in file.columns if c not in wanted]
    if strict and extra:
        raise TableError(
            f"{file.address}: column {extra[0]} is not in {first.address}. Name the columns to "
            f"use: {','.join(wanted)}."
        )
    return wanted


def _looked_at(address: str, reading: Reading) -> FileLook:
    suffix, packed = kind_of_file(address)
    if suffix in TEXT:
        return csv_file(address, reading, packed)
    looks = {".parquet": parquet_file, ".npy": npy_file}
    return looks.get(suffix, whole_file)(address)
