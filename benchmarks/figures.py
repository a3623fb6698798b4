"""Figures that the benchmarks of quality share."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from torch import Tensor

from kermix.files import whole_file

__all__ = ["scatter_sheet"]

SHOWN = 2500


def scatter_sheet(sheets: dict[str, dict[str, Tensor]], path: Path) -> Path:
    """One panel for each set (row) and method (column), saved as PNG.

    Args:
        sheets: Points (n, 2) by set and method; the first method of a set gives the limits.
        path: Where to write.
    """
    columns = max(len(methods) for methods in sheets.values())
    figure = Figure(figsize=(2.1 * columns, 2.1 * len(sheets)), layout="constrained")
    panels = figure.subplots(len(sheets), columns, squeeze=False)
    for row, (name, methods) in zip(panels, sheets.items(), strict=True):
        first = next(iter(methods.values())).cpu().numpy()
        low, high = np.quantile(first, [0.001, 0.999], axis=0)
        margin = 0.1 * (high - low)
        for axes, (method, points) in zip(row, methods.items(), strict=False):
            colour = "#0072B2" if method == "data" else "#D55E00"
            shown = points.cpu().numpy()[:SHOWN]
            axes.scatter(*shown.T, s=0.7, color=colour, alpha=0.6, linewidths=0)
            axes.set(
                xlim=(low[0] - margin[0], high[0] + margin[0]),
                ylim=(low[1] - margin[1], high[1] + margin[1]),
                xticks=[],
                yticks=[],
            )
            axes.set_title(f"{name}: {method}", fontsize=7)
            axes.spines[:].set_visible(False)
        for axes in row[len(methods) :]:
            axes.set_axis_off()
    with whole_file(path) as part:
        figure.savefig(part, dpi=150, format="png")
    return path
