"""Are the error bars of `km.compare` as large as the scatter of its values over new samples?

`python -m benchmarks errorbars` writes `results/bench/errorbars-<machine>.json`.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.comparison.compare import compare
from kermix.comparison.twosample import variance_grid

__all__ = ["SETTINGS", "Setting", "calibration", "run"]

LARGE = 1000


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


def calibration(setting: Setting, repeats: int, draws: int = 20) -> list[dict[str, Any]]:
    """For each measure at a fine and a coarse variance, the scatter of values over error bars.

    `standardized` is the standard deviation of (value - mean of values) / error, which is 1 if
    error bars are right; `error` is their mean and `scatter` the standard deviation of values.
    """
    grid = variance_grid(torch.cat(setting.sample(10**6)), 4)
    found: dict[tuple[str, float | None], list[tuple[float, float]]] = {}
    for seed in range(repeats):
        result = compare(*setting.sample(seed), (grid[0], grid[-1]), standardize=False,
                         permutations=0, bootstrap=draws, seed=seed)  # fmt: skip
        for m in result.measures:
            shown = m.value if m.normalized is None else m.normalized
            assert m.error is not None
            found.setdefault((m.name, m.variance), []).append((shown, m.error))
    rows = []
    for (name, variance), pairs in found.items():
        values, errors = torch.tensor(pairs, dtype=torch.float64).unbind(1)
        scatter = float(values.std())
        standardized = float(((values - values.mean()) / errors.clamp(min=1e-300)).std())
        kind = "" if variance is None else "fine" if variance == grid[0] else "coarse"
        rows.append({**setting._asdict(), "measure": name, "variance": kind,
                     "mean": float(values.mean()), "scatter": scatter,
                     "error": float(errors.mean()), "standardized": standardized,
                     "repeats": repeats})  # fmt: skip
    return rows


def run(quick: bool = False) -> dict[str, Any]:
    """One row for each setting, measure and variance."""
    if quick:
        return {"errorbars": calibration(SETTINGS[0], 5)}
    rows: list[dict[str, Any]] = []
    for setting in SETTINGS:
        rows += calibration(setting, 40 if max(setting.n, setting.m) >= LARGE else 100)
    return {"errorbars": rows}
