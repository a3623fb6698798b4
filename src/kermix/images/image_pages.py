"""The report pages of images: of a generator, and of a classifier.

Generators are shown by samples at several moments, neighbours and interpolations.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kermix.images.classifier_training import ClassifierEvaluation, ClassifierTask
from kermix.images.generator_training import ImageTask
from kermix.images.image_generator import ImageModel, LabelledDraw
from kermix.images.image_quality import nearest
from kermix.networks.product_images import GaussianProductClassifier
from kermix.pages import charts
from kermix.pages.page import Card
from kermix.pages.sheets import png_bytes, sheet, signed
from kermix.runs.run import Numbers, Run
from kermix.training.loop import Row, Trainer

__all__ = ["ImageFindings", "interpolate", "write_image_report", "write_report"]

LINES, STEPS = 6, 10


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
        few: int = 20,
        searched_among: int = 20_000,
    ) -> "ImageFindings":
        """Look at a trained model.

        Args:
            task: Its training.
            drawn: Samples of it.
            columns: Classes of the samples that are shown.
            generator: Of the choice among images.
            few: Samples that are shown beside the nearest image, and images beside their codes'.
            searched_among: Training images, at most, among which the nearest is looked for.
        """
        model, rows = task.model.eval(), task.rows
        searched = rows.images(rows.any(min(len(rows), searched_among), generator))
        found, apart = nearest(drawn.images, searched)
        pairs = torch.stack([drawn.images[:few], searched[found[:few]]], 1)
        held = searched
        if task.held_out is not None:
            some = np.array(task.held_out[0][: len(drawn.images)])
            held = torch.from_numpy(some).to(rows.device).float() / 255
        usual = nearest(held, searched)[1].median().clamp(min=1e-6)
        count = 80 if columns is None else len(columns)
        again = None
        if model.autoencoder is not None:
            again = torch.stack(
                [searched[:few],
                 model.autoencoder.decode(model.autoencoder.encode(searched[:few]))], 1,
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
            "center plus learned noise" if model.is_mixture else "center",
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
    run: Run,
    rows: Numbers,
    findings: ImageFindings,
    moments: Sequence[Path],
    history: Sequence[Row],
    notes: Sequence[str] = (),
) -> None:
    """Write `report.html`, which needs nothing but itself.

    Args:
        run: The run.
        rows: Its numbers, by name.
        findings: What is shown of the model.
        moments: Pictures of samples during the training.
        history: What was reported in training.
        notes: What a user should know before believing the numbers.
    """
    classes = run.config["classes"][:10]
    by_class = f", one class a column ({', '.join(classes)})" if classes else ""
    sections = [
        ("Data and samples", [_sheet(findings.real, "Training images."),
                              _sheet(findings.shown, f"Samples{by_class}.")]),
        ("The nearest training images", [_sheet(findings.neighbours,
                              "Samples, each with the nearest training image to its right.")]),
        ("Interpolation between noise vectors", [
            _sheet(findings.between, "Each row interpolates between two noise vectors.", STEPS)]),
    ]  # fmt: skip
    if findings.again is not None:
        caption = "Training images, each with its reconstruction."
        sections.append(("Reconstructions", [_sheet(findings.again, caption)]))
    judged = "on held-out images" if findings.apart else "on training images"
    run.write_page("images", f"Fit of {Path(run.config['name']).name}", {
        "settings": run.config["settings"],
        "rows": rows,
        "notes": notes,
        "found": findings,
        "sections": sections,
        "training": charts.training(history, f"Energy distance {judged}"),
        "moments": [(m.read_bytes(), f"Step {int(m.stem.rpartition('-')[2])}") for m in moments],
    })  # fmt: skip


def _sheet(images: Tensor, caption: str, across: int = 10) -> tuple[bytes, str]:
    shown = sheet(images, across)
    return png_bytes(shown, max(1, 640 // shown.shape[1])), caption


SHOWN_ANCHORS, SHOWN_FILTERS, SHOWN_MISTAKES = 48, 64, 24


def write_report(
    run: Run,
    trainer: Trainer[ClassifierTask],
    found: ClassifierEvaluation,
    chances: Tensor,  # (test images, classes)
    rows: Numbers,
) -> None:
    """Write `report.html`: accuracy, confusion, mistakes, what was learned, how to repeat it."""
    held_out = trainer.task.held_out
    assert held_out is not None
    classes, counts = trainer.task.train.classes, found.confusion.numpy()
    plain = run.settings.model == "cnn"
    run.write_page("classifier", f"Classes of {trainer.task.train.name}", {
        "network": "A plain CNN" if plain else "A Gaussian-product network",
        "rows": rows,
        "counts": counts.tolist(),
        "classes": classes,
        "confusion": charts.confusion(counts, classes),
        "mistakes": _mistakes(held_out.images, held_out.labels, chances, classes),
        "learned": _learned(trainer),
        "training": _epochs(trainer.history),
    })  # fmt: skip


def _epochs(history: Sequence[Row]) -> list[Card]:
    """Accuracy and loss after each epoch."""
    lines = {"training images, as augmented": [(r["epoch"], r["train_accuracy"]) for r in history],
             "test images": [(r["epoch"], r["test_accuracy"]) for r in history
                             if "test_accuracy" in r]}  # fmt: skip
    accuracy = {name: points for name, points in reversed(lines.items()) if points}
    loss = {"training images": [(row["epoch"], row["loss"]) for row in history]}
    return [Card("Accuracy", charts.curves(accuracy, "epoch", "", "Accuracy by epoch")),
            Card("Loss", charts.curves(loss, "epoch", "", "Loss by epoch"))]  # fmt: skip


def _mistakes(
    images: np.ndarray,  # (N, C, H, W), bytes
    labels: np.ndarray,  # (N,)
    chances: Tensor,  # (N, classes)
    classes: Sequence[str],
) -> list[tuple[bytes, str]]:
    """The images that were taken for something else with the most confidence."""
    confidence, found = chances.max(1)
    wrong = (found != torch.from_numpy(labels)).nonzero().flatten()
    order = wrong[confidence[wrong].argsort(descending=True)][:SHOWN_MISTAKES].tolist()
    return [
        (png_bytes(sheet(torch.from_numpy(images[i : i + 1]) / 255, 1), 96 // images.shape[3] + 1),
         f"{classes[int(labels[i])]} \N{RIGHTWARDS ARROW} {classes[int(found[i])]}, "
         f"{100 * float(confidence[i]):.0f} %")
        for i in order
    ]  # fmt: skip


def _learned(trainer: Trainer[ClassifierTask]) -> list[tuple[bytes, str]]:
    """Filters and anchors of a Gaussian-product network."""
    network = trainer.task.final()
    if not isinstance(network, GaussianProductClassifier):
        return []
    learned = []
    side = network.design.patch
    if side > 1:
        filters = network.filters().cpu()
        strongest = filters.flatten(1).norm(dim=1).argsort(descending=True)[:SHOWN_FILTERS]
        learned.append(_sheet(signed(filters[strongest]), "Patch filters: weights of the first "
            f"layer on patches of {side} x {side} pixels, largest norm first; "
            "orange is positive, blue negative.", min(16, len(strongest))))  # fmt: skip
    maps = network.anchor_maps().cpu()
    used = network.output.scores.weight.detach().cpu().norm(dim=0).argsort(descending=True)
    chosen = maps[used[:SHOWN_ANCHORS]]
    anchors = signed(chosen - chosen.mean((1, 2), keepdim=True))
    caption = ("Anchors of the last layer at every position, minus their mean: one image per "
               "Gaussian, the most important for the classes first.")  # fmt: skip
    learned.append(_sheet(anchors, caption, min(16, len(anchors))))
    return learned
