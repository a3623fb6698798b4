"""The verdict of a comparison, on rows or on sketches: one sentence, and its test and columns."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from kermix.errors import MissingExtraError
from kermix.tables.compare.coincidence import (
    Copies,
    FrequentRows,
    SharedRows,
    uncounted_copies,
)
from kermix.tables.compare.column_changes import (
    NAMED,
    ComparedRows,
    change_of,
    difference_of,
    values_of_one,
)
from kermix.tables.compare.pair_changes import change_of_pair
from kermix.two_sample.aggregate import ColumnTest, PairTest, aggregate_rows
from kermix.two_sample.classifier_test import (
    CONFIDENCE,
    ToldApart,
    area_text,
    auc_text,
    tell_apart,
)
from kermix.two_sample.permutation import own_generator

if TYPE_CHECKING:
    from kermix.two_sample.mean_test import MeanTest

__all__ = [
    "ColumnVerdict",
    "Judgement",
    "JudgementTask",
    "PairVerdict",
    "Progress",
    "Verdict",
    "judge_sketches",
    "p_said",
    "p_text",
    "silent",
]

# Conventions: p-values whose digits do not matter, an AUC near chance.
SMALL = 1e-6
LITTLE = 0.6
MOVED_ON = 0.5  # difference of times of two periods
SURELY = 4.0  # standard errors, to say that an AUC is below chance


@dataclass(frozen=True)
class ColumnVerdict:
    """One column by itself.

    Attributes:
        column: Its name.
        pvalue: P-value of a test of this column, corrected for the number of columns and never
            below that of the verdict: if the sets are not called different, no column is.
        kind: "number", "time" or "category".
        short: What changed most from the first sample to the second, in two words.
        change: The same with numbers.
        only: If the column does not differ, values that only one of the samples has beyond chance,
            as numbers of rows, by a test of each column's values that is not corrected for the
            number of columns.
        difference: Total variation between the two samples over at most twenty groups of the
            column's values: 0 if they are the same, 1 if they have no value in common.

    With many hundreds of columns, those that do not differ have no description and no difference.
    """

    column: str
    pvalue: float
    kind: str
    short: str
    change: str
    difference: float | None = None
    only: str = ""

    @property
    def moved_on(self) -> bool:
        """Whether it is a time, and most of one sample is later than the other."""
        moved = self.kind == "time" and self.short in ("later", "earlier")
        return moved and (self.difference or 0.0) > MOVED_ON

    def description(self, level: float) -> str:
        """What changed, if the column differs at a level."""
        if self.pvalue > level:
            return f"no clear difference; {self.only}" if self.only else "no clear difference"
        return f"{self.short}: {self.change}"


@dataclass(frozen=True)
class PairVerdict:
    """Two columns together, beyond what each does alone; `pvalue` is corrected as for columns.

    `short` and `change` say how they go together in both samples, if they differ.
    """

    columns: tuple[str, str]
    pvalue: float
    short: str = ""
    change: str = ""


@dataclass(frozen=True)
class Verdict:
    """Whether two data sets differ, by how much, and where. It prints as one sentence.

    Attributes:
        different: Whether they differ at the level. None: the p-value is at the level, but copies
            of rows, which cannot be told from rows of their own, may be all that differs.
        pvalue: A single p-value that accounts for all statistics considered; None if sketches have
            none.
        level: Significance level at which the sets are called different.
        effect: AUC of a classifier (gradient-boosted trees) on held-out rows: the probability
            that it gives a row of the second set a higher score than one of the first. 0.5 if it
            cannot tell them apart, 1 if it always can. Better classifiers may exist, so the sets
            differ at least this much. None for sketches, if a set has fewer than ten rows, or
            without scikit-learn.
        interval: 95 % confidence interval for the AUC of this classifier.
        columns: Each column by itself, the most different first: by p-value, and by their
            difference for equal p-values.
        pairs: Pairs of columns, likewise.
        names: Names of the two sets.
        rows: How many rows of each set were compared.
        too_few_rows: Whether there are too few rows for any p-value below the level.
        too_few_permutations: Whether there are too few permutations, although there are enough
            rows.
        smallest_pvalue: The smallest p-value possible with this many rows and permutations.
        detectable_shift: The shift of one column, in standard deviations, that is found in at
            least four of five cases if columns are normal and independent.
        method: How the p-value was found, or why there is none.
        note: Further remarks, for sketches and without scikit-learn.
        repeated: How many rows of each set were left out because they repeat others of it, more
            often than coincidence explains.
        unexplained: About how many rows of each set repeat others more often than chance explains
            and count nevertheless, because those that coincide by chance cannot be told from
            them; only looked for in sets that differ.
        coinciding: How many rows of each set equal an earlier one of it, where so few rows are
            possible that copies cannot be told from rows that coincide, and copies alone could be
            what differs; likewise.
        frequent: Rows that stand many times in one of the sets, which their columns do not
            explain; likewise.
        shared: Rows that both sets have, if they are more than coincidence explains.
        level_of_copies: What another test, of copies, has of the level that was given.
    """

    different: bool | None
    pvalue: float | None
    level: float
    effect: float | None
    interval: tuple[float, float] | None
    columns: tuple[ColumnVerdict, ...]
    pairs: tuple[PairVerdict, ...]
    names: tuple[str, str]
    rows: tuple[int, int]
    too_few_rows: bool = False
    too_few_permutations: bool = False
    smallest_pvalue: float | None = None
    detectable_shift: float | None = None
    method: str = ""
    note: str = ""
    repeated: tuple[int, int] = (0, 0)
    unexplained: tuple[int, int] = (0, 0)
    coinciding: tuple[int, int] = (0, 0)
    frequent: FrequentRows | None = None
    shared: SharedRows | None = None
    level_of_copies: float = 0.0

    def sentence(self) -> str:
        """The answer in one sentence or two."""
        return " ".join(filter(None, (self.headline(), self.where(), self.note)))

    __str__ = sentence

    def headline(self) -> str:
        """Whether they differ, and how much; after rows that both have or repeat, before pairs."""
        answer = self.answer()
        if repeats := self.repeats():
            answer = f"Apart from {repeats}: {answer[0].lower()}{answer[1:]}"
        shared = "" if self.shared is None else self.shared.sentence(self.names)
        return " ".join(filter(None, [shared, *self.of_copies(), answer, self._of_pairs()]))

    def repeats(self) -> str:
        """How many rows of which set repeat others of it and are left out; empty if none do."""
        return _listed(self._of_rows(self.repeated, "{count:,} repeated {rows} in {name}"))

    def _of_pairs(self) -> str:
        if not self.paired:
            return ""
        assert self.effect is not None
        return (
            "Rows of both sets belong together in pairs: a classifier does worse than chance (AUC "
            f"{auc_text(self.effect)}; 0.5 is chance), as it does where one set was made from "
            "rows of the other, or both have a row for each of the same things. The p-value takes "
            "them as independent, and is too large."
        )

    def of_copies(self) -> list[str]:
        """What copies of rows may have done, where they count as rows of their own."""
        description = []
        if self.frequent is not None:
            description.append(self.frequent.sentence(self.names))
        if within := self._of_rows(self.unexplained, "within {name} (about {coarse} of {all})"):
            description.append(
                f"Rows repeat more often {_listed(within)} than chance explains, so that copies "
                "alone may be what differs."
            )
        if within := self._of_rows(self.coinciding, "{count:,} of {all} in {name}"):
            description.append(
                f"Many rows equal earlier ones ({_listed(within)}), as they do where few "
                "different rows are possible; copies cannot be told from them."
            )
        return description

    def _of_rows(self, counts: tuple[int, int], text: str) -> list[str]:
        """A text for each set that has such rows."""
        return [
            text.format(count=count, name=name, rows="row" if count == 1 else "rows",
                        coarse=f"{_coarse(count):,}", all=f"{rows:,} rows")
            for count, name, rows in zip(counts, self.names, self.rows, strict=True)
            if count
        ]  # fmt: skip

    def answer(self) -> str:
        """Whether they differ, without what may mislead."""
        if self.pvalue is None:
            return f"No verdict: {self.method.removeprefix('none, ')}"
        if description := self.too_few():
            return description
        p = p_said(self.pvalue)
        if self.different is False:
            description = "" if self.shared is not None else self.detectable()
            shift = f"; {description}" if description else ""
            return f"No difference found at level {self.level:g} ({p}{self._kept()}){shift}."
        return self._differ(p)

    def _kept(self) -> str:
        """What the rest of a level that was given is for."""
        if not self.level_of_copies:
            return ""
        return f"; the rest of {self.level + self.level_of_copies:g} is for a test of copies"

    def _differ(self, p: str) -> str:
        differ = f"They differ ({p})"
        if self.different is None:
            differ = f"They may differ ({p} if no row is a copy of another)"
        if self.effect is None or self.interval is None:
            return f"{differ}."
        low, high = self.interval
        shown = area_text(self.effect, self.interval)
        if low > 0.5:
            return f"{differ}: a classifier tells their rows apart with {shown}."
        if high <= LITTLE:
            apart = "by little: a classifier does not tell their rows apart"
        else:
            apart = (
                "rows are too few to say by how much: it is not clear that a classifier can tell "
                "them apart"
            )
        return f"{differ}, but {apart}, {shown}."

    def too_few(self) -> str:
        """Why there is no answer, if there are too few rows or permutations; otherwise empty."""
        if self.smallest_pvalue is None:
            return ""
        if self.too_few_rows:
            return (
                f"Too few rows to say: with {self.rows[0]} and {self.rows[1]} rows no p-value can "
                f"fall below {self.smallest_pvalue:.2g}."
            )
        if self.too_few_permutations:
            drawn, needed = round(1 / self.smallest_pvalue) - 1, math.ceil(1 / self.level) - 1
            return (
                f"Too few permutations to say: permutations={drawn} cannot show a difference at "
                f"level {self.level:g}, because no p-value can fall below "
                f"{self.smallest_pvalue:.2g}; {needed:,} or more are needed."
            )
        return ""

    def detectable(self) -> str:
        """The smallest change that this many rows can show, in words."""
        if self.detectable_shift is None:
            return ""
        size = f"{self.detectable_shift:.2g}"
        deviations = "standard deviation" if size == "1" else "standard deviations"
        what = f"shifts of {size} {deviations} or more in one column"
        if self.columns and all(c.kind == "category" for c in self.columns):
            points = 50 * self.detectable_shift  # the standard deviation of a share of one half
            if points >= 50:
                return ""
            what = f"a common value gaining or losing {points:.2g} percentage points"
        return f"{what} would have been found in four of five cases"

    def where(self) -> str:
        """Which columns and pairs differ most, or, if the sets do not, values of one alone."""
        if self.different is False:
            return self._alone()
        if not self.columns:
            return ""
        columns, pairs = self.different_columns[:NAMED], self.different_pairs[:1]
        if not columns and not pairs:
            return self._nearest()
        most = "Most different" if self.different else "Most different if they do"
        found = [f"{c.column} ({c.short})" for c in columns]
        found += [f"{p.columns[0]} with {p.columns[1]} together" for p in pairs]
        rest = self._more_than({c.column for c in columns}.union(*(p.columns for p in pairs)))
        told = f"{most}, from {self.names[0]} to {self.names[1]}: {_listed(found)}{rest}."
        return " ".join(filter(None, (told, self._of_times())))

    def _of_times(self) -> str:
        """That what differs are times which moved on, as in any two periods, and what to do."""
        times = [c.column for c in self.different_columns if c.moved_on]
        if not times:
            return ""
        others = len(self.different_columns) > len(times) or any(
            not set(times).intersection(pair.columns) for pair in self.different_pairs
        )
        apart = "" if others else f"Apart from {_listed(times)} no column differs by itself. "
        return (
            f"{apart}Times that moved on tell any two periods apart: leave them out to compare "
            f"the rest (--exclude {','.join(times)}, exclude=)."
        )

    def _more_than(self, named: set[str]) -> str:
        more = sum(c.column not in named for c in self.different_columns)
        return "" if not more else f"; {more} more column{'s differ' if more > 1 else ' differs'}"

    def description_of(self, column: ColumnVerdict) -> str:
        """What changed in a column, as surely as the sets differ."""
        description = column.description(self.level)
        doubtful = self.different is None and column.pvalue <= self.level
        return f"{description}, unless by copies of rows" if doubtful else description

    def _nearest(self) -> str:
        """That nothing is clear by itself, and which column is nearest to it."""
        column = self.columns[0]
        alone = "No column is" if len(self.columns) == 1 else "No column or pair of columns is"
        nearest = f"{column.column} ({column.short}, p = {column.pvalue:.2g})"
        how = "" if len(self.columns) == 1 else ", or a few columns at a time"
        return (
            f"{alone} clearly different by itself; nearest is {nearest}. To see where they "
            f"differ, compare more rows{how}."
        )

    def _alone(self) -> str:
        """Values that one set alone has, if the sets are not called different."""
        alone = [f"{c.column} ({c.only})" for c in self.columns if c.only]
        if not alone or self.too_few():
            return ""
        more = max(0, len(alone) - NAMED)
        rest = "" if not more else f"; {more} more column{'s' * (more > 1)}"
        return f"But only one of them has some values: {_listed(alone[:NAMED])}{rest}."

    @property
    def paired(self) -> bool:
        """Whether a classifier is so far below chance that rows of both sets belong together."""
        if self.effect is None or self.interval is None:
            return False
        error = (self.interval[1] - self.interval[0]) / (2 * CONFIDENCE)
        return self.effect + SURELY * error < 0.5

    @property
    def different_columns(self) -> tuple[ColumnVerdict, ...]:
        """Columns whose corrected p-value is at the level."""
        return tuple(c for c in self.columns if c.pvalue <= self.level)

    @property
    def different_pairs(self) -> tuple[PairVerdict, ...]:
        """Pairs of columns whose corrected p-value is at the level."""
        return tuple(p for p in self.pairs if p.pvalue <= self.level)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, the sentence first."""
        return {"sentence": self.sentence(), **asdict(self)}


def _coarse(count: int) -> int:
    """An estimate to two digits."""
    return round(count, min(0, 2 - len(str(count))))


def p_text(pvalue: float, digits: int = 2) -> str:
    """A p-value in a table; far below any level its digits say nothing.

    Example:
        >>> p_text(0.0312), p_text(1e-300)
        ('0.031', '< 1e-06')
    """
    return f"{pvalue:.{digits}g}" if pvalue >= SMALL else f"< {SMALL:g}"


def p_said(pvalue: float) -> str:
    """A p-value in a sentence."""
    return f"p {'' if pvalue < SMALL else '= '}{p_text(pvalue)}"


def _listed(parts: Sequence[str]) -> str:
    if len(parts) < 3:
        return " and ".join(parts)
    return f"{', '.join(parts[:-1])}, and {parts[-1]}"


Progress: TypeAlias = Callable[[str, float], None]
TESTING, TELLING, CHANGES = 0.1, 0.6, 0.9  # shares of the time that are over: convention


def silent(name: str, share: float) -> None:
    """Say nothing of how far the work is."""


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
    shared: SharedRows | None = None
    progress: Progress = silent

    @torch.no_grad()
    def find(self) -> Judgement:
        """Test the rows, tell them apart, and say what changed in each column."""
        rows, n = self.rows, self.rows.n
        pooled = rows.pooled.double()
        self.progress("testing", TESTING)
        test = aggregate_rows(
            pooled, n, places=rows.places, layout=rows.layout, permutations=self.permutations,
            seed=self.seed, level=self.level,
        )  # fmt: skip
        apart, note = None, ""
        self.progress("telling rows apart", TELLING)
        try:
            apart = tell_apart(rows.pooled, n, rows.places, own_generator(self.seed))
        except MissingExtraError as error:
            note = str(error)
        effect, interval = (None, None) if apart is None else (apart.auc, apart.interval)
        self.progress("what changed", CHANGES)
        copies = Copies()
        if test.different:
            copies = uncounted_copies(rows, effect, 0.0 if interval is None else interval[0])
        verdict = Verdict(
            different=None if copies.possible else test.different,
            pvalue=test.pvalue,
            level=test.level,
            effect=effect,
            interval=interval,
            columns=tuple(sorted(
                (self._column(column, max(column.corrected, test.pvalue))
                 for column in test.columns), key=_most_different)),
            pairs=tuple(self._pair(pair, max(pair.corrected, test.pvalue))
                        for pair in test.pairs),
            names=self.names,
            rows=(n, len(pooled) - n),
            repeated=self.repeated,
            unexplained=copies.unexplained,
            coinciding=copies.coinciding,
            frequent=copies.frequent,
            shared=self.shared,
            too_few_rows=test.too_few_rows,
            too_few_permutations=test.too_few_permutations,
            smallest_pvalue=test.smallest_pvalue,
            detectable_shift=test.detectable_shift,
            method=f"permutation test, {test.permutations} labellings: {test.method}",
            note=note,
        )  # fmt: skip
        return Judgement(verdict, apart)

    def _column(self, found: ColumnTest, pvalue: float, most: int = 300) -> ColumnVerdict:
        """What changed in a column; of more than so many, only in those that differ."""
        if pvalue > self.level and len(self.rows.names) > most:
            return ColumnVerdict(found.column, pvalue, "", "", "")
        values, n = self.rows.column(found.column), self.rows.n
        # A column that does not differ has no "new" value, but the number of its rows.
        only = values_of_one(values, n) if pvalue > self.level else None
        change = only or change_of(values, n)
        return ColumnVerdict(
            found.column, pvalue, values.kind, change.short, change.description,
            difference_of(values, n), only.description if only else "",
        )  # fmt: skip

    def _pair(self, found: PairTest, pvalue: float) -> PairVerdict:
        """How two columns go together, if that differs."""
        if pvalue > self.level:
            return PairVerdict(found.columns, pvalue)
        first, second = (self.rows.column(name) for name in found.columns)
        return PairVerdict(found.columns, pvalue, *change_of_pair(first, second, self.rows.n))


def _most_different(column: ColumnVerdict) -> tuple[float, float]:
    return column.pvalue, -(column.difference or 0.0)


def judge_sketches(
    test: "MeanTest", names: tuple[str, str], rows: tuple[int, int], level: float
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
