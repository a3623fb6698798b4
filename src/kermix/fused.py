"""Kernel means of points in few dimensions on a GPU, fused: no kernel value reaches memory.

Two Triton kernels do what :mod:`kermix.streaming` does in tiles, which is their reference. Neither
holds more than a block of kernel values in registers, so there is no memory to bound.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .moments import KernelMoments

__all__ = ["kernel_moments", "nearest_distances"]

BLOCK_TARGETS = 32
BLOCK_OTHERS = 64
LARGEST_EXPONENT = tl.constexpr(60.0)
LARGEST_DISTANCE = tl.constexpr(3.0e32)


@triton.jit
def _distances(targets, others, rows, columns, m, n, d: tl.constexpr):  # type: ignore  # noqa: ANN001, ANN202
    total = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for k in tl.static_range(d):
        row = tl.load(targets + k * m + rows, mask=rows < m, other=0.0)
        column = tl.load(others + k * n + columns, mask=columns < n, other=0.0)
        difference = row[:, None] - column[None, :]
        total += difference * difference
    return tl.minimum(total, LARGEST_DISTANCE)


@triton.jit
def _nearest_kernel(  # type: ignore  # noqa: ANN202
    targets, others, weights, nearest, m, n,  # noqa: ANN001
    d: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    targets += batch * d * m
    others += batch * d * n
    weights += batch * n
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    smallest = tl.full((block_m, block_n), LARGEST_DISTANCE, tl.float32)
    for start in range(0, n, block_n):
        columns = start + tl.arange(0, block_n)
        weight = tl.load(weights + columns, mask=columns < n, other=0.0)
        distance = _distances(targets, others, rows, columns, m, n, d)
        distance = tl.where(weight[None, :] > 0, distance, LARGEST_DISTANCE)
        smallest = tl.minimum(smallest, distance)
    tl.store(nearest + batch * m + rows, tl.min(smallest, 1), mask=rows < m)


@triton.jit
def _moments_kernel(  # type: ignore  # noqa: ANN202
    targets, others, weights, near_targets, near_others, rate, mass, pull, spread, m, n,  # noqa: ANN001
    d: tl.constexpr, with_gradient: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    targets += batch * d * m
    others += batch * d * n
    weights += batch * n
    near_others += batch * n
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    near_target = tl.load(near_targets + batch * m + rows, mask=rows < m, other=0.0)
    beta = tl.load(rate)
    axes = tl.arange(0, 16)
    # Sums are kept pair by pair and added up once at the end: a sum over a row at each step would
    # make the threads wait for each other.
    total = tl.zeros((block_m, block_n), tl.float32)
    second = tl.zeros((block_m, block_n), tl.float32)
    first = tl.zeros((block_m, 16), tl.float32)
    for start in range(0, n, block_n):
        columns = start + tl.arange(0, block_n)
        weight = tl.load(weights + columns, mask=columns < n, other=0.0)
        near_other = tl.load(near_others + columns, mask=columns < n, other=0.0)
        distance = _distances(targets, others, rows, columns, m, n, d)
        beyond = distance - near_target[:, None] - near_other[None, :]
        value = weight[None, :] * tl.exp(tl.minimum(-beta * beyond, LARGEST_EXPONENT))
        total += value
        if with_gradient:
            second += value * distance
            inside = (columns < n)[:, None] & (axes < d)[None, :]
            places = others + axes[None, :] * n + columns[:, None]
            points = tl.load(places, mask=inside, other=0.0)
            first += tl.dot(value, points, input_precision="ieee")
    tl.store(mass + batch * m + rows, tl.sum(total, 1), mask=rows < m)
    if with_gradient:
        tl.store(spread + batch * m + rows, tl.sum(second, 1), mask=rows < m)
        places = pull + (batch * m + rows)[:, None] * d + axes[None, :]
        tl.store(places, first, mask=(rows < m)[:, None] & (axes < d)[None, :])


def nearest_distances(points: Tensor, sources: Tensor, weights: Tensor) -> Tensor:  # (B, M)
    """Squared distance from each point to the nearest source of positive weight."""
    batch, m, d = points.shape
    nearest = points.new_empty(batch, m)
    _nearest_kernel[(triton.cdiv(m, BLOCK_TARGETS), batch)](
        _by_axis(points), _by_axis(sources), weights.contiguous(), nearest, m, sources.shape[1],
        d=d, block_m=BLOCK_TARGETS, block_n=BLOCK_OTHERS,
    )  # fmt: skip
    return nearest


def kernel_moments(
    targets: Tensor,  # (B, M, d)
    others: Tensor,  # (B, N, d)
    weights: Tensor,  # (B, N)
    rate: Tensor,  # ()
    near_targets: Tensor | None = None,  # (B, M)
    near_others: Tensor | None = None,  # (B, N)
    gradient: bool = False,
) -> KernelMoments:
    """Sums of the kernel `exp(-rate * (distance - near))`, with what its gradient needs.

    `near` belongs to the targets or to the others: distances are taken relative to it.
    """
    batch, m, d = targets.shape
    n = others.shape[1]
    # From a common origin the difference of two sums keeps its digits.
    origin = others.mean(1, keepdim=True)
    targets, others = targets - origin, others - origin
    mass = targets.new_empty(batch, m)
    pull = targets.new_empty(batch, m, d) if gradient else mass
    spread = torch.empty_like(mass) if gradient else mass
    if near_targets is None:
        near_targets = targets.new_zeros(batch, m)
    if near_others is None:
        near_others = targets.new_zeros(batch, n)
    _moments_kernel[(triton.cdiv(m, BLOCK_TARGETS), batch)](
        _by_axis(targets), _by_axis(others), weights.contiguous(), near_targets.contiguous(),
        near_others.contiguous(), rate, mass, pull, spread, m, n,
        d=d, with_gradient=gradient, block_m=BLOCK_TARGETS, block_n=BLOCK_OTHERS,
    )  # fmt: skip
    if not gradient:
        return KernelMoments(mass, None, None)
    return KernelMoments(mass, pull - mass.unsqueeze(-1) * targets, spread)


def _by_axis(points: Tensor) -> Tensor:  # (B, M, d) -> (B, d, M)
    return points.mT.contiguous()
