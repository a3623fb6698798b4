"""How long a verdict takes, and how much memory, each in a process of its own.

`python -m benchmarks.verdict_speed --data FOLDER`, or `python -m benchmarks verdict-speed` with
the environment variable KERMIX_TABLES; without a folder that holds flights.parquet the flights are
left out. Peak memory is that of the whole process: Python, libraries and the data.

rows: two halves of a million normal rows of ten columns, of which one is shifted by a hundredth of
its standard deviation. columns: 500 and 500 rows of 5,000 columns. flights: January and July, read
from a file each; the columns that tell the month are left aside.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.quality import default_path, write_record
from benchmarks.timing import peak_memory_of
from benchmarks.typed_tables import TELL_THE_MONTH, read

__all__ = ["main", "measured", "run"]

MONTHS = (1, 7)
Row = dict[str, Any]

CODE = """
import json, pathlib, time
start = time.perf_counter()
import torch
import kermix as km
imported = time.perf_counter() - start
{sources}
start, cpu = time.perf_counter(), time.process_time()
verdict = km.compare(a, b, exclude={left!r}).verdict
told = {{"rows": "{{:,}} and {{:,}}".format(*verdict.rows), "columns": len(verdict.columns),
    "seconds": time.perf_counter() - start, "cpu seconds": time.process_time() - cpu,
    "import seconds": imported, "p": verdict.pvalue, "AUC": verdict.effect,
    "columns that differ": len(verdict.different_columns), "threads": torch.get_num_threads()}}
pathlib.Path({said!r}).write_text(json.dumps(told))
print(peak())
"""
NUMBERS = """
generator = torch.Generator().manual_seed({seed})
a, b = torch.randn(2, {rows}, {columns}, generator=generator)
b[:, 3] += {shift}
"""


def measured(folder: Path | None, quick: bool = False, seed: int = 0) -> Iterator[list[Row]]:
    """The rows so far, again after each."""
    found: list[Row] = []
    sizes = {"rows": (500_000, 10, 0.01), "columns": (500, 5000, 0.5)}
    if quick:
        sizes = {"rows": (300, 4, 0.01), "columns": (40, 60, 0.5)}
    with tempfile.TemporaryDirectory(prefix="kermix-bench-") as place:
        for case, (rows, columns, shift) in sizes.items():
            code = NUMBERS.format(seed=seed, rows=rows, columns=columns, shift=shift)
            found.append({"case": case, **_one(code, (), Path(place))})
            yield found
        if folder is None or not (folder / "flights.parquet").is_file():
            return
        flights = read("flights", folder)
        paths = [f"{place}/{month}.parquet" for month in MONTHS]
        for month, path in zip(MONTHS, paths, strict=True):
            flights[flights["month"] == month].to_parquet(path, index=False)
        del flights
        code = f"a, b = {paths!r}"
        found.append({"case": "flights", **_one(code, TELL_THE_MONTH, Path(place))})
        yield found


def _one(sources: str, left: Sequence[str], place: Path) -> Row:
    said = place / "said.json"
    load = os.getloadavg()[0]
    peak = peak_memory_of(CODE.format(sources=sources, left=list(left), said=str(said)))
    return {**json.loads(said.read_text()), "peak MB": peak, "load before": load}


def run(quick: bool = False) -> Iterator[dict[str, list[Row]]]:
    """All cases; the environment variable KERMIX_TABLES says where the tables are."""
    folder = os.environ.get("KERMIX_TABLES")
    for rows in measured(Path(folder) if folder else None, quick):
        yield {"verdicts": rows}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, row by row."""
    parser = argparse.ArgumentParser("benchmarks.verdict_speed", description=__doc__)
    parser.add_argument("--data", type=Path, default=None, help="folder of flights.parquet")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=default_path("verdict-speed"))
    given = parser.parse_args(arguments)
    protocol = {"what": __doc__, "seed": given.seed, "threads": torch.get_num_threads()}
    path: Path = given.out
    for rows in measured(given.data, given.quick, given.seed):
        path = write_record("verdict-speed", given.out, {"verdicts": rows}, protocol,
                            shown="verdicts", quick=given.quick)  # fmt: skip
    return path


if __name__ == "__main__":
    main()
