"""`python -m benchmarks NAME`: speed and quality, measured here and written to a result file."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import rich
import typer
from rich.table import Table

from benchmarks.catalogue import BENCHMARKS, record_path, run_benchmark
from benchmarks.comparing import changes, recorded_ratios
from benchmarks.page import write_page
from kermix.errors import KermixError

__all__ = ["app", "bench"]

MOST_COLUMNS = 9


def bench(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which benchmarks; none: list them; 'all': all.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the result files.")] = Path(
        "results/bench"
    ),
    quick: Annotated[bool, typer.Option(help="A small version that ends in seconds.")] = False,
    page: Annotated[
        Path | None, typer.Option(help="Write this Markdown page from all result files, and stop.")
    ] = None,
    compare: Annotated[
        bool,
        typer.Option(help="Say which ratios fell since the last record, and leave that as it is."),
    ] = False,
) -> None:
    """Compare kermix with other programs on this machine.

    Each benchmark prints tables and writes one JSON file with machine, versions and commit.
    """
    if page is not None:
        rich.print(f"Page: {write_page(out, page)}")
        return
    if not names:
        listing = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for name, text in BENCHMARKS.items():
            listing.add_row(f"[bold]{name}[/]", text)
        rich.print(listing)
        rich.print("\nRun one with: python -m benchmarks NAME; all: python -m benchmarks all")
        return
    if compare:
        _compare(names, out, quick)
        return
    written = []
    for name in list(BENCHMARKS) if names == ["all"] else names:
        if name in BENCHMARKS:
            rich.print(f"[bold]{name}[/]: {BENCHMARKS[name]}")
        path, tables = run_benchmark(name, out, quick)
        for title, rows in tables.items():
            rich.print(_table(title, rows))
        written.append(path)
    rich.print("Results: " + ", ".join(str(path) for path in written))


def _compare(names: list[str], out: Path, quick: bool) -> None:
    """Run benchmarks beside their records; ends with 1 if any ratio fell."""
    slower = 0
    for name in names:
        before = recorded_ratios(record_path(name, out))
        with tempfile.TemporaryDirectory() as folder:
            path, _ = run_benchmark(name, Path(folder), quick)
            rows = changes(before, recorded_ratios(path))
        rich.print(_table(f"{name}, against the last record", rows))
        slower += sum(row["verdict"] == "slower" for row in rows)
    rich.print(f"{slower} of the ratios fell." if slower else "Nothing got slower.")
    if slower:
        raise typer.Exit(1)


def _table(title: str, rows: list[dict[str, Any]]) -> Table:
    columns = [c for c in dict.fromkeys(k for row in rows for k in row) if not c.startswith("raw")]
    cells = [[_shown(row.get(c, "")) for c in columns] for row in rows]
    heading = title.replace("_", " ")
    if len(columns) <= MOST_COLUMNS:
        table = Table(*columns, title=heading, title_justify="left")
        for row in cells:
            table.add_row(*row)
        return table
    # Too wide for a terminal: one column for each row.
    table = Table(columns[0], *(row[0] for row in cells), title=heading, title_justify="left")
    for i, column in enumerate(columns[1:], start=1):
        table.add_row(column, *(row[i] for row in cells))
    return table


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(bench)

if __name__ == "__main__":
    try:
        app()
    except KermixError as error:
        sys.exit(f"Error: {error}")
