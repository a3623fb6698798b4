"""Dates and times: as ticks of a whole number, also where they are written as text."""

import math
from typing import Any

import numpy as np

from kermix.data.readers.common import load_pyarrow

__all__ = [
    "from_ticks",
    "is_time",
    "parse_times",
    "resolution",
    "seconds_of",
    "text_format",
    "ticks",
    "time_cells",
    "zone_of",
    "zones_differ",
]

# Fractions of a second are those of the unit; Arrow writes as many digits as it has. A minus sign
# says that there are no leading zeros.
FORMATS = (
    ("%Y-%m-%d", "s"), ("%Y-%m-%dT%H:%M:%SZ", "s"), ("%Y-%m-%d %H:%M:%S", "s"),
    ("%Y-%m-%dT%H:%M:%S", "s"), ("%Y-%m-%d %H:%M", "s"), ("%Y-%m-%dT%H:%M", "s"),
    ("%Y-%m-%d %H:%M:%S+00:00", "s"), ("%Y-%m-%dT%H:%M:%S+00:00", "s"),
    ("%Y/%m/%d", "s"), ("%Y/%m/%d %H:%M:%S", "s"), ("%Y/%m/%d %H:%M", "s"),
    ("%d.%m.%Y", "s"), ("%d.%m.%Y %H:%M", "s"), ("%d.%m.%Y %H:%M:%S", "s"),
    ("%m/%d/%Y", "s"), ("%m/%d/%Y %H:%M", "s"), ("%m/%d/%Y %H:%M:%S", "s"),
    ("%d/%m/%Y", "s"), ("%d/%m/%Y %H:%M", "s"), ("%d/%m/%Y %H:%M:%S", "s"),
    ("%d-%m-%Y", "s"), ("%d %b %Y", "s"), ("%d-%b-%Y", "s"),
    *((f"{d}{t}", "s") for d in ("%-d.%-m.%Y", "%-m/%-d/%Y", "%-d/%-m/%Y")
      for t in ("", " %H:%M", " %H:%M:%S")), ("%Y-%m", "s"),
    *((f"%Y-%m-%d{t}%H:%M:%S{z}", u) for u in ("ms", "us", "ns") for t in " T" for z in ("", "Z")),
)  # fmt: skip
LOOKED_AT = 200
SHORTEST, LONGEST = 7, 40  # characters of a date
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
DAY = 86_400
MONTH, YEARS = "%Y-%m", ("1500", "2500")


def is_time(kind: Any) -> bool:
    """Whether an Arrow type is one of time."""
    return bool(load_pyarrow().types.is_temporal(kind)) and "interval" not in str(kind)


def seconds_of(kind: Any) -> float:
    """Seconds of one tick of an Arrow type of time."""
    return DAY if str(kind) == "date32[day]" else UNITS[getattr(kind, "unit", "ms")]


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
        cells = words.cast(kind)
    else:
        cells = arrow.array([_python_time(v) for v in values])
        cells = cells.cast(arrow.int64()).cast(kind) if cells.type == "int64" else cells.cast(kind)
    return cells if text is None else write_times(cells, text[0])


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
    from pyarrow import compute

    if not len(words):
        return None
    lengths = compute.min_max(compute.utf8_length(words)).as_py()
    if lengths["min"] < SHORTEST or lengths["max"] > LONGEST:
        return None
    few = words.slice(0, LOOKED_AT)
    for form, unit in FORMATS:
        if _is_written_so(few, form, unit) and _is_written_so(words, form, unit):
            # Days and months without zeros may be either way around, and then neither is right.
            turned = form.replace("%-m/%-d", "%-d/%-m")
            doubtful = turned != form and _is_written_so(words, turned, unit)
            return None if doubtful else (form, unit)
    return None


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
    text = compute.strftime(times, format=form.replace("%-", "%"), locale="C").cast("string")
    if "%-" in form:
        text = compute.replace_substring_regex(text, r"(^|[./])0(\d)", r"\1\2")
    return text
