"""The training loop, on Lightning Fabric: steps, reports, checkpoints, an orderly stop.

Nothing else in kermix calls an optimizer. What is trained, with what batches, losses and reports,
is said by a `kermix.training.loop.Task`::

    trainer = Trainer(RowTask(model, train, held_out, settings, variances), device="auto")
    ended = trainer.run(folder=Path("run"), on_step=..., on_report=..., should_stop=...)
    trainer.load(Path("run") / "last.safetensors")      # goes on where it stopped
"""

import gc
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kermix.distributed.processes import Ranks, make_fabric
from kermix.errors import SampleError, TrainingError, VarianceError, WeightError
from kermix.graphs import StepGraph
from kermix.training.checkpoints import (
    RunningAverage,
    load_checkpoint,
    load_model,
    optimizer_tensors,
    rebuilding,
    restore_optimizer,
    save_checkpoint,
    tensors_of,
)

__all__ = ["Forward", "Row", "Task", "Trainer", "adam", "gradients_on", "learning_rate"]

Row: TypeAlias = dict[str, float]
Forward: TypeAlias = Callable[..., Any]


def adam(
    parameters: Iterable[Any],
    device: torch.device,
    kind: type[torch.optim.Adam] = torch.optim.Adam,
    **options: Any,
) -> torch.optim.Adam:
    """Adam or AdamW; on a GPU in one launch, and such that a graph can hold it.

    Args:
        parameters: Parameters, or groups of them.
        device: Where they are.
        kind: Which of the two.
        options: Of the optimizer; the learning rate is set in each step.
    """
    on_gpu = device.type == "cuda"
    options |= {"fused": True, "capturable": True} if on_gpu else {}
    return kind(parameters, lr=1.0, **options)


def learning_rate(share: float, peak: float, last: float = 0.01, warmup: float = 0.02) -> float:
    """A short linear rise to the peak, then a cosine down to `last` times the peak.

    Example:
        >>> learning_rate(0.02, 0.1), round(learning_rate(1.0, 0.1), 6)
        (0.1, 0.001)
    """
    if share < warmup:
        return peak * max(share / warmup, 0.05)
    fall = (share - warmup) / (1 - warmup)
    return peak * (last + (1 - last) * 0.5 * (1 + math.cos(math.pi * fall)))


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
        step_numbers: The `numbers` of the step that is computed, as a tensor on the device,
            while a step is captured as a CUDA graph. Set by the loop.
    """

    model: nn.Module
    generator: torch.Generator
    module: nn.Module | None = None
    average: RunningAverage | None = None
    first_step: int = 0
    ended: bool = False
    keeps_best: bool = False
    precision: str = "32-true"
    step_numbers: Tensor | None = None  # (L,)

    @property
    @abstractmethod
    def total(self) -> int:
        """The number of the last step: where a training ends."""

    @property
    def reports_every(self) -> int:
        """Steps between two reports, a fortieth of all; there is one at the end in any case."""
        return max(1, self.total // 40)

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

    def kind(self, step: int) -> Hashable | None:
        """The kind of a step: on a GPU one graph stands for all of a kind.

        Steps of a kind differ in their `batch`, which is a nest of tensors on the device,
        in the learning rate and in `numbers`. Their `loss` has no other use for the
        number of the step, waits for no value, changes nothing but what a checkpoint holds, and
        does so in place. With None, a step is computed by itself.
        """
        return None

    def numbers(self, step: int) -> list[float]:
        """Numbers of a step for the loss, in `step_numbers`; always equally many."""
        return []

    @abstractmethod
    def failure(self, step: int) -> str:
        """The message when the loss of a step is not finite: where, and what may help."""

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
        """Tensors to write at the end, as `model.safetensors`, if any."""
        return None

    def content(self) -> dict[str, Any]:
        """Further entries of a checkpoint, as JSON."""
        return {}

    def extras(self) -> dict[str, Tensor]:
        """Further tensors that change during training, by name."""
        return {}

    def restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """Take `extras` from a checkpoint, or refuse it, before the rest is loaded."""
        return


TaskT = TypeVar("TaskT", bound=Task)

LAST, BEST, MODEL = "last.safetensors", "best.safetensors", "model.safetensors"
# How NaN shows where values are looked at: in points, variances, weights or a factorization.
NOT_FINITE = (SampleError, VarianceError, WeightError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


@contextmanager
def gradients_on() -> Iterator[None]:
    """Where a fit trains also if its caller has turned gradients off; a decorator, too.

    In `torch.no_grad()` nothing would be learned, without a word. In `torch.inference_mode()` a
    model must be made within this, too: what is made outside is never trained.

    Example:
        >>> with torch.no_grad(), gradients_on():
        ...     torch.is_grad_enabled()
        True
    """
    with torch.inference_mode(mode=False), torch.enable_grad():
        yield


@dataclass
class Trainer(Generic[TaskT]):
    """A training in progress.

    Everything that changes is in a checkpoint, so a training that was stopped and resumed ends
    with the same weights as one that was not (on the same machine).

    Over several processes the batch of a step is shared among them and the loss is that of the
    whole batch: the trajectory is that of one process, up to rounding, and a run can be resumed
    with another number of processes. Rank 0 alone looks at held-out data and writes.

    Args:
        task: What is trained.
        device: `"auto"`, `"cpu"`, `"cuda"`, `"cuda:1"`, ...
        precision: A precision of Fabric's, or `"auto"`: bfloat16 with float32 weights on a GPU
            and float32 elsewhere. None takes the task's. Costs are computed in float32 in any
            case.
        devices: Processes on each node; if there are several in all, this one must be one of
            them, started by `kermix.distributed.launch` or torchrun.
        nodes: Nodes.
        last: Name of the checkpoint to go on from, in the folder of a run.
        graphs: Whether steps that allow for it are replayed as CUDA graphs on a GPU, see
            `kermix.training.loop.Task.kind`; otherwise each is launched from Python.
    """

    task: TaskT
    device: str = "auto"
    precision: str | None = None
    devices: int = 1
    nodes: int = 1
    last: str = LAST
    graphs: bool = True
    step: int = field(default=0, init=False)
    history: list[Row] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        fabric = make_fabric(
            self.device, self.precision or self.task.precision, self.devices, self.nodes
        )
        self._fabric = fabric
        self._ranks = Ranks() if fabric.world_size > 1 else None
        optimizers = self.task.prepare(fabric, self._ranks)
        self._forward: Any = None
        self._optimizers: list[Any]
        if self.task.module is None:
            self._optimizers = [fabric.setup_optimizers(optimizer) for optimizer in optimizers]
        else:
            self._forward, *self._optimizers = fabric.setup(self.task.module, *optimizers)
        self._average = self.task.average or RunningAverage(self.task.model, 0)
        self.step = self.task.first_step
        alone_on_gpu = fabric.device.type == "cuda" and self._ranks is None
        self._replays = self.graphs and alone_on_gpu and all(map(_capturable, optimizers))
        self._captured: dict[Hashable, StepGraph] = {}

    @property
    def model(self) -> Any:
        """The module that is trained."""
        return self.task.model

    @property
    def total(self) -> int:
        """The number of the last step."""
        return self.task.total

    @property
    def reports_every(self) -> int:
        """Steps between two looks at the model."""
        return self.task.reports_every

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that reports and writes."""
        return self._ranks is None or self._ranks.rank == 0

    def broadcast_from_main(self, answer: Any) -> Any:
        """The main process's answer, on all ranks."""
        return answer if self._ranks is None else self._fabric.broadcast(answer)

    def leave_group(self) -> None:
        """End this rank's part in the group of processes, when no step is left to train."""
        if self._ranks is None:
            return
        # What wraps the module must not be the last to hold the group: it would wait for the
        # group's thread without letting that thread have the interpreter.
        self._forward = None
        gc.collect()
        torch.distributed.destroy_process_group()

    @gradients_on()
    def run(
        self,
        *,
        folder: Path | None = None,
        on_step: Callable[[int], None] | None = None,
        on_report: Callable[[Row], None] | None = None,
        should_stop: Callable[[], bool] | None = None,
    ) -> bool:
        """Train to the end, or until `should_stop` says so; returns whether the end was reached.

        Args:
            folder: Where checkpoints go: `last`, and `best` or `model` where the task has them.
            on_step: Called with the number of each step that is done.
            on_report: Called with each new row of the history, before it is saved: what was
                reported and not saved is reported again when the training is resumed.
            should_stop: Asked after each step; a checkpoint is then written first.
        """
        losses: list[Tensor] = []
        kept = None if folder is None else folder / self.last
        self.task.begin()
        while self.step < self.total and not self.task.ended:
            losses.append(self._finite_step(kept))
            if on_step is not None:
                on_step(self.step)
            stopping = self._stopping(should_stop)
            due = self.step % self.reports_every == 0 or self.step == self.total
            if due or stopping:
                # The only place where the host waits for the device.
                self._check_finite(torch.stack(losses), kept)
                if due:
                    self._end_period(losses[-1], kept, on_report)
                self._save_all(folder, due)
                losses = []
            if stopping:
                return False
        self.end(folder)
        return True

    def end(self, folder: Path | None = None) -> None:
        """Keep what is best so far as the result, at the last step or before it.

        Args:
            folder: Where the model goes, where the task has one to write.
        """
        self.task.finish()
        if folder is not None and self.is_main:
            final = self.task.final()
            if final is not None:
                self._write(folder / MODEL, _named(final))

    def _finite_step(self, kept: Path | None) -> Tensor:
        try:
            return self._one_step()
        except NOT_FINITE as error:
            raise self._failure(self.step, kept) from error

    def _one_step(self) -> Tensor:
        step, task = self.step, self.task
        kind = task.kind(step) if self._replays else None
        if kind is None:
            rate, share = task.learning_rate(step), self._average.share(step + 1)
            loss = self._computed(lambda: task.batch(step), rate, share)
        else:
            batch = task.batch(step)
            shapes = tuple((t.shape, t.dtype) for t in pytree.tree_leaves(batch))
            graph = self._captured.get((kind, shapes))
            if graph is None:
                graph = self._captured[kind, shapes] = self._capture(batch)
            loss = graph.replay(batch, step)
        self.step += 1
        return loss

    def _computed(
        self, batch: Callable[[], Any], rate: float | Tensor, share: float | Tensor
    ) -> Tensor:
        """Take a step with a learning rate and a share of the running average."""
        task = self.task
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group.get("share", 1.0)
            optimizer.zero_grad(set_to_none=True)
        # What Fabric has not wrapped does not know of its precision.
        with nullcontext() if self._forward is not None else self._fabric.autocast():
            loss = task.loss(self._forward, batch(), self.step)
            if loss.requires_grad:
                # The sum over a batch of models gives each the gradient of its own loss.
                self._fabric.backward(loss.sum())
        for optimizer in self._optimizers:
            if _has_gradients(optimizer):  # a step in closed form has none
                optimizer.step()
        self._average.move(share)
        return loss.detach().mean()

    def _capture(self, batch: Any) -> StepGraph:
        """The step to come, and all others of its kind, as a graph."""
        task = self.task

        def compute(batch: Any, numbers: Tensor) -> Tensor:
            task.step_numbers = numbers[2:]
            return self._computed(lambda: batch, numbers[0].float(), numbers[1])

        def numbers(ahead: int) -> list[float]:
            step = min(ahead, self.total - 1)
            return [task.learning_rate(step), self._average.share(step + 1), *task.numbers(step)]

        try:
            device = self._fabric.device
            return StepGraph(compute, numbers, batch, task.generator, device, self._changing)
        finally:
            task.step_numbers = None

    def _stopping(self, should_stop: Callable[[], bool] | None, every: int = 16) -> bool:
        """Whether this or another rank was asked to stop before the end.

        Several ranks on GPUs look at that after so many steps.
        """
        if self.step >= self.total:
            return False
        asked = should_stop is not None and should_stop()
        if self._ranks is None:
            return asked
        # All ranks have to agree. A GPU would have to be waited for, so it is asked less often.
        device = self._fabric.device
        if device.type == "cuda" and self.step % every:
            return False
        return bool(self._ranks.max(torch.tensor(float(asked), device=device)))

    def _end_period(
        self, loss: Tensor, kept: Path | None, on_report: Callable[[Row], None] | None
    ) -> None:
        if self.is_main:
            self._report(loss, kept, on_report)
        self.task.ended = self.broadcast_from_main(self.task.ended)

    def _report(
        self, loss: Tensor, kept: Path | None, on_report: Callable[[Row], None] | None
    ) -> None:
        try:
            with self._average.in_place():
                row = self.task.report(self.step, loss)
        except NOT_FINITE as error:
            raise self._failure(self.step, kept) from error
        self.history.append(row)
        if on_report is not None:
            on_report(row)

    def _save_all(self, folder: Path | None, reported: bool) -> None:
        if folder is None or not self.is_main:
            return
        self.save(folder / self.last)
        if not reported or not self.task.keeps_best:
            return
        metrics = [row["metric"] for row in self.history]
        if metrics[-1] <= min(metrics):
            with self._average.in_place():
                self.save(folder / BEST)

    def _check_finite(self, losses: Tensor, kept: Path | None) -> None:
        finite = torch.isfinite(losses)
        if not bool(finite.all()):
            first = self.step - len(losses) + int((~finite).nonzero()[0])
            raise self._failure(first, kept)

    def _failure(self, step: int, kept: Path | None) -> TrainingError:
        left = "There is no checkpoint yet."
        if kept is None:
            left = "No checkpoint was asked for."
        elif kept.exists():
            left = f"The last good checkpoint is {kept}."
        return TrainingError(f"{self.task.failure(step)} {left}")

    def save(self, path: Path) -> None:
        """Write everything that changes during training."""
        self._write(path, {**self._changing(), "generator": self.task.generator.get_state()})

    def _changing(self) -> dict[str, Tensor]:
        """All tensors that change, but for the state of random numbers."""
        tensors = _named(self.model)
        for number, optimizer in enumerate(self._optimizers):
            tensors |= {f"{number}.{n}": t for n, t in optimizer_tensors(optimizer).items()}
        tensors |= {f"average.{name}": t for name, t in self._average.tensors.items()}
        return tensors | self.task.extras()

    def _write(self, path: Path, tensors: dict[str, Tensor]) -> None:
        # JSON has no NaN.
        rows = [{k: None if v != v else v for k, v in row.items()} for row in self.history]
        content = {"step": self.step, "history": rows, **self.task.content()}
        save_checkpoint(path, tensors, content)

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        # Rank 0 reads: other nodes may not see its files.
        found = self.broadcast_from_main(load_checkpoint(path) if self.is_main else None)
        tensors, content = found
        with rebuilding(path, tensors):
            self._restore(path, tensors, content)

    def _restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        self._captured = {}  # graphs of an optimizer's state that is replaced
        self.task.restore(path, tensors, content)
        load_model(self.model, tensors)
        for number, optimizer in enumerate(self._optimizers):
            restore_optimizer(optimizer, tensors_of(f"{number}.", tensors))
        self.task.generator.set_state(tensors["generator"])
        self._average.load(tensors_of("average.", tensors))
        self.step = int(content["step"])
        self.history = [
            {k: math.nan if v is None else v for k, v in row.items()}
            for row in content.get("history", [])
        ]


def _named(model: nn.Module) -> dict[str, Tensor]:
    return {f"model.{name}": tensor for name, tensor in model.state_dict().items()}


def _has_gradients(optimizer: Any) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _capturable(optimizer: torch.optim.Optimizer) -> bool:
    return all(group.get("capturable", False) for group in optimizer.param_groups)
