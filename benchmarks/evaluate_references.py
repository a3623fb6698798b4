"""Scores of generators beside other implementations of them, on common ground.

`python -m benchmarks.evaluate_references` writes
`results/bench/evaluate-references-<machine>.json`. It needs vendi-score, prdc, torchmetrics and
sdmetrics; KEN has no package, so its block matrix, which is not symmetric, is written out here.
"""

import argparse
import math
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kermix as km
from kermix.environment import environment, machine_name
from kermix.evaluation.sample_distances import frechet_distance, kernel_distance, neighbor_scores
from kermix.files import write_json

__all__ = ["compared"]

PACKAGES = ("vendi-score", "prdc", "torchmetrics")
ROWS, OTHERS, DIMENSION = 400, 330, 6
V = 0.3


def compared() -> list[dict[str, Any]]:
    """Ours, theirs and the difference, for each score."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, DIMENSION))
    y = 0.8 * rng.normal(size=(OTHERS, DIMENSION)) + 0.3
    lines = [*_diversity(x), *_novelty(x, y), *_neighbours(x, y), *_distances(x, y)]
    return [{"score": name, "reference": where, "ours": ours, "theirs": theirs,
             "difference": abs(ours - theirs)} for name, where, ours, theirs in lines]  # fmt: skip


Line = tuple[str, str, float, float]


def _diversity(x: np.ndarray) -> list[Line]:
    from vendi_score import vendi

    points, found = torch.from_numpy(x), []
    gaussian = _kernel(x, x)
    for order in (1, 2, 0.5, 5):
        found.append((f"Vendi score of order {order}, Gaussian", "vendi-score",
                      float(km.metrics.vendi(points, V, order=order)),
                      float(vendi.score_K(gaussian, q=order))))  # fmt: skip
    found.append(
        (
            "Vendi score, cosine",
            "vendi-score",
            float(km.metrics.vendi(points, kernel=km.CosineKernel())),
            float(vendi.score_X(x)),
        )
    )
    sketch = km.Sketch(km.kernel_features(points, km.CosineKernel(), rank=50)).update(points)
    found.append(("Vendi score of a sketch, cosine", "vendi-score (dual)",
                  float(km.metrics.vendi(sketch)), float(vendi.score_dual(x))))  # fmt: skip
    cubic = (x @ x.T / DIMENSION + 1) ** 3
    found.append(("Vendi score, polynomial", "vendi-score",
                  float(km.metrics.vendi(points, kernel=km.PolynomialKernel(3))),
                  float(vendi.score_K(cubic, normalize=True))))  # fmt: skip
    weights = np.random.default_rng(1).uniform(0.5, 2, len(x))
    found.append(("Vendi score with weights", "vendi-score",
                  float(km.metrics.vendi(points, V, weights=torch.from_numpy(weights))),
                  float(vendi.score_K(gaussian, p=weights / weights.sum()))))  # fmt: skip
    found.append(("RKE", "inverse squared Frobenius norm, in loops",
                  float(km.metrics.rke(points, V)),
                  float(len(x) ** 2 / sum(float(k) ** 2 for k in gaussian.ravel()))))  # fmt: skip
    frequencies = km.fourier_features(DIMENSION, V, 200)
    angles = x @ frequencies.frequencies.numpy().T
    features = np.concatenate([np.cos(angles), np.sin(angles)], 1) / math.sqrt(100)
    values = np.linalg.eigvalsh(features.T @ features / len(x))
    values = values[values > 1e-300]
    fourier = km.Sketch(frequencies).update(points)
    found.append(("Vendi score, Fourier features", "FKEA's formula",
                  float(km.metrics.vendi(fourier)),
                  math.exp(-(values * np.log(values)).sum())))  # fmt: skip
    found.append(("RKE, Fourier features", "FKEA's formula",
                  float(km.metrics.rke(fourier)),
                  1 / float((values**2).sum())))  # fmt: skip
    return found


def _novelty(x: np.ndarray, y: np.ndarray) -> list[Line]:
    found = []
    for eta in (1.0, 2.0):
        cross = math.sqrt(eta / (len(x) * len(y))) * _kernel(x, y)
        matrix = np.block(
            [[_kernel(x, x) / len(x), cross], [-cross.T, -eta * _kernel(y, y) / len(y)]]
        )
        values = np.linalg.eigvals(matrix).real
        positive = values[values > 1e-13]
        theirs = float(-(positive * np.log(positive / positive.sum())).sum())
        ours = float(km.metrics.ken(torch.from_numpy(x), torch.from_numpy(y), V, eta=eta))
        found.append((f"KEN, eta = {eta:g}", "block matrix of the paper", ours, theirs))
    return found


def _neighbours(x: np.ndarray, y: np.ndarray) -> list[Line]:
    from prdc import compute_prdc

    found = []
    for k in (3, 5):
        theirs = compute_prdc(x, y, k)
        ours = neighbor_scores(torch.from_numpy(x), torch.from_numpy(y), k)
        found += [(f"{name}, k = {k}", "prdc", float(getattr(ours, name)), float(theirs[name]))
                  for name in ("precision", "recall", "density", "coverage")]  # fmt: skip
    return found


def _distances(x: np.ndarray, y: np.ndarray) -> list[Line]:
    from torchmetrics.image.fid import _compute_fid
    from torchmetrics.image.kid import poly_mmd

    real, fake = torch.from_numpy(x), torch.from_numpy(y)
    generator, values = torch.Generator().manual_seed(0), []
    for _ in range(20):
        a, b = (s[torch.randperm(len(s), generator=generator)[:100]] for s in (real, fake))
        values.append(float(poly_mmd(a, b)))
    ours = kernel_distance(real, fake, subsets=20, subset_size=100)
    theirs = _compute_fid(real.mean(0), real.T.cov(), fake.mean(0), fake.T.cov())
    return [
        ("KID, mean of 20 subsets", "torchmetrics", ours.value, float(np.mean(values))),
        ("KID, their spread", "torchmetrics", ours.spread, float(np.std(values))),
        ("Frechet distance", "torchmetrics", frechet_distance(real, fake), float(theirs)),
    ]


def _kernel(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    squares = ((a[:, None] - b[None]) ** 2).sum(-1)
    return np.asarray(np.exp(-squares / (4 * V * a.shape[1])))


def main(arguments: list[str] | None = None) -> Path:
    """Compare, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path("results/bench") / f"evaluate-references-{machine_name()}.json"
    parser.add_argument("--out", type=Path, default=default)
    out: Path = parser.parse_args(arguments).out
    warnings.simplefilter("ignore")
    lines = compared()
    write_json(out, {
        "benchmark": "evaluate-references", **environment(),
        "packages": {name: version(name) for name in PACKAGES},
        "largest_difference": max(line["difference"] for line in lines),
        "tables": {"scores": lines},
    })  # fmt: skip
    for line in lines:
        print(f"{line['score']:40} {line['reference']:42} {line['difference']:.1e}")
    return out


if __name__ == "__main__":
    main()
