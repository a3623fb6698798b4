"""Muon for PyTorch 2.4 and newer: steps of matrices along the orthogonal factor of momentum.

The method is Keller Jordan's (https://kellerjordan.github.io/posts/muon), the size of steps that
of "Muon is Scalable for LLM Training" (arXiv:2502.16982), for which rates and decay of AdamW are
right as they are. PyTorch has it since 2.9, and the numbers here are the same.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

__all__ = ["Muon", "orthogonal_factor"]

# A quintic as steep at 0 as it can be: singular values come near 1, not to it, in five steps.
A, B, C = 3.4445, -4.7750, 2.0315
STEPS = 5
LEAST_NORM = 1e-7


def orthogonal_factor(matrix: Tensor) -> Tensor:  # (m, n) -> (m, n), bfloat16
    """About U V^T of the matrix U S V^T: singular values of 0.7 to 1.2, mostly.

    Example:
        >>> orthogonal_factor(torch.diag(torch.tensor([3.0, 1.0]))).round()
        tensor([[1., 0.],
                [0., 1.]], dtype=torch.bfloat16)
    """
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.bfloat16()
    x = x.T if tall else x
    x = x / x.norm().clamp(min=LEAST_NORM)
    for _ in range(STEPS):
        square = x @ x.T
        x = torch.addmm(x, torch.addmm(square, square, square, beta=B, alpha=C), x, beta=A)
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum of Nesterov's, made orthogonal; for matrices alone.

    Args:
        params: Matrices, or groups of them.
        lr: Learning rate, as for AdamW; a number, or a tensor on the device.
        weight_decay: Decoupled, as for AdamW.
        momentum: Of the running mean of gradients.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
    ) -> None:
        defaults = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum}
        # A step reads no value: a CUDA graph can hold it.
        super().__init__(params, {**defaults, "capturable": True})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(p.grad)
                mean = state["momentum_buffer"].lerp_(p.grad, 1 - momentum)
                update = orthogonal_factor(p.grad.lerp(mean, momentum))
                p.mul_(1 - rate * group["weight_decay"])
                length = rate * (0.2 * max(p.shape) ** 0.5)
                if isinstance(length, Tensor):
                    p.sub_(update.to(p.dtype) * length)
                else:
                    p.add_(update, alpha=-length)
