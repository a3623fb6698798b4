"""How a text file is written, and lines written in the same way."""

import codecs
import re
import zoneinfo
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from kermix.data.readers.common import load_pyarrow

__all__ = [
    "TRUTHS",
    "CsvForm",
    "as_cells",
    "cell_ways",
    "csv_lines",
    "name_line",
    "names_with_ways",
    "quoted",
    "truth_words",
]

ROWS = 65_536  # that are made into text at once
TRUTHS = ("false", "true")
INSTANT = re.compile(r"\d{4}-\d\d-\d\d([ T])[\d:.,]+(Z|[+-]\d\d(?::?\d\d)?)")
INSTANTS = 500  # that tell the time zone: two a day of a year, nearly


@dataclass(frozen=True)
class CsvForm:
    """How a text file is written.

    Attributes:
        delimiter: Between cells.
        decimal: "." or ",".
        encoding: As Python calls it; "utf-8-sig" begins with a mark.
        line_end: Of each row.
        named: Whether the first line holds the names of columns.
        truths: What is written for no and for yes.
        ways: How the cells of columns are written, by name, as `cell_ways` finds it.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    line_end: str = "\n"
    named: bool = True
    truths: tuple[str, str] = TRUTHS
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.delimiter == self.decimal:
            object.__setattr__(self, "delimiter", ";")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any] | None) -> "CsvForm":
        """What was saved, or the usual form."""
        given = dict(saved or {})
        return cls(**{**given, "truths": tuple(given.get("truths", TRUTHS))})

    def between(self, source: str, target: str) -> "CsvForm":
        r"""The form of a file that comes from another: tabs belong to the ending .tsv.

        Example:
            >>> CsvForm("\t").between("t.tsv", "t.csv").delimiter
            ','
        """
        tabs = [".tsv" in name.lower() for name in (source, target)]
        if tabs[0] == tabs[1]:
            return self
        return replace(self, delimiter="\t" if tabs[1] else ",")

    def encoder(self) -> codecs.IncrementalEncoder:
        """Makes bytes of one text after the other."""
        return codecs.getincrementalencoder(self.encoding)()


def csv_lines(table: Any, form: CsvForm) -> Iterator[str]:
    r"""The rows of an Arrow table as text, many at a time, without names.

    Example:
        >>> import pyarrow
        >>> table = pyarrow.table({"a": [1.5, None], "b": ["x;y", "z"]})
        >>> list(csv_lines(table, CsvForm(";", ",")))
        ['1,5;"x;y"\n;z\n']
    """
    from pyarrow import compute

    alone = table.num_columns == 1  # an empty line would be no row
    for start in range(0, table.num_rows, ROWS):
        part = table.slice(start, ROWS)
        named = zip(part.column_names, part.columns, strict=True)
        cells = [quoted(as_cells(column, form, name), form) for name, column in named]
        if alone:
            rows = cells[0].fill_null('""')
        else:
            rows = compute.binary_join_element_wise(
                *cells, form.delimiter, null_handling="replace", null_replacement=""
            )
        yield form.line_end.join([*rows.to_pylist(), ""])


def as_cells(column: Any, form: CsvForm, name: str | None = None) -> Any:
    """A column as text, as one of its name is written; numbers have the form's decimal mark."""
    from pyarrow import compute

    arrow = load_pyarrow()
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    way = form.ways.get(name, {}) if name is not None else {}
    if types.is_boolean(column.type):
        no, yes = way.get("truths", form.truths)
        return compute.if_else(column, yes, no)
    if types.is_timestamp(column.type) and "between" in way:
        return _written_times(column, way)
    text = column.cast(arrow.string())
    if types.is_floating(column.type) or types.is_decimal(column.type):
        if types.is_floating(column.type):
            text = _with_decimals(text, way.get("decimals", 0))
        if form.decimal != ".":
            text = compute.replace_substring(text, ".", form.decimal)
    return text


def _with_decimals(text: Any, decimals: int) -> Any:
    """Numbers with at least so many digits after the point; those with an exponent as they are."""
    from pyarrow import compute

    for k in range(decimals):
        point, zeros = ("", ".") if k == 0 else (rf"\.\d{{{k}}}", ""), "0" * (decimals - k)
        text = compute.replace_substring_regex(text, rf"^(-?\d+{point[0]})$",
                                               rf"\1{point[1]}{zeros}")  # fmt: skip
    return text


def _written_times(column: Any, way: Mapping[str, Any]) -> Any:
    from pyarrow import compute

    arrow, kind = load_pyarrow(), column.type
    zone = way.get("zone")
    if zone is None or kind.tz is None:
        text = column.cast(arrow.string())
        return compute.replace_substring(text, " ", way["between"])
    column = column.cast(arrow.timestamp(kind.unit, zone))
    text = compute.local_timestamp(column).cast(arrow.string())
    offset: Any = way["offset"]
    if offset != "Z":
        offset = compute.strftime(column, format="%z", locale="C").cast(arrow.string())
        ends = {"+00:00": r"\1:\2", "+00": r"\1"}.get(way["offset"])
        if ends is not None:
            offset = compute.replace_substring_regex(offset, r"^([+-]\d\d)(\d\d)$", ends)
    text = compute.replace_substring(text, " ", way["between"])
    return compute.binary_join_element_wise(text, offset, "")


def names_with_ways(read: Any) -> list[str]:
    """The columns that can be written in several ways: truth values, times, and numbers."""
    types = load_pyarrow().types
    tests = (types.is_boolean, types.is_timestamp, types.is_floating)
    return [n for n in read.column_names if any(test(read.column(n).type) for test in tests)]


def cell_ways(read: Any, text: Any) -> dict[str, dict[str, Any]]:
    """How cells are written, of columns that have another way than the usual one.

    Truth values have their words, times what is between day and hour, and their zone, numbers so
    many decimals as all have, or one if even whole numbers have that.

    Args:
        read: Some rows as they are read, an Arrow table.
        text: The same rows as they are written.
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
        elif types.is_timestamp(cells.type):
            ways[name] = _way_of_times(cells[:INSTANTS], words[:INSTANTS].to_pylist())
        elif types.is_floating(cells.type):
            ways[name] = _way_of_numbers(words)
    return {name: way for name, way in ways.items() if way}


def _way_of_numbers(words: Any) -> dict[str, Any]:
    from pyarrow import compute

    found = compute.extract_regex(words, r"^-?\d+(?:[.,](?P<after>\d+))?$")
    if found.null_count:
        return {}
    digits = compute.min_max(compute.utf8_length(compute.struct_field(found, "after"))).as_py()
    least = min(1, digits["min"]) if digits["min"] < digits["max"] else digits["min"]
    return {"decimals": least} if least else {}


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


def quoted(cells: Any, form: CsvForm) -> Any:
    """Text with quotation marks around what would otherwise not be read as one cell."""
    from pyarrow import compute

    special = compute.match_substring_regex(cells, f'["\\r\\n{_escaped(form.delimiter)}]|^$')
    if not compute.any(special).as_py():
        return cells
    doubled = compute.replace_substring(cells, '"', '""')
    around = compute.binary_join_element_wise('"', doubled, '"', "")
    return compute.if_else(special, around, cells)


def name_line(names: Sequence[str], form: CsvForm) -> str:
    """The first line."""
    cells = quoted(load_pyarrow().array(list(names)), form).to_pylist()
    return form.delimiter.join(cells) + form.line_end


def _escaped(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"
