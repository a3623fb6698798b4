"""Compare two data sets: every cost, with error bars, p-values, and where they differ."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from kermix.checks import check_count, check_option
from kermix.comparison.blocks import Blocks
from kermix.comparison.dense import dense_measures
from kermix.comparison.draws import exchanges, groups, halves
from kermix.comparison.drift import compare_sketches, is_sketch
from kermix.comparison.large import BlockTests
from kermix.comparison.means import mean_measures
from kermix.comparison.mixed_columns import mixed_column_differences
from kermix.comparison.permutation import labellings, own_generator, signed_weights
from kermix.comparison.result import TITLES, ColumnDifference, Comparison, Measure
from kermix.comparison.sources import read_sources
from kermix.comparison.twosample import (
    COSTS,
    TestCost,
    TwoSampleResult,
    two_sample_test,
    variance_grid,
)
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.mixed_rows import MixedRows
from kermix.data.tables.table import Source, Table
from kermix.errors import OptionError, TableError
from kermix.kernels.gaussian import GaussianKernel
from kermix.kernels.mixed import Layout
from kermix.linalg.cholesky import default_ridge

__all__ = ["compare"]

AUTO_VARIANCES = 4
PAIRS_UP_TO = 1000  # rows of a side; matrices of them are decomposed
FEW_ROWS, LARGE_GROUPS = 500, 10
SPLITS = 10  # into halves
MEANS_UP_TO = 4000  # rows of a side whose pairs are summed over
STANDARDIZE_BEYOND = 10.0


@torch.no_grad()
def compare(
    x: Source,
    y: Source,
    v: Sequence[float] | float | Literal["auto"] = "auto",
    *,
    columns: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    delimiter: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    header: bool | None = None,
    standardize: bool | Literal["auto"] = "auto",
    max_points: int | None = None,
    bootstrap: int = 20,
    permutations: int = 200,
    seed: int = 0,
) -> Comparison:
    r"""Compare two data sets by every cost of the family, and by MMD and energy distance.

    Args:
        x: A tensor, an array, a pandas, Polars or Arrow table, a dictionary of columns, a file
            (.csv, .tsv, .parquet, .feather, .jsonl, .xlsx, .npy, .npz) or a sketch. Tables with
            categories, times or missing values are compared by the kernel of mixed rows; no row is
            left out.
        y: The other.
        v: One variance, several (each is reported), or `"auto"`: four of them from the data.
        columns: Which columns of tables to use; by default all.
        exclude: Columns of tables to leave aside.
        kinds: Kinds of columns by name, where you know better; see :meth:`kermix.Schema.of`.
        delimiter: Between the cells of text files; found if not given.
        decimal: "." or "," in text files; found if not given.
        encoding: Of text files; UTF-8, or Latin-1 where that fails.
        header: Whether the first line of text files holds names; judged if not given.
        standardize: Whether columns are divided by their pooled standard deviation. `"auto"` does
            so when these differ more than tenfold.
        max_points: Larger sets are subsampled at random to this many points, without replacement;
            the result says so. By default tests use all rows. Costs depend on the number of rows
            that they are of, which :attr:`Measure.rows` tells: of larger sets, 1000 of each are
            drawn for the SVD, matrix and vector costs and the Bures distance, 4000 for the
            others, and error bars are those of what was drawn.
        bootstrap: How many random groups of rows are left out, one after the other, to find the
            error bars of the SVD, matrix and vector costs (of more than 500 rows at most ten);
            those of the others leave out every row once. 0 for no error bars.
        permutations: Random labellings behind each p-value; 0 for none.
        seed: Seed of subsampling, splits and permutations.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(2, 60, 2, generator=generator)
        >>> result = compare(x, y + 1, 0.5, permutations=99)
        >>> 0.5 < result.measure("svd").normalized < 0.9, result.measure("svd").pvalue
        (True, 0.01)
    """
    reading = Reading(
        None if columns is None else _names(columns), _names(exclude), dict(kinds or {}),
        delimiter, decimal, encoding, header,
    )  # fmt: skip
    if is_sketch(x) or is_sketch(y):
        if reading.said():
            raise OptionError(
                f"{', '.join(reading.said())}: for tables that are read; a sketch has its own "
                "columns. Leave it out, or give it when the sketch is made."
            )
        return compare_sketches(x, y)
    if isinstance(standardize, str):
        check_option("standardize", standardize, ("auto",))
    check_count("permutations", permutations, 0, " Give a number, or 0 for no p-values.")
    check_count("bootstrap", bootstrap, 0, " Give 2 or more, or 0 for no error bars.")
    if max_points is not None:
        check_count("max_points", max_points, least=2)
    if bootstrap == 1:
        raise OptionError(f"bootstrap={bootstrap}: give 2 or more, or 0 for no error bars.")
    read = read_sources([x, y], reading)
    (first, second), mixed, notes = read.tables, read.mixed, read.notes
    if mixed is not None and standardize is False:
        raise OptionError(
            "standardize=False: tables with categories or gaps have their numbers scaled, so that "
            "they can be compared with codes; leave it out, or name columns of numbers."
        )
    layout = None if mixed is None else mixed.layout
    generator = own_generator(seed)
    points_x, points_y = (_subsample(t, max_points, generator, notes) for t in (first, second))
    n = len(points_x)
    used = n, len(points_y)
    raw = torch.cat([points_x, points_y])
    pooled, scale = _standardized(raw, standardize, notes) if mixed is None else (raw, None)
    points_x, points_y = pooled[:n], pooled[n:]
    grid = variance_grid(pooled, AUTO_VARIANCES, layout) if isinstance(v, str) else _variances(v)
    if max(used) > PAIRS_UP_TO:
        large = BlockTests.of(
            pooled, raw, n, grid, first.columns, permutations, generator, mixed=mixed
        )
        tests, differences = large.tests, large.column_differences
        notes += large.notes
    else:
        tests = (
            _tests(points_x, points_y, grid, permutations, seed, layout) if permutations else {}
        )
        if mixed is None:
            differences = _column_differences(raw[:n], raw[n:], first.columns, permutations, seed)
        else:
            differences = _mixed_differences(raw, n, mixed, permutations, seed)
    sides = [_shuffled(points, generator) for points in (points_x, points_y)]
    found = _measures(sides, grid, bootstrap, default_ridge(raw.dtype), generator, layout)
    measures = [replace(m, pvalue=_pvalue(m, tests)) for m in found]
    measures.sort(key=lambda m: (list(TITLES).index(m.name), m.variance or 0.0))
    points_x, points_y = (side[:PAIRS_UP_TO] for side in sides)
    notes += _notes(measures, used, bootstrap)
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
        _layout=layout,
    )


def _tests(
    x: Tensor,
    y: Tensor,
    grid: tuple[float, ...],
    permutations: int,
    seed: int,
    layout: Layout | None,
) -> dict[str, TwoSampleResult]:
    """Tests from all pairs of points."""
    a, b = x.double(), y.double()
    if layout is None:
        middle = torch.cat([x, y]).double().mean(0)
        a, b = a - middle, b - middle
    return {
        c: two_sample_test(a, b, c, grid, permutations, seed=seed, layout=layout)
        for c in _test_costs()
    }


def _mixed_differences(
    raw: Tensor, n: int, mixed: MixedRows, permutations: int, seed: int
) -> tuple[ColumnDifference, ...]:
    """Columns of few mixed rows, each of which changes sides by itself."""
    if not permutations:
        return mixed_column_differences(raw, n, mixed, None, None)
    generator = own_generator(seed)
    blocks = Blocks(torch.arange(len(raw))[:, None], n, torch.arange(0), n)
    labels = signed_weights(labellings(n, len(raw) - n, permutations, generator), None)
    return mixed_column_differences(raw, n, mixed, blocks, labels)


def _measures(
    sides: Sequence[Tensor],
    grid: tuple[float, ...],
    bootstrap: int,
    ridge: float,
    generator: torch.Generator,
    layout: Layout | None,
) -> list[Measure]:
    """Every measure of the first rows of both sides, as many as each can be computed of."""
    x, y = (side[:MEANS_UP_TO].double() for side in sides)
    labels = _exchanged(x, y, exchanges(bootstrap) if bootstrap else 0, generator)
    measures = mean_measures(x, y, grid, labels, bootstrap > 0, layout)
    x, y = x[:PAIRS_UP_TO], y[:PAIRS_UP_TO]
    # Costs of many rows take long.
    count = min(bootstrap, LARGE_GROUPS) if min(len(x), len(y)) > FEW_ROWS else bootstrap
    left = groups(len(x), len(y), count, generator)
    split = halves(len(x), len(y), min(count, SPLITS) if len(left) else 0, generator)
    # Costs of many rows take long, and differ little from one exchange to the next.
    few = 2 if len(x) + len(y) > PAIRS_UP_TO else exchanges(bootstrap)
    labels = _exchanged(x, y, few if bootstrap else 0, generator)
    for v in grid:
        measures += dense_measures(x, y, v, ridge, left, split, labels, layout)
    return measures


def _exchanged(x: Tensor, y: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return labellings(len(x), len(y), max(1, count), generator)[1 : 1 + count]


def _pvalue(measure: Measure, tests: dict[str, TwoSampleResult]) -> float | None:
    test = tests.get({"bures": "svd", "cauchy_schwarz": "scalar"}.get(measure.name, measure.name))
    if test is None:
        return None
    if measure.variance is None:
        return test.pvalue
    return test.pvalues[test.variances.index(measure.variance)]


def _notes(measures: Sequence[Measure], used: tuple[int, int], bootstrap: int) -> list[str]:
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
            f"{listed}: of {rows[0]} and {rows[1]} rows drawn at random; all {used[0]} and "
            f"{used[1]} are in the tests."
        )
    if bootstrap:
        notes.append(
            "Error bars: one standard error, from random parts of the rows. "
            "'if same': the mean over a few random exchanges of labels."
        )
    return notes


def _shuffled(points: Tensor, generator: torch.Generator) -> Tensor:
    """Some of many rows, drawn at random; the rows in their order if none is left out."""
    if len(points) <= PAIRS_UP_TO:
        return points
    return points[torch.randperm(len(points), generator=generator)[:MEANS_UP_TO]]


def _test_costs() -> tuple[TestCost, ...]:
    return tuple(COSTS)  # type: ignore[arg-type]


def _variances(v: Sequence[float] | float) -> tuple[float, ...]:
    return tuple(float(u) for u in GaussianKernel(v).v_p)


def _names(given: Sequence[str]) -> tuple[str, ...]:
    try:
        return (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        raise TableError(f"columns={given!r} must be a list of names.") from None


def _distinct(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (f"{first} (1)", f"{second} (2)")


def _subsample(
    table: Table, limit: int | None, generator: torch.Generator, notes: list[str]
) -> Tensor:
    if limit is None:
        return table.values
    if len(table) <= limit:
        return table.values
    notes.append(f"{table.name}: {limit} of {len(table)} rows used, drawn at random.")
    return table.values[torch.randperm(len(table), generator=generator)[:limit]]


def _standardized(
    pooled: Tensor, asked: bool | Literal["auto"], notes: list[str]
) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
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


def _column_differences(
    x: Tensor, y: Tensor, columns: Sequence[str], permutations: int, seed: int
) -> tuple[ColumnDifference, ...]:
    found = []
    for k, name in enumerate(columns):
        a, b = x[:, k : k + 1], y[:, k : k + 1]
        spread, middle = torch.std_mean(torch.cat([a, b]).double())
        unit = spread if spread > 0 else 1.0
        first, second = ((part.double() - middle) / unit for part in (a, b))
        test = two_sample_test(
            first, second, "energy", permutations=max(permutations, 1), seed=seed
        )
        pvalue = test.pvalue if permutations else None
        means = float(a.mean()), float(b.mean())
        found.append(ColumnDifference(name, test.statistic, pvalue, *means))
    return tuple(sorted(found, key=lambda c: -c.distance))
