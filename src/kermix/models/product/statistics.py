"""Running statistics of a Gaussian-product network that are exactly those of some rows."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from kermix.models.product.rows import GaussianProduct, VariableLayer

__all__ = ["set_row_statistics"]

ROWS_AT_ONCE = 1024
MOST_NUMBERS = 2**27  # features of all rows that are kept from layer to layer: half a gigabyte


@torch.no_grad()
def set_row_statistics(network: GaussianProduct, rows: Tensor) -> None:
    """Set all running statistics to those of these rows, for weights that stay.

    What batches leave behind is a mean over the last ten or so, of weights that have moved on.

    Args:
        network: In evaluation.
        rows: (n, sum of widths), or (n, E, sum of widths); of very many, evenly some.

    Example:
        >>> start = torch.Generator().manual_seed(0)
        >>> network = GaussianProduct(2, 3, generator=start).eval()
        >>> set_row_statistics(network, torch.zeros(50, 2))
        >>> bool((network.layers[0].norm.running_var == 0).all())
        True
    """
    layers = [layer for layer in network.layers if isinstance(layer, VariableLayer)]
    kept = max(layer.weight.shape[1] for layer in layers) * len(network.anchors)
    rows = rows[:: -(-len(rows) * kept // MOST_NUMBERS)]
    parts = [network.variables(part) for part in rows.split(ROWS_AT_ONCE)]
    for layer in layers[:-1]:
        _set(layer.norm, (layer.gaussians(part).flatten(1) for part in parts))
        parts = [layer(part) for part in parts]
    last = layers[-1]
    _set(last.norm, (last.gaussians(part).flatten(1) for part in parts))
    if network.norm is not None:
        away = (last(part) - network.anchors for part in parts)
        members = (network.members or 1, -1)
        _set(network.norm, (-d.square().unflatten(1, members).mean(2).flatten(1) for d in away))


def _set(norm: nn.BatchNorm1d, parts: Iterable[Tensor]) -> None:  # (n, features) each
    """The mean and variance of all parts together."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    mean = torch.zeros_like(norm.running_mean, dtype=torch.float64)
    squares, count = torch.zeros_like(mean), 0
    for part in parts:  # each around its own mean: nothing cancels
        wide = part.double()
        own = wide.mean(0)
        share = len(part) / (count + len(part))
        squares += (wide - own).square_().sum(0) + (own - mean).square() * (count * share)
        mean += (own - mean) * share
        count += len(part)
    norm.running_mean.copy_(mean)
    norm.running_var.copy_(squares / count)
