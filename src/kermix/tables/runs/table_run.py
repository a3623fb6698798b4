"""Fits of the table model: run folders of `kermix fit TABLE` and `kermix.fit`.

Beside what every run has: `schema.json` says what the columns are, `checkpoint/model.safetensors`
holds the network, and `samples.csv` (or the input's format) are rows drawn from it. A fit ends
with the better model, samples, numbers and the report.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from kermix.data.readers.common import CsvForm, Reading, counted
from kermix.data.readers.frames import Frame, as_frame, taken_rows
from kermix.data.readers.reading import read_frame
from kermix.data.writing import table_writer
from kermix.errors import OptionError
from kermix.runs.folder import TABLE, check_data
from kermix.runs.provenance import write_json
from kermix.runs.run import Numbers, Outcome, Shown
from kermix.tables.compare.verdict import area_text
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.table_training import TableModelTask
from kermix.tables.runs.answers import OnRows, TrainedTable
from kermix.tables.runs.conditionals import conditionals_of
from kermix.tables.runs.run_pages import NETWORK, write_table_report
from kermix.tables.runs.table_mixture import TableMixture, rivals
from kermix.tables.runs.table_quality import TableQuality, judge_samples
from kermix.tables.runs.target_fit import (
    finish_target,
    in_nats_of_target,
    score_target,
    split_for_target,
)
from kermix.tables.runs.training_data import TableData, kept_rows, rows_of, with_store
from kermix.training.loop import Row, Trainer

__all__ = ["TableRun", "write_results"]

LEAST_JUDGED, MOST_JUDGED = 1000, 2500  # rows that are drawn for the report, and kept
SHOWN_CLASSES = 12


def write_results(run: TrainedTable, data: TableData, outcome: Outcome, form: CsvForm) -> Numbers:
    """Write samples and report; returns the numbers to show.

    Args:
        run: The run, trained.
        data: Its table.
        outcome: How training ended.
        form: How a text file of samples is written.
    """
    settings = run.settings
    held, train = data.split(settings)
    densities = _contest(run, data, train, np.sort(held)) if run.config.get("contest") else {}
    model = run.trained_model()
    count = min(MOST_JUDGED, max(LEAST_JUDGED, len(data.encoded)))
    drawn = model.sample(count, random_state=settings.seed + 1, frame="arrow")
    path = run.folder / f"samples{run.config['form']}"
    with table_writer(path, form=form) as writer:
        writer.write(drawn)
    types = {c.name: c.type for c in data.schema.columns}
    table = replace(as_frame(drawn, "samples"), types=types)
    samples = data.schema.encode(table, extra=True)
    judged = np.sort(held if len(held) else train[:MOST_JUDGED])
    log_density = model.score_samples(taken_rows(data.frame, judged))
    tables = data.frame, table
    quality = judge_samples(tables, data.schema, data.encoded, samples, train, held, log_density)
    copied = data.copied(samples)
    if copied is not None:
        quality = replace(quality, copies=copied)
    name = model.name if isinstance(model, TableMixture) else NETWORK
    others = [(n, d) for n, d in densities.items() if n != name]
    named = {n for n, _ in others} | {name}
    kept = [(n, d) for n, d in quality.references if n not in named]
    quality = replace(quality, references=(*others, *kept))
    chosen = {"model": name, "models": densities} if densities else {}
    write_json(run.folder / "result.json", {**chosen, **quality.as_json()})
    rows = _numbers(data, quality, outcome, model.n_iter_)
    if len(densities) > 1:
        rows.insert(0, ("model", f"{name}, chosen by the log-density of {len(held)} held-out "
                        "rows"))  # fmt: skip
    given = []
    if not isinstance(model, TableMixture):
        given = conditionals_of(model, data.schema, data.frame, data.encoded)
    write_table_report(run, rows, data.schema, (data.encoded, samples), quality,
                       outcome.history, name, given)  # fmt: skip
    return rows


def _contest(
    run: TrainedTable, data: TableData, train: np.ndarray, held: np.ndarray
) -> dict[str, float]:
    """Mean log-densities of the held-out rows by model; a mixture that is ahead is kept."""
    own = run.table_model().score_samples(taken_rows(data.frame, held))
    others = rivals(data.schema, data.frame, train, held, run.settings.seed)
    path = run.mixture_file
    path.unlink(missing_ok=True)
    best = max(others, key=lambda rival: rival.log_density.mean(), default=None)
    if best is not None and best.log_density.mean() > own.mean():
        frame = run.config["frame"]
        TableMixture(data.schema, best.mixture, frame, best.name).save(path)
    return {NETWORK: float(own.mean()),
            **{rival.name: float(rival.log_density.mean()) for rival in others}}  # fmt: skip


def _numbers(data: TableData, quality: TableQuality, outcome: Outcome, kept: int) -> Numbers:
    schema = data.schema
    kinds = [c.kind for c in schema.columns]
    listed_kinds = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
    told = "too few rows to tell"
    if quality.auc is not None and quality.interval is not None:
        told = f"{area_text(quality.auc, quality.interval)} of a classifier"
    share = quality.copies_held
    of_held = "; no rows were held out" if share is None else f" ({share:.2%} of held-out rows)"
    against = "; ".join(f"{name}: {value:.3f}" for name, value in quality.references)
    return [
        (quality.density_name, f"{quality.log_density:.3f} nats a row ({against})"),
        ("told apart from data", told),
        ("exact copies", f"{quality.copies:.2%} of the samples{of_held}"),
        ("data", f"{data.frame.name}: {counted(data.rows, 'row')}, "
         f"{counted(len(schema), 'column')} ({listed_kinds})"),
        ("steps", f"{outcome.step}" + (f", of which step {kept} was kept" if kept else "")),
    ]  # fmt: skip


class TableRun(TrainedTable):
    """A fit of the table model, with its folder."""

    kind: ClassVar[str] = TABLE
    facts: ClassVar[tuple[str, ...]] = (
        "shape", "columns", "target", "frame", "equal", "anchors", "in_order", "same", "lines",
    )  # fmt: skip
    reported: ClassVar[tuple[str, ...]] = ("step", "loss", "metric")

    @classmethod
    def _read_settings(cls, content: dict[str, Any]) -> TableModelSettings:
        return TableModelSettings.from_json(content)

    def reading(self, said: Reading) -> Reading:
        """How files of the run's kind are read: as its own, unless something else is said.

        Kinds of columns are those of the run.
        """
        kinds = {column.name: column.kind for column in self.schema.columns}
        for name, kind in said.kinds.items():
            if kinds.get(name, kind) != kind:
                raise OptionError(
                    f"{name}={kind}: in the run {self.folder} it is a {kinds[name]}."
                )
        names = ("delimiter", "decimal", "encoding", "header", "missing", "sheet")
        own: dict[str, Any] = {name: self.options[name] for name in names if name in self.options}
        return self.schema.reading(**{**own, **said.said()})

    def csv_form(self, name: str) -> CsvForm:
        """How a text file of samples is written: as the run's own, with names of columns."""
        own = CsvForm.from_dict(self.config.get("csv"))
        return replace(own, named=True).between(self.config["data"], name)

    def frame(self) -> Frame:
        """All rows of the run's table, read again."""
        schema, options = self.schema, self.options
        own: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v
               for name, v in options.items() if name != "rows"}  # fmt: skip
        frame, _ = read_frame(self.source, schema.reading(**own))
        if self.source != self.config["data"] or self.folder in Path(self.source).parents:
            # Rows that were in memory: Parquet does not say what they were there.
            types = {c.name: c.type for c in schema.columns}
            frame = replace(frame, types=types)
        return rows_of(frame, options.get("rows"), self.settings.seed)

    def _kept_rows(self) -> Frame:
        return kept_rows(self.folder, self.schema, Path(self.config["data"]).name)

    def dataset(self) -> TableData:
        """The table of the run, read again; refused if it has changed."""
        stored = self.config.get("stored")
        frame, schema, test = (
            self.frame() if stored is None else self._kept_rows(),
            self.schema,
            None,
        )
        if self.target_alone:
            column = schema[self.config["target"]]
            frame, test = split_for_target(frame, column, self.settings.seed)
        layout = TableLayout.with_relations(schema, self.config)
        data = TableData.of(frame, schema, layout)._replace(test=test)
        if stored is not None:
            data = with_store(data, self.folder, stored, self.settings)
        check_data(self.folder, self.config, data.fingerprint())
        return data

    def trainer(self, data: TableData) -> Trainer[TableModelTask]:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        self.check_sizes()
        task = TableModelTask(data.layout, data.to_train(), self.settings)
        devices, nodes, _ = self.ranks
        trainer = Trainer(
            task, self.config["device"], self.config["precision"], devices=devices, nodes=nodes
        )
        if trainer.broadcast_from_main(self.last.exists()):
            trainer.load(self.last)
        return trainer

    def shown(self, row: Row) -> dict[str, str]:
        """The loss of a batch, and that of held-out rows; in nats of a target learned alone."""
        if self.target_alone:
            (row,) = in_nats_of_target(self, [row])
        return {"stage": f"loss {row['loss']:.3f}", "metric": f"held-out {row['metric']:.3f}"}

    def score(
        self, table: Any, *, orders: int | None = None, on_rows: OnRows | None = None
    ) -> Any:  # (N,)
        """Log-density of each row, in the order of the table; of a pandas table with its index.

        Of a target learned alone: that of its cell, given the other cells of the row.

        Args:
            table: The rows.
            orders: Number of orders of the columns to average over.
            on_rows: Called with the number of rows that are done, part by part.
        """
        if not self.target_alone:
            return super().score(table, orders=orders, on_rows=on_rows)
        if orders is not None:
            raise OptionError("orders: a model of one column has no orders.")
        return score_target(self, table, on_rows)

    def finish(self, data: TableData, outcome: Outcome) -> Numbers:
        """Write results and report; returns the numbers to show."""
        if self.target_alone:
            return finish_target(self, data, outcome)
        form = self.csv_form(f"samples{self.config['form']}")
        return write_results(self, data, outcome, form)

    def table_shown(self) -> Shown | None:
        """The confusion of a target's classes, where there are few."""
        result = json.loads((self.folder / "result.json").read_text())
        names, counts = result.get("classes", ()), result.get("confusion", ())
        if not 0 < len(names) <= SHOWN_CLASSES:
            return None
        rows = [[str(name), *(f"{n:,}" for n in row)]
                for name, row in zip(names, counts, strict=True)]  # fmt: skip
        return "", ["test rows, found as", *names], rows
