"""The page of a generator that was judged: the answer, what it lacks and invents, every score."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kermix.evaluation.spectra import NovelMode
from kermix.pages.charts import gauge
from kermix.pages.page import Page
from kermix.pages.plot import Svg
from kermix.pages.sheets import png_bytes, sheet
from kermix.tables.evaluate.evaluation_result import MAIN, SCORE_HEADS, Evaluation, percent
from kermix.tables.evaluate.judged_data import JudgedData
from kermix.tables.evaluate.ranking import RANKING_HEADS, Ranking
from kermix.tables.evaluate.scores import Score
from kermix.two_sample.classifier_test import auc_text

__all__ = ["evaluation_report", "ranking_report"]


def evaluation_report(found: Evaluation, most_columns: int = 20) -> Page:
    """The page, with so many columns, and pairs of them."""
    real, fake = found.names
    shown: dict[str, Any] = {
        "found": found,
        "gauge": _gauge(found),
        "main": [[s.title, _with_error(s), _number(s.if_same), s.reading]
                 for s in found.scores if s.name in MAIN],
        "heads": SCORE_HEADS,
        "readings": [[s.title, s.reading] for s in found.scores],
        "notes": found.notes,
        **dict.fromkeys(("missed", "invented", "copies", "columns"), ()),
    }  # fmt: skip
    if found.data is not None:
        names = _columns(found, found.data)
        shown["missed"] = _modes(found.missed, found.data, names, of_real=True)
        shown["invented"] = _modes(found.invented, found.data, names, of_real=False)
        shown["copies"] = _copies(found, found.data, names)
    if found.tables is not None:
        parts = {"columns": found.tables.shape, "pairs": found.tables.pairs}
        for what, part in parts.items():
            worst = sorted(part.each, key=lambda each: -each[1])[:most_columns]
            shown[what] = [[" and ".join(names), difference] for names, difference in worst]
    return Page("evaluation", f"{fake} as samples of {real}", shown)


def ranking_report(found: Ranking) -> Page:
    """The page of several generators: which is best, and what is said of each."""
    real = next(iter(found.evaluations.values())).names[0]
    return Page("ranking", f"Generators of {real}", {
        "found": found,
        "heads": RANKING_HEADS,
        "rows": found.table(),
        "answers": [[name, each.answer] for name, each in found.evaluations.items()],
    })  # fmt: skip


def _gauge(found: Evaluation) -> Svg | None:
    verdict = found.verdict
    if verdict.effect is None or verdict.interval is None:
        return None
    area = auc_text(verdict.effect)
    return gauge(verdict.effect, verdict.interval, area, f"AUC {area}")


def _modes(
    modes: Sequence[NovelMode], data: JudgedData, names: Sequence[str], of_real: bool
) -> list[dict[str, Any]]:
    """Groups of rows of one set, each with typical rows, of which some columns are shown."""
    told = "fewer" if of_real else "more"
    start = 0 if of_real else data.n
    found: list[dict[str, Any]] = []
    for mode in modes:
        line = f"The samples have {told} such rows, by about {percent(mode.excess)} of all."
        if data.images is not None:
            pictures = data.images[0 if of_real else 1]
            found.append({"line": line, "png": _sheet(pictures[list(mode.exemplars)])})
        else:
            rows = [[str(r), *_cells(data, names, start + r)] for r in mode.exemplars]
            found.append({"line": line, "png": None, "heads": ("row", *names), "rows": rows})
    return found


def _copies(found: Evaluation, data: JudgedData, names: Sequence[str]) -> dict[str, Any] | None:
    """Samples, each with the training row that it is too close to."""
    memory = found.memorizing
    if memory is None or not memory.rows:
        return None
    shares = f"{percent(memory.copies)} are exact copies"
    if memory.memorized is not None:
        shares += f", about {percent(memory.memorized)} near copies, those among them"
    told: dict[str, Any] = {"shares": shares, "pvalue": memory.pvalue, "png": None}
    pairs = memory.rows[:10]
    if data.images is not None:
        real, fake = data.images
        shown = torch.cat([fake[[a for a, _ in pairs]], real[[b for _, b in pairs]]])
        return {**told, "png": _sheet(shown, len(pairs))}
    rows = [
        [f"{name} {row}", *_cells(data, names, place)]
        for a, b in pairs
        for name, row, place in (("sample", a, data.n + a), ("training row", b, b))
    ]
    return {**told, "heads": ("row", *names), "rows": rows}


def _columns(found: Evaluation, data: JudgedData, most: int = 8) -> list[str]:
    """The columns that differ most, as many as there is room for (convention), in their order."""
    each = () if found.tables is None else found.tables.shape.each
    worst = [name for (name,), _ in sorted(each, key=lambda one: -one[1])]
    return sorted(worst[:most], key=data.rows.names.index) or list(data.rows.names[:most])


def _cells(data: JudgedData, names: Sequence[str], place: int) -> list[str]:
    at = torch.tensor([place])
    return [data.rows.column(name, at).cell(0) for name in names]


def _sheet(pictures: Tensor, across: int = 10) -> bytes:
    shown = pictures.float() / 255 if pictures.dtype == torch.uint8 else pictures.float()
    return png_bytes(sheet(shown, across), max(1, 96 // shown.shape[-1]))


def _with_error(score: Score) -> str:
    return _number(score.value) + (
        f"\N{NO-BREAK SPACE}\N{PLUS-MINUS SIGN}\N{NO-BREAK SPACE}{score.error:.2g}"
        if score.error
        else ""
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}"
