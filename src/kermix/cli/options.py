"""Options that commands share: how a table is read, how a training is run and its end shown.

Those of a training are made from classes of settings; its help shows those that apply.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import typer
from rich.console import Console

from kermix.cli.output import (
    DIFFERENT,
    WORDS,
    check_output,
    end_stopped_run,
    print_json,
    saved_page,
    show_run,
    split_names,
)
from kermix.cli.short_help import GROUP, WHERE, ShortHelpCommand
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
from kermix.settings import Declared, SettingsPart, check_name

if TYPE_CHECKING:
    from typer._click import Context

    from kermix.pages.page import Page
    from kermix.runs.run import Run

__all__ = [
    "AS_FOUND",
    "MODEL",
    "OUTPUT",
    "TRAINING",
    "WHAT",
    "WHERE",
    "WORDS",
    "AnswerOptions",
    "Command",
    "DataRoot",
    "Device",
    "ImageSize",
    "Parts",
    "Quick",
    "RunOut",
    "SettingsOptions",
    "SignificanceOptions",
    "Strict",
    "check_there",
    "command_of",
    "given",
    "reads_tables",
    "set_options",
    "takes",
    "train_and_finish",
    "typed_command",
    "value_typed",
]

AS_FOUND = Reading()
WHAT, MODEL, TRAINING, OUTPUT = "What", "Model", "Training", "Output"
DELIMITERS = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";"}


def _option(*names: str, text: str) -> Any:
    return typer.Option(*names, help=text, rich_help_panel=GROUP)


@dataclass(frozen=True)
class TableOptions:
    """How tables are read, as it was typed."""

    columns: Annotated[
        str | None,
        _option("--columns", text="Columns to use, separated by commas. By default all."),
    ] = None
    exclude: Annotated[
        str | None, _option("--exclude", text="Columns to ignore, separated by commas.")
    ] = None
    kinds: Annotated[
        list[str] | None,
        _option(
            "--kind",
            text="Override the detected kind of a column: NAME=KIND (repeatable), where KIND is "
            f"one of {', '.join(KINDS)}.",
        ),
    ] = None
    delimiter: Annotated[
        str | None,
        _option("--delimiter", text="Field delimiter of a text file ('tab' for a tab)."),
    ] = None
    decimal: Annotated[
        str | None, _option("--decimal", text="Decimal mark of a text file: '.' or ','.")
    ] = None
    encoding: Annotated[
        str | None,
        _option(
            "--encoding",
            text="Encoding of a text file. By default UTF-8, else Windows-1252 or Latin-1.",
        ),
    ] = None
    header: Annotated[
        bool | None,
        _option(
            "--header/--no-header",
            text="Whether the first line of a text file holds column names.",
        ),
    ] = None
    missing: Annotated[
        list[str] | None,
        _option(
            "--missing",
            text="A cell that stands for a missing value, beside empty ones, NA and the like "
            "(repeatable).",
        ),
    ] = None
    sheet: Annotated[
        str | None,
        _option("--sheet", text="Sheet of an Excel file. By default that with most cells."),
    ] = None

    def reading(self) -> Reading:
        """The options as one object."""
        given = {}
        for text in self.kinds or []:
            name, equals, kind = text.rpartition("=")
            if not equals or kind not in KINDS:
                raise typer.BadParameter(
                    f"--kind {text}: write NAME=KIND, with {', '.join(KINDS)}."
                )
            given[name] = kind
        chosen = split_names(self.columns)
        return Reading(
            None if chosen is None else tuple(chosen),
            tuple(split_names(self.exclude, "--exclude") or ()),
            given,
            None if self.delimiter is None else DELIMITERS.get(self.delimiter, self.delimiter),
            self.decimal,
            self.encoding,
            self.header,
            tuple(self.missing or ()),
            self.sheet,
        )


@dataclass(frozen=True)
class SignificanceOptions:
    """How it is tested whether data differ."""

    permutations: Annotated[
        int | None,
        typer.Option(
            help="Number of permutations for each p-value. By default 500, or as many as the "
            "level and the number of tests need."
        ),
    ] = None
    level: Annotated[
        float,
        typer.Option(
            help="Significance level: the largest p-value, corrected if there are several, that "
            "counts as a difference."
        ),
    ] = 0.05
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0
    fail_if_different: Annotated[
        bool,
        typer.Option(
            "--fail-if-different", help=f"Exit with status {DIFFERENT} if there is a difference."
        ),
    ] = False


@dataclass(frozen=True)
class AnswerOptions:
    """Where an answer goes, beside the terminal."""

    report_path: Annotated[
        Path | None,
        typer.Option("--report", "-o", help="Write a report page with figures to this file."),
    ] = None
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False

    def __post_init__(self) -> None:
        if self.report_path is not None:
            check_output(self.report_path, ".html", ".htm")

    def give(
        self,
        context: typer.Context,
        page: Callable[[], "Page"],
        content: Callable[[], Any],
        show: Callable[[], None],
    ) -> None:
        """Write the page, if one is asked for, and print JSON or what people read."""
        with saved_page(context, page, self.report_path, quiet=self.as_json):
            if self.as_json:
                print_json(content())
            else:
                show()


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
Strict: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail if the columns of the tables differ. By default those that both have are "
        "compared.",
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


def _reading(**options: Any) -> Reading:
    return TableOptions(**options).reading()


_reading.__signature__ = inspect.signature(TableOptions)  # type: ignore[attr-defined]
reads_tables = takes(reading=_reading)


# Options made from classes of settings, and help that shows those that apply.
Parts: TypeAlias = tuple[SettingsPart, ...]
BY_SET = typer.Option(
    "--set",
    metavar="NAME=VALUE",
    help="Any other setting (repeatable), such as members=2; the report lists all.",
    rich_help_panel=TRAINING,
)


class SettingsOptions:
    """The options of classes of settings, a group for `takes`: what was given, by name.

    Args:
        parts: What families of models have. What is rare there is given by `--set`.
        applying: Those that can matter, by the words that were typed.
        without: Settings that the command has options of its own for.
    """

    def __init__(
        self,
        parts: Parts,
        applying: Callable[[Sequence[str]], Parts],
        without: Sequence[str] = (),
    ) -> None:
        self.parts, self._applying, self._without = parts, applying, without
        every = [setting for part in parts for setting in part.settings]
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
        choices = dict.fromkeys(c for part in self.parts for c in _choices(part, name))
        kind: Any = declared.kind
        if declared.many:
            kind = str
        elif choices:
            kind = Literal[tuple(choices)]
        switch = f"--{name.replace('_', '-')}/--no-{name.replace('_', '-')}"
        option = typer.Option(
            *([switch] if kind is bool else []),
            help=self.help_of(name, self.parts),
            metavar="NAME" if choices else None,
            rich_help_panel=panel,
        )
        hint = Annotated[kind | None, option]
        return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=hint)

    def help_of(self, name: str, parts: Parts) -> str:
        """What an option is for, in these families; those that agree are named together."""
        having = {part.what: _of(part, name) for part in parts if _has(part, name)}
        having = having or {part.what: _of(part, name) for part in parts if name in part.names}
        texts: dict[str, dict[str, list[str]]] = {}
        for what, declared in having.items():
            usual = texts.setdefault(declared.about.text, {})
            usual.setdefault(declared.usual, []).append(what)
        alone = len(texts) == 1 and len(having) == len(parts)
        told = []
        for text, usual in texts.items():
            whose = ", ".join(what for names in usual.values() for what in names)
            said = text if alone else f"{whose}: {text[0].lower()}{text[1:]}"
            told.append(said + _by_default(usual))
        return re.sub(r"`([\w.]+)`", lambda found: self._as_typed(found[1]), " ".join(told))

    def rare(self, part: SettingsPart) -> list[str]:
        """The settings of a family that `--set` alone can give."""
        rare = [setting.name for setting in part.settings if setting.about.rare]
        return [name for name in rare if name not in self._without]

    def _as_typed(self, name: str) -> str:
        return f"--{name.replace('_', '-')}" if name in self.names else name

    def shown(self, option: Any, words: Sequence[str]) -> Any:
        """An option as the help has it for these words; None if a family that applies lacks it."""
        if option.name not in self.names:
            return option
        parts = self._applying(words)
        if not all(_has(part, option.name) for part in parts):
            return None
        told = copy(option)
        told.help = self.help_of(option.name, parts)
        return told


class SettingsCommand(ShortHelpCommand):
    """A command whose help shows, of its settings, those that apply to what was typed."""

    settings: ClassVar[SettingsOptions]

    def told_for(self, words: Sequence[str]) -> list[Any]:
        """Arguments and options, with what they mean for the families that apply."""
        options = [self.settings.shown(option, words) for option in self.params]
        return [option for option in options if option is not None]

    def get_help_option(self, ctx: "Context") -> Any:
        option = super().get_help_option(ctx)
        if option is not None:
            option.rich_help_panel = OUTPUT  # not in a panel of its own, before all others
        return option


def command_of(function: Callable[..., None]) -> type[ShortHelpCommand]:
    """The class of command for a function."""
    group = getattr(function, "groups", {}).get("settings")
    if group is None:
        return ShortHelpCommand
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


def _of(part: SettingsPart, name: str) -> Declared:
    return next(setting for setting in part.settings if setting.name == name)


def _has(part: SettingsPart, name: str) -> bool:
    """Whether a setting of a family has an option."""
    return name in part.names and not _of(part, name).about.rare


def _choices(part: SettingsPart, name: str) -> Sequence[str]:
    return _of(part, name).choices if _has(part, name) else ()


def _by_default(usual: Mapping[str, Sequence[str]]) -> str:
    """The end of a text: what is usual, and for whom where that differs."""
    told = {words: names for words, names in usual.items() if words}
    if not told:
        return ""
    if len(usual) == 1:
        return f" By default {next(iter(told))}."
    each = (f"{words} ({', '.join(names).lower()})" for words, names in told.items())
    return f" By default {', '.join(each)}."


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
