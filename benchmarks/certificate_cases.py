"""Adversarial cases for the error bounds: what landmarks, data and kernels can be at their worst.

Everything is drawn from one seed, so that a case can be looked at again by its number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.kernels.gaussian import GaussianKernel
from kermix.sketches.features import ColumnScale, NystromFeatures, nystrom_features

__all__ = ["CertificateCase", "certificate_cases", "described"]

SHAPES = ("normal", "duplicates", "near-duplicates", "outlier", "offset", "apart", "grid", "heavy")
LANDMARKS = ("pivoted", "uniform", "all points", "near-duplicates", "far", "few")
SIDES = ("sketches", "samples", "merged", "loaded")


@dataclass(frozen=True)
class CertificateCase:
    """Two sets of points, and the feature map through which they are compared."""

    number: int
    shape: str
    landmarks: str
    sides: str
    x: Tensor  # (n, d), raw rows
    y: Tensor  # (k, d)
    weights_x: Tensor | None
    weights_y: Tensor | None
    features: NystromFeatures
    ridge: float
    tolerance: float  # of the polar factor


def certificate_cases(seed: int, count: int) -> Iterator[CertificateCase]:
    """Cases 0 to `count - 1` of a seed; each depends on its number alone.

    Args:
        seed: Seed of all draws.
        count: How many cases.
    """
    for number in range(count):
        yield _case(np.random.default_rng([seed, number]), number)


def _case(rng: np.random.Generator, number: int) -> CertificateCase:
    d = round(10 ** rng.uniform(0, 2))
    n, k = (round(10 ** rng.uniform(0.3, 1.9)) for _ in range(2))
    shape, landmarks = rng.choice(SHAPES), rng.choice(LANDMARKS)
    dtype = torch.float32 if rng.random() < 0.3 else torch.float64
    rows = _points(rng, shape, n, k, d)
    scale = None
    if rng.random() < 0.15:
        scale = ColumnScale(torch.from_numpy(rng.normal(size=d)),
                            torch.from_numpy(10 ** rng.uniform(-3, 3, d)))  # fmt: skip
        rows = (
            rows[0] * scale.spread.numpy() + scale.center.numpy(),
            (rows[1] * scale.spread.numpy() + scale.center.numpy()),
        )
    x, y = (torch.from_numpy(p).to(dtype) for p in rows)
    a, b = (p.double() if scale is None else scale(p) for p in (x, y))
    kernel = _kernel(rng, d)
    features = _features(rng, landmarks, a, b, kernel)
    if scale is not None:
        features = replace(features, scale=scale)
    weights_x, weights_y = (_weights(rng, len(p), dtype) for p in (x, y))
    ridge, tolerance = 10 ** rng.uniform(-7, -1), 10 ** rng.uniform(-5.5, -1)
    sides = rng.choice(SIDES, p=(0.4, 0.3, 0.2, 0.1))
    return CertificateCase(
        number, str(shape), str(landmarks), str(sides), x, y, weights_x, weights_y, features,
        ridge, tolerance,
    )  # fmt: skip


def _points(
    rng: np.random.Generator, shape: str, n: int, k: int, d: int
) -> tuple[np.ndarray, np.ndarray]:
    x, y = rng.normal(size=(n, d)), rng.normal(size=(k, d)) * rng.uniform(0.3, 2)
    y += rng.normal() * rng.choice([0.0, 0.5, 3.0])
    if shape == "duplicates":
        x, y = x[rng.integers(0, max(1, n // 3), n)], y[rng.integers(0, max(1, k // 3), k)]
    if shape == "near-duplicates":
        y = x[rng.integers(0, n, k)] + 10 ** rng.uniform(-12, -2) * rng.normal(size=(k, d))
    if shape == "outlier":
        far = 10 ** rng.uniform(2, 12) * rng.normal(size=d)
        x[0] = far
        if rng.random() < 0.5:
            y[0] = far + rng.normal(size=d) * rng.choice([0.0, 1.0])
    if shape == "offset":
        offset = 10 ** rng.uniform(0, 7) * rng.normal(size=d)
        x, y = x + offset, y + offset
    if shape == "apart":
        y += 10 ** rng.uniform(0, 4) * rng.normal(size=d)
    if shape == "grid":
        x, y = np.round(x), np.round(y)
    if shape == "heavy":
        x, y = x / rng.random((n, 1)), y / rng.random((k, 1))
    return x, y


def _kernel(rng: np.random.Generator, d: int) -> GaussianKernel:
    kind = rng.random()
    v = 10 ** (rng.uniform(-9, 9) if kind < 0.2 else rng.uniform(-2, 2))
    per_dimension = rng.random() < 0.85
    v = float(v if per_dimension else v * d)
    if kind > 0.85:
        return GaussianKernel([v, v * 10 ** rng.uniform(-3, 3)], per_dimension=per_dimension)
    return GaussianKernel(v, per_dimension=per_dimension)


def _features(
    rng: np.random.Generator, rule: str, a: Tensor, b: Tensor, kernel: GaussianKernel
) -> NystromFeatures:
    both = torch.cat([a, b]) if rng.random() < 0.7 else a
    some = both[torch.from_numpy(rng.permutation(len(both)))]
    seed = int(rng.integers(1000))
    if rule == "pivoted":
        rank, tolerance = int(rng.integers(1, 60)), 10 ** rng.uniform(-10, -1)
        return nystrom_features(both, kernel, rank, tolerance, seed=seed)
    if rule == "uniform":
        return NystromFeatures(some[: int(rng.integers(1, 30))], kernel)
    if rule == "near-duplicates":
        few = some[: int(rng.integers(1, 20))]
        shift = 10 ** rng.uniform(-14, -1) * torch.from_numpy(rng.normal(size=few.shape))
        return NystromFeatures(torch.cat([few, few + shift]), kernel)
    if rule == "far":
        far = some[:1] + 10 ** rng.uniform(1, 10) * torch.from_numpy(
            rng.normal(size=some[:1].shape)
        )
        return NystromFeatures(torch.cat([some[:8], far, far]), kernel)
    return NystromFeatures(some[:2] if rule == "few" else both, kernel)


def _weights(rng: np.random.Generator, count: int, dtype: torch.dtype) -> Tensor | None:
    kind = rng.random()
    if kind < 0.6:
        return None
    weights = rng.random(count) ** rng.choice([1, 8])
    if kind > 0.8:
        weights[rng.random(count) < 0.5] = 0
    weights[int(rng.integers(count))] = 1
    return torch.from_numpy(weights * 10 ** rng.uniform(-6, 6)).to(dtype)


def described(case: CertificateCase) -> dict[str, Any]:
    """What a table shows of a case."""
    n, d = case.x.shape
    return {
        "number": case.number,
        "shape": case.shape,
        "landmarks": case.landmarks,
        "sides": case.sides,
        "n": n,
        "k": len(case.y),
        "d": d,
        "rank": case.features.rank,
        "dtype": str(case.x.dtype).removeprefix("torch."),
        "kernel": str(case.features.kernel),
        "weights": (case.weights_x is not None) + (case.weights_y is not None),
    }
