"""`kermix explore`: a local page that asks a fitted table."""

import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kermix.cli.options import AS_FOUND, check_there, reads_tables
from kermix.cli.output import print_notes
from kermix.data.readers.common import READABLE_SHOWN, Reading
from kermix.errors import OptionError
from kermix.runs.folder import check_run

if TYPE_CHECKING:
    from kermix.explore.session import Explored

__all__ = ["command"]


@reads_tables
def command(
    source: Annotated[
        Path,
        typer.Argument(
            help=f"Run folder of kermix fit, or a table to be fitted first ({READABLE_SHOWN})."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Table: run folder, which must not exist. By default runs/NAME."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Table: fit a smaller model, for a first look.")
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on. By default only this machine can open the page; with "
            "another host, anyone who can reach it and knows the address can."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="First port to try; if it is in use, the next one is tried.")
    ] = 8570,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Whether to open the page in a browser.")
    ] = True,
    reading: Reading = AS_FOUND,
) -> None:
    """Ask a fitted table on a local page, or watch a fit as it runs.

    Set some columns and see the others; check samples against data; find odd rows. A table is
    fitted first, while you watch, and saved in a run folder. The page works offline; stop with
    Ctrl-C.
    """
    is_run = source.is_dir()
    if is_run:
        check_run(source)
        if out is not None or quick or reading != AS_FOUND:
            raise OptionError(
                f"{source} is a run; --out, --quick and the reading options are for tables."
            )
    else:
        check_there(source)
        if not source.exists():
            raise OptionError(f"{source}: there is no such run folder or table.")
    from kermix.explore.server import Address, application, free_socket, server_of

    listening = free_socket(host, port)
    try:
        address = Address(host, listening.getsockname()[1])
        explored = _opened(source, is_run, reading, out, quick)
        try:
            if explored.state == "ready":
                explored.questions()  # what cannot be read is refused here, and nobody waits
            _say_where(address.url, address.is_local, port, address.port)
            app = application(explored, address)
            if browser:
                webbrowser.open(address.url)
            server_of(app).run(sockets=[listening])
        finally:
            explored.close()
            _say_how_to_go_on(explored)
    finally:
        listening.close()


def _say_how_to_go_on(explored: "Explored") -> None:
    """Of a fit that was begun for the page, and is not done."""
    if explored.fitting is None or explored.state == "ready":
        return
    failed = explored.fitting.failed
    told = "The fit is saved." if failed is None else f"The fit has failed: {failed}"
    Console().print(
        f"{told} To continue: {explored.resume}", markup=False, highlight=False, soft_wrap=True
    )


def _opened(
    source: Path, is_run: bool, reading: Reading, out: Path | None, quick: bool
) -> "Explored":
    from kermix.explore.session import Explored, explorable

    if is_run:
        return Explored.open(source)
    from kermix.fitting.fit import begin_fit

    run, data = begin_fit(str(source), out=out, quick=quick, **reading.said())
    print_notes(run.notes(data))
    return Explored(explorable(run), data, fit=True)


def _say_where(url: str, local: bool, asked: int, port: int) -> None:
    console = Console()
    if asked not in (0, port):
        console.print(f"Port {asked} is in use; using {port} instead.", highlight=False)
    if not local:
        Console(stderr=True).print(
            "[bold]Warning:[/] the page can be opened from other machines, over an unencrypted "
            "connection: anyone who has the address sees the table and its model.",
            highlight=False,
        )
    console.print(f"Explore: {url}", markup=False, highlight=False, soft_wrap=True)
    console.print("Press Ctrl-C to stop.", highlight=False)
