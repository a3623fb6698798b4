"""How commands run a training and show what came of it."""

import json
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from kermix.cli.output import end_stopped_run, show_run
from kermix.errors import OptionError

if TYPE_CHECKING:
    from kermix.runs.run import Run

__all__ = ["set_options", "train_and_finish", "typed_options"]

PYTHONS = {"True": True, "False": False, "None": None}  # JSON has other words for them


def train_and_finish(run: "Run", data: Any) -> None:
    """Train with a progress bar, write the report and show its numbers; or say how to go on."""
    from kermix.runs.training import complete

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
