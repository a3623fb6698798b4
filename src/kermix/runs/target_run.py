"""Models of one column of a table: run folders of `kermix classify TABLE --target COLUMN`.

Beside what every run has: `schema.json` says what the columns are, `checkpoint/model.safetensors`
holds the network, and `result.json` what it reaches on the rows that were kept for a test.
"""

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, NoReturn

import numpy as np

from kermix.data.tables.columns import CategoryColumn
from kermix.data.tables.frames import Frame, as_frame, taken_rows
from kermix.data.tables.schema import EncodedTable, Schema
from kermix.errors import OptionError, RunError, SchemaError
from kermix.models.table.given import check_seen_before
from kermix.models.table.layout import TableLayout
from kermix.reports.provenance import write_json
from kermix.reports.target_quality import ClassQuality, Predicted, TargetQuality, judge_target
from kermix.reports.target_report import write_target_report
from kermix.runs.folder import TARGET, check_data
from kermix.runs.run import Numbers, Outcome, Row, Shown, as_option
from kermix.runs.table_data import TableData, fingerprint
from kermix.runs.table_run import TableRun
from kermix.training.table_settings import TableModelSettings

__all__ = ["DEFAULTS", "TargetRun", "split_for_target"]

# As benchmarks/conditional.py has them; all columns but the target are seen in every step.
DEFAULTS: dict[str, Any] = {"width": 128, "steps": 1000, "target_share": 1.0, "crossed": True}
TEST_EVERY = 5  # rows of a class, of which one is kept for the test
OPTIONS = ("width", "batch_size", "learning_rate", "seed")  # of the command; others are --set
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
        target, kept = self.config["target"], self.model().n_iter_
        first, *rest = quality.references
        if isinstance(quality, ClassQuality):
            against = "; ".join(f"{name}: {value:.2%}" for name, value, _ in (first, *rest))
            losses = "; ".join(f"{name}: {value:.4f}" for name, _, value in (first, *rest))
            wrong = round(quality.rows * (1 - quality.accuracy))
            numbers = [
                ("accuracy", f"{quality.accuracy:.2%} of {quality.rows:,} test rows, {wrong:,} "
                 f"wrong ({against})"),
                ("balanced accuracy", f"{quality.balanced_accuracy:.2%} (the mean over classes)"),
                ("log-loss", f"{quality.log_loss:.4f} nats ({losses})"),
            ]  # fmt: skip
        else:
            against = "; ".join(f"{name}: {value:.4g}" for name, value, _ in (first, *rest))
            shares = "; ".join(f"{name}: {value:.3f}" for name, _, value in (first, *rest))
            inside = ", ".join(f"{c:.1%} of {s:.0%} intervals" for s, c in quality.coverage)
            numbers = [
                ("error", f"{quality.error:.4g}, root mean square over {quality.rows:,} test rows "
                 f"({against})"),
                ("R²", f"{quality.r2:.3f} ({shares})"),
                ("coverage", f"{inside} hold the true value"),
                ("absolute error", f"{quality.absolute_error:.4g}, mean over test rows"),
                ("log-density", f"{quality.log_density:.3f} nats"),
            ]  # fmt: skip
        steps = f"{outcome.step}" + (f", of which step {kept} was kept" if kept else "")
        return [
            *numbers,
            ("data", f"{data.frame.name}: {data.frame.rows:,} training rows, {quality.rows:,} "
                f"test rows; {target} given {len(data.schema.modelled) - 1} columns"),
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

    def command(self) -> str:
        """The command that repeats this run."""
        target = shlex.quote(self.config["target"])
        parts = ["kermix", "classify", shlex.quote(self.config["data"]), "--target", target]
        parts += self.reading_options()
        usual = TableModelSettings(target=0, **DEFAULTS).for_rows(self.config["shape"][0])
        for name, value in self.settings.as_json().items():
            if name != "target" and value != getattr(usual, name):
                parts += as_option(name, value, name in OPTIONS)
        return " ".join([*parts, *self.placing_options()])


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
