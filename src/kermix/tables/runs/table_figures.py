"""Figures of a table and its samples: each column, and the pairs that differ most."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.pages.fit_figures import BLUE, GREY, ORANGE, blank_figure, plain_axes
from kermix.tables.runs.table_quality import GROUPS, Pair, grouped

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["cell_numbers", "columns_figure", "curve_figure", "pairs_figure", "short"]

ACROSS = 4
BARS = 8  # values of a category that are shown
BINS = 30
LONGEST = 14  # letters of a value
MIDDLE = (0.002, 0.998)  # of a column's numbers are shown


def columns_figure(
    schema: Schema,
    data: EncodedTable,
    samples: EncodedTable,
    differences: Sequence[tuple[str, float]],
) -> "Figure":
    """Each column, the most different first: shares as bars, numbers as histograms.

    Args:
        schema: What the columns are.
        data: All rows.
        samples: Rows of a model.
        differences: How different data and samples are in each column, in the schema's order.
    """
    count = len(schema.modelled)
    down = -(-count // ACROSS)
    figure = blank_figure(11.0, 2.0 * down + 0.5)
    panels = np.atleast_1d(figure.subplots(down, min(ACROSS, count), squeeze=False)).ravel()
    numbers = {c.name: q for q, c in enumerate(schema.numbers)}
    worst = sorted(range(count), key=lambda k: -differences[k][1])
    for axes, k in zip(panels, worst, strict=False):
        column = schema.modelled[k]
        codes = data.codes[:, k], samples.codes[:, k]
        if isinstance(column, CategoryColumn):
            _bars(axes, column, *codes)
        else:
            q = numbers[column.name]
            _histogram(axes, column, codes, (data.values[:, q], samples.values[:, q]))
        axes.set_title(f"{short(column.name, 24)}  {differences[k][1]:.3f}", fontsize=9)
        axes.tick_params(labelsize=7)
        axes.set_yticks([])
        plain_axes(axes)
        axes.spines["left"].set_visible(False)
    for axes in panels[count:]:
        axes.set_axis_off()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=2, frameon=False, fontsize=9)
    return figure


def _bars(axes: Any, column: CategoryColumn, data: np.ndarray, samples: np.ndarray) -> None:
    own, drawn = (np.bincount(c, minlength=column.code_count) / max(1, len(c))
                  for c in (data, samples))  # fmt: skip
    often = own.argsort(kind="stable")[::-1][:BARS]
    if column.code_count <= BARS:
        often = np.arange(column.code_count)
    places, names = np.arange(len(often)), [short(column.code_names[k]) for k in often]
    shares = [own[often], drawn[often]]
    if len(often) < column.code_count:
        places, names = np.arange(len(often) + 1), [*names, "others"]
        shares = [np.append(s, 1 - s.sum()) for s in shares]
    axes.bar(places - 0.2, shares[0], 0.4, color=BLUE, label="data")
    axes.bar(places + 0.2, shares[1], 0.4, color=ORANGE, label="samples")
    steep = any(len(n) > 4 for n in names)
    axes.set_xticks(places, names, rotation=35 if steep else 0, ha="right" if steep else "center")


def _histogram(
    axes: Any,
    column: NumberColumn,
    codes: tuple[np.ndarray, np.ndarray],
    scores: tuple[np.ndarray, np.ndarray],
) -> None:
    missing = -1 if column.missing_code is None else column.missing_code
    sets = [cell_numbers(column, c[c != missing], s[c != missing])
            for c, s in zip(codes, scores, strict=True)]  # fmt: skip
    low, high = np.quantile(sets[0], MIDDLE) if len(sets[0]) else (0.0, 1.0)
    if not high > low:
        low, high = low - 0.5, high + 0.5
    edges = np.linspace(low, high, BINS + 1)
    if column.decimals == 0 and high - low <= BINS:
        edges = np.arange(low, high + 2) - 0.5
    looks: Sequence[dict[str, Any]] = (
        {"color": BLUE, "alpha": 0.45, "label": "data"},
        {"color": ORANGE, "histtype": "step", "linewidth": 1.4, "label": "samples"},
    )
    for numbers, look in zip(sets, looks, strict=True):
        share = np.full(len(numbers), 1 / max(1, len(numbers)))
        # What is beyond the ends is counted at the ends.
        axes.hist(np.clip(numbers, edges[0], edges[-1]), edges, weights=share, **look)
    if column.time:
        shown = [edges[0], edges[-1]]
        texts = [column.shown_time(v).partition(" ")[0] for v in shown]
        axes.set_xticks(shown, texts)
    elif column.origin:
        shown = [edges[0], edges[-1]]
        axes.set_xticks(shown, [f"{v + column.origin:g}" for v in shown])
    else:
        axes.locator_params(axis="x", nbins=4)
    if column.missing_code is not None:
        gaps = [float((c == column.missing_code).mean()) for c in codes]
        axes.text(0.98, 0.95, f"gaps {gaps[0]:.1%} | {gaps[1]:.1%}", fontsize=7, ha="right",
                  va="top", transform=axes.transAxes, color=GREY)  # fmt: skip


def cell_numbers(column: NumberColumn, codes: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Numbers of encoded cells, atoms among them, inside the column's range."""
    numbers = np.asarray(column.map.inverse(scores))
    at = (codes > 0) & (codes <= len(column.atoms))
    numbers[at] = column.atoms[codes[at] - 1]
    return np.asarray(np.clip(numbers, column.low, column.high))


def pairs_figure(
    schema: Schema, data: EncodedTable, samples: EncodedTable, pairs: Sequence[Pair]
) -> "Figure":
    """Joint shares of groups of two columns: the data above, the samples below."""
    figure = blank_figure(11.0, 5.6)
    panels = figure.subplots(2, len(pairs), squeeze=False)
    names = [c.name for c in schema.modelled]
    sets = grouped(schema, data, data), grouped(schema, data, samples)
    for k, pair in enumerate(pairs):
        a, b = names.index(pair.first), names.index(pair.second)
        tables = []
        for groups in sets:
            table = np.zeros((GROUPS, GROUPS))
            np.add.at(table, (groups[:, b], groups[:, a]), 1 / max(1, len(groups)))
            tables.append(table)
        used = [np.flatnonzero((tables[0] + tables[1]).sum(axis)) for axis in (0, 1)]
        most = max(t.max() for t in tables)
        for axes, table, what in zip(panels[:, k], tables, ("data", "samples"), strict=True):
            shown = np.sqrt(table[np.ix_(used[1], used[0])])
            axes.imshow(shown, origin="lower", cmap="cividis", vmin=0, vmax=np.sqrt(most),
                        aspect="auto")  # fmt: skip
            axes.set_xticks([])
            axes.set_yticks([])
            axes.set_xlabel(short(pair.first, 24), fontsize=8)
            axes.set_ylabel(short(pair.second, 24), fontsize=8)
            axes.set_title(what, fontsize=9)
    return figure


def curve_figure(history: Sequence[dict[str, float]], held_out: bool) -> "Figure":
    """The loss of batches, and that of held-out rows, by step."""
    figure = blank_figure(8.0, 3.0)
    axes = figure.subplots()
    steps = [row["step"] for row in history]
    axes.plot(steps, [row["loss"] for row in history], color=GREY, linewidth=0.8, label="batch")
    if held_out:
        metric = [row["metric"] for row in history]
        axes.plot(steps, metric, color=BLUE, label="held-out rows, averaged weights")
        axes.axhline(min(metric), color=BLUE, linewidth=0.6, linestyle="--")
    axes.set(xlabel="step", ylabel="loss (nats a row)")
    axes.legend(frameon=False)
    plain_axes(axes)
    return figure


def short(text: str, most: int = LONGEST) -> str:
    """The beginning of a text, as a figure shows it."""
    text = text.replace("$", r"\$")
    return text if len(text) <= most else text[: most - 1] + "…"
