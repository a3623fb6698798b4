"""What the benchmarks of quality share: result files and tables on the screen."""

from pathlib import Path
from typing import Any

from kermix.records import environment, machine_name, write_json

__all__ = ["default_path", "write_record"]


def default_path(name: str) -> Path:
    """Where a benchmark's result file goes if nothing is said."""
    return Path("results/bench") / f"{name}-{machine_name()}.json"


def write_record(
    name: str,
    path: Path,
    tables: dict[str, list[dict[str, Any]]],
    protocol: dict[str, Any],
    *,
    shown: str,
    quick: bool = False,
) -> Path:
    """Write the result file and show one of its tables."""
    from rich.console import Console
    from rich.table import Table

    record = {"benchmark": name, "quick": quick, **environment()}
    record |= {"protocol": protocol, "tables": tables}
    write_json(path, record)
    rows = tables[shown]
    table = Table(title=name)
    for column in rows[0]:
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(*(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    console = Console(width=160)
    console.print(table)
    console.print(f"written: {path}")
    return path
