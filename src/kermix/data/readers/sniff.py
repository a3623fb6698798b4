"""What the beginning of a text file tells: names, delimiter, decimal mark and encoding."""

import codecs
import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from kermix.data.readers.common import GAPS, is_number, listed
from kermix.data.readers.csv_form import TRUTHS, CsvForm
from kermix.errors import OptionError, TableError

__all__ = ["CsvLook", "Reading", "latin_note", "look_at_csv"]

DELIMITERS = ",;\t|"
DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+")
WITHOUT_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+)")
LINES = 50
YEARS = range(1700, 2301)
FEW = 3  # columns from which on a header of numbers is judged by their scale
HEADS = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"}


@dataclass(frozen=True)
class Reading:
    """The user's options for reading a table.

    Attributes:
        columns: Columns to use, in this order; None means all.
        exclude: Columns to ignore.
        kinds: Kinds of columns by name.
        delimiter: Field delimiter of a text file.
        decimal: "." or ",".
        encoding: Of a text file.
        header: Whether the first line holds column names; None means detected.
        known_text: Columns that hold text, whatever their cells look like; some may not be there.
        known_numbers: Columns that hold numbers, though their cells may look like codes.
    """

    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool | None = None
    known_text: tuple[str, ...] = ()
    known_numbers: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.decimal not in (None, ".", ","):
            raise OptionError(f"decimal={self.decimal!r}: give '.' or ','.")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise OptionError(f"delimiter={self.delimiter!r}: give one character.")
        if self.delimiter is not None and self.delimiter == self.decimal:
            raise OptionError(f"The delimiter and the decimal mark are both {self.decimal!r}.")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError:
                raise OptionError(f"encoding={self.encoding!r} is not known.") from None

    def said(self) -> dict[str, Any]:
        """The options that differ from the default, by name.

        Example:
            >>> Reading(exclude=("id",), decimal=",").said()
            {'exclude': ('id',), 'decimal': ','}
        """
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, (), {})}


@dataclass(frozen=True)
class CsvLook:
    """What was found, and what was assumed, in words."""

    names: tuple[str, ...]
    delimiter: str
    named: bool
    decimal: str
    encoding: str
    notes: tuple[str, ...]
    line_end: str = "\n"
    mark: bool = False  # whether the file begins with the mark of UTF-8
    truths: tuple[str, str] = TRUTHS  # how no and yes are written
    # Of cells, by column.
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def with_ways(self, ways: Mapping[str, Mapping[str, Any]]) -> "CsvLook":
        """The same, with how cells of columns are written."""
        words = next((tuple(way["truths"]) for way in ways.values() if "truths" in way), TRUTHS)
        return replace(self, truths=words, ways=ways)

    @property
    def form(self) -> CsvForm:
        """How to write a file like this one."""
        encoding = "utf-8-sig" if self.mark else self.encoding
        return CsvForm(
            self.delimiter,
            self.decimal,
            encoding,
            self.line_end,
            self.named,
            self.truths,
            self.ways,
        )


def look_at_csv(head: bytes, name: str, reading: Reading | None = None) -> CsvLook:
    r"""Judge the first lines of a file.

    Example:
        >>> look_at_csv(b"2011;2012;2013\n1,5;2,5;3,5\n", "t.csv").names
        ('2011', '2012', '2013')
    """
    reading = Reading() if reading is None else reading
    text, encoding, notes = _decoded(head, name, reading.encoding)
    lines = [line for line in text.splitlines()[: LINES + 1] if line]
    if not text:
        raise TableError(f"{name}: the file is empty.")
    if not text.splitlines()[0].strip():
        raise TableError(f"{name}: the first line is empty; a table begins there.")
    if "\0" in text:
        raise TableError(f"{name}: not a text file in UTF-8; save it as one (CSV UTF-8).")
    delimiter = reading.delimiter or _delimiter(lines)
    rows = _rows(lines, delimiter)
    decimal = reading.decimal or "."
    if reading.decimal is None and delimiter != "," and _has_decimal_commas(rows[1:] or rows):
        decimal = ","
        notes.append(f"{name}: numbers have a decimal comma; if not, use --decimal '.'.")
    first, others = rows[0], [r for r in rows[1:] if len(r) == len(rows[0])]
    named = reading.header
    if named is None:
        named, doubt = _is_header(first, others, decimal)
        if doubt:
            what = "column names; if it is data, use --no-header" if named else (
                "data; if it holds column names, use --header")  # fmt: skip
            notes.append(f"{name}: the first line, {_shown(first)}, is taken for {what}.")
    if named:
        _check_one_line(text, delimiter, name)
    names = [cell.strip() for cell in first] if named else [f"x{i}" for i in range(len(first))]
    if len(set(names)) < len(names):
        twice = sorted({c for c in names if names.count(c) > 1})
        raise TableError(f"{name}: column names appear twice: {listed(twice)}.")
    line_end = "\r\n" if "\r\n" in text else "\n"
    mark = encoding == "utf-8" and head.startswith(codecs.BOM_UTF8)
    return CsvLook(tuple(names), delimiter, named, decimal, encoding, tuple(notes), line_end, mark)


def _decoded(head: bytes, name: str, asked: str | None) -> tuple[str, str, list[str]]:
    if asked is not None:
        try:
            return head.decode(asked, errors="strict").removeprefix("\ufeff"), asked, []
        except UnicodeDecodeError as error:
            if error.start < len(head) - 4:
                raise TableError(
                    f"{name}: not in {asked} ({error.reason} at byte {error.start})."
                ) from None
            return head[: error.start].decode(asked), asked, []
    for mark, encoding in HEADS.items():
        if head.startswith(mark):
            return head.decode(encoding, errors="replace"), encoding.removesuffix("-sig"), []
    try:
        return head.decode("utf-8"), "utf-8", []
    except UnicodeDecodeError as error:
        if error.start >= len(head) - 4:  # a character that is cut in two
            return head[: error.start].decode("utf-8"), "utf-8", []
    if b"\0" in head:
        raise TableError(f"{name}: not a text file in UTF-8; save it as one (CSV UTF-8).")
    return head.decode("latin-1"), "latin-1", [latin_note(name)]


def latin_note(name: str) -> str:
    """What to say of a file that is not in UTF-8."""
    return f"{name}: not in UTF-8, read as Latin-1; if that is wrong, use --encoding."


def _rows(lines: Sequence[str], delimiter: str) -> list[list[str]]:
    try:
        return [r for r in csv.reader(lines, delimiter=delimiter) if r] or [[""]]
    except csv.Error:
        return [line.split(delimiter) for line in lines]


def _check_one_line(text: str, delimiter: str, name: str) -> None:
    """Refuse a name of a column that is quoted and goes over several lines, as cells may."""
    lines = text.splitlines(keepends=True)
    try:
        cells = next(csv.reader(lines, delimiter=delimiter))
    except csv.Error:
        return
    for place, cell in enumerate(cells, 1):
        # In quotes that never end it would be the whole file.
        if ("\n" in cell or "\r" in cell) and f'{cell}"' in text.replace('""', '"'):
            raise TableError(
                f"{name}: the name of column {place}, {cell[:40]!r}, spans several lines; names "
                "must be on the first line, so rename it there."
            )


def _delimiter(lines: Sequence[str]) -> str:
    most = max(DELIMITERS, key=lines[0].count)
    if most != ",":
        return most
    for other in ";\t|":
        rows = _rows(lines, other)
        same = len(rows[0]) > 1 and len({len(r) for r in rows}) == 1
        if same and _has_decimal_commas(rows):
            return other
    return most


def _has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether there is a column of numbers of which some have a comma, and none a point.

    Points between thousands are no decimal points.
    """
    for column in zip(*rows, strict=False):
        cells = [c.strip() for c in column]
        filled = [c for c in cells if c not in GAPS]
        if any(DECIMAL_COMMA.fullmatch(c) for c in filled) and all(
            DECIMAL_COMMA.fullmatch(c) or WITHOUT_COMMA.fullmatch(c) for c in filled
        ):
            return True
    return False


def _is_header(
    first: Sequence[str], others: Sequence[Sequence[str]], decimal: str
) -> tuple[bool, bool]:
    """Whether the first line holds names, and whether that can be doubted."""
    cells = [c.strip() for c in first]
    if not all(is_number(c, decimal) or not c for c in cells):
        return True, False
    filled = [float(c.replace(",", ".")) for c in cells if c]
    whole = len(filled) == len(cells) and all(v.is_integer() for v in filled)
    if not whole or len(set(filled)) < len(filled) or not others:
        return False, False
    columns = [[c.strip() for c in column if c.strip()] for column in zip(*others, strict=False)]
    if any(c and not all(is_number(v, decimal) for v in c) for c in columns):
        return True, True  # numbers above text
    below = [[float(v.replace(",", ".")) for v in c] for c in columns]
    fractions = any(not v.is_integer() for c in below for v in c)
    if filled == list(range(len(filled))):
        outside = _outside(filled, below)
        return (len(filled) >= FEW and (fractions or outside > 0)) or fractions, True
    years = all(int(v) in YEARS for v in filled) and filled == sorted(filled)
    if years and len(filled) > 1:
        inside = all(v in YEARS for c in below for v in c)
        return not inside, True
    if len(filled) >= FEW and _outside(filled, below) == len(filled) and fractions:
        return True, True
    return False, False


def _outside(filled: Sequence[float], below: Sequence[Sequence[float]]) -> int:
    """In how many columns the first number is not in the range of the others."""
    pairs = zip(filled, below, strict=False)
    return sum(bool(c) and not min(c) <= v <= max(c) for v, c in pairs)


def _shown(cells: Sequence[str]) -> str:
    return ", ".join(cells[:4]) + (", ..." if len(cells) > 4 else "")
