"""Gaussian-product networks of tables whose columns have few distinct values, for a CPU.

A column goes through its layers alone, so the layers need to see each of its values once, not each
row: their squared distances are a table with an entry for every value of a column and every term,
and a row is a sum of entries of that table. The layers then cost the same for any number of rows.
Statistics of the layers are exactly those of all rows, weighted by how many have a value.

A network that has learned rows by heart is too sure of others, so scores are drawn toward those of
the base rate: with an inverse temperature of 1 they stay, with 0 the answer is the share of each
class, and in between it is the logarithms that are in between. Rows that it has not seen tell how
much.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.networks.product_rows import GaussianProduct, VariableLayer

__all__ = [
    "ColumnBins",
    "Grid",
    "binned_exponents",
    "binned_values",
    "fit_inverse_temperature",
    "retain_heap",
    "set_binned_statistics",
    "set_row_statistics",
    "shrink_to_rates",
]

# Gaussians are powers of two, which torch computes twice as fast as those of e.
ROOT = math.sqrt(math.log2(math.e))  # exp(-u^2) = 2^(-(ROOT u)^2)


@torch.no_grad()
def set_row_statistics(
    network: GaussianProduct, rows: Tensor, at_once: int = 1024, most: int = 2**27
) -> None:
    """Set all running statistics to those of these rows, for weights that stay.

    What batches leave behind is a mean over the last ten or so, of weights that have moved on.

    Args:
        network: In evaluation.
        rows: (n, sum of widths), or (n, E, sum of widths); of very many, evenly some.
        at_once: Rows that are worked on together; sums depend on it.
        most: Features of all rows that are kept from layer to layer: half a gigabyte.

    Example:
        >>> start = torch.Generator().manual_seed(0)
        >>> network = GaussianProduct(2, 3, generator=start).eval()
        >>> set_row_statistics(network, torch.zeros(50, 2))
        >>> bool((network.layers[0].norm.running_var == 0).all())
        True
    """
    layers = [layer for layer in network.layers if isinstance(layer, VariableLayer)]
    kept = max(layer.weight.shape[1] for layer in layers) * len(network.anchors)
    rows = rows[:: -(-len(rows) * kept // most)]
    parts = [network.variables(part) for part in rows.split(at_once)]
    for layer in layers:
        _set(layer.norm, (layer.gaussians(part).flatten(1) for part in parts))
        if layer is not layers[-1]:
            parts = [layer(part) for part in parts]
    if network.norm is not None:
        _set(network.norm, (_log_terms(network, layers[-1](part)) for part in parts))


def _log_terms(network: GaussianProduct, features: Tensor) -> Tensor:  # (n, E * T, K)
    """Logarithms of the terms of the variational form, before their norm: (n, E * K)."""
    squares = (features - network.anchors).square()
    return -squares.unflatten(1, (network.members or 1, -1)).mean(2).flatten(1)


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


def shrink_to_rates(scores: Tensor, inverse_temperature: Tensor | float, rates: Tensor) -> Tensor:
    """Scores between those of the base rates and their own.

    Args:
        scores: Logarithms of probabilities, up to a constant, (..., classes).
        inverse_temperature: From 0 to 1.
        rates: The share of each class, (classes,).

    Example:
        >>> even = torch.tensor([0.5, 0.5])
        >>> shrink_to_rates(torch.tensor([0.0, 4.0]), 0.25, even).softmax(0)
        tensor([0.2689, 0.7311])
    """
    base = rates.log()
    return base + (scores - base) * inverse_temperature


def fit_inverse_temperature(
    scores: Tensor, labels: Tensor, weights: Tensor | None, rates: Tensor, halvings: int = 12
) -> Tensor:
    """The inverse temperature with which labels are most likely, (): their loss is convex in it.

    Args:
        scores: Of rows that were not seen, (..., classes).
        labels: Their classes, (...).
        weights: Of these rows, (...).
        rates: The share of each class.
        halvings: Of the interval from 0 to 1, in which it is looked for.

    Example:
        >>> scores = torch.tensor([[0.0, 8.0]] * 4)
        >>> labels = torch.tensor([1, 1, 1, 0])  # wrong once in four
        >>> found = fit_inverse_temperature(scores, labels, None, torch.full((2,), 0.5))
        >>> round(float(shrink_to_rates(scores[0], found, torch.full((2,), 0.5)).softmax(0)[1]), 3)
        0.75
    """
    base = rates.log()
    away = scores - base
    right = away.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    low, high = away.new_zeros(()), away.new_ones(())
    for _ in range(halvings):
        middle = (low + high) / 2
        chances = (base + away * middle).softmax(-1)
        slope = torch.linalg.vecdot(chances, away) - right
        falls = (slope if weights is None else slope * weights).sum() < 0
        low, high = torch.where(falls, middle, low), torch.where(falls, high, middle)
    # A loss that falls, or rises, all the way has its least at an end.
    return torch.where(high == 1, high, low)


def retain_heap(size: int = 28_000_000) -> None:
    """Let the C library keep what a step frees for the next one, where it is glibc.

    It gives large blocks back to the system at once and has to take fresh pages then, which was
    two fifths of a step. Where a larger one was freed before, it no longer does; this one is
    never written to. A hint of more than 32 MiB would not be taken.
    """
    torch.empty(size, dtype=torch.uint8)


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
def set_binned_statistics(
    network: GaussianProduct, grid: Grid, codes: Tensor, at_once: int = 4096
) -> None:
    """Set all running statistics to those of these rows, (n, E, T), for weights that stay.

    Sums depend on how many rows are worked on at once.
    """
    _exponents(network, grid, track=True)
    if network.norm is None:
        return
    mean, variance = network.norm.running_mean, network.norm.running_var
    assert mean is not None
    assert variance is not None
    parts = codes.split(at_once)  # twice over the rows, and never all of them at once
    total = torch.zeros_like(mean, dtype=torch.float64)
    for part in parts:
        total += binned_exponents(network, grid, part).sum(0)
    mean.copy_(total / len(codes))
    total.zero_()
    for part in parts:
        total += (binned_exponents(network, grid, part) - mean).square_().sum(0)
    variance.copy_(total / max(1, len(codes) - 1))


def _exponents(network: GaussianProduct, grid: Grid, track: bool) -> Tensor:  # (E * T, B, K)
    """Logarithms of the terms that each value of a column contributes."""
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
        given = (weight, anchors, scale, shift, shares, (layer.norm.eps, last))
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
        how: tuple[float, bool],  # what is added to variances, and whether it is the last
    ) -> tuple[Tensor, Tensor, Tensor]:
        (epsilon, last), zero = how, y.new_zeros(())
        u = torch.baddbmm((anchors * -ROOT).unsqueeze(1), y, weight * ROOT)
        # Powers of two below the smallest normal number take five times as long, here and in what
        # follows.
        farthest = math.sqrt(120.0)
        u.clamp_(-farthest, farthest)
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
        return to_y, to_weight, *(t.squeeze(1) for t in by_layer), None, None


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


class ColumnBins:
    """Each column's values, about `most` at most, and the rank of any number among them.

    A column with more distinct values is cut at its quantiles, and the rows in between stand for
    their mean; values that a fair share of the rows has stand for themselves, and may be as many
    again. Networks get two numbers of a column: itself, within its first and last value, and its
    rank. A number beyond is as the last one: it has been seen in no other way.

    Args:
        columns: Scaled, (n, T), float64.
        most: Values of a column at most, up to 128, where none is common.
        weights: Of the rows, (n,), all above 0.

    Attributes:
        codes: Which of its column's values each number is, (n, T), uint8.
        grid: The values, as `kermix.networks.product_binned` takes them.

    Example:
        >>> bins = ColumnBins(np.array([[0.0, 5.0], [1.0, 5.0], [1.0, 7.0]]))
        >>> bins.codes.tolist()
        [[0, 0], [1, 0], [1, 1]]
        >>> bins.inputs(np.array([[0.0, 5.0]])).shape  # two numbers for each column
        torch.Size([1, 4])
    """

    def __init__(
        self,
        columns: np.ndarray,
        most: int = 128,
        weights: np.ndarray | None = None,
    ) -> None:
        found = [_cut(column, most, weights) for column in columns.T]
        self._values = [values for values, _, _ in found]
        self._ranks = [_ranks(counts) for _, counts, _ in found]
        self.codes: Tensor | None = torch.from_numpy(np.stack([c for _, _, c in found], 1))
        widest = max(map(len, self._values))
        # Where a column has fewer values, its last one stands again and no row has it.
        points = np.stack([np.pad(v, (0, widest - len(v)), "edge") for v in self._values], 1)
        shares = [np.pad(k / k.sum(), (0, widest - len(k))) for _, k, _ in found]
        inputs = self.inputs(points).view(widest, -1, 2).transpose(0, 1).contiguous()
        self.grid: Grid | None = Grid(inputs, torch.from_numpy(np.stack(shares)))

    def inputs(self, columns: np.ndarray) -> Tensor:  # (n, 2 T), float64
        """Each column and its rank, side by side."""
        both = np.empty((*columns.shape, 2))
        for number, (values, ranks) in enumerate(zip(self._values, self._ranks, strict=True)):
            column = np.clip(columns[:, number], values[0], values[-1])
            both[:, number, 0], both[:, number, 1] = column, np.interp(column, values, ranks)
        return torch.from_numpy(both.reshape(len(columns), -1))

    def without_rows(self) -> Self:
        """Forget the rows it was made of, which no answer needs."""
        self.codes = self.grid = None
        return self


def _cut(
    column: np.ndarray, most: int, weights: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values in ascending order, the weight of rows that have each, and which each row has."""
    cuts = _cuts(column, most, weights)
    codes = np.searchsorted(cuts, column, side="right")
    rows = np.bincount(codes, minlength=len(cuts) + 1)
    held = rows > 0  # between two quantiles that rounding has set apart there may be no row
    codes, rows = (np.cumsum(held) - 1)[codes], rows[held]
    counts = np.bincount(codes, weights)
    sums = np.bincount(codes, column if weights is None else column * weights)
    # Rounding must not take a mean beyond its rows: ranks are looked up among rising values.
    ends, rising = np.cumsum(rows), np.sort(column)
    means = np.clip(sums / counts, rising[ends - rows], rising[ends - 1])
    return means, counts, codes.astype(np.uint8)


def _cuts(column: np.ndarray, most: int, weights: np.ndarray | None) -> np.ndarray:
    """Where all values but the first begin: at most twice as many as asked for, less two.

    Where there are too many, those that a fair share of rows has in common stay themselves, and
    the rest are cut at their own quantiles: else all quantiles of a column that is mostly zero
    would be zero.
    """
    values, places = np.unique(column, return_inverse=True)
    if len(values) <= most:
        return values[1:]
    counts = np.bincount(places, weights)
    common = counts * most >= counts.sum()
    rest = ~common[places]
    parts = most - int(common.sum())
    shares = np.arange(1, parts) / parts
    if weights is None:
        cuts = np.quantile(column[rest], shares)
    else:
        reached = np.cumsum(np.where(common, 0.0, counts))
        cuts = values[np.searchsorted(reached, shares * reached[-1])]
    after = values[1:][common[:-1]]
    cuts = np.unique(np.concatenate([cuts, values[common], after]))
    return cuts[cuts > values[0]]


def _ranks(counts: np.ndarray) -> np.ndarray:
    """Where the middle row of each value stands, with a deviation of about 1.

    A uniform rank of 0 to 1 has a deviation of the root of 1/12.
    """
    return ((np.cumsum(counts) - counts / 2) / counts.sum() - 0.5) * math.sqrt(12)
