r"""Figure "as a measure": the costs while one density slides past the other.

Two mixtures in the plane, one a copy of the other, moved from -1 to 1; v = 0.01; each cost is
divided by its peak. The paper leaves open which mixture, how many samples, and what "accurate"
means. Here the mixture is `DENSITY`; samples of q are those of p, moved (so that "they
match" at 0), and independent ones to see how much the samples matter; and accuracy is how well a
curve tells the distance (which the shift is, as a Wasserstein distance) and the affinity
$\int \sqrt{p q}$ of the smoothed densities that the costs are made of.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor

from kermix.costs.functions import matrix_cost, scalar_cost, svd_cost, vector_cost
from kermix.mixtures.mixture import GaussianMixture
from kermix.paper.artefact import (
    ACCURATE,
    BLUE,
    CLOSER,
    COST_COLOURS,
    INK_COLOUR,
    MATRIX_BOUND,
    NOT_SYMMETRICAL,
    ORANGE,
    SATURATES,
    Artefact,
    Claim,
    Rows,
    Tick,
    ignore,
    sheet,
)
from kermix.paper.verdicts import Spread, decided, differences, of_seeds, spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["DENSITY", "claims", "describe", "judged", "run", "shifted_costs"]

Curves: TypeAlias = dict[str, Tensor]
Description: TypeAlias = dict[str, float]

V = 0.01  # the paper's
FOUR = ("svd", "scalar", "vector", "matrix")
WITH_DATA, SAME, INDEPENDENT = "matrix with R_G", "same, moved", "independent"
DENSITY = GaussianMixture(
    torch.tensor([0.35, 0.30, 0.20, 0.15], dtype=torch.float64),
    torch.tensor([[-0.30, -0.25], [0.05, 0.30], [0.35, -0.05], [0.10, -0.40]]).double(),
    torch.tensor([0.08, 0.10, 0.06, 0.05], dtype=torch.float64).square(),
)
LABELS = {"svd": "SVD", "scalar": "scalar", "vector": "vector-matrix", "matrix": "matrix-matrix"}


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    samples: int | None = None,
    steps: int | None = None,
    seeds: int | None = None,
) -> Artefact:
    """Compute the figure.

    Args:
        quick: Whether to take fewer samples, shifts and seeds.
        data_root: Not used.
        tick: Called with the share that is done.
        samples: Samples of each density.
        steps: Number of shifts, odd.
        seeds: Number of pairs of independent samples.
    """
    defaults = (200, 41, 2) if quick else (300, 61, 5)
    samples, steps, seeds = (
        given or usual for given, usual in zip((samples, steps, seeds), defaults, strict=True)
    )
    shifts = torch.linspace(-1, 1, steps, dtype=torch.float64)
    curves, bounds = {}, {}
    found: dict[str, list[Curves]] = {SAME: [], INDEPENDENT: []}
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        x, y = (DENSITY.sample((samples,), generator=generator) for _ in "xy")
        found[SAME].append(shifted_costs(x, x, shifts))
        found[INDEPENDENT].append(shifted_costs(x, y, shifts))
        if seed == 0:
            curves, bounds = found[SAME][0], _bounds(x)
        tick((seed + 1) / seeds)
    truth = affinity(shifts)
    each = _described(found, shifts, truth)
    rows = [_averaged(each, kind, cost) for kind in found for cost in curves]
    correlation = {r["cost"]: r["correlation"] for r in rows if r["samples"] == SAME}
    return Artefact(
        name="fig-measure",
        title="The costs as a measure",
        caption="Left: the density p, and q at the two ends of its path. Right: each cost divided "
        f"by its peak against the shift of q, v = {V}, {samples} samples; dotted, the affinity of "
        "the smoothed p and q. The vector-matrix and matrix-matrix costs lean to one side.",
        figure=_figure(shifts, curves, truth),
        settings={
            "v": V, "samples": samples, "shifts": steps, "seeds": seeds,
            "matrix-matrix cost": "tr(P^T R_F^-1 P), as in the paper's figure",
            "means": DENSITY.means.tolist(), "weights": DENSITY.weights.tolist(),
            "deviations": DENSITY.covariances.sqrt().tolist(), "moved along": "the first axis",
        },
        tables={"costs": rows, "seeds": each, "curves": _curve_rows(shifts, curves, truth),
                "bounds": [bounds]},
        claims=claims(each, bounds),
        notes=[
            "The paper draws the matrix-matrix cost without R_G. With R_G it is symmetric, and "
            f"its correlation with the distance is {correlation[WITH_DATA]:.3f} (SVD cost: "
            f"{correlation['svd']:.3f})."
        ],
    )  # fmt: skip


def _described(found: Mapping[str, Sequence[Curves]], shifts: Tensor, truth: Tensor) -> Rows:
    return [
        {"samples": kind, "cost": cost, "seed": seed, **describe(curve, shifts, truth)}
        for kind, sets in found.items()
        for seed, costs in enumerate(sets)
        for cost, curve in costs.items()
    ]


def _curve_rows(shifts: Tensor, curves: Curves, truth: Tensor) -> Rows:
    return [
        {
            "shift": round(float(s), 6),
            **{name: float(c[i] / c.max()) for name, c in curves.items()},
            "affinity": float(truth[i]),
        }
        for i, s in enumerate(shifts)
    ]


def shifted_costs(x: Tensor, y: Tensor, shifts: Tensor) -> Curves:
    """The costs between `x` and `y` moved along the first axis, for each shift."""
    axis = torch.zeros(x.shape[1], dtype=x.dtype)
    axis[0] = 1
    moved = torch.stack([y + s * axis for s in shifts])  # (S, N, d)
    x = x.expand_as(moved)
    return {
        "svd": svd_cost(x, moved, V, method="svd"),
        "scalar": scalar_cost(x, moved, V),
        "vector": vector_cost(x, moved, V),
        "matrix": matrix_cost(x, moved, V, form="data_fixed"),
        WITH_DATA: matrix_cost(x, moved, V),
    }


def affinity(shifts: Tensor, points: int = 161) -> Tensor:  # (S,)
    r"""The affinity $\int \sqrt{p_v(X) p_v(X - s)} \, dX$ by the midpoint rule.

    $p_v$ is p with the Gaussians of variance v at its samples, whose variance in each
    coordinate is v times the dimension.
    """
    p = GaussianMixture(DENSITY.weights, DENSITY.means, DENSITY.covariances + 2 * V)
    side = torch.linspace(-2, 2, points, dtype=torch.float64)
    grid = torch.cartesian_prod(side, side)
    cell = float(side[1] - side[0]) ** 2
    root = (p.log_prob(grid) / 2).exp()
    moved = torch.stack([torch.stack([s, torch.zeros_like(s)]) for s in shifts])
    parts = [(root * (p.log_prob(grid - m) / 2).exp()).sum() for m in moved]
    return torch.stack(parts) * cell


def describe(curve: Tensor, shifts: Tensor, truth: Tensor) -> Description:
    """What a curve, divided by its peak, looks like.

    Returns:
        Where the peak is; the greatest difference between the two sides; the widths above a half
        and a twentieth; the share of steps that go towards the peak; the correlation with minus
        the distance; and the root mean square difference from the affinity.
    """
    relative = curve / curve.max()
    signs = torch.where(shifts[1:] <= 1e-12, 1.0, -1.0)
    pair = torch.stack([relative, -shifts.abs()])
    step = float(shifts[1] - shifts[0])
    return {
        "peak at": round(float(shifts[curve.argmax()]), 9) + 0.0,
        "asymmetry": float((relative - relative.flip(0)).abs().max()),
        "width above 0.5": int((relative > 0.5).sum()) * step,
        "width above 0.05": int((relative > 0.05).sum()) * step,
        "steps uphill": float((relative.diff() * signs > 0).double().mean()),
        "correlation": float(torch.corrcoef(pair)[0, 1]),
        "from affinity": float((relative - truth).square().mean().sqrt()),
    }


def _averaged(each: Rows, kind: str, cost: str) -> dict[str, Any]:
    """Means over seeds of the descriptions of a cost on one kind of samples."""
    own = [row for row in each if row["samples"] == kind and row["cost"] == cost]
    numbers = [name for name in own[0] if name not in ("samples", "cost", "seed")]
    return {"samples": kind, "cost": cost, **{n: mean(row[n] for row in own) for n in numbers}}


def claims(rows: Rows, bounds: Mapping[str, float]) -> list[Claim]:
    """Judge what the paper says of this figure.

    Args:
        rows: Description of each cost for each seed, where q's samples are p's and where they are
            independent.
        bounds: The matrix-matrix cost at shift 0, the norm of p, and the number of samples.
    """

    def values(key: str, kind: str = SAME) -> dict[str, list[float]]:
        return of_seeds(rows, key, FOUR, samples=kind)

    asymmetry, widths = values("asymmetry"), values("width above 0.05")
    peaks = [max(map(abs, own)) for own in zip(*values("peak at").values(), strict=True)]
    return [
        decided(
            "The closer the densities are, the larger is each cost.",
            "every cost peaks at shift 0 and 99 % of its steps rise towards it",
            {f"{n} uphill": spread(own) for n, own in values("steps uphill").items()}
            | {"farthest peak": spread(peaks)},
            least={f"{n} uphill": 0.99 for n in FOUR},
            most={"farthest peak": 1e-9},
            statement=CLOSER,
        ),
        decided(
            "The vector-matrix and matrix-matrix costs are not symmetrical, as they use q to "
            "predict p; the SVD and scalar costs are.",
            "sides differ by more than 0.01 of the peak for the first two, by less than 1e-6 for "
            "the others",
            {n: spread(own) for n, own in asymmetry.items()},
            least={"vector": 0.01, "matrix": 0.01},
            most={"svd": 1e-6, "scalar": 1e-6},
            statement=NOT_SYMMETRICAL,
        ),
        decided(
            "The scalar cost saturates faster than the others.",
            "it is above 5 % of its peak on a narrower range of shifts than every other",
            {f"{n} less scalar": differences(widths[n], widths["scalar"])
             for n in FOUR if n != "scalar"},
            least=0,
            strict=True,
            numbers={n: mean(own) for n, own in widths.items()},
            statement=SATURATES,
        ),
        _most_accurate(
            rows, "correlation", 1, "how well it tells the distance",
            "highest correlation with minus the distance",
        ),
        _most_accurate(
            rows, "from affinity", -1, "the affinity of the smoothed p and q",
            "least difference from that affinity",
        ),
        *_bound_claims(bounds),
    ]  # fmt: skip


def _most_accurate(rows: Rows, key: str, sign: int, reading: str, rule: str) -> Claim:
    """The claim that the SVD cost is best at something, on moved and on independent samples."""
    pairs: dict[str, Spread] = {}
    for kind, told in ((SAME, ""), (INDEPENDENT, ", independent")):
        better = {n: [sign * v for v in own]
                  for n, own in of_seeds(rows, key, FOUR, samples=kind).items()}  # fmt: skip
        svd = better.pop("svd")
        pairs |= {f"svd against {n}{told}": differences(svd, own) for n, own in better.items()}
    moved = of_seeds(rows, key, FOUR, samples=SAME)
    return decided(
        f"Of the four costs, the SVD cost is the most accurate descriptor (read as: {reading}).",
        f"{rule}, with moved and with independent samples, by paired differences",
        pairs,
        least=0,
        strict=True,
        numbers={n: mean(own) for n, own in moved.items()},
        statement=ACCURATE,
    )


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers, by the rules of today."""
    return claims(tables["seeds"], tables["bounds"][0])


def _bound_claims(bounds: Mapping[str, float]) -> Sequence[Claim]:
    cost, norm, count = bounds["matrix cost"], bounds["norm of p"], bounds["min(N, K)"]
    return (
        Claim(
            "The matrix-matrix cost is bounded by the norm of p (Section IV).",
            "its value at shift 0 is at most <p, p>",
            {"matrix cost": cost, "norm of p": norm},
            cost <= norm,
            statement=MATRIX_BOUND,
        ),
        Claim(
            "The matrix-matrix cost is bounded by min(N, K), not by the norm of p.",
            "its value at shift 0 is at most min(N, K)",
            {"matrix cost": cost, "min(N, K)": count},
            cost <= count,
            ours=True,
        ),
    )


def _bounds(x: Tensor) -> dict[str, float]:
    # Where q is p, the scalar cost is the norm of p, without the Gaussian constant on both sides.
    return {
        "matrix cost": float(matrix_cost(x, x, V)),
        "norm of p": float(scalar_cost(x, x, V)),
        "min(N, K)": float(len(x)),
    }


def _figure(shifts: Tensor, curves: Curves, truth: Tensor) -> "Figure":
    figure, ((left, right),) = sheet(1, 2, 7.2, 2.7, widths=(1.3, 1))
    low, high, across = (-1.65, -0.75), (1.65, 0.75), 120
    sides = [torch.linspace(a, b, across).double() for a, b in zip(low, high, strict=True)]
    grid = torch.cartesian_prod(*sides)
    for shift, colour in ((0.0, BLUE), (-1.0, ORANGE), (1.0, ORANGE)):
        density = DENSITY.log_prob(grid - torch.tensor([shift, 0.0])).exp()
        # The square root shows weak parts beside strong ones.
        height = (density / density.max()).sqrt().reshape(across, across).T.numpy()
        places = [s.numpy() for s in sides]
        left.contourf(*places, height, levels=[0.15, 0.4, 0.7, 1.01], colors=colour, alpha=0.3)
        left.contour(*places, height, levels=[0.15, 0.4, 0.7], colors=colour, linewidths=0.8)
    for shift, name, colour in (
        (0.0, "p", BLUE), (-1.0, "q, shift -1", ORANGE), (1.0, "q, shift +1", ORANGE),
    ):  # fmt: skip
        left.text(shift, 0.62, name, color=colour, ha="center", fontsize=8)
    left.set(aspect="equal", xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    for name, line in zip(FOUR, ("-", "--", "-.", (0, (5, 1))), strict=True):
        relative = curves[name] / curves[name].max()
        right.plot(
            shifts.numpy(), relative.numpy(), color=COST_COLOURS[name], linestyle=line,
            linewidth=1.6, label=LABELS[name],
        )  # fmt: skip
    right.plot(
        shifts.numpy(), truth.numpy(), color=INK_COLOUR, linestyle=":", linewidth=1,
        label="affinity",
    )  # fmt: skip
    right.set(ylim=(0, 1.03), xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1))
    left.set(yticks=(-0.5, 0, 0.5))
    right.set_xlabel("shift of q", fontsize=8)
    right.set_ylabel("cost / peak", fontsize=8)
    right.spines[["top", "right"]].set_visible(False)
    figure.legend(
        *right.get_legend_handles_labels(), loc="outside lower center", ncols=5, fontsize=7,
        frameon=False,
    )  # fmt: skip
    return figure
