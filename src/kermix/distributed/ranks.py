"""Collectives that gradients flow through: rows gathered from all ranks, sums over all ranks.

The convention, for everything here: each rank holds its own copy of the loss, and a backward gives
the gradient of the *sum of these copies* with respect to what the rank put in. All copies are
equal, so a rank's gradient is $W$ times its share, and the **mean over ranks of the
gradients of the parameters, which is what data-parallel training takes, is the gradient that one
process with the whole batch would have found**.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kermix.errors import OptionError

__all__ = ["Ranks", "shares", "slice_of"]


def shares(rows: int, ranks: int) -> list[int]:
    """How many of so many rows each rank takes: the first ones take one more if need be.

    Example:
        >>> shares(10, 4)
        [3, 3, 2, 2]
    """
    least, more = divmod(rows, ranks)
    return [least + (rank < more) for rank in range(ranks)]


def slice_of(counts: Sequence[int], rank: int) -> slice:
    """Where a rank's rows lie among all.

    Example:
        >>> slice_of([3, 3, 2], 1)
        slice(3, 6, None)
    """
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])


class Ranks:
    """The processes of a group, and the collectives that losses need.

    Without a process group there is one rank, and nothing is sent.

    Args:
        group: A process group; None stands for all processes.

    Attributes:
        rank: The number of this process in the group.
        size: The number of processes.
        payload: Bytes that this rank has handed to collectives so far: of a gather its own rows
            as padded, of a sum the whole tensor. What a network moves for them depends on its
            algorithm.

    Example:
        >>> ranks = Ranks()
        >>> ranks.rank, ranks.size, ranks.sum(torch.ones(2))
        (0, 1, tensor([1., 1.]))
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        there = dist.is_available() and dist.is_initialized()
        if group is not None and not there:
            raise OptionError(
                "group is given, but there is no process group: call "
                "torch.distributed.init_process_group first, or leave group out."
            )
        self.group = group
        self.rank = dist.get_rank(group) if there else 0
        self.size = dist.get_world_size(group) if there else 1
        self.payload = 0
        if self.rank < 0:
            raise OptionError("This process is not a member of the given group.")

    def gather(self, rows: Tensor, counts: Sequence[int], dim: int = -2) -> Tensor:
        """The rows of all ranks, one rank after the other, along an axis that may differ in size.

        Args:
            rows: The rows of this rank.
            counts: How many rows each rank has.
            dim: The axis along which rows lie.
        """
        if self.size == 1:
            return rows
        return _Gather.apply(rows, self, tuple(counts), dim)

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over ranks of tensors of one shape."""
        return tensor if self.size == 1 else _Sum.apply(tensor, self)

    @torch.no_grad()
    def max(self, tensor: Tensor) -> Tensor:
        """The largest over ranks, element by element; a constant for differentiation."""
        largest = tensor.detach().clone()
        if self.size > 1:
            self._count(largest)
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=self.group)
        return largest

    @torch.no_grad()
    def broadcast(self, tensor: Tensor, owner: int = 0) -> Tensor:
        """The tensor of one rank, on all ranks; the others give one of its shape."""
        tensor = tensor.detach().clone(memory_format=torch.contiguous_format)
        if self.size > 1 and tensor.numel():
            self._count(tensor)
            dist.broadcast(tensor, self._global(owner), group=self.group)
        return tensor

    def collect(self, numbers: Sequence[int], device: torch.device) -> list[list[int]]:
        """Whole numbers of every rank, as Python numbers: waits for the device."""
        if self.size == 1:
            return [list(numbers)]
        mine = torch.tensor(numbers, dtype=torch.int64, device=device)
        parts = [torch.empty_like(mine) for _ in range(self.size)]
        self._count(mine)
        dist.all_gather(parts, mine, group=self.group)
        return torch.stack(parts).tolist()

    def log_sum(self, logarithms: Tensor, weights: Tensor | None, total: int) -> Tensor:
        r"""Logarithm of $\sum_r \sum_j w_j e^{l_j}$ over the last axis and all ranks.

        Args:
            logarithms: The numbers of this rank, (*B, n), where n may be zero.
            weights: Their weights (*B, n), which sum to 1 over all ranks; None: `1 / total`.
            total: The number of numbers on all ranks.
        """
        seen = logarithms.detach()
        if weights is not None:
            seen = seen.masked_fill(weights <= 0, -torch.inf)
        lowest = torch.full_like(seen.sum(-1), -torch.inf)
        scale = self.max(seen.amax(-1) if seen.shape[-1] else lowest)
        values = (logarithms - scale.unsqueeze(-1)).clamp(max=60.0).exp()
        weighted = values / total if weights is None else values * weights.to(values)
        return scale + self.sum(weighted.sum(-1)).log()

    def _count(self, tensor: Tensor) -> None:
        self.payload += tensor.numel() * tensor.element_size()

    def _global(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ranks: Ranks, counts: tuple[int, ...], dim: int) -> Tensor:
        ctx.ranks, ctx.counts, ctx.dim = ranks, counts, dim
        first = rows.detach().movedim(dim, 0)
        # Equal sizes are what every backend can gather.
        padded = first.new_zeros(max(counts), *first.shape[1:])
        padded[: len(first)] = first
        parts = [torch.empty_like(padded) for _ in counts]
        ranks._count(padded)
        dist.all_gather(parts, padded, group=ranks.group)
        whole = torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])
        return whole.movedim(0, dim)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        total = grad.movedim(ctx.dim, 0).contiguous().clone()
        ctx.ranks._count(total)
        dist.all_reduce(total, group=ctx.ranks.group)
        mine = total[slice_of(ctx.counts, ctx.ranks.rank)]
        return mine.movedim(0, ctx.dim), None, None, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, ranks: Ranks) -> Tensor:
        ctx.ranks = ranks
        return _summed(tensor, ranks)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _summed(grad, ctx.ranks), None


def _summed(tensor: Tensor, ranks: Ranks) -> Tensor:
    total = tensor.detach().contiguous().clone()
    ranks._count(total)
    dist.all_reduce(total, group=ranks.group)
    return total
