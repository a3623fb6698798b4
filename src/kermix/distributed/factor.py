r"""Systems with a Gram matrix whose rows are spread over ranks.

A block Cholesky factorization: rank after rank factors its diagonal block, all others take it and
update their rows. Each rank holds its rows alone, $N^2 / W$ numbers, and all that is sent
adds up to $O(N^2)$ numbers.
"""

from typing import Any

import torch
from torch import Tensor

from kermix.distributed.ranks import Ranks, slice_of

__all__ = ["squared_norms"]


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
