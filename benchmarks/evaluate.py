"""Scores of generators: a million samples with a certificate, rank, bounds, planted faults.

`python -m benchmarks evaluate` writes `results/bench/evaluate-<machine>.json`. Exact values are
those of a dense eigenvalue problem in NumPy; Fourier features are random, so their errors, and
those of landmarks, are means over seeds. One thread does all (`OMP_NUM_THREADS=1`): where other
programs share the cores, processor seconds say more than seconds.
"""

import math
import resource
import time
from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from torch import Tensor

import kermix as km
from kermix.data.loading import load
from kermix.tables.evaluate.copies import memorizing

__all__ = ["run"]

DIMENSION, CLUSTERS, SPREAD, APART = 64, 30, 0.5, 3.0
MILLION_VARIANCE, MILLION_RANK = 0.5, 300
RANK_CLUSTERS = (5, 10, 20, 40, 80)
GRID_RANKS = (50, 100, 200, 400)
GRID_ROWS, GRID_SEEDS = 1500, 5
BOUND_CASES = 500
MASSES = ((0.01,), (0.1,), (0.1, 0.01), (0.1, 0.05, 0.02), (0.1, 0.07, 0.04, 0.02, 0.01))
ETA = 2.0  # a mode counts if it is more than twice as frequent
MODE_SPREAD = 0.4
MODE_VARIANCE = 2 * MODE_SPREAD**2  # rows of one mode have kernels of about exp(-1/4)
NOVELTY_ROWS, NOVELTY_SEEDS, EXEMPLARS = 10_000, 2, 20
MEMORY_ROWS, MEMORY_SEEDS = 5000, 20


def run(quick: bool = False) -> Iterator[dict[str, Any]]:
    """All tables, each time with one more."""
    tables: dict[str, Any] = {}
    for name, made in (
        ("a_million_samples", _million),
        ("rank_for_one_percent", _rank_needed),
        ("against_fourier_features", _against_fourier),
        ("random_cases_of_the_bounds", _bounds),
        ("planted_novelty", _novelty),
        ("planted_copies", _copies),
    ):
        tables[name] = made(quick)
        yield tables


def clusters(
    rows: int,
    count: int,
    dimension: int,
    seed: int,
    decay: float = 1.0,
    dtype: Any = torch.float64,
) -> Tensor:
    """Equal clusters around normal centres, whose k-th coordinate has the spread 0.5 / k^decay."""
    generator = torch.Generator().manual_seed(seed)
    centres = APART * torch.randn(count, dimension, generator=generator, dtype=dtype)
    spread = SPREAD / torch.arange(1, dimension + 1, dtype=dtype) ** decay
    which = torch.randint(count, (rows,), generator=generator)
    noise = torch.randn(rows, dimension, generator=generator, dtype=dtype)
    return centres[which] + noise.mul_(spread)


def _million(quick: bool) -> list[dict[str, Any]]:
    rows = 20_000 if quick else 1_000_000
    x = clusters(rows, CLUSTERS, DIMENSION, 0, dtype=torch.float32)
    used, start = _processor_seconds(), time.perf_counter()
    value, info = km.metrics.vendi(x, MILLION_VARIANCE, rank=MILLION_RANK, return_info=True)
    seconds, used = time.perf_counter() - start, _processor_seconds() - used
    assert info.error_bound is not None
    return [{
        "samples": rows, "dimension": DIMENSION, "clusters": CLUSTERS, "v": MILLION_VARIANCE,
        "rank": info.rank, "vendi": float(value),
        "at_least": float(value - info.error_bound),
        "certified_relative_error": float(info.error_bound / value),
        "seconds": seconds, "processor_seconds": used, "threads": torch.get_num_threads(),
    }]  # fmt: skip


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _rank_needed(quick: bool) -> list[dict[str, Any]]:
    """The smallest rank, by bisection, whose certified relative error is one percent."""
    rows = 4000 if quick else 20_000
    found = []
    for count in RANK_CLUSTERS[:2] if quick else RANK_CLUSTERS:
        x = clusters(rows, count, DIMENSION, 1)
        low, high = count, 16 * count
        while _relative_error(x, high) > 0.01:
            low, high = high, 2 * high
        while high - low > max(1, low // 20):
            middle = (low + high) // 2
            low, high = (low, middle) if _relative_error(x, middle) <= 0.01 else (middle, high)
        value = float(km.metrics.vendi(x, MILLION_VARIANCE, rank=high))
        found.append({"clusters": count, "samples": rows, "v": MILLION_VARIANCE, "vendi": value,
                      "rank": high, "rank_for_each_unit_of_vendi": high / value})  # fmt: skip
    return found


def _relative_error(x: Tensor, rank: int) -> float:
    value, info = km.metrics.vendi(x, MILLION_VARIANCE, rank=rank, return_info=True)
    assert info.error_bound is not None
    return float(info.error_bound / value)


def _against_fourier(quick: bool) -> list[dict[str, Any]]:
    rows = 300 if quick else GRID_ROWS
    generator = torch.Generator().manual_seed(0)
    sets = {
        "30 clusters, 64 dimensions": clusters(rows, 30, 64, 2),
        "10 clusters, 8 dimensions": clusters(rows, 10, 8, 3, decay=0.0),
        "normal, 2 dimensions": torch.randn(rows, 2, generator=generator, dtype=torch.float64),
        "normal, 16 dimensions": torch.randn(rows, 16, generator=generator, dtype=torch.float64),
        "moons": load("moons", rows=rows).values.double(),
        "digits": load("digits", rows=rows).values.double(),
    }
    found = []
    variances = {name: km.metrics.stable_variance(x) for name, x in sets.items()}
    scores = {name: _exact(x.numpy(), variances[name])[0] for name, x in sets.items()}
    for (name, x), rank in product(sets.items(), GRID_RANKS[:1] if quick else GRID_RANKS):
        v, exact = variances[name], scores[name]
        errors: dict[str, list[float]] = {"nystrom": [], "fourier": []}
        for seed in range(GRID_SEEDS):
            features = km.fourier_features(x.shape[1], v, rank, seed=seed)
            for method, value in (
                ("nystrom", km.metrics.vendi(x, v, rank=rank, seed=seed)),
                ("fourier", km.metrics.vendi(km.Sketch(features).update(x))),
            ):
                errors[method].append(abs(float(value) / exact - 1))
        means = {method: float(np.mean(e)) for method, e in errors.items()}
        found.append({"set": name, "v": v, "vendi": exact, "rank": rank, **means,
                      "fourier_over_nystrom": means["fourier"] / means["nystrom"],
                      "nystrom_is_better": means["nystrom"] < means["fourier"]})  # fmt: skip
    return found


def _exact(x: np.ndarray, v: float) -> tuple[float, float]:
    """Vendi score and RKE from a dense matrix of explicit differences."""
    squares = np.zeros((len(x), len(x)))
    for column in x.T:
        squares += (column[:, None] - column) ** 2
    values = np.linalg.eigvalsh(np.exp(-squares / (4 * v * x.shape[1])) / len(x))
    values = values[values > 0]
    return math.exp(-(values * np.log(values)).sum()), 1 / (values**2).sum()


def _bounds(quick: bool) -> list[dict[str, Any]]:
    """Random sizes, dimensions, scales, variances and ranks; copies and far sets among them."""
    cases = 20 if quick else BOUND_CASES
    broken = {"vendi": 0, "rke": 0, "fidelity": 0}
    used: dict[str, list[float]] = {name: [] for name in broken}
    for seed in range(cases):
        rng = np.random.default_rng(10_000 + seed)
        x, y = _random_sets(rng)
        v = float(10.0 ** rng.uniform(-2.5, 1.5)) * float(np.mean(x.var(0)) or 1.0)
        rank = int(rng.integers(1, len(x) + len(y) + 1))
        points = [torch.from_numpy(s) for s in (x, y)]
        features = km.nystrom_features(torch.cat(points), v, rank, seed=seed)
        one, two = (km.Sketch(features).update(s) for s in points)
        exact = dict(zip(("vendi", "rke"), _exact(x, v), strict=True))
        exact["fidelity"] = _exact_fidelity(x, y, v)
        for name, (value, info) in (
            ("vendi", km.metrics.vendi(one, return_info=True)),
            ("rke", km.metrics.rke(one, return_info=True)),
            ("fidelity", km.svd_cost(one, two, normalized=True, return_info=True)),
        ):
            error, bound = abs(float(value) - exact[name]), float(info.error_bound)  # type: ignore[arg-type]
            broken[name] += bool(error > bound * (1 + 1e-9) + 1e-12)
            used[name].append(error / max(bound, 1e-300))
    return [
        {"score": name, "cases": cases, "violations": broken[name],
         "median_error_over_bound": float(np.median(used[name])),
         "largest_error_over_bound": float(np.max(used[name]))}
        for name in broken
    ]  # fmt: skip


def _random_sets(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    d, k, scale = rng.integers(1, 9), rng.integers(1, 12), 10.0 ** rng.uniform(-4, 4)
    centres, narrow = rng.normal(size=(k, d)) * rng.uniform(0, 4), rng.uniform(0, 1)
    found = []
    for _ in range(2):
        n = int(rng.integers(3, 90))
        points = centres[rng.integers(k, size=n)] + narrow * rng.normal(size=(n, d))
        if rng.random() < 0.2:
            points[n // 2 :] = points[: n - n // 2]
        found.append(points * scale)
    if rng.random() < 0.1:
        found = [points + 1e3 * scale for points in found]
    return found[0], found[1]


def _exact_fidelity(x: np.ndarray, y: np.ndarray, v: float) -> float:
    squares = ((x[:, None] - y[None]) ** 2).sum(-1)
    matrix = np.exp(-squares / (4 * v * x.shape[1])) / math.sqrt(len(x) * len(y))
    return float(np.linalg.svd(matrix, compute_uv=False).sum())


def _novelty(quick: bool) -> list[dict[str, Any]]:
    rows, seeds = (1000, 1) if quick else (NOVELTY_ROWS, NOVELTY_SEEDS)
    found = []
    for dimension, masses in product((2, 16, 64), MASSES[:1] if quick else MASSES):
        complete = ranked = right = shown = 0
        for seed in range(seeds):
            one, mode, other = _planted(rows, dimension, masses, seed)
            modes = km.metrics.novel_modes(
                one,
                other,
                MODE_VARIANCE,
                eta=ETA,
                count=len(masses),
                exemplars=EXEMPLARS,
                seed=seed,
            )
            labels = [mode[list(m.exemplars)] for m in modes]
            main = [int(part.mode().values) for part in labels]
            complete += set(main) == set(range(len(masses)))
            ranked += main == list(range(len(masses)))
            right += sum(int((part == own).sum()) for own, part in enumerate(labels))
            shown += sum(len(part) for part in labels)
        found.append({
            "dimension": dimension, "v": MODE_VARIANCE, "eta": ETA,
            "masses": ", ".join(f"{m:g}" for m in masses), "samples": rows, "runs": seeds,
            "all_found": complete, "ranked": ranked, "exemplars": shown,
            "exemplars_right": right / max(1, shown),
        })  # fmt: skip
    return found


def _planted(
    rows: int, dimension: int, masses: tuple[float, ...], seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Ten modes, of which the first are in one set alone, with these masses; and the other set.

    Whether they were added to a generator's samples or are missing from them is a matter of which
    set is which.
    """
    generator = torch.Generator().manual_seed(seed)
    if dimension == 2:
        angle = torch.arange(10) * (2 * math.pi / 10)
        centres = 5 * torch.stack([angle.cos(), angle.sin()], 1).double()
    else:
        centres = APART * torch.randn(10, dimension, generator=generator, dtype=torch.float64)
    rest = 10 - len(masses)
    shares = torch.tensor([*masses, *[(1 - sum(masses)) / rest] * rest])
    equal = torch.tensor([*[0.0] * len(masses), *[1 / rest] * rest])
    sets = []
    for share in (shares, equal):
        mode = torch.multinomial(share, rows, True, generator=generator)
        noise = torch.randn(rows, dimension, generator=generator, dtype=torch.float64)
        sets.append((centres[mode] + MODE_SPREAD * noise, mode))
    return sets[0][0], sets[0][1], sets[1][0]


def _copies(quick: bool) -> list[dict[str, Any]]:
    rows, seeds = (1000, 2) if quick else (MEMORY_ROWS, MEMORY_SEEDS)
    found = []
    for share, noise in ((0.0, 0.0), (0.01, 0.0), (0.01, 0.001), (0.01, 0.01)):
        rejected, estimated, named, right = 0, [], 0, 0
        for seed in range(seeds):
            x = clusters(4 * rows, 20, 16, seed, decay=0.0)
            training, samples, held = x[:rows], x[rows : 2 * rows].clone(), x[2 * rows : 3 * rows]
            copied = int(share * rows)
            generator = torch.Generator().manual_seed(seed)
            blur = torch.randn(copied, 16, generator=generator, dtype=torch.float64)
            samples[:copied] = training[:copied] + noise * blur
            told = memorizing(training, samples, held)
            rejected += told.pvalue <= 0.01
            estimated.append(told.memorized)
            named += len(told.rows)
            right += sum(a == b < copied for a, b in told.rows)
        found.append({
            "copied": share, "noise": noise, "samples": rows, "held_out": rows, "runs": seeds,
            "found_at_level_0.01": rejected, "estimated_share": float(np.mean(estimated)),
            "rows_named": named, "rows_named_right": right,
        })  # fmt: skip
    return found
