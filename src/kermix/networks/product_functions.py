"""`BN(exp(-(u - w)^2))` and `mean_t (k_t - w_t)^2` with backwards of their own.

Autograd through the plain operations keeps five arrays of the size of `u`. Here only `u` is kept,
in its own precision, and the exponential is taken again on the way back. The pieces are plain
functions, which `torch.compile` turns into a few passes over the memory.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from kermix.checks import triton_is_there, working_dtype
from kermix.kernels.means_compiled import compiler_is_there
from kermix.settings import ProductPath

__all__ = ["chosen_path", "gaussian", "gaussian_norm", "gaussian_sums", "mean_square"]


def gaussian(u: Tensor, anchors: Tensor) -> Tensor:
    """`exp(-(u - w)^2)`, in float32 at least.

    Example:
        >>> gaussian(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 0.0]))
        tensor([1.0000, 0.3679])
    """
    return torch.exp(-(u.to(working_dtype(u)) - anchors).square())


def chosen_path(path: ProductPath, device: torch.device) -> ProductPath:
    """What `"auto"` is on a device: fused on a GPU, lean elsewhere.

    Example:
        >>> chosen_path("auto", torch.device("cpu"))
        'lean'
    """
    if path != "auto":
        return path
    can_fuse = device.type == "cuda" and triton_is_there() and compiler_is_there()
    return "fused" if can_fuse else "lean"


def gaussian_norm(
    u: Tensor,  # (B, T, F)
    anchors: Tensor,  # (F,) or (T, F)
    weight: Tensor,  # (F,)
    bias: Tensor,  # (F,)
    eps: float = 1e-5,
    *,
    fused: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """`exp(-(u - w)^2)` normalized over the first two axes, with its mean and variance.

    The result has the precision of `u`; everything else is in float32 at least.
    """
    result: tuple[Tensor, Tensor, Tensor] = _GaussianNorm.apply(
        u, anchors, weight, bias, eps, fused
    )
    return result


def mean_square(k: Tensor, anchors: Tensor, *, fused: bool = False) -> Tensor:  # (B, F)
    """`(1/T) sum_t (k_t - w_t)^2` of k (B, T, F) and anchors (F,) or (T, F)."""
    result: Tensor = _MeanSquare.apply(k, anchors, fused)
    return result


def gaussian_sums(
    u: Tensor,  # (B, T, F)
    anchors: Tensor,  # (F,) or (T, F)
    places: Tensor,  # (T, F)
    *,
    fused: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:  # (B, F) each
    r"""Sums over positions of $e$, $e^2$ and $e\,w_t$, with `e = exp(-(u - a)^2)`.

    All that a mean square of normalized Gaussians needs to know, in one pass over `u`.

    Example:
        >>> u, zero = torch.zeros(1, 2, 1), torch.zeros(1)
        >>> [float(part) for part in gaussian_sums(u, zero, torch.tensor([[3.0], [4.0]]))]
        [2.0, 2.0, 7.0]
    """
    result: tuple[Tensor, Tensor, Tensor] = _GaussianSums.apply(u, anchors, places, fused)
    return result


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    # Sizes are fixed, for aligned loads; past the compiler's limit of sizes it runs uncompiled.
    return torch.compile(function, dynamic=False)


def _piece(function: Callable[..., Any], fused: bool) -> Callable[..., Any]:
    return _compiled(function) if fused else function


class _GaussianNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        anchors: Tensor,
        weight: Tensor,
        bias: Tensor,
        eps: float,
        fused: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Detached: the compiler would ask for the gradient of what is not a leaf, and be warned.
        given = (t.detach() for t in (u, anchors, weight, bias))
        result, mean, variance, scale = _piece(_norm_forward, fused)(*given, eps)
        ctx.save_for_backward(u, anchors, weight, mean, scale)
        ctx.fused = fused
        ctx.mark_non_differentiable(mean, variance)
        ctx.set_materialize_grads(False)
        return result, mean, variance

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        given = (t.detach() for t in (grad, *ctx.saved_tensors))
        found = _piece(_norm_backward, ctx.fused)(*given)
        return (*found, None, None)


class _MeanSquare(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, anchors: Tensor, fused: bool) -> Tensor:
        ctx.save_for_backward(k, anchors)
        ctx.fused = fused
        return _piece(_square_forward, fused)(k.detach(), anchors.detach())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        given = (t.detach() for t in (grad, *ctx.saved_tensors))
        return (*_piece(_square_backward, ctx.fused)(*given), None)


class _GaussianSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, u: Tensor, anchors: Tensor, places: Tensor, fused: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        ctx.save_for_backward(u, anchors, places)
        ctx.fused = fused
        given = (t.detach() for t in (u, anchors, places))
        found: tuple[Tensor, Tensor, Tensor] = _piece(_sums_forward, fused)(*given)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        u, anchors, places = (t.detach() for t in ctx.saved_tensors)
        # Apart: sums over other axes in the same pass would make it a slow one.
        to_u = _piece(_sums_backward, ctx.fused)(*grads, u, anchors, places)
        total = _piece(_summed, ctx.fused)(to_u, anchors.ndim == 2)
        return to_u, -total, _piece(_to_places, ctx.fused)(grads[2], u, anchors), None


def _norm_forward(
    u: Tensor, anchors: Tensor, weight: Tensor, bias: Tensor, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values = gaussian(u, anchors)
    mean = values.mean((0, 1))
    # Values lie between 0 and 1, so this loses nothing, and it is one pass over them.
    variance = (values.square().mean((0, 1)) - mean.square()).clamp(min=0)
    scale = torch.rsqrt(variance + eps)
    return ((values - mean) * (scale * weight) + bias).to(u.dtype), mean, variance, scale


def _norm_backward(
    grad: Tensor, u: Tensor, anchors: Tensor, weight: Tensor, mean: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    grad = grad.to(working_dtype(grad))
    away = u.to(working_dtype(u)) - anchors
    values = torch.exp(-away.square())
    unit = (values - mean) * scale
    to_bias, to_weight = grad.sum((0, 1)), (grad * unit).sum((0, 1))
    count = u.shape[0] * u.shape[1]
    inner = (scale * weight) * (grad - to_bias / count - unit * (to_weight / count))
    to_u = -2 * away * values * inner
    to_anchors = -to_u.sum(0 if anchors.ndim == 2 else (0, 1))
    return to_u.to(u.dtype), to_anchors, to_weight, to_bias


def _square_forward(k: Tensor, anchors: Tensor) -> Tensor:
    return (k.to(working_dtype(k)) - anchors).square().mean(1)


def _square_backward(grad: Tensor, k: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    away = k.to(working_dtype(k)) - anchors
    to_k = away * (grad * (2 / k.shape[1])).unsqueeze(1)
    return to_k.to(k.dtype), -to_k.sum(0 if anchors.ndim == 2 else (0, 1))


def _sums_forward(u: Tensor, anchors: Tensor, places: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    values = gaussian(u, anchors)
    return values.sum(1), values.square().sum(1), (values * places).sum(1)


def _sums_backward(
    of_sum: Tensor,
    of_square: Tensor,
    of_product: Tensor,
    u: Tensor,
    anchors: Tensor,
    places: Tensor,
) -> Tensor:
    away = u.to(working_dtype(u)) - anchors
    values = torch.exp(-away.square())
    of_sum, of_square, of_product = (g.unsqueeze(1) for g in (of_sum, of_square, of_product))
    of_values = of_sum + 2 * values * of_square + places * of_product
    return (-2 * away * values * of_values).to(u.dtype)


def _summed(to_u: Tensor, of_positions: bool) -> Tensor:
    return to_u.to(working_dtype(to_u)).sum(0 if of_positions else (0, 1))


def _to_places(of_product: Tensor, u: Tensor, anchors: Tensor) -> Tensor:  # (T, F)
    return (gaussian(u, anchors) * of_product.unsqueeze(1)).sum(0)
