"""The page of every command and option, from the command line itself: docs/commands.md.

`python scripts/commands_page.py` writes it; a test compares it with what is committed.
"""

import inspect
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args, get_origin

from typer.models import ArgumentInfo

from kermix.cli.app import COMMANDS, function_of

PAGE = Path(__file__).parent.parent / "docs" / "commands.md"
HEAD = """# Commands

Every command and option of `kermix`, from the program itself. `kermix COMMAND --help-all` shows
the same in a terminal, and `--help` a line for each option.
"""


def page() -> str:
    """The whole page."""
    lines = [HEAD, "| command | what it does |", "|---|---|"]
    functions = {name: function_of(name) for name in COMMANDS}
    for name, function in functions.items():
        first = _plain(inspect.getdoc(function) or "").split("\n")[0]
        lines.append(f"| [`kermix {name}`](#kermix-{name}) | {first} |")
    for name, function in functions.items():
        lines += ["", f"## kermix {name}", "", _plain(inspect.getdoc(function) or ""), ""]
        lines += [*_parameters(name, function), *_by_set(function)]
    return "\n".join(lines).rstrip() + "\n"


def _parameters(name: str, function: Callable[..., None]) -> list[str]:
    known = [p for p in inspect.signature(function, eval_str=True).parameters.values()
             if hasattr(p.annotation, "__metadata__")]  # fmt: skip
    told = [(p, p.annotation.__metadata__[0]) for p in known]
    arguments = [(p, info) for p, info in told if isinstance(info, ArgumentInfo)]
    options = [(p, info) for p, info in told if not isinstance(info, ArgumentInfo)]
    words = [_name(p, info) if p.default is p.empty else f"[{_name(p, info)}]"
             for p, info in arguments]  # fmt: skip
    lines = ["```text", " ".join(["kermix", name, *words, "[OPTIONS]"]), "```"]
    if arguments:
        lines += ["", "| argument | |", "|---|---|"]
        lines += [f"| `{_name(p, info)}` | {_plain(info.help or '')} |" for p, info in arguments]
    for panel in dict.fromkeys(info.rich_help_panel for _, info in options):
        lines += ["", f"| {panel or 'option'} | |", "|---|---|"]
        lines += [f"| {_option(p, info)} | {_plain(info.help or '')}{_default(p)} |"
                  for p, info in options if info.rich_help_panel == panel]  # fmt: skip
    return lines


def _by_set(function: Callable[..., None]) -> list[str]:
    """The settings without an option."""
    group = getattr(function, "groups", {}).get("settings")
    lines = []
    for part in () if group is None else group.parts:
        if rare := group.rare(part):
            lines += ["", f"| {part.what}: by `--set NAME=VALUE` | |", "|---|---|"]
            lines += [f"| `{name}` | {_plain(group.help_of(name, (part,)))} |" for name in rare]
    return lines


def _name(parameter: inspect.Parameter, info: Any) -> str:
    many = get_origin(_type(parameter)) is list
    return str(info.metavar or parameter.name.upper()) + ("..." if many else "")


def _option(parameter: inspect.Parameter, info: Any) -> str:
    # Of an annotation, Typer takes the first name for a default.
    said = (info.default, *(info.param_decls or ()))
    names = [n for n in said if isinstance(n, str) and n.startswith("-")]
    kind, usual = _type(parameter), f"--{parameter.name.replace('_', '-')}"
    if kind is bool:
        return ", ".join(f"`{n}`" for n in names or [f"{usual}/--no-{usual[2:]}"])
    names = names or [usual]
    many = get_origin(kind) is list
    inner = get_args(kind)[0] if many else kind
    shown = {int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(inner, "TEXT")
    return ", ".join(f"`{n}`" for n in names) + f" `{info.metavar or shown}`"


def _type(parameter: inspect.Parameter) -> Any:
    """The type without None."""
    kind = get_args(parameter.annotation)[0]
    parts = [part for part in get_args(kind) if part is not types.NoneType]
    return parts[0] if types.NoneType in get_args(kind) else kind


def _default(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if value is parameter.empty:
        return " Required."
    return (
        "" if value is None or isinstance(value, bool) or value == "" else f" Default: `{value}`."
    )


def _plain(text: str) -> str:
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    return "\n\n".join(paragraphs).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    PAGE.write_text(page())
