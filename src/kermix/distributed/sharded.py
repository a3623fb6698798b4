r"""The costs with the rows of their Gram matrices spread over ranks.

Each rank evaluates the kernel between its own points and all points of the other set: the work and
the memory of every Gram matrix are divided by the number of ranks. What is sent is the points of
one set or both, and matrices of the smaller set's size.

===========  ======================  =================================================
cost         points gathered         reduced over ranks
===========  ======================  =================================================
scalar       both                    three numbers
vector       both                    the projection, K numbers
data_fixed   the centres             a number
trace        both                    blocks of the factor of R_G, and K x K
logdet       both                    the same
svd          the smaller set         a K x K factor of each rank, or K x K at each step
===========  ======================  =================================================
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.costs import dual
from kermix.costs.sketched import MatrixForm
from kermix.distributed.factor import squared_norms
from kermix.distributed.ranks import Ranks, slice_of
from kermix.errors import ShapeError
from kermix.kernels.gaussian import GaussianKernel, KernelTerms
from kermix.kernels.gram import ScaledGram, gram_matrix, scaled_gram
from kermix.kernels.means import log_kernel_means
from kermix.linalg.cholesky import Cholesky, cholesky, solve_dtype, sqrt_or_zero
from kermix.linalg.nuclear import NuclearMethod, chosen_method
from kermix.linalg.polar import polar_factor

__all__ = ["RankSet", "kernel_sets", "matrix", "scalar", "svd", "vector"]


@dataclass
class RankSet:
    """Points of which each rank holds some.

    Attributes:
        ranks: The processes.
        points: The points of this rank, (*B, n, d); there may be none.
        counts: The number of points on each rank.
        weights: The weights of *all* points, which sum to 1; None: all equal.
        terms: The kernel between these points.
    """

    ranks: Ranks
    points: Tensor
    counts: list[int]
    weights: Tensor | None
    terms: KernelTerms
    _gathered: Tensor | None = None

    def __len__(self) -> int:
        return sum(self.counts)

    @property
    def everywhere(self) -> Tensor:  # (*B, N, d)
        """The points of all ranks; they are sent once."""
        if self._gathered is None:
            self._gathered = self.ranks.gather(self.points, self.counts)
        return self._gathered

    @property
    def own_weights(self) -> Tensor | None:  # (*B, n)
        """The weights of this rank's points."""
        if self.weights is None:
            return None
        return self.weights[..., slice_of(self.counts, self.ranks.rank)]

    def log_mean_of(self, other: "RankSet", terms: KernelTerms, dtype: torch.dtype,
                    chunk: int | None) -> Tensor:  # fmt: skip
        """Logarithm of the inner product of this density with another, (*B,)."""
        rows = self.log_means(other, terms, dtype, chunk)
        return self.ranks.log_sum(rows, self.own_weights, len(self))

    def log_means(self, other: "RankSet", terms: KernelTerms, dtype: torch.dtype,
                  chunk: int | None) -> Tensor:  # fmt: skip
        """Logarithm of the other density, times a constant, at this rank's points, (*B, n)."""
        sources = other.everywhere
        if not self.points.shape[-2]:
            return _nothing(self.points, sources).sum(-1).to(dtype)
        return log_kernel_means(self.points, sources, terms, other.weights, dtype, chunk)

    def log_norm(self, dtype: torch.dtype, chunk: int | None) -> Tensor:  # (*B,)
        """Logarithm of the inner product of the density with itself."""
        return self.log_mean_of(self, self.terms, dtype, chunk)

    def gram_rows(self, dtype: torch.dtype) -> Tensor:  # (n, N)
        """This rank's rows of the Gram matrix."""
        others = self.everywhere
        if self.points.shape[-2]:
            rows = gram_matrix(self.points, others, self.terms, dtype)
        else:
            rows = _nothing(self.points, others).to(dtype)
        own, roots = (_roots(w, dtype, len(self)) for w in (self.own_weights, self.weights))
        if own is None or roots is None:
            return rows
        return rows * own.unsqueeze(-1) * roots.unsqueeze(-2)

    def factor(self, dtype: torch.dtype, ridge: float) -> Cholesky:
        """Factor of the whole Gram matrix, on every rank."""
        points = self.everywhere
        matrix = gram_matrix(points, points, self.terms, dtype)
        roots = _roots(self.weights, dtype, len(self))
        if roots is not None:
            matrix = matrix * roots.unsqueeze(-1) * roots.unsqueeze(-2)
        return cholesky(matrix, ridge)


def scalar(
    x: RankSet, y: RankSet, cross: KernelTerms, dtype: torch.dtype, chunk: int | None
) -> Tensor:
    """Logarithm of the normalised scalar cost."""
    log_cross = y.log_mean_of(x, cross, dtype, chunk)
    return 2 * log_cross - y.log_norm(dtype, chunk) - x.log_norm(dtype, chunk)


def vector(
    x: RankSet, y: RankSet, cross: KernelTerms, ridge: float, chunk: int | None
) -> tuple[Tensor, Tensor]:
    """Logarithm of the normalised vector-matrix cost, and the ridge that was needed."""
    dtype = solve_dtype(x.points.device)
    own = y.log_means(x, cross, dtype, chunk)
    logarithms = y.ranks.gather(own, y.counts, dim=-1)
    seen = logarithms.detach()
    if y.weights is not None:
        seen = seen.masked_fill(y.weights <= 0, -math.inf)
    log_scale = seen.amax(-1)
    projection = (logarithms - log_scale.unsqueeze(-1)).clamp(max=60.0).exp()
    roots = _roots(y.weights, dtype, len(y))
    factor = y.factor(dtype, ridge)
    log_cost = dual.log_vector_cost(
        projection if roots is None else projection * roots, log_scale, factor
    )
    return log_cost - x.log_norm(dtype, chunk), factor.ridge


def data_fixed(x: RankSet, y: RankSet, cross: KernelTerms, ridge: float) -> tuple[Tensor, Tensor]:
    """Logarithm of the normalised matrix-matrix cost without `R_G`, and the ridge used."""
    dtype = solve_dtype(x.points.device)
    gram = _cross_gram(y, x, cross, dtype, len(x), len(y))
    factor = y.factor(dtype, ridge)
    squares = factor.whiten(gram.matrix).square().sum((-2, -1))
    log_cost = 2 * gram.log_scale + x.ranks.sum(squares).log()
    return log_cost - math.log(len(x)), factor.ridge


def matrix(
    x: RankSet, y: RankSet, cross: KernelTerms, ridge: float, form: MatrixForm
) -> tuple[Tensor, Tensor]:
    """Logarithm of the matrix-matrix cost (the trace normalised), and the ridge used."""
    if form == "data_fixed":
        return data_fixed(x, y, cross, ridge)
    if x.points.ndim != 2 or y.points.ndim != 2:
        raise ShapeError(
            f"strategy='shard' with form={form!r} takes one set of points on each side, not a "
            "batch of them; use strategy='gather'."
        )
    dtype = solve_dtype(x.points.device)
    gram = _cross_gram(y, x, cross, dtype, len(x), len(y))
    roots = _roots(x.weights, dtype, len(x))
    mean = gram.matrix.new_ones(()) if roots is None else roots.square().mean()
    rows = x.gram_rows(dtype)
    norms, used = squared_norms(rows, gram.matrix.mT, mean, ridge, x.counts, x.ranks)
    factor = y.factor(dtype, ridge)
    squares = factor.whiten(factor.whiten(norms).mT)
    used = torch.maximum(factor.ridge, used)
    if form == "logdet":
        return dual.log_determinant_of(squares, gram.log_scale), used
    log_cost = 2 * gram.log_scale + squares.diagonal().sum().log()
    return log_cost - math.log(min(len(x), len(y))), used


def svd(
    x: RankSet,
    y: RankSet,
    cross: KernelTerms,
    dtype: torch.dtype,
    method: NuclearMethod,
    tolerance: float,
) -> tuple[Tensor, Tensor | None]:
    """Logarithm of the fidelity, and a bound of its relative error (None: exact)."""
    small, large = (y, x) if len(y) <= len(x) else (x, y)
    gram = _cross_gram(small, large, cross, dtype)
    chosen = chosen_method(gram.matrix) if method == "auto" else method
    bound = None
    with torch.no_grad():
        if chosen == "polar":
            polar = polar_factor(gram.matrix.detach(), tolerance, over=large.ranks)
            factor, bound = polar.factor, polar.error_bound / polar.value
        else:
            factor = _sharded_polar(gram.matrix.detach(), large)
    # A constant polar factor has the right value and gradient.
    norm = large.ranks.sum((factor * gram.matrix).sum((-2, -1)))
    log_cost = gram.log_scale + norm.log()
    for side in (x, y):
        if side.weights is None:
            log_cost = log_cost - math.log(len(side)) / 2
    return log_cost, bound


def _sharded_polar(matrix: Tensor, columns: RankSet) -> Tensor:  # (*B, K, n) -> (*B, K, n)
    """The polar factor of a matrix whose columns are spread over ranks, to working precision.

    By QR of each rank's columns and of the triangles of all ranks, so that squares of singular
    values, which would lose half the digits, are never formed.
    """
    q, r = torch.linalg.qr(matrix.mT)  # (*B, n, m), (*B, m, K)
    ranks, k = columns.ranks, matrix.shape[-2]
    counts = [min(count, k) for count in columns.counts]
    stacked = ranks.gather(r, counts)
    q2, r2 = torch.linalg.qr(stacked)
    u, s, vh = torch.linalg.svd(r2, full_matrices=False)
    level = s[..., :1] * (max(k, len(columns)) * torch.finfo(s.dtype).eps)
    turn = (u * (s > level).to(s.dtype).unsqueeze(-2)) @ vh
    own = q2[..., slice_of(counts, ranks.rank), :]
    return (q @ (own @ turn)).mT


def _cross_gram(
    rows: RankSet,
    columns: RankSet,
    terms: KernelTerms,
    dtype: torch.dtype,
    total_columns: float = 1.0,
    total_rows: float = 1.0,
) -> ScaledGram:  # (*B, K, n)
    """This rank's columns of the cross Gram matrix, of a scale that all ranks share."""
    points, own = rows.everywhere, columns.points
    ranks = columns.ranks
    batch = torch.broadcast_shapes(points.shape[:-2], own.shape[:-2])
    if own.shape[-2]:
        gram = scaled_gram(points, own, terms, dtype, rows.weights, columns.own_weights)
        matrix, log_scale = gram.matrix, gram.log_scale
    else:
        matrix = (points @ own.mT).to(dtype)
        log_scale = matrix.new_full(batch, -math.inf)
    common = ranks.max(log_scale)
    matrix = matrix * (log_scale - common).exp()[..., None, None]
    roots = _roots(rows.weights, dtype, total_rows)
    if roots is not None:
        matrix = matrix * roots.unsqueeze(-1)
    roots = _roots(columns.own_weights, dtype, total_columns)
    if roots is not None:
        matrix = matrix * roots.unsqueeze(-2)
    return ScaledGram(matrix, common)


def _roots(weights: Tensor | None, dtype: torch.dtype, total: float) -> Tensor | None:
    return None if weights is None else sqrt_or_zero(total * weights.to(dtype))


def _nothing(own: Tensor, others: Tensor) -> Tensor:  # (*B, 0, M)
    """No rows, but with a gradient (of zero): all ranks must take part in the backward."""
    return own @ others.mT


def kernel_sets(
    ranks: Ranks,
    kernel: GaussianKernel,
    sides: tuple[tuple[Tensor, list[int], Tensor | None], tuple[Tensor, list[int], Tensor | None]],
) -> tuple[RankSet, RankSet]:
    """Data and centres as sets over ranks."""
    dimension = sides[0][0].shape[-1]
    terms = kernel.data_terms(dimension), kernel.centre_terms(dimension)
    x, y = (RankSet(ranks, *side, t) for side, t in zip(sides, terms, strict=True))
    return x, y
