r"""The paper's costs as statistics of the permutation engine: dense of rows, by moments of blocks.

Every function takes weights `a` and `b` of the units on both sides under each labeling, each of
shape (P, R) and summing to 1, and gives P numbers that grow with the difference: quadratic forms
of features of the pooled rows, or the costs themselves.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kermix.checks import rows_at_once
from kermix.costs.formulas import (
    Correlations,
    Scaled,
    log_matrix_cost,
    log_svd_cost,
    log_vector_cost,
)
from kermix.info import Info
from kermix.kernels.distances import Layout, numbers_of, squared_distances
from kermix.kernels.gaussian import GaussianKernel, KernelTerms
from kermix.kernels.others import LogStationary, PointKernel, kernel_matrix
from kermix.linalg.cholesky import shrunk
from kermix.mixtures.mixture import InnerProducts, log_scalar_cost
from kermix.sketches.accumulation import NystromSums
from kermix.sketches.features import nystrom_features
from kermix.sketches.kernel_features import TOLERANCE, PrincipalFeatures, principal_features
from kermix.two_sample.permutation import Blocks, ExchangeableUnits, StatisticValues

__all__ = [
    "BLOCK_RANK",
    "COST_RIDGE",
    "DIRECTIONS",
    "KERNEL_COSTS",
    "ROUNDING",
    "SAFE",
    "CostStatistics",
    "EnergyStatistic",
    "KernelCost",
    "TestForm",
    "WeightedMoments",
    "bures_form",
    "bures_witness",
    "line_energy",
    "log_cross_means",
    "quadratic_form",
    "tiles",
]

KernelCost: TypeAlias = Literal["svd", "matrix", "vector", "scalar", "mmd"]
TestForm: TypeAlias = Literal["local", "exact"]
Tile: TypeAlias = tuple[slice, slice, Tensor]
Weights: TypeAlias = tuple[Tensor, Tensor]

KERNEL_COSTS: tuple[KernelCost, ...] = ("svd", "matrix", "vector", "scalar", "mmd")
# Reasoned, no record.
COST_RIDGE = 1e-4
BLOCK_RANK, MOST_FEATURES = 128, 100
# Conventions: errors of long sums, in units of the last place of their terms.
ROUNDINGS = 64
ROUNDING = ROUNDINGS * torch.finfo(torch.float64).eps
SAFE = 1e-200  # a mean of kernels above this has lost nothing that underflowed
# Products of tiles of this side stay in the cache of a processor, or fill a GPU.
TILE, LARGE_TILE = 512, 4096


@dataclass(frozen=True)
class CostStatistics:
    r"""The statistics of `kermix.two_sample_test` for one kernel.

    Of rows they come from the pooled Gram matrix, tile by tile, or from its leading features. Of
    blocks they come from moments of Nystrom features of each block, summed once, in local forms:
    these take a quarter of the time of the costs by `WeightedMoments` on the same moments ("kermix
    svd" and "kermix svd, exact" of `python -m benchmarks permutation`).

    Attributes:
        costs: Which.
        kernel: The kernel.
        form: The local form or the cost itself.
        ridge: Of the whitening, relative to the kernel's diagonal; None: none.
        generator: Of landmarks.
        rank: Most landmarks for blocks.
    """

    costs: tuple[KernelCost, ...]
    kernel: GaussianKernel | PointKernel
    form: TestForm = "local"
    ridge: float | None = COST_RIDGE
    generator: torch.Generator = field(default_factory=torch.Generator, repr=False)
    rank: int = BLOCK_RANK

    def values(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """One statistic for each cost."""
        if units.blocks is not None:
            yield from self._of_blocks(units)
            return
        kernel, points = self.kernel, units.rows
        d = points.shape[1]
        terms = kernel.cross_terms(d) if isinstance(kernel, GaussianKernel) else kernel
        features, method = None, ""
        for cost in self.costs:
            if cost == "scalar":
                yield _divergences(points, terms, *units.sides)
            elif cost == "mmd":
                gram = tiles(points, lambda x, y: kernel_matrix(x, y, terms, x.dtype))
                yield _quadratic("mmd", gram, units.signed, "gram matrix")
            else:
                if features is None:
                    features, method = principal_features(
                        points, kernel, units.shares, self.generator
                    )
                    if isinstance(kernel, PointKernel):
                        features = features.divided(_mean_diagonal(kernel, points))
                    features = features.whitened(self.ridge)
                values = self._of_moments(cost, features, units)
                yield values._replace(method=f"{self.form}, {method}")

    def _of_moments(
        self, cost: KernelCost, features: PrincipalFeatures, units: ExchangeableUnits
    ) -> StatisticValues:
        """Statistics of first and second moments of features of rows."""
        if self.form == "exact":
            values = exact_costs(cost, features.features, units.sides, units.used).nan_to_num(0.0)
            magnitude = 1.0 if cost == "svd" else sum(units.used) / 2 / COST_RIDGE / 16
            if cost == "matrix":  # a sum over the features, divided by something else
                magnitude *= features.features.shape[1] / min(units.used)
            return StatisticValues(cost, values, _rounding(values, magnitude))
        if cost == "vector":
            difference = units.signed @ features.features
            largest = features.features.square().sum(1).max()
            level = 4 * torch.finfo(difference.dtype).eps * largest.sqrt()
            values = torch.where(difference.abs() <= level, 0.0, difference).square().sum(1)
            noise = _rounding(values, values.max().sqrt() * largest.sqrt())
            return StatisticValues(cost, values, noise)
        moments = features.moments
        form = tiles(
            features.features,
            lambda x, y: bures_form(x, y, moments) if cost == "svd" else (x @ y.T).square(),
        )
        return _quadratic(cost, form, units.signed, "")

    def _of_blocks(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """From mean features and mean products of features of each block."""
        assert units.blocks is not None
        assert isinstance(self.kernel, GaussianKernel)
        candidates = len(units.reference)
        features = nystrom_features(
            units.reference, self.kernel, self.rank, TOLERANCE, candidates=candidates
        )
        sums = NystromSums(features).of_groups(units.rows, units.blocks.rows)
        first, second = (s / units.blocks.size for s in sums)
        moments, rotation = torch.linalg.eigh(second.mean(0))
        keep = moments > TOLERANCE * moments[-1]
        keep[:-MOST_FEATURES] = False
        moments, rotation = moments[keep], rotation[:, keep]
        first, second = first @ rotation, rotation.mT @ second @ rotation
        method = f"{len(units.blocks)} blocks of {units.blocks.size} rows"
        found = _local_forms(first, second, moments, units, self.ridge or 0.0)
        for cost in self.costs:
            yield StatisticValues(cost, found[cost], method=method)


def _mean_diagonal(kernel: PointKernel, points: Tensor) -> float:
    """What a ridge is relative to."""
    mean = float(kernel.diagonal(points).mean())
    return mean if mean > 0 else 1.0


def _rounding(like: Tensor, size: Tensor | float = 1.0) -> float:
    """The largest rounding error to be expected of sums whose terms have this size together."""
    return ROUNDINGS * torch.finfo(like.dtype).eps * float(size)


def _beyond_rounding(differences: Tensor, of: Tensor) -> Tensor:
    """Differences of means without those that rounding makes: equal rows differ in nothing."""
    return torch.where(differences.abs() <= ROUNDING * of.abs().max(), 0.0, differences)


def _local_forms(
    first: Tensor,  # (B, r)
    second: Tensor,  # (B, r, r)
    moments: Tensor,  # (r,)
    units: ExchangeableUnits,
    ridge: float,
) -> dict[KernelCost, Tensor]:  # (P,) each
    a, b = units.sides
    scale = (moments + ridge).rsqrt()
    moments = moments * scale.square()
    products = (units.signed @ second.flatten(1)).unflatten(1, second.shape[1:])
    squares = (_beyond_rounding(products, second) * scale[:, None] * scale).square()
    of_a, of_b = a @ first, b @ first
    difference = _beyond_rounding(of_a - of_b, first)
    pp, pq, qq = ((s * t).sum(1) for s, t in ((of_a, of_a), (of_a, of_b), (of_b, of_b)))
    # Below rounding nothing is known of an overlap, not even its sign.
    pq = torch.maximum(pq, ROUNDING * (pp * qq).sqrt())
    divergence = -log_scalar_cost(InnerProducts(pq.log(), qq.log(), pp.log()), normalized=True)
    return {
        "svd": (squares / (moments[:, None] + moments)).sum((1, 2)),
        "matrix": squares.sum((1, 2)),
        "vector": (difference * scale).square().sum(1),
        "scalar": torch.where(divergence <= ROUNDING, 0.0, divergence),
        "mmd": difference.square().sum(1),
    }


def tiles(
    points: Tensor, tile: Callable[[Tensor, Tensor], Tensor]
) -> Iterator[Tile]:  # (N, d), (n, d), (m, d) -> (n, m)
    """Tiles of a symmetric matrix of pairs of points, those on and above its diagonal."""
    size = TILE if points.device.type == "cpu" else LARGE_TILE
    parts = [slice(start, start + size) for start in range(0, len(points), size)]
    for k, rows in enumerate(parts):
        first = points[rows]
        for columns in parts[k:]:
            yield rows, columns, tile(first, first if rows == columns else points[columns])


def quadratic_form(
    signed: Tensor,  # (P, N)
    matrix: Iterator[Tile],
) -> tuple[Tensor, Tensor]:  # (P,), ()
    """`z^T H z` for each row z of `signed`, from tiles of a symmetric H, and the size of its sum.

    What is within rounding of zero is zero. The size is the sum of all terms without their signs,
    for a typical `z`: rounding errors are relative to it, and not to the result.
    """
    typical = signed.square().mean(0).sqrt()
    total, size = signed.new_zeros(len(signed)), signed.new_zeros(())
    for rows, columns, tile in matrix:
        times = 1 if rows == columns else 2
        total += times * ((signed[:, columns] @ tile.T) * signed[:, rows]).sum(1)
        size += times * (typical[rows] @ (tile.abs() @ typical[columns]))
    return torch.where(total.abs() <= 4 * torch.finfo(total.dtype).eps * size, 0.0, total), size


def _quadratic(
    cost: KernelCost, matrix: Iterator[Tile], signed: Tensor, method: str
) -> StatisticValues:
    values, size = quadratic_form(signed, matrix)
    return StatisticValues(cost, values, _rounding(values, size), method=method)


def bures_form(x: Tensor, y: Tensor, moments: Tensor) -> Tensor:  # (n, r), (m, r), (r,) -> (n, m)
    r"""The Bures metric at the pooled second moment, as a kernel between features of points.

    $$H_{kl} = \sum_{ij} \frac{\phi_{ki} \phi_{kj} \phi_{li} \phi_{lj}}
        {\lambda_i + \lambda_j} = \int_0^\infty \Big( \sum_i \phi_{ki} e^{-t \lambda_i} \phi_{li}
        \Big)^2 dt,$$

    the integral by the trapezoidal rule in $\log t$ with steps of about 1: some twenty matrix
    products instead of all pairs of features.
    """
    lowest, highest = (2 * float(m) for m in (moments[0], moments[-1]))
    start, stop = -math.log(highest) - 5, -math.log(lowest) + 2
    count = math.ceil(stop - start) + 1
    step = (stop - start) / (count - 1)
    total = x.new_zeros(len(x), len(y))
    for k in range(count):
        t = math.exp(start + k * step)
        total.addcmul_(product := (x * torch.exp(-t * moments)) @ y.T, product, value=step * t)
    return total


def bures_witness(
    pooled: PrincipalFeatures,
    points: Tensor,  # (M, d)
    difference: Tensor,  # (N,)
) -> Tensor:  # (M,)
    r"""Where two halves of the pooled sample differ: the derivative of the Bures form.

    $$w(z) = \sum_{ij} \phi_i(z) \frac{D_{ij}}{\lambda_i + \lambda_j} \phi_j(z),$$

    with `D` the difference of second moments; positive where the first half has more mass.
    """
    moment = pooled.features.T @ (pooled.features * difference[:, None])
    sums = pooled.moments[:, None] + pooled.moments
    features = pooled.at(points)
    return ((features @ (moment / sums)) * features).sum(1)


def _divergences(
    points: Tensor, terms: KernelTerms | PointKernel, a: Tensor, b: Tensor
) -> StatisticValues:
    """Cauchy-Schwarz divergence: minus the logarithm of the normalized scalar cost.

    Its rounding error is that of logarithms of sums of positive numbers.
    """
    pp, pq, qq = (a.new_zeros(len(a)) for _ in range(3))
    gram = tiles(points, lambda x, y: kernel_matrix(x, y, terms, x.dtype))
    for rows, columns, tile in gram:
        of_a, of_b = a[:, columns] @ tile.T, b[:, columns] @ tile.T
        twice = rows != columns
        pp += (1 + twice) * (of_a * a[:, rows]).sum(1)
        qq += (1 + twice) * (of_b * b[:, rows]).sum(1)
        pq += (of_a * b[:, rows]).sum(1)
        if twice:
            pq += (of_b * a[:, rows]).sum(1)
    if isinstance(terms, PointKernel):
        pp, pq, qq = (s.abs().clamp(min=torch.finfo(s.dtype).tiny) for s in (pp, pq, qq))
    log_pq, far = pq.log(), pq < SAFE
    if bool(far.any()) and isinstance(terms, KernelTerms | LogStationary):
        log_pq[far] = log_cross_means(points, terms, a[far], b[far])
    divergence = -log_scalar_cost(InnerProducts(log_pq, qq.log(), pp.log()), normalized=True)
    level = 16 * torch.finfo(divergence.dtype).eps
    values = torch.where(divergence.abs() <= level, 0.0, divergence)
    noise = _rounding(values, values.max().clamp(min=1))
    return StatisticValues("scalar", values, noise, method="gram matrix")


def log_cross_means(
    points: Tensor, terms: KernelTerms | LogStationary, a: Tensor, b: Tensor
) -> Tensor:  # (N, d), (P, N), (P, N) -> (P,)
    """Logarithms of the kernel's means across sides that are too far apart for exponentials."""
    found = []
    for weights in zip(a, b, strict=True):
        sides = [(points[w > 0], w[w > 0].log()) for w in weights]
        second, log_b = sides[1]
        parts = []
        for first, log_a in zip(*(t.split(LARGE_TILE) for t in sides[0]), strict=True):
            shares = log_a.unsqueeze(1) + log_b
            parts += [
                (shares + logarithms).logsumexp((0, 1))
                for logarithms in _log_kernels(first, second, terms)
            ]
        found.append(torch.stack(parts).logsumexp(0))
    return torch.stack(found)


def _log_kernels(
    first: Tensor, second: Tensor, terms: KernelTerms | LogStationary
) -> Iterator[Tensor]:
    """Logarithms of the kernels that are added up."""
    if isinstance(terms, LogStationary):
        yield terms.log_gram(first, second)
        return
    squares = squared_distances(first, second, layout=terms.layout)
    for rate, log_weight in zip(terms.rates, terms.log_weights, strict=True):
        yield log_weight - rate * squares


def exact_costs(
    cost: KernelCost,
    features: Tensor,  # (N, r)
    sides: Weights,
    sizes: tuple[int, int],
) -> Tensor:  # (P,)
    """The cost itself, from the moments of features under each labeling.

    Its ridge is `COST_RIDGE` of sides of equal size. Otherwise it is larger for the larger one, so
    that the moments have one: a side must not be smoothed more because it has fewer points.
    """
    share = COST_RIDGE / (sum(sizes) / 2)
    ridges = sizes[0] * share, sizes[1] * share
    features = features.double()
    batch = rows_at_once(features.numel(), 2**24)
    found = []
    for of_x, of_y in zip(*(side.double().split(batch) for side in sides), strict=True):
        pair = WeightedMoments(features, of_x, of_y, sizes, ridges)
        if cost == "svd":
            found.append(1 - log_svd_cost(pair, normalized=True)[0].exp())
        elif cost == "matrix":
            # Groups that change sides may leave more points to the smaller side: no bound of 1.
            trace = log_matrix_cost(pair, "trace", normalized=False)[0].exp()
            found.append(-trace / min(sizes))
        else:
            found.append(-log_vector_cost(pair, normalized=True)[0].exp())
    return torch.cat(found)


class WeightedMoments:
    """Statistics of the costs from first and second moments of features under each labeling.

    Args:
        features: Features of the pooled sample, (N, r).
        a: Weights of the first side, (P, N), which sum to 1.
        b: Weights of the second side.
        sizes: Numbers of points of both sides, of which the Gram matrices would be.
        ridges: Ridges of these matrices.
    """

    weighted = True

    def __init__(
        self,
        features: Tensor,
        a: Tensor,
        b: Tensor,
        sizes: tuple[float, float],
        ridges: tuple[float, float],
    ) -> None:
        self.features, self.a, self.b = features, a, b
        self.sizes, self.ridges = sizes, ridges

    @property
    def log_traces(self) -> tuple[Tensor, Tensor]:
        """Of the second moments: features that are left out make it less than zero."""
        x, y = (2 * torch.linalg.matrix_norm(root).log() for root in self._roots)
        return x, y

    def log_cross(self) -> Tensor:  # (P,)
        """Logarithm of the inner product of the means."""
        return (self._means[0] * self._means[1]).sum(-1).log()

    def log_norm_x(self) -> Tensor:  # (P,)
        """That of the first side's mean with itself."""
        return self._means[0].square().sum(-1).log()

    def log_norm_y(self) -> Tensor:  # (P,)
        """That of the second side's mean with itself."""
        return self._means[1].square().sum(-1).log()

    def predicted(self) -> Scaled:
        """How much of the first side's mean the second side's features predict."""
        mean = self._means[0]
        predicted = (self._shrunk(1) @ mean.unsqueeze(-1))[..., 0]
        return self._scaled((mean * predicted).sum(-1))

    def total_correlation(self, data_fixed: bool) -> Scaled:
        """The trace of the product of both sides' shrunk moments."""
        left = self.sizes[0] * self._moments[0] if data_fixed else self._shrunk(0)
        return self._scaled((left * self._shrunk(1).mT).sum((-2, -1)))

    def correlations(self) -> Correlations:
        """That product itself."""
        left, right = self._shrunk(0), self._shrunk(1)
        return Correlations(left @ right, *self._scaled(left[..., 0, 0])[1:], symmetric=False)

    def nuclear(self) -> Scaled:
        """From roots of the moments that no squaring has robbed of digits."""
        left, right = self._roots
        return self._scaled(torch.linalg.svdvals(left @ right.mT).sum(-1))

    @cached_property
    def _means(self) -> Weights:  # (P, r) each
        return self.a @ self.features, self.b @ self.features

    @cached_property
    def _moments(self) -> Weights:  # (P, r, r) each
        x, y = ((self.features * w.unsqueeze(-1)).mT @ self.features for w in (self.a, self.b))
        return x, y

    @cached_property
    def _roots(self) -> Weights:  # (P, r, r) each
        weighted = (self.features * w.sqrt().unsqueeze(-1) for w in (self.a, self.b))
        x, y = (torch.linalg.qr(f, mode="r").R for f in weighted)
        return x, y

    def _shrunk(self, side: int) -> Tensor:
        r"""$C (C + \epsilon)^{-1}$ of the points of a side."""
        return shrunk(self._moments[side], self.ridges[side] / self.sizes[side])

    def _scaled(self, value: Tensor) -> Scaled:
        return Scaled(value, value.new_zeros(()), Info("features"))


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
