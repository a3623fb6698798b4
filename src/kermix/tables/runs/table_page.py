"""Columns given others: what the model says beside what the rows of the data have.

The page about a fit of the table model.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from kermix.data.readers.frames import Frame, taken_rows
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.pages.fit_figures import BLUE, ORANGE, blank_figure, plain_axes
from kermix.pages.report import DescribedRun, Report, add_schema, add_settings
from kermix.tables.model.distribution import ColumnDistribution
from kermix.tables.runs.table_figures import (
    cell_numbers,
    columns_figure,
    curve_figure,
    pairs_figure,
    short,
)
from kermix.tables.runs.table_quality import GROUPS, Privacy, TableQuality, grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Conditional",
    "conditionals_figure",
    "conditionals_of",
    "strongest_pairs",
    "write_table_report",
]

PAIRS, VALUES = 3, 3
LEAST_ROWS, MOST_ROWS = 30, 200  # of a value of the other column: to show it, to ask about
BINS, BARS = 20, 6
MIDDLE = (0.005, 0.995)


class _Answers(Protocol):
    def conditional(self, column: str, given: Any, *, unseen: Any = ...) -> ColumnDistribution: ...


@dataclass(frozen=True)
class Conditional:
    """A column where another one has some value: shares of its own values.

    Attributes:
        column: The column.
        given: What the other one is, in words.
        names: Names of the values of a category; empty for a number.
        edges: Ends of the intervals of a number; empty for a category.
        data: Shares in the data's rows.
        model: Shares by the model, the mean over the same rows' values of the other column.
    """

    column: str
    given: str
    names: tuple[str, ...]
    edges: tuple[float, ...]
    data: np.ndarray
    model: np.ndarray


def strongest_pairs(schema: Schema, data: EncodedTable) -> list[tuple[str, str]]:
    """Columns that tell most about each other, as (given, asked for); none in more than two pairs.

    By the mutual information of at most 8 groups of each. Numbers are asked for rather than
    categories.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.choice(["f", "m"], 400)
        >>> table = {"sex": sex, "size": rng.normal(170 + 10 * (sex == "m"), 5),
        ...          "luck": rng.normal(size=400)}
        >>> schema = Schema.of(table)
        >>> strongest_pairs(schema, schema.encode(table))[0]
        ('sex', 'size')
    """
    columns, groups = schema.modelled, grouped(schema, data, data)
    plain = [k for k, c in enumerate(columns) if not isinstance(c, NumberColumn) or _is_plain(c)]
    told = {(a, b): _information(groups[:, a], groups[:, b]) for a, b in combinations(plain, 2)}
    found: list[tuple[str, str]] = []
    used: list[int] = []
    for a, b in sorted(told, key=lambda pair: -told[pair]):
        if max(used.count(a), used.count(b)) < 2 and len(found) < PAIRS:
            used += [a, b]
            given, asked = (b, a) if isinstance(columns[b], CategoryColumn) else (a, b)
            found.append((columns[given].name, columns[asked].name))
    return found


def _is_plain(column: NumberColumn) -> bool:
    return not column.time and column.origin == 0


def _information(first: np.ndarray, second: np.ndarray) -> float:
    joint = np.bincount(first * GROUPS + second, minlength=GROUPS**2).reshape(GROUPS, GROUPS)
    joint = joint / max(1, joint.sum())
    apart = joint.sum(1, keepdims=True) * joint.sum(0)
    at = joint > 0
    return float((joint[at] * np.log(joint[at] / apart[at])).sum())


def conditionals_of(
    model: _Answers, schema: Schema, frame: Frame, data: EncodedTable
) -> list[list[Conditional]]:
    """For each of the strongest pairs, one column where the other has each of some values."""
    found = []
    for given, asked in strongest_pairs(schema, data):
        row = []
        for words, rows in _values(schema, data, given):
            few = np.sort(np.random.default_rng(0).permutation(rows)[:MOST_ROWS])
            known = taken_rows(frame, few)
            alone = Frame(known.kind, known.name, {given: known.columns[given]},
                          {given: known.types[given]}, known.rows)  # fmt: skip
            answer = model.conditional(asked, alone, unseen="unknown")
            row.append(_compared(schema, data[rows], answer, words))
        if row:
            found.append(row)
    return found


def _values(schema: Schema, data: EncodedTable, name: str) -> list[tuple[str, np.ndarray]]:
    """Values of a column in words, and the rows that have them: frequent ones, or thirds."""
    place = [c.name for c in schema.modelled].index(name)
    column, codes = schema.modelled[place], data.codes[:, place]
    filled = codes != (-1 if column.missing_code is None else column.missing_code)
    if isinstance(column, CategoryColumn):
        often = np.bincount(codes[filled]).argsort(kind="stable")[::-1][:VALUES]
        groups = [(f"{name} = {short(column.code_names[k])}", codes == k) for k in often]
    else:
        values = np.full(len(codes), np.nan)
        values[filled] = _own_numbers(schema, data, place)[filled]
        ends = np.quantile(values[filled], np.arange(VALUES + 1) / VALUES)
        ends = np.unique(np.append(ends[:-1], np.nextafter(ends[-1], np.inf)))
        groups = []
        for low, high in pairwise(ends):
            rows = (values >= low) & (values < high)
            if rows.any():
                least, most = (f"{v:.4g}" for v in (values[rows].min(), values[rows].max()))
                words = least if least == most else f"{least} to {most}"
                groups.append((f"{name} = {words}", rows))
    return [(w, np.flatnonzero(r)) for w, r in groups if r.sum() >= LEAST_ROWS]


def _own_numbers(schema: Schema, rows: EncodedTable, place: int) -> np.ndarray:  # (N,)
    column = schema.modelled[place]
    assert isinstance(column, NumberColumn)
    scores = rows.values[:, list(schema.number_columns).index(place)]
    return cell_numbers(column, rows.codes[:, place], scores)


def _compared(
    schema: Schema, rows: EncodedTable, answer: ColumnDistribution, words: str
) -> Conditional:
    column = answer.column
    place = [c.name for c in schema.modelled].index(column.name)
    codes = rows.codes[:, place]
    filled = codes != (-1 if column.missing_code is None else column.missing_code)
    if isinstance(column, CategoryColumn):
        chances = answer.filled.mean(0)
        own = np.bincount(codes[filled], minlength=len(chances)) / max(1, filled.sum())
        often = np.sort((own + chances).argsort(kind="stable")[::-1][:BARS])
        names = tuple(short(column.code_names[k]) for k in often)
        return Conditional(column.name, words, names, (), own[often], chances[often])
    numbers = np.sort(_own_numbers(schema, rows, place)[filled])
    low, high = np.quantile(numbers, MIDDLE) if len(numbers) else (column.low, column.high)
    edges = np.linspace(low, high if high > low else low + 1, BINS + 1)
    upto = np.array([answer.cdf(edge).mean() for edge in edges])
    data = np.searchsorted(numbers, edges, side="right") / max(1, len(numbers))
    for shares in (upto, data):
        shares[0], shares[-1] = 0.0, 1.0  # what is beyond the ends is counted at the ends
    return Conditional(column.name, words, (), tuple(edges), np.diff(data), np.diff(upto))


def conditionals_figure(found: Sequence[Sequence[Conditional]]) -> "Figure":
    """One line of panels for each pair of columns, one panel for each value of the given one."""
    figure = blank_figure(11.0, 2.6 * len(found) + 0.4)
    panels = figure.subplots(len(found), VALUES, squeeze=False)
    for row, line in zip(found, panels, strict=True):
        for axes in line[len(row) :]:
            axes.set_axis_off()
        for panel, axes in zip(row, line, strict=False):
            _draw(axes, panel)
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=9)
    return figure


def _draw(axes: Any, panel: Conditional) -> None:
    if panel.names:
        places = np.arange(len(panel.names))
        axes.bar(places - 0.2, panel.data, 0.4, color=BLUE, label="data")
        axes.bar(places + 0.2, panel.model, 0.4, color=ORANGE, label="model")
        steep = any(len(n) > 4 for n in panel.names)
        axes.set_xticks(places, panel.names, rotation=35 if steep else 0,
                        ha="right" if steep else "center")  # fmt: skip
    else:
        axes.stairs(panel.data, panel.edges, fill=True, color=BLUE, alpha=0.45, label="data")
        axes.stairs(panel.model, panel.edges, color=ORANGE, linewidth=1.4, label="model")
        axes.locator_params(axis="x", nbins=4)
    axes.set_title(f"{short(panel.column, 20)} | {short(panel.given, 34)}", fontsize=9)
    axes.tick_params(labelsize=7)
    axes.set_yticks([])
    plain_axes(axes)
    axes.spines["left"].set_visible(False)


DRAWN_PAIRS = 4
NETWORK = "table model"


def write_table_report(
    run: DescribedRun,
    rows: Sequence[tuple[str, str]],
    schema: Schema,
    data: EncodedTable,
    samples: EncodedTable,
    quality: TableQuality,
    history: list[dict[str, float]],
    model: str = NETWORK,
    conditionals: Sequence[Sequence[Conditional]] = (),
) -> None:
    """Write `report.html`: numbers, each column, pairs, privacy, how to repeat it.

    Args:
        run: The run.
        rows: Numbers to begin with, by name.
        schema: What the columns are.
        data: All rows.
        samples: Rows of the model.
        quality: How good they are.
        history: What was reported in training.
        model: What the model is called; another than the table model has no conditionals.
        conditionals: Columns given others, by the model and in the data.
    """
    name = Path(run.config["data"]).name
    what = "Gaussians, better on held-out rows than the table model, fitted by"
    if model == NETWORK:
        what = "One network for the distribution of each column given any others, trained by"
    page = Report(
        f"{model[0].upper()}{model[1:]} of {name}", f"{what} kermix {run.config['kermix']}."
    )
    page.table(("", ""), rows, text=True)
    for note in run.config.get("notes", []):
        page.text(note)
    page.heading("Is it better than a simple model?")
    best = max(value for _, value in quality.references)
    if quality.log_density <= best:
        page.text("No: a simpler model has a higher log-density. Train longer, or use more rows.")
    page.table(
        ("model", "log-density, nats a row", f"{model} is ahead by"),
        [(model, quality.log_density, ""),
         *((what, value, quality.log_density - value) for what, value in quality.references)],
    )  # fmt: skip
    page.text(
        "Log-densities are in the units of the columns: larger is better, and a difference of 1 "
        "means that rows are e times as likely. Categories, atoms and missing values contribute "
        "their log-probability."
    )
    page.heading("Columns")
    page.figure(
        columns_figure(schema, data, samples, quality.columns),
        "Each column, the most different first, with its difference (see below): data filled, "
        "samples as an outline; categories as two bars. Values beyond the ends are counted at "
        "the ends.",
    )
    if conditionals:
        page.heading("One column given another")
        page.figure(
            conditionals_figure(conditionals),
            "The most dependent pairs of columns: the distribution of one given a value of the "
            "other, in the data and according to the model, conditioned on that column only. "
            "Categories as two bars, numbers filled and as an outline.",
        )
    page.heading("What differs most")
    page.text(
        "Total variation between data and samples: 0 if they are equal, 1 if they have nothing "
        f"in common. Two halves of the data differ by about {quality.pair_floor:.3f} in a pair."
    )
    worst = sorted(quality.columns, key=lambda c: -c[1])[:10]
    page.table(("column", "difference"), worst)
    if quality.pairs:
        found = [(f"{p.first} and {p.second}", p.difference) for p in quality.pairs]
        page.table(("pair of columns", "difference"), found)
        page.figure(
            pairs_figure(schema, data, samples, quality.pairs[:DRAWN_PAIRS]),
            "The worst pairs: joint shares (square roots) of groups of both columns, data above "
            "and samples below.",
        )
    page.heading("Can a classifier tell them apart?")
    if quality.detection is None:
        page.text("There are too few rows to tell.")
    else:
        page.text(
            f"Gradient-boosted trees, three folds: score {quality.detection:.3f}. 1 means that "
            "they cannot tell samples from data, 0 that they always can. Given a sample and a row "
            f"of the data, they know which is which {1 - quality.detection / 2:.1%} of the time "
            "(the area under the ROC curve); 50 % is guessing."
        )
    page.heading("Privacy")
    _privacy(page, quality, quality.privacy)
    page.heading("Training")
    page.figure(
        curve_figure(history, quality.density_name.startswith("held-out")),
        "The table model: the loss on batches, each with different columns observed, and on "
        "held-out rows.",
    )
    page.heading("Repeat it")
    page.code(run.command())
    whole = model == NETWORK
    page.text(f"Draw rows{', also with some columns given; fill gaps' * whole}; score"
              f"{'; predict' * whole}:")  # fmt: skip
    folder, form = shlex.quote(str(run.folder)), run.config["form"]
    column = schema.modelled[0].name
    lines = [f"kermix sample {folder} -n 1000 -o more{form}",
             f"kermix score {folder} rows{form} --sort"]  # fmt: skip
    if whole:
        lines += [
            f"kermix sample {folder} -n 1000 -o some{form} --given "
            f"{shlex.quote(column + '=VALUE')}",
            f"kermix impute {folder} gaps{form} -o filled{form}",
            f"kermix predict {folder} rows{form} --target {shlex.quote(column)}",
        ]
    page.code("\n".join(lines))
    add_schema(page, schema)
    add_settings(page, run)
    page.save(run.folder / "report.html")


def _privacy(page: Report, quality: TableQuality, found: Privacy) -> None:
    rows = [("samples", f"{quality.copies:.2%}", *found.samples)]
    if found.held_out is not None:
        rows.append(("held-out rows", f"{quality.copies_held:.2%}", *found.held_out))
    page.table(
        ("", "equal to a training row", "distance to the closest one: median", "5 % quantile"),
        rows,
    )
    if found.nearer_to_training is not None:
        page.text(
            f"A sample is closer to the training rows than a held-out row in "
            f"{found.nearer_to_training:.1%} of all comparisons; 50 % if nothing is memorized."
        )
    page.text(
        "These numbers describe these samples. The model does not provide differential privacy, "
        "a guarantee for every row."
    )
