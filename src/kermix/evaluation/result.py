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
        name: Its name for `Evaluation.score`.
        title: Its title in tables.
        group: "fidelity", "diversity", "novelty", "neighbours", "distances", "memorizing" or
            "table".
        value: The number.
        error: One standard error, from samples left out; None if there is none.
        certificate: Bound on the distance to the value without a sketch; None if nothing was
            sketched.
        if_same: Approximate value if both sets had the same distribution.
        pvalue: P-value of the hypothesis that both sets have the same distribution.
        rows: Number of samples of each set that were used.
        needed: Number of samples needed for an accuracy of one percent.
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
    """The result of an evaluation; its text begins with the answer.

    Attributes:
        answer: The answer in one or two sentences.
        good: Whether there is no evidence against the samples; None if there could be none,
            because of too few rows or permutations, or sketches without a p-value.
        scores: Each with its error bar, and how to read it.
        invented: What the generator produces but real data lack, the largest first; exemplars are
            rows of the fake set.
        missed: What real data have but the generator does not produce; exemplars are real rows.
        memorizing: Whether it copies its training rows; None for sketches.
        tables: Scores of columns and pairs of columns; None if the data are not a table.
        verdict: The test, the classifier and the columns behind the answer.
        kernel: The kernel in words.
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
