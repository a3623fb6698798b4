"""The `kermix` command: its sub-commands, and how errors are shown."""

import functools
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, NoReturn, TextIO

import rich
import typer
from rich.console import Console
from typer.core import TyperGroup

from kermix.cli import classify_command as classify
from kermix.cli import compare_command as compare
from kermix.cli import drift_command as drift
from kermix.cli import evaluate_command as evaluate
from kermix.cli import explore_command as explore
from kermix.cli import fit_command as fit
from kermix.cli import reproduce_command as reproduce
from kermix.cli import sample_command as sampling
from kermix.cli import schema_command as schema
from kermix.cli import score_command as scoring
from kermix.cli import sketch_command as sketch
from kermix.cli import spectrum_command as spectrum
from kermix.cli import tables_command as tables
from kermix.cli.options import WORDS, Command
from kermix.cli.output import INTERRUPTED, plain, print_notes
from kermix.cli.settings_options import command_of
from kermix.environment import __version__
from kermix.errors import DegenerateDataWarning, KermixError, MissingExtraError, ZeroDensityWarning

__all__ = ["app", "run"]


class _Commands(TyperGroup):
    """The commands, which can ask for the words that were typed."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)


app = typer.Typer(
    name="kermix",
    cls=_Commands,
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
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Fit, generate and compare tables and samples.

    To start: kermix fit moons --quick
    """


FIRST, FITTED, COMPARING, MORE = (
    "To begin with", "With a fitted model", "Data against data", "Images, and the paper",
)  # fmt: skip
GROUPS: dict[str, dict[str, Command]] = {
    FIRST: {
        "fit": fit.fit,
        "sample": sampling.sample,
        "compare": compare.command,
        "explore": explore.command,
    },
    FITTED: {
        "impute": tables.impute,
        "predict": classify.predict,
        "score": scoring.score,
        "resume": fit.resume,
    },
    COMPARING: {
        "evaluate": evaluate.command,
        "drift": drift.command,
        "schema": schema.command,
        "sketch": sketch.command,
        "spectrum": spectrum.command,
    },
    MORE: {
        "classify": classify.classify,
        "reproduce": reproduce.command,
    },
}
COMMANDS = {name: command for group in GROUPS.values() for name, command in group.items()}


# What a command needs besides PyTorch and NumPy, so that nothing is missing after the work.
READS, DRAWS, TRAINS = (
    ("pyarrow", "pandas"),
    ("matplotlib", "jinja2"),
    ("lightning", "sklearn", "safetensors"),
)
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("fit", "resume", "classify", "reproduce"), (*READS, *DRAWS, *TRAINS)),
    **dict.fromkeys(("sample", "score", "impute", "predict"), (*READS, *TRAINS)),
    "explore": (*READS, *DRAWS, *TRAINS, "starlette", "uvicorn"),
    "schema": READS,
    **dict.fromkeys(("compare", "drift"), (*READS, "jinja2")),
    "sketch": (*READS, "safetensors"),
    "spectrum": (*READS, "jinja2"),
    "evaluate": (*READS, "jinja2", "sklearn", "safetensors"),
}
CALLED = {"sklearn": "scikit-learn", "jinja2": "Jinja2"}


def _check_extras(command: str) -> None:
    """Refuse a command that would stop half-way, and name all that it lacks at once."""
    missing = [n for n in NEEDS.get(command, ()) if importlib.util.find_spec(n) is None]
    if missing:
        names = ", ".join(CALLED.get(name, name) for name in missing)
        extras = "cli,explore" if command == "explore" else "cli"
        raise MissingExtraError(f"kermix {command} needs {names}: pip install 'kermix[{extras}]'.")


def _help(function: Callable[..., None]) -> str:
    """The docstring with one line for each paragraph: terminals have widths of their own."""
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def _complete(name: str, function: Callable[..., None]) -> Callable[..., None]:
    """The command, which begins if all is there, and says so when it is stopped by Ctrl-C."""

    @functools.wraps(function)
    def command(*arguments: Any, **options: Any) -> None:
        _check_extras(name)
        try:
            function(*arguments, **options)
        except KeyboardInterrupt:
            Console(stderr=True).print("Stopped.")
            raise typer.Exit(INTERRUPTED) from None

    return command


for _panel, _group in GROUPS.items():
    for _name, _function in _group.items():
        app.command(
            _name, cls=command_of(_function), help=_help(_function), rich_help_panel=_panel
        )(_complete(_name, _function))


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are notes for a user, who does not want to know the line of code."""
    if issubclass(category, DegenerateDataWarning | ZeroDensityWarning):
        print_notes([str(message)], Console(stderr=True))
    else:
        sys.stderr.write(warnings.formatwarning(message, category, filename, lineno))


def run() -> None:
    """Run the command line; what a user can mend is one line, not a traceback."""
    warnings.showwarning = _show_warning
    try:
        app()
    except KermixError as error:
        _fail(str(error))
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        _fail("Not enough memory; use fewer rows, points or components.")


def _fail(text: str) -> NoReturn:
    rich.print(f"[bold red]Error:[/] {rich.markup.escape(plain(text))}", file=sys.stderr)
    sys.exit(2)
