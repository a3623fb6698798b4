"""The report pages of images: of a generator, and of a classifier.

Generators are shown by samples at several moments, neighbours and interpolations.
"""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kermix.errors import MissingExtraError
from kermix.images.classifier_training import ClassifierEvaluation, ClassifierTask
from kermix.images.generator_training import ImageTask
from kermix.images.image_generator import ImageModel, LabelledDraw
from kermix.images.image_quality import nearest
from kermix.networks.product_images import GaussianProductClassifier
from kermix.pages.figures import png_bytes, sheet
from kermix.pages.fit_figures import (
    accuracy_figure,
    class_rows,
    confusion_figure,
    mistakes_figure,
    sheet_figure,
)
from kermix.pages.report import DescribedRun, Report, add_machine
from kermix.training.loop import Row, Trainer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["ImageFindings", "interpolate", "write_image_report", "write_report"]

NEIGHBOURS = 20
SEARCHED = 20_000
LINES, STEPS = 6, 10
BLUE, ORANGE = "#0072B2", "#D55E00"


@dataclass(frozen=True)
class ImageFindings:
    """What a report shows of a model.

    Attributes:
        real: Some training images.
        shown: Samples, one class for each column.
        neighbours: Samples, each followed by the training image nearest to it.
        between: Lines of images between two noises.
        again: Training images, each followed by its reconstruction; None without autoencoder.
        metric: Energy distance of held-out images; of the images fitted, where none are held out.
        apart: Whether some are.
        copies: Median distance of samples to the nearest training image, divided by the same of
            held-out images: about 1 for new images, near 0 for copies. Blur lowers it too: an
            average is nearer to all images than these are to each other.
        sample_is: A centre, or a centre plus noise.
    """

    real: Tensor
    shown: Tensor
    neighbours: Tensor
    between: Tensor
    again: Tensor | None
    metric: float
    apart: bool
    copies: float
    sample_is: str

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        task: ImageTask,
        drawn: LabelledDraw,
        columns: Tensor | None,
        generator: torch.Generator,
    ) -> "ImageFindings":
        """Look at a trained model."""
        model, rows = task.model.eval(), task.rows
        searched = rows.images(rows.any(min(len(rows), SEARCHED), generator))
        found, apart = nearest(drawn.images, searched)
        pairs = torch.stack([drawn.images[:NEIGHBOURS], searched[found[:NEIGHBOURS]]], 1)
        held = searched
        if task.held_out is not None:
            some = np.array(task.held_out[0][: len(drawn.images)])
            held = torch.from_numpy(some).to(rows.device).float() / 255
        usual = nearest(held, searched)[1].median().clamp(min=1e-6)
        count = 80 if columns is None else len(columns)
        again = None
        if model.autoencoder is not None:
            again = torch.stack(
                [searched[:NEIGHBOURS],
                 model.autoencoder.decode(model.autoencoder.encode(searched[:NEIGHBOURS]))], 1,
            ).flatten(0, 1)  # fmt: skip
        return cls(
            searched[:40],
            model.sample(count, generator, columns).images,
            pairs.flatten(0, 1),
            interpolate(model, LINES, STEPS, generator),
            again,
            task.metric(),
            task.apart,
            float(apart.median() / usual),
            "centre plus learned noise" if model.is_mixture else "centre",
        )

    def rows(self) -> list[tuple[str, str]]:
        """The numbers, as (name, value) to show."""
        found = []
        if math.isfinite(self.metric):
            what = "held-out energy distance" if self.apart else "energy distance of those fitted"
            found.append((what, f"{self.metric:.4f}"))
        if self.apart:
            found.append(
                ("distance to training images", f"{self.copies:.2f} of what held-out ones have")
            )
        return [*found, ("a sample is a", self.sample_is)]


@torch.no_grad()
def interpolate(
    model: ImageModel, lines: int, steps: int, generator: torch.Generator
) -> Tensor:  # (lines * steps, c, h, w)
    """Images between two noises of one class, along an arc on which noise keeps its length.

    Of a mixture, which has no noise but components, along the line between two points.
    """
    device = model.frequencies.device
    labels = torch.arange(lines, device=device) % model.classes
    share = torch.linspace(0, 1, steps, device=device)[None, :, None]
    if model.prior is None:
        ends = [model.points(labels, generator)[:, None] for _ in range(2)]
        points = (1 - share) * ends[0] + share * ends[1]
        return model.to_images(points.flatten(0, 1))
    first, second = (model.inputs(labels, generator)[:, None] for _ in range(2))
    moved = first * torch.cos(share * math.pi / 2) + second * torch.sin(share * math.pi / 2)
    # A choice among states, and the class, are no lengths: they are those of the first noise.
    length = getattr(model.prior, "continuous", model.prior.dimension)
    inputs = torch.cat([moved[..., :length], first[..., length:].expand(-1, steps, -1)], -1)
    return model.to_images(model.network(inputs.flatten(0, 1)))


def write_image_report(
    path: Path,
    config: dict[str, Any],
    rows: list[tuple[str, str]],
    findings: ImageFindings,
    moments: list[Path],
    history: list[Row],
    command: str,
    notes: Sequence[str] = (),
) -> Path:
    """Write the page, which needs nothing but itself."""
    settings = config["settings"]
    page = Report(
        f"Fit of {Path(config['name']).name}",
        f"A {settings['model']} model of images trained with the {settings['cost']} cost by "
        f"kermix {config['kermix']}.",
    )
    page.table(("", ""), rows)
    for note in notes:
        page.text(note)
    page.heading("Data and samples")
    by_class = f", one class a column ({', '.join(config['classes'][:10])})"
    classes = by_class if config["classes"] else ""
    _pictures(page, findings.real, "Training images.")
    _pictures(page, findings.shown, f"Samples{classes}.")
    page.heading("No copies")
    _pictures(
        page, findings.neighbours, "Samples, each with the nearest training image to its right."
    )
    page.heading("Interpolation between noise vectors")
    _pictures(page, findings.between, "Each row interpolates between two noise vectors.", STEPS)
    if findings.again is not None:
        page.heading("Reconstructions")
        _pictures(page, findings.again, "Training images, each with its reconstruction.")
    page.heading("Training")
    which = "held out" if findings.apart else "fitted"
    curves = _curves(history, findings.apart)
    page.figure(curves, f"Left: the metric, {which}. Right: the loss.")
    for moment in moments:
        step = int(moment.stem.rpartition("-")[2])
        page.image(moment.read_bytes(), f"Samples from the same noise at step {step}.")
    page.heading("Repeat it")
    page.code(command)
    page.text("More samples, as an array or as an image:")
    page.code("kermix sample RUN -n 1000 -o more.npy\nkermix sample RUN -n 100 -o more.png")
    page.heading("Settings")
    page.table(("setting", "value"), list(settings.items()))
    machine = config["environment"]
    page.heading("Machine")
    page.table(
        ("", ""),
        [
            ("machine", machine["machine"]["gpu"] or machine["machine"]["cpu"]),
            ("commit", machine["commit"]),
            *machine["versions"].items(),
        ],
    )
    return page.save(path)


def _pictures(page: Report, images: Tensor, caption: str, across: int = 10) -> None:
    shown = sheet(images, across)
    page.image(png_bytes(shown, max(1, 640 // shown.shape[1])), caption)


def _curves(history: list[Row], apart: bool) -> "Figure":
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("Figures need Matplotlib: pip install 'kermix[plots]'.") from None
    figure = Figure(figsize=(9.0, 3.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    seen = [row for row in history if math.isfinite(row["metric"])]
    left.plot([r["step"] for r in seen], [r["metric"] for r in seen], color=BLUE)
    title = "on held-out images" if apart else "on training images"
    left.set(xlabel="step", ylabel="energy distance", title=title)
    # The loss of the autoencoder is of another kind: each stage is a curve of its own.
    for label, rows in (
        ("autoencoder", [r for r in history if not math.isfinite(r["metric"])]),
        ("cost", [r for r in seen if r["variance"] > 0]),
        ("likelihood", [r for r in seen if r["variance"] == 0]),
    ):
        if rows:
            right.plot([r["step"] for r in rows], [r["loss"] for r in rows], label=label)
    right.set(xlabel="step", ylabel="loss", title="loss of each stage")
    right.legend(frameon=False)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


SHOWN_ANCHORS, SHOWN_FILTERS = 48, 64
LARGE_PATCH = 1


def write_report(
    run: DescribedRun,
    trainer: Trainer[ClassifierTask],
    found: ClassifierEvaluation,
    chances: Tensor,  # (test images, classes)
    rows: Sequence[tuple[str, str]],
) -> None:
    """Write `report.html`: accuracy, confusion, mistakes, what was learned, how to repeat it."""
    held_out = trainer.task.held_out
    assert held_out is not None
    classes, settings = trainer.task.train.classes, run.settings
    network = "A Gaussian-product network" if settings.model != "cnn" else "A plain CNN"
    page = Report(
        f"Classes of {trainer.task.train.name}",
        f"{network} trained by kermix {run.config['kermix']}.",
    )
    page.table(("", ""), rows)
    for note in run.config["notes"]:
        page.text(note)
    page.heading("Confusion matrix")
    page.figure(
        confusion_figure(found.confusion, classes),
        "Test images by true class (rows) and predicted class (columns).",
    )
    page.table(
        ("class", "test images", "recall", "precision"), class_rows(found.confusion, classes)
    )
    page.heading("Mistakes")
    shown = mistakes_figure(held_out.images, held_out.labels, chances, classes)
    if shown is None:
        page.text("There are no mistakes on the test images.")
    else:
        page.figure(
            shown[0],
            f"Of {shown[1]} mistakes on test images, the most confident ones: true class, "
            "predicted class, and its probability.",
        )
    _learned(page, trainer)
    page.heading("Training")
    page.figure(accuracy_figure(trainer.history), "Accuracy and loss after each epoch.")
    page.heading("Repeat it and use it")
    page.code(run.command())
    page.text("Classify other images and write a table:")
    page.code(f"kermix predict {shlex.quote(str(run.folder))} IMAGES -o classes.csv")
    page.heading("Settings")
    page.table(("setting", "value"), list(settings.as_json().items()))
    add_machine(page, run)
    page.save(run.folder / "report.html")


def _learned(page: Report, trainer: Trainer[ClassifierTask]) -> None:
    network = trainer.task.final()
    if not isinstance(network, GaussianProductClassifier):
        return
    page.heading("What was learned")
    if network.patch > LARGE_PATCH:
        filters = network.filters().cpu()
        strongest = filters.flatten(1).norm(dim=1).argsort(descending=True)
        page.figure(
            sheet_figure(filters[strongest], SHOWN_FILTERS),
            f"Patch filters: weights of the first layer on patches of {network.patch} x "
            f"{network.patch} pixels, largest norm first.",
        )
    maps = network.anchor_maps().cpu()
    used = network.output.scores.weight.detach().cpu().norm(dim=0).argsort(descending=True)
    chosen = maps[used]
    page.figure(
        sheet_figure(chosen - chosen.mean((1, 2), keepdim=True), SHOWN_ANCHORS),
        "Anchors of the last layer at every position, minus their mean: one image per Gaussian, "
        "the most important for the classes first.",
    )
