"""Figures of a classifier: confusion, training, patch filters, anchors, mistakes."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kermix.pages.fit_figures import BLUE, ORANGE, blank_figure, plain_axes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["accuracy_figure", "class_rows", "confusion_figure", "mistakes_figure", "sheet_figure"]

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
