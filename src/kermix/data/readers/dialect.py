"""How a text file is written: its encoding, delimiter, names and decimal mark, by its beginning.

And how the cells of its columns are written, so that others can be written so again.
"""

import codecs
import csv
import io
import re
import zoneinfo
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from kermix.data.readers.common import (
    GAPS,
    TRUTHS,
    CsvForm,
    Reading,
    any_match,
    is_number,
    listed,
    load_pyarrow,
)
from kermix.data.readers.number_forms import look_at_numbers
from kermix.errors import TableError

__all__ = ["CsvLook", "cell_ways", "look_at_csv", "one_byte_note", "truth_words"]

DELIMITERS = ",;\t|"
DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][-+]?\d+)?")
WITHOUT_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+)")
DECIMAL_POINT = re.compile(r"[-+]?\d*\.(\d{1,2}|\d{4,})")
THREE_DIGITS = re.compile(r"[-+]?[1-9]\d{0,2},\d{3}")
NO_TEXT = "{}: not a text file in UTF-8; save it as one (CSV UTF-8)."
DATE = re.compile(r"\d{4}-\d\d-\d\d([T ].*)?|\d\d:\d\d(:\d\d)?")
MARKS_OF_ENCODINGS = {
    b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16", b"\xef\xbb\xbf": "utf-8-sig"
}  # fmt: skip
ONE_BYTE_NAMES = {"latin-1": "Latin-1", "cp1252": "Windows-1252"}


@dataclass(frozen=True)
class CsvLook:
    """How a text file is written, and what was assumed, in words."""

    names: tuple[str, ...]
    form: CsvForm
    notes: tuple[str, ...] = ()
    explained: Mapping[str, str] = field(default_factory=dict)  # why columns are text


def look_at_csv(
    head: bytes, name: str, reading: Reading | None = None, whole: bool = True
) -> CsvLook:
    r"""Judge the first lines of a file.

    Args:
        head: Its first bytes.
        name: For messages.
        reading: What the user said.
        whole: Whether these are all its bytes; else the last line may be cut.

    Example:
        >>> look_at_csv(b"2011;2012;2013\n1,5;2,5;3,5\n", "t.csv").names
        ('2011', '2012', '2013')
    """
    reading = Reading() if reading is None else reading
    text, encoding = _decoded(head, name, reading.encoding)
    _check_text(text, name)
    beginning = _first_lines(text, whole)
    delimiter = reading.delimiter or _delimiter(beginning)
    rows = _rows(beginning, delimiter)
    decimal = reading.decimal or _decimal(rows, delimiter)
    header = _header(rows, decimal, reading.header)
    names = tuple(f"x{i}" for i in range(len(rows[0])))
    if header.named:
        names = _names(text, rows[0], delimiter, name)
    notes = (
        one_byte_note(name, encoding) if (reading.encoding, encoding) == (None, "latin-1") else "",
        _comma_note(name) if (reading.decimal, decimal) == (None, ",") else "",
        header.note(name, rows[0]) if header.doubted else "",
    )
    form = CsvForm(delimiter, decimal, encoding, _line_end(text), header.named)
    return CsvLook(names, form, tuple(filter(None, notes)))


def _comma_note(name: str) -> str:
    return f"{name}: numbers have a decimal comma; if not, use --decimal '.'."


def _line_end(text: str) -> str:
    return next((end for end in ("\r\n", "\n", "\r") if end in text), "\n")


def _first_lines(text: str, whole: bool, most: int = 51) -> str:
    """As many lines as are looked at, without those that are empty or may be cut."""
    lines = re.split("\r\n|\n|\r", text)
    if not whole and len(lines) > 1:
        lines.pop()
    return "\n".join(line for line in lines[:most] if line)


def _check_text(text: str, name: str) -> None:
    if not text:
        raise TableError(f"{name}: the file is empty.")
    if not re.split("[\r\n]", text, maxsplit=1)[0].strip():
        raise TableError(f"{name}: the first line is empty; a table begins there.")
    if found := re.match(r"sep=\S?[\r\n]", text, re.IGNORECASE):
        raise TableError(
            f"{name}: the first line, {found[0].strip()!r}, is for spreadsheets and no part of "
            "the table; remove it."
        )
    if "\0" in text:
        raise TableError(NO_TEXT.format(name))


def _decoded(head: bytes, name: str, asked: str | None) -> tuple[str, str]:
    """The beginning as text, and its encoding: Latin-1, if it is no other."""
    marked = head.startswith(codecs.BOM_UTF8)
    if asked is not None:
        encoding = "utf-8-sig" if marked and asked == "utf-8" else asked
        return _decoded_as(asked, head, name), encoding
    for mark, encoding in MARKS_OF_ENCODINGS.items():
        if head.startswith(mark):
            return head.decode(encoding, errors="replace"), encoding
    try:
        return _decoded_as("utf-8", head, name), "utf-8"
    except TableError:
        if b"\0" in head:
            raise TableError(NO_TEXT.format(name)) from None
    return head.decode("latin-1"), "latin-1"


def _decoded_as(encoding: str, head: bytes, name: str) -> str:
    """The beginning as text; its last character may be cut in two."""
    try:
        return head.decode(encoding).removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            raise TableError(
                f"{name}: not in {encoding} ({error.reason} at byte {error.start})."
            ) from None
        return head[: error.start].decode(encoding)


def one_byte_note(name: str, encoding: str) -> str:
    """What to say of a file that is not in UTF-8 and has no mark of its encoding."""
    shown = ONE_BYTE_NAMES[encoding]
    return f"{name}: not in UTF-8, read as {shown}; if that is wrong, use --encoding."


def _rows(text: str, delimiter: str) -> list[list[str]]:
    try:
        return [r for r in csv.reader(io.StringIO(text), delimiter=delimiter) if r] or [[""]]
    except csv.Error:
        return [line.split(delimiter) for line in text.split("\n")]


def _delimiter(text: str) -> str:
    """What most often divides the first line, if another does not divide all lines alike."""
    first = re.sub('"[^"]*"', "", text.partition("\n")[0])
    by_count = sorted(DELIMITERS, key=first.count, reverse=True)
    best, *others = by_count
    rows = {d: _rows(text, d) for d in by_count}
    alike = {d for d in by_count if len(rows[d][0]) > 1 and len({*map(len, rows[d])}) == 1}
    for other in others:
        if other in alike and (
            best not in alike or (best == "," and _has_decimal_commas(rows[other]))
        ):
            return other
    return best


def _decimal(rows: Sequence[Sequence[str]], delimiter: str) -> str:
    """The decimal mark by the rows below the first, if there are others."""
    return "," if delimiter != "," and _has_decimal_commas(rows[1:] or rows) else "."


def _has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    """Whether there is a column of numbers of which some have a comma, and none a point.

    Points between thousands are no decimal points; where another column has decimal points,
    commas before three digits are those between thousands.
    """
    columns = _filled_columns(rows)
    commas = [having for column in columns if (having := _with_comma(column))]
    clear = not all(THREE_DIGITS.fullmatch(c) for having in commas for c in having)
    return bool(commas) and (clear or not any(map(_has_points, columns)))


def _filled_columns(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    return [[c for c in map(str.strip, column) if c not in GAPS]
            for column in zip(*rows, strict=False)]  # fmt: skip


def _with_comma(column: Sequence[str]) -> list[str]:
    """The cells with a decimal comma, if all cells of a column are numbers that may have one."""
    having = [c for c in column if DECIMAL_COMMA.fullmatch(c)]
    fits = all(c in having or WITHOUT_COMMA.fullmatch(c) for c in column)
    return having if fits else []


def _has_points(column: Sequence[str]) -> bool:
    return _are_numbers(column, ".") and any(DECIMAL_POINT.fullmatch(c) for c in column)


def _names(text: str, first: Sequence[str], delimiter: str, name: str) -> tuple[str, ...]:
    """The names in the first line, each once; none may go over several lines, as cells may."""
    try:
        cells = next(csv.reader(io.StringIO(text), delimiter=delimiter))
    except csv.Error:
        cells = []
    for place, cell in enumerate(cells, 1):
        # In quotes that never end it would be the whole file.
        if ("\n" in cell or "\r" in cell) and f'{cell}"' in text.replace('""', '"'):
            raise TableError(
                f"{name}: the name of column {place}, {cell[:40]!r}, spans several lines; names "
                "must be on the first line, so rename it there."
            )
    names = tuple(cell.strip() for cell in first)
    if twice := sorted({c for c in names if names.count(c) > 1}):
        raise TableError(f"{name}: column names appear twice: {listed(twice)}.")
    return names


def _are_numbers(cells: Sequence[str], decimal: str) -> bool:
    return all(is_number(cell, decimal) for cell in cells)


def _number(text: str) -> float:
    return float(text.replace(",", "."))


class Header(NamedTuple):
    """Whether the first line holds the names of columns, and whether that can be doubted."""

    named: bool
    doubted: bool

    def note(self, name: str, cells: Sequence[str]) -> str:
        """What to say of a file whose first line may be meant otherwise."""
        shown = ", ".join(cells[:4]) + (", ..." if len(cells) > 4 else "")
        what = "column names; if it is data, use --no-header" if self.named else (
            "data; if it holds column names, use --header")  # fmt: skip
        return f"{name}: the first line, {shown}, is taken for {what}."


def _header(rows: Sequence[Sequence[str]], decimal: str, asked: bool | None) -> Header:
    """What the first of some rows holds, by the first of the rules that fits it, if not asked."""
    if asked is not None:
        return Header(asked, False)
    cells = tuple("" if c.strip() in GAPS else c.strip() for c in rows[0])
    below = [r for r in rows[1:] if len(r) == len(cells)]
    line = FirstLine(cells, tuple(_filled_columns(below)), decimal, not below)
    has_words = not _are_numbers([c for c in cells if c], decimal)
    rules = LINES_WITH_WORDS if has_words else LINES_OF_NUMBERS
    return next(header for _, fits, header in rules if fits(line))


@dataclass(frozen=True)
class FirstLine:
    """The first line of a file, and what is below it.

    Attributes:
        cells: Of the line, empty for a gap.
        columns: Those below each of them that are not empty, of rows as long as the first.
        decimal: The decimal mark.
        alone: Whether there is no such row.
    """

    cells: tuple[str, ...]
    columns: tuple[list[str], ...]
    decimal: str
    alone: bool

    @property
    def _above(self) -> list[tuple[str, list[str]]]:
        """Its cells that are not empty, with what is below each."""
        pairs = zip(self.cells, self.columns, strict=False)
        return [(cell, column) for cell, column in pairs if cell]

    @property
    def has_date_above_dates(self) -> bool:
        """Whether a date or time stands above nothing but such."""
        return any(column and all(map(DATE.fullmatch, [cell, *column]))
                   for cell, column in self._above)  # fmt: skip

    @cached_property
    def numbers_above_numbers(self) -> list[str]:
        """The numbers above nothing but numbers."""
        return [cell for cell, column in self._above
                if column and _are_numbers([cell, *column], self.decimal)]  # fmt: skip

    @property
    def has_word_again(self) -> bool:
        """Whether one of its words comes again below it."""
        return any(cell in column and not is_number(cell, self.decimal)
                   for cell, column in self._above)  # fmt: skip

    @property
    def has_fraction_above_numbers(self) -> bool:
        """Whether one of its numbers above numbers is not whole."""
        return not all(_number(cell).is_integer() for cell in self.numbers_above_numbers)

    @cached_property
    def values(self) -> list[float]:
        """Its cells as numbers, if all are."""
        return [_number(cell) for cell in self.cells if cell]

    @property
    def are_different_integers(self) -> bool:
        """Whether its numbers are whole and different, one for each column, above something."""
        whole = len(self.values) == len(self.cells) and all(v.is_integer() for v in self.values)
        return whole and len(set(self.values)) == len(self.values) and not self.alone

    @property
    def are_above_text(self) -> bool:
        """Whether not all columns hold numbers."""
        return not all(_are_numbers(column, self.decimal) for column in self.columns)

    @cached_property
    def below(self) -> list[list[float]]:
        """The columns as numbers."""
        return [[_number(v) for v in column] for column in self.columns]

    @cached_property
    def has_fractions_below(self) -> bool:
        """Whether not all numbers below it are whole."""
        return not all(v.is_integer() for column in self.below for v in column)

    @cached_property
    def outside(self) -> int:
        """How many numbers are not in the range of what is below them."""
        return sum(bool(column) and not min(column) <= value <= max(column)
                   for value, column in zip(self.values, self.below, strict=False))  # fmt: skip

    @property
    def are_places(self) -> bool:
        """Whether it is 0, 1, 2 and so on."""
        return self.values == list(range(len(self.values)))

    @property
    def are_years(self) -> bool:
        """Whether its numbers are several years in their order."""
        return len(self.values) > 1 and self.values == sorted(self.values) and (
            _are_years(self.values))  # fmt: skip

    @property
    def are_unlike_below(self) -> bool:
        """Whether its numbers, if they are enough, are not of the scale of those below."""
        return self.is_wide and self.outside == len(self.values) and self.has_fractions_below

    @property
    def is_wide(self) -> bool:
        """Whether its numbers are enough to be judged by their scale: a convention."""
        return len(self.values) >= 3

    @property
    def is_above_years(self) -> bool:
        """Whether all that is below are years, too."""
        return _are_years([v for column in self.below for v in column])


Rule = tuple[str, Callable[[FirstLine], bool], Header]
NAMES, NAMES_PERHAPS = Header(True, False), Header(True, True)
DATA, DATA_PERHAPS = Header(False, False), Header(False, True)
LINES_WITH_WORDS: tuple[Rule, ...] = (  # the first that fits counts
    ("A date stands above dates.", lambda line: line.has_date_above_dates, DATA_PERHAPS),
    ("A word comes again below, and numbers stand above numbers.",
     lambda line: line.has_word_again and bool(line.numbers_above_numbers), DATA_PERHAPS),
    ("A fraction stands above numbers.", lambda line: line.has_fraction_above_numbers,
     NAMES_PERHAPS),
    ("Words are names.", lambda line: True, NAMES),
)  # fmt: skip
LINES_OF_NUMBERS: tuple[Rule, ...] = (
    ("Fractions, gaps and equal numbers are no names.",
     lambda line: not line.are_different_integers, DATA),
    ("Numbers stand above text.", lambda line: line.are_above_text, NAMES_PERHAPS),
    ("0, 1, 2 stand above fractions.", lambda line: line.are_places and line.has_fractions_below,
     NAMES_PERHAPS),
    ("0, 1, 2 stand above other numbers.",
     lambda line: line.are_places and line.is_wide and bool(line.outside), NAMES_PERHAPS),
    ("0, 1, 2 stand above such numbers.", lambda line: line.are_places, DATA_PERHAPS),
    ("Years stand above years.", lambda line: line.are_years and line.is_above_years,
     DATA_PERHAPS),
    ("Years stand above other numbers.", lambda line: line.are_years, NAMES_PERHAPS),
    ("Whole numbers stand above fractions of another scale.",
     lambda line: line.are_unlike_below, NAMES_PERHAPS),
    ("Numbers stand above numbers.", lambda line: True, DATA),
)  # fmt: skip


def _are_years(values: Sequence[float]) -> bool:
    return all(v.is_integer() and 1700 <= v <= 2300 for v in values)


INSTANT = re.compile(r"\d{4}-\d\d-\d\d([ T])[\d:.,]+(Z|[+-]\d\d(?::?\d\d)?)")
SECONDS = r"\d\d:\d\d(?P<seconds>:\d\d(?:[.,](?P<fraction>\d+))?)?"
# That tell the time zone: two a day of a year, nearly; and how numbers are written.
SHOWN_INSTANTS, SHOWN_NUMBERS = 500, 1000
GROUPS = {".": r"\d,\d\d\d", ",": r"\d\.\d\d\d"}  # marks between thousands, by decimal mark


def cell_ways(read: Any, text: Any, decimal: str = ".") -> dict[str, dict[str, Any]]:
    """How cells are written, of columns that have another way than the usual one.

    Truth values have their words, times what is between day and hour, their zone, and how exact
    they are; numbers so many decimals as all have, or one if even whole numbers have that, or a
    form, such as with marks between thousands.

    Args:
        read: Some rows as they are read, an Arrow table.
        text: The same rows as they are written.
        decimal: The decimal mark.
    """
    types = load_pyarrow().types
    ways: dict[str, dict[str, Any]] = {}
    for name in text.column_names:
        cells, words = read.column(name), text.column(name)
        known = cells.is_valid()
        cells, words = cells.filter(known), words.filter(known)
        if not len(cells):
            continue
        if types.is_boolean(cells.type):
            ways[name] = {"truths": list(truth_words(cells, words))}
        elif types.is_timestamp(cells.type) or types.is_time(cells.type):
            shown = words.slice(0, SHOWN_INSTANTS).to_pylist()
            ways[name] = _exactness(words, cells.type)
            if types.is_timestamp(cells.type):
                ways[name] |= _way_of_times(cells.slice(0, SHOWN_INSTANTS), shown)
        elif types.is_floating(cells.type) or types.is_integer(cells.type):
            ways[name] = _way_of_numbers(words, decimal)
    return {name: way for name, way in ways.items() if way}


def _way_of_numbers(words: Any, decimal: str) -> dict[str, Any]:
    from pyarrow import compute

    found = compute.extract_regex(words, r"^-?\d+(?:[.,](?P<after>\d+))?$")
    grouped = any_match(words, GROUPS[decimal])
    if found.null_count or grouped:
        few = look_at_numbers(words.slice(0, SHOWN_NUMBERS), decimal, sure=True).form
        form = few and look_at_numbers(words, decimal, sure=True).form
        return {"form": form.to_dict()} if form else {}
    digits = compute.min_max(compute.utf8_length(compute.struct_field(found, "after"))).as_py()
    least = min(1, digits["min"]) if digits["min"] < digits["max"] else digits["min"]
    return {"decimals": least} if least else {}


def _exactness(words: Any, kind: Any) -> dict[str, Any]:
    """How much of a second times have; of those without seconds, that they have none."""
    from pyarrow import compute

    found = compute.extract_regex(words, SECONDS)
    clocks = compute.drop_null(found)
    if not len(clocks):
        return {}
    if not compute.any(compute.not_equal(compute.struct_field(clocks, "seconds"), "")).as_py():
        return {"exact": "minutes"}
    if kind.unit == "s":
        return {}
    digits = compute.min_max(compute.utf8_length(compute.struct_field(clocks, "fraction")))
    return {"exact": digits["max"].as_py(), "bare": digits["min"].as_py() == 0}


def _way_of_times(cells: Any, words: list[str]) -> dict[str, Any]:
    if cells.type.tz is None:
        return {"between": "T"} if all("T" in word for word in words) else {}
    found = [INSTANT.fullmatch(word) for word in words]
    between = {match[1] for match in found if match is not None}
    offsets = [match[2] for match in found if match is not None]
    if len(offsets) < len(words) or len(between) > 1:
        return {}
    way = {"between": between.pop()}
    if set(offsets) == {"Z"}:
        return {**way, "zone": "UTC", "offset": "Z"}
    shape = {6: "+00:00", 5: "+0000"}.get(max(map(len, offsets)), "+00")
    return {**way, "zone": _zone(cells, offsets), "offset": shape}


def _zone(cells: Any, offsets: list[str]) -> str:
    """A time zone whose clocks are so far from universal time at these instants."""
    from pyarrow import compute

    arrow = load_pyarrow()
    plain = [f"{offset.replace(':', '').replace('Z', '+00'):0<5}" for offset in offsets]
    (usual, _), *others = Counter(plain).most_common()
    fixed = f"{usual[:3]}:{usual[3:]}"
    if not others:
        return fixed
    # With the usual names first; any that fits tells the same.
    for zone in sorted(zoneinfo.available_timezones(), key=lambda z: (z[:7] != "Europe/", z)):
        try:
            moved = cells[:2].cast(arrow.timestamp(cells.type.unit, zone))
            compute.strftime(moved, format="%z", locale="C")
        except arrow.ArrowInvalid:  # a zone that Arrow does not have
            continue
        own = compute.strftime(cells.cast(moved.type), format="%z", locale="C")
        if own.to_pylist() == plain:
            return zone
    return fixed


def truth_words(read: Any, text: Any) -> tuple[str, str]:
    """How no and yes are written in a column; of a word that is not there, as the other one is.

    Args:
        read: Truth values.
        text: The same cells as they are written.

    Example:
        >>> import pyarrow
        >>> truth_words(pyarrow.array([None, True]), pyarrow.array(["", "TRUE"]))
        ('FALSE', 'TRUE')
    """
    from pyarrow import compute

    places = [compute.index(read, value).as_py() for value in (False, True)]
    words = [text[place].as_py() if place >= 0 else None for place in places]
    known = next((word for word in words if word is not None), TRUTHS[0])
    cased = str.upper if known.isupper() else str.title if known.istitle() else str.lower
    no, yes = (word or cased(usual) for word, usual in zip(words, TRUTHS, strict=True))
    return no, yes
