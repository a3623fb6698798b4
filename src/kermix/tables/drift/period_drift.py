"""Drift over time: every period of a table against a reference period.

What compares two periods is `kermix.compare`, a permutation test; its p-values are corrected for
the number of periods.
"""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Unpack

import numpy as np

from kermix.checks import with_options
from kermix.data.readers.common import listed
from kermix.data.readers.frames import Frame
from kermix.data.sources import Source
from kermix.errors import OptionError
from kermix.tables.compare.compare import (
    AS_FOUND,
    COUNTED_ONCE,
    ReadingOptions,
    check_level,
    compare,
    reading_of,
)
from kermix.tables.compare.verdict import ColumnVerdict, Verdict
from kermix.tables.drift.periods import Periods, read_periods
from kermix.two_sample.aggregate import shift_found
from kermix.two_sample.permutation import permutations_for, smallest_pvalue

__all__ = ["PERIOD_HEADS", "PeriodDrift", "PeriodVerdict", "drift_over_time", "holm"]

PERIOD_HEADS = ("period", "rows", "verdict", "p", "AUC", "moved most")
# Reasoned, no record.
FEW_ROWS = 5  # of a reference that tells nothing
DRAWN = "rows used, drawn at random."
SHOWN = 3  # columns in the sentence, and in a line of the table


@dataclass(frozen=True)
class PeriodVerdict:
    """One period against the reference.

    Attributes:
        period: Its name.
        rows: Number of its rows.
        different: Whether it differs at the level.
        pvalue: P-value corrected for the number of periods (Holm); None if it has too few rows.
        own_pvalue: P-value of this period alone.
        effect: AUC of a classifier that separates its rows from the reference; 0.5 is chance.
        interval: 95 % confidence interval for the AUC.
        columns: Columns that differ by themselves if the period does, most different first;
            p-values corrected for the number of columns.
        too_few_rows: Whether there are too few rows for a small enough p-value.
        too_few_permutations: Whether there are too few permutations for one.
        repeated: How many of its rows repeat others of it, more often than coincidence explains;
            each counted once.
        repeated_in_reference: How many rows of the reference do, beside this period.
        perhaps_copies: Whether copies of rows alone may be what differs, as in `kermix.compare`.
    """

    period: str
    rows: int
    different: bool
    pvalue: float | None
    own_pvalue: float | None
    effect: float | None
    interval: tuple[float, float] | None
    columns: tuple[ColumnVerdict, ...]
    too_few_rows: bool
    too_few_permutations: bool = False
    repeated: int = 0
    repeated_in_reference: int = 0
    perhaps_copies: bool = False

    @property
    def answer(self) -> str:
        """The verdict in a word or two."""
        if self.too_few_rows:
            return "too few rows"
        if self.too_few_permutations:
            return "too few permutations"
        return "different" if self.different else "no difference"


@dataclass(frozen=True)
class PeriodDrift:
    """The result of `drift_over_time`. It prints as one sentence and a table.

    Attributes:
        reference: Name of the reference period.
        reference_rows: Number of its rows.
        periods: The others, in order.
        level: Significance level at which a period is called different.
        noun: Noun for a period, such as "month".
        notes: What was assumed and ignored.
        detectable: Which change would have been found in the smallest period that was judged.
    """

    reference: str
    reference_rows: int
    periods: tuple[PeriodVerdict, ...]
    level: float
    noun: str
    notes: tuple[str, ...]
    detectable: str = ""

    @property
    def different(self) -> tuple[PeriodVerdict, ...]:
        """The periods that differ."""
        return tuple(p for p in self.periods if p.different)

    @property
    def moved(self) -> tuple[str, ...]:
        """Columns that differ in any period, sorted by how often and how much they differ."""
        found: dict[str, tuple[int, float]] = {}
        for period in self.different:
            for c in period.columns:
                count, total = found.get(c.column, (0, 0.0))
                found[c.column] = count + 1, total + (c.difference or 0.0)
        return tuple(sorted(found, key=lambda name: found[name], reverse=True))

    def sentence(self) -> str:
        """The answer; repeated rows come first."""
        counts = {self.reference: max((p.repeated_in_reference for p in self.periods), default=0)}
        counts |= {p.period: p.repeated for p in self.periods}
        where = [f"{count:,} in {name}" for name, count in counts.items() if count]
        if len(where) > SHOWN:
            where[SHOWN - 1 :] = [f"others in {len(where) - SHOWN + 1} more {self.noun}s"]
        answer = self._answer()
        if not where:
            return answer
        if answer.startswith(("None ", "Too ")):  # not the name of a period
            answer = answer[0].lower() + answer[1:]
        return f"Apart from repeated rows ({', '.join(where)}): {answer}"

    def _answer(self) -> str:
        judged = [p for p in self.periods if not p.too_few_rows]
        if not judged:
            return f"Too few rows to say whether any {self.noun} differs from {self.reference}."
        few, total = len(self.periods) - len(judged), len(judged)
        if any(p.too_few_permutations for p in judged):
            answer = (
                f"Too few permutations to say whether any {self.noun} differs from "
                f"{self.reference}: for {total} {self._plural(total)} at level {self.level:g} it "
                f"takes {math.ceil(total / self.level) - 1:,} or more."
            )
        else:
            answer = self._differing(judged) if self.different else self._alike(judged)
        if not few:
            return answer
        have = "has" if few == 1 else "have"
        return f"{answer} {few} {self._plural(few)} {have} too few rows to say."

    def _alike(self, judged: Sequence[PeriodVerdict]) -> str:
        total = len(judged)
        which = f"None of {total} {self._plural(total)} differs"
        if total == 1:
            which = f"{judged[0].period} does not differ"
        shift = f"; {self.detectable}" if self.detectable else ""
        return f"{which} from {self.reference} at level {self.level:g}{shift}."

    def _differing(self, judged: Sequence[PeriodVerdict]) -> str:
        count, total, first = len(self.different), len(judged), self.different[0].period
        most = f"most in {', '.join(self.moved[:SHOWN])}" if self.moved else ""
        where = f": {most}" if most else ""
        if total == 1:
            return f"{first} differs from {self.reference}{where}."
        which = f"{count} of {total} {self._plural(total)} differ{'s' * (count == 1)}"
        if count == 1:
            return f"{which} from {self.reference}: {first}{', ' * bool(most)}{most}."
        return f"{which} from {self.reference}, first in {first}{where}."

    def _plural(self, count: int) -> str:
        return self.noun if count == 1 else f"{self.noun}s"

    def table(self, intervals: bool = False) -> list[list[str]]:
        """One line of text per period; optionally with intervals of the AUC."""
        lines = [[self.reference, f"{self.reference_rows:,}", "reference", "", "", ""]]
        for p in self.periods:
            auc = "" if p.effect is None else f"{p.effect:.2f}"
            if intervals and p.interval is not None:
                auc += f" ({p.interval[0]:.2f} to {p.interval[1]:.2f})"
            names = [f"{c.column} ({c.short})" for c in p.columns[:SHOWN]]
            more = len(p.columns) - len(names)
            if p.repeated:
                names.insert(0, f"{p.repeated:,} repeated row{'s' * (p.repeated > 1)}")
            names += [f"{more} more"] * (more > 0)
            if p.perhaps_copies:
                names.insert(0, "perhaps only repeated rows")
            pvalue = "" if p.pvalue is None else f"{p.pvalue:.2g}"
            lines.append([p.period, f"{p.rows:,}", p.answer, pvalue, auc, ", ".join(names)])
        return lines

    def __str__(self) -> str:
        from kermix.tables.compare.result import aligned

        return "\n".join([self.sentence(), "", *aligned((PERIOD_HEADS, *self.table())), "",
                          *self.notes])  # fmt: skip

    __repr__ = __str__

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, the sentence first."""
        return {"sentence": self.sentence(), "moved": self.moved, **asdict(self)}


class DriftOptions(ReadingOptions, total=False):
    """What rarely needs to be said of drift."""

    max_points: int | None


@with_options(DriftOptions, **AS_FOUND, max_points=None)
def drift_over_time(
    source: Source,
    by: str | None = None,
    *,
    every: str | None = None,
    reference: str | None = None,
    level: float = 0.05,
    permutations: int | None = None,
    seed: int = 0,
    **options: Unpack[DriftOptions],
) -> PeriodDrift:
    """Whether, when and where a table drifts: each period against a reference period.

    Each period gets the verdict of `kermix.compare`, with p-values corrected for the number of
    periods: with probability `1 - level` or more, no period is wrongly called different.

    Args:
        source: A table, a file, or a folder of files: one period per file, or one table with `by`.
        by: Column that defines the periods: values (months, years, versions) or dates.
        every: "day", "week", "month" or "year", to group dates by; by default depends on their
            range.
        reference: Period to compare the others with; by default the first.
        level: Significance level at which a period is called different.
        columns: Columns to use; by default all.
        exclude: Columns to ignore.
        kinds: Kinds of columns by name, to override the detected ones; see `kermix.Schema.infer`.
        delimiter: Field delimiter of text files; detected by default.
        decimal: Decimal mark of text files, "." or ","; detected by default.
        encoding: Encoding of text files; by default UTF-8, else Windows-1252 or Latin-1.
        header: Whether the first line of text files holds column names; detected by default.
        missing: Cells that stand for a missing value, beside empty ones, NA and the like.
        sheet: Sheet of Excel files; by default that with most cells.
        max_points: Larger periods are subsampled at random to this many rows.
        permutations: Number of permutations for each p-value; by default 500, or as many as the
            correction for the number of periods requires.
        seed: Of everything random.

    Example:
        >>> x = torch.randn(400, generator=torch.Generator().manual_seed(0))
        >>> month = ["jan"] * 100 + ["feb"] * 100 + ["mar"] * 200
        >>> found = km.drift_over_time({"x": x + (torch.arange(400) >= 200), "month": month},
        ...                            "month")
        >>> found.sentence()
        '1 of 2 months differs from jan: mar, most in x.'
    """
    check_level(level)
    reading, max_points = reading_of(options), options["max_points"]
    periods = read_periods(source, by, every, reading)
    first, others = _apart(periods, reference)
    enough = _enough(first, others, level, max_points, periods.noun)
    if permutations is None:
        permutations = permutations_for(level, len(enough))
    limited = len(enough) > level * (permutations + 1) * (1 + 1e-9)
    known = {n: reading.kinds[n] for n in first.columns if n in reading.kinds}
    verdicts: dict[str, Verdict] = {}
    notes = dict.fromkeys(periods.notes)
    for table in enough:
        result = compare(
            first, table, kinds=known, level=level, permutations=permutations,
            max_points=max_points, seed=seed,
        )  # fmt: skip
        said = (n for n in result.reading_notes if not n.endswith((DRAWN, COUNTED_ONCE)))
        notes |= dict.fromkeys(said)
        verdicts[table.name] = result.verdict
    judged = tuple(_judged(others, verdicts, level, limited))
    detectable = _detectable(enough, verdicts, level, periods.noun)
    notes |= dict.fromkeys(_notes(periods, judged, detectable, max_points))
    return PeriodDrift(
        first.name, first.rows, judged, level, periods.noun, tuple(notes), detectable
    )


def _apart(periods: Periods, asked: str | None) -> tuple[Frame, list[Frame]]:
    """The reference and the other periods."""
    names = [t.name for t in periods.tables]
    matches = [k for k, n in enumerate(names)
               if asked in (None, n, n.removeprefix(f"{periods.noun} "))]  # fmt: skip
    if not matches:
        near = difflib.get_close_matches(str(asked), names, 3, 0.4)
        meant = f"did you mean {listed(near)}?" if near else f"there are {listed(names)}."
        raise OptionError(f"There is no {periods.noun} {asked!r} to be the reference; {meant}")
    others = [t for k, t in enumerate(periods.tables) if k != matches[0]]
    return periods.tables[matches[0]], others


def _enough(
    first: Frame, others: Sequence[Frame], level: float, max_points: int | None, noun: str
) -> list[Frame]:
    """The periods that have enough rows for a verdict."""
    most = max_points or max(first.rows, *(t.rows for t in others))
    sizes = [(min(first.rows, most), min(t.rows, most)) for t in others]
    able = able_to_differ([smallest_pvalue(*both, None) for both in sizes], level)
    enough = [t for t, one in zip(others, able, strict=True) if one]
    if not enough and first.rows < FEW_ROWS:
        raise OptionError(
            f"The reference, {first.name}, has {first.rows} row{'s' * (first.rows != 1)}, too "
            f"few to tell whether any {noun} differs; choose another one (--reference)."
        )
    return enough


def _judged(
    tables: Sequence[Frame], verdicts: Mapping[str, Verdict], level: float, limited: bool
) -> Iterator[PeriodVerdict]:
    """Every period, with the p-values of those that have a verdict corrected for their number."""
    pvalues = holm([v.pvalue or 0.0 for v in verdicts.values()])
    corrected = dict(zip(verdicts, pvalues, strict=True))
    for table in tables:
        if table.name not in verdicts:
            yield PeriodVerdict(table.name, table.rows, False, None, None, None, None, (), True)
            continue
        verdict, pvalue = verdicts[table.name], corrected[table.name]
        different = pvalue <= level
        yield PeriodVerdict(
            table.name, table.rows, different, pvalue, verdict.pvalue, verdict.effect,
            verdict.interval, verdict.different_columns if different else (), False, limited,
            verdict.repeated[1], verdict.repeated[0], verdict.perhaps_copies,
        )  # fmt: skip


def _detectable(
    enough: Sequence[Frame], verdicts: Mapping[str, Verdict], level: float, noun: str
) -> str:
    """Which change would have been found in the smallest period."""
    if not enough:
        return ""
    name = min(enough, key=lambda t: t.rows).name
    verdict = verdicts[name]
    shift = shift_found(verdict.rows, level / len(enough), len(verdict.columns))
    told = replace(verdict, detectable_shift=shift).detectable()
    of = f"in the smallest {noun}, {name} ({verdict.rows[1]:,} rows), "
    return told and (of if len(enough) > 1 else "") + told


def _notes(
    periods: Periods, judged: Sequence[PeriodVerdict], detectable: str, max_points: int | None
) -> Iterator[str]:
    if max_points is not None and any(t.rows > max_points for t in periods.tables):
        yield f"Of larger periods {max_points:,} {DRAWN}"
    if any(p.repeated or p.repeated_in_reference for p in judged):
        yield (
            f"Repeated rows: a {periods.noun} has rows several times that the one compared with "
            f"it does not have, {COUNTED_ONCE}"
        )
    yield (
        f"p: corrected for the number of {periods.noun}s (Holm). AUC: how well a classifier "
        "separates unseen rows from those of the reference; 0.5 is chance."
    )
    if detectable and any(p.different for p in judged):
        yield f"{detectable[0].upper()}{detectable[1:]}."


def able_to_differ(smallest: Sequence[float], level: float) -> list[bool]:
    """Which tests can be significant together, given the smallest p-value of each (Tarone 1990).

    The others are left out before the correction. That depends on numbers of rows alone, so the
    level holds, and each that is left can be significant whatever the others are.

    Example:
        >>> able_to_differ([0.01, 0.04, 0.001], 0.05)
        [True, False, True]
    """
    for tests in range(1, len(smallest) + 1):
        found = [p <= level / tests for p in smallest]
        if sum(found) <= tests:
            return found
    return [True] * len(smallest)


def holm(pvalues: Sequence[float]) -> list[float]:
    """P-values corrected for their number, whatever their dependence (Holm 1979).

    Example:
        >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
        [0.03, 0.06, 0.06]
    """
    values = np.asarray(pvalues, dtype=float)
    order = values.argsort(kind="stable")
    times = len(values) - np.arange(len(values))
    found = np.empty_like(values)
    found[order] = np.maximum.accumulate((times * values[order]).clip(max=1.0))
    return found.tolist()
