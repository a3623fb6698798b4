r"""Kernels of all columns together, over a grid of bandwidths and of ridges.

With features :math:`\phi` of a kernel that are uncorrelated over the pooled rows, their variances
:math:`\lambda_i` and the difference :math:`\delta` of their means on both sides, statistics are
:math:`\sum_i \delta_i^2 / (\lambda_i + \epsilon)`: for large :math:`\epsilon` the maximum mean
discrepancy, for small the kernel Fisher discriminant, in which fine structure counts as much as
coarse. Features come from landmarks, which are distinct pooled rows.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from kermix.comparison.column_scores import middle_ranks
from kermix.comparison.units import Units
from kermix.kernels.distances import Layout, mismatches, numbers_of, squared_distances
from kermix.kernels.subsets import distinct_rows, symmetric_subset

__all__ = ["KernelMember", "Kernels", "kernel_members"]

Scaling = Literal["as given", "standardized", "normal scores"]
Form = Literal["Gaussian", "Laplace"]

LANDMARKS, LANDMARKS_OF_BLOCKS = 400, 200
NEGLIGIBLE = 1e-10
MEAN_OF_DISTANCE = 2 / math.sqrt(math.pi)  # of two numbers of unit variance; its square's is 2


@dataclass(frozen=True)
class KernelMember:
    """One statistic: which kernel, of which columns, and its value under each labelling."""

    kernel: Form
    scaling: Scaling
    bandwidth: float  # distance at which the kernel is 1/e
    ridge: float  # infinity: the maximum mean discrepancy
    values: Tensor  # (P,)

    @property
    def name(self) -> str:
        """In words."""
        what = "mean" if math.isinf(self.ridge) else f"whitened mean, ridge {self.ridge:g}"
        return f"{self.kernel} kernel of {self.bandwidth:.3g}, {self.scaling}: {what}"


class Kernels(NamedTuple):
    """Kernels of one form, of numbers scaled in one way, at several bandwidths."""

    form: Form
    scaling: Scaling
    bandwidths: int


def kernel_members(
    units: Units,
    family: Sequence[Kernels],
    ridges: Sequence[float],
    layout: Layout | None = None,
) -> Iterator[KernelMember]:
    """Statistics of all kernels.

    Args:
        units: Rows with their labels.
        family: The kernels.
        ridges: Of the whitening, relative to the kernel's diagonal.
        layout: Which columns are codes.
    """
    for kernels in family:
        yield from _members(units, kernels, ridges, layout)


def _members(
    units: Units, kernels: Kernels, ridges: Sequence[float], layout: Layout | None
) -> Iterator[KernelMember]:
    form, scaling, count = kernels
    scale = _scaling(scaling, units.reference, units.shares, layout)
    rank = LANDMARKS if units.blocks is None else LANDMARKS_OF_BLOCKS
    distinct = units.reference[distinct_rows(units.reference)[0]]
    landmarks = scale(distinct[symmetric_subset(distinct, rank)])

    def distances(rows: Tensor) -> Tensor:
        return _distances(form, scale(rows), landmarks, layout)

    apart = _distances(form, landmarks, landmarks, layout)
    apart.fill_diagonal_(0.0)
    grid = _bandwidths(apart, form, count)
    if not grid:
        return
    of_reference = distances(units.reference)
    width = len(landmarks)

    def all_kernels(rows: Tensor) -> Tensor:
        found = distances(rows)
        return torch.cat([_kernel(found, form, b) for b in grid], 1)

    if units.blocks is None and units.rows is units.reference:
        of_units = None
    else:
        of_units = units.means(all_kernels, width * len(grid)).split(width, 1)
    for k, bandwidth in enumerate(grid):
        basis = _whitening(_kernel(apart, form, bandwidth))
        reference = _kernel(of_reference, form, bandwidth) @ basis
        centre = units.shares @ reference
        apart_from = (reference - centre) * units.shares.sqrt()[:, None]
        variances, rotation = torch.linalg.eigh(apart_from.mT @ apart_from)
        features = reference if of_units is None else of_units[k] @ basis
        difference = units.signed @ ((features - centre) @ rotation)
        squares = difference.square()
        weights = 1 / (variances.clamp(min=0)[:, None] + variances.new_tensor(ridges))
        weights = torch.where(torch.isfinite(variances.new_tensor(ridges)), weights, 1.0)
        for ridge, values in zip(ridges, (squares @ weights).mT, strict=True):
            yield KernelMember(form, scaling, bandwidth, ridge, values)


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
    """From the median distance to the root-N-th neighbour to the median distance."""
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
    tables = []
    for column in numbers.mT:
        values, index = torch.unique(column, return_inverse=True)
        weights = shares.new_zeros(len(values)).index_add_(0, index, shares)
        tables.append((values, (weights.cumsum(0) - weights / 2) / weights.sum()))
    edge = 0.5 / len(reference)

    def scores(rows: Tensor) -> Tensor:
        found = [
            middle_ranks(column.contiguous(), *table)
            for column, table in zip(rows[:, :count].mT, tables, strict=True)
        ]
        normal = torch.special.ndtri(torch.stack(found, 1).clamp(edge, 1 - edge))
        return torch.cat([normal, rows[:, count:]], 1)

    return scores
