"""The nuclear norm, and the polar factor that is its gradient."""

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from .errors import ShapeError
from .validation import check_option, working_dtype

__all__ = ["NuclearMethod", "nuclear_norm"]

NuclearMethod: TypeAlias = Literal["auto", "svd"]


def nuclear_norm(
    matrix: Tensor,  # (*B, M, N)
    method: NuclearMethod = "auto",
) -> Tensor:  # (*B,)
    r"""Sum of the singular values, :math:`\|P\|_* = \langle Q, P \rangle`.

    The gradient is the polar factor :math:`Q = U V^\top`, restricted to the singular values that
    stand out from rounding. It needs no differences of singular values, so it is finite where the
    gradient of an SVD is not: for repeated and zero singular values, and for matrices without
    full rank. It can be differentiated once more.

    Example:
        >>> nuclear_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
        tensor(7.)
    """
    check_option("method", method, ("auto", "svd"))
    if not isinstance(matrix, Tensor) or matrix.ndim < 2 or not matrix.dtype.is_floating_point:
        raise ShapeError("matrix must be a floating-point tensor of shape (*batch, M, N).")
    if matrix.numel() == 0:
        return matrix.new_zeros(matrix.shape[:-2])
    with torch.autocast(matrix.device.type, enabled=False):
        work = matrix.to(working_dtype(matrix))
        if torch.compiler.is_compiling():
            # A constant polar factor has the right value and gradient, and the compiler, which
            # offers no second derivatives, can trace it.
            value = (_NuclearNorm.forward(work.detach())[1] * work).sum((-2, -1))
        else:
            value = _NuclearNorm.apply(work)[0]
    return value.to(matrix.dtype)


def _svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The thin SVD, and 1 or 0 for singular values above or below the level of rounding."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    level = s[..., :1] * (max(matrix.shape[-2:]) * torch.finfo(s.dtype).eps)
    return u, s, vh, (s > level).to(s.dtype)


class _NuclearNorm(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> tuple[Tensor, Tensor]:
        u, s, vh, significant = _svd(matrix)
        return s.sum(-1), (u * significant.unsqueeze(-2)) @ vh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
        matrix, polar = ctx.saved_tensors
        if torch.is_grad_enabled():
            polar = _PolarFactor.apply(matrix)
        return grad[..., None, None] * polar


class _PolarFactor(torch.autograd.Function):
    """The polar factor as a function of the matrix, for second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> Tensor:
        u, _, vh, significant = _svd(matrix)
        return (u * significant.unsqueeze(-2)) @ vh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # The polar factor is a gradient, so its derivative is symmetric: the vector-Jacobian
        # product is the derivative in the direction `grad`.
        u, s, vh, significant = _svd(ctx.saved_tensors[0])
        core = u.mT @ grad @ vh.mT
        sums = s.unsqueeze(-1) + s.unsqueeze(-2)
        both = significant.unsqueeze(-1) * significant.unsqueeze(-2)
        turned = u @ ((core - core.mT) / torch.where(sums > 0, sums, 1.0) * both) @ vh
        inverse = significant / torch.where(s > 0, s, 1.0)
        outside_columns = (grad - u @ (u.mT @ grad)) @ (vh.mT * inverse.unsqueeze(-2)) @ vh
        outside_rows = u @ ((u * inverse.unsqueeze(-2)).mT @ (grad - (grad @ vh.mT) @ vh))
        return turned + outside_columns + outside_rows
