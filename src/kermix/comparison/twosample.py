"""Two-sample tests: are two sets of samples from one distribution?

Statistics of all permutations come from one pooled Gram matrix and a few matrix products.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kermix.checks import check_option, check_pair, normalized_weights, working_dtype
from kermix.comparison.permutation import (
    combined,
    labellings,
    own_generator,
    pvalues,
    signed_weights,
)
from kermix.comparison.pooled import pooled_features
from kermix.comparison.statistics import (
    TestForm,
    energy_statistic,
    gram_blocks,
    mmd_statistic,
    moment_statistic,
    scalar_statistic,
)
from kermix.errors import ShapeError
from kermix.kernels.gaussian import GaussianKernel, bandwidth
from kermix.kernels.gram import squared_distances

__all__ = [
    "TestCost",
    "TwoSampleResult",
    "ranked",
    "two_sample_test",
    "variance_grid",
]

TestCost: TypeAlias = Literal["svd", "matrix", "vector", "scalar", "mmd", "energy"]
Seed: TypeAlias = int | torch.Generator

COSTS = ("svd", "matrix", "vector", "scalar", "mmd", "energy")
GRID_POINTS = 1000
SIX_DIGITS = 1e-6


@dataclass(frozen=True)
class TwoSampleResult:
    """What a test found; `pvalue` is the number to look at.

    `statistics` and `pvalues` belong to the single `variances`; a p-value among them is right by
    itself, but picking the smallest is not: that is what `pvalue` accounts for.
    """

    statistic: float
    pvalue: float
    cost: str
    variances: tuple[float, ...]
    statistics: tuple[float, ...]
    pvalues: tuple[float, ...]
    permutations: int
    n: int
    m: int
    method: str
    null: Tensor = field(repr=False, compare=False)  # (permutations,)


@torch.no_grad()
def two_sample_test(
    x: Tensor,  # (N, d)
    y: Tensor,  # (M, d)
    cost: TestCost = "svd",
    variances: Sequence[float] | float | Literal["auto"] = "auto",
    permutations: int = 500,
    *,
    seed: Seed = 0,
    groups: tuple[Tensor, Tensor] | None = None,
    weights_x: Tensor | None = None,  # (N,)
    weights_y: Tensor | None = None,  # (M,)
    form: TestForm = "local",
    ridge: float | None = 1e-4,
) -> TwoSampleResult:
    r"""Test by permutation whether `x` and `y` come from one distribution.

    The p-value is :math:`(1 + \#\{T_b \ge T\}) / (1 + B)` over `B` random exchanges of labels, so
    under the null hypothesis it is at most :math:`\alpha` with probability at most :math:`\alpha`,
    whatever the sample size. With several variances each labelling gets a p-value for each of
    them among all labellings; these are combined (Cauchy) and the combination is ranked among the
    same labellings, which keeps the level exactly.

    Let :math:`\phi` be features of the pooled sample with :math:`K = \phi \cdot \phi`,
    :math:`\lambda_i` their second moments and `D` (or `m`) the difference of the two samples'
    second (first) moments. Large statistics mean different samples:

    ========== ============================================ =================================
    cost       `form="local"`                               `form="exact"`
    ========== ============================================ =================================
    `"svd"`    :math:`\sum D_{ij}^2 / (\lambda_i+\lambda_j)` one minus the fidelity
    `"matrix"` :math:`\sum D_{ij}^2`                        minus the normalised trace
    `"vector"` :math:`\sum m_i^2`                           minus the normalised cost
    `"scalar"` Cauchy-Schwarz divergence                    the same
    `"mmd"`    squared maximum mean discrepancy             the same
    `"energy"` energy distance (no variance)                the same
    ========== ============================================ =================================

    The local form of the SVD cost is its second-order expansion where the samples agree (the
    Bures metric): a fixed quadratic form, so a thousand permutations are one matrix product.
    `ridge` whitens the features of the first three by :math:`(\lambda_i + \epsilon)^{-1/2}`
    first, as in the matrix cost and Property 9: fine structure then counts as much as coarse,
    which is where the power comes from. With `ridge=None` the features are those of the kernel.

    Args:
        x: One sample.
        y: The other.
        cost: Which statistic.
        variances: One or several variances, or `"auto"`: :func:`variance_grid`.
        permutations: How many random labellings.
        seed: Seed of the permutations, or a generator.
        groups: Group labels of the points of `x` and `y`; whole groups change sides. For points
            that are not independent, such as repeated measurements.
        weights_x: Weights of `x`. A point keeps its weight on whichever side it is.
        weights_y: Weights of `y`.
        form: The local form or the cost itself (slower; its matrices are decomposed for each
            permutation).
        ridge: Ridge of the whitening, relative to the kernel's diagonal, or None for no whitening.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(2, 100, 2, generator=generator)
        >>> two_sample_test(x, y + 1).pvalue < 0.01, two_sample_test(x, y).pvalue > 0.05
        (True, True)
    """
    check_option("cost", cost, COSTS)
    check_option("form", form, ("local", "exact"))
    check_pair(x, y)
    if x.ndim != 2 or y.ndim != 2:
        raise ShapeError(
            f"x and y have shapes {tuple(x.shape)} and {tuple(y.shape)}; a test compares two sets "
            "of points, each of shape (points, dimension)."
        )
    with torch.autocast(x.device.type, enabled=False):
        generator = own_generator(seed)
        dtype = working_dtype(x, y)
        pooled = torch.cat([x.to(dtype), y.to(dtype)])
        weights = _pooled_weights(x, y, weights_x, weights_y)
        labels = labellings(len(x), len(y), permutations, generator, groups).to(pooled.device)
        sides = tuple(side.to(dtype) for side in signed_weights(labels, weights))
        if cost == "energy":
            grid: tuple[float, ...] = ()
            rows, method = [energy_statistic(pooled, *sides)], "distances"
        else:
            grid = _grid(variances, pooled)
            method = "gram matrix"
            rows = []
            for v in grid:
                terms = GaussianKernel(v).cross_terms(pooled.shape[-1])
                if cost in ("scalar", "mmd"):
                    rows.append(
                        (scalar_statistic if cost == "scalar" else mmd_statistic)(
                            gram_blocks(pooled, terms), *sides
                        )
                    )
                else:
                    features, method = pooled_features(pooled, terms, weights, generator)
                    rows.append(moment_statistic(cost, form, features.whitened(ridge), *sides))
        named = f"{form}, {method}" if cost in ("svd", "matrix", "vector") else method
        return ranked(rows, cost, grid, (len(x), len(y)), named)


def ranked(
    rows: list[Tensor],  # (permutations + 1,) each
    cost: str,
    grid: tuple[float, ...],
    sizes: tuple[int, int],
    method: str,
) -> TwoSampleResult:
    """A result from statistics of all labellings, one row for each variance, the given first."""
    given = [float(row[0]) for row in rows]
    table = torch.stack([_rounded(row.double()) for row in rows])
    total = combined(table)
    return TwoSampleResult(
        statistic=float(total[0]) if len(rows) > 1 else given[0],
        pvalue=float(pvalues(total)[0]),
        cost=cost,
        variances=grid,
        statistics=tuple(given),
        pvalues=tuple(pvalues(table)[:, 0].tolist()),
        permutations=len(total) - 1,
        n=sizes[0],
        m=sizes[1],
        method=method,
        null=total[1:].cpu(),
    )


def variance_grid(points: Tensor, count: int = 6) -> tuple[float, ...]:  # (N, d)
    r"""Variances from the fine to the coarse structure of data, evenly spaced in the logarithm.

    From the median squared distance to the :math:`\sqrt N`-th neighbour to half the median
    squared distance, both divided by twice the dimension; at most 1000 points are looked at.

    Example:
        >>> [round(v, 3) for v in variance_grid(torch.linspace(0, 1, 101)[:, None], 3)]
        [0.002, 0.006, 0.023]
    """
    coarse = float(bandwidth(points)) / 2
    seen = points
    if len(points) > GRID_POINTS:
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(points), generator=generator)[:GRID_POINTS]
        seen = points[order.to(points.device)]
    rank = math.ceil(math.sqrt(len(seen)))
    squares = squared_distances(seen, seen, same=True).sort(1).values[:, min(rank, len(seen) - 1)]
    fine = float(squares[squares > 0].median()) / (2 * points.shape[1]) if squares.any() else 0.0
    if not 0 < fine < coarse or count == 1:
        return (coarse,)
    ratio = (coarse / fine) ** (1 / (count - 1))
    return tuple(fine * ratio**k for k in range(count))


def _grid(
    variances: Sequence[float] | float | Literal["auto"], pooled: Tensor
) -> tuple[float, ...]:
    if isinstance(variances, str):
        check_option("variances", variances, ("auto",))
        return variance_grid(pooled)
    return tuple(float(v) for v in GaussianKernel(variances).v_p)


def _pooled_weights(
    x: Tensor, y: Tensor, weights_x: Tensor | None, weights_y: Tensor | None
) -> Tensor | None:
    if weights_x is None and weights_y is None:
        return None
    parts = [
        points.new_ones(len(points), dtype=torch.float64)
        if weights is None
        else normalized_weights(name, weights, points).double() * len(points)
        for name, points, weights in (("weights_x", x, weights_x), ("weights_y", y, weights_y))
    ]
    return torch.cat(parts)


def _rounded(statistics: Tensor) -> Tensor:  # (P,) -> (P,)
    """Statistics to six digits: labellings that differ in rounding alone are ties."""
    unit = SIX_DIGITS * statistics.abs().max().clamp(min=torch.finfo(statistics.dtype).tiny)
    return (statistics / unit).round() * unit
