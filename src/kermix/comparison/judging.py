"""The verdict on rows, and on sketches: test, effect, columns."""

from dataclasses import dataclass

import torch

from kermix.comparison.aggregate import aggregate_rows
from kermix.comparison.aggregate_result import ColumnTest
from kermix.comparison.column_changes import change_of, difference_of
from kermix.comparison.column_values import ComparedRows
from kermix.comparison.mean_test import MeanTest
from kermix.comparison.permutation import own_generator
from kermix.comparison.telling_apart import ToldApart, tell_apart
from kermix.comparison.verdict import ColumnVerdict, PairVerdict, Verdict

__all__ = ["Judgement", "JudgementTask", "judge_sketches"]

MANY_COLUMNS = 300


@dataclass(frozen=True)
class Judgement:
    """A verdict, and the classifier behind its effect."""

    verdict: Verdict
    apart: ToldApart | None


@dataclass(frozen=True)
class JudgementTask:
    """What is needed for a verdict on rows, when somebody asks for it."""

    rows: ComparedRows
    names: tuple[str, str]
    level: float
    permutations: int
    seed: int
    repeated: tuple[int, int] = (0, 0)

    @torch.no_grad()
    def find(self) -> Judgement:
        """Test the rows, tell them apart, and say what changed in each column."""
        rows, n = self.rows, self.rows.n
        pooled = rows.pooled.double()
        test = aggregate_rows(
            pooled, n, places=rows.places, layout=rows.layout, permutations=self.permutations,
            seed=self.seed, level=self.level,
        )  # fmt: skip
        apart = tell_apart(pooled, n, rows.places, rows.layout, own_generator(self.seed))
        verdict = Verdict(
            different=test.different,
            pvalue=test.pvalue,
            level=test.level,
            effect=None if apart is None else apart.auc,
            interval=None if apart is None else apart.interval,
            columns=tuple(sorted(
                (self._column(column, max(column.corrected, test.pvalue))
                 for column in test.columns), key=_most_different)),
            pairs=tuple(PairVerdict(pair.columns, max(pair.corrected, test.pvalue))
                        for pair in test.pairs),
            names=self.names,
            rows=(n, len(pooled) - n),
            repeated=self.repeated,
            too_few_rows=test.too_few_rows,
            too_few_permutations=test.too_few_permutations,
            smallest_pvalue=test.smallest_pvalue,
            detectable_shift=test.detectable_shift,
            method=f"permutation test, {test.permutations} labellings: {test.method}",
        )  # fmt: skip
        return Judgement(verdict, apart)

    def _column(self, found: ColumnTest, pvalue: float) -> ColumnVerdict:
        if pvalue > self.level and len(self.rows.names) > MANY_COLUMNS:
            return ColumnVerdict(found.column, pvalue, "", "", "")
        values, n = self.rows.column(found.column), self.rows.n
        change = change_of(values, n)
        return ColumnVerdict(
            found.column, pvalue, values.kind, change.short, change.told,
            difference_of(values, n),
        )  # fmt: skip


def _most_different(column: ColumnVerdict) -> tuple[float, float]:
    return column.pvalue, -(column.difference or 0.0)


def judge_sketches(
    test: MeanTest, names: tuple[str, str], rows: tuple[int, int], level: float
) -> Judgement:
    """Sketches hold no rows: a p-value of their kernel means, and neither AUC nor columns."""
    verdict = Verdict(
        different=test.pvalue is not None and test.pvalue <= level,
        pvalue=test.pvalue,
        level=level,
        effect=None,
        interval=None,
        columns=(),
        pairs=(),
        names=names,
        rows=rows,
        method=test.note or "equal kernel means, from the sketches' own covariances",
        note=(
            "Only kernel means were compared; sketches hold no rows, so there is no AUC and no "
            "result for single columns."
        ),
    )
    return Judgement(verdict, None)
