"""Help that fits a screen: of commands with many options what each is for, in a sentence."""

import re
from collections.abc import Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperCommand

from kermix.cli.output import WORDS

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

__all__ = ["ALL", "GROUP", "WHERE", "ShortHelpCommand", "first_sentence"]

ALL = "--help-all"
GROUP, WHERE = "How tables are read", "Where it runs"
MANY = 9  # options, beyond which not all of them fit a screen in full
FAMILIES = re.compile(r"^(Mixtures|Images|Table model|Tables|Table)[\w, ]*: ")


class ShortHelpCommand(TyperCommand):
    """A command whose help is short, where it has many options, and complete for `--help-all`."""

    def get_help_option_names(self, ctx: "Context") -> list[str]:
        """`--help`, and that of all options."""
        return [*super().get_help_option_names(ctx), ALL]

    def told_for(self, words: Sequence[str]) -> list[Any]:
        """The arguments and options that the help shows."""
        return list(self.params)

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        """Write the help, short or in full."""
        words = ctx.meta.get(WORDS, ())
        told = self.told_for(words)
        if ALL in words or len(told) <= MANY:
            whole = copy(self)
            whole.params = told
            super(ShortHelpCommand, whole).format_help(ctx, formatter)
        else:
            self._short(ctx, told)

    def _short(self, ctx: "Context", told: Sequence[Any]) -> None:
        """A line for each option, but for those of how tables are read and where it runs."""
        console = Console()
        pieces = " ".join(self.collect_usage_pieces(ctx))
        console.print(f"\nUsage: {ctx.command_path} {pieces}\n", markup=False, highlight=False)
        console.print((self.help or "").split("\n\n")[0], markup=False, highlight=False)
        shown = [p for p in told if _panel(p) not in (GROUP, WHERE)]
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(no_wrap=True)
        for panel in dict.fromkeys(map(_panel, shown)):
            lines.add_row(f"[bold]{panel}[/]")
            for one in shown:
                if _panel(one) == panel:
                    lines.add_row(escape(f"  {_typed(one)}"), escape(first_sentence(one.help)))
        console.print(lines)
        for panel in (GROUP, WHERE):
            names = [p.opts[0] for p in told if _panel(p) == panel]
            if names:
                console.print(f"[bold]{panel}[/]: {', '.join(names)}", highlight=False)
        console.print(f"Every option in full: {ctx.command_path} {ALL}", highlight=False)


def first_sentence(text: str | None) -> str:
    """The beginning of a text, without the models it is of: up to a colon, a bracket or the end.

    Example:
        >>> first_sentence("Table model: whether to hold rows in memory (or not). By default off.")
        'Whether to hold rows in memory.'
    """
    said = " ".join((text or "").split())
    whole = FAMILIES.sub("", said)
    first = re.split(r"\s\(|[:;?]\s|\.(?:\s|$)", whole)[0]
    if not first:
        return ""
    return f"{first if whole == said else first[0].upper() + first[1:]}."


def _panel(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return "Arguments"
    return getattr(parameter, "rich_help_panel", None) or "Options"


def _typed(parameter: Any) -> str:
    """What is typed: the name, and what may stand for its value."""
    if parameter.param_type_name == "argument":
        return str(parameter.metavar or parameter.name)
    value = "" if parameter.is_flag else f" {parameter.metavar or 'VALUE'}"
    return f"{'/'.join([*parameter.opts[:1], *parameter.secondary_opts[:1]])}{value}"
