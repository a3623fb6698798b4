"""Bars of training: they stay at the end, and are gone before an error is shown."""

import io

import pytest
from rich.console import Console

from kermix.errors import TrainingError
from kermix.runs.train import progress_bar

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
