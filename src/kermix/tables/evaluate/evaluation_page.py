"""The page of a generator that was judged: the answer, what it lacks and invents, every score."""

import html
from collections.abc import Sequence

import torch
from torch import Tensor

from kermix.evaluation.novelty import NovelMode
from kermix.pages.charts import gauge_svg
from kermix.pages.figures import png_bytes, sheet
from kermix.pages.report import Report
from kermix.tables.evaluate.evaluation_result import SCORE_HEADS, Evaluation, Score
from kermix.tables.evaluate.judged_data import JudgedData

__all__ = ["evaluation_report"]

MAIN = ("fidelity", "classifier", "vendi_ratio", "precision", "coverage", "memorized", "shape")
MOST_COLUMNS, MOST_LINES = 8, 20


def evaluation_report(found: Evaluation) -> Report:
    """The page."""
    real, fake = found.names
    page = Report(
        f"{fake} as samples of {real}",
        f"{found.sizes[0]:,} real and {found.sizes[1]:,} fake rows.",
    )
    _answer(page, found)
    main = [s for s in found.scores if s.name in MAIN]
    page.table(("score", "value", "if same", "how to read it"),
               [[s.title, _with_error(s), _number(s.if_same), s.reading] for s in main],
               text=True)  # fmt: skip
    if found.data is not None:
        _modes(page, "What the samples miss", found.missed, found.data, True)
        _modes(page, "What the samples have more of than real data", found.invented, found.data,
               False)  # fmt: skip
        _copies(page, found, found.data)
    with page.fold("Every score, with error bars, certificates and the rows it needs"):
        page.table(SCORE_HEADS, found.table())
        page.text(
            "+- is one standard error, from leaving out parts of the rows. Certified is a bound "
            "on the distance to the value computed with the exact kernel. Rows needed is the "
            "number for which error and bias are about one percent (a tenth of the value for "
            "distances)."
        )
        page.table(("score", "how to read it"), [[s.title, s.reading] for s in found.scores],
                   text=True)  # fmt: skip
    if found.tables is not None:
        with page.fold("Columns and pairs of columns, the worst first"):
            worst = sorted(found.tables.columns, key=lambda c: c[1])[:MOST_LINES]
            page.table(("column", "shape"), worst)
            pairs = sorted(found.tables.pairs, key=lambda p: p[2])[:MOST_LINES]
            page.table(("column", "with", "trend", "related"),
                       [[a, b, t, "yes" if r else "no"] for a, b, t, r in pairs])  # fmt: skip
    with page.fold("How this was computed"):
        page.text(f"Kernel: {found.kernel}.")
        page.text(f"p-value: {found.verdict.method}.")
        for note in found.notes:
            page.text(note)
    return page


def _answer(page: Report, found: Evaluation) -> None:
    verdict = found.verdict
    if found.good is None:
        kind, short = "unsure", "Not enough to say"
    elif found.good:
        kind, short = "same", "As good as real data"
    elif verdict.different:
        kind, short = "different", "Not as good as real data"
    else:
        kind, short = "different", "It copies its training rows"
    shown = [f'<p class="answer">{short}</p>', f"<p>{html.escape(found.answer)}</p>"]
    if verdict.effect is not None and verdict.interval is not None:
        about = f"AUC {verdict.effect:.2f}"
        shown.append(gauge_svg(verdict.effect, verdict.interval, f"{verdict.effect:.2f}", about))
    page.raw(f'<div class="verdict {kind}">{"".join(shown)}</div>')


def _modes(
    page: Report, title: str, modes: Sequence[NovelMode], data: JudgedData, of_real: bool
) -> None:
    if not modes:
        return
    page.heading(title)
    where = ("real", "fake") if of_real else ("fake", "real")
    page.text(
        f"Groups of rows that are more frequent among {where[0]} rows than among {where[1]} "
        "ones, beyond chance, with typical rows of each."
    )
    for k, mode in enumerate(modes, 1):
        told = "real rows are missing" if of_real else "samples are too many"
        line = f"{k}. About {100 * mode.excess:.2g} % of the {told}."
        if data.pictures is not None:
            pictures = data.pictures[0 if of_real else 1]
            _sheet(page, pictures[list(mode.exemplars)], line)
        else:
            page.text(line)
            _rows(page, data, mode.exemplars, of_real)


def _copies(page: Report, found: Evaluation, data: JudgedData) -> None:
    memory = found.memorizing
    if memory is None or not memory.rows:
        return
    page.heading("Samples that are too close to training rows")
    page.text(f"{100 * memory.memorized:.2g} % of the samples (p = {memory.pvalue:.2g}); each "
              "sample, and below it the training row.")  # fmt: skip
    pairs = memory.rows[:10]
    if data.pictures is not None:
        real, fake = data.pictures
        shown = torch.cat([fake[[a for a, _ in pairs]], real[[b for _, b in pairs]]])
        _sheet(page, shown, "Samples above, training images below.", len(pairs))
        return
    names = _columns(data)
    lines = []
    for a, b in pairs:
        for name, row, place in (("sample", a, data.n + a), ("training row", b, b)):
            lines.append([f"{name} {row}", *_cells(data, names, place)])
    page.table(("row", *names), lines)


def _rows(page: Report, data: JudgedData, rows: Sequence[int], of_real: bool) -> None:
    names = _columns(data)
    start = 0 if of_real else data.n
    page.table(("row", *names), [[str(r), *_cells(data, names, start + r)] for r in rows])


def _columns(data: JudgedData) -> list[str]:
    return list(data.rows.names[:MOST_COLUMNS])


def _cells(data: JudgedData, names: Sequence[str], place: int) -> list[str]:
    at = torch.tensor([place])
    return [data.rows.column(name, at).cell(0) for name in names]


def _sheet(page: Report, pictures: Tensor, caption: str, across: int = 10) -> None:
    shown = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures.float()
    page.image(png_bytes(sheet(shown, across), max(1, 96 // shown.shape[-1])), caption)


def _with_error(score: Score) -> str:
    return _number(score.value) + (
        f" \N{PLUS-MINUS SIGN} {score.error:.2g}" if score.error else ""
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
