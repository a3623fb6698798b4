"""Fits of images: run folders of `kermix fit` for square images.

Beside what every run has: `samples/` holds sheets of samples of the same noise at several moments
of training, `samples.npz` samples of the last model as bytes with their classes.
"""

import hashlib
import shlex
from collections.abc import Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch

from kermix.checks import rows_at_once
from kermix.data.dataset import Dataset
from kermix.data.sources import BUILT_IN, load
from kermix.errors import OptionError, RunError
from kermix.files import whole_file, write_array
from kermix.images.generator_settings import ImageSettings
from kermix.images.generator_training import ImageTask, build_image_model
from kermix.images.image_generator import ImageModel, LabelledDraw
from kermix.images.image_pages import ImageFindings, write_image_report
from kermix.pages.sheets import save_png, sheet
from kermix.runs.folder import IMAGES, check_data
from kermix.runs.run import Numbers, Outcome, Run, Start
from kermix.runs.train import stage_of
from kermix.training.build import held_out_rows
from kermix.training.checkpoints import check_declared, load_checkpoint, rebuilding
from kermix.training.loop import Row, Trainer, load_model

__all__ = ["ASKED", "ImageRun", "suits_images"]

Labelled: TypeAlias = tuple[np.ndarray, np.ndarray | None]  # images and their classes
MOMENTS = 8  # of training at which samples are shown
SHOWN = 80
SAMPLES = 2000
SMALLEST_SIDE = 16
SMALLEST_CLASS = 2
# Settings that `kermix fit` has options for.
ASKED = (
    "cost", "form", "model", "prior", "spaces", "code", "encoder_steps", "steps", "refine_steps",
    "batch_size", "components", "covariance_type", "chunk", "variance", "kernel_variance",
    "variance_factors", "debias", "learning_rate", "seed",
)  # fmt: skip


def suits_images(dataset: Dataset) -> bool:
    """Whether data are images that an autoencoder can halve: square, of 16 pixels or more."""
    image = dataset.image
    return (
        image is not None
        and image[1] == image[2] >= SMALLEST_SIDE
        and (dataset.stored.dtype == torch.uint8)
    )


class ImageRun(Run):
    """A fit of images, with its folder."""

    kind: ClassVar[str] = IMAGES
    facts: ClassVar[tuple[str, ...]] = ("name", "image", "classes", "frequencies", "quick")

    @classmethod
    def create(
        cls,
        folder: Path,
        source: str,
        dataset: Dataset,
        settings: ImageSettings,
        start: Start,
        *,
        options: Mapping[str, Any] | None = None,
        quick: bool = False,
    ) -> "ImageRun":
        """Begin a run in a folder that must not exist.

        Args:
            folder: Where.
            source: What the data are loaded from: a name or a path.
            dataset: The data.
            settings: What the user chose.
            start: How the training is started.
            options: Further arguments of `kermix.data.sources.load`: rows, data_root, size.
            quick: Whether the settings are those of a quick look.
        """
        if not suits_images(dataset):
            raise OptionError(
                f"{dataset.name}: fitting images needs square images of bytes, at least "
                f"{SMALLEST_SIDE} pixels wide; use --size to resize them."
            )
        start.check_device()
        labelled = dataset.labels is not None and _large_classes(dataset)
        return cls.begin(
            folder,
            source,
            BUILT_IN,
            settings,
            start,
            options=options or {},
            facts={
                "name": dataset.name,
                "images": len(dataset.stored),
                "image": list(dataset.image or ()),
                "classes": list(dataset.classes) if labelled else [],
                "frequencies": _frequencies(dataset) if labelled else [1.0],
                "fingerprint": _fingerprint(dataset),
                "notes": list(dataset.notes),
                "quick": quick,
            },
        )

    @classmethod
    def _read_settings(cls, content: dict[str, Any]) -> ImageSettings:
        return ImageSettings.from_json(content)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.config["image"]
        return (channels, height, width)

    def dataset(self) -> Dataset:
        """The data of the run, read again."""
        dataset = load(self.config["data"], self.settings.seed, **self.options)
        check_data(self.folder, self.config, _fingerprint(dataset))
        return dataset

    def trainer(self, data: Dataset) -> Trainer[ImageTask]:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        self.check_sizes()
        train, held_out = self._split(data)
        classes = max(1, len(self.config["classes"]))
        task = ImageTask(*train, classes, self.settings, held_out=held_out or train)
        trainer = Trainer(task, self.config["device"], self.config["precision"])
        if self.last.exists():
            trainer.load(self.last)
        return trainer

    def _split(self, data: Dataset) -> tuple[Labelled, Labelled | None]:
        """Images to train with and images held out, none where there are too few."""
        images = data.stored.numpy().reshape(-1, *self.shape)
        labels = None
        if self.config["classes"]:
            assert data.labels is not None
            labels = data.labels.numpy()
        order = torch.randperm(
            len(images), generator=torch.Generator().manual_seed(self.settings.seed)
        ).numpy()
        count = held_out_rows(len(images))
        held, rest = np.sort(order[:count]), np.sort(order[count:])
        if labels is not None and len(np.unique(labels[rest])) < len(self.config["classes"]):
            count, rest = 0, np.arange(len(images))  # too few of a class to hold one out
        train = (images[rest], None if labels is None else labels[rest])
        if not count:
            return train, None
        return train, (images[held], None if labels is None else labels[held])

    def shown(self, row: Row) -> dict[str, str]:
        """The stage with its cost, and the held-out energy distance."""
        return {**stage_of(self.settings, row), "metric": f"energy {row['metric']:.4f}"}

    def on_report(self, trainer: Trainer[ImageTask], row: Row) -> None:
        """Keep samples of some moments of the training."""
        if int(row["step"]) in self._moments(trainer):
            self._save_moment(trainer)

    def _moments(self, trainer: Trainer[ImageTask]) -> set[int]:
        """Steps at which samples are shown: reports of the cost's stage, evenly apart."""
        every = trainer.reports_every
        steps = [*range(every, trainer.total, every), trainer.total]
        later = [step for step in steps if trainer.task.stage(step - 1)[0] > 0] or steps[-1:]
        chosen = np.linspace(0, len(later) - 1, min(MOMENTS, len(later))).round().astype(int)
        return {later[i] for i in chosen}

    def _save_moment(self, trainer: Trainer[ImageTask]) -> None:
        generator = torch.Generator(trainer.task.rows.device).manual_seed(self.settings.seed + 5)
        images = trainer.model.sample(SHOWN, generator, _columns(trainer.model, SHOWN)).images
        path = self.folder / "samples" / f"step-{trainer.step:06}.png"
        save_png(sheet(images), path, zoom=1)

    def model(self) -> ImageModel:
        """A copy of the last model, in evaluation mode."""
        return deepcopy(self.trained_model())

    def trained_model(self) -> ImageModel:
        """The model itself, loaded once: to be asked, not to be changed."""
        return self.loaded(self.last, self._read_model)

    def _read_model(self) -> ImageModel:
        tensors, _ = load_checkpoint(self.last)
        with rebuilding(self.last, tensors):
            check_declared(self.settings, tensors)
            model = build_image_model(
                self.shape, torch.tensor(self.config["frequencies"]), self.settings
            )
            load_model(model, tensors)
        return model.eval()

    def sample(self, n: int, seed: int, labels: torch.Tensor | None = None) -> LabelledDraw:
        """Images of the last model."""
        return self.trained_model().sample(n, torch.Generator().manual_seed(seed), labels)

    def save_samples(self, path: Path, n: int, seed: int, label: str | None = None) -> None:
        """Write images: a sheet (.png), bytes (n, c, h, w) (.npy), or with their classes (.npz).

        Args:
            path: Where.
            n: How many.
            seed: Same seed, same images.
            label: The class to draw, by its name; by default as frequent as in the data.
        """
        labels, classes = None, self.config["classes"]
        if label is not None:
            if label not in classes:
                known = ", ".join(classes) or "none"
                raise OptionError(f"--label {label}: the classes of this run are {known}.")
            labels = torch.full((n,), classes.index(label))
        drawn = self.sample(n, seed, labels)
        if path.suffix.lower() == ".png":
            save_png(sheet(drawn.images), path)
            return
        if path.suffix.lower() == ".npy":
            write_array(path, drawn.as_bytes())
            return
        with whole_file(path) as part, part.open("wb") as file:
            np.savez_compressed(file, images=drawn.as_bytes(), labels=drawn.labels.numpy())

    def finish(self, data: Dataset, outcome: Outcome) -> Numbers:
        """Write samples and report of the last model; returns the numbers to show."""
        assert outcome.trainer is not None
        trainer: Trainer[ImageTask] = outcome.trainer
        generator = torch.Generator(trainer.task.rows.device).manual_seed(self.settings.seed + 1)
        drawn = trainer.model.sample(SAMPLES, generator)
        self._save_samples(drawn)
        columns = _columns(trainer.model, SHOWN)
        findings = ImageFindings.of(trainer.task, drawn, columns, generator)
        rows = [
            ("data", f"{self.config['name']}, {self.config['images']} images of "
             f"{' x '.join(map(str, self.shape))}"),
            ("classes", ", ".join(self.config["classes"][:12]) or "none"),
            *findings.rows(),
            ("steps", str(trainer.step)),
        ]  # fmt: skip
        pictures = sorted((self.folder / "samples").glob("step-*.png"))
        write_image_report(self, rows, findings, pictures, trainer.history, self.notes(data))
        return rows

    def notes(self, data: Dataset) -> list[str]:
        """What a user should know before believing the numbers."""
        known = super().notes(data)
        if self._split(data)[1] is not None:
            return known
        return [
            *known,
            f"{self.config['name']}: {len(data.stored)} images are too few to hold some out; "
            "metrics are for the training images, not for new ones.",
        ]

    def _save_samples(self, drawn: LabelledDraw) -> None:
        path, labels = self.folder / "samples.npz", drawn.labels.cpu().numpy()
        try:
            with whole_file(path) as part, part.open("wb") as file:
                np.savez_compressed(file, images=drawn.as_bytes(), labels=labels)
        except RunError as error:
            raise RunError(
                f"{error} The model is saved in {self.last}; free some space, then: kermix "
                f"resume {shlex.quote(str(self.folder))}."
            ) from None


def _columns(model: ImageModel, n: int) -> torch.Tensor | None:
    """Classes for a sheet: one for each column, as far as ten go."""
    if model.classes == 1:
        return None
    return torch.arange(n, device=model.frequencies.device) % min(10, model.classes)


def _large_classes(dataset: Dataset) -> bool:
    """Whether labels serve as classes: stacked MNIST's thousand modes are to be found, not given.

    A class with fewer than two images cannot be told from its one image.
    """
    labels = dataset.labels
    if labels is None or dataset.name == "stacked-mnist" or len(dataset.classes) < 2:
        return False
    return bool((torch.bincount(labels, minlength=len(dataset.classes)) >= SMALLEST_CLASS).all())


def _frequencies(dataset: Dataset) -> list[float]:
    assert dataset.labels is not None
    counts = torch.bincount(dataset.labels, minlength=len(dataset.classes)).double()
    return [float(share) for share in counts / counts.sum()]


def _fingerprint(dataset: Dataset) -> str:
    digest = hashlib.sha256(str((tuple(dataset.stored.shape), dataset.image)).encode())
    images = rows_at_once(dataset.stored[0].numel())
    for part in dataset.stored.split(images):  # which may be mapped from a large file
        digest.update(np.ascontiguousarray(part.numpy()).data)
    if dataset.labels is not None:
        digest.update(dataset.labels.numpy().tobytes())
    return digest.hexdigest()[:16]
