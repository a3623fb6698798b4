"""The `kermix` command: its sub-commands, loaded when called, and how errors are shown."""

import functools
import importlib
import importlib.util
import inspect
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, NamedTuple, NoReturn, TextIO

import rich
import typer
from rich.console import Console
from typer.core import TyperGroup

from kermix.cli.options import WORDS, Command, command_of
from kermix.cli.output import INTERRUPTED, plain, print_notes
from kermix.environment import __version__
from kermix.errors import KermixError, MissingExtraError

__all__ = ["COMMANDS", "app", "function_of", "run"]

FIRST, FITTED, COMPARING, MORE = (
    "To begin with", "With a fitted model", "Data against data", "Images, and the paper",
)  # fmt: skip
# What a command needs besides PyTorch and NumPy, so that nothing is missing after the work.
READS, DRAWS, TRAINS = (
    ("pyarrow", "pandas"),
    ("matplotlib", "jinja2"),
    ("lightning", "sklearn", "safetensors"),
)
CALLED = {"sklearn": "scikit-learn", "jinja2": "Jinja2"}


class Entry(NamedTuple):
    """Where a command is, and what it needs to be installed."""

    module: str  # of `kermix.cli`
    function: str
    panel: str  # of the help
    needs: tuple[str, ...]


FITS, ASKS, COMPARES = (*READS, *DRAWS, *TRAINS), (*READS, *TRAINS), (*READS, "jinja2")
COMMANDS = {
    "fit": Entry("fit_command", "fit", FIRST, FITS),
    "sample": Entry("sample_command", "sample", FIRST, ASKS),
    "compare": Entry("compare_command", "command", FIRST, COMPARES),
    "explore": Entry("explore_command", "command", FIRST, (*FITS, "starlette", "uvicorn")),
    "impute": Entry("tables_command", "impute", FITTED, ASKS),
    "predict": Entry("classify_command", "predict", FITTED, ASKS),
    "score": Entry("tables_command", "score", FITTED, ASKS),
    "resume": Entry("fit_command", "resume", FITTED, FITS),
    "evaluate": Entry(
        "evaluate_command", "command", COMPARING, (*COMPARES, "sklearn", "safetensors")
    ),
    "drift": Entry("drift_command", "command", COMPARING, COMPARES),
    "schema": Entry("tables_command", "schema", COMPARING, READS),
    "sketch": Entry("sketch_command", "command", COMPARING, (*READS, "safetensors")),
    "spectrum": Entry("spectrum_command", "command", COMPARING, COMPARES),
    "classify": Entry("classify_command", "classify", MORE, FITS),
    "reproduce": Entry("reproduce_command", "command", MORE, FITS),
}


def function_of(name: str) -> Command:
    """The function of a command; its module is imported now."""
    entry = COMMANDS[name]
    function: Command = getattr(
        importlib.import_module(f"kermix.cli.{entry.module}"), entry.function
    )
    return function


class _Loaded(Mapping[str, Any]):
    """Typer's commands by name, each made when it is asked for."""

    def __getitem__(self, name: str) -> Any:
        entry, function = COMMANDS[name], function_of(name)
        single = typer.Typer(add_completion=False, rich_markup_mode="rich")
        single.command(
            name, cls=command_of(function), help=_help(function), rich_help_panel=entry.panel
        )(_complete(name, function))
        return typer.main.get_command(single)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


class _Commands(TyperGroup):
    """The commands, which are loaded when called, and can ask for the words that were typed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _Loaded()})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

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


def _check_extras(command: str) -> None:
    """Refuse a command that would stop half-way, and name all that it lacks at once."""
    missing = [n for n in COMMANDS[command].needs if importlib.util.find_spec(n) is None]
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


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Our own warnings are notes for a user, who does not want to know the line of code."""
    if category.__module__ == KermixError.__module__:
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
