"""`kermix drift FILE --by COLUMN`: which periods differ from the first, and in which columns?"""

from pathlib import Path
from typing import Annotated

import typer

from kermix.cli.output import (
    DIFFERENT,
    check_output,
    print_json,
    print_sentence,
    print_table,
    saved_page,
)
from kermix.cli.reading import AS_FOUND, TABLES, check_there, reads_tables
from kermix.data.tables.csv_look import Reading

__all__ = ["command"]


@reads_tables
def command(
    source: Annotated[
        str,
        typer.Argument(
            help=f"A table ({TABLES}), or a folder of tables: a period each, in the order of "
            "their names, or one table with --by."
        ),
    ],
    by: Annotated[
        str | None, typer.Option("--by", help="The column whose values or dates are the periods.")
    ] = None,
    every: Annotated[
        str | None,
        typer.Option("--every", help="Cut dates by day, week, month or year. [by their span]"),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option("--reference", help="The period that others are compared with. [the first]"),
    ] = None,
    reading: Reading = AS_FOUND,
    level: Annotated[
        float, typer.Option(help="At which corrected p-values a period is called different.")
    ] = 0.05,
    max_points: Annotated[
        int | None, typer.Option(help="Larger periods are subsampled to so many rows.")
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(help="Permutations behind each p-value. [500, more for many periods]"),
    ] = None,
    fail_if_different: Annotated[
        bool,
        typer.Option(
            "--fail-if-different", help=f"End with the status {DIFFERENT} if a period differs."
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    report_path: Annotated[
        Path | None, typer.Option("--report", "-o", help="Write a page with a chart to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Does a table drift over time? Each period against the first, and the columns that moved."""
    if report_path is not None:
        check_output(report_path, ".html", ".htm")
    check_there(source)
    from kermix.comparison.period_drift import PERIOD_HEADS, drift_over_time
    from kermix.reports.period_report import period_report

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
    with saved_page(lambda: period_report(found, title), report_path, quiet=as_json):
        if as_json:
            print_json(found.to_dict())
        else:
            print_sentence(found.sentence(), " ")
            print_table("", PERIOD_HEADS, found.table(), found.notes)
    if fail_if_different and found.different:
        raise typer.Exit(DIFFERENT)
