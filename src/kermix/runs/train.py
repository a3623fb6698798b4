"""Training a run: in this process or in as many as it asks for, with a live line of how it goes.

Ctrl-C becomes a question that the loop asks between two steps, instead of an error anywhere.
"""

import math
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

from kermix.distributed.processes import launch
from kermix.environment import is_rank
from kermix.errors import MissingExtraError, RankError, RunError
from kermix.runs.run import Numbers, Outcome, Run
from kermix.training.budget import in_words
from kermix.training.loop import Trainer

__all__ = ["Stopped", "complete", "interruptions", "keep", "progress_bar", "stage_of", "train"]


class CostStages(Protocol):
    """Settings that name a cost, and what the steps after it optimise."""

    @property
    def cost(self) -> str:
        """What is optimized first."""

    @property
    def refine_with(self) -> Any:
        """What is optimized then."""


def stage_of(settings: CostStages, row: Mapping[str, float]) -> dict[str, str]:
    """The stage that a report is of, with the value of its cost where it has one."""
    if math.isnan(row["metric"]):
        return {"stage": f"autoencoder {row['loss']:.4f}"}
    stage = settings.cost if row["variance"] > 0.0 else str(settings.refine_with)
    if row["variance"] > 0.0 and stage in ("svd", "scalar", "vector", "matrix"):
        stage = f"{stage} cost {math.exp(-row['loss']):.4f}"
    return {"stage": stage}


@contextmanager
def progress_bar(
    label: str, total: int, completed: int = 0, console: Any = None
) -> Iterator[tuple[Any, Any]]:
    """A bar of steps and its task, which has two texts to set: `stage` and `metric`.

    It stays where it is at the end, and vanishes on an error.
    """
    try:
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TaskProgressColumn,
            TextColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        raise MissingExtraError("Progress needs rich: pip install 'kermix[cli]'.") from None

    class Rate(TextColumn):
        def render(self, task: Any) -> Any:
            from rich.text import Text

            return Text(f"{task.speed:.2g}/s" if task.speed else "", style="dim")

    columns = (
        TextColumn(f"[bold]{label}[/]"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        Rate(""),
        TimeRemainingColumn(compact=True),
        TextColumn("[cyan]{task.fields[stage]}[/]"),
        TextColumn("[green]{task.fields[metric]}[/]"),
    )
    bar = Progress(*columns, console=console)
    bar.disable = not bar.console.is_terminal
    with bar:
        try:
            yield bar, bar.add_task(label, total=total, completed=completed, stage="", metric="")
        except BaseException:
            bar.live.transient = True  # gone before the error is shown
            raise


@contextmanager
def interruptions() -> Iterator[Callable[[], bool]]:
    """Note Ctrl-C and the request to end, for the loop to see between two steps.

    Example:
        >>> with interruptions() as interrupted:
        ...     interrupted()
        False
    """
    seen: list[int] = []

    def note(number: int, frame: Any) -> None:
        if seen:  # asked twice: at once
            sys.exit(130)
        seen.append(number)

    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(s, note) for s in signals]
    try:
        yield lambda: bool(seen)
    finally:
        for s, handler in zip(signals, before, strict=True):
            signal.signal(s, handler)


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, and is saved.

    Attributes:
        step: The step that it can be continued from.
    """

    def __init__(self, folder: Path, step: int) -> None:
        super().__init__(f"Stopped at step {step}; saved. To continue: km.resume({str(folder)!r})")
        self.step = step


def complete(run: Run, data: Any, show: bool = False) -> Numbers | None:
    """Train a run to its end and write its results: what `km.fit` and `kermix fit` do.

    Args:
        run: The run, which may have been begun before.
        data: What its `dataset()` returns.
        show: Whether to show a progress bar.

    Returns:
        The numbers to show; None on processes that are not the main one.
    """
    with run.held():
        outcome = train(run, data, show)
        if outcome is None:  # the main process, on another node or beside this one, writes
            return None
        if not outcome.finished:
            raise Stopped(run.folder, outcome.step)
        with _ending(run, show):
            return run.finish(data, outcome)


def train(run: Run, data: Any, show: bool = False) -> Outcome | None:
    """Train a run to its end, or until SIGINT or SIGTERM asks to stop; its checkpoints are kept.

    A run that asks for several devices or nodes is trained in processes that are started here,
    unless this process is such a rank already (under torchrun). A script that calls it does so
    under `if __name__ == "__main__"`, because the processes read the script again.

    Args:
        run: The run, which may have been begun before, with any number of processes.
        data: What its `dataset()` returns.
        show: Whether to show a progress bar.

    Returns:
        How training ended; None on processes that are not the main one, which have nothing to
        write.
    """
    devices, nodes, _ = run.ranks
    if is_rank() or devices * nodes == 1:
        return _train_here(run, data, show)
    try:
        outcome: Outcome | None = launch(_rank, run, show, devices=devices, nodes=nodes)
    except RankError as error:
        if not run.last.exists():
            raise
        again = f"kermix resume {shlex.quote(str(run.folder))}"
        raise RankError(f"{error} The last checkpoint is kept; to continue: {again}") from error
    return outcome


def keep(run: Run, data: Any) -> Numbers:
    """End a run that was stopped as if it had been trained so far: results and report are written.

    The checkpoint stays: `kermix resume` goes on from it, and writes them again.

    Args:
        run: The run, which nobody trains now.
        data: What its `dataset()` returns.

    Returns:
        The numbers to show.
    """
    trainer = run.trainer(data)
    if not trainer.history:
        raise RunError(
            f"{run.folder}: stopped before the first report, so there is nothing to keep yet; "
            f"continue it with: kermix resume {shlex.quote(str(run.folder))}."
        )
    trainer.end(run.checkpoints)
    return run.finish(data, Outcome(True, trainer.step, trainer.history, trainer))


def _rank(run: Run, show: bool) -> Outcome | None:
    outcome = _train_here(run, run.dataset(), show)
    # A trainer cannot travel between processes; what it has learned is in the checkpoints.
    return None if outcome is None else outcome._replace(trainer=None)


def _train_here(run: Run, data: Any, show: bool) -> Outcome | None:
    trainer = run.trainer(data)
    main = trainer.is_main
    _check_same_data(trainer, run)
    with interruptions() as interrupted, _progress(run, trainer, show and main) as callbacks:
        finished = run.train(trainer, should_stop=interrupted, **callbacks)
    # Its threads would still wait when the interpreter ends, which then aborts.
    trainer.leave_group()
    return Outcome(finished, trainer.step, trainer.history, trainer) if main else None


def _check_same_data(trainer: Trainer[Any], run: Run) -> None:
    """Nodes read the data each for itself: they must find the same."""
    if run.ranks[:2] == (1, 1):
        return
    mine, main = run.config["fingerprint"], trainer.broadcast_from_main(run.config["fingerprint"])
    if mine != main:
        raise RankError(
            f"{run.config['data']} is not the same here as on rank 0 (fingerprints {mine} and "
            f"{main}): every node needs a copy of the same data."
        )


@contextmanager
def _ending(run: Run, show: bool) -> Iterator[None]:
    """Say that samples and scores are made, and how long that may take, if it was planned."""
    if not show:
        yield
        return
    from rich.console import Console

    console, planned = Console(), (run.config.get("course") or {}).get("ending")
    about = "" if not planned else f", about {in_words(planned)}"
    status = console.status(f"samples, scores and the report{about}")
    with status if console.is_terminal else nullcontext():
        yield


@contextmanager
def _progress(run: Run, trainer: Trainer[Any], show: bool) -> Iterator[dict[str, Any]]:
    if not show:
        yield {}
        return
    label = run.config["command"][1]
    with progress_bar(label, trainer.total, trainer.step) as (bar, task):
        yield {
            "on_step": lambda step: bar.update(task, completed=step, total=trainer.total),
            "on_report": lambda row: bar.update(task, **run.kind.shown(run, row)),
        }
