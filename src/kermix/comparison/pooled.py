"""Features of the pooled sample, and the quadratic forms by which two halves of it differ."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from kermix.kernels.gaussian import GaussianKernel, KernelTerms
from kermix.kernels.others import PointKernel, kernel_matrix
from kermix.kernels.subsets import symmetric_subset
from kermix.sketches.features import NystromFeatures
from kermix.sketches.kernel_features import KernelFeatures

__all__ = [
    "PooledFeatures",
    "Tile",
    "bures_form",
    "bures_witness",
    "matrix_form",
    "pooled_features",
    "quadratic_form",
]

RANK = 300
EXACT_UP_TO = 1500
LANDMARKS = 500
TOLERANCE = 1e-5
NODE_SPACING = 1.0

Tile: TypeAlias = tuple[slice, slice, Tensor]


@dataclass(frozen=True)
class PooledFeatures:
    r"""Features with $K \approx \Phi \Phi^\top$, uncorrelated over the pooled sample."""

    features: Tensor  # (N, r)
    moments: Tensor  # (r,), their mean squares, rising
    anchors: Tensor  # (A, d)
    basis: Tensor  # (A, r): features are kernels with the anchors times this
    terms: KernelTerms | PointKernel

    def at(self, points: Tensor) -> Tensor:  # (M, d) -> (M, r)
        """The features of other points."""
        return kernel_matrix(points, self.anchors, self.terms, points.dtype) @ self.basis

    def leading(self, count: int) -> "PooledFeatures":
        """The features of the largest moments alone."""
        return replace(
            self,
            features=self.features[:, -count:],
            moments=self.moments[-count:],
            basis=self.basis[:, -count:],
        )

    def divided(self, unit: float) -> "PooledFeatures":
        """The features of the kernel divided by a number, such as its mean diagonal."""
        root = unit**0.5
        return replace(
            self,
            features=self.features / root,
            moments=self.moments / unit,
            basis=self.basis / root,
        )

    def whitened(self, ridge: float | None) -> "PooledFeatures":
        r"""The same features divided by $\sqrt{\lambda_i + \epsilon}$; None leaves them."""
        if ridge is None:
            return self
        scale = self.moments + ridge
        return replace(
            self,
            features=self.features * scale.rsqrt(),
            moments=self.moments / scale,
            basis=self.basis * scale.rsqrt(),
        )


def pooled_features(
    points: Tensor,  # (N, d)
    kernel: GaussianKernel | PointKernel,
    weights: Tensor | None,  # (N,)
    generator: torch.Generator,
) -> tuple[PooledFeatures, str]:
    """Leading features of the pooled sample, and how they were found.

    Up to 1500 points, eigenvectors of the Gram matrix; beyond, a Nystrom map on 500 of them, as
    good as random and whatever their order. At most 300 features are kept, and none whose moment
    is below 1e-5 of the largest.
    """
    n = len(points)
    terms = kernel.cross_terms(points.shape[-1]) if isinstance(kernel, GaussianKernel) else kernel
    share = (
        points.new_full((n,), 1 / n) if weights is None else (weights / weights.sum()).to(points)
    )
    if n <= EXACT_UP_TO:
        roots = share.sqrt()
        matrix = kernel_matrix(points, points, terms, points.dtype) * roots[:, None] * roots
        moments, vectors = torch.linalg.eigh(matrix)
        keep = _kept(moments)
        moments, vectors = moments[keep], vectors[:, keep]
        inverse = torch.where(roots > 0, 1 / roots, 0.0)
        method = f"{len(moments)} eigenvectors"
        features = vectors * moments.sqrt() * inverse[:, None]
        basis = vectors * moments.rsqrt() * roots[:, None]
        return PooledFeatures(features, moments, points, basis, terms), method
    seed = int(torch.randint(2**62, (), generator=generator))
    landmarks = points[symmetric_subset(points, LANDMARKS, seed)]
    if isinstance(kernel, GaussianKernel):
        found: NystromFeatures | KernelFeatures = NystromFeatures(landmarks, _symmetric(kernel))
    else:
        found = KernelFeatures(landmarks, kernel)
    features = found(points)
    moments, rotation = torch.linalg.eigh(features.T @ (features * share[:, None]))
    keep = _kept(moments)
    method = f"{int(keep.sum())} Nystrom features of {LANDMARKS} landmarks"
    basis = found.whitening @ rotation[:, keep]
    features = features @ rotation[:, keep]
    return PooledFeatures(features, moments[keep], landmarks, basis, terms), method


def _symmetric(kernel: GaussianKernel) -> GaussianKernel:
    """The kernel of equal variances that is the cross kernel of this one."""
    if kernel.symmetric:
        return kernel
    means = [(float(p) + float(q)) / 2 for p, q in zip(kernel.v_p, kernel.v_q, strict=True)]
    return GaussianKernel(means, per_dimension=kernel.per_dimension)


def _kept(moments: Tensor) -> Tensor:
    keep = moments > TOLERANCE * moments[-1]
    keep[:-RANK] = False
    return keep


def matrix_form(pooled: PooledFeatures, rows: slice, columns: slice) -> Tensor:
    r"""Squared entries of $\Phi \Phi^\top$: the Hilbert-Schmidt form of second moments."""
    return (pooled.features[rows] @ pooled.features[columns].T).square()


def bures_form(pooled: PooledFeatures, rows: slice, columns: slice) -> Tensor:
    r"""The Bures metric at the pooled second moment, as a kernel between points.

    $$H_{kl} = \sum_{ij} \frac{\phi_{ki} \phi_{kj} \phi_{li} \phi_{lj}}
        {\lambda_i + \lambda_j} = \int_0^\infty \Big( \sum_i \phi_{ki} e^{-t \lambda_i} \phi_{li}
        \Big)^2 dt,$$

    the integral by the trapezoidal rule in $\log t$: some twenty matrix products instead
    of all pairs of features.
    """
    lowest, highest = (2 * float(m) for m in (pooled.moments[0], pooled.moments[-1]))
    start, stop = -math.log(highest) - 5, -math.log(lowest) + 2
    count = math.ceil((stop - start) / NODE_SPACING) + 1
    step = (stop - start) / (count - 1)
    first, second = pooled.features[rows], pooled.features[columns].T
    total = first.new_zeros(len(first), second.shape[1])
    for k in range(count):
        t = math.exp(start + k * step)
        damped = first * torch.exp(-t * pooled.moments)
        total.addcmul_(product := damped @ second, product, value=step * t)
    return total


def bures_witness(
    pooled: PooledFeatures,
    points: Tensor,  # (M, d)
    difference: Tensor,  # (N,)
) -> Tensor:  # (M,)
    r"""Where two halves of the pooled sample differ: the derivative of the Bures form.

    $$w(z) = \sum_{ij} \phi_i(z) \frac{D_{ij}}{\lambda_i + \lambda_j} \phi_j(z),$$

    with `D` the difference of second moments; positive where the first half has more mass.
    """
    moment = pooled.features.T @ (pooled.features * difference[:, None])
    sums = pooled.moments[:, None] + pooled.moments
    features = pooled.at(points)
    return ((features @ (moment / sums)) * features).sum(1)


def quadratic_form(
    signed: Tensor,  # (P, N)
    tiles: Iterator[Tile],
) -> tuple[Tensor, Tensor]:  # (P,), ()
    """`z^T H z` for each row z of `signed`, from tiles of a symmetric H, and the size of its sum.

    What is within rounding of zero is zero. The size is the sum of all terms without their signs,
    for a typical `z`: rounding errors are relative to it, and not to the result.
    """
    typical = signed.square().mean(0).sqrt()
    total, size = signed.new_zeros(len(signed)), signed.new_zeros(())
    for rows, columns, tile in tiles:
        times = 1 if rows == columns else 2
        total += times * ((signed[:, columns] @ tile.T) * signed[:, rows]).sum(1)
        size += times * (typical[rows] @ (tile.abs() @ typical[columns]))
    return torch.where(total.abs() <= 4 * torch.finfo(total.dtype).eps * size, 0.0, total), size
