"""Are the error bars of `km.compare` as large as the scatter of its values over new samples?

`python -m benchmarks errorbars` writes `results/bench/errorbars-<machine>.json`; `python -m
benchmarks.errorbars --most-rows 200` has the settings of few rows alone.
"""

import argparse
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from benchmarks.quality import default_path, write_record
from kermix.kernels.gaussian import variance_grid
from kermix.tables.compare.compare import compare

__all__ = ["SETTINGS", "Setting", "calibration", "measured", "rows", "run"]

Found: TypeAlias = dict[tuple[str, str], list[tuple[float, float | None]]]

LARGE = 1000
REPEATS, REPEATS_OF_LARGE = 200, 60
PART = 4  # repetitions of one task
FIRST_SEED = 1_000_000  # the rules were chosen with a look at samples of small seeds


class Setting(NamedTuple):
    """Normal samples of `n` and `m` rows; the second is shifted and stretched."""

    n: int
    m: int
    d: int
    shift: float
    scale: float = 1.0

    def sample(self, seed: int) -> tuple[Tensor, Tensor]:
        """A pair of samples."""
        generator = torch.Generator().manual_seed(seed)
        x, y = (
            torch.randn(k, self.d, generator=generator, dtype=torch.float64)
            for k in (self.n, self.m)
        )
        return x, self.scale * y + self.shift


SETTINGS = (
    Setting(50, 50, 1, 0.0),
    Setting(50, 200, 2, 0.5),
    Setting(100, 100, 5, 0.0),
    Setting(200, 200, 20, 0.3),
    Setting(300, 60, 2, 0.0, 1.5),
    Setting(500, 500, 3, 0.1),
    Setting(1000, 1000, 5, 0.3),
    Setting(1001, 1001, 5, 0.3),
    Setting(3000, 300, 10, 0.0),
    Setting(3000, 3000, 1, 0.2),
)


def measured(setting: Setting, seeds: Iterable[int], draws: int = 20) -> Found:
    """Values and error bars of each measure at a fine and a coarse variance, for each seed."""
    grid = variance_grid(torch.cat(setting.sample(10**6)), 4)
    found: Found = {}
    for seed in seeds:
        result = compare(*setting.sample(seed), (grid[0], grid[-1]), standardize=False,
                         permutations=0, jackknife_groups=draws, seed=seed)  # fmt: skip
        for m in result.measures:
            shown = m.value if m.normalized is None else m.normalized
            kind = "" if m.variance is None else "fine" if m.variance == grid[0] else "coarse"
            found.setdefault((m.name, kind), []).append((shown, m.error))
    return found


def rows(setting: Setting, found: Found) -> list[dict[str, Any]]:
    """For each measure the scatter of values over error bars.

    `error` is the mean of the error bars, `scatter` the standard deviation of values, and `ratio`
    the latter over the former: 1 if error bars are right. "Calibrated" is judged by it.

    `standardized` is the standard deviation of (value - mean of values) / error. It is the ratio
    only where error bars are constants. They are estimates from the sample that the value is of,
    so it has two parts that say nothing about their size. Bars from ten or twenty groups of rows
    vary as the denominator of a Student's t does, which makes it 1.13 or 1.06 times the ratio. And
    near equal sources, where distances are squares, larger values have larger bars: of the squared
    length of a normal number with the mean 0, 1, 2 or 3, whose bars are right on average, it is
    .6, 1.1, 1.8 and 1.8. A value that is by chance next to nothing has a small bar, and counts for
    much. No rule that sees a single pair of samples is without this.

    `without_error` is how many comparisons gave none, as the value is too skewed to have one.
    """
    table = []
    for (name, kind), pairs in found.items():
        values = torch.tensor([value for value, _ in pairs], dtype=torch.float64)
        told = [(value, error) for value, error in pairs if error is not None]
        told_values, errors = torch.tensor(told, dtype=torch.float64).reshape(-1, 2).unbind(1)
        standardized = (told_values - values.mean()) / errors.clamp(min=1e-300)
        enough = len(told) > len(pairs) / 2
        table.append({**setting._asdict(), "measure": name, "variance": kind,
                      "mean": float(values.mean()), "scatter": float(values.std()),
                      "error": float(errors.mean()) if enough else None,
                      "ratio": float(values.std() / errors.mean()) if enough else None,
                      "standardized": float(standardized.std()) if enough else None,
                      "repeats": len(pairs), "without_error": len(pairs) - len(told)})  # fmt: skip
    return table


def calibration(setting: Setting, repeats: int, draws: int = 20) -> list[dict[str, Any]]:
    """The rows of one setting, from so many pairs of samples."""
    return rows(setting, measured(setting, range(repeats), draws))


def run(
    quick: bool = False, settings: Sequence[Setting] = SETTINGS, processes: int | None = None
) -> Iterator[dict[str, Any]]:
    """One row for each setting, measure and variance, again and again, with more repetitions."""
    if quick:
        yield {"errorbars": calibration(SETTINGS[0], 5)}
        return
    all_found: dict[Setting, Found] = {setting: {} for setting in settings}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        processes or os.cpu_count(), context, torch.set_num_threads, (1,)
    ) as pool:
        tasks = {}
        for setting in sorted(settings, key=lambda s: -min(s.n, s.m)):  # the slowest first
            repeats = REPEATS_OF_LARGE if max(setting.n, setting.m) >= LARGE else REPEATS
            for first in range(0, repeats, PART):
                seeds = range(FIRST_SEED + first, FIRST_SEED + min(first + PART, repeats))
                tasks[pool.submit(measured, setting, seeds)] = setting
        for done in as_completed(tasks):
            for key, pairs in done.result().items():
                all_found[tasks[done]].setdefault(key, []).extend(pairs)
            yield {"errorbars": [row for s, found in all_found.items() for row in rows(s, found)]}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Measure the settings of few rows, and write their result file."""
    parser = argparse.ArgumentParser("benchmarks.errorbars", description=__doc__)
    parser.add_argument("--most-rows", type=int, default=10**9)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--out", type=Path, default=default_path("errorbars"))
    given = parser.parse_args(arguments)
    chosen = [s for s in SETTINGS if max(s.n, s.m) <= given.most_rows]
    *_, tables = run(settings=chosen, processes=given.processes)
    return write_record("errorbars", given.out, tables, {"protocol": __doc__}, shown="errorbars")


if __name__ == "__main__":
    main()
