"""Odd rows: the least likely of a table, and the columns that make them so."""

from collections.abc import Callable
from typing import Any

import numpy as np

from kermix.data.tables.columns import NumberColumn
from kermix.data.tables.frames import Frame, taken_rows
from kermix.explore.questions import Answering
from kermix.explore.scales import texts

__all__ = ["odd_rows"]

ODD = 100  # rows that are shown
TYPICAL = 500  # rows that tell how likely a cell of a column usually is
REASONS = 3
LEAST = 1.0  # nats below what is usual, to be a reason


def odd_rows(
    model: Answering,
    frame: Frame,
    numbers: np.ndarray | None = None,
    on_rows: Callable[[int], None] | None = None,
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
    """
    logs = model.score_samples(frame, on_rows=on_rows)
    worst = np.argsort(logs, kind="stable")[:ODD]
    usual = np.random.default_rng(0).permutation(frame.rows)[:TYPICAL]
    chosen = taken_rows(frame, np.concatenate([worst, usual]))
    names = [column.name for column in model.schema_.modelled]
    below = np.zeros((len(worst), len(names)))
    expected: list[list[str | None]] = []
    for k, name in enumerate(names):
        cells, likely = _cells(model, name, chosen)
        usually = cells[len(worst) :]
        typical = float(usually[np.isfinite(usually)].mean()) if np.isfinite(usually).any() else 0
        below[:, k] = np.nan_to_num(typical - cells[: len(worst)], nan=0.0)
        expected.append(likely[: len(worst)])
    shown = taken_rows(frame, worst)
    values = {name: texts(shown.columns[name]) for name in names}
    places = worst if numbers is None else numbers[worst]
    rows = []
    for r, place in enumerate(places):
        order = np.argsort(-below[r], kind="stable")[:REASONS]
        reasons = [
            {"column": names[k], "nats": float(below[r, k]), "expected": expected[k][r]}
            for k in order
            if below[r, k] >= LEAST
        ]
        row = {name: values[name][r] for name in names}
        rows.append({"row": int(place) + frame.first_row, "values": row, "reasons": reasons,
                     "log_density": float(logs[worst[r]])})  # fmt: skip
    middle = float(np.median(logs)) if len(logs) else None
    return {"rows": rows, "of": int(frame.rows), "median": middle, "names": names}


def _cells(model: Answering, name: str, rows: Frame) -> tuple[np.ndarray, list[str | None]]:
    """Log-densities of a column's cells given the others of their rows, and what was expected."""
    found = model.conditional(name, rows, unseen="unknown")
    column, cells = found.column, rows.columns[name]
    if isinstance(column, NumberColumn):
        codes, scores = column.encode(cells, rows.name, "unknown")
    else:
        codes, scores = column.encode(cells, rows.name, "unknown"), np.zeros(rows.rows)
    logs = found.log_density(codes.clip(min=0), scores)
    return np.where(codes < 0, np.nan, logs), texts(found.most_likely())
