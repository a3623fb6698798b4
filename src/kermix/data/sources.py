"""Sources of data as rows that can be compared: numbers, or numbers and codes.

Times that are written differently in several tables, as times.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kermix.data.readers.common import listed, load_pyarrow
from kermix.data.readers.frames import ColumnType, Frame
from kermix.data.readers.numeric_table import Table, common_columns, read_table, table_of_arrow
from kermix.data.readers.reading import read_alike
from kermix.data.readers.sniff import Reading
from kermix.data.schema.columns import family
from kermix.data.schema.mixed_rows import MixedRows
from kermix.data.schema.schema import Schema
from kermix.data.schema.times import parse_times, text_format
from kermix.errors import SchemaError

__all__ = ["Sources", "read_sources", "with_same_times"]


def with_same_times(
    frames: Sequence[Frame], known: Collection[str] = ()
) -> tuple[list[Frame], list[str]]:
    """Tables whose times are no text where they are written in several ways, and what to say.

    Args:
        frames: Tables, most columns of which have the same names.
        known: Columns whose kind is known, which stay as they are.
    """
    found, notes = list(frames), []
    for name in frames[0].columns if len(frames) > 1 else ():
        if name in known or not all(name in f.columns for f in frames):
            continue
        ways = [_way(frame, name) for frame in frames]
        if None in ways or len(set(ways)) == 1 or _written_alike(frames, name):
            continue
        shown = [f"{way[0] or 'times'} in {f.name}" for way, f in zip(ways, frames, strict=True)
                 if way is not None]  # fmt: skip
        notes.append(f"Column {name} is written as {' and '.join(shown)}; compared as times.")
        for k, way in enumerate(ways):
            assert way is not None
            column = _times(found[k].columns[name], way)
            types = {**found[k].types, name: ColumnType(str(column.type))}
            columns = {**found[k].columns, name: column}
            found[k] = replace(found[k], columns=columns, types=types)
    return found, notes


def _written_alike(frames: Sequence[Frame], name: str) -> bool:
    """Whether one way fits all tables: 01/02/2020 may be of January, but not beside 31/01/2020."""
    columns = [f.columns[name] for f in frames]
    if any(family(c.type) != "text" for c in columns):
        return False
    arrow = load_pyarrow()
    chunks = [chunk for c in columns for chunk in c.cast(arrow.string()).chunks]
    return text_format(arrow.chunked_array(chunks).drop_null().unique()) is not None


def _way(frame: Frame, name: str) -> tuple[str, str] | None:
    """How a column of times is written; empty text where it is no text, None if it is none."""
    column, kind = frame.columns[name], frame.types[name]
    types = load_pyarrow().types
    if types.is_timestamp(column.type) or types.is_date(column.type):
        return "", ""
    if family(column.type) != "text" or kind.declared is not None or kind.mixed:
        return None
    return text_format(column.drop_null().cast("string").unique())


def _times(column: Any, way: tuple[str, str]) -> Any:
    arrow = load_pyarrow()
    form, unit = way
    if form:
        times = parse_times(column.cast(arrow.string()), form, unit)
        assert times is not None
        zoned = form.endswith(("Z", "+00:00"))
        return times.cast(arrow.timestamp(unit, "UTC" if zoned else None))
    if not arrow.types.is_date(column.type):
        return column
    return column.cast(arrow.timestamp("s"))


NUMERIC_FILES = (".npy", ".npz")


@dataclass(frozen=True)
class Sources:
    """Data sets with the same columns.

    Attributes:
        tables: Numbers, or mixed rows, of each.
        mixed: How mixed rows were made; None if all columns are numbers without gaps.
        notes: What was assumed and left out.
    """

    tables: tuple[Table, ...]
    mixed: MixedRows | None
    notes: list[str]


def read_sources(sources: Sequence[Any], reading: Reading) -> Sources:
    """Read one or two; the schema of mixed tables and their scales are of the pooled rows."""
    if any(_is_plain(s) for s in sources) and not (reading.kinds or reading.exclude):
        tables = _matched(
            [read_table(s, columns=reading.columns, reading=reading) for s in sources]
        )
        if not any(t.dropped for t in tables):
            return Sources(tables, None, [note for t in tables for note in t.notes()])
    found = read_alike(sources, reading)
    frames, same = with_same_times([frame for frame, _ in found], reading.kinds)
    notes = [*dict.fromkeys(note for _, said in found for note in said), *same]
    if not reading.kinds and all(_is_numeric(f) for f in frames):
        return Sources(_matched([_numbers(f) for f in frames]), None, notes)
    kinds: dict[str, Any] = dict(reading.kinds)
    schema = Schema.of(*frames, kinds=kinds)
    if not schema.modelled:
        raise SchemaError(
            f"No column is left to compare: {listed(schema.names)} are constants, keys or text."
        )
    # Values of pooled tables are all known.
    encoded = [schema.encode(f, name=f.name) for f in frames]
    maker = MixedRows.of(schema, encoded)
    names = list(maker.column_names)
    rows = [Table(maker(e), names, f.name) for e, f in zip(encoded, frames, strict=True)]
    numbers = len(schema.numbers)
    notes += [
        *schema.notes(),
        f"{_counted(numbers, len(schema.modelled) - numbers)}; missing values are one of their "
        "own.",
    ]
    return Sources(tuple(rows), maker, notes)


def _counted(numbers: int, categories: int) -> str:
    """How many columns of each kind, and what became of them."""
    found = []
    if numbers:
        found.append(f"{numbers} column{'s' * (numbers > 1)} of numbers and times, as normal "
                     "scores of all rows together")  # fmt: skip
    if categories:
        found.append(f"{categories} {'categories' if categories > 1 else 'category'}")
    return ", and ".join(found)


def _matched(tables: Sequence[Table]) -> tuple[Table, ...]:
    return common_columns(*tables) if len(tables) == 2 else tuple(tables)


def _is_plain(source: Any) -> bool:
    """Whether a source can hold nothing but numbers."""
    if isinstance(source, str | Path):
        return Path(str(source).partition(".npz:")[0]).suffix.lower() in NUMERIC_FILES or (
            ".npz:" in str(source)
        )
    if isinstance(source, Table):
        return True
    if isinstance(source, Tensor | np.ndarray):
        return True
    return isinstance(source, list | tuple) and not all(isinstance(s, str | Path) for s in source)


def _is_numeric(frame: Frame) -> bool:
    """Whether all columns are numbers (or truth values) without gaps."""
    return all(
        family(c.type) in ("numbers", "truth values")
        and c.null_count == 0
        and frame.types[name].declared is None
        for name, c in frame.columns.items()
    )


def _numbers(frame: Frame) -> Table:
    from pyarrow import table as arrow_table

    names = list(frame.columns)
    named = names != [f"x{k}" for k in range(len(names))]
    return table_of_arrow(arrow_table(dict(frame.columns)), frame.name, None, named=named)
