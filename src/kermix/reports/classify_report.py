"""The report page of a classifier."""

import shlex
from collections.abc import Sequence

from torch import Tensor

from kermix.models.product.classifier import GaussianProductClassifier
from kermix.reports.classify_figures import (
    accuracy_figure,
    confusion_figure,
    mistakes_figure,
    sheet_figure,
)
from kermix.reports.described import DescribedRun, add_machine
from kermix.reports.page import Report
from kermix.training.classification import ClassifierTask, Evaluation
from kermix.training.loop import Trainer

__all__ = ["class_rows", "write_report"]

SHOWN_ANCHORS, SHOWN_FILTERS = 48, 64
LARGE_PATCH = 1


def write_report(
    run: DescribedRun,
    trainer: Trainer[ClassifierTask],
    found: Evaluation,
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


def class_rows(confusion: Tensor, classes: Sequence[str]) -> list[tuple[str, int, str, str]]:
    """Each class: how many there are, recall and precision."""
    right, of_class, of_found = confusion.diagonal(), confusion.sum(1), confusion.sum(0)
    return [
        (name, int(of_class[i]), _share(right[i], of_class[i]), _share(right[i], of_found[i]))
        for i, name in enumerate(classes)
    ]


def _share(part: Tensor, whole: Tensor) -> str:
    return f"{float(part / whole):.1%}" if whole else "-"
