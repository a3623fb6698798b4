"""Models of one column of a table: run folders of `kermix classify TABLE --target COLUMN`.

Beside what every run has: `schema.json` says what the columns are, `checkpoint/model.safetensors`
holds the network, and `result.json` what it reaches on the rows that were kept for a test.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import numpy as np

from kermix.data.readers.common import Reading, counted
from kermix.data.readers.frames import Frame, as_frame, taken_rows
from kermix.data.readers.reading import read_frame
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.errors import OptionError, RunError, SchemaError, TableError
from kermix.runs.folder import TARGET, check_data, next_free_folder
from kermix.runs.provenance import write_json
from kermix.runs.run import Numbers, Outcome, Shown, Start, equivalent_command
from kermix.tables.model.conditioning import check_seen_before, nearest
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.runs.table_fit import TABLE_SETTINGS
from kermix.tables.runs.table_run import TableRun
from kermix.tables.runs.target_page import write_target_report
from kermix.tables.runs.target_quality import ClassQuality, Predicted, TargetQuality, judge_target
from kermix.tables.runs.training_data import TableData, fingerprint, form_of
from kermix.training.loop import Row

__all__ = ["DEFAULTS", "TargetRun", "begin_target_fit", "split_for_target"]

# As benchmarks/conditional.py has them; all columns but the target are seen in every step.
DEFAULTS: dict[str, Any] = {"width": 128, "steps": 1000, "target_share": 1.0, "crossed": True}
TEST_EVERY = 5  # rows of a class, of which one is kept for the test
SHOWN_CLASSES = 12


class TargetRun(TableRun):
    """A model of one column given all others, with its folder."""

    kind: ClassVar[str] = TARGET

    def dataset(self) -> TableData:
        """The table of the run, read again: rows to train with, and those of the test."""
        target = self.config["target"]
        schema = self.schema
        train, test = split_for_target(self.frame(), schema[target], self.settings.seed)
        data = TableData.of(train, schema, TableLayout.with_relations(schema, self.config))
        check_data(self.folder, self.config, fingerprint(data.encoded))
        return data._replace(test=test)

    def shown(self, row: Row) -> dict[str, str]:
        """The loss of a batch, and that of held-out rows, in nats of the target."""
        own = self._of_target([row])[0]
        return {"stage": f"loss {own['loss']:.3f}", "metric": f"held-out {own['metric']:.3f}"}

    def _of_target(self, history: list[Row]) -> list[Row]:
        """Reports in nats of the target, which training weights as if it were the whole row."""
        scale = len(self.schema.modelled)
        return [{**r, "loss": r["loss"] / scale, "metric": r["metric"] / scale} for r in history]

    def sample(self, *_: Any, **__: Any) -> NoReturn:
        """Refused: the other columns' distribution was not learned."""
        target = self.config["target"]
        data = shlex.quote(self.config["data"])
        raise RunError(
            f"{self.folder}: only the distribution of {target} given the other columns was "
            f"learned, so it can neither sample whole rows nor fill gaps; kermix fit {data} "
            f"--target {shlex.quote(target)} learns both."
        )

    def sample_parts(self, *_: Any, **__: Any) -> Iterator[Any]:
        """Refused, as `sample` is."""
        self.sample()

    def impute(self, *_: Any, **__: Any) -> NoReturn:
        """Refused, as `sample` is."""
        self.sample()

    def score(self, table: Any, *, orders: int | None = None, on_rows: Any = None) -> Any:  # (N,)
        """Log-density (of a class, log-probability) of each row's target, given its other cells.

        Args:
            table: Rows with the target.
            orders: Not used: there is one column, and so one order.
            on_rows: Called with the number of rows that are done, part by part.
        """
        if orders is not None:
            raise OptionError("orders: a model of one column has no orders.")
        frame = as_frame(table) if not isinstance(table, Frame) else table
        encoded = self.schema.encode(frame, unseen="unknown", extra=True)
        self._check_target(frame, encoded)
        found = self._predicted(frame, encoded, on_rows)
        return found.log_density()

    def _check_target(self, frame: Frame, encoded: EncodedTable) -> None:
        name = self.config["target"]
        alone = Schema((self.schema[name],), self.schema.frame)
        place = [c.name for c in self.schema.modelled].index(name)
        own = replace(encoded, codes=encoded.codes[:, [place]])
        check_seen_before(alone, frame, own)
        empty = own.codes[:, 0] < 0
        if empty.any():
            raise SchemaError(
                f"{frame.name}, row {int(empty.argmax()) + frame.first_row}: {name} is empty "
                f"({int(empty.sum())} such rows), so it has no density; remove these rows."
            )

    def _predicted(self, frame: Frame, encoded: EncodedTable, on_rows: Any = None) -> Predicted:
        """Distributions of the target of rows that have it."""
        name, schema = self.config["target"], self.schema
        place = [c.name for c in schema.modelled].index(name)
        column, codes = schema.modelled[place], encoded.codes[:, place]
        parts = []
        for part in self.conditionals(frame):
            parts.append(part)
            if on_rows is not None:
                on_rows(len(part))
        if isinstance(column, CategoryColumn):
            return Predicted(tuple(parts), codes, np.zeros(len(codes)), codes)
        scores = encoded.values[:, schema.numbers.index(column)]
        numbers = column.numbers(frame.columns[name], frame.name) + column.origin
        return Predicted(tuple(parts), codes, scores, numbers)

    def finish(self, data: TableData, outcome: Outcome) -> Numbers:
        """Judge the test rows and write the report; returns the numbers to show."""
        assert data.test is not None
        target = self.config["target"]
        test = data.schema.encode(data.test, unseen="unknown", extra=True)
        predicted = self._predicted(data.test, test)
        quality = judge_target(data.schema, target, data.encoded, test, predicted)
        write_json(self.folder / "result.json", quality.as_json())
        rows = self._numbers_of(data, quality, outcome)
        history = self._of_target(outcome.history)
        write_target_report(self, rows, data.schema, quality, predicted, history)
        return rows

    def _numbers_of(self, data: TableData, quality: TargetQuality, outcome: Outcome) -> Numbers:
        target, kept = self.config["target"], self.table_model().n_iter_
        tested = counted(quality.rows, "test row")
        first, *rest = quality.references
        if isinstance(quality, ClassQuality):
            against = "; ".join(f"{name}: {value:.2%}" for name, value, _ in (first, *rest))
            losses = "; ".join(f"{name}: {value:.4f}" for name, _, value in (first, *rest))
            wrong = round(quality.rows * (1 - quality.accuracy))
            numbers = [
                ("accuracy", f"{quality.accuracy:.2%} of {tested}, {wrong:,} "
                 f"wrong ({against})"),
                ("balanced accuracy", f"{quality.balanced_accuracy:.2%} (the mean over classes)"),
                ("log-loss", f"{quality.log_loss:.4f} nats ({losses})"),
            ]  # fmt: skip
        else:
            against = "; ".join(f"{name}: {value:.4g}" for name, value, _ in (first, *rest))
            shares = "; ".join(f"{name}: {value:.3f}" for name, _, value in (first, *rest))
            inside = ", ".join(f"{c:.1%} of {s:.0%} intervals" for s, c in quality.coverage)
            numbers = [
                ("error", f"{quality.error:.4g}, root mean square over {tested} "
                 f"({against})"),
                ("R²", f"{quality.r2:.3f} ({shares})"),
                ("coverage", f"{inside} hold the true value"),
                ("absolute error", f"{quality.absolute_error:.4g}, mean over test rows"),
                ("log-density", f"{quality.log_density:.3f} nats"),
            ]  # fmt: skip
        steps = f"{outcome.step}" + (f", of which step {kept} was kept" if kept else "")
        return [
            *numbers,
            ("data", f"{data.frame.name}: {counted(data.frame.rows, 'training row')}, "
                f"{tested}; {target} given "
                f"{counted(len(data.schema.modelled) - 1, 'column')}"),
            ("steps", steps),
        ]  # fmt: skip

    def table_shown(self) -> Shown | None:
        """The confusion of classes, where there are few."""
        result = json.loads((self.folder / "result.json").read_text())
        names, counts = result.get("classes", ()), result.get("confusion", ())
        if not 0 < len(names) <= SHOWN_CLASSES:
            return None
        rows = [[str(name), *(f"{n:,}" for n in row)]
                for name, row in zip(names, counts, strict=True)]  # fmt: skip
        return "", ["test rows, found as", *names], rows


def split_for_target(frame: Frame, column: Any, seed: int) -> tuple[Frame, Frame]:
    """Rows to train with, and a fifth for the test, of those that have the target.

    Of each class, every fifth row in random order is kept: shares of classes are the same on both
    sides, and a class of fewer than five rows is trained with alone.

    Args:
        frame: The table.
        column: The target's column of a schema.
        seed: Of the random order.
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
    kept = rank % TEST_EVERY == TEST_EVERY - 1
    return taken_rows(frame, np.sort(order[~kept])), taken_rows(frame, np.sort(order[kept]))


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
    start: Start | None = None,
) -> tuple[TargetRun, TableData]:
    """Make the run folder of a model of one column; nothing is trained yet.

    Args:
        data: A file.
        target: The column to predict.
        folder: Where the run is to be; by default `runs/NAME-COLUMN`.
        quick: Whether to train a small network, for a first look.
        settings: Settings of `kermix.tables.model.table_settings.TableModelSettings`.
        reading: What was said about the file.
        start: How the training is started; by default anywhere, in the usual precision.
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
        rows = counted(train.rows + test.rows, "row")
        raise TableError(
            f"{frame.name}: {rows} ha{'s' if rows == '1 row' else 've'} a {target}, but at least "
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
    options = {"target": target, **said, "quick": quick}
    words = equivalent_command("classify", str(data), options, settings or {})
    run = TargetRun.create(
        folder or next_free_folder(f"{Path(data).name.partition('.')[0]}-{target}"),
        str(data), table, replace(chosen, target=place), start or Start(words), frame="pandas",
        form=form_of(str(data)), target=target, options=said,
        notes=(*_told(column), *notes,
               *([f"Ignored: {counted(gaps, 'row')} without a {target}."] if gaps else [])),
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
