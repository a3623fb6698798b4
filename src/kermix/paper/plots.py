"""What the paper's figures share: a sheet of panels, and colours.

Colours are those of Okabe and Ito, told apart by every kind of colour vision.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kermix.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "BLUE",
    "COST_COLOURS",
    "GREEN",
    "GREY",
    "INK_COLOUR",
    "ORANGE",
    "PINK",
    "bare",
    "sheet",
]

BLUE, ORANGE, GREEN, PINK = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
INK_COLOUR, GREY = "#1a1a1a", "#d0d0d0"
# The same colour for the same cost in every figure.
COST_COLOURS = {"svd": BLUE, "scalar": ORANGE, "vector": GREEN, "matrix": PINK}


def sheet(
    rows: int, columns: int, width: float, height: float, widths: Sequence[float] | None = None
) -> "tuple[Figure, np.ndarray]":
    """A figure of that size in inches, and its panels (rows, columns)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Figures need Matplotlib: pip install 'kermix[plots]'.") from None
    figure = Figure(figsize=(width, height), layout="constrained", facecolor="white")
    ratios = None if widths is None else {"width_ratios": list(widths)}
    panels = figure.subplots(rows, columns, squeeze=False, gridspec_kw=ratios)
    for axes in panels.flat:
        axes.tick_params(colors=INK_COLOUR, labelsize=7, width=0.6)
        for spine in axes.spines.values():
            spine.set_color(GREY)
    return figure, panels


def bare(axes: "Axes", title: str = "") -> None:
    """No ticks; a small title."""
    axes.set_xticks([])
    axes.set_yticks([])
    if title:
        axes.set_title(title, fontsize=8, color=INK_COLOUR)
