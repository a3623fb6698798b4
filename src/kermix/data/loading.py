"""Data by their names: built-in sets, sets and folders of images, and files, as rows of numbers.

Stacked MNIST has three digits as the colours of one image: a thousand modes to be counted.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from kermix.data.dataset import TOYS, Dataset, column_names, image_rows, toy
from kermix.data.images.image_sets import is_idx, read_celeba, read_idx_array
from kermix.data.images.labelled import LabelledImages, load_labelled
from kermix.data.images.pictures import (
    damage_note,
    find_pictures,
    part_folders,
    prepare_files,
)
from kermix.data.readers.common import split_part
from kermix.data.sources import NUMERIC_FILES, read_table
from kermix.errors import OptionError, ShapeError, TableError

__all__ = [
    "BUILT_IN",
    "IMAGE_SETS",
    "is_table",
    "load",
    "read_idx",
    "read_image_folder",
    "stacked_mnist",
]

IMAGE_SETS = ("mnist", "stacked-mnist", "cifar10", "celeba")
BUILT_IN = (*TOYS, *IMAGE_SETS)


def load(
    source: str,
    seed: int = 0,
    rows: int | None = None,
    *,
    split: Literal["train", "test"] = "train",
    data_root: Path | None = None,
    cache: Path | None = None,
    size: int | None = None,
    workers: int | None = None,
) -> Dataset:
    """Read a built-in data set, an image data set, a table, an IDX file or a folder of images.

    Args:
        source: Name of a data set, or a path. Image data sets are "mnist", "stacked-mnist",
            "cifar10", "celeba" and, with one of its attributes as label, "celeba:Smiling".
        seed: Random seed for a built-in data set, or for a subset of the rows of another.
        rows: Number of rows, drawn at random; by default 20,000 for a built-in data set, 128,000
            for stacked MNIST, and all rows otherwise.
        split: Which part of a set of images, or of a folder that has `train` and `test`.
        data_root: Where the files of such a set are; without them MNIST and CIFAR-10 are
            downloaded.
        cache: Folder for downloads and decoded images; see `kermix.data.images.image_cache`.
        size: Side length of images in pixels; by default unchanged (64 for CelebA).
        workers: Number of processes that decode images; by default as many as are worth starting.

    Example:
        >>> load("moons", rows=100).values.shape
        torch.Size([100, 2])
    """
    if not source.strip():
        raise TableError("The data name is empty; give a built-in data set, a file or a folder.")
    options: dict[str, Any] = {"size": size, "cache": cache, "workers": workers}
    if source in TOYS:
        return _toy(source, seed, rows)
    if source == "stacked-mnist":
        digits = load_labelled("mnist", split, data_root=data_root, **options)
        count = {} if rows is None else {"n": rows}
        return _from_labelled(stacked_mnist(digits.images, digits.labels, seed=seed, **count))
    if source == "celeba":
        faces = read_celeba(data_root, split, **options)
        return _some(image_rows(source, faces.images, faces.notes), rows, seed)
    if source.partition(":")[0] in IMAGE_SETS:
        found = load_labelled(source, split, data_root=data_root, **options)
        return _some(_from_labelled(found), rows, seed)
    path = Path(source)
    if path.is_dir():
        return _some(read_image_folder(path, split=split, **options), rows, seed)
    return _some(_from_file(path), rows, seed)


def _toy(name: str, seed: int, rows: int | None, usual: int = 20_000) -> Dataset:
    """Rows drawn from a built-in data set."""
    chosen = toy(name)
    generator = torch.Generator().manual_seed(seed)
    values = chosen.sample(usual if rows is None else rows, generator)
    image = (1, 8, 8) if name == "digits" else None
    names = column_names(values.shape[1])
    return Dataset(name, values, names, image, chosen.modes, chosen.entropy)


def _from_file(path: Path) -> Dataset:
    """The rows of an IDX file or of a table."""
    if is_idx(path):
        return read_idx(path)
    if not path.exists() and not path.suffix:
        raise TableError(
            f"{path}: not a file, a folder or a built-in data set; built in are "
            f"{', '.join(BUILT_IN)}."
        )
    table = read_table(path)
    return Dataset(path.stem, table.values, table.columns, notes=tuple(table.notes()),
                   numbers=table.numbers)  # fmt: skip


def is_table(data: str | Path, arrays: bool = False) -> bool:
    """Whether a name is that of a table with named columns, or of an array, if these count."""
    path = Path(data)
    known = str(data).partition(":")[0] in BUILT_IN
    if known or path.is_dir() or (path.is_file() and is_idx(path)):
        return False
    if not path.exists() and not path.suffix:
        return False  # refused where built-in sets are listed
    return arrays or split_part(path)[0].suffix.lower() not in NUMERIC_FILES


def _from_labelled(found: LabelledImages) -> Dataset:
    dataset = image_rows(found.name, found.images, found.notes)
    return replace(dataset, labels=torch.from_numpy(found.labels), classes=found.classes)


def _some(dataset: Dataset, rows: int | None, seed: int) -> Dataset:
    if rows is None or rows >= len(dataset.stored):
        return dataset
    order = torch.randperm(len(dataset.stored), generator=torch.Generator().manual_seed(seed))
    chosen = order[:rows].sort().values
    labels = None if dataset.labels is None else dataset.labels[chosen]
    numbers = None if dataset.numbers is None else dataset.numbers[chosen]
    return replace(dataset, stored=dataset.stored[chosen], labels=labels, numbers=numbers)


def read_image_folder(
    folder: Path,
    *,
    split: Literal["train", "test"] = "train",
    size: int | None = None,
    cache: Path | None = None,
    workers: int | None = None,
) -> Dataset:
    """All pictures of a folder and the folders in it, in the order of their names.

    Pictures of another size than most are cropped to the middle and resized, damaged ones are
    skipped, and notes say so. Grey pictures stay grey; if any has colour, all get three channels.
    Where all of them lie in two or more folders of this one, these are their classes.

    Args:
        folder: Where they are.
        split: Which part, where the folder holds folders `train` and `test`.
        size: Side in pixels; by default the most common size of the pictures.
        cache: Where decoded pictures are kept, see `kermix.data.images.image_cache.prepared`.
        workers: How many processes decode them, see
            `kermix.data.images.pictures.decode_all`.
    """
    folder = base = folder.resolve()
    together = find_pictures(folder)
    notes: tuple[str, ...] = ()
    if (parts := part_folders(folder)) is not None:
        base = parts[split == "test"]
        notes = (f"{folder.name}: using the images in its folder {base.name}.",)
    files = [file for file in together if base in file.parents]
    inner = [file.relative_to(base).parts[0] for file in files]
    classes = tuple(sorted(set(inner)))
    labelled = 1 < len(classes) < len(files) and not any(file.parent == base for file in files)
    found = prepare_files(
        folder.name,
        folder,
        files,
        [classes.index(name) for name in inner] if labelled else None,
        together=together,
        form=size,
        cache=cache,
        workers=workers,
    )
    notes += (*found.notes, *damage_note(folder.name, found))
    dataset = image_rows(folder.name, found.images, notes)
    if not labelled:
        return dataset
    return replace(dataset, labels=torch.from_numpy(found.labels), classes=classes)


def read_idx(path: Path) -> Dataset:
    """Images of an IDX file, packed with gzip or not."""
    array = read_idx_array(path)
    if array.dtype != np.uint8:
        array = array.astype(np.float32)
    if array.ndim != 3:
        array = array.reshape(len(array), 1, -1)
    return image_rows(path.name, array.copy()[:, None])


def stacked_mnist(
    images: np.ndarray, labels: np.ndarray, n: int = 128_000, seed: int = 0
) -> LabelledImages:
    """Draw three digits for each image, independently and with repetition.

    Args:
        images: Grey digits, uint8, (N, 1, H, W).
        labels: Their classes, 0 to 9, (N,).
        n: How many images to make; by default as many as in the papers that count modes.
        seed: The same seed gives the same images.

    Returns:
        Images (n, 3, H, W), labelled with the number that the three digits write, 0 to 999.

    Example:
        >>> import numpy as np
        >>> digits = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
        >>> found = stacked_mnist(digits, np.arange(10), 4)
        >>> bool((found.images[:, :, 0, 0] @ [100, 10, 1] == found.labels).all())
        True
    """
    if images.ndim != 4 or images.shape[1] != 1 or len(images) != len(labels):
        raise ShapeError(
            f"images {images.shape} and labels {labels.shape} are not (N, 1, H, W) and (N,)."
        )
    if not len(images) or n < 1:
        raise OptionError(f"{n} images from {len(images)} digits: at least one of each is needed.")
    chosen = np.random.default_rng(seed).integers(len(images), size=(n, 3))
    digits = labels[chosen].astype(np.int64)
    classes = tuple(f"{i:03}" for i in range(1000))
    return LabelledImages(
        "stacked-mnist", images[chosen, 0], digits @ np.array([100, 10, 1]), classes
    )
