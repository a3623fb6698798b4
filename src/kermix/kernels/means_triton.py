"""Kernel means of points in few dimensions on a GPU, fused: no kernel value reaches memory.

Two Triton kernels do what `kermix.kernels.means` does in tiles, which is their reference.
Neither holds more than a block of kernel values in registers, so there is no memory to bound. A
third one mends distances that a matrix product has lost the digits of.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from kermix import checks

__all__ = ["kernel_moments", "nearest_distances", "recompute_distances"]

BLOCK_TARGETS = 32
FEW_TARGETS, BLOCK_OF_FEW = 8192, 8  # which leave no processor idle
BLOCK_OTHERS = 64
CHANNELS = 4
LARGEST_EXPONENT = tl.constexpr(checks.LARGEST_EXPONENT)


@triton.jit
def _distances(  # type: ignore  # noqa: ANN202
    targets, others, rows, columns, m, n, d: tl.constexpr, largest: tl.constexpr,  # noqa: ANN001
):  # fmt: skip
    total = tl.zeros((rows.shape[0], columns.shape[0]), targets.dtype.element_ty)
    for k in tl.static_range(d):
        row = tl.load(targets + k * m + rows, mask=rows < m, other=0.0)
        column = tl.load(others + k * n + columns, mask=columns < n, other=0.0)
        difference = row[:, None] - column[None, :]
        total += difference * difference
    return tl.minimum(total, largest)


@triton.jit
def _nearest_kernel(  # type: ignore  # noqa: ANN202
    targets, others, weights, nearest, m, n,  # noqa: ANN001
    d: tl.constexpr, largest: tl.constexpr, block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    targets += batch * d * m
    others += batch * d * n
    weights += batch * n
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    smallest = tl.full((block_m, block_n), largest, targets.dtype.element_ty)
    for start in range(0, n, block_n):
        columns = start + tl.arange(0, block_n)
        weight = tl.load(weights + columns, mask=columns < n, other=0.0)
        distance = _distances(targets, others, rows, columns, m, n, d, largest)
        distance = tl.where(weight[None, :] > 0, distance, largest)
        smallest = tl.minimum(smallest, distance)
    tl.store(nearest + batch * m + rows, tl.min(smallest, 1), mask=rows < m)


@triton.jit
def _factor(targets, others, rows, columns, m, n, distance, c: tl.constexpr, d: tl.constexpr):  # type: ignore  # noqa: ANN001, ANN202
    """The factor of the kernel in channel `c`: one, a difference, or the distance."""
    if c == 0:
        factor = tl.full(distance.shape, 1.0, distance.dtype)
    elif c <= d:
        row = tl.load(targets + (c - 1) * m + rows, mask=rows < m, other=0.0)
        column = tl.load(others + (c - 1) * n + columns, mask=columns < n, other=0.0)
        factor = column[None, :] - row[:, None]
    else:
        factor = distance
    return factor


@triton.jit
def _masses_kernel(  # type: ignore  # noqa: ANN202
    targets, others, weights, near_targets, near_others, rate, masses, m, n,  # noqa: ANN001
    d: tl.constexpr, largest: tl.constexpr, first: tl.constexpr, channels: tl.constexpr,
    block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1).to(tl.int64)
    targets += batch * d * m
    others += batch * d * n
    weights += batch * n
    masses += batch * channels * m
    near_others += batch * n
    rows = tl.program_id(0) * block_m + tl.arange(0, block_m)
    near_target = tl.load(near_targets + batch * m + rows, mask=rows < m, other=0.0)
    beta = tl.load(rate)
    # Sums are kept pair by pair and added up once at the end: a sum over a row at each step would
    # make the threads wait for each other.
    total_0 = tl.zeros((block_m, block_n), targets.dtype.element_ty)
    total_1 = tl.zeros((block_m, block_n), targets.dtype.element_ty)
    total_2 = tl.zeros((block_m, block_n), targets.dtype.element_ty)
    total_3 = tl.zeros((block_m, block_n), targets.dtype.element_ty)
    for start in range(0, n, block_n):
        columns = start + tl.arange(0, block_n)
        inside = columns < n
        near_other = tl.load(near_others + columns, mask=inside, other=0.0)
        distance = _distances(targets, others, rows, columns, m, n, d, largest)
        beyond = distance - near_target[:, None] - near_other[None, :]
        value = tl.exp(tl.minimum(-beta * beyond, LARGEST_EXPONENT))
        value *= tl.load(weights + columns, mask=inside, other=0.0)[None, :]
        total_0 += value * _factor(targets, others, rows, columns, m, n, distance, first, d)
        if channels > 1:
            total_1 += value * _factor(
                targets, others, rows, columns, m, n, distance, first + 1, d
            )
        if channels > 2:
            total_2 += value * _factor(
                targets, others, rows, columns, m, n, distance, first + 2, d
            )
        if channels > 3:
            total_3 += value * _factor(
                targets, others, rows, columns, m, n, distance, first + 3, d
            )
    tl.store(masses + rows, tl.sum(total_0, 1), mask=rows < m)
    if channels > 1:
        tl.store(masses + m + rows, tl.sum(total_1, 1), mask=rows < m)
    if channels > 2:
        tl.store(masses + 2 * m + rows, tl.sum(total_2, 1), mask=rows < m)
    if channels > 3:
        tl.store(masses + 3 * m + rows, tl.sum(total_3, 1), mask=rows < m)


@triton.jit
def _recompute_kernel(  # type: ignore  # noqa: ANN202
    distances, squares_a, squares_b, a, b, m, n, d, tiles, close,  # noqa: ANN001
    block_m: tl.constexpr, block_n: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    across = tl.cdiv(n, block_n)
    rows = tile // across * block_m + tl.arange(0, block_m)
    columns = tile % across * block_n + tl.arange(0, block_n)
    inside = (rows < m)[:, None] & (columns < n)[None, :]
    places = distances + batch * m * n + rows[:, None].to(tl.int64) * n + columns[None, :]
    found = tl.load(places, mask=inside, other=0.0)
    square_a = tl.load(squares_a + batch * m + rows, mask=rows < m, other=0.0)
    square_b = tl.load(squares_b + batch * n + columns, mask=columns < n, other=0.0)
    limit = close * (square_a[:, None] + square_b[None, :])
    # Neither what is no number nor what has an infinite limit is right.
    right = (found >= limit) & (limit < float("inf"))
    wrong = inside & (right == 0)
    if tl.max(tl.max(wrong.to(tl.int32), 1), 0) > 0:
        a += batch * d * m
        b += batch * d * n
        total = tl.zeros((block_m, block_n), found.dtype)
        for k in range(d):
            row = tl.load(a + k * m + rows, mask=rows < m, other=0.0)
            column = tl.load(b + k * n + columns, mask=columns < n, other=0.0)
            difference = row[:, None] - column[None, :]
            total += difference * difference
        tl.store(places, total, mask=wrong)


def recompute_distances(
    distances: Tensor,  # (*B, M, N)
    squares_a: Tensor,  # (*B, M)
    squares_b: Tensor,  # (*B, N)
    a: Tensor,  # (*B, M, d)
    b: Tensor,  # (*B, N, d)
    close: float,
) -> Tensor:  # (*B, M, N)
    """Squared distances, those that are below `close` times the norms by differences, in place.

    Only tiles that hold such a one take the time; nothing waits for the device.
    """
    distances = distances.contiguous()
    (m, d), n = a.shape[-2:], b.shape[-2]
    tiles = triton.cdiv(m, BLOCK_TARGETS) * triton.cdiv(n, BLOCK_OTHERS)
    _recompute_kernel[(tiles * (distances.numel() // (m * n)),)](
        distances, squares_a.contiguous(), squares_b.contiguous(), _by_axis(a), _by_axis(b),
        m, n, d, tiles, close, block_m=BLOCK_TARGETS, block_n=BLOCK_OTHERS,
    )  # fmt: skip
    return distances


def nearest_distances(points: Tensor, sources: Tensor, weights: Tensor) -> Tensor:  # (B, M)
    """Squared distance from each point to the nearest source of positive weight."""
    batch, m, d = points.shape
    nearest = points.new_empty(batch, m)
    block = _block_for(m)
    _nearest_kernel[(triton.cdiv(m, block), batch)](
        _by_axis(points), _by_axis(sources), weights.contiguous(), nearest, m, sources.shape[1],
        d=d, largest=_largest(points), block_m=block, block_n=BLOCK_OTHERS,
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
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Mass, pull and spread as in `kermix.kernels.means.KernelMoments`.

    They are sums of the kernel `exp(-rate * (distance - near))`, with what its gradient needs.

    `near` belongs to the targets or to the others: distances are taken relative to it.
    """
    # Differences are taken pair by pair: a difference of two sums would lose the digits of points
    # that are close to each other and far from the origin.
    wanted = targets.shape[-1] + 2 if gradient else 1
    masses = torch.cat(
        [
            _masses(targets, others, weights, rate, near_targets, near_others, first, wanted)
            for first in range(0, wanted, CHANNELS)
        ],
        1,
    )
    if not gradient:
        return masses[:, 0], None, None
    return masses[:, 0], masses[:, 1:-1].mT, masses[:, -1]


def _masses(
    targets: Tensor,
    others: Tensor,
    weights: Tensor,
    rate: Tensor,
    near_targets: Tensor | None,
    near_others: Tensor | None,
    first: int,
    wanted: int,
) -> Tensor:  # (B, C, M)
    """Some of the sums at once: mass, pull along each axis, spread, from the `first` on."""
    batch, m, d = targets.shape
    n, channels = others.shape[1], min(CHANNELS, wanted - first)
    masses = targets.new_empty(batch, channels, m)
    near_targets = targets.new_zeros(batch, m) if near_targets is None else near_targets
    near_others = targets.new_zeros(batch, n) if near_others is None else near_others
    block = _block_for(m)
    _masses_kernel[(triton.cdiv(m, block), batch)](
        _by_axis(targets), _by_axis(others), weights.contiguous(), near_targets.contiguous(),
        near_others.contiguous(), rate, masses, m, n,
        d=d, largest=_largest(targets), first=first, channels=channels, block_m=block,
        block_n=BLOCK_OTHERS,
    )  # fmt: skip
    return masses


def _block_for(targets: int) -> int:
    return BLOCK_OF_FEW if targets <= FEW_TARGETS else BLOCK_TARGETS


def _largest(points: Tensor) -> float:
    return torch.finfo(points.dtype).max * checks.ROOM_FOR_SUMS


def _by_axis(points: Tensor) -> Tensor:  # (B, M, d) -> (B, d, M)
    return points.mT.contiguous()
