"""Classifiers of images: run folders of `kermix classify`, from their beginning to their result.

Beside what every run has: `checkpoint/model` is what predicts, `result.json` holds accuracy, loss,
confusion matrix, time and size.
"""

import hashlib
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch

from kermix.data.images.labelled import (
    LABELLED_SETS,
    LabelledImages,
    check_same_shape,
    load_labelled,
)
from kermix.data.readers.common import counted
from kermix.images.classifier_settings import ClassifierSettings, suited_settings
from kermix.images.classifier_training import (
    ClassifierEvaluation,
    ClassifierTask,
    TrainedClassifier,
    build_classifier,
    load_classifier,
)
from kermix.images.image_pages import write_report
from kermix.runs.folder import (
    CLASSIFY,
    check_data,
    check_new_folder,
    check_trained,
    next_free_folder,
)
from kermix.runs.provenance import write_json
from kermix.runs.run import Numbers, Outcome, Run, Start, equivalent_command
from kermix.settings import check_name
from kermix.training.loop import Row, Trainer

__all__ = ["ClassifyRun", "begin_classify"]

Images: TypeAlias = tuple[LabelledImages, LabelledImages]  # to train with, and held out


class ClassifyRun(Run):
    """A classifier of images, with its folder."""

    kind: ClassVar[str] = CLASSIFY
    facts: ClassVar[tuple[str, ...]] = ("shape", "images", "classes")
    reported: ClassVar[tuple[str, ...]] = (
        "epoch", "step", "loss", "train_accuracy", "test_accuracy", "seconds",
    )  # fmt: skip

    @classmethod
    def create(
        cls,
        folder: Path,
        source: str,
        train: LabelledImages,
        test: LabelledImages,
        settings: ClassifierSettings,
        start: Start,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> "ClassifyRun":
        """Begin a run in a folder that must not exist.

        Args:
            folder: Where.
            source: What the images are loaded from: a name or a folder.
            train: Images to learn from.
            test: Images to report on.
            settings: What the user chose.
            start: How the training is started.
            options: Further arguments of `kermix.data.images.labelled.load_labelled`:
                data_root, size.
        """
        # Refused, if it must be, before a folder is made.
        check_same_shape(train, test)
        start.check_device()
        return cls.begin(
            folder,
            source,
            LABELLED_SETS,
            settings,
            start,
            options=options or {},
            facts={
                "shape": [int(n) for n in train.images.shape[1:]],
                "images": {"train": len(train), "test": len(test)},
                "classes": list(train.classes),
                "fingerprint": _fingerprint(train, test),
                "notes": list(dict.fromkeys((*train.notes, *test.notes))),
            },
        )

    @classmethod
    def _read_settings(cls, content: dict[str, Any]) -> ClassifierSettings:
        return ClassifierSettings.from_json(content)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        channels, height, width = self.config["shape"]
        return channels, height, width

    def dataset(self) -> Images:
        """The images of the run, read again: those to train with, and those held out."""
        train, test = (
            load_labelled(self.config["data"], part, **self.options) for part in ("train", "test")
        )
        check_data(self.folder, self.config, _fingerprint(train, test))
        return train, test

    def trainer(self, data: Images) -> Trainer[ClassifierTask]:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        self.check_sizes()
        device, precision = self.config["device"], self.config["precision"]
        trainer = Trainer(ClassifierTask(*data, self.settings), device, precision)
        if self.last.exists():
            trainer.load(self.last)
        return trainer

    def shown(self, row: Row) -> dict[str, str]:
        """The loss, and the accuracy on held-out images where it was looked at."""
        texts = {"stage": f"loss {row['loss']:.3f}"}
        if "test_accuracy" in row:
            texts["metric"] = f"test {row['test_accuracy']:.2%}"
        return texts

    def classifier(self, device: str = "cpu") -> TrainedClassifier:
        """The trained network, for predictions."""
        check_trained(self.folder, self.checkpoints / "model.safetensors")
        return load_classifier(self.checkpoints, device)

    def finish(self, data: Images, outcome: Outcome) -> Numbers:
        """Write result and report; returns the numbers to show."""
        assert outcome.trainer is not None
        trainer: Trainer[ClassifierTask] = outcome.trainer
        task = trainer.task
        assert task.held_out is not None
        on_test, on_train = task.evaluate(), task.evaluate(task.train)
        each = statistics.median(row["seconds"] for row in trainer.history)
        result = {
            "test_accuracy": on_test.accuracy,
            "test_loss": on_test.loss,
            "train_accuracy": on_train.accuracy,
            "confusion": on_test.confusion.tolist(),
            "epochs": len(trainer.history),
            "seconds_per_epoch": each,
            "parameters": trainer.model.parameter_count,
            "device": str(task.used_device),
        }
        write_json(self.folder / "result.json", result)
        rows = self._numbers(trainer, on_test, on_train, each)
        chances = task.trained().probabilities(_pixels(task.held_out, task.used_device))
        write_report(self, trainer, on_test, chances.cpu(), rows)
        return rows

    def _numbers(
        self,
        trainer: Trainer[ClassifierTask],
        on_test: ClassifierEvaluation,
        on_train: ClassifierEvaluation,
        each: float,
    ) -> Numbers:
        settings, counts = self.settings, self.config["images"]
        count = len(trainer.history)
        channels, height, width = self.shape
        wrong = int(on_test.confusion.sum() - on_test.confusion.diagonal().sum())
        model = "CNN" if settings.model == "cnn" else f"{settings.model}, patch {settings.patch}"
        return [
            ("data", f"{trainer.task.train.name}: {counted(counts['train'], 'training image')}, "
             f"{counted(counts['test'], 'test image')}, {width} x {height} x {channels}"),
            ("model", f"{model}, {trainer.model.parameter_count:,} parameters"),
            ("test accuracy", f"{on_test.accuracy:.2%} ({wrong} of {counts['test']} wrong)"),
            ("training accuracy", f"{on_train.accuracy:.2%}"),
            ("test loss", f"{on_test.loss:.4f} nats"),
            ("time", f"{count} epoch{'s' if count != 1 else ''} of {each:.2f} s on "
             f"{trainer.task.used_device}"),
        ]  # fmt: skip


def _pixels(images: LabelledImages, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.images)).to(device)


def _fingerprint(*sets: LabelledImages) -> str:
    digest = hashlib.sha256()
    for images in sets:
        digest.update(str((images.images.shape, images.classes)).encode())
        digest.update(np.ascontiguousarray(images.images).data)
        digest.update(np.ascontiguousarray(images.labels).data)
    return digest.hexdigest()[:16]


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
    start: Start | None = None,
) -> tuple[ClassifyRun, tuple[LabelledImages, LabelledImages]]:
    """Make the run folder of a classifier of images; nothing is trained yet.

    Args:
        data: Name of a set of images, or a folder.
        settings: Settings of `kermix.images.classifier_settings.ClassifierSettings`;
            what is not given suits the images.
        folder: Where the run is to be; by default `runs/NAME-MODEL`.
        augment: Whether to shift training images.
        quick: Whether to train a small network, for a first look.
        data_root: Where the files of a set are.
        size: Side of the images in pixels.
        start: How the training is started; by default anywhere, in the usual precision.

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
    options = {"data_root": data_root, "size": size}
    if start is None:
        switches = {"augment": None if augment else False, "quick": quick}
        words = equivalent_command("classify", data, {**options, **switches}, settings)
        start = Start(words, precision="auto")
    run = ClassifyRun.create(folder, data, train, test, chosen, start, options=options)
    return run, (train, test)


def _chosen(
    data: str, given: Mapping[str, Any], augment: bool, quick: bool, count: int, side: int
) -> ClassifierSettings:
    """The settings of a run: what suits the images, but for what was given."""
    for name in given:
        check_name(name, ClassifierSettings.names())
    model = given.get("model", ClassifierSettings.model)
    patch = given.get("patch", ClassifierSettings.patch)
    base = suited_settings(data, model, patch, count, side, augment=augment)
    return replace(replace(base, **QUICK) if quick else base, **given)
