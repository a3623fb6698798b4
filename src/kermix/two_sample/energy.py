r"""The energy distance as a statistic: from all pairs of rows, or from projections on lines.

It is $2 E|x - y| - E|x - x'| - E|y - y'|$; on a line, $2 \int (F - G)^2$ with the distribution
functions of both sides.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kermix.kernels.distances import Layout, numbers_of, squared_distances
from kermix.two_sample.cost_statistics import ROUNDINGS, tiles
from kermix.two_sample.permutation import Blocks, ExchangeableUnits, StatisticValues

__all__ = ["DIRECTIONS", "EnergyStatistic", "line_energy"]

# Reasoned, no record.
GRID, DIRECTIONS = 512, 32


@dataclass(frozen=True)
class EnergyStatistic:
    """The energy distance of rows, or of blocks by projections of their rows.

    Attributes:
        layout: Which columns are codes, if any are.
        generator: Of the directions that rows of blocks are projected on.
        directions: How many.
    """

    layout: Layout | None = None
    generator: torch.Generator = field(default_factory=torch.Generator, repr=False)
    directions: int = DIRECTIONS

    def values(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """One statistic."""
        if units.blocks is None:
            yield _of_pairs(units.rows, *units.sides, self.layout)
            return
        total = torch.zeros_like(units.signed[:, 0])
        projections, dimension = self._projections(units.rows)
        count = 0
        for values in projections:
            total += line_energy(values, units.blocks, units.signed)
            count += 1
        # The length of a vector over the mean length of its projections.
        log_ratio = math.lgamma((dimension + 1) / 2) - math.lgamma(dimension / 2)
        total *= math.sqrt(math.pi) * math.exp(log_ratio) / count
        method = f"{len(units.blocks)} blocks of {units.blocks.size} rows"
        yield StatisticValues("energy", total, method=method)

    def _projections(self, rows: Tensor) -> tuple[Iterator[Tensor], int]:  # (N,) each
        """Projections of rows, or of the one-hot rows that mixed ones stand for; their dimension.

        A direction has a number for each value of a code, which is looked up: no one-hot column is
        ever made.
        """
        if self.layout is None:
            # From the middle the projections of equal rows are equal, and none loses digits.
            centered = rows - rows.median(0).values
            lines = random_directions(rows.shape[1], self.generator, self.directions).to(rows)
            return (centered @ line for line in lines), rows.shape[1]
        numbers = numbers_of(rows, self.layout)
        places = [torch.unique(c, return_inverse=True) for c in rows[:, numbers.shape[1] :].mT]
        height = math.sqrt(self.layout.mismatch / 2)
        sizes = [len(values) for values, _ in places]
        dimension = numbers.shape[1] + sum(sizes)

        def projections() -> Iterator[Tensor]:
            for _ in range(self.directions):
                normal = torch.randn(dimension, generator=self.generator, dtype=torch.float64)
                first, *others = (normal / normal.norm()).split([numbers.shape[1], *sizes])
                found = numbers @ first
                for direction, (_, place) in zip(others, places, strict=True):
                    found += height * direction[place]
                yield found

        return projections(), dimension


def random_directions(d: int, generator: torch.Generator, directions: int) -> Tensor:  # (D, d)
    """Unit vectors, as far as there is room orthogonal, which is better than random; or one."""
    if d == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    found: list[Tensor] = []
    while len(found) < directions:
        normal = torch.randn(d, d, generator=generator, dtype=torch.float64)
        found += list(torch.linalg.qr(normal).Q.mT)
    return torch.stack(found[:directions])


def line_energy(values: Tensor, blocks: Blocks, signed: Tensor) -> Tensor:  # (N,), (P, B) -> (P,)
    """Energy distance on a line under each labeling of blocks, on a grid of 512 quantiles.

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


def _of_pairs(
    pooled: Tensor, a: Tensor, b: Tensor, layout: Layout | None
) -> StatisticValues:  # (N, d), (P, N), (P, N)
    r"""From all pairs of rows, ranked against the given labeling.

    With `c` in the middle, $H_{ij} = |x_i - c| + |x_j - c| - |x_i - x_j|$, and as the differences
    `z` of the weights sum to zero, $z^\top H z$ is the energy distance. A far point adds the same
    large number to every distance, in which the others are lost. What decides is
    $(z - z_0)^\top H (z + z_0)$, in which it cancels before anything is added.
    """
    signed = a - b
    centered = pooled - _middle(pooled, layout)
    if layout is None:
        norms = torch.linalg.vector_norm(centered, dim=1)
    else:
        origin = torch.zeros_like(centered[:1])
        norms = squared_distances(centered, origin, layout=layout)[:, 0].sqrt()
    minus, plus = signed - signed[:1], signed + signed[:1]
    given, change, size = (signed.new_zeros(k) for k in (1, len(signed), len(signed)))
    both = torch.cat([centered, norms[:, None]], 1)
    for rows, columns, tile in tiles(both, lambda x, y: _energies(x, y, layout)):
        parts = [(rows, columns, tile)]
        if rows != columns:
            parts.append((columns, rows, tile.T))
        for left, right, part in parts:
            given += signed[:1, left] @ (part @ signed[0, right])
            change += ((plus[:, right] @ part.T) * minus[:, left]).sum(1)
            # What H is made of is as large as this, whatever is left of it.
            bound = 2 * torch.minimum(norms[left, None], norms[right])
            size += ((plus[:, right].abs() @ bound.T) * minus[:, left].abs()).sum(1)
    level = ROUNDINGS * torch.finfo(change.dtype).eps * size
    order = torch.where(change.abs() <= level, 0.0, change)
    return StatisticValues("energy", (given + change).clamp(min=0).abs(), 0.0, order, "distances")


def _middle(pooled: Tensor, layout: Layout | None) -> Tensor:
    """The median; of codes the commonest."""
    middle = pooled.median(0).values
    if layout is not None and layout.codes:
        middle[-layout.codes :] = pooled[:, -layout.codes :].mode(0).values
    return middle


def _energies(x: Tensor, y: Tensor, layout: Layout | None) -> Tensor:  # (n, d + 1), (m, d + 1)
    r"""A tile of H, from centered rows and their norms.

    With $|x_i| \ge |x_j|$, $|x_i| - |x_i - x_j| = (2 x_i \cdot x_j - |x_j|^2) / (|x_i| + |x_i -
    x_j|)$ has the digits of the nearer point.
    """
    first, second = x[:, :-1], y[:, :-1]
    far = torch.maximum(x[:, -1:], y[:, -1])
    near = torch.minimum(x[:, -1:], y[:, -1])
    squares = squared_distances(first, second, layout=layout)
    products = far.square() - squares
    if layout is None:
        products = 2 * (first @ second.T) - near.square()
    found = near + products / (far + squares.sqrt()).clamp(min=torch.finfo(x.dtype).tiny)
    if x is y:
        found.diagonal().copy_(2 * x[:, -1])
    return found
