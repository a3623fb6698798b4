"""What one training step minimizes: a cost between a batch of data and a draw of the model."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kermix.costs.baselines import energy_distance, mmd_squared
from kermix.costs.formulas import MatrixForm
from kermix.costs.losses import KernelLoss, MatrixLoss, ScalarLoss, SVDLoss, VectorLoss
from kermix.distributed import DistributedLoss, Ranks, Strategy, shares, slice_of
from kermix.mixtures.densities import InnerProducts, log_scalar_cost
from kermix.mixtures.mixture import GaussianMixture
from kermix.models.mixture.continuous import widened
from kermix.models.mixture.scaled import ScaledModel
from kermix.training.schedules import VarianceSchedule
from kermix.training.settings import FitSettings

__all__ = ["LOSSES", "Objective", "cauchy_schwarz_to_points", "loss_of"]

LEAST_POINTS = 16  # drawn of a mixture in each step
LOSSES: dict[str, Callable[[list[float]], KernelLoss]] = {
    "svd": SVDLoss, "scalar": ScalarLoss, "vector": VectorLoss, "matrix": MatrixLoss,
}  # fmt: skip


def loss_of(cost: str, variances: list[float], form: MatrixForm | None = None) -> KernelLoss:
    """The loss of one of the paper's costs.

    Example:
        >>> loss_of("matrix", [0.1], "logdet").form
        'logdet'
    """
    if cost == "matrix":
        return MatrixLoss(variances, form or "trace")
    return LOSSES[cost](variances)


def cauchy_schwarz_to_points(
    mixture: GaussianMixture,
    points: Tensor,  # (*B, N, d)
    ranks: Ranks | None = None,
    total: int | None = None,
) -> Tensor:  # (*B,)
    r"""Half the Cauchy-Schwarz divergence from points to a mixture, up to a constant.

    $$\tfrac12 \log \langle q, q \rangle - \log \tfrac1N \sum_n q(x_n)$$

    is the scalar cost in closed form when the variance of the data goes to zero: the term
    $\langle p, p \rangle$, which then grows without bound, does not depend on the mixture.
    No kernel widens either side, so the minimum is at the density itself.

    Args:
        mixture: The mixture, the same on all ranks.
        points: The points; with `ranks`, those of this rank.
        ranks: Processes that have points each.
        total: The number of points on all ranks.

    Example:
        >>> q = GaussianMixture(torch.ones(1), torch.zeros(1, 1), torch.ones(1))
        >>> cauchy_schwarz_to_points(q, torch.zeros(3, 1))
        tensor(0.2862)
    """
    batch = len(mixture.batch_shape)
    log_density = mixture.log_prob(points.movedim(-2, 0) if batch else points)  # (N, *B)
    total = total or points.shape[-2]
    if ranks is None:
        cross = log_density.logsumexp(0) - math.log(total)
    else:
        cross = ranks.log_sum(log_density.movedim(0, -1), None, total)
    return -0.5 * log_scalar_cost(InnerProducts(cross, mixture.log_norm2()), normalized=False)


class Objective(nn.Module):
    """The loss of a step, for any model and cost.

    Over several ranks it is the loss of the batch of all of them. Every rank draws all random
    numbers of a step and keeps its share, so the random stream, and with it the trajectory, does
    not depend on the number of ranks.

    Args:
        model: What is trained.
        settings: What the user chose.
        variances: The schedule of the kernel's variance.
        ranks: The processes that share a batch; by default this one alone.
        strategy: How the four costs are computed over ranks.
    """

    def __init__(
        self,
        model: ScaledModel,
        settings: FitSettings,
        variances: VarianceSchedule,
        ranks: Ranks | None = None,
        strategy: Strategy = "auto",
    ) -> None:
        super().__init__()
        self.model, self.settings, self.variances = model, settings, variances
        self.ranks, self.strategy = ranks, strategy

    def refining(self, step: int) -> bool:
        """Whether this step belongs to the closed-form stage at the end."""
        return step >= self.settings.steps

    def share(self, step: int) -> float:
        """Share of the stage that is done at a step."""
        if self.refining(step):
            return (step - self.settings.steps) / max(1, self.settings.refine_steps or 0)
        return step / self.settings.steps

    def batch_size(self, step: int) -> int:
        """Data points that a step takes, on all ranks together."""
        return self.settings.refine_batch_size if self.refining(step) else self.settings.batch_size

    def part(self, rows: int) -> slice:
        """Which of so many rows this rank takes."""
        if self.ranks is None:
            return slice(rows)
        return slice_of(shares(rows, self.ranks.size), self.ranks.rank)

    def forward(
        self,
        x: Tensor,  # (*B, n, d), scaled: the rows of this rank
        step: int,
        generator: torch.Generator,
    ) -> Tensor:  # (*B,)
        """The loss of one step."""
        cost, model, ranks = self.settings.cost, self.model, self.ranks
        total = x.shape[-2] if ranks is None else self.batch_size(step)
        refining = self.refining(step)
        if cost == "likelihood" or (refining and self.settings.refine_with == "likelihood"):
            mixture: GaussianMixture = model.network()
            rows = x.movedim(-2, 0) if mixture.batch_shape else x
            log_density = mixture.log_prob(rows)
            if ranks is None:
                return -log_density.mean(0)
            return -ranks.sum(log_density.sum(0)) / total
        if refining:
            return cauchy_schwarz_to_points(model.network(), x, ranks, total)
        drawn = [self.settings.components or total]
        if model.is_mixture:  # one point each of a few components would hide their spread
            drawn = [max(drawn[0], LEAST_POINTS)]

        variances = self.variances.at(self.share(step))
        if model.is_continuous and cost in LOSSES:
            return self._continuous(x, drawn[0], variances, generator)

        def part(count: int) -> slice:
            drawn[0] = count
            return self.part(count)

        points, weights = model.draw(drawn[0], generator, part)
        if ranks is not None:
            rows_x, rows_y = (shares(count, ranks.size) for count in (total, drawn[0]))
            if cost in LOSSES:
                own = loss_of(cost, variances, self.settings.form)
                loss = DistributedLoss(own, self.strategy, ranks.group)
                return loss(x, points, weights_y=weights, rows_x=rows_x, rows_y=rows_y)
            x, points = ranks.gather(x, rows_x), ranks.gather(points, rows_y)
            weights = None if weights is None else ranks.gather(weights, rows_y, dim=-1)
        if cost == "energy":
            return energy_distance(x, points, weights_y=weights)
        if cost == "mmd":
            return mmd_squared(x, points, variances, weights_y=weights)
        return loss_of(cost, variances, self.settings.form)(x, points, weights_y=weights)

    def _continuous(
        self, x: Tensor, count: int, variances: list[float], generator: torch.Generator
    ) -> Tensor:
        """The mean over variances of the cost between data and components, in closed form.

        The kernel smooths both sides, so that the model comes out with the data's own width.
        """
        mixture, dimension = self.model.components(count, generator), x.shape[-1]
        losses = [
            loss_of(self.settings.cost, [v], self.settings.form)(
                x, widened(mixture, v * dimension)
            )
            for v in variances
        ]
        return torch.stack(losses).mean(0)
