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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kermix.kernels.distances import Layout, mismatches, numbers_of, squared_distances
from kermix.kernels.subsets import distinct_rows, symmetric_subset
from kermix.two_sample.column_scores import MiddleRanks
from kermix.two_sample.permutation import ExchangeableUnits

__all__ = ["KernelMember", "Kernels", "kernel_members"]

Scaling = Literal["as given", "standardized", "normal scores"]
Form = Literal["Gaussian", "Laplace"]

# Reasoned, no record.
LANDMARKS, LANDMARKS_OF_BLOCKS = 300, 200
NEGLIGIBLE = 1e-10
# Chosen on the development problems of `python -m benchmarks.power --cases development`.
LEADING = (30, 60)  # features whose second moments are looked at
WHITENING = 1e-3  # of these
MEAN_OF_DISTANCE = 2 / math.sqrt(math.pi)  # of two numbers of unit variance; its square's is 2


@dataclass(frozen=True)
class KernelMember:
    """One statistic: which kernel, of which columns, and its value under each labelling."""

    kernel: Form
    scaling: Scaling
    bandwidth: float  # distance at which the kernel is 1/e
    moment: Literal["mean", "second moments"]
    detail: str
    values: Tensor  # (P,)

    @property
    def name(self) -> str:
        """In words."""
        kernel = f"{self.kernel} kernel of {self.bandwidth:.3g}, columns {self.scaling}"
        return f"{kernel}: {self.moment}, {self.detail}"


class Kernels(NamedTuple):
    """Kernels of one form, of numbers scaled in one way, at several bandwidths."""

    form: Form
    scaling: Scaling
    bandwidths: int


def kernel_members(
    units: ExchangeableUnits,
    family: Sequence[Kernels],
    ridges: Sequence[float],
    layout: Layout | None = None,
    leading: Sequence[int] = (),
) -> Iterator[KernelMember]:
    """Statistics of all kernels.

    Args:
        units: Rows with their labels.
        family: The kernels.
        ridges: Of the whitening, relative to the kernel's diagonal.
        layout: Which columns are codes.
        leading: Numbers of features whose means are compared without a ridge.
    """
    for kernels in family:
        yield from _members(units, kernels, ridges, layout, leading)


def _members(
    units: ExchangeableUnits,
    kernels: Kernels,
    ridges: Sequence[float],
    layout: Layout | None,
    leading: Sequence[int],
) -> Iterator[KernelMember]:
    form, scaling, count = kernels
    scale = _scaling(scaling, units.reference, units.reference_shares, layout)
    rank = LANDMARKS if units.blocks is None else LANDMARKS_OF_BLOCKS
    distinct = units.reference[distinct_rows(units.reference)[0]]
    landmarks = scale(distinct[symmetric_subset(distinct, rank)])
    apart = _distances(form, landmarks, landmarks, layout)
    apart.fill_diagonal_(0.0)
    reference = _distances(form, scale(units.reference), landmarks, layout)
    grid = _bandwidths(apart, form, count)

    def distances(rows: Tensor) -> Tensor:
        return _distances(form, scale(rows), landmarks, layout)

    features = [
        _Features.of(_kernel(apart, form, b), _kernel(reference, form, b), units.reference_shares)
        for b in grid
    ]
    kernels_of = [partial(_kernel, form=form, bandwidth=b) for b in grid]
    moments = _moments(units, features, distances, kernels_of, _with_second(len(grid)))
    for bandwidth, of, (first, second) in zip(grid, features, moments, strict=True):
        squares = (units.signed @ first).square()
        for ridge in ridges:
            values = squares @ (1 / (of.variances + ridge))
            yield KernelMember(form, scaling, bandwidth, "mean", f"ridge {ridge:g}", values)
        for count in leading:
            values = squares @ of.mean_weights(count)
            yield KernelMember(form, scaling, bandwidth, "mean", f"{count} features", values)
        if second is None:
            continue
        squares = (units.signed @ second).square()
        for count in LEADING:
            values = squares @ of.second_weights(count)
            detail = f"{count} features"
            yield KernelMember(form, scaling, bandwidth, "second moments", detail, values)


@dataclass(frozen=True)
class _Features:
    """Uncorrelated features, those of the largest variances first: `kernel @ basis - centre`."""

    basis: Tensor  # (L, r)
    centre: Tensor  # (r,)
    variances: Tensor  # (r,)
    reference: Tensor  # (S, L), of the kernel

    @classmethod
    def of(cls, gram: Tensor, reference: Tensor, shares: Tensor) -> "_Features":
        basis = _whitening(gram)
        found = reference @ basis
        centre = shares @ found
        weighted = (found - centre) * shares.sqrt()[:, None]
        variances, rotation = torch.linalg.eigh(weighted.mT @ weighted)
        rotation = rotation.flip(1)
        return cls(basis @ rotation, centre @ rotation, variances.flip(0).clamp(min=0), reference)

    @property
    def leading(self) -> int:
        """How many features there are beside the constant whose second moments are looked at."""
        return min(LEADING[-1] - 1, len(self.variances))

    def products(self, kernel: Tensor) -> Tensor:  # (N, L) -> (N, 1 + leading)
        """The constant and the whitened leading features, of which second moments are made."""
        count = self.leading
        found = (kernel @ self.basis[:, :count] - self.centre[:count]) * (
            self.variances[:count] + WHITENING
        ).rsqrt()
        return torch.cat([found.new_ones(len(found), 1), found], 1)

    def mean_weights(self, leading: int) -> Tensor:
        """Weights that make squared means of the leading features of one size, of others 0."""
        there = self.variances > NEGLIGIBLE
        there[leading:] = False
        return torch.where(there, 1 / self.variances.clamp(min=NEGLIGIBLE), 0.0)

    def second_weights(self, leading: int) -> Tensor:
        """Weights of the squares of second moments, as `_pairs` orders them."""
        whitened = self.variances[: self.leading]
        moments = torch.cat([whitened.new_ones(1), whitened / (whitened + WHITENING)])
        i, j = _pairs(len(moments))
        weights = torch.where(i == j, 1.0, 2.0) / (moments[i] + moments[j]).clamp(min=NEGLIGIBLE)
        return torch.where((i < leading) & (j < leading), weights, 0.0)


def _with_second(count: int) -> list[bool]:
    """Which of so many kernels, the finest first, have second moments."""
    first = count // 2
    return [first <= k <= max(first, count - 2) for k in range(count)]


def _pairs(count: int) -> tuple[Tensor, Tensor]:
    i, j = torch.triu_indices(count, count)
    return i, j


def _moments(
    units: ExchangeableUnits,
    features: Sequence[_Features],
    distances: Callable[[Tensor], Tensor],
    kernels: Sequence[Callable[[Tensor], Tensor]],
    with_second: Sequence[bool],
) -> Iterator[tuple[Tensor, Tensor | None]]:  # (R, r), (R, pairs)
    """First and, of some kernels, second moments of the features of each unit."""
    if units.blocks is None:
        same = units.rows is units.reference
        apart = None if same else distances(units.rows)
        for of, kernel, both in zip(features, kernels, with_second, strict=True):
            found = of.reference if apart is None else kernel(apart)
            first, second = found @ of.basis - of.centre, None
            if both:
                products = of.products(found)
                i, j = _pairs(products.shape[1])
                second = products[:, i] * products[:, j]
            yield first, second
        return
    sums: list[tuple[list[Tensor], list[Tensor]]] = [([], []) for _ in features]
    for rows in units.chunks(len(features[0].basis) if features else 1):
        apart = distances(rows.flatten(0, 1))
        for of, kernel, both, (firsts, seconds) in zip(
            features, kernels, with_second, sums, strict=True
        ):
            found = kernel(apart)
            firsts.append(found.unflatten(0, rows.shape[:2]).mean(1))
            if both:
                products = of.products(found).unflatten(0, rows.shape[:2])
                i, j = _pairs(products.shape[2])
                seconds.append((products.mT @ products / rows.shape[1])[:, i, j])
    for of, (firsts, seconds) in zip(features, sums, strict=True):
        second = torch.cat(seconds) if seconds else None
        yield torch.cat(firsts) @ of.basis - of.centre, second


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
    """From half the median distance to the root-N-th neighbour to the median distance."""
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


def _whitening(gram: Tensor) -> Tensor:  # (L, L) -> (L, r)
    values, vectors = torch.linalg.eigh(gram)
    keep = values > NEGLIGIBLE * values[-1]
    return vectors[:, keep] * values[keep].rsqrt()


def _scaling(
    scaling: Scaling, reference: Tensor, shares: Tensor, layout: Layout | None
) -> Callable[[Tensor], Tensor]:
    """Rows with their numbers scaled; codes stay."""
    if scaling == "as given":
        return lambda rows: rows
    numbers = numbers_of(reference, layout)
    count = numbers.shape[1]
    if scaling == "standardized":
        centre = shares @ numbers
        # A far value takes part twice: in the centre, and in the spread around it.
        spread = (shares @ (numbers - centre).square()).sqrt()
        spread = torch.where(spread > NEGLIGIBLE * numbers.abs().amax(0), spread, 1.0)
        return lambda rows: torch.cat([(rows[:, :count] - centre) / spread, rows[:, count:]], 1)
    ranks = MiddleRanks.of(numbers, shares)
    edge = 0.5 / len(reference)

    def scores(rows: Tensor) -> Tensor:
        normal = torch.special.ndtri(ranks(rows[:, :count]).clamp(edge, 1 - edge))
        return torch.cat([normal, rows[:, count:]], 1)

    return scores
