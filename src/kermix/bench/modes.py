"""Mode coverage in the plane, by the PacGAN protocol, for all costs and the baselines.

`python -m kermix.bench.modes --seeds 10`: 8 modes on a ring and 25 on a grid, 100,000 training
points, 2,500 samples; a sample is good within three deviations of the nearest mode. One setting
serves both sets. All seeds of a cost train side by side, as one batch of models.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from kermix.data.toys import toy
from kermix.evaluation import ModeCoverage, mode_coverage
from kermix.records import environment, machine_name, write_json
from kermix.training.build import build_model
from kermix.training.loop import Trainer
from kermix.training.settings import COSTS, Settings

__all__ = ["METHODS", "SETTING", "main", "run"]

SETS = ("ring8", "grid25")
POINTS, SAMPLES = 100_000, 2_500
SETTING = Settings(components=128, steps=2000, batch=256, polish=0, variance=1e-3)
CLOSED_FORM_STEPS, CLOSED_FORM_BATCH = 500, 4096
# Every cost on samples; then the SVD cost followed by the closed form, as `kermix fit` does.
METHODS = (*(c for c in COSTS), "svd+closed form")
PERFECT = {"ring8": {"kl": 0.001}, "grid25": {"kl": 0.004}}


def _settings(method: str, setting: Settings) -> Settings:
    if method == "svd+closed form":
        return replace(setting, polish=CLOSED_FORM_STEPS, polish_batch=CLOSED_FORM_BATCH)
    return replace(setting, cost=method)  # type: ignore[arg-type]


def run(
    name: str, method: str, seeds: Sequence[int], setting: Settings = SETTING, device: str = "auto"
) -> dict[str, Any]:
    """Train one model for each seed, side by side, and look at the samples of each."""
    chosen = toy(name)
    modes = chosen.modes
    if modes is None:
        raise ValueError(f"{name} has no separate modes.")
    draws = [chosen.sample(POINTS, torch.Generator().manual_seed(s)) for s in seeds]
    settings = replace(_settings(method, setting), seed=seeds[0])
    data = torch.stack(draws)
    model, variances = build_model(data, settings)
    trainer = Trainer(model, data, None, settings, variances, device=device)
    start = time.perf_counter()
    trainer.run()
    _wait(trainer)
    seconds = time.perf_counter() - start
    generator = torch.Generator(model.scaler.scale.device).manual_seed(seeds[0])
    samples = model.mixture().sample((SAMPLES,), generator=generator).movedim(1, 0).cpu()
    found = [mode_coverage(s, modes.centres.double(), modes.deviation) for s in samples]
    return {
        "set": name,
        "method": method,
        "seconds": seconds,
        "steps": trainer.total,
        "runs": [{"seed": s, **asdict(f)} for s, f in zip(seeds, found, strict=True)],
        **_summary(found),
    }


def _wait(trainer: Trainer) -> None:
    if trainer.model.scaler.scale.device.type == "cuda":
        torch.cuda.synchronize()


def _summary(found: Sequence[ModeCoverage]) -> dict[str, Any]:
    return {
        "full_coverage": sum(f.modes == f.total for f in found),
        "modes": statistics.mean(f.modes for f in found),
        "high_quality": statistics.mean(f.high_quality for f in found),
        "worst_high_quality": min(f.high_quality for f in found),
        "kl": statistics.mean(f.kl for f in found),
        "worst_kl": max(f.kl for f in found),
        "goal": all(f.modes == f.total and f.high_quality >= 0.97 and f.kl <= 0.02 for f in found),
    }


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file."""
    from rich.console import Console
    from rich.table import Table

    parser = argparse.ArgumentParser("kermix.bench.modes", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", default=",".join(METHODS), help="names with commas between")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--steps", type=int, default=SETTING.steps)
    parser.add_argument("--components", type=int, default=SETTING.components)
    parser.add_argument("--batch", type=int, default=SETTING.batch)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    setting = replace(SETTING, steps=given.steps, components=given.components, batch=given.batch)
    console = Console()
    results = []
    for name in given.sets.split(","):
        for method in given.methods.split(","):
            result = run(name, method, range(given.seeds), setting, given.device)
            results.append(result)
            console.print(f"{name} {method}: {result['seconds']:.0f} s", highlight=False)
    table = Table(title=f"Mode coverage, {given.seeds} seeds; a sample is a centre plus noise")
    for column in ("set", "cost", "all modes", "modes", "good", "worst", "KL", "worst", "s"):
        table.add_column(column)
    for r in results:
        table.add_row(
            r["set"], r["method"], f"{r['full_coverage']}/{given.seeds}", f"{r['modes']:.1f}",
            f"{r['high_quality']:.1%}", f"{r['worst_high_quality']:.1%}", f"{r['kl']:.4f}",
            f"{r['worst_kl']:.4f}", f"{r['seconds']:.0f}",
        )  # fmt: skip
    console.print(table)
    path = given.out or Path("results/bench") / f"modes-{machine_name()}.json"
    content = {
        **environment(),
        "protocol": {"points": POINTS, "samples": SAMPLES, "sample": "centre plus learned noise"},
        "setting": setting.as_json(),
        "closed_form": {"steps": CLOSED_FORM_STEPS, "batch": CLOSED_FORM_BATCH},
        "results": results,
    }
    console.print(f"written: {write_json(path, content)}")
    return path


if __name__ == "__main__":
    main()
