"""What the loop has to know about a training: batches, losses, reports and checkpoints."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from kermix.distributed import Ranks
from kermix.training.averaging import RunningAverage

__all__ = ["Forward", "Row", "Task"]

Row: TypeAlias = dict[str, float]
Forward: TypeAlias = Callable[..., Any]


class Task(ABC):
    """One kind of training, for the loop of `kermix.training.loop.Trainer` to run.

    The loop calls `prepare` once, and then for each step `learning_rate`,
    `batch` and `loss`. Steps are counted from 0. All random numbers of a step come
    from `generator`, so that a training that was stopped goes on as if it had not been.

    Attributes:
        model: What is trained. A checkpoint holds its tensors as `model.*`.
        generator: The source of the steps' random numbers. A checkpoint holds its state.
        module: What Fabric wraps, to run it in the chosen precision and over all processes;
            with None, `batch` and `loss` as a whole run in that precision.
        average: The running mean of weights that the loop updates and reports look at, if any.
        first_step: Where a training begins.
        ended: Whether a training is over before its last step. Set by `report`.
        keeps_best: Whether the checkpoint with the least `metric` of the reports is kept, too.
        precision: The precision where none is asked for.
    """

    model: nn.Module
    generator: torch.Generator
    module: nn.Module | None = None
    average: RunningAverage | None = None
    first_step: int = 0
    ended: bool = False
    keeps_best: bool = False
    precision: str = "32-true"

    @property
    @abstractmethod
    def total(self) -> int:
        """The number of the last step: where a training ends."""

    @property
    @abstractmethod
    def reports_every(self) -> int:
        """Steps between two reports; there is one at the end in any case."""

    @abstractmethod
    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Bring model and data to the device of a Fabric; returns the optimizers.

        A group of parameters may name its `share` of the learning rate.
        """

    @abstractmethod
    def learning_rate(self, step: int) -> float:
        """The learning rate of a step."""

    @abstractmethod
    def batch(self, step: int) -> Any:
        """The data of a step."""

    @abstractmethod
    def loss(self, forward: Forward | None, batch: Any, step: int) -> Tensor:
        """The loss of a step; of several models side by side, one for each.

        Where it has no graph, the task has sent gradients back by itself, with the Fabric's
        `backward`, or has changed the model in closed form.

        Args:
            forward: The wrapped `module`.
            batch: What `batch` returned.
            step: Which step it is.
        """

    @abstractmethod
    def failure(self, step: int) -> str:
        """What to say when the loss of a step is not finite: where, and what may help."""

    def begin(self) -> None:
        """Called when a training begins or goes on."""
        return

    def report(self, step: int, loss: Tensor) -> Row:
        """A row of the history, when so many steps are done; the loss is that of the last."""
        return {"step": float(step), "loss": float(loss)}

    def finish(self) -> None:
        """Called at the end."""
        return

    def final(self) -> nn.Module | None:
        """What to write at the end, as `model.safetensors`, if anything."""
        return None

    def content(self) -> dict[str, Any]:
        """What else a checkpoint says, as JSON."""
        return {}

    def extras(self) -> dict[str, Tensor]:
        """What else changes during training, by name."""
        return {}

    def restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """Take `extras` from a checkpoint, or refuse it, before the rest is loaded."""
        return
