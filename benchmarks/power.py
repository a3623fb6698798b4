"""Power and level of two-sample tests, beside hyppo's tests on the same samples.

`python -m benchmarks.power` writes `results/bench/power-<machine>.json`.
"""

import argparse
import gzip
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.permutation import four_gaussians
from kermix.comparison.twosample import two_sample_test, variance_grid
from kermix.kernels.gaussian import bandwidth
from kermix.kernels.others import LaplaceKernel
from kermix.reports.provenance import environment, machine_name, write_json

__all__ = ["CASES", "METHODS", "run"]

LEVEL = 0.05
Pair = tuple[Tensor, Tensor]

# Rejection rates published for these protocols, from benchmarks.md.
PUBLISHED: dict[str, dict[str, float]] = {
    "mixture sd=0.5": {"MMD-FUSE": 0.995, "MMDAgg": 0.995},
    "mixture sd=0.6": {"MMD-FUSE": 0.945, "MMDAgg": 0.915},
    "mixture sd=0.7": {"MMD-FUSE": 0.51, "MMDAgg": 0.46},
    "mixture sd=1.6": {"MMD-FUSE": 0.635, "MMDAgg": 0.675},
    "mixture sd=2.0": {"MMD-FUSE": 0.905, "MMDAgg": 0.945},
    "mnist Q1": {"MMDAgg": 1.0},
    "mnist Q2": {"MMDAgg": 0.988},
    "mnist Q3": {"MMDAgg": 0.408},
    "mnist Q4": {"MMDAgg": 0.358},
    "mnist Q5": {"MMDAgg": 0.058},
    "blobs 10": {"RJSD": 0.36, "MMD-D": 0.152},
    "blobs 20": {"RJSD": 0.914, "MMD-D": 0.461},
    "blobs 40": {"RJSD": 1.0, "MMD-D": 0.971},
}
DIGITS = ((1, 3, 5, 7, 9), (0,), (2,), (4,), (6,))


def blobs(n: int, correlated: bool, generator: torch.Generator) -> Tensor:  # (n, 2)
    """Nine Gaussians on {0, 1, 2}^2 of variance 0.03; `correlated`: each with its own tilt."""
    tilt = torch.tensor([*(-0.02 - 0.002 * k for k in range(4)), 0.0,
                         *(0.02 + 0.002 * k for k in range(4))])  # fmt: skip
    state = torch.randint(9, (n,), generator=generator)
    covariance = 0.03 * torch.eye(2).expand(9, 2, 2).clone()
    if correlated:
        covariance[:, 0, 1] = covariance[:, 1, 0] = tilt
    noise = torch.randn(n, 2, 1, generator=generator)
    shift = (torch.linalg.cholesky(covariance)[state] @ noise).squeeze(-1)
    return torch.stack([state // 3, state % 3], 1) + shift


def _mixtures(sd: float, generator: torch.Generator) -> Pair:
    return four_gaussians(500, 1.0, generator), four_gaussians(500, sd, generator)


def _blob_pair(n: int, correlated: bool, generator: torch.Generator) -> Pair:
    return blobs(n, False, generator), blobs(n, correlated, generator)


def _mnist(folder: Path) -> tuple[Tensor, Tensor]:
    """Images averaged to 7 x 7, in [0, 1], and labels, of the 60,000 training images."""
    with gzip.open(folder / "train-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 7, 4, 7, 4)
    with gzip.open(folder / "train-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    small = torch.from_numpy(images.mean((2, 4)) / 255).float().reshape(-1, 49)
    return small, torch.from_numpy(labels.astype(np.int64))


def _cases(folder: Path | None) -> Iterator[tuple[str, str, Callable[[torch.Generator], Pair]]]:
    """Name, sample sizes in words, and a function that draws a pair of samples."""
    for sd in (1.0, 0.5, 0.6, 0.7, 1.6, 2.0):
        name = "mixture null" if sd == 1 else f"mixture sd={sd}"
        yield name, "n=m=500", partial(_mixtures, sd)
    for count in (10, 20, 40):
        n = 9 * count
        yield (
            f"blobs {count}",
            f"n=m={n}, {count} expected in each of 9 blobs, no training set",
            partial(_blob_pair, n, True),
        )
    yield "blobs null", "n=m=180", partial(_blob_pair, 180, False)
    if folder is None or not folder.is_dir():
        return
    images, labels = _mnist(folder)

    def drawn(allowed: Tensor, generator: torch.Generator) -> Tensor:
        return images[allowed[torch.randperm(len(allowed), generator=generator)[:500]]]

    def pair(allowed: Tensor, generator: torch.Generator) -> Pair:
        return drawn(every, generator), drawn(allowed, generator)

    every = torch.arange(len(labels))
    digits: tuple[int, ...] = ()
    for k, added in enumerate(DIGITS, start=1):
        digits = (*digits, *added)
        chosen = torch.isin(labels, torch.tensor(digits)).nonzero()[:, 0]
        yield f"mnist Q{k}", "n=m=500", partial(pair, chosen)
    yield "mnist null", "n=m=500", partial(pair, every)


def _hyppo(name: str) -> Callable[[Tensor, Tensor, int], float]:
    def test(x: Tensor, y: Tensor, seed: int) -> float:
        from hyppo import ksample

        del seed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Its default for such sample sizes: a p-value from a chi-square approximation.
            return float(getattr(ksample, name)().test(x.double().numpy(), y.double().numpy())[1])

    return test


def laplace_kernels(x: Tensor, y: Tensor) -> list[LaplaceKernel]:
    """As many scales as the Gaussian test has variances, at which both kernels are 1/e."""
    return [LaplaceKernel(2 * v**0.5) for v in variance_grid(torch.cat([x, y]))]


PERMUTATIONS = 500
METHODS: dict[str, Callable[[Tensor, Tensor, int], float]] = {
    "kermix svd": lambda x, y, s: two_sample_test(x, y, "svd", seed=s).pvalue,
    "kermix mmd": lambda x, y, s: two_sample_test(x, y, "mmd", seed=s).pvalue,
    "kermix energy": lambda x, y, s: two_sample_test(x, y, "energy", seed=s).pvalue,
    "median-heuristic mmd": lambda x, y, s: (
        two_sample_test(x, y, "mmd", float(bandwidth(torch.cat([x, y]))), seed=s).pvalue
    ),
    "laplace mmd": lambda x, y, s: (
        two_sample_test(x, y, "mmd", kernel=laplace_kernels(x, y), seed=s).pvalue
    ),
    "hyppo MMD": _hyppo("MMD"),
    "hyppo Energy": _hyppo("Energy"),
}
CASES = tuple(name for name, _, _ in _cases(None)) + tuple(
    f"mnist {q}" for q in ("Q1", "Q2", "Q3", "Q4", "Q5", "null")
)


def rejection_rates(
    repetitions: int = 100,
    cases: tuple[str, ...] = CASES,
    methods: tuple[str, ...] = tuple(METHODS),
    mnist: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Rejection rates at level 0.05 of every method on every case, from the same samples."""
    rows = []
    for name, sizes, draw in _cases(mnist):
        if name not in cases:
            continue
        values: dict[str, list[float]] = {method: [] for method in methods}
        seconds = dict.fromkeys(methods, 0.0)
        for repetition in range(repetitions):
            x, y = draw(torch.Generator().manual_seed(repetition))
            for method in methods:
                began = time.perf_counter()
                values[method].append(METHODS[method](x, y, repetition))
                seconds[method] += time.perf_counter() - began
        shares = {m: sum(p <= LEVEL for p in v) / len(v) for m, v in values.items()}
        rows.append(
            {
                "case": name,
                "sizes": sizes,
                "repetitions": repetitions,
                "rejected": shares,
                "published": PUBLISHED.get(name, {}),
                "seconds": {m: s / repetitions for m, s in seconds.items()},
                "pvalues": values,
            }
        )
        progress(f"{name:16}" + "".join(f"  {m} {share:.3f}" for m, share in shares.items()))
    return {"level": LEVEL, "permutations": PERMUTATIONS, "seeds": "repetition", "rows": rows}


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Tables of rejection rates, without MNIST, which needs its files."""
    cases = CASES[:1] if quick else tuple(c for c in CASES if not c.startswith("mnist"))
    rates = rejection_rates(5 if quick else 100, cases)["rows"]
    return {
        "rejected_at_0.05": [
            {"case": r["case"], "repetitions": r["repetitions"], **r["rejected"]} for r in rates
        ]
    }


def merged(before: dict[str, Any] | None, row: dict[str, Any]) -> dict[str, Any]:
    """A row with the methods that were measured before on the same samples.

    `commits` says of which commit a method's numbers are, where it is not that of the row.
    """
    if before is None or before["repetitions"] != row["repetitions"]:
        return row
    kept = [m for m in before["rejected"] if m not in row["rejected"]]
    if not kept:
        return row
    for column in ("rejected", "seconds", "pvalues"):
        row[column] = {**{m: before[column][m] for m in kept}, **row[column]}
    known = before.get("commits", {})
    row["commits"] = {m: known.get(m, before.get("commit")) for m in kept}
    return row


def main() -> None:
    """Run everything and write the result file, after each case what there is so far."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repetitions", type=int, default=100)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--mnist", type=Path, default=None, help="folder of the four IDX files")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    asked = parser.parse_args()

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    path = asked.out / f"power-{machine_name()}.json"
    # A long run can be made in parts: what was measured before and is not asked for stays.
    before = json.loads(path.read_text()) if path.is_file() else {}
    result: dict[str, Any] = {**before, "environment": environment()}
    cases, methods = asked.cases.split(","), tuple(asked.methods.split(","))
    rows = {row["case"]: row for row in before.get("power", {}).get("rows", [])}
    for case in cases:
        part = rejection_rates(asked.repetitions, (case,), methods, asked.mnist, say)
        commit = result["environment"]["commit"]
        for row in part["rows"]:
            rows[case] = merged(rows.get(case), {**row, "commit": commit})
        result["power"] = {**part, "rows": list(rows.values())}
        write_json(path, result)
    say(f"Results: {path}")


if __name__ == "__main__":
    main()
