"""Decompose the kernel between two samples, two mixtures, or two densities on a grid.

A decomposition holds singular values, vectors, and functions of points or components.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kermix.checks import check_option, check_samples, check_sizes, is_concrete
from kermix.costs.components import ComponentStatistics, log_unit_gram, points_as_components
from kermix.costs.functions import set_statistics
from kermix.costs.points import Numerics, PointStatistics, SetStatistics, WeightedSet
from kermix.errors import KernelError, OptionError, ShapeError, VarianceError
from kermix.kernels.gaussian import (
    GaussianKernel,
    Kernel,
    as_kernel,
)
from kermix.kernels.gram import gram_matrix
from kermix.kernels.means import log_kernel_means
from kermix.kernels.others import AnyKernel, PointKernel
from kermix.linalg.cholesky import leading_svd, sqrt_or_zero
from kermix.mixtures.closed_forms import log_density, log_normal, log_squared_norms
from kermix.mixtures.covariance import Components
from kermix.mixtures.sampled_mixture import Mixture

__all__ = [
    "Decomposition",
    "Density",
    "FunctionForm",
    "IdentityWeighting",
    "Side",
    "SpectrumMethod",
    "decompose",
    "decompose_grid",
    "unit_gaussians",
]

FunctionForm: TypeAlias = Literal["probability", "lebesgue"]
IdentityWeighting: TypeAlias = Literal["projection", "smoothed"]
Density: TypeAlias = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Side:
    """One of the two distributions: its points, and the singular vectors over them."""

    points: Tensor  # (N, d)
    weights: Tensor  # (N,), summing to 1
    vectors: Tensor  # (N, k), orthonormal columns
    factor: Tensor | None  # (N, N), the Gram matrix's root whose inverse whitens, if any
    variance: tuple[float, ...]
    density: Tensor | None = None  # (N,), at the points, if known
    components: Components | None = None  # the Gaussians, if either side is a mixture
    own: bool = False  # whether they are a mixture's, with covariances of their own


@dataclass(frozen=True)
class Decomposition:
    r"""Singular values and functions of $\sqrt{p(X)} K(X, X') \sqrt{q(X')}$, Property 8.

    Left functions belong to `x` (density `p`), right functions to `y` (density `q`). The sign of
    each pair is fixed: the left vector's entry of largest size is positive.

    With `whitened` (Property 9) the singular values are canonical correlations, and the functions
    are combinations of the Gaussians at the samples, orthonormal in dX.

    For a mixture, vectors and functions belong to its components: the singular functions of the
    kernel are functions of mean *and* covariance, and are evaluated at the components of another
    mixture. Those of the whitened form, and `identity`, are functions of points.
    """

    singular_values: Tensor  # (k,)
    kernel: GaussianKernel | PointKernel | None  # None: two mixtures, which have their variances
    whitened: bool
    method: str
    _left: Side
    _right: Side

    def __len__(self) -> int:
        return len(self.singular_values)

    @property
    def left_vectors(self) -> Tensor:  # (N, k)
        """Left singular vectors of the weighted Gram matrix, one row for each point of `x`."""
        return self._left.vectors

    @property
    def right_vectors(self) -> Tensor:  # (K, k)
        """Right singular vectors, one row for each point of `y`."""
        return self._right.vectors

    def swapped(self) -> "Decomposition":
        """The same decomposition with the roles of `x` and `y` exchanged."""
        kernel = self.kernel
        points = self._left.components is None
        if isinstance(kernel, GaussianKernel) and kernel.layout is None and points:
            kernel = GaussianKernel(self._right.variance, self._left.variance,
                                    kernel.per_dimension)  # fmt: skip
        return replace(self, kernel=kernel, _left=self._right, _right=self._left)

    def left(
        self,
        points: Tensor | Mixture | None = None,  # (M, d)
        form: FunctionForm = "probability",
        density: Density | None = None,
    ) -> Tensor:  # (M, k)
        r"""Left singular functions at new points, or at `x`.

        Out of sample by the Nystrom extension
        $\hat\phi_k(x) = \lambda_k^{-1} \sum_j b_j K(x, y_j) \hat\psi_k(y_j)$; functions of a
        singular value that is lost in rounding are zero.

        Args:
            points: Where to evaluate; by default at `x` itself. If `x` is a mixture, another
                mixture, whose weights do not matter; points in the whitened form.
            form: `"probability"`: $\hat\phi$, orthonormal under `p`. `"lebesgue"`:
                $\phi = \hat\phi \sqrt p$, orthonormal in dX.
            density: `p`, as a function of points or its values there, for the Lebesgue form; by
                default the Gaussian mixture that the samples and their variance define (on a
                grid, the given density).
        """
        return self._functions(self._left, self._right, points, form, density)

    def right(
        self,
        points: Tensor | Mixture | None = None,  # (M, d)
        form: FunctionForm = "probability",
        density: Density | None = None,
    ) -> Tensor:  # (M, k)
        """Right singular functions at new points, or at `y`; see `left`."""
        return self._functions(self._right, self._left, points, form, density)

    def identity(
        self,
        points_y: Tensor,  # (M, d)
        points_x: Tensor,  # (L, d)
        weighting: IdentityWeighting = "projection",
    ) -> Tensor:  # (M, L)
        r"""The identity $1\{X' = X\}$ as seen by the Gaussians at the samples, Eq. (22).

        With $\hat f = U^\top f$ and $\hat g = V^\top g$, where `f` and `g` are the
        Gaussians (of unit norm) at `y` and `x`:

        - `"projection"`: $\sum_k \sigma_k^{-1} \hat f_k(X') \hat g_k(X)$, which reproduces
          the Gaussians: an oblique projection;
        - `"smoothed"`: $\sum_k \sigma_k \hat f_k(X') \hat g_k(X)$, the paper's formula.

        In the whitened form $\hat f$ and $\hat g$ are orthonormal.
        """
        check_option("weighting", weighting, ("projection", "smoothed"))
        f, g = (
            self._transformed(side, points)
            for side, points in ((self._right, points_y), (self._left, points_x))
        )
        if not self.whitened:
            n, k = len(self._left.points), len(self._right.points)
            f, g = f * k**0.5, g * n**0.5
        sigma = self.singular_values * (1 if self.whitened else (n * k) ** 0.5)
        weights = self._inverse(sigma) if weighting == "projection" else sigma
        return (f * weights) @ g.T

    def reconstruct(
        self, points_x: Tensor | Mixture, points_y: Tensor | Mixture
    ) -> Tensor:  # (M, L)
        r"""The kernel from its functions, $\sum_k \lambda_k \hat\phi_k \hat\psi_k$."""
        self._needs_kernel_form("reconstruct")
        return (self.left(points_x) * self.singular_values) @ self.right(points_y).T

    def _functions(
        self,
        side: Side,
        other: Side,
        points: Tensor | Mixture | None,
        form: FunctionForm,
        density: Density | None,
    ) -> Tensor:
        check_option("form", form, ("probability", "lebesgue"))
        if side.own and not self.whitened:
            if form == "lebesgue":
                raise OptionError(
                    "form='lebesgue' is for functions of points, but those of a mixture are "
                    "functions of its components; decompose with whiten=True."
                )
            return self._at_components(side, other, points)
        at = _points_at(side, points)
        if self.whitened:
            values = self._transformed(side, at)
            if form == "lebesgue":
                return values
            return values / self._density(side, at, points is None, density).sqrt().unsqueeze(-1)
        if points is None:
            values = _divided(side)
        else:
            values = self._extended(self._kernel_with(at, side, other), other)
        if form == "probability":
            return values
        return values * self._density(side, at, points is None, density).sqrt().unsqueeze(-1)

    def _at_components(
        self, side: Side, other: Side, points: Tensor | Mixture | None
    ) -> Tensor:  # (M, k)
        if points is None:
            return _divided(side)
        if not isinstance(points, Mixture) or points.means.shape[1:] != side.points.shape[1:]:
            raise OptionError(
                "The singular functions of a mixture are functions of mean and covariance: give "
                f"points as a mixture in {side.points.shape[1]} dimensions, or decompose with "
                "whiten=True for functions of points."
            )
        assert other.components is not None
        asked = points._components.to(other.components.means.dtype)
        return self._extended(log_unit_gram(asked, other.components).exp(), other)

    def _extended(self, matrix: Tensor, other: Side) -> Tensor:  # (M, N) -> (M, k)
        """The Nystrom extension, from the kernel between new points and the other side."""
        columns = other.vectors * sqrt_or_zero(other.weights).unsqueeze(-1)
        return (matrix.to(columns) @ columns) * self._inverse(self.singular_values)

    def _kernel_with(self, at: Tensor, side: Side, other: Side) -> Tensor:  # (M, N)
        if isinstance(self.kernel, PointKernel):
            return self.kernel.gram(at, other.points)
        assert self.kernel is not None, "points have a variance"
        if other.components is not None:
            return log_unit_gram(
                points_as_components(at, None, self.kernel), other.components
            ).exp()
        return gram_matrix(at, other.points, self.kernel.cross_terms(at.shape[-1]), at.dtype)

    def _inverse(self, sigma: Tensor) -> Tensor:
        level = sigma[0] * torch.finfo(sigma.dtype).eps * max(
            len(self._left.points), len(self._right.points)
        )  # fmt: skip
        return torch.where(sigma > level, 1 / sigma, 0.0)

    def _density(self, side: Side, at: Tensor, own: bool, given: Density | None) -> Tensor:
        if given is not None:
            values = given if isinstance(given, Tensor) else given(at)
            if values.shape != at.shape[:1]:
                raise ShapeError(
                    f"density has shape {tuple(values.shape)} for {len(at)} points; give one "
                    "value per point."
                )
            return values.to(at)
        if own and side.density is not None:
            return side.density
        if side.components is not None:
            return log_density(side.components, at).exp()
        return _mixture_density(at, side, self._gaussian("density=None").per_dimension)

    def _transformed(self, side: Side, points: Tensor) -> Tensor:  # (M, k)
        """The Gaussians at the samples, turned by the singular vectors (and whitened)."""
        at = check_samples("points", points).to(side.points)
        if side.components is not None:
            everything = slice(None)
            logarithms = log_normal(at, None, side.components, side.components.kind)
            norms = log_squared_norms(side.components) / 2
            residuals = (logarithms(everything, everything) - norms).exp()
        else:
            divided = self._gaussian("The identity").per_dimension
            residuals = unit_gaussians(at, side.points, self._one(side), divided)
        if side.factor is None:
            return (residuals * sqrt_or_zero(side.weights)) @ side.vectors
        return residuals @ (side.factor @ side.vectors)

    def _gaussian(self, what: str) -> GaussianKernel:
        if not isinstance(self.kernel, GaussianKernel):
            raise KernelError(
                f"{what} needs Gaussians at the points, but the kernel is {self.kernel}."
            )
        if self.kernel.layout is not None:
            raise OptionError(
                "Rows with codes have no density with respect to dX: use form='probability', "
                "which is orthonormal under the data."
            )
        return self.kernel

    def _one(self, side: Side) -> float:
        if len(side.variance) > 1:
            raise VarianceError(
                "This needs Gaussians of a single variance, but the kernel is an average of "
                f"{len(side.variance)}. Decompose with one variance."
            )
        return side.variance[0]

    def _needs_kernel_form(self, what: str) -> None:
        if self.whitened:
            raise OptionError(f"{what} is only defined for the kernel itself: use whiten=False.")


def _points_at(side: Side, points: Tensor | Mixture | None) -> Tensor:  # (M, d)
    """The points that functions are asked at, by default those of the side itself."""
    at = side.points if points is None else check_samples("points", points)  # type: ignore[arg-type]
    if at.ndim != 2 or at.shape[1] != side.points.shape[1]:
        raise ShapeError(
            f"points has shape {tuple(at.shape)}; the functions take points of shape "
            f"(M, {side.points.shape[1]})."
        )
    return at.to(side.points)


def _divided(side: Side) -> Tensor:  # (N, k)
    """Vectors divided by the roots of the weights: functions at the points themselves."""
    roots = sqrt_or_zero(side.weights)
    return side.vectors * torch.where(roots > 0, 1 / roots, 0.0).unsqueeze(-1)


def unit_gaussians(
    points: Tensor,  # (M, d)
    centers: Tensor,  # (N, d)
    variance: float,
    per_dimension: bool = True,
) -> Tensor:  # (M, N)
    r"""Gaussians of unit $L_2$ norm at the centers, evaluated at the points.

    Their inner products are the kernel: $\int f_i f_j \, dX = K_{2v}(y_i, y_j)$. This is the
    half-variance root of the kernel in $C = \mathrm{diag}(\sqrt p) K_{half}$, Eq. (20).

    Example:
        >>> unit_gaussians(torch.zeros(1, 1), torch.zeros(1, 1), 1 / torch.pi)
        tensor([[1.]])
    """
    d = points.shape[-1]
    spread = variance * (d if per_dimension else 1)
    terms = GaussianKernel(variance / 2, per_dimension=per_dimension).cross_terms(d)
    log_constant = -d / 4 * math.log(math.pi * spread)
    return gram_matrix(points, centers, terms, points.dtype) * math.exp(log_constant)


def _mixture_density(at: Tensor, side: Side, per_dimension: bool) -> Tensor:  # (M,)
    d, parts = at.shape[-1], []
    for variance in side.variance:
        spread = variance * (d if per_dimension else 1)
        terms = GaussianKernel(variance / 2, per_dimension=per_dimension).cross_terms(d)
        logs = log_kernel_means(at, side.points, terms, side.weights, at.dtype)
        parts.append((logs - d / 2 * math.log(2 * math.pi * spread)).exp())
    return torch.stack(parts).mean(0)


SpectrumMethod: TypeAlias = Literal["auto", "full", "truncated"]


@torch.no_grad()
def decompose(
    x: Tensor | Mixture,  # (N, d)
    y: Tensor | Mixture | None = None,  # (K, d)
    v: Kernel | None = None,
    *,
    kernel: AnyKernel | None = None,
    rank: int | None = None,
    whiten: bool = False,
    weights_x: Tensor | None = None,  # (N,)
    weights_y: Tensor | None = None,  # (K,)
    ridge: float | None = None,
    method: SpectrumMethod = "auto",
) -> Decomposition:
    r"""Decompose $\mathrm{diag}(\sqrt a) K \, \mathrm{diag}(\sqrt b)$, Property 8.

    $$K(X, X') = \sum_k \lambda_k \hat\phi_k(X) \hat\psi_k(X')$$

    with functions orthonormal under `p` and `q`. The singular values sum to the SVD cost, so
    their sum is the fidelity of the two samples.

    For mixtures, whose Gaussians have their own covariances, the matrix is that of the Gaussians
    scaled to unit norm, as in `kermix.svd_cost`.

    Args:
        x: Samples of `p`, to which the left functions belong; or `p` itself, a mixture.
        y: Samples of `q`, the right functions; or a mixture. None means `x` again:
            eigenfunctions.
        v: Variance, several of them, a rule that finds one from `x`, or a Gaussian kernel; by
            default the rule `"median"`; not used for two mixtures.
        kernel: Kernel to use instead of the Gaussian, such as `kermix.LaplaceKernel`, or a
            function of two sets of points that returns their Gram matrix; then omit `v`.
        rank: Number of leading functions; by default all.
        whiten: Whether to decompose $R_G^{-1/2} P^\top R_F^{-1/2}$ instead, Property 9.
        weights_x: Weights of `x`.
        weights_y: Weights of `y`.
        ridge: Ridge of the whitening, relative to the diagonal.
        method: `"full"` decomposition, or `"truncated"`: subspace iteration for the leading
            `rank`. `"auto"` truncates when `rank` is at most a tenth of more than 500 points.

    Example:
        >>> x = torch.linspace(-1, 1, 50, dtype=torch.float64)[:, None]
        >>> result = decompose(x, v=0.1, rank=3)
        >>> [round(s, 3) for s in result.singular_values.tolist()]
        [0.473, 0.303, 0.147]
        >>> result.left(torch.zeros(1, 1)).shape
        torch.Size([1, 3])
    """
    check_option("method", method, ("auto", "full", "truncated"))
    if y is None and weights_y is not None:
        raise OptionError(
            "weights_y without y: with a single set of samples, give only weights_x."
        )
    own, other = y is None, x if y is None else y
    weights = weights_x, weights_x if own else weights_y
    sides = _statistics(x, other, v, kernel, weights, whiten, ridge)
    _check_sides(sides, own)
    a, b = (_shares(side, sides.dtype) for side in (sides.data, sides.centers))
    matrix, factors = _weighted_gram(sides, a, b, whiten)
    u, s, w, used = _factorized(matrix, rank, method, symmetric=own and not whiten)
    largest = u.gather(0, u.abs().argmax(0, keepdim=True)).squeeze(0)
    signs = torch.where(largest < 0, -1.0, 1.0).to(u)
    variances, components = _gaussians(sides)
    points = [side.points.to(sides.dtype) for side in (sides.data, sides.centers)]
    left = Side(points[0], a, u * signs, factors[0], variances[0],
                components=components[0], own=isinstance(x, Mixture))  # fmt: skip
    right = Side(points[1], b, w * signs, factors[1], variances[1],
                 components=components[1], own=isinstance(other, Mixture))  # fmt: skip
    return Decomposition(s, sides.kernel, whiten, used, left, right)


def _check_sides(sides: SetStatistics, own: bool) -> None:
    """Refuse batches of sets, and eigenfunctions of a kernel that is not symmetric."""
    if own and isinstance(sides, PointStatistics) and not sides.kernel.symmetric:
        raise OptionError("Eigenfunctions need equal variances: v_q differs from v.")
    if sides.data.points.ndim != 2 or sides.centers.points.ndim != 2:
        raise ShapeError("x and y must be two sets of points, each of shape (points, dimension).")


def _weighted_gram(
    sides: SetStatistics, a: Tensor, b: Tensor, whiten: bool
) -> tuple[Tensor, tuple[Tensor | None, Tensor | None]]:
    """The matrix that is decomposed, (N, K), and the roots that whiten its rows and columns."""
    matrix = sides.plain_gram("xy")
    if not whiten:
        return matrix * a.sqrt().unsqueeze(-1) * b.sqrt(), (None, None)
    left, right = (_inverse_root(sides.plain_gram(of), sides.ridge) for of in ("xx", "yy"))
    return left @ matrix @ right, (left, right)


def _shares(side: WeightedSet, dtype: torch.dtype) -> Tensor:
    """The weights of a side, equal ones where it has none."""
    if side.weights is not None:
        return side.weights.to(dtype)
    return torch.full((len(side),), 1 / len(side), dtype=dtype, device=side.points.device)


def _gaussians(
    sides: SetStatistics,
) -> tuple[list[tuple[float, ...]], tuple[Components | None, Components | None]]:
    """Variances of both sides where the kernel is Gaussian, or the components of mixtures."""
    if isinstance(sides, ComponentStatistics):
        return [(), ()], (sides.of_x, sides.of_y)
    kernel = sides.kernel
    if not isinstance(kernel, GaussianKernel):
        return [(), ()], (None, None)
    return [tuple(float(t) for t in v) for v in (kernel.v_p, kernel.v_q)], (None, None)


def _statistics(
    x: Tensor | Mixture,
    y: Tensor | Mixture,
    v: Kernel | None,
    kernel: AnyKernel | None,
    weights: tuple[Tensor | None, Tensor | None],
    whiten: bool,
    ridge: float | None,
) -> SetStatistics:
    """Both sides, with the median rule where a variance is needed and none is given."""
    mixtures = [isinstance(side, Mixture) for side in (x, y)]
    if not mixtures[0]:
        check_samples("x", x)  # type: ignore[arg-type]
    if not all(mixtures):
        v = "median" if v is None and kernel is None else v
        if isinstance(v, str):
            v = as_kernel(v, y if mixtures[0] else x)  # type: ignore[arg-type]
    if whiten:
        _check_whitens(kernel)
    numerics = Numerics(solves=whiten or any(mixtures), ridge=ridge)
    return set_statistics(x, y, v, kernel, weights, numerics, unit_norm=whiten)


def _check_whitens(kernel: AnyKernel | None) -> None:
    if kernel is not None and not isinstance(kernel, GaussianKernel):
        raise KernelError(
            "whiten=True is Property 9, whose functions are the Gaussians at the points; other "
            "kernels do not have them. Use whiten=False."
        )


def _check_density(name: str, density: Tensor, points: int, cell: float) -> None:
    if density.shape != (points,):
        raise ShapeError(f"{name} has shape {tuple(density.shape)} for {points} grid points.")
    if is_concrete(density) and not 0.9 < float(density.sum() * cell) < 1.1:
        raise OptionError(
            f"{name} integrates to {float(density.sum() * cell):.3g} over the grid, not to 1: is "
            "the cell right, and does the grid cover the density?"
        )


def decompose_grid(
    p: Tensor,  # (G,)
    q: Tensor | None,  # (G,)
    points: Tensor,  # (G, d)
    cell: float,
    v: Kernel | None = None,
    *,
    kernel: AnyKernel | None = None,
    rank: int | None = None,
    method: SpectrumMethod = "auto",
) -> Decomposition:
    r"""The exact discrete decomposition of two densities on a grid, Eqs. (17) and (18).

    Args:
        p: Density of the left functions at each grid point.
        q: Density of the right functions; None means `p`.
        points: The grid.
        cell: Volume (length, area) of the cell of each grid point.
        v: Variance, several of them, or a Gaussian kernel.
        kernel: Kernel to use instead of the Gaussian; then omit `v`.
        rank: Number of leading functions; by default all.
        method: As in `decompose`.

    Example:
        >>> grid = torch.linspace(-4, 4, 161, dtype=torch.float64)[:, None]
        >>> p = torch.exp(-grid[:, 0] ** 2 / 2) / (2 * torch.pi) ** 0.5
        >>> result = decompose_grid(p, None, grid, 0.05, 0.5, rank=2)
        >>> [round(s, 3) for s in result.singular_values.tolist()]
        [0.618, 0.236]
    """
    check_samples("points", points)
    if v is None and kernel is None:
        raise OptionError("v is missing: give a variance, or a kernel.")
    if not cell > 0:
        raise OptionError(f"cell={cell}: the volume of a grid cell must be positive.")
    same = q is None
    densities = (p, p if q is None else q)
    for name, density in zip(("p", "q"), densities, strict=True):
        _check_density(name, density, len(points), cell)
    result = decompose(
        points, None if same else points, v, kernel=kernel, rank=rank, method=method,
        weights_x=densities[0], weights_y=None if same else densities[1],
    )  # fmt: skip
    left, right = (
        replace(side, density=density.to(side.points))
        for side, density in zip((result._left, result._right), densities, strict=True)
    )
    return replace(result, _left=left, _right=right)


def _inverse_root(matrix: Tensor, ridge: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * (values.clamp(min=0) + ridge).rsqrt()) @ vectors.T


def _truncates(method: SpectrumMethod, rank: int, smaller: int, full_up_to: int = 500) -> bool:
    few = smaller > full_up_to and 10 * rank <= smaller
    return method == "truncated" or (method == "auto" and few)


def _factorized(
    matrix: Tensor, rank: int | None, method: SpectrumMethod, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, str]:
    smaller = min(matrix.shape)
    check_sizes(rank=rank)
    if rank is not None and not 1 <= rank <= smaller:
        raise OptionError(f"rank={rank}: must be between 1 and {smaller}.")
    if method == "truncated" and rank is None:
        raise OptionError("method='truncated' needs the number of leading functions (rank).")
    if rank is not None and _truncates(method, rank, smaller):
        u, s, w = leading_svd(matrix, rank)
        return u, s, u if symmetric else w, "truncated"
    if symmetric:
        values, vectors = torch.linalg.eigh(matrix)
        u, s = vectors.flip(-1)[:, :rank], values.flip(-1)[:rank].clamp(min=0)
        return u, s, u, "full"
    u, s, wh = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank], s[:rank], wh[:rank].T, "full"
