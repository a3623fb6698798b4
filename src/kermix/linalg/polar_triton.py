"""The two products of a cubic step on a GPU, each in one kernel.

Float16 goes into the products and sums are float32. A Gram matrix is symmetric: only tiles that
reach below the diagonal are formed, and stored twice. A step stores its result in float32, and
rounded for the next product. Both leave matrices that are done as they are, so that a captured
chain of steps ends early without a word to the host.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

__all__ = ["cubic_step", "gram", "halve", "whole_tiles"]


class Tile(NamedTuple):
    """How a product is divided among programs."""

    rows: int
    columns: int
    warps: int
    stages: int
    depth: int = 64
    neighbors: int = 8  # rows of tiles formed together, which find each other's parts in the cache


# From a size of matrices on. Conventions: the fastest of nine kinds on an H200.
GRAM_TILES = {0: Tile(64, 64, 4, 5), 1536: Tile(64, 128, 4, 5), 3072: Tile(128, 128, 8, 4)}
STEP_TILES = {0: Tile(64, 64, 4, 5), 1536: Tile(128, 128, 8, 4), 3072: Tile(128, 256, 8, 4)}


def whole_tiles(side: int) -> int:
    """The side of a matrix that is filled up to whole tiles."""
    tiles = (_tile_for(side, kinds) for kinds in (GRAM_TILES, STEP_TILES))
    least = max(max(tile.rows, tile.columns) for tile in tiles)
    return -(-side // least) * least


def _tile_for(side: int, kinds: dict[int, Tile]) -> Tile:
    return kinds[max(at for at in kinds if at <= side)]


@triton.jit
def _tile(rows, columns, neighbors: tl.constexpr):  # type: ignore  # noqa: ANN001, ANN202
    """Which tile this program forms, of so many rows and columns of tiles."""
    program = tl.program_id(0)
    together = neighbors * columns
    first = program // together * neighbors
    count = min(rows - first, neighbors)
    return first + program % together % count, program % together // count


@triton.jit
def _gram_kernel(  # type: ignore  # noqa: ANN202
    left_of, right_of, out, done, rows, columns, factor,  # noqa: ANN001
    height: tl.constexpr, width: tl.constexpr, depth: tl.constexpr, neighbors: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(1)
    i, j = _tile(rows // height, rows // width, neighbors)
    if j * width >= (i + 1) * height:  # wholly above the diagonal
        return
    if tl.load(done + batch) != 0:
        return
    r, c = tl.arange(0, height), tl.arange(0, width)
    total = tl.zeros((height, width), tl.float32)
    for k in range(0, columns, depth):
        left = left_of.load([batch * rows + i * height, k])
        right = right_of.load([batch * rows + j * width, k])
        total = tl.dot(left, right.T, total)
    # Within a tile whole numbers of 32 bits are enough, and faster.
    top, start = (i * height).to(tl.int64), (j * width).to(tl.int64)
    out += batch.to(tl.int64) * rows * rows
    found = (total * factor).to(tl.float16)
    here = out + top * rows + start + r[:, None] * rows + c[None, :]
    mirrored = out + start * rows + top + c[:, None] * rows + r[None, :]
    if i * height >= (j + 1) * width:
        tl.store(here, found)
        tl.store(mirrored, tl.trans(found))
    else:
        row, column = i * height + r, j * width + c
        tl.store(here, found, mask=row[:, None] >= column[None, :])
        tl.store(mirrored, tl.trans(found), mask=row[None, :] > column[:, None])


@triton.jit
def _step_kernel(  # type: ignore  # noqa: ANN202
    left_of, right_of, x, following, done, m, n, rows, columns, a, b, scale,  # noqa: ANN001
    height: tl.constexpr, width: tl.constexpr, depth: tl.constexpr, neighbors: tl.constexpr,
):  # fmt: skip
    of = tl.program_id(1)
    if tl.load(done + of) != 0:
        return
    i, j = _tile(rows // height, columns // width, neighbors)
    r, c = tl.arange(0, height), tl.arange(0, width)
    total = tl.zeros((height, width), tl.float32)
    for k in range(0, rows, depth):
        left = left_of.load([of * rows + i * height, k])
        right = right_of.load([of * rows + k, j * width])
        total = tl.dot(left, right, total)
    batch, top, start = of.to(tl.int64), (i * height).to(tl.int64), (j * width).to(tl.int64)
    inside = (i * height + r < m)[:, None] & (j * width + c < n)[None, :]
    place = x + (batch * m + top) * n + start + r[:, None] * n + c[None, :]
    after = a * tl.load(place, mask=inside, other=0.0) - b * total
    tl.store(place, after, mask=inside)
    following += (batch * rows + top) * columns + start
    tl.store(following + r[:, None] * columns + c[None, :], (after * scale).to(tl.float16))


@triton.jit
def _halve_kernel(  # type: ignore  # noqa: ANN202
    x, half, m, n, rows, columns, factor,  # noqa: ANN001
    height: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    batch = tl.program_id(2).to(tl.int64)
    row = tl.program_id(0) * height + tl.arange(0, height)
    column = tl.program_id(1) * width + tl.arange(0, width)
    inside = (row < m)[:, None] & (column < n)[None, :]
    place = (batch * m + row)[:, None] * n + column[None, :]
    found = tl.load(x + place, mask=inside, other=0.0) * factor
    place = (batch * rows + row)[:, None] * columns + column[None, :]
    tl.store(half + place, found.to(tl.float16), mask=inside)


def halve(
    x: Tensor,  # (B, m, n)
    half: Tensor,  # (B, rows, columns)
    factor: float,
    height: int = 4,
    width: int = 1024,
) -> None:
    """Write a matrix times a factor to its place in memory of whole tiles, in float16."""
    (batch, m, n), (_, rows, columns) = x.shape, half.shape
    with torch.cuda.device(half.device):
        _halve_kernel[(-(-m // height), -(-n // width), batch)](
            x, half, m, n, rows, columns, factor, height, width
        )


def _loaded(matrices: Tensor, rows: int, columns: int) -> TensorDescriptor:
    """Matrices one below the other, of which the hardware fetches parts of this shape."""
    return TensorDescriptor.from_tensor(matrices.flatten(0, 1), [rows, columns])


def gram(
    half: Tensor,  # (B, rows, columns), in float16
    out: Tensor,  # (B, rows, rows), in float16
    done: Tensor,  # (B,)
    factor: float,
) -> None:
    """Write the products with the transposes, times a factor, to `out`."""
    batch, rows, columns = half.shape
    tile = _tile_for(rows, GRAM_TILES)
    with torch.cuda.device(half.device):
        _gram_kernel[(rows // tile.rows * (rows // tile.columns), batch)](
            _loaded(half, tile.rows, tile.depth), _loaded(half, tile.columns, tile.depth),
            out, done, rows, columns, factor, tile.rows, tile.columns, tile.depth,
            tile.neighbors, num_warps=tile.warps, num_stages=tile.stages,
        )  # fmt: skip


def cubic_step(
    gram: Tensor,  # (B, rows, rows), in float16
    half: Tensor,  # (B, rows, columns), in float16
    x: Tensor,  # (B, m, n), contiguous
    following: Tensor,  # as `half`
    done: Tensor,  # (B,)
    a: float,
    b: float,
    scale: float,
) -> None:
    """Write `a x - b gram half` to `x`, and times a scale to `following`."""
    batch, rows, columns = half.shape
    tile = _tile_for(min(rows, columns), STEP_TILES)
    with torch.cuda.device(half.device):
        _step_kernel[(rows // tile.rows * (columns // tile.columns), batch)](
            _loaded(gram, tile.rows, tile.depth), _loaded(half, tile.depth, tile.columns),
            x, following, done, x.shape[-2], x.shape[-1], rows, columns, a, b, scale,
            tile.rows, tile.columns, tile.depth, tile.neighbors, num_warps=tile.warps,
            num_stages=tile.stages,
        )  # fmt: skip
