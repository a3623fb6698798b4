"""What the benchmarks of quality share: result files and tables on the screen.

A benchmark can be run in parts, one process for each set, say; `python -m benchmarks.quality
WHOLE PART...` puts their files together.
"""

import json
import multiprocessing
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from kermix.environment import environment, machine_name
from kermix.errors import RunError
from kermix.files import write_json

__all__ = [
    "begun_record",
    "default_path",
    "merge_records",
    "save_sheet",
    "side_by_side",
    "write_record",
]


Job, Result = TypeVar("Job"), TypeVar("Result")


def side_by_side(
    work: Callable[[Job], Result], jobs: Sequence[Job], processes: int
) -> Iterator[Result]:
    """Results of jobs as they come, by several processes of one thread each."""
    if processes == 1:
        yield from map(work, jobs)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        for done in as_completed([pool.submit(work, job) for job in jobs]):
            yield done.result()


def default_path(name: str) -> Path:
    """Where a benchmark's result file goes if nothing is said."""
    return Path("results/bench") / f"{name}-{machine_name()}.json"


def begun_record(path: Path, commit: str, other: Path | None = None) -> dict[str, Any]:
    """What a run continues: its own file if that is of its commit, else another record, if any.

    Args:
        path: The file of the run.
        commit: Of the run.
        other: A record of another machine or commit that measured the very same, which whoever
            names it answers for; under "begun" is said whose it is.
    """
    own = json.loads(path.read_text()) if path.is_file() else {}
    if own.get("commit") == commit or other is None:
        return own if own.get("commit") == commit else {}
    found: dict[str, Any] = json.loads(other.read_text())
    return {**found, "begun": {key: found[key] for key in ("commit", "machine", "command")}}


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
    rows = tables[shown]
    columns = [c for c in dict.fromkeys(k for row in rows for k in row) if not c.startswith("raw")]
    lines = [columns, *([_shown(row.get(c, "")) for c in columns] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")
    sys.stdout.write(f"written: {path}\n")
    return path


def merge_records(whole: Path, parts: list[Path]) -> Path:
    """Put the tables of several files of one benchmark and one commit together.

    The command of the whole is that of its parts, one a line.
    """
    records = [json.loads(part.read_text()) for part in sorted(parts)]
    for name in ("benchmark", "commit", "quick"):
        if len({str(record[name]) for record in records}) > 1:
            raise RunError(f"{[str(p) for p in parts]} differ in {name}: they are no parts.")
    merged = dict(records[0])
    merged["command"] = "\n".join(record["command"] for record in records)
    merged["protocol"] = merged["protocol"] | {"processes side by side": len(records)}
    merged["tables"] = {
        title: [row for record in records for row in record["tables"].get(title, [])]
        for title in records[0]["tables"]
    }
    return write_json(whole, merged)


def save_sheet(sheets: dict[str, dict[str, Tensor]], path: Path) -> None:
    """Draw samples, if Matplotlib is there: a benchmark does not fail for want of a picture."""
    try:
        from benchmarks.figures import scatter_sheet
    except ImportError:
        return
    scatter_sheet(sheets, path)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    whole, *parts = (Path(argument) for argument in sys.argv[1:])
    sys.stdout.write(f"written: {merge_records(whole, parts)}\n")
