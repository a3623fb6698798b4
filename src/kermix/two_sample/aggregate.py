"""One test from many statistics: kernels, columns, single values, pairs, and depths of rows.

All statistics are computed for the same labellings, brought to one scale by their own distribution
over these, and combined into one number for each labelling; the p-value is the rank of the given
labelling's number. Whatever is chosen from the data depends on the pooled rows alone. So the
p-value is exact, however many statistics are looked at.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import TypedDict, Unpack

import torch
from torch import Tensor

from kermix.checks import check_count, check_level, with_options
from kermix.errors import OptionError
from kermix.kernels.distances import Layout
from kermix.two_sample.column_scores import (
    ColumnPlace,
    ColumnsScores,
    ColumnStatistics,
    PairStatistics,
    dependence_pvalues,
    pairs_to_look_at,
    places_of_names,
)
from kermix.two_sample.permutation import (
    PERMUTATIONS,
    ExchangeableUnits,
    PermutationTest,
    RankedRow,
    Statistic,
    StatisticValues,
    corrected_pvalues,
    mean_evidence,
    own_generator,
    ranked_rows,
    round_to_significant,
    smallest_pvalue,
)
from kermix.two_sample.row_statistics import (
    DEPTHS,
    MEANS,
    SECOND_MOMENTS,
    DepthStatistics,
    KernelFamilyStatistics,
    Kernels,
    Scaling,
)

__all__ = [
    "KERNELS",
    "TOGETHER",
    "AggregateTest",
    "ColumnTest",
    "FamilyStatistic",
    "PairTest",
    "aggregate_rows",
    "shift_found",
]


@dataclass(frozen=True)
class FamilyStatistic:
    r"""One statistic of the family.

    Attributes:
        name: Which kernel of which columns, or which columns.
        statistic: Its evidence, $-\log(1 - \Phi(z))$, with `z` in standard deviations above its
            mean over all labellings, after a cube root that makes it nearly normal.
        pvalue: Of this statistic by itself, right only if it alone had been looked at.
        corrected: The same, with all statistics of the family looked at.
    """

    name: str
    statistic: float
    pvalue: float
    corrected: float


@dataclass(frozen=True)
class ColumnTest:
    """How one column differs by itself; `corrected` for the number of columns."""

    column: str
    statistic: float
    pvalue: float
    corrected: float


@dataclass(frozen=True)
class PairTest:
    """How two columns differ beyond what each does; `corrected` for the number of pairs."""

    columns: tuple[str, str]
    statistic: float
    pvalue: float
    corrected: float


@dataclass(frozen=True)
class AggregateTest:
    """The result of the test; `pvalue` is the main number.

    Attributes:
        pvalue: A single p-value that accounts for all statistics.
        level: Significance level at which the sets are called different.
        statistics: The statistics of the family, the most significant first.
        columns: Each column by itself, the most different first, corrected by the maximum over all
            columns under the same permutations (Westfall and Young).
        pairs: Pairs of columns, likewise.
        permutations: Number of permutations besides the observed labels.
        rows_used: Number of rows of each sample that were used.
        smallest_pvalue: The smallest p-value possible with this many rows and permutations.
        smallest_of_rows: The smallest p-value possible with this many rows and any number of
            permutations.
        detectable_shift: The shift of one column, in standard deviations, that this test finds in
            at least four of five cases if columns are normal and independent: that of a corrected
            z-test of each column, times a factor measured by simulation.
        method: How labels were permuted.
        statistic: The combined statistic of the family.
        null: The combined statistic of each permutation.
    """

    pvalue: float
    level: float
    statistics: tuple[FamilyStatistic, ...]
    columns: tuple[ColumnTest, ...]
    pairs: tuple[PairTest, ...]
    permutations: int
    rows_used: tuple[int, int]
    smallest_pvalue: float
    smallest_of_rows: float
    detectable_shift: float
    method: str
    statistic: float
    null: Tensor = field(repr=False, compare=False)  # (permutations,)

    @property
    def different(self) -> bool:
        """Whether the sets differ at the level."""
        return self.pvalue <= self.level

    @property
    def too_few_rows(self) -> bool:
        """Whether there are too few rows for any p-value at the level."""
        return self.smallest_of_rows > self.level

    @property
    def too_few_permutations(self) -> bool:
        """Whether there are enough rows but too few permutations for a p-value at the level."""
        return self.smallest_pvalue > self.level >= self.smallest_of_rows


# Reasoned, no record.
ROWS_UP_TO = 4000  # of both sides; of more, blocks change sides
FAMILY: tuple[Kernels, ...] = (
    Kernels("Gaussian", "as given", 5),
    Kernels("Gaussian", "standardized", 5),
    Kernels("Laplace", "normal scores", 3),
)
MIXED_FAMILY = (Kernels("Gaussian", "as given", 5), Kernels("Laplace", "as given", 3))
COARSE_RIDGE, RIDGES_OF_A_ROW, SMALLEST_RIDGE = 0.1, (5.0, 0.5), 1e-5
# How much of the level each part has, with one column and with very many, chosen on the
# development problems of `python -m benchmarks blind-spots` and of `benchmarks.power_development`
# so that no part costs another much: fine shapes matter in few columns, depths of rows in many.
SHARES = {
    MEANS: (0.40, 0.18),
    SECOND_MOMENTS: (0.11, 0.08),
    "columns": (0.46, 0.36),
    "values": (0.15, 0.25),
    "pairs": (0.09, 0.10),
    DEPTHS: (0.03, 0.28),
}
KERNELS = (MEANS, SECOND_MOMENTS)
TOGETHER: dict[Hashable, str] = {
    KERNELS: "kernels of all columns",
    "columns": "single columns",
    "values": "single values of columns",
    "pairs": "pairs of columns",
    DEPTHS: "depths of rows",
}
# How much larger a shift the whole family needs than a corrected z-test of each column does, with
# one column and of few rows: measured (results/bench/detectable-cpu16.json) and rounded up.
SHIFT_OF_THE_FAMILY, SHIFT_OF_ONE_COLUMN, SHIFT_OF_FEW_ROWS = 1.12, 0.08, 3.0


class AggregateOptions(TypedDict, total=False):
    """What rarely needs to be said of the test."""

    places: Sequence[ColumnPlace] | None
    level: float
    groups: tuple[Tensor, Tensor] | None
    weights: Tensor | None  # (n + m,)


@torch.no_grad()
@with_options(AggregateOptions, places=None, level=0.05, groups=None, weights=None)
def aggregate_rows(
    pooled: Tensor,  # (n + m, d)
    n: int,
    *,
    layout: Layout | None = None,
    permutations: int = PERMUTATIONS,
    seed: int | torch.Generator = 0,
    **options: Unpack[AggregateOptions],
) -> AggregateTest:
    """The test of encoded rows, those of the first sample first.

    Args:
        pooled: Numbers as they are, or mixed rows.
        n: How many rows are of the first sample.
        layout: Which columns of the rows are codes, if any; see `kermix.kernels.gaussian`.
        permutations: How many random labellings.
        seed: Of the labellings.
        places: The columns, and where the rows hold them; by default one each, named x0, x1, ...
        level: Of the verdict.
        groups: Groups of the rows of both samples, which change sides as a whole.
        weights: Weights of all rows on one scale; a row keeps its weight on either side.
    """
    level, groups, weights = options["level"], options["groups"], options["weights"]
    check_count("permutations", permutations)
    check_level(level)
    _check_size(len(pooled), groups, weights)
    places = _places(pooled, layout) if options["places"] is None else options["places"]
    generator, pooled = own_generator(seed), pooled.double()
    units = ExchangeableUnits.of(
        pooled, n, permutations, generator, groups=groups, weights=weights, rows_up_to=ROWS_UP_TO
    )
    scores = ColumnsScores(places, units.reference, units.reference_shares)
    pairs = pairs_to_look_at(units, scores)
    parts = _values_of_parts(units, scores, pairs, layout)
    test = _combined(parts, len(places))
    double = _ranked(parts["pairs"])
    if any(pair.corrected <= level for pair in double):
        # The exact test says of such pairs that they differ; this one, that not only columns do.
        beyond = dependence_pvalues(
            pooled, n, places, pairs, permutations, generator, groups=groups, weights=weights
        ).tolist()
        double = sorted(
            (p._replace(corrected=max(p.corrected, beyond[p.row])) for p in double),
            key=lambda p: p.corrected,
        )
    sizes = n, len(pooled) - n
    return AggregateTest(
        pvalue=test.pvalue,
        level=float(level),
        statistics=_most_significant_first(test),
        columns=tuple(ColumnTest(places[k].name, *rest) for k, *rest in _ranked(parts["columns"])),
        pairs=tuple(PairTest(_names(places, pairs[k]), *rest) for k, *rest in double),
        permutations=len(test.total) - 1,
        rows_used=units.used,
        smallest_pvalue=smallest_pvalue(*sizes, permutations, groups),
        smallest_of_rows=smallest_pvalue(*sizes, None, groups),
        detectable_shift=shift_found(units.used, level, len(places)),
        method=units.description,
        statistic=float(test.total[0]),
        null=test.total[1:],
    )


def _check_size(
    rows: int,
    groups: tuple[Tensor, Tensor] | None,
    weights: Tensor | None,
    up_to: int = 20_000,  # reasoned, no record
) -> None:
    """Refuse more rows than can change sides one by one where blocks of rows cannot."""
    if (groups is not None or weights is not None) and rows > up_to:
        raise OptionError(
            f"{rows} rows with {'weights' if groups is None else 'groups'}: the aggregate test "
            f"takes up to {up_to} of these; use a subset of the rows, or name a cost."
        )


def _places(pooled: Tensor, layout: Layout | None) -> tuple[ColumnPlace, ...]:
    names = [f"x{k}" for k in range(pooled.shape[1])]
    return places_of_names(names, 0 if layout is None else layout.codes)


def _names(places: Sequence[ColumnPlace], pair: tuple[int, int]) -> tuple[str, str]:
    return places[pair[0]].name, places[pair[1]].name


def _values_of_parts(
    units: ExchangeableUnits,
    scores: ColumnsScores,
    pairs: Sequence[tuple[int, int]],
    layout: Layout | None,
) -> dict[str, list[StatisticValues]]:
    """What the plug-ins of the engine find, by the part of the test that they belong to."""
    family = MIXED_FAMILY if layout is not None else _family(units)
    rows = sum(units.used)
    statistics: list[Statistic[ExchangeableUnits]] = [
        KernelFamilyStatistics(family, _ridges(rows), layout, _leading(rows)),
        ColumnStatistics(scores),
        PairStatistics(scores, pairs),
        DepthStatistics(_scaling_of_depths(family), layout),
    ]
    parts: dict[str, list[StatisticValues]] = {part: [] for part in SHARES}
    for statistic in statistics:
        for values in statistic.values(units):
            parts[values.part].append(values)
    return parts


def _most_significant_first(test: PermutationTest) -> tuple[FamilyStatistic, ...]:
    own, corrected = test.single_pvalues, corrected_pvalues(test.table).tolist()
    rank = sorted(range(len(own)), key=lambda k: corrected[k] + own[k] * 1e-6)
    return tuple(
        FamilyStatistic(values.name, float(values.values[0]), own[k], corrected[k])
        for k, values in ((k, test.values[k]) for k in rank)
    )


def _combined(parts: Mapping[str, Sequence[StatisticValues]], columns: int) -> PermutationTest:
    """The whole family: statistics of kernels one by one, then those of each part as one."""
    shares = shares_of_parts(columns)
    means = {
        part: mean_evidence(torch.stack([v.values for v in some]))
        for part, some in parts.items() if some
    }  # fmt: skip
    weighed = {part: math.log(shares[part]) + mean for part, mean in means.items()}
    together = _as_one([weighed[part] for part in KERNELS if part in weighed], KERNELS)
    together += [v for part in means if part in TOGETHER for v in _as_one([means[part]], part)]
    values = [*chain(*(parts[part] for part in KERNELS)), *together]
    table = round_to_significant(torch.stack([v.values for v in values]))
    total = torch.stack([*weighed.values()]).logsumexp(0)
    return PermutationTest(tuple(values), table, round_to_significant(total))


def _as_one(evidence: Sequence[Tensor], part: Hashable) -> list[StatisticValues]:
    """One statistic of what is of a part, or of several, if anything is."""
    if not evidence:
        return []
    return [StatisticValues(TOGETHER[part], torch.stack([*evidence]).logsumexp(0))]


def shares_of_parts(
    columns: int,
    half_way: int = 20,  # columns, between one and very many; chosen as the shares were
) -> dict[str, float]:
    """How much of the level each part has with so many columns."""
    many = columns / (columns + half_way)
    return {part: (1 - many) * one + many * most for part, (one, most) in SHARES.items()}


def _ranked(values: Sequence[StatisticValues]) -> list[RankedRow]:
    return ranked_rows(torch.stack([v.values for v in values])) if values else []


def _family(
    units: ExchangeableUnits,
    one_scale: float = 1.25,  # reasoned, no record
    heavy: float = 6.0,  # chosen on the problems of `benchmarks.power --cases development`
) -> tuple[Kernels, ...]:
    """Kernels of numbers, and no more of them than the pooled rows call for.

    Where all columns are on one scale, that they are given on is left out; where none has heavy
    tails, normal scores.

    Args:
        units: With the pooled rows.
        one_scale: Largest ratio of the spreads of columns that are on one scale.
        heavy: Largest kurtosis of tails that are not heavy.
    """
    apart = units.reference - units.reference_shares @ units.reference
    largest = apart.abs().amax(0).clamp(min=torch.finfo(apart.dtype).tiny)
    squares = (apart / largest).square()  # a fourth power of far values would be infinite
    variance, fourth = units.reference_shares @ squares, units.reference_shares @ squares.square()
    spread = variance.sqrt() * largest
    left_out = set()
    if bool(spread.amax() <= one_scale * spread.amin()):
        left_out.add("as given")
    if bool((fourth <= heavy * variance.square()).all()):
        left_out.add("normal scores")
    return tuple(f for f in FAMILY if f.scaling not in left_out)


def _scaling_of_depths(family: Sequence[Kernels]) -> Scaling:
    """Normal scores where there are heavy tails; what is mixed has them already."""
    scalings = [kernels.scaling for kernels in family]
    return next(s for s in ("normal scores", "standardized", "as given") if s in scalings)


def _ridges(rows: int) -> tuple[float, ...]:
    """One for coarse structure; others that keep as many features as rows can tell of."""
    return COARSE_RIDGE, *(max(SMALLEST_RIDGE, r / rows) for r in RIDGES_OF_A_ROW)


def _leading(rows: int) -> tuple[int, int]:
    """How many features' means are looked at: as many as rows to a feature, and twice."""
    return round(math.sqrt(rows)), 2 * round(math.sqrt(rows))


def shift_found(
    sizes: tuple[int, int],
    level: float,
    columns: int,
    power: float = 0.8,  # a convention
) -> float:
    """Of one of so many independent normal columns, found with a probability of at least 0.8."""
    tails = torch.special.ndtri(torch.tensor([1 - level / (2 * max(1, columns)), power]).double())
    of_columns = SHIFT_OF_THE_FAMILY + SHIFT_OF_ONE_COLUMN / max(1, columns)
    factor = of_columns + SHIFT_OF_FEW_ROWS / min(sizes)
    return factor * float(tails.sum()) * math.sqrt(1 / sizes[0] + 1 / sizes[1])
