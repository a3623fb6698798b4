"""The report pages of fits of tables: of a whole table, and of one column given the others."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kermix.data.schema.schema import EncodedTable, Schema
from kermix.pages import charts
from kermix.pages.page import Card
from kermix.pages.plot import Axis, Plot, Svg
from kermix.runs.run import Numbers, Run
from kermix.tables.compare.column_charts import (
    column_chart,
    in_both,
    pair_chart,
    step_of,
    tick_of,
)
from kermix.tables.runs.table_quality import Conditional, TableQuality
from kermix.tables.runs.target_quality import (
    ClassQuality,
    NumberQuality,
    Predicted,
    TargetQuality,
)
from kermix.training.loop import Row
from kermix.two_sample.classifier_test import area_text

__all__ = ["ANSWER", "NETWORK", "conditional_cards", "write_table_report", "write_target_report"]

NETWORK = "table model"
ANSWER = "answer"  # the number that is a sentence, where a model is not good yet


def write_table_report(
    run: Run,
    rows: Numbers,
    schema: Schema,
    sets: tuple[EncodedTable, EncodedTable],
    quality: TableQuality,
    history: Sequence[Row],
    model: str = NETWORK,
    conditionals: Sequence[Sequence[Conditional]] = (),
) -> None:
    """Write `report.html`: which model is best, each column, pairs, privacy, how to repeat it.

    Args:
        run: The run.
        rows: Its numbers, by name.
        schema: What the columns are.
        sets: All rows of the data, and rows of the model.
        quality: How good these are.
        history: What was reported in training.
        model: What the model is called; another than the table model has no conditionals.
        conditionals: Columns given others, by the model and in the data.
    """
    columns = [
        Card(
            name,
            in_both(column_chart, schema, sets, name),
            _column_line(schema, sets, name, found),
        )
        for name, found in sorted(quality.columns, key=lambda column: -column[1])
    ]
    pairs = [
        Card(f"{p.first} with {p.second}", in_both(pair_chart, schema, sets, p.first, p.second),
             f"difference {p.difference:.3f}")
        for p in quality.pairs[:4]
    ]  # fmt: skip
    run.write_page("table", f"{_capital(model)} of {Path(run.config['data']).name}", {
        "model": model,
        "network": model == NETWORK,
        "poor": dict(rows).get(ANSWER),
        "rows": [row for row in rows if row[0] != ANSWER],
        "quality": quality,
        "best": max(quality.references, key=lambda reference: reference[1]),
        "told_apart": _told_apart(quality),
        "columns": columns,
        "pairs": pairs,
        "differences": [(f"{p.first} and {p.second}", f"{p.difference:.3f}")
                        for p in quality.pairs],
        "conditionals": [conditional_cards(row) for row in conditionals],
        "curve": _curve(history),
        "form": run.config["form"],
        "first": schema.modelled[0].name,
        "schema": schema.table(),
    }, {"target": run.config.get("target")})  # fmt: skip


def _told_apart(quality: TableQuality) -> str | None:
    """Whether a classifier tells samples from data, in a sentence; None of too few rows."""
    if quality.auc is None or quality.interval is None:
        return None
    tells = "tells" if quality.interval[0] > 0.5 else "cannot tell"
    return f"A classifier {tells} them apart: {area_text(quality.auc, quality.interval)}."


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]


def _column_line(
    schema: Schema, sets: tuple[EncodedTable, EncodedTable], name: str, difference: float
) -> str:
    """How different data and samples are, and where cells are missing."""
    column = schema[name]
    if column.missing_code is None:
        return f"difference {difference:.3f}"
    place = [c.name for c in schema.modelled].index(name)
    gaps = [float((rows.codes[:, place] == column.missing_code).mean()) for rows in sets]
    return f"difference {difference:.3f}; missing {gaps[0]:.1%} and {gaps[1]:.1%}"


def conditional_cards(row: Sequence[Conditional]) -> list[Card]:
    """A chart of a column for each value of another one: the data, and the model."""
    return [Card(f"{found.column} where {found.given}", _conditional(found)) for found in row]


def _conditional(found: Conditional) -> Svg:
    about, values, shares = (
        f"{found.column} | {found.given}",
        found.values,
        (found.data, found.model),
    )
    if found.bins is None:
        return charts.bars(values.names[: len(found.data)], shares, about)
    ticks = found.bins.ticks(partial(tick_of, values.column), step_of(values))
    return charts.histogram(found.bins.places, shares, ticks, about)


def _curve(history: Sequence[Row]) -> Svg:
    """The loss of batches, and that of held-out rows, by step."""
    held_out = any(row["metric"] != row["loss"] for row in history)
    lines = {"held-out rows, averaged weights": [(r["step"], r["metric"]) for r in history]}
    batches = {"batches": [(row["step"], row["loss"]) for row in history]}
    return charts.curves({**(lines if held_out else {}), **batches}, "step", "loss (nats a row)",
                         "The loss in training")  # fmt: skip


def write_target_report(
    run: Run,
    rows: Numbers,
    schema: Schema,
    quality: TargetQuality,
    predicted: Predicted,
    history: Sequence[Row],
) -> None:
    """Write `report.html`: how good predictions are, whether their chances hold, how to repeat it.

    Args:
        run: The run.
        rows: Its numbers, by name.
        schema: What the columns are.
        quality: How good predictions are.
        predicted: Those of the test rows.
        history: What was reported in training.
    """
    target = run.config["target"]
    shown = _classes(quality, predicted) if isinstance(quality, ClassQuality) else _numbers(
        quality, predicted, target)  # fmt: skip
    run.write_page("target", f"{target} of {Path(run.config['data']).name}", {
        "target": target,
        "rows": rows,
        "quality": quality,
        "curve": _curve(history),
        "form": run.config["form"],
        "written": _written(schema, target),
        "schema": schema.table(),
        **shown,
    }, {"target": target})  # fmt: skip


def _written(schema: Schema, target: str) -> Callable[[str], str]:
    """How a number of the target is written."""
    form = getattr(schema[target], "form", None)
    return str if form is None else form.dressed


def _classes(
    quality: ClassQuality, predicted: Predicted, most_classes: int = 40
) -> dict[str, Any]:
    counts = np.array(quality.confusion)
    # Of very many classes, those with the most rows.
    shown = np.sort(np.argsort(-counts.sum(1), kind="stable")[:most_classes])
    names = [quality.classes[k] for k in shown]
    return {
        "is_class": True,
        "confusion": charts.confusion(counts[np.ix_(shown, shown)], names),
        "chart": _reliability(predicted.chances(), predicted.codes),
    }


def _reliability(chances: np.ndarray, truth: np.ndarray, bins: int = 10) -> Svg:
    """The share that is correct among rows predicted with about the same probability."""
    sure, right = chances.max(1), chances.argmax(1) == truth
    parts = np.array_split(np.argsort(sure, kind="stable"), min(bins, len(sure)))
    counts, shares, places = (np.array([f(rows) for rows in parts]) for f in (
        len, lambda rows: right[rows].mean(), lambda rows: sure[rows].mean()))  # fmt: skip
    error = 1.96 * np.sqrt(np.maximum(shares * (1 - shares), 0.25 / counts) / counts)
    least = 1 / chances.shape[1]
    plot = Plot(Axis(min(least, places.min()), 1, "probability of the predicted class"),
                Axis(0, 1, "share that is correct"), "Probabilities against shares")  # fmt: skip
    plot.line([least, 1], [least, 1], "quiet", "calibrated")
    plot.bands(places, (shares - error).clip(0, 1), (shares + error).clip(0, 1), "one")
    return plot.dots(places, shares, "one", "with a 95 % interval", 7).svg()


def _numbers(
    quality: NumberQuality, predicted: Predicted, target: str, most_rows: int = 150
) -> dict[str, Any]:
    middle, low, high = (predicted.quantiles(share) for share in (0.5, 0.05, 0.95))
    chosen = np.random.default_rng(0).permutation(len(middle))[:most_rows]
    chosen = chosen[np.argsort(middle[chosen], kind="stable")]
    places, truth = np.arange(1, len(chosen) + 1), predicted.numbers[chosen]
    plot = Plot(Axis.over(places, label="test rows, sorted"),
                Axis.over(low[chosen], high[chosen], truth, label=target),
                f"{target} of test rows, and its intervals")  # fmt: skip
    plot.bands(places, low[chosen], high[chosen], "one", "90 % interval")
    plot.line(places, middle[chosen], "one", "median").dots(places, truth, "two", "true value")
    return {"is_class": False, "chart": plot.svg(), "drawn": len(chosen)}
