"""What is shown of a fit while it runs: the loss, held-out rows, and samples of the best model."""

import csv
import threading
from pathlib import Path
from typing import Any

from kermix.errors import KermixError
from kermix.explore.check import encoded_samples
from kermix.explore.questions import Questions
from kermix.explore.scales import texts
from kermix.runs.table_data import TableData
from kermix.runs.table_run import TableRun

__all__ = ["Preview", "history"]

DRAWN, SHOWN = 400, 10
SEED = 0


def history(folder: Path) -> list[dict[str, float | None]]:
    """What a training has reported so far, from `metrics.csv`."""
    try:
        with (folder / "metrics.csv").open(newline="") as file:
            return [{name: _number(text) for name, text in row.items()}
                    for row in csv.DictReader(file)]  # fmt: skip
    except OSError:
        return []  # not yet


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

    def __init__(self, run: TableRun, data: TableData) -> None:
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

    def _drawn(self) -> dict[str, Any]:
        questions = Questions(self._run.model_so_far())
        schema, data = questions.schema, self._data.encoded
        drawn = encoded_samples(questions.model, DRAWN, SEED)
        numbers = {column.name: q for q, column in enumerate(schema.numbers)}
        columns = []
        for place, column in enumerate(schema.modelled):
            scale = questions.scales[column.name]
            told: dict[str, Any] = {"name": column.name, "scale": scale.described()}
            for what, rows in (("data", data), ("samples", drawn)):
                q = numbers.get(column.name)
                scores = None if q is None else rows.values[:, q]
                told[what] = scale.counted(rows.codes[:, place], scores).round(6).tolist()
            columns.append(told)
        table = schema.decode(drawn[:SHOWN], "arrow")
        cells = [texts(table.column(name)) for name in table.column_names]
        lines = [list(line) for line in zip(*cells, strict=True)]
        return {"columns": columns, "names": table.column_names, "rows": lines}
