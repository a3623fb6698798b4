"""Densities in the plane: held-out likelihood, Wasserstein distance and time, with peers.

`python -m benchmarks.density`: kermix (the SVD cost, then likelihood; also with the closed form
at the end), the neural spline flow of zuko, scikit-learn's GaussianMixture with the number of
components chosen by BIC, and a kernel density estimate with its bandwidth chosen on held-out rows.
All are given the same rows, but GaussianMixture, which is slow, only the first 10,000 of them. The
negative log-likelihood is compared with the exact entropy, Wasserstein-2 of 2,500 samples to as
many fresh rows with that between two sets of fresh rows.
"""

import argparse
import math
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.quality import default_path, save_sheet, write_record
from kermix.costs.baselines import wasserstein2
from kermix.data.dataset import toy
from kermix.mixtures.mixture import GaussianMixture
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import learning_rate
from kermix.training.samples_task import Split, build_trainer

__all__ = ["METHODS", "SETS", "SETTING", "main", "run"]

SETS = ("ring8", "grid25", "8gaussians", "checkerboard", "moons", "swissroll", "circles", "rings")
TRAIN, TEST, SAMPLES = 200_000, 20_000, 2_500
SETTING = FitSettings(
    components=512,
    covariance_type="diagonal",
    steps=1000,
    batch_size=512,
    refine_steps=4000,
    refine_batch_size=8192,
)
GMM_COMPONENTS = (4, 8, 12, 16, 25, 32, 50, 64, 100)
GMM_ROWS = 10_000
BANDWIDTHS = tuple(10 ** (-3 + 0.125 * i) for i in range(24))
FLOW_STEPS, FLOW_BATCH = 3000, 2048


@dataclass(frozen=True)
class Density:
    """A fitted density: how to sample it and how to evaluate it."""

    sample: Callable[[int], Tensor]
    log_prob: Callable[[Tensor], Tensor]
    note: str = ""


def fit_kermix(train: Tensor, device: str, setting: FitSettings) -> Density:
    """Our mixture: the SVD cost, then what the setting says, by default likelihood."""
    trainer = build_trainer(Split(train, train[:2000]), setting, device=device)
    trainer.run()
    model = trainer.model
    generator = torch.Generator(model.scaler.scale.device).manual_seed(setting.seed)
    return _of_mixture(model.mixture(), generator, f"{setting.components} components")


def fit_kde(train: Tensor, device: str, setting: FitSettings) -> Density:
    """A Gaussian at every row; the bandwidth with the best likelihood of held-out rows."""
    place = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    rows = train.to(place).double()
    held_out, rows = rows[:1000], rows[1000:]
    weights = torch.full((len(rows),), 1 / len(rows), device=place, dtype=rows.dtype)
    scale = rows.var(0).mean()

    def at(width: float) -> GaussianMixture:
        variances = torch.full((len(rows),), width**2, device=place, dtype=rows.dtype) * scale
        return GaussianMixture(weights, rows, variances)

    scores = {width: float(at(width).log_prob(held_out).mean()) for width in BANDWIDTHS}
    best = max(scores, key=lambda width: scores[width])
    generator = torch.Generator(place).manual_seed(setting.seed)
    return _of_mixture(at(best), generator, f"bandwidth {best:.3g} deviations")


def _of_mixture(mixture: GaussianMixture, generator: torch.Generator, note: str) -> Density:
    def sample(n: int) -> Tensor:
        return mixture.sample((n,), generator=generator).cpu()

    def log_prob(points: Tensor) -> Tensor:
        return mixture.log_prob(points.to(mixture.means.device).double()).cpu()

    return Density(sample, log_prob, note)


def fit_gmm(train: Tensor, device: str, setting: FitSettings) -> Density:
    """scikit-learn's mixture, full covariances, components by BIC."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.mixture import GaussianMixture as SklearnMixture

    rows = train[:GMM_ROWS].double().numpy()
    fitted = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        for count in GMM_COMPONENTS:
            model = SklearnMixture(count, random_state=setting.seed, max_iter=200).fit(rows)
            fitted.append((model.bic(rows), count, model))
    _, count, best = min(fitted, key=lambda item: item[0])
    return Density(
        lambda n: torch.from_numpy(best.sample(n)[0]),
        lambda points: torch.from_numpy(best.score_samples(points.double().numpy())),
        f"{count} components",
    )


def fit_flow(train: Tensor, device: str, setting: FitSettings) -> Density:
    """Zuko's neural spline flow, trained by maximum likelihood."""
    import zuko

    place = torch.device("cuda" if device != "cpu" and torch.cuda.is_available() else "cpu")
    location, scale = train.mean(0), train.std(0)
    rows = ((train - location) / scale).float().to(place)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        torch.manual_seed(setting.seed)
        flow = zuko.flows.NSF(2, transforms=5, bins=16, hidden_features=(128, 128)).to(place)
        optimizer = torch.optim.Adam(flow.parameters(), lr=1e-3)
        for step in range(FLOW_STEPS):
            optimizer.param_groups[0]["lr"] = learning_rate(step / FLOW_STEPS, 1e-3)
            chosen = torch.randint(len(rows), (FLOW_BATCH,), device=place)
            loss = -flow().log_prob(rows[chosen]).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(flow.parameters(), 5.0)
            optimizer.step()

    @torch.no_grad()
    def sample(n: int) -> Tensor:
        drawn: Tensor = flow().sample((n,)).cpu()
        return drawn * scale + location

    @torch.no_grad()
    def log_prob(points: Tensor) -> Tensor:
        scaled = ((points - location) / scale).float().to(place)
        density: Tensor = flow().log_prob(scaled).cpu() - scale.log().sum()
        return density

    return Density(sample, log_prob, f"{FLOW_STEPS} steps")


def fit_kermix_closed_form(train: Tensor, device: str, setting: FitSettings) -> Density:
    """The SVD cost, then the closed form."""
    return fit_kermix(train, device, replace(setting, refine_with="closed form"))


METHODS: dict[str, Callable[[Tensor, str, FitSettings], Density]] = {
    "kermix": fit_kermix,
    "kermix, closed form": fit_kermix_closed_form,
    "zuko NSF": fit_flow,
    "GaussianMixture": fit_gmm,
    "KDE": fit_kde,
}


def distances(pairs: Sequence[tuple[Tensor, Tensor]], workers: int) -> list[float]:
    """Wasserstein-2 of each pair; an assignment takes a second of one core."""
    left, right = zip(*pairs, strict=True)
    if workers == 1:
        return [wasserstein2(a, b) for a, b in pairs]
    # Spawned, not forked: the parent may hold a GPU.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(wasserstein2, left, right))


def run_set(
    name: str,
    methods: Sequence[str],
    setting: FitSettings,
    device: str,
    repeats: int,
    workers: int,
) -> Iterator[tuple[dict[str, Any], dict[str, Tensor]]]:
    """Each method on one set: its numbers, and samples to look at of all so far."""
    chosen = toy(name)
    generator = torch.Generator().manual_seed(setting.seed)
    train = chosen.sample(TRAIN, generator)
    test = chosen.sample(TEST, generator)
    exact = -chosen.log_prob(test).double().mean().item() if chosen.log_prob else math.nan
    fresh = [chosen.sample(SAMPLES, generator).double() for _ in range(2 * repeats)]
    floors = distances(list(zip(fresh[::2], fresh[1::2], strict=True)), workers)
    shown = {"data": train[:SAMPLES]}
    for method in methods:
        start = time.perf_counter()
        try:
            density = METHODS[method](train, device, setting)
        except ModuleNotFoundError as missing:
            sys.stderr.write(f"{method} is left out: {missing.name} is not installed.\n")
            continue
        seconds = time.perf_counter() - start
        nll = -density.log_prob(test).double().mean().item()
        draws = [density.sample(SAMPLES).double() for _ in range(repeats)]
        # The same fresh rows as in the floor, so that their own noise cancels in the ratio.
        found = distances(list(zip(draws, fresh[::2], strict=True)), workers)
        shown[method] = draws[0]
        w2, floor = statistics.mean(found), statistics.mean(floors)
        errors = [ours - w2 / floor * theirs for ours, theirs in zip(found, floors, strict=True)]
        numbers = {
            "set": name, "method": method, "nll": nll, "entropy": chosen.entropy,
            "gap": nll - exact, "w2": w2, "w2_floor": floor, "w2_ratio": w2 / floor,
            "w2_ratio_error": statistics.pstdev(errors) / floor / max(1, repeats - 1) ** 0.5,
            "repeats": repeats, "seconds": seconds,
            "note": density.note,
        }  # fmt: skip
        yield numbers, shown


def run(
    quick: bool = False,
    *,
    sets: Sequence[str] = SETS,
    methods: Sequence[str] = tuple(METHODS),
    setting: FitSettings = SETTING,
    device: str = "auto",
    repeats: int = 5,
    workers: int = 1,
    figure: Path | None = None,
    on_row: Callable[[dict[str, list[dict[str, Any]]]], object] | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """All methods on all sets; the quick version has two sets, two methods and few steps.

    Args:
        quick: Whether to show only that it works.
        sets: Some of `SETS`.
        methods: Some of `METHODS`.
        setting: Of kermix.
        device: Where to train.
        repeats: Pairs of samples for the Wasserstein distance.
        workers: Processes that compute it.
        figure: Where to draw samples of all.
        on_row: Called with the table so far after each method: a long run loses nothing.
    """
    if quick:
        sets, repeats = sets[:2], 1
        methods = [m for m in methods if m.startswith("kermix")]
        setting = replace(
            setting, components=64, steps=100, refine_steps=50, refine_batch_size=1024
        )
    rows: list[dict[str, Any]] = []
    sheets = {}
    for name in sets:
        for row, shown in run_set(name, methods, setting, device, repeats, workers):
            rows.append(row)
            sheets[name] = shown
            if on_row is not None:
                on_row({"density": rows})
    if figure is not None:
        save_sheet(sheets, figure)
    return {"density": rows}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark; write its result file and figure."""
    parser = argparse.ArgumentParser("benchmarks.density", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--components", type=int, default=SETTING.components)
    parser.add_argument("--steps", type=int, default=SETTING.steps)
    parser.add_argument("--batch-size", type=int, default=SETTING.batch_size)
    parser.add_argument("--refine-steps", type=int, default=SETTING.refine_steps)
    parser.add_argument("--refine-batch-size", type=int, default=SETTING.refine_batch_size)
    parser.add_argument("--covariance-type", default=SETTING.covariance_type)
    parser.add_argument("--learning-rate", type=float, default=SETTING.learning_rate)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of samples for Wasserstein")
    parser.add_argument("--workers", type=int, default=1, help="processes that compute it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=default_path("density"))
    given = parser.parse_args(arguments)
    setting = replace(
        SETTING,
        components=given.components,
        steps=given.steps,
        batch_size=given.batch_size,
        refine_steps=given.refine_steps,
        refine_batch_size=given.refine_batch_size,
        covariance_type=given.covariance_type,
        learning_rate=given.learning_rate,
        seed=given.seed,
    )
    protocol = {
        "train": TRAIN,
        "test": TEST,
        "samples": SAMPLES,
        "repeats": given.repeats,
        "a sample is": "a centre plus noise of the learned variance",
        "setting": setting.as_json(),
    }

    def write(tables: dict[str, list[dict[str, Any]]]) -> Path:
        return write_record(
            "density", given.out, tables, protocol, shown="density", quick=given.quick
        )

    tables = run(
        given.quick,
        sets=given.sets.split(","),
        methods=given.methods.split(";"),
        setting=setting,
        device=given.device,
        repeats=given.repeats,
        workers=given.workers,
        figure=given.out.with_suffix(".png"),
        on_row=write,
    )
    return write(tables)


if __name__ == "__main__":
    main()
