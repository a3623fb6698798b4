"""The four costs between two sketches, against the number of points."""

import math
import time
from typing import Any

import torch
from torch import Tensor

import kermix as km
from benchmarks.timing import device_name, measure
from kermix.info import Informative

__all__ = ["run"]

V = 1e-2
RANK = 400


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Time from points to all four costs, error bounds, and dense costs where they fit."""
    sizes = [1000, 4000] if quick else [10_000, 100_000, 1_000_000]
    rows = [_row(n, dense=n <= 10_000) for n in sizes]
    logs = [(math.log(r["N"]), math.log(r["all_costs_s"])) for r in rows]
    slopes = [
        {"from_N": a["N"], "to_N": b["N"], "exponent": (q[1] - p[1]) / (q[0] - p[0])}
        for a, b, p, q in zip(rows, rows[1:], logs, logs[1:], strict=False)
    ]
    return {"from_points_to_costs": rows, "growth": slopes}


def ten_gaussians(n: int, shift: float, seed: int) -> Tensor:
    """The paper's kind of data: ten Gaussians whose means lie at random in the unit square."""
    means = torch.rand(10, 2, generator=torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(seed)
    which = torch.randint(10, (n,), generator=generator)
    return means[which] + 0.05 * torch.randn(n, 2, generator=generator) + shift


def _row(n: int, dense: bool) -> dict[str, Any]:
    x, y = (ten_gaussians(n, s, k).to(device_name()) for s, k in ((0.0, 1), (0.02, 2)))
    results: dict[str, Any] = {}

    def all_costs() -> None:
        pooled = torch.cat([x[:10_000], y[:10_000]])
        features = km.nystrom_features(pooled, V, rank=RANK, tolerance=1e-6)
        a, b = km.Sketch(features).update(x), km.Sketch(features).update(y)
        for name, cost in COSTS.items():
            value, info = cost(a, b, normalized=True, return_info=True)
            results[name] = float(value)
            if info.error_bound is not None:
                results[f"{name}_bound"] = float(info.error_bound)
        results["rank"] = features.rank

    timing = measure(all_costs, repeats=3, warmup=1)
    row: dict[str, Any] = {"N": n, "d": 2, "v": V, "all_costs_s": timing["median_s"], **results}
    row["svd_certified_relative_error"] = row["svd_bound"] / row["svd"]
    if dense:
        start = time.perf_counter()
        # On a CPU an SVD of this size takes minutes; the scalar cost shows the accuracy.
        exact = {"scalar": float(km.scalar_cost(x, y, V, normalized=True))}
        if x.is_cuda or n <= 4000:
            dense_cost = km.svd_cost(x, y, V, normalized=True, method="auto")
            exact["svd"] = float(dense_cost)
        row["dense_s"] = time.perf_counter() - start
        row |= {f"{name}_error": abs(row[name] - value) for name, value in exact.items()}
    row["raw_s"] = timing["raw_s"]
    return row


COSTS: dict[str, Informative[...]] = {
    "scalar": km.scalar_cost,
    "vector": km.vector_cost,
    "matrix": km.matrix_cost,
    "svd": km.svd_cost,
}
