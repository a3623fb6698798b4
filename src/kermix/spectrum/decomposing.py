"""Decompose the kernel between two samples, two mixtures, or two densities on a grid."""

from collections.abc import Callable
from dataclasses import replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kermix.checks import check_option, check_samples, check_sizes, values_are_readable
from kermix.costs.components import (
    Mixture,
    MixturePair,
    is_mixture,
    log_unit_gram,
)
from kermix.costs.functions import Kernel
from kermix.costs.kernelized import KernelPair
from kermix.costs.providers import Pair, pair_of
from kermix.costs.samples import SamplePair
from kermix.errors import KernelError, OptionError, ShapeError
from kermix.kernels.gaussian import GaussianKernel, as_kernel
from kermix.kernels.gram import gram_matrix
from kermix.kernels.others import AnyKernel, PointKernel
from kermix.linalg.cholesky import solve_dtype
from kermix.linalg.leading import leading_svd
from kermix.mixtures.components import Components
from kermix.spectrum.decomposition import Decomposition, Side

__all__ = ["SpectrumMethod", "decompose", "decompose_grid"]

SpectrumMethod: TypeAlias = Literal["auto", "full", "truncated"]

FULL_UP_TO = 500


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
    pair = _pair(x, other, v, kernel, weights, whiten)
    used_kernel: GaussianKernel | PointKernel | None = pair.kernel
    if own and isinstance(pair, SamplePair) and not pair.kernel.symmetric:
        raise OptionError("Eigenfunctions need equal variances: v_q differs from v.")
    if pair.data.points.ndim != 2 or pair.centres.points.ndim != 2:
        raise ShapeError("x and y must be two sets of points, each of shape (points, dimension).")
    exact = whiten or isinstance(pair, MixturePair)
    dtype = solve_dtype(pair.device) if exact else pair.dtype
    a, b = (
        torch.full((len(s),), 1 / len(s), dtype=dtype, device=s.points.device)
        if s.weights is None
        else s.weights.to(dtype)
        for s in (pair.data, pair.centres)
    )
    cross, of_x, of_y = _grams(pair, dtype)
    matrix = cross()  # (N, K): left are rows
    factors: tuple[Tensor | None, Tensor | None] = (None, None)
    if whiten:
        left_root, right_root = (_inverse_root(of(), pair.ridge(ridge)) for of in (of_x, of_y))
        factors = left_root, right_root
        matrix = left_root @ matrix @ right_root
    else:
        matrix = matrix * a.sqrt().unsqueeze(-1) * b.sqrt()
    u, s, w, used = _factorized(matrix, rank, method, symmetric=own and not whiten)
    largest = u.gather(0, u.abs().argmax(0, keepdim=True)).squeeze(0)
    signs = torch.where(largest < 0, -1.0, 1.0).to(u)
    variances: list[tuple[float, ...]] = [(), ()]
    components: tuple[Components | None, Components | None] = (None, None)
    if isinstance(pair, MixturePair):
        components = pair.of_x, pair.of_y
    elif isinstance(used_kernel, GaussianKernel):
        sides = used_kernel.v_p, used_kernel.v_q
        variances = [tuple(float(t) for t in side) for side in sides]
    points = [side.points.to(dtype) for side in (pair.data, pair.centres)]
    left = Side(points[0], a, u * signs, factors[0], variances[0],
                 components=components[0], own=is_mixture(x))  # fmt: skip
    right = Side(points[1], b, w * signs, factors[1], variances[1],
                  components=components[1], own=is_mixture(other))  # fmt: skip
    return Decomposition(s, used_kernel, whiten, used, left, right)


def _pair(
    x: Tensor | Mixture,
    y: Tensor | Mixture,
    v: Kernel | None,
    kernel: AnyKernel | None,
    weights: tuple[Tensor | None, Tensor | None],
    whiten: bool,
) -> Pair:
    """Both sides, with the median rule where a variance is needed and none is given."""
    mixtures = [is_mixture(side) for side in (x, y)]
    if not mixtures[0]:
        check_samples("x", x)  # type: ignore[arg-type]
    if v is None and kernel is None and not all(mixtures):
        v = "median"
    if isinstance(v, str) and not all(mixtures):
        v = as_kernel(v, y if mixtures[0] else x)  # type: ignore[arg-type]
    if whiten and kernel is not None and not isinstance(kernel, GaussianKernel):
        raise KernelError(
            "whiten=True is Property 9, whose functions are the Gaussians at the points; other "
            "kernels do not have them. Use whiten=False."
        )
    return pair_of(x, y, v, *weights, kernel, whiten)


def _grams(
    pair: Pair, dtype: torch.dtype
) -> tuple[Callable[[], Tensor], Callable[[], Tensor], Callable[[], Tensor]]:
    """The Gram matrices: (N, K), (N, N) and (K, K)."""
    x, y = pair.data, pair.centres
    if isinstance(pair, MixturePair):
        p, q = pair.of_x, pair.of_y
        return (
            lambda: log_unit_gram(p, q).exp(),
            lambda: log_unit_gram(p, p).exp(),
            lambda: log_unit_gram(q, q).exp(),
        )
    if isinstance(pair, KernelPair):
        first = x.points.to(dtype)
        second = first if y.points is x.points else y.points.to(dtype)
        return (
            lambda: pair.kernel.gram(first, second),
            lambda: pair.kernel.gram(first, first),
            lambda: pair.kernel.gram(second, second),
        )
    data, centres = pair.data, pair.centres
    return (
        lambda: gram_matrix(data.points, centres.points, pair.terms, dtype),
        lambda: gram_matrix(data.points, data.points, data.terms, dtype),
        lambda: gram_matrix(centres.points, centres.points, centres.terms, dtype),
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


def _factorized(
    matrix: Tensor, rank: int | None, method: SpectrumMethod, symmetric: bool
) -> tuple[Tensor, Tensor, Tensor, str]:
    smaller = min(matrix.shape)
    check_sizes(rank=rank)
    if rank is not None and not 1 <= rank <= smaller:
        raise OptionError(f"rank={rank}: must be between 1 and {smaller}.")
    if method == "truncated" and rank is None:
        raise OptionError("method='truncated' needs the number of leading functions (rank).")
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
