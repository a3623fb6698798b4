"""Kernel means of points in few dimensions on a GPU, fused: no kernel value reaches memory.

Two Triton kernels do what :mod:`kermix.kernels.means` does in tiles, which is their reference.
Neither holds more than a block of kernel values in registers, so there is no memory to bound.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kermix.kernels.mean_sums import KernelMoments

__all__ = ["kernel_moments", "nearest_distances"]

BLOCK_TARGETS = 32
BLOCK_OTHERS = 64
CHANNELS = 4
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
def _masses_kernel(  # type: ignore  # noqa: ANN202
    targets, others, weights, near_targets, near_others, rate, masses, m, n,  # noqa: ANN001
    d: tl.constexpr, channels: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    targets += batch * d * m
    others += batch * d * n
    weights += batch * channels * n
    masses += batch * channels * m
    near_others += batch * n
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    near_target = tl.load(near_targets + batch * m + rows, mask=rows < m, other=0.0)
    beta = tl.load(rate)
    # Sums are kept pair by pair and added up once at the end: a sum over a row at each step would
    # make the threads wait for each other.
    total_0 = tl.zeros((block_m, block_n), tl.float32)
    total_1 = tl.zeros((block_m, block_n), tl.float32)
    total_2 = tl.zeros((block_m, block_n), tl.float32)
    total_3 = tl.zeros((block_m, block_n), tl.float32)
    for start in range(0, n, block_n):
        columns = start + tl.arange(0, block_n)
        inside = columns < n
        near_other = tl.load(near_others + columns, mask=inside, other=0.0)
        distance = _distances(targets, others, rows, columns, m, n, d)
        beyond = distance - near_target[:, None] - near_other[None, :]
        value = tl.exp(tl.minimum(-beta * beyond, LARGEST_EXPONENT))
        total_0 += value * tl.load(weights + columns, mask=inside, other=0.0)[None, :]
        if channels > 1:
            total_1 += value * tl.load(weights + n + columns, mask=inside, other=0.0)[None, :]
        if channels > 2:
            total_2 += value * tl.load(weights + 2 * n + columns, mask=inside, other=0.0)[None, :]
        if channels > 3:
            total_3 += value * tl.load(weights + 3 * n + columns, mask=inside, other=0.0)[None, :]
    tl.store(masses + rows, tl.sum(total_0, 1), mask=rows < m)
    if channels > 1:
        tl.store(masses + m + rows, tl.sum(total_1, 1), mask=rows < m)
    if channels > 2:
        tl.store(masses + 2 * m + rows, tl.sum(total_2, 1), mask=rows < m)
    if channels > 3:
        tl.store(masses + 3 * m + rows, tl.sum(total_3, 1), mask=rows < m)


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
    # From a common origin the difference of two sums keeps its digits.
    origin = others.mean(1, keepdim=True)
    targets, others = targets - origin, others - origin
    channels = [weights]
    if gradient:
        channels += [weights * coordinate for coordinate in others.unbind(-1)]
        channels += [weights * others.square().sum(-1)]
    masses = torch.cat(
        [
            _masses(targets, others, torch.stack(group, 1), rate, near_targets, near_others)
            for group in (channels[i : i + CHANNELS] for i in range(0, len(channels), CHANNELS))
        ],
        1,
    )
    mass = masses[:, 0]
    if not gradient:
        return KernelMoments(mass, None, None)
    toward, squares = masses[:, 1:-1].mT, masses[:, -1]
    pull = toward - mass.unsqueeze(-1) * targets
    spread = targets.square().sum(-1) * mass - 2 * (targets * toward).sum(-1) + squares
    return KernelMoments(mass, pull, spread)


def _masses(
    targets: Tensor,
    others: Tensor,
    weights: Tensor,  # (B, C, N)
    rate: Tensor,
    near_targets: Tensor | None,
    near_others: Tensor | None,
) -> Tensor:  # (B, C, M)
    """Sums of the kernel for several weights of the others at once."""
    batch, m, d = targets.shape
    channels, n = weights.shape[1:]
    masses = targets.new_empty(batch, channels, m)
    near_targets = targets.new_zeros(batch, m) if near_targets is None else near_targets
    near_others = targets.new_zeros(batch, n) if near_others is None else near_others
    _masses_kernel[(triton.cdiv(m, BLOCK_TARGETS), batch)](
        _by_axis(targets), _by_axis(others), weights.contiguous(), near_targets.contiguous(),
        near_others.contiguous(), rate, masses, m, n,
        d=d, channels=channels, block_m=BLOCK_TARGETS, block_n=BLOCK_OTHERS,
    )  # fmt: skip
    return masses


def _by_axis(points: Tensor) -> Tensor:  # (B, M, d) -> (B, d, M)
    return points.mT.contiguous()
