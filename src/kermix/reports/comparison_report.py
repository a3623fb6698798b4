"""The page of a comparison of two data sets: the verdict, where they differ, and every cost."""

import html

import numpy as np
import torch

from kermix.comparison.column_values import ComparedRows
from kermix.comparison.result import Comparison
from kermix.comparison.telling_apart import ToldApart
from kermix.comparison.typical import TypicalRows, typical_rows
from kermix.comparison.verdict import ColumnVerdict, Verdict, auc_text
from kermix.data.tables.common import counted
from kermix.reports.comparison_charts import column_chart, pair_chart, score_chart
from kermix.reports.comparison_costs import add_costs
from kermix.reports.page import Report
from kermix.reports.small_charts import gauge_svg

__all__ = ["comparison_report"]

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
