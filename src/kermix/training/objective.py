"""The loss of a training step: a cost, by its name, between a batch of data and a draw.

Its kernel has a variance that narrows during training: a function of the share of training that
is done, so that there is no state to save.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

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
from kermix.distributed.loss import DistributedLoss
from kermix.distributed.processes import Ranks, shares, slice_of
from kermix.errors import MissingExtraError, VarianceError
from kermix.kernels.distances import squared_distances
from kermix.kernels.gaussian import GaussianKernel, choose_variance
from kermix.mixtures.mixture import GaussianMixture, InnerProducts, log_scalar_cost
from kermix.networks.mixture_networks import widened
from kermix.networks.scaled import ScaledModel
from kermix.settings import MatrixForm, Strategy
from kermix.training.fit_settings import FitSettings, SampleCost

__all__ = [
    "LEAST_POINTS",
    "LOSSES",
    "Objective",
    "VarianceSchedule",
    "automatic_variance",
    "cauchy_schwarz_to_points",
    "loss_of",
    "sample_loss",
]

LEAST_POINTS = 16  # drawn of a mixture in each step: a convention
LOSSES: dict[str, Callable[[list[float] | GaussianKernel], KernelLoss]] = {
    "svd": SVDLoss, "scalar": ScalarLoss, "vector": VectorLoss, "matrix": MatrixLoss,
}  # fmt: skip


@dataclass(frozen=True)
class VarianceSchedule:
    """Variances of the kernels that are averaged, from wide to narrow.

    Args:
        start: Variance at the beginning.
        end: Variance at the end; equal to `start` for a fixed one.
        factors: The kernel is an average over several variances: the scheduled variance times each
            of these factors. Several, such as (1, 10, 100), keep a balance between modes that one
            narrow kernel cannot see.
        until: Share of training at which the end is reached.

    Example:
        >>> VarianceSchedule(1.0, 0.01, factors=(1, 10)).at(0.5)
        [0.1, 1.0]
    """

    start: float
    end: float
    factors: tuple[float, ...] = (1.0, 10.0, 100.0)
    until: float = 1.0

    def __post_init__(self) -> None:
        numbers = (self.start, self.end, *self.factors)
        if not self.factors or not all(math.isfinite(v) and v > 0 for v in numbers):
            raise VarianceError(
                f"A schedule from {self.start} to {self.end} with factors {self.factors}: "
                "variances are positive and finite."
            )

    def at(self, share: float) -> list[float]:
        """The variances when this share of training, from 0 to 1, is done."""
        done = min(1.0, share / self.until)
        middle = self.start * (self.end / self.start) ** done
        return [middle * factor for factor in self.factors]


def automatic_variance(
    scaled: Tensor, generator: torch.Generator, among: int = 512, smallest: float = 1e-3
) -> tuple[float, float]:
    """Start and end of the variance, from scaled data (N, d).

    The start is the median rule. The end is half the median squared distance to the nearest
    neighbor `among` so many points, so that a batch of this size sees its neighbors in any
    dimension; not below `smallest`, the paper's variance, at which narrow modes are found already.
    """
    rows = torch.randperm(len(scaled), generator=generator, device=scaled.device)
    points = scaled[rows[:among]]
    if len(points) < 2 or not bool((points != points[0]).any()):
        return 0.5, smallest
    start = float(choose_variance(points))
    distances = squared_distances(points, points, same=True) / points.shape[1]
    distances.fill_diagonal_(math.inf)
    end = max(smallest, 0.5 * float(distances.amin(1).median()))
    return max(start, end), end


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
        total = x.shape[-2] if self.ranks is None else self.batch_size(step)
        refining = self.refining(step)
        objective = self.settings.refine_with if refining else self.settings.cost
        if "likelihood" in (objective, self.settings.cost):
            return self._likelihood(x, total)
        if refining:
            return cauchy_schwarz_to_points(self.model.network(), x, self.ranks, total)
        variances = self.variances.at(self.share(step)) if numbers is None else numbers
        in_closed_form = self.model.is_continuous and self.settings.cost in LOSSES
        if isinstance(variances, list) and in_closed_form:
            return self._continuous(x, self._drawn(total), variances, generator)
        return self._to_draw(x, total, variances, generator)

    def _to_draw(
        self,
        x: Tensor,
        total: int,
        variances: list[float] | Tensor,
        generator: torch.Generator,
    ) -> Tensor:
        """The cost between the rows of all ranks and points of the model."""
        ranks, drawn = self.ranks, [self._drawn(total)]

        def part(count: int) -> slice:
            drawn[0] = count
            return self.part(count)

        points, weights = self.model.draw(drawn[0], generator, part)
        if ranks is None:
            return self._cost(x, points, weights, variances)
        rows_x, rows_y = (shares(count, ranks.size) for count in (total, drawn[0]))
        if self.settings.cost in LOSSES:
            own = loss_of(self.settings.cost, variances, self.settings.form)
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


def sample_loss(
    cost: SampleCost,
    x: Tensor,  # (*B, N, d)
    y: Tensor,  # (*B, K, d)
    variances: list[float],
    weights_y: Tensor | None = None,  # (*B, K)
    debias: bool = False,
    form: MatrixForm | None = None,
    tolerance: float = 1e-3,
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
        tolerance: Of the SVD cost: a step's batch is a sample, whose error is far larger.

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
    svd = SVDLoss(variances, tolerance=tolerance)
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
