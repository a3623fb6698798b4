"""Figures of a fit: data against samples, the density, how training went.

Then those of a classifier: confusion, training, patch filters, anchors, mistakes.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kermix.errors import MissingExtraError
from kermix.mixtures.mixture import GaussianMixture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "accuracy_figure",
    "blank_figure",
    "class_rows",
    "confusion_figure",
    "curves_figure",
    "fit_figure",
    "mistakes_figure",
    "plain_axes",
    "sheet_figure",
]

# Okabe and Ito's colours, told apart by every kind of colour vision.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
SHOWN_POINTS = 2500
GRID, MANY_CENTRES = 200, 500
SHOWN_IMAGES = 48


def fit_figure(
    data: Tensor,  # (N, d)
    samples: Tensor,  # (n, d)
    mixture: GaussianMixture,
    columns: Sequence[str],
    image: tuple[int, int, int] | None = None,
) -> "Figure":
    """Data, samples and density side by side, in the way that suits their dimension."""
    x, y = _thinned(data), _thinned(samples)
    if image is not None:
        return _image_figure(x, y, image)
    if x.shape[1] == 1:
        return _line_figure(x, y, mixture, columns[0])
    if x.shape[1] == 2:
        return _plane_figure(x, y, mixture, columns)
    return _projected_figure(x, y)


def curves_figure(
    history: Sequence[dict[str, float]], metric: str, best: float, apart: bool = True
) -> "Figure":
    """The metric, on rows held out or not, and the loss of each stage, by step."""
    figure = blank_figure(9.0, 3.2)
    steps = [row["step"] for row in history]
    left, right = figure.subplots(1, 2)
    left.plot(steps, [row["metric"] for row in history], color=BLUE)
    left.axhline(best, color=GREY, linewidth=0.8, linestyle="--")
    title = "on held-out data" if apart else "on training data"
    left.set(xlabel="step", ylabel=metric, title=title)
    stages = (
        ("cost on samples", ORANGE, [r for r in history if r["variance"] > 0]),
        ("refinement, up to a constant", GREEN, [r for r in history if r["variance"] == 0]),
    )
    for label, colour, rows in stages:
        if rows:
            right.plot(
                [r["step"] for r in rows], [r["loss"] for r in rows], color=colour, label=label
            )
    right.set(xlabel="step", ylabel="loss", title="loss (it rises as the variance falls)")
    right.legend(frameon=False)
    for axes in (left, right):
        plain_axes(axes)
    return figure


def _plane_figure(
    x: np.ndarray, y: np.ndarray, mixture: GaussianMixture, columns: Sequence[str]
) -> "Figure":
    figure = blank_figure(12.0, 4.3)
    panels = figure.subplots(1, 3)
    low, high = np.quantile(x, [0.001, 0.999], axis=0)
    margin = 0.12 * np.where(high > low, high - low, 1.0)
    low, high = low - margin, high + margin
    equal = _comparable(high - low)
    size = 3 if len(x) > 500 else 9
    for axes, points, colour, title in (
        (panels[0], x, BLUE, "data"), (panels[1], y, ORANGE, "samples of the model"),
    ):  # fmt: skip
        axes.scatter(*points.T, s=size, color=colour, alpha=0.5, linewidths=0)
        axes.set_title(title)
    # The density of a generator's thousands of centres would take seconds.
    grid = GRID if len(mixture.weights) <= MANY_CENTRES else GRID // 2
    sides = [np.linspace(low[i], high[i], grid) for i in (0, 1)]
    places = torch.from_numpy(np.stack(np.meshgrid(*sides), -1).reshape(-1, 2))
    height = mixture.log_prob(places.to(mixture.means.device)).cpu().numpy()
    # The square root shows weak parts beside strong ones.
    shown = np.exp((height - height.max()) / 2).reshape(grid, grid)
    panels[2].imshow(
        shown, origin="lower", extent=(low[0], high[0], low[1], high[1]), cmap="cividis",
        aspect="auto", interpolation="bilinear",
    )  # fmt: skip
    means, weights = mixture.means.cpu().numpy(), mixture.weights.cpu().numpy()
    panels[2].scatter(
        *means.T, s=40 * weights / weights.max(), color="white", alpha=0.7, linewidths=0
    )
    panels[2].set_title("density (root) and centres")
    for axes in panels:
        axes.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel=columns[0])
        if equal:
            axes.set_aspect("equal")
        plain_axes(axes)
    panels[0].set_ylabel(columns[1])
    return figure


def _line_figure(x: np.ndarray, y: np.ndarray, mixture: GaussianMixture, name: str) -> "Figure":
    figure = blank_figure(8.0, 4.0)
    axes = figure.subplots()
    low, high = min(x.min(), y.min()), max(x.max(), y.max())
    margin = 0.1 * (high - low) or 1.0
    places = np.linspace(low - margin, high + margin, 600)
    edges = np.histogram_bin_edges(x, bins=min(60, max(5, int(math.sqrt(len(x))))))
    style: dict[str, Any] = {"bins": edges.tolist(), "density": True, "alpha": 0.45}
    if high > low:
        axes.hist(x[:, 0], color=BLUE, label="data", **style)
        axes.hist(y[:, 0], color=ORANGE, label="samples of the model", **style)
    points = torch.from_numpy(places)[:, None].to(mixture.means.device)
    density = mixture.log_prob(points).exp().cpu().numpy()
    axes.plot(places, density, color="black", linewidth=1, label="density of the model")
    axes.set(xlabel=name, ylabel="density")
    axes.legend(frameon=False)
    plain_axes(axes)
    return figure


def _projected_figure(x: np.ndarray, y: np.ndarray) -> "Figure":
    figure = blank_figure(9.0, 4.3)
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    scale = np.where(x.std(0) > 0, x.std(0), 1.0)
    centred = (x - x.mean(0)) / scale
    directions = np.linalg.svd(centred, full_matrices=False)[2][:2].T
    for axes, points, colour, title in (
        (panels[0], x, BLUE, "data"), (panels[1], y, ORANGE, "samples of the model"),
    ):  # fmt: skip
        projected = (points - x.mean(0)) / scale @ directions
        second = projected[:, 1] if projected.shape[1] > 1 else np.zeros(len(projected))
        axes.scatter(projected[:, 0], second, s=4, color=colour, alpha=0.5, linewidths=0)
        axes.set(title=title, xlabel="first principal component of the data")
        plain_axes(axes)
    panels[0].set_ylabel("second")
    return figure


def _image_figure(x: np.ndarray, y: np.ndarray, image: tuple[int, int, int]) -> "Figure":
    figure = blank_figure(10.0, 3.9)
    panels = figure.subplots(1, 2)
    for axes, rows, title in ((panels[0], x, "data"), (panels[1], y, "samples of the model")):
        axes.imshow(_sheet(rows, image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title)
        axes.set_axis_off()
    return figure


def _sheet(rows: np.ndarray, image: tuple[int, int, int]) -> np.ndarray:
    channels, height, width = image
    across = 8
    down = -(-min(SHOWN_IMAGES, len(rows)) // across)
    sheet = np.ones((down * (height + 1), across * (width + 1), channels))
    for i, row in enumerate(rows[: down * across]):
        top, left = (i // across) * (height + 1), (i % across) * (width + 1)
        picture = row.reshape(channels, height, width).transpose(1, 2, 0).clip(0, 1)
        sheet[top : top + height, left : left + width] = picture
    return sheet[:, :, 0] if channels == 1 else sheet[:, :, :3]


def _thinned(points: Tensor) -> np.ndarray:
    array: np.ndarray = points.detach().cpu().double().numpy()[:SHOWN_POINTS]
    return array


def _comparable(spans: np.ndarray) -> bool:
    return bool(spans.max() < 5 * spans.min())


def plain_axes(axes: Any) -> None:
    """Leave out the upper and the right line."""
    axes.spines[["top", "right"]].set_visible(False)


def blank_figure(width: float, height: float) -> "Figure":
    """A figure of so many inches."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Figures need Matplotlib: pip install 'kermix[plots]'.") from None
    return Figure(figsize=(width, height), layout="constrained")


WRITTEN_CLASSES = 20  # more of them and the numbers would not be readable
SHOWN_MISTAKES = 24


def confusion_figure(confusion: Tensor, classes: Sequence[str]) -> "Figure":  # (n, n)
    """The share of each true class (a row) that was given each class (a column)."""
    counts = confusion.double().numpy()
    totals = counts.sum(1, keepdims=True)
    shares = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0)
    count = len(classes)
    size = min(8.0, 2.2 + 0.35 * count)
    figure = blank_figure(size + 1.0, size)
    axes = figure.subplots()
    # The square root shows rare mistakes beside the diagonal.
    drawn = axes.imshow(np.sqrt(shares), cmap="cividis", vmin=0, vmax=1)
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8, ticks=[0, 0.1, 0.3162, 0.7071, 1])
    bar.ax.set_yticklabels(["0", "1%", "10%", "50%", "100%"])
    bar.set_label("share of the true class")
    if count <= WRITTEN_CLASSES:
        axes.set_xticks(range(count), classes, rotation=45 if max(map(len, classes)) > 2 else 0)
        axes.set_yticks(range(count), classes)
        for i, j in np.argwhere(counts > 0):
            light = shares[i, j] < 0.3
            axes.text(j, i, f"{int(counts[i, j])}", ha="center", va="center", fontsize=8,
                      color="white" if light else "black")  # fmt: skip
    axes.set(xlabel="predicted class", ylabel="true class")
    return figure


def accuracy_figure(history: Sequence[dict[str, float]]) -> "Figure":
    """Accuracy and loss by epoch."""
    figure = blank_figure(9.0, 3.2)
    left, right = figure.subplots(1, 2)
    epochs = [row["epoch"] for row in history]
    mark: dict[str, Any] = {"marker": "o", "markersize": 3}
    left.plot(epochs, [row["train_accuracy"] for row in history], color=ORANGE,
              label="training images, as augmented", linestyle="--", **mark)  # fmt: skip
    seen = [row for row in history if "test_accuracy" in row]
    if seen:
        left.plot([row["epoch"] for row in seen], [row["test_accuracy"] for row in seen],
                  color=BLUE, label="test images", **mark)  # fmt: skip
    left.set(xlabel="epoch", ylabel="accuracy")
    left.legend(frameon=False)
    right.plot(epochs, [row["loss"] for row in history], color=ORANGE, **mark)
    right.set(xlabel="epoch", ylabel="loss on training images")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        plain_axes(axes)
    return figure


def sheet_figure(
    pictures: Tensor, most: int = 64
) -> "Figure":  # (n, rows, columns) or (n, C, ...)
    """Small pictures in rows, each with its own scale: grey is zero, or the middle of a colour."""
    shown = pictures[:most].detach().float()
    if shown.ndim == 3:
        shown = shown.unsqueeze(1)
    count, channels, height, width = shown.shape
    across = min(16, count)
    down = math.ceil(count / across)
    limits = shown.abs().amax((1, 2, 3), keepdim=True)
    scaled = (shown / limits.clamp(min=1e-30) / 2 + 0.5).permute(0, 2, 3, 1).numpy()
    colours = scaled if channels == 3 else _cividis(scaled.mean(3))
    # One picture of all is drawn many times faster than one for each.
    gap = max(1, height // 6)
    sheet = np.ones((down * (height + gap) - gap, across * (width + gap) - gap, 3))
    for k in range(count):
        top, left = (k // across) * (height + gap), (k % across) * (width + gap)
        sheet[top : top + height, left : left + width] = colours[k]
    figure = blank_figure(9.0, 9.0 * sheet.shape[0] / sheet.shape[1])
    axes = figure.subplots()
    axes.imshow(sheet, interpolation="nearest")
    axes.set_axis_off()
    return figure


def _cividis(values: np.ndarray) -> np.ndarray:
    import matplotlib

    colours: np.ndarray = matplotlib.colormaps["cividis"](values)[..., :3]
    return colours


def mistakes_figure(
    images: np.ndarray,  # (N, C, H, W), bytes
    labels: np.ndarray,  # (N,)
    chances: Tensor,  # (N, classes)
    classes: Sequence[str],
) -> "tuple[Figure, int] | None":
    """The images that were taken for something else with the most confidence, and their number."""
    found, confidence = chances.argmax(1), chances.amax(1)
    wrong = (found != torch.from_numpy(labels)).nonzero().flatten()
    if not len(wrong):
        return None
    order = wrong[confidence[wrong].argsort(descending=True)][:SHOWN_MISTAKES].tolist()
    across = 8
    down = math.ceil(len(order) / across)
    figure = blank_figure(9.0, 1.45 * down)
    for k, axes in enumerate(figure.subplots(down, across, squeeze=False).flat):
        axes.set_axis_off()
        if k >= len(order):
            continue
        i = order[k]
        picture = images[i].transpose(1, 2, 0)
        if picture.shape[2] == 1:
            axes.imshow(picture[:, :, 0], cmap="gray", vmin=0, vmax=255)
        else:
            axes.imshow(picture)
        truth, taken = classes[int(labels[i])], classes[int(found[i])]
        axes.set_title(f"{truth}: {taken} {float(confidence[i]):.0%}", fontsize=8)
    return figure, len(wrong)


def class_rows(confusion: Tensor, classes: Sequence[str]) -> list[tuple[str, int, str, str]]:
    """Each class: how many there are, recall and precision."""
    right, of_class, of_found = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    return [
        (name, int(of_class[i]), _share(right[i], of_class[i]), _share(right[i], of_found[i]))
        for i, name in enumerate(classes)
    ]


def _share(part: Tensor, whole: Tensor) -> str:
    return f"{float(part / whole):.1%}" if whole else "-"
