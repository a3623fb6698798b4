"""A fit in a process of its own, which the page's process watches and may stop.

`python -m kermix.explore.watch FOLDER` trains the run in a folder. A line that says "keep" on
its input ends the training with the best that it has found, and writes the results; the end of
the input, because the page's process has ended in whatever way, stops it, and it can go on later.
Shown are the loss, held-out rows, and data against samples of the best model.
"""

import csv
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from kermix.data.readers.frames import Frame, as_frame, taken_rows
from kermix.data.schema.schema import EncodedTable
from kermix.errors import KermixError
from kermix.explore.query_service import Answering, texts
from kermix.fitting import open_run
from kermix.pages.charts import curves
from kermix.pages.plot import Svg
from kermix.runs.run import Run
from kermix.runs.train import keep, train
from kermix.tables.compare.column_charts import column_chart, in_both, pair_chart
from kermix.tables.runs.table_quality import judge_samples
from kermix.tables.runs.table_run import LEAST_JUDGED, MOST_JUDGED, model_so_far
from kermix.tables.runs.training_data import TableData
from kermix.two_sample.classifier_test import area_text

__all__ = ["Fitting", "Preview", "checked", "drawn_samples", "history", "main", "saved_quality"]


def drawn_samples(model: Answering, count: int, seed: int) -> Frame:
    """Rows of a model as a reader of its table finds them."""
    drawn = as_frame(model.sample(count, random_state=seed, frame="arrow"), "samples")
    return replace(drawn, types={c.name: c.type for c in model.schema_.columns})


def saved_quality(folder: Path) -> dict[str, Any] | None:
    """What the run's report says of its samples, where it has been written."""
    try:
        found = json.loads((folder / "result.json").read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"columns", "pairs", "privacy"} <= found.keys() \
        else None  # fmt: skip


def checked(
    model: Answering,
    data: TableData,
    split: tuple[np.ndarray, np.ndarray],
    seed: int,
    quality: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """How data and samples differ, the worst first, and what the report says of privacy.

    Args:
        model: The model.
        data: The table.
        split: Which rows were held out, and which trained with.
        seed: Of the training; samples are those of the report.
        quality: What the report says; found here if there is none.
    """
    held, train = split
    count = min(MOST_JUDGED, max(LEAST_JUDGED, len(data.encoded)))
    drawn = drawn_samples(model, count, seed + 1)
    samples = model.schema_.encode(drawn, extra=True)
    if quality is None:
        judged = np.sort(held if len(held) else train[:MOST_JUDGED])
        logs = model.score_samples(taken_rows(data.frame, judged))
        tables = data.frame, drawn
        found = judge_samples(tables, data.schema, data.encoded, samples, train, held, logs)
        quality = found.as_json()
    differences = dict(quality["columns"])
    shown = [_column(data, samples, name) for name in differences]
    for column in shown:
        column["difference"] = differences[column["name"]]
    shown.sort(key=lambda column: -column["difference"])
    sets = data.encoded, samples
    pairs = [{**pair, "chart": in_both(pair_chart, data.schema, sets, pair["first"],
                                       pair["second"])} for pair in quality["pairs"]]  # fmt: skip
    scores = {name: quality[name] for name in ("log_density", "density_name", "references",
              "auc", "copies", "copies_held", "privacy", "pair_floor")}  # fmt: skip
    auc, interval = quality["auc"], quality["interval"]
    apart = None if auc is None or interval is None else area_text(auc, interval)
    return {"columns": shown, "pairs": pairs, "scores": scores, "told_apart": apart,
            "samples": count, "rows": len(data.encoded)}  # fmt: skip


def _column(data: TableData, samples: EncodedTable, name: str) -> dict[str, Any]:
    """A column of data and samples."""
    sets, column = {"data": data.encoded, "samples": samples}, data.schema[name]
    told = {"name": name, "kind": column.kind,
            "chart": in_both(column_chart, data.schema, tuple(sets.values()), name)}  # fmt: skip
    if column.missing_code is None:
        return told
    place = [c.name for c in data.schema.modelled].index(name)
    return told | {f"{what}_missing": float((rows.codes[:, place] == column.missing_code).mean())
                   for what, rows in sets.items()}  # fmt: skip


def history(folder: Path) -> list[dict[str, float | None]]:
    """What a training has reported so far, from `metrics.csv`."""
    try:
        with (folder / "metrics.csv").open(newline="") as file:
            return [{name: _number(text) for name, text in row.items()}
                    for row in csv.DictReader(file)]  # fmt: skip
    except OSError:
        return []  # not yet


def curve(rows: Sequence[Mapping[str, float | None]]) -> Svg:
    """The loss of batches, and that of held-out rows."""
    lines = {
        name: [(row["step"] or 0.0, found) for row in rows if (found := row[key]) is not None]
        for name, key in (("held-out rows", "metric"), ("training batches", "loss"))
    }
    return curves({name: points for name, points in lines.items() if points}, "step",
                  "nats a row", "The loss in training")  # fmt: skip


def _number(text: Any) -> float | None:
    try:
        found = float(text)
    except (TypeError, ValueError):
        return None
    return found if abs(found) < float("inf") else None  # JSON has neither NaN nor infinities


class Preview:
    """Samples of the best model so far, drawn again when there is a new checkpoint.

    Args:
        run: The run, in training.
        data: Its table.
    """

    def __init__(self, run: Run, data: TableData) -> None:
        self._run, self._data = run, data
        self._lock = threading.Lock()
        self._at, self._found = 0, dict[str, Any]()

    def samples(self) -> dict[str, Any]:
        """Rows, and each column of the data beside that of the samples; empty if it is too soon.

        Whoever asks while somebody else's answer is being made gets the one before.
        """
        try:
            at = self._run.last.stat().st_mtime_ns
        except OSError:
            return {}
        if at == self._at or not self._lock.acquire(blocking=False):
            return self._found
        try:
            self._found, self._at = self._drawn(), at
        except KermixError:
            pass  # a checkpoint that is just being replaced; the next one is soon there
        finally:
            self._lock.release()
        return self._found

    def _drawn(self, count: int = 400, rows: int = 10, seed: int = 0) -> dict[str, Any]:
        model = model_so_far(self._run)
        schema, data = model.schema_, self._data.encoded
        drawn = schema.encode(drawn_samples(model, count, seed), extra=True)
        columns = [
            {"name": column.name,
             "chart": in_both(column_chart, schema, (data, drawn), column.name)}
            for column in schema.modelled
        ]  # fmt: skip
        table = schema.decode(drawn[:rows], "arrow")
        cells = [texts(table.column(name)) for name in table.column_names]
        lines = [list(line) for line in zip(*cells, strict=True)]
        return {"columns": columns, "names": table.column_names, "rows": lines}


KEEP = "keep"
COMMAND = (sys.executable, "-m", "kermix.explore.watch")


class Fitting:
    """The process that trains a run.

    Args:
        folder: Of the run, which was begun.
    """

    def __init__(self, folder: Path) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 (as long as the process)
        command = [*COMMAND, str(folder)]
        # A session of its own: Ctrl-C in a terminal is for the page's process, which sees to it.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._said,
            start_new_session=True,
        )  # fmt: skip
        self.keeping, self._why = False, ""

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    @property
    def failed(self) -> str | None:
        """What it said when it ended with an error."""
        if self.running or self._process.returncode == 0:
            return None
        if not self._why:
            self._why = self._last_words(self._process.returncode)
        return self._why

    def _last_words(self, status: int, letters: int = 2000) -> str:
        if status < 0:
            known = {number.value: number.name for number in signal.Signals}
            name = known.get(-status, -status)
            return f"its process was killed by signal {name}, as when memory runs out."
        self._said.seek(0)
        lines = self._said.read().decode(errors="replace").strip()[-letters:].splitlines()
        return lines[-1] if lines else f"its process ended with status {status}."

    def keep(self) -> None:
        """End the training, and keep the best that it has found."""
        if self.keeping or not self.running:
            return
        self.keeping = True
        assert self._process.stdin is not None
        with suppress(OSError):  # it has just ended by itself
            self._process.stdin.write(f"{KEEP}\n".encode())
            self._process.stdin.flush()

    def stop(self, patience: float = 20.0) -> None:
        """Stop the training, which is saved, and wait for that."""
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            self._why = f"it did not stop within {patience:g} seconds and was killed."
        self._why = self.failed or ""
        self._said.close()


def main(folder: str) -> int:
    """Train the run in a folder; returns the status of the process."""
    kept, trained = threading.Event(), threading.Event()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored

    def listen() -> None:
        for line in sys.stdin:
            if line.strip() == KEEP and not trained.is_set():
                kept.set()
                signal.raise_signal(signal.SIGINT)  # seen between two steps
        if not kept.is_set() or trained.is_set():  # a second signal would end it before it saves
            signal.raise_signal(signal.SIGINT)

    try:
        run = open_run(folder)
        data = run.dataset()
        with run.held():
            threading.Thread(target=listen, daemon=True).start()
            outcome = train(run, data)
            trained.set()
            if outcome is not None and outcome.finished:
                run.finish(data, outcome)
            elif kept.is_set():
                keep(run, data)
    except KeyboardInterrupt:
        return 0  # the checkpoint is there
    except KermixError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stderr.flush()
    os._exit(status)  # a thread still reads the input, which the end of the interpreter waits for
