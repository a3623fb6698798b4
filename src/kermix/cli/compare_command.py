"""`kermix compare A B`: are two data sets different, how much, and where?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kermix.cli.options import AS_FOUND, STRICT, TABLES, check_there, reads_tables
from kermix.cli.output import (
    DIFFERENT,
    check_output,
    parse_variances,
    print_json,
    print_sentence,
    print_table,
    saved_page,
)
from kermix.data.readers.common import Reading, counted
from kermix.errors import OptionError

if TYPE_CHECKING:
    from kermix.tables.compare.result import Comparison

__all__ = ["command"]

MOST_COLUMNS = 10  # that are printed; the report has all


@reads_tables
def command(
    context: typer.Context,
    first: Annotated[
        str,
        typer.Argument(
            help=f"A table ({TABLES}), a .sketch, or a folder of sketches: a series, in the "
            "order of their names."
        ),
    ],
    second: Annotated[str | None, typer.Argument(help="The other file.")] = None,
    variance: Annotated[
        str,
        typer.Option(
            "--variance", "-v", help="Kernel variance: auto, one number, or several: 0.1,1,10."
        ),
    ] = "auto",
    reading: Reading = AS_FOUND,
    standardize: Annotated[
        bool | None,
        typer.Option(
            help="Standardize columns. By default when standard deviations differ by more than "
            "10x."
        ),
    ] = None,
    max_points: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of rows; larger sets are subsampled. By default tests use all "
            "rows."
        ),
    ] = None,
    jackknife_groups: Annotated[
        int,
        typer.Option(
            help="Number of groups of rows to leave out in turn for error bars; 0 for no error "
            "bars."
        ),
    ] = 20,
    permutations: Annotated[
        int | None,
        typer.Option(
            help="Number of permutations for each p-value. [500 for the verdict, or as many as "
            "the level needs; 200 for each cost]"
        ),
    ] = None,
    level: Annotated[
        float,
        typer.Option(help="Significance level: the sets differ if the p-value is at most this."),
    ] = 0.05,
    fail_if_different: Annotated[
        bool,
        typer.Option(
            "--fail-if-different", help=f"Exit with status {DIFFERENT} if the sets differ, or may."
        ),
    ] = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Also print every cost, at each variance, with error bars and p-values.",
        ),
    ] = False,
    strict: Annotated[bool, STRICT] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    report_path: Annotated[
        Path | None,
        typer.Option("--report", help="Write a report page with figures to this file."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Do two data sets differ, by how much, and where? One sentence, and the columns responsible.

    With a folder of sketches, such as one per day: how far each is from the first and from the one
    before.
    """
    if report_path is not None:
        check_output(report_path, ".html", ".htm")
    if second is None:
        if reading.said():
            raise OptionError(
                f"{', '.join(reading.said())}: these options are for tables; {first} is a folder "
                "of sketches, or a second file is missing."
            )
        _series(context, Path(first), report_path, as_json)
        return
    check_there(first, second)
    from kermix.tables.compare.compare import compare
    from kermix.tables.compare.comparison_page import comparison_report

    options: dict[str, Any] = {"v": parse_variances(variance), **reading.said()}
    result = compare(
        first,
        second,
        standardize="auto" if standardize is None else standardize,
        max_points=max_points,
        level=level,
        jackknife_groups=jackknife_groups,
        permutations=permutations,
        seed=seed,
        strict=strict,
        **options,
    )
    if fail_if_different and not result.has_verdict:
        raise OptionError("--fail-if-different needs a verdict: remove --permutations 0.")
    whole = details or not result.has_verdict or result.compared is None
    with saved_page(
        context, lambda: comparison_report(result, costs=whole), report_path, quiet=as_json
    ):
        if as_json:
            print_json(result.to_dict(details=whole))
        else:
            _print(result, whole)
    if fail_if_different and result.verdict.too_few_permutations:
        raise OptionError(f"--fail-if-different needs a verdict. {result.verdict.headline()}")
    if fail_if_different and result.verdict.different:
        raise typer.Exit(DIFFERENT)


def _print(result: "Comparison", whole: bool) -> None:
    from kermix.tables.compare.comparison_page import HOW_TO_READ
    from kermix.tables.compare.result import COLUMN_HEADS, MEASURE_HEADS

    title = f"{result.names[0]} and {result.names[1]}"
    if result.has_verdict:
        verdict = result.verdict
        print_sentence(verdict.headline(), f"{verdict.where()}{verdict.note}")
        if rows := result.column_rows(MOST_COLUMNS):
            more = len(result.verdict.columns) - len(rows)
            notes = [f"... and {counted(more, 'more column')}: --json, --report"] * (more > 0)
            print_sentence()
            print_table("", COLUMN_HEADS, rows, notes)
            print_sentence()
        if not whole:
            print_sentence("", "\n".join([*result.reading_notes, "Every cost: --details"]))
    if not whole:
        return
    print_table(title, MEASURE_HEADS, result.rows(), result.notes)
    if result.compared is not None:
        print_sentence("", HOW_TO_READ)


def _series(context: typer.Context, folder: Path, report_path: Path | None, as_json: bool) -> None:
    if not folder.is_dir():
        raise OptionError(f"{folder} is a single file: name two files, or a folder of sketches.")
    paths = sorted(folder.glob("*.sketch"))
    if len(paths) < 2:
        there = f"{len(paths)} sketch{'' if len(paths) == 1 else 'es'}"
        raise OptionError(
            f"{folder} holds {there}; a series needs at least two. Make them with: "
            "kermix sketch DATA -o FILE.sketch --landmarks-from FIRST.sketch"
        )
    from kermix.sketches.sketch import Sketch
    from kermix.tables.compare.sketch_comparison import drift
    from kermix.tables.drift.drift_page import DRIFT_COLUMNS, drift_report

    found = drift([Sketch.load(path) for path in paths], [path.stem for path in paths])
    title = f"Drift in {folder}"
    with saved_page(context, lambda: drift_report(title, found), report_path, quiet=as_json):
        if as_json:
            print_json(found.to_dict())
        else:
            print_table(title, DRIFT_COLUMNS, found.table(), found.notes)
