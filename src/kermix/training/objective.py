"""The loss of a training step: a cost, by its name, between a batch of data and a draw."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from kermix.costs.baselines import energy_distance, mmd_squared
from kermix.costs.losses import (
    DebiasedLoss,
    KernelLoss,
    MatrixLoss,
    ScalarLoss,
    SVDLoss,
    VectorLoss,
)
from kermix.distributed.loss import DistributedLoss, Strategy
from kermix.distributed.ranks import Ranks, shares, slice_of
from kermix.errors import MissingExtraError
from kermix.kernels.gaussian import GaussianKernel
from kermix.mixtures.mixture import GaussianMixture, InnerProducts, log_scalar_cost
from kermix.networks.mixture_networks import widened
from kermix.networks.scaled import ScaledModel
from kermix.settings import MatrixForm
from kermix.training.fit_settings import FitSettings, SampleCost
from kermix.training.schedules import VarianceSchedule

__all__ = [
    "LEAST_POINTS",
    "LOSSES",
    "Objective",
    "cauchy_schwarz_to_points",
    "loss_of",
    "sample_loss",
]

LEAST_POINTS = 16  # drawn of a mixture in each step
LOSSES: dict[str, Callable[[list[float] | GaussianKernel], KernelLoss]] = {
    "svd": SVDLoss, "scalar": ScalarLoss, "vector": VectorLoss, "matrix": MatrixLoss,
}  # fmt: skip


def loss_of(
    cost: str, variances: list[float] | Tensor, form: MatrixForm | None = None
) -> KernelLoss:
    """The loss of one of the paper's costs, with the average of kernels of these variances.

    Example:
        >>> loss_of("matrix", [0.1], "logdet").form
        'logdet'
    """
    kernel = GaussianKernel(variances) if isinstance(variances, Tensor) else variances
    if cost == "matrix":
        return MatrixLoss(kernel, form or "trace")
    return LOSSES[cost](kernel)


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
        numbers: Tensor | None = None,  # (L,)
    ) -> Tensor:  # (*B,)
        """The loss of one step.

        Args:
            x: Data.
            step: Which step it is.
            generator: The source of random numbers.
            numbers: The variances of the step, if they are on the device.
        """
        cost, model, ranks = self.settings.cost, self.model, self.ranks
        total = x.shape[-2] if ranks is None else self.batch_size(step)
        refining = self.refining(step)
        if cost == "likelihood" or (refining and self.settings.refine_with == "likelihood"):
            return self._likelihood(x, total)
        if refining:
            return cauchy_schwarz_to_points(model.network(), x, ranks, total)
        drawn = [self._drawn(total)]
        variances = self.variances.at(self.share(step)) if numbers is None else numbers
        if isinstance(variances, list) and model.is_continuous and cost in LOSSES:
            return self._continuous(x, drawn[0], variances, generator)

        def part(count: int) -> slice:
            drawn[0] = count
            return self.part(count)

        points, weights = model.draw(drawn[0], generator, part)
        if ranks is None:
            return self._cost(x, points, weights, variances)
        rows_x, rows_y = (shares(count, ranks.size) for count in (total, drawn[0]))
        if cost in LOSSES:
            own = loss_of(cost, variances, self.settings.form)
            loss = DistributedLoss(own, self.strategy, ranks.group)
            return loss(x, points, weights_y=weights, rows_x=rows_x, rows_y=rows_y)
        if weights is not None:
            weights = ranks.gather(weights, rows_y, dim=-1)
        x, points = ranks.gather(x, rows_x), ranks.gather(points, rows_y)
        return self._cost(x, points, weights, variances)

    def _drawn(self, total: int) -> int:
        """How many points of the model a step takes."""
        count = self.settings.components or total
        # One point each of a few components would hide their spread.
        return max(count, LEAST_POINTS) if self.model.is_mixture else count

    def _likelihood(self, x: Tensor, total: int) -> Tensor:
        """Minus the mean log-density of the rows of all ranks."""
        mixture: GaussianMixture = self.model.network()
        rows = x.movedim(-2, 0) if mixture.batch_shape else x
        log_density = mixture.log_prob(rows)
        if self.ranks is None:
            return -log_density.mean(0)
        return -self.ranks.sum(log_density.sum(0)) / total

    def _cost(
        self, x: Tensor, points: Tensor, weights: Tensor | None, variances: list[float] | Tensor
    ) -> Tensor:
        """The cost of one set of points against the data."""
        cost = self.settings.cost
        if cost == "energy":
            return energy_distance(x, points, weights_y=weights)
        if cost == "mmd":
            kernel = GaussianKernel(variances)
            return mmd_squared(x, points, kernel, weights_y=weights)
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


TOLERANCE = 1e-3  # of the SVD cost: a step's batch is a sample, whose error is far larger


def sample_loss(
    cost: SampleCost,
    x: Tensor,  # (*B, N, d)
    y: Tensor,  # (*B, K, d)
    variances: list[float],
    weights_y: Tensor | None = None,  # (*B, K)
    debias: bool = False,
    form: MatrixForm | None = None,
) -> Tensor:  # (*B,)
    """The loss of one of the paper's costs, or of a baseline.

    Args:
        cost: Which one. `"sinkhorn"` is geomloss's divergence, for points of equal weight; its
            blur is the width of the narrowest kernel.
        x: Data.
        y: Points of a model.
        variances: Of the kernels.
        weights_y: Weights of the points.
        debias: Whether to take the `kermix.DebiasedLoss` of a cost of the paper, for
            points without weights.
        form: Of the matrix-matrix cost; None is its trace.

    Example:
        >>> sample_loss("energy", torch.zeros(3, 1), torch.ones(2, 1), [1.0])
        tensor(2.)
    """
    if cost == "energy":
        return energy_distance(x, y, weights_y=weights_y)
    if cost == "mmd":
        return mmd_squared(x, y, variances, weights_y=weights_y)
    if cost == "sinkhorn":
        return _sinkhorn(x, y, math.sqrt(min(variances) * x.shape[-1]))
    svd = SVDLoss(variances, tolerance=TOLERANCE)
    loss = svd if cost == "svd" else loss_of(cost, variances, form)
    if debias and weights_y is None:
        return DebiasedLoss(loss)(x, y)
    return loss(x, y, weights_y=weights_y)


def _sinkhorn(x: Tensor, y: Tensor, blur: float) -> Tensor:
    try:
        from geomloss import SamplesLoss
    except ImportError:
        raise MissingExtraError("cost='sinkhorn' needs geomloss: 'kermix[bench]'.") from None
    batch = x.shape[:-2]
    flat = [z.reshape(-1, *z.shape[-2:]).contiguous() for z in (y, x)]
    losses = SamplesLoss("sinkhorn", p=2, blur=blur, backend="tensorized")(*flat)
    return losses.reshape(batch) / x.shape[-1]
