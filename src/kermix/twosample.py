"""Two-sample tests: are two sets of samples from one distribution?

Statistics of all permutations come from one pooled Gram matrix and a few matrix products.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from .errors import ShapeError
from .gram import gram_matrix, squared_distances
from .kernel import GaussianKernel, KernelTerms, bandwidth
from .permutation import combined, labellings, pvalues, signed_weights
from .pooled import PooledFeatures, bures_form, matrix_form, pooled_features, quadratic_form
from .validation import check_option, check_pair, normalized_weights, working_dtype

__all__ = [
    "TestCost",
    "TestForm",
    "TwoSampleResult",
    "two_sample_test",
    "variance_grid",
]

TestCost: TypeAlias = Literal["svd", "matrix", "vector", "scalar", "mmd", "energy"]
TestForm: TypeAlias = Literal["local", "exact"]
Seed: TypeAlias = int | torch.Generator

COSTS = ("svd", "matrix", "vector", "scalar", "mmd", "energy")
GRID_POINTS = 1000
BLOCK = 2048
SIX_DIGITS = 1e-6
EXACT_BATCH_NUMBERS = 2**24


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
        ridge: Ridge of the whitening, relative to the kernel's diagonal.

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
    generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
    dtype = working_dtype(x, y)
    pooled = torch.cat([x.to(dtype), y.to(dtype)])
    weights = _pooled_weights(x, y, weights_x, weights_y)
    labels = labellings(len(x), len(y), permutations, generator, groups).to(pooled.device)
    sides = tuple(side.to(dtype) for side in signed_weights(labels, weights))
    if cost == "energy":
        grid: tuple[float, ...] = ()
        rows, method = [_energy(pooled, *sides)], "distances"
    else:
        grid = _grid(variances, pooled)
        method = "gram matrix"
        rows = []
        for v in grid:
            terms = GaussianKernel(v).cross_terms(pooled.shape[-1])
            if cost in ("scalar", "mmd"):
                rows.append((_scalar if cost == "scalar" else _mmd)(_gram(pooled, terms), *sides))
            else:
                features, method = pooled_features(pooled, terms, weights, generator)
                rows.append(_moment_statistic(cost, form, features.whitened(ridge), *sides))
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
        permutations=permutations,
        n=len(x),
        m=len(y),
        method=f"{form}, {method}" if cost in ("svd", "matrix", "vector") else method,
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


def _blocks(rows_of: Callable[[slice], Tensor], points: Tensor) -> Iterator[tuple[slice, Tensor]]:
    for start in range(0, len(points), BLOCK):
        rows = slice(start, start + BLOCK)
        yield rows, rows_of(rows)


def _gram(pooled: Tensor, terms: KernelTerms) -> Iterator[tuple[slice, Tensor]]:
    return _blocks(lambda rows: gram_matrix(pooled[rows], pooled, terms, pooled.dtype), pooled)


def _energy(pooled: Tensor, a: Tensor, b: Tensor) -> Tensor:
    blocks = _blocks(lambda rows: squared_distances(pooled[rows], pooled).sqrt(), pooled)
    return -quadratic_form(a - b, blocks)


def _mmd(gram: Iterator[tuple[slice, Tensor]], a: Tensor, b: Tensor) -> Tensor:
    return quadratic_form(a - b, gram)


def _scalar(gram: Iterator[tuple[slice, Tensor]], a: Tensor, b: Tensor) -> Tensor:
    pp, pq, qq = (a.new_zeros(len(a)) for _ in range(3))
    for rows, block in gram:
        of_a, of_b = a @ block.T, b @ block.T
        pp += (of_a * a[:, rows]).sum(1)
        pq += (of_a * b[:, rows]).sum(1)
        qq += (of_b * b[:, rows]).sum(1)
    divergence = pp.log() + qq.log() - 2 * pq.log()
    level = 16 * torch.finfo(divergence.dtype).eps
    # Without any overlap the divergence is infinite: the largest number stands for it.
    return torch.where(divergence.abs() <= level, 0.0, divergence).nan_to_num()


def _moment_statistic(
    cost: str, form: TestForm, pooled: PooledFeatures, a: Tensor, b: Tensor
) -> Tensor:
    if form == "exact":
        size = max(1, EXACT_BATCH_NUMBERS // pooled.features.numel())
        batches = zip(a.split(size), b.split(size), strict=True)
        exact = {"svd": _exact_svd, "matrix": _exact_matrix, "vector": _exact_vector}[cost]
        return torch.cat([exact(pooled.features.double(), *pair) for pair in batches])
    if cost == "vector":
        difference = (a - b) @ pooled.features
        level = 4 * torch.finfo(difference.dtype).eps * pooled.features.abs().max()
        return torch.where(difference.abs() <= level, 0.0, difference).square().sum(1)
    kernel = bures_form if cost == "svd" else matrix_form
    blocks = _blocks(lambda rows: kernel(pooled, rows), pooled.features)
    return quadratic_form(a - b, blocks)


def _moments(features: Tensor, shares: Tensor) -> Tensor:  # (N, r), (P, N) -> (P, r, r)
    return (features * shares.double().unsqueeze(-1)).mT @ features


def _exact_svd(features: Tensor, a: Tensor, b: Tensor) -> Tensor:
    of_a, of_b = _moments(features, a), _moments(features, b)
    values, vectors = torch.linalg.eigh(of_a)
    root = vectors * values.clamp(min=0).sqrt().unsqueeze(-2)
    fidelity = torch.linalg.eigvalsh(root.mT @ of_b @ root).clamp(min=0).sqrt().sum(-1)
    traces = [m.diagonal(dim1=-2, dim2=-1).sum(-1) for m in (of_a, of_b)]
    return 1 - fidelity / (traces[0] * traces[1]).sqrt()


def _exact_matrix(features: Tensor, a: Tensor, b: Tensor) -> Tensor:
    of_a, of_b = _moments(features, a), _moments(features, b)
    smoothed = [_smoothed(m, len(features) / 2) for m in (of_a, of_b)]
    return -(smoothed[0] * smoothed[1].mT).sum((-2, -1)) / features.shape[1]


def _exact_vector(features: Tensor, a: Tensor, b: Tensor) -> Tensor:
    mean = a.double() @ features
    projected = (_smoothed(_moments(features, b), len(features) / 2) @ mean.unsqueeze(-1))[..., 0]
    return -(mean * projected).sum(-1) / mean.square().sum(-1)


def _smoothed(moment: Tensor, count: float) -> Tensor:
    r""":math:`C (C + \epsilon)^{-1}` of unnormalised moments, with the costs' default ridge."""
    ridge = 1e-4 / count
    eye = torch.eye(moment.shape[-1], dtype=moment.dtype, device=moment.device)
    return torch.linalg.solve(moment + ridge * eye, moment)
