"""Features of any kernel: of landmarks, uncorrelated over a sample, and those of all tests.

A kernel other than the Gaussian, such as the cosine and the polynomial, is normalized to
$k(x, x) = 1$, so that what the features leave out of it is known as it is for the Gaussian, and
sketches of them add up and have certificates.

Landmarks of tests are chosen by the values of the rows alone, so that features of pooled samples
do not depend on labels.
"""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from kermix.checks import (
    check_count,
    check_samples,
    check_seed,
    solve_dtype,
)
from kermix.errors import KernelError, ShapeError
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import GaussianKernel, KernelTerms, mixed_kernel, variance_grid
from kermix.kernels.others import (
    CosineKernel,
    NormalizedKernel,
    PointKernel,
    PolynomialKernel,
    as_point_kernel,
    kernel_matrix,
)
from kermix.kernels.subsets import (
    row_keys,
    symmetric_subset,
)
from kermix.sketches.features import (
    CANDIDATES_PER_LANDMARK,
    ColumnScale,
    NeverSmall,
    NystromFeatures,
    OfLandmarks,
    landmark_factor,
    nystrom_features,
    random_pivots,
)

__all__ = [
    "KernelFeatures",
    "PrincipalFeatures",
    "described_kernel",
    "features_at_two_scales",
    "kernel_features",
    "kernel_of",
    "principal_features",
    "unit_kernel",
]


@dataclass(frozen=True, eq=False)
class KernelFeatures(NeverSmall, OfLandmarks):
    r"""Nystrom features $\phi(x) = L^{-1} k(Z, x)$ of a normalized kernel.

    Args:
        landmarks: The points Z, shape (rank, d).
        kernel: With ones on its diagonal, as `unit_kernel` makes it.
        chosen_from: As in `kermix.sketches.features.NystromFeatures`.
    """

    landmarks: Tensor  # (r, d)
    kernel: PointKernel
    chosen_from: Tensor | None = field(default=None, repr=False)  # (K,)
    kind: ClassVar[str] = "kernel"
    certified: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_samples("landmarks", self.landmarks)
        points = self.landmarks.detach().to(solve_dtype(self.landmarks.device))
        object.__setattr__(self, "landmarks", points)
        object.__setattr__(self, "_factor", landmark_factor(self.kernel.gram(points, points)))

    @property
    def scale(self) -> ColumnScale | None:
        """None: rows are used as they are."""
        return None

    def __call__(self, points: Tensor) -> Tensor:  # (N, d) -> (N, r)
        """Features of rows, computed in float64."""
        return self.kernel.gram(points.to(self.landmarks), self.landmarks) @ self.whitening

    @property
    def rounding(self) -> float:
        """Bound of the root mean square error of features by rounding."""
        largest = float(torch.linalg.matrix_norm(self.whitening))
        eps = torch.finfo(self.landmarks.dtype).eps
        return float(self.rank**0.5 * largest * 8 * self.dimension**0.5 * eps)


def kernel_features(
    x: Tensor,  # (N, d)
    kernel: Any,
    rank: int,
    tolerance: float | None = None,
    candidates: int | None = None,
    seed: int = 0,
) -> KernelFeatures:
    r"""Choose landmarks for a kernel other than the Gaussian, normalized to unit diagonal.

    For the cosine kernel in at most `rank` dimensions, the landmarks are the unit vectors and the
    features are $x / |x|$, which are exact for all points.

    Args:
        x: Points like those that will be sketched.
        kernel: As in the costs, such as `kermix.CosineKernel`.
        rank: Maximum number of landmarks.
        tolerance: Stop when the mean residual over the candidates is below this.
        candidates: Number of points of `x` to choose landmarks from.
        seed: Seed of the draws.

    Example:
        >>> x = torch.tensor([[3.0, 4.0], [1.0, 0.0]], dtype=torch.float64)
        >>> kernel_features(x, km.CosineKernel(), rank=10)(x)[0].round(decimals=6)
        tensor([0.6000, 0.8000], dtype=torch.float64)
    """
    check_samples("x", x)
    if x.ndim != 2:
        raise ShapeError(f"x has shape {tuple(x.shape)}; landmarks are chosen among (N, d).")
    check_count("rank", rank)
    check_seed(seed)
    points = x.detach().to(solve_dtype(x.device))
    chosen = unit_kernel(kernel, points)
    if isinstance(_inner(chosen), CosineKernel) and x.shape[1] <= rank:
        eye = torch.eye(x.shape[1], dtype=points.dtype, device=points.device)
        return KernelFeatures(eye, chosen, torch.empty(0, dtype=torch.int32))
    generator = torch.Generator().manual_seed(seed)
    wanted = CANDIDATES_PER_LANDMARK * rank if candidates is None else candidates
    if wanted < len(points):
        points = points[torch.randperm(len(points), generator=generator)[:wanted].to(x.device)]
    at = random_pivots(points, chosen.gram, min(rank, len(points)), tolerance, generator)
    return KernelFeatures(points[at], chosen, row_keys(points).unique())


def unit_kernel(kernel: Any, x: Tensor) -> PointKernel:
    """Make a kernel with ones on its diagonal of one that a user gave; its scale is from `x`."""
    found = as_point_kernel(kernel).fitted(x)
    return found if isinstance(found, NormalizedKernel) else NormalizedKernel(found)


def _inner(kernel: PointKernel) -> PointKernel:
    return kernel.kernel if isinstance(kernel, NormalizedKernel) else kernel


def described_kernel(kernel: PointKernel) -> dict[str, Any]:
    """The cosine and the polynomial kernel in words, for a file; others cannot be written."""
    inner = _inner(kernel)
    if isinstance(inner, CosineKernel):
        return {"name": "cosine"}
    if isinstance(inner, PolynomialKernel):
        return {
            "name": "polynomial",
            "degree": int(inner.degree),
            "constant": float(inner.constant),
            "per_dimension": inner.per_dimension,
        }
    raise KernelError(
        f"A sketch with {inner} cannot be saved: only cosine and polynomial kernels can."
    )


def kernel_of(words: dict[str, Any]) -> PointKernel:
    """The kernel that was described."""
    given = dict(words)
    if given.pop("name") == "cosine":
        return NormalizedKernel(CosineKernel())
    return NormalizedKernel(PolynomialKernel(**given))


# Conventions.
RANK, EXACT_UP_TO, LANDMARKS = 300, 1500, 500
TOLERANCE = 1e-5  # of the largest moment, from which on a feature is kept


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


def features_at_two_scales(
    points: Tensor,  # (N, d)
    layout: Layout | None,
    rank: int,
    candidates: int,
    among: Tensor | None = None,  # (M, d)
    tolerance: float = 1e-4,
) -> tuple[NystromFeatures, ...]:
    """Features of two Gaussian kernels, one for fine and one for coarse structure.

    Args:
        points: By which the variances are found.
        layout: Which columns are codes, if any are.
        rank: Most landmarks of each.
        candidates: Rows that these are chosen among, drawn at random.
        among: From these rows, if not from the points.
        tolerance: Mean residual with which they are enough.
    """
    grid = variance_grid(points, 4, layout)
    among = points if among is None else among
    return tuple(
        nystrom_features(
            among, mixed_kernel(points, layout, v), rank, tolerance, candidates=candidates
        )
        for v in sorted({grid[len(grid) // 4], grid[-1]})
    )
