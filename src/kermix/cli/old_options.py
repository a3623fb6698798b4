"""Options that have new names: the old ones still work, and a note names the new one."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rich.console import Console
from typer.core import TyperCommand

from kermix.cli.output import print_notes
from kermix.environment import speaks
from kermix.errors import OptionError
from kermix.renamed import RENAMED, current_names

__all__ = ["CommandWithOldOptions", "note_old_names"]

OPTIONS = {f"--{o.replace('_', '-')}": f"--{n.replace('_', '-')}" for o, n in RENAMED.items()}


class CommandWithOldOptions(TyperCommand):
    """A command that takes old names of its options; its help shows the new ones alone."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Replace old names before they are parsed."""
        known = {option for parameter in self.params for option in parameter.opts}
        return super().parse_args(ctx, _with_new_options(args, known))


def note_old_names(settings: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """Settings of `--set` under their current names, with a note for each old one."""
    found = current_names(settings, known)
    _note({name: RENAMED[name] for name in settings if name not in found})
    return found


def _with_new_options(args: Sequence[str], known: Collection[str]) -> list[str]:
    found: list[str] = []
    old: dict[str, str] = {}
    end = args.index("--") if "--" in args else len(args)
    for arg in args[:end]:
        name, equals, value = arg.partition("=")
        new = OPTIONS.get(name)
        if new is not None and new in known and name not in known:
            old[name] = new
            arg = f"{new}{equals}{value}"
        found.append(arg)
    given = {arg.partition("=")[0] for arg in args[:end]}
    for name, new in old.items():
        if new in given:
            raise OptionError(f"{name} is the old name of {new}; give {new} alone.")
    _note(old)
    return [*found, *args[end:]]


def _note(names: Mapping[str, str]) -> None:
    if names and speaks():
        said = [f"{old} is now called {new}" for old, new in names.items()]
        print_notes([f"{'; '.join(said)}. Old names go in version 0.3."], Console(stderr=True))
