"""The live line of a fit: rate, remaining time, cost and held-out metric."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kermix.errors import MissingExtraError
from kermix.training.images import ImageTask
from kermix.training.loop import Row, Trainer
from kermix.training.rows import RowTask

__all__ = ["LiveProgress", "live_progress", "progress_bar"]


class LiveProgress:
    """What a trainer calls to show where it is."""

    def __init__(self, bar: Any, task: Any, fit: RowTask | ImageTask, metric: str) -> None:
        self._bar, self._task, self._fit, self._metric = bar, task, fit, metric

    def on_step(self, step: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step)

    def on_report(self, row: Row) -> None:
        """Show the numbers of a report."""
        stage: str = self._fit.settings.cost
        if row["variance"] == 0.0:
            stage = str(self._fit.settings.finish)
        if math.isnan(row["metric"]):
            self._bar.update(self._task, stage=f"autoencoder {row['loss']:.4f}")
            return
        if row["variance"] > 0.0 and stage in ("svd", "scalar", "vector", "matrix"):
            stage = f"{stage} cost {math.exp(-row['loss']):.4f}"
        self._bar.update(self._task, stage=stage, metric=f"{self._metric} {row['metric']:.4f}")


@contextmanager
def live_progress(
    trainer: Trainer[RowTask] | Trainer[ImageTask], metric: str, console: Any = None
) -> Iterator[LiveProgress]:
    """Show a bar while a trainer runs."""
    with progress_bar("fit", trainer.total, trainer.step, console) as (bar, task):
        yield LiveProgress(bar, task, trainer.task, metric)


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
    with Progress(*columns, console=console) as bar:
        try:
            yield bar, bar.add_task(label, total=total, completed=completed, stage="", metric="")
        except BaseException:
            bar.live.transient = True  # gone before the error is shown
            raise
