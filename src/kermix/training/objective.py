"""What one training step minimises: a cost between a batch of data and a draw of the model."""

import math

import torch
from torch import Tensor, nn

from kermix.evaluation import energy_distance, mmd_squared
from kermix.losses import MatrixLoss, ScalarLoss, SVDLoss, VectorLoss
from kermix.mixture import GaussianMixture
from kermix.models.scaled import ScaledModel

from .schedules import VarianceSchedule
from .settings import Settings

__all__ = ["Objective", "cauchy_schwarz_to_points"]

LOSSES = {"svd": SVDLoss, "scalar": ScalarLoss, "vector": VectorLoss, "matrix": MatrixLoss}


def cauchy_schwarz_to_points(
    mixture: GaussianMixture,
    points: Tensor,  # (*B, N, d)
) -> Tensor:  # (*B,)
    r"""Half the Cauchy-Schwarz divergence from points to a mixture, up to a constant.

    .. math:: \tfrac12 \log \langle q, q \rangle - \log \tfrac1N \sum_n q(x_n)

    is the scalar cost in closed form when the variance of the data goes to zero: the term
    :math:`\langle p, p \rangle`, which then grows without bound, does not depend on the mixture.
    No kernel widens either side, so the minimum is at the density itself.

    Example:
        >>> q = GaussianMixture(torch.ones(1), torch.zeros(1, 1), torch.ones(1))
        >>> cauchy_schwarz_to_points(q, torch.zeros(3, 1))
        tensor(0.2862)
    """
    batch = len(mixture.batch_shape)
    log_density = mixture.log_prob(points.movedim(-2, 0) if batch else points)  # (N, *B)
    cross = log_density.logsumexp(0) - math.log(points.shape[-2])
    return 0.5 * mixture.log_norm2() - cross


class Objective(nn.Module):
    """The loss of a step, for any model and cost.

    Args:
        model: What is trained.
        settings: What the user chose.
        variances: The schedule of the kernel's variance.
    """

    def __init__(
        self, model: ScaledModel, settings: Settings, variances: VarianceSchedule
    ) -> None:
        super().__init__()
        self.model, self.settings, self.variances = model, settings, variances

    def polishing(self, step: int) -> bool:
        """Whether this step belongs to the closed-form stage at the end."""
        return step >= self.settings.steps

    def share(self, step: int) -> float:
        """Share of the stage that is done at a step."""
        if self.polishing(step):
            return (step - self.settings.steps) / max(1, self.settings.polish or 0)
        return step / self.settings.steps

    def batch_size(self, step: int) -> int:
        """Data points that a step takes."""
        return self.settings.polish_batch if self.polishing(step) else self.settings.batch

    def forward(
        self,
        x: Tensor,  # (*B, N, d), scaled
        step: int,
        generator: torch.Generator,
    ) -> Tensor:  # (*B,)
        """The loss of one step."""
        cost, model = self.settings.cost, self.model
        polishing = self.polishing(step)
        if cost == "likelihood" or (polishing and self.settings.finish == "likelihood"):
            mixture: GaussianMixture = model.network()
            rows = x.movedim(-2, 0) if mixture.batch_shape else x
            return -mixture.log_prob(rows).mean(0)
        if polishing:
            return cauchy_schwarz_to_points(model.network(), x)
        count = self.settings.components or x.shape[-2]
        points, weights = model.draw(count, generator)
        if cost == "energy":
            return energy_distance(x, points, weights_y=weights)
        variances = self.variances.at(self.share(step))
        if cost == "mmd":
            return mmd_squared(x, points, variances, weights_y=weights)
        return LOSSES[cost](variances)(x, points, weights_y=weights)
