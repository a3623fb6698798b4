"""Options that commands share: how a table is read, how a training is run and its end shown."""

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kermix.cli.output import WORDS, end_stopped_run, show_run, split_names
from kermix.data.readers.common import (
    KINDS,
    PACKED,
    READABLE,
    Reading,
    check_file,
    is_pattern,
    is_remote,
)
from kermix.errors import OptionError

if TYPE_CHECKING:
    from kermix.runs.run import Run

__all__ = [
    "AS_FOUND",
    "READING",
    "STRICT",
    "TABLES",
    "WORDS",
    "check_there",
    "reads_tables",
    "set_options",
    "train_and_finish",
    "typed_command",
    "typed_options",
]

AS_FOUND = Reading()
STRICT = typer.Option(
    "--strict",
    help="Fail if the columns of the tables differ. By default those that both have are compared.",
)
GROUP = "How tables are read"
TABLES = (
    ".csv, .tsv (also .gz, .zst, .bz2), .parquet, .feather, .jsonl, .xlsx, .npy, .npz"  # for help
)
DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}


def _option(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=GROUP)


def _reading(
    columns: Annotated[
        str | None,
        _option("--columns", text="Columns to use, separated by commas. By default all."),
    ] = None,
    exclude: Annotated[
        str | None, _option("--exclude", text="Columns to ignore, separated by commas.")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        _option(
            "--kind",
            text="Override the detected kind of a column: NAME=KIND (repeatable), where KIND is "
            f"one of {', '.join(KINDS)}.",
        ),
    ] = None,
    delimiter: Annotated[
        str | None,
        _option("--delimiter", text="Field delimiter of a text file ('tab' for a tab)."),
    ] = None,
    decimal: Annotated[
        str | None, _option("--decimal", text="Decimal mark of a text file: '.' or ','.")
    ] = None,
    encoding: Annotated[
        str | None,
        _option(
            "--encoding",
            text="Encoding of a text file. By default UTF-8, or Latin-1 if that fails.",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        _option(
            "--header/--no-header",
            text="Whether the first line of a text file holds column names.",
        ),
    ] = None,
) -> Reading:
    """The options as one object."""
    given = {}
    for text in kinds or []:
        name, equals, kind = text.rpartition("=")
        if not equals or kind not in KINDS:
            raise typer.BadParameter(f"--kind {text}: write NAME=KIND, with {', '.join(KINDS)}.")
        given[name] = kind
    chosen = split_names(columns)
    return Reading(
        None if chosen is None else tuple(chosen),
        tuple(split_names(exclude, "--exclude") or ()),
        given,
        None if delimiter is None else DELIMITERS.get(delimiter, delimiter),
        decimal,
        encoding,
        header,
    )


def check_there(*sources: str | Path | None) -> None:
    """Refuse files that are not there, before PyTorch is imported, which takes seconds."""
    for source in sources:
        if source is None or is_remote(str(source)) or is_pattern(source):
            continue
        path = Path(source)
        if path.suffix.lower() in (*READABLE, *PACKED, ".sketch") and not path.is_dir():
            check_file(path)


OPTIONS = tuple(inspect.signature(_reading).parameters.values())
READING = tuple(option.name for option in OPTIONS)


def reads_tables(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command these options; it takes them as one argument, `reading`.

    An option that it has itself, by the same name, remains its own.
    """
    own = inspect.signature(command)
    places = list(own.parameters.values())
    at = [p.name for p in places].index("reading")
    added = [option for option in OPTIONS if option.name not in own.parameters]
    parameters = [*places[:at], *added, *places[at + 1 :]]
    names = [option.name for option in added]

    @functools.wraps(command)
    def with_options(*arguments: Any, **options: Any) -> None:
        said = {name: options.pop(name) for name in names if name in options}
        command(*arguments, reading=_reading(**said), **options)

    with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_options


PYTHONS = {"True": True, "False": False, "None": None}  # JSON has other words for them


def train_and_finish(run: "Run", data: Any) -> None:
    """Train with a progress bar, write the report and show its numbers; or say how to go on."""
    from kermix.runs.train import complete

    try:
        rows = complete(run, data, show=True)
    except KeyboardInterrupt as stopped:
        end_stopped_run(run.folder, getattr(stopped, "step", None))
    finally:
        Console().show_cursor()  # a rank that is ended may have hidden it
    if rows is not None:
        show_run(rows, run.folder, run.table_shown())


def typed_options(context: typer.Context) -> dict[str, Any]:
    """The options that the user typed, by name."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = [n for n, source in sources.items() if source and source.name == "COMMANDLINE"]
    return {name: context.params[name] for name in typed}


def typed_command(context: typer.Context) -> list[str]:
    """The words of the command that the user typed."""
    return ["kermix", *context.meta[WORDS]]


def set_options(texts: list[str]) -> dict[str, Any]:
    """Settings given as `--set NAME=VALUE`, by name; values are JSON or Python's, or else text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--set {text}: write NAME=VALUE.")
        name = name.strip().replace("-", "_")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = PYTHONS.get(value.strip(), value.strip())
        if isinstance(found[name], list):
            found[name] = tuple(found[name])
    return found
