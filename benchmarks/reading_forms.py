"""Text files with money, units, dates and codes as people write them: are they understood?

Unlike `benchmarks.reading_files`, which asks for the types of cells, these files ask what a
column is in the end: its kind, its values, and whether it is written back to the letter. Columns,
dialects and gaps are drawn independently.
"""

import csv
import datetime
import gzip
import io
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kermix.data.readers.common import Reading
from kermix.data.readers.parts import open_files
from kermix.data.readers.reading import read_frame
from kermix.data.schema.schema import Schema
from kermix.data.writing import csv_lines
from kermix.errors import KermixError

__all__ = ["judged_forms"]

GAPS = ("", "NA", "-", "?", "n/a", "NULL")
START = datetime.datetime(2015, 3, 1, 0, 0, 0)


class Made(NamedTuple):
    """A column: what it is, its cells, its numbers if it has some, and the kind it should be."""

    what: str
    cells: list[str]
    numbers: list[float] | None
    kind: str


def _numbers(
    write: Callable[[float], str], places: int = 2, scale: float = 4.0, negative: float = 0.0
) -> Callable[[np.random.Generator, int, str], Made]:
    def made(rng: np.random.Generator, n: int, what: str) -> Made:
        values = np.round(rng.lognormal(scale, 1, n), places)
        values = np.where(rng.random(n) < negative, -values, values) + 0.0
        return Made(what, [write(v) for v in values.tolist()], values.tolist(), "number")

    return made


def _dates(form: str) -> Callable[[np.random.Generator, int, str], Made]:
    def made(rng: np.random.Generator, n: int, what: str) -> Made:
        times = [START + datetime.timedelta(seconds=int(s)) for s in rng.integers(0, 10**8, n)]
        return Made(what, [t.strftime(form) for t in times], None, "time")

    return made


def _texts(
    write: Callable[[int], str], kind: str, most: int = 10**6
) -> Callable[[np.random.Generator, int, str], Made]:
    def made(rng: np.random.Generator, n: int, what: str) -> Made:
        numbers = rng.integers(0, most, n).tolist()
        return Made(what, [write(k) for k in numbers], None, kind)

    return made


def _german(text: str) -> str:
    return text.translate(str.maketrans(",.", ".,"))


def _in_brackets(text: str, value: float) -> str:
    return f"({text})" if value < 0 else text


MAKERS: dict[str, Callable[[np.random.Generator, int, str], Made]] = {
    "dollars": _numbers(lambda v: f"${v:.2f}"),
    "dollars and thousands": _numbers(lambda v: f"${v:,.2f}", scale=7),
    "dollars below zero": _numbers(lambda v: f"{'-' * (v < 0)}${abs(v):,.2f}", negative=0.3),
    "dollars in brackets": _numbers(lambda v: _in_brackets(f"${abs(v):,.2f}", v), negative=0.3),
    "brackets": _numbers(lambda v: _in_brackets(f"{abs(v):,.2f}", v), negative=0.3),
    "euros before": _numbers(lambda v: f"€{v:.2f}"),
    "euros after": _numbers(lambda v: f"{_german(f'{v:,.2f}')} €", scale=7),
    "code before": _numbers(lambda v: f"USD {v:,.2f}"),
    "code after": _numbers(lambda v: f"{v:.0f} USD", 0, 6),
    "percent": _numbers(lambda v: f"{v:.1f}%", 1),
    "percent apart": _numbers(lambda v: f"{v:.1f} %", 1),
    "kilograms": _numbers(lambda v: f"{v:.0f} kg", 0, 6),
    "kilometres": _numbers(lambda v: f"{v:.1f}km", 1),
    "speeds": _numbers(lambda v: f"{v:.1f} km/h", 1),
    "thousands": _numbers(lambda v: f"{v:,.2f}", scale=8),
    "whole thousands": _numbers(lambda v: f"{v:,.0f}", 0, 9),
    "Swiss": _numbers(lambda v: f"{v:,.2f}".replace(",", "'"), scale=8),
    "French": _numbers(lambda v: f"{v:,.2f}".replace(",", " ").replace(".", ","), scale=8),
    "minus of typesetters": _numbers(lambda v: f"{v:.2f}".replace("-", "\u2212"), negative=0.3),
    "signs": _numbers(lambda v: f"{v:+.1f}", 1, negative=0.4),
    "plain": _numbers(lambda v: f"{v:.2f}", negative=0.2),
    "ISO days": _dates("%Y-%m-%d"),
    "ISO times": _dates("%Y-%m-%d %H:%M:%S"),
    "ISO minutes": _dates("%Y-%m-%dT%H:%M"),
    "universal": _dates("%Y-%m-%dT%H:%M:%SZ"),
    "zoned": _dates("%Y-%m-%dT%H:%M:%S+02:00"),
    "German days": _dates("%d.%m.%Y"),
    "short German days": _dates("%d.%m.%y"),
    "American days": _dates("%m/%d/%Y"),
    "American times": _dates("%m/%d/%Y %I:%M %p"),
    "British days": _dates("%d/%m/%Y"),
    "months by name": _dates("%d-%b-%Y"),
    "long days": _dates("%B %d, %Y"),
    "clocks": _dates("%H:%M"),
    "postcodes": _texts(lambda k: f"{k:05d}", "key or category", 99_999),
    "long postcodes": _texts(lambda k: f"{k:05d}-{k % 9999:04d}" if k % 50 == 0 else f"{k:05d}",
                             "key, text or category", 99_999),
    "order numbers": _texts(lambda k: f"ORD-{k:06d}", "key"),
    "card numbers": _texts(lambda k: f"4{k:019d}", "key"),
    "yes or no": _texts(lambda k: ("yes", "no")[k % 2], "category"),
    "true or false": _texts(lambda k: ("TRUE", "FALSE")[k % 2], "category"),
    "colors": _texts(lambda k: ("red", "dark green", "blue, light", '"new"')[k % 4], "category"),
    "lines": _texts(lambda k: ("one\ntwo", "three", "four;five")[k % 3], "category"),
    "about": _texts(lambda k: f"~{k}", "text"),
    "with errors": _texts(lambda k: f"{k / 7:.1f} \u00b1 {k % 3}.5", "text"),
    "weeks": _texts(lambda k: f"20{k % 25:02d}-W{k % 52 + 1:02d}", "text"),
    "two currencies": _texts(lambda k: f"{'$€'[k % 2]}{k / 100:.2f}", "text"),
}  # fmt: skip
NOT_SO = "is not what it is", "has other values", "is written otherwise", "differs in parts"


def judged_forms(count: int, work: Path, seed: int = 1) -> Iterator[dict[str, Any]]:
    """How often each kind of column was wrong in so many files, and in what."""
    seen: Counter[str] = Counter()
    wrong: dict[str, Counter[str]] = {name: Counter() for name in MAKERS}
    for k in range(count):
        rng = np.random.default_rng([seed, k])
        path, columns = _written(rng, k, work)
        for made, fault in zip(columns, _faults(path, columns), strict=True):
            seen[made.what] += 1
            if fault is not None:
                wrong[made.what][fault] += 1
    yield {"what": "all", "columns": sum(seen.values()), "files": count,
           "wrong": sum(sum(c.values()) for c in wrong.values())}  # fmt: skip
    for name in MAKERS:
        if wrong[name]:
            yield {"what": name, "columns": seen[name], "wrong": sum(wrong[name].values()),
                   **wrong[name]}  # fmt: skip


def _written(rng: np.random.Generator, k: int, work: Path) -> tuple[Path, list[Made]]:
    """A file of some columns, in a dialect that can hold them."""
    n = int(rng.integers(60, 400))
    names = [
        str(name) for name in rng.choice(list(MAKERS), int(rng.integers(2, 7)), replace=False)
    ]
    columns = [_with_gaps(rng, MAKERS[name](rng, n, name)) for name in names]
    delimiter = str(rng.choice(list(",;\t|")))
    text = io.StringIO()
    ends = str(rng.choice(["\n", "\r\n"]))
    writer = csv.writer(text, delimiter=delimiter, lineterminator=ends)
    writer.writerow([f"c{j}" for j in range(len(columns))])
    for row in zip(*(made.cells for made in columns), strict=True):
        writer.writerow(row)
        if rng.random() < 0.02:
            text.write(ends)
    content = text.getvalue().encode(str(rng.choice(["utf-8", "utf-8-sig", "utf-16"])))
    path = work / f"{k:04d}.csv{'.gz' if rng.random() < 0.2 else ''}"
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path, columns


def _with_gaps(rng: np.random.Generator, made: Made) -> Made:
    if made.kind not in ("number", "time") or rng.random() < 0.6:
        return made
    gap = str(rng.choice(GAPS))
    empty = rng.random(len(made.cells)) < 0.1
    cells = [gap if e else c for c, e in zip(made.cells, empty, strict=True)]
    numbers = None if made.numbers is None else [
        float("nan") if e else v for v, e in zip(made.numbers, empty, strict=True)]  # fmt: skip
    return Made(made.what, cells, numbers, made.kind)


def _faults(path: Path, columns: list[Made]) -> list[str | None]:
    """What is wrong with each column; None where nothing is."""
    try:
        frame, notes = read_frame(path)
        schema = Schema.infer(frame)
        back = schema.decode(schema.encode(frame), "arrow")
        parts = open_files([str(path)], typed=True, reading=Reading())
        types = {t.schema for part in parts.parts for t, _ in part.tables()}
    except KermixError as error:
        return [f"refused: {error}"[:160]] * len(columns)
    assert frame.form is not None
    rows = "".join(csv_lines(back, frame.form))
    shown = list(csv.reader(io.StringIO(rows, newline=""), delimiter=frame.form.delimiter))
    commas = any("decimal comma" in note for note in notes)
    found: list[str | None] = []
    for k, (made, column) in enumerate(zip(columns, schema.columns, strict=True)):
        cells = [row[k] for row in shown]
        written = ["" if c in GAPS else c for c in made.cells]
        fault = None
        if {frame.columns[column.name].type} != {t.field(column.name).type for t in types}:
            fault = NOT_SO[3]
        elif column.kind not in made.kind.replace(",", "").split():
            fault = f"{NOT_SO[0]}: {column.kind}"
        elif made.numbers is not None and not _same(column, frame.columns[column.name], made):
            fault = f"{NOT_SO[1]}{', which is said' * commas}"
        elif column.kind not in ("key", "text") and cells != written:
            fault = NOT_SO[2]
        found.append(fault)
    return found


def _same(column: Any, cells: Any, made: Made) -> bool:
    found = column.numbers(cells, "file") + column.origin
    wanted = np.array([v for v in made.numbers or () if v == v])
    return len(found) == len(wanted) and bool(np.allclose(found, wanted, rtol=1e-12))
