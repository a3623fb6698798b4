"""Mode coverage in the plane, by the PacGAN protocol, for all costs and the baselines.

`python -m benchmarks.modes --seeds 10`: 8 modes on a ring and 25 on a grid, 100,000 training
points, 2,500 samples; a sample is good within three deviations of the nearest mode. One setting
serves both sets. All seeds of a cost train side by side, as one batch of models.
"""

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from benchmarks.quality import default_path, save_sheet, write_record
from kermix.costs.baselines import ModeCoverage, mode_coverage
from kermix.data.dataset import toy
from kermix.training.fit_settings import CostName, FitSettings, RefineName
from kermix.training.loop import Trainer
from kermix.training.samples_task import RowTask, build_model

__all__ = ["METHODS", "SETS", "SETTING", "main", "run", "train_seeds"]

SETS = ("ring8", "grid25")
POINTS, SAMPLES = 100_000, 2_500
SETTING = FitSettings(components=128, steps=2000, batch_size=256, refine_steps=0, variance=1e-3)
REFINE_STEPS, REFINE_BATCH_SIZE = 500, 4096
# Every cost on samples; then the SVD cost with refinement: likelihood is what `kermix fit` does.
REFINED: dict[str, RefineName] = {
    "svd+likelihood": "likelihood",
    "svd+closed form": "closed form",
}
METHODS = (*get_args(CostName), *REFINED)


def _settings(method: str, setting: FitSettings) -> FitSettings:
    if method in REFINED:
        refine_with = REFINED[method]
        return replace(
            setting,
            refine_steps=REFINE_STEPS,
            refine_batch_size=REFINE_BATCH_SIZE,
            refine_with=refine_with,
        )
    return replace(setting, cost=method)  # type: ignore[arg-type]


def train_seeds(
    name: str,
    method: str,
    seeds: Sequence[int],
    setting: FitSettings = SETTING,
    device: str = "auto",
) -> tuple[dict[str, Any], list[dict[str, Any]], Tensor]:
    """Train one model for each seed, side by side, and look at the samples of each.

    Returns:
        The row of the table, a row for each seed, and the samples of the first.
    """
    chosen = toy(name)
    modes = chosen.modes
    if modes is None:
        raise ValueError(f"{name} has no separate modes.")
    draws = [chosen.sample(POINTS, torch.Generator().manual_seed(s)) for s in seeds]
    settings = replace(_settings(method, setting), seed=seeds[0])
    data = torch.stack(draws)
    model, variances = build_model(data, settings)
    trainer = Trainer(RowTask(model, data, None, settings, variances), device=device)
    start = time.perf_counter()
    trainer.run()
    _wait(trainer)
    seconds = time.perf_counter() - start
    generator = torch.Generator(model.scaler.scale.device).manual_seed(seeds[0])
    samples = model.mixture().sample((SAMPLES,), generator=generator).movedim(1, 0).cpu()
    found = [mode_coverage(s, modes.centres.double(), modes.deviation) for s in samples]
    named = {"set": name, "method": method}
    row = {**named, **_summary(found), "steps": trainer.total, "seconds": seconds}
    return (
        row,
        [{**named, "seed": s, **asdict(f)} for s, f in zip(seeds, found, strict=True)],
        (samples[0]),
    )


def _wait(trainer: Trainer[RowTask]) -> None:
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


def run(
    quick: bool = False,
    *,
    seeds: int = 10,
    methods: Sequence[str] = METHODS,
    sets: Sequence[str] = SETS,
    setting: FitSettings = SETTING,
    device: str = "auto",
    figure: Path | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """All methods on all sets; the quick version has two seeds and few steps.

    Args:
        quick: Whether to show only that it works.
        seeds: Number of models for each method and set.
        methods: Some of `METHODS`.
        sets: Some of `SETS`.
        setting: The setting that all share.
        device: Where to train.
        figure: Where to draw samples of the first seed of each.
    """
    if quick:
        seeds, setting = min(seeds, 2), replace(setting, steps=min(setting.steps, 100))
    tables: dict[str, list[dict[str, Any]]] = {"modes": [], "seeds": []}
    sheets = {}
    for name in sets:
        data = toy(name).sample(SAMPLES, torch.Generator().manual_seed(0))
        sheets[name] = {"data": data}
        for method in methods:
            row, each, samples = train_seeds(name, method, range(seeds), setting, device)
            tables["modes"].append(row)
            tables["seeds"] += each
            sheets[name][method] = samples
    if figure is not None:
        save_sheet(sheets, figure)
    return tables


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark; write its result file and figure."""
    parser = argparse.ArgumentParser("benchmarks.modes", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--methods", default=",".join(METHODS), help="names with commas between")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--steps", type=int, default=SETTING.steps)
    parser.add_argument("--components", type=int, default=SETTING.components)
    parser.add_argument("--batch-size", type=int, default=SETTING.batch_size)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=default_path("modes"))
    given = parser.parse_args(arguments)
    setting = replace(
        SETTING, steps=given.steps, components=given.components, batch_size=given.batch_size
    )
    tables = run(
        given.quick,
        seeds=given.seeds,
        methods=given.methods.split(","),
        sets=given.sets.split(","),
        setting=setting,
        device=given.device,
        figure=given.out.with_suffix(".png"),
    )
    protocol = {
        "points": POINTS,
        "samples": SAMPLES,
        "a sample is": "a centre plus noise of the learned variance",
        "setting": setting.as_json(),
        "refinement": {"steps": REFINE_STEPS, "batch_size": REFINE_BATCH_SIZE},
    }
    return write_record("modes", given.out, tables, protocol, shown="modes", quick=given.quick)


if __name__ == "__main__":
    main()
