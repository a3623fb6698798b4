"""Classifiers of images: run folders of `kermix classify`.

Beside what every run has: `checkpoint/model` is what predicts, `result.json` holds accuracy, loss,
confusion matrix, time and size.
"""

import hashlib
import shlex
import statistics
from collections.abc import Mapping
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
from kermix.reports.classify_report import write_report
from kermix.reports.provenance import write_json
from kermix.runs.folder import CLASSIFY, check_data, check_trained
from kermix.runs.run import Numbers, Outcome, Row, Run, as_option
from kermix.training.classification import (
    ClassifierTask,
    Evaluation,
    TrainedClassifier,
    load_classifier,
)
from kermix.training.classifier_settings import ClassifierSettings
from kermix.training.loop import Trainer, make_fabric
from kermix.training.presets import suited_settings

__all__ = ["ClassifyRun"]

Images: TypeAlias = tuple[LabelledImages, LabelledImages]  # to train with, and held out

# Of the command; all others are given by --set.
OPTIONS = ("model", "patch", "epochs", "width", "depth", "batch_size", "learning_rate", "seed")


class ClassifyRun(Run):
    """A classifier of images, with its folder."""

    kind: ClassVar[str] = CLASSIFY
    facts: ClassVar[tuple[str, ...]] = ("shape", "images", "classes")
    usual: ClassVar[Mapping[str, Any]] = {**Run.usual, "precision": "auto"}
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
        *,
        device: str = "auto",
        precision: str = "auto",
        options: Mapping[str, Any] | None = None,
    ) -> "ClassifyRun":
        """Begin a run in a folder that must not exist.

        Args:
            folder: Where.
            source: What the images are loaded from: a name or a folder.
            train: Images to learn from.
            test: Images to report on.
            settings: What the user chose.
            device: `"auto"`, `"cpu"`, `"cuda"`, ...
            precision: A precision of Fabric's, or `"auto"`.
            options: Further arguments of `kermix.data.images.labelled.load_labelled`:
                data_root, size.
        """
        # Refused, if it must be, before a folder is made.
        check_same_shape(train, test)
        make_fabric(device, precision)
        return cls.begin(
            folder,
            source,
            LABELLED_SETS,
            settings,
            device=device,
            precision=precision,
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
        on_test: Evaluation,
        on_train: Evaluation,
        each: float,
    ) -> Numbers:
        settings, counts = self.settings, self.config["images"]
        count = len(trainer.history)
        channels, height, width = self.shape
        wrong = int(on_test.confusion.sum() - on_test.confusion.diagonal().sum())
        model = "CNN" if settings.model == "cnn" else f"{settings.model}, patch {settings.patch}"
        return [
            ("data", f"{trainer.task.train.name}: {counts['train']} training images, "
             f"{counts['test']} test images, {width} x {height} x {channels}"),
            ("model", f"{model}, {trainer.model.parameter_count:,} parameters"),
            ("test accuracy", f"{on_test.accuracy:.2%} ({wrong} of {counts['test']} wrong)"),
            ("training accuracy", f"{on_train.accuracy:.2%}"),
            ("test loss", f"{on_test.loss:.4f} nats"),
            ("time", f"{count} epoch{'s' if count != 1 else ''} of {each:.2f} s on "
             f"{trainer.task.used_device}"),
        ]  # fmt: skip

    def command(self) -> str:
        """The command that repeats this run."""
        settings = self.settings
        parts = ["kermix", "classify", shlex.quote(self.config["data"])]
        parts += self.reading_options()
        given = (settings.model, settings.patch, self.config["images"]["train"])
        default = suited_settings(self.config["data"], *given, min(self.shape[1:])).as_json()
        default |= {"model": "gaussian-product", "patch": 3}
        for name, value in settings.as_json().items():
            if value != default[name]:
                parts += as_option(name, value, name in OPTIONS)
        return " ".join([*parts, *self.placing_options()])


def _pixels(images: LabelledImages, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.images)).to(device)


def _fingerprint(*sets: LabelledImages) -> str:
    digest = hashlib.sha256()
    for images in sets:
        digest.update(str((images.images.shape, images.classes)).encode())
        digest.update(np.ascontiguousarray(images.images).data)
        digest.update(np.ascontiguousarray(images.labels).data)
    return digest.hexdigest()[:16]
