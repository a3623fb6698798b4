"""The answer in words: what is good about samples, and what is not."""

from collections.abc import Mapping, Sequence

from kermix.comparison.verdict import SMALL, Verdict, auc_text
from kermix.evaluation.entities import Panel
from kermix.evaluation.memorizing import FEWEST_HELD_OUT, Memorizing
from kermix.evaluation.novelty import NovelMode
from kermix.evaluation.result import Score

__all__ = ["answer_of", "copies_in_words"]

SURE = 3.0  # standard errors
WEAK = 0.6  # AUC above which rows are told apart by more than a little


def answer_of(
    verdict: Verdict,
    scores: Mapping[str, Score],
    invented: Sequence[NovelMode],
    missed: Sequence[NovelMode],
    memory: Memorizing | None,
    level_of_copies: float = 0.0,
    named: bool = False,
) -> tuple[str, bool | None]:
    """A few sentences, and whether nothing speaks against the samples; None: no test could say.

    Args:
        verdict: Of the test and the classifier.
        scores: By name.
        invented: Modes that real data have not.
        missed: Modes that samples have not.
        memory: What was found about copies.
        level_of_copies: At which p-value of it samples are called copies.
        named: Whether columns have names, so that those that differ are worth telling.
    """
    copied = [] if memory is None else _copied(memory, level_of_copies)
    against = _against(scores, invented, missed) if verdict.different else []
    against += copied
    parts = [_headline(verdict)]
    if against:
        parts.append(_sentence(against))
    if named and verdict.different_columns:
        parts.append(verdict.where())
    told = verdict.pvalue is not None and not verdict.too_few()
    if told and not against and not verdict.different and "vendi_ratio" in scores:
        ratio = scores["vendi_ratio"]
        parts.append(f"They are as diverse as real data (Vendi score {ratio.value:.2f} times).")
    good = None if not told and not copied else not verdict.different and not copied
    return " ".join(parts), good


def _copied(memory: Memorizing, level: float) -> list[str]:
    """Copies beyond chance, in words."""
    found = []
    exact = memory.copies_pvalue <= level and memory.copies > 0
    if exact:
        real = "of held-out rows" if memory.held_out else "of real rows repeat another one"
        also = f" ({_percent(memory.copies_held_out)} {real})" if memory.copies_held_out else ""
        found.append(
            f"{_percent(memory.copies)} of the samples are exact copies of training rows{also}"
        )
    near, told = memory.near_pvalue, memory.interval
    if near is None or near > level or memory.memorized is None or told is None:
        return found
    if exact and told[0] <= memory.copies:
        return found  # they are those
    share = f"{_percent(memory.memorized)} ({_percent(told[0])} to {_percent(told[1])})"
    also = ", exact ones among them" if exact else ""
    return [*found, f"{share} are near copies{also}" if exact else
            f"{share} of the samples are near copies of training rows"]  # fmt: skip


def copies_in_words(memory: Memorizing, panel: Panel | None, held_out: bool) -> list[str]:
    """What the words mean, a line each.

    Args:
        memory: What was found.
        panel: Whose entities distances were within.
        held_out: Whether there were held-out rows.
    """
    exact = "Exact copy: a sample that equals a training row in all columns."
    near = "Near copy: a sample nearer to a training row than real rows that the generator has not"
    if not held_out:
        told = (
            f"{near} seen. No share of them without such rows: give --held-out FILE (held_out=)."
        )
    elif panel is None:
        told = (f"{near} seen (here {memory.held_out:,} held-out rows), in proportion to the "
                "second nearest training row.")  # fmt: skip
    elif memory.memorized is None:
        told = (
            f"{near} seen, of the same {' and '.join(panel.entity)}. No share of them: fewer than "
            f"{FEWEST_HELD_OUT} held-out rows are of one with two training rows."
        )
    else:
        told = (
            f"{near} seen (here {memory.held_out:,} held-out rows), in proportion to the second "
            f"nearest; only rows of the same {' and '.join(panel.entity)} are compared, whatever "
            f"their {' and '.join(panel.places)}."
        )
    return [exact, told]


def _headline(verdict: Verdict) -> str:
    if verdict.pvalue is None:
        return f"No verdict, {verdict.method.removeprefix('none, ').rstrip('.')}."
    p = f"p = {verdict.pvalue:.2g}" if verdict.pvalue >= SMALL else f"p < {SMALL:g}"
    if told := verdict.too_few():
        return told
    if not verdict.different:
        return f"The samples cannot be distinguished from real data ({p})."
    if verdict.effect is None or verdict.interval is None:
        return f"The samples differ from real data ({p})."
    auc = auc_text(verdict.effect)
    if verdict.interval[0] <= 0.5:
        return (
            f"The samples differ from real data ({p}), but it is not clear that a classifier can "
            f"tell them apart (AUC {auc}, 0.5 is chance)."
        )
    how = "a little" if verdict.effect < WEAK else "clearly"
    return (
        f"The samples differ from real data, {how} ({p}; a classifier tells them apart with AUC "
        f"{auc}, 0.5 is chance)."
    )


def _against(
    scores: Mapping[str, Score], invented: Sequence[NovelMode], missed: Sequence[NovelMode]
) -> list[str]:
    found = []
    if missed:
        found.append(f"they lack {_modes(missed)} of real data")
    if invented:
        found.append(f"{_modes(invented)} of them is more than real data have")
    ratio = scores.get("vendi_ratio")
    if ratio is not None:
        off = max(SURE * (ratio.error or 0.0), 0.02)
        word = "less" if ratio.value < 1 - off else "more" if ratio.value > 1 + off else ""
        if word:
            found.append(f"they are {word} diverse (Vendi score {ratio.value:.2f} times)")
        elif not found:
            found.append("no mode stands out as missing or invented, and they are as diverse")
    return found


def _modes(modes: Sequence[NovelMode]) -> str:
    count = f"{len(modes)} modes" if len(modes) > 1 else "one mode"
    return f"{_percent(sum(m.excess for m in modes))} ({count})"


def _percent(share: float) -> str:
    """Two digits, as people write them.

    Example:
        >>> [_percent(share) for share in (1.0, 0.996, 0.0996, 0.034, 0.0004)]
        ['100 %', '100 %', '10 %', '3.4 %', '0.04 %']
    """
    percent = 100 * share
    return f"{percent:.0f} %" if percent >= 9.95 else f"{percent:.2g} %"


def _sentence(parts: Sequence[str]) -> str:
    text = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])}, and {parts[-1]}"
    return f"{text[0].upper()}{text[1:]}."
