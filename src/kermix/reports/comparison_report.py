"""The page of a comparison of two data sets."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kermix.comparison.result import Comparison
from kermix.reports import figures as plots
from kermix.reports.grids import grid_over
from kermix.reports.page import Report

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COLUMNS", "column_rows", "comparison_report"]

COLUMNS = ("measure", "variance", "value", "in [0, 1]", "+-", "if same", "p")


def comparison_report(result: Comparison) -> Report:
    """The page: the table, values against variance, the samples, and where they differ."""
    one, two = result.names
    page = Report(
        f"{one} and {two}",
        f"{result.sizes[0]} and {result.sizes[1]} rows, {len(result.columns)} columns; "
        f"{result.used[0]} and {result.used[1]} rows used.",
    )
    page.table(COLUMNS, result.rows())
    for note in result.notes:
        page.text(note)
    if len(result.variances) > 1:
        page.heading("Values against variance")
        page.figure(_against_variance(result), "Normalized costs with one standard error; dotted: "
                    "the average if both sets were one. The further apart, the more they "
                    "differ.")  # fmt: skip
    if result.x is None or result.y is None:
        return page
    page.heading("Where they differ")
    d = len(result.columns)
    if d <= 2 and not result.mixed:
        _maps(page, result, result.x, result.y)
    else:
        names = [c.column for c in result.column_differences]
        page.figure(plots.witness_bars(names, [c.distance for c in result.column_differences]),
                    "Columns by how much they differ on their own.")  # fmt: skip
        page.table(
            ("column", "energy distance / sd", "p", f"mean of {one}", f"mean of {two}",
             "what changed"),
            column_rows(result),
        )  # fmt: skip
        if result.mixed:
            return page
        best = [result.columns.index(name) for name in names[:2]]
        page.figure(
            plots.samples(result.raw(result.x)[:, best], result.raw(result.y)[:, best],
                          labels=(one, two), axes_labels=names[:2]),
            "The two columns that differ most.",
        )  # fmt: skip
    _rows(page, result, result.x, result.y)
    return page


def column_rows(result: Comparison) -> list[list[str | float]]:
    """How each column differs: name, distance, p-value, the two means, and what changed."""
    return [
        [c.column, c.distance, *("" if v is None else v for v in (c.pvalue, c.mean_x, c.mean_y)),
         c.change]
        for c in result.column_differences
    ]  # fmt: skip


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


def _maps(page: Report, result: Comparison, x: Tensor, y: Tensor) -> None:
    x, y = result.raw(x), result.raw(y)
    labels = result.names
    page.figure(plots.samples(x, y, labels=labels, axes_labels=result.columns), "The samples.")
    grid, shape = grid_over(torch.cat([x, y]), margin=0.05)
    page.figure(
        plots.witness_map(grid, result.witness(grid), shape=shape, labels=labels),
        f"Witness of the SVD cost at variance {result.sharpest_variance:.3g}: positive where "
        f"{labels[0]} has more mass, negative where {labels[1]} has.",
    )


def _rows(page: Report, result: Comparison, x: Tensor, y: Tensor) -> None:
    """The rows at which the witness is largest, on either side."""
    for name, points, sign in ((result.names[0], x, 1.0), (result.names[1], y, -1.0)):
        raw = result.raw(points)
        witness = result.witness(raw)
        order = (sign * witness).argsort(descending=True)[:8].tolist()
        page.text(f"Rows most typical of {name} alone:")
        shown = list(result.columns[:8])
        page.table(
            ["witness", *shown],
            [[float(witness[i]), *raw[i, : len(shown)].tolist()] for i in order],
        )
