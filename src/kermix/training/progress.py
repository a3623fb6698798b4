"""The live line of a fit: rate, remaining time, cost and held-out metric."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kermix.errors import MissingExtraError

from .loop import Row, Trainer

__all__ = ["LiveProgress", "live_progress"]


class LiveProgress:
    """What a trainer calls to show where it is."""

    def __init__(self, bar: Any, task: Any, trainer: Trainer, metric: str) -> None:
        self._bar, self._task, self._trainer, self._metric = bar, task, trainer, metric

    def on_step(self, step: int) -> None:
        """Move the bar."""
        self._bar.update(self._task, completed=step)

    def on_report(self, row: Row) -> None:
        """Show the numbers of a report."""
        stage: str = self._trainer.settings.cost
        if row["variance"] == 0.0:
            stage = str(self._trainer.settings.finish)
        elif stage in ("svd", "scalar", "vector", "matrix"):
            stage = f"{stage} cost {math.exp(-row['loss']):.4f}"
        self._bar.update(self._task, stage=stage, metric=f"{self._metric} {row['metric']:.4f}")


@contextmanager
def live_progress(trainer: Trainer, metric: str, console: Any = None) -> Iterator[LiveProgress]:
    """Show a bar while a trainer runs."""
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

            return Text(f"{task.speed:.0f}/s" if task.speed else "", style="dim")

    columns = (
        TextColumn("[bold]fit[/]"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        MofNCompleteColumn(),
        Rate(""),
        TimeRemainingColumn(compact=True),
        TextColumn("[cyan]{task.fields[stage]}[/]"),
        TextColumn("[green]{task.fields[metric]}[/]"),
    )
    with Progress(*columns, console=console, transient=False) as bar:
        task = bar.add_task(
            "fit", total=trainer.total, completed=trainer.step, stage="", metric=""
        )
        yield LiveProgress(bar, task, trainer, metric)
