"""Drift over time: every period of a table against a reference period.

What compares two periods is `kermix.compare`, a permutation test; its p-values are corrected for
the number of periods.
"""

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, Unpack, get_args

import numpy as np

from kermix.checks import check_count, check_level, check_option, with_options
from kermix.data.readers.common import AS_FOUND, ReadingOptions, listed, reading_of
from kermix.data.readers.frames import (
    Frame,
    family,
)
from kermix.data.sources import Source
from kermix.errors import OptionError
from kermix.tables.compare.compare import COUNTED_ONCE, compare
from kermix.tables.compare.result import AnswerFirst, Shown, aligned
from kermix.tables.compare.verdict import ColumnVerdict, Verdict
from kermix.tables.drift.periods import Periods, read_periods, together, year_before
from kermix.two_sample.aggregate import shift_found
from kermix.two_sample.permutation import permutations_for, smallest_pvalue

__all__ = ["PERIOD_HEADS", "PeriodDrift", "PeriodVerdict", "between", "drift_over_time", "holm"]

Against: TypeAlias = Literal["first", "previous", "year"]
PERIOD_HEADS = ("period", "rows", "verdict", "p", "AUC", "moved most")
# Reasoned, no record.
FEW_ROWS = 5  # of a reference that tells nothing
DRAWN = "rows used, drawn at random."
BOTH_HAVE = "Compared by the columns that both have"  # said as changes of a period's columns
SHOWN = 3  # columns in the sentence, and in a line of the table


@dataclass(frozen=True)
class PeriodVerdict:
    """One period against its reference.

    Attributes:
        period: Its name.
        rows: Number of its rows.
        different: Whether it differs at the level. None: the p-value is at the level, but copies
            of rows may be all that differs, as in `kermix.compare`.
        pvalue: P-value corrected for the number of periods (Holm); None if it has too few rows.
        own_pvalue: P-value of this period alone.
        effect: AUC of a classifier that separates its rows from the reference; 0.5 is chance.
        interval: 95 % confidence interval for the AUC.
        columns: Columns that differ by themselves if the period does or may, most different first;
            p-values corrected for the number of columns.
        too_few_rows: Whether there are too few rows for a small enough p-value.
        too_few_permutations: Whether there are too few permutations for one.
        repeated: How many of its rows repeat others of it, more often than coincidence explains;
            each counted once.
        repeated_in_reference: How many rows of the reference do, beside this period.
        reference: Name of the period, or periods, that it was compared with.
        schema_changes: Columns that its reference has and it has not, or the other way round, or
            that hold something else, in words.
        between: Whether it lies between two periods that differ, and differs by `own_pvalue`.
    """

    period: str
    rows: int
    different: bool | None
    pvalue: float | None
    own_pvalue: float | None
    effect: float | None
    interval: tuple[float, float] | None
    columns: tuple[ColumnVerdict, ...]
    too_few_rows: bool
    too_few_permutations: bool = False
    repeated: int = 0
    repeated_in_reference: int = 0
    reference: str = ""
    schema_changes: tuple[str, ...] = ()
    between: bool = False

    @property
    def answer(self) -> str:
        """The verdict in a word or two."""
        if self.between:
            return "perhaps different"
        if self.too_few_rows:
            return "too few rows"
        if self.too_few_permutations:
            return "too few permutations"
        return {True: "different", None: "may differ", False: "no difference"}[self.different]


@dataclass(frozen=True, repr=False)
class PeriodDrift(AnswerFirst):
    """The result of `drift_over_time`. It prints as one sentence and a table.

    Attributes:
        reference: Name of the reference period, or what the periods are compared with, such as
            "the month before".
        references: Periods that only others are compared with, and their numbers of rows.
        periods: The others, in order.
        level: Significance level at which a period is called different.
        noun: Noun for a period, such as "month".
        notes: What was assumed and ignored.
        detectable: Which change would have been found in the smallest period that was judged.
    """

    reference: str
    references: tuple[tuple[str, int], ...]
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
    def schema_changes(self) -> tuple[str, ...]:
        """Columns that appear, vanish or hold something else, with the period, in words."""
        return tuple(f"{c} in {p.period}" for p in self.periods for c in p.schema_changes)

    @property
    def changed(self) -> bool:
        """Whether any period differs, or has other columns."""
        return bool(self.different or self.schema_changes)

    @property
    def doubtful(self) -> tuple[PeriodVerdict, ...]:
        """The periods that may differ, if copies of rows are not all that does."""
        return tuple(p for p in self.periods if p.different is None)

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
        """The answer; columns that come and go, and repeated rows, are said first."""
        apart = [*self._columns_apart(), *self._rows_apart()]
        answer = f"{self._answer()}{self._looked_at_again()}"
        if not apart:
            return answer
        if answer.startswith(("None ", "Too ")):  # not the name of a period
            answer = answer[0].lower() + answer[1:]
        return f"Apart from {' and '.join(apart)}: {answer}"

    def _columns_apart(self) -> Iterator[str]:
        changes = list(self.schema_changes)
        if len(changes) > SHOWN:
            changes[SHOWN - 1 :] = [f"{len(changes) - SHOWN + 1} more changes"]
        if changes:
            yield f"columns that come and go ({', '.join(changes)})"

    def _rows_apart(self) -> Iterator[str]:
        counts: dict[str, int] = {}
        for p in self.periods:
            counts[p.reference] = max(counts.get(p.reference, 0), p.repeated_in_reference)
        counts |= {p.period: max(p.repeated, counts.get(p.period, 0)) for p in self.periods}
        where = [f"{count:,} in {name}" for name, count in counts.items() if count]
        if len(where) > SHOWN:
            where[SHOWN - 1 :] = [f"others in {len(where) - SHOWN + 1} more {self.noun}s"]
        if where:
            yield f"repeated rows ({', '.join(where)})"

    def _looked_at_again(self) -> str:
        """What is said of periods between two that differ."""
        names = [p.period for p in self.periods if p.between]
        if not names:
            return ""
        lie, them = ("lies", "it does") if len(names) == 1 else ("lie", "they do")
        return (
            f" {listed(names)} {lie} between {self.noun}s that differ and may differ too: {them} "
            "by the p-value that is not corrected."
        )

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
            if self.doubtful:
                answer = f"{answer} {self._of_doubtful()}"
        if not few:
            return answer
        have = "has" if few == 1 else "have"
        return f"{answer} {few} {self._plural(few)} {have} too few rows to say."

    def _of_doubtful(self) -> str:
        names = [p.period for p in self.doubtful]
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"{', '.join(names[:SHOWN])}{more} may differ, if no row is a copy of another."

    def _alike(self, judged: Sequence[PeriodVerdict]) -> str:
        total = len(judged)
        surely = " surely" if self.doubtful else ""
        which = f"None of {total} {self._plural(total)}{surely} differs"
        if total == 1:
            which = f"{judged[0].period} does not{surely} differ"
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
        lines = [[name, f"{rows:,}", "reference", "", "", ""] for name, rows in self.references]
        for p in self.periods:
            auc = "" if p.effect is None else f"{p.effect:.2f}"
            if intervals and p.interval is not None:
                auc += f" ({p.interval[0]:.2f} to {p.interval[1]:.2f})"
            names = [f"{c.column} ({c.short})" for c in p.columns[:SHOWN]]
            more = len(p.columns) - len(names)
            names = [*p.schema_changes, *names]
            if p.repeated:
                names.insert(0, f"{p.repeated:,} repeated row{'s' * (p.repeated > 1)}")
            names += [f"{more} more"] * (more > 0)
            if p.different is None:
                names.insert(0, "perhaps only repeated rows")
            pvalue = "" if p.pvalue is None else f"{p.pvalue:.2g}"
            lines.append([p.period, f"{p.rows:,}", p.answer, pvalue, auc, ", ".join(names)])
        return lines

    def __str__(self) -> str:
        return "\n".join([self.sentence(), "", *aligned((PERIOD_HEADS, *self.table())), "",
                          *self.notes])  # fmt: skip

    @property
    def pvalue(self) -> float | None:
        """The smallest of the periods, which are corrected for their number."""
        return min((p.pvalue for p in self.periods if p.pvalue is not None), default=None)

    def shown(self) -> Shown:
        """The answer, and the periods that differ before the others."""
        order = sorted(range(len(self.periods)), key=lambda k: self.periods[k].different is False)
        lines, first = self.table(), len(self.references)
        rows = [*lines[:first], *(lines[first + k] for k in order)]
        return Shown(self.sentence(), PERIOD_HEADS, rows)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, the sentence first."""
        return {"sentence": self.sentence(), "moved": self.moved, **asdict(self)}


class DriftOptions(ReadingOptions, total=False):
    """What rarely needs to be said of drift."""

    max_points: int | None
    window: int


@with_options(DriftOptions, **AS_FOUND, max_points=None, window=1)
def drift_over_time(
    source: Source,
    by: str | None = None,
    *,
    every: str | None = None,
    reference: str | None = None,
    against: Against = "first",
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
        against: "first" is the reference; "previous" compares each period with the one before,
            "year" with the same month, week or quarter of the year before, for data that have
            seasons.
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
        window: How many periods before are the reference together, with `against="previous"`.
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
    check_count("window", options["window"], 1)
    reading, max_points = reading_of(options), options["max_points"]
    periods = read_periods(source, by, every, reading)
    pairs = _pairs(periods, reference, against, options["window"])
    enough = _enough(pairs, level, max_points, periods.noun)
    if permutations is None:
        permutations = permutations_for(level, len(enough))
    limited = len(enough) > level * (permutations + 1) * (1 + 1e-9)
    verdicts: dict[str, Verdict] = {}
    notes = dict.fromkeys(periods.notes)
    for first, table in enough:
        known = {n: reading.kinds[n] for n in first.columns if n in reading.kinds}
        result = compare(
            first, table, kinds=known, level=level, permutations=permutations,
            max_points=max_points, seed=seed,
        )  # fmt: skip
        said = (
            note for note in result.reading_notes
            if not note.endswith((DRAWN, COUNTED_ONCE)) and not note.startswith(BOTH_HAVE)
        )  # fmt: skip
        notes |= dict.fromkeys(said)
        verdicts[table.name] = result.verdict
    judged = between(tuple(_judged(pairs, verdicts, level, limited)), against, level)
    detectable = _detectable(enough, verdicts, level, periods.noun)
    compared = {pair.period.name for pair in pairs}
    alone = tuple((t.name, t.rows) for t in periods.tables if t.name not in compared)
    found = PeriodDrift(
        _reference_in_words(pairs, periods, against, options["window"]), alone, judged, level,
        periods.noun, (), detectable,
    )  # fmt: skip
    notes |= dict.fromkeys(_notes(periods, found, max_points, against))
    return replace(found, notes=tuple(notes))


class PeriodPair(NamedTuple):
    """A period, and the rows that it is compared with."""

    reference: Frame
    period: Frame


def _pairs(periods: Periods, asked: str | None, against: str, window: int) -> list[PeriodPair]:
    """Which periods are compared with what."""
    check_option("against", against, get_args(Against))
    if against == "first":
        first, others = _apart(periods, asked)
        return [PeriodPair(first, table) for table in others]
    if asked is not None:
        raise OptionError(f"reference={asked!r} goes with against='first', not {against!r}.")
    tables = periods.tables
    if against == "previous":
        if window >= len(tables):
            raise OptionError(
                f"window={window}: there are {len(tables)} {periods.noun}s, so that none has as "
                "many before it."
            )
        before = [tables[k - window : k] for k in range(window, len(tables))]
        return [PeriodPair(together(b), t) for b, t in zip(before, tables[window:], strict=True)]
    named = {table.name: table for table in tables}
    pairs = [
        PeriodPair(named[name], table)
        for table in tables
        if (name := year_before(table.name)) in named
    ]
    if not pairs:
        raise OptionError(
            f"against='year': no {periods.noun} has one of the year before; names need a year of "
            f"four digits, and there are {listed(named)}."
        )
    return pairs


def _reference_in_words(
    pairs: Sequence[PeriodPair], periods: Periods, against: str, window: int
) -> str:
    if against == "first":
        return pairs[0].reference.name
    if against == "year":
        return f"the same {periods.noun} of the year before"
    return f"the {periods.noun} before" if window == 1 else f"the {window} {periods.noun}s before"


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
    pairs: Sequence[PeriodPair], level: float, max_points: int | None, noun: str
) -> list[PeriodPair]:
    """The periods that have enough rows for a verdict."""
    sizes = [
        (min(a.rows, max_points or a.rows), min(b.rows, max_points or b.rows)) for a, b in pairs
    ]
    able = able_to_differ([smallest_pvalue(*both, None) for both in sizes], level)
    enough = [pair for pair, one in zip(pairs, able, strict=True) if one]
    first = pairs[0].reference
    if not enough and first.rows < FEW_ROWS:
        raise OptionError(
            f"The reference, {first.name}, has {first.rows} row{'s' * (first.rows != 1)}, too "
            f"few to tell whether any {noun} differs; choose another one (--reference)."
        )
    return enough


def _judged(
    pairs: Sequence[PeriodPair], verdicts: Mapping[str, Verdict], level: float, limited: bool
) -> Iterator[PeriodVerdict]:
    """Every period, with the p-values of those that have a verdict corrected for their number."""
    pvalues = holm([v.pvalue or 0.0 for v in verdicts.values()])
    corrected = dict(zip(verdicts, pvalues, strict=True))
    for first, table in pairs:
        changes = _schema_changes(first, table)
        if table.name not in verdicts:
            yield PeriodVerdict(
                table.name, table.rows, False, None, None, None, None, (), True,
                reference=first.name, schema_changes=changes,
            )  # fmt: skip
            continue
        verdict, pvalue = verdicts[table.name], corrected[table.name]
        different = pvalue <= level and (None if verdict.different is None else True)
        yield PeriodVerdict(
            table.name, table.rows, different, pvalue, verdict.pvalue, verdict.effect,
            verdict.interval, () if different is False else verdict.different_columns, False,
            limited, verdict.repeated[1], verdict.repeated[0], first.name, changes,
        )  # fmt: skip


def _schema_changes(first: Frame, table: Frame) -> tuple[str, ...]:
    """Columns that a period has and its reference has not, or the other way round, in words."""
    changes = [f"no {name}" for name in first.columns if name not in table.columns]
    for name, column in table.columns.items():
        if name not in first.columns:
            changes.append(f"{name} is new")
            continue
        was, now = family(first.columns[name].type), family(column.type)
        if was != now and min(column.null_count, first.columns[name].null_count) == 0:
            changes.append(f"{name} holds {now}, not {was}")
    return tuple(changes)


def between(
    judged: tuple[PeriodVerdict, ...], against: str, level: float
) -> tuple[PeriodVerdict, ...]:
    """Look again at periods between two that differ from the same reference.

    The correction for their number hides a period whose own p-value is at the level; where both
    neighbours differ, that is said.
    """
    if against == "previous":
        return judged
    known = [k for k, p in enumerate(judged) if p.pvalue is not None]
    differ = {k for k in known if judged[k].different}
    again = {
        k
        for before, k, after in zip(known, known[1:], known[2:], strict=False)
        if {before, after} <= differ and k not in differ and not judged[k].too_few_permutations
    }
    return tuple(
        replace(p, between=k in again and (p.own_pvalue or 1.0) <= level)
        for k, p in enumerate(judged)
    )


def _detectable(
    enough: Sequence[PeriodPair], verdicts: Mapping[str, Verdict], level: float, noun: str
) -> str:
    """Which change would have been found in the smallest period."""
    if not enough:
        return ""
    name = min((pair.period for pair in enough), key=lambda t: t.rows).name
    verdict = verdicts[name]
    shift = shift_found(verdict.rows, level / len(enough), len(verdict.columns))
    told = replace(verdict, detectable_shift=shift).detectable()
    of = f"in the smallest {noun}, {name} ({verdict.rows[1]:,} rows), "
    return told and (of if len(enough) > 1 else "") + told


def _notes(
    periods: Periods, found: PeriodDrift, max_points: int | None, against: str
) -> Iterator[str]:
    judged, names = found.periods, {table.name for table in periods.tables}
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
    if found.detectable and found.different:
        yield f"{found.detectable[0].upper()}{found.detectable[1:]}."
    seasons = periods.noun not in ("year", "period") and {year_before(n) for n in names} & names
    if against == "first" and found.different and seasons:
        yield (
            f"Where data have seasons, compare each {periods.noun} with that of the year before: "
            "--against year."
        )


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
