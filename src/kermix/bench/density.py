"""Densities in the plane: held-out likelihood, Wasserstein distance and time, with peers.

`python -m kermix.bench.density`: kermix (SVD cost, then the closed form), the neural spline flow
of zuko, scikit-learn's GaussianMixture with the number of components chosen by BIC, and a kernel
density estimate with its bandwidth chosen on held-out rows. All are given the same rows. The
negative log-likelihood is compared with the exact entropy, Wasserstein-2 between 2,500 samples and
as many fresh rows with the same between two sets of fresh rows.
"""

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kermix.data.toys import toy
from kermix.evaluation import wasserstein2
from kermix.mixture import GaussianMixture
from kermix.records import environment, machine_name, write_json
from kermix.training.build import Split, build_trainer
from kermix.training.schedules import learning_rate
from kermix.training.settings import Settings

__all__ = ["METHODS", "SETS", "SETTING", "main"]

SETS = ("ring8", "grid25", "8gaussians", "checkerboard", "moons", "swissroll", "circles", "rings")
TRAIN, TEST, SAMPLES = 50_000, 20_000, 2_500
SETTING = Settings(
    components=512, variances="diagonal", steps=1500, batch=512, polish=3000, polish_batch=8192
)
GMM_COMPONENTS = (1, 2, 4, 8, 12, 16, 20, 25, 32, 40, 50, 64, 80, 100)
GMM_ROWS = 20_000
BANDWIDTHS = tuple(10 ** (-3 + 0.125 * i) for i in range(24))
FLOW_STEPS, FLOW_BATCH = 5000, 2048


@dataclass(frozen=True)
class Density:
    """A fitted density: how to sample it and how to evaluate it."""

    sample: Callable[[int], Tensor]
    log_prob: Callable[[Tensor], Tensor]
    note: str = ""


def fit_kermix(train: Tensor, device: str, setting: Settings) -> Density:
    """Our mixture: the SVD cost, then the closed form."""
    trainer = build_trainer(Split(train, train[:2000]), setting, device=device)
    trainer.run()
    model = trainer.model
    generator = torch.Generator(model.scaler.scale.device).manual_seed(setting.seed)
    return _of_mixture(model.mixture(), generator, f"{setting.components} components")


def fit_kde(train: Tensor, device: str, setting: Settings) -> Density:
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


def fit_gmm(train: Tensor, device: str, setting: Settings) -> Density:
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


def fit_flow(train: Tensor, device: str, setting: Settings) -> Density:
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


METHODS: dict[str, Callable[[Tensor, str, Settings], Density]] = {
    "kermix": fit_kermix,
    "zuko NSF": fit_flow,
    "GaussianMixture": fit_gmm,
    "KDE": fit_kde,
}


def run_set(
    name: str, methods: Sequence[str], setting: Settings, device: str, repeats: int
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """All methods on one set: numbers, and samples to look at."""
    chosen = toy(name)
    generator = torch.Generator().manual_seed(setting.seed)
    train = chosen.sample(TRAIN, generator)
    test = chosen.sample(TEST, generator)
    exact = -chosen.log_prob(test).double().mean().item() if chosen.log_prob else math.nan
    fresh = [chosen.sample(SAMPLES, generator).double() for _ in range(2 * repeats)]
    floors = [wasserstein2(a, b) for a, b in zip(fresh[::2], fresh[1::2], strict=True)]
    results, shown = [], {"data": train[:SAMPLES]}
    for method in methods:
        start = time.perf_counter()
        density = METHODS[method](train, device, setting)
        seconds = time.perf_counter() - start
        nll = -density.log_prob(test).double().mean().item()
        draws = [density.sample(SAMPLES).double() for _ in range(repeats)]
        # The same fresh rows as in the floor, so that their own noise cancels in the ratio.
        distances = [wasserstein2(a, b) for a, b in zip(draws, fresh[::2], strict=True)]
        shown[method] = draws[0]
        results.append({
            "set": name, "method": method, "note": density.note, "seconds": seconds,
            "nll": nll, "entropy": chosen.entropy, "gap": nll - exact,
            "w2": statistics.mean(distances), "w2_floor": statistics.mean(floors),
            "w2_all": distances, "w2_floor_all": floors,
        })  # fmt: skip
    return results, shown


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark; write its result file and figure."""
    from rich.console import Console
    from rich.table import Table

    from .figures import scatter_sheet

    parser = argparse.ArgumentParser("kermix.bench.density", description=__doc__)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--components", type=int, default=SETTING.components)
    parser.add_argument("--steps", type=int, default=SETTING.steps)
    parser.add_argument("--batch", type=int, default=SETTING.batch)
    parser.add_argument("--polish", type=int, default=SETTING.polish)
    parser.add_argument("--polish-batch", type=int, default=SETTING.polish_batch)
    parser.add_argument("--repeats", type=int, default=5, help="pairs of samples for Wasserstein")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args(arguments)
    setting = replace(
        SETTING,
        components=given.components,
        steps=given.steps,
        batch=given.batch,
        polish=given.polish,
        polish_batch=given.polish_batch,
        seed=given.seed,
    )
    console = Console()
    results, sheets = [], {}
    methods = given.methods.split(",")
    for name in given.sets.split(","):
        rows, sheets[name] = run_set(name, methods, setting, given.device, given.repeats)
        results += rows
        for r in rows:
            console.print(
                f"{name:13} {r['method']:16} NLL - entropy {r['gap']:+.3f}  "
                f"W2/floor {r['w2'] / r['w2_floor']:.3f}  {r['seconds']:.0f} s",
                highlight=False,
            )
    table = Table(title=f"Densities: {TRAIN} rows; a kermix sample is a centre plus noise")
    for column in ("set", "method", "NLL", "entropy", "gap", "W2", "floor", "ratio", "s"):
        table.add_column(column)
    for r in results:
        table.add_row(
            r["set"], r["method"], f"{r['nll']:.3f}", f"{r['entropy']:.3f}", f"{r['gap']:+.3f}",
            f"{r['w2']:.3f}", f"{r['w2_floor']:.3f}", f"{r['w2'] / r['w2_floor']:.3f}",
            f"{r['seconds']:.0f}",
        )  # fmt: skip
    console.print(table)
    path = given.out or Path("results/bench") / f"density-{machine_name()}.json"
    content = {
        **environment(),
        "protocol": {"train": TRAIN, "test": TEST, "samples": SAMPLES, "repeats": given.repeats},
        "setting": setting.as_json(),
        "results": results,
    }
    console.print(f"written: {write_json(path, content)}")
    scatter_sheet(sheets, path.with_suffix(".png"))
    return path


if __name__ == "__main__":
    main()
