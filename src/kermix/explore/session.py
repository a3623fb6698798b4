"""What one server shows: a run, its model once there is one, a fit while it runs, and odd rows.

Odd rows are the least likely of a table, with the columns that make them so.
"""

import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kermix.data.dataset import Dataset
from kermix.data.readers.common import CsvForm
from kermix.data.readers.frames import Frame, as_frame, taken_rows
from kermix.data.schema.columns import NumberColumn
from kermix.data.schema.schema import Schema
from kermix.data.writing import CsvText, spreadsheet_safe
from kermix.errors import KermixError, OptionError, RunError, SchemaError
from kermix.explore.query_service import Answering, QueryService, texts
from kermix.explore.watch import Fitting, Preview, checked, curve, history, saved_quality
from kermix.fitting import open_run
from kermix.runs.folder import FIT, TABLE, TARGET, is_held
from kermix.runs.run import Run
from kermix.tables.runs.table_mixture import TableMixture
from kermix.tables.runs.table_run import csv_form
from kermix.tables.runs.training_data import TableData
from kermix.training.samples_task import split_rows

__all__ = ["DRAWS", "Explored", "explorable", "outliers"]


def outliers(
    model: Answering,
    frame: Frame,
    numbers: np.ndarray | None = None,
    on_rows: Callable[[int], None] | None = None,
    shown_rows: int = 100,
    usual_rows: int = 500,
    most_reasons: int = 3,
    least_nats: float = 1.0,
) -> dict[str, Any]:
    """The rows of the lowest log-density, the lowest first.

    What makes a row odd are cells whose log-density, given all other cells of the row, is far
    below the mean of their column. Differences of log-densities do not depend on units, so that
    numbers and categories can be compared.

    Args:
        model: The model.
        frame: The table.
        numbers: Numbers of the rows in the whole table, where this is a part of it.
        on_rows: Called with the number of rows that have a density, block by block.
        shown_rows: How many rows these are.
        usual_rows: Rows that tell how likely a cell of a column usually is.
        most_reasons: How many cells of a row are named at most.
        least_nats: Below what is usual, to be a reason.
    """
    logs = model.score_samples(frame, on_rows=on_rows)
    worst = np.argsort(logs, kind="stable")[:shown_rows]
    usual = np.random.default_rng(0).permutation(frame.rows)[:usual_rows]
    chosen = taken_rows(frame, np.concatenate([worst, usual]))
    names = [column.name for column in model.schema_.modelled]
    below = np.zeros((len(worst), len(names)))
    expected: list[list[str | None]] = []
    for k, name in enumerate(names):
        cells, likely = _cells(model, name, chosen)
        usually = cells[len(worst) :]
        typical = float(usually[np.isfinite(usually)].mean()) if np.isfinite(usually).any() else 0
        below[:, k] = np.nan_to_num(typical - cells[: len(worst)], nan=0.0, posinf=np.inf)
        expected.append(likely[: len(worst)])
    shown = taken_rows(frame, worst)
    values = {name: texts(shown.columns[name]) for name in names}
    places = worst if numbers is None else numbers[worst]
    rows = []
    for r, place in enumerate(places):
        order = np.argsort(-below[r], kind="stable")[:most_reasons]
        reasons = [
            {"column": names[k], "nats": _finite(below[r, k]), "expected": expected[k][r]}
            for k in order
            if below[r, k] >= least_nats
        ]
        row = {name: values[name][r] for name in names}
        rows.append({"row": int(place) + frame.first_row, "values": row, "reasons": reasons,
                     "log_density": _finite(logs[worst[r]])})  # fmt: skip
    middle = _finite(np.median(logs)) if len(logs) else None
    return {"rows": rows, "of": int(frame.rows), "median": middle, "names": names}


def _finite(number: float) -> float | None:
    """A number that JSON can hold: None for the log-density of what was never seen."""
    return float(number) if np.isfinite(number) else None


def _cells(model: Answering, name: str, rows: Frame) -> tuple[np.ndarray, list[str | None]]:
    """Log-densities of a column's cells given the others of their rows, and what was expected."""
    found = model.conditional(name, rows, unseen="unknown")
    column, cells = found.column, rows.columns[name]
    if isinstance(column, NumberColumn):
        codes, scores = column.encode(cells, rows.name, "unknown")
    else:
        codes, scores = column.encode(cells, rows.name, "unknown"), np.zeros(rows.rows)
    logs = found.log_density(codes.clip(min=0), scores)
    unknown = np.where(np.asarray(cells.is_null().to_numpy()), np.nan, -np.inf)
    return np.where(codes < 0, unknown, logs), texts(found.most_likely())


DRAWS = "draws.csv"


def explorable(run: Run, most_columns: int = 200) -> Run:
    """The run, if it is one of a table that can be asked; refused otherwise, with what to do."""
    told = "explore needs a fit of a table (kermix fit TABLE)"
    if run.kind.name == TARGET:
        raise OptionError(
            f"{run.folder}: a model of one column given all others; {told}, which has them all."
        )
    if run.kind.name == TABLE:
        return run
    if run.kind.name != FIT:
        raise OptionError(f"{run.folder}: a model of images; {told}.")
    if run.config["image"] is not None:
        raise OptionError(f"{run.folder}: a fit of images; {told}.")
    if (count := len(run.config["columns"])) > most_columns:
        raise OptionError(
            f"{run.folder}: a mixture of {count} columns, but a page can show at most "
            f"{most_columns}; fit fewer columns."
        )
    if not run.settings.is_mixture:
        raise OptionError(
            f"{run.folder}: model={run.settings.model}, which has no density to query; {told}, "
            "or a mixture (--model mixture)."
        )
    return run


class Job:
    """Something that takes longer than an answer, done once, by a thread of its own."""

    def __init__(self, work: Callable[[Callable[[int], None]], Any]) -> None:
        self._work, self._lock = work, threading.Lock()
        self._thread: threading.Thread | None = None
        self._rows, self._found = 0, dict[str, Any]()

    def answer(self) -> dict[str, Any]:
        """What was found, or that it is not yet; asking begins it."""
        with self._lock:
            if self._thread is None:
                # A daemon, so that Ctrl-C does not wait for it.
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()
            return self._found or {"state": "working", "rows": self._rows}

    def _run(self) -> None:
        def count(rows: int) -> None:
            self._rows += rows

        try:
            found = {"state": "done", **self._work(count)}
        except KermixError as error:
            found = {"state": "failed", "error": str(error)}
        except Exception as error:  # noqa: BLE001 (shown on the page, not lost with a thread)
            found = {"state": "failed", "error": f"{type(error).__name__}: {error}"}
        with self._lock:
            self._found = found


class Explored:
    """A run that is asked; nothing in it belongs to one reader of the page.

    Args:
        run: A run that `explorable` takes.
        data: Its table, if it is at hand; read again otherwise.
        fit: Whether to train it, in a process of its own.
    """

    def __init__(self, run: Run, data: Any = None, fit: bool = False) -> None:
        self.run, self._data, self._why = run, data, ""
        self._lock = threading.Lock()
        self._questions: QueryService | None = None
        self._preview: Preview | None = None
        self.fitting = Fitting(run.folder) if fit else None
        self._check = Job(lambda count: self._checked())
        self._outlying = Job(self._outliers)

    @classmethod
    def open(cls, folder: Path) -> "Explored":
        """The run in a folder; refused if there is nothing to ask or to watch."""
        explored = cls(explorable(open_run(folder)))
        if explored.state == "stopped":
            raise RunError(
                f"{folder}: training is not finished; continue it with: {explored.resume}."
            )
        return explored

    @property
    def resume(self) -> str:
        """The command that goes on with the training."""
        return f"kermix resume {shlex.quote(str(self.run.folder))}"

    @property
    def name(self) -> str:
        """What the table is called."""
        return Path(str(self.run.config["data"])).name[:120]

    @property
    def state(self) -> str:
        """Whether there is a model: "ready", or "training", "keeping", "failed", "stopped"."""
        if self.fitting is not None and self.fitting.running:
            return "keeping" if self.fitting.keeping else "training"
        if (self.run.folder / "report.html").exists():
            return "ready"
        if self.fitting is not None and self.fitting.failed:
            return "failed"
        return "training" if is_held(self.run.folder) else "stopped"

    def data(self) -> TableData:
        """The table of the run, read once; an error says why it cannot be."""
        with self._lock:
            if self._why:
                raise RunError(self._why)
            if isinstance(self._data, TableData):
                return self._data
            try:
                found = self.run.dataset() if self._data is None else self._data
            except KermixError as error:
                self._why = f"The table of the run cannot be read: {error}"
                raise RunError(self._why) from None
            self._data = _as_table(found) if isinstance(found, Dataset) else found
            return self._data

    def questions(self) -> QueryService:
        """The model of the run, to be asked; refused while it is trained."""
        state = self.state
        if state != "ready":
            raise RunError(self._not_yet(state))
        if self._questions is None:
            if self.run.kind.name == FIT:
                schema = self.data().schema
                mixture = self.run.model().mixture()
                # Densities as `kermix score` has them.
                model: Any = TableMixture(schema, mixture, "pandas", "mixture")
            else:
                model = self.run.model()
            with self._lock:
                if self._questions is None:
                    found = QueryService(model)
                    found.warm()
                    self._questions = found
        return self._questions

    def _not_yet(self, state: str) -> str:
        """Why there is no model to ask."""
        if state == "failed" and self.fitting is not None:
            return f"Training failed: {self.fitting.failed} To continue: {self.resume}"
        if state == "stopped":
            return f"Training was stopped, and there is no model yet. To continue: {self.resume}"
        return "The model is still training; it can be queried when training is done."

    def summary(self) -> dict[str, Any]:
        """What the page shows at its head, and how far the fit is."""
        state, explore = self.state, f"kermix explore {shlex.quote(str(self.run.folder))}"
        told = {"name": self.name, "state": state, "folder": str(self.run.folder),
                "rows": self.run.config["shape"][0],
                "command": f"{self.run.command()}\n{explore}",
                "watched": self.fitting is not None}  # fmt: skip
        if state == "failed":
            assert self.fitting is not None
            told["error"] = self.fitting.failed or ""
        if state == "ready":
            model = self.questions().model
            told["model"] = model.name if isinstance(model, TableMixture) else "table model"
        return told

    def watched(self) -> dict[str, Any]:
        """The history of the training, and samples of the best model so far."""
        rows = history(self.run.folder)
        told = {**self.summary(), "history": rows, "total": self.run.settings.steps,
                "chart": curve(rows) if rows else None}  # fmt: skip
        if self.run.kind.name == TABLE and told["state"] in ("training", "keeping"):
            if self._preview is None:
                data = self.data()
                with self._lock:
                    self._preview = self._preview or Preview(self.run, data)
            told["samples"] = self._preview.samples()
        return told

    def keep(self) -> None:
        """Stop the training, and keep what it has found."""
        if self.fitting is None or not self.fitting.running:
            raise RunError("This page has no fit to stop.")
        if not history(self.run.folder):
            raise RunError("There is nothing to keep yet; wait for the first report.")
        self.fitting.keep()

    def check(self) -> dict[str, Any]:
        """Data against samples, when that is done."""
        self.questions()
        return self._check.answer()

    def outliers(self) -> dict[str, Any]:
        """The odd rows, when they are found."""
        self.questions()
        return self._outlying.answer()

    def _checked(self) -> dict[str, Any]:
        questions, data = self.questions(), self.data()
        quality = saved_quality(self.run.folder)
        split, seed = _split(self.run, data), self.run.settings.seed
        return checked(questions.model, data, split, seed, quality)

    def _outliers(self, count: Callable[[int], None]) -> dict[str, Any]:
        data = self.data()
        return outliers(self.questions().model, data.frame, data.numbers, count)

    def drawn_file(
        self, given: Any, count: Any, seed: Any, safe: Any, on_rows: Callable[[int], None]
    ) -> Iterator[bytes]:
        """A text file of rows with what is given, as `kermix sample` writes it, piece by piece.

        Args:
            given: As for `QueryService.ask`.
            count: How many rows.
            seed: Of the rows.
            safe: Whether text that a spreadsheet would take for a formula is escaped.
            on_rows: Called while rows are drawn; who raises in it stops the work.
        """
        if not isinstance(safe, bool):
            raise OptionError(f"safe={safe!r}: true or false.")
        parts = self.questions().draw_parts(given, count, seed, on_rows=on_rows)
        form = csv_form(self.run, DRAWS) if self.run.kind.name == TABLE else CsvForm()
        text = CsvText(form, DRAWS)
        for table in parts:
            yield b"".join(text.pieces(spreadsheet_safe(table) if safe else table))

    def close(self) -> None:
        """Stop the fit, if one runs; it is saved."""
        if self.fitting is not None:
            self.fitting.stop()


def _split(run: Run, data: TableData) -> tuple[np.ndarray, np.ndarray]:
    """Which rows were held out, and which trained with."""
    if run.kind.name == TABLE:
        return data.split(run.settings)
    rows = torch.arange(data.rows)[:, None]
    parts = split_rows(rows, run.settings.seed)
    held = parts.held_out if parts.apart else rows[:0]
    return held[:, 0].numpy(), parts.train[:, 0].numpy()


def _as_table(dataset: Dataset) -> TableData:
    """Rows of numbers as a table with named columns, all of them numbers."""
    columns = {name: dataset.values[:, k].double().numpy()
               for k, name in enumerate(dataset.columns)}  # fmt: skip
    schema = Schema.infer(columns, kinds=dict.fromkeys(columns, "number"))
    if len(schema.numbers) < len(columns):
        raise SchemaError(
            f"{dataset.name}: {' '.join(schema.notes())} A mixture cannot model all columns; fit "
            "the table with --model table."
        )
    numbers = None if dataset.numbers is None else dataset.numbers.numpy()
    return TableData.of(as_frame(columns, dataset.name), schema)._replace(numbers=numbers)
