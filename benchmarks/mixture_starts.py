"""What the SVD cost adds to a mixture in many dimensions: an ablation on eight real tables.

`python -m benchmarks.mixture_starts --data FOLDER`: tables, splits and dithering are those of
`benchmarks.density_tables`. Mean test log-density in nats of mixtures of 64 components with
diagonal covariances, which differ in what brought their components to their places alone:

- "SVD cost, then likelihood": `KernelMixture(64, cost="svd", refine_steps=500)`, 800 steps.
- "likelihood alone": the same with `cost="likelihood"`, 1300 steps and no refinement.
- "k-means, then EM": scikit-learn's `GaussianMixture(64, covariance_type="diag",
  reg_covar=1e-4)`, which starts from k-means.
- `KernelMixture()`, which starts from k-means and chooses kind and size by held-out rows.
"""

import argparse
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.density_tables import TABLES, named_tables, prepared
from benchmarks.quality import default_path, side_by_side, write_record
from kermix.estimators.kernel_mixture import KernelMixture

__all__ = ["WAYS", "main", "measure"]

COMPONENTS = 64


def _by_em(train: np.ndarray) -> Any:
    from sklearn.mixture import GaussianMixture

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 100 passes are what it has by default
        return GaussianMixture(COMPONENTS, covariance_type="diag", reg_covar=1e-4,
                               random_state=0).fit(train)  # fmt: skip


def _by_gradients(train: np.ndarray, **settings: Any) -> Any:
    return KernelMixture(COMPONENTS, covariance_type="diagonal", random_state=0, device="cpu",
                         **settings).fit(train)  # fmt: skip


WAYS: dict[str, Callable[[np.ndarray], Any]] = {
    "SVD cost, then likelihood": partial(_by_gradients, cost="svd", steps=800, refine_steps=500),
    "likelihood alone": partial(_by_gradients, cost="likelihood", steps=1300, refine_steps=0),
    "k-means, then EM": _by_em,
    "KernelMixture()": lambda train: KernelMixture(random_state=0).fit(train),
}


def measure(job: tuple[str, Path, int, str]) -> dict[str, Any]:
    """One way on one split of a table."""
    name, folder, seed, way = job
    train, test = prepared(name, folder, seed)
    start = time.process_time()
    model = WAYS[way](train)
    return {"table": name, "columns": train.shape[1], "seed": seed, "way": way,
            "log_density": float(model.score(test)),
            "cpu_seconds": time.process_time() - start}  # fmt: skip


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over splits, one line for each table."""
    lines = []
    for name in dict.fromkeys(row["table"] for row in rows):
        line: dict[str, Any] = {"table": name}
        for way in WAYS:
            own = [r["log_density"] for r in rows if r["table"] == name and r["way"] == way]
            line[way] = float(np.mean(own)) if own else None
        lines.append(line)
    return lines


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, way by way."""
    parser = argparse.ArgumentParser("benchmarks.mixture_starts", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--processes", type=int, default=1, help="fits side by side")
    parser.add_argument("--out", type=Path, default=default_path("mixture-starts"))
    given = parser.parse_args(arguments)
    names = named_tables(given.tables)
    jobs = [(name, given.data, int(seed), way)
            for seed in given.seeds.split(",") for way in WAYS for name in names]  # fmt: skip
    rows: list[dict[str, Any]] = []
    path: Path = given.out
    for row in side_by_side(measure, jobs, given.processes):
        rows.append(row)
        rows.sort(key=lambda r: (r["seed"], TABLES.index(r["table"]), list(WAYS).index(r["way"])))
        path = write_record("mixture-starts", given.out, {"summary": summary(rows), "fits": rows},
                            {"protocol": __doc__}, shown="summary")  # fmt: skip
    return path


if __name__ == "__main__":
    main()
