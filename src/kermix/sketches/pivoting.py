"""Randomly pivoted Cholesky: landmarks drawn where the kernel is not yet represented."""

import torch
from torch import Tensor

from kermix.kernels.gaussian import KernelTerms
from kermix.kernels.others import PointKernel, kernel_matrix
from kermix.linalg.cholesky import solve_dtype

__all__ = ["random_pivots"]

BLOCK = 128
SMALLEST_RESIDUAL = 1e-12


@torch.no_grad()
def random_pivots(
    points: Tensor,  # (N, d)
    terms: KernelTerms | PointKernel,
    rank: int,
    tolerance: float | None,
    generator: torch.Generator,
) -> Tensor:  # (at most rank,)
    """Indices of landmarks by randomly pivoted Cholesky, in blocks.

    A block of pivots is proposed in proportion to the residual diagonal, and each is kept with
    the probability that its residual, given the pivots kept before it, bears to the one it was
    proposed with. That draws from the same distribution as one pivot at a time (Epperly, Tropp,
    Webber), at the speed of matrix products.

    Args:
        points: The candidates.
        terms: The kernel, whose diagonal is 1.
        rank: How many to choose at most.
        tolerance: Stop when the mean residual is below this.
        generator: Source of the draws, on the CPU.
    """
    dtype = solve_dtype(points.device)
    n = len(points)
    factor = torch.empty(n, rank, dtype=dtype, device=points.device)
    residual = torch.ones(n, dtype=dtype, device=points.device)
    chosen = torch.empty(0, dtype=torch.long)
    while len(chosen) < rank:
        total = float(residual.sum())
        if total <= n * max(tolerance or 0.0, SMALLEST_RESIDUAL):
            break
        proposed = _draw(residual, generator)
        at = proposed.to(points.device)
        done = factor[:, : len(chosen)]
        block = kernel_matrix(points[at], points[at], terms, dtype) - done[at] @ done[at].mT
        kept, lower = _accept(block.cpu(), residual[at].cpu(), generator, rank - len(chosen))
        if not len(kept):
            residual[at] = 0  # what was proposed is represented up to rounding
            continue
        pivots = at[kept.to(at.device)]
        columns = kernel_matrix(points, points[pivots], terms, dtype) - done @ done[pivots].mT
        new = torch.linalg.solve_triangular(lower.to(columns).mT, columns, upper=True, left=False)
        factor[:, len(chosen) : len(chosen) + len(kept)] = new
        residual = (residual - new.square().sum(-1)).clamp(min=0)
        residual[pivots] = 0
        chosen = torch.cat([chosen, proposed[kept]])
    return chosen.to(points.device)


def _draw(residual: Tensor, generator: torch.Generator) -> Tensor:
    """Indices in proportion to the residual, by inversion: repeats are allowed."""
    cumulative = residual.cumsum(0)
    uniform = torch.rand(BLOCK, generator=generator, dtype=torch.float64)
    levels = uniform.to(cumulative) * cumulative[-1]
    return torch.searchsorted(cumulative, levels).clamp(max=len(residual) - 1).cpu()


def _accept(
    block: Tensor, proposed_with: Tensor, generator: torch.Generator, most: int
) -> tuple[Tensor, Tensor]:
    """Which proposals of a block are kept, and the Cholesky factor of the kernel between them."""
    matrix, diagonal = block.numpy().copy(), proposed_with.numpy()
    uniform = torch.rand(len(matrix), generator=generator, dtype=torch.float64).numpy()
    left = matrix.diagonal().copy()
    kept: list[int] = []
    for i in range(len(matrix)):
        if len(kept) == most:
            break
        if left[i] <= SMALLEST_RESIDUAL or uniform[i] * diagonal[i] >= left[i]:
            continue
        column = matrix[i:, i] / left[i] ** 0.5
        matrix[i:, i:] -= column[:, None] * column[None, :]
        left[i:] = matrix.diagonal()[i:]
        kept.append(i)
    indices = torch.tensor(kept, dtype=torch.long)
    chosen = block[indices][:, indices]
    jitter = 1e-14 * torch.eye(len(kept), dtype=block.dtype)
    return indices, torch.linalg.cholesky(chosen + jitter) if kept else chosen
