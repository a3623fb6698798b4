"""What judging a generator found: an answer in words, and scores; it prints and becomes JSON."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kermix.errors import OptionError
from kermix.evaluation.spectra import NovelMode
from kermix.tables.compare.result import AnswerFirst, Shown, aligned
from kermix.tables.compare.verdict import LITTLE, SURELY, Verdict, p_said
from kermix.tables.evaluate.copies import FEWEST_HELD_OUT, Memorizing, Panel
from kermix.tables.evaluate.judged_data import JudgedData
from kermix.tables.evaluate.scores import Score, TableScores
from kermix.two_sample.classifier_test import auc_text

__all__ = ["MAIN", "SCORE_HEADS", "Evaluation", "answer_of", "copies_in_words", "percent"]

MAIN = ("fidelity", "classifier", "vendi_ratio", "precision", "coverage", "copies", "memorized",
        "shape")  # fmt: skip
SLIGHTLY = 0.02  # by which a Vendi score may be off before it is called different: convention
SCORE_HEADS = ("score", "value", "+-", "certified", "if same", "p", "rows", "rows needed")


@dataclass(frozen=True, repr=False)
class Evaluation(AnswerFirst):
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

    @property
    def pvalue(self) -> float | None:
        """That of a difference from real data."""
        return self.verdict.pvalue

    @property
    def different(self) -> bool | None:
        """Whether the samples differ from real data, as in `Verdict.different`."""
        return self.verdict.different

    @property
    def copying(self) -> tuple[str, ...]:
        """What is copied of the training rows beyond chance, in words."""
        if self.memorizing is None:
            return ()
        return tuple(_copied(self.memorizing, self.verdict.level_of_copies))

    def shown(self) -> Shown:
        """The answer and the main scores."""
        lines = [s.cells() for s in self.scores if s.name in MAIN]
        some = [SCORE_HEADS.index(head) for head in ("score", "value", "+-", "if same")]
        rows = [[line[k] for k in some] for line in lines]
        return Shown(self.answer, [SCORE_HEADS[k] for k in some], rows)

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


def answer_of(
    verdict: Verdict,
    scores: Mapping[str, Score],
    invented: Sequence[NovelMode] | None,
    missed: Sequence[NovelMode] | None,
    memory: Memorizing | None,
    named: bool = False,
) -> tuple[str, bool | None]:
    """A few sentences, and whether nothing speaks against the samples; None: no test could say.

    Args:
        verdict: Of the test and the classifier.
        scores: By name.
        invented: Modes that real data have not; None if nobody looked for them.
        missed: Modes that samples have not.
        memory: What was found about copies.
        named: Whether columns have names, so that those that differ are worth telling.
    """
    faults = [] if memory is None else _faults(verdict, memory)
    repeats, different = verdict.repeats(), verdict.different
    again = [f"{repeats} count once, as coincidence does not explain them"] if repeats else []
    differing = [] if different is False else _against(scores, invented, missed)
    parts = _with_headline(_headline(verdict), again, differing, faults, different)
    if named and (verdict.different_columns or different is False):
        parts.append(verdict.where())
    good = _good(verdict, faults)
    if good and not again:
        parts += _as_diverse(scores)
    return " ".join(filter(None, parts)), good


def _good(verdict: Verdict, faults: Sequence[str]) -> bool | None:
    """Whether nothing speaks against samples; None: no test could say."""
    if verdict.different or faults or verdict.repeated[1]:
        return False
    unknown = verdict.different is None or verdict.pvalue is None or bool(verdict.too_few())
    return None if unknown else True


def _with_headline(
    headline: str,
    again: Sequence[str],
    differing: Sequence[str],
    faults: Sequence[str],
    different: bool | None,
) -> list[str]:
    """What is wrong comes first where nothing else is."""
    if different is None:
        doubtful = f"If they do, {_listed(differing)}." if differing else ""
        return [headline, doubtful, _sentence([*again, *faults])]
    against = _sentence([*again, *differing, *faults])
    if different or not against:
        return [headline, against]
    return [against, f"Apart from that: {headline[0].lower()}{headline[1:]}"]


def _as_diverse(scores: Mapping[str, Score]) -> list[str]:
    ratio = scores.get("vendi_ratio")
    if ratio is None or _certified(scores) > SLIGHTLY:
        return []
    return [
        "The samples are about as diverse as real data (their Vendi score is "
        f"{ratio.value:.2f} times that of real data)."
    ]


def _faults(verdict: Verdict, memory: Memorizing) -> list[str]:
    """What is wrong with samples whether or not they differ from real data, in words."""
    copied = _copied(memory, verdict.level_of_copies)
    # Held-out rows tell near copies better, and rows of a panel are pairs by nature.
    known = bool(copied or memory.held_out or memory.entity)
    return [*copied, *([] if known else _alike(verdict)), *_far(memory)]


def _alike(verdict: Verdict) -> list[str]:
    """Samples that resemble real rows one by one, in words."""
    if not verdict.paired:
        return []
    assert verdict.effect is not None
    return [
        "they resemble real rows one by one, as near copies do: a classifier does worse than "
        f"chance on them (AUC {auc_text(verdict.effect)}; 0.5 is chance)"
    ]


def _far(memory: Memorizing, rarely: float = 0.4) -> list[str]:
    """Samples that lie further from the training rows than real rows do, in words (convention)."""
    if memory.nearer is None or memory.error is None:
        return []
    if memory.nearer > rarely or memory.nearer + SURELY * memory.error > 0.5:
        return []
    of = f" of the same {' and '.join(memory.entity)}" if memory.entity else ""
    return [
        f"compared with the training rows{of} they are further off than held-out rows in "
        f"{percent(1 - memory.nearer)} of pairs (50 % is usual)"
    ]


def _copied(memory: Memorizing, level: float) -> list[str]:
    """Copies beyond chance, in words."""
    exact, near = _exactly_copied(memory, level), _nearly_copied(memory, level)
    if not near:
        return exact
    if not exact:
        return [f"{near} of the samples are near copies of training rows"]
    # Exact copies are near ones too.
    more = memory.interval is not None and memory.interval[0] > memory.copies
    return [*exact, *([f"{near} are near copies, exact ones among them"] if more else [])]


def _exactly_copied(memory: Memorizing, level: float) -> list[str]:
    if memory.copies_pvalue > level or not memory.copies:
        return []
    real = "of held-out rows" if memory.held_out else "of real rows repeat another one"
    also = f" ({percent(memory.copies_held_out)} {real})" if memory.copies_held_out else ""
    return [f"{percent(memory.copies)} of the samples are exact copies of training rows{also}"]


def _nearly_copied(memory: Memorizing, level: float) -> str:
    """The share of near copies, if there are any beyond chance."""
    near, told, share = memory.near_pvalue, memory.interval, memory.memorized
    if near is None or near > level or share is None or told is None:
        return ""
    shown = percent(share), percent(told[0]), percent(told[1])
    return (
        "practically all"
        if {*shown} == {"100 %"}
        else "at least about {} ({} to {})".format(*shown)
    )


def copies_in_words(memory: Memorizing, panel: Panel | None, held_out: bool) -> list[str]:
    """What the words mean, a line each.

    Args:
        memory: What was found.
        panel: Whose entities distances were within.
        held_out: Whether there were held-out rows.
    """
    exact = "Exact copy: a sample that equals a training row in all columns."
    near = "Near copy: a sample nearer to a training row than real rows that the generator has not"
    least = "The share is a lower bound: copies that are no nearer than those are not counted."
    if not held_out:
        told = (
            f"{near} seen. No share of them without such rows: give --held-out FILE (held_out=)."
        )
    elif panel is None:
        told = (f"{near} seen (here {memory.held_out:,} held-out rows), in proportion to the "
                f"second nearest training row. {least}")  # fmt: skip
    elif memory.memorized is None:
        told = (
            f"{near} seen, of the same {' and '.join(panel.entity)}. No share of them: fewer than "
            f"{FEWEST_HELD_OUT} held-out rows are of one with two training rows."
        )
    else:
        told = (
            f"{near} seen (here {memory.held_out:,} held-out rows), in proportion to the second "
            f"nearest; only rows of the same {' and '.join(panel.entity)} are compared, whatever "
            f"their {' and '.join(panel.places)}. {least}"
        )
    return [exact, told]


def _headline(verdict: Verdict) -> str:
    if verdict.pvalue is None:
        return f"No verdict, {verdict.method.removeprefix('none, ').rstrip('.')}."
    if told := verdict.too_few():
        return told
    if verdict.different is False:
        return verdict.answer()
    p = p_said(verdict.pvalue)
    verb = "differ"
    if verdict.different is None:
        verb, p = "may differ", f"{p} if no row is a copy of another"
    doubts = " ".join([*verdict.of_copies(), f"The samples {verb} from real data"])
    if verdict.effect is None or verdict.interval is None:
        return f"{doubts} ({p})."
    chance = f"AUC {auc_text(verdict.effect)}, 0.5 is chance)."
    if verdict.interval[0] <= 0.5:
        apart = "but it is not clear that a classifier can tell them apart"
        return f"{doubts} ({p}), {apart} ({chance}"
    how = "a little" if verdict.effect < LITTLE else "clearly"
    return f"{doubts}, {how} ({p}; a classifier tells them apart with {chance}"


def _against(
    scores: Mapping[str, Score],
    invented: Sequence[NovelMode] | None,
    missed: Sequence[NovelMode] | None,
    sure: float = 3.0,
) -> list[str]:
    """In what samples differ, in words; diversity by so many errors, and not slightly."""
    found = []
    if missed or invented:
        few = f"too little of {_modes(missed)} of real data{_rows_of(missed)}" if missed else ""
        another = bool(missed) and len(invented or ()) == 1
        many = (
            f"too much of {'another' if another else _modes(invented)}{_rows_of(invented)}"
            if invented
            else ""
        )
        found.append(f"they have {' and '.join(filter(None, (few, many)))}")
    ratio = scores.get("vendi_ratio")
    if ratio is None:
        return found
    certified = _certified(scores)
    if abs(ratio.value - 1) > max(sure * (ratio.error or 0.0) + certified, SLIGHTLY):
        word = "less" if ratio.value < 1 else "more"
        times = f"Vendi score {ratio.value:.2f} times that of real data"
        found.append(f"they are {word} diverse ({times})")
    elif not found:
        modes = "" if missed is None else "no mode stands out as missing or invented"
        diverse = "they are as diverse" if certified <= SLIGHTLY else ""
        found += filter(None, [", and ".join(filter(None, (modes, diverse)))])
    return found


def _certified(scores: Mapping[str, Score]) -> float:
    """How far the ratio of Vendi scores may be off by its certificate; infinite if unknown."""
    bounds = [scores[name].certificate for name in ("vendi_ratio", "vendi_real", "vendi_fake")
              if name in scores]  # fmt: skip
    if bounds[0] is not None:
        return bounds[0]
    return 0.0 if all(bound is None for bound in bounds) else math.inf


def _modes(modes: Sequence[NovelMode]) -> str:
    return f"{len(modes)} modes" if len(modes) > 1 else "one mode"


def _rows_of(modes: Sequence[NovelMode]) -> str:
    return f" (by {percent(sum(m.excess for m in modes))} of the rows)"


def percent(share: float) -> str:
    """Two digits, as people write them.

    Example:
        >>> [percent(share) for share in (1.0, 0.996, 0.0996, 0.034, 0.0004)]
        ['100 %', '100 %', '10 %', '3.4 %', '0.04 %']
    """
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.2g} %"


def _listed(parts: Sequence[str]) -> str:
    return " ".join(parts) if len(parts) < 2 else f"{', '.join(parts[:-1])}, and {parts[-1]}"


def _sentence(parts: Sequence[str]) -> str:
    text = _listed(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""
