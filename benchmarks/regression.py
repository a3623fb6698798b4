"""Conditional regression on two inverse problems, against a network trained by likelihood.

`python -m benchmarks.regression`: the same mixture density network is trained with the SVD cost
on the joint kernel and then likelihood (or the closed form for each context), and by likelihood
alone, on the same data, and the negative log-likelihood of fresh data is compared with
the exact conditional entropy. The problems: find t from x = t + 0.3 sin(2 pi t) + U(-0.1, 0.1), t
in [0, 1] (Bishop); find y from x = 7 sin(0.75 y) + 0.5 y + N(0, 1), y in [-10.5, 10.5].
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.quality import default_path, write_record
from kermix import fit_conditional
from kermix.training.fit_settings import FitSettings

__all__ = ["METHODS", "PROBLEMS", "SETTING", "main", "run", "train_seeds"]

TRAIN, TEST = 200_000, 50_000
SETTING = FitSettings(
    model="conditional",
    components=64,
    width=256,
    depth=3,
    steps=500,
    refine_steps=8000,
    refine_batch_size=4096,
    learning_rate=2e-3,
)


def bishop(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Contexts x and targets t of the first problem."""
    t = torch.rand(n, 1, generator=generator)
    noise = 0.2 * torch.rand(n, 1, generator=generator) - 0.1
    return t + 0.3 * torch.sin(2 * math.pi * t) + noise, t


def wave(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Contexts x and targets y of the second problem."""
    y = 21 * torch.rand(n, 1, generator=generator) - 10.5
    x = 7 * torch.sin(0.75 * y) + 0.5 * y + torch.randn(n, 1, generator=generator)
    return x, y


PROBLEMS: dict[str, tuple[Callable[[int, torch.Generator], tuple[Tensor, Tensor]], float]] = {
    "bishop": (bishop, -1.282),
    "wave": (wave, 1.288),
}


def train_seeds(
    problem: str, method: str, seeds: Sequence[int], setting: FitSettings, device: str
) -> dict[str, Any]:
    """Train for each seed; the gap to the entropy of each."""
    draw, entropy = PROBLEMS[problem]
    gaps, seconds = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(1000 + seed)
        context, target = draw(TRAIN, generator)
        test_context, test_target = draw(TEST, generator)
        settings = replace(setting, seed=seed)
        if method == "SVD, closed form":
            settings = replace(settings, refine_with="closed form")
        if method == "likelihood":
            # As many steps in all as the others have.
            total = setting.steps + setting.refine_steps
            settings = replace(settings, cost="likelihood", steps=0, refine_steps=total)
        start = time.perf_counter()
        model = fit_conditional(context, target, device=device, **settings.as_json())
        seconds.append(time.perf_counter() - start)
        place = next(model.parameters()).device
        with torch.no_grad():
            density = torch.cat([
                model(c.to(place)).log_prob(x.to(place).double())
                for c, x in zip(test_context.split(5000), test_target.split(5000), strict=True)
            ])  # fmt: skip
        gaps.append(-float(density.mean()) - entropy)
    return {
        "problem": problem,
        "method": method,
        "nll": entropy + statistics.mean(gaps),
        "entropy": entropy,
        "gap": statistics.mean(gaps),
        "worst_gap": max(gaps),
        "seeds": len(gaps),
        "seconds": statistics.mean(seconds),
        "goal": max(gaps) <= 0.05,
    }


METHODS = ("SVD, likelihood", "SVD, closed form", "likelihood")


def run(
    quick: bool = False,
    *,
    seeds: int = 3,
    problems: Sequence[str] = tuple(PROBLEMS),
    methods: Sequence[str] = METHODS,
    setting: FitSettings = SETTING,
    device: str = "auto",
) -> dict[str, list[dict[str, Any]]]:
    """All ways of training on both problems; the quick version has one seed and few steps.

    Args:
        quick: Whether to show only that it works.
        seeds: Number of networks for each.
        problems: Some of `PROBLEMS`.
        methods: Some of `METHODS`.
        setting: The setting that all share.
        device: Where to train.
    """
    if quick:
        seeds = 1
        setting = replace(
            setting, components=8, width=32, steps=20, refine_steps=100, refine_batch_size=256
        )
    return {
        "regression": [
            train_seeds(problem, method, range(seeds), setting, device)
            for problem in problems
            for method in methods
        ]
    }


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file."""
    parser = argparse.ArgumentParser("benchmarks.regression", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--problems", default=",".join(PROBLEMS))
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--components", type=int, default=SETTING.components)
    parser.add_argument("--width", type=int, default=SETTING.width)
    parser.add_argument("--depth", type=int, default=SETTING.depth)
    parser.add_argument("--steps", type=int, default=SETTING.steps)
    parser.add_argument("--refine-steps", type=int, default=SETTING.refine_steps)
    parser.add_argument("--refine-batch-size", type=int, default=SETTING.refine_batch_size)
    parser.add_argument("--learning-rate", type=float, default=SETTING.learning_rate)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=default_path("regression"))
    given = parser.parse_args(arguments)
    setting = replace(
        SETTING,
        components=given.components,
        width=given.width,
        depth=given.depth,
        steps=given.steps,
        refine_steps=given.refine_steps,
        refine_batch_size=given.refine_batch_size,
        learning_rate=given.learning_rate,
    )
    problems = given.problems.split(",")
    tables = run(
        given.quick,
        seeds=given.seeds,
        problems=problems,
        methods=given.methods.split(";"),
        setting=setting,
        device=given.device,
    )
    protocol = {"train": TRAIN, "test": TEST, "setting": asdict(setting)}
    return write_record(
        "regression", given.out, tables, protocol, shown="regression", quick=given.quick
    )


if __name__ == "__main__":
    main()
