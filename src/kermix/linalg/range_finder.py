r"""The polar factor of a matrix of low numerical rank, with a bound of what is left out.

Random sums of rows have an orthonormal basis `U` of what matters: $P^\top = U B + R$ with
$B = U^\top P^\top$. The polar factor of `U B` is `U` times that of `B`, which comes from the
eigenvectors of the small $B B^\top$ in float64. What is left out has a nuclear norm of at
most the root of its size times the Frobenius norm of `R`, which is formed: as a difference of two
sums of squares it would be nothing but their rounding. The last rows of `B`, whose norms add up to
less than what is allowed, bring that bound down and are left out as well.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kermix.linalg.polar import (
    FINEST_TF32_TOLERANCE,
    Polar,
    binary_unit,
    full_products,
    polar_factor,
)

__all__ = ["SMALLEST_SKETCHED", "low_rank_polar"]

SMALLEST_SKETCHED = {"cpu": 600, "cuda": 6000}  # sides below which other ways are as fast
BLOCKS, SHARE_OF_A_BLOCK, SMALLEST_BLOCK, LARGEST_BLOCK = 3, 1 / 16, 16, 128
CHOLESKY_PASSES = 3
LARGEST_SHARE = {"cpu": 0.65, "cuda": 0.15}  # of the smaller side, above which they are faster
MARGIN = 4.0  # by which the residual is planned to be below what is allowed
ROOM = 0.7  # of what is allowed: the norms of all rows add up to 1.3 times the nuclear norm
ROUNDINGS = 8.0
ROWS_IN_A_SUM = 8  # of the sketch: as good as sums of all, without a product


def low_rank_polar(matrix: Tensor, tolerance: float, seed: int = 0) -> tuple[Polar, int] | None:
    """The polar factor to a relative error of the nuclear norm, and its rank; None if it is high.

    Args:
        matrix: A matrix, (M, N), in float32.
        tolerance: Relative error of the nuclear norm.
        seed: Of the sketch: the same matrix has the same answer.

    Example:
        >>> points = torch.linspace(0, 1, 300)
        >>> matrix = (-(points[:, None] - points).square()).exp()
        >>> polar, rank = low_rank_polar(matrix, 1e-4)
        >>> rank, bool(polar.error_bound < 1e-4 * polar.value)
        (57, True)
    """
    unit = binary_unit(matrix)
    with full_products(matrix):
        found = _low_rank_polar(matrix / unit, tolerance, torch.Generator().manual_seed(seed))
    return None if found is None else (found[0].times(unit[0, 0]), found[1])


def _low_rank_polar(
    matrix: Tensor, tolerance: float, generator: torch.Generator
) -> tuple[Polar, int] | None:
    """That of a matrix whose largest entry is about 1."""
    smaller, eps = min(matrix.shape), torch.finfo(matrix.dtype).eps

    def sketch(width: int) -> Tensor:  # (N, width)
        shape = (width, ROWS_IN_A_SUM)
        rows = torch.randint(len(matrix), shape, generator=generator).to(matrix.device)
        signs = torch.randint(2, shape, generator=generator).to(matrix) * 2 - 1
        sums = nn.functional.embedding_bag(rows, matrix, mode="sum", per_sample_weights=signs)
        return sums.mT

    block = min(max(SMALLEST_BLOCK, round(smaller * SHARE_OF_A_BLOCK)), LARGEST_BLOCK)
    first = sketch(BLOCKS * block)
    basis, triangle = _orthonormal(first)
    rank = _planned_rank(triangle, block, smaller, tolerance)
    if rank is None:
        return None
    if rank > first.shape[1]:
        basis, _ = _orthonormal(torch.cat([first, sketch(rank - first.shape[1])], 1))
    rest = basis.mT @ matrix.mT  # (r, M)
    residual = torch.linalg.vector_norm(torch.addmm(matrix, rest.mT, basis.mT, alpha=-1))
    left_out = math.sqrt(smaller) * residual.double()
    # Beside row i are all that follow: the sum of their norms bounds their nuclear norm.
    beside = torch.linalg.vector_norm(rest, dim=1).double().flip(0).cumsum(0).flip(0)
    # Those of the first blocks cost little, and a gradient may have most of its length in them.
    kept = max(int((left_out + beside > ROOM * tolerance * beside[0]).sum()), first.shape[1])
    if kept < len(rest):
        left_out = left_out + beside[kept]
        basis, rest = basis[:, :kept], rest[:kept]
    value, core, bound = (_by_products if matrix.is_cuda else _by_eigenvectors)(rest, tolerance)
    bound = bound + left_out + ROUNDINGS * eps * value
    if not bool(bound <= tolerance * value):
        return None
    return Polar(core.mT @ basis.mT, value.to(matrix.dtype), bound.to(matrix.dtype)), kept


def _orthonormal(columns: Tensor) -> tuple[Tensor, Tensor]:  # (N, r), (r, r)
    """The QR decomposition; on a GPU, which is slow at it, by Cholesky factors in float64."""
    if not columns.is_cuda:
        with _one_thread():
            return torch.linalg.qr(columns)
    basis = columns.double()
    triangle = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
    for number in range(CHOLESKY_PASSES):
        square = basis.mT @ basis
        if number == 0:  # no factorization fails then, and the next ones mend what that changed
            shift = len(square) * torch.finfo(square.dtype).eps * square.diagonal().sum()
            square.diagonal().add_(shift)
        lower = torch.linalg.cholesky_ex(square).L
        basis = torch.linalg.solve_triangular(lower, basis.mT, upper=False).mT
        triangle = lower.mT @ triangle
    return basis.to(columns.dtype), triangle


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads of a QR decomposition spin: beside busy processes it took 1000 times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _by_eigenvectors(rest: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Nuclear norm and polar factor of a wide matrix, and what the norm does not hold."""
    wide = rest.double()
    squares, vectors = torch.linalg.eigh(wide @ wide.mT)
    values = squares.clamp(min=0).sqrt()
    # Float32 holds nothing of what is smaller; without a bound that says so, it is left out.
    seen = values > ROUNDINGS * torch.finfo(rest.dtype).eps * values[-1]
    core = (vectors * torch.where(seen, 1 / values, 0.0)) @ vectors.mT
    return values[seen].sum(), core.to(rest.dtype) @ rest, values[~seen].sum()


def _by_products(rest: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same by matrix products, in full precision."""
    polar = polar_factor(rest, min(tolerance, FINEST_TF32_TOLERANCE) / 2)
    return polar.value.double(), polar.factor, polar.error_bound.double()


def _planned_rank(triangle: Tensor, block: int, smaller: int, tolerance: float) -> int | None:
    r"""The rank at which the residual will be small enough, or None where that is high.

    What a block of the sketch has beside the blocks before it is, on average, the residual at
    their rank; from one block to the next it falls by about the same factor, as it would for
    singular values $\sigma_j \propto q^j$.
    """
    energies = [
        float(triangle[i : i + block, i : i + block].double().square().sum()) / block
        for i in range(0, BLOCKS * block, block)
    ]
    whole, before, after = (math.sqrt(energy) for energy in energies)
    if not 0 < whole < math.inf:
        return None
    if after <= torch.finfo(triangle.dtype).eps * whole:
        return BLOCKS * block
    fall = min(max(after / before, 1e-6), 1 - 1e-6)
    ratio = fall ** (1 / block)
    norm = whole * math.sqrt(1 - ratio**2) / (1 - ratio)
    allowed = tolerance * norm / (MARGIN * math.sqrt(smaller))
    blocks = (BLOCKS - 1) + max(0.0, math.log(after / allowed) / -math.log(fall))
    rank = max(math.ceil(blocks * block), BLOCKS * block)
    return rank if rank <= LARGEST_SHARE[triangle.device.type] * smaller else None
