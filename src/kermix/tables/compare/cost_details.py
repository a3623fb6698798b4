"""Every cost between two samples, with error bars and p-values.

Permutation tests of large samples take time linear in their rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from kermix.kernels.distances import Layout
from kermix.kernels.mixed import mixed_kernel
from kermix.linalg.cholesky import default_ridge
from kermix.tables.compare.column_changes import ComparedRows
from kermix.tables.compare.dense_details import dense_measures
from kermix.tables.compare.result import TITLES, Details
from kermix.two_sample.cost_statistics import (
    BLOCK_RANK,
    DIRECTIONS,
    KERNEL_COSTS,
    CostStatistics,
    EnergyStatistic,
)
from kermix.two_sample.cost_test import TwoSampleResult, cost_tests
from kermix.two_sample.error_bars import Measure, exchanges, groups, halves, mean_measures
from kermix.two_sample.permutation import (
    Blocks,
    ExchangeableUnits,
    Statistic,
    own_generator,
    random_labelings,
)

__all__ = ["DetailsTask", "standardized"]


# Reasoned, no record; groups and splits: on other seeds than results/bench/errorbars-cpu2.json.
PAIRS_UP_TO = 1000  # rows of a side; matrices of them are decomposed
FEW_ROWS, LARGE_GROUPS = 500, 10
SPLITS = 10  # into halves
MEANS_UP_TO = 4000  # rows of a side whose pairs are summed over
STANDARDIZE_BEYOND = 10.0


@dataclass(frozen=True)
class DetailsTask:
    """What is needed to find the details of a comparison, when somebody asks for them.

    Attributes:
        rows: As they were read.
        points: The same, with columns scaled if they are.
        variances: Of the kernels.
        permutations: Behind each p-value.
        jackknife_groups: Groups that are left out to find error bars.
        seed: Of tests.
        state: Of the generator of everything else.
        notes: On how columns were scaled.
    """

    rows: ComparedRows
    points: Tensor = field(repr=False)
    variances: tuple[float, ...]
    permutations: int
    jackknife_groups: int
    seed: int
    state: Tensor = field(repr=False)
    notes: tuple[str, ...] = ()

    @torch.no_grad()
    def find(self) -> Details:
        """Compute them."""
        generator = own_generator(self.seed)
        generator.set_state(self.state)
        n, layout, permutations = self.rows.n, self.rows.layout, self.permutations
        points_x, points_y = self.points[:n], self.points[n:]
        used = n, len(points_y)
        notes = list(self.notes)
        tests = self._tests(generator, notes)
        sides = [_shuffled(points, generator) for points in (points_x, points_y)]
        ridge = default_ridge(self.rows.pooled.dtype)
        found = _measures(sides, self.variances, self.jackknife_groups, ridge, generator, layout)
        measures = [replace(m, pvalue=_pvalue(m, tests)) for m in found]
        measures.sort(key=lambda m: (list(TITLES).index(m.name), m.variance or 0.0))
        notes += _notes(measures, used, self.jackknife_groups)
        if permutations:
            notes.append(
                f"p-values: exact, {permutations} permutations, one variance each; over all "
                "variances "
                + ", ".join(f"{c} {t.pvalue:.3g}" for c, t in tests.items() if c != "energy")
                + "."
            )
        x, y = (side[:PAIRS_UP_TO] for side in sides)
        return Details(tuple(measures), tests, tuple(notes), x, y)

    def _tests(self, generator: torch.Generator, notes: list[str]) -> dict[str, TwoSampleResult]:
        """Tests of all costs, of rows or of blocks of many rows."""
        if not self.permutations:
            return {}
        n, layout, points = self.rows.n, self.rows.layout, self.points.double()
        sizes = n, len(points) - n
        large = max(sizes) > PAIRS_UP_TO
        if not large:
            generator = own_generator(self.seed)
            if layout is None:
                points = points - points.mean(0)
        units = ExchangeableUnits.of(
            points, n, self.permutations, generator, rows_up_to=0 if large else None
        )
        if units.blocks is not None:
            notes.append(_on_blocks(units.blocks, points, layout))
        statistics: list[Statistic[ExchangeableUnits]] = [
            *(CostStatistics(KERNEL_COSTS, mixed_kernel(points, layout, v), generator=generator)
              for v in self.variances),
            EnergyStatistic(layout, generator),
        ]  # fmt: skip
        return cost_tests(units, statistics, self.variances, sizes)


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
    # Costs of many rows take long.
    count = (
        min(jackknife_groups, LARGE_GROUPS) if min(len(x), len(y)) > FEW_ROWS else jackknife_groups
    )
    left = groups(len(x), len(y), count, generator)
    split = halves(len(x), len(y), min(count, SPLITS) if len(left) else 0, generator)
    # Costs of many rows take long, and differ little from one exchange to the next.
    few = 2 if len(x) + len(y) > PAIRS_UP_TO else exchanges(jackknife_groups)
    labels = _exchanged(x, y, few if jackknife_groups else 0, generator)
    for v in grid:
        measures += dense_measures(x, y, v, ridge, left, split, labels, layout)
    return measures


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


def standardized(
    pooled: Tensor, asked: bool | Literal["auto"], notes: list[str]
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
    """Rows divided by the spread of their columns, if asked, and by what; a note says so."""
    # Sums of sorted columns do not depend, not even by rounding, on the order of rows.
    spread, centre = torch.std_mean(pooled.sort(0).values, 0)
    positive = spread[spread > 0]
    if asked == "auto":
        asked = len(positive) > 0 and bool(positive.max() > STANDARDIZE_BEYOND * positive.min())
    if not asked:
        return pooled, None
    spread = torch.where(spread > 0, spread, 1.0)
    notes.append("Columns are divided by their pooled standard deviations.")
    return (pooled - centre) / spread, (centre, spread)
