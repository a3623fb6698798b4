"""What judging a generator found: an answer, and scores with error bars; it prints and is JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

from kermix.comparison.result import aligned
from kermix.comparison.verdict import Verdict
from kermix.errors import OptionError
from kermix.evaluation.memorizing import Memorizing
from kermix.evaluation.novelty import NovelMode
from kermix.evaluation.reading import JudgedData
from kermix.evaluation.table_scores import TableScores

__all__ = ["SCORE_HEADS", "Evaluation", "Score"]

SCORE_HEADS = ("score", "value", "+-", "certified", "if same", "p", "rows", "rows needed")


@dataclass(frozen=True)
class Score:
    """One number on the samples of a generator.

    Attributes:
        name: By which `Evaluation.score` finds it.
        title: What it is called in tables.
        group: "fidelity", "diversity", "novelty", "neighbours", "distances", "memorizing" or
            "table".
        value: The number.
        error: One standard error, from samples left out; None if there is none.
        certificate: How far the value can be from the one without a sketch, at most; None where
            nothing was sketched.
        if_same: What the number would be, about, if both sets were one.
        pvalue: That both sets are of one distribution.
        rows: Of how many samples of each set the number is.
        needed: Of how many it would be good to one percent.
        reading: How to read it, in one line.
    """

    name: str
    title: str
    group: str
    value: float
    error: float | None = None
    certificate: float | None = None
    if_same: float | None = None
    pvalue: float | None = None
    rows: int | None = None
    needed: int | None = None
    reading: str = ""

    def cells(self) -> list[str]:
        """A line of a table."""
        numbers = (self.value, self.error, self.certificate, self.if_same, self.pvalue)
        shown = ["" if n is None else f"{n:.3g}" for n in numbers]
        counts = ["" if n is None else f"{n:,}" for n in (self.rows, self.needed)]
        return [self.title, *shown, *counts]


@dataclass(frozen=True)
class Evaluation:
    """What was found; its text begins with the answer.

    Attributes:
        answer: In one or two sentences.
        good: Whether nothing was found against the samples; None where nothing was found
            because too few rows or permutations, or sketches without a p-value, cannot show it.
        scores: Each with its error bar, and how to read it.
        invented: What the generator makes and real data have not, the largest first; exemplars
            are rows of the fake set.
        missed: What real data have and the generator does not make; exemplars are real rows.
        memorizing: Whether it repeats its training rows; None for sketches.
        tables: Scores of columns and pairs of columns; None for what is no table.
        verdict: The test, the classifier and the columns behind the answer.
        kernel: In words.
        names: Of the real and the fake set.
        sizes: Of both.
        notes: What was assumed.
        data: The samples; None for sketches.
    """

    answer: str
    good: bool | None
    scores: tuple[Score, ...]
    invented: tuple[NovelMode, ...]
    missed: tuple[NovelMode, ...]
    memorizing: Memorizing | None
    tables: TableScores | None
    verdict: Verdict
    kernel: str
    names: tuple[str, str]
    sizes: tuple[int, int]
    notes: tuple[str, ...]
    data: JudgedData | None = field(default=None, repr=False, compare=False)

    def score(self, name: str) -> Score:
        """One of the scores by its name, such as "vendi_ratio"."""
        for found in self.scores:
            if found.name == name:
                return found
        raise OptionError(
            f"There is no score {name!r}; there are {', '.join(s.name for s in self.scores)}."
        )

    def __getitem__(self, name: str) -> float:
        """The value of a score."""
        return self.score(name).value

    def table(self) -> list[list[str]]:
        """The scores as text, one line each."""
        return [score.cells() for score in self.scores]

    def __str__(self) -> str:
        lines = [self.answer, "", *aligned([list(SCORE_HEADS), *self.table()]), ""]
        lines += [f"{s.title}: {s.reading}" for s in self.scores if s.reading]
        return "\n".join([*lines, "", f"Kernel: {self.kernel}.", *self.notes])

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "answer": self.answer,
            "good": self.good,
            "names": list(self.names),
            "rows": list(self.sizes),
            "kernel": self.kernel,
            "scores": {s.name: _without_name(s) for s in self.scores},
            "invented": [asdict(m) for m in self.invented],
            "missed": [asdict(m) for m in self.missed],
            "memorizing": None if self.memorizing is None else asdict(self.memorizing),
            "tables": None if self.tables is None else asdict(self.tables),
            "verdict": self.verdict.to_dict(),
            "notes": list(self.notes),
        }


def _without_name(score: Score) -> dict[str, Any]:
    found = asdict(score)
    del found["name"]
    return found
