r"""The mixture with a continuous prior of the introduction, trained with each of the four costs.

$$q(X) = \int q(c) \, w(c) \, N(X - m(c); v(c)) \, dc$$

Noise c is drawn anew in each step, and a network returns centres, weights and variances. The
paper's experiments have no w(c) and v(c): this is what its introduction and Property 3 describe.
Data are a mixture of ten Gaussians (the set `mixture10`), noise is 10-D and uniform, v = 0.001 is
fixed. The kernel smooths both sides of the cost, so v(c) comes out as the width of a mode.

The vector-matrix and the matrix-matrix cost are made of the best weights for the components,
whatever w(c) says, which therefore never learns: a factor of a component changes neither. Their
models are judged with the weights that the costs themselves choose, `vector_weights` without
negative ones.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kermix.costs.baselines import energy_distance, mode_coverage
from kermix.costs.functions import vector_weights
from kermix.data.dataset import toy
from kermix.mixtures.mixture import GaussianMixture
from kermix.mixtures.sampled_mixture import SampledMixture
from kermix.networks import scaled
from kermix.networks.mixture_networks import widened
from kermix.networks.scaled import ScaledModel, evaluating
from kermix.paper.artefact import (
    BEST,
    Artefact,
    Claim,
    Rows,
    Tick,
    ignore,
    points_panel,
    sheet,
)
from kermix.paper.generation import Trained, V, train_each
from kermix.paper.verdicts import best, decided, differences, of_seeds, spread
from kermix.training.fit_settings import FitSettings
from kermix.training.objective import loss_of
from kermix.training.samples_task import Split, build_trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["PriorTraining", "claims", "judged", "run", "train"]

COSTS = ("scalar", "vector", "matrix", "svd")
TITLES = {"scalar": "Scalar", "vector": "Vector-matrix", "matrix": "Matrix-matrix", "svd": "SVD"}
CHOOSING = ("vector", "matrix")  # costs of the best weights, whatever w(c) is
ROWS, GRADIENT_AT = 4000, 192
FITS = "q(X), the integral of q(c) w(c) N(X - m(c); v(c)), is fitted to p with each cost."
PROPERTY_3 = "Norms of mixtures with any prior are expectations over it (Property 3)."


@dataclass(frozen=True)
class PriorTraining:
    """How each network is trained, and how it is looked at."""

    seeds: int = 5
    steps: int = 600
    components: int = 192
    batch_size: int = 192
    learning_rate: float = 0.005

    @classmethod
    def quick(cls) -> "PriorTraining":
        """One seed, fewer steps and components."""
        return cls(seeds=1, steps=150, components=96, batch_size=96)


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
    training = training or (PriorTraining.quick() if quick else PriorTraining())

    def one(cost: str, seed: int) -> Trained:
        return train(cost, seed, training)

    rows, shown = train_each("cost", COSTS, training.seeds, one, tick)
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
        claims=claims(rows),
        notes=[
            "The density of such a model is estimated by 2000 of its components, drawn anew. Its "
            "entropy is that of the data's true density; one Gaussian is the one with the data's "
            "moments."
        ],
    )  # fmt: skip


def train(cost: str, seed: int, training: PriorTraining) -> Trained:
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
    own, solved, gradient = _densities(model, cost, data, torch.Generator().manual_seed(0))
    judged = solved if cost in CHOOSING else own
    samples = judged.sample((2000,), generator=torch.Generator().manual_seed(10_000 + seed))
    found = mode_coverage(samples, chosen.modes.centres.double(), chosen.modes.deviation)
    norms = [_expected_norm(own), _expected_norm(model.mixture(torch.Generator().manual_seed(1)))]
    nll, nll_solved = (float(-q.log_prob(held_out).mean()) for q in (own, solved))
    return (
        {
            "nll": nll_solved if cost in CHOOSING else nll,
            "nll with w(c)": nll,
            "nll with solved weights": nll_solved,
            "gradient to w(c)": gradient,
            "entropy": chosen.entropy,
            "nll of one Gaussian": _nll_of_moments(data, held_out),
            "energy distance": float(energy_distance(held_out, samples)),
            "modes": found.modes,
            "good samples": found.high_quality,
            "median v(c)": float(own.covariances.median()),
            "v of a mode": chosen.modes.deviation**2,
            "w(c), 90 % over 10 %": _spread(own.weights),
            "norm": norms[0],
            "norm of another draw": norms[1],
        },
        samples,
        held_out,
    )


def _densities(
    model: ScaledModel, cost: str, data: Tensor, generator: torch.Generator
) -> tuple[GaussianMixture, GaussianMixture, float]:
    """The model with its weights, with those solved for, and how much the cost feels of w(c).

    The last is the sum of the absolute derivatives of the logarithm of the cost by those of the
    weights.
    """
    with torch.no_grad(), evaluating(model.network):
        drawn = model.components(scaled.CENTERS_OF_A_DENSITY, generator)
    rows = model.scaler.scaled(data).double()
    wide = widened(drawn, V * rows.shape[1])
    weights = vector_weights(rows, wide, V, nonnegative=True)
    mixtures = [
        GaussianMixture(w, drawn.means, drawn.covariances) for w in (drawn.weights, weights)
    ]
    few = slice(0, GRADIENT_AT)
    logs = wide.weights[few].double().log().requires_grad_()
    mixture = GaussianMixture(logs.exp(), wide.means[few].double(), wide.covariances[few].double())
    (gradient,) = torch.autograd.grad(loss_of(cost, [V], None)(rows[few], mixture), logs)
    own, solved = (model.scaler.restored_mixture(mixture) for mixture in mixtures)
    return own, solved, float(gradient.abs().sum())


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


def claims(rows: Rows) -> list[Claim]:
    """Judge what the paper says of such mixtures, from the numbers of each seed."""

    def values(key: str) -> dict[str, list[float]]:
        return of_seeds(rows, key, COSTS)

    nll, modes = values("nll"), values("modes")
    norms = spread([math.log(row["norm"] / row["norm of another draw"]) for row in rows])
    collapsed = [cost for cost in COSTS if mean(modes[cost]) <= 5]
    solved = values("nll with solved weights")
    readings = (
        ("of the vector-matrix and matrix-matrix cost with the weights they choose", nll),
        ("each with the best weights for its components", solved),
    )
    return [
        _fits(modes, nll, values("nll of one Gaussian")["svd"]),
        *(
            best(
                "The SVD cost fits a mixture with a continuous prior best (read as: likelihood of "
                f"held-out data, {which}).",
                "least negative log-likelihood, by paired differences to each other cost",
                numbers,
                -1,
                data=values("entropy")["svd"],
                collapsed=collapsed,
                statement=BEST,
            )
            for which, numbers in readings
        ),
        _seeing_weights(values("gradient to w(c)")),
        decided(
            "The norm of a mixture with a continuous prior is an expectation over it (Property "
            "3).",
            "estimates from two draws of 2000 noise vectors agree to 10 % on average over the "
            "networks of all costs and seeds",
            {"logarithm of their ratio": norms},
            least=-0.1,
            most=0.1,
            statement=PROPERTY_3,
        ),
    ]


def _fits(
    modes: Mapping[str, Sequence[float]], nll: Mapping[str, Sequence[float]], one: Sequence[float]
) -> Claim:
    """The claim that every cost fits such a mixture, better than one Gaussian."""
    weights = "; of the vector-matrix and matrix-matrix cost, with the weights they choose"
    return decided(
        "A mixture with a continuous prior, weights w(c) and variances v(c), is fitted with "
        "each of the four costs.",
        "at least nine of ten modes, and a held-out negative log-likelihood below that of one "
        f"Gaussian by half a nat{weights}",
        {f"modes, {c}": spread(own) for c, own in modes.items()}
        | {f"nats below, {c}": differences(one, own) for c, own in nll.items()},
        least={f"modes, {c}": 9 for c in COSTS} | {f"nats below, {c}": 0.5 for c in COSTS},
        numbers={c: mean(own) for c, own in nll.items()} | {"one Gaussian": mean(one)},
        statement=FITS,
    )


def _seeing_weights(gradients: Mapping[str, Sequence[float]]) -> Claim:
    """The claim that two of the costs have no derivative by w(c)."""
    felt = {f"derivatives, {cost}": spread(own) for cost, own in gradients.items()}
    blind = [f"derivatives, {cost}" for cost in CHOOSING]
    return decided(
        "The vector-matrix and the matrix-matrix cost do not see w(c); the others do.",
        "absolute derivatives of their logarithm by the logarithms of the weights sum to less "
        "than 0.01, those of the others to more",
        felt,
        least={name: 0.01 for name in felt if name not in blind},
        most=dict.fromkeys(blind, 0.01),
        ours=True,
    )


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers, by the rules of today."""
    return claims(tables["seeds"])


def _figure(shown: Mapping[str, Tensor]) -> "Figure":
    figure, (panels,) = sheet(1, len(COSTS), 8.6, 2.4)
    for axes, cost in zip(panels, COSTS, strict=True):
        data, samples = (shown[name][:700].numpy() for name in ("data", cost))
        points_panel(axes, data, samples, TITLES[cost], margin=0.1)
    return figure
