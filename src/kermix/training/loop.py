"""The training loop, on Lightning Fabric: one step, reports, checkpoints, an orderly stop."""

import importlib
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from kermix.costs.baselines import energy_distance
from kermix.distributed import Ranks, Strategy, batch_norm_over_ranks
from kermix.distributed.launch import check_ranks, is_rank
from kermix.errors import (
    MissingExtraError,
    OptionError,
    SampleError,
    TrainingError,
    VarianceError,
    WeightError,
)
from kermix.models.mixture.scaled import ScaledModel
from kermix.training.averaging import RunningAverage
from kermix.training.checkpoints import (
    last_good,
    load_checkpoint,
    optimizer_tensors,
    restore_optimizer,
    save_checkpoint,
    tensors_of,
)
from kermix.training.objective import Objective
from kermix.training.schedules import VarianceSchedule, learning_rate
from kermix.training.settings import Settings

__all__ = ["Row", "Trainer", "check_shares", "load_model", "make_fabric"]

Row: TypeAlias = dict[str, float]

REPORTS = 40  # in a whole run
HELD_OUT_FOR_ENERGY = 1000
POLISH_RATE = 0.5  # of the peak
STOPS_EVERY = 16  # steps between two looks, on a GPU, at whether any rank is to stop
# How NaN shows where values are looked at: in points, variances, weights or a factorisation.
NOT_FINITE = (SampleError, VarianceError, WeightError, torch.linalg.LinAlgError)  # type: ignore[attr-defined]


@dataclass
class Trainer:
    """A fit in progress.

    All randomness comes from the seed of the settings and everything that changes is in a
    checkpoint, so a run that was stopped and resumed ends with the same weights as one that was
    not (on the same machine).

    Over several processes the batch of a step is shared among them and the cost is that of the
    whole batch: the trajectory is that of one process, up to rounding, and a run can be resumed
    with another number of processes. Rank 0 alone looks at held-out data and writes.

    Args:
        model: What is trained. Its network may have batch axes: independent models side by side,
            each with its own data.
        train: Data in their own units, (*B, n, d).
        held_out: Data that only the reports look at, (m, d), or None.
        settings: What the user chose.
        variances: The schedule of the kernel's variance.
        device: `"auto"`, `"cpu"`, `"cuda"`, ...
        precision: A precision of Fabric's. The costs are computed in float32 in any case.
        devices: Processes on each node; if there are several in all, this one must be one of
            them, started by :func:`kermix.distributed.launch` or torchrun.
        nodes: Nodes.
        strategy: How costs are computed over ranks, see
            :class:`~kermix.distributed.DistributedLoss`.
    """

    model: ScaledModel
    train: Tensor
    held_out: Tensor | None
    settings: Settings
    variances: VarianceSchedule
    device: str = "auto"
    precision: str = "32-true"
    devices: int = 1
    nodes: int = 1
    strategy: Strategy = "auto"
    step: int = field(default=0, init=False)
    history: list[Row] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        fabric = make_fabric(self.device, self.precision, self.devices, self.nodes)
        self.settings = self.settings.for_data(self.train.shape[-2])
        self._ranks = Ranks() if fabric.world_size > 1 else None
        if self._ranks is not None:
            check_shares(self.settings, self._ranks.size)
            batch_norm_over_ranks(self.model, self._ranks, fabric.device)
        objective = Objective(
            self.model, self.settings, self.variances, self._ranks, self.strategy
        )
        betas = (0.9, 0.99) if self.settings.model == "mixture" else (0.5, 0.9)
        # Moved first: an optimizer made before would hold the parameters of another device.
        objective = objective.to(fabric.device)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=1.0, betas=betas)
        self._fabric, self._objective = fabric, objective
        self._step, self._optimizer = fabric.setup(objective, optimizer)
        self._data = self.model.scaler.scaled(self.train.to(fabric.device))
        self._held_out = None if self.held_out is None else self.held_out.to(fabric.device)
        self._generator = torch.Generator(fabric.device).manual_seed(self.settings.seed)
        self._average = RunningAverage(self.model.network, self.settings.average)

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that reports and writes."""
        return self._ranks is None or self._ranks.rank == 0

    def main_says(self, answer: Any) -> Any:
        """What the main process answers, on all ranks."""
        return answer if self._ranks is None else self._fabric.broadcast(answer)

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.settings.steps + (self.settings.polish or 0)

    @property
    def reports_every(self) -> int:
        """Steps between two looks at the model."""
        return max(1, self.total // REPORTS)

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
            folder: Where checkpoints go: `last` and `best` (by the held-out metric).
            on_step: Called with the number of each step that is done.
            on_report: Called with each new row of the history.
            should_stop: Asked after each step; a checkpoint is then written first.
        """
        losses: list[Tensor] = []
        while self.step < self.total:
            try:
                losses.append(self._one_step())
            except NOT_FINITE as error:
                raise self._failure(self.step, folder) from error
            if on_step is not None:
                on_step(self.step)
            stopping = self._stopping(should_stop)
            due = self.step % self.reports_every == 0 or self.step == self.total
            if due or stopping:
                # The only place where the host waits for the device.
                self._check_finite(torch.stack(losses), folder)
                if due and self.is_main:
                    try:
                        with self._average.in_place_of(self.model.network):
                            row = self._report(losses[-1])
                    except NOT_FINITE as error:
                        raise self._failure(self.step, folder) from error
                    if on_report is not None:
                        on_report(row)
                if folder is not None and self.is_main:
                    self.save(folder / "last.safetensors")
                    if due and row["metric"] <= min(r["metric"] for r in self.history):
                        with self._average.in_place_of(self.model.network):
                            self.save(folder / "best.safetensors")
                losses = []
            if stopping:
                return False
        self._average.copy_to(self.model.network)
        return True

    def _stopping(self, should_stop: Callable[[], bool] | None) -> bool:
        """Whether this or another rank was asked to stop before the end."""
        if self.step >= self.total:
            return False
        asked = should_stop is not None and should_stop()
        if self._ranks is None:
            return asked
        # All ranks have to agree. A GPU would have to be waited for, so it is asked less often.
        if self._data.is_cuda and self.step % STOPS_EVERY:
            return False
        return bool(self._ranks.max(torch.tensor(float(asked), device=self._data.device)))

    def _one_step(self) -> Tensor:
        share, polishing = self._objective.share(self.step), self._objective.polishing(self.step)
        rate = learning_rate(share, self.settings.peak_rate * (POLISH_RATE if polishing else 1.0))
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        x = self._batch(self._objective.batch_size(self.step))
        loss = self._step(x, self.step, self._generator)
        self._optimizer.zero_grad(set_to_none=True)
        # The sum over a batch of models gives each of them the gradient of its own loss.
        self._fabric.backward(loss.sum())
        self._optimizer.step()
        self.step += 1
        self._average.update(self.model.network, self.step)
        return loss.detach().mean()

    def _batch(self, size: int) -> Tensor:  # (*B, size, d)
        *batch, n, d = self._data.shape
        rows = torch.randint(
            n, (*batch, size), generator=self._generator, device=self._data.device
        )
        rows = rows[..., self._objective.part(size)]
        size = rows.shape[-1]
        if not batch:
            return self._data[rows]
        return self._data.gather(-2, rows.unsqueeze(-1).expand(*batch, size, d))

    def _report(self, loss: Tensor) -> Row:
        last = self.step - 1
        polishing = self._objective.polishing(last)
        row = {
            "step": float(self.step),
            "loss": float(loss),
            "variance": 0.0 if polishing else self.variances.at(self._objective.share(last))[0],
            "metric": self.metric(),
        }
        self.history.append(row)
        return row

    @torch.no_grad()
    def metric(self) -> float:
        """Held-out negative log-likelihood of a mixture; energy distance of a generator."""
        if self._held_out is None:
            return math.nan
        if self.model.is_mixture:
            return float(-self.model.log_prob(self._held_out).mean())
        generator = torch.Generator(self._data.device).manual_seed(self.settings.seed)
        held_out = self._held_out[:HELD_OUT_FOR_ENERGY]
        samples = self.model.sample(len(held_out), generator)
        scaled = self.model.scaler.scaled
        return float(energy_distance(scaled(held_out), scaled(samples)))

    def _check_finite(self, losses: Tensor, folder: Path | None) -> None:
        finite = torch.isfinite(losses)
        if bool(finite.all()):
            return
        raise self._failure(self.step - len(losses) + int((~finite).nonzero()[0]), folder)

    def _failure(self, step: int, folder: Path | None) -> TrainingError:
        variance = self.variances.at(self._objective.share(step))[0]
        return TrainingError(
            f"The loss is not finite at step {step} (cost {self.settings.cost}, variance "
            f"{variance:.3g}, learning rate peak {self.settings.peak_rate:g}). Try a larger final "
            f"variance, or a learning rate three times lower. {last_good(folder)}"
        )

    def save(self, path: Path) -> None:
        """Write everything that changes during training."""
        tensors = {f"model.{name}": t for name, t in self.model.state_dict().items()}
        tensors.update(optimizer_tensors(self._optimizer))
        tensors["generator"] = self._generator.get_state()
        tensors |= {f"average.{name}": t for name, t in self._average.tensors.items()}
        save_checkpoint(path, tensors, {"step": self.step, "history": self.history})

    def load(self, path: Path) -> None:
        """Go on from a checkpoint."""
        # Rank 0 reads: other nodes may not see its files.
        found = self.main_says(load_checkpoint(path) if self.is_main else None)
        tensors, content = found
        load_model(self.model, tensors)
        restore_optimizer(self._optimizer, tensors)
        self._generator.set_state(tensors["generator"])
        self._average.load(tensors_of("average.", tensors))
        self.step, self.history = content["step"], content["history"]


def load_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give a model the weights of a checkpoint."""
    model.load_state_dict(tensors_of("model.", tensors))


def check_shares(settings: Settings, ranks: int) -> None:
    """Every rank must have something to do at every step."""
    sizes = {"batch": settings.batch, "components": settings.components}
    if settings.polish:
        sizes["polish_batch"] = settings.polish_batch
    for name, size in sizes.items():
        if size is not None and size < ranks:
            raise OptionError(
                f"{name}={size} is shared among {ranks} processes, and one is left with nothing; "
                "use more of it, or fewer processes."
            )


def make_fabric(device: str, precision: Any, devices: int = 1, nodes: int = 1) -> Any:
    """Fabric on a device with a precision; with several processes, this one is one of them."""
    try:
        # Two packages bring the same Fabric.
        found = "lightning.fabric" if find_spec("lightning") else "lightning_fabric"
        Fabric = importlib.import_module(found).Fabric
        environments = importlib.import_module(f"{found}.plugins.environments.torchelastic")
    except ImportError:
        raise MissingExtraError("Training needs Lightning: pip install 'kermix[fit]'.") from None
    options: dict[str, Any] = {"devices": 1}
    if devices * nodes > 1:
        if not is_rank():
            raise OptionError(
                f"devices={devices} and nodes={nodes}, but this process was started alone: use "
                "kermix.distributed.launch, `kermix fit --devices`, or torchrun."
            )
        check_ranks(devices, nodes)
        options = {"devices": devices, "num_nodes": nodes, "strategy": "ddp"}
        options["plugins"] = [environments.TorchElasticEnvironment()]
    try:
        fabric = Fabric(accelerator=device, precision=precision, **options)
    except (ValueError, RuntimeError, AssertionError) as error:
        # Lightning has errors of its own, all of these kinds: unknown names, absent devices.
        raise OptionError(
            f"device={device!r} with precision={precision!r} cannot be used here: "
            f"{' '.join(str(error).split())}"
        ) from None
    if devices * nodes > 1:
        before = logging.root.manager.disable
        logging.disable(logging.INFO)  # a banner
        fabric.launch()
        logging.disable(before)
    return fabric
