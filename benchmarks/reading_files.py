"""Text files as people write them, made at random, with what is in them: for tests of readers."""

import bz2
import csv
import datetime
import gzip
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Column", "TextFile", "generated_files", "write_files"]

GAPS = ("", "NA", "NaN", "null", "-", "?", "None", "n/a", ".")
WORDS = ("Köln", "Bonn", "a b", "x", "Ünna", "naïve", "O'Hara", "5 o'clock", "[b]", "=1+1", "a;b",
         "c,d", "tab\tbed", 'say "hi"', "two\nlines", "pipe|d")  # fmt: skip
PLAIN = ("red", "green", "blue", "dark red", "x")
COUNTRIES = ("DE", "NA", "FR", "US", "ZA", "GB")
BOOLEANS = (("false", "true"), ("False", "True"), ("FALSE", "TRUE"))


@dataclass(frozen=True)
class Column:
    """Cells as they are written, and what they mean.

    Attributes:
        what: How it was made: a class of differences.
        cells: Text.
        values: Numbers, truth values, times as ISO 8601 or text; None for a gap.
        kind: int, float, bool, date, clock, time, zoned or text.
        decimal: Whether the decimal mark of the file counts.
    """

    what: str
    cells: list[str]
    values: list[Any]
    kind: str
    decimal: bool = False


@dataclass(frozen=True)
class TextFile:
    """A file, how it is written, and what is in it.

    Attributes:
        name: Of the file.
        content: Its bytes.
        delimiter: Between cells.
        encoding: As Python calls it.
        trait: Its fault or peculiarity, or "plain".
        names: Of its columns.
        columns: What is in it; None if it has to be refused.
        cells: Its rows as they are written.
        options: Those that a reader is given.
    """

    name: str
    content: bytes
    delimiter: str
    encoding: str
    trait: str
    names: list[str]
    columns: list[Column] | None
    cells: list[list[str]]
    options: dict[str, Any] = field(default_factory=dict)


Maker = Callable[[np.random.Generator, int], Column]


def generated_files(count: int, seed: int = 0) -> list[TextFile]:
    """So many files, every fifth of them with a fault or a peculiarity of the whole file."""
    found = []
    for k in range(count):
        rng = np.random.default_rng([seed, k])
        found.append(_file(rng, k, _pick(rng, list(TRAITS)) if k % 5 == 4 else "plain"))
    return found


def write_files(files: Sequence[TextFile], folder: Path) -> list[Path]:
    """Write them to a folder."""
    paths = [folder / file.name for file in files]
    for path, file in zip(paths, files, strict=True):
        path.write_bytes(file.content)
    return paths


def _pick(rng: np.random.Generator, choices: Sequence[Any], p: Any = None) -> Any:
    return choices[int(rng.choice(len(choices), p=p))]


def _gappy(rng: np.random.Generator, column: Column, marks: Sequence[str] = GAPS) -> Column:
    """The column with some gaps, in one spelling."""
    mark = _pick(rng, marks)
    empty = rng.random(len(column.cells)) < 0.2
    empty[rng.integers(len(empty))] = False
    if "01067" in column.cells:
        empty[column.cells.index("01067")] = False  # by which it is known as a code
    if not empty.any():
        return column
    cells = [mark if e else c for c, e in zip(column.cells, empty, strict=True)]
    values = [None if e else v for v, e in zip(column.values, empty, strict=True)]
    spelled = mark or "nothing"
    what = f"{column.what}, gaps as {spelled}"
    return Column(what, cells, values, column.kind, column.decimal)


def _whole(rng: np.random.Generator, n: int) -> Column:
    size = 10 ** int(rng.integers(1, 7))
    values = rng.integers(-size if rng.random() < 0.3 else 0, size, n).tolist()
    return Column("whole numbers", [str(v) for v in values], values, "int")


def _huge(rng: np.random.Generator, n: int) -> Column:
    values = rng.integers(10**17, 9 * 10**18, n).tolist()
    return Column("whole numbers of 18 or 19 digits", [str(v) for v in values], values, "int")


def _fractions(rng: np.random.Generator, n: int) -> Column:
    digits = int(rng.integers(1, 5))
    values = np.round(rng.normal(0, 100, n), digits).tolist()
    return Column("fractions", [f"{v:.{digits}f}" for v in values], values, "float", True)


def _any_fractions(rng: np.random.Generator, n: int) -> Column:
    values = rng.normal(size=n).tolist()
    values[int(rng.integers(n))] = 0.25
    return Column("fractions of any length", [repr(v) for v in values], values, "float", True)


def _exponents(rng: np.random.Generator, n: int) -> Column:
    cells = [f"{v:.3e}" for v in rng.lognormal(0, 9, n)]
    return Column("numbers with exponents", cells, [float(c) for c in cells], "float", True)


def _grouped(rng: np.random.Generator, n: int) -> Column:
    values = np.round(rng.lognormal(8, 2, n), 2)
    values[int(rng.integers(n))] = 1234567.25
    cells = [f"{v:,.2f}" for v in values]
    return Column("thousands separators", cells, values.tolist(), "float", True)


def _spaced(rng: np.random.Generator, n: int) -> Column:
    made = _whole(rng, n)
    cells = [f" {c}" if k % 3 else f"{c} " for k, c in enumerate(made.cells)]
    return Column("numbers between blanks", cells, made.values, "int")


def _spaced_gaps(rng: np.random.Generator, n: int) -> Column:
    made = _gappy(rng, _whole(rng, n), ("NA", "NaN", "-", ""))
    what = "gaps between blanks" if None in made.values else "numbers between blanks"
    return Column(what, [f" {c}" for c in made.cells], made.values, "int")


def _padded(rng: np.random.Generator, n: int) -> Column:
    cells = [f"{v:05d}" for v in rng.integers(0, 99_999, n)]
    cells[int(rng.integers(n))] = "01067"
    return Column("codes with zeros", cells, list(cells), "text")


def _phones(rng: np.random.Generator, n: int) -> Column:
    cells = [f"+49{v}" for v in rng.integers(10**7, 10**9, n)]
    return Column("telephone numbers", cells, list(cells), "text")


def _long(rng: np.random.Generator, n: int) -> Column:
    cells = [f"4{v:021d}" for v in rng.integers(0, 10**9, n)]
    return Column("numbers beyond 64 bits", cells, list(cells), "text")


def _hexadecimal(rng: np.random.Generator, n: int) -> Column:
    cells = [f"0x{v:08x}" for v in rng.integers(0, 2**32, n)]
    return Column("hexadecimal codes", cells, list(cells), "text")


def _booleans(rng: np.random.Generator, n: int) -> Column:
    words, values = _pick(rng, BOOLEANS), (rng.random(n) < 0.5).tolist()
    return Column("truth values", [words[v] for v in values], values, "bool")


def _mixed_booleans(rng: np.random.Generator, n: int) -> Column:
    cells = [_pick(rng, ("0", "1", "true", "false")) for _ in range(n)]
    cells[0], cells[-1] = "0", "true"
    return Column("truth values in two spellings", cells, list(cells), "text")


def _day(rng: np.random.Generator) -> datetime.datetime:
    start = datetime.datetime(1990, 1, 1, 0, 0, 0)
    return start + datetime.timedelta(seconds=int(rng.integers(0, 10**9)))


def _dates(rng: np.random.Generator, n: int) -> Column:
    days = [_day(rng).date().isoformat() for _ in range(n)]
    return Column("dates", days, list(days), "date")


def _german_dates(rng: np.random.Generator, n: int) -> Column:
    days = [_day(rng).strftime("%d.%m.%Y") for _ in range(n)]
    return Column("dates of another form", days, list(days), "text")


def _times(rng: np.random.Generator, n: int) -> Column:
    between = _pick(rng, " T")
    days = [_day(rng).isoformat() for _ in range(n)]
    return Column("times", [d.replace("T", between) for d in days], days, "time")


def _fine_times(rng: np.random.Generator, n: int) -> Column:
    days = [_day(rng).replace(microsecond=int(rng.integers(1, 999)) * 1000) for _ in range(n)]
    cells = [d.isoformat(" ", "milliseconds") for d in days]
    return Column("times with fractions", cells, [d.isoformat() for d in days], "time")


def _zoned(rng: np.random.Generator, n: int) -> Column:
    hours = int(rng.integers(-9, 10))
    zone = datetime.timezone(datetime.timedelta(hours=hours))
    days = [_day(rng).replace(tzinfo=zone) for _ in range(n)]
    values = [d.astimezone(datetime.UTC).isoformat() for d in days]
    cells = [d.isoformat().replace("+00:00", "Z") for d in days]
    return Column("times of a zone", cells, values, "zoned")


def _clocks(rng: np.random.Generator, n: int) -> Column:
    cells = [_day(rng).strftime("%H:%M:%S") for _ in range(n)]
    return Column("times of day", cells, list(cells), "clock")


def _words(rng: np.random.Generator, n: int) -> Column:
    cells = [_pick(rng, WORDS) for _ in range(n)]
    cells[int(rng.integers(n))] = "x"
    return Column("words", cells, list(cells), "text")


def _plain_words(rng: np.random.Generator, n: int) -> Column:
    cells = [_pick(rng, PLAIN) for _ in range(n)]
    return Column("words", cells, list(cells), "text")


def _marked_words(rng: np.random.Generator, n: int) -> Column:
    """Words of which some would be a gap among numbers."""
    cells = [_pick(rng, ("-", "?", "none", "a", "b")) for _ in range(n)]
    cells[0] = "a"
    return Column("words beside marks", cells, list(cells), "text")


def _countries(rng: np.random.Generator, n: int) -> Column:
    cells = [_pick(rng, COUNTRIES) for _ in range(n)]
    cells[: len(COUNTRIES)] = COUNTRIES[: len(cells)]
    return Column("codes of countries", cells, list(cells), "text")


def _nothing(rng: np.random.Generator, n: int) -> Column:
    return Column("empty", [""] * n, [None] * n, "text")


def _stray(rng: np.random.Generator, n: int) -> Column:
    made = _whole(rng, n)
    cells = [*made.cells[:-1], "98102-5783"]
    return Column("numbers and a stray text", cells, list(cells), "text")


def _late_fraction(rng: np.random.Generator, n: int) -> Column:
    values = [*rng.integers(0, 100, n - 1).tolist(), 0.5]
    return Column("a late fraction", [str(v) for v in values], [float(v) for v in values],
                  "float", True)  # fmt: skip


MAKERS: tuple[Maker, ...] = (
    _whole, _huge, _fractions, _any_fractions, _exponents, _grouped, _spaced, _spaced_gaps,
    _padded, _phones, _long, _hexadecimal, _booleans, _mixed_booleans, _dates, _german_dates,
    _times, _fine_times, _zoned, _clocks, _words, _plain_words, _marked_words, _countries,
    _nothing, _late_fraction,
)  # fmt: skip
WITH_GAPS = (_whole, _fractions, _booleans, _dates, _times, _padded, _huge)
TEXT_GAPS = ("", "NA", "NaN", "null", "n/a")


def _columns(rng: np.random.Generator, n: int, width: int) -> list[Column]:
    found = []
    for _ in range(width):
        if rng.random() < 0.35:
            made = _pick(rng, WITH_GAPS)(rng, n)
            numbers = made.kind in ("int", "float")
            found.append(_gappy(rng, made, GAPS if numbers else TEXT_GAPS))
        else:
            found.append(_pick(rng, MAKERS)(rng, n))
    return found


TRAITS = {
    "short row": None, "long row": None, "names twice": None, "empty": None,
    "only a header": None, "empty first line": None, "zeros": None, "quote never closed": None,
    "blank lines": [], "no header": [], "header of years": [], "no last line end": [],
    "old Mac line ends": [], "one column": [], "one row": [], "wide": [], "late Latin-1": [],
    "trailing delimiters": None, "many rows": [], "stray text": [],
}  # fmt: skip


def _file(rng: np.random.Generator, k: int, trait: str) -> TextFile:
    n = {"one row": 1, "many rows": 6000}.get(trait, int(rng.integers(8, 60)))
    width = {"one column": 1, "wide": 150}.get(trait, int(rng.integers(2, 9)))
    delimiter = _pick(rng, ",;\t|", [0.55, 0.25, 0.12, 0.08])
    columns = _columns(rng, n, width)
    if any(c.what.endswith("gaps as NA") or ("NA" in " ".join(c.cells).split() and
           c.what == "gaps between blanks") for c in columns):  # fmt: skip
        columns = [_without_na(c) for c in columns]
    if trait == "stray text":
        columns[-1] = _stray(rng, n)
    if trait == "late Latin-1":
        n = 9000
        late = ["Bonn"] * (n - 1) + ["Köln"]
        columns = [Column("words", late, list(late), "text"), _whole(rng, n)]
    encoding = _pick(rng, ("utf-8", "utf-8-sig", "utf-16", "latin-1"), [0.6, 0.15, 0.1, 0.15])
    comma = delimiter == ";" and rng.random() < 0.6
    named = not (trait == "no header" or (trait == "plain" and rng.random() < 0.04))
    if trait == "header of years":
        columns = [_any_fractions(rng, n) for _ in range(max(2, width))]
        names = [str(2010 + j) for j in range(len(columns))]
    else:
        names = [_pick(rng, ("{}{}", "col {} {}", "Größe{}{}")).format(chr(97 + j % 26), j)
                 for j in range(len(columns))]  # fmt: skip
    cells = [_with_comma(c) if comma and c.decimal else c.cells for c in columns]
    rows = [list(row) for row in zip(*cells, strict=True)]
    if not named:
        names = [f"x{j}" for j in range(len(columns))]
    if trait == "names twice" and len(names) > 1:
        names[-1] = names[0]
    if trait == "late Latin-1":
        encoding = "latin-1"
        names = ["a", "b"]
    line_end = "\r" if trait == "old Mac line ends" else _pick(rng, ("\n", "\r\n"), [0.7, 0.3])
    if line_end == "\r":
        rows = [[c.replace("\n", " ") for c in row] for row in rows]
        columns = [_one_line(c) for c in columns]
    text = _text([names, *rows] if named else rows, delimiter, line_end, rng, trait)
    content, trait = _faulty(text, trait, rng, line_end, encoding)
    wanted = None if TRAITS.get(trait, []) is None else columns
    packed = _pick(rng, ("", ".gz", ".bz2"), [0.8, 0.15, 0.05])
    packers = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}
    ending = ".tsv" if delimiter == "\t" and rng.random() < 0.5 else ".csv"
    name = f"{k:04d}{ending}{packed}"
    return TextFile(
        name, packers[packed](content), delimiter, encoding, trait, names, wanted, rows
    )


def _without_na(column: Column) -> Column:
    """Codes of countries beside a column that has gaps as NA: there it is none of them."""
    if column.what != "codes of countries":
        return column
    values = [None if v == "NA" else v for v in column.values]
    return Column("codes of countries beside gaps as NA", column.cells, values, column.kind)


def _one_line(column: Column) -> Column:
    values = [v.replace("\n", " ") if isinstance(v, str) else v for v in column.values]
    return Column(column.what, column.cells, values, column.kind, column.decimal)


def _with_comma(column: Column) -> list[str]:
    swapped = str.maketrans(",.", ".,")
    return [c if v is None else c.translate(swapped)
            for c, v in zip(column.cells, column.values, strict=True)]  # fmt: skip


def _text(
    rows: list[list[str]], delimiter: str, line_end: str, rng: np.random.Generator, trait: str
) -> str:
    written = io.StringIO()
    quoting = _pick(rng, (csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC), [0.7, 0.2, 0.1])
    writer = csv.writer(written, delimiter=delimiter, lineterminator=line_end, quoting=quoting)
    for k, row in enumerate(rows):
        if trait == "blank lines" and k and rng.random() < 0.15:
            written.write(line_end)
        if row == [""] and quoting == csv.QUOTE_MINIMAL:
            written.write(f'""{line_end}')
        else:
            writer.writerow(row)
    return written.getvalue()


def _faulty(
    text: str, trait: str, rng: np.random.Generator, line_end: str, encoding: str
) -> tuple[bytes, str]:
    """The file with the fault of the trait, if it can have it."""
    try:
        plain = text.encode(encoding)
    except UnicodeEncodeError:
        plain = text.encode("utf-8")
    lines = text.split(line_end)
    simple = '"' not in text and len(lines) > 4
    if trait == "empty":
        return b"", trait
    if trait == "only a header":
        if not simple:
            return plain, "plain"
        return (lines[0] + line_end).encode(encoding), trait
    if trait == "empty first line":
        return (line_end + text).encode(encoding), trait
    if trait == "zeros":
        return b"a\0,b\0\n1\0,2\0\n", trait
    if trait == "no last line end" and simple:
        return text.removesuffix(line_end).encode(encoding), trait
    if trait in ("short row", "long row", "quote never closed", "trailing delimiters"):
        return _ragged(lines, trait, rng, line_end, encoding, plain, simple)
    return plain, trait if trait in TRAITS else "plain"


def _ragged(
    lines: list[str], trait: str, rng: np.random.Generator, line_end: str, encoding: str,
    plain: bytes, simple: bool,
) -> tuple[bytes, str]:  # fmt: skip
    marks = [d for d in ",;\t|" if lines[0].count(d)]
    if not simple or not marks:
        return plain, "plain"
    mark = max(marks, key=lines[0].count)
    place = int(rng.integers(1, len(lines) - 1))
    if trait == "short row":
        lines[place] = lines[place].rpartition(mark)[0]
    elif trait == "long row":
        lines[place] += f"{mark}7"
    elif trait == "quote never closed":
        cells = lines[place].split(mark)
        lines[place] = mark.join([f'"{cells[0]}', *cells[1:]])
    else:
        lines = [lines[0], *(line + mark if line else line for line in lines[1:])]
    return line_end.join(lines).encode(encoding), trait
