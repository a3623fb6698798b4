r"""One test from many statistics: kernels of all columns, columns alone, and pairs of columns.

All statistics are computed for the same labellings, brought to one scale by their own distribution
over these, and combined into one number for each labelling; the p-value is the rank of the given
labelling's number. Whatever is chosen from the data depends on the pooled rows alone. So the
p-value is exact, however many statistics are looked at.
"""

import math
from collections.abc import Sequence
from itertools import combinations

import torch
from torch import Tensor

from kermix.checks import check_count
from kermix.comparison.aggregate_result import (
    AggregateTest,
    ColumnTest,
    FamilyStatistic,
    PairTest,
)
from kermix.comparison.column_places import ColumnPlace, places_of_columns
from kermix.comparison.column_scores import ColumnScores, PairScores
from kermix.comparison.kernel_family import Kernels, kernel_members
from kermix.comparison.permutation import own_generator, pvalues
from kermix.comparison.sources import read_sources
from kermix.comparison.units import Units, smallest_pvalue
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.mixed_rows import MixedRows
from kermix.data.tables.table import Source
from kermix.errors import OptionError
from kermix.kernels.distances import Layout

__all__ = ["aggregate_rows", "aggregate_test"]

PERMUTATIONS = 500
MOST_PAIRS = 300
PAIRS_AT_ONCE = 32
COLUMNS_AT_ONCE = 64
DIGITS = 1e-9  # statistics that agree to so many digits are equal
FAMILY: tuple[Kernels, ...] = (
    Kernels("Gaussian", "as given", 4),
    Kernels("Gaussian", "standardized", 4),
    Kernels("Laplace", "normal scores", 3),
)
MIXED_FAMILY = (Kernels("Gaussian", "as given", 5), Kernels("Laplace", "as given", 3))
COARSE_RIDGE, RIDGES_OF_A_ROW, SMALLEST_RIDGE = 0.1, (5.0, 0.5), 1e-5
OF_COLUMNS = OF_PAIRS = 0.1  # weights of these parts of the family; kernels have the rest
POWER = 0.8


def aggregate_test(
    a: Source,
    b: Source,
    *,
    permutations: int = PERMUTATIONS,
    seed: int | torch.Generator = 0,
    level: float = 0.05,
    reading: Reading | None = None,
) -> AggregateTest:
    r"""Test by permutation whether two data sets come from one distribution.

    Args:
        a: A tensor, an array, a table or a file, as :func:`kermix.compare` takes them.
        b: The other.
        permutations: How many random labellings; all there are, if these are fewer.
        seed: Of the labellings.
        level: Below which p-values the sets are called different.
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
    return aggregate_rows(
        pooled, len(first), columns=first.columns, mixed=read.mixed, permutations=permutations,
        seed=seed, level=level,
    )  # fmt: skip


@torch.no_grad()
def aggregate_rows(
    pooled: Tensor,  # (n + m, d)
    n: int,
    *,
    columns: Sequence[str] | None = None,
    mixed: MixedRows | None = None,
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
        columns: Names of columns of numbers.
        mixed: How mixed rows were made.
        layout: Which columns are codes, where there is no `mixed`.
        permutations: How many random labellings.
        seed: Of the labellings.
        level: Of the verdict.
        groups: Groups of the rows of both samples, which change sides as a whole.
        weights: Weights of all rows on one scale; a row keeps its weight on either side.
    """
    check_count("permutations", permutations)
    if not 0 < level < 1:
        raise OptionError(f"level={level!r} must be between 0 and 1, such as 0.05.")
    places = _places(pooled.shape[1], columns, mixed, layout)
    layout = layout if mixed is None else mixed.layout
    generator = own_generator(seed)
    units = Units.of(pooled.double(), n, permutations, generator, groups=groups, weights=weights)
    scores = [ColumnScores.of(place, units.reference, units.shares) for place in places]
    single = _columns(units, scores)
    pairs = _pairs_to_look_at(units, scores)
    double = _pairs(units, scores, pairs)
    family = MIXED_FAMILY if layout is not None else FAMILY
    if pooled.shape[1] == 1:
        family = tuple(f for f in family if f.scaling != "as given" or layout is not None)
    members = list(kernel_members(units, family, _ridges(sum(units.used)), layout))
    parts = [
        (1 - OF_COLUMNS - OF_PAIRS, _evidence(torch.stack([m.values for m in members])))
        if members else (0.0, single[:0]),
        (OF_COLUMNS, single),
        (OF_PAIRS, double),
    ]  # fmt: skip
    total = _settled(
        torch.stack([math.log(share) + _mean(part) for share, part in parts if len(part)])
        .logsumexp(0)
    )  # fmt: skip
    names = [m.name for m in members] + ["single columns"] + ["pairs of columns"] * bool(pairs)
    table = torch.cat([parts[0][1], *(_mean(part)[None] for _, part in parts[1:] if len(part))])
    sizes = n, len(pooled) - n
    own, corrected = pvalues(_settled(table))[:, 0], _corrected(table)
    rank = corrected.add(own * 1e-6).argsort(stable=True).tolist()
    names_of = [p.name for p in places]
    return AggregateTest(
        pvalue=float(pvalues(total)[0]),
        level=float(level),
        statistics=tuple(
            FamilyStatistic(names[k], float(table[k, 0]), float(own[k]), float(corrected[k]))
            for k in rank
        ),
        columns=tuple(ColumnTest(names_of[k], *rest) for k, *rest in _ranked(single)),
        pairs=tuple(
            PairTest((names_of[pairs[k][0]], names_of[pairs[k][1]]), *rest)
            for k, *rest in _ranked(double)
        ),
        permutations=len(total) - 1,
        rows_used=units.used,
        smallest_pvalue=_smallest(sizes, permutations, groups),
        detectable_shift=_detectable_shift(units.used, level, len(places)),
        method=units.told,
        statistic=float(total[0]),
        null=total[1:],
    )  # fmt: skip


def _evidence(statistics: Tensor) -> Tensor:  # (..., P) -> (..., P)
    r"""Statistics on one scale, :math:`z |z| / 2`, with cube roots `z` of mean 0 and variance 1.

    Cube roots of quadratic forms are nearly normal (Wilson and Hilferty), so that the largest of
    several is not always that with the longest tail.
    """
    roots = _settled(statistics).clamp(min=0) ** (1 / 3)
    spread, centre = torch.std_mean(roots, -1, correction=0, keepdim=True)
    apart = spread > DIGITS * roots.amax(-1, keepdim=True)
    scores = torch.where(apart, (roots - centre) / spread.clamp(min=1e-300), 0.0)
    return scores * scores.abs() / 2


def _mean(evidence: Tensor) -> Tensor:  # (M, P) -> (P,)
    r"""The logarithm of the mean of :math:`e^{z |z| / 2}`, which is ruled by its largest terms."""
    return evidence.logsumexp(0) - math.log(len(evidence))


def _ridges(rows: int) -> tuple[float, ...]:
    """One for coarse structure; others that keep as many features as rows can tell of."""
    return COARSE_RIDGE, *(max(SMALLEST_RIDGE, r / rows) for r in RIDGES_OF_A_ROW)


def _settled(statistics: Tensor) -> Tensor:
    """Statistics to so many digits of the largest that rounding does not tell labellings apart."""
    unit = statistics.abs().amax(-1, keepdim=True) * DIGITS
    return torch.where(unit > 0, (statistics / unit.clamp(min=1e-300)).round() * unit, 0.0)


def _corrected(table: Tensor) -> Tensor:  # (M, P) -> (M,)
    """Share of labellings whose largest statistic is at least as large as each given one."""
    table = _settled(table)
    largest = table.amax(0).sort().values
    below = torch.searchsorted(largest, table[:, 0].contiguous())
    return (table.shape[1] - below).double() / table.shape[1]


def _ranked(table: Tensor) -> list[tuple[int, float, float, float]]:
    """Place, statistic, own and corrected p-value of each row, the most different first."""
    if not len(table):
        return []
    own, corrected = pvalues(_settled(table))[:, 0], _corrected(table)
    order = table[:, 0].argsort(descending=True, stable=True).tolist()
    return [(k, float(table[k, 0]), float(own[k]), float(corrected[k])) for k in order]


def _columns(units: Units, scores: Sequence[ColumnScores]) -> Tensor:  # (C, P)
    """The evidence of each column by itself, from its nested statistics."""
    found = []
    for start in range(0, len(scores), COLUMNS_AT_ONCE):
        some = scores[start : start + COLUMNS_AT_ONCE]
        widths = [s(units.reference[:1]).shape[1] for s in some]

        def together(rows: Tensor, some: Sequence[ColumnScores] = some) -> Tensor:
            return torch.cat([s(rows) for s in some], 1)

        means = units.means(together, max(1, sum(widths)))
        squares = (units.signed @ means).square().mT  # (q, P)
        for column, part in zip(some, squares.split(widths), strict=True):
            found.append(_nested(column, part))
    return torch.stack(found)


def _nested(column: ColumnScores, squares: Tensor) -> Tensor:  # (q, P) -> (P,)
    nested = [squares[:k].sum(0) for k in column.nested]
    if column.gap > 0:
        nested.append(squares[-1])
    if not nested:
        return squares.new_zeros(squares.shape[1])
    return _mean(_evidence(torch.stack(nested)))


def _pairs_to_look_at(units: Units, scores: Sequence[ColumnScores]) -> list[tuple[int, int]]:
    """All pairs, or those whose ranks or codes depend most on each other in the pooled rows."""
    told = [k for k, s in enumerate(scores) if s.nested]
    if len(told) * (len(told) - 1) // 2 <= MOST_PAIRS:
        return list(combinations(told, 2))
    first = torch.stack([scores[k](units.reference)[:, 0] for k in told], 1)
    first = (first - units.shares @ first) * units.shares.sqrt()[:, None]
    products = (first.mT @ first).float().triu(1).abs()
    best = products.flatten().topk(MOST_PAIRS).indices
    rows, columns = best // len(told), best % len(told)
    return sorted((told[i], told[j]) for i, j in zip(rows.tolist(), columns.tolist(), strict=True))


def _pairs(
    units: Units, scores: Sequence[ColumnScores], pairs: Sequence[tuple[int, int]]
) -> Tensor:  # (pairs, P)
    """The evidence of each pair beyond its single columns: the first product, and all of them."""
    found = []
    for start in range(0, len(pairs), PAIRS_AT_ONCE):
        some = PairScores(scores, pairs[start : start + PAIRS_AT_ONCE])
        means = units.means(some, len(some.pairs) * some.width)
        left = some.beyond(means, units.reference, units.shares)
        squares = (units.signed @ left.flatten(1)).square().mT.unflatten(0, left.shape[1:])
        both = torch.stack([squares[:, 0], squares.sum(1)])
        found.append(_mean(_evidence(both)))
    return torch.cat(found) if found else units.signed.new_zeros(0, len(units.signed))


def _places(
    width: int, columns: Sequence[str] | None, mixed: MixedRows | None, layout: Layout | None
) -> tuple[ColumnPlace, ...]:
    if mixed is not None:
        return places_of_columns(mixed)
    codes = 0 if layout is None else layout.codes
    names = [f"x{k}" for k in range(width)] if columns is None else columns
    return tuple(
        ColumnPlace(names[k], k, None) if k < width - codes else ColumnPlace(names[k], None, k)
        for k in range(width)
    )


def _smallest(
    sizes: tuple[int, int], permutations: int, groups: tuple[Tensor, Tensor] | None
) -> float:
    if groups is not None:
        sizes = len(torch.unique(groups[0])), len(torch.unique(groups[1]))
    return smallest_pvalue(*sizes, permutations)


def _detectable_shift(sizes: tuple[int, int], level: float, columns: int) -> float:
    tails = torch.special.ndtri(torch.tensor([1 - level / (2 * max(1, columns)), POWER]).double())
    return float(tails.sum()) * math.sqrt(1 / sizes[0] + 1 / sizes[1])
