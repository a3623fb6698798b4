"""Images as rows of numbers in [0, 1]: folders of picture files, and IDX files as of MNIST."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .folders import damage_note, find_pictures, prepare_files
from .idx import read_idx_array

__all__ = ["Images", "read_idx", "read_image_folder"]


@dataclass(frozen=True)
class Images:
    """Images as rows of channels, rows and columns, flattened in this order."""

    values: Tensor  # (N, channels * height * width), in [0, 1]
    shape: tuple[int, int, int]  # channels, height, width
    name: str
    notes: tuple[str, ...] = ()


def read_image_folder(
    folder: Path, *, size: int | None = None, cache: Path | None = None, workers: int | None = None
) -> Images:
    """All pictures of a folder and the folders in it, in the order of their names.

    Pictures of another size than most are cropped to the middle and resized, damaged ones are
    skipped, and notes say so. Grey pictures stay grey; if any has colour, all get three channels.

    Args:
        folder: Where they are.
        size: Side in pixels; by default the most common size of the pictures.
        cache: Where decoded pictures are kept, see :func:`kermix.data.cache.prepared`.
        workers: How many processes decode them, see :func:`kermix.data.pictures.decode_all`.
    """
    folder = folder.resolve()
    files = find_pictures(folder)
    found = prepare_files(folder.name, folder, files, size=size, cache=cache, workers=workers)
    images = found.images
    _, channels, height, width = images.shape
    values = torch.from_numpy(images.reshape(len(images), -1)).float() / 255
    notes = (*found.notes, *damage_note(folder.name, found))
    return Images(values, (channels, height, width), folder.name, notes)


def read_idx(path: Path) -> Images:
    """Images of an IDX file, packed with gzip or not."""
    array = read_idx_array(path)
    numbers: np.ndarray = array.astype(np.float32)
    if array.dtype == np.uint8:
        numbers = numbers / 255
    rows = torch.from_numpy(numbers.reshape(len(array), -1))
    height, width = array.shape[1:] if array.ndim == 3 else (1, rows.shape[1])
    return Images(rows, (1, height, width), path.name)
