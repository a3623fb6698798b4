"""Figure "identity": the identity function as the Gaussians at the samples see it, Eq. (22).

One dimension of the densities of `fig-measure`. The paper's text says v = 0.001 at shifts 0, 0.5
and 1, and 0.01 for the last panel; its caption says the opposite. The text is right, as the
numbers show: both variances are computed at every shift.

The paper weighs the terms by the singular values, which gives a smoothed identity. Weighed by
their inverses it is a projection; as the samples part, its terms of small singular value grow
without bound, so those below a hundredth of the largest are left out. The whitened form
(Property 9) has orthonormal functions and needs no such care. All three are drawn.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from kermix.mixtures.mixture import GaussianMixture
from kermix.paper.artefact import (
    DIAGONAL_GOES,
    IDENTITY,
    INK_COLOUR,
    LESS_ACCURATE,
    Artefact,
    Claim,
    Rows,
    Tick,
    bare,
    ignore,
    sheet,
)
from kermix.paper.measure import DENSITY
from kermix.spectrum import Decomposition, decompose

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["claims", "describe", "judged", "run"]

Description: TypeAlias = Mapping[str, float]
Key: TypeAlias = tuple[str, float, float]  # form, variance, shift

VARIANCES, SHIFTS = (0.001, 0.01), (0.0, 0.5, 1.0)
FORMS = {
    "smoothed": "weights sigma, the paper's formula",
    "projection": "weights 1/sigma",
    "whitened": "whitened, Property 9",
}


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    samples: int | None = None,
    points: int | None = None,
    ends: tuple[float, float] = (-0.75, 0.75),
) -> Artefact:
    """Compute the figure.

    Args:
        quick: Whether to take fewer samples and grid points.
        data_root: Not used.
        tick: Called with the share that is done.
        samples: Samples of p; those of q are the same, moved.
        points: Grid points of each side.
        ends: Of the grid.
    """
    samples, points = samples or (400 if quick else 600), points or (151 if quick else 301)
    density = GaussianMixture(DENSITY.weights, DENSITY.means[:, :1], DENSITY.covariances)
    x = density.sample((samples,), generator=torch.Generator().manual_seed(0))
    grid = torch.linspace(*ends, points, dtype=torch.float64)[:, None]
    inside = density.log_prob(grid).exp() > 0.05  # where there are samples of p
    matrices: dict[Key, Tensor] = {}
    found: dict[Key, Description] = {}
    for i, v in enumerate(VARIANCES):
        # Of the terms of the projection, those of a hundredth of the largest at shift 0.
        least = 0.01 * float(decompose(x, x, v, rank=1).singular_values)
        for j, shift in enumerate(SHIFTS):
            y = x + shift
            plain = decompose(x, y, v, method="full")
            kept = max(1, int((plain.singular_values > least).sum()))
            seen = {
                "smoothed": plain.identity(grid, grid, "smoothed"),
                "projection": _leading(x, y, v, kept).identity(grid, grid, "projection"),
                "whitened": decompose(x, y, v, whiten=True).identity(grid, grid, "smoothed"),
            }
            for form, matrix in seen.items():
                matrices[form, v, shift] = matrix
                found[form, v, shift] = describe(matrix, grid[:, 0], inside)
            tick((i * len(SHIFTS) + j + 1) / (len(VARIANCES) * len(SHIFTS)))
    rows = [
        {"form": form, "v": v, "shift": shift, **numbers}
        for (form, v, shift), numbers in found.items()
    ]
    return Artefact(
        name="fig-identity",
        title="The identity function, approximated",
        caption="The identity as seen by the Gaussians at samples of p (columns) and of q (rows): "
        "first the paper's formula (weights sigma), then the projection (weights 1/sigma), then "
        "the whitened form of Property 9 (orthonormal functions). Columns of one variance share "
        "a colour scale.",
        figure=_figure(matrices, ends),
        settings={
            "variances": list(VARIANCES), "shifts": list(SHIFTS), "samples": samples,
            "grid points": points, "range": list(ends),
            "density": "the first coordinate of fig-measure's",
        },
        tables={"matrices": rows},
        claims=claims(found),
        notes=[
            "The paper's text gives v = 0.001 for the first three panels and 0.01 for the last, "
            "its caption the opposite. The smaller variance is the more accurate one, so the text "
            "is right; the table has both at every shift."
        ],
    )  # fmt: skip


def describe(matrix: Tensor, grid: Tensor, inside: Tensor) -> Description:
    """How far a matrix over a grid is from an identity.

    Args:
        matrix: Its rows and columns belong to the grid's points.
        grid: Points on a line, evenly spaced.
        inside: Where p has samples: elsewhere there is nothing to see.

    Returns:
        The mean of the diagonal; the typical distance from it of what is not zero, in units of
        the grid's coordinate; and the share of the sum of squares within 0.1 of it.
    """
    part, points = matrix[inside][:, inside], grid[inside]
    distance = (points[:, None] - points[None]).abs()
    energy = part.square()
    total = energy.sum().clamp(min=torch.finfo(matrix.dtype).tiny)
    return {
        "diagonal": float(part.diagonal().mean()),
        "spread": float((energy * distance.square()).sum().div(total).sqrt()),
        "near the diagonal": float(energy[distance <= 0.1].sum() / total),
    }


def claims(found: Mapping[Key, Description]) -> list[Claim]:
    """Judge what the paper says of this figure, for each form."""
    result = []
    for form, formula in FORMS.items():
        # The paper draws its own formula alone.
        ours = form != "smoothed"
        narrow = {shift: found[form, 0.001, shift] for shift in SHIFTS}
        wide = found[form, 0.01, 0.0]
        near = narrow[0.0]["near the diagonal"]
        shares = {f"shift {s:g}": narrow[s]["diagonal"] / narrow[0.0]["diagonal"] for s in SHIFTS}
        result += [
            Claim(
                f"The sum approximates an identity matrix ({formula}).",
                "at v = 0.001 and shift 0, 95 % of the sum of squares within 0.1 of the diagonal",
                {"within 0.1": near, "spread": narrow[0.0]["spread"]},
                near >= 0.95,
                ours=ours,
                statement=IDENTITY,
            ),
            Claim(
                f"As q shifts away from p, the diagonal disappears ({formula}).",
                "the mean of the diagonal falls with each shift, at shift 1 below 10 %",
                shares,
                shares["shift 1"] < shares["shift 0.5"] < 1 and shares["shift 1"] < 0.1,
                ours=ours,
                statement=DIAGONAL_GOES,
            ),
            Claim(
                f"With v = 0.01 it still approximates a diagonal matrix, but less accurately "
                f"({formula}).",
                "a larger spread about the diagonal than with 0.001, but half of the sum of "
                "squares still within 0.1",
                {
                    "spread, v 0.001": narrow[0.0]["spread"],
                    "spread, v 0.01": wide["spread"],
                    "within 0.1, v 0.01": wide["near the diagonal"],
                },
                wide["spread"] > narrow[0.0]["spread"] and wide["near the diagonal"] >= 0.5,
                ours=ours,
                statement=LESS_ACCURATE,
            ),
        ]
    return result


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers, by the rules of today."""
    return claims({(row["form"], row["v"], row["shift"]): row for row in tables["matrices"]})


def _leading(x: Tensor, y: Tensor, v: float, rank: int) -> Decomposition:
    return decompose(x, y, v, rank=rank, method="full")


def _figure(matrices: Mapping[Key, Tensor], ends: tuple[float, float]) -> "Figure":
    shown = ((0.001, 0.0), (0.001, 0.5), (0.001, 1.0), (0.01, 0.0))
    figure, panels = sheet(len(FORMS), len(shown), 7.2, 5.7)
    names = (
        "paper's formula\nweights $\\sigma$", "projection\nweights $1/\\sigma$",
        "whitened\nProperty 9",
    )  # fmt: skip
    for i, (form, name) in enumerate(zip(FORMS, names, strict=True)):
        for j, (v, shift) in enumerate(shown):
            axes, matrix = panels[i, j], matrices[form, v, shift]
            peak = float(matrices[form, v, 0.0].diagonal().quantile(0.98))
            axes.imshow(
                matrix.numpy(), cmap="cividis", vmin=0, vmax=peak, extent=(*ends, *ends[::-1])
            )
            bare(axes, f"shift {shift:g}, v = {v:g}" if i == 0 else "")
        panels[i, 0].set_ylabel(name, fontsize=8, color=INK_COLOUR)
    return figure
