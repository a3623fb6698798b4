"""Run folders of classifiers: everything about one in one place, and nothing is ever lost.

=================  ===============================================================
`config.json`      data, settings, versions, machine, commit: how to repeat it
`metrics.csv`      epoch, step, loss, accuracies and seconds
`checkpoint/`      `last` (to go on from) and `model` (what predicts)
`result.json`      accuracy, loss, confusion matrix, time and size
`report.html`      all of it on one page, which needs nothing else
=================  ===============================================================
"""

import hashlib
import json
import shlex
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kermix.data.images.labelled import (
    LABELLED_SETS,
    LabelledImages,
    check_same_shape,
    load_labelled,
)
from kermix.reports.classify_report import write_report
from kermix.reports.provenance import environment, write_json
from kermix.runs.folder import (
    begin_folder,
    check_data,
    check_trained,
    kind_of_run,
    lasting_source,
    read_config,
    write_metrics,
)
from kermix.training.classification import (
    ClassifierTask,
    Evaluation,
    TrainedClassifier,
    load_classifier,
)
from kermix.training.classifier_settings import ClassifierSettings
from kermix.training.loop import Row, Trainer, make_fabric
from kermix.training.presets import suited_settings
from kermix.version import __version__

__all__ = ["ClassifyRun", "is_classification"]

KIND = "classify"
# Of the command; all others are given by --set.
OPTIONS = ("model", "patch", "epochs", "width", "depth", "batch", "rate", "seed")
COLUMNS = ("epoch", "step", "loss", "train_accuracy", "test_accuracy", "seconds")


def is_classification(folder: Path) -> bool:
    """Whether a folder is one of :class:`ClassifyRun`'s."""
    return kind_of_run(folder) == KIND


@dataclass(frozen=True)
class ClassifyRun:
    """A run folder of a classifier that exists.

    Attributes:
        folder: Where it is.
        config: The content of `config.json`.
    """

    folder: Path
    config: dict[str, Any]

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
        data_root: Path | None = None,
        size: int | None = None,
    ) -> "ClassifyRun":
        """Begin a run in a folder that must not exist."""
        # Refused, if it must be, before a folder is made.
        check_same_shape(train, test)
        make_fabric(device, precision)
        begin_folder(folder)
        config = {
            "kind": KIND,
            "kermix": __version__,
            "data": lasting_source(source, LABELLED_SETS),
            "data_root": None if data_root is None else str(data_root.resolve()),
            "size": size,
            "shape": [int(n) for n in train.images.shape[1:]],
            "images": {"train": len(train), "test": len(test)},
            "classes": list(train.classes),
            "fingerprint": _fingerprint(train, test),
            "notes": list(dict.fromkeys((*train.notes, *test.notes))),
            "settings": settings.as_json(),
            "device": device,
            "precision": precision,
            "environment": environment(),
        }
        write_json(folder / "config.json", config)
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path) -> "ClassifyRun":
        """A run that was begun before."""
        config = read_config(folder, KIND, ClassifierSettings.from_json)
        return cls(folder, config)

    @property
    def settings(self) -> ClassifierSettings:
        """What the user chose."""
        return ClassifierSettings.from_json(self.config["settings"])

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.folder / "checkpoint"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of the images."""
        channels, height, width = self.config["shape"]
        return channels, height, width

    def images(self) -> tuple[LabelledImages, LabelledImages]:
        """The images of the run, read again: those to train with, and those held out."""
        root = self.config["data_root"]
        train, test = (
            load_labelled(
                self.config["data"],
                part,
                data_root=None if root is None else Path(root),
                size=self.config["size"],
            )
            for part in ("train", "test")
        )
        check_data(self.folder, self.config, _fingerprint(train, test))
        return train, test

    def trainer(self, train: LabelledImages, test: LabelledImages) -> Trainer[ClassifierTask]:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        device, precision = self.config["device"], self.config["precision"]
        trainer = Trainer(ClassifierTask(train, test, self.settings), device, precision)
        last = self.checkpoints / "last.safetensors"
        if last.exists():
            trainer.load(last)
        return trainer

    def train(self, trainer: Trainer[ClassifierTask], **callbacks: Any) -> bool:
        """Train to the end or an interruption; returns whether the end was reached."""
        on_report = callbacks.pop("on_report", None)

        def report(row: Row) -> None:
            write_metrics(self.folder, trainer.history, COLUMNS)
            if on_report is not None:
                on_report(row)

        write_metrics(self.folder, trainer.history, COLUMNS)
        return trainer.run(folder=self.checkpoints, on_report=report, **callbacks)

    def classifier(self, device: str = "cpu") -> TrainedClassifier:
        """The trained network, for predictions."""
        check_trained(self.folder, self.checkpoints / "model.safetensors")
        return load_classifier(self.checkpoints, device)

    def finish(self, trainer: Trainer[ClassifierTask]) -> list[tuple[str, str]]:
        """Write result and report; returns the numbers to show, as (name, value)."""
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
    ) -> list[tuple[str, str]]:
        settings, counts = self.settings, self.config["images"]
        count = len(trainer.history)
        channels, height, width = self.shape
        wrong = int(on_test.confusion.sum() - on_test.confusion.diagonal().sum())
        model = "CNN" if settings.model == "cnn" else f"{settings.model}, patch {settings.patch}"
        return [
            ("data", f"{trainer.task.train.name}: {counts['train']} images to train with, "
             f"{counts['test']} to test, {width} x {height} x {channels}"),
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
        for name in ("data_root", "size"):
            if self.config[name] is not None:
                parts += [f"--{name.replace('_', '-')}", shlex.quote(str(self.config[name]))]
        given = (settings.model, settings.patch, self.config["images"]["train"])
        default = suited_settings(self.config["data"], *given, min(self.shape[1:])).as_json()
        default |= {"model": "gaussian-product", "patch": 3}
        for name, value in settings.as_json().items():
            if value == default[name]:
                continue
            if name in OPTIONS and value is not None:
                parts += [f"--{name}", str(value)]
            else:
                parts += [
                    "--set",
                    shlex.quote(f"{name}={json.dumps(value, separators=(',', ':'))}"),
                ]
        for name in ("device", "precision"):
            if self.config[name] != "auto":
                parts += [f"--{name}", self.config[name]]
        return " ".join(parts)


def _pixels(images: LabelledImages, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.images)).to(device)


def _fingerprint(*sets: LabelledImages) -> str:
    digest = hashlib.sha256()
    for images in sets:
        digest.update(str((images.images.shape, images.classes)).encode())
        digest.update(np.ascontiguousarray(images.images).data)
        digest.update(np.ascontiguousarray(images.labels).data)
    return digest.hexdigest()[:16]
