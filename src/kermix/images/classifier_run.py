"""Classifiers of images: run folders of `kermix classify`, their results, and what they predict.

Beside what every run has: `checkpoint/model` is what predicts, `result.json` holds accuracy, loss,
confusion matrix, time and size. Images without labels are files, folders or arrays.
"""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from kermix.data.images.image_sets import is_idx, read_idx_array
from kermix.data.images.labelled import (
    LABELLED_SETS,
    LabelledImages,
    check_same_shape,
    load_labelled,
)
from kermix.data.images.pictures import Form, decode_all, find_pictures, is_picture
from kermix.data.readers.common import counted
from kermix.errors import ImageError, ShapeError
from kermix.files import write_json
from kermix.images.classifier_settings import suited_settings
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
    digest_of,
    next_free_folder,
)
from kermix.runs.run import Kind, Numbers, Outcome, Run, Start, equivalent_command
from kermix.settings import check_name
from kermix.training.checkpoints import device_of
from kermix.training.loop import Row, Trainer
from kermix.training.product_settings import IMAGES, ProductSettings

__all__ = ["CLASSIFIER", "begin_classifier", "begin_classify", "classifier", "predictions"]

Images: TypeAlias = tuple[LabelledImages, LabelledImages]  # to train with, and held out


def begin_classifier(
    folder: Path,
    source: str,
    images: Images,
    settings: ProductSettings,
    start: Start,
    options: Mapping[str, Any] | None = None,
) -> Run:
    """Begin a classifier as `Run.begin` does, or refuse to before there is a folder."""
    train, test = images
    check_same_shape(train, test)
    return Run.begin(
        CLASSIFIER,
        folder,
        source,
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


def shape_of(run: Run) -> tuple[int, int, int]:
    """Channels, height and width of the images of a classifier."""
    channels, height, width = run.config["shape"]
    return channels, height, width


def _dataset(run: Run) -> Images:
    """The images of the run, read again: those to train with, and those held out."""
    train, test = (
        load_labelled(run.config["data"], part, **run.options) for part in ("train", "test")
    )
    check_data(run.folder, run.config, _fingerprint(train, test))
    return train, test


def _trainer(run: Run, data: Images) -> Trainer[ClassifierTask]:
    task = ClassifierTask(*data, run.settings)
    return Trainer(task, run.config["device"], run.config["precision"])


def _shown(run: Run, row: Row) -> dict[str, str]:
    """The loss, and the accuracy on held-out images where it was looked at."""
    texts = {"stage": f"loss {row['loss']:.3f}"}
    if "test_accuracy" in row:
        texts["metric"] = f"test {row['test_accuracy']:.2%}"
    return texts


def classifier(run: Run, device: str = "cpu") -> TrainedClassifier:
    """The trained network, for predictions."""
    check_trained(run.folder, run.checkpoints / "model.safetensors")
    return load_classifier(run.checkpoints, device)


def _finish(run: Run, data: Images, outcome: Outcome) -> Numbers:
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
    write_json(run.folder / "result.json", result)
    rows = _result_numbers(run, trainer, on_test, on_train, each)
    chances = task.trained().probabilities(_pixels(task.held_out, task.used_device))
    write_report(run, trainer, on_test, chances.cpu(), rows)
    return rows


def _result_numbers(
    run: Run,
    trainer: Trainer[ClassifierTask],
    on_test: ClassifierEvaluation,
    on_train: ClassifierEvaluation,
    each: float,
) -> Numbers:
    settings, counts = run.settings, run.config["images"]
    count = len(trainer.history)
    channels, height, width = shape_of(run)
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


def _read_model(run: Run, path: Path) -> TrainedClassifier:
    return load_classifier(path.parent, "cpu")


def _refusal(run: Run, question: str) -> str:
    return (
        "is a classifier (use kermix predict); only fits of rows or images (kermix fit) can be "
        "sampled."
    )


CLASSIFIER = Kind(
    CLASSIFY, ProductSettings, ("shape", "images", "classes"),
    _dataset, _trainer, _shown, _finish, ("model",), _read_model, {}, _refusal, LABELLED_SETS,
    reported=("epoch", "step", "loss", "train_accuracy", "test_accuracy", "seconds"),
)  # fmt: skip


def _pixels(images: LabelledImages, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.images)).to(device)


def _fingerprint(*sets: LabelledImages) -> str:
    return digest_of(
        part for images in sets
        for part in (str((images.images.shape, images.classes)), images.images, images.labels)
    )  # fmt: skip


QUICK: dict[str, Any] = {"width": 32, "depth": 2, "output_width": 96, "epochs": 5}


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
) -> tuple[Run, tuple[LabelledImages, LabelledImages]]:
    """Make the run folder of a classifier of images; nothing is trained yet.

    Args:
        data: Name of a set of images, or a folder.
        settings: Settings of `kermix.training.product_settings.ProductSettings`;
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
    _chosen(data, settings, augment, quick, 1000, 32)
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
    run = begin_classifier(folder, data, (train, test), chosen, start, options)
    return run, (train, test)


def _chosen(
    data: str, given: Mapping[str, Any], augment: bool, quick: bool, count: int, side: int
) -> ProductSettings:
    """The settings of a run: what suits the images, but for what was given."""
    for name in given:
        check_name(name, ProductSettings.part(IMAGES).names)
    model = given.get("model", ProductSettings.model)
    patch = given.get("patch", ProductSettings.patch)
    base = suited_settings(data, model, patch, count, side, augment=augment)
    return replace(replace(base, **QUICK) if quick else base, **given)


class Predictions(NamedTuple):
    """A table of predicted classes.

    Attributes:
        names: Of its columns.
        rows: One for each image, as text.
        notes: What was left out or changed.
    """

    names: tuple[str, ...]
    rows: list[list[str]]
    notes: list[str]


def predictions(run: Run, path: Path, device: str, every: bool = False) -> Predictions:
    """Predict the classes of images.

    Args:
        run: A classifier.
        path: The images; see `read_unlabelled`.
        device: `"auto"`, `"cpu"`, `"cuda"`, ...
        every: Whether to give the probability of every class, not only that of the likeliest.
    """
    place = device_of(device)
    trained = classifier(run, str(place))
    kind, blocks, notes = read_unlabelled(path, shape_of(run))
    rows = []
    for names, pixels in blocks:
        found = trained.probabilities(pixels.to(place)).cpu()
        best, which = found.max(1)
        for i, name in enumerate(names):
            rest = [f"{p:.6f}" for p in found[i].tolist()] if every else []
            rows.append([name, trained.classes[int(which[i])], f"{float(best[i]):.6f}", *rest])
    each = [f"p({name})" for name in trained.classes] if every else []
    return Predictions((kind, "class", "probability", *each), rows, notes)


class Unlabelled(NamedTuple):
    """Images to look at.

    Attributes:
        kind: What they are named by: `"file"` or `"row"`.
        blocks: Names and pixels (n, C, H, W), some at a time.
        notes: What was left out or changed; complete once the blocks were read.
    """

    kind: str
    blocks: Iterator[tuple[list[str], Tensor]]
    notes: list[str]


def read_unlabelled(path: Path, shape: tuple[int, int, int]) -> Unlabelled:
    """Read a picture, a folder of pictures, an IDX file or a .npy of images.

    Pictures of any size are cropped to the middle and resized; arrays of another size are
    resized, and one channel serves for three.

    Args:
        path: Where they are. A .npy holds (N, H, W), (N, C, H, W) or (N, H, W, C), bytes or
            numbers from 0 to 1.
        shape: Channels, height and width that are wanted.
    """
    notes: list[str] = []
    if path.is_dir():
        files = find_pictures(path)
        names = [str(file.relative_to(path)) for file in files]
        return Unlabelled("file", _decoded(files, names, shape, notes), notes)
    if not path.exists():
        raise ImageError(f"{path}: there is no such file or folder.")
    if is_picture(path.name):
        blocks = list(_decoded([path], [path.name], shape, notes))
        if not blocks:
            raise ImageError(f"{path}: not a readable image.")
        return Unlabelled("file", iter(blocks), notes)
    if is_idx(path):
        return Unlabelled("row", _rows(path, read_idx_array(path), shape, notes), notes)
    if path.suffix == ".npy":
        try:
            array = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ImageError(f"{path}: not a readable .npy file ({error}).") from None
        return Unlabelled("row", _rows(path, array, shape, notes), notes)
    raise ImageError(f"{path}: not an image, a folder, an IDX file or a .npy of images.")


def _decoded(
    files: list[Path], names: list[str], shape: tuple[int, int, int], notes: list[str]
) -> Iterator[tuple[list[str], Tensor]]:
    pictures = list(zip(names, files, strict=True))
    for block in decode_all(pictures, len(pictures), Form(*shape)):
        notes += [f"left out, cannot be read: {text}" for text in block.damaged]
        if block.kept:
            yield [names[i] for i in block.kept], torch.from_numpy(block.images)


def _rows(
    path: Path,
    array: np.ndarray,
    shape: tuple[int, int, int],
    notes: list[str],
    at_once: int = 1000,
) -> Iterator[tuple[list[str], Tensor]]:
    images = _channels_first(path, array, shape[0])
    if tuple(images.shape[2:]) != shape[1:]:
        height, width = images.shape[2:]
        notes.append(f"resized from {width} x {height} to {shape[2]} x {shape[1]} pixels")
    return (
        ([str(i) for i in range(start, min(start + at_once, len(images)))],
         _numbers(path, images[start : start + at_once], shape))
        for start in range(0, len(images), at_once)
    )  # fmt: skip


def _channels_first(path: Path, array: np.ndarray, channels: int) -> np.ndarray:
    """Pixels as (N, C, H, W), with one channel or as many as are wanted."""
    images = _four_axes(path, array, channels)
    if images.ndim != 4 or images.shape[1] not in (1, channels) or 0 in images.shape:
        raise ShapeError(
            f"{path}: an array of shape {images.shape}; images are (N, H, W), (N, C, H, W) or "
            f"(N, H, W, C), here with {' or '.join(map(str, sorted({1, channels})))} channel(s)."
        )
    if images.dtype.kind not in "buif":
        raise ImageError(
            f"{path}: {images.dtype} are not pixels; expected bytes, or numbers from 0 to 1."
        )
    return images


def _four_axes(path: Path, array: np.ndarray, channels: int) -> np.ndarray:
    if array.ndim == 3 and array.shape[2] in (3, 4) and array.shape[2] < array.shape[0]:
        raise ShapeError(
            f"{path}: an array of shape {array.shape} may be one image; save it as (1, H, W, C)."
        )
    if array.ndim == 3:
        return array[:, None]
    if array.ndim == 4 and array.shape[1] not in (1, channels):
        return array.transpose(0, 3, 1, 2)
    return array


def _numbers(path: Path, block: np.ndarray, shape: tuple[int, int, int]) -> Tensor:
    pixels = torch.from_numpy(np.ascontiguousarray(block).astype(np.float32))
    if block.dtype == np.uint8:
        pixels = pixels / 255
    if not bool(((pixels >= 0) & (pixels <= 1)).all()):
        raise ImageError(
            f"{path}: {block.dtype} outside [0, 1]; expected bytes, or numbers from 0 to 1."
        )
    if tuple(pixels.shape[2:]) != shape[1:]:
        pixels = torch.nn.functional.interpolate(
            pixels, shape[1:], mode="bilinear", antialias=True
        ).clamp(0, 1)
    return pixels.expand(-1, shape[0], -1, -1)
