"""The page of a comparison of two data sets: the verdict, where they differ, and every cost.

Charts show one column or two together in both samples, and rows that are typical of one alone with
the columns that make them so. Each cost comes with what it reads for equal sets.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import counted
from kermix.pages import charts
from kermix.pages.charts import Bins
from kermix.pages.page import Card, Page
from kermix.pages.plot import KINDS, Axis, Plot, Svg
from kermix.pages.sheets import grid_over
from kermix.tables.compare.column_changes import (
    ComparedRows,
    groups_of,
    sides_of,
)
from kermix.tables.compare.column_charts import column_chart, pair_chart
from kermix.tables.compare.result import HOW_TO_READ, MEASURE_HEADS, TITLES, Comparison
from kermix.tables.compare.verdict import ColumnVerdict, Verdict
from kermix.two_sample.classifier_test import ToldApart, auc_text

__all__ = [
    "TypicalRows",
    "comparison_report",
    "typical_rows",
]


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
    compared: ComparedRows,
    apart: ToldApart,
    count: int = 5,
    most_columns: int = 6,
    share: float = 0.1,
) -> tuple[TypicalRows, TypicalRows]:
    """Of each sample, rows that are nearest to the middle of those with its highest scores.

    The scores are those of `tell_apart` for unseen rows, of which the highest tenth counts; the
    middle is weighted by them.
    """
    second = apart.chosen >= compared.n
    favours = _favours(compared, apart.chosen, second.numpy())
    found = []
    for side, sign in ((~second, -1.0), (second, 1.0)):
        inside = side.nonzero()[:, 0]
        scores = sign * apart.scores[inside]
        keep = scores.argsort(descending=True, stable=True)[: max(count, int(share * len(inside)))]
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


def _nearest(
    compared: ComparedRows,
    chosen: Tensor,
    weights: Tensor,
    count: int,
    outside: float = 0.0025,
    far: float = 4.0,
) -> Tensor:
    """Which of some rows are nearest to their weighted middle; equal rows count once.

    Args:
        compared: All rows.
        chosen: Some of them.
        weights: Of these.
        count: How many are wanted.
        outside: The share of a column's values at either end that are far out.
        far: What such a value adds to the squared distance.
    """
    rows = compared.pooled[chosen].double()
    distances = rows.new_zeros(len(rows))
    for place in compared.places:
        if place.numbers is not None:
            ordered = compared.pooled[:, place.numbers].double().sort().values
            column = rows[:, place.numbers].contiguous()
            ends = ordered[[int(outside * len(ordered)), -1 - int(outside * len(ordered))]]
            below = torch.searchsorted(ordered, column).double()
            ranks = 12**0.5 * below / len(ordered)  # of variance 1
            distances += (ranks - weights @ ranks).square()
            # Ranks do not tell how far out the outermost values are.
            distances += far * ((column < ends[0]) | (column > ends[1]))
        if place.codes is not None:
            codes = rows[:, place.codes]
            shares = (codes[:, None] == codes).double() @ weights
            distances += 2 * (1 - shares)
    order = distances.argsort(stable=True)
    _, first = np.unique(rows[order].numpy(), axis=0, return_index=True)
    return order[torch.from_numpy(np.sort(first))[:count]]


def _favours(
    compared: ComparedRows, chosen: Tensor, second: np.ndarray, groups: int = 10, more: float = 0.5
) -> np.ndarray:  # (N, C)
    """For each row and column, the logarithm of how much more often the second has such values.

    Values are in groups, each with half a row more than there are.
    """
    found = []
    order = np.argsort(second, kind="stable")
    n = int((~second).sum())
    for name in compared.names:
        group, count = groups_of(compared.column(name, chosen), groups)
        a, b = (
            (np.bincount(g, minlength=count) + more) / (len(g) + more * count)
            for g in sides_of(group[order], n)
        )
        found.append(np.log(b / a)[group])
    return np.stack(found, 1)


def _score_chart(scores: np.ndarray, second: np.ndarray, names: tuple[str, str]) -> Svg:
    bins = Bins.over(scores, log=False)
    shares = [bins.shares(scores[side]) for side in (~second, second)]
    ticks = [(0.0, f"like {names[0]}"), (1.0, f"like {names[1]}")]
    return charts.histogram(bins.places, shares, ticks, "Scores of unseen rows of both samples")


def _costs(result: Comparison) -> dict[str, Any]:
    """Every measure, how to read it, and its charts."""
    names = dict.fromkeys(m.name for m in result.measures)
    plots = [_against_variance(result)] if len(result.variances) > 1 else []
    points = result.x is not None and result.y is not None
    if points and len(result.columns) <= 2 and not result.mixed:
        plots += _maps(result)
    return {
        "how_to_read": HOW_TO_READ,
        "plots": plots,
        "readings": [(name, TITLES[name], *_reading(result, name)) for name in names],
        "heads": MEASURE_HEADS,
        "rows": result.rows(),
        "notes": result.found.notes,
    }


def _reading(result: Comparison, name: str) -> tuple[str, str]:
    """From the lowest to the highest of all variances."""
    found = [m for m in result.measures if m.name == name]
    values = [m.value if m.normalized is None else m.normalized for m in found]
    same = [m.if_same for m in found if m.if_same is not None]
    return _range(values), _range(same)


def _range(values: list[float]) -> str:
    ends = [f"{v:.3g}" for v in (min(values), max(values))] if values else [""]
    return "\N{NO-BREAK SPACE}to\N{NO-BREAK SPACE}".join(dict.fromkeys(ends))


def _against_variance(result: Comparison) -> tuple[Svg, str]:
    across = Axis.over(result.variances, label="variance", log=True)
    plot = Plot(across, Axis(0, 1, "normalized cost"), "The normalized costs by the variance")
    for name, kind in zip(("svd", "matrix", "vector", "scalar"), KINDS, strict=True):
        found = [m for m in result.measures if m.name == name]
        values, errors, same = (
            np.array([np.nan if v is None else v for v in column], float)
            for column in zip(*((m.normalized, m.error, m.if_same) for m in found), strict=True)
        )
        plot.bands(result.variances, values - errors, values + errors, kind)
        plot.line(result.variances, values, kind, TITLES[name])
        plot.dots(result.variances, same, kind)
    return plot.svg(), (
        "Normalized costs with one standard error; dots: the average if both sets had the same "
        "distribution. The further apart, the more they differ."
    )


def _maps(result: Comparison) -> list[tuple[Svg, str]]:
    """Points and witness where nearly all rows are: one outlier would hide everything else."""
    assert result.x is not None
    assert result.y is not None
    sets = [result.raw(p).double() for p in (result.x, result.y)]
    both = torch.cat(sets)
    low, high = (both.quantile(q, 0) for q in (0.01, 0.99))
    inside = [p[((p >= low) & (p <= high)).all(1)] for p in sets]
    grid, shape = grid_over(both.clamp(low, high), margin=0.05)
    witness = result.witness(grid).double().numpy()
    drawn = _line_maps if shape is None else _plane_maps
    points, strength = drawn(result, inside, grid.numpy(), witness)
    one, two = result.names
    return [
        (points, "The samples, without the outermost 1 % at either end."),
        (strength, f"Witness of the SVD cost at variance {result.sharpest_variance:.3g}: where "
         f"{one} has more mass (blue, positive), and where {two} has (orange, negative)."),
    ]  # fmt: skip


def _line_maps(
    result: Comparison, inside: list[Tensor], grid: np.ndarray, witness: np.ndarray
) -> tuple[Svg, Svg]:
    """Histograms of numbers, and the witness as an area."""
    one, two = result.names
    across = Axis.over(grid[:, 0], label=result.columns[0])
    line = Plot(across, Axis.over(witness, [0.0], label="witness"), "The witness of both sets")
    line.rule(y=0).steps(_edges(grid[:, 0]), witness.clip(min=0), "one", one, True)
    line.steps(_edges(grid[:, 0]), witness.clip(max=0), "two", two, True)
    x, y = (p[:, 0].numpy() for p in inside)
    bins = Bins.over(np.concatenate([x, y]), log=False)
    shares = [bins.shares(p) for p in (x, y)]
    chart = Plot(across, Axis(0, float(np.max(shares)), "share"), "Both samples")
    chart.steps(bins.edges, shares[0], "one", one, filled=True)
    return chart.steps(bins.edges, shares[1], "two", two).svg(), line.svg()


def _plane_maps(
    result: Comparison, inside: list[Tensor], grid: np.ndarray, witness: np.ndarray
) -> tuple[Svg, Svg]:
    """Points in the plane, and the witness as a heat map."""
    across, up = (Axis.over(grid[:, k], label=result.columns[k]) for k in (0, 1))
    chart = Plot(across, up, "Points of both samples")
    for points, kind, name in zip(inside, KINDS, result.names, strict=False):
        chart.dots(points[:, 0].numpy(), points[:, 1].numpy(), kind, name, 3)
    ticks = [(axis.label, axis.ticks(3)) for axis in (across, up)]
    side = math.isqrt(len(grid))
    strength = -witness.reshape(side, side).T / max(1e-300, float(np.abs(witness).max()))
    return chart.svg(), charts.heat_map(strength, ticks[0], ticks[1], "The witness of both sets")


def _edges(places: np.ndarray) -> np.ndarray:
    """Ends of intervals around evenly spaced places."""
    half = (places[1] - places[0]) / 2
    return np.append(places - half, places[-1] + half)


def comparison_report(result: Comparison, costs: bool = True) -> Page:
    """The page: the verdict, columns, pairs, typical rows, and below a fold every cost.

    Args:
        result: What was found.
        costs: Whether the costs are on it; they take much longer than the rest.
    """
    one, two = result.names
    shown: dict[str, Any] = {
        "names": result.names,
        "sizes": f"{result.sizes[0]:,} and {counted(result.sizes[1], 'row')}, "
                 f"{counted(len(result.columns), 'column')}.",
        "notes": result.reading_notes,
        "verdict": None,
        "gauge": None,
        "interval": None,
        **dict.fromkeys(("columns", "pairs", "typical"), ()),
    }  # fmt: skip
    if result.has_verdict:
        shown |= _judged(result.verdict)
        if result.compared is not None:
            shown |= _where(result, result.compared)
    shown["costs"] = _costs(result) if costs or not result.has_verdict else None
    return Page("comparison", f"{one} and {two}", shown)


def _judged(verdict: Verdict) -> dict[str, Any]:
    found: dict[str, Any] = {
        "verdict": verdict,
        "color": _color(verdict),
        "differing": len(verdict.different_columns),
    }
    if verdict.effect is not None and verdict.interval is not None:
        area, (low, high) = auc_text(verdict.effect), map(auc_text, verdict.interval)
        found |= {"auc": area, "interval": f"{low} to {high}"}
        if verdict.different is not False:
            about = f"AUC {area}, {low} to {high}"
            found["gauge"] = charts.gauge(verdict.effect, verdict.interval, area, about)
    return found


def _color(verdict: Verdict) -> str:
    if verdict.pvalue is None or verdict.too_few() or verdict.different is None:
        return ""
    return "bad" if verdict.different else "good"


def _where(result: Comparison, rows: ComparedRows, most_columns: int = 40) -> dict[str, Any]:
    verdict, apart = result.verdict, result.judgement.apart
    drawn, n = _drawn(rows)
    found: dict[str, Any] = {
        "columns": [
            Card(c.column, column_chart(rows.column(c.column, drawn), n),
                 _column_line(c, verdict), dim=c.pvalue > verdict.level)
            for c in verdict.columns[:most_columns]
        ],
        "more": len(verdict.columns[most_columns:]),
        "pairs": [
            Card(f"{a} with {b}",
                 pair_chart(rows.column(a, drawn), rows.column(b, drawn), n), line)
            for (a, b), line in _pairs(verdict)
        ],
    }  # fmt: skip
    if apart is not None and verdict.different and apart.interval[0] > 0.5:
        numbered = result.sizes == result.used
        second = (apart.chosen >= rows.n).numpy()
        found["typical"] = [
            (name, *_typical(some, numbered))
            for name, some in zip(result.names, typical_rows(rows, apart), strict=True)
        ]
        found["scores"] = _score_chart(apart.scores.numpy(), second, result.names)
    return found


def _column_line(column: ColumnVerdict, verdict: Verdict) -> str:
    told = verdict.description_of(column).replace("->", "\N{RIGHTWARDS ARROW}")
    return f"{told} (p = {column.pvalue:.2g})"


def _pairs(verdict: Verdict) -> list[tuple[tuple[str, str], str]]:
    """The two-column views that show most: pairs that differ together, else the worst columns."""
    pairs = [(p.columns, f"{p.short}: {p.change} (p = {p.pvalue:.2g}, beyond each alone)")
             for p in verdict.different_pairs[:4]]  # fmt: skip
    clear = [c.column for c in verdict.different_columns]
    if not pairs and len(clear) > 1:
        return [((clear[0], clear[1]), "the two columns that differ most")]
    return pairs


def _typical(found: TypicalRows, numbered: bool) -> tuple[list[str], list[list[str]]]:
    lines = zip(found.rows, found.cells, strict=True)
    return (
        ["row"] * numbered + list(found.columns),
        [[str(row)] * numbered + list(cells) for row, cells in lines],
    )


def _drawn(rows: ComparedRows, most: int = 50_000) -> tuple[torch.Tensor, int]:
    """At most so many rows of each side, evenly spaced, and how many are of the first."""
    sides = [
        np.linspace(start, stop - 1, min(most, stop - start)).round().astype(np.int64)
        for start, stop in ((0, rows.n), (rows.n, len(rows.pooled)))
    ]
    return torch.from_numpy(np.concatenate(sides)), len(sides[0])
