r"""The mixture with a continuous prior of the introduction, trained with each of the four costs.

$$q(X) = \int q(c) \, w(c) \, N(X - m(c); v(c)) \, dc$$

Noise c is drawn anew in each step, and a network returns centres, weights and variances. The
paper's experiments have no w(c) and v(c): this is what its introduction and Property 3 describe.
Data are a mixture of ten Gaussians (the set `mixture10`), noise is 10-D and uniform, v = 0.001 is
fixed. The kernel smooths both sides of the cost, so v(c) comes out as the width of a mode.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kermix.costs.baselines import energy_distance, mode_coverage
from kermix.data.dataset import toy
from kermix.mixtures.mixture import GaussianMixture
from kermix.mixtures.sampled_mixture import SampledMixture
from kermix.networks.scaled import ScaledModel
from kermix.paper.artefact import BEST, Artefact, Claim, Rows, Tick, ignore
from kermix.paper.plots import BLUE, ORANGE, bare, sheet
from kermix.training.build import Split, build_trainer
from kermix.training.settings import FitSettings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PriorTraining", "claims", "judged", "run", "train"]

V = 0.001
COSTS = ("scalar", "vector", "matrix", "svd")
TITLES = {"scalar": "Scalar", "vector": "Vector-matrix", "matrix": "Matrix-matrix", "svd": "SVD"}
ROWS = 4000
FITS = "q(X), the integral of q(c) w(c) N(X - m(c); v(c)), is fitted to p with each cost."
PROPERTY_3 = "Norms of mixtures with any prior are expectations over it (Property 3)."


@dataclass(frozen=True)
class PriorTraining:
    """How each network is trained, and how it is looked at."""

    seeds: int = 3
    steps: int = 600
    components: int = 192
    batch_size: int = 192
    learning_rate: float = 0.005


QUICK = PriorTraining(seeds=1, steps=150, components=96, batch_size=96)


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    training: PriorTraining | None = None,
) -> Artefact:
    """Compute the figure.

    Args:
        quick: Whether to take one seed, fewer steps and components.
        data_root: Not used.
        tick: Called with the share that is done.
        training: Instead of the full or quick setting.
    """
    training = training or (QUICK if quick else PriorTraining())
    rows: Rows = []
    shown: dict[str, Tensor] = {}
    for seed in range(training.seeds):
        for cost in COSTS:
            numbers, samples, data = train(cost, seed, training)
            rows.append({"cost": cost, "seed": seed, **numbers})
            if seed == 0:
                shown[cost], shown["data"] = samples, data
            tick(len(rows) / (training.seeds * len(COSTS)))
    summary = {
        cost: {
            key: mean(row[key] for row in rows if row["cost"] == cost)
            for key in rows[0]
            if key not in ("cost", "seed")
        }
        for cost in COSTS
    }
    return Artefact(
        name="fig-prior",
        title="A mixture with a continuous prior",
        caption="Data (blue) and samples (orange) of networks from noise to centres, weights and "
        f"variances, trained with each cost, v = {V}, {training.steps} steps with new noise each; "
        f"the first of {training.seeds} seeds. A sample is a centre plus noise of its own "
        "variance.",
        figure=_figure(shown),
        settings={
            "v": V, "data": "mixture10", "rows": ROWS, "noise": "10-D uniform",
            "network": "MLP, BatchNorm, ReLU; 3 layers of 256", "optimiser": "Adam, betas "
            "(0.5, 0.9)", "matrix-matrix cost": "trace", "inner products": "in closed form, with "
            "v(c) + v on the side of the model", **asdict(training),
        },
        tables={"costs": [{"cost": c, **n} for c, n in summary.items()], "seeds": rows},
        claims=claims(summary),
        notes=[
            "The density of such a model is estimated by 2000 of its components, drawn anew. Its "
            "entropy is that of the data's true density; one Gaussian is the one with the data's "
            "moments."
        ],
    )  # fmt: skip


def train(
    cost: str, seed: int, training: PriorTraining
) -> tuple[dict[str, float], Tensor, Tensor]:
    """Train one network; returns its numbers, samples of it, and held-out data."""
    chosen = toy("mixture10")
    assert chosen.modes is not None
    assert chosen.entropy is not None
    generator = torch.Generator().manual_seed(seed)
    data, held_out = (chosen.sample(n, generator).double() for n in (ROWS, 2000))
    settings = FitSettings(
        cost=cost,  # type: ignore[arg-type]
        model="continuous",
        prior="uniform",
        kernel_variance=V,
        variance_factors=(1.0,),
        steps=training.steps,
        components=training.components,
        batch_size=training.batch_size,
        learning_rate=training.learning_rate,
        seed=seed,
    )
    trainer = build_trainer(Split(data, held_out[:200]), settings, device="cpu")
    trainer.run()
    model: ScaledModel = trainer.model
    samples = model.sample(2000, torch.Generator().manual_seed(10_000 + seed))
    found = mode_coverage(samples, chosen.modes.centres.double(), chosen.modes.deviation)
    drawn = [model.mixture(torch.Generator().manual_seed(i)) for i in range(2)]
    norms = [_expected_norm(mixture) for mixture in drawn]
    return (
        {
            "nll": float(-drawn[0].log_prob(held_out).mean()),
            "entropy": chosen.entropy,
            "nll of one Gaussian": _nll_of_moments(data, held_out),
            "energy distance": float(energy_distance(held_out, samples)),
            "modes": found.modes,
            "good samples": found.high_quality,
            "median v(c)": float(drawn[0].covariances.median()),
            "v of a mode": chosen.modes.deviation**2,
            "w(c), 90 % over 10 %": _spread(drawn[0].weights),
            "norm": norms[0],
            "norm of another draw": norms[1],
        },
        samples,
        held_out,
    )


def _expected_norm(mixture: GaussianMixture) -> float:
    """Norm of q as an expectation over pairs of different noise vectors."""
    count = mixture.weights.shape[-1]
    return float(
        SampledMixture(mixture.weights * count, mixture.means, mixture.covariances).norm2(
            unbiased=True
        )
    )


def _nll_of_moments(data: Tensor, held_out: Tensor) -> float:
    one = torch.ones(1, dtype=data.dtype)
    single = GaussianMixture(one, data.mean(0, keepdim=True), torch.cov(data.T)[None])
    return float(-single.log_prob(held_out).mean())


def _spread(weights: Tensor) -> float:
    low, high = weights.quantile(weights.new_tensor([0.1, 0.9])).tolist()
    return float(high / max(low, 1e-12))


def claims(summary: Mapping[str, Mapping[str, float]]) -> list[Claim]:
    """Judge what the paper says of such mixtures, from the means over seeds."""

    def values(key: str) -> dict[str, float]:
        return {cost: summary[cost][key] for cost in COSTS}

    nll, modes = values("nll"), values("modes")
    one = summary["svd"]["nll of one Gaussian"]
    norms = {c: summary[c]["norm"] / summary[c]["norm of another draw"] for c in COSTS}
    return [
        Claim(
            "A mixture with a continuous prior, weights w(c) and variances v(c), is fitted with "
            "each of the four costs.",
            "at least nine of ten modes, and a held-out negative log-likelihood below that of one "
            "Gaussian by half a nat, on average over seeds",
            {f"modes, {c}": m for c, m in modes.items()} | nll | {"one Gaussian": one},
            min(modes.values()) >= 9 and max(nll.values()) <= one - 0.5,
            statement=FITS,
        ),
        Claim(
            "The SVD cost fits a mixture with a continuous prior best (read as: likelihood of "
            "held-out data).",
            "least negative log-likelihood of the four costs, on average over seeds",
            nll,
            all(nll["svd"] < nll[c] for c in COSTS if c != "svd"),
            statement=BEST,
        ),
        Claim(
            "The norm of a mixture with a continuous prior is an expectation over it (Property "
            "3).",
            "estimates from two draws of 2000 noise vectors agree to 10 %",
            norms,
            all(abs(ratio - 1) <= 0.1 for ratio in norms.values()),
            statement=PROPERTY_3,
        ),
    ]


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers, by the rules of today."""
    return claims({row["cost"]: row for row in tables["costs"]})


def _figure(shown: Mapping[str, Tensor]) -> "Figure":
    figure, (panels,) = sheet(1, len(COSTS), 8.6, 2.4)
    for axes, cost in zip(panels, COSTS, strict=True):
        for name, colour in (("data", BLUE), (cost, ORANGE)):
            points = shown[name][:700].numpy()
            axes.scatter(*points.T, s=2.5, color=colour, alpha=0.6, linewidths=0,
                         rasterized=True)  # fmt: skip
        axes.set(xlim=(-0.1, 1.1), ylim=(-0.1, 1.1), aspect="equal")
        bare(axes, TITLES[cost])
    return figure
