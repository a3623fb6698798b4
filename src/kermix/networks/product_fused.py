r"""All Gaussian layers of all variables as one function with a backward of its own, for a CPU.

A table has few features, so what costs time is not its products but the passes over the memory
between them, and autograd makes some forty. Here the rows come last, (variables, features, rows),
so that a statistic of a feature is a sum along the memory, and the affine part of a batch
normalization is never applied: with centered Gaussians $g$ and $y = a g + b$ the next layer is
$A y - W = (A a)\, g + (A b - W)$, one product. Its gradient with respect to $a$ and $b$ comes
out of small matrices, too.

Gaussians are powers of two, which torch computes twice as fast as those of e.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.errors import ShapeError

__all__ = ["Buffers", "LayerTensors", "mean_square_distances"]

ROOT = math.sqrt(math.log2(math.e))  # exp(-u^2) = 2^(-(ROOT u)^2)
# Powers of two below the smallest normal number take five times as long, in what follows as well.
FARTHEST = math.sqrt(120.0)
MOST_SIZES = 32  # of tensors that are kept: a training has batches of one or two sizes


class LayerTensors(NamedTuple):
    """What a layer of variables is made of; V variables, or members times variables."""

    weight: Tensor  # (V, inputs, outputs)
    anchors: Tensor  # (V, outputs)
    scale: Tensor  # (V, outputs), of the batch normalization, as the next
    shift: Tensor


class Buffers:
    """Memory that is used again in the next step: fresh pages cost as much as the arithmetic.

    Example:
        >>> buffers = Buffers()
        >>> first = buffers.take((2, 3), torch.zeros(()))
        >>> buffers.give(first)
        >>> buffers.take((2, 3), torch.zeros(())) is first
        True
    """

    def __init__(self) -> None:
        self._free: dict[tuple[tuple[int, ...], torch.dtype], list[Tensor]] = {}

    def take(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor with any values in it."""
        free = self._free.get((shape, like.dtype))
        return free.pop() if free else like.new_empty(shape)

    def give(self, *tensors: Tensor) -> None:
        """Give back what nobody reads any more."""
        if len(self._free) > MOST_SIZES:
            self.clear()
        for tensor in tensors:
            self._free.setdefault((tuple(tensor.shape), tensor.dtype), []).append(tensor)

    def clear(self) -> None:
        """Let go of the memory."""
        self._free.clear()

    def __reduce__(self) -> tuple[type["Buffers"], tuple[()]]:
        return Buffers, ()  # copies and pickles have memory of their own


def mean_square_distances(
    x: Tensor,  # (V, inputs, n)
    layers: Sequence[LayerTensors],
    anchors: Tensor,  # (V, K)
    *,
    members: int,
    epsilons: Sequence[float],
    buffers: Buffers,
    statistics: Sequence[tuple[Tensor, Tensor]] | None = None,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    r"""$\frac{1}{T} \sum_t (k_t - W_F(t))^2$ of the features after all layers: (members, K, n).

    The second thing returned is mean and variance of each layer's Gaussians, (V, outputs) each.
    There is a gradient with respect to everything but `x`, once.

    Args:
        x: Variables of all members, the rows last.
        layers: From the first to the last.
        anchors: Of the last step, where variables meet.
        members: Functions side by side; V is a multiple of it.
        epsilons: Of the layers' batch normalizations.
        buffers: Memory to use again in training.
        statistics: Means and variances to normalize by, without a gradient; None takes those of
            the batch.
    """
    if statistics is not None:
        parameters = [t for layer in layers for t in layer]
        with torch.no_grad():  # in memory of its own: rows of many sizes may be asked for
            passed = _forward(x, [*parameters, anchors], members, epsilons, Buffers(), statistics)
        return passed.result, list(statistics)
    if x.shape[2] < 2:
        raise ShapeError(
            f"x has {x.shape[2]} row in training: batch statistics need at least two."
        )
    if torch.is_inference_mode_enabled():  # no tensor from here is of use outside
        buffers = Buffers()
    given = [t for layer in layers for t in layer]
    result, *flat = _Whole.apply(x, members, epsilons, buffers, *given, anchors)
    return result, list(zip(flat[::2], flat[1::2], strict=True))


class _Layer(NamedTuple):
    """What the backward needs of a layer."""

    before: Tensor  # (V, inputs + 1, n): what came in, centered, and ones
    u: Tensor  # (V, outputs, n), times ROOT
    values: Tensor  # (V, outputs, n): the Gaussians
    mean: Tensor  # (V, outputs), as all that follow
    variance: Tensor
    inverse: Tensor  # 1 / deviation
    factor: Tensor  # by which centered Gaussians are multiplied


class _Passed(NamedTuple):
    result: Tensor  # (E, K, n)
    away: Tensor  # (V, K, n): k_t - W_F(t)
    layers: list[_Layer]

    def memory(self) -> list[Tensor]:
        """All buffers but `away`."""
        return [t for layer in self.layers for t in (layer.before, layer.u, layer.values)]


class _Whole(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        members: int,
        epsilons: Sequence[float],
        buffers: Buffers,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        passed = _forward(x, parameters, members, epsilons, buffers, None)
        ctx.save_for_backward(*parameters)
        ctx.passed, ctx.buffers = passed, buffers
        ctx.set_materialize_grads(False)
        statistics = [t for layer in passed.layers for t in (layer.mean, layer.variance)]
        ctx.mark_non_differentiable(*statistics)
        return (passed.result, *statistics)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        parameters = ctx.saved_tensors
        if grad is None:
            return (None,) * (4 + len(parameters))
        if ctx.passed is None:
            raise RuntimeError(
                "Its memory is reused after a backward pass, so a second backward pass is not "
                "possible; build the network with path='plain' for that."
            )
        passed, ctx.passed = ctx.passed, None
        return (None, None, None, None, *_backward(grad, parameters, passed, ctx.buffers))


def _forward(
    x: Tensor,
    parameters: Sequence[Tensor],
    members: int,
    epsilons: Sequence[float],
    buffers: Buffers,
    statistics: Sequence[tuple[Tensor, Tensor]] | None,
) -> _Passed:
    variables, inputs, rows = x.shape
    before = buffers.take((variables, inputs + 1, rows), x)
    before[:, :inputs] = x
    before[:, inputs] = 1
    layers: list[_Layer] = []
    zero = x.new_zeros(())
    for number, epsilon in enumerate(epsilons):
        weight, anchors, scale, shift = parameters[4 * number : 4 * number + 4]
        _, inputs, outputs = weight.shape
        affine = x.new_empty(variables, outputs, inputs + 1)
        turned = weight.transpose(1, 2)
        if not layers:
            affine[:, :, :inputs] = turned
            affine[:, :, inputs] = -anchors
        else:
            below = parameters[4 * number - 1]
            torch.mul(turned, layers[-1].factor.unsqueeze(1), out=affine[:, :, :inputs])
            affine[:, :, inputs] = torch.bmm(turned, below.unsqueeze(2)).squeeze(2) - anchors
        affine *= ROOT
        u = torch.bmm(affine, before, out=buffers.take((variables, outputs, rows), x))
        u.clamp_(-FARTHEST, FARTHEST)
        values = buffers.take((variables, outputs, rows), x)
        torch.addcmul(zero, u, u, value=-1, out=values).exp2_()
        if statistics is None:
            mean = values.mean(2)
            # Values lie between 0 and 1, so this loses nothing to what is added below.
            squares = torch.linalg.vector_norm(values, dim=2).square_().div_(rows)
            variance = (squares - mean.square()).clamp_(min=0)
        else:
            mean, variance = statistics[number]
        inverse = torch.rsqrt(variance + epsilon)
        layers.append(_Layer(before, u, values, mean, variance, inverse, inverse * scale))
        if number < len(epsilons) - 1:
            before = buffers.take((variables, outputs + 1, rows), x)
            torch.sub(values, mean.unsqueeze(2), out=before[:, :outputs])
            before[:, outputs] = 1
    last = layers[-1]
    away = torch.mul(last.values, last.factor.unsqueeze(2), out=buffers.take(last.u.shape, x))
    away += (shift - last.mean * last.factor - parameters[-1]).unsqueeze(2)
    squares = torch.mul(away, away, out=buffers.take(last.u.shape, x))
    result = squares.unflatten(0, (members, -1)).sum(1).mul_(members / variables)
    buffers.give(squares)
    return _Passed(result, away, layers)


def _backward(
    grad: Tensor, parameters: Sequence[Tensor], passed: _Passed, buffers: Buffers
) -> list[Tensor]:
    members = len(grad)
    variables, _, rows = passed.away.shape
    found: dict[int, Tensor] = {}
    # What reaches the normalized features; the Gaussians get this times their layer's factor.
    back = passed.away
    by_member = back.unflatten(0, (members, -1))
    by_member *= (grad * (2 * members / variables)).unsqueeze(1)
    to_constant = back.sum(2)
    product = torch.mul(back, passed.layers[-1].values, out=buffers.take(back.shape, back))
    to_factor = product.sum(2) - to_constant * passed.layers[-1].mean
    buffers.give(product)
    found[len(parameters) - 1] = -to_constant
    for number in reversed(range(len(passed.layers))):
        layer, place = passed.layers[number], 4 * number
        weight = parameters[place]
        inputs = weight.shape[1]
        found[place + 2], found[place + 3] = to_factor * layer.inverse, to_constant
        by_value = to_factor * layer.inverse.square() * (-1 / rows)
        back.addcmul_(layer.values, by_value.unsqueeze(2))
        back += (to_constant * (-1 / rows) - layer.mean * by_value).unsqueeze(2)
        back *= layer.values
        back *= layer.u
        slope = (-2 / ROOT) * layer.factor
        core = torch.bmm(back, layer.before[:, :inputs].transpose(1, 2)) * slope.unsqueeze(2)
        at_anchors = back.sum(2) * slope
        found[place + 1] = -at_anchors
        if number == 0:
            found[place] = core.transpose(1, 2)
            break
        factor, shift = passed.layers[number - 1].factor, parameters[place - 1]
        to_factor = (core.transpose(1, 2) * weight).sum(2)
        to_constant = torch.bmm(weight, at_anchors.unsqueeze(2)).squeeze(2)
        found[place] = (core * factor.unsqueeze(1)).transpose(1, 2) + (
            shift.unsqueeze(2) * at_anchors.unsqueeze(1)
        )
        lower = buffers.take((variables, inputs, rows), back)
        torch.bmm(weight * slope.unsqueeze(1), back, out=lower)
        buffers.give(back)
        back = lower
    buffers.give(back, *passed.memory())
    return [found[place] for place in range(len(parameters))]
