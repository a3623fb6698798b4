"""Run folders of fits to images.

=================  ==============================================================
`config.json`      data, settings, versions, machine, commit: how to repeat it
`metrics.csv`      step, loss, variance and held-out metric
`checkpoint/`      `last`: what is sampled from, and gone on from
`samples/`         sheets of samples of the same noise at several moments
`samples.npz`      samples of the last model, as bytes, and their classes
`report.html`      all of it on one page, which needs nothing else
=================  ==============================================================
"""

import hashlib
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kermix.data.loading import BUILT_IN, Dataset, load
from kermix.errors import OptionError, RunError
from kermix.files import whole_file
from kermix.models.images.model import ImageModel, LabelledDraw
from kermix.reports.image_report import ImageFindings, write_image_report
from kermix.reports.image_sheets import save_png, sheet
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
from kermix.training.build import held_out_rows
from kermix.training.checkpoints import load_checkpoint
from kermix.training.image_build import build_image_model
from kermix.training.image_settings import ImageSettings
from kermix.training.images import ImageTask
from kermix.training.loop import Row, Trainer, load_model, make_fabric
from kermix.version import __version__

__all__ = ["ASKED", "MODEL_OPTIONS", "ImageRun", "is_image_run", "suits_images"]

KIND = "images"
MOMENTS = 8  # of training at which samples are shown
SHOWN = 80
SAMPLES = 2000
SMALLEST_SIDE = 16
SMALLEST_CLASS = 2
HASHED_AT_ONCE = 4096
# Settings that `kermix fit` has options for, and what it calls the models.
ASKED = (
    "cost", "model", "spaces", "code", "encoder_steps", "steps", "polish", "batch", "components",
    "variances", "chunk", "variance", "spread", "rate", "seed",
)  # fmt: skip
MODEL_OPTIONS = {"codes": "codes", "mixture": "code-mixture", "conv": "conv"}


def suits_images(dataset: Dataset) -> bool:
    """Whether data are images that an autoencoder can halve: square, of 16 pixels or more."""
    image = dataset.image
    return (
        image is not None
        and image[1] == image[2] >= SMALLEST_SIDE
        and (dataset.stored.dtype == torch.uint8)
    )


def is_image_run(folder: Path) -> bool:
    """Whether a folder is that of a fit to images."""
    return kind_of_run(folder) == KIND


@dataclass(frozen=True)
class ImageRun:
    """A run folder that exists.

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
        dataset: Dataset,
        settings: ImageSettings,
        *,
        device: str = "auto",
        precision: str = "32-true",
        options: dict[str, Any] | None = None,
        quick: bool = False,
    ) -> "ImageRun":
        """Begin a run in a folder that must not exist.

        Args:
            folder: Where.
            source: What the data are loaded from: a name or a path.
            dataset: The data.
            settings: What the user chose.
            device: `"auto"`, `"cpu"`, `"cuda"`, ...
            precision: A precision of Fabric's.
            options: Further arguments of :func:`~kermix.data.loading.load`: rows, data_root, size.
            quick: Whether the settings are those of a quick look.
        """
        if not suits_images(dataset):
            raise OptionError(
                f"{dataset.name}: a fit to images takes square images of bytes with a side of at "
                f"least {SMALLEST_SIDE} pixels; give --size to bring them to one."
            )
        make_fabric(device, precision)  # refused, if it must be, before a folder is made
        begin_folder(folder)
        labelled = dataset.labels is not None and _large_classes(dataset)
        config = {
            "kind": KIND,
            "kermix": __version__,
            "data": lasting_source(source, BUILT_IN),
            "options": options or {},
            "name": dataset.name,
            "images": len(dataset.stored),
            "image": list(dataset.image or ()),
            "classes": list(dataset.classes) if labelled else [],
            "frequencies": _frequencies(dataset) if labelled else [1.0],
            "fingerprint": _fingerprint(dataset),
            "settings": settings.as_json(),
            "quick": quick,
            "device": device,
            "precision": precision,
            "environment": environment(),
        }
        write_json(folder / "config.json", config)
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path) -> "ImageRun":
        """A run that was begun before."""
        config = read_config(folder, KIND, ImageSettings.from_json)
        return cls(folder, config)

    @property
    def settings(self) -> ImageSettings:
        """What the user chose."""
        return ImageSettings.from_json(self.config["settings"])

    @property
    def last(self) -> Path:
        """The checkpoint."""
        return self.folder / "checkpoint" / "last.safetensors"

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.config["image"]
        return (channels, height, width)

    def dataset(self) -> Dataset:
        """The data of the run, read again."""
        options = dict(self.config["options"])
        if options.get("data_root") is not None:
            options["data_root"] = Path(options["data_root"])
        dataset = load(self.config["data"], self.settings.seed, **options)
        check_data(self.folder, self.config, _fingerprint(dataset))
        return dataset

    def trainer(self, dataset: Dataset) -> Trainer[ImageTask]:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        images = dataset.stored.numpy().reshape(-1, *self.shape)
        labels = None
        if self.config["classes"]:
            assert dataset.labels is not None
            labels = dataset.labels.numpy()
        order = torch.randperm(
            len(images), generator=torch.Generator().manual_seed(self.settings.seed)
        ).numpy()
        count = held_out_rows(len(images))
        held, rest = np.sort(order[:count]), np.sort(order[count:])
        classes = max(1, len(self.config["classes"]))
        if labels is not None and len(np.unique(labels[rest])) < classes:
            count, rest = 0, np.arange(len(images))  # too few of a class to hold one out
        train = (images[rest], None if labels is None else labels[rest])
        looked_at = (images[held], None if labels is None else labels[held]) if count else train
        task = ImageTask(*train, classes, self.settings, held_out=looked_at)
        trainer = Trainer(task, self.config["device"], self.config["precision"])
        if self.last.exists():
            trainer.load(self.last)
        return trainer

    def train(self, trainer: Trainer[ImageTask], **callbacks: Callable[..., Any] | None) -> bool:
        """Train to the end or an interruption; returns whether the end was reached."""
        on_report = callbacks.pop("on_report", None)
        moments = self._moments(trainer)

        def report(row: Row) -> None:
            write_metrics(self.folder, trainer.history)
            if int(row["step"]) in moments:
                self._save_moment(trainer)
            if on_report is not None:
                on_report(row)

        write_metrics(self.folder, trainer.history)
        return trainer.run(folder=self.last.parent, on_report=report, **callbacks)

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
        """The last model, in evaluation mode."""
        check_trained(self.folder, self.last)
        tensors, _ = load_checkpoint(self.last)
        model = build_image_model(
            self.shape, torch.tensor(self.config["frequencies"]), self.settings
        )
        load_model(model, tensors)
        return model.eval()

    def sample(self, n: int, seed: int, labels: torch.Tensor | None = None) -> LabelledDraw:
        """Images of the last model."""
        return self.model().sample(n, torch.Generator().manual_seed(seed), labels)

    def finish(self, trainer: Trainer[ImageTask]) -> list[tuple[str, str]]:
        """Write samples and report of the last model; returns the numbers to show."""
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
        write_image_report(
            self.folder / "report.html", self.config, rows, findings, pictures, trainer.history,
            self.command(), self.notes(trainer),
        )  # fmt: skip
        return rows

    def notes(self, trainer: Trainer[ImageTask]) -> list[str]:
        """What a user should know before believing the numbers."""
        if trainer.task.apart:
            return []
        return [
            f"{self.config['name']}: {len(trainer.task.images)} images are too few to hold some "
            "out; numbers are of the images fitted, not of new ones."
        ]

    def command(self) -> str:
        """The command that repeats this run."""
        parts = ["kermix", "fit", shlex.quote(self.config["data"])]
        for name, value in self.config["options"].items():
            if value is not None:
                parts += [f"--{name.replace('_', '-')}", shlex.quote(str(value))]
        default = ImageSettings.for_images(self.config["name"], self.shape)
        if self.config["quick"]:
            default, parts = default.quick(), [*parts, "--quick"]
        before = default.as_json()
        for name, value in self.settings.as_json().items():
            if value != before[name] and name in ASKED:
                shown = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                shown = MODEL_OPTIONS.get(shown, shown) if name == "model" else shown
                parts += [f"--{name.replace('_', '-')}", shlex.quote(shown)]
        return " ".join(parts)

    def _save_samples(self, drawn: LabelledDraw) -> None:
        path = self.folder / "samples.npz"
        images = drawn.images.mul(255).round().byte().cpu().numpy()
        try:
            with whole_file(path) as part, part.open("wb") as file:
                np.savez_compressed(file, images=images, labels=drawn.labels.cpu().numpy())
        except RunError as error:
            raise RunError(
                f"{error} The model is safe in {self.last}; make room, then: kermix resume "
                f"{shlex.quote(str(self.folder))}."
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
    for part in dataset.stored.split(HASHED_AT_ONCE):  # which may be mapped from a large file
        digest.update(np.ascontiguousarray(part.numpy()).data)
    if dataset.labels is not None:
        digest.update(dataset.labels.numpy().tobytes())
    return digest.hexdigest()[:16]
