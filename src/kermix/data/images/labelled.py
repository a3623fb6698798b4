"""Labelled images: MNIST, CIFAR-10, scikit-learn's digits, and any folder of class folders.

MNIST and CIFAR-10 are downloaded where they are missing.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kermix.checks import rows_at_once
from kermix.data.images import image_sets as cifar
from kermix.data.images.image_cache import fetch_all
from kermix.data.images.image_sets import Split, read_celeba, read_idx_array
from kermix.data.images.pictures import (
    ClassFolders,
    damage_note,
    prepare_files,
    read_class_folders,
)
from kermix.errors import DownloadError, ImageError, MissingExtraError, OptionError, ShapeError

__all__ = ["LABELLED_SETS", "LabelledImages", "check_same_shape", "load_labelled"]

LABELLED_SETS = ("digits", "mnist", "cifar10", "celeba")

MNIST_FILES = {
    "train": ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    "test": ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
DIGITS = tuple("0123456789")


@dataclass(frozen=True)
class LabelledImages:
    """Images with a class each.

    Attributes:
        name: For titles.
        images: uint8, (N, C, H, W); may be mapped from a file.
        labels: Their places in `classes`, int64, (N,).
        classes: The names of the classes.
        notes: What was left out or changed, and which copy was read.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def first(self, count: int | None) -> "LabelledImages":
        """The first `count` images, or all."""
        return replace(self, images=self.images[:count], labels=self.labels[:count])


def check_same_shape(train: LabelledImages, held_out: LabelledImages) -> None:
    """Refuse held-out images of another size or other channels than the training images."""
    shape, other = train.images.shape[1:], held_out.images.shape[1:]
    if shape != other:
        raise ShapeError(
            f"Training images are {shape}, held-out images {other} (channels, height, width): "
            "read both with the same size."
        )


def load_labelled(
    source: str,
    split: Split,
    *,
    data_root: str | Path | None = None,
    cache: str | Path | None = None,
    size: int | None = None,
    workers: int | None = None,
) -> LabelledImages:
    """Read a labelled set of images.

    Args:
        source: "mnist", "cifar10", "digits" (scikit-learn's), faces by one of their attributes, as
            "celeba:Smiling", or a folder: `train/CLASS/*.png` and `test/CLASS/*.png`, or
            `CLASS/*.png`, of which a fifth is then held out.
        split: Which part.
        data_root: A folder with the official files of a set, or with a folder `mnist`, `cifar10`
            or `celeba` of them; the first two may also be class folders. What is not there is
            downloaded, except CelebA.
        cache: Where decoded pictures are kept; by default `$KERMIX_CACHE` or the user's cache
            folder. It need not be writable.
        size: Side of the images in pixels; by default as they are, and the most common size in a
            folder of several.
        workers: Processes that decode pictures; by default one for each core if there are many.

    Example:
        >>> digits = load_labelled("digits", "test")
        >>> digits.images.shape, digits.images.dtype, digits.labels.shape, digits.classes[7]
        ((360, 1, 8, 8), dtype('uint8'), (360,), '7')
    """
    if split not in ("train", "test"):
        raise OptionError(f"split is {split!r}; it is 'train' or 'test'.")
    if size is not None and size < 1:
        raise OptionError(f"size is {size}; images have at least one pixel.")
    data_root = None if data_root is None else Path(data_root)
    cache = None if cache is None else Path(cache)
    sets = {"digits": _digits, "mnist": _mnist, "cifar10": _cifar10}
    if source in sets:
        return _resized(sets[source](split, data_root, cache, workers), size)
    if source.partition(":")[0] == "celeba":
        return _faces(source, split, data_root, cache, size, workers)
    folder = Path(source)
    if not folder.is_dir():
        raise ImageError(
            f"{source}: neither a folder nor a labelled data set; these are digits, mnist, "
            "cifar10 and celeba:ATTRIBUTE."
        )
    return _class_folders(folder.resolve(), split, cache, size, workers)


def _digits(split: Split, *_: Any) -> LabelledImages:
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise MissingExtraError(
            "The set 'digits' comes with scikit-learn: pip install 'kermix[fit]'."
        ) from None
    found = load_digits()
    images = np.rint(found.images * (255 / 16)).astype(np.uint8)[:, None]
    rows = train_test_split(
        np.arange(len(images)), test_size=0.2, random_state=0, stratify=found.target
    )[split == "test"]
    labels = found.target[rows].astype(np.int64)
    return LabelledImages("digits", images[rows], labels, DIGITS)


def _mnist(
    split: Split, data_root: Path | None, cache: Path | None, workers: int | None
) -> LabelledImages:
    for folder in _places("mnist", data_root, cache, "mnist", "MNIST", "MNIST/raw"):
        paths = [_packed_or_not(folder / name) for name in MNIST_FILES[split]]
        if any(path.exists() for path in paths):
            return _idx_pair("mnist", *paths)
        if _has_classes(folder, DIGITS):
            return replace(_class_folders(folder, split, cache, 28, workers), name="mnist")
    raise ImageError("mnist: neither found nor downloaded.")


def _cifar10(
    split: Split, data_root: Path | None, cache: Path | None, workers: int | None
) -> LabelledImages:
    notes: tuple[str, ...] = ()
    for folder in _places("cifar10", data_root, cache, "cifar10", "CIFAR10"):
        batches = _binary_batches(folder)
        binary, pictures = folder / "cifar-10-binary.tar.gz", folder / "cifar10-jpeg.tar.xz"
        if batches is not None:
            images, labels = cifar.read_binary_batches(batches, split)
        elif binary.exists():
            images, labels = cifar.read_binary_archive(binary, split)
        elif pictures.exists():
            found = cifar.read_picture_archive(pictures, split, cache=cache, workers=workers)
            images, labels = found.images, found.labels
            notes = (
                f"cifar10: the JPEG copy {pictures.name} is used, which is slightly lossy.",
                *found.notes,
                *damage_note("cifar10", found),
            )
        elif _has_classes(folder, cifar.CLASSES):
            read = _class_folders(folder, split, cache, cifar.SIDE, workers)
            return replace(read, name="cifar10", notes=(_copy_note(folder), *read.notes))
        else:
            continue
        return LabelledImages("cifar10", images, labels, cifar.CLASSES, notes)
    raise ImageError("cifar10: neither found nor downloaded.")


def _faces(
    source: str,
    split: Split,
    data_root: Path | None,
    cache: Path | None,
    size: int | None,
    workers: int | None,
) -> LabelledImages:
    attribute = source.partition(":")[2]
    if not attribute:
        raise OptionError(f"{source!r}: faces are labelled by an attribute, as in celeba:Smiling.")
    faces = read_celeba(data_root, split, size=size, cache=cache, workers=workers)
    classes = (f"not {attribute}", attribute)
    return LabelledImages(source, faces.images, faces.attribute(attribute), classes, faces.notes)


def _class_folders(
    folder: Path, split: Split, cache: Path | None, size: int | None, workers: int | None
) -> LabelledImages:
    found: ClassFolders = read_class_folders(folder)
    chosen = found.split(split)
    everything = [file for file, _ in (*found.train, *found.test)]
    read = prepare_files(
        f"{folder.name}-{split}",
        folder,
        [file for file, _ in chosen],
        [label for _, label in chosen],
        together=everything,
        form=size,
        cache=cache,
        workers=workers,
    )
    notes = (*found.notes, *read.notes, *damage_note(folder.name, read))
    lost = {label for _, label in chosen} - set(read.labels.tolist())
    if lost and split == "train":
        raise ImageError(
            f"{folder}: no picture of the class {found.classes[min(lost)]!r} could be read; "
            "repair its images, or remove its folder."
        )
    return LabelledImages(folder.name, read.images, read.labels, found.classes, notes)


def _idx_pair(name: str, images: Path, labels: Path) -> LabelledImages:
    pixels, targets = read_idx_array(images), read_idx_array(labels)
    if pixels.ndim != 3 or pixels.dtype != np.uint8:
        raise ImageError(f"{images}: no images of bytes; found {pixels.dtype}, {pixels.shape}.")
    if targets.shape != (len(pixels),):
        raise ImageError(
            f"{labels}: {len(targets)} labels for the {len(pixels)} images of {images.name}."
        )
    targets = targets.astype(np.int64)
    if targets.min() < 0 or targets.max() > 9:
        raise ImageError(f"{labels}: labels from {targets.min()} to {targets.max()}, not 0 to 9.")
    return LabelledImages(name, pixels.copy()[:, None], targets, DIGITS)


def _resized(found: LabelledImages, size: int | None) -> LabelledImages:
    if size is None or found.images.shape[2:] == (size, size):
        return found
    step = rows_at_once(found.images[0].size)
    parts = [
        torch.nn.functional.interpolate(
            torch.from_numpy(found.images[i : i + step]).float(),
            (size, size),
            mode="bilinear",
            antialias=True,
        )
        .round()
        .to(torch.uint8)
        for i in range(0, len(found), step)
    ]
    return replace(found, images=torch.cat(parts).numpy())


def _places(name: str, data_root: Path | None, cache: Path | None, *inner: str) -> Iterator[Path]:
    """Where the files of a set may be; asked for more than a data_root, it downloads them."""
    if data_root is not None:
        if not data_root.is_dir():
            raise ImageError(f"{data_root}: the data_root is not a folder.")
        yield from (data_root, *(data_root / folder for folder in inner))
    try:
        yield fetch_all(name, cache)
    except DownloadError as error:
        if data_root is None:
            raise
        raise DownloadError(f"{name} is not in {data_root}. {error}") from None


def _packed_or_not(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    return path if path.exists() and not packed.exists() else packed


def _binary_batches(folder: Path) -> Path | None:
    names = [name for names in cifar.BATCHES.values() for name in names]
    places = (folder / "cifar-10-batches-bin", folder)
    return next((p for p in places if any((p / name).exists() for name in names)), None)


def _has_classes(folder: Path, classes: tuple[str, ...]) -> bool:
    return all((folder / "train" / name).is_dir() for name in classes)


def _copy_note(folder: Path) -> str:
    lossy = any(folder.rglob("*.jp*g"))
    return f"cifar10: the {'JPEG copy' if lossy else 'copy as pictures'} in {folder} was read."
