"""The nuclear norm, whose gradient is the polar factor, with a bound of what is left out."""

from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from kermix.checks import (
    check_number,
    check_option,
    full_precision,
    is_concrete,
    working_dtype,
)
from kermix.errors import OptionError, SampleError, ShapeError
from kermix.info import Info, informative
from kermix.linalg.polar import Polar, binary_unit, can_sync, polar_factor
from kermix.linalg.range_finder import low_rank_polar, may_be_low_rank

__all__ = ["NuclearMethod", "chosen_method", "nuclear_norm"]

NuclearMethod: TypeAlias = Literal["auto", "svd", "polar"]

FINEST_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}


def _checked_dtype(matrix: Tensor, tolerance: float) -> torch.dtype:
    """The precision to work in, for a matrix and a tolerance that make sense."""
    if not isinstance(matrix, Tensor) or matrix.ndim < 2 or not matrix.dtype.is_floating_point:
        raise ShapeError("matrix must be a floating-point tensor of shape (*batch, M, N).")
    # A sum is found in one pass, and is finite but for bad values and some very large ones.
    if (
        is_concrete(matrix)
        and not bool(torch.isfinite(matrix.detach().sum()))
        and not bool(torch.isfinite(matrix).all())
    ):
        raise SampleError("matrix has NaN or infinite values, so it has no singular values.")
    dtype = working_dtype(matrix)
    check_number("tolerance", tolerance)
    if not FINEST_TOLERANCE[dtype] <= tolerance < 1:
        raise OptionError(
            f"tolerance={tolerance} is not between {FINEST_TOLERANCE[dtype]}, what {dtype} can "
            "resolve, and 1; for a smaller error use float64 or method='svd'."
        )
    return dtype


@informative
def nuclear_norm(
    matrix: Tensor,  # (*B, M, N)
    method: NuclearMethod = "auto",
    tolerance: float = 1e-4,
) -> tuple[Tensor, Info]:  # (*B,)
    r"""Sum of the singular values, $\|P\|_* = \langle Q, P \rangle$.

    The gradient is the polar factor $Q = U V^\top$. It needs no differences of singular values, so
    it is finite where the gradient through an SVD is not: for repeated and zero singular values,
    and for matrices without full rank. It can be differentiated once more, except under the
    compiler, along directions that keep the rank; where singular values leave zero, the norm has a
    kink, and a second derivative is refused (NaN in the transforms of `torch.func`).

    `"svd"` is exact, and its gradient is restricted to the singular values that stand out from
    rounding. `"polar"` computes `Q` with matrix products only: since the norm of `Q` is at most 1,
    its value is, up to rounding, a lower bound, and the nuclear norm is within `info.error_bound`
    of it, rounding included. `"auto"` uses `"polar"` for float32 on an accelerator and `"svd"`
    elsewhere, where it is faster; `chosen_method` returns the choice. A single float32 matrix of
    at least 200 rows and columns (6000 on a GPU) whose singular values decay fast is first
    factored into a product of smaller ones: `info.method` is then `"range"`, `info.rank` their
    size, and there is an error bound of the same kind. The gradient omits what the value may omit:
    directions whose singular values add up to less than the tolerance. If points are much closer
    to each other than the width of the kernel, these can be half of the gradient with respect to
    the points; a smaller tolerance or `"svd"` keeps them.

    Args:
        matrix: Any real matrices.
        method: How to compute it.
        tolerance: Relative error allowed for `"polar"` and `"auto"`.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> value, info = nuclear_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]]), return_info=True)
        >>> value, info.method
        (tensor(7.), 'svd')
    """
    check_option("method", method, ("auto", "svd", "polar"))
    dtype = _checked_dtype(matrix, tolerance)
    open_to_choice = method == "auto"
    method = chosen_method(matrix) if method == "auto" else method
    if matrix.numel() == 0:
        return matrix.new_zeros(matrix.shape[:-2]), Info(method)
    with full_precision(matrix.device):
        work = matrix.to(dtype)
        if open_to_choice and may_be_low_rank(work):
            found = low_rank_polar(work.detach(), tolerance)
            if found is not None:
                polar, rank = found
                value, _, bound = _NuclearNorm.apply(work, polar, tolerance)
                return value.to(matrix.dtype), Info("range", error_bound=bound, rank=rank)
        if torch.compiler.is_compiling():
            # A constant polar factor has the right value and gradient, and the compiler, which
            # offers no second derivatives, can trace it.
            _, factor, bound = _NuclearNorm.forward(work.detach(), method, tolerance)
            value = (factor * work).sum((-2, -1))
        else:
            value, _, bound = _NuclearNorm.apply(work, method, tolerance)
    return value.to(matrix.dtype), Info(method, error_bound=bound if method == "polar" else None)


def chosen_method(matrix: Tensor) -> Literal["svd", "polar"]:
    """The method that `"auto"` stands for, for this matrix."""
    fast_products = matrix.device.type == "cuda" and matrix.dtype != torch.float64
    return "polar" if fast_products and min(matrix.shape[-2:]) > 1 else "svd"


def _svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The thin SVD, and 1 or 0 for singular values that are there or nothing but rounding."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    # Rounding may be as large as max(M, N) units, but what the vectors find of such a value in
    # the matrix is next to nothing; of a true one of a few units they find all.
    found = _along(matrix, u, vh) > s / 2
    above = s > s[..., :1] * torch.finfo(s.dtype).eps
    return u, s, vh, (found & above).to(s.dtype)


def _along(matrix: Tensor, u: Tensor, vh: Tensor) -> Tensor:  # (*B, R)
    r"""The products $u_k^\top P v_k$, which are the singular values up to rounding."""
    return ((u.mT @ matrix) * vh).sum(-1)


class _NuclearNorm(torch.autograd.Function):
    """Nuclear norm, polar factor, and a bound of what the norm exceeds the value by."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        matrix: Tensor, method: str | Polar, tolerance: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if method == "polar":
            method = polar_factor(matrix, tolerance)
        if isinstance(method, Polar):  # one that is known already, too
            return method.value, method.factor, method.error_bound
        unit = binary_unit(matrix)
        matrix = matrix / unit
        u, s, vh, significant = _svd(matrix)
        # Each singular value that is nothing but rounding is positive, and in single precision a
        # thousand of them are seen; those of the products below cancel.
        single = matrix.dtype == torch.float32
        value = (_along(matrix, u, vh) if single else s).sum(-1) * unit[..., 0, 0]
        return value, (u * significant.unsqueeze(-2)) @ vh, torch.zeros_like(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, factor, bound = output
        ctx.mark_non_differentiable(factor, bound)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        matrix, factor = ctx.saved_tensors
        if torch.is_grad_enabled():
            factor = _PolarFactor.apply(matrix)
        return grad[..., None, None] * factor, None, None


class _PolarFactor(torch.autograd.Function):
    """The polar factor as a function of the matrix, for second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> Tensor:
        u, _, vh, significant = _svd(matrix / binary_unit(matrix))
        return (u * significant.unsqueeze(-2)) @ vh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # The polar factor is a gradient, so its derivative is symmetric: the vector-Jacobian
        # product is the derivative in the direction `grad`, among matrices of the same rank.
        unit, size = binary_unit(ctx.saved_tensors[0]), binary_unit(grad)
        u, s, vh, significant = _svd(ctx.saved_tensors[0] / unit)
        u, vh, grad = u * significant.unsqueeze(-2), vh * significant.unsqueeze(-1), grad / size
        core = u.mT @ grad @ vh.mT
        sums = s.unsqueeze(-1) + s.unsqueeze(-2)
        inverse = (significant / torch.where(s > 0, s, 1.0)).unsqueeze(-1)
        below, beside = grad, grad
        for _ in range(2):  # what rounding leaves inside is divided by small values, too
            below, beside = below - u @ (u.mT @ below), beside - (beside @ vh.mT) @ vh
        turned = u @ ((core - core.mT) / torch.where(sums > 0, sums, 1.0)) @ vh
        outside = (below @ vh.mT) @ (inverse * vh) + u @ (inverse * (u.mT @ beside))
        found = turned + outside
        swapped = (core * core.mT).abs() / torch.where(sums > 0, sums, 1.0) * inverse
        left_out = below - (below @ vh.mT) @ vh
        lost = _is_lost(grad, found, left_out, swapped, s[..., :1].unsqueeze(-1))
        if not can_sync(lost):
            found = torch.where(lost, torch.nan, found)
        elif bool(lost.any()):
            raise SampleError(
                "The nuclear norm has no second derivative here that can be computed in "
                f"{grad.dtype}: in the direction asked for, singular values leave zero or what "
                "rounding makes of it, where the norm has a kink (repeated points that are moved "
                "apart, say). Keep the rank along the direction (move repeated points together, "
                "or leave them out), or compute in float64 if the matrix has full rank."
            )
        return found * (size / unit)


def _is_lost(
    grad: Tensor,
    found: Tensor,
    left_out: Tensor,
    swapped: Tensor,
    largest: Tensor,
    hidden_share: float = 0.01,
) -> Tensor:
    """Whether what rounding hides may change the derivative `found` in the direction `grad`.

    Rounding moves singular values by a unit of the largest. By that, the curvature changes by
    this unit times the square of the derivative; what is left out turns vectors of values that
    may be as small as the unit; and which left vectors of such values belong to which right ones
    is chance. All are (*B, M, N), or (*B, 1, 1). Of a second derivative, rounding may hide
    `hidden_share`; with ten times as much, 2% were off.
    """
    given = (grad, found, left_out, swapped, largest)
    grad, found, left_out, swapped, largest = (t.detach() for t in given)
    total = lambda t: t.sum((-2, -1), keepdim=True)  # noqa: E731
    unit = torch.finfo(grad.dtype).eps * largest
    hidden = unit * (total(found.square()) + 2 * total(swapped)) + total(left_out.square()) / unit
    seen = total(grad * found).clamp(min=0) + total(grad.square()) / largest
    return hidden.nan_to_num(0) > hidden_share * seen.nan_to_num(0)
