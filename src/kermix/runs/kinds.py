"""Which kind of run a folder holds."""

from pathlib import Path

from kermix.runs.classify_run import ClassifyRun
from kermix.runs.fit_run import FitRun
from kermix.runs.folder import FIT, kind_of_run
from kermix.runs.image_run import ImageRun
from kermix.runs.run import Run
from kermix.runs.table_run import TableRun
from kermix.runs.target_run import TargetRun

__all__ = ["open_run"]

RUNS: tuple[type[Run], ...] = (FitRun, ImageRun, ClassifyRun, TableRun, TargetRun)
KINDS = {run.kind: run for run in RUNS}


def open_run(folder: Path | str) -> Run:
    """The run in a folder, of whichever kind it is."""
    # A folder that is no run is refused by name when it is opened.
    return KINDS.get(kind_of_run(Path(folder)) or FIT, FitRun).open(folder)
