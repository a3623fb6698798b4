"""Large batches through one cost in bounded memory: the gradient in two passes.

A cost couples all points of a batch, so it cannot be taken in parts, but the network that makes
the points can. First all points are made without a graph and the cost gives its gradient with
respect to each of them; then the network runs again in chunks, each of which sends its part of
that gradient back. Memory is that of the cost and of one chunk, however large the batch.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from kermix.errors import OptionError

__all__ = ["cached_backward"]


def cached_backward(
    network: nn.Module,
    inputs: Tensor,  # (n, k)
    loss: Callable[[Tensor], Tensor],  # (n, d) -> ()
    chunk: int,
    backward: Callable[[Tensor, Tensor], None] = torch.autograd.backward,
) -> Tensor:  # ()
    """Add the gradient of `loss(network(inputs))` to the network's parameters.

    The network must give the same outputs in both passes: its randomness is part of the inputs.
    A normalization over the batch is one over a chunk here, and its running means are updated
    once.

    Args:
        network: From inputs to points, row by row.
        inputs: Such as noise.
        loss: The cost of all points together; called once.
        chunk: Rows for each run of the network.
        backward: Called with points and the gradient with respect to them; a Fabric's, for
            instance.

    Returns:
        The value of the loss, without a graph.

    Example:
        >>> network = torch.nn.Linear(2, 1)
        >>> cached_backward(network, torch.ones(5, 2), lambda y: y.square().mean(), 2).shape
        torch.Size([])
    """
    if chunk < 1:
        raise OptionError(f"chunk={chunk}: must be at least 1.")
    parts = inputs.split(chunk)
    with torch.no_grad(), _running_means_kept(network):
        points = torch.cat([network(part) for part in parts])
    points.requires_grad_()
    value = loss(points)
    (gradient,) = torch.autograd.grad(value, points)
    for part, own in zip(parts, gradient.split(chunk), strict=True):
        backward(network(part), own)
    return value.detach()


@contextmanager
def _running_means_kept(network: nn.Module) -> Iterator[None]:
    norms = [m for m in network.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    tracked = [m for m in norms if m.training and m.track_running_stats]
    for norm in tracked:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in tracked:
            norm.track_running_stats = True
