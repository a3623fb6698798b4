"""Two-sample tests: are two sets of samples from one distribution?

Statistics of all permutations come from one pooled Gram matrix and a few matrix products.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from kermix.checks import (
    check_count,
    check_option,
    check_pair,
    check_samples,
    check_weights,
    full_precision,
    rows_at_once,
    solve_dtype,
    with_options,
)
from kermix.errors import OptionError, ShapeError, WeightError
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import GaussianKernel, choose_variance, mixed_kernel, variance_grid
from kermix.kernels.gram import gram
from kermix.kernels.others import AnyKernel, PointKernel, as_point_kernel
from kermix.linalg.cholesky import checked_ridge
from kermix.two_sample.aggregate import AggregateTest, aggregate_rows
from kermix.two_sample.cost_statistics import (
    COST_RIDGE,
    KERNEL_COSTS,
    CostStatistics,
    EnergyStatistic,
    KernelCost,
    TestForm,
)
from kermix.two_sample.permutation import (
    ExchangeableUnits,
    Statistic,
    StatisticValues,
    orders,
    own_generator,
    permutation_test,
)
from kermix.two_sample.row_statistics import NEGLIGIBLE

__all__ = [
    "COSTS",
    "Dependence",
    "DependenceForm",
    "TestCost",
    "TwoSampleResult",
    "as_numbers",
    "cost_tests",
    "dependence",
    "two_sample_test",
]

TestCost: TypeAlias = KernelCost | Literal["energy"]
Seed: TypeAlias = int | torch.Generator

COSTS: tuple[TestCost, ...] = (*KERNEL_COSTS, "energy")


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
    kernels: tuple[str, ...] = ()  # in place of variances, if kernels were given
    aggregate: AggregateTest | None = None  # what the test without a cost found


class CostTestOptions(TypedDict, total=False):
    """What rarely needs to be said of a test."""

    groups: tuple[Tensor, Tensor] | None
    weights_x: Tensor | np.ndarray | None  # (N,)
    weights_y: Tensor | np.ndarray | None  # (M,)
    form: TestForm
    ridge: float | Literal["auto"] | None
    kernel: AnyKernel | Sequence[AnyKernel] | None
    layout: Layout | None


@torch.no_grad()
@with_options(CostTestOptions, groups=None, weights_x=None, weights_y=None, form="local",
              ridge="auto", kernel=None, layout=None)  # fmt: skip
def two_sample_test(
    x: Tensor | np.ndarray,  # (N, d)
    y: Tensor | np.ndarray,  # (M, d)
    cost: TestCost | None = None,
    variances: Sequence[float] | float | Literal["auto"] = "auto",
    permutations: int = 500,
    *,
    seed: Seed = 0,
    **options: Unpack[CostTestOptions],
) -> TwoSampleResult:
    r"""Permutation test of whether `x` and `y` come from the same distribution.

    Without a cost, an aggregate of many statistics (kernels of all columns at several bandwidths,
    single columns and their values, pairs of columns, depths of rows) gives one p-value; see
    `kermix.two_sample.aggregate.aggregate_rows`, whose result is in `aggregate`. It has no
    settings: with `variances`, a `kernel`, a `form` or a `ridge` but no cost, the cost is `"svd"`.

    The p-value is $(1 + \#\{T_b \ge T\}) / (1 + B)$ over `B` random permutations of the labels, so
    under the null hypothesis it is at most $\alpha$ with probability at most $\alpha$, whatever
    the sample size. With several variances each labelling gets a p-value for each of them among
    all labellings; these are combined (Cauchy) and the combination is ranked among the same
    labellings, which keeps the level exactly.

    Let $\phi$ be features of the pooled sample with $K = \phi \cdot \phi$,
    $\lambda_i$ their second moments and `D` (or `m`) the difference of the two samples'
    second (first) moments. Large statistics mean different samples:

    | cost       | `form="local"`                          | `form="exact"`             |
    | ---------- | --------------------------------------- | -------------------------- |
    | `"svd"`    | $\sum D_{ij}^2 / (\lambda_i+\lambda_j)$ | one minus the fidelity     |
    | `"matrix"` | $\sum D_{ij}^2$                         | minus the normalized trace |
    | `"vector"` | $\sum m_i^2$                            | minus the normalized cost  |
    | `"scalar"` | Cauchy-Schwarz divergence               | the same                   |
    | `"mmd"`    | squared maximum mean discrepancy        | the same                   |
    | `"energy"` | energy distance (no variance)           | the same                   |

    The local form of the SVD cost is its second-order expansion where the samples agree (the Bures
    metric): a fixed quadratic form, so a thousand permutations are one matrix product. `ridge`
    whitens the features of the first three by $(\lambda_i + \epsilon)^{-1/2}$ first, as in the
    matrix cost and Property 9: fine structure then counts as much as coarse, which gives them
    power against differences in shape. With `ridge=None` the features are those of the kernel. For
    a shift of the mean, heavy tails and small real tables, `"energy"` and `"mmd"` have far more
    power than these three.

    Whatever is chosen from the data (variances, landmarks, features) depends on the pooled rows of
    both samples, and neither on their labels nor on their order; statistics that differ only by
    rounding are ties, which count against a difference.

    Args:
        x: One sample, a tensor or an array of numbers.
        y: The other.
        cost: Which statistic; None for the aggregate.
        variances: One or several variances, or `"auto"`: `variance_grid`.
        permutations: Number of random permutations; all of them, if there are fewer.
        seed: Seed of the permutations, or a generator.
        groups: Group labels of the points of `x` and `y`; whole groups are permuted. For points
            that are not independent, such as repeated measurements.
        weights_x: Weights of `x`, only together with those of `y`. A point keeps its weight when
            it is permuted: the test is whether points and their weights come from the same
            distribution. Both must be on one scale, and not divided by their sums or means.
        weights_y: Weights of `y`.
        form: The local form or the cost itself (slower; its matrices are decomposed for each
            permutation).
        ridge: Ridge of the whitening, relative to the kernel's diagonal, or None for no whitening.
            `"auto"`: 1e-4 for the Gaussian kernel, None for another `kernel`: in the feature space
            of a rough kernel, such as the Laplace kernel, all points are nearly independent, and
            whitening leaves no power.
        kernel: Another kernel than the Gaussian, such as `kermix.LaplaceKernel`, or a function of
            two sets of points that returns their Gram matrix; or several, which are combined like
            variances. Then omit `variances`. Parameters that a kernel takes from the data come
            from both samples together.
        layout: Which columns are codes, if rows are mixed (`kermix.kernels.distances.Layout`).

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(2, 100, 2, generator=generator)
        >>> two_sample_test(x, y + 1).pvalue < 0.01, two_sample_test(x, y).pvalue > 0.05
        (True, True)
    """
    x, y = as_numbers(x), as_numbers(y)
    _check_sets(x, y)
    weights = _pooled_weights(x, y, options["weights_x"], options["weights_y"])
    form, ridge, kernel = options["form"], options["ridge"], options["kernel"]
    groups, layout = options["groups"], options["layout"]
    plain = (isinstance(variances, str), kernel, form, ridge) == (True, None, "local", "auto")
    if cost is None and plain:
        return _aggregate(x, y, permutations, seed, groups, weights, layout)
    cost = "svd" if cost is None else cost
    check_option("cost", cost, COSTS)
    check_option("form", form, ("local", "exact"))
    kernels = _given_kernels(kernel, cost, variances)
    ridge = _chosen_ridge(ridge, kernels)
    with full_precision(x.device):
        generator = own_generator(seed)
        pooled = torch.cat([x, y]).to(solve_dtype(x.device))
        units = ExchangeableUnits.of(
            pooled, len(x), permutations, generator, groups=groups, weights=weights
        )
        if cost == "energy":
            energy = EnergyStatistic(layout, generator)
            return cost_tests(units, [energy], (), (len(x), len(y)))[cost]
        grid = () if kernels else _grid(variances, pooled, layout)
        used = _fitted(kernels, pooled) or [mixed_kernel(units.rows, layout, v) for v in grid]
        statistics = [CostStatistics((cost,), k, form, ridge, generator) for k in used]
        found = cost_tests(units, statistics, grid, (len(x), len(y)))[cost]
        return replace(found, kernels=tuple(map(str, used))) if kernels else found


def cost_tests(
    units: ExchangeableUnits,
    statistics: Iterable[Statistic[ExchangeableUnits]],
    grid: tuple[float, ...],
    sizes: tuple[int, int],
) -> dict[str, TwoSampleResult]:
    """A test for each cost, over all kernels.

    Args:
        units: What changes sides.
        statistics: Of the costs, for each kernel.
        grid: Variances of the kernels, if they are Gaussian.
        sizes: Rows of both sides.
    """
    of_costs: dict[str, list[StatisticValues]] = {}
    for statistic in statistics:
        for values in statistic.values(units):
            of_costs.setdefault(values.name, []).append(values)
    found = {}
    for cost, several in of_costs.items():
        test = permutation_test(several)
        found[cost] = TwoSampleResult(
            statistic=test.statistic,
            pvalue=test.pvalue,
            cost=cost,
            variances=() if cost == "energy" else grid,
            statistics=tuple(float(one.values[0]) for one in several),
            pvalues=test.single_pvalues,
            permutations=len(test.total) - 1,
            n=sizes[0],
            m=sizes[1],
            method=several[-1].method,
            null=test.null,
        )
    return found


def as_numbers(given: Any) -> Tensor:
    """Arrays, and whole numbers, as tensors of real numbers; anything else as it is."""
    if isinstance(given, np.ndarray) and given.dtype.kind in "fiub":
        given = torch.from_numpy(np.ascontiguousarray(given))
    if isinstance(given, Tensor) and not (given.is_floating_point() or given.is_complex()):
        return given.double()
    return given


def _check_sets(x: Tensor, y: Tensor) -> None:
    check_pair(x, y)
    if x.ndim != 2 or y.ndim != 2:
        raise ShapeError(
            f"x and y have shapes {tuple(x.shape)} and {tuple(y.shape)}; a test compares two sets "
            "of points, each of shape (points, dimension)."
        )


def _aggregate(
    x: Tensor,
    y: Tensor,
    permutations: int,
    seed: Seed,
    groups: tuple[Tensor, Tensor] | None,
    weights: Tensor | None,
    layout: Layout | None,
) -> TwoSampleResult:
    found = aggregate_rows(
        torch.cat([x.cpu().double(), y.cpu().double()]),
        len(x),
        layout=layout,
        permutations=permutations,
        seed=seed,
        groups=groups,
        weights=weights,
    )
    return TwoSampleResult(
        statistic=found.statistic,
        pvalue=found.pvalue,
        cost="aggregate",
        variances=(),
        statistics=tuple(s.statistic for s in found.statistics),
        pvalues=tuple(s.pvalue for s in found.statistics),
        permutations=found.permutations,
        n=len(x),
        m=len(y),
        method=found.method,
        null=found.null,
        kernels=tuple(s.name for s in found.statistics),
        aggregate=found,
    )


def _chosen_ridge(
    ridge: float | Literal["auto"] | None, kernels: Sequence[GaussianKernel | PointKernel]
) -> float | None:
    if ridge == "auto":
        ridge = None if any(isinstance(k, PointKernel) for k in kernels) else COST_RIDGE
    if ridge is not None:
        checked_ridge(ridge)
    return ridge


def _given_kernels(
    kernel: AnyKernel | Sequence[AnyKernel] | None, cost: str, variances: object
) -> list[GaussianKernel | PointKernel]:
    if kernel is None:
        return []
    if cost == "energy":
        raise OptionError("kernel is given with cost='energy', which has no kernel; use 'mmd'.")
    if not isinstance(variances, str):
        raise OptionError("variances and kernel are both given; give only one.")
    several = list(kernel) if isinstance(kernel, Sequence) else [kernel]
    if not several:
        raise OptionError("kernel is an empty list; give at least one kernel.")
    return [k if isinstance(k, GaussianKernel) else as_point_kernel(k) for k in several]


def _fitted(
    kernels: Sequence[GaussianKernel | PointKernel], pooled: Tensor
) -> list[GaussianKernel | PointKernel]:
    return [k.fitted(pooled) if isinstance(k, PointKernel) else k for k in kernels]


def _grid(
    variances: Sequence[float] | float | Literal["auto"], pooled: Tensor, layout: Layout | None
) -> tuple[float, ...]:
    if isinstance(variances, str):
        check_option("variances", variances, ("auto",))
        return variance_grid(pooled, layout=layout)
    return tuple(float(v) for v in GaussianKernel(variances).v_p)


def _pooled_weights(
    x: Tensor,
    y: Tensor,
    weights_x: Tensor | np.ndarray | None,
    weights_y: Tensor | np.ndarray | None,
) -> Tensor | None:
    """Weights of all rows on one scale, so that a row and its weight can change sides."""
    if weights_x is None and weights_y is None:
        return None
    if weights_x is None or weights_y is None:
        given, missing = ("weights_x", "y") if weights_y is None else ("weights_y", "x")
        raise WeightError(
            f"{given} is given, but no weights of {missing}: a row keeps its weight when labels "
            f"are exchanged, and rows of {missing} have none, so the p-value would be wrong. Give "
            f"weights of both, on one scale; or draw rows of {given[-1]} in proportion to their "
            "weights (torch.multinomial) and test these without weights."
        )
    sides = {"weights_x": (as_numbers(weights_x), x), "weights_y": (as_numbers(weights_y), y)}
    for name, (weights, points) in sides.items():
        check_weights(name, weights, points)
    parts = {name: weights.double() for name, (weights, _) in sides.items()}
    if all(bool((p == p[0]).all()) for p in parts.values()):
        return None  # whatever their sums
    _refuse_divided(parts)
    weights = torch.cat([*parts.values()])
    return weights / weights.max()


def _refuse_divided(
    parts: dict[str, Tensor],
    within: float = 1e-6,  # a convention
) -> None:
    """Refuse weights that were divided by their sum, on one side or both, or by their mean."""
    for what, of, needed in (("sum", torch.sum, any), ("mean", torch.mean, all)):
        divided = [n for n, p in parts.items() if len(p) > 1 and abs(float(of(p)) - 1) < within]
        if needed(name in divided for name in parts):
            raise WeightError(
                f"The {what} of {' and '.join(divided)} is 1: weights that were divided by their "
                f"{what} no longer belong to their rows alone, and a row keeps its weight when "
                "labels are exchanged, so the p-value would be wrong. Give the weights of both as "
                "they were before, on one scale."
            )


DependenceForm: TypeAlias = Literal["trace", "logdet", "hsic"]

FORMS = ("trace", "logdet", "hsic")


@dataclass(frozen=True)
class Dependence:
    """What was found; `pvalue` is the number to look at.

    Attributes:
        statistic: The measure of the given pairs; 0 for features that are uncorrelated.
        pvalue: Share of all orders of y with a statistic at least as large.
        form: Which measure.
        variances: Of the kernels of x and of y.
        permutations: How many orders were drawn besides the given one.
    """

    statistic: float
    pvalue: float
    form: str
    variances: tuple[float, float]
    permutations: int


def dependence(
    x: Tensor | np.ndarray,  # (N, d)
    y: Tensor | np.ndarray,  # (N, e)
    *,
    form: DependenceForm = "trace",
    v: tuple[float, float] | None = None,
    ridge: float = 0.01,
    permutations: int = 499,
    seed: int | torch.Generator = 0,
) -> Dependence:
    r"""Measure and test the dependence of columns x and columns y of the same rows.

    The matrix-matrix cost between features of x and of y, over the rows they share, measures how
    well each predicts the other: the trace is the sum of squared kernel canonical correlations,
    and the log-determinant is that of kernel independent component analysis (Bach and Jordan),
    twice the mutual information of Gaussians with these correlations. Without whitening the trace
    is HSIC. The p-value is exact: labelings are orders of the rows of y, of which the given one is
    among the others. With centered Gram matrices $K$ and $L$,
    $K_\epsilon = K (K + N \epsilon I)^{-1}$:

    | form       | measure                                                              |
    | ---------- | -------------------------------------------------------------------- |
    | `"trace"`  | $\mathrm{tr}(K_\epsilon L_\epsilon) = \sum_k s_k^2$                  |
    | `"logdet"` | $-\log\det(I - K_\epsilon L_\epsilon) = -\sum_k \log(1 - s_k^2)$     |
    | `"hsic"`   | $\mathrm{tr}(K L) / N^2$                                             |

    Args:
        x: Rows, up to 5000.
        y: As many rows.
        form: Which measure.
        v: Kernel variances of x and of y; None takes half the median squared distance of each.
        ridge: The $\epsilon$ of the first two; as in kernel independent component analysis, a few
            hundredths serve.
        permutations: Orders of y to compare with, drawn at random.
        seed: Of the permutations, or a generator.

    Example:
        >>> x = torch.linspace(-1, 1, 60, dtype=torch.float64)[:, None]
        >>> dependence(x, x.square(), permutations=99).pvalue
        0.01
    """
    check_option("form", form, FORMS)
    check_count("permutations", permutations)
    if not 0 < ridge < float("inf"):
        raise OptionError(f"ridge={ridge} must be a positive number.")
    sides = [as_numbers(side) for side in (x, y)]
    _check_rows(sides[0], sides[1])
    chosen = tuple(float(choose_variance(side)) for side in sides) if v is None else tuple(v)
    if len(chosen) != 2 or not all(0 < one < float("inf") for one in chosen):
        raise OptionError(f"v={v!r} must be two positive numbers: the variances of x and of y.")
    left, right = (
        _centered_features(side.double(), variance, None if form == "hsic" else ridge)
        for side, variance in zip(sides, chosen, strict=True)
    )
    drawn = orders(len(left), permutations, own_generator(seed))
    test = permutation_test(DependenceStatistic(form, left, right).values(drawn))
    return Dependence(test.statistic, test.pvalue, form, (chosen[0], chosen[1]), permutations)


def _check_rows(
    x: Tensor,
    y: Tensor,
    up_to: int = 5000,  # a convention: the eigenvectors of N x N are found
) -> None:
    for name, side in zip("xy", (x, y), strict=True):
        check_samples(name, side)
    if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
        raise ShapeError(
            f"x and y have shapes {tuple(x.shape)} and {tuple(y.shape)}; dependence is between "
            "columns of the same rows: (rows, columns) each, with equally many rows."
        )
    if not 3 <= len(x) <= up_to:
        raise OptionError(
            f"{len(x)} rows: dependence takes 3 to {up_to}; of more, take a random subset."
        )


@dataclass(frozen=True)
class DependenceStatistic:
    """A measure of dependence, whose labelings are orders of the rows of y.

    Attributes:
        form: Which measure.
        left: Features of x, (N, r).
        right: Features of y, (N, s).
    """

    form: DependenceForm
    left: Tensor
    right: Tensor

    def values(self, labelings: Tensor) -> Iterator[StatisticValues]:  # (P, N)
        """One statistic."""
        together = rows_at_once(len(self.left) * max(1, self.right.shape[1]), 2**24)
        found = torch.cat([
            self._measures(self.left.mT @ self.right[part.to(self.right.device)])
            for part in labelings.split(together)
        ]).cpu()  # fmt: skip
        if self.form == "hsic":
            found = found / len(self.left) ** 2
        yield StatisticValues(self.form, found, NEGLIGIBLE * float(found.abs().max()))

    def _measures(self, cross: Tensor) -> Tensor:  # (P, r, s) -> (P,)
        if self.form != "logdet":
            return cross.square().sum((-2, -1))
        products = cross @ cross.mT if cross.shape[-2] <= cross.shape[-1] else cross.mT @ cross
        eye = torch.eye(products.shape[-1], dtype=products.dtype, device=products.device)
        return -torch.linalg.slogdet(eye - products).logabsdet


def _centered_features(points: Tensor, variance: float, ridge: float | None) -> Tensor:  # (N, r)
    """Centered features whose products are the Gram matrix, or the whitened one."""
    matrix = gram(points, points, variance)
    matrix = matrix - matrix.mean(0) - matrix.mean(1, keepdim=True) + matrix.mean()
    values, vectors = torch.linalg.eigh(matrix)
    kept = values > NEGLIGIBLE * values[-1].clamp(min=torch.finfo(values.dtype).tiny)
    values, vectors = values[kept], vectors[:, kept]
    if ridge is not None:
        values = values / (values + len(points) * ridge)
    return vectors * values.sqrt()
