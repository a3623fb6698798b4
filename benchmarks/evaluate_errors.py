"""Are the error bars of neighbours and KID as large as the scatter over new samples of both sets?

`python -m benchmarks evaluate-errors` writes `results/bench/evaluate-errors-<machine>.json`.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from kermix.evaluation.sample_distances import kernel_distance, neighbor_scores

__all__ = ["run"]

SHIFTED, SCALED = 0.5, 0.8  # the other set: a shift of this length in all, and this spread
SETTINGS = (
    *((n, d, other) for n in (100, 300) for d in (2, 10, 50) for other in (False, True)),
    *((1000, d, False) for d in (2, 50)),
)
REPEATS = {100: 200, 300: 60, 1000: 24}
FIRST_SEED = 5_000_000  # the rules were chosen with a look at other samples
NAMES = ("precision", "recall", "density", "coverage")


def run(quick: bool = False) -> Iterator[dict[str, Any]]:
    """One line for each setting and score."""
    rows: list[dict[str, Any]] = []
    for n, d, other in SETTINGS[:1] if quick else SETTINGS:
        repeats = 5 if quick else REPEATS[n]
        found = [_scores(n, d, other, FIRST_SEED + k) for k in range(repeats)]
        for name in (*NAMES, "kid"):
            values, errors = zip(*(f[name] for f in found), strict=True)
            scatter, told = float(np.std(values, ddof=1)), float(np.mean(errors))
            rows.append({
                "rows": n, "dimension": d, "sets": "shifted, narrower" if other else "equal",
                "repeats": repeats, "score": name, "mean": float(np.mean(values)),
                "scatter": scatter, "error_bar": told,
                "error_bar_over_scatter": told / scatter if scatter > 0 else None,
            })  # fmt: skip
        yield {"error_bars_against_scatter": rows}


def _scores(n: int, d: int, other: bool, seed: int) -> dict[str, tuple[float, float]]:
    generator = torch.Generator().manual_seed(seed)
    real, fake = torch.randn(2, n, d, generator=generator, dtype=torch.float64)
    if other:
        fake = SCALED * fake + SHIFTED / d**0.5
    found, kid = neighbor_scores(real, fake), kernel_distance(real, fake)
    told = dict(zip(NAMES, zip(found[:4], found.errors, strict=True), strict=True))
    return {**told, "kid": (kid.value, kid.error)}
