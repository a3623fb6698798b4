"""Sketching Parquet files: time for each row, memory of the workers, speed-up of the second core.

`python -m benchmarks.sketch_files --rows 1000000 --plane-rows 5000000` runs smaller sizes than
`python -m benchmarks sketch-files`.
"""

import argparse
import logging
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

import kermix as km
from benchmarks.sketch import COSTS
from kermix.environment import environment, machine_name
from kermix.errors import SizeError
from kermix.files import write_json

__all__ = ["main", "run"]

ROWS = (1_000_000, 3_000_000, 10_000_000)
PLANE_ROWS = 100_000_000
QUICK_ROWS = (50_000, 150_000)
RANK = 64
ROWS_OF_A_FILE = 1_000_000
ROWS_OF_A_GROUP = 100_000
Say = Callable[[str], None]


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables of both experiments."""
    sizes = QUICK_ROWS if quick else ROWS
    return measured(sizes, QUICK_ROWS[-1] if quick else PLANE_ROWS, lambda line: None)


def measured(sizes: tuple[int, ...], plane_rows: int, say: Say) -> dict[str, list[dict[str, Any]]]:
    """Ten columns with one and two workers; then two large sets in the plane with two."""
    with tempfile.TemporaryDirectory(prefix="kermix-bench-") as name:
        folder = Path(name)
        _check_disk(folder, 4 * max(10 * max(sizes), 2 * plane_rows))
        rows = _ten_columns(folder / "ten", sizes, say)
        shutil.rmtree(folder / "ten")
        plane = _plane(folder / "plane", plane_rows, say)
    return {"ten_columns": rows, "speed_up": _speed_up(rows), "in_the_plane": plane}


def _ten_columns(folder: Path, sizes: tuple[int, ...], say: Say) -> list[dict[str, Any]]:
    written, table = 0, []
    for size in sizes:
        _write(folder, written, size, 10, 0.0, 0)
        written = size
        started = time.perf_counter()
        first = km.sketch_files(_files(folder)[0], rank=RANK, tolerance=1e-12)
        landmarks_s = time.perf_counter() - started
        for workers in (1, 2):
            with _cluster(workers, _files(folder)[0], first) as (address, peaks):
                seconds, sketch = _sketched(_files(folder), first, address)
                memory = peaks()
            assert sketch.count == size, "every row counts once"
            table.append(
                {
                    "rows": size,
                    "columns": 10,
                    "rank": RANK,
                    "workers": workers,
                    "seconds": seconds,
                    "ns_per_row": 1e9 * seconds / size,
                    "largest_worker_mb": max(peak for peak, _ in memory),
                    "first_file_with_landmarks_s": landmarks_s,
                }
            )
            largest = table[-1]["largest_worker_mb"]
            say(f"{size:>11,} rows, {workers} workers: {seconds:.2f} s, {largest:.0f} MB")
    return table


def _speed_up(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    by = {(r["rows"], r["workers"]): r["seconds"] for r in rows}
    sizes = sorted({r["rows"] for r in rows})
    return [
        {"rows": size, "speed_up_of_second_worker": by[size, 1] / by[size, 2]} for size in sizes
    ]


def _plane(folder: Path, size: int, say: Say) -> list[dict[str, Any]]:
    sketches: list[km.Sketch] = []
    row: dict[str, Any] = {"rows_of_each": size, "columns": 2, "rank": RANK, "workers": 2}
    for k in range(2):
        _write(folder, 0, size, 2, 0.01 * k, 1 + k)
        if not sketches:
            start = km.sketch_files(_files(folder)[0], rank=RANK, tolerance=1e-12)
        with _cluster(2, _files(folder)[0], start) as (address, peaks):
            seconds, sketch = _sketched(_files(folder), start, address)
            memory = [*peaks(), _memory_mb()]  # of the workers and of this process
        assert sketch.count == size, "every row counts once"
        sketches.append(sketch)
        shutil.rmtree(folder)
        name = ("first", "second")[k]
        row |= {
            f"{name}_s": seconds,
            f"{name}_ns_per_row": 1e9 * seconds / size,
            f"{name}_largest_worker_mb": max(peak for peak, _ in memory[:-1]),
            f"{name}_workers_mb": sum(peak for peak, _ in memory[:-1]),
            f"{name}_all_processes_mb": sum(share for _, share in memory),
        }
        say(f"{size:>11,} rows in the plane: {seconds:.1f} s, workers "
            f"{row[f'{name}_workers_mb']:.0f} MB, all processes without what they share "
            f"{row[f'{name}_all_processes_mb']:.0f} MB")  # fmt: skip
    started = time.perf_counter()
    for name, cost in COSTS.items():
        value, info = cost(*sketches, normalized=True, return_info=True)
        row[name] = float(value)
        if info.error_bound is not None:
            row[f"{name}_bound"] = float(info.error_bound)
    row["all_costs_s"] = time.perf_counter() - started
    return [row]


def _sketched(files: list[str], start: km.Sketch, address: str) -> tuple[float, km.Sketch]:
    began = time.perf_counter()
    sketch = km.sketch_files(files, landmarks_from=start, engine="dask", scheduler=address)
    return time.perf_counter() - began, sketch


@contextmanager
def _cluster(
    workers: int, file: str, start: km.Sketch
) -> Iterator[tuple[str, Callable[[], list[tuple[float, float]]]]]:
    """Fresh processes of one thread each, and a way to ask for their peak memory."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=logging.ERROR,
        ) as cluster,
        Client(cluster) as client,
    ):
        # Every worker imports and starts what it needs before anything is timed.
        client.run(_warm_up, file, start)
        yield cluster.scheduler_address, lambda: list(client.run(_memory_mb).values())


def _warm_up(file: str, start: km.Sketch) -> int:
    return km.sketch_files(file, landmarks_from=start).count


def _memory_mb() -> tuple[float, float]:
    """Peak resident memory of this process, and its present share of memory.

    In shares, libraries that several processes have loaded count once. The peak is not
    `ru_maxrss`, which a child inherits.
    """
    files = (("status", "VmHWM"), ("smaps_rollup", "Pss"))
    found = [
        re.search(rf"^{field}:\s+(\d+) kB", Path(f"/proc/self/{name}").read_text(), re.MULTILINE)
        for name, field in files
    ]
    peak, share = (0.0 if f is None else int(f[1]) / 1024 for f in found)
    return peak, share


def _files(folder: Path) -> list[str]:
    return sorted(str(path) for path in folder.glob("*.parquet"))


def _write(*arguments: Any) -> None:
    """Make files in a process of its own, whose memory is not that of sketching."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        pool.submit(_make, *arguments).result()


def _make(folder: Path, start: int, stop: int, columns: int, shift: float, seed: int) -> None:
    """Write ten Gaussians at random places, as float32, a million rows to a file."""
    import pyarrow
    from pyarrow import parquet

    folder.mkdir(exist_ok=True)
    means = np.random.default_rng(0).uniform(-2, 2, (10, columns)).astype(np.float32)
    names = [f"c{k}" for k in range(columns)]
    for first in range(start, stop, ROWS_OF_A_FILE):
        count = min(ROWS_OF_A_FILE, stop - first)
        generator = np.random.default_rng([seed, first])
        values = generator.standard_normal((count, columns), dtype=np.float32)
        values += means[generator.integers(0, 10, count)] + np.float32(shift)
        table = pyarrow.table(dict(zip(names, values.T.copy(), strict=True)))
        path = folder / f"{first:012}.parquet"
        parquet.write_table(table, path, row_group_size=ROWS_OF_A_GROUP, use_dictionary=False)


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < 2 * needed:
        raise SizeError(
            f"{folder.parent}: {free / 2**30:.1f} GiB are free and {2 * needed / 2**30:.1f} are "
            "needed; set TMPDIR to a larger disk, or run fewer rows."
        )


def main() -> None:
    """Run at the sizes that are asked for and write the result file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default=",".join(str(r) for r in ROWS))
    parser.add_argument("--plane-rows", type=int, default=PLANE_ROWS)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    asked = parser.parse_args()

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    sizes = tuple(int(r) for r in asked.rows.split(","))
    tables = measured(sizes, asked.plane_rows, say)
    full = sizes == ROWS and asked.plane_rows == PLANE_ROWS
    record = {"benchmark": "sketch-files", "quick": not full, **environment(), "tables": tables}
    for row in tables["speed_up"]:
        say(f"speed-up at {row['rows']:,} rows: {row['speed_up_of_second_worker']:.2f}")
    say(f"all costs between the sketches: {tables['in_the_plane'][0]['all_costs_s']:.3f} s")
    say(f"Results: {write_json(asked.out / f'sketch-files-{machine_name()}.json', record)}")


if __name__ == "__main__":
    main()
