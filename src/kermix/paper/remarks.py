"""What the text says beside its figures, judged by small experiments.

Trainings, in the setting of `fig-generation`: the three forms of the matrix-matrix cost, which are
said to be interchangeable; the SVD cost with variances from 0.001 to 1, of which a small one is
said to be a must; and, in many dimensions, with and without the division of distances by their
number, which is said to be crucial.

Formulas are in `kermix.paper.formula_checks`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

import torch
from torch import nn

from kermix.costs.baselines import energy_distance
from kermix.costs.losses import MatrixLoss, SVDLoss
from kermix.kernels.gaussian import GaussianKernel
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.generators import MLPGenerator
from kermix.paper.artefact import Artefact, Claim, Rows, Tick, ignore
from kermix.paper.formula_checks import SAMPLES, Numbers, V, formula_claims, formulas
from kermix.paper.generation import (
    DEVIATION,
    FLOOR,
    NOISE,
    STATES,
    GenerationTraining,
    Loss,
    SampleTask,
    train,
)
from kermix.paper.plots import BLUE, GREY, INK_COLOUR, ORANGE, sheet
from kermix.paper.verdicts import decided, differences, ratio_claim, ratios, spread
from kermix.training.loop import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["claims", "judged", "run"]

VARIANCES = (0.001, 0.01, 0.1, 1.0)
DIMENSIONS = (2, 16, 64, 256, 1024)
TRAINED_DIMENSION, V_WIDE = 64, 0.01
FORMS: dict[str, Loss] = {
    "trace": MatrixLoss(V),
    "data_fixed": MatrixLoss(V, form="data_fixed"),
    "logdet": MatrixLoss(V, form="logdet"),
}
FULL = GenerationTraining(seeds=3, steps=600, width=128)
QUICK = GenerationTraining(seeds=1, steps=250, batch_size=150, width=64)
INTERCHANGEABLE = "Trace and log-determinant are interchangeable; with data fixed, R_G is ignored."
SMALL = "A Gaussian cross Gram matrix with a small variance is a must."
DIVISION = "Scaling with the dimension is crucial for numerical stability in high dimensions."


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    training: GenerationTraining | None = None,
) -> Artefact:
    """Compute all of it.

    Args:
        quick: Whether to take fewer seeds and steps and smaller networks.
        data_root: Not used.
        tick: Called with the share that is done.
        training: Instead of the full or quick setting.
    """
    training = training or (QUICK if quick else FULL)
    losses: dict[str, Loss] = {f"form {name}": loss for name, loss in FORMS.items()}
    losses |= {f"v {v:g}": SVDLoss(v) for v in VARIANCES}
    wide: dict[str, Loss] = {
        "divided": SVDLoss(GaussianKernel(V_WIDE)),
        "undivided": SVDLoss(GaussianKernel(V_WIDE, per_dimension=False)),
    }
    rows: Rows = []
    total = training.seeds * (len(losses) + len(wide))
    for seed in range(training.seeds):
        for name, loss in losses.items():
            numbers, _, _ = train(name, seed, training, loss)
            excess = numbers["nll"] - numbers["nll of data"]
            rows.append({"training": name, "seed": seed, "excess nll": excess,
                         **{k: numbers[k] for k in ("modes", "good samples",
                                                    "energy distance")}})  # fmt: skip
            tick(len(rows) / total)
        for name, loss in wide.items():
            distance = _in_many_dimensions(loss, seed, training)
            rows.append({"training": name, "seed": seed, "excess nll": None, "modes": None,
                         "good samples": None, "energy distance": distance})  # fmt: skip
            tick(len(rows) / total)
    summary = _summary(rows)
    largest = [_largest_entries(d) for d in DIMENSIONS]
    found = formulas()
    return Artefact(
        name="fig-remarks",
        title="What the text says beside its figures",
        caption="Left: good samples (within three deviations of a mode) of networks trained with "
        "the SVD cost, by its variance. Middle: excess negative log-likelihood with the three "
        "forms of the matrix-matrix cost. Right: the largest entry of the cross Gram matrix of "
        "two samples of one density, in single precision, by the dimension, with and without the "
        "division by it.",
        figure=_figure(summary, largest),
        settings={
            "variances": list(VARIANCES), "v of the forms": V, "dimensions": list(DIMENSIONS),
            "dimension of the training": TRAINED_DIMENSION, "v of it": V_WIDE,
            "samples of the formulas": SAMPLES, **asdict(training),
        },
        tables={"trainings": list(summary.values()), "seeds": rows, "largest entries": largest,
                "formulas": [dict(found)]},
        claims=claims(rows, largest, found),
        notes=[
            "The optimality of Property 9 is read as: of all sums of products of the two sets of "
            "Gaussians, the least squared distance to the identity."
        ],
    )  # fmt: skip


def _summary(rows: Rows) -> dict[str, dict[str, float]]:
    found = {}
    for name in dict.fromkeys(row["training"] for row in rows):
        own = [row for row in rows if row["training"] == name]
        keys = ("excess nll", "modes", "good samples", "energy distance")
        means = {k: None if own[0][k] is None else mean(row[k] for row in own) for k in keys}
        found[name] = {"training": name, **means}
    return found


def _mixture_in(dimension: int, generator: torch.Generator) -> GaussianMixture:
    """Ten states with means at random in the unit cube."""
    means = 0.05 + 0.9 * torch.rand(STATES, dimension, generator=generator)
    weights = torch.full((STATES,), 1 / STATES)
    return GaussianMixture(weights, means, torch.full((STATES,), DEVIATION**2))


def _in_many_dimensions(loss: Loss, seed: int, training: GenerationTraining) -> float:
    """Energy distance to held-out data of a network trained in 64 dimensions."""
    generator = torch.Generator().manual_seed(seed)
    mixture = _mixture_in(TRAINED_DIMENSION, generator)
    network = nn.Sequential(
        MLPGenerator(
            NOISE, TRAINED_DIMENSION, training.width, training.depth, generator=generator
        ),
        nn.Sigmoid(),
    )
    task = SampleTask(network, mixture, loss, training, generator)
    Trainer(task, device="cpu").run()
    fresh = torch.Generator().manual_seed(10_000 + seed)
    with torch.no_grad():
        samples = network.eval()(task.prior.sample(1000, fresh))
    return float(energy_distance(mixture.sample((1000,), generator=fresh), samples))


def _largest_entries(dimension: int) -> dict[str, float]:
    """Of the cross Gram matrix of two samples, in float32 as the formula is written."""
    generator = torch.Generator().manual_seed(0)
    mixture = _mixture_in(dimension, generator)
    x, y = (mixture.sample((200,), generator=generator).float() for _ in "xy")
    squares = torch.cdist(x.double(), y.double()).square().float()
    loss = SVDLoss(GaussianKernel(V, per_dimension=False))
    return {
        "dimension": dimension,
        "divided": float(torch.exp(-squares / dimension / (4 * V)).max()),
        "undivided": float(torch.exp(-squares / (4 * V)).max()),
        "undivided loss, in log space": float(loss(x, y)),
    }


def claims(rows: Rows, largest: Sequence[Numbers], found: Numbers) -> list[Claim]:
    """Judge what the text says.

    Args:
        rows: The numbers of each training and seed.
        largest: Largest entries of Gram matrices, by dimension.
        found: What `formulas` returns.
    """
    return [*_training_claims(rows, largest), *formula_claims(found)]


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers, by the rules of today."""
    return claims(tables["seeds"], tables["largest entries"], tables["formulas"][0])


def _training_claims(rows: Rows, largest: Sequence[Numbers]) -> list[Claim]:
    def values(key: str, name: str) -> list[float]:
        return [row[key] for row in rows if row["training"] == name]

    excess = {form: values("excess nll", f"form {form}") for form in FORMS}
    modes = {f"modes, {form}": mean(values("modes", f"form {form}")) for form in FORMS}
    good = [values("good samples", f"v {v:g}") for v in VARIANCES]
    least = VARIANCES[0]
    more = {f"v {least:g} against {v:g}": differences(good[0], own)
            for v, own in zip(VARIANCES[1:], good[1:], strict=True)}  # fmt: skip
    shares = {f"good samples, v {v:g}": mean(own) for v, own in zip(VARIANCES, good, strict=True)}
    last = largest[-1]
    ratio = ratios(values("energy distance", "undivided"), values("energy distance", "divided"))
    same = ratio_claim(
        "Trace, log-determinant and data-fixed trace of the matrix-matrix cost are "
        "interchangeable.",
        "excess negative log-likelihoods within a factor of two of each other, and at least "
        "nine modes each",
        excess,
        2,
        floor=FLOOR,
        statement=INTERCHANGEABLE,
    )
    found = min(modes.values()) >= 9
    return [
        replace(same, holds=same.holds and found, state=same.state if found else "judged",
                numbers={**same.numbers, **modes}),
        decided(
            "A small variance is a must (read as: a small one draws more good samples).",
            f"more good samples with {least:g} than with each larger variance, by paired "
            "differences",
            more,
            least=0,
            strict=True,
            numbers=shares,
            statement=SMALL,
        ),
        decided(
            "A small variance is a must (read as: with a large one the fit fails).",
            "with v = 1 at most half of the modes",
            {"modes, v 1": spread(values("modes", "v 1"))},
            most=STATES / 2,
            numbers=shares,
            statement=SMALL,
        ),
        Claim(
            "Dividing distances by the dimension is crucial in high dimensions (read as: for "
            "the Gram matrix in single precision).",
            "in 1024 dimensions and for the same v, the largest entry is above 0.1 with the "
            "division and 0 without",
            {"divided": last["divided"], "undivided": last["undivided"]},
            last["divided"] > 0.1 and last["undivided"] == 0,
            statement=DIVISION,
        ),
        decided(
            "Dividing distances by the dimension is crucial in high dimensions (read as: for "
            "training, the cost being computed in log space).",
            f"in 64 dimensions and for the same v = {V_WIDE}, at least twice the energy distance "
            "without",
            {"energy distance without over with": ratio},
            least=2,
            statement=DIVISION,
        ),
    ]  # fmt: skip


def _figure(summary: Mapping[str, Numbers], largest: Sequence[Numbers]) -> "Figure":
    figure, ((left, middle, right),) = sheet(1, 3, 8.2, 2.4)
    good = [summary[f"v {v:g}"]["good samples"] for v in VARIANCES]
    left.plot(VARIANCES, good, "o-", color=BLUE, markersize=4, linewidth=1.2)
    left.set_xscale("log")
    left.set(ylim=(0, 1))
    left.set_xlabel("variance of the SVD cost", fontsize=8)
    left.set_title("good samples", fontsize=8, color=INK_COLOUR)
    heights = [summary[f"form {form}"]["excess nll"] for form in FORMS]
    middle.bar(range(len(FORMS)), heights, color=BLUE, width=0.6)
    middle.set_xticks(range(len(FORMS)), [name.replace("_", " ") for name in FORMS])
    middle.set_title("excess NLL, nats", fontsize=8, color=INK_COLOUR)
    dimensions = [row["dimension"] for row in largest]
    for key, colour in (("divided", BLUE), ("undivided", ORANGE)):
        right.plot(dimensions, [row[key] for row in largest], "o-", color=colour, markersize=4,
                   linewidth=1.2, label=key)  # fmt: skip
    right.set_xscale("log", base=2)
    right.legend(fontsize=7, frameon=False)
    right.set_xlabel("dimension", fontsize=8)
    right.set_title("largest entry of P", fontsize=8, color=INK_COLOUR)
    for axes in (left, middle, right):
        axes.grid(axis="y", color=GREY, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    return figure
