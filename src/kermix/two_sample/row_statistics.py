r"""Statistics of whole rows: kernels of all columns over a grid of bandwidths, and depths.

With features $\phi$ of a kernel that are uncorrelated over the pooled rows, their variances
$\lambda_i$ and the difference $\delta$ of their means on both sides, the statistics of
the mean are $\sum_i \delta_i^2 / (\lambda_i + \epsilon)$: for large $\epsilon$ nearly
the maximum mean discrepancy, for small the kernel Fisher discriminant, in which fine structure
counts as much as coarse; and $\sum_{i \le k} \delta_i^2 / \lambda_i$ of the leading features
alone, a smooth test in Neyman's sense. Those of the second moments are the local form of the SVD
cost (the Bures metric, see `kermix.two_sample_test`) of the constant and the leading
features, whitened, of kernels that are neither fine nor coarse.
Features come from landmarks, which are distinct pooled rows.

The maximum mean discrepancy of a kernel is $\overline{k(x, x')} + \overline{k(y, y')} - 2
\overline{k(x, y)}$. In many dimensions two samples of other spread or other correlations differ in
the first two, with opposite signs, and it sees next to nothing (Song and Chen 2023). Their
difference is that of the samples' means of one number of each row, its mean kernel with all rows.
Such numbers are depths: those of the Laplace kernel of distances at several widths, the narrowest
of which sees the nearest row alone; squared norms, whitened by the pooled covariance with several
ridges, which is what the log-likelihood ratio of two Gaussians is to first order; and squared
norms in its metric, the mean squared inner product with other rows. They depend on the pooled rows
alone. Each is looked at as a column is, by scores of its ranks.
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
from kermix.two_sample.column_scores import (
    ORDER,
    SMALLEST,
    MiddleRanks,
    legendre,
    nested_sums,
)
from kermix.two_sample.permutation import (
    ExchangeableUnits,
    StatisticValues,
    evidence,
    mean_evidence,
)

__all__ = [
    "DEPTHS",
    "MEANS",
    "NEGLIGIBLE",
    "SECOND_MOMENTS",
    "DepthStatistics",
    "KernelFamilyStatistics",
    "Kernels",
    "Scaling",
]

Scaling = Literal["as given", "standardized", "normal scores"]
Form = Literal["Gaussian", "Laplace"]
Depths = Callable[[Tensor], Tensor]  # (N, d) -> (N, K)
MEANS, SECOND_MOMENTS, DEPTHS = "mean", "second moments", "depths"

# Reasoned, no record.
LANDMARKS, LANDMARKS_OF_BLOCKS = 300, 200
# Chosen on the development problems of `python -m benchmarks.power --cases development`.
LEADING = (30, 60)  # features whose second moments are looked at
WHITENING = 1e-3  # of these
# Chosen on the development problems of `python -m benchmarks blind-spots`.
ANCHORS, ANCHORS_OF_BLOCKS = 1000, 200  # rows that depths are measured from
# Conventions.
NEGLIGIBLE = 1e-10  # of the largest eigenvalue, below which one is rounding
SAME = 1e-9  # logarithms of depths that are no further apart differ by rounding alone
MEAN_OF_DISTANCE = 2 / math.sqrt(math.pi)  # of two numbers of unit variance; its square's is 2


class CenteredBasis(NamedTuple):
    """Uncorrelated features, of the largest variances first: `kernel @ basis - center`."""

    basis: Tensor  # (L, r)
    center: Tensor  # (r,)
    variances: Tensor  # (r,)

    @classmethod
    def of(cls, gram: Tensor, reference: Tensor, shares: Tensor) -> "CenteredBasis":
        """The features over weighted points.

        Args:
            gram: The kernel between landmarks, (L, L).
            reference: The kernel of the points with the landmarks, (S, L).
            shares: Weights of the points, (S,), whose sum is 1.
        """
        values, vectors = torch.linalg.eigh(gram)
        keep = values > NEGLIGIBLE * values[-1]
        whitening = vectors[:, keep] * values[keep].rsqrt()
        features = reference @ whitening
        center = shares @ features
        weighted = (features - center) * shares.sqrt()[:, None]
        variances, rotation = torch.linalg.eigh(weighted.mT @ weighted)
        rotation = rotation.flip(1)
        return cls(whitening @ rotation, center @ rotation, variances.flip(0).clamp(min=0))


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


@dataclass(frozen=True)
class DepthStatistics:
    """The evidence of each depth.

    Attributes:
        scaling: How numbers are scaled.
        layout: Which columns are codes.
        widths: Of the Laplace kernel, in standard deviations of distances.
        ridges: Of the covariance, in medians of its eigenvalues.
    """

    scaling: Scaling
    layout: Layout | None = None
    # Chosen as the number of anchors was.
    widths: Sequence[float] = (0.1, 0.3, 1.0, 3.0)
    ridges: Sequence[float] = (0.01, 0.1, 1.0)

    def values(self, units: ExchangeableUnits) -> Iterator[StatisticValues]:
        """One statistic for each depth."""
        scale = scaler(self.scaling, units.reference, units.reference_shares, self.layout)
        kept = distinct_rows(units.reference)[0]
        most = ANCHORS if units.blocks is None else ANCHORS_OF_BLOCKS
        few = kept[symmetric_subset(units.reference[kept], most)]
        anchors = scale(units.reference[few])
        shares = units.reference_shares[few] / units.reference_shares[few].sum()
        kinds = [self._nearness(anchors, shares)]
        if anchors.shape[1] - (0 if self.layout is None else self.layout.codes) > 1:
            kinds.append(self._norms(anchors, shares))

        def depths(rows: Tensor) -> Tensor:
            rows = scale(rows)
            return torch.cat([of(rows) for _, of in kinds], 1)

        known = depths(units.reference)
        ranks = MiddleRanks.of(known, units.reference_shares)

        def scores(rows: Tensor) -> Tensor:
            found = known if rows is units.reference else depths(rows)
            return legendre(2 * ranks(found) - 1, ORDER).flatten(1)

        if units.rows is units.reference:
            means = scores(units.rows)
        else:
            means = units.means(scores, most * len(self.widths))
        squares = (units.signed @ means).square().mT.unflatten(0, (-1, ORDER))  # (K, q, P)
        table = mean_evidence(evidence(nested_sums(squares.transpose(0, 1))))
        names = [name for some, _ in kinds for name in some]
        for name, row in zip(names, table, strict=True):
            yield StatisticValues(name, row, part=DEPTHS)

    def _nearness(self, anchors: Tensor, shares: Tensor) -> tuple[list[str], Depths]:
        """Logarithms of the mean Laplace kernel with other rows, of which copies are none."""
        apart = squared_distances(anchors, anchors, layout=self.layout).sqrt()
        others = apart[apart > 0]
        spread = others.std() if len(others) > 1 else apart.new_ones(())
        spread = spread.clamp(min=SMALLEST * float(apart.amax()) or 1.0)
        logs = shares.log()

        def depths(rows: Tensor) -> Tensor:
            squares = squared_distances(rows, anchors, layout=self.layout)
            away = torch.where(squares > 0, squares.sqrt() / spread, torch.inf)
            nearest = away.amin(1).nan_to_num(posinf=0.0)
            found = [nearest, torch.where(squares > 0, away, 0.0) @ shares]
            for width in self.widths:
                sums = (logs - (away - nearest[:, None]) / width).logsumexp(1)
                found.append((sums - nearest / width).nan_to_num(neginf=0.0))
            return _rounded(found)

        widths = [f"Laplace kernel of {w:g} deviations of distances" for w in self.widths]
        return ["nearest row", "mean distance", *widths], depths

    def _norms(self, anchors: Tensor, shares: Tensor) -> tuple[list[str], Depths]:
        """Logarithms of squared norms: plain, whitened, and in the covariance's metric."""
        numbers = numbers_of(anchors, self.layout)
        center = shares @ numbers
        weighted = (numbers - center) * shares.sqrt()[:, None]
        _, roots, axes = torch.linalg.svd(weighted, full_matrices=False)
        there = roots > SMALLEST * roots[0].clamp(min=SMALLEST)
        variances, axes = roots[there].square(), axes[there]
        middle = variances.median() if len(variances) else roots.new_ones(())
        own = float(shares.square().sum())  # a row's share in the covariance, if it is an anchor

        def depths(rows: Tensor) -> Tensor:
            apart = numbers_of(rows, self.layout) - center
            whole = apart.square().sum(1)
            squares = (apart @ axes.mT).square()
            rest = (whole - squares.sum(1)).clamp(min=0)
            found = [whole, squares @ variances - own * whole.square()]
            for ridge in self.ridges:
                found.append(
                    squares @ (1 / (variances + ridge * middle)) + rest / (ridge * middle)
                )
            return _rounded([d.clamp(min=SMALLEST).log() for d in found])

        ridges = [f"norm whitened with a ridge of {r:g}" for r in self.ridges]
        return ["norm", "mean squared product", *ridges], depths


def _rounded(depths: Sequence[Tensor]) -> Tensor:  # (N,) each -> (N, K)
    return (torch.stack([*depths], 1) / SAME).round() * SAME
