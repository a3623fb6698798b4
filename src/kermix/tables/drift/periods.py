"""Tables cut into periods: by the values of a column, by its dates, or a file each.

Periods that are named in words (months, quarters, weeks, numbered things) have an order too.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kermix.data.readers.common import READABLE, Reading, kind_of_file, listed, load_pyarrow
from kermix.data.readers.frames import (
    Frame,
    family,
    taken_rows,
)
from kermix.data.readers.reading import read_alike, read_frame
from kermix.data.schema.times import parse_times, text_format
from kermix.errors import OptionError, TableError

__all__ = ["EVERY", "Periods", "order_of_names", "read_periods", "together", "year_before"]

MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september",
    "october", "november", "december",
)  # fmt: skip
WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
SHORTEST = 3
# A convention; POSIX's is 69.
CENTURY = 70  # years of two digits from here on are of the twentieth
MONTH_AND_YEAR = re.compile(r"([^\W\d_]+)[\s.,/_'-]*(\d{4}|\d{2})")
YEAR_FIRST = re.compile(r"(\d{4})[\s.,/_-]*([^\W\d_]+)\.?")
NUMBERED = re.compile(r"([^\W\d_]*)[\s.]*(\d{1,2})[\s./_-]+(\d{4})")

Place = tuple[Any, ...]


def order_of_names(values: Sequence[str]) -> list[str] | None:
    """Names of periods in their order; None if it cannot be told from the names.

    English months with or without a year; weekdays; a number and a year, as in 11/2023 and
    Q1 2023; and names that differ in numbers alone.

    Example:
        >>> order_of_names(["Jan 2024", "Feb 2023"]), order_of_names(["Q1 2024", "Q4 2023"])
        (['Feb 2023', 'Jan 2024'], ['Q4 2023', 'Q1 2024'])
        >>> order_of_names(["v1.10", "v1.9"]), order_of_names(["after", "before"])
        (['v1.9', 'v1.10'], None)
    """
    plain = [v.strip().lower() for v in values]
    for places in (
        [_among(MONTHS, p) for p in plain],
        [_among(WEEKDAYS, p) for p in plain],
        [_of_month_and_year(p) for p in plain],
        _of_number_and_year(plain),
        _of_numbers(plain),
    ):
        if None not in places:
            return [v for _, v in sorted(zip(places, values, strict=True))]
    return None


def year_before(name: str) -> str:
    """The name of the same month, week or quarter a year before; empty if no year is in it.

    Example:
        >>> year_before("2024-02"), year_before("Q1 2024"), year_before("spring")
        ('2023-02', 'Q1 2023', '')
    """
    years = list(re.finditer(r"(?<!\d)(?:19|20)\d\d(?!\d)", name))
    if len(years) != 1:
        return ""
    start, end = years[0].span()
    return f"{name[:start]}{int(years[0][0]) - 1}{name[end:]}"


def _among(names: Sequence[str], word: str) -> Place | None:
    """The place of the name that a word is, or begins."""
    text = word.rstrip(".")
    found = [k for k, name in enumerate(names) if name.startswith(text)]
    return (found[0],) if found and len(text) >= SHORTEST else None


def _of_month_and_year(word: str) -> Place | None:
    if match := MONTH_AND_YEAR.fullmatch(word):
        name, digits = match.groups()
    elif match := YEAR_FIRST.fullmatch(word):
        digits, name = match.groups()
    else:
        return None
    month = _among(MONTHS, name)
    year = int(digits)
    if len(digits) == 2:
        year += 1900 if year >= CENTURY else 2000
    return None if month is None else (year, *month)


def _of_number_and_year(words: Sequence[str]) -> list[Place | None]:
    """Quarters, months, weeks: all with one word, or none, before the number."""
    matches = [NUMBERED.fullmatch(w) for w in words]
    if len({m.group(1) for m in matches if m}) > 1:
        return [None]
    return [(int(m.group(3)), int(m.group(2))) if m else None for m in matches]


def _of_numbers(words: Sequence[str]) -> list[Place | None]:
    """Names that differ in their numbers alone: part2 before part10."""
    numbers = [tuple(int(p) for p in re.findall(r"\d+", w)) for w in words]
    rest = {re.sub(r"\d+", "0", w) for w in words}
    return [*numbers] if len(rest) == 1 and all(numbers) else [None]


EVERY = {"day": "%Y-%m-%d", "week": "%G-W%V", "month": "%Y-%m", "year": "%Y"}
# Reasoned, no record.
MOST_PERIODS = 400
DAYS_UP_TO, MONTHS_UP_TO = 45, 5 * 366  # of the whole span, where nobody says how to cut dates
NOUNS = ("hour", "day", "week", "month", "quarter", "year")


class Periods(NamedTuple):
    """A table for each period, in order.

    Attributes:
        tables: Their names are those of the periods.
        noun: What a period is called, such as "month".
        notes: What was assumed and left out.
    """

    tables: tuple[Frame, ...]
    noun: str
    notes: list[str]


def read_periods(source: Any, by: str | None, every: str | None, reading: Reading) -> Periods:
    """Cut a file, a folder of files or a table in memory into periods.

    Args:
        source: As for `kermix.compare`; or a folder, whose files are a period each, or with
            `by` one table.
        by: The column whose values, or dates, are the periods.
        every: "day", "week", "month" or "year", to cut dates by.
        reading: How tables are read.
    """
    folder = Path(source) if isinstance(source, str | Path) and Path(source).is_dir() else None
    files = [] if folder is None else _files(folder)
    if by is not None:
        return _of_column(files or source, by, every, reading)
    if folder is None:
        raise OptionError("Name the column that defines the periods: --by COLUMN (by=...).")
    if every is not None:
        raise OptionError(f"every={every!r}: also name the column of dates (--by).")
    return _of_files(files, folder, reading)


def _of_files(files: Sequence[Path], folder: Path, reading: Reading) -> Periods:
    """A table for each file."""
    found = read_alike(files, reading)
    tables = tuple(replace(f, name=p.name.split(".")[0])
                   for p, (f, _) in zip(files, found, strict=True))  # fmt: skip
    notes = [*dict.fromkeys(note for _, said in found for note in said)]
    return _checked(Periods(tables, "file", notes), str(folder))


def _of_column(source: Any, by: str, every: str | None, reading: Reading) -> Periods:
    """One table cut by the values or dates of a column."""
    if by in reading.exclude:
        raise OptionError(f"{by} is the column of the periods; do not exclude it.")
    if reading.columns is not None and by not in reading.columns:
        reading = replace(reading, columns=(*reading.columns, by))
    frame, notes = read_frame(source, reading)
    if by not in frame.columns:
        near = difflib.get_close_matches(by, list(frame.columns), 3, 0.5)
        meant = f"did you mean {listed(near)}?" if near else f"it has {listed(frame.columns)}."
        raise TableError(f"{frame.name} has no column {by}; {meant}")
    labels, order, noun, said = _labels(frame, by, every)
    gone = _without(frame, [by])
    if not gone.columns:
        raise TableError(f"{frame.name}: {by} is its only column; there is nothing to compare.")
    tables = tuple(
        replace(taken_rows(gone, np.flatnonzero(labels == k)), name=name)
        for k, name in enumerate(order)
    )
    return _checked(Periods(tables, noun, [*notes, *said]), f"column {by}")


def together(frames: Sequence[Frame]) -> Frame:
    """Several periods as one, with the columns that all have alike."""
    if len(frames) == 1:
        return frames[0]
    first, *more = frames
    columns = {
        name: load_pyarrow().chunked_array([c for f in frames for c in f.columns[name].chunks])
        for name, column in first.columns.items()
        if all(name in f.columns and f.columns[name].type == column.type for f in more)
    }
    return replace(
        first,
        name=f"{first.name} to {frames[-1].name}",
        columns=columns,
        types={name: first.types[name] for name in columns},
        rows=sum(f.rows for f in frames),
    )


def _without(frame: Frame, names: Sequence[str]) -> Frame:
    """The table without some columns."""
    return replace(frame, columns={n: c for n, c in frame.columns.items() if n not in names},
                   types={n: t for n, t in frame.types.items() if n not in names})  # fmt: skip


def _checked(periods: Periods, where: str) -> Periods:
    count = len(periods.tables)
    if count < 2:
        only = f" ({periods.tables[0].name})" if count else ""
        raise OptionError(
            f"{where} has {count} period{'' if count == 1 else 's'}{only}; drift needs at least "
            "two. Choose another column (--by), or group its dates more finely (--every day)."
        )
    if count > MOST_PERIODS:
        raise OptionError(
            f"{where} has {count:,} periods; at most {MOST_PERIODS} are supported. Group dates "
            "more coarsely (--every month), or choose another column (--by)."
        )
    return _without_clocks(periods)


def _files(folder: Path) -> list[Path]:
    def is_table(path: Path) -> bool:
        try:
            kind_of_file(path)
        except TableError:
            return False
        return path.is_file()

    found = sorted(filter(is_table, folder.iterdir()), key=lambda p: _natural(p.name))
    stems = [p.name.split(".")[0] for p in found]
    if len(set(stems)) == len(stems) and (known := order_of_names(stems)) is not None:
        found = [found[stems.index(stem)] for stem in known]
    if not found:
        hint = " Of sketches: kermix compare FOLDER." if list(folder.glob("*.sketch")) else ""
        raise TableError(f"{folder}: there is no table in it ({', '.join(READABLE)}).{hint}")
    return found


def _labels(
    frame: Frame, by: str, every: str | None
) -> tuple[np.ndarray, list[str], str, list[str]]:
    """The place of each row's period, -1 for none; names in order; what they are called; notes."""
    column, every, notes = _values(frame, by, every)
    noun = every or (by.lower() if by.lower() in NOUNS else "period")
    if gaps := column.null_count:
        notes.append(f"{gaps:,} rows without a value in {by} are ignored.")
    words = column.drop_null().unique().to_pylist()
    declared = frame.types[by].declared if every is None else None
    ordered = _in_order(words, declared) or words
    if ordered is words:
        notes.append(
            f"The values of {by} have no recognizable order; the order of first appearance is "
            f"used: {listed([str(v) for v in ordered])}. Use --reference to choose another "
            "reference."
        )
    return _places(column, ordered), [_shown(value, noun) for value in ordered], noun, notes


def _places(column: Any, ordered: Sequence[Any]) -> np.ndarray:
    """The place of each value among those in order, -1 for none."""
    place = {value: k for k, value in enumerate(ordered)}
    coded = column.combine_chunks() if hasattr(column, "combine_chunks") else column
    coded = coded.dictionary_encode()
    lookup = np.array([place[v] for v in coded.dictionary.to_pylist()] + [-1])
    return lookup[coded.indices.fill_null(len(lookup) - 1).to_numpy(zero_copy_only=False)]


def _values(frame: Frame, by: str, every: str | None) -> tuple[Any, str | None, list[str]]:
    """The period of each row, by what dates are cut if there are any, and notes."""
    from pyarrow import compute

    if every is not None and every not in EVERY:
        raise OptionError(f"every={every!r}: one of {', '.join(EVERY)}.")
    column = frame.columns[by]
    times = _times(column)
    if times is not None:
        notes = []
        if every is None:
            every = _fitting(times)
            notes.append(f"Dates of {by} are grouped by {every}; change this with --every.")
        return compute.strftime(times, format=EVERY[every]), every, notes
    if every is not None:
        shown = column.drop_null().unique().slice(0, 2).to_pylist()
        raise OptionError(
            f"--every {every}: {by} holds no dates (but {', '.join(map(repr, shown))}); without "
            "--every, each value is a period."
        )
    if family(column.type) in ("numbers", "truth values", "times"):
        count = len(column.drop_null().unique())
        if count > MOST_PERIODS:
            raise OptionError(
                f"{by} has {count:,} different values; at most {MOST_PERIODS} periods are "
                "supported. Choose a column such as a month or a year (--by)."
            )
    return column, None, []


def _times(column: Any) -> Any | None:
    """The column as times without a zone; None if it has none."""
    from pyarrow import compute

    types = load_pyarrow().types
    if types.is_timestamp(column.type):
        return column if column.type.tz is None else compute.local_timestamp(column)
    if types.is_date(column.type):
        return column.cast(load_pyarrow().timestamp("s"))
    if family(column.type) != "text":
        return None
    words = column.cast("string")
    form = text_format(words.drop_null().unique())
    return None if form is None else parse_times(words, *form)


def _fitting(times: Any) -> str:
    from pyarrow import compute

    ends = compute.min_max(times.cast(load_pyarrow().timestamp("s"), safe=False)).as_py()
    days = (ends["max"] - ends["min"]).days
    return "day" if days <= DAYS_UP_TO else "month" if days <= MONTHS_UP_TO else "year"


def _in_order(values: list[Any], declared: Sequence[Any] | None) -> list[Any] | None:
    """In the order of time, as far as anybody can tell; None if nobody can."""
    if declared is not None:
        known = [v for v in declared if v in set(values)]
        return known + sorted(set(values) - set(known), key=str)
    if not all(isinstance(v, str) for v in values):
        return sorted(values)
    return order_of_names(values)


def _natural(text: str) -> list[tuple[int, int, str]]:
    """Numbers inside text in their own order: part2 before part10."""
    return [(0, int(p), "") if p.isdigit() else (1, 0, p)
            for p in re.split(r"(\d+)", text.lower()) if p]  # fmt: skip


def _shown(value: Any, noun: str) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and noun in NOUNS:
        return str(value) if noun == "year" else f"{noun} {value}"
    return str(value)


def _without_clocks(periods: Periods) -> Periods:
    """Without columns that only tell the period again: dates, or one value in each period."""
    tables = periods.tables
    gone = [
        name
        for name in tables[0].columns
        if _tells_the_period([t.columns[name] for t in tables if name in t.columns])
    ]
    if not gone or len(gone) == len(tables[0].columns):
        return periods
    tells = "it only tells" if len(gone) == 1 else "they only tell"
    note = f"Left aside, because {tells} the period again: {listed(gone)}."
    cut = tuple(_without(table, gone) for table in tables)
    return Periods(cut, periods.noun, [*periods.notes, note])


def _tells_the_period(columns: Sequence[Any]) -> bool:
    """Whether the values of one column in each period lie apart, as dates or constants do."""
    from pyarrow import compute

    if len({family(c.type) for c in columns}) > 1:
        return False
    if family(columns[0].type) == "text":
        times = [_times(c) for c in columns]
        columns = columns if None in times else times
    columns = [c.drop_null() for c in columns]
    spans = sorted(
        tuple(compute.min_max(c).as_py().values())
        for c in columns
        if len(c) and family(c.type) in ("numbers", "text", "times")
    )
    if len(spans) < 2 or any(a[1] >= b[0] for a, b in pairwise(spans)):
        return False
    return family(columns[0].type) == "times" or all(a == b for a, b in spans)
