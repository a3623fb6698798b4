"""The pages of drift, over periods of a table or a series of sketches: answer, chart and table."""

import numpy as np

from kermix.data.readers.common import counted
from kermix.pages.page import Page
from kermix.pages.plot import Axis, Plot, Svg
from kermix.tables.compare.sketch_comparison import Drift
from kermix.tables.drift.period_drift import PERIOD_HEADS, PeriodDrift, PeriodVerdict

__all__ = ["DRIFT_COLUMNS", "drift_report", "period_report"]

DRIFT_COLUMNS = ("sketch", "rows", "SVD cost to first", "Bures", "MMD", "p",
           "Bures to previous", "p")  # fmt: skip
COLORS = {"different": "two", "may differ": "one", "perhaps different": "one",
          "no difference": "three",
          "too few rows": "quiet", "too few permutations": "quiet"}  # fmt: skip


def drift_report(title: str, found: Drift) -> Page:
    """The page: distances to the first sketch and to the one before, drawn and in a table."""
    places = np.arange(len(found.to_first))
    to_first, to_previous, same = (
        [step.mmd for step in found.to_first],
        [step.mmd for step in found.to_previous],
        [step.if_same for step in found.to_first],
    )
    plot = Plot(_names_axis(found.names[1:]), Axis(0, max(*to_first, *to_previous, *same), "MMD"),
                "Distances of each sketch")  # fmt: skip
    plot.line(places, same, "quiet", "if the same")
    for values, kind, name in ((to_first, "one", f"to {found.names[0]}"),
                               (to_previous, "two", "to the one before")):  # fmt: skip
        plot.line(places, values, kind, name).dots(places, values, kind, size=6)
    worst = int(np.argmax(to_first))
    return Page("series", title, {
        "sizes": f"{len(found.names)} sketches of {counted(sum(found.rows), 'row')} in all.",
        "first": found.names[0],
        "farthest": found.names[1 + worst],
        "mmd": to_first[worst],
        "if_same": same[worst],
        "pvalue": found.to_first[worst].pvalue,
        "chart": plot.svg(),
        "heads": DRIFT_COLUMNS,
        "rows": found.table(),
        "notes": found.notes,
    })  # fmt: skip


def _names_axis(names: tuple[str, ...]) -> Axis:
    """A place for each of some names."""
    return Axis(-0.5, len(names) - 0.5, names=list(enumerate(names)))


def period_report(found: PeriodDrift, title: str) -> Page:
    """The page: which periods differ from the reference, and what changed in them."""
    rows = sum(n for _, n in found.references) + sum(p.rows for p in found.periods)
    count = len(found.references) + len(found.periods)
    said = [p for p in found.periods if p.answer in ("different", "no difference")]
    return Page("periods", title, {
        "sizes": f"{counted(rows, 'row')} in {counted(count, found.noun)}.",
        "drift": found,
        "color": "bad" if found.changed else "good" if said and not found.doubtful else "",
        "chart": _periods_chart(found),
        "heads": PERIOD_HEADS[:-1],
        "rows": [line[:-1] for line in found.table(intervals=True)],
        "changes": [line for p in (*found.different, *found.doubtful) for line in _changes(p)],
        "notes": found.notes,
    })  # fmt: skip


def _changes(period: PeriodVerdict) -> list[list[str]]:
    """The columns of a period that differ most: convention."""
    return [
        [period.period if k == 0 else "", c.column,
         f"{c.short}: {c.change}".replace("->", "\N{RIGHTWARDS ARROW}"), f"{c.pvalue:.2g}"]
        for k, c in enumerate(period.columns[:5])
    ]  # fmt: skip


def _periods_chart(found: PeriodDrift) -> Svg:
    """AUC by period, colored by the verdict; a period without one is not drawn."""
    lowest = min([0.45, *(p.interval[0] for p in found.periods if p.interval is not None)])
    plot = Plot(_names_axis(tuple(p.period for p in found.periods)), Axis(lowest, 1, "AUC"),
                found.sentence())  # fmt: skip
    plot.rule(y=0.5)
    answers = np.array([p.answer for p in found.periods])
    ends = np.array([p.interval or (np.nan, np.nan) for p in found.periods], float)
    effects = np.array([p.effect for p in found.periods], float)  # None becomes NaN
    for answer in dict.fromkeys(answers.tolist()):
        places = np.flatnonzero(answers == answer)
        plot.bands(places, ends[places, 0], ends[places, 1], COLORS[answer])
        plot.dots(places, effects[places], COLORS[answer], answer, 9)
    return plot.svg()
