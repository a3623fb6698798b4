r"""What the text says beside its figures, judged by small experiments.

Trainings, in the setting of `fig-generation`: the three forms of the matrix-matrix cost, which are
said to be interchangeable; the SVD cost with variances from 0.001 to 1, of which a small one is
said to be a must; and, in many dimensions, with and without the division of distances by their
number, which is said to be crucial.

Formulas, on samples of one dimension of `fig-measure`'s density: which sum of products of two sets
of Gaussians is nearest to the identity (Property 9, and the same said of the SVD cost), whether
the vector-matrix cost has such a form too, and the bounds of Section IV. With the Gram matrices
R_F, R_G and P of the Gaussians f and g, the squared distance of $f(X')^\top C g(X)$ to the
identity is, up to a constant,

$$J(C) = \mathrm{tr}(R_F C R_G C^\top) - 2 \, \mathrm{tr}(C^\top P)$$

whose least value is minus the matrix-matrix cost, at $C = R_F^{-1} P R_G^{-1}$.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor, nn

from kermix.costs.baselines import energy_distance
from kermix.costs.functions import scalar_cost, svd_cost, vector_cost
from kermix.costs.losses import MatrixLoss, SVDLoss
from kermix.kernels.gaussian import GaussianKernel
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.generators import MLPGenerator
from kermix.paper import identity
from kermix.paper.artefact import (
    BLUE,
    GREY,
    INK_COLOUR,
    ORANGE,
    Artefact,
    Claim,
    Rows,
    Tick,
    ignore,
    sheet,
)
from kermix.paper.generation import (
    DEVIATION,
    NOISE,
    STATES,
    GenerationTraining,
    Loss,
    SampleTask,
    V,
    train,
)
from kermix.paper.measure import DENSITY
from kermix.paper.verdicts import decided, differences, ratios, similar_excess, spread
from kermix.training.loop import Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["claims", "judged", "run"]

Numbers: TypeAlias = Mapping[str, float]

PERTURBED, APART = 200, 0.03
OPTIMAL = "The whitened functions are the best approximators of the identity (Property 9)."
BEST_PLAIN = "The SVD cost's functions are the best approximator of the identity (Section IV)."
VECTOR_FORM = "Approximating the identity applies to the vector-matrix cost too."
BOUNDED = "Scalar and vector-matrix cost are bounded by the norm of p, tight when q = p."
TRACE = "The greatest nuclear norm is the trace N * N(0), reached when samples match."
ROOT = "sqrt(p) N(.; v) is the root of the joint density p N(.; 2v), up to a constant."
VARIANCES = (0.001, 0.01, 0.1, 1.0)  # a convention: from the paper's to one that sees no modes
TRAINED_DIMENSION, V_WIDE = 64, 0.01
FORMS: dict[str, Loss] = {
    "trace": MatrixLoss(V),
    "data_fixed": MatrixLoss(V, form="data_fixed"),
    "logdet": MatrixLoss(V, form="logdet"),
}
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
    training = training or (
        GenerationTraining(seeds=1, steps=250, batch_size=150, width=64)
        if quick
        else GenerationTraining(seeds=3, steps=600, width=128)
    )
    rows = _trained(training, tick)
    summary = _summary(rows)
    largest = [_largest_entries(d) for d in (2, 16, 64, 256, 1024)]
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
            "variances": list(VARIANCES), "v of the forms": V,
            "dimensions": [row["dimension"] for row in largest],
            "dimension of the training": TRAINED_DIMENSION, "v of it": V_WIDE,
            "samples of the formulas": int(found["N"]), **asdict(training),
        },
        tables={"trainings": list(summary.values()), "seeds": rows, "largest entries": largest,
                "formulas": [dict(found)]},
        claims=claims(rows, largest, found),
        notes=[
            "The optimality of Property 9 is read as: of all sums of products of the two sets of "
            "Gaussians, the least squared distance to the identity."
        ],
    )  # fmt: skip


def _trained(training: GenerationTraining, tick: Tick) -> Rows:
    """Numbers of each training and seed."""
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
    return rows


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
    same = similar_excess(
        "Trace, log-determinant and data-fixed trace of the matrix-matrix cost are "
        "interchangeable.",
        excess,
        rule="excess negative log-likelihoods within a factor of two of each other, and at least "
        "nine modes each",
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


def formulas(samples: int = 40) -> dict[str, float]:
    """Numbers of the formulas, on samples of the first coordinate of `fig-measure`'s density."""
    density = GaussianMixture(DENSITY.weights, DENSITY.means[:, :1], DENSITY.covariances)
    generator = torch.Generator().manual_seed(0)
    x = density.sample((samples,), generator=generator)
    y = density.sample((samples,), generator=generator)
    many = [density.sample((400,), generator=generator) for _ in "xy"]
    found = _optimality(*map(_apart, many)) | _vector_form(x)
    norm = float(scalar_cost(x, x, V))
    found |= {
        "norm of p": norm,
        "largest scalar cost": max(float(scalar_cost(x, x + s, V)) for s in (0.0, 0.01, 0.3)),
        "largest vector cost": max(
            float(vector_cost(x, x + s, V, ridge=1e-12)) for s in (0.0, 0.01, 0.3)
        ),
        "vector cost at q = p": float(vector_cost(x, x, V, ridge=1e-12)),
        "matrix cost, data fixed, p_n = N/N": _fixed(x, y) / samples**2,
        "nuclear norm, matched": float(svd_cost(x, x.clone(), V, method="svd")),
        "nuclear norm, others": max(
            float(svd_cost(x, z, V, method="svd")) for z in (y, x + 0.02, x + 1.0)
        ),
        "N": float(samples),
    }
    return found | _root_of_the_joint_density()


def _gram(a: Tensor, b: Tensor) -> Tensor:
    return torch.exp(-(a - b.T).square() / (4 * V))


def _fixed(x: Tensor, y: Tensor) -> float:
    cross = _gram(y, x)
    return float((cross * torch.linalg.solve(_gram(y, y), cross)).sum())


def _apart(points: Tensor) -> Tensor:
    """Some of the points, so far apart that systems of their Gaussians can be solved exactly."""
    kept = points[:1]
    for point in points[1:]:
        if float((kept - point).abs().min()) >= APART:
            kept = torch.cat([kept, point[None]])
    return kept


def _optimality(x: Tensor, y: Tensor) -> dict[str, float]:
    """How near to the identity each form is: minus J, with the best factor, over its greatest."""
    r_f, r_g, cross = _gram(y, y), _gram(x, x), _gram(y, x)

    def reached(c: Tensor) -> float:
        # The best factor of C makes minus J this.
        return float((c * cross).sum() ** 2 / ((r_f @ c @ r_g) * c).sum())

    left, right = (_inverse_root(r) for r in (r_f, r_g))
    u, s, vh = torch.linalg.svd(left @ cross @ right, full_matrices=False)
    functions = u.T @ left  # the rows are the functions f*, in terms of f
    whitened = functions.T @ torch.diag(s) @ vh @ right
    best = float(s.square().sum())
    plain_u, sigma, plain_vh = torch.linalg.svd(cross, full_matrices=False)
    inverse = torch.where(sigma > 0.01 * sigma[0], 1 / sigma, torch.zeros_like(sigma))
    generator = torch.Generator().manual_seed(1)
    others = []
    for i in range(PERTURBED):
        noise = torch.randn(whitened.shape, generator=generator, dtype=x.dtype)
        size = 10.0 ** -(i % 6)
        others.append(reached(whitened + size * whitened.norm() / noise.norm() * noise))
    products = functions @ r_f @ functions.T
    identity_error = (products - torch.eye(len(products), dtype=x.dtype)).abs()
    return {
        "whitened": reached(whitened) / best,
        "best of perturbed": max(others) / best,
        "weights sigma": reached(plain_u @ torch.diag(sigma) @ plain_vh) / best,
        "weights 1/sigma": reached(plain_u @ torch.diag(inverse) @ plain_vh) / best,
        "not orthonormal by": float(identity_error.max()),
    }


def _inverse_root(matrix: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors / values.sqrt()) @ vectors.T


def _vector_form(x: Tensor) -> dict[str, float]:
    r"""The identity as the centres' Gaussians see it, $f(X')^\top R^{-1} f(X)$.

    Between p and p it is the vector-matrix cost.
    """
    grid = torch.linspace(-1.2, 1.2, 961, dtype=x.dtype)[:, None]
    cell = float(grid[1] - grid[0])
    y = torch.linspace(-0.9, 0.9, 61, dtype=x.dtype)[:, None]  # centres
    # Gaussians of variance v whose inner products are `_gram`: with unit norm.
    scale = (2 * torch.pi * V) ** -0.5 * (4 * torch.pi * V) ** 0.25
    of_y, of_x = (torch.exp(-(grid - z.T).square() / (2 * V)) * scale for z in (y, x))
    seen = of_y @ torch.linalg.solve(_gram(y, y), of_y.T)
    p = of_x.mean(1)
    between = float(p @ seen @ p) * cell**2
    shape = identity.describe(seen, grid[:, 0], grid[:, 0].abs() < 0.6)
    return {
        "identity of f, near the diagonal": shape["near the diagonal"],
        "identity of f, between p and p": between,
        "vector cost": float(vector_cost(x, y, V, ridge=1e-12)),
    }


def _root_of_the_joint_density() -> dict[str, float]:
    r"""How far $N(z; v)^2$ is from a multiple of $N(z; 2v)$ and of N(z; v/2)."""
    z = torch.linspace(-3, 3, 61, dtype=torch.float64) * V**0.5
    square = (-z.square() / V).exp()  # of exp(-z^2 / (2 v))
    return {
        f"root and {name}": float((square - (-z.square() / (2 * v)).exp()).abs().max())
        for name, v in (("2v", 2 * V), ("v/2", V / 2))
    }


def formula_claims(found: Numbers) -> list[Claim]:
    """Judge what `formulas` has found."""

    def chosen(*names: str) -> dict[str, float]:
        return {name: found[name] for name in names}

    norm = found["norm of p"]
    return [
        Claim(
            "The whitened functions are the best approximators of the identity by these "
            "Gaussians, and orthonormal (Property 9).",
            "as near to it as any sum can be to 1e-6, none of 200 perturbed sums nearer; "
            "orthonormal to 1e-6",
            chosen("whitened", "best of perturbed", "not orthonormal by"),
            abs(found["whitened"] - 1) <= 1e-6 and found["best of perturbed"] <= 1 + 1e-9
            and found["not orthonormal by"] <= 1e-6,
            statement=OPTIMAL,
        ),
        Claim(
            "The functions of the plain SVD are the best approximator of the identity by these "
            "Gaussians (weights sigma, the paper's formula, or 1/sigma).",
            "with the best factor, within 1 % of the nearest sum",
            chosen("weights sigma", "weights 1/sigma"),
            max(found["weights sigma"], found["weights 1/sigma"]) >= 0.99,
            statement=BEST_PLAIN,
        ),
        Claim(
            "The vector-matrix cost has an identity form too: f' R^-1 f, between p and p.",
            "the cost to 1e-6, and 95 % of the sum of squares within 0.1 of the diagonal",
            chosen("identity of f, near the diagonal", "identity of f, between p and p",
                   "vector cost"),
            abs(found["identity of f, between p and p"] / found["vector cost"] - 1) <= 1e-6
            and found["identity of f, near the diagonal"] >= 0.95,
            statement=VECTOR_FORM,
        ),
        Claim(
            "Scalar and vector-matrix cost are bounded by the norm of p; tight when q = p.",
            "never above it, and equal to 1e-6 at q = p",
            chosen("norm of p", "largest scalar cost", "largest vector cost",
                   "vector cost at q = p"),
            max(found["largest scalar cost"], found["largest vector cost"]) <= norm * (1 + 1e-9)
            and abs(found["vector cost at q = p"] / norm - 1) <= 1e-6
            and abs(found["largest scalar cost"] / norm - 1) <= 1e-6,
            statement=BOUNDED,
        ),
        Claim(
            "The data-fixed matrix-matrix cost is bounded by the norm of p where the data's "
            "residuals are p_n = N(X - X_n; v) / N, that is, where they sum to p.",
            "at most the norm of p",
            chosen("matrix cost, data fixed, p_n = N/N", "norm of p"),
            found["matrix cost, data fixed, p_n = N/N"] <= norm,
            ours=True,
        ),
        Claim(
            "The nuclear norm is N (times N(0)) when samples match, and less otherwise.",
            "N to 1e-6 for equal samples, less for others",
            chosen("nuclear norm, matched", "nuclear norm, others", "N"),
            abs(found["nuclear norm, matched"] / found["N"] - 1) <= 1e-6
            and found["nuclear norm, others"] < found["N"],
            statement=TRACE,
        ),
        Claim(
            "The square of sqrt(p) N(.; v) is p N(.; 2v), up to a constant.",
            "N(.; v)^2 and N(.; 2v), both with peak 1, differ by at most 1e-9",
            chosen("root and 2v"),
            found["root and 2v"] <= 1e-9,
            statement=ROOT,
        ),
        Claim(
            "The square of sqrt(p) N(.; v) is p N(.; v/2), up to a constant.",
            "N(.; v)^2 and N(.; v/2), both with peak 1, differ by at most 1e-9",
            chosen("root and v/2"),
            found["root and v/2"] <= 1e-9,
            ours=True,
        ),
    ]  # fmt: skip
