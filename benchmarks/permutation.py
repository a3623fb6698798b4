"""Speed of a permutation test: all labellings at once, against a loop over them and hyppo.

`python -m benchmarks permutation`. One variance, 500 + 500 points, 500 permutations. The loop
computes the paper's number for each labelling; `kermix svd, exact` computes the same cost for all
of them, `kermix svd`, the default, its second-order form. hyppo, which has no GPU version, runs on
the CPU.
"""

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.timing import device_name, measure
from kermix.kernels.gram import gram
from kermix.linalg.nuclear import nuclear_norm
from kermix.two_sample.cost_test import two_sample_test

__all__ = ["four_gaussians", "run", "speed"]


def four_gaussians(n: int, sd: float, generator: torch.Generator) -> Tensor:  # (n, 2)
    """Four Gaussians at (+-20, +-20) of standard deviation 1, but `sd` for the fourth."""
    centres = torch.tensor([[20.0, 20], [20, -20], [-20, 20], [-20, -20]])
    state = torch.randint(4, (n,), generator=generator)
    scale = torch.tensor([1.0, 1, 1, sd])[state]
    return centres[state] + scale[:, None] * torch.randn(n, 2, generator=generator)


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """The table of the benchmark; the quick version is small."""
    return {"permutation_test": speed(100, 20) if quick else speed()}


def speed(n: int = 500, permutations: int = 500) -> list[dict[str, Any]]:
    """Seconds of one test of `n` + `n` points, and how many times slower than each the peers are.

    The loops go over all the permutations.
    """
    generator = torch.Generator().manual_seed(0)
    device = device_name()
    x = four_gaussians(n, 1.0, generator).to(device)
    y = four_gaussians(n, 0.7, generator).to(device)
    pooled, v = torch.cat([x, y]), 1.0
    orders = [torch.randperm(2 * n, generator=generator).to(device) for _ in range(permutations)]

    def loop(of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def over_all() -> None:
            for order in orders:
                of(pooled[order[:n]], pooled[order[n:]])

        return over_all

    def mmd(a: Tensor, b: Tensor) -> Tensor:
        return gram(a, a, v).mean() + gram(b, b, v).mean() - 2 * gram(a, b, v).mean()

    ours: dict[str, Callable[[], object]] = {
        "svd": lambda: two_sample_test(x, y, "svd", v, permutations),
        "svd, exact": lambda: two_sample_test(x, y, "svd", v, permutations, form="exact"),
        "mmd": lambda: two_sample_test(x, y, "mmd", v, permutations),
    }
    loops = {"svd": loop(lambda a, b: nuclear_norm(gram(a, b, v))), "mmd": loop(mmd)}
    loop_times = {name: measure(call, 1) for name, call in loops.items()}
    peer = _hyppo_seconds(x, y, permutations)
    rows = []
    for name, call in ours.items():
        mine, other = measure(call), loop_times[name.split(",")[0]]
        rows.append(
            {
                "test": f"kermix {name}",
                "n": n,
                "permutations": permutations,
                "device": device,
                "seconds": mine.seconds,
                "loop_s": other.seconds,
                "loop_ratio": other.seconds / mine.seconds,
                "hyppo_mmd_s": peer,
                "hyppo_ratio": None if peer is None else peer / mine.seconds,
                "raw_s": mine["raw_s"],
            }
        )
    return rows


def _hyppo_seconds(x: Tensor, y: Tensor, permutations: int) -> float | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from hyppo.ksample import MMD
    except ImportError:
        return None
    samples = x.cpu().double().numpy(), y.cpu().double().numpy()

    def test(count: int) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.perf_counter()
            MMD().test(*samples, count, 1, auto=False)
            return time.perf_counter() - began

    test(1)  # compiles
    return test(permutations)
