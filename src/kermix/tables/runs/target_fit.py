"""Fits of one column of a table given all others: rows kept for a test, and what is reached there.

These are runs of the table model that answer about their target alone.
`kermix classify TABLE --target COLUMN` begins one, or a fit of the table model with
`target_share=1`.
"""

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from kermix.data.readers.common import counted, listed
from kermix.data.readers.frames import Frame, as_frame, taken_rows
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.errors import OptionError, SchemaError, TableError
from kermix.files import write_json
from kermix.runs.folder import TARGET
from kermix.runs.run import Numbers, OnRows, Outcome, Run, Shown
from kermix.tables.model.conditioning import nearest, never_seen, rows_of_zero_density
from kermix.tables.runs.table_run import (
    TABLE_RUN,
    checked_data,
    conditionals,
    frame_of,
    losses_shown,
    schema_of,
)
from kermix.tables.runs.target_quality import ClassQuality, Predicted, TargetQuality, judge_target
from kermix.tables.runs.training_data import TableData
from kermix.training.loop import Row

__all__ = ["TARGET_RUN", "keep_test_rows", "split_for_target"]


def split_for_target(frame: Frame, column: Any, seed: int, every: int = 5) -> tuple[Frame, Frame]:
    """Rows to train with, and a fifth for the test, of those that have the target.

    Of each class, every fifth row in random order is kept: shares of classes are the same on both
    sides, and a class of fewer rows is trained with alone.

    Args:
        frame: The table.
        column: The target's column of a schema.
        seed: Of the random order.
        every: Of how many rows of a class one is kept: a convention.
    """
    cells = frame.columns[column.name]
    filled = np.flatnonzero(~np.asarray(cells.is_null().to_numpy()))
    order = filled[np.random.default_rng(seed).permutation(len(filled))]
    rank = np.arange(len(order))
    if isinstance(column, CategoryColumn):
        labels = cells.combine_chunks().dictionary_encode().indices.to_numpy(zero_copy_only=False)
        order = order[np.argsort(labels[order], kind="stable")]
        _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
        rank = rank - np.repeat(starts, counts)
    kept = rank % every == every - 1
    return taken_rows(frame, np.sort(order[~kept])), taken_rows(frame, np.sort(order[kept]))


class TargetRows(NamedTuple):
    """Rows to train with, rows of the test, what the columns of the former are, and notes."""

    train: Frame
    test: Frame
    schema: Schema
    notes: tuple[str, ...]


def keep_test_rows(
    frame: Frame,
    schema: Schema,
    target: str,
    seed: int,
    kinds: Mapping[str, Any],
    least_rows: int = 25,
) -> TargetRows:
    """Keep rows of a table for a test; nothing of them is in the schema that is found anew.

    Args:
        frame: The table.
        schema: What the columns of all its rows are.
        target: The column to predict.
        seed: Of the rows.
        kinds: Kinds of columns that were given.
        least_rows: With fewer there is no fit: a convention, a fifth of them for the test.
    """
    column = _target(schema, target, frame)
    train, test = split_for_target(frame, column, seed)
    used = train.rows + test.rows
    if used < least_rows or not test.rows:
        rows = counted(used, "row")
        raise TableError(
            f"{frame.name}: {rows} ha{'s' if rows == '1 row' else 've'} a {target}, but at least "
            f"{least_rows} are needed for training and testing."
        )
    known: dict[str, Any] = {**kinds, target: column.kind}
    own = Schema.infer(train, kinds=known)
    if len(own.modelled) < 2:
        raise TableError(
            f"{frame.name}: there is no column other than {target} to predict it from."
        )
    gaps = frame.rows - used
    ignored = [f"Ignored: {counted(gaps, 'row')} without a {target}."] if gaps else []
    return TargetRows(train, test, own, (*_told(column), *ignored))


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


def _dataset(run: Run) -> TableData:
    """The rows to train with, beside those of the test."""
    column = schema_of(run)[run.config["target"]]
    frame, test = split_for_target(frame_of(run), column, run.settings.seed)
    return checked_data(run, frame)._replace(test=test)


def _score(
    run: Run, table: Any, *, orders: int | None = None, on_rows: OnRows | None = None
) -> Any:  # (N,)
    """Log-density (of a class, log-probability) of each row's target, given its other cells."""
    if orders is not None:
        raise OptionError("orders: a model of one column has no orders.")
    frame = as_frame(table) if not isinstance(table, Frame) else table
    encoded = schema_of(run).encode(frame, unseen="unknown", extra=True)
    impossible = _check_target(run, frame, encoded)
    found = _predicted(run, frame, encoded, on_rows).log_density()
    return np.where(impossible, -np.inf, found)


def _check_target(run: Run, frame: Frame, encoded: EncodedTable) -> np.ndarray:  # (N,)
    """Which rows have a value of the target that was never seen; empty ones are refused."""
    name = run.config["target"]
    alone = Schema((schema_of(run)[name],), schema_of(run).frame)
    own = replace(encoded, codes=encoded.codes[:, [_place(run)]])
    impossible = rows_of_zero_density(len(encoded), never_seen(alone, frame, own))
    empty = (own.codes[:, 0] < 0) & ~impossible
    if empty.any():
        raise SchemaError(
            f"{frame.name}, row {int(empty.argmax()) + frame.first_row}: {name} is empty "
            f"({int(empty.sum())} such rows), so it has no density; remove these rows."
        )
    return impossible


def _place(run: Run) -> int:
    return [column.name for column in schema_of(run).modelled].index(run.config["target"])


def _predicted(
    run: Run,
    frame: Frame,
    encoded: EncodedTable,
    on_rows: OnRows | None = None,
) -> Predicted:
    """Distributions of the target of rows that have it."""
    place, schema = _place(run), schema_of(run)
    column, codes = schema.modelled[place], encoded.codes[:, place]
    parts = []
    for part in run.conditionals(frame):
        parts.append(part)
        if on_rows is not None:
            on_rows(len(part))
    if isinstance(column, CategoryColumn):
        return Predicted(tuple(parts), codes, np.zeros(len(codes)), codes)
    assert isinstance(column, NumberColumn)
    scores = encoded.values[:, schema.numbers.index(column)]
    numbers = column.numbers(frame.columns[column.name], frame.name) + column.origin
    return Predicted(tuple(parts), codes, scores, numbers)


def _in_nats(run: Run, history: list[Row]) -> list[Row]:
    """Reports in nats of the target, which training weights as if it were the whole row."""
    scale = len(schema_of(run).modelled)
    return [{**r, "loss": r["loss"] / scale, "metric": r["metric"] / scale} for r in history]


def _finish(run: Run, data: TableData, outcome: Outcome) -> Numbers:
    """Judge the test rows and write the report; returns the numbers to show."""
    from kermix.tables.runs.run_pages import write_target_report

    assert data.test is not None
    test = data.schema.encode(data.test, unseen="unknown", extra=True)
    predicted = _predicted(run, data.test, test)
    quality = judge_target(data.schema, run.config["target"], data.encoded, test, predicted)
    write_json(run.folder / "result.json", quality.as_json())
    rows = _numbers(run, data, quality, outcome)
    history = _in_nats(run, outcome.history)
    write_target_report(run, rows, data.schema, quality, predicted, history)
    return rows


def _confusion(run: Run, most_classes: int = 12) -> Shown | None:
    """The confusion of a target's classes, where there are few."""
    result = json.loads((run.folder / "result.json").read_text())
    names, counts = result.get("classes", ()), result.get("confusion", ())
    if not 0 < len(names) <= most_classes:
        return None
    rows = [[str(name), *(f"{n:,}" for n in row)]
            for name, row in zip(names, counts, strict=True)]  # fmt: skip
    return "", ["test rows, found as", *names], rows


def _numbers(run: Run, data: TableData, quality: TargetQuality, outcome: Outcome) -> Numbers:
    kept = run.trained_model().n_iter_
    tested = counted(quality.rows, "test row")
    steps = f"{outcome.step}" + (f", of which step {kept} was kept" if kept else "")
    return [
        *_reached(quality, tested),
        ("data", f"{data.frame.name}: {counted(data.frame.rows, 'training row')}, {tested}; "
         f"{run.config['target']} given {counted(len(data.schema.modelled) - 1, 'column')}"),
        ("steps", steps),
    ]  # fmt: skip


def _reached(quality: TargetQuality, tested: str) -> Numbers:
    """How good predictions are, beside those of others."""
    if isinstance(quality, ClassQuality):
        against = "; ".join(f"{name}: {value:.2%}" for name, value, _ in quality.references)
        losses = "; ".join(f"{name}: {value:.4f}" for name, _, value in quality.references)
        wrong = round(quality.rows * (1 - quality.accuracy))
        over = "the mean over classes"
        if absent := quality.absent:
            over += f" of which there are test rows; there are none of {listed(absent)}"
        return [
            ("accuracy", f"{quality.accuracy:.2%} of {tested}, {wrong:,} wrong ({against})"),
            ("balanced accuracy", f"{quality.balanced_accuracy:.2%} ({over})"),
            ("log-loss", f"{quality.log_loss:.4f} nats ({losses})"),
        ]
    against = "; ".join(f"{name}: {value:.4g}" for name, value, _ in quality.references)
    shares = "; ".join(f"{name}: {value:.3f}" for name, _, value in quality.references)
    inside = ", ".join(f"{c:.1%} of {s:.0%} intervals" for s, c in quality.coverage)
    return [
        ("error", f"{quality.error:.4g}, root mean square over {tested} ({against})"),
        ("R²", f"{quality.r2:.3f} ({shares})"),
        ("coverage", f"{inside} hold the true value"),
        ("absolute error", f"{quality.absolute_error:.4g}, mean over test rows"),
        ("log-density", f"{quality.log_density:.3f} nats"),
    ]


def _shown(run: Run, row: Row) -> dict[str, str]:
    """The losses in nats of the target."""
    return losses_shown(run, _in_nats(run, [row])[0])


def _refusal(run: Run, question: str) -> str | None:
    if question in ANSWERS:
        return None
    target, data = run.config["target"], shlex.quote(run.config["data"])
    return (
        f"only the distribution of {target} given the other columns was "
        f"learned, so it can neither sample whole rows nor fill gaps; kermix fit {data} "
        f"--target {shlex.quote(target)} learns both."
    )


ANSWERS: dict[str, Callable[..., Any]] = {"score": _score, "conditionals": conditionals}
TARGET_RUN = replace(
    TABLE_RUN, name=TARGET, dataset=_dataset, shown=_shown, finish=_finish,
    answers=ANSWERS, refusal=_refusal, table_shown=_confusion,
)  # fmt: skip
