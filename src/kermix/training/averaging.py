"""Averages of weights along a training, and the statistics that belong to averaged weights."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["RunningAverage", "set_statistics"]


class RunningAverage:
    """An exponential running mean of a model's parameters.

    torch's own `AveragedModel` keeps its count on the device and reads it at every step, which
    makes the host wait.

    Args:
        model: Whose parameters are averaged.
        steps: Steps over which the mean reaches back; 0 for none, which leaves the model as it is.
        behind: Steps that are not counted: with one, the first update forgets the start.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> average = RunningAverage(layer, steps=4)
        >>> _ = layer.weight.data.fill_(1.0)
        >>> average.update(done=1000)  # a quarter of the way
    """

    def __init__(self, model: nn.Module, steps: float, behind: int = 0) -> None:
        self.model, self.steps, self.behind = model, steps, behind
        self.tensors: dict[str, Tensor] = {}
        if steps > 0:
            self.tensors = {n: p.detach().clone() for n, p in model.named_parameters()}

    def share(self, done: int) -> float:
        """The part of the way to the model; larger early in a training: the start is forgotten."""
        return max(1 / max(self.steps, 1.0), min(1.0, 10 / (done - self.behind + 10)))

    def update(self, done: int) -> None:
        """Move towards the model, when so many steps are done."""
        self.move(self.share(done))

    @torch.no_grad()
    def move(self, share: float | Tensor) -> None:
        """Move towards the model by a share of the way, which may be a number on the device."""
        if self.steps <= 0:
            return
        means = list(self.tensors.values())
        parameters = [p.detach() for p in self.model.parameters()]
        if isinstance(share, Tensor):
            shares = [share.to(t.dtype).expand_as(t) for t in means]
            torch._foreach_lerp_(means, parameters, shares)
        else:
            torch._foreach_lerp_(means, parameters, share)

    def copy_to(self, model: nn.Module) -> None:
        """Give a model the averaged parameters."""
        model.load_state_dict(self.tensors, strict=False)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the model has the averaged parameters; afterwards its own again."""
        parameters = self.model.named_parameters()
        own = {n: p.detach().clone() for n, p in parameters if n in self.tensors}
        self.copy_to(self.model)
        try:
            yield
        finally:
            self.model.load_state_dict(own, strict=False)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the averages of a checkpoint."""
        for name, tensor in tensors.items():
            self.tensors[name].copy_(tensor)


@torch.no_grad()
def set_statistics(
    model: nn.Module,
    batches: Iterable[Tensor],
    autocast: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Set the running statistics of batch normalization to means over these batches."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean
        norm.train()
    with autocast():
        for batch in batches:
            model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
