"""The page of a comparison of two data sets: the verdict, where they differ, and every cost.

Charts show one column or two together in both samples, and rows that are typical of one alone with
the columns that make them so. Each cost comes with what it reads for equal sets, and why.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import counted
from kermix.pages import figures as plots
from kermix.pages.charts import area_svg, bars_svg, gauge_svg, map_svg
from kermix.pages.figures import grid_over
from kermix.pages.report import Report
from kermix.tables.compare.column_changes import (
    ColumnValues,
    ComparedRows,
    groups_of,
    new_and_gone,
    number_text,
    sides_of,
)
from kermix.tables.compare.result import MEASURE_HEADS, TITLES, Comparison
from kermix.tables.compare.verdict import ColumnVerdict, Verdict, auc_text
from kermix.two_sample.classifier_test import ToldApart
from kermix.two_sample.column_scores import FEW_VALUES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "HOW_TO_READ",
    "TypicalRows",
    "add_costs",
    "column_chart",
    "column_rows",
    "comparison_report",
    "pair_chart",
    "score_chart",
    "typical_rows",
]

TOP = 0.1  # share of a sample's rows, by their score
GROUPS = 10
HALF_A_ROW = 0.5
OUTSIDE, FAR = 0.0025, 4.0  # share of a column's values at either end; what one adds
UNIFORM_SPREAD = 12**0.5  # makes a uniform distribution one of variance 1


@dataclass(frozen=True)
class TypicalRows:
    """Some rows of one sample that a classifier puts there, none of them an outlier.

    Attributes:
        rows: Their places in the sample, from 0.
        columns: Those whose values speak most for this sample, the clearest first.
        cells: What is in these columns, as text.
    """

    rows: tuple[int, ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]


def typical_rows(
    compared: ComparedRows, apart: ToldApart, count: int = 5, most_columns: int = 6
) -> tuple[TypicalRows, TypicalRows]:
    """Of each sample, rows that are nearest to the middle of those with its highest scores.

    The scores are those of `tell_apart` for unseen rows; the middle is weighted by them.
    """
    second = apart.chosen >= compared.n
    favours = _favours(compared, apart.chosen, second.numpy())
    found = []
    for side, sign in ((~second, -1.0), (second, 1.0)):
        inside = side.nonzero()[:, 0]
        scores = sign * apart.scores[inside]
        keep = scores.argsort(descending=True, stable=True)[: max(count, int(TOP * len(inside)))]
        top, weights = inside[keep], scores[keep] - scores[keep].min()
        weights = (weights + 1e-9) / (weights + 1e-9).sum()
        near = _nearest(compared, apart.chosen[top], weights, count)
        rows = top[near]
        speak = sign * favours[rows.numpy()].mean(0)
        order = [k for k in np.argsort(-speak, kind="stable") if speak[k] > 0][:most_columns]
        chosen = apart.chosen[rows]
        found.append(_shown(compared, chosen, [compared.names[k] for k in order]))
    return found[0], found[1]


def _shown(compared: ComparedRows, chosen: Tensor, names: Sequence[str]) -> TypicalRows:
    columns = [compared.column(name, chosen) for name in names]
    cells = tuple(tuple(c.cell(k) for c in columns) for k in range(len(chosen)))
    start = torch.where(chosen >= compared.n, compared.n, 0)
    return TypicalRows(tuple((chosen - start).tolist()), tuple(names), cells)


def _nearest(compared: ComparedRows, chosen: Tensor, weights: Tensor, count: int) -> Tensor:
    """Which of some rows are nearest to their weighted middle; equal rows count once."""
    rows = compared.pooled[chosen].double()
    distances = rows.new_zeros(len(rows))
    for place in compared.places:
        if place.numbers is not None:
            ordered = compared.pooled[:, place.numbers].double().sort().values
            column = rows[:, place.numbers].contiguous()
            ends = ordered[[int(OUTSIDE * len(ordered)), -1 - int(OUTSIDE * len(ordered))]]
            below = torch.searchsorted(ordered, column).double()
            ranks = UNIFORM_SPREAD * below / len(ordered)
            distances += (ranks - weights @ ranks).square()
            # Ranks do not tell how far out the outermost values are.
            distances += FAR * ((column < ends[0]) | (column > ends[1]))
        if place.codes is not None:
            codes = rows[:, place.codes]
            shares = (codes[:, None] == codes).double() @ weights
            distances += 2 * (1 - shares)
    order = distances.argsort(stable=True)
    _, first = np.unique(rows[order].numpy(), axis=0, return_index=True)
    return order[torch.from_numpy(np.sort(first))[:count]]


def _favours(compared: ComparedRows, chosen: Tensor, second: np.ndarray) -> np.ndarray:  # (N, C)
    """For each row and column, the logarithm of how much more often the second has such values."""
    found = []
    order = np.argsort(second, kind="stable")
    n = int((~second).sum())
    for name in compared.names:
        group, count = groups_of(compared.column(name, chosen), GROUPS)
        a, b = (
            (np.bincount(g, minlength=count) + HALF_A_ROW) / (len(g) + HALF_A_ROW * count)
            for g in sides_of(group[order], n)
        )
        found.append(np.log(b / a)[group])
    return np.stack(found, 1)


BINS = 30
BARS = 6
MIDDLE = (0.005, 0.995)  # of the numbers are shown
SKEWED = 30.0
PAIR_GROUPS = 8
FEWEST = 4  # rows of a cell that has a colour


def column_chart(values: ColumnValues, n: int) -> str:
    """Both samples' distribution of a column: histograms, or bars of a few values."""
    about = f"{values.name} in both samples"
    if values.codes is not None:
        names, codes = list(values.names), values.codes
    else:
        assert values.numbers is not None
        distinct = np.unique(values.numbers[~np.isnan(values.numbers)])
        if len(distinct) > FEW_VALUES:
            return _histogram(values, n, about)
        names = [*(values.shown(float(v)) for v in distinct), "missing"]
        codes = np.searchsorted(distinct, values.numbers)
    counts = [np.bincount(c, minlength=len(names)) for c in sides_of(codes, n)]
    one, two = (c / c.sum() for c in counts)
    seen = np.flatnonzero(one + two)
    order = seen
    if len(seen) > BARS:
        order = seen[np.argsort(-np.maximum(one, two)[seen], kind="stable")][: BARS - 1]
        # What is spoken of is shown: new values, those that are gone, and what moved most.
        said = [some[0] for some in new_and_gone(*counts) if len(some)]
        said += [seen[np.argmax(np.abs(one - two)[seen])]] * (not said)
        for place, k in enumerate((k for k in said if k not in order), 1):
            order[-place] = k
    shown = [names[k] for k in order]
    shares = [one[order], two[order]]
    rest = ""
    if len(seen) > BARS:
        left = [f"{100 * (1 - s.sum()):.0f} %" for s in shares]
        rest = f"and {len(seen) - len(order)} others: {left[0]}, {left[1]}"
    return bars_svg(shown, shares[0].tolist(), shares[1].tolist(), about, rest)


def _histogram(values: ColumnValues, n: int, about: str) -> str:
    assert values.numbers is not None
    sides = [side[~np.isnan(side)] for side in sides_of(values.numbers, n)]
    both = np.concatenate(sides)
    low, middle, high = np.quantile(both, (MIDDLE[0], 0.5, MIDDLE[1]))
    if not high > low:
        low, high = float(both.min()), float(both.max())
    whole = False
    logarithmic = low > 0 and high > SKEWED * middle and values.kind == "number"
    edges = np.geomspace(low, high, BINS + 1) if logarithmic else np.linspace(low, high, BINS + 1)
    if not logarithmic and (both == np.round(both)).all():
        step = max(1, round((high - low) / BINS))
        edges = np.arange(np.floor(low), high + step + 1, step) - 0.5
        whole = True
    shares = [np.histogram(side, edges)[0] / max(1, len(side)) for side in sides]
    half = float(np.sqrt(edges[0] * edges[-1]) if logarithmic else (edges[0] + edges[-1]) / 2)
    ends = np.array([max(edges[0], both.min()), half, min(edges[-1], both.max())])
    if whole:
        ends = np.floor(ends + np.array([0.5, 0.0, 0.0]))
    ticks = [(place, _tick(values, end)) for place, end in zip((0.0, 0.5, 1.0), ends, strict=True)]
    if logarithmic:
        ticks[1] = (0.5, f"{ticks[1][1]} (log)")
    return area_svg(shares[0], shares[1], ticks, about)


def _tick(values: ColumnValues, number: float) -> str:
    if values.kind == "time":
        return values.shown(number).partition(" ")[0]
    origin = 0 if values.column is None else values.column.origin
    return number_text(number + origin, 3)


def pair_chart(first: ColumnValues, second: ColumnValues, n: int) -> str:
    """Cells of two columns, coloured by which sample has more of its rows there."""
    tables = []
    groups = [groups_of(v, PAIR_GROUPS) for v in (first, second)]
    places = [np.unique(g, return_inverse=True) for g, _ in groups]
    shape = len(places[1][0]), len(places[0][0])
    for part in (slice(None, n), slice(n, None)):
        table = np.zeros(shape)
        np.add.at(table, (places[1][1][part], places[0][1][part]), 1.0)
        tables.append(table)
    shares = [t / max(1.0, t.sum()) for t in tables]
    total = shares[0] + shares[1]
    more = np.where(
        tables[0] + tables[1] >= FEWEST,
        (shares[1] - shares[0]) / np.maximum(total, 1e-12),
        np.nan,
    )
    across, up = (
        (v.name, _group_ticks(v, place)) for v, place in zip((first, second), places, strict=True)
    )
    return map_svg(more, across, up, f"{first.name} with {second.name}: which sample has more")


def _group_ticks(
    values: ColumnValues, place: tuple[np.ndarray, np.ndarray]
) -> list[tuple[float, str]]:
    """What lies in the lowest, the middle and the highest group; all names of a few values."""
    count = len(place[0])
    texts = []
    for k in range(count):
        inside = np.flatnonzero(place[1] == k)
        if values.codes is not None:
            found = np.unique(values.codes[inside])
            texts.append(values.names[found[0]] if len(found) == 1 else "others")
        else:
            assert values.numbers is not None
            numbers = values.numbers[inside]
            texts.append(
                "missing"
                if np.isnan(numbers).all()
                else _tick(values, float(np.nanmedian(numbers)))
            )
    shown = (
        range(count)
        if values.codes is not None and count <= 3
        else sorted({0, count // 2, count - 1})
    )
    return [((k + 0.5) / count, texts[k]) for k in shown]


def score_chart(scores: np.ndarray, second: np.ndarray, names: tuple[str, str]) -> str:
    """Held-out scores of the classifier, of both samples."""
    low, high = np.quantile(scores, (0.005, 0.995))
    edges = np.linspace(low, high, BINS + 1) if high > low else np.array([low - 0.5, low + 0.5])
    shares = [
        np.histogram(np.clip(scores[side], edges[0], edges[-1]), edges)[0] / max(1, side.sum())
        for side in (~second, second)
    ]
    ticks = [(0.0, f"like {names[0]}"), (1.0, f"like {names[1]}")]
    return area_svg(shares[0], shares[1], ticks, "Held-out scores of both samples")


HOW_TO_READ = (
    "Compare each number with 'if same', its average when the same rows are split into two sets "
    "at random: costs between two halves of one set are not 1, and distances are not 0."
)
MEANINGS = {
    "svd": "How much the two distributions overlap (fidelity). Smaller is more different.",
    "matrix": "How well the Gaussians of both sets imitate each other, one by one: it compares "
    "where they are rather than how many, and depends on the number of rows. Smaller is more "
    "different.",
    "vector": "How well weights on the second set's Gaussians imitate the first: it ignores wrong "
    "proportions and notices only what is missing. Smaller is more different.",
    "scalar": "Whether the two smoothed densities point in the same direction. Smaller is more "
    "different.",
    "bures": "The distance corresponding to the SVD cost. Larger is more different.",
    "cauchy_schwarz": "Negative logarithm of the scalar cost. Larger is more different.",
    "mmd": "Distance between the smoothed densities (kernel means). Larger is more different.",
    "energy": "A distance without a variance, in the columns' units. Larger is more different.",
}
COMPARISON_COSTS_MIDDLE = (0.01, 0.99)  # of the rows are inside the maps


def add_costs(page: Report, result: Comparison) -> None:
    """Every measure, how to read it, and its picture; the witness of rows that can be drawn."""
    page.text(HOW_TO_READ)
    seen = dict.fromkeys(m.name for m in result.measures)
    page.table(
        ("measure", "how to read it", "reads here", "if same"),
        [[TITLES[name], MEANINGS[name], *_reading(result, name)] for name in seen],
        text=True,
    )
    page.table(MEASURE_HEADS, result.rows())
    for note in result.found.notes:
        page.text(note)
    if len(result.variances) > 1:
        page.figure(
            _against_variance(result),
            "Normalized costs with one standard error; dotted: the average if both sets had the "
            "same distribution. The further apart, the more they differ.",
        )
    if result.x is None or result.y is None:
        return
    if len(result.columns) <= 2 and not result.mixed:
        _maps(page, result)
    one, two = result.names
    page.table(
        ("column", "energy distance / sd", "p, of this column alone", f"mean of {one}",
         f"mean of {two}", "what changed"),
        column_rows(result),
    )  # fmt: skip


def column_rows(result: Comparison) -> list[list[str | float]]:
    """How each column differs: name, distance, p-value, the two means, and what changed."""
    return [
        [c.column, c.distance, *("" if v is None else v for v in (c.pvalue, c.mean_x, c.mean_y)),
         c.change]
        for c in result.column_differences
    ]  # fmt: skip


def _reading(result: Comparison, name: str) -> tuple[str, str]:
    """From the lowest to the highest of all variances."""
    found = [m for m in result.measures if m.name == name]
    values = [m.value if m.normalized is None else m.normalized for m in found]
    same = [m.if_same for m in found if m.if_same is not None]
    return _range(values), _range(same)


def _range(values: list[float]) -> str:
    ends = [f"{v:.3g}" for v in (min(values), max(values))] if values else [""]
    return " to ".join(dict.fromkeys(ends))


def _against_variance(result: Comparison) -> "Figure":
    names = ("svd", "matrix", "vector", "scalar")
    by_name = {n: [m for m in result.measures if m.name == n] for n in names}
    return plots.cost_against_variance(
        result.variances,
        {n: [m.normalized for m in ms] for n, ms in by_name.items()},
        errors={n: [m.error or 0.0 for m in ms] for n, ms in by_name.items()},
        if_same={n: [m.if_same for m in ms] for n, ms in by_name.items()
                 if ms[0].if_same is not None},
    )  # fmt: skip


def _maps(page: Report, result: Comparison) -> None:
    """Points and witness where nearly all rows are: one outlier would hide everything else."""
    assert result.x is not None
    assert result.y is not None
    x, y = result.raw(result.x), result.raw(result.y)
    labels = result.names
    both = torch.cat([x, y]).double()
    low, high = (both.quantile(q, 0) for q in COMPARISON_COSTS_MIDDLE)
    inside = both.clamp(low, high)
    x, y = (p[((p >= low) & (p <= high)).all(1)] for p in (x.double(), y.double()))
    page.figure(plots.samples(x, y, labels=labels, axes_labels=result.columns),
                "The samples, without the outermost 1 % at either end.")  # fmt: skip
    grid, shape = grid_over(inside, margin=0.05)
    page.figure(
        plots.witness_map(grid, result.witness(grid), shape=shape, labels=labels),
        f"Witness of the SVD cost at variance {result.sharpest_variance:.3g}: positive where "
        f"{labels[0]} has more mass, negative where {labels[1]} has.",
    )


MOST_COLUMNS = 40
MOST_PAIRS = 4
DRAWN_ROWS = 50_000  # of a side


def comparison_report(result: Comparison, costs: bool = True) -> Report:
    """The page: the verdict, columns, pairs, typical rows, and below a fold every cost.

    Args:
        result: What was found.
        costs: Whether the costs are on it; they take much longer than the rest.
    """
    one, two = result.names
    page = Report(
        f"{one} and {two}",
        f"{result.sizes[0]:,} and {counted(result.sizes[1], 'row')}, "
        f"{counted(len(result.columns), 'column')}.",
    )
    if result.has_verdict:
        _verdict(page, result.verdict)
        if result.compared is not None:
            _where(page, result, result.compared)
        page.heading("How this was computed")
        page.text(_method(result.verdict))
    for note in result.reading_notes:
        page.text(note)
    if result.has_verdict and not costs:
        page.text("Add every cost of the paper with --details.")
        return page
    with page.fold("Every cost of the paper, with error bars and its value for equal sets",
                   opened=not result.has_verdict):  # fmt: skip
        add_costs(page, result)
    return page


def _verdict(page: Report, verdict: Verdict) -> None:
    if verdict.pvalue is None:
        kind, answer = "unsure", "No verdict"
    elif verdict.too_few_rows:
        kind, answer = "unsure", "Too few rows to say"
    elif verdict.too_few_permutations:
        kind, answer = "unsure", "Too few permutations to say"
    elif verdict.different:
        kind, answer = "different", "They differ"
    else:
        kind, answer = "same", "No difference found"
    if any(verdict.repeated):
        answer = f"Apart from repeated rows: {answer[0].lower()}{answer[1:]}"
    if verdict.perhaps_copies:
        answer += ", perhaps only by repeated rows"
    shown = [f'<p class="answer">{answer}</p>', f"<p>{html.escape(verdict.headline())}</p>"]
    if verdict.effect is not None and verdict.interval is not None and verdict.different:
        low, high = verdict.interval
        about = f"AUC {auc_text(verdict.effect)}, {auc_text(low)} to {auc_text(high)}"
        shown.append(gauge_svg(verdict.effect, verdict.interval, auc_text(verdict.effect), about))
    if where := verdict.where():
        shown.append(f"<p>{html.escape(where)}</p>")
    if verdict.note:
        shown.append(f"<p>{html.escape(verdict.note)}</p>")
    page.raw(f'<div class="verdict {kind}">{"".join(shown)}</div>')


def _where(page: Report, result: Comparison, rows: ComparedRows) -> None:
    verdict, apart = result.verdict, result.judgement.apart
    drawn, n = _drawn(rows)
    count = len(verdict.different_columns)
    page.heading("Columns, the most different first")
    page.raw(_legend(result.names))
    page.text(
        f"{count or 'None'} of {len(verdict.columns)} columns differ by themselves (p corrected "
        f"for their number, at level {verdict.level:g}). The outermost 1 % of numbers is not "
        "shown."
    )
    cards = [
        _card(c.column, _column_line(c, verdict.level),
              column_chart(rows.column(c.column, drawn), n), c.pvalue <= verdict.level)
        for c in verdict.columns[:MOST_COLUMNS]
    ]  # fmt: skip
    page.raw(f'<div class="cards">{"".join(cards)}</div>')
    if more := verdict.columns[MOST_COLUMNS:]:
        page.text(f"And {len(more)} more columns, which differ less.")
    _pairs(page, result, rows, drawn, n)
    if apart is not None:
        _rows_and_scores(page, result, rows, apart)


def _column_line(column: ColumnVerdict, level: float) -> str:
    told = column.told(level).replace("->", "\N{RIGHTWARDS ARROW}")
    return f"{told} (p = {column.pvalue:.2g})"


def _pairs(
    page: Report, result: Comparison, rows: ComparedRows, drawn: torch.Tensor, n: int
) -> None:
    """The two-column views that show most: pairs that differ together, else the worst columns."""
    verdict = result.verdict
    pairs = [(p.columns, f"together, beyond each alone: p = {p.pvalue:.2g}")
             for p in verdict.different_pairs[:MOST_PAIRS]]  # fmt: skip
    clear = [c.column for c in verdict.different_columns]
    if not pairs and len(clear) > 1:
        pairs = [((clear[0], clear[1]), "the two columns that differ most")]
    if not pairs:
        return
    page.heading("Two columns together")
    page.raw(_legend(result.names))
    page.text(
        "Each cell has the colour of the set with more rows there; pale cells are shared, white "
        "ones nearly empty. Columns of cells hold equally many rows, and so do rows of cells."
    )
    cards = [
        _card(f"{a} with {b}", line,
              pair_chart(rows.column(a, drawn), rows.column(b, drawn), n), True)
        for (a, b), line in pairs
    ]  # fmt: skip
    page.raw(f'<div class="cards">{"".join(cards)}</div>')


def _rows_and_scores(
    page: Report, result: Comparison, rows: ComparedRows, apart: ToldApart
) -> None:
    if not result.verdict.different or apart.interval[0] <= 0.5:
        return
    page.heading("Typical rows")
    page.text("Held-out rows that the classifier is most certain of and that lie in the middle of "
        "such rows, with the columns that contribute most.")  # fmt: skip
    numbered = result.sizes == result.used
    for name, found in zip(result.names, typical_rows(rows, apart), strict=True):
        page.text(f"Typical of {name} but not of the other:")
        _typical(page, found, numbered)
    page.heading("The score behind the AUC")
    page.raw(_legend(result.names))
    second = (apart.chosen >= rows.n).numpy()
    chart = score_chart(apart.scores.numpy(), second, result.names)
    page.raw(f'<div class="cards">{_card("", "scores of unseen rows", chart, True)}</div>')


def _typical(page: Report, found: TypicalRows, numbered: bool) -> None:
    heads = (["row"] if numbered else []) + list(found.columns)
    lines = [
        ([str(row)] if numbered else []) + list(cells)
        for row, cells in zip(found.rows, found.cells, strict=True)
    ]
    page.table(heads, lines)


def _method(verdict: Verdict) -> str:
    if verdict.effect is None:
        return f"p-value: {verdict.method}."
    return (
        f"p-value: {verdict.method}; a single number for kernels of all columns, single columns "
        "and pairs of columns together. AUC: ridge regression on scores of columns and kernel "
        "features, five folds, each row scored by a classifier that has not seen it: "
        f"{auc_text(verdict.effect)}, 95 % confidence interval {_ends(verdict)}. Another "
        "classifier may separate the sets better."
    )


def _ends(verdict: Verdict) -> str:
    low, high = verdict.interval or (0.0, 1.0)
    return f"{auc_text(low)} to {auc_text(high)}"


def _drawn(rows: ComparedRows) -> tuple[torch.Tensor, int]:
    """At most so many rows of each side, evenly spaced, and how many are of the first."""
    sides = [
        np.linspace(start, stop - 1, min(DRAWN_ROWS, stop - start)).round().astype(np.int64)
        for start, stop in ((0, rows.n), (rows.n, len(rows.pooled)))
    ]
    return torch.from_numpy(np.concatenate(sides)), len(sides[0])


def _legend(names: tuple[str, str]) -> str:
    one, two = (html.escape(name) for name in names)
    return (
        f'<p class="legend"><span class="swatch1"></span> {one} '
        f'<span class="swatch2"></span> {two}</p>'
    )


def _card(title: str, line: str, chart: str, clear: bool) -> str:
    head = f"<h3>{html.escape(title)}</h3>" if title else ""
    return (
        f'<div class="card{"" if clear else " dim"}">{head}<p>{html.escape(line)}</p>{chart}</div>'
    )
