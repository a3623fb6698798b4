"""`kermix compare A B`: are two data sets different, how much, and where?"""

from pathlib import Path
from typing import Annotated, Any

import typer

from kermix.cli.output import (
    check_output,
    parse_variances,
    print_json,
    print_table,
    save_page,
)
from kermix.cli.reading import AS_FOUND, TABLES, reads_tables
from kermix.comparison.compare import compare
from kermix.comparison.drift import drift
from kermix.data.tables.csv_look import Reading
from kermix.errors import OptionError
from kermix.reports.comparison_report import COLUMNS, column_rows, comparison_report
from kermix.reports.drift_report import DRIFT_COLUMNS, drift_report
from kermix.sketches.sketch import Sketch

__all__ = ["command"]

MOST_COLUMNS = 20  # that are printed; the report has all


@reads_tables
def command(
    first: Annotated[
        str,
        typer.Argument(
            help=f"A table ({TABLES}), a .sketch, or a folder of sketches in the order of their "
            "names: a series."
        ),
    ],
    second: Annotated[
        str | None, typer.Argument(help="The other file, with the same columns.")
    ] = None,
    variance: Annotated[
        str, typer.Option("--variance", "-v", help="auto, one variance, or several: 0.1,1,10")
    ] = "auto",
    reading: Reading = AS_FOUND,
    standardize: Annotated[
        bool | None,
        typer.Option(help="Divide columns by their spread; by default when it differs tenfold."),
    ] = None,
    max_points: Annotated[
        int | None,
        typer.Option(help="Larger sets are subsampled to this; by default tests use all rows."),
    ] = None,
    bootstrap: Annotated[
        int, typer.Option(help="Groups of rows left out to find error bars; 0 for none.")
    ] = 20,
    permutations: Annotated[int, typer.Option(help="Permutations behind each p-value.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    report_path: Annotated[
        Path | None, typer.Option("--report", help="Write a page with pictures to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Compare two data sets: every cost, error bars, p-values, and where they differ.

    With a folder of sketches, one a day say: how far each is from the first and from the one
    before.
    """
    if report_path is not None:
        check_output(report_path, ".html", ".htm")
    if second is None:
        if reading.said():
            raise OptionError(
                f"{', '.join(reading.said())}: for tables that are read; {first} holds sketches, "
                "or is alone."
            )
        _series(Path(first), report_path, as_json)
        return
    options: dict[str, Any] = {"v": parse_variances(variance), **reading.said()}
    result = compare(
        first,
        second,
        standardize="auto" if standardize is None else standardize,
        max_points=max_points,
        bootstrap=bootstrap,
        permutations=permutations,
        seed=seed,
        **options,
    )
    if as_json:
        print_json(result.to_dict())
    else:
        title = f"{result.names[0]} and {result.names[1]}"
        print_table(title, COLUMNS, result.rows(), result.notes)
        if len(result.column_differences) > 1:
            heads = ("column", "energy distance / sd", "p", "mean of first", "mean of second",
                     "what changed")  # fmt: skip
            rows = column_rows(result)[:MOST_COLUMNS]
            shown = [[c if isinstance(c, str) else f"{c:.4g}" for c in row] for row in rows]
            print_table("\nWhich columns differ most", heads, shown)
    if report_path is not None:
        save_page(comparison_report(result).save, report_path, quiet=as_json)


def _series(folder: Path, report_path: Path | None, as_json: bool) -> None:
    if not folder.is_dir():
        raise OptionError(f"{folder} alone: name two files, or a folder of sketches.")
    paths = sorted(folder.glob("*.sketch"))
    if len(paths) < 2:
        raise OptionError(
            f"{folder} holds {len(paths)} sketches; a series needs two. Make them with: kermix "
            "sketch DATA -o FILE.sketch --landmarks-from FIRST.sketch"
        )
    found = drift([Sketch.load(path) for path in paths], [path.stem for path in paths])
    title = f"Drift in {folder}"
    if as_json:
        print_json(found.to_dict())
    else:
        print_table(title, DRIFT_COLUMNS, found.table(), found.notes)
    if report_path is not None:
        save_page(drift_report(title, found).save, report_path, quiet=as_json)
