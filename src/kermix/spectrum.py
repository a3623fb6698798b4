"""Singular functions: what structure a kernel sees in two distributions, or in one."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kermix.checks import check_option, check_samples, check_sizes, values_are_readable
from kermix.costs.functions import Kernel
from kermix.costs.samples import SamplePair
from kermix.errors import OptionError, ShapeError, VarianceError
from kermix.kernels.gaussian import GaussianKernel, as_kernel
from kermix.kernels.gram import gram_matrix
from kermix.kernels.means import log_kernel_means
from kermix.linalg.cholesky import sqrt_or_zero
from kermix.linalg.leading import leading_svd

__all__ = ["Decomposition", "FunctionForm", "IdentityWeighting", "decompose", "decompose_grid"]

FunctionForm: TypeAlias = Literal["probability", "lebesgue"]
IdentityWeighting: TypeAlias = Literal["projection", "smoothed"]
SpectrumMethod: TypeAlias = Literal["auto", "full", "truncated"]
Density: TypeAlias = Tensor | Callable[[Tensor], Tensor]

FULL_UP_TO = 500


@dataclass(frozen=True)
class _Side:
    """One of the two distributions: its points, and the singular vectors over them."""

    points: Tensor  # (N, d)
    weights: Tensor  # (N,), summing to 1
    vectors: Tensor  # (N, k), orthonormal columns
    factor: Tensor | None  # (N, N), the Gram matrix's root whose inverse whitens, if any
    variance: tuple[float, ...]
    density: Tensor | None = None  # (N,), at the points, if known


@dataclass(frozen=True)
class Decomposition:
    r"""Singular values and functions of :math:`\sqrt{p(X)} K(X, X') \sqrt{q(X')}`, Property 8.

    Left functions belong to `x` (density `p`), right functions to `y` (density `q`). The sign of
    each pair is fixed: the left vector's entry of largest size is positive.

    With `whitened` (Property 9) the singular values are canonical correlations, and the functions
    are combinations of the Gaussians at the samples, orthonormal in dX.
    """

    singular_values: Tensor  # (k,)
    kernel: GaussianKernel
    whitened: bool
    method: str
    _left: _Side
    _right: _Side

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
        if kernel.layout is None:
            kernel = GaussianKernel(self._right.variance, self._left.variance,
                                    kernel.per_dimension)  # fmt: skip
        return replace(self, kernel=kernel, _left=self._right, _right=self._left)

    def left(
        self,
        points: Tensor | None = None,  # (M, d)
        form: FunctionForm = "probability",
        density: Density | None = None,
    ) -> Tensor:  # (M, k)
        r"""Left singular functions at new points, or at `x`.

        Out of sample by the Nystrom extension
        :math:`\hat\phi_k(x) = \lambda_k^{-1} \sum_j b_j K(x, y_j) \hat\psi_k(y_j)`; functions of a
        singular value that is lost in rounding are zero.

        Args:
            points: Where to evaluate; by default at `x` itself.
            form: `"probability"`: :math:`\hat\phi`, orthonormal under `p`. `"lebesgue"`:
                :math:`\phi = \hat\phi \sqrt p`, orthonormal in dX.
            density: `p`, as a function of points or its values there, for the Lebesgue form; by
                default the Gaussian mixture that the samples and their variance define (on a
                grid, the given density).
        """
        return self._functions(self._left, self._right, points, form, density)

    def right(
        self,
        points: Tensor | None = None,  # (M, d)
        form: FunctionForm = "probability",
        density: Density | None = None,
    ) -> Tensor:  # (M, k)
        """Right singular functions at new points, or at `y`; see :meth:`left`."""
        return self._functions(self._right, self._left, points, form, density)

    def identity(
        self,
        points_y: Tensor,  # (M, d)
        points_x: Tensor,  # (L, d)
        weighting: IdentityWeighting = "projection",
    ) -> Tensor:  # (M, L)
        r"""The identity :math:`1\{X' = X\}` as seen by the Gaussians at the samples, Eq. (22).

        With :math:`\hat f = U^\top f` and :math:`\hat g = V^\top g`, where `f` and `g` are the
        Gaussians (of unit norm) at `y` and `x`:

        - `"projection"`: :math:`\sum_k \sigma_k^{-1} \hat f_k(X') \hat g_k(X)`, which reproduces
          the Gaussians: an oblique projection;
        - `"smoothed"`: :math:`\sum_k \sigma_k \hat f_k(X') \hat g_k(X)`, the paper's formula.

        In the whitened form :math:`\hat f` and :math:`\hat g` are orthonormal.
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

    def reconstruct(self, points_x: Tensor, points_y: Tensor) -> Tensor:  # (M, L)
        r"""The kernel from its functions, :math:`\sum_k \lambda_k \hat\phi_k \hat\psi_k`."""
        self._needs_kernel_form("reconstruct")
        return (self.left(points_x) * self.singular_values) @ self.right(points_y).T

    def _functions(
        self,
        side: _Side,
        other: _Side,
        points: Tensor | None,
        form: FunctionForm,
        density: Density | None,
    ) -> Tensor:
        check_option("form", form, ("probability", "lebesgue"))
        at = side.points if points is None else check_samples("points", points)
        at = at.to(side.points)
        if at.ndim != 2 or at.shape[1] != side.points.shape[1]:
            raise ShapeError(
                f"points has shape {tuple(at.shape)}; the functions take points of shape "
                f"(M, {side.points.shape[1]})."
            )
        if self.whitened:
            values = self._transformed(side, at)
            if form == "lebesgue":
                return values
            return values / self._density(side, at, points is None, density).sqrt().unsqueeze(-1)
        if points is None:
            roots = sqrt_or_zero(side.weights)
            values = side.vectors * torch.where(roots > 0, 1 / roots, 0.0).unsqueeze(-1)
        else:
            terms = self.kernel.cross_terms(at.shape[-1])
            matrix = gram_matrix(at, other.points, terms, at.dtype)
            columns = other.vectors * sqrt_or_zero(other.weights).unsqueeze(-1)
            values = (matrix @ columns) * self._inverse(self.singular_values)
        if form == "probability":
            return values
        return values * self._density(side, at, points is None, density).sqrt().unsqueeze(-1)

    def _inverse(self, sigma: Tensor) -> Tensor:
        level = sigma[0] * torch.finfo(sigma.dtype).eps * max(
            len(self._left.points), len(self._right.points)
        )  # fmt: skip
        return torch.where(sigma > level, 1 / sigma, 0.0)

    def _density(self, side: _Side, at: Tensor, own: bool, given: Density | None) -> Tensor:
        if given is not None:
            values = given if isinstance(given, Tensor) else given(at)
            if values.shape != at.shape[:1]:
                raise ShapeError(
                    f"density has shape {tuple(values.shape)} for {len(at)} points; "
                    "give one value for each."
                )
            return values.to(at)
        if own and side.density is not None:
            return side.density
        self._needs_numbers()
        return _mixture_density(at, side, self.kernel.per_dimension)

    def _transformed(self, side: _Side, points: Tensor) -> Tensor:  # (M, k)
        """The Gaussians at the samples, turned by the singular vectors (and whitened)."""
        self._needs_numbers()
        at = check_samples("points", points).to(side.points)
        residuals = unit_gaussians(at, side.points, self._one(side), self.kernel.per_dimension)
        if side.factor is None:
            return (residuals * sqrt_or_zero(side.weights)) @ side.vectors
        return residuals @ (side.factor @ side.vectors)

    def _one(self, side: _Side) -> float:
        if len(side.variance) > 1:
            raise VarianceError(
                "The Gaussians at the samples are functions of one variance; an average of "
                f"{len(side.variance)} kernels has none. Decompose with one variance."
            )
        return side.variance[0]

    def _needs_numbers(self) -> None:
        if self.kernel.layout is not None:
            raise OptionError(
                "Rows with codes have no density in dX: use form='probability', which is "
                "orthonormal under the data."
            )

    def _needs_kernel_form(self, what: str) -> None:
        if self.whitened:
            raise OptionError(f"{what} is a property of the kernel's own form: whiten=False.")


@torch.no_grad()
def decompose(
    x: Tensor,  # (N, d)
    y: Tensor | None = None,  # (K, d)
    v: Kernel = "median",
    *,
    rank: int | None = None,
    whiten: bool = False,
    weights_x: Tensor | None = None,  # (N,)
    weights_y: Tensor | None = None,  # (K,)
    ridge: float | None = None,
    method: SpectrumMethod = "auto",
) -> Decomposition:
    r"""Decompose :math:`\mathrm{diag}(\sqrt a) K \, \mathrm{diag}(\sqrt b)`, Property 8.

    .. math:: K(X, X') = \sum_k \lambda_k \hat\phi_k(X) \hat\psi_k(X')

    with functions orthonormal under `p` and `q`. The singular values sum to the SVD cost, so
    their sum is the fidelity of the two samples.

    Args:
        x: Samples of `p`, to which the left functions belong.
        y: Samples of `q`, the right functions. None means `x` again: eigenfunctions.
        v: Variance, several of them, a rule that finds one from `x`, or a kernel.
        rank: How many leading functions; by default all.
        whiten: Whether to decompose :math:`R_G^{-1/2} P^\top R_F^{-1/2}` instead, Property 9.
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
    check_samples("x", x)
    own = y is None
    other = x if y is None else y
    if own and weights_y is not None:
        raise OptionError("weights_y without y: with one set of samples give weights_x alone.")
    kernel = as_kernel(v, x)
    if own and not kernel.symmetric:
        raise OptionError("Eigenfunctions need equal variances: v_q differs from v.")
    pair = SamplePair(
        x, other, kernel, weights_x, weights_x if own else weights_y, unit_norm=whiten
    )
    if x.ndim != 2 or other.ndim != 2:
        raise ShapeError("x and y are two sets of points, each of shape (points, dimension).")
    dtype = torch.float64 if whiten else pair.dtype
    a, b = (
        torch.full((len(s),), 1 / len(s), dtype=dtype, device=s.points.device)
        if s.weights is None
        else s.weights.to(dtype)
        for s in (pair.data, pair.centres)
    )
    matrix = gram_matrix(x, other, pair.terms, dtype)  # (N, K): left are rows
    factors: tuple[Tensor | None, Tensor | None] = (None, None)
    if whiten:
        factors = tuple(  # type: ignore[assignment]
            _inverse_root(gram_matrix(s.points, s.points, s.terms, dtype), pair.ridge(ridge))
            for s in (pair.data, pair.centres)
        )
        matrix = factors[0] @ matrix @ factors[1]  # type: ignore[operator]
    else:
        matrix = matrix * a.sqrt().unsqueeze(-1) * b.sqrt()
    u, s, w, used = _factorised(matrix, rank, method, symmetric=own and not whiten)
    largest = u.gather(0, u.abs().argmax(0, keepdim=True)).squeeze(0)
    signs = torch.where(largest < 0, -1.0, 1.0).to(u)
    variances = [tuple(float(t) for t in side) for side in (kernel.v_p, kernel.v_q)]
    left = _Side(x.to(dtype), a, u * signs, factors[0], variances[0])
    right = _Side(other.to(dtype), b, w * signs, factors[1], variances[1])
    return Decomposition(s, kernel, whiten, used, left, right)


def decompose_grid(
    p: Tensor,  # (G,)
    q: Tensor | None,  # (G,)
    points: Tensor,  # (G, d)
    cell: float,
    v: Kernel,
    *,
    rank: int | None = None,
    method: SpectrumMethod = "auto",
) -> Decomposition:
    r"""The exact discrete decomposition of two densities on a grid, Eqs. (17) and (18).

    Args:
        p: Density of the left functions at each grid point.
        q: Density of the right functions; None means `p`.
        points: The grid.
        cell: Volume (length, area) of the cell that each grid point stands for.
        v: Variance, several of them, or a kernel.
        rank: How many leading functions; by default all.
        method: As in :func:`decompose`.

    Example:
        >>> grid = torch.linspace(-4, 4, 161, dtype=torch.float64)[:, None]
        >>> p = torch.exp(-grid[:, 0] ** 2 / 2) / (2 * torch.pi) ** 0.5
        >>> result = decompose_grid(p, None, grid, 0.05, 0.5, rank=2)
        >>> [round(s, 3) for s in result.singular_values.tolist()]
        [0.618, 0.236]
    """
    check_samples("points", points)
    if not cell > 0:
        raise OptionError(f"cell={cell}: the volume of a grid cell is positive.")
    same = q is None
    densities = (p, p if q is None else q)
    for name, density in zip(("p", "q"), densities, strict=True):
        if density.shape != points.shape[:1]:
            raise ShapeError(
                f"{name} has shape {tuple(density.shape)} for {len(points)} grid points."
            )
        if values_are_readable(density) and not 0.9 < float(density.sum() * cell) < 1.1:
            raise OptionError(
                f"{name} integrates to {float(density.sum() * cell):.3g} over the grid, not to 1: "
                "is the cell right, and does the grid cover the density?"
            )
    result = decompose(
        points, None if same else points, v, rank=rank, method=method,
        weights_x=densities[0], weights_y=None if same else densities[1],
    )  # fmt: skip
    left, right = (
        replace(side, density=density.to(side.points))
        for side, density in zip((result._left, result._right), densities, strict=True)
    )
    return replace(result, _left=left, _right=right)


def unit_gaussians(
    points: Tensor,  # (M, d)
    centres: Tensor,  # (N, d)
    variance: float,
    per_dimension: bool = True,
) -> Tensor:  # (M, N)
    r"""Gaussians of unit :math:`L_2` norm at the centres, evaluated at the points.

    Their inner products are the kernel: :math:`\int f_i f_j \, dX = K_{2v}(y_i, y_j)`. This is the
    half-variance root of the kernel in :math:`C = \mathrm{diag}(\sqrt p) K_{half}`, Eq. (20).

    Example:
        >>> unit_gaussians(torch.zeros(1, 1), torch.zeros(1, 1), 1 / torch.pi)
        tensor([[1.]])
    """
    d = points.shape[-1]
    spread = variance * (d if per_dimension else 1)
    terms = GaussianKernel(variance / 2, per_dimension=per_dimension).cross_terms(d)
    log_constant = -d / 4 * math.log(math.pi * spread)
    return gram_matrix(points, centres, terms, points.dtype) * math.exp(log_constant)


def _mixture_density(at: Tensor, side: _Side, per_dimension: bool) -> Tensor:  # (M,)
    d, parts = at.shape[-1], []
    for variance in side.variance:
        spread = variance * (d if per_dimension else 1)
        terms = GaussianKernel(variance / 2, per_dimension=per_dimension).cross_terms(d)
        logs = log_kernel_means(at, side.points, terms, side.weights, at.dtype)
        parts.append((logs - d / 2 * math.log(2 * math.pi * spread)).exp())
    return torch.stack(parts).mean(0)


def _inverse_root(matrix: Tensor, ridge: float) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * (values.clamp(min=0) + ridge).rsqrt()) @ vectors.T


def _factorised(
    matrix: Tensor, rank: int | None, method: SpectrumMethod, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, str]:
    smaller = min(matrix.shape)
    check_sizes(rank=rank)
    if rank is not None and not 1 <= rank <= smaller:
        raise OptionError(f"rank={rank}: there are between 1 and {smaller} functions.")
    if method == "truncated" and rank is None:
        raise OptionError("method='truncated' needs the number of leading functions: rank=.")
    if method == "auto":
        few = rank is not None and smaller > FULL_UP_TO and 10 * rank <= smaller
        method = "truncated" if few else "full"
    if method == "truncated" and rank is not None:
        u, s, w = leading_svd(matrix, rank)
        return u, s, u if symmetric else w, "truncated"
    if symmetric:
        values, vectors = torch.linalg.eigh(matrix)
        u, s = vectors.flip(-1)[:, :rank], values.flip(-1)[:rank].clamp(min=0)
        return u, s, u, "full"
    u, s, wh = torch.linalg.svd(matrix, full_matrices=False)
    return u[:, :rank], s[:rank], wh[:rank].T, "full"
