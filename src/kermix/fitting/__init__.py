"""Fitting: any data in, the run that suits it out (`km.fit` and `kermix fit`).

`open_run` opens a run of any kind; only what that kind needs is imported.
"""

from pathlib import Path

from kermix.runs.folder import CLASSIFY, IMAGES, TABLE, TARGET, kind_of_run
from kermix.runs.run import Kind, Run

__all__ = ["open_run"]


def open_run(folder: Path | str) -> Run:
    """The run in a folder, of whichever kind it is."""
    folder = Path(folder)
    # A folder that is no run is refused by name when it is opened.
    return Run.open(folder, _kind(kind_of_run(folder)))


def _kind(name: str | None) -> Kind:
    if name == TABLE:
        from kermix.tables.runs.table_run import TABLE_RUN

        return TABLE_RUN
    if name == TARGET:
        from kermix.tables.runs.target_fit import TARGET_RUN

        return TARGET_RUN
    if name == IMAGES:
        from kermix.images.generator_run import GENERATOR

        return GENERATOR
    if name == CLASSIFY:
        from kermix.images.classifier_run import CLASSIFIER

        return CLASSIFIER
    from kermix.fitting.samples_run import SAMPLES

    return SAMPLES
