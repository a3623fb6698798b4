"""What commands share: tables on the terminal, JSON, and where results are."""

import csv
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kermix.errors import OptionError, RunError
from kermix.files import finite_json

if TYPE_CHECKING:
    from kermix.pages.page import Page, Repeat
    from kermix.runs.run import Run, Shown

__all__ = [
    "DIFFERENT",
    "INTERRUPTED",
    "WORDS",
    "check_output",
    "check_writable",
    "counting",
    "end_stopped_run",
    "notes_to",
    "parse_variances",
    "plain",
    "print_json",
    "print_lines",
    "print_notes",
    "print_sentence",
    "print_table",
    "saved_page",
    "say",
    "show_run",
    "split_names",
    "written_path",
]

WORDS = "kermix.words"  # where the context of a command has the words that were typed
DIFFERENT = 3  # the status of --fail-if-different
INTERRUPTED = 130  # the status of a program that was stopped by Ctrl-C
CONTROLS = {c: f"\\x{c:02x}" for c in (*range(9), *range(11, 32), *range(127, 160))}


def plain(text: str) -> str:
    r"""Text with control characters written out: names in a file do not steer the terminal.

    Example:
        >>> print(plain("price \x1b[2J"))
        price \x1b[2J
    """
    return text.translate(CONTROLS)


def print_json(content: Any) -> None:
    """Print pure JSON, nothing else; numbers that are not finite become null."""
    sys.stdout.write(json.dumps(finite_json(content), indent=1, allow_nan=False) + "\n")


def print_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str] = ()
) -> None:
    """Print a table, without columns that are empty, and notes below it."""
    columns, rows = _filled(columns, rows)
    console = Console()
    table = Table(
        title=escape(plain(title)),
        title_justify="left",
        box=SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
    )
    cells = [(column, *(row[k] for row in rows)) for k, column in enumerate(columns)]
    widths = _widths(cells, console.width - 2 * (len(columns) - 1))
    for k, (column, width) in enumerate(zip(columns, widths, strict=True)):
        justify: Literal["left", "right"] = "left" if k == 0 else "right"
        table.add_column(escape(column), justify=justify, overflow="fold", width=width)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    console.print(table)
    for note in notes:
        console.print(plain(note), markup=False, highlight=False)


def _filled(
    columns: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]]]:
    """The first column and those that have something in a row, as plain text."""
    kept = [k for k in range(len(columns)) if k == 0 or any(row[k] for row in rows)]
    return [plain(columns[k]) for k in kept], [[plain(row[k]) for k in kept] for row in rows]


def print_sentence(main: str = "", rest: str = "") -> None:
    """Print an answer in bold, and what else there is to say in a line of its own; or nothing."""
    console = Console()
    if not main and not rest:
        console.print()
    if main:
        console.print(f"[bold]{escape(plain(main))}[/]", highlight=False)
    if rest:
        console.print(escape(plain(rest)), highlight=False)


def print_lines(lines: Sequence[str], most: int = 40, few: int = 10) -> None:
    """Print lines for another program, all of them; for a person on a terminal, the first few."""
    shown = [plain(line) for line in lines] if sys.stdout.isatty() else lines
    if sys.stdout.isatty() and len(lines) > most:
        shown = [
            *shown[:few],
            f"... and {len(lines) - few:,} more; write all of them with -o FILE",
        ]
    sys.stdout.write("".join(f"{line}\n" for line in shown))
    sys.stdout.flush()


def print_notes(notes: Iterable[str], console: Console | None = None) -> None:
    """Print what a user should know, one line each."""
    for note in notes:
        (console or Console()).print("[yellow]note:[/]", escape(plain(note)), highlight=False)


def _widths(columns: Sequence[Sequence[str]], room: int, shortest: int = 12) -> list[int | None]:
    """Widths that break lines between words; a very long name gives way where nothing else can."""
    widths = [max(map(len, cells)) for cells in columns]
    least = [max((len(w) for cell in cells for w in cell.split()), default=0) for cells in columns]
    for lowest in (least, [min(least[0], shortest), *least[1:]]):
        for k in (*range(1, len(widths)), 0):
            widths[k] -= min(max(0, sum(widths) - room), widths[k] - lowest[k])
    return [*widths] if sum(widths) <= room else [None] * len(widths)


def check_output(path: Path, *kinds: str) -> None:
    """Refuse a file that must not or cannot be written, before the work and not after it.

    Args:
        path: The file that was asked for.
        kinds: How its name may end; any way if none is given.
    """
    if path.is_dir():
        raise OptionError(f"{path} is a folder; give the name of a file.")
    if kinds and path.suffix.lower() not in kinds:
        either = " or ".join(filter(None, (", ".join(kinds[:-1]), kinds[-1])))
        raise OptionError(f"{path}: the name must end in {either}.")
    if os.path.lexists(path):
        raise RunError(f"{path} exists and will not be overwritten; choose another name.")
    place = next(p for p in path.absolute().parents if p.exists())
    if not place.is_dir() or not os.access(place, os.W_OK):
        raise RunError(
            f"{path}: cannot be written; {place} is not a folder that you can write to."
        )


@contextmanager
def saved_page(
    context: typer.Context, make: "Callable[[], Page]", path: Path | None, quiet: bool
) -> Iterator[None]:
    """Write a page before the answer is printed, and say where it is as the last line.

    Whoever reads the first lines alone, `| head`, closes the output, and has the page already.
    """
    if path is not None:
        make().repeated_by(_repeat(context)).save(path)
    yield
    if path is not None and not quiet:
        Console().print(f"Report: {path}", markup=False, highlight=False, soft_wrap=True)


def _repeat(context: typer.Context) -> "Repeat":
    """How a command is repeated."""
    from kermix.environment import environment
    from kermix.pages.page import Repeat

    made = {**environment(), "directory": str(Path.cwd())}
    command = shlex.join(["kermix", *context.meta[WORDS]])
    return Repeat.of(command, made, seed=context.params.get("seed"))


def parse_variances(text: str) -> list[float] | str:
    """`auto`, a number, or numbers separated by commas."""
    if text == "auto":
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: give 'auto', a variance, or several separated by commas."
        ) from None


def split_names(text: str | None, option: str = "--columns") -> list[str] | None:
    """Names separated by commas; a name in quotation marks may have commas."""
    if text is None:
        return None
    cells = next(csv.reader([text], skipinitialspace=True), [])
    names = [name.strip() for name in cells if name.strip()]
    if not names:
        raise typer.BadParameter(f"name at least one column, or leave {option} out.")
    return names


def end_stopped_run(folder: Path, step: int | None = None) -> NoReturn:
    """Say that a run was stopped and how to go on, and end with the status of an interruption."""
    again = escape(f"kermix resume {shlex.quote(str(folder))}")
    where = "" if step is None else f" at step {step}; saved"
    Console().print(f"Stopped{where}. To continue:\n  [bold]{again}[/]", soft_wrap=True)
    raise typer.Exit(INTERRUPTED)


def show_run(
    rows: Iterable[tuple[str, str]], folder: Path, table_below: "Shown | None" = None
) -> None:
    """Show the numbers that a run ends with, a table if it has one, and where its report is."""
    console = Console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(f"[dim]{name}[/]", escape(value))
    console.print(table)
    if table_below is not None:
        print_table(*table_below)
    console.print(f"report: [bold]{folder / 'report.html'}[/]", soft_wrap=True)


def written_path(out: Path, run: "Run") -> Path:
    """Where to write: a name without an ending gets that of the run's data."""
    if str(out) == "-":
        raise OptionError(
            f"-o -: a table is written to a file, whole or not at all; name one, such as "
            f"-o out{run.config['form']}."
        )
    return out if out.suffix else out.with_name(out.name + run.config["form"])


def check_writable(path: Path) -> None:
    """Refuse a table that cannot be written, before the work."""
    from kermix.data.readers.common import WRITABLE

    if not path.name.lower().endswith(WRITABLE):
        raise OptionError(f"{path}: the name must end in one of {', '.join(WRITABLE)}.")
    check_output(path)


@contextmanager
def counting(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of rows on the terminal, beside what is printed for programs."""
    from kermix.runs.train import progress_bar

    with progress_bar(label, total, console=notes_to()) as (bar, task):
        yield lambda rows: bar.advance(task, rows)


@contextmanager
def stages(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """A bar of what is being done, with the time that is left, on a terminal."""
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = notes_to()
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(),
               TimeRemainingColumn(compact=True), TextColumn("left"))  # fmt: skip
    hidden = quiet or not console.is_terminal
    with Progress(*columns, console=console, disable=hidden, transient=True) as bar:
        task = bar.add_task("reading", total=1.0)
        yield lambda name, share: bar.update(task, description=name, completed=share)


def notes_to() -> Console:
    """Where notes go: beside what is printed for programs."""
    return Console(stderr=True)


def say(text: str) -> None:
    """A line for people."""
    notes_to().print(plain(text), markup=False, highlight=False, soft_wrap=True)
