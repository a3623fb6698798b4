"""Which shift of one column the verdict finds in four of five cases, and whether it says so.

`python -m benchmarks detectable`, or `python -m benchmarks.detectable` for several processes. In
each cell both sets are independent normal columns, and one column of the second is shifted by a
random amount; a probit regression of what was found on the amount tells which shift is found in
four of five cases. Beside it stands the verdict's own `detectable_shift`, which should not be
smaller, and how often shifts of just that size are found.
"""

import argparse
import math
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from scipy.special import log_ndtr, ndtri

from kermix.environment import environment, machine_name
from kermix.files import write_json
from kermix.two_sample.aggregate import aggregate_rows

__all__ = ["run"]

CELLS = (
    (5, 5, 1), (8, 8, 2), (10, 10, 1), (10, 10, 5), (20, 20, 2), (40, 40, 3), (40, 40, 20),
    (100, 100, 1), (100, 100, 10), (20, 200, 2), (400, 400, 1), (200, 200, 60), (2500, 2500, 3),
)  # fmt: skip
REPETITIONS, AT_THE_SHIFT = 60, 100
PERMUTATIONS, LEVEL, POWER = 199, 0.05, 0.8
LOWEST, HIGHEST = 0.6, 3.0  # shifts that are tried, in standard errors of a z-test at the power


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """A line for each cell."""
    cells = [(cell, 10, 10) for cell in CELLS[:2]] if quick else None
    yield from _tables(cells or [(cell, REPETITIONS, AT_THE_SHIFT) for cell in CELLS], 1)


def _tables(
    cells: Sequence[tuple[tuple[int, int, int], int, int]], processes: int
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """What is known so far, again and again; the largest cells are begun first."""
    found: dict[int, dict[str, Any]] = {}
    order = sorted(range(len(cells)), key=lambda k: -math.prod(cells[k][0]))
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        running = {pool.submit(_measured, *cells[k]): k for k in order}
        for future in as_completed(running):
            found[running[future]] = future.result()
            yield {"shifts_of_one_column": [found[k] for k in sorted(found)]}


def _measured(cell: tuple[int, int, int], repetitions: int, more: int) -> dict[str, Any]:
    n, m, d = cell
    generator = torch.Generator().manual_seed(1000 * n + d)
    unit = (ndtri(1 - LEVEL / 2) + ndtri(POWER)) * math.sqrt(1 / n + 1 / m)
    tried = LOWEST + (HIGHEST - LOWEST) * torch.rand(repetitions, generator=generator).double()
    found, told = [], 0.0
    for k, shift in enumerate((tried * unit).tolist()):
        different, told = _found(n, m, d, shift, k, generator)
        found.append(different)
    seen = sum(_found(n, m, d, told, k, generator)[0] for k in range(more)) / max(1, more)
    return {
        "rows": f"{n} v {m}",
        "columns": d,
        "shift found in 4 of 5": unit * _four_of_five(tried.numpy(), np.array(found)),
        "shift told": told,
        "found at that": seen,
        "repetitions": more,
    }


def _found(
    n: int, m: int, d: int, shift: float, seed: int, generator: torch.Generator
) -> tuple[bool, float]:
    rows = torch.randn(n + m, d, generator=generator, dtype=torch.float64)
    rows[n:, 0] += shift
    test = aggregate_rows(rows, n, permutations=PERMUTATIONS, level=LEVEL, seed=seed)
    return test.different, test.detectable_shift


def _four_of_five(amounts: np.ndarray, found: np.ndarray) -> float:
    """Where a probit regression has the probability 0.8."""
    if found.all() or not found.any():
        return math.nan
    signs = np.where(found, 1.0, -1.0)

    def loss(line: np.ndarray) -> float:
        return float(-log_ndtr(signs * (line[0] + line[1] * amounts)).sum() + 1e-3 * line @ line)

    at_zero, slope = minimize(loss, np.array([-1.0, 1.0]), method="Nelder-Mead").x
    return float((ndtri(POWER) - at_zero) / slope)


def main() -> None:
    """Measure all cells, several at a time, and write what there is after each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    asked = parser.parse_args()
    about = {"benchmark": "detectable", "quick": False, **environment()}
    for tables in _tables([(c, REPETITIONS, AT_THE_SHIFT) for c in CELLS], asked.processes):
        path = asked.out / f"detectable-{machine_name()}.json"
        write_json(path, {**about, "tables": tables})


if __name__ == "__main__":
    main()
