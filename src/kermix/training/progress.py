"""The live line of a fit: rate, remaining time, cost and held-out metric."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from kermix.errors import MissingExtraError

__all__ = ["progress_bar", "stage_of"]


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
    with Progress(*columns, console=console) as bar:
        try:
            yield bar, bar.add_task(label, total=total, completed=completed, stage="", metric="")
        except BaseException:
            bar.live.transient = True  # gone before the error is shown
            raise
