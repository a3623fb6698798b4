"""Sums over parts of two sets: error bars by leaving parts out, and what equal sets would give."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.sketches.accumulation import FeatureSums
from kermix.sketches.features import FeatureMap
from kermix.sketches.moments import Moments
from kermix.sketches.sketch import Sketch, moments_of_sums

__all__ = ["Jackknife", "PartedPair", "jackknife", "moments_of_parts", "needed_rows"]

PARTS = 10
MOST, MOST_ROWS = 1e9, 1e9  # a distance of zero is never known to a tenth of itself


class Jackknife(NamedTuple):
    """What values with one part left out tell of the value of all samples."""

    error: float  # one standard error
    bias: float  # how much infinitely many samples would change the value, to first order


def jackknife(whole: float, without: list[float]) -> Jackknife:
    """From the value of all samples and those without each part.

    Example:
        >>> jackknife(2.0, [1.5, 2.5]).error
        0.5
    """
    values = torch.tensor(without, dtype=torch.float64)
    parts = len(values)
    error = ((parts - 1) / parts * (values - values.mean()).square().sum()).sqrt()
    return Jackknife(float(error), float((parts - 1) * (values.mean() - whole)))


def needed_rows(rows: int, wanted: float, error: float, bias: float = 0.0) -> int:
    """Samples for which standard error and bias are both as small as wanted, to two digits.

    Example:
        >>> needed_rows(1000, 0.01, 0.02), needed_rows(1000, 0.01, 0.001, bias=0.03)
        (4000, 3000)
    """
    if not wanted > 0:
        return rows
    times = max(min(error / wanted, MOST) ** 2, min(abs(bias) / wanted, MOST))
    return int(float(f"{min(max(1.0, rows * times), MOST_ROWS):.2g}"))


class PartedPair:
    """Sums of features over ten random parts of each of two sets of samples.

    Args:
        features: The feature map.
        x: Samples, shape (N, d).
        y: Samples, shape (M, d).
        seed: Of the parts.
    """

    def __init__(self, features: FeatureMap, x: Tensor, y: Tensor, seed: int) -> None:
        self.features = features
        generator = torch.Generator().manual_seed(seed)
        self.parts = [_parted(features, s, generator) for s in (x, y)]
        self._generator = generator

    @property
    def whole(self) -> tuple[Moments, Moments]:
        """Moments of both sets."""
        return self._moments(self.parts[0]), self._moments(self.parts[1])

    def without_each(self) -> list[tuple[Moments, Moments]]:
        """Moments of both sets without one part of each."""
        fewest = min(len(p) for p in self.parts)
        return [
            (self._without(0, k), self._without(1, k)) for k in range(fewest)
        ]  # fmt: skip

    def mixed(self, times: int) -> list[tuple[Moments, Moments]]:
        """Moments of two sets that have half of the parts of each: what equal sets would give.

        Were parts drawn from both at random, a set with more parts of one would show a part of
        the difference that there is.
        """
        found = []
        for _ in range(times):
            sides: tuple[list[Sketch], list[Sketch]] = [], []
            for k, parts in enumerate(self.parts):
                order = torch.randperm(len(parts), generator=self._generator).tolist()
                half = (len(parts) + k) // 2  # of odd numbers, the larger half once on each side
                sides[0].extend(parts[i] for i in order[:half])
                sides[1].extend(parts[i] for i in order[half:])
            found.append((self._moments(sides[0]), self._moments(sides[1])))
        return found

    def error_of(self, statistic: Callable[[Moments, Moments], float]) -> Jackknife:
        """Standard error and bias of a function of both moments."""
        return jackknife(
            statistic(*self.whole), [statistic(*pair) for pair in self.without_each()]
        )

    def _without(self, side: int, left_out: int) -> Moments:
        return self._moments([p for k, p in enumerate(self.parts[side]) if k != left_out])

    def _moments(self, parts: list[Sketch]) -> Moments:
        return _added(self.features, parts)


def moments_of_parts(
    features: FeatureMap, points: Tensor, seed: int
) -> tuple[Moments, list[Moments]]:
    """Moments of one set of samples, and without each of ten random parts."""
    parts = _parted(features, points, torch.Generator().manual_seed(seed))
    without = [_added(features, parts[:k] + parts[k + 1 :]) for k in range(len(parts))]
    return _added(features, parts), without


def _added(features: FeatureMap, parts: list[Sketch]) -> Moments:
    total: FeatureSums = parts[0].sums
    for part in parts[1:]:
        total = total.plus(part.sums)
    return moments_of_sums(features, sum(p.count for p in parts), total)


def _parted(features: FeatureMap, points: Tensor, generator: torch.Generator) -> list[Sketch]:
    order = torch.randperm(len(points), generator=generator)
    parts = min(PARTS, len(points))
    return [Sketch(features).update(points[part]) for part in order.tensor_split(parts)]
