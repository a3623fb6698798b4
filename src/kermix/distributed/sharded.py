"""The costs with the rows of their Gram matrices spread over ranks.

Each rank evaluates the kernel between its own points and all points of the other set: the work and
the memory of every Gram matrix are divided by the number of ranks. What is sent is the points of
one set or both, and matrices of the smaller set's size.

| cost       | points gathered | reduced over ranks                                 |
| ---------- | --------------- | -------------------------------------------------- |
| scalar     | both            | three numbers                                      |
| vector     | both            | the projection, K numbers                          |
| data_fixed | the centers     | a number                                           |
| trace      | both            | blocks of the factor of R_G, and K x K             |
| logdet     | both            | the same                                           |
| svd        | the smaller set | a K x K factor of each rank, or K x K at each step |

Systems with $R_G$ are solved by a block Cholesky factorization: rank after rank factors its
diagonal block, all others take it and update their rows. Each rank holds $N^2 / W$ numbers, and
all that is sent adds up to $O(N^2)$ numbers.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kermix.checks import broadcast_shape
from kermix.costs.formulas import Correlations, Scaled
from kermix.costs.points import PointSet, predicted_by
from kermix.distributed.processes import Ranks, slice_of
from kermix.errors import ShapeError
from kermix.info import Info
from kermix.kernels.gaussian import GaussianKernel, KernelTerms
from kermix.kernels.gram import ScaledGram, gram_matrix, scaled_gram
from kermix.kernels.means import log_kernel_means
from kermix.linalg.cholesky import Cholesky, sqrt_or_zero
from kermix.linalg.nuclear import NuclearMethod, chosen_method
from kermix.linalg.polar import polar_factor

__all__ = ["RankSet", "RankStatistics", "kernel_sets", "squared_norms"]


def squared_norms(
    rows: Tensor,  # (n, N)
    columns: Tensor,  # (n, K)
    mean_diagonal: Tensor,  # ()
    ridge: float,
    counts: list[int],
    ranks: Ranks,
) -> tuple[Tensor, Tensor]:  # (K, K), ()
    r"""$B^\top (R + \epsilon)^{-1} B$, on all ranks, and the ridge that was needed.

    Args:
        rows: This rank's rows of `R`, symmetric and positive semi-definite.
        columns: This rank's rows of `B`.
        mean_diagonal: The mean of the diagonal of `R`.
        ridge: What is added to the diagonal, relative to its mean. As in
            `kermix.linalg.cholesky.cholesky`, one that is too small is raised to what cannot
            fail.
        counts: Rows of each rank.
        ranks: The processes.
    """
    total = sum(counts)
    safe = 2 * total * (total + 1) * torch.finfo(rows.dtype).eps
    own = slice_of(counts, ranks.rank)
    unit = torch.zeros_like(rows)
    unit[:, own].fill_diagonal_(1.0)

    def shifted(relative: float) -> Tensor:
        return rows + relative * mean_diagonal * unit

    factor, failed = _factor(shifted(ridge).detach(), counts, ranks)
    if ridge < safe and bool(failed):
        ridge = safe
        factor, _ = _factor(shifted(ridge).detach(), counts, ranks)
    norms = _SquaredNorms.apply(shifted(ridge), columns, factor, counts, ranks)
    return norms, rows.new_tensor(ridge)


@torch.no_grad()
def _factor(rows: Tensor, counts: list[int], ranks: Ranks) -> tuple[Tensor, Tensor]:
    """This rank's rows of the lower factor, written over `rows`; and whether it failed."""
    failed = rows.new_zeros(())
    for owner, count in enumerate(counts):
        if not count:
            continue
        part = slice_of(counts, owner)
        block = rows.new_zeros(count, count)
        if ranks.rank == owner:
            block, info = torch.linalg.cholesky_ex(rows[:, part])
            failed = failed + info
        block = ranks.broadcast(block, owner)
        if ranks.rank > owner:
            panel = torch.linalg.solve_triangular(block, rows[:, part].mT, upper=False).mT
        else:
            panel = block if ranks.rank == owner else torch.zeros_like(rows[:, part])
        rows[:, part] = panel
        panels = ranks.gather(panel, counts)
        if ranks.rank > owner:
            rows[:, part.stop :] -= panel @ panels[part.stop :].mT
    rows[:, slice_of(counts, ranks.rank).stop :] = 0
    return rows, ranks.max(failed)


def _solve(factor: Tensor, columns: Tensor, counts: list[int], ranks: Ranks) -> Tensor:
    """This rank's rows of the solution of `L L' S = B`."""
    own = slice_of(counts, ranks.rank)
    block = factor[:, own]
    whitened = columns.new_zeros(sum(counts), columns.shape[1])
    for owner, count in enumerate(counts):
        part = slice_of(counts, owner)
        found = columns.new_zeros(count, columns.shape[1])
        if ranks.rank == owner and count:
            left = columns - factor[:, : part.start] @ whitened[: part.start]
            found = torch.linalg.solve_triangular(block, left, upper=False)
        whitened[part] = ranks.broadcast(found, owner)
    solution = torch.zeros_like(columns)
    pulled = torch.zeros_like(whitened)
    for owner in reversed(range(len(counts))):
        part = slice_of(counts, owner)
        known = ranks.sum(pulled[part])
        if ranks.rank == owner and counts[owner]:
            left = whitened[part] - known
            solution = torch.linalg.solve_triangular(block.mT, left, upper=True)
            pulled[: part.start] += factor[:, : part.start].mT @ solution
    return solution


class _SquaredNorms(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, columns: Tensor, factor: Tensor, counts: list[int], ranks: Ranks
    ) -> Tensor:
        solution = _solve(factor, columns, counts, ranks)
        ctx.save_for_backward(solution)
        ctx.counts, ctx.ranks = counts, ranks
        return ranks.sum(columns.mT @ solution)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (solution,) = ctx.saved_tensors
        grad = ctx.ranks.sum(grad)
        grad_rows = grad_columns = None
        if ctx.needs_input_grad[0]:
            everywhere = ctx.ranks.gather(solution, ctx.counts)
            grad_rows = -(solution @ grad) @ everywhere.mT
        if ctx.needs_input_grad[1]:
            grad_columns = solution @ (grad + grad.mT)
        return grad_rows, grad_columns, None, None, None


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

    @property
    def whole(self) -> PointSet:
        """All points, on every rank."""
        return PointSet(self.everywhere, self.weights, self.terms)


class RankStatistics:
    """Statistics of the costs of sets over ranks.

    Args:
        x: The data.
        y: The centers.
        terms: The kernel between them.
        dtype: The dtype in which everything is computed.
        ridge: Ridge of the Gram matrices.
        chunk: Side of the tiles in which means of the kernel are evaluated.
        method: How the nuclear norm is computed.
        tolerance: Relative error that it may have.
    """

    def __init__(
        self,
        x: RankSet,
        y: RankSet,
        terms: KernelTerms,
        dtype: torch.dtype,
        ridge: float,
        chunk: int | None = None,
        method: NuclearMethod = "auto",
        tolerance: float = 1e-4,
    ) -> None:
        self.x, self.y, self.terms, self.dtype = x, y, terms, dtype
        self.ridge, self.chunk = ridge, chunk
        self.method, self.tolerance = method, tolerance

    @property
    def sizes(self) -> tuple[float, float]:
        """Numbers of points of all ranks."""
        return len(self.x), len(self.y)

    @property
    def weighted(self) -> bool:
        """Whether any weights were given."""
        return self.x.weights is not None or self.y.weights is not None

    @property
    def log_traces(self) -> tuple[float, float]:
        """Of weights that sum to 1, or of points that count 1 each."""
        x, y = (math.log(len(s)) if s.weights is None else 0.0 for s in (self.x, self.y))
        return x, y

    def log_cross(self) -> Tensor:  # (*B,)
        """Logarithm of the inner product of the densities."""
        return self.y.log_mean_of(self.x, self.terms, self.dtype, self.chunk)

    def log_norm_x(self) -> Tensor:  # (*B,)
        """That of the data density with itself."""
        return self.x.log_norm(self.dtype, self.chunk)

    def log_norm_y(self) -> Tensor:  # (*B,)
        """That of the centers' density with itself."""
        return self.y.log_norm(self.dtype, self.chunk)

    def predicted(self) -> Scaled:
        """From each rank's inner products with the data density, gathered."""
        y = self.y
        own = y.log_means(self.x, self.terms, self.dtype, self.chunk)
        logarithms = y.ranks.gather(own, y.counts, dim=-1)
        projection, log_scale = y.whole.rooted_exp(logarithms)
        return predicted_by(projection, log_scale, self._centers())

    def total_correlation(self, data_fixed: bool) -> Scaled:
        """The trace of what `correlations` are; of fixed data a sum over ranks."""
        if not data_fixed:
            squares, log_scale, info, _ = self.correlations()
            return Scaled(squares.diagonal().sum(), log_scale, info)
        cross, centers = self._cross(), self._centers()
        squares = centers.whiten(cross.matrix).square().sum((-2, -1))
        info = Info("cholesky", centers.ridge)
        return Scaled(self.x.ranks.sum(squares), 2 * cross.log_scale, info)

    def correlations(self) -> Correlations:
        """The squares on the side of the centers; the data's Gram matrix stays in shards."""
        if self.x.points.ndim != 2 or self.y.points.ndim != 2:
            raise ShapeError(
                "strategy='shard' with form='trace' or 'logdet' takes one set of points per "
                "argument, not a batch of them; use strategy='gather'."
            )
        x, cross = self.x, self._cross()
        roots = _roots(x.weights, self.dtype, len(x))
        mean = cross.matrix.new_ones(()) if roots is None else roots.square().mean()
        rows = x.gram_rows(self.dtype)
        norms, used = squared_norms(rows, cross.matrix.mT, mean, self.ridge, x.counts, x.ranks)
        centers = self._centers()
        squares = centers.whiten(centers.whiten(norms).mT)
        info = Info("cholesky", torch.maximum(centers.ridge, used))
        return Correlations(squares, 2 * cross.log_scale, info)

    def nuclear(self) -> Scaled:
        """By the polar factor of this rank's columns, those of the larger set."""
        x, y = self.x, self.y
        small, large = (y, x) if len(y) <= len(x) else (x, y)
        gram = _cross_gram(small, large, self.terms, self.dtype)
        chosen = chosen_method(gram.matrix) if self.method == "auto" else self.method
        bound = None
        with torch.no_grad():
            if chosen == "polar":
                polar = polar_factor(gram.matrix.detach(), self.tolerance, over=large.ranks)
                factor, bound = polar.factor, polar.error_bound
            else:
                factor = _sharded_polar(gram.matrix.detach(), large)
        # A constant polar factor has the right value and gradient.
        norm = large.ranks.sum((factor * gram.matrix).sum((-2, -1)))
        return Scaled(norm, gram.log_scale, Info(chosen, error_bound=bound))

    def _centers(self) -> Cholesky:
        """Factor of the centers' whole Gram matrix, on every rank."""
        return self.y.whole.gram_factor(self.dtype, self.ridge)

    def _cross(self) -> ScaledGram:  # (*B, K, n)
        """This rank's columns of the cross Gram matrix."""
        return _cross_gram(self.y, self.x, self.terms, self.dtype, len(self.x), len(self.y))


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
    batch = broadcast_shape(points.shape[:-2], own.shape[:-2])
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
    """Data and centers as sets over ranks."""
    dimension = sides[0][0].shape[-1]
    terms = kernel.data_terms(dimension), kernel.center_terms(dimension)
    x, y = (RankSet(ranks, *side, t) for side, t in zip(sides, terms, strict=True))
    return x, y
