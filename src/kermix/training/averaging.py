"""A running average of a network's weights, kept beside it by torch."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

__all__ = ["averaged_copy", "weights_of"]


def averaged_copy(network: nn.Module, decay: float) -> AveragedModel | None:
    """The exponential average of the weights and buffers of a network; none for no decay."""
    if not decay:
        return None
    return AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(decay), use_buffers=True)


@contextmanager
def weights_of(average: AveragedModel | None, network: nn.Module) -> Iterator[None]:
    """Within it the network has the averaged weights; afterwards its own again.

    Example:
        >>> network = nn.Linear(1, 1)
        >>> average = averaged_copy(network, 0.9)
        >>> network.weight.data += 1
        >>> with weights_of(average, network):
        ...     inside = network.weight.item()
        >>> round(network.weight.item() - inside, 3)
        1.0
    """
    if average is None:
        yield
        return
    own = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    network.load_state_dict(average.module.state_dict())
    try:
        yield
    finally:
        network.load_state_dict(own)
