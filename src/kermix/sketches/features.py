"""Feature maps: `K(x, y) ~ phi(x) . phi(y)` with few features, so that costs become moments."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Literal, Protocol, TypeAlias

import torch
from torch import Tensor

from kermix.checks import (
    check_count,
    check_number,
    check_option,
    check_samples,
    check_seed,
    check_sizes,
    solve_dtype,
)
from kermix.errors import OptionError, ShapeError, VarianceError
from kermix.kernels.distances import CLOSE, DIRECT_DIFFERENCES_UP_TO, mismatches, numbers_of
from kermix.kernels.gaussian import GaussianKernel, KernelTerms, Variance, VarianceRule, as_kernel
from kermix.kernels.gram import gram_matrix, kernels_at, numbers_like, scaled_gram
from kermix.kernels.others import PointKernel
from kermix.kernels.subsets import row_keys

__all__ = [
    "ColumnScale",
    "FeatureMap",
    "FourierFeatures",
    "LandmarkRule",
    "NeverSmall",
    "NystromFeatures",
    "OfLandmarks",
    "fingerprint",
    "fourier_features",
    "landmark_factor",
    "nystrom_features",
    "random_pivots",
    "same_scale",
]

LandmarkRule: TypeAlias = Literal["pivoted", "uniform"]

CANDIDATES_PER_LANDMARK = 50  # a convention


@dataclass(frozen=True, eq=False)
class ColumnScale:
    """Points are `(row - center) / spread`, column by column.

    It is a part of a feature map, so whatever takes a sketch takes raw rows beside it.

    Args:
        center: What is subtracted, shape (d,).
        spread: What is divided by, shape (d,), positive.

    Example:
        >>> scale = ColumnScale(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]))
        >>> scale(torch.tensor([[5.0, 5.0]]))
        tensor([[2., 5.]], dtype=torch.float64)
    """

    center: Tensor  # (d,)
    spread: Tensor  # (d,)

    def __post_init__(self) -> None:
        dtype = torch.float32 if self.center.device.type == "mps" else torch.float64
        for name in ("center", "spread"):
            object.__setattr__(self, name, getattr(self, name).detach().to(dtype))
        if self.center.ndim != 1 or self.center.shape != self.spread.shape:
            raise ShapeError(
                f"center has shape {tuple(self.center.shape)} and spread "
                f"{tuple(self.spread.shape)}; give one of each per column."
            )
        if not bool((self.center.isfinite() & self.spread.isfinite() & (self.spread > 0)).all()):
            raise VarianceError("center and spread must be finite, and spread positive.")

    def __call__(self, rows: Tensor) -> Tensor:  # (N, d) -> (N, d)
        """The rows in the units of the landmarks, differentiable."""
        points = (rows.to(self.center) - self.center) / self.spread
        return points.clamp(-1e120, 1e120)  # whose square is finite

    def to(self, device: torch.device | str) -> "ColumnScale":
        """The same on another device."""
        return ColumnScale(self.center.to(device), self.spread.to(device))


def same_scale(a: ColumnScale | None, b: ColumnScale | None) -> bool:
    """Whether two maps take the same raw columns."""
    if a is None or b is None:
        return a is b
    return torch.equal(a.center.cpu(), b.center.cpu()) and torch.equal(
        a.spread.cpu(), b.spread.cpu()
    )


class FeatureMap(Protocol):
    """A map from points to features whose inner products approximate the kernel."""

    kind: ClassVar[str]
    certified: ClassVar[bool]

    @property
    def kernel(self) -> GaussianKernel | PointKernel:
        """The kernel that the features stand for."""

    @property
    def dimension(self) -> int:
        """Dimension of the points."""

    @property
    def rank(self) -> int:
        """Number of features."""

    @property
    def parameters(self) -> Tensor:
        """The tensors that define the map, beside its kernel and scale."""

    @property
    def scale(self) -> ColumnScale | None:
        """How raw columns are scaled before anything else; None: not at all."""

    @property
    def chosen_from(self) -> Tensor | None:
        """Sorted keys of the rows that the map was chosen from; None: not known."""

    def __call__(self, points: Tensor) -> Tensor:
        """Features of raw rows, (N, d) to (N, rank), in the dtype of the parameters."""

    def scaled(self, points: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Features divided by a scale, and its logarithm, so that they do not underflow."""

    @property
    def rounding(self) -> float:
        """Bound of the root mean square error of features by rounding."""


class OfLandmarks:
    """The base of features that are kernels with some points, the landmarks."""

    landmarks: Tensor  # (r, d)
    _factor: Tensor  # (r, r), of `landmark_factor`

    @property
    def dimension(self) -> int:
        """Dimension of the points."""
        return self.landmarks.shape[-1]

    @property
    def rank(self) -> int:
        """Number of features."""
        return self.landmarks.shape[-2]

    @property
    def parameters(self) -> Tensor:
        """The landmarks."""
        return self.landmarks

    @cached_property
    def whitening(self) -> Tensor:  # (r, r)
        """Features are rows of kernels with the landmarks times this."""
        eye = _eye(self._factor)
        inverse: Tensor = torch.linalg.solve_triangular(self._factor, eye, upper=False)
        return inverse.mT.contiguous()

    def __getstate__(self) -> dict[str, object]:
        # The other process computes it again, which is quicker than to send it.
        return {name: value for name, value in vars(self).items() if name != "whitening"}


class NeverSmall:
    """The base of features that do not underflow, wherever the points are."""

    def scaled(
        self, points: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:  # (N, d), (N,) -> (N, r), ()
        """The features, and zero for the logarithm of their scale."""
        features: Tensor = self(points)  # type: ignore[operator]
        return features, torch.zeros_like(features.detach()[0, 0])


@dataclass(frozen=True, eq=False)
class NystromFeatures(OfLandmarks):
    r"""Nystrom features $\phi(x) = L^{-1} K(Z, x)$ with $L L^\top = K(Z, Z)$.

    What they reproduce is a projection of the kernel, so $1 - |\phi(x)|^2 \ge 0$ is the
    kernel's residual at `x`, and its means bound the error of costs.

    Args:
        landmarks: The points Z, shape (rank, d), in the units after scaling.
        kernel: The kernel between data and centers, of equal variances.
        scale: How raw columns are scaled; None if they are used as they are.
        chosen_from: Sorted keys (`kermix.kernels.subsets.row_keys`) of the rows that
            landmarks, kernel and scale were chosen from; empty if they depend on no data; None if
            that is not known.
    """

    landmarks: Tensor  # (r, d)
    kernel: GaussianKernel
    scale: ColumnScale | None = None
    chosen_from: Tensor | None = field(default=None, repr=False)  # (K,)
    kind: ClassVar[str] = "nystrom"
    certified: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _refuse_unequal_variances(self.kernel)
        check_samples("landmarks", self.landmarks)
        dtype = solve_dtype(self.landmarks.device)
        object.__setattr__(self, "landmarks", self.landmarks.detach().to(dtype))
        object.__setattr__(self, "scale", _fitting(self.scale, self.landmarks))
        factor = landmark_factor(_landmark_kernel(self.landmarks, self._terms))
        object.__setattr__(self, "_factor", factor)
        norm = float(torch.linalg.matrix_norm(self.whitening))
        object.__setattr__(self, "_inverse_norm", norm)

    @property
    def _terms(self) -> KernelTerms:
        return self.kernel.cross_terms(self.dimension)

    def __call__(self, points: Tensor) -> Tensor:  # (N, d) -> (N, r)
        """Features of raw rows, computed in float64."""
        features, log_scale = self.scaled(points)
        return features * log_scale.exp()

    def scaled(
        self, points: Tensor, weights: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:  # (N, d), (N,) -> (N, r), ()
        """Features divided by the scale of the largest, if that is very small, and its logarithm.

        Points of weight zero do not count. The scale is a constant for differentiation.
        """
        points = points if self.scale is None else self.scale(points)
        dtype = self.landmarks.dtype
        cross = scaled_gram(self.landmarks, points, self._terms, dtype, None, weights)
        near = cross.log_scale > -30.0
        matrix = cross.matrix * torch.where(near, cross.log_scale, 0.0).exp()
        log_scale = torch.where(near, 0.0, cross.log_scale)
        return torch.linalg.solve_triangular(self._factor, matrix, upper=False).mT, log_scale

    @property
    def rounding(self) -> float:
        r"""Bound of the root mean square error of features by rounding.

        Errors $\eta$ of the kernel with `r` landmarks become features through
        $L^{-1}$: no more than $\sqrt r \, |L^{-1}| \, \eta$ in all.
        """
        largest: float = self._inverse_norm  # type: ignore[attr-defined]
        direct = self.dimension <= DIRECT_DIFFERENCES_UP_TO
        roundings = 8 if direct else 8 / CLOSE[torch.float64]
        kernel = roundings * torch.finfo(self.landmarks.dtype).eps
        return math.sqrt(self.rank) * largest * kernel


@dataclass(frozen=True, eq=False)
class FourierFeatures(NeverSmall):
    r"""Random Fourier features $\sqrt{2/r}\,[\cos(\omega_k x), \sin(\omega_k x)]$.

    They depend on no data. Their error is random, of the order of $1/\sqrt r$; there is no
    certificate.

    Args:
        frequencies: The vectors $\omega_k$, shape (rank / 2, d).
        kernel: The kernel between data and centers, of equal variances.
        scale: How raw columns are scaled; None if they are used as they are.
        chosen_from: As in `NystromFeatures`, empty unless the scale or the variance is that
            of data.
    """

    frequencies: Tensor  # (r / 2, d)
    kernel: GaussianKernel
    scale: ColumnScale | None = None
    chosen_from: Tensor | None = field(default=None, repr=False)  # (K,)
    kind: ClassVar[str] = "fourier"
    certified: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _refuse_unequal_variances(self.kernel)
        if self.kernel.layout is not None:
            raise OptionError(
                "Fourier features do not support codes: use landmarks (km.nystrom_features)."
            )
        check_samples("frequencies", self.frequencies)
        dtype = solve_dtype(self.frequencies.device)
        object.__setattr__(self, "frequencies", self.frequencies.detach().to(dtype))
        object.__setattr__(self, "scale", _fitting(self.scale, self.frequencies))

    @property
    def dimension(self) -> int:
        """Dimension of the points."""
        return self.frequencies.shape[-1]

    @property
    def rank(self) -> int:
        """Number of features."""
        return 2 * self.frequencies.shape[-2]

    @property
    def parameters(self) -> Tensor:
        """The frequencies."""
        return self.frequencies

    def __call__(self, points: Tensor) -> Tensor:  # (N, d) -> (N, r)
        """Features of raw rows, computed in float64."""
        points = points if self.scale is None else self.scale(points)
        angles = points.to(self.frequencies) @ self.frequencies.mT
        return torch.cat([angles.cos(), angles.sin()], -1) * math.sqrt(2 / self.rank)

    @property
    def rounding(self) -> float:
        """Not known, as their error."""
        return 0.0


def _check_choice(rank: int | None, tolerance: float | None, landmarks: LandmarkRule) -> None:
    check_option("landmarks", landmarks, ("pivoted", "uniform"))
    if rank is None and tolerance is None:
        raise OptionError("Give a rank, a tolerance, or both.")
    if tolerance is not None:
        check_number("tolerance", tolerance)
        if not tolerance >= 0:
            raise OptionError(f"tolerance={tolerance}: must be non-negative.")
    if landmarks == "uniform" and rank is None:
        raise OptionError(
            "landmarks='uniform' needs a rank, because it does not compute the residual."
        )


def nystrom_features(
    x: Tensor,  # (N, d)
    v: GaussianKernel | Variance | VarianceRule,
    rank: int | None = None,
    tolerance: float | None = None,
    landmarks: LandmarkRule = "pivoted",
    candidates: int | None = None,
    seed: int = 0,
) -> NystromFeatures:
    """Choose landmarks from points.

    Args:
        x: Points like those to be sketched; from both sets, if they differ much.
        v: Variance, several of them, a rule, or a kernel.
        rank: Maximum number of landmarks.
        tolerance: Stop when the mean residual over the candidates is below this; uniform landmarks
            ignore it and use the full rank.
        landmarks: `"pivoted"` draws each landmark in proportion to the remaining residual of the
            kernel (randomly pivoted Cholesky); `"uniform"` draws them uniformly.
        candidates: Number of points of `x`, drawn at random, to choose landmarks from; by default
            fifty per landmark.
        seed: Seed of the draws.

    Example:
        >>> x = torch.linspace(0, 1, 100, dtype=torch.float64)[:, None]
        >>> features = nystrom_features(x, 0.1, rank=20, tolerance=1e-6)
        >>> features.rank < 20, (1 - features(x).square().sum(1)).mean().item() < 2e-6
        (True, True)
    """
    check_samples("x", x)
    if x.ndim != 2:
        raise ShapeError(
            f"x has shape {tuple(x.shape)}; landmarks are chosen among points of shape (N, d)."
        )
    _check_choice(rank, tolerance, landmarks)
    check_sizes(rank=rank, candidates=candidates)
    check_seed(seed)
    rank = min(len(x), 4096 if rank is None else rank)
    kernel = as_kernel(v, x)
    generator = torch.Generator().manual_seed(seed)
    wanted = CANDIDATES_PER_LANDMARK * rank if candidates is None else candidates
    points = x.detach()
    if wanted < len(points):
        chosen = torch.randperm(len(points), generator=generator)[:wanted]
        points = points[chosen.to(points.device)]
    if landmarks == "uniform":
        chosen = torch.randperm(len(points), generator=generator)[:rank].to(points.device)
    else:
        terms, dtype = kernel.cross_terms(x.shape[-1]), solve_dtype(points.device)

        def gram(a: Tensor, b: Tensor) -> Tensor:
            return gram_matrix(a, b, terms, dtype)

        chosen = random_pivots(points, gram, rank, tolerance, generator)
    looked_at = x if isinstance(v, str) else points
    return NystromFeatures(points[chosen], kernel, None, row_keys(looked_at).unique())


@torch.no_grad()
def random_pivots(
    points: Tensor,  # (N, d)
    gram: Callable[[Tensor, Tensor], Tensor],
    rank: int,
    tolerance: float | None,
    generator: torch.Generator,
    proposals: int = 128,
    smallest: float = 1e-12,
) -> Tensor:  # (at most rank,)
    """Indices of landmarks by randomly pivoted Cholesky, in blocks.

    A block of pivots is proposed in proportion to the residual diagonal, and each is kept with
    the probability that its residual, given the pivots kept before it, bears to the one it was
    proposed with. That draws from the same distribution as one pivot at a time (Epperly, Tropp,
    Webber), at the speed of matrix products.

    Args:
        points: The candidates.
        gram: The kernel between two sets of points, whose diagonal is 1.
        rank: How many to choose at most.
        tolerance: Stop when the mean residual is below this.
        generator: Source of the draws, on the CPU.
        proposals: Pivots of a block, which draws depend on.
        smallest: A residual that is rounding.
    """
    dtype = solve_dtype(points.device)
    n = len(points)
    factor = torch.empty(n, rank, dtype=dtype, device=points.device)
    residual = torch.ones(n, dtype=dtype, device=points.device)
    chosen = torch.empty(0, dtype=torch.long)
    while len(chosen) < rank:
        total = float(residual.sum())
        if total <= n * max(tolerance or 0.0, smallest):
            break
        proposed = _draw(residual, proposals, generator)
        at = proposed.to(points.device)
        done = factor[:, : len(chosen)]
        block = gram(points[at], points[at]).to(dtype) - done[at] @ done[at].mT
        diagonal, left = residual[at].cpu(), rank - len(chosen)
        kept, lower = _accept(block.cpu(), diagonal, generator, left, smallest)
        if not len(kept):
            residual[at] = 0  # what was proposed is represented up to rounding
            continue
        pivots = at[kept.to(at.device)]
        columns = gram(points, points[pivots]).to(dtype) - done @ done[pivots].mT
        new = torch.linalg.solve_triangular(lower.to(columns).mT, columns, upper=True, left=False)
        factor[:, len(chosen) : len(chosen) + len(kept)] = new
        residual = (residual - new.square().sum(-1)).clamp(min=0)
        residual[pivots] = 0
        chosen = torch.cat([chosen, proposed[kept]])
    return chosen.to(points.device)


def _draw(residual: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Indices in proportion to the residual, by inversion: repeats are allowed."""
    cumulative = residual.cumsum(0)
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    levels = uniform.to(cumulative) * cumulative[-1]
    return torch.searchsorted(cumulative, levels).clamp(max=len(residual) - 1).cpu()


def _accept(
    block: Tensor,
    proposed_with: Tensor,
    generator: torch.Generator,
    most: int,
    smallest: float,
) -> tuple[Tensor, Tensor]:
    """Which proposals of a block are kept, and the Cholesky factor of the kernel between them."""
    matrix, diagonal = block.numpy().copy(), proposed_with.numpy()
    uniform = torch.rand(len(matrix), generator=generator, dtype=torch.float64).numpy()
    left = matrix.diagonal().copy()
    kept: list[int] = []
    for i in range(len(matrix)):
        if len(kept) == most:
            break
        if left[i] <= smallest or uniform[i] * diagonal[i] >= left[i]:
            continue
        column = matrix[i:, i] / left[i] ** 0.5
        matrix[i:, i:] -= column[:, None] * column[None, :]
        left[i:] = matrix.diagonal()[i:]
        kept.append(i)
    indices = torch.tensor(kept, dtype=torch.long)
    chosen = block[indices][:, indices]
    jitter = 1e-14 * torch.eye(len(kept), dtype=block.dtype)
    return indices, torch.linalg.cholesky(chosen + jitter) if kept else chosen


def fourier_features(
    dimension: int,
    v: GaussianKernel | Variance,
    rank: int,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> FourierFeatures:
    """Draw the frequencies of a kernel's spectral density; `rank` is even.

    Example:
        >>> fourier_features(3, 0.1, rank=100).rank
        100
    """
    check_count("dimension", dimension)
    check_count("rank", rank)
    check_seed(seed)
    if rank % 2:
        raise OptionError(f"rank={rank}: Fourier features come in pairs, so it must be even.")
    if isinstance(v, str):
        raise VarianceError(f"v={v!r} is a rule that needs data; give a variance.")
    kernel = v if isinstance(v, GaussianKernel) else GaussianKernel(v)
    generator = torch.Generator().manual_seed(seed)
    rates = torch.as_tensor(kernel.cross_terms(dimension).rates, dtype=torch.float64).cpu()
    which = torch.randint(len(rates), (rank // 2, 1), generator=generator)
    normal = torch.randn(rank // 2, dimension, generator=generator, dtype=torch.float64)
    frequencies = normal * (2 * rates[which]).sqrt()
    nothing = torch.empty(0, dtype=torch.int32)
    return FourierFeatures(frequencies.to(device), kernel, None, nothing)


def fingerprint(features: FeatureMap) -> str:
    """A short name of a map: equal for maps whose sketches can be merged and compared."""
    digest = hashlib.sha256(features.kind.encode())
    if not isinstance(features.kernel, GaussianKernel):
        digest.update(repr(features.kernel).encode())
        digest.update(features.parameters.double().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]
    terms = features.kernel.cross_terms(features.dimension)
    numbers = torch.cat(
        [torch.as_tensor(t, dtype=torch.float64).cpu() for t in (terms.rates, terms.log_weights)]
    )
    tensors = [features.parameters, numbers]
    if features.kernel.layout is not None:
        tensors.append(torch.tensor(features.kernel.layout, dtype=torch.float64))
    if features.scale is not None:
        tensors += [features.scale.center, features.scale.spread]
    for tensor in (t.double().cpu() for t in tensors):
        digest.update(str(tuple(tensor.shape)).encode())
        digest.update(tensor.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


@torch.no_grad()
def _landmark_kernel(landmarks: Tensor, terms: KernelTerms) -> Tensor:
    """The kernel between landmarks.

    From differences, whatever the dimension: the ridge must be above the rounding of the matrix.
    """
    way = "donot_use_mm_for_euclid_dist"
    numbers = numbers_of(landmarks, terms.layout)
    distances = torch.cdist(numbers, numbers, compute_mode=way).square()
    if terms.layout is not None:
        distances = distances + mismatches(landmarks, landmarks, terms.layout)
    rates, log_weights = numbers_like(terms, landmarks)
    nothing = torch.zeros_like(distances[:1, :1])
    return torch.stack(kernels_at(distances, rates, log_weights, nothing, nothing)).sum(0)


@torch.no_grad()
def landmark_factor(matrix: Tensor, relative: float = 1e-11) -> Tensor:  # (r, r) -> (r, r)
    """Cholesky factor of the kernel between landmarks, with a ridge that makes it one.

    The ridge, relative to the diagonal, keeps the factor well conditioned. It can only lower the
    kernel that the features reproduce, so the residual stays a bound, and it raises the mean
    residual by no more than itself.
    """
    unit = float(matrix.diagonal().mean())
    ridge = relative * (unit if unit > 0 else 1.0)
    while True:
        found = torch.linalg.cholesky_ex(matrix + ridge * _eye(matrix))
        if int(found.info) == 0:
            return found.L
        ridge *= 10


def _eye(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def _fitting(scale: ColumnScale | None, parameters: Tensor) -> ColumnScale | None:
    """The scale on the device of the parameters, if it has as many columns."""
    if scale is None:
        return None
    if len(scale.center) != parameters.shape[-1]:
        raise ShapeError(
            f"scale has {len(scale.center)} columns and the points have {parameters.shape[-1]}."
        )
    return scale.to(parameters.device)


def _refuse_unequal_variances(kernel: GaussianKernel) -> None:
    if not kernel.symmetric:
        raise VarianceError(
            "Features represent one kernel, so data and centers must have the same variance: "
            "omit v_q, or use the dual form (samples instead of sketches)."
        )
