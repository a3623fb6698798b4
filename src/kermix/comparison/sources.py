"""Two sources of data as rows that can be compared: numbers, or numbers and codes."""

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
from kermix.data.tables.reading import read_frame
from kermix.data.tables.schema import Schema
from kermix.data.tables.table import Table, common_columns, read_table, table_of_arrow
from kermix.errors import SchemaError

__all__ = ["Pair", "read_pair"]

NUMERIC_FILES = (".npy", ".npz")


@dataclass(frozen=True)
class Pair:
    """Both data sets with the same columns.

    Attributes:
        first: Numbers, or mixed rows.
        second: The same of the other.
        mixed: How mixed rows were made; None if all columns are numbers without gaps.
        notes: What was assumed and left out.
    """

    first: Table
    second: Table
    mixed: MixedRows | None
    notes: list[str]


def read_pair(x: Any, y: Any, reading: Reading) -> Pair:
    """Read both; the schema of mixed tables and their scales are of the pooled rows."""
    if _is_plain(x) or _is_plain(y):
        first, second = (read_table(s, columns=reading.columns) for s in (x, y))
        first, second = common_columns(first, second)
        return Pair(first, second, None, [*first.notes(), *second.notes()])
    found = [read_frame(source, reading) for source in (x, y)]
    frames = [frame for frame, _ in found]
    notes = list(dict.fromkeys(note for _, said in found for note in said))
    if not reading.kinds and all(_is_numeric(f) for f in frames):
        tables = common_columns(*(_numbers(f) for f in frames))
        return Pair(tables[0], tables[1], None, notes)
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
    notes += schema.notes()
    numbers = len(schema.numbers)
    notes.append(
        f"{numbers} columns of numbers and times, as normal scores of all rows together, and "
        f"{len(schema.modelled) - numbers} categories; missing values are a category of their own."
    )
    return Pair(rows[0], rows[1], maker, notes)


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
