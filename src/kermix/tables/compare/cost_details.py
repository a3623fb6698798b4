"""Every cost between two samples, with error bars and p-values.

Permutation tests of large samples take time linear in their rows. SVD, matrix and vector costs
come from whole Gram matrices; for their error bars groups of rows are left out, and each row in
turn for those of the other costs, which are means over pairs (`kermix.two_sample.error_bars`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.costs.formulas import Scaled, log_matrix_cost, log_svd_cost, log_vector_cost
from kermix.costs.points import GramStatistics
from kermix.info import Info
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import KernelTerms, mixed_kernel
from kermix.kernels.gram import ScaledGram, gram_matrix, scaled_gram
from kermix.linalg.cholesky import Cholesky, cholesky, default_ridge
from kermix.tables.compare.column_changes import ComparedRows
from kermix.tables.compare.result import TITLES, Details
from kermix.two_sample.cost_statistics import (
    BLOCK_RANK,
    DIRECTIONS,
    KERNEL_COSTS,
    ROUNDING,
    CostStatistics,
    EnergyStatistic,
)
from kermix.two_sample.cost_test import TwoSampleResult, cost_tests
from kermix.two_sample.error_bars import (
    LARGEST_SCATTER,
    Groups,
    Halves,
    Measure,
    error_of_root,
    exchanges,
    groups,
    halves,
    jackknife_error,
    mean_measures,
)
from kermix.two_sample.permutation import (
    Blocks,
    ExchangeableUnits,
    Statistic,
    own_generator,
    random_labelings,
)

__all__ = ["MatrixStatistics", "cost_details"]

# Reasoned, no record; groups and splits: on other seeds than results/bench/errorbars-cpu2.json.
PAIRS_UP_TO = 1000  # rows of a side; matrices of them are decomposed
MEANS_UP_TO = 4000  # rows of a side whose pairs are summed over


@torch.no_grad()
def cost_details(
    rows: ComparedRows,
    points: Tensor,
    variances: tuple[float, ...],
    permutations: int,
    jackknife_groups: int,
    seed: int,
    state: Tensor,
    notes: Sequence[str] = (),
) -> Details:
    """Every measure with its error bar, and the tests; arguments are those of `DetailsTask`."""
    generator = own_generator(seed)
    generator.set_state(state)
    used, layout, told = (rows.n, len(points) - rows.n), rows.layout, [*notes]
    tests = _tests(points, used, layout, variances, permutations, seed, generator, told)
    sides = [_shuffled(side, generator) for side in points.split(used)]
    ridge = default_ridge(rows.pooled.dtype)
    found = _measures(sides, variances, jackknife_groups, ridge, generator, layout)
    measures = [replace(m, pvalue=_pvalue(m, tests)) for m in found]
    measures.sort(key=lambda m: (list(TITLES).index(m.name), m.variance or 0.0))
    told += _notes(measures, used, jackknife_groups)
    if permutations:
        told.append(
            f"p-values: exact, {permutations} permutations, one variance each; over all "
            "variances "
            + ", ".join(f"{c} {t.pvalue:.3g}" for c, t in tests.items() if c != "energy")
            + "."
        )
    x, y = (side[:PAIRS_UP_TO] for side in sides)
    return Details(tuple(measures), tests, tuple(told), x, y)


def _tests(
    points: Tensor,
    used: tuple[int, int],
    layout: Layout | None,
    variances: tuple[float, ...],
    permutations: int,
    seed: int,
    generator: torch.Generator,
    notes: list[str],
) -> dict[str, TwoSampleResult]:
    """Tests of all costs, of rows or of blocks of many rows."""
    if not permutations:
        return {}
    points = points.double()
    large = max(used) > PAIRS_UP_TO
    if not large:
        generator = own_generator(seed)
        if layout is None:
            points = points - points.mean(0)
    units = ExchangeableUnits.of(
        points, used[0], permutations, generator, rows_up_to=0 if large else None
    )
    if units.blocks is not None:
        notes.append(_on_blocks(units.blocks, points, layout))
    statistics: list[Statistic[ExchangeableUnits]] = [
        *(CostStatistics(KERNEL_COSTS, mixed_kernel(points, layout, v), generator=generator)
          for v in variances),
        EnergyStatistic(layout, generator),
    ]  # fmt: skip
    return cost_tests(units, statistics, variances, used)


def _on_blocks(blocks: Blocks, points: Tensor, layout: Layout | None) -> str:
    inside = len(blocks) * blocks.size
    rest = "" if inside == len(points) else f", which hold {inside} of all {len(points)}"
    lines = DIRECTIONS if layout is not None or points.shape[1] > 1 else 1
    return (
        f"Permutations exchange {len(blocks)} random blocks of {blocks.size} rows{rest}; "
        f"the tests use up to {BLOCK_RANK} features, and the energy distance's {lines} "
        "projections."
    )


def _measures(
    sides: Sequence[Tensor],
    grid: tuple[float, ...],
    jackknife_groups: int,
    ridge: float,
    generator: torch.Generator,
    layout: Layout | None,
) -> list[Measure]:
    """Every measure of the first rows of both sides, as many as each can be computed of."""
    x, y = (side[:MEANS_UP_TO].double() for side in sides)
    labels = _exchanged(x, y, exchanges(jackknife_groups) if jackknife_groups else 0, generator)
    measures = mean_measures(x, y, grid, labels, jackknife_groups > 0, layout)
    x, y = x[:PAIRS_UP_TO], y[:PAIRS_UP_TO]
    count, splits = _parts(jackknife_groups, min(len(x), len(y)))
    left = groups(len(x), len(y), count, generator)
    split = halves(len(x), len(y), splits if len(left) else 0, generator)
    # Costs of many rows take long, and differ little from one exchange to the next.
    few = 2 if len(x) + len(y) > PAIRS_UP_TO else exchanges(jackknife_groups)
    labels = _exchanged(x, y, few if jackknife_groups else 0, generator)
    for v in grid:
        measures += _dense_measures(x, y, v, ridge, left, split, labels, layout)
    return measures


def _parts(asked: int, rows: int, few_rows: int = 500, most: int = 10) -> tuple[int, int]:
    """How many groups are left out, and splits into halves: costs of many rows take long."""
    return min(asked, most) if rows > few_rows else asked, min(asked, most)


def _exchanged(x: Tensor, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return random_labelings(len(x), len(y), max(1, count), generator)[1 : 1 + count]


def _pvalue(measure: Measure, tests: dict[str, TwoSampleResult]) -> float | None:
    test = tests.get({"bures": "svd", "cauchy_schwarz": "scalar"}.get(measure.name, measure.name))
    if test is None:
        return None
    if measure.variance is None:
        return test.pvalue
    return test.pvalues[test.variances.index(measure.variance)]


def _notes(measures: Sequence[Measure], used: tuple[int, int], jackknife_groups: int) -> list[str]:
    """Of how many rows the measures are, if not of all; and how their errors were found."""
    notes = []
    fewer: dict[tuple[int, int], list[str]] = {}
    for measure in measures:
        if measure.rows is not None and measure.rows != used:
            names = fewer.setdefault(measure.rows, [])
            names += [] if TITLES[measure.name] in names else [TITLES[measure.name]]
    for rows, names in fewer.items():
        listed = ", ".join(names)
        notes.append(
            f"{listed}: of {rows[0]} and {rows[1]} rows drawn at random; the tests use all "
            f"{used[0]} and {used[1]}."
        )
    if jackknife_groups:
        notes.append(
            "Error bars: one standard error, from random subsets of the rows. 'if same': the "
            "mean over a few random permutations of the labels."
        )
    return notes


def _shuffled(points: Tensor, generator: torch.Generator) -> Tensor:
    """Some of many rows, drawn at random; the rows in their order if none is left out."""
    if len(points) <= PAIRS_UP_TO:
        return points
    return points[torch.randperm(len(points), generator=generator)[:MEANS_UP_TO]]


class LogCosts(NamedTuple):
    """Logarithms of the normalized costs."""

    svd: float
    matrix: float
    vector: float


def _dense_measures(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    v: float,
    ridge: float,
    groups: Groups,
    halves: Halves,
    labels: Tensor,  # (E, n + m), bool
    layout: Layout | None = None,
) -> list[Measure]:
    """SVD, matrix and vector costs, and the Bures distance.

    Args:
        x: One sample.
        y: The other.
        v: The variance.
        ridge: Ridge of the matrix and the vector cost.
        groups: What is left without a group of rows each, behind the error bars.
        halves: Splits of the rows, which tell how much of that is due to rows together.
        labels: Exchanges of labels behind what the measures would be, were both samples one.
        layout: Which columns are codes.
    """
    terms = mixed_kernel(x, layout, v).cross_terms(x.shape[1])
    own_x, own_y = (gram_matrix(p, p, terms, p.dtype) for p in (x, y))
    cross = scaled_gram(y, x, terms, x.dtype)
    given = _log_costs(cross, own_x, own_y, ridge)
    same = _costs_of_exchanges(torch.cat([x, y]), terms, labels, ridge)

    def costs_of(parts_x: Iterable[Tensor], parts_y: Iterable[Tensor]) -> Tensor:
        return torch.tensor([
            _log_costs(ScaledGram(cross.matrix[j][:, i], cross.log_scale), own_x[i][:, i],
                       own_y[j][:, j], ridge)
            for i, j in zip(parts_x, parts_y, strict=True)
        ], dtype=x.dtype)  # fmt: skip

    drawn = costs_of(groups.x, groups.y)
    split = costs_of(halves.x.flatten(0, 1), halves.y.flatten(0, 1))
    n, m = rows = len(x), len(y)
    bounds = (math.sqrt(n * m), min(n, m), float(own_x.mean()))
    found = []
    for k, (name, bound) in enumerate(zip(LogCosts._fields, bounds, strict=True)):
        value = math.exp(given[k])
        error = None
        if len(groups):
            error = _error(name, given[k], drawn[:, k], split[:, k].unflatten(0, (-1, 2)))
        alike = _mean([math.exp(costs[k]) for costs in same])
        found.append(Measure(name, v, value * bound, value, error, alike, rows=rows))
    fidelity, error = found[0].normalized, found[0].error
    assert fidelity is not None
    square = max(0.0, 2 - 2 * fidelity)
    error = None if error is None else error_of_root(square, 2 * error)
    alike = _mean([math.sqrt(max(0.0, 2 - 2 * math.exp(costs.svd))) for costs in same])
    found.append(Measure("bures", v, math.sqrt(square), None, error, alike, rows=rows))
    return found


def _error(name: str, log_value: float, drawn: Tensor, split: Tensor) -> float | None:
    r"""Standard error of a normalized cost; None: cannot tell.

    One minus a vector cost depends on a few points that others do not reach, and is skewed as
    lognormal numbers are: with the standard error `s` of its logarithm it is
    $\sqrt{e^{s^2} - 1}$ times what is missing. Where `s` is more than one, it depends on
    points that the samples do not have.

    Args:
        name: Which cost.
        log_value: Its logarithm.
        drawn: That of costs without a group each, (G,).
        split: That of costs of halves, (S, 2).
    """
    if name != "vector":
        return jackknife_error(drawn.exp(), split.exp())
    scatter = jackknife_error(
        *((-part.expm1()).clamp(min=ROUNDING).log() for part in (drawn, split))
    )
    if scatter > LARGEST_SCATTER:
        return None
    return max(0.0, -math.expm1(log_value)) * math.sqrt(math.expm1(scatter**2))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _costs_of_exchanges(
    points: Tensor, terms: KernelTerms, labels: Tensor, ridge: float
) -> list[LogCosts]:
    if not len(labels):
        return []
    gram = gram_matrix(points, points, terms, points.dtype)
    zero = gram.new_zeros(())
    return [
        _log_costs(ScaledGram(gram[~of_x][:, of_x], zero), gram[of_x][:, of_x],
               gram[~of_x][:, ~of_x], ridge)
        for of_x in labels
    ]  # fmt: skip


def _log_costs(cross: ScaledGram, own_x: Tensor, own_y: Tensor, ridge: float) -> LogCosts:
    pair = MatrixStatistics(cross, own_x, own_y, ridge)
    return LogCosts(
        float(log_svd_cost(pair, normalized=True)[0]),
        float(log_matrix_cost(pair, "trace", normalized=True)[0]),
        float(log_vector_cost(pair, normalized=True)[0]),
    )


class MatrixStatistics(GramStatistics):
    """Statistics of points without weights, from Gram matrices that are known already.

    Args:
        cross: The cross Gram matrix, (K, N).
        own_x: That of the data, (N, N).
        own_y: That of the centers, (K, K).
        ridge: Ridge of the latter two.
    """

    weighted = False

    def __init__(self, cross: ScaledGram, own_x: Tensor, own_y: Tensor, ridge: float) -> None:
        self._cross, self._own_x, self._own_y = cross, own_x, own_y
        self._factor_x, self._factor_y = cholesky(own_x, ridge), cholesky(own_y, ridge)
        self.sizes = len(own_x), len(own_y)
        self.log_traces = math.log(len(own_x)), math.log(len(own_y))

    def log_cross(self) -> Tensor:
        """Logarithm of the mean of the cross Gram matrix."""
        return self._cross.log_scale + self._cross.matrix.mean().log()

    def log_norm_x(self) -> Tensor:
        """That of the data's Gram matrix."""
        return self._own_x.mean().log()

    def log_norm_y(self) -> Tensor:
        """That of the centers' Gram matrix."""
        return self._own_y.mean().log()

    def projection(self) -> tuple[Tensor, Tensor]:  # (K,), ()
        """Means of the rows, and their log scale."""
        return self._cross.matrix.mean(1), self._cross.log_scale

    def cross(self) -> ScaledGram:
        """The cross Gram matrix."""
        return self._cross

    def factor_x(self) -> Cholesky:
        """The factor of the data's Gram matrix, which two costs need."""
        return self._factor_x

    def factor_y(self) -> Cholesky:
        """The factor of the centres' Gram matrix."""
        return self._factor_y

    def nuclear(self) -> Scaled:
        """From singular values alone, because no gradient is asked for."""
        norm = torch.linalg.svdvals(self._cross.matrix).sum()
        return Scaled(norm, self._cross.log_scale, Info("svd"))
