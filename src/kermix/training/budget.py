"""Time for a fit: what a budget says in words, and a training that ends when its time does."""

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kermix.errors import OptionError

__all__ = ["BEST", "DEFAULT", "QUICK", "Course", "budget_told", "in_words", "seconds_of"]

QUICK, DEFAULT, BEST = "quick", "default", "best"
UNITS = {"s": 1, "m": 60, "h": 3600}
# Reasoned, no record: a plan is kept while the end it leads to is this near to the time.
NEAR = 0.03
RECENT = 6  # reports that tell the pace


def budget_told(budget: str | None) -> None:
    """Refuse a budget that is neither a word nor a time.

    Example:
        >>> budget_told("2m")
    """
    if budget not in (None, QUICK, DEFAULT, BEST):
        assert budget is not None
        seconds_of(budget)


def seconds_of(budget: str | None) -> float | None:
    """The time that a budget stands for; None of a word, or of none.

    Example:
        >>> seconds_of("2m"), seconds_of("1h30m"), seconds_of("quick")
        (120.0, 5400.0, None)
    """
    if budget in (None, QUICK, DEFAULT, BEST):
        return None
    assert budget is not None
    parts = re.findall(r"(\d+(?:\.\d+)?)([smh])", budget)
    seconds = sum(float(number) * UNITS[unit] for number, unit in parts)
    if "".join(map("".join, parts)) != budget or not seconds:
        raise OptionError(
            f"budget={budget!r} must be quick, default, best, or a time such as 90s, 2m or 1h."
        )
    return seconds


def in_words(seconds: float) -> str:
    """A time as people write it.

    Example:
        >>> in_words(8.2), in_words(95), in_words(120), in_words(5400)
        ('8 s', '1 min 35 s', '2 min', '1 h 30 min')
    """
    whole = round(seconds)
    if whole >= 3600:
        whole = round(whole / 60) * 60
    parts = (whole // 3600, "h"), (whole // 60 % 60, "min"), (whole % 60, "s")
    return " ".join(f"{count} {unit}" for count, unit in parts if count) or "0 s"


@dataclass
class Course:
    """How far a training is at each step: of so many steps, or up to a time.

    With a time, steps are planned and the plan is kept while it leads to the end in time: the
    learning rate is a function of the share that is done, which is whole at the end. Where steps
    become slower or faster, those to come are planned anew, from the share reached.

    Args:
        steps: How many steps are planned.
        seconds: Time for training and all that follows it; None for just these steps.
        ending: How much of it is for what follows, at the pace that was planned with.
        pace: Seconds a step that was planned with.
        most: The most steps, whatever the time.
        least: Seconds that are trained in any case, where the ending leaves fewer.
        clock: What tells the time.

    Example:
        >>> now = iter([0.0, 10.0])
        >>> course = Course(10, seconds=10.0, pace=1.0, clock=lambda: next(now))
        >>> course.begin()
        >>> course.report(5)  # it took ten seconds, so this is the end
        >>> course.total
        5
    """

    steps: int
    seconds: float | None = None
    ending: float = 0.0
    pace: float = 0.0
    most: int | None = None
    least: float = 0.0
    clock: Callable[[], float] = time.monotonic
    total: int = field(init=False)
    _from: tuple[int, float] = field(default=(0, 0.0), init=False)  # a step, the share done there
    _before: float = field(default=0.0, init=False)  # seconds, until training went on
    _began: float | None = field(default=None, init=False)
    _step: int = field(default=0, init=False)
    _told: list[tuple[int, float]] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        self.total = self.steps

    @property
    def spent(self) -> float:
        """Seconds that were trained so far, before an interruption and after it."""
        return self._before + (0.0 if self._began is None else self.clock() - self._began)

    def share(self, step: int) -> float:
        """How much of the training is done at a step."""
        first, done = self._from
        if not first:
            return step / self.total
        return done + (1 - done) * (step - first) / max(1, self.total - first)

    def begin(self) -> None:
        """A training begins, or goes on."""
        self._before, self._began = self.spent, self.clock()
        self._told = [(self._step, self._before)]

    def report(self, step: int) -> None:
        """So many steps are done: plan the others anew if they would not end in time."""
        if self.seconds is None or self._began is None:
            return
        spent, self._step = self.spent, step
        self._told = [*self._told[-RECENT:], (step, spent)]
        first, then = self._told[0]
        steps = step - first
        pace = (spent - then) / steps if steps > 0 else self.pace
        slower = pace / self.pace if self.pace else 1.0
        left = max(self.seconds - self.ending * slower, self.least) - spent
        ahead = (self.total - step) * pace - left
        if abs(ahead) <= NEAR * self.seconds or pace <= 0:
            return
        reached = self.share(step)
        total = step + max(0, int(left / pace))
        self.total = total if self.most is None else max(step, min(total, self.most))
        self._from = step, reached

    def content(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"total": self.total, "from": [*self._from], "spent": self.spent}

    def restore(self, content: Mapping[str, Any], step: int) -> None:
        """Go on from a step, and from what its checkpoint kept."""
        self._step = step
        self.total, self._before, self._began = content["total"], content["spent"], None
        step, share = content["from"]
        self._from = int(step), float(share)
