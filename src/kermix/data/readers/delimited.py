"""Delimited text: its cells as text, and its rows with their types.

When it is known how a file is written (`dialect`), one engine (Arrow's) gives all cells as text,
in blocks; they are looked at once to find the type of each column, whether the blocks are kept or
a large file is read again.

Arrow's was chosen by `results/bench/reading-cpu2.json`: with the dialect known, it gives the cells
of 465 of 477 files rightly (the others are ragged, and refused), Polars of 419 and DuckDB of 329,
in half of their processor time; DuckDB reads neither Latin-1 nor UTF-16.
"""

import codecs
import csv
import io
import itertools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kermix.data.readers.common import (
    GAPS,
    CsvForm,
    Reading,
    check_expanded,
    counted,
    is_number,
    kind_of_file,
    load_pyarrow,
    most_bytes,
    opened,
    size_of,
    unpacking,
)
from kermix.data.readers.dialect import CsvLook, cell_ways, look_at_csv, one_byte_note
from kermix.data.readers.formats import PART_BYTES, FileLook, Part
from kermix.data.readers.text_columns import (
    CellType,
    ColumnJudge,
    StrayWords,
    decide,
    null_words,
)
from kermix.errors import SchemaError, TableError

__all__ = [
    "CsvPart",
    "csv_file",
    "numeric_names",
    "read_csv",
    "text_of_file",
    "whole_text",
]

BLOCK = 2**22  # bytes that are parsed at once; a row has to fit in
FURTHER = re.compile(rb"[\x80-\x9f]")  # letters of Windows-1252 that Latin-1 does not have
ONE_BYTE = ("utf-8", "ascii", "iso8859", "cp125")  # encodings in which lines end as in ASCII
WHOLE = sys.maxsize  # no end that is known


class _Lines(io.RawIOBase):
    """Bytes of the lines that begin after byte `start` and not after `stop`, as they are read.

    What goes through is counted: bytes, quotation marks, and ends of lines.
    """

    def __init__(self, file: Any, start: int, stop: int, name: str, most: int | None) -> None:
        self._file, self._name, self._most = file, name, most
        self.bytes = self.quotes = self.ends = 0
        self._left = WHOLE
        if stop < WHOLE:
            begin, end = (_line_after(file, place) for place in (start, stop))
            self._left = end - begin
            file.seek(begin)

    def readable(self) -> bool:
        """As it is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer with what comes next."""
        with unpacking(self._name):
            content: bytes = self._file.read(min(len(buffer), self._left))
        buffer[: len(content)] = content
        self._left -= len(content)
        self.bytes += len(content)
        self.quotes += content.count(b'"')
        self.ends += content.count(b"\n")
        if self._most is not None:
            check_expanded(self._name, self.bytes, self._most)
        return len(content)


def _line_after(file: Any, place: int) -> int:
    """Where the first line begins that begins after a place; the first of all at its beginning."""
    file.seek(place)
    if place:
        file.readline()
    return int(file.tell())


@dataclass(frozen=True)
class CsvPart(Part):
    """Lines of a text file that begin in a range of bytes."""

    names: tuple[str, ...] = ()  # of all columns
    form: CsvForm = field(default_factory=CsvForm)
    types: Mapping[str, CellType] = field(default_factory=dict, hash=False)
    packed: str | None = None
    divisible: bool = True
    most: int | None = None  # bytes that a packed file may become

    def tables(self) -> Iterator[tuple[Any, int]]:
        """Its rows, some megabytes at a time, and how many bytes they take in the file."""
        arrow = load_pyarrow()
        for text, size in self.text(self.columns):
            try:
                cells = [self.types[n].read(text.column(n)) for n in self.columns]
            except arrow.ArrowInvalid as error:
                raise TableError(f"{self.address}: changed while it was read ({error}).") from None
            yield arrow.table(cells, names=list(self.columns)), size

    def piece(self, generator: np.random.Generator, size: int = 2**18) -> "CsvPart":
        """So many bytes of lines at a random place; all of a file that cannot be divided."""
        if self.stop - self.start <= size or not self.divisible:
            return self
        start = int(generator.integers(self.start, self.stop - size))
        return replace(self, start=start, stop=start + size, size=size)

    @property
    def codec(self) -> str:
        """The encoding, a mark at the beginning aside."""
        return self.form.encoding.removesuffix("-sig")

    def place(self, row: int) -> str:
        """The line of one of its rows, as an editor counts them."""
        before = 0
        if self.start:
            with replace(self, start=0, stop=self.start).lines() as (lines, _):
                while lines.read(BLOCK):
                    pass
                before = lines.ends
        line, _ = self.located({row})[row]
        return f"line {before + line}"

    def located(self, rows: Set[int]) -> dict[int, tuple[int, list[str]]]:
        """The lines of some of its rows, counted from its first, and their cells."""
        if not rows:
            return {}
        first = int(self.form.named and not self.start)
        until = itertools.islice(self.rows(), first, first + max(rows) + 1)
        return {k: (line, cells) for k, (line, _, cells) in enumerate(until) if k in rows}

    @contextmanager
    def lines(self) -> Iterator[tuple[_Lines, BinaryIO]]:
        """Its bytes, unpacked, and the file as it is."""
        arrow = load_pyarrow()
        with opened(self.address) as file:
            stream: Any = file
            if self.packed:
                stream = arrow.CompressedInputStream(arrow.PythonFile(file), self.packed)
            yield _Lines(stream, self.start, self.stop, self.address, self.most), file

    def text(self, columns: Sequence[str], gaps: bool = True) -> Iterator[tuple[Any, int]]:
        """Columns as text, some megabytes at a time, and how many bytes they take in the file.

        Args:
            columns: Which.
            gaps: Whether words that stand for a gap in any column are one.
        """
        with self.lines() as (lines, file):
            yield from self.parsed(lines, file, columns, gaps)

    def parsed(
        self, lines: _Lines, file: BinaryIO, columns: Sequence[str], gaps: bool = True
    ) -> Iterator[tuple[Any, int]]:
        """The same of lines that are open."""
        arrow = load_pyarrow()
        from pyarrow import csv as arrow_csv

        before = 0
        source = arrow.PythonFile(lines, "r")
        try:
            with arrow_csv.open_csv(source, *self._options(columns, gaps)) as reader:
                for batch in reader:
                    place = file.tell() if self.packed else lines.bytes
                    yield arrow.Table.from_batches([batch]), place - before
                    before = place
        except arrow.ArrowInvalid as error:
            if "Empty CSV file" in str(error) or "Could not skip initial" in str(error):
                return
            if "UTF8" in str(error):
                raise _WrongEncodingError from None
            raise TableError(self.explained(str(error))) from None
        except UnicodeError as error:  # UTF-16 without its mark is no error of decoding
            raise TableError(
                f"{self.address}: not in {self.form.encoding} "
                f"({getattr(error, 'reason', error)}); use --encoding."
            ) from None

    def _options(self, columns: Sequence[str], gaps: bool) -> tuple[Any, Any, Any]:
        """How Arrow shall read, parse and convert these columns."""
        from pyarrow import csv as arrow_csv

        text = load_pyarrow().string()
        return (
            arrow_csv.ReadOptions(
                column_names=list(self.names),
                skip_rows=int(self.form.named and not self.start),
                encoding=self.codec,
                block_size=BLOCK,
            ),
            arrow_csv.ParseOptions(delimiter=self.form.delimiter, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                strings_can_be_null=gaps,
                null_values=null_words(self.missing) if gaps else [],
                include_columns=list(columns),
                column_types=dict.fromkeys(columns, text),
            ),
        )

    def explained(self, message: str) -> str:
        """What is wrong with the first row that has too many cells or too few."""
        for line, last, cells in self.rows():
            if len(cells) != len(self.names):
                return f"{self.address}, line {line}: {self._ragged(line, last, len(cells))}."
        if "straddling" in message:
            return (
                f"{self.address}: a row of more than {BLOCK >> 20} MiB; a quotation mark may be "
                "missing, or it is not a table."
            )
        return f"{self.address}: {message}."

    def _ragged(self, line: int, last: int, cells: int) -> str:
        """What is wrong with a row of so many cells, from one line to another, and what to do."""
        width = len(self.names)
        if last > line:
            return (
                f"a quotation mark that is opened there is closed on line {last} or later, and "
                f"the row has not {width} cells; close it, or double it if it belongs to the text"
            )
        mark = "tab" if self.form.delimiter == "\t" else repr(self.form.delimiter)
        there = "is 1 column" if width == 1 else f"are {width} columns"
        if width == 1:
            advice = "remove the lines above the names of columns, or what is too much"
        elif cells < width:
            advice = f"complete it, or use --delimiter if {mark} does not separate cells"
        else:
            advice = (
                f"remove what is too much, or put cells that contain {mark} in quotation marks"
            )
        return f"{counted(cells, 'cell')}, and there {there}; {advice}"

    def rows(self) -> Iterator[tuple[int, int, list[str]]]:
        """The first and the last line of each row, as an editor counts them, and its cells."""
        with self.lines() as (lines, _):
            text = io.TextIOWrapper(io.BufferedReader(lines), self.codec, "replace", newline="")
            reader = csv.reader(text, delimiter=self.form.delimiter)
            before = 0
            try:
                for cells in reader:
                    if cells:
                        yield before + 1, reader.line_num, cells
                    before = reader.line_num
            except csv.Error:  # a cell without end
                yield before + 1, reader.line_num, []


class _WrongEncodingError(Exception):
    """The bytes are no UTF-8."""


def _one_byte_encoding(part: CsvPart) -> str:
    """What Windows calls Latin-1, if a file has its further letters, such as the euro."""
    further: set[bytes] = set()
    with part.lines() as (lines, _):
        while content := lines.read(BLOCK):
            further.update(FURTHER.findall(content))
    try:
        b"".join(further).decode("cp1252")
    except UnicodeDecodeError:
        return "latin-1"
    return "cp1252" if further else "latin-1"


def _look_at(
    part: CsvPart, reading: Reading, one_byte: str | None = None, step: int = 2**16
) -> CsvLook:
    """Judge the beginning of a file: two lines of it at least.

    Args:
        part: The file.
        reading: What the user said.
        one_byte: The encoding that was found.
        step: Bytes that are read at once.
    """
    with part.lines() as (lines, _):
        head = lines.read(step) or b""
        while max(head.count(b"\n"), head.count(b"\r")) < 2 and len(head) < BLOCK:
            more = lines.read(step)
            if not more:
                break
            head += more
        whole = not lines.read(1)
    if one_byte is None:
        return look_at_csv(head, part.address, reading, whole)
    look = look_at_csv(head, part.address, replace(reading, encoding=one_byte), whole)
    return replace(look, notes=(one_byte_note(part.address, one_byte), *look.notes))


class Scan:
    """One reading of all lines of a text file, which finds the types of its columns.

    Args:
        address: The file.
        reading: What the user said.
        packed: How it is packed.
        keep: Whether its text is kept.
        most: Bytes that a packed file may become.
    """

    def __init__(
        self, address: str, reading: Reading, packed: str | None, keep: bool, most: int | None
    ) -> None:
        self.keep, self.reading = keep, reading
        size = size_of(address)
        whole = CsvPart(
            address, (), 0, WHOLE, size, missing=reading.missing, packed=packed, most=most
        )
        self.look = _look_at(whole, reading)
        if reading.encoding is None and self.look.form.encoding == "latin-1":
            self.look = _look_at(whole, reading, _one_byte_encoding(whole))
        names = self.look.names
        self.part = replace(whole, columns=names, names=names, form=self.look.form)
        try:
            self._read()
        except _WrongEncodingError:
            if reading.encoding is not None or self.look.form.encoding != "utf-8":
                raise TableError(
                    f"{address}: not in {self.look.form.encoding}; use --encoding."
                ) from None
            # A letter that is not in UTF-8 may be anywhere.
            self.look = _look_at(whole, reading, _one_byte_encoding(whole))
            self.part = replace(self.part, form=self.look.form)
            self._read()
        self._finish()

    def _read(self) -> None:
        reading, form = self.reading, self.look.form
        self.judges = {n: ColumnJudge(form.decimal, reading.asked(n)) for n in self.look.names}
        self.blocks: list[Any] = []
        self.rows = 0
        with self.part.lines() as (lines, file):
            for block, _ in self.part.parsed(lines, file, self.look.names):
                for name, judge in self.judges.items():
                    judge.look(block.column(name))
                if self.keep or not self.blocks:
                    self.blocks.append(block)
                self.rows += block.num_rows
                last = block
        if self.rows and lines.quotes % 2 and _has_line_end(last):
            raise TableError(self._unclosed())
        self.quoted = lines.quotes > 0

    def _unclosed(self) -> str:
        *_, (line, _, _) = self.part.rows()
        return (
            f"{self.part.address}, line {line}: a quotation mark that begins there is never "
            "closed; close it, or double it if it belongs to the text."
        )

    def _finish(self) -> None:
        some = self.blocks[0] if self.blocks else _no_rows(self.look.names)
        types, notes = decide(self.judges, self.reading, self.part.address, some)
        typed = load_pyarrow().table(
            [types[n].read(some.column(n)) for n in self.look.names], names=list(self.look.names)
        )
        form = self.look.form.with_ways(cell_ways(typed, some, self.look.form.decimal))
        self.look = replace(self.look, form=form, notes=(*self.look.notes, *notes))
        self.part = replace(self.part, types=types, form=form)
        self.faults: dict[str, str] = {}
        self._report_stray_words(some)

    def _report_stray_words(self, some: Any) -> None:
        """A fault, or a note, for each column in which words are among numbers."""
        found = [self.judges[n].stray_words(n) for n in self.reading.used(self.judges)]
        strays = [stray for stray in found if stray is not None]
        again = {s.words[s.column] for s in strays if s.column in s.words}
        places = self.part.located({stray.row for stray in strays} | again)
        self._refuse_second_header(places)
        explained = {}
        for stray in strays:
            line, cells = places[stray.row]
            place = f"{self.part.address}, line {line}"
            row = dict(zip(self.judges, cells, strict=False))
            others = {row[s.column] for s in strays if s.row == stray.row}
            if len(others) > 1 or self._is_shifted(row, stray, some):
                self.faults[stray.column] = stray.fault_of_row(place)
            elif stray.are_fault():
                self.faults[stray.column] = stray.fault(place)
            else:
                explained[stray.column] = stray.note(place)
        notes = (*self.look.notes, *explained.values())
        self.look = replace(self.look, notes=notes, explained=explained)

    def _refuse_second_header(self, places: Mapping[int, tuple[int, list[str]]]) -> None:
        for line, cells in places.values():
            if tuple(cell.strip() for cell in cells) == self.look.names and len(cells) > 1:
                raise SchemaError(
                    f"{self.part.address}, line {line}: the names of columns are there again, as "
                    "where files were put together; remove the line."
                )

    def _is_shifted(self, row: Mapping[str, str], stray: StrayWords, some: Any) -> bool:
        """Whether a cell beside a stray word is in the wrong column, too.

        It is where a number is among words, or nothing in the column that has the word elsewhere.
        """
        names = list(row)
        place = names.index(stray.column)
        for name in (*names[max(0, place - 1) : place], *names[place + 1 : place + 2]):
            judge, cell = self.judges[name], row[name].strip()
            if not judge.has_words:
                continue
            if is_number(cell, self.look.form.decimal):
                return True
            if cell in GAPS and row[stray.column] in some.column(name).unique().to_pylist():
                return True
        return False

    def table(self) -> Any:
        """All rows, of text that was kept."""
        arrow = load_pyarrow()
        text = arrow.concat_tables(self.blocks or [_no_rows(self.look.names)])
        self.blocks = []
        for k, name in enumerate(self.look.names):
            text = text.set_column(k, name, self.part.types[name].read(text.column(k)))
        return text


def _no_rows(names: Sequence[str]) -> Any:
    arrow = load_pyarrow()
    return arrow.table({n: arrow.array([], arrow.string()) for n in names})


def _has_line_end(block: Any) -> bool:
    last = block.slice(block.num_rows - 1).to_pylist()[0]
    return any("\n" in cell for cell in last.values() if cell is not None)


def read_csv(address: str, reading: Reading, packed: str | None) -> tuple[Any, CsvLook]:
    """A text file as an Arrow table, and how it is written."""
    most = most_bytes(size_of(address)) if packed else None
    scan = Scan(address, reading, packed, True, most)
    for fault in scan.faults.values():
        raise SchemaError(fault)
    return scan.table(), scan.look


def text_of_file(path: Path, form: CsvForm, names: Sequence[str]) -> Iterator[Any]:
    """Columns of a text file as they are written, gaps too, some rows at a time."""
    part = _part_of(path, form)
    said = Reading(
        delimiter=form.delimiter, decimal=form.decimal, encoding=part.codec, header=form.named
    )
    part = replace(part, names=_look_at(part, said).names)
    for block, _ in part.text(names, gaps=False):
        yield block


def _part_of(path: Path, form: CsvForm) -> CsvPart:
    _, packed = kind_of_file(path)
    return CsvPart(str(path), (), 0, WHOLE, 0, form=form, packed=packed)


def whole_text(path: Path, form: CsvForm) -> str:
    """All of a text file, letter by letter, without a mark of its encoding."""
    with _part_of(path, form).lines() as (lines, _):
        return lines.readall().decode(form.encoding)


def csv_file(address: str, reading: Reading, packed: str | None = None) -> FileLook:
    """Read a text file once, find the types of its columns, and divide it if that is possible."""
    scan = Scan(address, reading, packed, False, None)
    whole, size = scan.part, size_of(address)
    # Inside quotation marks a line may not be a row, so the file is then read from its beginning.
    if not scan.rows:
        parts: tuple[CsvPart, ...] = ()
    elif scan.quoted or packed or not _is_one_byte(whole.codec):
        parts = (replace(whole, divisible=False),)
    else:
        ends = [(at, min(at + PART_BYTES, size)) for at in range(0, size, PART_BYTES)]
        parts = tuple(replace(whole, start=a, stop=b, size=b - a) for a, b in ends)
    numbers = numeric_names(whole.types)
    look = scan.look
    return FileLook(
        address, numbers, look.names, whole.form.named, parts, look.notes, scan.faults,
        look.explained,
    )  # fmt: skip


def numeric_names(types: Mapping[str, CellType]) -> tuple[str, ...]:
    """The columns that hold numbers."""
    return tuple(n for n, t in types.items() if t.arrow in ("int64", "double", "bool", "null"))


def _is_one_byte(encoding: str) -> bool:
    return codecs.lookup(encoding).name.startswith(ONE_BYTE)
