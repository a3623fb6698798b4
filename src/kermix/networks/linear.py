"""Linear layers whose products are oneDNN's where it is faster: on processors with AVX-512.

PyTorch gives products of float32 matrices to MKL, which uses half the width of an AVX-512 unit on
processors that are not Intel's: oneDNN takes half its time there, at the same precision.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["Linear", "linear"]

# Reasoned, no record.
LEAST_WORK = 2**21  # multiplications; of smaller products the call takes longer


class Linear(nn.Linear):
    """A linear layer, with the parameters of PyTorch's own.

    Example:
        >>> Linear(3, 2)(torch.zeros(4, 3)).shape
        torch.Size([4, 2])
    """

    def forward(self, input: Tensor) -> Tensor:
        """The product, by whichever library is faster."""
        return linear(input, self.weight, self.bias)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # (N, D), (E, D)
    """What `torch.nn.functional.linear` returns, (N, E).

    Example:
        >>> linear(torch.ones(1, 3), torch.ones(2, 3))
        tensor([[3., 3.]])
    """
    if _is_faster(rows, weight):
        found: Tensor = _Product.apply(rows, weight, bias)
        return found
    return functional.linear(rows, weight, bias)


def _is_faster(rows: Tensor, weight: Tensor) -> bool:
    return (
        HAS_ONEDNN
        and rows.ndim == 2
        and len(rows) * weight.numel() >= LEAST_WORK
        and rows.dtype == weight.dtype == torch.float32
        and rows.device.type == weight.device.type == "cpu"
        and not torch.is_autocast_enabled("cpu")
    )


def _has_onednn() -> bool:
    """Whether the product is there, and is one: its operator is no public one of PyTorch."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    rows, weight = torch.arange(6.0).reshape(3, 2), torch.arange(4.0).reshape(2, 2)
    try:
        found = _product(rows, weight, torch.ones(2))
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False
    return torch.equal(found, rows @ weight.T + 1)


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return found


HAS_ONEDNN = _has_onednn()


class _Product(torch.autograd.Function):
    """A linear layer's product and its gradients; of the first order, as training needs them."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        rows, weight = ctx.saved_tensors
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_rows else None,
            _product(gradient.t(), rows.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )
