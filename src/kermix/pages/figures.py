"""Pictures: functions that take arrays and return a Matplotlib figure, or a sheet of images.

Colours are those of Okabe and Ito, and cividis: both can be told apart without colour vision.
Figures are as wide as a column of a paper and need no global state, so `style="dark"` changes one
figure and nothing else.
"""

import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_option
from kermix.errors import MissingExtraError, ShapeError
from kermix.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "drift",
    "grid_over",
    "png_bytes",
    "samples",
    "save_png",
    "sheet",
    "singular_functions",
    "spectrum",
]

Style: TypeAlias = Literal["light", "dark"]
Array: TypeAlias = Any  # a tensor or anything NumPy takes

MOST_TICKS = 12
COLUMN_WIDTH = 3.5  # inches
COLOURS = {
    "light": ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442"),
    "dark": ("#56B4E9", "#E69F00", "#009E73", "#CC79A7", "#F0E442", "#D55E00", "#0072B2"),
}
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)), (0, (1, 1)))
INK = {"light": ("#1a1a1a", "#ffffff", "#d0d0d0"), "dark": ("#e8eaed", "#17181a", "#4a4d51")}


def samples(
    data: Array,  # (N, 1 or 2)
    other: Array | None = None,  # (M, 1 or 2)
    *,
    labels: tuple[str, str] = ("data", "samples"),
    axes_labels: Sequence[str] = ("", ""),
    style: Style = "light",
) -> "Figure":
    """Samples against data: points in the plane, histograms on a line.

    Example:
        >>> float(samples(torch.zeros(20, 2), torch.ones(20, 2)).get_size_inches()[0])
        3.5
    """
    sets = [_points("data", data)] + ([] if other is None else [_points("other", other)])
    figure, (axes,) = _figure(1, style)
    for k, (points, label) in enumerate(zip(sets, labels, strict=False)):
        if points.shape[1] == 1:
            edges = np.histogram_bin_edges(np.concatenate(sets), bins=40).tolist()
            axes.hist(
                points[:, 0],
                bins=edges,
                density=True,
                histtype="step",
                label=label,
                color=COLOURS[style][k],
                linestyle=("-", "--")[k],
                linewidth=1.5,
            )
        else:
            axes.scatter(
                points[:, 0],
                points[:, 1],
                s=6,
                label=label,
                color=COLOURS[style][k],
                marker=MARKERS[k],
                alpha=0.6,
                linewidths=0,
            )
    axes.set_xlabel(axes_labels[0])
    axes.set_ylabel("density" if sets[0].shape[1] == 1 else axes_labels[-1])
    if sets[0].shape[1] > 1:
        axes.set_aspect("equal", adjustable="datalim")
    if len(sets) > 1:
        _legend(axes, style, markerscale=2)
    return figure


def spectrum(singular_values: Array, *, style: Style = "light") -> "Figure":  # (k,)
    """Singular values on a logarithmic scale."""
    values = _array(singular_values)
    figure, (axes,) = _figure(1, style)
    positive = values > 0
    axes.plot(
        np.arange(1, len(values) + 1)[positive],
        values[positive],
        color=COLOURS[style][0],
        marker="o",
        markersize=3,
        linewidth=1,
    )
    _logarithmic(axes, "y")
    axes.set_xlabel("k")
    axes.set_ylabel("singular value")
    return figure


def singular_functions(
    points: Array,  # (M, d)
    functions: Array,  # (M, k)
    *,
    singular_values: Array | None = None,
    shape: tuple[int, int] | None = None,
    images: bool = False,
    style: Style = "light",
) -> "Figure":
    """Panels of functions: curves on a line, maps in the plane, images, or rows of numbers.

    Args:
        points: Where the functions were evaluated.
        functions: Their values, one column each.
        singular_values: Written above the panels.
        shape: The points are a grid of so many rows and columns, drawn as a filled map.
        images: Each function is an image of that shape, whatever the points are.
        style: Light or dark.
    """
    at, values = _array(points), _array(functions)
    count = values.shape[1]
    figure, panels = _figure(count, style, columns=min(3, count))
    for k, axes in enumerate(panels):
        limit = float(np.abs(values[:, k]).max()) or 1.0
        if shape is not None and (images or at.shape[1] == 2):
            field = values[:, k].reshape(shape)
            extent = None if images else (*_range(at[:, 0]), *_range(at[:, 1]))
            axes.imshow(
                field if images else field.T,
                origin="upper" if images else "lower",
                extent=extent,
                cmap="cividis",
                vmin=-limit,
                vmax=limit,
                aspect="equal" if images else "auto",
            )
            axes.set_xticks([])
            axes.set_yticks([])
        elif at.shape[1] == 1:
            order = at[:, 0].argsort()
            axes.plot(at[order, 0], values[order, k], color=COLOURS[style][0], linewidth=1.2)
            axes.axhline(0, color=INK[style][2], linewidth=0.6, zorder=0)
        elif at.shape[1] == 2:
            axes.scatter(
                at[:, 0], at[:, 1], c=values[:, k], s=4, cmap="cividis", vmin=-limit, vmax=limit
            )
            axes.set_xticks([])
            axes.set_yticks([])
        else:
            axes.plot(np.sort(values[:, k])[::-1], color=COLOURS[style][0], linewidth=1.2)
            axes.set_xlabel("row, by value", fontsize=7)
        label = f"{k + 1}"
        if singular_values is not None:
            label += f": {_array(singular_values)[k]:.3g}"
        axes.set_title(label, fontsize=7, color=INK[style][0])
    return figure


def drift(
    names: Sequence[str],
    distances: Mapping[str, Array],  # (S - 1,) each
    *,
    if_same: Array | None = None,  # (S - 1,)
    style: Style = "light",
) -> "Figure":
    """Distances of a series, from its second member on, and what equal sources would give."""
    figure, (axes,) = _figure(1, style)
    places = np.arange(1, len(names))
    for k, (label, values) in enumerate(distances.items()):
        axes.plot(
            places,
            _array(values),
            color=COLOURS[style][k],
            linestyle=LINES[k],
            marker=MARKERS[k],
            markersize=4,
            linewidth=1.2,
            label=label,
        )
    if if_same is not None:
        axes.plot(places, _array(if_same), color=INK[style][0], linestyle=":", label="if the same")
    shown = places[:: -(-len(places) // MOST_TICKS)]
    axes.set_xticks(shown, [names[k] for k in shown], rotation=45, ha="right")
    axes.set_ylim(bottom=0)
    axes.set_ylabel("MMD")
    _legend(axes, style)
    return figure


def _figure(
    panels: int,
    style: Style,
    columns: int = 1,
) -> "tuple[Figure, list[Axes]]":
    check_option("style", style, ("light", "dark"))
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Figures need Matplotlib: pip install 'kermix[plots]'.") from None
    ink, page, line = INK[style]
    rows = -(-panels // columns)
    each = COLUMN_WIDTH / columns
    tall = each * rows * (1.05 if columns > 1 else 0.72)
    figure = Figure(figsize=(COLUMN_WIDTH, tall), layout="constrained", facecolor=page)
    drawn = []
    for k in range(panels):
        axes = figure.add_subplot(rows, columns, k + 1, facecolor=page)
        axes.tick_params(colors=ink, labelsize=7, width=0.6)
        for spine in axes.spines.values():
            spine.set_color(line)
        for axis in (axes.xaxis, axes.yaxis):
            axis.label.set_color(ink)
            axis.label.set_fontsize(8)
        drawn.append(axes)
    return figure, drawn


def _logarithmic(axes: "Axes", which: Literal["x", "y"]) -> None:
    """A logarithmic axis whose few labels are plain numbers that do not run into each other."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    (axes.set_xscale if which == "x" else axes.set_yscale)("log")
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0), numticks=5))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _legend(axes: "Axes", style: Style, **options: Any) -> None:
    ink, page, line = INK[style]
    axes.legend(fontsize=7, labelcolor=ink, facecolor=page, edgecolor=line, **options)


def _array(values: Array) -> np.ndarray:
    plain = values.detach().cpu() if isinstance(values, torch.Tensor) else values
    return np.asarray(plain, dtype=float)


def _points(name: str, values: Array) -> np.ndarray:
    points = _array(values)
    if points.ndim != 2 or points.shape[1] not in (1, 2):
        raise ShapeError(
            f"{name} has shape {points.shape}; only points with one or two coordinates can be "
            "plotted. Choose two columns."
        )
    return points


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    half = 0.5 if low == high else 0.0  # one place alone is drawn in the middle of a unit
    return low - half, high + half


LINE, SIDE = 400, 80


def grid_over(
    points: Tensor,  # (n, 1 or 2)
    margin: float = 0.0,
) -> tuple[Tensor, tuple[int, int] | None]:  # (m, 1 or 2)
    """A grid over the range of points, and its shape if it is one of two columns.

    Args:
        points: The points.
        margin: How far the grid reaches beyond them on each side, relative to their range.

    Example:
        >>> grid, shape = grid_over(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
        >>> grid[0], grid[-1], shape
        (tensor([0., 1.]), tensor([2., 5.]), (80, 80))
    """
    low, high = points.amin(0), points.amax(0)
    beyond = margin * (high - low)
    columns = points.shape[1]
    side = LINE if columns == 1 else SIDE
    axes = [
        torch.linspace(float(a), float(b), side, dtype=points.dtype)
        for a, b in zip(low - beyond, high + beyond, strict=True)
    ]
    grid = torch.cartesian_prod(*axes).reshape(-1, columns)
    return grid, None if columns == 1 else (side, side)


def sheet(images: Tensor, across: int = 10, gap: int = 1) -> np.ndarray:  # (n, c, h, w)
    """Images with values in [0, 1], side by side in rows, as bytes (H, W, 3).

    Two channels get a third that is black; of more than three the first three are shown.

    Example:
        >>> import torch
        >>> sheet(torch.ones(5, 1, 8, 8), across=3).shape
        (17, 26, 3)
    """
    n, channels, height, width = images.shape
    pictures = images.detach().float().clamp(0, 1).mul(255).round().byte().cpu().numpy()
    if channels == 1:
        pictures = pictures.repeat(3, 1)
    elif channels == 2:
        pictures = np.concatenate([pictures, np.zeros_like(pictures[:, :1])], 1)
    down = math.ceil(n / across)
    shown = np.full((down * (height + gap) - gap, across * (width + gap) - gap, 3), 128, np.uint8)
    for i, picture in enumerate(pictures[:, :3].transpose(0, 2, 3, 1)):
        top, left = (i // across) * (height + gap), (i % across) * (width + gap)
        shown[top : top + height, left : left + width] = picture
    return shown


def png_bytes(array: np.ndarray, zoom: int = 2) -> bytes:
    """A sheet as a PNG file, each pixel as a square of `zoom`."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Images need Pillow: pip install 'kermix[images]'.") from None
    buffer = io.BytesIO()
    large = array.repeat(zoom, 0).repeat(zoom, 1)
    Image.fromarray(large).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def save_png(array: np.ndarray, path: Path, zoom: int = 2) -> Path:
    """Write a sheet, each pixel as a square of `zoom`, first to a temporary name."""
    content = png_bytes(array, zoom)
    with whole_file(path) as part:
        part.write_bytes(content)
    return path
