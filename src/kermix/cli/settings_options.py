"""Options made from classes of settings, and help that shows those that apply."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from inspect import Parameter
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import typer
from typer.core import TyperCommand

from kermix.cli.options import MODEL, OUTPUT, TRAINING
from kermix.cli.output import WORDS
from kermix.errors import OptionError
from kermix.settings import Declared, Settings, check_name

if TYPE_CHECKING:
    from typer._click import Context, HelpFormatter

__all__ = ["Kinds", "SettingsOptions", "command_of", "set_options", "value_typed"]

Kinds: TypeAlias = tuple[type[Settings], ...]
BY_SET = typer.Option(
    "--set",
    metavar="NAME=VALUE",
    help="Any other setting (repeatable), such as members=2; the report lists all.",
    rich_help_panel=TRAINING,
)


class SettingsOptions:
    """The options of classes of settings, a group for `takes`: what was given, by name.

    Args:
        classes: The classes. What is rare in them is given by `--set`.
        applying: Those that can matter, by the words that were typed.
        without: Settings that the command has options of its own for.
    """

    def __init__(
        self,
        classes: Kinds,
        applying: Callable[[Sequence[str]], Kinds],
        without: Sequence[str] = (),
    ) -> None:
        self.classes, self._applying, self._without = classes, applying, without
        every = [setting for cls in classes for setting in cls.declared()]
        usual = [s for s in every if not s.about.rare]
        self._declared = {s.name: s for s in (*reversed(every), *reversed(usual))}
        self.names = dict.fromkeys(s.name for s in usual if s.name not in without)
        texts = inspect.signature(self._by_set).parameters.values()
        self.__signature__ = inspect.Signature([*map(self._parameter, self.names), *texts])

    def __call__(self, setting: list[str] | None = None, **options: Any) -> dict[str, Any]:
        """Settings by name, as they were given."""
        found = {name: value for name, value in options.items() if value is not None}
        for name in found:
            if self._declared[name].many:
                found[name] = self._declared[name].read(found[name])
        return found | self._by_set(setting=setting)

    def _by_set(self, *, setting: Annotated[list[str] | None, BY_SET] = None) -> dict[str, Any]:
        return set_options(setting or [], self._declared)

    def _parameter(self, name: str) -> Parameter:
        declared = self._declared[name]
        panel = TRAINING if declared.about.of_training else MODEL
        choices = dict.fromkeys(c for cls in self.classes for c in _choices(cls, name))
        kind: Any = declared.kind
        if declared.many:
            kind = str
        elif choices:
            kind = Literal[tuple(choices)]
        switch = f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}"
        option = typer.Option(
            *([switch] if kind is bool else []),
            help=self.help_of(name, self.classes),
            metavar="NAME" if choices else None,
            rich_help_panel=panel,
        )
        hint = Annotated[kind | None, option]
        return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint)

    def help_of(self, name: str, classes: Kinds) -> str:
        """What an option is for, in these classes; those that agree are named together."""
        having = {cls: _of(cls, name) for cls in classes if _has(cls, name)}
        having = having or {cls: _of(cls, name) for cls in classes if name in cls.names()}
        texts: dict[str, dict[str, list[str]]] = {}
        for cls, declared in having.items():
            usual = texts.setdefault(declared.about.text, {})
            usual.setdefault(declared.usual, []).append(cls.what)
        alone = len(texts) == 1 and len(having) == len(classes)
        parts = []
        for text, usual in texts.items():
            whose = ", ".join(what for names in usual.values() for what in names)
            said = text if alone else f"{whose}: {text[0].lower()}{text[1:]}"
            parts.append(said + _by_default(usual))
        return re.sub(r"`([\w.]+)`", lambda found: self._as_typed(found[1]), " ".join(parts))

    def rare(self, cls: type[Settings]) -> list[str]:
        """The settings of a class that `--set` alone can give."""
        rare = [setting.name for setting in cls.declared() if setting.about.rare]
        return [name for name in rare if name not in self._without]

    def _as_typed(self, name: str) -> str:
        return f"--{name.replace('_', '-')}" if name in self.names else name

    def shown(self, option: Any, words: Sequence[str]) -> Any:
        """An option as the help has it for these words; None if a class that applies lacks it."""
        if option.name not in self.names:
            return option
        classes = self._applying(words)
        if not all(_has(cls, option.name) for cls in classes):
            return None
        told = copy(option)
        told.help = self.help_of(option.name, classes)
        return told


class SettingsCommand(TyperCommand):
    """A command whose help shows, of its settings, those that apply to what was typed."""

    settings: ClassVar[SettingsOptions]

    def format_help(self, ctx: "Context", formatter: "HelpFormatter") -> None:
        told = copy(self)
        options = [self.settings.shown(option, ctx.meta.get(WORDS, ())) for option in self.params]
        told.params = [option for option in options if option is not None]
        super(SettingsCommand, told).format_help(ctx, formatter)

    def get_help_option(self, ctx: "Context") -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = OUTPUT  # not in a panel of its own, before all others
        return option


def command_of(function: Callable[..., None]) -> type[TyperCommand]:
    """The class of command for a function."""
    group = getattr(function, "groups", {}).get("settings")
    if group is None:
        return TyperCommand
    return type(SettingsCommand.__name__, (SettingsCommand,), {"settings": group})


def set_options(texts: Sequence[str], declared: Mapping[str, Declared]) -> dict[str, Any]:
    """Settings given as `--set NAME=VALUE`, by name; values are JSON or Python's, or else text."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise OptionError(f"--set {text}: write NAME=VALUE.")
        name = name.strip().replace("-", "_")
        check_name(name, declared)
        found[name] = declared[name].read(value)
    return found


def value_typed(words: Sequence[str], option: str) -> str | None:
    """What was typed after an option, the last time; None if it was not typed.

    Example:
        >>> value_typed(["fit", "a.csv", "--model=table", "--help"], "--model")
        'table'
    """
    value = None
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == option:
            value = following
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value


def _of(cls: type[Settings], name: str) -> Declared:
    return next(setting for setting in cls.declared() if setting.name == name)


def _has(cls: type[Settings], name: str) -> bool:
    """Whether a setting of a class has an option."""
    return name in cls.names() and not _of(cls, name).about.rare


def _choices(cls: type[Settings], name: str) -> Sequence[str]:
    return _of(cls, name).choices if _has(cls, name) else ()


def _by_default(usual: Mapping[str, Sequence[str]]) -> str:
    """The end of a text: what is usual, and for whom where that differs."""
    told = {words: names for words, names in usual.items() if words}
    if not told:
        return ""
    if len(usual) == 1:
        return f" By default {next(iter(told))}."
    each = (f"{words} ({', '.join(names).lower()})" for words, names in told.items())
    return f" By default {', '.join(each)}."
