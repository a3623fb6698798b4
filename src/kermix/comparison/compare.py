"""Compare two data sets: every cost, with error bars, p-values, and where they differ."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from kermix.checks import check_option
from kermix.comparison.draws import Draws, anchored, draws, exchanges
from kermix.comparison.drift import compare_sketches, is_sketch
from kermix.comparison.large import LargeComparison
from kermix.comparison.permutation import own_generator
from kermix.comparison.pooled import pooled_features
from kermix.comparison.result import TITLES, ColumnDifference, Comparison, Measure
from kermix.comparison.statistics import (
    energy_statistic,
    exact_statistics,
    gram_blocks,
    mmd_statistic,
    scalar_statistic,
)
from kermix.comparison.twosample import (
    COSTS,
    TestCost,
    TwoSampleResult,
    two_sample_test,
    variance_grid,
)
from kermix.costs.functions import matrix_cost, scalar_cost, svd_cost, vector_cost
from kermix.data.tables.table import Source, Table, common_columns, read_table
from kermix.errors import OptionError
from kermix.kernels.gaussian import GaussianKernel

__all__ = ["compare"]

AUTO_VARIANCES = 4
PAIRS_UP_TO = 1000
BOOTSTRAP_RANK = 120  # leading features that error bars are computed from
STANDARDIZE_BEYOND = 10.0


@torch.no_grad()
def compare(
    x: Source,
    y: Source,
    v: Sequence[float] | float | Literal["auto"] = "auto",
    *,
    columns: Sequence[str] | None = None,
    standardize: bool | Literal["auto"] = "auto",
    max_points: int | None = None,
    bootstrap: int = 20,
    permutations: int = 200,
    seed: int = 0,
) -> Comparison:
    r"""Compare two data sets by every cost of the family, and by MMD and energy distance.

    Args:
        x: A tensor, an array, a data frame, a file (.npy, .npz, .csv, .tsv, .parquet) or a sketch.
        y: The other.
        v: One variance, several (each is reported), or `"auto"`: four of them from the data.
        columns: Which columns of tables to use; by default all that hold numbers.
        standardize: Whether columns are divided by their pooled standard deviation. `"auto"` does
            so when these differ more than tenfold.
        max_points: Larger sets are subsampled at random to this many points, without replacement;
            the result says so, and error bars are those of the subsample. By default all rows
            are used; beyond a thousand, through features instead of pairs of points.
        bootstrap: Draws of the Bayesian bootstrap behind each error bar; 0 for none.
        permutations: Random labellings behind each p-value; 0 for none.
        seed: Seed of subsampling, bootstrap and permutations.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(2, 60, 2, generator=generator)
        >>> result = compare(x, y + 1, 0.5, permutations=99)
        >>> 0.5 < result.measure("svd").normalized < 0.9, result.measure("svd").pvalue
        (True, 0.01)
    """
    if is_sketch(x) or is_sketch(y):
        return compare_sketches(x, y)
    if isinstance(standardize, str):
        check_option("standardize", standardize, ("auto",))
    if permutations < 0:
        raise OptionError(f"permutations={permutations}: give a number, or 0 for no p-values.")
    if bootstrap < 0 or bootstrap == 1:
        raise OptionError(f"bootstrap={bootstrap}: give 2 or more, or 0 for no error bars.")
    first, second = (read_table(source, columns=columns) for source in (x, y))
    first, second = common_columns(first, second)
    notes = [*first.notes(), *second.notes()]
    generator = own_generator(seed)
    points_x, points_y = (_subsample(t, max_points, generator, notes) for t in (first, second))
    n = len(points_x)
    used = n, len(points_y)
    raw = torch.cat([points_x, points_y])
    pooled, scale = _standardized(raw, standardize, notes)
    points_x, points_y = pooled[:n], pooled[n:]
    grid = variance_grid(pooled, AUTO_VARIANCES) if isinstance(v, str) else _variances(v)
    if max(used) > PAIRS_UP_TO:
        large = LargeComparison.of(
            pooled, raw, n, grid, first.columns, bootstrap, permutations, generator
        )
        measures, tests, differences = list(large.measures), large.tests, large.column_differences
        notes += large.notes
        points_x, points_y = (_some(p, generator) for p in (points_x, points_y))
    else:
        measures, tests = _by_pairs(points_x, points_y, grid, bootstrap, permutations, seed,
                                    generator)  # fmt: skip
        differences = _column_differences(raw[:n], raw[n:], first.columns, permutations, seed)
    measures.sort(key=lambda m: (list(TITLES).index(m.name), m.variance or 0.0))
    if bootstrap:
        notes.append(
            f"Error bars: Bayesian bootstrap, {bootstrap} draws. 'if same': the mean of "
            f"{exchanges(bootstrap)} random exchanges of labels."
        )
    if permutations:
        notes.append(
            f"p-values: exact, {permutations} permutations, one variance each; over all variances "
            + ", ".join(f"{c} {t.pvalue:.3g}" for c, t in tests.items() if c != "energy") + "."
        )  # fmt: skip
    return Comparison(
        names=_distinct(first.name, second.name),
        sizes=(len(first), len(second)),
        used=used,
        columns=tuple(first.columns),
        variances=grid,
        measures=tuple(measures),
        tests=tests,
        column_differences=differences,
        notes=tuple(notes),
        x=points_x,
        y=points_y,
        _scale=scale,
    )


def _by_pairs(
    x: Tensor,
    y: Tensor,
    grid: tuple[float, ...],
    bootstrap: int,
    permutations: int,
    seed: int,
    generator: torch.Generator,
) -> tuple[list[Measure], dict[str, TwoSampleResult]]:
    """Measures and tests from all pairs of points."""
    tests: dict[str, TwoSampleResult] = {}
    if permutations:
        # Ranks of statistics do not need more digits than float32 has, once the middle is zero.
        middle = torch.cat([x, y]).mean(0)
        a, b = (x - middle).float(), (y - middle).float()
        for cost in _test_costs():
            tests[cost] = two_sample_test(a, b, cost, grid, permutations, seed=seed)
    drawn = draws(len(x), len(y), bootstrap, generator, x.dtype)
    measures = [m for value in grid for m in _at_variance(x, y, value, drawn, tests)]
    measures.append(_energy(torch.cat([x, y]), drawn, tests))
    return measures, tests


def _some(points: Tensor, generator: torch.Generator) -> Tensor:
    return points[torch.randperm(len(points), generator=generator)[:PAIRS_UP_TO]]


def _test_costs() -> tuple[TestCost, ...]:
    return tuple(COSTS)  # type: ignore[arg-type]


def _variances(v: Sequence[float] | float) -> tuple[float, ...]:
    return tuple(float(u) for u in GaussianKernel(v).v_p)


def _distinct(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (f"{first} (1)", f"{second} (2)")


def _subsample(
    table: Table, limit: int | None, generator: torch.Generator, notes: list[str]
) -> Tensor:
    if limit is None:
        return table.values
    if limit < 2:
        raise OptionError(f"max_points={limit}: at least two points are needed.")
    if len(table) <= limit:
        return table.values
    notes.append(f"{table.name}: {limit} of {len(table)} rows used, drawn at random.")
    return table.values[torch.randperm(len(table), generator=generator)[:limit]]


def _standardized(
    pooled: Tensor, asked: bool | Literal["auto"], notes: list[str]
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    spread = pooled.std(0)
    positive = spread[spread > 0]
    if asked == "auto":
        asked = len(positive) > 0 and bool(positive.max() > STANDARDIZE_BEYOND * positive.min())
    if not asked:
        return pooled, None
    spread = torch.where(spread > 0, spread, 1.0)
    centre = pooled.mean(0)
    notes.append("Columns are divided by their pooled standard deviations.")
    return (pooled - centre) / spread, (centre, spread)


def _at_variance(
    x: Tensor, y: Tensor, v: float, draws: Draws, tests: dict[str, TwoSampleResult]
) -> list[Measure]:
    pooled = torch.cat([x, y])
    terms = GaussianKernel(v).cross_terms(pooled.shape[1])
    features, _ = pooled_features(pooled, terms, None, torch.Generator().manual_seed(0))
    measures = []

    def add(name: str, value: float, normalized: float | None, values: Tensor) -> None:
        error, if_same = draws.errors(values)
        test = tests.get({"bures": "svd", "cauchy_schwarz": "scalar"}.get(name, name))
        pvalue = None if test is None else test.pvalues[test.variances.index(v)]
        measures.append(Measure(name, v, value, normalized, error, if_same, pvalue))

    def values_of(cost: Callable[..., Tensor]) -> tuple[float, float]:
        return float(cost(x, y, v)), float(cost(x, y, v, normalized=True))

    leading = features.leading(BOOTSTRAP_RANK)
    drawn = exact_statistics(("svd", "matrix", "vector"), leading, draws.a, draws.b)
    fidelity = float(svd_cost(x, y, v, normalized=True))
    fidelities = anchored(1 - drawn["svd"], fidelity)
    add("svd", fidelity * math.sqrt(len(x) * len(y)), fidelity, fidelities)
    trace = float(matrix_cost(x, y, v, normalized=True))
    add("matrix", trace * min(len(x), len(y)), trace, anchored(-drawn["matrix"], trace))
    plain, normalized = values_of(vector_cost)
    add("vector", plain, normalized, anchored(-drawn["vector"], normalized))
    plain, normalized = values_of(scalar_cost)
    divergences = scalar_statistic(gram_blocks(pooled, terms), draws.a, draws.b)
    add("scalar", plain, normalized, (-divergences).exp())
    add("bures", _bures(fidelity), None, (2 - 2 * fidelities).clamp(min=0).sqrt())
    divergence = max(0.0, -float(scalar_cost(x, y, v, normalized=True, log=True)))
    add("cauchy_schwarz", divergence, None, divergences)
    squares = mmd_statistic(gram_blocks(pooled, terms), draws.a, draws.b).clamp(min=0)
    add("mmd", float(squares[0].sqrt()), None, squares.sqrt())
    return measures


def _bures(fidelity: float) -> float:
    return math.sqrt(max(0.0, 2 - 2 * fidelity))


def _energy(pooled: Tensor, draws: Draws, tests: dict[str, TwoSampleResult]) -> Measure:
    values = energy_statistic(pooled, draws.a, draws.b)
    error, if_same = draws.errors(values)
    pvalue = tests["energy"].pvalue if "energy" in tests else None
    return Measure("energy", None, float(values[0]), None, error, if_same, pvalue)


def _column_differences(
    x: Tensor, y: Tensor, columns: Sequence[str], permutations: int, seed: int
) -> tuple[ColumnDifference, ...]:
    found = []
    for k, name in enumerate(columns):
        a, b = x[:, k : k + 1], y[:, k : k + 1]
        spread, middle = torch.std_mean(torch.cat([a, b]).double())
        unit = spread if spread > 0 else 1.0
        first, second = (((part - middle) / unit).float() for part in (a, b))
        test = two_sample_test(
            first, second, "energy", permutations=max(permutations, 1), seed=seed
        )
        pvalue = test.pvalue if permutations else None
        means = float(a.mean()), float(b.mean())
        found.append(ColumnDifference(name, test.statistic, pvalue, *means))
    return tuple(sorted(found, key=lambda c: -c.distance))
