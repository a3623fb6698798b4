"""`kermix spectrum DATA [DATA2]`: what structure does the kernel see in the data?"""

from pathlib import Path
from typing import Annotated

import typer

from kermix.cli.options import AS_FOUND, TABLES, check_there, reads_tables
from kermix.cli.output import check_output, parse_variances, print_json, print_table, saved_page
from kermix.data.readers.common import Reading
from kermix.errors import OptionError

__all__ = ["command"]


@reads_tables
def command(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help=f"A table: {TABLES}.")],
    other: Annotated[
        str | None, typer.Argument(help="A second file; without it, eigenfunctions are computed.")
    ] = None,
    variance: Annotated[
        str,
        typer.Option("--variance", "-v", help="Kernel variance: auto (median / 10) or a number."),
    ] = "auto",
    rank: Annotated[int, typer.Option("--rank", "-k", help="Number of functions.")] = 6,
    reading: Reading = AS_FOUND,
    images: Annotated[bool, typer.Option(help="Columns are the pixels of square images.")] = False,
    max_points: Annotated[
        int, typer.Option(help="Maximum number of rows; larger sets are subsampled.")
    ] = 4000,
    seed: Annotated[int, typer.Option(help="Random seed of the subsample.")] = 0,
    report_path: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="Where to write the report page. By default spectrum.html, or the next free "
            "name.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Decompose the kernel between data sets into singular functions, and plot them."""
    if report_path is not None:
        check_output(report_path, ".html", ".htm")
    if max_points < 1:
        raise OptionError(f"--max-points {max_points}: must be at least 1.")
    check_there(data, other)
    from kermix.data.sources import read_sources
    from kermix.runs.folder import next_free
    from kermix.tables.compare.spectrum_page import decompose_tables, spectrum_report

    page_path = next_free(Path(), "spectrum", ".html") if report_path is None else report_path
    check_output(page_path, ".html", ".htm")
    read = read_sources([data] if other is None else [data, other], reading)
    parsed = parse_variances(variance)
    chosen = None if isinstance(parsed, str) else parsed
    result, names, sets, v, notes = decompose_tables(read, chosen, rank, max_points, seed)
    found, mixed = result.singular_values.tolist(), read.mixed is not None
    told = [*notes]
    if mixed:
        told.append("Functions of rows with categories or missing values are not plotted.")
    page = spectrum_report(result, names, sets, read.tables[0].columns, told, images, mixed)
    with saved_page(context, lambda: page, page_path, quiet=as_json):
        if as_json:
            print_json({"names": names, "variance": v, "singular_values": found,
                        "method": result.method, "notes": notes})  # fmt: skip
        else:
            rows = [[str(k + 1), f"{s:.5g}"] for k, s in enumerate(found)]
            print_table(" and ".join(names), ("k", "singular value"), rows, notes)
