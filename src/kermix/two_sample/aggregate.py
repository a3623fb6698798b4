"""One test from many statistics: kernels of all columns, columns alone, and pairs of columns.

All statistics are computed for the same labellings, brought to one scale by their own distribution
over these, and combined into one number for each labelling; the p-value is the rank of the given
labelling's number. Whatever is chosen from the data depends on the pooled rows alone. So the
p-value is exact, however many statistics are looked at.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kermix.checks import check_count
from kermix.data.readers.numeric_table import Source
from kermix.data.readers.sniff import Reading
from kermix.data.sources import read_sources
from kermix.errors import OptionError
from kermix.kernels.distances import Layout
from kermix.two_sample.column_scores import (
    ColumnPlace,
    ColumnsScores,
    places_of_columns,
    places_of_names,
)
from kermix.two_sample.evidence import (
    column_evidence,
    dependence_pvalues,
    pair_evidence,
    pairs_to_look_at,
)
from kermix.two_sample.kernel_family import Kernels, kernel_members
from kermix.two_sample.permutation import (
    PERMUTATIONS,
    ExchangeableUnits,
    corrected_pvalues,
    evidence,
    mean_evidence,
    own_generator,
    pvalues,
    ranked_rows,
    round_to_significant,
    smallest_pvalue,
)

__all__ = [
    "AggregateTest",
    "ColumnTest",
    "FamilyStatistic",
    "PairTest",
    "aggregate_rows",
    "aggregate_test",
    "shift_found",
]


@dataclass(frozen=True)
class FamilyStatistic:
    """One statistic of the family.

    Attributes:
        name: Which kernel of which columns, or which columns.
        statistic: Its evidence, $z |z| / 2$, with `z` in standard deviations above its mean
            over all labellings, after a cube root that makes it nearly normal.
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
ROWS_WITH_GROUPS_UP_TO = 20_000
FAMILY: tuple[Kernels, ...] = (
    Kernels("Gaussian", "as given", 5),
    Kernels("Gaussian", "standardized", 5),
    Kernels("Laplace", "normal scores", 3),
)
MIXED_FAMILY = (Kernels("Gaussian", "as given", 5), Kernels("Laplace", "as given", 3))
ONE_SCALE = 1.25  # largest ratio of the spreads of columns
# Chosen on the development problems of `python -m benchmarks.power --cases development`.
HEAVY = 6.0  # kurtosis
# Reasoned, no record.
COARSE_RIDGE, RIDGES_OF_A_ROW, SMALLEST_RIDGE = 0.1, (5.0, 0.5), 1e-5
# Weights of the parts of the family, the first two chosen as HEAVY was.
OF_MEANS, OF_SECOND_MOMENTS, OF_COLUMNS, OF_PAIRS = 0.7, 0.2, 0.05, 0.05
# A convention.
POWER = 0.8
# How much larger a shift the whole family needs than a corrected z-test of each column does,
# measured (results/bench/detectable-cpu2.json) and rounded up.
SHIFT_OF_THE_FAMILY, SHIFT_OF_FEW_ROWS = 1.4, 1.5


def aggregate_test(
    a: Source,
    b: Source,
    *,
    permutations: int = PERMUTATIONS,
    seed: int | torch.Generator = 0,
    level: float = 0.05,
    reading: Reading | None = None,
) -> AggregateTest:
    r"""Permutation test of whether two data sets come from the same distribution.

    Args:
        a: A tensor, an array, a table or a file, as `kermix.compare` takes them.
        b: The other.
        permutations: Number of random permutations; all of them, if there are fewer.
        seed: Of the labellings.
        level: Significance level at which the sets are called different.
        reading: Which columns of tables are read, and how.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> x, y = torch.randn(2, 100, 3, generator=generator)
        >>> y[:, 1] += 1
        >>> found = aggregate_test(x, y, permutations=199)
        >>> found.pvalue, found.columns[0].column, found.different
        (0.005, 'x1', True)
    """
    read = read_sources([a, b], reading or Reading())
    first, second = read.tables
    pooled = torch.cat([first.values.double(), second.values.double()])
    mixed = read.mixed
    places = places_of_names(first.columns) if mixed is None else places_of_columns(mixed)
    layout = None if mixed is None else mixed.layout
    return aggregate_rows(
        pooled, len(first), places=places, layout=layout, permutations=permutations, seed=seed,
        level=level,
    )  # fmt: skip


@torch.no_grad()
def aggregate_rows(
    pooled: Tensor,  # (n + m, d)
    n: int,
    *,
    places: Sequence[ColumnPlace] | None = None,
    layout: Layout | None = None,
    permutations: int = PERMUTATIONS,
    seed: int | torch.Generator = 0,
    level: float = 0.05,
    groups: tuple[Tensor, Tensor] | None = None,
    weights: Tensor | None = None,  # (n + m,)
) -> AggregateTest:
    """The test of encoded rows, those of the first sample first.

    Args:
        pooled: Numbers as they are, or mixed rows.
        n: How many rows are of the first sample.
        places: The columns, and where the rows hold them; by default one each, named x0, x1, ...
        layout: Which columns of the rows are codes, if any; see `kermix.kernels.mixed`.
        permutations: How many random labellings.
        seed: Of the labellings.
        level: Of the verdict.
        groups: Groups of the rows of both samples, which change sides as a whole.
        weights: Weights of all rows on one scale; a row keeps its weight on either side.
    """
    check_count("permutations", permutations)
    if not 0 < level < 1:
        raise OptionError(f"level={level!r} must be between 0 and 1, such as 0.05.")
    if places is None:
        names = [f"x{k}" for k in range(pooled.shape[1])]
        places = places_of_names(names, 0 if layout is None else layout.codes)
    generator = own_generator(seed)
    if (groups is not None or weights is not None) and len(pooled) > ROWS_WITH_GROUPS_UP_TO:
        raise OptionError(
            f"{len(pooled)} rows with {'weights' if groups is None else 'groups'}: the "
            f"aggregate test takes up to {ROWS_WITH_GROUPS_UP_TO} of these; use a subset of "
            "the rows, or name a cost."
        )
    units = ExchangeableUnits.of(
        pooled.double(), n, permutations, generator, groups=groups, weights=weights,
        rows_up_to=ROWS_UP_TO,
    )  # fmt: skip
    scores = ColumnsScores(places, units.reference, units.reference_shares)
    single = column_evidence(units, scores)
    pairs = pairs_to_look_at(units, scores)
    double = pair_evidence(units, scores, pairs)
    family = MIXED_FAMILY if layout is not None else _family(units)
    rows = sum(units.used)
    members = list(kernel_members(units, family, _ridges(rows), layout, _leading(rows)))
    by_moment = [
        [m for m in members if m.moment == moment] for moment in ("mean", "second moments")
    ]
    of_kernels = [
        evidence(torch.stack([m.values for m in some])) if some else single[:0]
        for some in by_moment
    ]
    of_columns = [single, double]
    shares = OF_MEANS, OF_SECOND_MOMENTS, OF_COLUMNS, OF_PAIRS
    total = round_to_significant(
        torch.stack(
            [
                math.log(share) + mean_evidence(part)
                for share, part in zip(shares, (*of_kernels, *of_columns), strict=True)
                if len(part)
            ]
        ).logsumexp(0)
    )
    names = [m.name for some in by_moment for m in some]
    names += ["single columns", *(["pairs of columns"] if pairs else [])]
    table = torch.cat([*of_kernels, *(mean_evidence(p)[None] for p in of_columns if len(p))])
    sizes = n, len(pooled) - n
    own, corrected = pvalues(round_to_significant(table))[:, 0], corrected_pvalues(table)
    rank = corrected.add(own * 1e-6).argsort(stable=True).tolist()
    names_of = [p.name for p in places]
    of_pairs = ranked_rows(double)
    if any(corrected <= level for *_, corrected in of_pairs):
        # The exact test says of such pairs that they differ; this one, that not only columns do.
        beyond = dependence_pvalues(
            pooled.double(), n, places, pairs, permutations, generator, groups=groups,
            weights=weights,
        )  # fmt: skip
        of_pairs = sorted(
            ((k, s, p, max(c, float(beyond[k]))) for k, s, p, c in of_pairs),
            key=lambda pair: pair[3],
        )
    return AggregateTest(
        pvalue=float(pvalues(total)[0]),
        level=float(level),
        statistics=tuple(
            FamilyStatistic(names[k], float(table[k, 0]), float(own[k]), float(corrected[k]))
            for k in rank
        ),
        columns=tuple(ColumnTest(names_of[k], *rest) for k, *rest in ranked_rows(single)),
        pairs=tuple(
            PairTest((names_of[pairs[k][0]], names_of[pairs[k][1]]), *rest)
            for k, *rest in of_pairs
        ),
        permutations=len(total) - 1,
        rows_used=units.used,
        smallest_pvalue=smallest_pvalue(*sizes, permutations, groups),
        smallest_of_rows=smallest_pvalue(*sizes, None, groups),
        detectable_shift=shift_found(units.used, level, len(places)),
        method=units.description,
        statistic=float(total[0]),
        null=total[1:],
    )  # fmt: skip


def _family(units: ExchangeableUnits) -> tuple[Kernels, ...]:
    """Kernels of numbers, and no more of them than the pooled rows call for.

    Where all columns are on one scale, that they are given on is left out; where none has heavy
    tails, normal scores.
    """
    apart = units.reference - units.reference_shares @ units.reference
    largest = apart.abs().amax(0).clamp(min=torch.finfo(apart.dtype).tiny)
    squares = (apart / largest).square()  # a fourth power of far values would be infinite
    variance, fourth = units.reference_shares @ squares, units.reference_shares @ squares.square()
    spread = variance.sqrt() * largest
    left_out = set()
    if bool(spread.amax() <= ONE_SCALE * spread.amin()):
        left_out.add("as given")
    if bool((fourth <= HEAVY * variance.square()).all()):
        left_out.add("normal scores")
    return tuple(f for f in FAMILY if f.scaling not in left_out)


def _ridges(rows: int) -> tuple[float, ...]:
    """One for coarse structure; others that keep as many features as rows can tell of."""
    return COARSE_RIDGE, *(max(SMALLEST_RIDGE, r / rows) for r in RIDGES_OF_A_ROW)


def _leading(rows: int) -> tuple[int, int]:
    """How many features' means are looked at: as many as rows to a feature, and twice."""
    return round(math.sqrt(rows)), 2 * round(math.sqrt(rows))


def shift_found(sizes: tuple[int, int], level: float, columns: int) -> float:
    """Of one of so many independent normal columns, found with a probability of at least 0.8."""
    tails = torch.special.ndtri(torch.tensor([1 - level / (2 * max(1, columns)), POWER]).double())
    factor = SHIFT_OF_THE_FAMILY + SHIFT_OF_FEW_ROWS / min(sizes)
    return factor * float(tails.sum()) * math.sqrt(1 / sizes[0] + 1 / sizes[1])
