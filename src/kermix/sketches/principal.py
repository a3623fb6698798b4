"""Features that are uncorrelated over a sample, and features at two scales: those of all tests.

Landmarks are chosen by the values of the rows alone, so that features of pooled samples do not
depend on labels.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import GaussianKernel, KernelTerms, mixed_kernel, variance_grid
from kermix.kernels.others import PointKernel, kernel_matrix
from kermix.kernels.subsets import symmetric_subset
from kermix.sketches.features import NystromFeatures, nystrom_features
from kermix.sketches.kernel_features import KernelFeatures

__all__ = ["CenteredBasis", "PrincipalFeatures", "features_at_two_scales", "principal_features"]

# Reasoned, no record.
RANK, EXACT_UP_TO, LANDMARKS = 300, 1500, 500
TOLERANCE = 1e-5  # of the largest moment, from which on a feature is kept
NEGLIGIBLE = 1e-10  # of the largest eigenvalue, below which one is rounding
MEAN_RESIDUAL = 1e-4  # with which landmarks at two scales are enough


@dataclass(frozen=True)
class PrincipalFeatures:
    r"""Features with $K \approx \Phi \Phi^\top$, uncorrelated over the points they come from."""

    features: Tensor  # (N, r)
    moments: Tensor  # (r,), their mean squares, rising
    landmarks: Tensor  # (L, d)
    basis: Tensor  # (L, r): features are kernels with the landmarks times this
    terms: KernelTerms | PointKernel

    def at(self, points: Tensor) -> Tensor:  # (M, d) -> (M, r)
        """The features of other points."""
        return kernel_matrix(points, self.landmarks, self.terms, points.dtype) @ self.basis

    def divided(self, unit: float) -> "PrincipalFeatures":
        """The features of the kernel divided by a number, such as its mean diagonal."""
        return self._scaled(self.moments.new_tensor(unit))

    def whitened(self, ridge: float | None) -> "PrincipalFeatures":
        r"""The same features divided by $\sqrt{\lambda_i + \epsilon}$; None leaves them."""
        return self if ridge is None else self._scaled(self.moments + ridge)

    def _scaled(self, squares: Tensor) -> "PrincipalFeatures":
        by = squares.rsqrt()
        return replace(
            self,
            features=self.features * by,
            moments=self.moments / squares,
            basis=self.basis * by,
        )


def principal_features(
    points: Tensor,  # (N, d)
    kernel: GaussianKernel | PointKernel,
    shares: Tensor | None,  # (N,)
    generator: torch.Generator,
) -> tuple[PrincipalFeatures, str]:
    """Leading features of weighted points, and how they were found.

    Up to 1500 points, eigenvectors of the Gram matrix; beyond, a Nystrom map on 500 of them, as
    good as random and whatever their order. At most 300 features are kept, and none whose moment
    is below 1e-5 of the largest.

    Args:
        points: Of both samples.
        kernel: Of which the features are; of unequal variances, the cross kernel.
        shares: Weights of the points, whose sum is 1; None: all alike.
        generator: Of the choice of landmarks.
    """
    n = len(points)
    terms = kernel.cross_terms(points.shape[-1]) if isinstance(kernel, GaussianKernel) else kernel
    shares = points.new_full((n,), 1 / n) if shares is None else shares.to(points)
    if n <= EXACT_UP_TO:
        roots = shares.sqrt()
        matrix = kernel_matrix(points, points, terms, points.dtype) * roots[:, None] * roots
        moments, vectors = torch.linalg.eigh(matrix)
        keep = _kept(moments)
        moments, vectors = moments[keep], vectors[:, keep]
        inverse = torch.where(roots > 0, 1 / roots, 0.0)
        features = vectors * moments.sqrt() * inverse[:, None]
        basis = vectors * moments.rsqrt() * roots[:, None]
        method = f"{len(moments)} eigenvectors"
        return PrincipalFeatures(features, moments, points, basis, terms), method
    seed = int(torch.randint(2**62, (), generator=generator))
    landmarks = points[symmetric_subset(points, LANDMARKS, seed)]
    if isinstance(kernel, GaussianKernel):
        found: NystromFeatures | KernelFeatures = NystromFeatures(landmarks, _symmetric(kernel))
    else:
        found = KernelFeatures(landmarks, kernel)
    features = found(points)
    moments, rotation = torch.linalg.eigh(features.T @ (features * shares[:, None]))
    keep = _kept(moments)
    method = f"{int(keep.sum())} Nystrom features of {LANDMARKS} landmarks"
    basis = found.whitening @ rotation[:, keep]
    features = features @ rotation[:, keep]
    return PrincipalFeatures(features, moments[keep], landmarks, basis, terms), method


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


class CenteredBasis(NamedTuple):
    """Uncorrelated features, of the largest variances first: `kernel @ basis - center`."""

    basis: Tensor  # (L, r)
    center: Tensor  # (r,)
    variances: Tensor  # (r,)

    @classmethod
    def of(cls, gram: Tensor, reference: Tensor, shares: Tensor) -> "CenteredBasis":
        """The features over weighted points.

        Args:
            gram: The kernel between landmarks, (L, L).
            reference: The kernel of the points with the landmarks, (S, L).
            shares: Weights of the points, (S,), whose sum is 1.
        """
        values, vectors = torch.linalg.eigh(gram)
        keep = values > NEGLIGIBLE * values[-1]
        whitening = vectors[:, keep] * values[keep].rsqrt()
        features = reference @ whitening
        center = shares @ features
        weighted = (features - center) * shares.sqrt()[:, None]
        variances, rotation = torch.linalg.eigh(weighted.mT @ weighted)
        rotation = rotation.flip(1)
        return cls(whitening @ rotation, center @ rotation, variances.flip(0).clamp(min=0))


def features_at_two_scales(
    points: Tensor,  # (N, d)
    layout: Layout | None,
    rank: int,
    candidates: int,
    among: Tensor | None = None,  # (M, d)
) -> tuple[NystromFeatures, ...]:
    """Features of two Gaussian kernels, one for fine and one for coarse structure.

    Args:
        points: By which the variances are found.
        layout: Which columns are codes, if any are.
        rank: Most landmarks of each.
        candidates: Rows that these are chosen among, drawn at random.
        among: From these rows, if not from the points.
    """
    grid = variance_grid(points, 4, layout)
    among = points if among is None else among
    return tuple(
        nystrom_features(
            among, mixed_kernel(points, layout, v), rank, MEAN_RESIDUAL, candidates=candidates
        )
        for v in sorted({grid[len(grid) // 4], grid[-1]})
    )
