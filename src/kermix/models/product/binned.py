r"""Gaussian-product networks of tables whose columns have few distinct values, for a CPU.

A column goes through its layers alone, so the layers need to see each of its values once, not each
row: their squared distances are a table with an entry for every value of a column and every term,
and a row is a sum of entries of that table. The layers then cost the same for any number of rows,
and what is left of a row is one addition for each column and term. Statistics of the layers are
those of all rows, weighted by how many have a value.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kermix.models.product.rows import GaussianProduct, VariableLayer
from kermix.models.product.whole import FARTHEST, ROOT

__all__ = [
    "Grid",
    "binned_exponents",
    "binned_values",
    "keep_freed_memory",
    "set_binned_statistics",
]

ROWS_AT_ONCE = 4096
LARGE = 28_000_000  # bytes; a hint of more than 32 MiB would not be taken


def keep_freed_memory() -> None:
    """Let the C library keep what a step frees for the next one, where it is glibc.

    It gives large blocks back to the system at once and has to take fresh pages then, which was
    two fifths of a step. Where a larger one was freed before, it no longer does; this one is
    never written to.
    """
    torch.empty(LARGE, dtype=torch.uint8)


class Grid(NamedTuple):
    """The values of each column, and the share of rows that have them; T columns, B values."""

    inputs: Tensor  # (T, B, width of a variable)
    shares: Tensor  # (T, B), which add up to 1


def binned_values(network: GaussianProduct, grid: Grid, codes: Tensor) -> Tensor:
    """The network's values, (n, E, outputs), of rows that are given by the places of their values.

    There is a gradient with respect to the parameters. In training, running statistics are those
    of the grid for the layers, and follow the batches for the norm of the terms.

    Args:
        network: With members and outputs, of the variational form or of products.
        grid: The values.
        codes: Which of a column's values it is, uint8, (n, E, T): other rows for each member.

    Example:
        >>> start = torch.Generator().manual_seed(0)
        >>> network = GaussianProduct(2, 3, members=1, generator=start)
        >>> grid = Grid(torch.tensor([[[0.0], [1.0]], [[5.0], [6.0]]]), torch.full((2, 2), 0.5))
        >>> binned_values(network, grid, torch.zeros(7, 1, 2, dtype=torch.uint8)).shape
        torch.Size([7, 1, 3])
    """
    size = binned_exponents(network, grid, codes)
    if network.norm is not None:
        size = network.norm(size)
    terms = size.exp().view(len(codes), -1, network.anchors.shape[1]).transpose(0, 1)
    return torch.bmm(terms, network.coefficients.transpose(1, 2)).transpose(0, 1)


def binned_exponents(network: GaussianProduct, grid: Grid, codes: Tensor) -> Tensor:
    """The logarithms of the terms before their norm: (n, E * K)."""
    table = _exponents(network, grid, track=network.training)
    found: Tensor = _Summed.apply(table, codes)
    return found.view(len(codes), -1)


@torch.no_grad()
def set_binned_statistics(network: GaussianProduct, grid: Grid, codes: Tensor) -> None:
    """Set all running statistics to those of these rows, (n, E, T), for weights that stay."""
    _exponents(network, grid, track=True)
    if network.norm is None:
        return
    mean, variance = network.norm.running_mean, network.norm.running_var
    assert mean is not None
    assert variance is not None
    parts = codes.split(ROWS_AT_ONCE)  # twice over the rows, and never all of them at once
    total = torch.zeros_like(mean, dtype=torch.float64)
    for part in parts:
        total += binned_exponents(network, grid, part).sum(0)
    mean.copy_(total / len(codes))
    total.zero_()
    for part in parts:
        total += (binned_exponents(network, grid, part) - mean).square_().sum(0)
    variance.copy_(total / max(1, len(codes) - 1))


def _exponents(network: GaussianProduct, grid: Grid, track: bool) -> Tensor:  # (E * T, B, K)
    """What each value of a column adds to the logarithms of the terms."""
    members, count = network.members or 1, len(network.widths)
    y = grid.inputs.repeat(members, 1, 1)
    shares = grid.shares.repeat(members, 1).unsqueeze(1)
    layers = [layer for layer in network.layers if isinstance(layer, VariableLayer)]
    for number, layer in enumerate(layers, 1):
        weight, anchors, scale, shift = layer.tensors()
        last = number == len(layers)
        if last:  # here so that the mean over columns takes no pass of its own
            share = 1 / math.sqrt(count) if network.form == "variational" else 1.0
            scale, shift = scale * share, (shift - network.anchors) * share
        given = (weight, anchors, scale, shift, shares, layer.norm.eps, last)
        y, mean, variance = _GridLayer.apply(y, *given)
        if track:
            for kept, found in zip(layer.statistics(), (mean, variance), strict=True):
                kept.copy_(found)
    return y


class _GridLayer(torch.autograd.Function):
    """`BN(exp(-(A y - W)^2))` with the statistics of a grid whose points have shares.

    The last layer has no use for its features but for their squares, which come out negative.
    """

    @staticmethod
    def forward(
        ctx: Any,
        y: Tensor,  # (V, B, inputs)
        weight: Tensor,  # (V, inputs, outputs)
        anchors: Tensor,  # (V, outputs)
        scale: Tensor,
        shift: Tensor,
        shares: Tensor,  # (V, 1, B)
        epsilon: float,
        last: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        zero = y.new_zeros(())
        u = torch.baddbmm((anchors * -ROOT).unsqueeze(1), y, weight * ROOT)
        u.clamp_(-FARTHEST, FARTHEST)
        values = torch.addcmul(zero, u, u, value=-1).exp2_()
        mean = torch.bmm(shares, values)
        variance = torch.bmm(shares, values * values).sub_(mean.square()).clamp_(min=0)
        inverse = torch.rsqrt(variance + epsilon)
        factor = inverse * scale.unsqueeze(1)
        result = torch.addcmul(shift.unsqueeze(1) - mean * factor, values, factor)
        away = result if last else None
        ctx.save_for_backward(y, weight, shares, u, values, mean, inverse, factor, away)
        kept = mean.squeeze(1).clone(), variance.squeeze(1)
        ctx.mark_non_differentiable(*kept)
        return (torch.addcmul(zero, result, result, value=-1) if last else result), *kept

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        y, weight, shares, u, values, mean, inverse, factor, away = ctx.saved_tensors
        if away is not None:
            grad = torch.addcmul(grad.new_zeros(()), grad, away, value=-2)
        to_constant = grad.sum(1, keepdim=True)
        to_factor = (grad * values).sum(1, keepdim=True) - to_constant * mean
        # What reaches the statistics goes back to each point by its share.
        slope = to_factor * inverse.square()
        through = torch.addcmul(mean * slope - to_constant, values, slope, value=-1)
        back = torch.addcmul(grad, through, shares.transpose(1, 2)).mul_(values).mul_(u)
        chain = factor * (-2 / ROOT)
        to_y = None
        if ctx.needs_input_grad[0]:
            to_y = torch.bmm(back, (weight * chain).transpose(1, 2))
        to_weight = torch.bmm(y.transpose(1, 2), back) * chain
        to_anchors = (back.sum(1, keepdim=True) * chain).neg_()
        by_layer = (to_anchors, to_factor * inverse, to_constant)
        return to_y, to_weight, *(t.squeeze(1) for t in by_layer), None, None, None


class _Summed(torch.autograd.Function):
    """Sums over the columns of a row; torch's own gradient of such sums takes 20 times as long."""

    @staticmethod
    def forward(ctx: Any, table: Tensor, codes: Tensor) -> Tensor:
        _, members, columns = codes.shape
        variables, values, terms = table.shape
        starts = torch.arange(0, variables * values, values).view(members, columns)
        places = (codes.long() + starts).view(-1, columns)
        ctx.save_for_backward(codes)
        ctx.places, ctx.shape = places, table.shape
        return functional.embedding_bag(places, table.view(-1, terms), mode="sum")

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (codes,) = ctx.saved_tensors
        members = codes.shape[1]
        variables, values, _ = ctx.shape
        # Rows by their value, for each column: numpy sorts bytes by counting them.
        by_column = codes.permute(1, 2, 0).contiguous().numpy()  # (E, T, n)
        order = torch.from_numpy(np.argsort(by_column, axis=-1, kind="stable"))
        order.mul_(members).add_(torch.arange(members).view(-1, 1, 1))
        counts = torch.bincount(ctx.places.view(-1), minlength=variables * values)
        starts = counts.cumsum(0) - counts
        found = functional.embedding_bag(order.view(-1), grad.contiguous(), starts, mode="sum")
        return found.view(ctx.shape), None
