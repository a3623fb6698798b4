"""The page of drift over time: the answer, a chart by period, and a table.

The page of a series of sketches.
"""

import html

from kermix.pages import figures as plots
from kermix.pages.report import Report
from kermix.tables.compare.sketch_comparison import Drift
from kermix.tables.drift.period_drift import PERIOD_HEADS, PeriodDrift, PeriodVerdict

__all__ = ["DRIFT_COLUMNS", "drift_report", "period_report"]

DRIFT_COLUMNS = ("sketch", "rows", "SVD cost to first", "Bures", "MMD", "p",
           "Bures to previous", "p")  # fmt: skip


def drift_report(title: str, found: Drift) -> Report:
    """The page: distances to the first sketch and to the one before, drawn and in a table."""
    page = Report(title, f"{len(found.names)} sketches of {sum(found.rows):,} rows in all.")
    page.figure(
        plots.drift(
            found.names,
            {"to the first": [s.mmd for s in found.to_first],
             "to the one before": [s.mmd for s in found.to_previous]},
            if_same=[s.if_same for s in found.to_first],
        ),
        "Distance between kernel means (MMD). Dotted: the expected value for two samples of the "
        "same source.",
    )  # fmt: skip
    page.table(DRIFT_COLUMNS, found.table())
    for note in found.notes:
        page.text(note)
    return page


WIDE, TALL = 460, 215
LEFT, TOP, FLOOR = 30, 10, 160
MOST_LABELS = 12
COLUMNS_OF_A_PERIOD = 5
COLOURS = {"different": "var(--two)", "no difference": "#009E73", "too few rows": "var(--quiet)",
           "too few permutations": "var(--quiet)"}  # fmt: skip


def period_report(found: PeriodDrift, title: str) -> Report:
    """The page."""
    rows = found.reference_rows + sum(p.rows for p in found.periods)
    page = Report(title, f"{rows:,} rows in {len(found.periods) + 1} {found.noun}s.")
    if found.different:
        kind, answer = "different", "It drifts"
    elif all(p.too_few_rows for p in found.periods):
        kind, answer = "unsure", "Too few rows to say"
    elif any(p.too_few_permutations for p in found.periods):
        kind, answer = "unsure", "Too few permutations to say"
    else:
        kind, answer = "same", "No drift found"
    page.raw(f'<div class="verdict {kind}"><p class="answer">{answer}</p>'
             f"<p>{html.escape(found.sentence())}</p></div>")  # fmt: skip
    page.heading(f"How well each {found.noun} can be told from {found.reference}")
    page.raw(f'{_legend(found)}<div style="max-width:46rem">{periods_svg(found)}</div>')
    page.text(
        "AUC of a classifier on held-out rows, with a 95 % confidence interval: 0.5 is chance, "
        "1 is perfect. The colour shows the verdict of a permutation test at level "
        f"{found.level:g}, corrected for the number of {found.noun}s."
    )
    page.heading(f"{found.noun.capitalize()}s")
    page.table(PERIOD_HEADS[:-1], [line[:-1] for line in found.table(intervals=True)])
    if found.different:
        page.heading("What changed")
        page.table(
            (found.noun, "column", f"from {found.reference}", "p, corrected for columns"),
            [line for p in found.different for line in _changes(p)], text=True,
        )  # fmt: skip
    for note in found.notes:
        page.text(note)
    return page


def _changes(period: PeriodVerdict) -> list[list[str]]:
    return [
        [period.period if k == 0 else "", c.column,
         c.change.replace("->", "\N{RIGHTWARDS ARROW}"), f"{c.pvalue:.2g}"]
        for k, c in enumerate(period.columns[:COLUMNS_OF_A_PERIOD])
    ]  # fmt: skip


def periods_svg(found: PeriodDrift) -> str:
    """AUC by period, coloured by the verdict; a period without one has a mark at chance."""
    periods = found.periods
    step = (WIDE - LEFT) / len(periods)
    every = -(-len(periods) // MOST_LABELS)
    low = min([0.45, *(p.interval[0] for p in periods if p.interval is not None)])

    def height(share: float) -> float:
        return FLOOR - (FLOOR - TOP) * (share - low) / (1 - low)

    body = []
    for share in (0.5, 0.75, 1.0):
        y = height(share)
        dash = ' stroke-dasharray="4 3"' if share == 0.5 else ""
        body.append(
            f'<line class="axis" x1="{LEFT}" x2="{WIDE}" y1="{y:.1f}" y2="{y:.1f}"{dash}/>'
        )
        body.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{share:g}</text>')
    for k, p in enumerate(periods):
        x = LEFT + (k + 0.5) * step
        colour = COLOURS[p.answer]
        about = html.escape(f"{p.period}: {p.answer}")
        if p.effect is None or p.interval is None:
            y = height(0.5)
            body.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="none" stroke="{colour}">'
                        f"<title>{about}, no AUC</title></circle>")  # fmt: skip
        else:
            ends = [height(end) for end in p.interval]
            body.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{ends[0]:.1f}" y2="{ends[1]:.1f}" '
                        f'stroke="{colour}" stroke-width="3" stroke-opacity=".45"/>')  # fmt: skip
            body.append(f'<circle cx="{x:.1f}" cy="{height(p.effect):.1f}" r="5" '
                        f'fill="{colour}"><title>{about}, AUC {p.effect:.2f}</title>'
                        "</circle>")  # fmt: skip
        if k % every == 0:
            name = p.period if len(p.period) <= 14 else p.period[:13] + "…"
            turn = f'transform="rotate(-35 {x:.1f} {FLOOR + 16})"'
            body.append(f'<text x="{x:.1f}" y="{FLOOR + 16}" text-anchor="end" {turn}>'
                        f"{html.escape(name)}</text>")  # fmt: skip
    label = html.escape(found.sentence(), quote=True)
    return (f'<svg viewBox="0 0 {WIDE} {TALL}" role="img" aria-label="{label}">'
            f"{''.join(body)}</svg>")  # fmt: skip


def _legend(found: PeriodDrift) -> str:
    answers = {p.answer for p in found.periods}
    swatches = " ".join(
        f'<span style="background:{colour}"></span> {name}'
        for name, colour in COLOURS.items()
        if name in answers
    )
    return f'<p class="legend">{swatches}</p>'
