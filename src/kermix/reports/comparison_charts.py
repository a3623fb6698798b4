"""Charts of columns of two samples: one column, or two together."""

import numpy as np

from kermix.comparison.column_changes import groups_of, new_and_gone
from kermix.comparison.column_values import ColumnValues, number_text, sides_of
from kermix.reports.small_charts import area_svg, bars_svg, map_svg

__all__ = ["column_chart", "pair_chart", "score_chart"]

BINS = 30
FEW_VALUES = 8
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
