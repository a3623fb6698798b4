"""Evaluation for a while: every part of a network is then in the mode it was in before."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

__all__ = ["evaluating"]


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put a network in evaluation mode.

    `network.train(before)` would not do afterwards: it sets all parts alike, and a part that is
    trained already, such as an encoder, is to stay as it is.

    Example:
        >>> from torch import nn
        >>> pair = nn.Sequential(nn.Dropout(), nn.Dropout().eval())
        >>> with evaluating(pair):
        ...     pair[0].training
        False
        >>> pair[0].training, pair[1].training
        (True, False)
    """
    before = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training
