"""Fits of images: run folders of `kermix fit` for square images.

Beside what every run has: `samples/` holds sheets of samples of the same noise at several moments
of training, `samples.npz` samples of the last model as bytes with their classes.
"""

import shlex
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from kermix.checks import rows_at_once
from kermix.data.dataset import Dataset
from kermix.data.loading import BUILT_IN, load
from kermix.errors import OptionError, RunError
from kermix.files import whole_file, write_array
from kermix.images.generator_training import ImageTask, build_image_model
from kermix.images.image_generator import ImageModel, LabelledDraw
from kermix.images.image_pages import ImageFindings, write_image_report
from kermix.pages.sheets import save_png, sheet
from kermix.runs.folder import IMAGES, check_data, digest_of
from kermix.runs.run import Draw, Kind, Numbers, OnRows, Outcome, Run, Start
from kermix.runs.train import stage_of
from kermix.training.checkpoints import (
    check_declared,
    load_checkpoint,
    load_model,
    rebuilding,
)
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import Row, Trainer
from kermix.training.samples_task import held_out_rows

__all__ = ["GENERATOR", "begin_images", "suits_images"]

Labelled: TypeAlias = tuple[np.ndarray, np.ndarray | None]  # images and their classes
SHOWN = 80
SMALLEST_SIDE = 16


def suits_images(dataset: Dataset) -> bool:
    """Whether data are images that an autoencoder can halve: square, of 16 pixels or more."""
    image = dataset.image
    return (
        image is not None
        and image[1] == image[2] >= SMALLEST_SIDE
        and (dataset.stored.dtype == torch.uint8)
    )


def begin_images(
    folder: Path,
    source: str,
    dataset: Dataset,
    settings: FitSettings,
    start: Start,
    *,
    options: Mapping[str, Any] | None = None,
) -> Run:
    """Begin a fit of images, as `Run.begin` does; images that cannot be fitted are refused.

    Args:
        folder: A new folder.
        source: A name or a path, as in `kermix.data.loading.load`.
        dataset: The images.
        settings: All that were chosen.
        start: A device, and the words of the command.
        options: Of `load`, beside the source.
    """
    if not suits_images(dataset):
        raise OptionError(
            f"{dataset.name}: fitting images needs square images of bytes, at least "
            f"{SMALLEST_SIDE} pixels wide; use --size to resize them."
        )
    labelled = dataset.labels is not None and _large_classes(dataset)
    return Run.begin(
        GENERATOR,
        folder,
        source,
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
        },
    )


def _shape(run: Run) -> tuple[int, int, int]:
    """Channels, height and width."""
    channels, height, width = run.config["image"]
    return (channels, height, width)


def _dataset(run: Run) -> Dataset:
    dataset = load(run.config["data"], run.settings.seed, **run.options)
    check_data(run.folder, run.config, _fingerprint(dataset))
    return dataset


def _trainer(run: Run, data: Dataset) -> Trainer[ImageTask]:
    train, held_out = _split(run, data)
    classes = max(1, len(run.config["classes"]))
    task = ImageTask(*train, classes, run.settings, held_out=held_out or train)
    return Trainer(task, run.config["device"], run.config["precision"])


def _split(run: Run, data: Dataset) -> tuple[Labelled, Labelled | None]:
    """Images to train with and images held out, none where there are too few."""
    images = data.stored.numpy().reshape(-1, *_shape(run))
    labels = None
    if run.config["classes"]:
        assert data.labels is not None
        labels = data.labels.numpy()
    order = torch.randperm(
        len(images), generator=torch.Generator().manual_seed(run.settings.seed)
    ).numpy()
    count = held_out_rows(len(images))
    held, rest = np.sort(order[:count]), np.sort(order[count:])
    if labels is not None and len(np.unique(labels[rest])) < len(run.config["classes"]):
        count, rest = 0, np.arange(len(images))  # too few of a class to hold one out
    train = (images[rest], None if labels is None else labels[rest])
    if not count:
        return train, None
    return train, (images[held], None if labels is None else labels[held])


def _shown(run: Run, row: Row) -> dict[str, str]:
    """The stage with its cost, and the held-out energy distance."""
    return {**stage_of(run.settings, row), "metric": f"energy {row['metric']:.4f}"}


def _keep_moment(run: Run, trainer: Trainer[ImageTask], row: Row) -> None:
    """Keep samples of some moments of the training."""
    if int(row["step"]) not in _moments(trainer):
        return
    generator = torch.Generator(trainer.task.rows.device).manual_seed(run.settings.seed + 5)
    images = trainer.model.sample(SHOWN, generator, _columns(trainer.model, SHOWN)).images
    save_png(sheet(images), run.folder / "samples" / f"step-{trainer.step:06}.png", zoom=1)


def _moments(trainer: Trainer[ImageTask], most: int = 8) -> set[int]:
    """Steps at which samples are shown: reports of the cost's stage, evenly apart."""
    every = trainer.reports_every
    steps = [*range(every, trainer.total, every), trainer.total]
    later = [step for step in steps if trainer.task.stage(step - 1)[0] > 0] or steps[-1:]
    chosen = np.linspace(0, len(later) - 1, min(most, len(later))).round().astype(int)
    return {later[i] for i in chosen}


def _read_model(run: Run, path: Path) -> ImageModel:
    """The last model, in evaluation mode."""
    tensors, _ = load_checkpoint(path)
    with rebuilding(path, tensors):
        check_declared(run.settings, tensors)
        frequencies = torch.tensor(run.config["frequencies"])
        model = build_image_model(_shape(run), frequencies, run.settings)
        load_model(model, tensors)
    return model.eval()


def _sample(run: Run, n: int, seed: int, labels: torch.Tensor | None = None) -> LabelledDraw:
    model: ImageModel = run.trained_model()
    return model.sample(n, torch.Generator().manual_seed(seed), labels)


def _write_samples(run: Run, path: Path, draw: Draw, on_rows: OnRows) -> None:
    """Write images: a sheet (.png), bytes (n, c, h, w) (.npy), or with their classes (.npz)."""
    labels, classes = None, run.config["classes"]
    if draw.label is not None:
        if draw.label not in classes:
            known = ", ".join(classes) or "none"
            raise OptionError(f"--label {draw.label}: the classes of this run are {known}.")
        labels = torch.full((draw.n,), classes.index(draw.label))
    drawn = _sample(run, draw.n, draw.seed, labels)
    if path.suffix.lower() == ".png":
        save_png(sheet(drawn.images), path)
    elif path.suffix.lower() == ".npy":
        write_array(path, drawn.as_bytes())
    else:
        _write_labelled(path, drawn)
    on_rows(draw.n)


def _write_labelled(path: Path, drawn: LabelledDraw) -> None:
    labels = drawn.labels.cpu().numpy()
    with whole_file(path) as part, part.open("wb") as file:
        np.savez_compressed(file, images=drawn.as_bytes(), labels=labels)


def _finish(run: Run, data: Dataset, outcome: Outcome) -> Numbers:
    """Write samples and report of the last model; returns the numbers to show."""
    assert outcome.trainer is not None
    trainer: Trainer[ImageTask] = outcome.trainer
    generator = torch.Generator(trainer.task.rows.device).manual_seed(run.settings.seed + 1)
    drawn = trainer.model.sample(2000, generator)
    try:
        _write_labelled(run.folder / "samples.npz", drawn)
    except RunError as error:
        raise RunError(
            f"{error} The model is saved in {run.last}; free some space, then: kermix "
            f"resume {shlex.quote(str(run.folder))}."
        ) from None
    columns = _columns(trainer.model, SHOWN)
    findings = ImageFindings.of(trainer.task, drawn, columns, generator)
    rows = [
        ("data", f"{run.config['name']}, {run.config['images']} images of "
         f"{' x '.join(map(str, _shape(run)))}"),
        ("classes", ", ".join(run.config["classes"][:12]) or "none"),
        *findings.rows(),
        ("steps", str(trainer.step)),
    ]  # fmt: skip
    pictures = sorted((run.folder / "samples").glob("step-*.png"))
    write_image_report(run, rows, findings, pictures, trainer.history, run.notes(data))
    return rows


def _notes(run: Run, data: Dataset) -> list[str]:
    if _split(run, data)[1] is not None:
        return []
    return [
        f"{run.config['name']}: {len(data.stored)} images are too few to hold some out; "
        "metrics are for the training images, not for new ones."
    ]


def _refusal(run: Run, question: str) -> str | None:
    if question in ("sample", "write_samples"):
        return None
    if question == "score":
        return "a model of images has no density to score with."
    return "a model of images, which can only be sampled."


GENERATOR = Kind(
    IMAGES, FitSettings, ("name", "image", "classes", "frequencies"),
    _dataset, _trainer, _shown, _finish, ("last",), _read_model,
    {"sample": _sample, "write_samples": _write_samples}, _refusal, BUILT_IN,
    notes=_notes, on_report=_keep_moment,
)  # fmt: skip


def _columns(model: ImageModel, n: int) -> torch.Tensor | None:
    """Classes for a sheet: one for each column, as far as ten go."""
    if model.classes == 1:
        return None
    return torch.arange(n, device=model.frequencies.device) % min(10, model.classes)


def _large_classes(dataset: Dataset, smallest: int = 2) -> bool:
    """Whether labels serve as classes: stacked MNIST's thousand modes are to be found, not given.

    A class with fewer than two images cannot be told from its one image.
    """
    labels = dataset.labels
    if labels is None or dataset.name == "stacked-mnist" or len(dataset.classes) < 2:
        return False
    return bool((torch.bincount(labels, minlength=len(dataset.classes)) >= smallest).all())


def _frequencies(dataset: Dataset) -> list[float]:
    assert dataset.labels is not None
    counts = torch.bincount(dataset.labels, minlength=len(dataset.classes)).double()
    return [float(share) for share in counts / counts.sum()]


def _fingerprint(dataset: Dataset) -> str:
    stored, labels = dataset.stored, dataset.labels
    some = rows_at_once(stored[0].numel())  # images may be mapped from a large file
    images = (part.numpy() for part in stored.split(some))
    known = () if labels is None else (labels.numpy(),)
    return digest_of(chain((str((tuple(stored.shape), dataset.image)),), images, known))
