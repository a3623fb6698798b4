"""Budgets in words, and a course of steps that ends when its time does."""

from itertools import pairwise

import pytest

from internals import Course, in_words, seconds_of
from kermix.errors import OptionError


@pytest.mark.parametrize(
    ("budget", "seconds"),
    [("90s", 90), ("2m", 120), ("1h", 3600), ("1.5h", 5400), ("1h30m", 5400), ("quick", None),
     ("default", None), ("best", None), (None, None)],
)  # fmt: skip
def test_what_a_budget_says(budget, seconds):
    assert seconds_of(budget) == seconds


@pytest.mark.parametrize("budget", ["", "2", "m", "2 m", "0s", "-2m", "2d", "soon", "2mm"])
def test_a_budget_that_is_none_is_refused_with_what_there_is(budget):
    with pytest.raises(OptionError, match="quick, default, best, or a time such as 90s, 2m or 1h"):
        seconds_of(budget)


@pytest.mark.parametrize("seconds", [1, 59, 60, 61, 3599, 3600, 7260])
def test_words_of_a_time_are_a_budget_of_that_time(seconds):
    short = in_words(seconds).replace(" min", "m").replace(" ", "")
    assert abs(seconds_of(short) - seconds) <= 30 * (seconds > 3600)


class Machine:
    """A clock, and steps that take a time."""

    def __init__(self, course_args, pace):
        self.now, self.pace = 100.0, pace
        self.course = Course(clock=lambda: self.now, **course_args)

    def train(self, start=0, every=25, until=None, slower=None):
        """Steps to the end, or to a step; `slower` is a pace from a step on."""
        step, course, rates = start, self.course, []
        course.begin()
        while step < course.total and step != until:
            rates.append(course.share(step))
            self.now += self.pace if slower is None or step < slower[0] else slower[1]
            step += 1
            if step % every == 0 or step == course.total:
                course.report(step)
        return step, rates


PLAN = {"steps": 1000, "seconds": 110.0, "ending": 10.0, "pace": 0.1}


def test_a_plan_that_holds_is_kept():
    machine = Machine(PLAN, pace=0.1)
    step, shares = machine.train()
    assert step == 1000
    assert shares == [k / 1000 for k in range(1000)]


@pytest.mark.parametrize("pace", [0.03, 0.07, 0.2, 0.5])
def test_training_ends_in_time_on_a_machine_of_another_speed(pace):
    machine = Machine(PLAN, pace)
    _, shares = machine.train()
    spent, ending = machine.now - 100.0, 10.0 * pace / 0.1
    assert spent + ending == pytest.approx(110.0, rel=0.06)
    assert all(a < b for a, b in pairwise(shares))
    assert shares[-1] == pytest.approx(1.0, abs=0.02)  # the learning rate has fallen to its end


def test_a_machine_that_becomes_slow_ends_in_time():
    machine = Machine(PLAN, pace=0.1)
    step, shares = machine.train(slower=(500, 0.3))
    assert machine.now - 100.0 + 30.0 == pytest.approx(110.0, rel=0.08)
    assert 500 < step < 700
    assert shares[-1] == pytest.approx(1.0, abs=0.05)


def test_no_more_steps_than_the_most():
    machine = Machine({**PLAN, "most": 1200}, pace=0.01)
    assert machine.train()[0] == 1200


def test_a_resumed_course_counts_the_time_trained_before():
    first = Machine(PLAN, pace=0.2)
    step, _ = first.train(until=200)
    again = Machine(PLAN, pace=0.2)
    again.now += 1e6  # the pause does not count
    again.course.restore(first.course.content(), step)
    before = first.now - 100.0
    then = again.now
    again.train(start=step)
    assert before + (again.now - then) + 20.0 == pytest.approx(110.0, rel=0.06)


def test_some_time_is_trained_even_where_the_ending_takes_all():
    machine = Machine({**PLAN, "ending": 500.0, "least": 30.0}, pace=0.1)
    step, _ = machine.train()
    assert machine.now - 100.0 == pytest.approx(30.0, rel=0.15)
    assert step > 250
