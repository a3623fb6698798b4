"""`kermix spectrum DATA [DATA2]`: what structure does the kernel see in the data?"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from kermix.cli.options import (
    AS_FOUND,
    AnswerOptions,
    check_there,
    reads_tables,
    takes,
)
from kermix.cli.output import parse_variances, print_table
from kermix.data.readers.common import READABLE_SHOWN, Reading
from kermix.errors import OptionError

__all__ = ["command"]


@dataclass(frozen=True)
class SpectrumOptions:
    """What is decomposed, and where it is shown."""

    variance: Annotated[
        str,
        typer.Option("--variance", "-v", help="Kernel variance: auto (median / 10) or a number."),
    ] = "auto"
    rank: Annotated[int, typer.Option("--rank", "-k", help="Number of functions.")] = 6
    images: Annotated[bool, typer.Option(help="Columns are the pixels of square images.")] = False
    max_points: Annotated[
        int, typer.Option(help="Maximum number of rows; larger sets are subsampled.")
    ] = 4000
    seed: Annotated[int, typer.Option(help="Random seed of the subsample.")] = 0

    def __post_init__(self) -> None:
        if self.max_points < 1:
            raise OptionError(f"--max-points {self.max_points}: must be at least 1.")


@reads_tables
@takes(options=SpectrumOptions, answer=AnswerOptions)
def command(
    context: typer.Context,
    data: Annotated[str, typer.Argument(help=f"A table: {READABLE_SHOWN}.")],
    other: Annotated[
        str | None, typer.Argument(help="A second file; without it, eigenfunctions are computed.")
    ] = None,
    *,
    options: SpectrumOptions,
    answer: AnswerOptions,
    reading: Reading = AS_FOUND,
) -> None:
    """Plot the singular functions that two data sets share.

    The report page is spectrum.html, or the next free name, unless --report names it.
    """
    check_there(data, other)
    from kermix.data.sources import read_sources
    from kermix.runs.folder import next_free
    from kermix.tables.compare.spectrum_page import decompose_tables, spectrum_report

    if answer.report_path is None:
        answer = replace(answer, report_path=next_free(Path(), "spectrum", ".html"))
    read = read_sources([data] if other is None else [data, other], reading)
    parsed = parse_variances(options.variance)
    chosen = None if isinstance(parsed, str) else parsed
    result, names, sets, v, notes = decompose_tables(
        read, chosen, options.rank, options.max_points, options.seed
    )
    found, mixed = result.singular_values.tolist(), read.mixed is not None
    told = [*notes]
    if mixed:
        told.append("Functions of rows with categories or missing values are not plotted.")
    page = spectrum_report(
        result, names, sets, read.tables[0].columns, told, options.images, mixed
    )
    content = {"names": names, "variance": v, "singular_values": found, "method": result.method,
               "notes": notes}  # fmt: skip
    rows = [[str(k + 1), f"{s:.5g}"] for k, s in enumerate(found)]
    heads = ("k", "singular value")
    answer.give(
        context,
        lambda: page,
        lambda: content,
        lambda: print_table(" and ".join(names), heads, rows, notes),
    )
