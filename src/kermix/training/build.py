"""From data and settings to a trainer: split, scale, schedule and network."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kermix.distributed.loss import Strategy
from kermix.errors import OptionError
from kermix.networks.generators import ConvDecoder, MLPGenerator, make_prior
from kermix.networks.mixture_networks import ContinuousMixtureNetwork, MixtureNetwork, MixtureTable
from kermix.networks.scaled import ScaledModel, Scaler
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import Trainer
from kermix.training.samples_task import RowTask
from kermix.training.schedules import VarianceSchedule, automatic_variance

__all__ = ["ROWS_TO_SPLIT", "Split", "build_model", "build_trainer", "held_out_rows", "split_rows"]

HELD_OUT_SHARE, HELD_OUT_ROWS = 0.1, 2000
ROWS_TO_SPLIT = 20  # a convention: of fewer, none are held out
NOISE = 10


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
    return 0 if rows < ROWS_TO_SPLIT else min(HELD_OUT_ROWS, int(rows * HELD_OUT_SHARE))


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
    prior = make_prior(settings.prior, NOISE)
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
    prior = make_prior(settings.prior, NOISE)
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
