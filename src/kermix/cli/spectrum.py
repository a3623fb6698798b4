"""`kermix spectrum DATA [DATA2]`: what structure does the kernel see in the data?"""

from pathlib import Path
from typing import Annotated

import typer

from kermix.cli.output import (
    check_output,
    parse_variances,
    print_json,
    print_table,
    saved_page,
)
from kermix.cli.reading import AS_FOUND, TABLES, check_there, reads_tables
from kermix.data.tables.csv_look import Reading
from kermix.errors import OptionError

__all__ = ["command"]


@reads_tables
def command(
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
    import torch

    from kermix.comparison.sources import read_sources
    from kermix.kernels.gaussian import bandwidth
    from kermix.kernels.mixed import mixed_kernel
    from kermix.reports.spectrum_report import spectrum_report
    from kermix.runs.folder import next_free
    from kermix.spectrum import decompose

    page_path = next_free(Path(), "spectrum", ".html") if report_path is None else report_path
    check_output(page_path, ".html", ".htm")
    read = read_sources([data] if other is None else [data, other], reading)
    tables, notes = list(read.tables), read.notes
    layout = None if read.mixed is None else read.mixed.layout
    generator = torch.Generator().manual_seed(seed)
    sets = []
    for table in tables:
        values = table.values
        if len(table) > max_points:
            values = values[torch.randperm(len(table), generator=generator)[:max_points]]
            notes.append(
                f"{table.name}: using {max_points} of {len(table)} rows, drawn at random."
            )
        sets.append(values)
    parsed = parse_variances(variance)
    v: float | list[float] = parsed if not isinstance(parsed, str) else 0.0
    if isinstance(parsed, str):
        v = float(bandwidth(torch.cat(sets), layout=layout)) / 10
        notes.append(f"Variance {v:.4g}: a tenth of the median heuristic.")
    rank = min(rank, *(len(s) for s in sets))
    kernel = mixed_kernel(sets[0], layout, v)
    result = decompose(sets[0], sets[1] if other is not None else None, kernel, rank=rank)
    names = [table.name for table in tables]
    found = result.singular_values.tolist()
    told = [*notes]
    if layout is not None:
        told.append("Functions of rows with categories or missing values are not plotted.")
    page = spectrum_report(
        result, names, sets, tables[0].columns, told, images, layout is not None
    )
    with saved_page(lambda: page, page_path, quiet=as_json):
        if as_json:
            print_json({"names": names, "variance": v, "singular_values": found,
                        "method": result.method, "notes": notes})  # fmt: skip
        else:
            rows = [[str(k + 1), f"{s:.5g}"] for k, s in enumerate(found)]
            print_table(" and ".join(names), ("k", "singular value"), rows, notes)
