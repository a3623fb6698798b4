"""The beginning of a model of one column of a table."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kermix.data.tables.columns import CategoryColumn, NumberColumn
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.frames import Frame
from kermix.data.tables.left_out import LeftOutColumn
from kermix.data.tables.reading import read_frame
from kermix.data.tables.schema import Schema
from kermix.errors import OptionError, TableError
from kermix.models.table.given import nearest
from kermix.runs.folder import next_free_folder
from kermix.runs.table_data import TableData, form_of
from kermix.runs.table_fit import TABLE_SETTINGS
from kermix.runs.target_run import DEFAULTS, TargetRun, split_for_target
from kermix.training.table_settings import TableModelSettings

__all__ = ["begin_target_fit"]

LEAST_ROWS = 25  # of which five are for the test
QUICK = {"width": 64, "blocks": 2, "steps": 200}


def begin_target_fit(
    data: str | Path,
    target: str,
    *,
    folder: Path | None = None,
    quick: bool = False,
    settings: Mapping[str, Any] | None = None,
    reading: Mapping[str, Any] | None = None,
    device: str = "auto",
    precision: str = "32-true",
) -> tuple[TargetRun, TableData]:
    """Make the run folder of a model of one column; nothing is trained yet.

    Args:
        data: A file.
        target: The column to predict.
        folder: Where the run is to be; by default `runs/NAME-COLUMN`.
        quick: Whether to train a small network, for a first look.
        settings: Settings of `kermix.training.table_settings.TableModelSettings`.
        reading: What was said about the file.
        device: `"auto"`, `"cpu"`, `"cuda"`, ...
        precision: A precision of Fabric's.
    """
    given = dict(settings or {})
    known = TABLE_SETTINGS - {"target", "target_share"} | {"crossed"}
    unused = sorted(set(given) - known)
    if unused:
        raise OptionError(
            f"{unused[0]} does not apply to a table; settings are {', '.join(sorted(known))}."
        )
    chosen = TableModelSettings(target=0, **{**DEFAULTS, **(QUICK if quick else {}), **given})
    said = dict(reading or {})
    frame, notes = read_frame(str(data), Reading(**said))
    kinds: dict[str, Any] = dict(said.get("kinds", {}))
    column = _target(Schema.of(frame, kinds=kinds), target, frame)
    train, test = split_for_target(frame, column, chosen.seed)
    gaps = frame.rows - train.rows - test.rows
    if train.rows + test.rows < LEAST_ROWS or not test.rows:
        raise TableError(
            f"{frame.name}: {train.rows + test.rows} rows have a {target}, but at least "
            f"{LEAST_ROWS} are needed for training and testing."
        )
    # From the training rows alone: nothing of the test rows is known before they are predicted.
    kinds[target] = column.kind
    schema = Schema.of(train, kinds=kinds)
    if len(schema.modelled) < 2:
        raise TableError(
            f"{frame.name}: there is no column other than {target} to predict it from."
        )
    table = TableData.of(train, schema)._replace(test=test)
    place = [c.name for c in schema.modelled].index(target)
    run = TargetRun.create(
        folder or next_free_folder(f"{Path(data).name.partition('.')[0]}-{target}"),
        str(data), table, replace(chosen, target=place), frame="pandas", form=form_of(str(data)),
        target=target, device=device, precision=precision, options=said,
        notes=(*_told(column), *notes,
               *([f"{gaps:,} rows without a {target} are ignored."] if gaps else [])),
    )  # fmt: skip
    assert isinstance(run, TargetRun)
    return run, table


def _target(schema: Schema, name: str, frame: Frame) -> CategoryColumn | NumberColumn:
    if name not in schema.names:
        raise OptionError(
            f"{frame.name}: there is no column {name!r} to predict{nearest(name, schema.names)}"
        )
    column = schema[name]
    if isinstance(column, LeftOutColumn):
        if column.what == "constant":
            raise OptionError(
                f"{frame.name}: {name} has the same value in all rows, or none, so there is "
                "nothing to predict."
            )
        why = f" ({column.reason})" if column.reason else ""
        raise OptionError(
            f"{frame.name}: {name} is a {column.what}{why}, which cannot be predicted; if that "
            f"is wrong, use --kind {name}=category or --kind {name}=number."
        )
    assert isinstance(column, CategoryColumn | NumberColumn)
    if isinstance(column, CategoryColumn) and len(column.values) < 2:
        raise OptionError(
            f"{frame.name}: {name} has the same value in all rows, so there is nothing to predict."
        )
    if isinstance(column, NumberColumn) and column.time:
        raise OptionError(
            f"{frame.name}: {name} is a time, which has neither classes nor an error in its own "
            f"units; kermix fit --target {name} gives its quantiles."
        )
    return column


def _told(column: CategoryColumn | NumberColumn) -> list[str]:
    """One sentence about what is done, where it may not be what was meant."""
    if isinstance(column, NumberColumn):
        return [f"{column.name} is a number ({column.details()}), so this is a regression: its "
                "whole distribution is predicted, with mean, median and intervals."]  # fmt: skip
    if "int" in column.value_type or "float" in column.value_type:
        return [f"{column.name} has {len(column.values)} values, which are treated as classes; "
            f"--kind {column.name}=number makes it a regression."]  # fmt: skip
    return []
