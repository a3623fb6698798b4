"""The page about a model of one column of a table."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from kermix.data.schema.schema import Schema
from kermix.pages.fit_figures import (
    BLUE,
    GREY,
    ORANGE,
    blank_figure,
    class_rows,
    confusion_figure,
    plain_axes,
)
from kermix.pages.report import DescribedRun, Report, add_schema, add_settings
from kermix.tables.runs.table_figures import curve_figure
from kermix.tables.runs.target_quality import ClassQuality, NumberQuality, Predicted, TargetQuality

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_target_report"]

BINS = 10
DRAWN_ROWS = 150
SHOWN_CLASSES = 40


def write_target_report(
    run: DescribedRun,
    rows: Sequence[tuple[str, str]],
    schema: Schema,
    quality: TargetQuality,
    predicted: Predicted,
    history: list[dict[str, float]],
) -> None:
    """Write `report.html`: how good predictions are, whether their chances hold, how to repeat it.

    Args:
        run: The run.
        rows: Numbers to begin with, by name.
        schema: What the columns are.
        quality: How good predictions are.
        predicted: Those of the test rows.
        history: What was reported in training.
    """
    target = run.config["target"]
    page = Report(
        f"{target} of {Path(run.config['data']).name}",
        f"The distribution of {target} given all other columns, by one network, trained by "
        f"kermix {run.config['kermix']}.",
    )
    page.table(("", ""), rows, text=True)
    for note in run.config.get("notes", []):
        page.text(note)
    page.heading("Is it better than a simple model?")
    if isinstance(quality, ClassQuality):
        own = (f"{target} by this model", quality.accuracy, quality.log_loss)
        page.table(("", "accuracy", "log-loss, nats"), [own, *quality.references])
        _classes(page, quality, predicted)
    else:
        own = (f"{target} by this model", quality.error, quality.r2)
        page.table(("", "root mean squared error", "R²"), [own, *quality.references])
        _numbers(page, quality, predicted, target)
    page.heading("Training")
    held = any(row["metric"] != row["loss"] for row in history)
    page.figure(
        curve_figure(history, held),
        f"Negative log-likelihood of {target}: on batches, and on the held-out rows that decide "
        "which step is kept, which are neither training nor test rows.",
    )
    page.heading("Repeat it and use it")
    page.code(run.command())
    page.text("Predictions for other rows, and how likely their own values are:")
    folder, form = shlex.quote(str(run.folder)), run.config["form"]
    page.code(
        f"kermix predict {folder} new{form} -o predicted{form}\n"
        f"kermix score {folder} new{form} --sort"
    )
    add_schema(page, schema)
    add_settings(page, run)
    page.save(run.folder / "report.html")


def _classes(page: Report, quality: ClassQuality, predicted: Predicted) -> None:
    page.heading("Confusion matrix")
    counts = torch.tensor(quality.confusion)
    # Of very many classes, those with the most rows.
    shown = counts.sum(1).argsort(descending=True)[:SHOWN_CLASSES].sort().values
    names = [quality.classes[int(k)] for k in shown]
    some = counts[shown][:, shown]
    page.figure(
        confusion_figure(some, names),
        "Test rows by true class (rows) and predicted class (columns).",
    )
    page.table(("class", "test rows", "recall", "precision"),
               class_rows(counts, quality.classes))  # fmt: skip
    page.heading("Are the probabilities calibrated?")
    page.figure(
        _reliability_figure(predicted.chances(), predicted.codes),
        "Among rows predicted with a given probability (horizontal), the share for which the "
        "class is correct (vertical). On the line, probabilities are calibrated; below it, the "
        "model is overconfident.",
    )


def _numbers(page: Report, quality: NumberQuality, predicted: Predicted, target: str) -> None:
    page.heading("Are the intervals calibrated?")
    page.table(
        ("interval", "test rows inside"),
        [(f"{share:.0%}", f"{found:.1%}") for share, found in quality.coverage],
    )
    page.text(
        "The share inside should equal the level of the interval: fewer means that the model is "
        "overconfident. A target with few values has more, because an interval ends at a value "
        "and includes it."
    )
    page.figure(
        _interval_figure(predicted, target),
        f"{min(DRAWN_ROWS, len(predicted.numbers))} test rows, sorted by the predicted median: "
        "the true value as a dot, the median as a line, and the 90 % interval.",
    )


def _reliability_figure(chances: np.ndarray, truth: np.ndarray) -> "Figure":
    sure, right = chances.max(1), chances.argmax(1) == truth
    figure = blank_figure(5.0, 4.2)
    axes = figure.subplots()
    least = 1 / chances.shape[1]
    axes.plot([least, 1], [least, 1], color=GREY, linewidth=0.8)
    order = np.argsort(sure, kind="stable")
    for rows in np.array_split(order, min(BINS, len(order))):
        share, count = right[rows].mean(), len(rows)
        spread = 1.96 * np.sqrt(max(share * (1 - share), 0.25 / count) / count)
        axes.errorbar(sure[rows].mean(), share, spread, color=BLUE, marker="o", markersize=4)
    axes.set(xlabel="probability of the predicted class", ylabel="share that is correct",
             ylim=(-0.02, 1.05))  # fmt: skip
    plain_axes(axes)
    return figure


def _interval_figure(predicted: Predicted, target: str) -> "Figure":
    middle, low, high = (predicted.quantiles(share) for share in (0.5, 0.05, 0.95))
    chosen = np.random.default_rng(0).permutation(len(middle))[:DRAWN_ROWS]
    chosen = chosen[np.argsort(middle[chosen], kind="stable")]
    figure = blank_figure(9.0, 4.0)
    axes = figure.subplots()
    places = np.arange(len(chosen))
    axes.fill_between(places, low[chosen], high[chosen], color=BLUE, alpha=0.25, linewidth=0,
                      label="90 % interval")  # fmt: skip
    axes.plot(places, middle[chosen], color=BLUE, label="median")
    axes.plot(places, predicted.numbers[chosen], ".", color=ORANGE, label="true value")
    axes.set(xlabel="test rows, sorted", ylabel=target.replace("$", r"\$"))
    axes.legend(frameon=False)
    plain_axes(axes)
    return figure
