"""Sums of features over many points, and the moments that they are made into.

On a CPU sums are taken in pieces that stay in the processor's cache.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kermix.checks import rows_at_once
from kermix.kernels.distances import (
    DIRECT_DIFFERENCES_UP_TO,
    distances_on_cpu,
    mismatches,
    numbers_of,
)
from kermix.kernels.subsets import recognized
from kermix.sketches.features import FeatureMap, NystromFeatures

__all__ = [
    "ROUNDING",
    "FeatureSums",
    "Moments",
    "NystromSums",
    "apart",
    "both",
    "feature_sums",
    "moments_of_sums",
    "no_sums",
    "rounding_slip",
    "sample_moments",
    "sample_sums",
    "scaled_sums",
    "summed",
]

ROUNDING = 8.0  # roundings of a moment, relative to its trace: a convention
ROWS_AT_A_TIME = 16384  # a convention, on which sums depend
SMALLEST_EXPONENT = -300.0  # a convention: products of two such kernels are no subnormal numbers


class FeatureSums(NamedTuple):
    """Sums over points of what moments are made of."""

    total: Tensor  # ()  weights
    first: Tensor  # (r,)  weighted features
    second: Tensor  # (r, r)  weighted products of features
    residual: Tensor  # ()  weighted residuals of the kernel

    def plus(self, other: "FeatureSums") -> "FeatureSums":
        """The sums over both sets of points."""
        return FeatureSums(*(a + b for a, b in zip(self, other, strict=True)))

    def minus(self, other: "FeatureSums") -> "FeatureSums":
        """The sums over the points of this set that are not in the other, a part of it."""
        return FeatureSums(*(a - b for a, b in zip(self, other, strict=True)))

    def rescaled(self, log_factor: Tensor) -> "FeatureSums":
        """The sums for features that are multiplied by `exp(log_factor)`; residuals have none."""
        factor = log_factor.exp()
        return FeatureSums(
            self.total, factor * self.first, factor.square() * self.second, self.residual
        )

    def to(self, like: Tensor) -> "FeatureSums":
        """The same in another dtype or on another device."""
        return FeatureSums(*(part.to(like) for part in self))


def both(a: FeatureSums | None, b: FeatureSums | None) -> FeatureSums | None:
    """The sums over two sets of points, if those over each are known."""
    return None if a is None or b is None else a.plus(b)


def apart(feature_map: FeatureMap, points: Tensor, weights: Tensor | None) -> FeatureSums | None:
    """Sums over those points that the map was chosen from; None: not known which these are."""
    if feature_map.chosen_from is None:
        return None
    rows = recognized(feature_map.chosen_from, points)
    if not len(rows):
        return no_sums(feature_map)
    return summed(feature_map, points[rows], None if weights is None else weights[rows])


def no_sums(feature_map: FeatureMap) -> FeatureSums:
    """The sums over no points."""
    like, r = feature_map.parameters, feature_map.rank
    return FeatureSums(*(like.new_zeros(shape) for shape in ((), (r,), (r, r), ())))


def summed(feature_map: FeatureMap, points: Tensor, weights: Tensor | None) -> FeatureSums:
    """Sums over points, without a graph: the fast way where there is one."""
    over: Callable[[Tensor, Tensor | None], FeatureSums] = partial(feature_sums, feature_map)
    if isinstance(feature_map, NystromFeatures) and points.device.type == "cpu":
        over = NystromSums(feature_map)
    total = no_sums(feature_map)
    for start in range(0, len(points), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        share = None if weights is None else weights[part]
        total = total.plus(over(points[part], share))
    return total


def feature_sums(feature_map: FeatureMap, points: Tensor, weights: Tensor | None) -> FeatureSums:
    """Sums over points, all at once."""
    sums, log_scale = scaled_sums(feature_map, points, weights)
    return sums.rescaled(log_scale)


def scaled_sums(
    feature_map: FeatureMap, points: Tensor, weights: Tensor | None
) -> tuple[FeatureSums, Tensor]:
    """Sums over points, all at once and differentiable, and the logarithm of the scale."""
    features, log_scale = feature_map.scaled(points, weights)
    share = features.new_ones(len(points)) if weights is None else weights.to(features)
    weighted = features * share.unsqueeze(-1)
    held = (2 * log_scale).exp() * features.square().sum(-1)
    residual = (1 - held).clamp(min=0)
    sums = FeatureSums(
        share.sum(), weighted.sum(0), features.mT @ weighted, (share * residual).sum()
    )
    return sums, log_scale


class Moments(NamedTuple):
    """The moments of a set of samples that the costs need.

    Mean and second moment are to be multiplied by `exp(log_scale)` and `exp(2 log_scale)`.
    """

    size: float
    mean: Tensor  # (r,)
    second: Tensor  # (r, r)
    residual: Tensor | None  # ()  None where the map has no certificate
    log_scale: Tensor  # ()  a constant for differentiation
    rounding: float = 0.0  # root mean square of the errors of the features

    @property
    def held(self) -> Tensor:
        """Mean squared norm of the features, at most 1."""
        return (2 * self.log_scale).exp() * self.second.diagonal().sum()

    @property
    def plain_mean(self) -> Tensor:
        """The mean itself, which may underflow."""
        return self.log_scale.exp() * self.mean

    @property
    def plain_second(self) -> Tensor:
        """The second moment itself, which may underflow."""
        return (2 * self.log_scale).exp() * self.second

    @property
    def slack(self) -> Tensor | None:
        """The mean residual, and as much more as rounding may hide of it."""
        return None if self.residual is None else self.residual + 2 * rounding_slip(self)


def rounding_slip(x: Moments) -> float:
    """How far features, and means of them, may be from those of exact arithmetic."""
    return x.rounding + ROUNDING * torch.finfo(x.second.dtype).eps * len(x.second)


def moments_of_sums(
    feature_map: FeatureMap, count: int, sums: FeatureSums, log_scale: Tensor | None = None
) -> Moments:
    """Means from sums over `count` points, whose features have a scale taken out."""
    total, first, second, residual = sums
    left_out = residual / total if feature_map.certified else None
    scale = torch.zeros_like(total) if log_scale is None else log_scale
    return Moments(
        float(count), first / total, second / total, left_out, scale, feature_map.rounding
    )


def sample_moments(feature_map: FeatureMap, points: Tensor, weights: Tensor | None) -> Moments:
    """Moments of points, differentiable; features are computed again in the backward."""
    sums, log_scale = sample_sums(feature_map, points, weights)
    return moments_of_sums(feature_map, len(points), sums, log_scale)


def sample_sums(
    feature_map: FeatureMap, points: Tensor, weights: Tensor | None
) -> tuple[FeatureSums, Tensor]:
    """Sums that moments are made from, and the logarithm of the features' scale.

    It can be added over sets of points, of which one may be empty, if the scales agree.
    """
    if not len(points):
        # Zeros that depend on the points: all ranks of a group must take part in a backward.
        zero = points.sum().to(feature_map.parameters)
        zero = zero if weights is None else zero + weights.sum().to(zero)
        r = feature_map.rank
        nothing = FeatureSums(zero, zero.expand(r), zero.expand(r, r), zero)
        return nothing, torch.full_like(zero.detach(), torch.finfo(zero.dtype).min)
    found = []
    for start in range(0, len(points), ROWS_AT_A_TIME):
        part = slice(start, start + ROWS_AT_A_TIME)
        share = None if weights is None else weights[part]
        found.append(
            checkpoint(scaled_sums, feature_map, points[part], share, use_reentrant=False)
        )
    log_scale = torch.stack([scale for _, scale in found]).amax(0)
    total = found[0][0].rescaled(found[0][1] - log_scale)
    for sums, scale in found[1:]:
        total = total.plus(sums.rescaled(scale - log_scale))
    return total, log_scale


class NystromSums:
    """The same for Nystrom features on a CPU, several times faster.

    Buffers are used again for each piece, and the triangular solve is a product with the inverse
    factor. All in float64: in float32 it would take half the time and lose the digits that make
    the residual a bound.
    """

    def __init__(self, features: NystromFeatures) -> None:
        terms = features.kernel.cross_terms(features.dimension)
        self._features, self._scale = features, features.scale
        self._rates = [float(r) for r in terms.rates]
        self._log_weights = [float(w) for w in terms.log_weights]
        self._landmarks, self._layout = features.landmarks, terms.layout
        self._whitening = features.whitening
        rows = max(256, rows_at_once(features.rank, 2**18, most=4096))  # features of two megabytes
        self._buffers = [
            torch.empty(rows, features.rank, dtype=self._whitening.dtype) for _ in range(3)
        ]

    @property
    def rows(self) -> int:
        """How many points are done at a time."""
        return len(self._buffers[0])

    @torch.no_grad()
    def __call__(self, points: Tensor, weights: Tensor | None = None) -> FeatureSums:
        """Sums over raw rows of shape (N, d)."""
        sums, rows = no_sums(self._features), self.rows
        for start in range(0, len(points), rows):
            share = None if weights is None else weights[start : start + rows].to(self._landmarks)
            sums = sums.plus(self._piece(points[start : start + rows], share))
        return sums

    @torch.no_grad()
    def of_groups(
        self, points: Tensor, groups: Tensor
    ) -> tuple[Tensor, Tensor]:  # (N, d), (B, s) -> (B, r), (B, r, r)
        """Sums of features and of their products over each group, given by indices of its rows."""
        together = self.rows // groups.shape[1]
        if together < 1:
            sums = [self(points[rows]) for rows in groups]
            return torch.stack([s.first for s in sums]), torch.stack([s.second for s in sums])
        firsts, seconds = [], []
        for rows in groups.split(together):
            features = self.features(points[rows.flatten()]).unflatten(0, rows.shape)
            firsts.append(features.sum(1))
            seconds.append(features.mT @ features)
        return torch.cat(firsts), torch.cat(seconds)

    def features(self, points: Tensor) -> Tensor:  # (N, d) -> (N, r)
        """Features of as many raw rows as a buffer has rows, valid until the next call."""
        n = len(points)
        points = points.to(self._landmarks) if self._scale is None else self._scale(points)
        kernel = self._kernel(points)
        return torch.mm(kernel, self._whitening, out=self._buffers[1][:n])

    def _piece(self, points: Tensor, weights: Tensor | None) -> FeatureSums:
        features = self.features(points)
        residual = (1 - torch.linalg.vecdot(features, features)).clamp_(min=0)
        if weights is None:
            total, first = features.new_tensor(float(len(points))), features.sum(0)
        else:
            total, first = weights.sum(), weights @ features
            residual *= weights
            features *= weights.sqrt().unsqueeze(-1)
        return FeatureSums(total, first, _products(features), residual.sum())

    def _kernel(self, points: Tensor) -> Tensor:  # (N, d) -> (N, r)
        """Kernels with the landmarks; what would be subnormal is a normal number near zero."""
        n = len(points)
        distances, other = self._buffers[0][:n], self._buffers[2][:n]
        self._distances(points, distances, other)
        if len(self._rates) == 1:
            return distances.mul_(-self._rates[0]).clamp_(SMALLEST_EXPONENT, 0.0).exp_()
        total = torch.zeros_like(distances)
        for rate, log_weight in zip(self._rates, self._log_weights, strict=True):
            torch.mul(distances, -rate, out=other)
            total += other.add_(log_weight).clamp_(SMALLEST_EXPONENT, 0.0).exp_()
        return total

    def _distances(self, points: Tensor, out: Tensor, other: Tensor) -> None:
        if self._layout is not None:
            numbers = numbers_of(points, self._layout)
            if numbers.shape[1]:
                self._of_numbers(numbers, numbers_of(self._landmarks, self._layout), out, other)
            else:
                out.zero_()
            out += mismatches(points, self._landmarks, self._layout)
            return
        self._of_numbers(points, self._landmarks, out, other)

    def _of_numbers(self, points: Tensor, landmarks: Tensor, out: Tensor, other: Tensor) -> None:
        if points.shape[1] <= DIRECT_DIFFERENCES_UP_TO:
            for k, (x, z) in enumerate(zip(points.mT, landmarks.mT, strict=True)):
                torch.sub(x.unsqueeze(-1), z, out=other if k else out)
                if k:
                    out.addcmul_(other, other)
                else:
                    out.square_()
            return
        distances_on_cpu(points, landmarks, out=out)


def _products(features: Tensor) -> Tensor:  # (N, r) -> (r, r)
    """`features.T @ features`, with half the work where one thread does it.

    NumPy takes a symmetric rank-k update for `a.T @ a` and PyTorch does not; but NumPy's library
    has threads of its own, which would wait for a core that PyTorch's idle threads hold.
    """
    if torch.get_num_threads() > 1:
        return features.mT @ features
    array = features.numpy()
    return torch.from_numpy(array.T @ array)
