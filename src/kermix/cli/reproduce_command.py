"""`kermix reproduce`: the paper's figures and table, computed anew, and its claims judged."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kermix.cli.output import INTERRUPTED
from kermix.errors import KermixError, OptionError
from kermix.paper.artefact import Record
from kermix.paper.catalogue import (
    ARTEFACTS,
    PAGE,
    check_folder,
    chosen,
    claim_rows,
    records_in,
    reproduce,
)

__all__ = ["command"]

HELP = "Which: all by default, or " + ", ".join(ARTEFACTS) + "."


def command(
    names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help=HELP)] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output folder. By default runs/paper, or the next free name."),
    ] = None,
    quick: Annotated[
        bool,
        typer.Option("--quick", help="A first look in minutes: fewer seeds, steps and points."),
    ] = False,
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="Folder of MNIST, CIFAR-10 and faces, for the table and fig-images; without "
            "it, scikit-learn's digits are used."
        ),
    ] = None,
    cells: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the trained networks of fig-images, or of an earlier table; cells "
            "found there are not trained again."
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the same figures in --out.")
    ] = False,
) -> None:
    """Reproduce the paper's figures and tables.

    Each with its numbers, and whether the claims hold.

    Each one is written as soon as it is done, as PNG, SVG, JSON and CSV; index.html shows all of
    them. Ctrl-C keeps those already done.
    """
    from kermix.runs.folder import next_free_folder

    wanted = chosen(names or [])
    if data_root is not None and not data_root.is_dir():
        raise OptionError(f"--data-root {data_root}: there is no such folder.")
    folder = next_free_folder("paper") if out is None else out
    check_folder(folder, wanted, overwrite)
    console = Console()
    records, stopped = _reproduced(
        console,
        wanted,
        partial(reproduce, folder=folder, quick=quick, data_root=data_root, cells=cells),
    )
    _print_claims(console, records)
    if stopped:
        left = wanted[len(records) :]
        console.print(f"Stopped; done: {len(records)} of {len(wanted)}. To run the rest:")
        again = f"kermix reproduce {' '.join(left)} --out {folder}{' --quick' if quick else ''}"
        console.print(f"  {again}", markup=False, highlight=False, soft_wrap=True)
    if records_in(folder):
        page = folder / PAGE
        console.print(f"All figures and claims: {page}", highlight=False, soft_wrap=True)
    if stopped:
        raise typer.Exit(INTERRUPTED)


def _reproduced(
    console: Console, wanted: Sequence[str], work: Callable[..., Record]
) -> tuple[list[Record], bool]:
    """The records of what was reproduced, with a bar for each; and whether Ctrl-C stopped it."""
    records: list[Record] = []
    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        for name in wanted:
            task = progress.add_task(f"[bold]{name}[/]", total=1.0)
            try:
                records.append(work(name, tick=partial(_advance, progress, task)))
            except KeyboardInterrupt:
                return records, True
            except KermixError:
                progress.remove_task(task)
                progress.stop()
                _print_claims(console, records)  # what is done is not lost for this
                raise
            progress.update(task, completed=1.0)
    return records, False


def _advance(progress: Progress, task: Any, share: float) -> None:
    progress.update(task, completed=share)


def _print_claims(console: Console, records: list[Record]) -> None:
    if not records:
        return
    table = Table(title="Claims of the paper", title_justify="left")
    for column in ("", "claim", "numbers"):
        table.add_column(column)
    for record in records:
        table.add_section()
        table.add_row("", f"[bold]{record['paper']}[/]", "")
        for verdict, text, _, numbers in claim_rows(record):
            colour = "green" if verdict == "Confirmed" else "bold red"
            table.add_row(f"[{colour}]{verdict}[/]", text, numbers)
    console.print(table)
    for record in records:
        for note in record["notes"]:
            console.print(f"{record['paper']}: {note}", markup=False, highlight=False)
