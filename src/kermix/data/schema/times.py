"""Dates and times: as ticks of a whole number, also where they are written as text."""

import math
import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from kermix.data.readers.common import load_pyarrow

__all__ = [
    "ZONES",
    "from_ticks",
    "parse_times",
    "resolution",
    "seconds_of",
    "text_format",
    "ticks",
    "time_cells",
    "time_note",
    "zone_of",
    "zoned_cells",
    "zones_differ",
]

# A minus sign says that there are no leading zeros. Where several fit, the first counts.
DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y",
    "%d.%m.%y", "%m/%d/%y", "%d/%m/%y", "%-d.%-m.%Y", "%-m/%-d/%Y", "%-d/%-m/%Y",
    "%-m/%-d/%y", "%-d/%-m/%y", "%d %b %Y", "%d-%b-%Y", "%d-%b-%y", "%-d %b %Y", "%-d-%b-%Y",
    "%-d-%b-%y", "%b %d, %Y", "%b %-d, %Y", "%d %B %Y", "%-d %B %Y", "%B %d, %Y", "%B %-d, %Y",
    "%a, %d %b %Y",
)  # fmt: skip
CLOCKS = ("%H:%M", "%H:%M:%S", "%-H:%M", "%-H:%M:%S", "%I:%M %p", "%I:%M:%S %p", "%-I:%M %p",
          "%-I:%M:%S %p")  # fmt: skip
ZONES = ("Z", "+00:00", " UTC")  # of times that are written as the standard has it
FORMATS = (
    *((day, "s") for day in DAYS),
    *((f"{day} {clock}", "s") for day in DAYS for clock in CLOCKS),
    *((f"%Y-%m-%dT{clock}", "s") for clock in ("%H:%M", "%H:%M:%S")),
    *((f"%Y-%m-%d{t}%H:%M:%S{zone}", "s") for t in " T" for zone in ZONES),
    ("%Y-%m", "s"),
    # Fractions of a second are those of the unit; Arrow writes as many digits as it has.
    *((f"%Y-%m-%d{t}%H:%M:%S{z}", u) for u in ("ms", "us", "ns") for t in " T" for z in ("", "Z")),
)
SHAPES = {"Y": r"\d{4}", "b": "[A-Z][a-z]{2}", "B": "[A-Z][a-z]+", "a": "[A-Z][a-z]{2}",
          "p": "[AP]M"}  # fmt: skip
# What is a date though not in one of these ways: a year between or beside two numbers, a month by
# its name, a week.
DATED = re.compile(
    r"^(?:19|20)\d\d([-/.])\d\d?\1\d\d?\b|^\d\d?([-/.])\d\d?\2(?:19|20)\d\d\b"
    r"|\d.*\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\b.*\d|^(?:19|20)\d\d-?W\d\d"
    r"|^\d\d?:\d\d(?::\d\d)?(?: ?[ap]\.?m\.?)$",
    re.I,
)
LOOKED_AT = 200
SHORTEST, LONGEST = 7, 40  # characters of a date
DAY = 86_400
PARTS = {"d": "the day", "m": "the month"}
MONTH, YEARS = "%Y-%m", ("1500", "2500")


def seconds_of(kind: Any) -> float:
    """Seconds of one tick of an Arrow type of time."""
    if str(kind) == "date32[day]":
        return DAY
    return float(np.timedelta64(1, getattr(kind, "unit", "ms")) / np.timedelta64(1, "s"))


def zone_of(kind: Any) -> str | None:
    """The time zone of an Arrow type; None if it has none."""
    return getattr(kind, "tz", None)


def zones_differ(where: str, zoned: Any, first: str, second: str) -> str:
    """What to say where instants meet times of an unknown zone."""
    return (
        f"{where}: times have a zone ({zone_of(zoned)}) in {first} and none in {second}, so they "
        "cannot be compared. Give both a time zone (pandas: .dt.tz_localize), or remove it "
        "(.dt.tz_localize(None))."
    )


def ticks(column: Any) -> np.ndarray:
    """A column of times without gaps as whole numbers of its unit."""
    arrow = load_pyarrow()
    small = column.type.bit_width == 32
    if small:
        column = column.cast(arrow.int32())
    return np.asarray(column.cast(arrow.int64()).to_numpy(), dtype=np.int64)


def from_ticks(numbers: np.ndarray, kind: Any, mask: np.ndarray) -> Any:
    """Whole numbers of a type's unit as an Arrow array, with gaps where the mask is true."""
    arrow = load_pyarrow()
    if kind.bit_width == 32:
        return arrow.array(numbers.astype(np.int32), mask=mask).cast(kind)
    return arrow.array(numbers, mask=mask).cast(kind)


def time_cells(values: list[Any], kind: Any, text: tuple[str, str] | None) -> Any:
    """Times of any kind as cells of a column: of its Arrow type, or written as its text is.

    What has no zone is in the column's, where it has one.

    Args:
        values: Times of Python, NumPy or pandas, or text as ISO or the column has it.
        kind: The column's type of time.
        text: How the column writes times, and their unit, if it is text.
    """
    arrow = load_pyarrow()
    if all(isinstance(v, str) for v in values):
        words = arrow.array(values, arrow.string())
        own = None if text is None else parse_times(words, *text)
        if own is not None and not own.null_count:
            return words
        cells = zoned_cells(words, kind)
    else:
        cells = arrow.array([_python_time(v) for v in values])
        if cells.type == "int64":
            cells = cells.cast(arrow.int64())
        cells = zoned_cells(cells, kind)
    return cells if text is None else write_times(cells, text[0])


def zoned_cells(cells: Any, kind: Any) -> Any:
    """Text or times cast to a type of times; in a zone, what has none is taken to be in it."""
    arrow, zone = load_pyarrow(), zone_of(kind)
    if zone is None or cells.type == "int64" or zone_of(cells.type) is not None:
        return cells.cast(kind)
    from pyarrow import compute

    try:
        local = cells.cast(arrow.timestamp(kind.unit))
    except arrow.ArrowInvalid:  # text with a zone of its own
        return cells.cast(kind)
    return compute.assume_timezone(local, zone)


def _python_time(value: Any) -> Any:
    """A NumPy time as one of Python, unless it has nanoseconds, of which Python knows nothing."""
    plain = value.item() if isinstance(value, np.generic) else value
    return value if isinstance(value, np.datetime64) and isinstance(plain, int) else plain


def resolution(numbers: np.ndarray, seconds: float) -> int:
    """Ticks of the largest common step: a day, an hour, a minute, a second, or a part of one."""
    if not len(numbers):
        return 1
    steps = [DAY, 3600, 60, 1, 1e-3, 1e-6]
    base = numbers - numbers.min()
    for step in steps:
        count = step / seconds
        whole = round(count)
        if whole > 1 and math.isclose(count, whole) and not (base % whole).any():
            return whole
    return 1


def text_format(words: Any) -> tuple[str, str] | None:
    """The one way in which all words, distinct ones, are written dates; None if there is none.

    What is written back must be the same text, so that nothing is lost.
    """
    for form, unit in _possible(words):
        if _is_written_so(words, form, unit):
            turned = turned_around(form)
            if turned is None or not _is_written_so(words, turned, unit):
                return form, unit
            # Of two that fit, the one in which all days are the same, such as the first.
            same = _one_day(words, turned) and not _one_day(words, form)
            return (turned if same else form), unit
    return None


def _possible(words: Any) -> Iterator[tuple[str, str]]:
    """The ways in which some of the words may be written."""
    from pyarrow import compute

    if not len(words):
        return
    lengths = compute.min_max(compute.utf8_length(words)).as_py()
    if lengths["min"] < SHORTEST or lengths["max"] > LONGEST:
        return
    few, first = words.slice(0, LOOKED_AT), words[0].as_py()
    for (form, unit), shape in zip(FORMATS, _shapes(), strict=True):
        if shape.fullmatch(first) and _is_written_so(few, form, unit):
            yield form, unit


@cache
def _shapes() -> tuple[re.Pattern[str], ...]:
    """What words in each of the ways look like."""
    found = []
    for form, unit in FORMATS:
        pieces = re.split("(%-?[A-Za-z])", form)
        own = {**SHAPES, "S": r"\d\d" if unit == "s" else r"\d\d\.\d+"}
        shapes = [
            own.get(piece[-1], r"\d\d?") if piece[:1] == "%" else re.escape(piece)
            for piece in pieces
        ]
        found.append(re.compile("".join(shapes)))
    return tuple(found)


def turned_around(form: str) -> str | None:
    """The same way with days and months in the other order, where both are numbers."""
    found = re.match(r"(%-?[md])([-/.])(%-?[md])", form)
    return found and f"{found[3]}{found[2]}{found[1]}{form[found.end() :]}"


def _one_day(words: Any, form: str) -> bool:
    from pyarrow import compute

    return len(compute.day(parse_times(words, form, "s")).unique()) == 1 < len(words)


def time_note(
    name: str, words: Any, way: tuple[str, str] | None, becomes: str = "text"
) -> str | None:
    """What to say of text that is dates in one of two ways, or dates that are not read.

    Args:
        name: Of the column.
        words: Its distinct cells.
        way: How they are written, if that is known.
        becomes: What it is, if it is not.
    """
    if way is not None:
        turned = turned_around(way[0])
        if turned is None or not _is_written_so(words, turned, way[1]):
            return None
        return (
            f"{name}: {words[0].as_py()!r} and the others may begin with the day or with the "
            f"month; they are taken for {PARTS[way[0].lstrip('%-')[0]]} first. If that is wrong, "
            "write them as 2024-01-31."
        )
    some = words.slice(0, LOOKED_AT).to_pylist()
    dated = [word for word in some if DATED.search(word)]
    if not dated or 2 * len(dated) < len(some):
        return None
    first, other = _unlike(words, some)
    why = f"but {other!r} is not written so" if other else "but not in a way that is known"
    return (
        f"{name}: {(first or dated[0])!r} and others are dates or times, {why}, so it is "
        f"{becomes}. Write all as 2024-01-31 or 2024-01-31 12:30:00, name gaps (--missing), or "
        f"use --kind {name}=category."
    )


def _unlike(words: Any, some: Sequence[str]) -> tuple[str | None, str | None]:
    """A word that is written as most of some are, and the first that is not, or is no day."""
    from pyarrow import compute

    matching = [[word for word in some if shape.fullmatch(word)] for shape in _shapes()]
    best = max(range(len(FORMATS)), key=lambda k: len(matching[k]))
    times = parse_times(words, *FORMATS[best])
    if times is None or 2 * len(matching[best]) < len(some):
        return None, None
    same = compute.equal(write_times(times, FORMATS[best][0]), words).fill_null(False)
    other = words.filter(compute.invert(same))
    usual = words.filter(same)
    return usual[0].as_py() if len(usual) else None, other[0].as_py() if len(other) else None


def _is_written_so(words: Any, form: str, unit: str) -> bool:
    from pyarrow import compute

    if form == MONTH:
        ends = compute.min_max(words).as_py()  # 1001-12 is an order, and no month
        if not YEARS[0] <= ends["min"] <= ends["max"] <= YEARS[1]:
            return False
    times = parse_times(words, form, unit)
    return times is not None and times.null_count == 0 and write_times(times, form).equals(words)


def parse_times(words: Any, form: str, unit: str) -> Any | None:
    """Text as times without a zone, null where it is not written like this."""
    from pyarrow import compute

    arrow = load_pyarrow()
    if unit == "s":
        read = form.replace("%-", "%")
        return compute.strptime(words, format=read, unit="s", error_is_null=True)
    try:
        # Only the standard's way has fractions, and Arrow reads it without a format.
        bare = compute.utf8_rtrim(words, characters="Z")
        return bare.cast(arrow.timestamp(unit))
    except arrow.ArrowInvalid:
        return None


def write_times(times: Any, form: str) -> Any:
    """Times as text; months are the nearest."""
    from pyarrow import compute

    if form == MONTH:
        times = compute.add(times, load_pyarrow().scalar(14 * DAY, load_pyarrow().duration("s")))
    text = compute.strftime(times, format=form.replace("%-", "\1%"), locale="C").cast("string")
    return compute.replace_substring_regex(text, "\1" + "0?", "") if "%-" in form else text
