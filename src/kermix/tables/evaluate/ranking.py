"""Several generators of the same data, ranked, and those that cannot be told apart said to tie."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kermix.data.readers.common import listed
from kermix.errors import OptionError, SampleError
from kermix.tables.compare.result import AnswerFirst, Shown, aligned
from kermix.tables.compare.verdict import p_text
from kermix.tables.evaluate.evaluate import evaluate
from kermix.tables.evaluate.evaluation_result import Evaluation, percent
from kermix.two_sample.classifier_test import CONFIDENCE

__all__ = ["RANKING_HEADS", "Ranking", "rank_generators"]

RANKING_HEADS = ("generator", "rank", "classifier (AUC)", "+-", "p", "Vendi, fake / real",
                 "copies", "good")  # fmt: skip
WORDS = {True: "yes", False: "no", None: "?"}


@dataclass(frozen=True, repr=False)
class Ranking(AnswerFirst):
    """The generators of `rank_generators`, the best first.

    Attributes:
        evaluations: What `kermix.evaluate` found of each, by name.
        ranks: One more than the number of generators that are better: those that no one can tell
            apart by it have the same rank.
        answer: Which is best, in a sentence.
    """

    evaluations: dict[str, Evaluation]
    ranks: dict[str, int]
    answer: str

    @property
    def best(self) -> tuple[str, ...]:
        """Names of the generators of rank 1."""
        return tuple(name for name, rank in self.ranks.items() if rank == 1)

    def table(self) -> list[list[str]]:
        """A line of text for each generator."""
        return [self._line(name, found) for name, found in self.evaluations.items()]

    def _line(self, name: str, found: Evaluation) -> list[str]:
        area, pvalue = found.score("classifier"), found.pvalue
        memory = found.memorizing
        copies = "" if memory is None else percent(memory.copies)
        return [name, str(self.ranks[name]), f"{area.value:.3f}", f"{area.error:.3f}",
                "" if pvalue is None else p_text(pvalue), f"{found['vendi_ratio']:.2f}", copies,
                WORDS[found.good]]  # fmt: skip

    def shown(self) -> Shown:
        """The answer and the table."""
        return Shown(self.answer, RANKING_HEADS, self.table())

    def __str__(self) -> str:
        each = [f"{name}: {found.answer}" for name, found in self.evaluations.items()]
        return "\n".join([self.answer, "", *aligned((RANKING_HEADS, *self.table())), "", *each])

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "answer": self.answer,
            "ranks": self.ranks,
            "evaluations": {name: found.to_dict() for name, found in self.evaluations.items()},
        }


def rank_generators(
    real: Any, fakes: Mapping[str, Any] | Sequence[str | Path], **options: Any
) -> Ranking:
    """Judge several generators of the same data, and rank them.

    The rank goes by how well a classifier tells samples from real rows; a generator is better than
    another if the difference of their AUCs is more than its error bars explain. A generator that
    copies training rows comes after those that nothing speaks against, whatever its AUC.

    Args:
        real: Real samples, as for `kermix.evaluate`.
        fakes: Samples of each generator by its name, or files, whose names they have.
        options: All others of `kermix.evaluate`, which hold for each.

    Example:
        >>> x = torch.randn(600, 2, generator=torch.Generator().manual_seed(0))
        >>> found = km.rank_generators(x[:200], {"wide": 3 * x[200:400], "fresh": x[400:]},
        ...                            permutations=99)
        >>> found.ranks, found.best
        ({'fresh': 1, 'wide': 2}, ('fresh',))
    """
    named = dict(fakes) if isinstance(fakes, Mapping) else _named(fakes)
    if len(named) < 2:
        raise OptionError(f"fakes: {len(named)} generator; to rank them there must be two.")
    found = {name: evaluate(real, fake, **options) for name, fake in named.items()}
    lacking = [name for name, each in found.items() if each.verdict.effect is None]
    if lacking:
        raise SampleError(
            f"{listed(lacking)}: no classifier could be trained, by which generators are ranked; "
            "give rows, not sketches, and more of them."
        )
    ranks = {name: 1 + sum(_better(b, each) for b in found.values())
             for name, each in found.items()}  # fmt: skip
    order = sorted(found, key=lambda name: (ranks[name], _told(found[name])))
    ranks = {name: ranks[name] for name in order}
    return Ranking({name: found[name] for name in order}, ranks, _answer(found, ranks))


def _named(paths: Sequence[str | Path]) -> dict[str, Path]:
    """Files by the shortest names that tell them apart."""
    files = [Path(path) for path in paths]
    for names in ([p.name.split(".")[0] for p in files], [str(p) for p in files]):
        if len(set(names)) == len(files):
            return dict(zip(names, files, strict=True))
    raise OptionError(f"fakes: a file is named twice among {listed([str(p) for p in files])}.")


def _told(found: Evaluation) -> float:
    """How far from chance a classifier is; below chance is as far, since that is of copies."""
    return abs(found["classifier"] - 0.5)


def _better(one: Evaluation, other: Evaluation) -> bool:
    """Whether a generator is clearly better: by its AUC, unless copies are what is good."""
    for first, second in ((one, other), (other, one)):
        if first.good and _faulty(second):
            return first is one
    errors = [found.score("classifier").error or 0.0 for found in (one, other)]
    return _told(other) - _told(one) > CONFIDENCE * (errors[0] ** 2 + errors[1] ** 2) ** 0.5


def _faulty(found: Evaluation) -> bool:
    """Whether something else than a difference speaks against samples, such as copies."""
    if found.memorizing is None or found.good is not False:
        return False
    return bool(found.copying) or found.different is not True


def _answer(found: Mapping[str, Evaluation], ranks: Mapping[str, int]) -> str:
    best = [name for name, rank in ranks.items() if rank == 1]
    told = f"{_who_is_best(found, best)}: {_how_well_told(found, best)}."
    good = [name for name in best if found[name].good]
    if good:
        told += f" No difference from real data was found for {listed(good)}."
    faulty = {name: _what_is_wrong(each) for name, each in found.items() if _faulty(each)}
    told += "".join(f" But of {n}: {wrong}" for n, wrong in faulty.items() if n in best)
    others = [f"{n}: {wrong}" for n, wrong in faulty.items() if n not in best]
    if not others:
        return told
    after = "Ranked after good ones: " if good else "Of others: "
    return f"{told} {after}{' '.join(others)}"


def _who_is_best(found: Mapping[str, Evaluation], best: Sequence[str]) -> str:
    names = " and ".join([", ".join(best[:-1]), best[-1]] if len(best) > 1 else best)
    if len(best) == len(found) > 1:
        return f"None of {names} is clearly better than the others"
    if len(best) > 1:
        return f"{names} are best of {len(found)}, and tie"
    if any(found[name].good is False and found[name].different is False for name in best):
        return f"{names} is nearest to real data, of {len(found)} generators"
    return f"{names} is best of {len(found)}"


def _how_well_told(found: Mapping[str, Evaluation], best: Sequence[str]) -> str:
    areas = ", ".join(f"{found[name]['classifier']:.2f}" for name in best)
    whose = "its" if len(best) == 1 else "their"
    apart = any(_told(found[name]) > CONFIDENCE * (found[name].score("classifier").error or 0.0)
                for name in best)  # fmt: skip
    tells = "tells" if apart else "cannot tell"
    return f"a classifier {tells} {whose} samples from real rows (AUC {areas}; 0.5 is chance)"


def _what_is_wrong(found: Evaluation) -> str:
    """What speaks against samples that a classifier may not tell from real rows."""
    if found.copying:
        text = ", and ".join(found.copying)
        return f"{text[0].upper()}{text[1:]}."
    return _first_of(found.answer)


def _first_of(answer: str) -> str:
    """The first sentence of an answer, which says what is wrong."""
    return answer.partition(". ")[0].rstrip(".") + "."
