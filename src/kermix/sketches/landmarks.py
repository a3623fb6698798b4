"""Landmarks by randomly pivoted Cholesky: drawn where the kernel is not yet represented.

A test must not see rows that its features were chosen from: they fit them better than others. A
map remembers the keys of those rows, short hashes, and a sketch keeps their sums apart. Since the
rule depends on nothing but the content of a row, rows of all sketches are treated alike, and what
is left of each is still a random sample of one source if both sources are the same.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kermix.checks import (
    rows_at_once,
    solve_dtype,
)

__all__ = ["random_pivots", "recognized", "row_keys"]


@torch.no_grad()
def row_keys(rows: Tensor) -> Tensor:  # (N, d) -> (N,)
    """32-bit hashes of rows; equal for equal numbers, whatever their dtype."""
    # Keys are kept in files, so the multipliers must never change.
    generator = torch.Generator().manual_seed(15)
    factors = torch.randint(-(2**62), 2**62, (rows.shape[1],), generator=generator) | 1
    found = []
    for part in rows.detach().cpu().split(rows_at_once(rows.shape[1], 2**20)):
        # Minus zero is zero. Whole numbers have no low bits: fold high ones in.
        bits = (part.double() + 0.0).contiguous().view(torch.int64)
        # High bits of a product depend on all bits of its factors.
        found.append(((bits ^ (bits >> 32)) * factors).sum(1) >> 32)
    return torch.cat(found).to(torch.int32)


@torch.no_grad()
def recognized(keys: Tensor, rows: Tensor) -> Tensor:  # (K,) sorted, (N, d) -> (M,)
    """Indices of the rows whose keys are among those given."""
    if not len(keys) or not len(rows):
        return torch.empty(0, dtype=torch.long, device=rows.device)
    asked, known = row_keys(rows), keys.cpu()
    places = torch.searchsorted(known, asked).clamp(max=len(known) - 1)
    return (known[places] == asked).nonzero().squeeze(-1).to(rows.device)


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
