"""`kermix sample`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kermix.cli.options import takes
from kermix.cli.output import (
    check_output,
    check_writable,
    counting,
    print_sentence,
    written_path,
)
from kermix.data.readers.common import WRITABLE, counted, listed
from kermix.errors import OptionError
from kermix.runs.folder import check_run

if TYPE_CHECKING:
    from kermix.data.schema.schema import Schema

__all__ = ["sample"]

ENDINGS = {"fit": (".npy", ".csv"), "images": (".png", ".npy", ".npz")}  # of tables: any


def _asked(
    n: Annotated[int, typer.Option("-n", help="Number of samples.")] = 1000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    label: Annotated[str | None, typer.Option(help="Images: name of the class to sample.")] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Table model: condition on this value (repeatable); leave the value empty for "
            "missing.",
        ),
    ] = None,
    spreadsheet_safe: Annotated[
        bool,
        typer.Option(
            "--spreadsheet-safe",
            help="Table model: escape text that a spreadsheet would take for a formula.",
        ),
    ] = False,
    deduplicate: Annotated[
        bool,
        typer.Option(
            "--deduplicate", help="Table model: redraw rows that equal a row of the data."
        ),
    ] = False,
    min_distance: Annotated[
        float | None,
        typer.Option(
            help="Table model: redraw rows that are closer than this to a row of the data; the "
            "report has the distances of samples and of held-out rows."
        ),
    ] = None,
) -> dict[str, Any]:
    """Which samples are drawn: the fields of a `kermix.runs.run.Draw`."""
    if n < 1:
        raise OptionError(f"-n {n}: must be at least 1.")
    return {
        "n": n, "seed": seed, "label": label, "given": tuple(given or ()),
        "spreadsheet_safe": spreadsheet_safe, "deduplicate": deduplicate,
        "min_distance": min_distance,
    }  # fmt: skip


@takes(asked=_asked)
def sample(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="Output file: .npy or .csv; of the table model, by default in the format of its "
            f"data, {', '.join(WRITABLE)}; of images .npy, .npz or .png.",
        ),
    ],
    asked: dict[str, Any],
) -> None:
    """Draw samples from a fitted model."""
    check_run(run)
    from kermix.fitting import open_run
    from kermix.runs.folder import TABLE
    from kermix.runs.run import Draw

    opened, draw = open_run(run), Draw(**asked)
    opened.check_draw(draw)
    if opened.kind.name == TABLE:
        out = written_path(out, opened)
        check_writable(out)
        with counting("sample", draw.n) as on_rows:
            opened.write_samples(out, draw, on_rows)
    else:
        check_output(out, *ENDINGS[opened.kind.name])
        opened.write_samples(out, draw)
    Console().print(f"{counted(draw.n, 'sample')} in {out}", highlight=False, soft_wrap=True)
    if opened.kind.name == TABLE:
        from kermix.tables.runs.table_run import schema_of

        print_sentence("", "\n".join(_left_empty(schema_of(opened))))


def _left_empty(schema: "Schema") -> list[str]:
    """Sentences on columns in which samples have nothing, though the table has something."""
    empty: dict[str, list[str]] = {}
    for column in schema.left_out:
        if column.comes_back_empty:
            empty.setdefault(column.why_empty, []).append(column.name)
    return [f"{listed(n)} {'is' if len(n) == 1 else 'are'} empty: {w}" for w, n in empty.items()]
