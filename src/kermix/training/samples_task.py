"""The training of a model of rows: a cost first, then steps that sharpen a mixture.

From data and settings to a trainer: rows held out, the scale, the schedule and the network.
"""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from kermix.costs.baselines import energy_distance
from kermix.distributed.processes import Ranks
from kermix.errors import OptionError
from kermix.networks.generators import ConvDecoder, MLPGenerator, make_prior
from kermix.networks.mixture_networks import ContinuousMixtureNetwork, MixtureNetwork, MixtureTable
from kermix.networks.scaled import ScaledModel, Scaler
from kermix.settings import Strategy
from kermix.training.checkpoints import RunningAverage
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import Forward, Row, Task, Trainer, adam, learning_rate
from kermix.training.objective import (
    LEAST_POINTS,
    Objective,
    VarianceSchedule,
    automatic_variance,
)

__all__ = [
    "RowTask",
    "Split",
    "build_model",
    "build_trainer",
    "check_shares",
    "held_out_rows",
    "split_rows",
]


class RowTask(Task):
    """A fit to rows.

    Args:
        model: What is trained. Its network may have batch axes: independent models side by side,
            each with its own data.
        train: Data in their own units, (*B, n, d).
        held_out: Data that only the reports look at, (m, d), or None.
        settings: What the user chose.
        variances: The schedule of the kernel's variance.
        strategy: How costs are computed over ranks, see
            `kermix.distributed.loss.DistributedLoss`.
    """

    model: ScaledModel
    keeps_best = True

    def __init__(
        self,
        model: ScaledModel,
        train: Tensor,
        held_out: Tensor | None,
        settings: FitSettings,
        variances: VarianceSchedule,
        strategy: Strategy = "auto",
    ) -> None:
        self.model, self.variances, self.strategy = model, variances, strategy
        self.settings = settings.for_data(train.shape[-2])
        self._train, self._held_out = train, held_out

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Scale the data, and share a batch among the ranks."""
        device = fabric.device
        if ranks is not None:
            check_shares(self.settings, ranks.size)
            if self.model.is_continuous:
                raise OptionError(
                    "model='continuous' can only be trained by one process: omit devices."
                )
            self._share_batch_norm(ranks, device)
        objective = Objective(self.model, self.settings, self.variances, ranks, self.strategy)
        # Moved first: an optimizer made before would hold the parameters of another device.
        self._objective = self.module = objective.to(device)
        self._data = self.model.scaler.scaled(self._train.to(device))
        self._held_out = None if self._held_out is None else self._held_out.to(device)
        self.generator = torch.Generator(device).manual_seed(self.settings.seed)
        self.average = RunningAverage(self.model.network, self.settings.average)
        betas = (0.9, 0.99) if self.settings.model == "mixture" else (0.5, 0.9)
        return [adam(self.model.parameters(), device, betas=betas)]

    def _share_batch_norm(self, ranks: Ranks, device: torch.device) -> None:
        """Let layers take the statistics of the batch over all ranks, which torch does on GPUs."""
        kind = nn.modules.batchnorm._BatchNorm
        if ranks.size == 1 or not any(isinstance(m, kind) for m in self.model.modules()):
            return
        if device.type != "cuda":
            raise OptionError(
                f"model={self.settings.model!r} has batch normalization, which only GPUs share "
                "among processes: omit devices, or choose model='mixture' or 'network'."
            )
        nn.SyncBatchNorm.convert_sync_batchnorm(self.model, ranks.group)

    @property
    def total(self) -> int:
        """Steps with the cost and refinement steps."""
        return self.settings.steps + (self.settings.refine_steps or 0)

    def learning_rate(self, step: int) -> float:
        """One rise and fall in each stage, half as high in the second."""
        peak = self.settings.peak_rate * (0.5 if self._objective.refining(step) else 1.0)
        return learning_rate(self._objective.share(step), peak)

    def batch(self, step: int) -> Tensor:  # (*B, size, d)
        """Rows at random, those of this rank."""
        *batch, n, d = self._data.shape
        size = self._objective.batch_size(step)
        rows = torch.randint(n, (*batch, size), generator=self.generator, device=self._data.device)
        rows = rows[..., self._objective.part(size)]
        if not batch:
            return self._data[rows]
        return self._data.gather(-2, rows.unsqueeze(-1).expand(*batch, rows.shape[-1], d))

    def loss(self, forward: Forward | None, batch: Tensor, step: int) -> Tensor:  # (*B,)
        """The cost, or what the second stage optimizes."""
        assert forward is not None
        loss: Tensor = forward(batch, step, self.generator, self.step_numbers)
        return loss

    def kind(self, step: int) -> Hashable | None:
        """The stage, unless the cost is found by an SVD, or Gaussians are widened by a number."""
        settings, refining = self.settings, self._objective.refining(step)
        if refining or settings.cost == "likelihood":
            return "refining"
        if self.model.is_continuous or settings.form == "logdet":
            return None
        smaller = min(settings.batch_size, max(settings.components or 0, LEAST_POINTS))
        return None if settings.cost == "svd" and smaller < 2 else "cost"

    def numbers(self, step: int) -> list[float]:
        """The variances of the kernel."""
        return self.variances.at(self._objective.share(step))

    def report(self, step: int, loss: Tensor) -> Row:
        """Step, loss, variance of the kernel (0 in the second stage) and held-out metric."""
        objective, last = self._objective, step - 1
        variance = self.variances.at(objective.share(last))[0]
        return {
            "step": float(step),
            "loss": float(loss),
            "variance": 0.0 if objective.refining(last) else variance,
            "metric": self.metric(),
        }

    def finish(self) -> None:
        """The averaged weights are the model."""
        assert self.average is not None
        self.average.copy_to(self.model.network)

    @torch.no_grad()
    def metric(self, most: int = 1000) -> float:
        """Held-out negative log-likelihood of a mixture; energy distance of a generator.

        Of a generator, with so many rows at most.
        """
        if self._held_out is None:
            return math.nan
        if self.model.is_mixture:
            return float(-self.model.log_prob(self._held_out).mean())
        generator = torch.Generator(self._data.device).manual_seed(self.settings.seed)
        held_out = self._held_out[:most]
        samples = self.model.sample(len(held_out), generator)
        scaled = self.model.scaler.scaled
        return float(energy_distance(scaled(held_out), scaled(samples)))

    def failure(self, step: int) -> str:
        """Costs of narrow kernels and fast steps are what fails."""
        variance = self.variances.at(self._objective.share(step))[0]
        return (
            f"The loss is not finite at step {step} (cost {self.settings.cost}, variance "
            f"{variance:.3g}, learning rate peak {self.settings.peak_rate:g}). Try a larger final "
            "variance, or a learning rate three times lower."
        )


def check_shares(settings: FitSettings, ranks: int) -> None:
    """Every rank must have something to do at every step."""
    sizes = {"batch_size": settings.batch_size, "components": settings.components}
    if settings.refine_steps:
        sizes["refine_batch_size"] = settings.refine_batch_size
    for name, size in sizes.items():
        if size is not None and size < ranks:
            raise OptionError(
                f"{name}={size} is shared among {ranks} processes, leaving one with nothing; "
                "increase it, or use fewer processes."
            )


@dataclass(frozen=True)
class Split:
    """Rows to train with, and rows to look at; the same ones where there are too few to split."""

    train: Tensor
    held_out: Tensor

    @property
    def apart(self) -> bool:
        """Whether the rows to look at are others than those to train with."""
        return self.held_out is not self.train


def held_out_rows(rows: int) -> int:
    """A tenth, at most 2000; none where there are fewer than 20."""
    return 0 if rows < 20 else min(2000, int(rows * 0.1))


def split_rows(values: Tensor, seed: int) -> Split:
    """Hold out a tenth of the rows, at most 2000, at random."""
    held_out = held_out_rows(len(values))
    if not held_out:
        return Split(values, values)
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    return Split(values[order[held_out:]], values[order[:held_out]])


def build_model(
    train: Tensor,  # (*B, n, d)
    settings: FitSettings,
    image: tuple[int, int, int] | None = None,
) -> tuple[ScaledModel, VarianceSchedule]:
    """The untrained model of the data, and how the variance will change."""
    settings = settings.for_data(train.shape[-2])
    generator = torch.Generator().manual_seed(settings.seed)
    absolute = settings.kernel_variance
    scaler = Scaler(train, common=image is not None or absolute is not None)
    scaled = scaler.scaled(train)
    start, end = automatic_variance(scaled.reshape(-1, scaled.shape[-1]), generator)
    end = settings.variance or end
    start = settings.start_variance or max(start, end)
    if absolute is not None:
        start = end = _in_scaled_units(absolute, scaler)
    variances = VarianceSchedule(start, end, settings.variance_factors)
    network = _network(scaled, settings, image, generator)
    prior = make_prior(settings.prior)
    return ScaledModel(network, scaler, prior, end), variances


def _in_scaled_units(variance: float, scaler: Scaler) -> float:
    if scaler.scale.ndim > 2:
        raise OptionError("kernel_variance is for one set of rows; this is a batch of sets.")
    return variance / float(scaler.scale[0, 0]) ** 2  # one scale for all columns


def _network(
    scaled: Tensor,
    settings: FitSettings,
    image: tuple[int, int, int] | None,
    generator: torch.Generator,
) -> nn.Module:
    *batch, rows, dimension = scaled.shape
    components = settings.components or rows
    if settings.model == "mixture":
        return MixtureTable(
            dimension,
            components,
            settings.covariance_type,
            tuple(batch),
            generator=generator,
        )
    if batch:
        raise OptionError(
            f"model={settings.model!r} does not support batches of models; use 'mixture'."
        )
    prior = make_prior(settings.prior)
    if settings.model == "network":
        return MixtureNetwork(
            dimension, prior, components, settings.covariance_type, generator=generator
        )
    if settings.model == "continuous":
        return ContinuousMixtureNetwork(
            dimension, prior, settings.covariance_type, generator=generator
        )
    if settings.model == "generator":
        return MLPGenerator(prior.dimension, dimension, generator=generator)
    if image is None or image[1] != image[2]:
        raise OptionError(
            "model='conv' generates square images, but the data are not square images."
        )
    return ConvDecoder(prior.dimension, image[1], image[0], generator=generator)


def build_trainer(
    split: Split,
    settings: FitSettings,
    image: tuple[int, int, int] | None = None,
    *,
    device: str = "auto",
    precision: str = "32-true",
    devices: int = 1,
    nodes: int = 1,
    strategy: Strategy = "auto",
) -> Trainer[RowTask]:
    """A trainer at its first step."""
    model, variances = build_model(split.train, settings, image)
    task = RowTask(model, split.train, split.held_out, settings, variances, strategy)
    return Trainer(task, device=device, precision=precision, devices=devices, nodes=nodes)
