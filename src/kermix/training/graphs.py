"""A training step as a CUDA graph: captured once, replayed with other batches and numbers.

A step of a small model is a few hundred short kernels, and a GPU waits for Python between them.
A graph launches all of them at once. What a step takes from the host goes through tensors that
stay where they are: its batch, and the numbers that change from step to step.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

__all__ = ["StepGraph", "adam", "unchanged"]

WARM_UPS = 3  # steps after which nothing is set up any more
ROWS_AT_ONCE = 1024  # of numbers that are sent to the device


def adam(
    parameters: Iterable[Any],
    device: torch.device,
    kind: type[torch.optim.Adam] = torch.optim.Adam,
    **options: Any,
) -> torch.optim.Adam:
    """Adam or AdamW; on a GPU in one launch, and such that a graph can hold it.

    Args:
        parameters: Parameters, or groups of them.
        device: Where they are.
        kind: Which of the two.
        options: Of the optimizer; the learning rate is set in each step.
    """
    on_gpu = device.type == "cuda"
    options |= {"fused": True, "capturable": True} if on_gpu else {}
    return kind(parameters, lr=1.0, **options)


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
    """

    def __init__(
        self,
        compute: Callable[[Any, Tensor], Tensor],
        numbers: Callable[[int], list[float]],
        batch: Any,
        generator: torch.Generator,
        device: torch.device,
        state: Callable[[], dict[str, Tensor]],
    ) -> None:
        self._numbers = numbers
        parts, self._form = pytree.tree_flatten(batch)
        self._inputs = [part.clone() for part in parts]
        width = len(numbers(0))
        self._rows = torch.zeros(ROWS_AT_ONCE, width, dtype=torch.float64, device=device)
        self._place = torch.zeros(1, dtype=torch.long, device=device)
        self._first = -ROWS_AT_ONCE - 1
        self._next = -1

        def step() -> Tensor:
            here = pytree.tree_unflatten(self._inputs, self._form)
            row = self._rows.index_select(0, self._place)[0]
            self._place.add_(1).clamp_(max=ROWS_AT_ONCE - 1)
            return compute(here, row)

        self._seek(0)
        side = torch.cuda.Stream(device)
        side.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(side), unchanged(state, generator):
            for _ in range(WARM_UPS):
                step()
        torch.cuda.current_stream(device).wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        if generator.device.type == "cuda":
            self._graph.register_generator_state(generator)
        with torch.cuda.graph(self._graph):
            self._loss = step()
        self._next = -1

    def replay(self, batch: Any, step: int) -> Tensor:
        """Take a step."""
        parts = pytree.tree_leaves(batch)
        if parts:
            torch._foreach_copy_(self._inputs, parts)
        if step != self._next or step - self._first >= ROWS_AT_ONCE:
            self._seek(step)
        self._next = step + 1
        self._graph.replay()
        return self._loss.clone()

    def _seek(self, step: int) -> None:
        """Send the numbers of the steps to come."""
        rows = [self._numbers(step + i) for i in range(ROWS_AT_ONCE)]
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
