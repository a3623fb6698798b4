r"""Kernels of all columns together, over a grid of bandwidths: means and second moments.

With features $\phi$ of a kernel that are uncorrelated over the pooled rows, their variances
$\lambda_i$ and the difference $\delta$ of their means on both sides, the statistics of
the mean are $\sum_i \delta_i^2 / (\lambda_i + \epsilon)$: for large $\epsilon$ nearly
the maximum mean discrepancy, for small the kernel Fisher discriminant, in which fine structure
counts as much as coarse; and $\sum_{i \le k} \delta_i^2 / \lambda_i$ of the leading features
alone, a smooth test in Neyman's sense. Those of the second moments are the local form of the SVD
cost (the Bures metric, see `kermix.two_sample_test`) of the constant and the leading
features, whitened, of kernels that are neither fine nor coarse.
Features come from landmarks, which are distinct pooled rows.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kermix.kernels.distances import Layout, mismatches, numbers_of, squared_distances
from kermix.kernels.subsets import distinct_rows, symmetric_subset
from kermix.sketches.kernel_features import NEGLIGIBLE, CenteredBasis
from kermix.two_sample.column_scores import MiddleRanks
from kermix.two_sample.permutation import ExchangeableUnits, StatisticValues, evidence

__all__ = ["MEANS", "SECOND_MOMENTS", "KernelFamilyStatistics", "Kernels", "Scaling", "scaler"]

Scaling = Literal["as given", "standardized", "normal scores"]
Form = Literal["Gaussian", "Laplace"]
MEANS, SECOND_MOMENTS = "mean", "second moments"

# Reasoned, no record.
LANDMARKS, LANDMARKS_OF_BLOCKS = 300, 200
# Chosen on the development problems of `python -m benchmarks.power --cases development`.
LEADING = (30, 60)  # features whose second moments are looked at
WHITENING = 1e-3  # of these
MEAN_OF_DISTANCE = 2 / math.sqrt(math.pi)  # of two numbers of unit variance; its square's is 2


class Kernels(NamedTuple):
    """Kernels of one form, of numbers scaled in one way, at several bandwidths."""

    form: Form
    scaling: Scaling
    bandwidths: int


@dataclass(frozen=True)
class KernelFamilyStatistics:
    """Statistics of all kernels.

    Attributes:
        family: The kernels.
        ridges: Of the whitening, relative to the kernel's diagonal.
        layout: Which columns are codes.
        leading: Numbers of features whose means are compared without a ridge.
    """

    family: Sequence[Kernels]
    ridges: Sequence[float]
    layout: Layout | None = None
    leading: Sequence[int] = ()

    def values(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """The evidence of each statistic of the means, then of the second moments."""
        found = [v for kernels in self.family for v in self.raw_values(units, kernels)]
        for part in (MEANS, SECOND_MOMENTS):
            some = [v for v in found if v.part == part]
            if some:
                table = evidence(torch.stack([v.values for v in some]))
                yield from (v._replace(values=row) for v, row in zip(some, table, strict=True))

    def raw_values(self, units: ExchangeableUnits, kernels: Kernels) -> Iterator[StatisticValues]:
        """The statistics of some kernels as they are."""
        moments = _feature_moments(units, kernels, self.layout)
        for bandwidth, basis, first, second in moments:
            name = f"{kernels.form} kernel of {bandwidth:.3g}, columns {kernels.scaling}"
            weights = {f"ridge {ridge:g}": 1 / (basis.variances + ridge) for ridge in self.ridges}
            weights |= {f"{k} features": _of_leading(basis.variances, k) for k in self.leading}
            squares = (units.signed @ first).square()
            for detail, weight in weights.items():
                yield StatisticValues(f"{name}: {MEANS}, {detail}", squares @ weight, part=MEANS)
            if second is None:
                continue
            squares = (units.signed @ second).square()
            for k in LEADING:
                values = squares @ _of_pairs(basis.variances, k)
                full = f"{name}: {SECOND_MOMENTS}, {k} features"
                yield StatisticValues(full, values, part=SECOND_MOMENTS)


def _feature_moments(
    units: ExchangeableUnits, kernels: Kernels, layout: Layout | None
) -> Iterator[tuple[float, CenteredBasis, Tensor, Tensor | None]]:
    """Of each bandwidth, features and their first moments in each unit; of some, second ones."""
    form, scaling, count = kernels
    scale = scaler(scaling, units.reference, units.reference_shares, layout)
    rank = LANDMARKS if units.blocks is None else LANDMARKS_OF_BLOCKS
    distinct = units.reference[distinct_rows(units.reference)[0]]
    landmarks = scale(distinct[symmetric_subset(distinct, rank)])
    apart = _distances(form, landmarks, landmarks, layout)
    apart.fill_diagonal_(0.0)
    grid = _bandwidths(apart, form, count)

    def kernels_of(rows: Tensor) -> list[Tensor]:
        distances = _distances(form, scale(rows), landmarks, layout)
        return [_kernel(distances, form, b) for b in grid]

    known = kernels_of(units.reference)
    bases = [
        CenteredBasis.of(_kernel(apart, form, b), kernel, units.reference_shares)
        for b, kernel in zip(grid, known, strict=True)
    ]
    with_second = _with_second(len(grid))
    firsts, seconds = defaultdict(list), defaultdict(list)
    same = units.rows is units.reference
    for rows in [units.rows[:, None]] if same else units.chunks(len(landmarks)):
        found = known if same else kernels_of(rows.flatten(0, 1))
        for k, basis, kernel in zip(range(len(grid)), bases, found, strict=True):
            kernel = kernel.unflatten(0, rows.shape[:2])
            firsts[k].append(kernel.mean(1))
            if with_second[k]:
                seconds[k].append(_second_moments(basis, kernel))
    for k, basis in enumerate(bases):
        second = torch.cat(seconds[k]) if with_second[k] else None
        yield grid[k], basis, torch.cat(firsts[k]) @ basis.basis - basis.center, second


def _with_second(count: int) -> list[bool]:
    """Which of so many kernels, the finest first, have second moments."""
    first = count // 2
    return [first <= k <= max(first, count - 2) for k in range(count)]


def _pairs(count: int) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(count, count)
    return i, j


def _second_moments(basis: CenteredBasis, kernel: Tensor) -> Tensor:  # (b, s, L) -> (b, pairs)
    """Mean products of the constant and the whitened leading features in each unit."""
    count = min(LEADING[-1] - 1, len(basis.variances))
    scale = (basis.variances[:count] + WHITENING).rsqrt()
    found = (kernel @ basis.basis[:, :count] - basis.center[:count]) * scale
    products = torch.cat([found.new_ones(*found.shape[:2], 1), found], 2)
    i, j = _pairs(products.shape[2])
    return (products.mT @ products / products.shape[1])[:, i, j]


def _of_leading(variances: Tensor, leading: int) -> Tensor:
    """Weights that make squared means of the leading features of one size, of others 0."""
    there = variances > NEGLIGIBLE
    there[leading:] = False
    return torch.where(there, 1 / variances.clamp(min=NEGLIGIBLE), 0.0)


def _of_pairs(variances: Tensor, leading: int) -> Tensor:
    """Weights of the squares of second moments, as `_pairs` orders them."""
    whitened = variances[: LEADING[-1] - 1]
    moments = torch.cat([whitened.new_ones(1), whitened / (whitened + WHITENING)])
    i, j = _pairs(len(moments))
    weights = torch.where(i == j, 1.0, 2.0) / (moments[i] + moments[j]).clamp(min=NEGLIGIBLE)
    return torch.where((i < leading) & (j < leading), weights, 0.0)


def _kernel(distances: Tensor, form: Form, bandwidth: float) -> Tensor:
    """Of squared distances for the Gaussian, of sums of absolute differences for Laplace."""
    return (distances * -(1 / bandwidth**2 if form == "Gaussian" else 1 / bandwidth)).exp_()


def _distances(form: Form, a: Tensor, b: Tensor, layout: Layout | None) -> Tensor:
    if form == "Gaussian":
        return squared_distances(a, b, layout=layout)
    total = torch.cdist(numbers_of(a, layout), numbers_of(b, layout), p=1)
    if layout is not None and layout.codes:
        # A category weighs as much beside the numbers as it does in the squared distance.
        total += mismatches(a, b, layout) * (MEAN_OF_DISTANCE / 2)
    return total


def _bandwidths(apart: Tensor, form: Form, count: int) -> list[float]:
    """From half the median distance to the root-N-th neighbor to the median distance."""
    size = len(apart)
    others = apart[~torch.eye(size, dtype=torch.bool)]
    others = others[others > 0]
    if not len(others):
        return []
    coarse = float(others.median())
    near = apart.sort(1).values[:, min(math.ceil(math.sqrt(size)), size - 1)]
    near = near[near > 0]
    fine = min(float(near.median()), coarse / 2) if len(near) else coarse / 2
    if form == "Gaussian":
        fine, coarse = math.sqrt(fine), math.sqrt(coarse)
    fine /= 2
    if count == 1 or size < 3:
        return [coarse]
    return [fine * (coarse / fine) ** (k / (count - 1)) for k in range(count)]


def scaler(
    scaling: Scaling, reference: Tensor, shares: Tensor, layout: Layout | None
) -> Callable[[Tensor], Tensor]:
    """Rows with their numbers scaled; codes stay."""
    if scaling == "as given":
        return lambda rows: rows
    numbers = numbers_of(reference, layout)
    count = numbers.shape[1]
    if scaling == "standardized":
        center = shares @ numbers
        # A far value takes part twice: in the center, and in the spread around it.
        spread = (shares @ (numbers - center).square()).sqrt()
        spread = torch.where(spread > NEGLIGIBLE * numbers.abs().amax(0), spread, 1.0)
        return lambda rows: torch.cat([(rows[:, :count] - center) / spread, rows[:, count:]], 1)
    ranks = MiddleRanks.of(numbers, shares)
    edge = 0.5 / len(reference)

    def scores(rows: Tensor) -> Tensor:
        normal = torch.special.ndtri(ranks(rows[:, :count]).clamp(edge, 1 - edge))
        return torch.cat([normal, rows[:, count:]], 1)

    return scores
