"""`kermix schema DATA`: what are the columns of a table?"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kermix.cli.options import AS_FOUND, TABLES, check_there, reads_tables
from kermix.cli.output import check_output, print_json, print_notes, print_table
from kermix.data.readers.common import Reading, counted

__all__ = ["command"]

HEADS = ("column", "kind", "type", "gaps", "codes", "what it holds")


@reads_tables
def command(
    data: Annotated[
        list[str],
        typer.Argument(help=f"A table: {TABLES}; several files are read as one table."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write the schema to this JSON file.")
    ] = None,
    reading: Reading = AS_FOUND,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show the kind of each column of a table: category, number, time, key or free text."""
    if out is not None:
        check_output(out, ".json")
    check_there(*data)
    from kermix.data.readers.reading import read_frame
    from kermix.data.schema.schema import Schema

    frame, notes = read_frame(data[0] if len(data) == 1 else data, reading)
    known: dict[str, Any] = dict(reading.kinds)
    schema = Schema.infer(frame, kinds=known)
    if as_json:
        print_json(schema.to_dict())
    else:
        print_notes(notes)
        what = f"{counted(frame.rows, 'row')}, {counted(len(schema), 'column')}"
        print_table(f"{frame.name}: {what}", HEADS, schema.table(), schema.notes())
    if out is not None:
        schema.save(out)
        if not as_json:
            Console().print(f"Schema: {out}", markup=False, highlight=False, soft_wrap=True)
