"""Work on a GPU as CUDA graphs: captured once, replayed with other values.

A small computation is a few hundred short kernels, and a GPU waits for Python between them. A
graph launches all of them at once, in memory that stays where it is. What goes in is copied there,
and what comes out is copied from there: no replay changes a tensor that somebody holds.
`ReplayedCalls` is for numbers with gradients, such as the costs, `StepGraph` for steps of a
training.
"""

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from kermix.checks import is_traced

__all__ = ["ReplayedCalls", "StepGraph", "unchanged"]

Found = TypeVar("Found")
Numbers: TypeAlias = tuple[float, ...]
Compute: TypeAlias = Callable[[Sequence[Tensor | None], Numbers | Tensor], Tensor]

CAPTURING = threading.Lock()  # threads that capture would wait for each other's kernels


class _Here(threading.local):
    """What this thread is at."""

    captures = False


HERE = _Here()


def captured(
    call: Callable[[], Found],
    device: torch.device,
    warm_ups: int,
    around: AbstractContextManager[None] | None = None,
    generator: torch.Generator | None = None,
    pool: Any = None,
) -> tuple[torch.cuda.CUDAGraph, Found]:
    """A graph of a call, and the tensors in which each replay leaves what the call returns.

    Args:
        call: Works on tensors that stay where they are, and reads no values.
        device: The GPU.
        warm_ups: How often it is called before, until nothing is set up any more.
        around: What these calls are made in.
        generator: The source of random numbers.
        pool: Memory of other graphs, none of which is replayed at the same time.
    """
    with CAPTURING, torch.cuda.device(device), _capturing():
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side), around or nullcontext():
            for _ in range(warm_ups):
                call()
        torch.cuda.current_stream(device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        if generator is not None and generator.device.type == "cuda":
            graph.register_generator_state(generator)
        # What other threads do meanwhile is no part of it, and is allowed.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            found = call()
    return graph, found


@contextmanager
def _capturing() -> Iterator[None]:
    HERE.captures = True
    try:
        yield
    finally:
        HERE.captures = False


class CallGraph:
    """Value and gradients of a call, in memory that stays where it is.

    Args:
        compute: What is computed, from tensors and numbers.
        tensors: The tensors that a call is made with.
        numbers: Its numbers; both may change from call to call.
        pool: Memory of other graphs, none of which is replayed at the same time.
    """

    def __init__(
        self, compute: Compute, tensors: Sequence[Tensor | None], numbers: Numbers, pool: Any
    ) -> None:
        places, distinct = _places(tensors)
        self._inputs = [t.detach().clone().requires_grad_(t.requires_grad) for t in distinct]
        own, device = _placed(self._inputs, places), distinct[0].device
        self._sent = numbers
        self._numbers = torch.tensor(numbers, dtype=torch.float64, device=device)
        wanted = [t for t in self._inputs if t.requires_grad]

        def call() -> tuple[Tensor, tuple[Tensor, ...]]:
            value = compute(own, self._numbers)
            learns = wanted and torch.is_grad_enabled()
            return value.detach(), torch.autograd.grad(value, wanted) if learns else ()

        before = torch.cuda.memory_reserved(device)
        self.pool = pool or torch.cuda.graph_pool_handle()
        self._graph, (self._value, self._gradients) = captured(call, device, 1, pool=self.pool)
        self.size = max(torch.cuda.memory_reserved(device) - before, 0)

    def replay(
        self, tensors: Sequence[Tensor], numbers: Numbers
    ) -> tuple[Tensor, Sequence[Tensor]]:
        """The value, and the gradients of those tensors that have one."""
        with torch.no_grad():
            torch._foreach_copy_(self._inputs, list(tensors))
            for place, (sent, number) in enumerate(zip(self._sent, numbers, strict=True)):
                if sent != number:  # a kernel each, for which the host does not wait
                    self._numbers[place].fill_(number)
        self._sent = numbers
        self._graph.replay()
        return self._value.clone(), [gradient.clone() for gradient in self._gradients]


class _Replay(torch.autograd.Function):
    """A graph's value; its gradient is known with it."""

    @staticmethod
    def forward(
        ctx: Any,
        graph: CallGraph,
        again: Callable[..., Tensor],
        numbers: Numbers,
        *tensors: Tensor,
    ) -> Tensor:
        value, gradients = graph.replay(tensors, numbers)
        ctx.again, ctx.count = again, len(tensors)
        ctx.save_for_backward(*tensors, *gradients)
        return value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        tensors, gradients = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        wanted = [t for t in tensors if t.requires_grad]
        if torch.is_grad_enabled():  # somebody differentiates once more
            value = ctx.again(tensors)
            gradients = torch.autograd.grad(value, wanted, grad, create_graph=True)
        else:
            gradients = [grad * gradient for gradient in gradients]
        of = iter(gradients)
        return (None, None, None, *(next(of) if t.requires_grad else None for t in tensors))


@dataclass
class ReplayedCalls:
    """Graphs of calls by all that tells calls apart; a call asked for often is captured.

    Safe for threads and streams, each of which has graphs of its own. What cannot be captured, or
    has no room in memory, is computed as it is.

    Attributes:
        calls_before: Calls of a kind that are computed before one is captured.
        most_graphs: How many graphs are kept; those that were not asked for longest go first.
        largest_share: Of a GPU's memory, which all graphs on it may take.
        most_counted: Kinds of calls whose number is known.
        graphs: Those that are kept.
        counts: How often calls of a kind were made before there is a graph of them.
    """

    calls_before: int = 3
    most_graphs: int = 32
    largest_share: float = 0.125
    most_counted: int = 256
    graphs: OrderedDict[Any, CallGraph] = field(default_factory=OrderedDict, init=False)
    # Minus infinity: never captured.
    counts: OrderedDict[Any, float] = field(default_factory=OrderedDict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def value(
        self, compute: Compute, tensors: Sequence[Tensor | None], numbers: Numbers, how: Hashable
    ) -> Tensor:
        """Compute a number from tensors, by a graph if it has been asked often.

        Args:
            compute: From tensors and numbers, which a graph has in a tensor, to a number.
            tensors: Tensors of one device; None is passed on as it is.
            numbers: Numbers that may change from call to call.
            how: What tells this call from others with tensors of the same shapes.
        """
        places, distinct = _places(tensors)
        if not can_be_replayed(distinct):
            return compute(tensors, numbers)
        device = distinct[0].device
        # What may run at the same time has memory of its own.
        queue = device, threading.get_ident(), torch.cuda.current_stream(device).cuda_stream
        key = (
            queue, how, places, len(numbers), _state(),
            *((t.shape, t.dtype, t.requires_grad) for t in distinct),
        )  # fmt: skip
        graph = self._found(key)
        if graph is None:
            if self._count(key) < self.calls_before:
                return compute(tensors, numbers)
            graph = self._capture(key, compute, tensors, numbers)
            if graph is None:
                return compute(tensors, numbers)

        def again(found: Sequence[Tensor]) -> Tensor:
            return compute(_placed(found, places), numbers)

        value: Tensor = _Replay.apply(graph, again, numbers, *distinct)
        return value

    def _found(self, key: Hashable) -> CallGraph | None:
        with self._lock:
            graph = self.graphs.get(key)
            if graph is not None:
                self.graphs.move_to_end(key)
            return graph

    def _count(self, key: Hashable) -> float:
        """How many calls there were before this one."""
        with self._lock:
            before = self.counts.pop(key, 0)
            self.counts[key] = before + 1
            while len(self.counts) > self.most_counted:
                self.counts.popitem(last=False)
            return before

    def _capture(
        self, key: Any, compute: Compute, tensors: Sequence[Tensor | None], numbers: Numbers
    ) -> CallGraph | None:
        device, graph = key[0][0], None
        allowed = self.largest_share * torch.cuda.get_device_properties(device).total_memory
        with self._lock:  # one memory for graphs of a queue, while there is one that holds it
            pools = [made.pool for (of, *_), made in self.graphs.items() if of == key[0]]
        try:
            graph = CallGraph(compute, tensors, numbers, pools[0] if pools else None)
        except RuntimeError:  # of CUDA, or no memory; other errors are those of the call
            graph = None
        with self._lock:
            if graph is None or graph.size > allowed:
                self.counts[key] = -math.inf
                return None
            self.graphs[key] = graph
            del self.counts[key]
            while len(self.graphs) > self.most_graphs or self._taken(device) > allowed:
                self.graphs.popitem(last=False)
        return graph

    def _taken(self, device: torch.device) -> int:
        return sum(graph.size for (of, *_), graph in self.graphs.items() if of[0] == device)


def can_be_replayed(tensors: Sequence[Tensor]) -> bool:
    """Whether tensors are plain ones of one GPU, and nothing stands between us and the values."""
    return (
        all(t.is_cuda and type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
        and len({t.device for t in tensors}) == 1
        and not is_traced(*tensors)
        and not torch.is_anomaly_enabled()  # looks at values
        and not torch._C._len_torch_dispatch_stack()
        and not HERE.captures
        and not torch.cuda.is_current_stream_capturing()
    )


def _state() -> tuple[Hashable, ...]:
    """Settings of PyTorch that a graph keeps as they were."""
    return (
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
    )


def _places(tensors: Sequence[Tensor | None]) -> tuple[tuple[int, ...], list[Tensor]]:
    """Tensors without those that are there twice, and where each is among them."""
    distinct = list({id(t): t for t in tensors if t is not None}.values())
    at = {id(t): place for place, t in enumerate(distinct)}
    return tuple(-1 if t is None else at[id(t)] for t in tensors), distinct


def _placed(tensors: Sequence[Tensor], places: Sequence[int]) -> list[Tensor | None]:
    return [None if place < 0 else tensors[place] for place in places]


class StepGraph:
    """One kind of step.

    Args:
        compute: The step: of a batch and of numbers, as a float64 tensor on the device, to the
            loss. It reads no values, and draws random numbers from `generator` alone.
        numbers: What changes from step to step; of a step's number.
        batch: A batch, nested as one likes; all others have its shapes.
        generator: The source of random numbers. On the host it has no part in `compute`.
        device: The GPU.
        state: The tensors that `compute` changes. What comes into being in the first step, as the
            state of an optimizer does, is 0 before it.
        rows_at_once: Rows of numbers that are sent to the device together.
    """

    def __init__(
        self,
        compute: Callable[[Any, Tensor], Tensor],
        numbers: Callable[[int], list[float]],
        batch: Any,
        generator: torch.Generator,
        device: torch.device,
        state: Callable[[], dict[str, Tensor]],
        rows_at_once: int = 1024,
    ) -> None:
        self._numbers = numbers
        parts, self._form = pytree.tree_flatten(batch)
        self._inputs = [part.clone() for part in parts]
        width = len(numbers(0))
        self._rows = torch.zeros(rows_at_once, width, dtype=torch.float64, device=device)
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        self._first = -rows_at_once - 1
        self._next = -1

        def step() -> Tensor:
            here = pytree.tree_unflatten(self._inputs, self._form)
            row = self._rows.index_select(0, self._place)[0]
            self._place.add_(1).clamp_(max=rows_at_once - 1)
            return compute(here, row)

        self._seek(0)
        around = unchanged(state, generator)
        self._graph, self._loss = captured(step, device, 3, around, generator)
        self._next = -1

    def replay(self, batch: Any, step: int) -> Tensor:
        """Take a step."""
        parts = pytree.tree_leaves(batch)
        if parts:
            torch._foreach_copy_(self._inputs, parts)
        if step != self._next or step - self._first >= len(self._rows):
            self._seek(step)
        self._next = step + 1
        self._graph.replay()
        return self._loss.clone()

    def _seek(self, step: int) -> None:
        """Send the numbers of the steps to come."""
        rows = [self._numbers(step + i) for i in range(len(self._rows))]
        self._rows.copy_(torch.tensor(rows, dtype=torch.float64))
        self._place.zero_()
        self._first = step


@contextmanager
def unchanged(
    state: Callable[[], dict[str, Tensor]], generator: torch.Generator
) -> Iterator[None]:
    """Undo, in place, what happens to tensors and random numbers; what is new becomes 0.

    Example:
        >>> total, draws = torch.ones(()), torch.Generator()
        >>> with unchanged(lambda: {"total": total}, draws):
        ...     _ = total.add_(torch.rand((), generator=draws))
        >>> total
        tensor(1.)
    """
    before = {name: tensor.detach().clone() for name, tensor in state().items()}
    numbers = generator.get_state()
    yield
    with torch.no_grad():
        for name, tensor in state().items():
            if name in before:
                tensor.copy_(before[name])
            else:
                tensor.zero_()
    generator.set_state(numbers)
