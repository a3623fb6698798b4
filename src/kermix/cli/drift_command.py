"""`kermix drift FILE --by COLUMN`: which periods differ from the first, or the one before?"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from kermix.cli.options import (
    AS_FOUND,
    AnswerOptions,
    SignificanceOptions,
    check_there,
    reads_tables,
    takes,
)
from kermix.cli.output import DIFFERENT, print_sentence, print_table
from kermix.data.readers.common import READABLE_SHOWN, Reading
from kermix.errors import OptionError

__all__ = ["command"]


@dataclass(frozen=True)
class PeriodOptions:
    """Which periods there are, and which one the others are compared with."""

    by: Annotated[
        str | None, typer.Option("--by", help="Column whose values or dates define the periods.")
    ] = None
    every: Annotated[
        str | None,
        typer.Option(
            "--every", help="Group dates by day, week, month or year. [depends on their range]"
        ),
    ] = None
    reference: Annotated[
        str | None,
        typer.Option("--reference", help="Period to compare the others with. [the first]"),
    ] = None
    against: Annotated[
        str,
        typer.Option(
            help="What each period is compared with: first (--reference), previous (the one "
            "before), or year (the same month, week or quarter of the year before, for data "
            "with seasons)."
        ),
    ] = "first"
    window: Annotated[
        int,
        typer.Option(help="With --against previous: number of periods before, taken together."),
    ] = 1
    max_points: Annotated[
        int | None,
        typer.Option(help="Maximum number of rows per period; larger periods are subsampled."),
    ] = None


@reads_tables
@takes(periods=PeriodOptions, test=SignificanceOptions, answer=AnswerOptions)
def command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help=f"A table ({READABLE_SHOWN}), or a folder of tables: one period per file, in "
            "the order of their names, or together one table with --by."
        ),
    ],
    *,
    periods: PeriodOptions,
    test: SignificanceOptions,
    answer: AnswerOptions,
    reading: Reading = AS_FOUND,
) -> None:
    """Does a table drift over time?

    Compares each period with the first, or those before it.
    """
    check_there(source)
    from kermix.tables.drift.drift_page import period_report
    from kermix.tables.drift.period_drift import PERIOD_HEADS, drift_over_time

    found = drift_over_time(
        source,
        level=test.level,
        permutations=test.permutations,
        seed=test.seed,
        **asdict(periods),
        **reading.said(),
    )
    by = "" if periods.by is None else f" by {periods.by}"
    title = f"Drift in {Path(source).name}{by}"

    def show() -> None:
        print_sentence(found.sentence(), " ")
        print_table("", PERIOD_HEADS, found.table(), found.notes)

    answer.give(context, lambda: period_report(found, title), found.to_dict, show)
    if test.fail_if_different and found.changed:
        raise typer.Exit(DIFFERENT)
    if test.fail_if_different and found.doubtful:
        raise OptionError(f"--fail-if-different needs a verdict. {found.sentence()}")
