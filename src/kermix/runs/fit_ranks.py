"""Training a run: in this process, or in as many as it asks for."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kermix.data.loading import Dataset
from kermix.distributed.launch import is_rank, launch
from kermix.errors import RankError
from kermix.runs.fit_run import Run
from kermix.runs.interruptions import interruptions
from kermix.training.loop import Row, Trainer
from kermix.training.rows import RowTask

__all__ = ["Outcome", "train"]


class Outcome(NamedTuple):
    """How training ended."""

    finished: bool  # False: it was interrupted, and saved
    step: int
    history: list[Row]


def train(run: Run, dataset: Dataset, show: bool = False) -> Outcome | None:
    """Train a run to its end, or until SIGINT or SIGTERM asks to stop; its checkpoints are kept.

    A run that asks for several devices or nodes is trained in processes that are started here,
    unless this process is such a rank already (under torchrun). A script that calls it does so
    under `if __name__ == "__main__"`, because the processes read the script again.

    Args:
        run: The run, which may have been begun before, with any number of processes.
        dataset: Its data.
        show: Whether to show a progress bar.

    Returns:
        How training ended; None on processes that are not the main one, which have nothing to
        write.
    """
    devices, nodes, _ = run.ranks
    if is_rank() or devices * nodes == 1:
        return _train_here(run, dataset, show)
    try:
        outcome: Outcome | None = launch(_rank, run, show, devices=devices, nodes=nodes)
    except RankError as error:
        if not (run.checkpoints / "last.safetensors").exists():
            raise
        again = f"kermix resume {shlex.quote(str(run.folder))}"
        raise RankError(f"{error} The last checkpoint is kept; to go on: {again}") from error
    return outcome


def _rank(run: Run, show: bool) -> Outcome | None:
    return _train_here(run, run.dataset(), show)


def _train_here(run: Run, dataset: Dataset, show: bool) -> Outcome | None:
    trainer = run.trainer(dataset)
    _check_same_data(trainer, run)
    with interruptions() as interrupted, _progress(trainer, run.metric, show) as callbacks:
        finished = run.train(trainer, should_stop=interrupted, **callbacks)
    return Outcome(finished, trainer.step, trainer.history) if trainer.is_main else None


def _check_same_data(trainer: Trainer[RowTask], run: Run) -> None:
    """Nodes read the data each for itself: they must find the same."""
    mine, main = run.config["fingerprint"], trainer.main_says(run.config["fingerprint"])
    if mine != main:
        raise RankError(
            f"{run.config['data']} is not the same here as on rank 0 (fingerprints {mine} and "
            f"{main}): every node needs a copy of the same data."
        )


@contextmanager
def _progress(trainer: Trainer[RowTask], metric: str, show: bool) -> Iterator[dict[str, Any]]:
    if not show or not trainer.is_main:
        yield {}
        return
    from kermix.training.progress import live_progress

    with live_progress(trainer, metric) as live:
        yield {"on_step": live.on_step, "on_report": live.on_report}
