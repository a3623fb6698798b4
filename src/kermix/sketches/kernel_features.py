"""Nystrom features of kernels other than the Gaussian, such as the cosine and the polynomial.

The kernel is normalized to $k(x, x) = 1$, so that what the features leave out of it is known
as it is for the Gaussian, and sketches of them add up and have certificates.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from kermix.checks import check_count, check_samples, check_seed
from kermix.errors import KernelError, ShapeError
from kermix.kernels.others import (
    CosineKernel,
    NormalizedKernel,
    PointKernel,
    PolynomialKernel,
    as_point_kernel,
)
from kermix.linalg.cholesky import solve_dtype
from kermix.sketches.features import (
    CANDIDATES_PER_LANDMARK,
    ColumnScale,
    NeverSmall,
    OfLandmarks,
    landmark_factor,
)
from kermix.sketches.landmarks import random_pivots, row_keys

__all__ = ["KernelFeatures", "described_kernel", "kernel_features", "kernel_of", "unit_kernel"]

ROUNDINGS = 8


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
        return float(self.rank**0.5 * largest * ROUNDINGS * self.dimension**0.5 * eps)


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
    at = random_pivots(points, chosen, min(rank, len(points)), tolerance, generator)
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
