"""Which tables are fitted by the table model, and the beginning of such a fit."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from kermix.data.loading import is_table
from kermix.data.readers.common import listed
from kermix.data.readers.frames import Frame
from kermix.data.readers.numeric_table import Table
from kermix.data.readers.reading import read_frame
from kermix.data.readers.sniff import Reading
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import Schema
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.environment import is_rank
from kermix.errors import OptionError, SchemaError
from kermix.runs.folder import next_free_folder
from kermix.runs.run import KEPT, Start
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.training_rows import table_split
from kermix.tables.runs.table_mixture import has_densities
from kermix.tables.runs.table_run import TableRun
from kermix.tables.runs.training_data import (
    LargeTable,
    TableData,
    form_of,
    keep_frame,
    move_into,
    rows_of,
    stored_table,
)

__all__ = [
    "CONTEST",
    "READING",
    "TABLE_SETTINGS",
    "TypedTable",
    "begin_table_fit",
    "is_contested",
    "typed_table",
    "why_table_model",
]

READING = ("columns", "exclude", "kinds", "delimiter", "decimal", "encoding", "header")
# Reports of whole tables need rows that no member has seen.
TABLE_SETTINGS = {field.name for field in fields(TableModelSettings)} - {"crossed"}
MOSTLY = 0.5
CONTEST = (
    "All columns are numbers: a closed-form mixture is fitted too, and the model that is better "
    "on held-out rows is kept (override with --model table or --model mixture)."
)
LEAST_ROWS = 20  # of fewer rows nothing can be said about whole numbers and keys


class TypedTable(NamedTuple):
    """A table whose columns have been looked at, and where it is from."""

    frame: Frame
    schema: Schema
    source: str | None  # None: it was in memory
    notes: tuple[str, ...]


def typed_table(
    data: Any, reading: Mapping[str, Any], rows: int | None, seed: int, asked: bool
) -> TypedTable | None:
    """The table in a file or in memory; None for what is no table with columns of its own.

    Args:
        data: A path, or a table in memory.
        reading: What was said about it; see `kermix.data.readers.sniff.Reading`.
        rows: How many rows to take.
        seed: For drawing them.
        asked: Whether the table model was asked for, also for arrays of numbers.
    """
    named = not isinstance(data, Tensor | np.ndarray | list | tuple | Table)
    if isinstance(data, str | Path):
        if not is_table(data, arrays=True):
            return None
        named = is_table(data)
    if not named and not asked:
        return None
    if isinstance(data, list | tuple):
        data = np.asarray(data)
    given = {n: v for n, v in reading.items() if v is not None}
    frame, notes = read_frame(data, Reading(**given))
    frame = rows_of(frame, rows, seed)
    schema = Schema.of(frame, kinds=dict(given.get("kinds", {})))
    source = str(data) if isinstance(data, str | Path) else None
    return TypedTable(frame, schema, source, tuple(notes))


def why_table_model(schema: Schema, rows: int) -> str | None:
    """Why a mixture of Gaussians cannot stand for a table, in a few words; None if it can.

    Example:
        >>> why_table_model(Schema.of({"a": [0.5, 1.5, 2.25] * 9, "b": ["x", "y", "z"] * 9}), 27)
        'b is a category'
    """
    for column in schema.columns:
        told = _why(column, rows >= LEAST_ROWS)
        if told:
            return f"{listed([column.name])} {told}"
    return None


def _why(column: Any, many: bool) -> str | None:
    if isinstance(column, LeftOutColumn):
        return f"is {'a key' if column.what == 'key' else 'text'}" if (
            column.what != "constant" and (many or column.what == "text")) else None  # fmt: skip
    if column.gaps:
        return "has gaps"
    if isinstance(column, CategoryColumn):
        text = "int" not in column.value_type and "float" not in column.value_type
        return "is a category" if many or text else None
    assert isinstance(column, NumberColumn)
    if column.time:
        return "is a time"
    if column.continuous < MOSTLY:
        return "has a few values shared by most rows" if many else None
    if many and len(column.atoms):
        return "has values shared by many rows"
    return "has integers" if many and column.decimals == 0 else None


def is_contested(table: TypedTable) -> bool:
    """Whether held-out rows can tell if a mixture or the table model is better.

    Some must be held out, and both must have densities of the same kind.
    """
    held, _ = table_split(table.frame.rows, TableModelSettings())
    return len(held) > 0 and has_densities(table.schema)


def begin_table_fit(
    table: TypedTable | LargeTable,
    *,
    folder: Path | None,
    quick: bool,
    settings: Mapping[str, Any],
    target: str | None,
    options: Mapping[str, Any],
    start: Start,
    reason: str | None = None,
    contest: bool = False,
) -> tuple[TableRun, TableData]:
    """Make the run folder of a fit of the table model; nothing is trained yet."""
    if start.nodes > 1 and isinstance(table, TypedTable) and table.source is None:
        raise OptionError(
            "Several nodes read their data from files: write the data to a file first."
        )
    unused = sorted(set(settings) - TABLE_SETTINGS)
    if unused:
        raise OptionError(
            f"{unused[0]} does not apply to the table model; it takes "
            f"{', '.join(sorted(TABLE_SETTINGS))}."
        )
    if not table.schema.modelled:
        raise SchemaError(
            f"{_frame(table).name}: no column can be modelled. " + " ".join(table.schema.notes())
        )
    chosen = TableModelSettings().quick() if quick else TableModelSettings()
    chosen = replace(chosen, **{n: v for n, v in settings.items() if v is not None})
    options = {n: v for n, v in options.items() if v not in (None, (), {})}
    notes = (*([reason] if reason else []), *table.notes)
    if isinstance(table, LargeTable):
        return _begin_stored(
            table, chosen, folder, start, target=target, options=options,
            notes=notes, quick=quick,
        )  # fmt: skip
    data = TableData.of(table.frame, table.schema)
    kept = table.source is None
    name = "table" if table.source is None else Path(table.source).name.partition(".")[0]
    folder = folder or next_free_folder(name)
    source = table.source or str((folder / KEPT[True]).absolute())
    run = TableRun.create(
        folder, source, data, chosen, start, target=target,
        options={} if kept else options,
        notes=notes,
        contest=contest, quick=quick,
        frame=table.frame.kind if kept else "pandas",
        form=".parquet" if kept else form_of(source),
    )  # fmt: skip
    if kept and run.is_main:
        keep_frame(table.frame, Path(source))
    return run, data


def _frame(table: TypedTable | LargeTable) -> Frame:
    return table.frame if isinstance(table, TypedTable) else table.look.sample


def _begin_stored(
    table: LargeTable,
    settings: TableModelSettings,
    folder: Path | None,
    start: Start,
    **given: Any,
) -> tuple[TableRun, TableData]:
    """Begin a run whose rows are in a file of its folder."""
    if start.nodes > 1 or is_rank():
        raise OptionError(
            "A table trained from disk is encoded in its run folder, which other nodes cannot "
            "see: use --devices on one machine, or --in-memory."
        )
    folder = folder or next_free_folder(Path(table.source).name.partition(".")[0])
    with stored_table(table, settings, folder.absolute().parent) as (data, place):
        run = TableRun.create(
            folder, table.source, data, settings, start, frame="pandas",
            form=form_of(table.source), **given,
        )  # fmt: skip
        return run, move_into(folder, place, data)
