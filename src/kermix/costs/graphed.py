"""Calls of a loss on a GPU as CUDA graphs: value and gradients of small sets in one launch.

Of a thousand points the kernels of a cost take less than a millisecond, and launching them one by
one from Python takes several. A call that was made a few times before is captured, and from then
on replayed.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from kermix.checks import is_traced

__all__ = ["GraphedCalls"]

CALLS_BEFORE = 3
MOST_GRAPHS = 8  # each has memory of its own for what goes in and comes out
MOST_POINTS = 4608  # above, launches take a small share of the time

Compute = Callable[..., Tensor]


class GraphedCalls:
    """The graphs of one loss, by the shapes of what it was called with; a copy has none."""

    def __init__(self) -> None:
        self._made: OrderedDict[Hashable, int | _Graph] = OrderedDict()

    def __reduce__(self) -> tuple[type["GraphedCalls"], tuple[()]]:
        return GraphedCalls, ()

    def value(self, compute: Compute, tensors: list[Tensor | None], how: Hashable) -> Tensor:
        """What `compute` gives for the tensors, by a graph if it has been asked often.

        Args:
            compute: A number from tensors; nothing else it depends on may change.
            tensors: Points (n, d) and weights; None is passed on as it is.
            how: What tells this call from others with tensors of the same shapes.
        """
        given = [t for t in tensors if t is not None]
        if not _can_be_captured(given):
            return compute(*tensors)
        device = given[0].device
        learning = torch.is_grad_enabled()
        queue = device, threading.get_ident(), torch.cuda.current_stream(device).cuda_stream
        key = (
            queue, how, learning,
            *((t.shape, t.requires_grad) if t is not None else None for t in tensors),
        )  # fmt: skip
        found = self._made.pop(key, 0)
        if isinstance(found, int) and found >= CALLS_BEFORE:
            with torch.cuda.device(device):
                found = _Graph(compute, tensors, self._pool(queue))
        graph = self._made[key] = found + 1 if isinstance(found, int) else found
        while len(self._made) > MOST_GRAPHS:
            self._made.popitem(last=False)
        if isinstance(graph, int):
            return compute(*tensors)
        value: Tensor = _Replay.apply(graph, compute, *tensors)
        return value

    def _pool(self, queue: Hashable) -> Any:
        """The memory of graphs that are replayed one after another, while there is one of them."""
        for key, graph in self._made.items():
            if isinstance(graph, _Graph) and isinstance(key, tuple) and key[0] == queue:
                return graph.pool
        return torch.cuda.graph_pool_handle()


def _can_be_captured(tensors: list[Tensor]) -> bool:
    return (
        all(t.is_cuda and t.dtype == torch.float32 and t.ndim <= 2 for t in tensors)
        and min(len(t) for t in tensors) >= 2
        and max(len(t) for t in tensors) <= MOST_POINTS
        and len({id(t) for t in tensors}) == len(tensors)  # a set beside itself is another case
        and not is_traced(*tensors)
        and not torch.cuda.is_current_stream_capturing()
    )


class _Graph:
    """Value and gradients of a call, in memory that stays where it is."""

    def __init__(self, compute: Compute, tensors: list[Tensor | None], pool: Any) -> None:
        self.pool = pool
        self._inputs = [
            None if t is None else t.detach().clone().requires_grad_(t.requires_grad)
            for t in tensors
        ]
        wanted = [t for t in self._inputs if t is not None and t.requires_grad]

        def call() -> tuple[Tensor, tuple[Tensor, ...]]:
            value = compute(*self._inputs)
            learns = wanted and torch.is_grad_enabled()
            return value.detach(), torch.autograd.grad(value, wanted) if learns else ()

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph, pool=pool):
            self._value, self._gradients = call()

    def replay(self, tensors: tuple[Tensor | None, ...]) -> tuple[Tensor, list[Tensor]]:
        """The value and the gradients of those tensors that have one."""
        with torch.no_grad():
            for own, given in zip(self._inputs, tensors, strict=True):
                if own is not None and given is not None:
                    own.copy_(given)
        self._graph.replay()
        return self._value.clone(), [gradient.clone() for gradient in self._gradients]


class _Replay(torch.autograd.Function):
    """A graph's value; its gradient is known with it."""

    @staticmethod
    def forward(ctx: Any, graph: _Graph, compute: Compute, *tensors: Tensor | None) -> Tensor:
        value, gradients = graph.replay(tensors)
        ctx.compute, ctx.count = compute, len(tensors)
        ctx.save_for_backward(*tensors, *gradients)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, gradients = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        wanted = [t for t in tensors if t is not None and t.requires_grad]
        if torch.is_grad_enabled():  # somebody differentiates once more
            value = ctx.compute(*tensors)
            gradients = torch.autograd.grad(value, wanted, grad, create_graph=True)
        else:
            gradients = [grad * gradient for gradient in gradients]
        of = iter(gradients)
        found = (next(of) if t is not None and t.requires_grad else None for t in tensors)
        return (None, None, *found)
