"""Bars of training: they stay at the end, and are gone before an error is shown."""

import io

import pytest
from rich.console import Console

from internals import progress_bar
from kermix.errors import TrainingError

ERASE = "\x1b[2K"


@pytest.mark.parametrize("fails", [False, True])
def test_a_bar_vanishes_on_errors_only(fails):
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=80)
    try:
        with progress_bar("fit", 10, console=console) as (bar, task):
            bar.update(task, completed=10)
            if fails:
                raise TrainingError("not finite")
    except TrainingError:
        assert fails
    last = file.getvalue().rpartition("10/10")
    assert last[1]
    assert (ERASE in last[2]) == fails


def test_a_bar_is_silent_where_there_is_no_terminal():
    file = io.StringIO()
    with progress_bar("fit", 10, console=Console(file=file, width=80)) as (bar, task):
        bar.update(task, completed=10)
    assert file.getvalue() == ""


def test_a_bar_says_how_long_is_left():
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=120)
    with progress_bar("fit", 10, console=console) as (bar, task):
        now = bar.get_time()
        bar.get_time = lambda: now
        for step in range(1, 4):
            now += 2.0
            bar.update(task, completed=step)
        bar.refresh()
    assert "00:14" in file.getvalue()
