"""Images as rows of numbers: folders of picture files, and IDX files as of MNIST.

Stacked MNIST: three digits as the colours of one image, a thousand modes to be counted.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from kermix.data.dataset import Dataset, image_rows
from kermix.data.images.image_folders import (
    damage_note,
    find_pictures,
    part_folders,
    prepare_files,
)
from kermix.data.images.image_sets import read_idx_array
from kermix.data.images.labelled import LabelledImages
from kermix.errors import OptionError, ShapeError

__all__ = ["STACKED", "read_idx", "read_image_folder", "stacked_mnist"]


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
            `kermix.data.images.image_cache.decode_all`.
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
        size=size,
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


STACKED = 128_000  # images, as in the papers that count modes
CLASSES = tuple(f"{i:03}" for i in range(1000))


def stacked_mnist(
    images: np.ndarray, labels: np.ndarray, n: int = STACKED, seed: int = 0
) -> LabelledImages:
    """Draw three digits for each image, independently and with repetition.

    Args:
        images: Grey digits, uint8, (N, 1, H, W).
        labels: Their classes, 0 to 9, (N,).
        n: How many images to make.
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
    return LabelledImages(
        "stacked-mnist", images[chosen, 0], digits @ np.array([100, 10, 1]), CLASSES
    )
