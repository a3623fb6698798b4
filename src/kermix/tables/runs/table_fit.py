"""Which tables are fitted by the table model, and the beginning of such a fit."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from kermix.data.loading import is_table
from kermix.data.readers.common import Reading, listed
from kermix.data.readers.frames import Frame
from kermix.data.readers.reading import read_frame
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import Schema
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.data.sources import Table
from kermix.distributed.processes import check_ranks
from kermix.environment import is_rank
from kermix.errors import OptionError, SchemaError
from kermix.runs.folder import next_free_folder
from kermix.runs.run import KEPT, Run, Start, has_folder
from kermix.tables.model.conditioning import place_of
from kermix.tables.model.planning import SIZES, TrainingPlan, planned
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.training_rows import table_split
from kermix.tables.runs.table_run import TABLE_RUN, rows_judged
from kermix.tables.runs.target_fit import TARGET_RUN, keep_test_rows
from kermix.tables.runs.training_data import (
    LargeTable,
    TableData,
    form_of,
    keep_frame,
    move_into,
    rows_of,
    stored_table,
)
from kermix.training.budget import in_words, seconds_of
from kermix.training.checkpoints import device_of

__all__ = [
    "COMPARED_MODELS",
    "READING",
    "TABLE_SETTINGS",
    "TableFit",
    "TypedTable",
    "can_compare_models",
    "has_densities",
    "table_settings",
    "typed_table",
    "why_table_model",
]

READING = ("columns", "exclude", "kinds", "delimiter", "decimal", "encoding", "header", "missing",
           "sheet")  # fmt: skip
# The target itself is named by a column.
TABLE_SETTINGS = {field.name for field in fields(TableModelSettings)} - {"target"}
COMPARED_MODELS = (
    "All columns are numbers: a closed-form mixture is fitted too, and the model that is better "
    "on held-out rows is kept (override with --model table or --model mixture)."
)


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
        reading: What was said about it; see `kermix.data.readers.common.Reading`.
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
    schema = Schema.infer(frame, kinds=dict(given.get("kinds", {})))
    source = str(data) if isinstance(data, str | Path) else None
    return TypedTable(frame, schema, source, tuple(notes))


def why_table_model(schema: Schema, rows: int, least_rows: int = 20) -> str | None:
    """Why a mixture of Gaussians cannot stand for a table, in a few words; None if it can.

    Example:
        >>> schema = Schema.infer({"a": [0.5, 1.5, 2.25] * 9, "b": ["x", "y", "z"] * 9})
        >>> why_table_model(schema, rows=27)
        'b is a category'
    """
    for column in schema.columns:
        told = _why(column, rows >= least_rows)
        if told:
            return f"{listed([column.name])} {told}"
    return None


def _why(column: Any, many: bool) -> str | None:
    if isinstance(column, LeftOutColumn):
        return _why_left_out(column, many)
    if column.gaps:
        return "has gaps"
    if isinstance(column, CategoryColumn):
        text = "int" not in column.value_type and "float" not in column.value_type
        return "is a category" if many or text else None
    assert isinstance(column, NumberColumn)
    if column.time:
        return "is a time"
    return _why_shared(column) if many else None


def _why_left_out(column: LeftOutColumn, many: bool) -> str | None:
    if column.what == "constant" or not (many or column.what == "text"):
        return None
    return f"is {'a key' if column.what == 'key' else 'text'}"


def _why_shared(column: NumberColumn, mostly: float = 0.5) -> str | None:
    """What values that rows share say of numbers, where there are many rows."""
    if column.continuous < mostly:
        return "has a few values shared by most rows"
    if len(column.atoms):
        return "has values shared by many rows"
    return "has integers" if column.decimals == 0 else None


def has_densities(schema: Schema) -> bool:
    """Whether mixtures and the table model have densities of the same kind for a table.

    All modelled columns are numbers without gaps. A value that many rows share has a probability
    in the table model, which is a density where the step is known to which numbers are rounded.
    """
    good = all((not len(c.atoms) or c.decimals is not None) and not c.has_missing and not c.time
               for c in schema.numbers)  # fmt: skip
    return good and 0 < len(schema.numbers) == len(schema.modelled)


def can_compare_models(table: TypedTable) -> bool:
    """Whether held-out rows can tell if a mixture or the table model is better.

    Some must be held out, and both must have densities of the same kind.
    """
    held, _ = table_split(table.frame.rows, TableModelSettings())
    return len(held) > 0 and has_densities(table.schema)


def table_settings(
    given: Mapping[str, Any], target: int | None, device: str = "cpu"
) -> TableModelSettings:
    """The settings of a fit of the table model.

    Args:
        given: What the user chose, by name; `budget` says what suits of the others.
        target: The place of the target among the columns that are modelled, if there is one.
        device: Where it is trained: a GPU has time for more.
    """
    unused = sorted(set(given) - TABLE_SETTINGS)
    if unused:
        raise OptionError(
            f"{unused[0]} does not apply to the table model; it takes "
            f"{', '.join(sorted(TABLE_SETTINGS))}."
        )
    given = {name: value for name, value in given.items() if value is not None}
    if "steps" in given and seconds_of(given.get("budget")) is not None:
        raise OptionError(
            f"steps={given['steps']}: a budget of {given['budget']} says how long to train; leave "
            "out one of them."
        )
    base = replace(_base_settings(given.get("target_share", 0), target),
                   budget=given.get("budget"))  # fmt: skip
    base = base.suited(device_of(device).type == "cuda")
    chosen = replace(base, **given)
    if chosen.out_of_fold and not chosen.learns_target_alone:
        raise OptionError(
            "out_of_fold=True is for a target alone (target_share=1): the report of a whole table "
            "needs rows that no member has seen."
        )
    return chosen


def _base_settings(share: float, target: int | None) -> TableModelSettings:
    """What suits a target that so much of the training is about."""
    if share and target is None:
        raise OptionError(f"target_share={share} needs a target, the name of a column.")
    if share == 1 and target is not None:
        return TableModelSettings.for_target(target)
    return TableModelSettings(target=target if share else None)


@dataclass(frozen=True)
class TableFit:
    """A fit of the table model that is to begin.

    Attributes:
        table: What is fitted.
        settings: What the user chose, by name.
        start: How the training is started; batches are shared by its processes.
        options: How the table is read again.
        target: The column that `predict` is about.
        reason: Why the table model was chosen, as a sentence.
        compare_models: Whether a mixture takes its place where held-out rows prefer it.
    """

    table: TypedTable | LargeTable
    settings: Mapping[str, Any]
    start: Start
    options: Mapping[str, Any]
    target: str | None = None
    reason: str | None = None
    compare_models: bool = False

    def begin(self, folder: Path | None) -> tuple[Run, TableData]:
        """Make the run folder, which must not exist; nothing is trained yet."""
        table = self.table
        if not table.schema.modelled:
            frame = table.frame if isinstance(table, TypedTable) else table.look.sample
            raise SchemaError(
                f"{frame.name}: no column can be modelled. " + " ".join(table.schema.notes())
            )
        check_ranks(self.start.devices, self.start.nodes)
        self.start.check_device()
        if isinstance(table, LargeTable):
            return self._begin_on_disk(table, folder)
        return self._begin_in_memory(table, folder)

    def _begin_in_memory(self, table: TypedTable, folder: Path | None) -> tuple[Run, TableData]:
        kept = table.source is None
        if self.start.nodes > 1 and kept:
            raise OptionError(
                "Several nodes read their data from files: write the data to a file first."
            )
        data, notes = self._rows(table)
        folder = folder or next_free_folder(self._name(table, data))
        if table.source is None:
            source = str((folder / KEPT[True]).absolute())
            options: Mapping[str, Any] = {}
            facts = {"frame": table.frame.kind, "form": ".parquet", "notes": notes}
        else:
            source, options = table.source, self.options
            facts = {"frame": "pandas", "form": form_of(source), "notes": notes}
        run = self._begun(folder, source, data, self._settings(data.schema), options, facts)
        if kept and run.is_main:
            keep_frame(table.frame, Path(source))
        return run, data

    def _name(self, table: TypedTable, data: TableData) -> str:
        """What the folder is called, if nobody said."""
        name = "table" if table.source is None else Path(table.source).name.partition(".")[0]
        return name if data.test is None else f"{name}-{self.target}"

    def _begin_on_disk(self, table: LargeTable, folder: Path | None) -> tuple[Run, TableData]:
        """Begin a run whose rows are in a file of its folder."""
        if self.start.nodes > 1 or is_rank():
            raise OptionError(
                "A table trained from disk is encoded in its run folder, which other nodes cannot "
                "see: use --devices on one machine, or --in-memory."
            )
        settings = self._settings(table.schema)
        if settings.learns_target_alone:
            raise OptionError(
                f"{Path(table.source).name}: a target alone (target_share=1) is learned from "
                "tables in memory (--in-memory), not from disk."
            )
        folder = folder or next_free_folder(Path(table.source).name.partition(".")[0])
        facts = {"frame": "pandas", "form": form_of(table.source), "notes": table.notes}
        with stored_table(table, settings, folder.absolute().parent) as (data, place):
            run = self._begun(folder, table.source, data, settings, self.options, facts)
            return run, move_into(folder, place, data)

    def _rows(self, table: TypedTable) -> tuple[TableData, tuple[str, ...]]:
        """The rows to train with, beside those of a test where a target is learned alone."""
        if self.settings.get("target_share") != 1:
            return TableData.of(table.frame, table.schema), table.notes
        kinds, seed = self.options.get("kinds") or {}, self.settings.get("seed", 0)
        assert self.target is not None
        rows = keep_test_rows(table.frame, table.schema, self.target, seed, kinds)
        data = TableData.of(rows.train, rows.schema)._replace(test=rows.test)
        return data, (*rows.notes, *table.notes)

    def _settings(self, schema: Schema) -> TableModelSettings:
        place = None if self.target is None else place_of(schema, self.target)
        return table_settings(self.settings, place, self.start.device)

    def _plan(self, data: TableData, settings: TableModelSettings) -> TrainingPlan | None:
        """The steps that a time has room for; None where none was given."""
        if seconds_of(settings.budget) is None:
            return None
        if not self.start.alone:
            raise OptionError(
                f"budget={settings.budget!r}: the time of several processes is not planned; give "
                "steps."
            )
        chosen = bool(SIZES & {*self.settings})
        held, _ = table_split(data.rows, settings)
        drawn = (rows_judged(data) + len(held)) * data.layout.columns
        return planned(data.layout, data.to_train(), settings, began=self.start.began,
                       device=self.start.device, chosen=chosen, drawn=drawn)  # fmt: skip

    def _begun(
        self,
        folder: Path,
        source: str,
        data: TableData,
        settings: TableModelSettings,
        options: Mapping[str, Any],
        facts: Mapping[str, Any],
    ) -> Run:
        settings, start = settings.for_rows(data.rows), self.start
        plan = self._plan(data, settings)
        settings = settings if plan is None else plan.settings
        held, train = table_split(data.rows, settings)
        if not start.alone:
            settings.check_shares(len(train), start.devices * start.nodes)
        notes = [*([self.reason] if self.reason else []), *facts["notes"], *data.schema.notes(),
                 *data.link_notes()]  # fmt: skip
        if plan is not None and plan.too_short:
            notes.append(
                f"{data.frame.name}: {settings.budget} is short for this table: reading and the "
                f"report take most of it, so the fit ends later, after {in_words(plan.least)} of "
                "training."
            )
        if not len(held):
            notes.append(
                f"{data.frame.name}: no rows are held out; metrics are for the training rows, not "
                "for new ones."
            )
        main = has_folder(start.devices, start.nodes)
        run = Run.begin(
            TARGET_RUN if settings.learns_target_alone else TABLE_RUN,
            folder,
            source,
            settings,
            start,
            options={n: v for n, v in options.items() if v not in (None, (), {})},
            facts={
                "shape": [data.rows, len(data.schema)],
                "stored": None if data.stored is None else data.stored.to_dict(),
                "columns": list(data.schema.names),
                "target": self.target,
                "compare_models": self.compare_models,
                "course": None if plan is None else plan.as_json(),
                "csv": None if data.frame.form is None else data.frame.form.to_dict(),
                "fingerprint": data.fingerprint(),
                **data.layout.relations(data.schema),
                **facts,
                "notes": notes,
                "ranks": start.ranks,
            },
        )
        if main:
            data.schema.save(folder / "schema.json")
        # Processes on other nodes do not see the folder.
        return replace(run, config={**run.config, "schema": data.schema.to_dict()})
