"""Schedules: how the variance of the kernel and the learning rate change during training.

Both are functions of the share of training that is done, so they have no state to save.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.errors import VarianceError
from kermix.kernels.distances import squared_distances
from kermix.kernels.gaussian import choose_variance

__all__ = ["VarianceSchedule", "automatic_variance", "learning_rate"]

SMALLEST_AUTOMATIC = 1e-3
NEIGHBOURS_AMONG = 512


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


def automatic_variance(scaled: Tensor, generator: torch.Generator) -> tuple[float, float]:
    """Start and end of the variance, from scaled data (N, d).

    The start is the median rule. The end is half the median squared distance to the nearest
    neighbour among 512 points, so that a batch of this size sees its neighbors in any dimension;
    not below 0.001, the paper's variance, at which narrow modes are found already.
    """
    rows = torch.randperm(len(scaled), generator=generator, device=scaled.device)
    points = scaled[rows[:NEIGHBOURS_AMONG]]
    if len(points) < 2 or not bool((points != points[0]).any()):
        return 0.5, SMALLEST_AUTOMATIC
    start = float(choose_variance(points))
    distances = squared_distances(points, points, same=True) / points.shape[1]
    distances.fill_diagonal_(math.inf)
    end = max(SMALLEST_AUTOMATIC, 0.5 * float(distances.amin(1).median()))
    return max(start, end), end
