"""What the aggregate test found."""

from dataclasses import dataclass, field

from torch import Tensor

__all__ = ["AggregateTest", "ColumnTest", "FamilyStatistic", "PairTest"]


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
