"""Compare two data sets: one verdict, and on demand every cost with error bars and p-values."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Unpack

import torch
from torch import Tensor

from kermix.checks import check_count, check_level, check_option, with_options
from kermix.data.readers.common import AS_FOUND, Reading, ReadingOptions, reading_of
from kermix.data.sources import Source, Table, are_sketches, standardized
from kermix.errors import OptionError
from kermix.kernels.gaussian import GaussianKernel, variance_grid
from kermix.tables.compare.coincidence import read_once
from kermix.tables.compare.column_changes import ComparedRows
from kermix.tables.compare.result import Comparison, Details
from kermix.tables.compare.verdict import JudgementTask, Progress, silent
from kermix.two_sample.permutation import own_generator, permutations_for

__all__ = [
    "COUNTED_ONCE",
    "CompareOptions",
    "compare",
]

COUNTED_ONCE = "more than coincidence explains; each counts once."


@dataclass(frozen=True)
class DetailsTask:
    """What is needed to find the details of a comparison, when somebody asks for them.

    Attributes:
        rows: As they were read.
        points: The same, with columns scaled if they are.
        v: Variances of the kernels; None: some are found from the points.
        permutations: Behind each p-value.
        jackknife_groups: Groups that are left out to find error bars.
        seed: Of tests.
        state: Of the generator of everything else.
        notes: On how columns were scaled.
    """

    rows: ComparedRows
    points: Tensor = field(repr=False)
    v: tuple[float, ...] | None
    permutations: int
    jackknife_groups: int
    seed: int
    state: Tensor = field(repr=False)
    notes: tuple[str, ...] = ()

    @cached_property
    def variances(self) -> tuple[float, ...]:
        """Of the kernels."""
        return variance_grid(self.points, 4, self.rows.layout) if self.v is None else self.v

    def find(self) -> Details:
        """Compute them."""
        from kermix.tables.compare.cost_details import cost_details

        return cost_details(
            self.rows, self.points, self.variances, self.permutations, self.jackknife_groups,
            self.seed, self.state, self.notes,
        )  # fmt: skip


class CompareOptions(ReadingOptions, total=False):
    """What rarely needs to be said of a comparison."""

    standardize: bool | Literal["auto"]
    max_points: int | None
    jackknife_groups: int
    strict: bool
    progress: Progress | None


@torch.no_grad()
@with_options(CompareOptions, **AS_FOUND, standardize="auto", max_points=None, jackknife_groups=20,
              strict=False, progress=None)  # fmt: skip
def compare(
    x: Source,
    y: Source,
    v: Sequence[float] | float | Literal["auto"] = "auto",
    *,
    level: float = 0.05,
    permutations: int | None = None,
    seed: int = 0,
    **options: Unpack[CompareOptions],
) -> Comparison:
    r"""Whether two data sets differ, by how much, and where; and every cost between them.

    The result's `verdict` says whether they differ at the level (a single p-value that accounts
    for all kernels, columns and pairs of columns considered), how well a classifier separates
    them, and which columns differ most. Every cost of the family, MMD and energy distance are
    computed on first use: `measures`, `tests`, `details()`.

    Rows are assumed to be independent, and copies of rows are not: where a set repeats rows that
    the other does not have, more often than coincidence explains, each counts once everywhere, and
    the verdict says so first.

    Args:
        x: A tensor, an array, a pandas, Polars or Arrow table, a dictionary of columns, a file of
            any kind that is read, or a sketch. Tables with categories, times or missing values are
            compared by the kernel of mixed rows; no row is dropped. Keys and free text are not
            compared.
        y: The other.
        v: One variance, several (each is reported), or `"auto"`: four of them from the data.
        columns: Columns of tables to use; by default all.
        exclude: Columns of tables to ignore.
        kinds: Kinds of columns by name, to override the detected ones; see `kermix.Schema.infer`.
        delimiter: Field delimiter of text files; detected by default.
        decimal: Decimal mark of text files, "." or ","; detected by default.
        encoding: Encoding of text files; by default UTF-8, else Windows-1252 or Latin-1.
        header: Whether the first line of text files holds column names; detected by default.
        missing: Cells that stand for a missing value, beside empty ones, NA and the like.
        sheet: Sheet of Excel files; by default that with most cells.
        standardize: Whether columns are divided by their pooled standard deviation. `"auto"` does
            so when these differ more than tenfold.
        max_points: Larger sets are subsampled at random to this many points, without replacement;
            the result says so. By default tests use all rows. Costs depend on the number of rows,
            which is in `Measure.rows`: from larger sets, 1000 rows of each are drawn for the SVD,
            matrix and vector costs and the Bures distance, 4000 for the others, and error bars are
            for the drawn rows.
        level: Significance level at which the sets are called different.
        jackknife_groups: Number of groups of rows, drawn at random, that are left out in turn for
            the error bars of the SVD, matrix and vector costs (at most ten with more than 500
            rows); those of the others leave out every row once. 0 for no error bars.
        permutations: Number of permutations for each p-value; by default 500 for the verdict (more
            if the level requires smaller p-values than these can give) and 200 for each cost. 0
            for no p-values and no verdict.
        seed: Seed of subsampling, splits and permutations.
        strict: Whether tables whose columns or types differ are an error. By default they are
            compared by what both have, and the result says what is left out.
        progress: Called with the name of the next step and the share done so far, also when the
            verdict is asked for.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(2, 60, 2, generator=generator)
        >>> result = compare(x, y + 1, 0.5, permutations=99)
        >>> result.verdict.different, result.verdict.pvalue, result.verdict.effect > 0.8
        (True, 0.01, True)
        >>> 0.5 < result.measure("svd").normalized < 0.9, result.measure("svd").pvalue
        (True, 0.01)
    """
    reading = reading_of(options)
    if are_sketches(x, y):
        check_level(level)
        _refuse_beside_sketches(reading)
        from kermix.tables.compare.sketch_comparison import compare_sketches

        return compare_sketches(x, y, level)
    _check(options, level, permutations)
    say = options["progress"] or silent
    say("reading", 0.0)
    counted = read_once([x, y], reading, options["strict"])
    (first, second), mixed, notes = counted.read.tables, counted.read.mixed, [*counted.read.notes]
    _check_scale(mixed is not None, options["standardize"])
    names, sizes = _distinct(first.name, second.name), counted.sizes
    notes += _told(names, sizes, counted.repeated)
    generator = own_generator(seed)
    most = options["max_points"]
    rows = ComparedRows.of(
        counted.read, [_subsample(t, most, generator, notes) for t in (first, second)]
    )
    scaled: list[str] = []
    pooled, scale = rows.pooled, None
    if mixed is None:
        pooled, scale = standardized(pooled, options["standardize"], scaled)
    given = None if isinstance(v, str) else _variances(v)
    judge = None
    if permutations != 0:
        labelings = permutations_for(level) if permutations is None else permutations
        judge = JudgementTask(
            rows, names, level, labelings, seed, counted.repeated, counted.shared, say
        )
    return Comparison(
        names=names,
        sizes=sizes,
        used=(rows.n, len(rows.pooled) - rows.n),
        columns=rows.names,
        reading_notes=tuple(notes),
        compared=rows,
        _judge=judge,
        _details=DetailsTask(
            rows, pooled, given, 200 if permutations is None else permutations,
            options["jackknife_groups"], seed, generator.get_state(), tuple(scaled),
        ),
        _scale=scale,
        _layout=rows.layout,
    )  # fmt: skip


def _refuse_beside_sketches(reading: Reading) -> None:
    if said := reading.said():
        raise OptionError(
            f"{', '.join(said)}: only for tables; a sketch has its own columns. "
            "Remove it, or set it when making the sketch."
        )


def _check_scale(mixed: bool, standardize: bool | Literal["auto"]) -> None:
    if mixed and standardize is False:
        raise OptionError(
            "standardize=False: numbers in tables with categories or missing values must be "
            "scaled to be comparable with codes; remove it, or select only numeric columns."
        )


def _check(options: CompareOptions, level: float, permutations: int | None) -> None:
    check_level(level)
    if isinstance(options["standardize"], str):
        check_option("standardize", options["standardize"], ("auto",))
    if permutations is not None:
        check_count("permutations", permutations, 0, " Give a number, or 0 for no p-values.")
    groups, most = options["jackknife_groups"], options["max_points"]
    of_groups = " Give 2 or more, or 0 for no error bars."
    check_count("jackknife_groups", groups, 0, of_groups)
    if groups == 1:
        raise OptionError(f"jackknife_groups={groups}:{of_groups.lower()}")
    if most is not None:
        check_count("max_points", most, least=2)


def _variances(v: Sequence[float] | float) -> tuple[float, ...]:
    return tuple(float(u) for u in GaussianKernel(v).v_p)


def _distinct(first: str, second: str) -> tuple[str, str]:
    return (first, second) if first != second else (f"{first} (1)", f"{second} (2)")


def _told(names: tuple[str, str], sizes: tuple[int, int], repeated: tuple[int, int]) -> list[str]:
    """That some rows count once, for each set that repeats some."""
    return [
        f"{names[k]}: {repeated[k]:,} of {sizes[k]:,} rows repeat earlier ones, {COUNTED_ONCE}"
        for k in (0, 1) if repeated[k]
    ]  # fmt: skip


def _subsample(
    table: Table, limit: int | None, generator: torch.Generator, notes: list[str]
) -> Tensor:
    """Which rows are used."""
    if limit is None or len(table) <= limit:
        return torch.arange(len(table))
    notes.append(f"{table.name}: {limit} of {len(table)} rows are used, drawn at random.")
    return torch.randperm(len(table), generator=generator)[:limit]
