"""Baseline measures of samples: mode coverage, distances between samples, likelihood.

The distances are differentiable and take weights and batches, so they are training costs too
(the baselines that the four costs are compared with).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.checks import (
    check_pair,
    full_precision,
    normalized_weights,
)
from kermix.costs.points import PointStatistics
from kermix.errors import MissingExtraError
from kermix.kernels.distances import squared_distances
from kermix.kernels.gaussian import GaussianKernel, Variance, VarianceRule

__all__ = ["ModeCoverage", "energy_distance", "mmd_squared", "mode_coverage", "wasserstein2"]


@dataclass(frozen=True)
class ModeCoverage:
    """The numbers of the PacGAN protocol.

    Attributes:
        modes: Number of modes with at least one good sample.
        total: Number of modes.
        high_quality: Share of samples within three standard deviations of the nearest mode.
        kl: Kullback-Leibler divergence, in nats, of the good samples' modes from uniform.
    """

    modes: int
    total: int
    high_quality: float
    kl: float


def mode_coverage(samples: Tensor, centers: Tensor, deviation: float) -> ModeCoverage:
    """Count the modes that samples (n, d) cover.

    Example:
        >>> mode_coverage(torch.tensor([[0.0], [0.1], [9.0]]), torch.tensor([[0.0], [5.0]]), 0.1)
        ModeCoverage(modes=1, total=2, high_quality=0.6666666865348816, kl=0.6931471824645996)
    """
    check_pair(samples, centers, ("samples", "centers"))
    samples, centers = samples.float(), centers.to(samples.device).float()
    distance, nearest = squared_distances(samples, centers).min(1)
    good = distance < (3 * deviation) ** 2
    counts = torch.bincount(nearest[good], minlength=len(centers)).float()
    share = counts / counts.sum().clamp(min=1)
    kl = torch.special.xlogy(share, share * len(centers)).sum()
    return ModeCoverage(
        int((counts > 0).sum()), len(centers), float(good.float().mean()), float(kl)
    )


def energy_distance(
    x: Tensor,  # (*B, N, d)
    y: Tensor,  # (*B, K, d)
    *,
    weights_y: Tensor | None = None,  # (*B, K)
) -> Tensor:  # (*B,)
    r"""Energy distance $2 E|x - y| - E|x - x'| - E|y - y'|$, of all pairs.

    Example:
        >>> energy_distance(torch.zeros(3, 1), torch.ones(2, 1))
        tensor(2.)
    """
    check_pair(x, y)
    a = x.new_full((x.shape[-2],), 1 / x.shape[-2])
    if weights_y is None:
        b = y.new_full((y.shape[-2],), 1 / y.shape[-2])
    else:
        b = normalized_weights("weights_y", weights_y, y)

    def mean(p: Tensor, q: Tensor, left: Tensor, right: Tensor, same: bool) -> Tensor:
        squares = squared_distances(p, q, same)
        # The root has no derivative at zero: points that coincide neither pull nor push.
        apart = squares != 0
        distances = torch.where(apart, squares, 1.0).sqrt() * apart
        return (left * (distances @ right.unsqueeze(-1)).squeeze(-1)).sum(-1)

    with full_precision(x.device):
        cross = mean(y, x, b, a, False)
        return 2 * cross - mean(x, x, a, a, True) - mean(y, y, b, b, True)


def mmd_squared(
    x: Tensor,  # (*B, N, d)
    y: Tensor,  # (*B, K, d)
    v: GaussianKernel | Variance | VarianceRule,
    *,
    weights_y: Tensor | None = None,  # (*B, K)
) -> Tensor:  # (*B,)
    r"""Squared maximum mean discrepancy, of all pairs: $\|p - q\|^2$ of the smoothed sets.

    Example:
        >>> mmd_squared(torch.zeros(3, 1), torch.zeros(2, 1), 1.0)
        tensor(0.)
    """
    sides = PointStatistics(x, y, v, (None, weights_y))
    with full_precision(sides.device):
        own = sides.log_norm_x().exp() + sides.log_norm_y().exp()
        return sides.in_callers_dtype(own - 2 * sides.log_cross().exp())


def wasserstein2(x: Tensor, y: Tensor) -> float:
    """Wasserstein-2 distance between two samples, exact: a linear program, by POT.

    Without POT, samples of equal size are assigned to each other by SciPy, which is the same.

    Example:
        >>> wasserstein2(torch.zeros(3, 2), torch.ones(3, 2)) # doctest: +SKIP
        1.4142135623730951
    """
    check_pair(x, y)
    squares = squared_distances(x.detach().double(), y.detach().double()).cpu().numpy()
    try:
        import ot
    except ImportError:
        if len(x) != len(y):
            raise MissingExtraError(
                "The Wasserstein distance of unequal samples needs POT: "
                "pip install 'kermix[bench]'."
            ) from None
        from scipy.optimize import linear_sum_assignment

        rows, columns = linear_sum_assignment(squares)
        return float(squares[rows, columns].mean()) ** 0.5
    return float(ot.emd2([], [], squares, numItermax=10**7)) ** 0.5
