"""Options that commands share: how a table is read, how a training is run and its end shown."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

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

if TYPE_CHECKING:
    from kermix.runs.run import Run

__all__ = [
    "AS_FOUND",
    "MODEL",
    "OUTPUT",
    "STRICT",
    "TABLES",
    "TRAINING",
    "WHAT",
    "WHERE",
    "WORDS",
    "Command",
    "DataRoot",
    "Device",
    "ImageSize",
    "Quick",
    "RunOut",
    "check_there",
    "given",
    "reads_tables",
    "takes",
    "train_and_finish",
    "typed_command",
]

AS_FOUND = Reading()
STRICT = typer.Option(
    "--strict",
    help="Fail if the columns of the tables differ. By default those that both have are compared.",
)
GROUP = "How tables are read"
WHAT, MODEL, TRAINING, OUTPUT, WHERE = "What", "Model", "Training", "Output", "Where it runs"
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
            text="Encoding of a text file. By default UTF-8, else Windows-1252 or Latin-1.",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        _option(
            "--header/--no-header",
            text="Whether the first line of a text file holds column names.",
        ),
    ] = None,
    missing: Annotated[
        list[str] | None,
        _option(
            "--missing",
            text="A cell that stands for a missing value, beside empty ones, NA and the like "
            "(repeatable).",
        ),
    ] = None,
    sheet: Annotated[
        str | None,
        _option("--sheet", text="Sheet of an Excel file. By default that with most cells."),
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
        tuple(missing or ()),
        sheet,
    )


def check_there(*sources: str | Path | None) -> None:
    """Refuse files that are not there, before PyTorch is imported, which takes seconds."""
    for source in sources:
        if source is None or is_remote(str(source)) or is_pattern(source):
            continue
        path = Path(source)
        if path.suffix.lower() in (*READABLE, *PACKED, ".sketch") and not path.is_dir():
            check_file(path)


Command: TypeAlias = Callable[..., None]
# Options of several commands: one name, one text.
DataRoot: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=WHAT,
        help="Folder with the files of mnist, cifar10 or celeba. By default mnist and cifar10 are "
        "downloaded.",
    ),
]
ImageSize: TypeAlias = Annotated[
    int | None,
    typer.Option(rich_help_panel=WHAT, help="Resize images to this side length, in pixels."),
]
RunOut: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=OUTPUT,
        help="Run folder, which must not exist. By default runs/NAME.",
    ),
]
Quick: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--quick",
        rich_help_panel=TRAINING,
        help="A first look in seconds: a small model, few steps.",
    ),
]
Device: TypeAlias = Annotated[
    str, typer.Option(rich_help_panel=WHERE, help="auto, cpu, cuda or mps.")
]


def takes(**groups: Callable[..., Any]) -> Callable[[Command], Command]:
    """Give a command groups of options, each of which it takes as one argument.

    The options of a group are the parameters of a function, and the argument is what it makes of
    them. An option that the command has itself, by the same name, remains its own.
    """

    def with_groups(command: Command) -> Command:
        own = inspect.signature(command)
        names: dict[str, list[str]] = {}
        parameters: list[inspect.Parameter] = []
        for place in own.parameters.values():
            if place.name not in groups:
                parameters.append(place)
                continue
            options = inspect.signature(groups[place.name]).parameters.values()
            added = [option for option in options if option.name not in own.parameters]
            names[place.name] = [option.name for option in added]
            parameters += added

        @functools.wraps(command)
        def with_options(**options: Any) -> None:
            for group, own_names in names.items():
                said = {name: options.pop(name) for name in own_names if name in options}
                options[group] = groups[group](**said)
            command(**options)

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        with_options.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
        with_options.groups = {**getattr(command, "groups", {}), **groups}  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        return with_options

    return with_groups


reads_tables = takes(reading=_reading)


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


def given(**options: Any) -> dict[str, Any]:
    """The options that were given, by name."""
    return {name: value for name, value in options.items() if value is not None}


def typed_command(context: typer.Context) -> list[str]:
    """The words of the command that the user typed."""
    return ["kermix", *context.meta[WORDS]]
