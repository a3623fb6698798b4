"""The options of every command that reads a table: what its columns are and how it is written."""

from typing import Annotated, Any, TypeAlias

import typer

from kermix.cli.output import split_names
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.kinds import KINDS

__all__ = [
    "Columns",
    "Decimal",
    "Delimiter",
    "Encoding",
    "Exclude",
    "Header",
    "Kinds",
    "reading_of",
    "reading_options",
]

GROUP = "How tables are read"


def _option(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=GROUP)


Columns: TypeAlias = Annotated[
    str | None,
    _option("--columns", text="Columns to use, separated by commas; all by default."),
]
Exclude: TypeAlias = Annotated[
    str | None, _option("--exclude", text="Columns to leave aside, separated by commas.")
]
Kinds: TypeAlias = Annotated[
    list[str] | None,
    _option(
        "--kind",
        text="What a column is, where you know better: NAME=KIND, again for each; one of "
        f"{', '.join(KINDS)}.",
    ),
]
Delimiter: TypeAlias = Annotated[
    str | None, _option("--delimiter", text="Between cells of a text file ('tab' for a tab).")
]
Decimal: TypeAlias = Annotated[str | None, _option("--decimal", text="'.' or ',' in a text file.")]
Encoding: TypeAlias = Annotated[
    str | None, _option("--encoding", text="Of a text file: UTF-8, or Latin-1 where that fails.")
]
Header: TypeAlias = Annotated[
    bool | None,
    _option("--header/--no-header", text="Whether the first line of a text file holds names."),
]


def reading_options(
    exclude: str | None,
    kinds: list[str] | None,
    delimiter: str | None,
    decimal: str | None,
    encoding: str | None,
    header: bool | None,
) -> dict[str, Any]:
    """The options as arguments of functions."""
    given = {}
    for text in kinds or []:
        name, equals, kind = text.rpartition("=")
        if not equals or kind not in KINDS:
            raise typer.BadParameter(f"--kind {text}: write NAME=KIND, with {', '.join(KINDS)}.")
        given[name] = kind
    named = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}
    return {
        "exclude": tuple(split_names(exclude) or ()),
        "kinds": given,
        "delimiter": None if delimiter is None else named.get(delimiter, delimiter),
        "decimal": decimal,
        "encoding": encoding,
        "header": header,
    }


def reading_of(columns: str | None, options: dict[str, Any]) -> Reading:
    """The same as one object."""
    names = split_names(columns)
    return Reading(None if names is None else tuple(names), **options)
