"""Gram matrices of points in few dimensions on a GPU, and what their gradients pull, fused.

One pass writes the matrix and one reads a gradient of it: a kernel value is computed where it is
needed, from the points. `kermix.kernels.gram` does the same in steps, which are the reference.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from kermix import checks

__all__ = ["gram", "pulls"]

LARGEST_EXPONENT = tl.constexpr(checks.LARGEST_EXPONENT)


@triton.jit
def _kernel_values(total, near, rate, offset, least: tl.constexpr):  # type: ignore  # noqa: ANN001, ANN202
    exponent = tl.minimum(-rate * (total - near) + offset, LARGEST_EXPONENT)
    return tl.where(exponent > least, tl.exp(exponent), 0.0)


@triton.jit
def _gram_kernel(  # type: ignore  # noqa: ANN202
    a, b, terms, out, m, n,  # noqa: ANN001
    d: tl.constexpr, largest: tl.constexpr, least: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    columns = tl.program_id(1) * block_n + tl.arange(0, block_n)
    a += batch * m * d
    b += batch * n * d
    total = tl.zeros((block_m, block_n), a.dtype.element_ty)
    for k in tl.static_range(d):
        p = tl.load(a + rows * d + k, mask=rows < m, other=0.0)
        q = tl.load(b + columns * d + k, mask=columns < n, other=0.0)
        difference = p[:, None] - q[None, :]
        total += difference * difference
    total = tl.minimum(total, largest)
    terms += 3 * batch
    near, rate, offset = tl.load(terms), tl.load(terms + 1), tl.load(terms + 2)
    value = _kernel_values(total, near, rate, offset, least)
    place = (batch * m + rows)[:, None] * n + columns[None, :]
    tl.store(out + place, value, mask=(rows < m)[:, None] & (columns < n)[None, :])


@triton.jit
def _pull_kernel(  # type: ignore  # noqa: ANN202
    grad, a, b, terms, out, m, n, stride_m, stride_n,  # noqa: ANN001
    d: tl.constexpr, largest: tl.constexpr, least: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    grad += batch * m * n
    a += batch * m * d
    b += batch * n * d
    terms += 3 * batch
    near, rate, offset = tl.load(terms), tl.load(terms + 1), tl.load(terms + 2)
    here = rows < m
    # In fewer dimensions the other coordinates are the first one again, and no part of a sum.
    p_0 = tl.load(a + rows * d, mask=here, other=0.0)
    p_1 = tl.load(a + rows * d + (d > 1), mask=here, other=0.0)
    p_2 = tl.load(a + rows * d + 2 * (d > 2), mask=here, other=0.0)
    pull_0 = tl.zeros((block_m, block_n), a.dtype.element_ty)
    pull_1 = tl.zeros((block_m, block_n), a.dtype.element_ty)
    pull_2 = tl.zeros((block_m, block_n), a.dtype.element_ty)
    for start in range(0, n, block_n):
        columns = start + tl.arange(0, block_n)
        there = columns < n
        place = rows[:, None].to(tl.int64) * stride_m + columns[None, :].to(tl.int64) * stride_n
        g = tl.load(grad + place, mask=here[:, None] & there[None, :], other=0.0)
        move_0 = tl.load(b + columns * d, mask=there, other=0.0)[None, :] - p_0[:, None]
        total = move_0 * move_0
        if d > 1:
            move_1 = tl.load(b + columns * d + 1, mask=there, other=0.0)[None, :] - p_1[:, None]
            total += move_1 * move_1
        if d > 2:
            move_2 = tl.load(b + columns * d + 2, mask=there, other=0.0)[None, :] - p_2[:, None]
            total += move_2 * move_2
        g *= _kernel_values(tl.minimum(total, largest), near, rate, offset, least)
        pull_0 += g * move_0
        if d > 1:
            pull_1 += g * move_1
        if d > 2:
            pull_2 += g * move_2
    out += batch * m * d
    tl.store(out + rows * d, 2 * rate * tl.sum(pull_0, 1), mask=here)
    if d > 1:
        tl.store(out + rows * d + 1, 2 * rate * tl.sum(pull_1, 1), mask=here)
    if d > 2:
        tl.store(out + rows * d + 2, 2 * rate * tl.sum(pull_2, 1), mask=here)


def _limits(dtype: torch.dtype) -> dict[str, float]:
    finfo = torch.finfo(dtype)
    return {"largest": finfo.max * checks.ROOM_FOR_SUMS, "least": math.log(finfo.tiny)}


def gram(
    a: Tensor,  # (B, M, d)
    b: Tensor,  # (B, N, d)
    terms: Tensor,  # (B, 3)
    block_m: int = 64,
    block_n: int = 64,
) -> Tensor:  # (B, M, N)
    """The kernel `exp(-rate * (distance - near) + offset)`; terms are near, rate and offset."""
    (batch, m, d), n = a.shape, b.shape[1]
    out = a.new_empty(batch, m, n)
    with torch.cuda.device(a.device):
        _gram_kernel[(triton.cdiv(m, block_m), triton.cdiv(n, block_n), batch)](
            a.contiguous(), b.contiguous(), terms, out, m, n, d=d, **_limits(a.dtype),
            block_m=block_m, block_n=block_n,
        )  # fmt: skip
    return out


def pulls(
    grad: Tensor,  # (B, M, N)
    a: Tensor,  # (B, M, d)
    b: Tensor,  # (B, N, d)
    terms: Tensor,  # (B, 3)
    both: bool,
) -> tuple[Tensor, Tensor | None]:  # (B, M, d), (B, N, d)
    """The gradients of `gram` with respect to points in up to three dimensions.

    Args:
        grad: That with respect to the matrix.
        a: Points of the rows.
        b: Points of the columns.
        terms: Of the kernel.
        both: Whether that with respect to `b` is wanted.
    """
    grad, a, b, n = grad.contiguous(), a.contiguous(), b.contiguous(), b.shape[1]
    of_a = _pulled(grad, a, b, terms, (n, 1), block_m=8, block_n=256, warps=4)
    if not both:
        return of_a, None
    return of_a, _pulled(grad, b, a, terms, (1, n), block_m=64, block_n=64, warps=8)


def _pulled(
    grad: Tensor, a: Tensor, b: Tensor, terms: Tensor, strides: tuple[int, int],
    block_m: int, block_n: int, warps: int,
) -> Tensor:  # fmt: skip
    (batch, m, d), n = a.shape, b.shape[1]
    out = torch.empty_like(a)
    with torch.cuda.device(a.device):
        _pull_kernel[(triton.cdiv(m, block_m), batch)](
            grad, a, b, terms, out, m, n, *strides, d=d, **_limits(a.dtype),
            block_m=block_m, block_n=block_n, num_warps=warps,
        )  # fmt: skip
    return out
