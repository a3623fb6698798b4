"""A space of images with the scale of the data in it: where one loss is taken."""

import math

import torch
from torch import Tensor, nn

from kermix.models.images.spaces import Space
from kermix.training.image_settings import ImageSettings
from kermix.training.sample_losses import SampleCost, sample_loss
from kermix.training.schedules import VarianceSchedule, automatic_variance

__all__ = ["View"]


class View(nn.Module):
    """A space together with the scale of the data in it and the schedule of its variance.

    Args:
        space: From images to vectors.
        classes: Of each class some rows (n, d) of the data in this space.
        settings: What the user chose.
        parts: Pieces of equal length that a vector falls into, each compared by itself.
    """

    def __init__(
        self, space: Space, classes: list[Tensor], settings: ImageSettings, parts: int = 1
    ) -> None:
        super().__init__()
        self.space, self.parts = space, parts
        self.debias, self.form = settings.debias, settings.form
        centred = torch.cat([own - own.mean(0) for own in classes])
        self.scale = float(centred.square().mean().sqrt().clamp(min=1e-6))
        generator = torch.Generator(centred.device).manual_seed(settings.seed)
        found = [
            automatic_variance(part / self.scale, generator)
            for own in classes
            for part in own.chunk(parts, 1)
        ]
        start, end = (math.exp(sum(math.log(f[i]) for f in found) / len(found)) for i in (0, 1))
        end *= settings.variance
        start = max(start, end)
        if settings.kernel_variance is not None:
            start = end = settings.kernel_variance / self.scale**2
        self.variances = VarianceSchedule(start, end, settings.variance_factors)

    def loss(
        self, cost: SampleCost, x: Tensor, y: Tensor, weights: Tensor | None, share: float
    ) -> Tensor:  # (classes, n, d) -> ()
        """The mean over classes of the loss of a cost when a share of training is done."""
        x, y = x / self.scale, y / self.scale
        if self.parts > 1:  # each part is a batch item of its own
            x, y = (z.unflatten(-1, (self.parts, -1)).movedim(-2, 1) for z in (x, y))
            weights = None if weights is None else weights.unsqueeze(1)
        variances = self.variances.at(share)
        return sample_loss(cost, x, y, variances, weights, self.debias, self.form).mean()
