"""Data against samples: each column and the pairs that differ most, with the report's scores."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kermix.data.tables.columns import CategoryColumn, NumberColumn
from kermix.data.tables.frames import as_frame, taken_rows
from kermix.data.tables.schema import EncodedTable, Schema
from kermix.explore.questions import Answering
from kermix.explore.scales import Scale, interval_texts
from kermix.reports.table_figures import cell_numbers
from kermix.reports.table_quality import GROUPS, grouped, judge_samples
from kermix.runs.table_data import TableData
from kermix.runs.table_results import LEAST_JUDGED, MOST_JUDGED

__all__ = ["checked", "encoded_samples", "saved_quality"]


def encoded_samples(model: Answering, count: int, seed: int) -> EncodedTable:
    """Rows of a model as a reader of its table finds them."""
    drawn = model.sample(count, random_state=seed, frame="arrow")
    types = {c.name: c.type for c in model.schema_.columns}
    return model.schema_.encode(replace(as_frame(drawn, "samples"), types=types), extra=True)


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
    scales: Mapping[str, Scale],
    data: TableData,
    split: tuple[np.ndarray, np.ndarray],
    seed: int,
    quality: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """How data and samples differ, the worst first, and what the report says of privacy.

    Args:
        model: The model.
        scales: How its columns are shown.
        data: The table.
        split: Which rows were held out, and which trained with.
        seed: Of the training; samples are those of the report.
        quality: What the report says; found here if there is none.
    """
    held, train = split
    count = min(MOST_JUDGED, max(LEAST_JUDGED, len(data.encoded)))
    samples = encoded_samples(model, count, seed + 1)
    if quality is None:
        judged = np.sort(held if len(held) else train[:MOST_JUDGED])
        logs = model.score_samples(taken_rows(data.frame, judged))
        found = judge_samples(data.schema, data.encoded, samples, train, held, logs)
        quality = found.as_json()
    differences = dict(quality["columns"])
    shown = [_column(data, samples, scales, name) for name in differences]
    for column in shown:
        column["difference"] = differences[column["name"]]
    shown.sort(key=lambda column: -column["difference"])
    own, drawn = (grouped(data.schema, data.encoded, rows) for rows in (data.encoded, samples))
    names = group_names(data.schema, data.encoded, own)
    pairs = [_pair(data.schema, own, drawn, names, pair) for pair in quality["pairs"]]
    scores = {name: quality[name] for name in ("log_density", "density_name", "references",
              "detection", "copies", "copies_held", "privacy", "pair_floor")}  # fmt: skip
    return {"columns": shown, "pairs": pairs, "scores": scores,
            "samples": count, "rows": len(data.encoded)}  # fmt: skip


def _column(
    data: TableData, samples: EncodedTable, scales: Mapping[str, Scale], name: str
) -> dict[str, Any]:
    places = [c.name for c in data.schema.modelled]
    place, column = places.index(name), data.schema[name]
    told: dict[str, Any] = {"name": name, "kind": column.kind}
    scale = replace(scales[name], column=data.schema.modelled[place])
    told["scale"] = scale.described()
    for what, rows in (("data", data.encoded), ("samples", samples)):
        codes, scores = rows.codes[:, place], None
        if isinstance(column, NumberColumn):
            scores = rows.values[:, [c.name for c in data.schema.numbers].index(name)]
        told[what] = np.round(scale.counted(codes, scores), 6).tolist()
        if column.missing_code is not None:
            told[f"{what}_missing"] = float((codes == column.missing_code).mean())
    return told


def group_names(schema: Schema, data: EncodedTable, groups: np.ndarray) -> list[list[str]]:
    """Names of the groups in which two columns are looked at together, column by column."""
    found = []
    numbers = {column.name: q for q, column in enumerate(schema.numbers)}
    for k, column in enumerate(schema.modelled):
        names = []
        for group in range(GROUPS):
            codes = np.unique(data.codes[groups[:, k] == group, k])
            if not len(codes):
                names.append("others")
            elif isinstance(column, CategoryColumn):
                names.append(column.code_names[codes[0]] if len(codes) == 1 else "others")
            elif len(codes) == 1 and codes[0] == column.missing_code:
                names.append("(missing)")
            else:
                rows = groups[:, k] == group
                own = data.values[rows, numbers[column.name]]
                values = cell_numbers(column, data.codes[rows, k], own)
                ends = interval_texts(column, np.array([values.min(), values.max()]))
                names.append(ends[0] if ends[0] == ends[1] else " to ".join(ends))
        found.append(names)
    return found


def _pair(
    schema: Schema,
    own: np.ndarray,
    drawn: np.ndarray,
    names: list[list[str]],
    pair: Mapping[str, Any],
) -> dict[str, Any]:
    """Joint shares of two columns in data and samples, of the groups that there are."""
    columns = [c.name for c in schema.modelled]
    a, b = columns.index(pair["first"]), columns.index(pair["second"])
    tables = []
    for groups in (own, drawn):
        table = np.zeros((GROUPS, GROUPS))
        np.add.at(table, (groups[:, b], groups[:, a]), 1 / max(1, len(groups)))
        tables.append(table)
    across, down = (np.flatnonzero((tables[0] + tables[1]).sum(axis)) for axis in (0, 1))
    shown = [np.round(table[np.ix_(down, across)], 5).tolist() for table in tables]
    return {**pair, "across": [names[a][k] for k in across], "down": [names[b][k] for k in down],
            "data": shown[0], "samples": shown[1]}  # fmt: skip
