"""The beginning of a classifier of images."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from kermix.data.images.labelled import LabelledImages, load_labelled
from kermix.errors import OptionError
from kermix.runs.classify_run import ClassifyRun
from kermix.runs.folder import check_new_folder, next_free_folder
from kermix.training.classifier_settings import ClassifierSettings, build_classifier
from kermix.training.presets import suited_settings

__all__ = ["begin_classify"]

QUICK: dict[str, Any] = {"width": 32, "depth": 2, "output_width": 96, "epochs": 5}
SOME_IMAGES, SOME_SIDE = 1000, 32  # to check settings with, before any image is read


def begin_classify(
    data: str,
    settings: Mapping[str, Any],
    *,
    folder: Path | None = None,
    augment: bool = True,
    quick: bool = False,
    data_root: Path | None = None,
    size: int | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> tuple[ClassifyRun, tuple[LabelledImages, LabelledImages]]:
    """Make the run folder of a classifier of images; nothing is trained yet.

    Args:
        data: Name of a set of images, or a folder.
        settings: Settings of `kermix.training.classifier_settings.ClassifierSettings`, `model` and
            `patch` among them; what is not given suits the images.
        folder: Where the run is to be; by default `runs/NAME-MODEL`.
        augment: Whether to shift training images.
        quick: Whether to train a small network, for a first look.
        data_root: Where the files of a set are.
        size: Side of the images in pixels.
        device: `"auto"`, `"cpu"`, `"cuda"`, ...
        precision: A precision of Fabric's.

    Returns:
        The run, and its training and test images.
    """
    _chosen(data, settings, augment, quick, SOME_IMAGES, SOME_SIDE)
    if folder is not None:
        check_new_folder(folder)
    train, test = (
        load_labelled(data, part, data_root=data_root, size=size) for part in ("train", "test")
    )
    channels, height, width = (int(n) for n in train.images.shape[1:])
    chosen = _chosen(data, settings, augment, quick, len(train), min(height, width))
    build_classifier(chosen, (channels, height, width), len(train.classes))  # or it is refused
    folder = folder or next_free_folder(f"{train.name}-{chosen.model}")
    run = ClassifyRun.create(
        folder, data, train, test, chosen, device=device, precision=precision,
        options={"data_root": data_root, "size": size},
    )  # fmt: skip
    return run, (train, test)


def _chosen(
    data: str, given: Mapping[str, Any], augment: bool, quick: bool, count: int, side: int
) -> ClassifierSettings:
    """The settings of a run: what suits the images, but for what was given."""
    base = suited_settings(data, given["model"], given["patch"], count, side, augment=augment)
    if quick:
        base = replace(base, **QUICK)
    known = {field.name for field in fields(base)}
    unknown = sorted(set(given) - known)
    if unknown:
        raise OptionError(
            f"--set {unknown[0]}: no such setting; choose from {', '.join(sorted(known))}."
        )
    return replace(base, **given)
