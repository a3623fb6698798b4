"""Pieces of text files: ranges of bytes that begin and end with a line."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np

from kermix.data.tables.addresses import opened, size_of
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.csv_look import look_at_csv
from kermix.data.tables.parts import PART_BYTES, Batch, FileLook, Part, floats
from kermix.data.tables.table import column_numbers
from kermix.data.tables.written import code_columns
from kermix.errors import TableError

__all__ = ["CsvPart", "csv_file"]

CSV_BLOCK = 2**22
PIECE_BYTES = 2**18
HEAD = 2**16


@dataclass(frozen=True)
class CsvPart(Part):
    """Lines of a text file that begin in a range of bytes."""

    names: tuple[str, ...]
    types: tuple[str, ...]
    delimiter: str
    named: bool
    divisible: bool = True

    def batches(self) -> Iterator[Batch]:
        """Lines, some megabytes at a time; errors name the line of the file."""
        lines = 0 if self.start else int(self.named)
        with opened(self.address) as file:
            for block in _line_blocks(file, self.start, self.stop, bool(lines)):
                table = self._table(block, lines)
                first_row = partial(self._first_row, lines)
                columns = [
                    floats(table.column(c), self.address, c, first_row) for c in self.columns
                ]
                values = np.stack(columns, axis=1)
                where = 0 if np.isfinite(values).all() else first_row()
                yield self._batch(values, where, len(block))
                lines += len(values)

    def tables(self) -> Iterator[tuple[Any, int]]:
        """The same as Arrow tables, with text and gaps."""
        lines = 0 if self.start else int(self.named)
        with opened(self.address) as file:
            for block in _line_blocks(file, self.start, self.stop, bool(lines)):
                table = self._table(block, lines)
                yield table, len(block)
                lines += len(table)

    def _table(self, block: bytes, lines: int) -> Any:
        arrow = load_pyarrow()
        types = {n: getattr(arrow, t)() for n, t in zip(self.names, self.types, strict=True)}
        try:
            return _read_csv(block, self.names, self.delimiter, types, list(self.columns))
        except (arrow.ArrowInvalid, UnicodeDecodeError) as error:
            raise TableError(self._explained(str(error), lines)) from None

    def _explained(self, message: str, lines: int) -> str:
        row = re.search(r"Row #(\d+)", message)
        line = self._line(lines) + int(row[1]) if row else None
        column = re.search(r"column #(\d+)", message)
        value = re.search(r"invalid value '(.*)'", message, re.DOTALL)
        where = self.address + ("" if line is None else f", row {line}")
        if column and value:
            name = self.names[int(column[1])]
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


def _line_blocks(file: BinaryIO, start: int, stop: int, header: bool) -> Iterator[bytes]:
    """Whole lines that begin after byte `start` and not after `stop`, in blocks."""
    file.seek(start)
    if start or header:
        file.readline()
    elif file.read(3) != b"\xef\xbb\xbf":
        file.seek(0)
    carry = b""
    position = file.tell()
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
    names: Sequence[str],
    delimiter: str,
    types: dict[str, Any] | None = None,
    columns: list[str] | None = None,
) -> Any:
    from pyarrow import BufferReader
    from pyarrow import csv as arrow_csv

    return arrow_csv.read_csv(
        BufferReader(block),
        # One block in one thread: then errors tell the row.
        read_options=arrow_csv.ReadOptions(
            column_names=list(names), use_threads=False, block_size=len(block) + 1
        ),
        parse_options=arrow_csv.ParseOptions(
            delimiter=delimiter, newlines_in_values=b'"' in block
        ),
        convert_options=arrow_csv.ConvertOptions(
            strings_can_be_null=True, column_types=types, include_columns=columns
        ),
    )


def csv_file(address: str) -> FileLook:
    """Look at the first lines of a text file."""
    arrow = load_pyarrow()
    size = size_of(address)
    with opened(address) as file:
        head = file.read(HEAD)
        cut = head.rfind(b"\n") + 1
        look = look_at_csv(head[:cut] if len(head) == HEAD and cut else head, address)
        names, delimiter, named = look.names, look.delimiter, look.named
        if look.encoding != "utf-8" or look.decimal != ".":
            raise TableError(
                f"{address}: not a text file in UTF-8 with decimal points ({look.encoding}, "
                f"{look.decimal!r}); save it as one (CSV UTF-8) to read it in pieces."
            )
        file.seek(0)
        block = next(_line_blocks(file, 0, min(size, CSV_BLOCK), named), b"")
    if not block:
        return FileLook(address, names, names, named, ())
    try:
        table = _read_csv(block, names, delimiter)
    except (arrow.ArrowInvalid, UnicodeDecodeError) as error:
        part = CsvPart(address, (), 0, size, size, names, (), delimiter, named)
        raise TableError(part._explained(str(error), int(named))) from None
    kinds, numbers = [], []
    tests = (arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_null)
    text = _read_csv(block, names, delimiter, {n: arrow.string() for n in names})
    codes = code_columns(
        [text], [n for n in names if any(test(table.column(n).type) for test in tests[:2])]
    )
    for name in names:
        kind = table.column(name).type
        if name in codes:
            kinds.append("string")
            continue
        if arrow.types.is_boolean(kind):
            kinds.append("bool_")
        elif any(test(kind) for test in tests):
            kinds.append("float64")
        else:
            kinds.append("string")
            if column_numbers(table.column(name), address, name, int(named) + 1) is None:
                continue
        numbers.append(name)
    # Inside quotation marks a line may not be a row, so the file is then read from its beginning.
    quoted = b'"' in block or (size > CSV_BLOCK and _has_quotation_marks(address))
    step = size if quoted else PART_BYTES
    parts = tuple(
        CsvPart(address, tuple(numbers), at, min(at + step, size), min(step, size - at),
                names, tuple(kinds), delimiter, named, not quoted)
        for at in range(0, size, step)
    )  # fmt: skip
    return FileLook(address, tuple(numbers), names, named, parts)


def _has_quotation_marks(address: str) -> bool:
    """Whether there is one anywhere: text columns may have their first far down."""
    with opened(address) as file:
        while block := file.read(CSV_BLOCK):
            if b'"' in block:
                return True
    return False
