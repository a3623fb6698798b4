"""The `kermix` command: its sub-commands, and how errors are shown."""

import sys
from typing import Annotated

import rich
import typer

from kermix import __version__
from kermix.errors import KermixError

from . import classify, compare, fit, reproduce, sketch, spectrum
from .bench import bench

__all__ = ["app", "run"]

app = typer.Typer(
    name="kermix",
    help="Fit, compare and look inside distributions that are given by samples.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        rich.print(f"kermix {__version__}")
        raise typer.Exit


@app.callback()
def _kermix(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Say which.")
    ] = False,
) -> None:
    """Fit, compare and look inside distributions that are given by samples."""


app.command()(fit.fit)
app.command()(fit.resume)
app.command()(fit.sample)
app.command()(fit.score)
app.command()(classify.classify)
app.command()(classify.predict)
app.command("compare")(compare.command)
app.command("sketch")(sketch.command)
app.command("spectrum")(spectrum.command)
app.command("reproduce")(reproduce.command)
app.command()(bench)


def run() -> None:
    """Run the command line; what a user can mend is one line, not a traceback."""
    try:
        app()
    except KermixError as error:
        rich.print(f"[bold red]Error:[/] {rich.markup.escape(str(error))}", file=sys.stderr)
        sys.exit(2)
