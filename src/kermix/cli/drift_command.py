"""`kermix drift FILE --by COLUMN`: which periods differ from the first, and in which columns?"""

from pathlib import Path
from typing import Annotated

import typer

from kermix.cli.options import AS_FOUND, TABLES, check_there, reads_tables
from kermix.cli.output import (
    DIFFERENT,
    check_output,
    print_json,
    print_sentence,
    print_table,
    saved_page,
)
from kermix.data.readers.common import Reading

__all__ = ["command"]


@reads_tables
def command(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help=f"A table ({TABLES}), or a folder of tables: one period per file, in the order "
            "of their names, or together one table with --by."
        ),
    ],
    by: Annotated[
        str | None, typer.Option("--by", help="Column whose values or dates define the periods.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option(
            "--every", help="Group dates by day, week, month or year. [depends on their range]"
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", help="Period to compare the others with. [the first]"),
    ] = None,
    reading: Reading = AS_FOUND,
    level: Annotated[
        float,
        typer.Option(
            help="Significance level: a period differs if its corrected p-value is at most this."
        ),
    ] = 0.05,
    max_points: Annotated[
        int | None,
        typer.Option(help="Maximum number of rows per period; larger periods are subsampled."),
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(help="Number of permutations for each p-value. [500, more for many periods]"),
    ] = None,
    fail_if_different: Annotated[
        bool,
        typer.Option(
            "--fail-if-different", help=f"Exit with status {DIFFERENT} if a period differs."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    report_path: Annotated[
        Path | None,
        typer.Option("--report", "-o", help="Write a report page with a chart to this file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Does a table drift over time? Compares each period with the first, column by column."""
    if report_path is not None:
        check_output(report_path, ".html", ".htm")
    check_there(source)
    from kermix.tables.drift.drift_page import period_report
    from kermix.tables.drift.period_drift import PERIOD_HEADS, drift_over_time

    found = drift_over_time(
        source,
        by,
        every=every,
        reference=reference,
        level=level,
        reading=reading,
        max_points=max_points,
        permutations=permutations,
        seed=seed,
    )
    title = f"Drift in {Path(source).name}" + ("" if by is None else f" by {by}")
    with saved_page(context, lambda: period_report(found, title), report_path, quiet=as_json):
        if as_json:
            print_json(found.to_dict())
        else:
            print_sentence(found.sentence(), " ")
            print_table("", PERIOD_HEADS, found.table(), found.notes)
    if fail_if_different and found.different:
        raise typer.Exit(DIFFERENT)
