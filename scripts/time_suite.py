"""How long the test suite takes: `python scripts/time_suite.py` writes results/suite-MACHINE.json.

Seconds of a machine say little about another, or about the same one an hour later: beside those
of the suite stand the seconds of a yardstick, a fixed piece of work for each core at once, done
before and after it. `times_yardstick` is the time of the suite in units of the yardstick's.
"""

import multiprocessing
import re
import subprocess
import sys
import time
from pathlib import Path

import torch

from kermix.environment import environment, machine_name
from kermix.files import write_json

ROOT = Path(__file__).parent.parent
PROCESSES = 2  # as `make test` has
ROUNDS = 100


def work(_: int) -> None:
    """What tests do: Python, small tensors, matrices."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    for _round in range(ROUNDS):
        matrix = torch.randn(300, 300, generator=generator, dtype=torch.float64)
        torch.linalg.svdvals(matrix)
        vector = torch.randn(10, generator=generator, requires_grad=True)
        for _small in range(300):
            (vector * vector).sum().backward()
        sum(k % 7 for k in range(300_000))


def yardstick() -> float:
    """Seconds of the same work in as many processes as the suite has."""
    with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
        pool.map(work, range(PROCESSES))  # imports and first calls do not count
        start = time.perf_counter()
        pool.map(work, range(PROCESSES))
        return time.perf_counter() - start


def main() -> int:
    """Time the suite once, and write a record if it passed."""
    before = yardstick()
    start = time.perf_counter()
    done = subprocess.run(["make", "test"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - start
    unit = (before + yardstick()) / 2
    counts = re.search(r"(\d+) passed(?:, (\d+) skipped)?", done.stdout)
    if done.returncode or counts is None:
        print(done.stdout[-3000:])
        return 1
    record = environment() | {
        "tests": int(counts[1]), "skipped": int(counts[2] or 0), "seconds": seconds,
        "yardstick_seconds": unit, "times_yardstick": seconds / unit,
    }  # fmt: skip
    path = write_json(ROOT / "results" / f"suite-{machine_name()}.json", record)
    print(f"{counts[1]} tests in {seconds:.0f} s, {seconds / unit:.1f} yardsticks: {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
