"""Which kind of run a folder holds."""

from pathlib import Path

from kermix.runs.classify_run import ClassifyRun
from kermix.runs.fit_run import FitRun
from kermix.runs.folder import FIT, kind_of_run
from kermix.runs.image_run import ImageRun
from kermix.runs.run import Run
from kermix.runs.table_run import TableRun

__all__ = ["open_run"]

KINDS: dict[str, type[Run]] = {run.kind: run for run in (FitRun, ImageRun, ClassifyRun, TableRun)}


def open_run(folder: Path | str) -> Run:
    """The run in a folder, of whichever kind it is."""
    # A folder that is no run is refused by name when it is opened.
    return KINDS.get(kind_of_run(Path(folder)) or FIT, FitRun).open(folder)
