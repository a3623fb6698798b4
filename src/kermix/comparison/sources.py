"""Sources of data as rows that can be compared: numbers, or numbers and codes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from kermix.data.tables.columns import family
from kermix.data.tables.common import listed
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.frames import Frame
from kermix.data.tables.mixed_rows import MixedRows
from kermix.data.tables.reading import read_alike
from kermix.data.tables.same_times import with_same_times
from kermix.data.tables.schema import Schema
from kermix.data.tables.table import Table, common_columns, read_table, table_of_arrow
from kermix.errors import SchemaError

__all__ = ["Sources", "read_sources"]

NUMERIC_FILES = (".npy", ".npz")


@dataclass(frozen=True)
class Sources:
    """Data sets with the same columns.

    Attributes:
        tables: Numbers, or mixed rows, of each.
        mixed: How mixed rows were made; None if all columns are numbers without gaps.
        notes: What was assumed and left out.
        frames: What mixed rows were made of.
    """

    tables: tuple[Table, ...]
    mixed: MixedRows | None
    notes: list[str]
    frames: tuple[Frame, ...] = ()


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
    return Sources(tuple(rows), maker, notes, tuple(frames))


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
