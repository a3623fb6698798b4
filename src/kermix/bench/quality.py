"""What the benchmarks of quality share: result files and tables on the screen."""

import sys
from pathlib import Path
from typing import Any

from torch import Tensor

from kermix.records import environment, machine_name, write_json

__all__ = ["default_path", "save_sheet", "write_record"]


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
    record = {"benchmark": name, "quick": quick, **environment()}
    record |= {"protocol": protocol, "tables": tables}
    write_json(path, record)
    columns = [name for name in tables[shown][0] if not name.startswith("raw")]
    lines = [columns, *([_shown(row[name]) for name in columns] for row in tables[shown])]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.write(f"written: {path}\n")
    return path


def save_sheet(sheets: dict[str, dict[str, Tensor]], path: Path) -> None:
    """Draw samples, if Matplotlib is there: a benchmark does not fail for want of a picture."""
    try:
        from .figures import scatter_sheet
    except ImportError:
        return
    scatter_sheet(sheets, path)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
