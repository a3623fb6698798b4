r"""Two large samples as blocks of rows: all rows count, and labels of blocks are exchanged.

Rows are put into blocks of equal size at random, within their own sample. Blocks of independent
rows from one source are exchangeable, so a permutation test that exchanges blocks is as exact as
one that exchanges rows; and statistics of blocks are sums that are computed once, whatever the
number of permutations.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.sketches.accumulation import FeatureSums, NystromSums
from kermix.sketches.features import NystromFeatures

__all__ = [
    "Blocks",
    "FeatureBlocks",
    "block_statistics",
    "energy_of_blocks",
    "energy_of_rows",
    "feature_blocks",
    "line_energy",
    "line_energy_of_rows",
    "random_directions",
]

BLOCKS = 400
FEWEST_ON_A_SIDE = 32
MOST = 1000
LEADING = 100
SMALLEST_MOMENT = 1e-5
GRID = 512
DIRECTIONS = 32


@dataclass(frozen=True)
class Blocks:
    """The rows of the blocks of both samples; those of `x` come first."""

    rows: Tensor  # (B, s), indices of pooled rows
    of_x: int
    rest: Tensor  # (n + m - B s,), rows in no block
    n: int  # pooled rows below this are of x

    @classmethod
    def of(cls, n: int, m: int, generator: torch.Generator) -> "Blocks":
        """Some four hundred blocks, with at least thirty on the smaller side."""
        size = max(1, min((n + m) // BLOCKS, min(n, m) // FEWEST_ON_A_SIDE))
        parts, rest = [], []
        for count, offset in ((n, 0), (m, n)):
            order = torch.randperm(count, generator=generator) + offset
            used = min(count // size, MOST)
            parts.append(order[: used * size].reshape(used, size))
            rest.append(order[used * size :])
        return cls(torch.cat(parts), len(parts[0]), torch.cat(rest), n)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def size(self) -> int:
        """Rows of a block."""
        return self.rows.shape[1]


@dataclass(frozen=True)
class FeatureBlocks:
    """Mean features and mean products of features of each block, and the sums over all rows."""

    first: Tensor  # (B, r)
    second: Tensor  # (B, r, r)
    moments: Tensor  # (r,), eigenvalues of the pooled second moment, rising
    x: FeatureSums
    y: FeatureSums


@torch.no_grad()
def feature_blocks(pooled: Tensor, blocks: Blocks, features: NystromFeatures) -> FeatureBlocks:
    """One pass over all rows; features of blocks are then rotated to be uncorrelated.

    At most 100 of them are kept for tests and error bars; the sums over all rows keep all.
    """
    accumulate = NystromSums(features)
    first, second, residual = _block_sums(pooled, blocks, accumulate)
    sides = []
    for part, rest in (
        (slice(None, blocks.of_x), blocks.rest[blocks.rest < blocks.n]),
        (slice(blocks.of_x, None), blocks.rest[blocks.rest >= blocks.n]),
    ):
        count = first.new_tensor(float(len(blocks.rows[part]) * blocks.size))
        sums = FeatureSums(count, first[part].sum(0), second[part].sum(0), residual[part].sum())
        sides.append(sums.plus(accumulate(pooled[rest])))
    first, second = first / blocks.size, second / blocks.size
    moments, rotation = torch.linalg.eigh(second.mean(0))
    keep = moments > SMALLEST_MOMENT * moments[-1]
    keep[:-LEADING] = False
    rotation = rotation[:, keep]
    return FeatureBlocks(
        first @ rotation, rotation.mT @ second @ rotation, moments[keep], sides[0], sides[1]
    )


def _block_sums(
    pooled: Tensor, blocks: Blocks, accumulate: NystromSums
) -> tuple[Tensor, Tensor, Tensor]:  # (B, r), (B, r, r), (B,)
    """Sums of each block, of several blocks at a time where these are small."""
    together = accumulate.rows // blocks.size
    if together < 1:
        found = [accumulate(pooled[rows]) for rows in blocks.rows]
        columns = zip(*((f.first, f.second, f.residual) for f in found), strict=True)
        first, second, residual = (torch.stack(column) for column in columns)
        return first, second, residual
    firsts, seconds, residuals = [], [], []
    for rows in blocks.rows.split(together):
        features = accumulate.features(pooled[rows.flatten()]).unflatten(0, rows.shape)
        firsts.append(features.sum(1))
        seconds.append(features.mT @ features)
        residuals.append((1 - features.square().sum(-1)).clamp(min=0).sum(1))
    return torch.cat(firsts), torch.cat(seconds), torch.cat(residuals)


def block_statistics(
    found: FeatureBlocks,
    a: Tensor,  # (P, B)
    b: Tensor,  # (P, B)
    ridge: float,
) -> dict[str, Tensor]:  # (P,) each
    """The statistics of :func:`kermix.two_sample_test` for weights of blocks."""
    signed = a - b
    scale = (found.moments + ridge).rsqrt()
    moments = found.moments * scale.square()
    difference = (signed @ found.second.flatten(1)).unflatten(1, found.second.shape[1:])
    squares = (difference * scale[:, None] * scale).square()
    of_a, of_b = a @ found.first, b @ found.first
    pp, pq, qq = ((s * t).sum(1) for s, t in ((of_a, of_a), (of_a, of_b), (of_b, of_b)))
    return {
        "svd": (squares / (moments[:, None] + moments)).sum((1, 2)),
        "matrix": squares.sum((1, 2)),
        "vector": ((of_a - of_b) * scale).square().sum(1),
        "scalar": (pp.log() + qq.log() - 2 * pq.log()).clamp(min=0).nan_to_num(),
        "mmd": (of_a - of_b).square().sum(1),
    }


@torch.no_grad()
def energy_of_blocks(
    pooled: Tensor,  # (N, d)
    blocks: Blocks,
    a: Tensor,  # (P, B)
    b: Tensor,  # (P, B)
    directions: Tensor,  # (D, d)
) -> Tensor:  # (P,)
    """Energy distance for weights of blocks, from projections of the rows, each on a grid."""
    total = a.new_zeros(len(a))
    for direction in directions.to(pooled):
        total += line_energy(pooled @ direction, blocks, a - b)
    return _of_projections(pooled.shape[1]) * total / len(directions)


def energy_of_rows(pooled: Tensor, n: int, directions: Tensor) -> float:
    """Energy distance of the first n rows and the others, from projections, each exact."""
    lines = [line_energy_of_rows(pooled @ direction, n) for direction in directions.to(pooled)]
    return _of_projections(pooled.shape[1]) * sum(lines) / len(lines)


def line_energy_of_rows(values: Tensor, n: int) -> float:  # (N,)
    r"""Energy distance on a line of the first n values and the others, :math:`2 \int (F - G)^2`.

    Example:
        >>> line_energy_of_rows(torch.tensor([0.0, 0.0, 1.0]), 2)
        2.0
    """
    ordered, order = values.double().sort()
    of_x = (order < n).to(ordered)
    steps = of_x / n - (1 - of_x) / (len(values) - n)
    return float(2 * (steps.cumsum(0)[:-1].square() @ ordered.diff()))


def _of_projections(d: int) -> float:
    r"""Length of a vector over the mean length of its projections.

    It is :math:`\sqrt\pi\, \Gamma((d + 1) / 2) / \Gamma(d / 2)`, so the energy distance is that
    multiple of the mean over directions of the distance on a line.
    """
    return math.sqrt(math.pi) * math.exp(math.lgamma((d + 1) / 2) - math.lgamma(d / 2))


def line_energy(values: Tensor, blocks: Blocks, signed: Tensor) -> Tensor:  # (N,), (P, B) -> (P,)
    r"""Energy distance on a line, :math:`2 \int (F - G)^2`, on a grid of 512 quantiles.

    Exact for columns of fewer distinct values.
    """
    ordered = values.sort().values
    grid = torch.unique_consecutive(ordered)
    if len(grid) > GRID:
        places = torch.linspace(0, len(values) - 1, GRID, dtype=torch.float64).round().long()
        grid = torch.unique_consecutive(ordered[places])
    if len(grid) == 1:
        return signed.new_zeros(len(signed))
    # Bin k holds values in (grid[k - 1], grid[k]], so sums of bins are distribution functions.
    bins = torch.bucketize(values[blocks.rows.flatten()], grid)
    owners = torch.arange(len(blocks)).repeat_interleave(blocks.size)
    counts = torch.bincount(owners * len(grid) + bins, minlength=len(blocks) * len(grid))
    below = counts.reshape(len(blocks), len(grid)).to(signed).cumsum(1) / blocks.size
    difference = signed @ below[:, :-1]
    return 2 * (difference.square() @ grid.diff().to(signed))


def random_directions(d: int, generator: torch.Generator) -> Tensor:  # (D, d)
    """32 unit vectors, as far as there is room orthogonal, which is better than random; or one."""
    if d == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    found: list[Tensor] = []
    while len(found) < DIRECTIONS:
        normal = torch.randn(d, d, generator=generator, dtype=torch.float64)
        found += list(torch.linalg.qr(normal).Q.mT)
    return torch.stack(found[:DIRECTIONS])
