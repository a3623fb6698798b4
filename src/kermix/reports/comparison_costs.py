"""The costs of a comparison: every number of the paper, what it reads for equal sets, and why."""

from typing import TYPE_CHECKING

import torch

from kermix.comparison.result import MEASURE_HEADS, TITLES, Comparison
from kermix.reports import figures as plots
from kermix.reports.grids import grid_over
from kermix.reports.page import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["HOW_TO_READ", "add_costs", "column_rows"]

HOW_TO_READ = (
    "Compare each number with 'if same', its average when the same rows are split into two sets "
    "at random: costs between two halves of one set are not 1, and distances are not 0."
)
MEANINGS = {
    "svd": "How much the two distributions overlap (fidelity). Smaller is more different.",
    "matrix": "How well the Gaussians of both sets imitate each other, one by one: it compares "
    "where they are rather than how many, and depends on the number of rows. Smaller is more "
    "different.",
    "vector": "How well weights on the second set's Gaussians imitate the first: it ignores wrong "
    "proportions and notices only what is missing. Smaller is more different.",
    "scalar": "Whether the two smoothed densities point in the same direction. Smaller is more "
    "different.",
    "bures": "The distance corresponding to the SVD cost. Larger is more different.",
    "cauchy_schwarz": "Negative logarithm of the scalar cost. Larger is more different.",
    "mmd": "Distance between the smoothed densities (kernel means). Larger is more different.",
    "energy": "A distance without a variance, in the columns' units. Larger is more different.",
}
MIDDLE = (0.01, 0.99)  # of the rows are inside the maps


def add_costs(page: Report, result: Comparison) -> None:
    """Every measure, how to read it, and its picture; the witness of rows that can be drawn."""
    page.text(HOW_TO_READ)
    seen = dict.fromkeys(m.name for m in result.measures)
    page.table(
        ("measure", "how to read it", "reads here", "if same"),
        [[TITLES[name], MEANINGS[name], *_reading(result, name)] for name in seen],
        text=True,
    )
    page.table(MEASURE_HEADS, result.rows())
    for note in result.found.notes:
        page.text(note)
    if len(result.variances) > 1:
        page.figure(
            _against_variance(result),
            "Normalized costs with one standard error; dotted: the average if both sets had the "
            "same distribution. The further apart, the more they differ.",
        )
    if result.x is None or result.y is None:
        return
    if len(result.columns) <= 2 and not result.mixed:
        _maps(page, result)
    one, two = result.names
    page.table(
        ("column", "energy distance / sd", "p, of this column alone", f"mean of {one}",
         f"mean of {two}", "what changed"),
        column_rows(result),
    )  # fmt: skip


def column_rows(result: Comparison) -> list[list[str | float]]:
    """How each column differs: name, distance, p-value, the two means, and what changed."""
    return [
        [c.column, c.distance, *("" if v is None else v for v in (c.pvalue, c.mean_x, c.mean_y)),
         c.change]
        for c in result.column_differences
    ]  # fmt: skip


def _reading(result: Comparison, name: str) -> tuple[str, str]:
    """From the lowest to the highest of all variances."""
    found = [m for m in result.measures if m.name == name]
    values = [m.value if m.normalized is None else m.normalized for m in found]
    same = [m.if_same for m in found if m.if_same is not None]
    return _range(values), _range(same)


def _range(values: list[float]) -> str:
    ends = [f"{v:.3g}" for v in (min(values), max(values))] if values else [""]
    return " to ".join(dict.fromkeys(ends))


def _against_variance(result: Comparison) -> "Figure":
    names = ("svd", "matrix", "vector", "scalar")
    by_name = {n: [m for m in result.measures if m.name == n] for n in names}
    return plots.cost_against_variance(
        result.variances,
        {n: [m.normalized for m in ms] for n, ms in by_name.items()},
        errors={n: [m.error or 0.0 for m in ms] for n, ms in by_name.items()},
        if_same={n: [m.if_same for m in ms] for n, ms in by_name.items()
                 if ms[0].if_same is not None},
    )  # fmt: skip


def _maps(page: Report, result: Comparison) -> None:
    """Points and witness where nearly all rows are: one outlier would hide everything else."""
    assert result.x is not None
    assert result.y is not None
    x, y = result.raw(result.x), result.raw(result.y)
    labels = result.names
    both = torch.cat([x, y]).double()
    low, high = (both.quantile(q, 0) for q in MIDDLE)
    inside = both.clamp(low, high)
    x, y = (p[((p >= low) & (p <= high)).all(1)] for p in (x.double(), y.double()))
    page.figure(plots.samples(x, y, labels=labels, axes_labels=result.columns),
                "The samples, without the outermost 1 % at either end.")  # fmt: skip
    grid, shape = grid_over(inside, margin=0.05)
    page.figure(
        plots.witness_map(grid, result.witness(grid), shape=shape, labels=labels),
        f"Witness of the SVD cost at variance {result.sharpest_variance:.3g}: positive where "
        f"{labels[0]} has more mass, negative where {labels[1]} has.",
    )
