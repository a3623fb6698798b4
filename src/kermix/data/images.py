"""Images as rows of numbers in [0, 1]: folders of picture files, and IDX files as of MNIST."""

import gzip
import math
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.errors import ImageError, MissingExtraError

__all__ = ["Images", "is_idx", "read_idx", "read_image_folder"]

PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
IDX_TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


@dataclass(frozen=True)
class Images:
    """Images as rows of channels, rows and columns, flattened in this order."""

    values: Tensor  # (N, channels * height * width), in [0, 1]
    shape: tuple[int, int, int]  # channels, height, width
    name: str


def read_image_folder(folder: Path) -> Images:
    """All pictures of a folder and the folders in it, in the order of their names.

    They must have one size. Grey pictures stay grey; if any has colour, all get three channels.
    """
    image_class = _pillow()
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in PICTURE_SUFFIXES)
    if not files:
        raise ImageError(
            f"{folder}: no pictures in this folder; files that end in "
            f"{', '.join(PICTURE_SUFFIXES)} are read."
        )
    arrays = []
    for file in files:
        try:
            with image_class.open(file) as picture:
                colour = picture.mode not in ("1", "L", "I", "I;16", "F")
                array = np.asarray(picture.convert("RGB" if colour else "L"))
        except (OSError, SyntaxError, ValueError) as error:
            raise ImageError(f"{file}: not a readable picture ({error}).") from None
        arrays.append(array if colour else array[:, :, None])
        if array.shape[:2] != arrays[0].shape[:2]:
            height, width = arrays[0].shape[:2]
            raise ImageError(
                f"{file}: {array.shape[1]} x {array.shape[0]} pixels, while {files[0].name} has "
                f"{width} x {height}; bring all pictures to one size first."
            )
    channels = max(a.shape[2] for a in arrays)
    stack = np.stack([np.broadcast_to(a, (*a.shape[:2], channels)) for a in arrays])
    stack = stack.transpose(0, 3, 1, 2)
    values = torch.from_numpy(stack.reshape(len(stack), -1).astype(np.float32) / 255)
    return Images(values, (channels, *stack.shape[2:]), folder.name)


def is_idx(path: Path) -> bool:
    """Whether a name is that of an IDX file: `...-ubyte`, `.idx`, and these with `.gz`."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith(("ubyte", ".idx"))


def read_idx(path: Path) -> Images:
    """Images of an IDX file, packed with gzip or not."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise ImageError(f"{path}: there is no such file.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ImageError(f"{path}: cannot be read ({error}).") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in IDX_TYPES:
        raise ImageError(f"{path}: not an IDX file; its first bytes are {data[:4].hex(' ')}.")
    kind, axes = np.dtype(IDX_TYPES[data[2]]), data[3]
    start = 4 + 4 * axes
    sizes = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    expected = start + math.prod(sizes) * kind.itemsize
    if axes < 1 or len(data) != expected or not math.prod(sizes):
        raise ImageError(
            f"{path}: damaged; {expected} bytes are announced for shape {tuple(sizes)} and there "
            f"are {len(data)}."
        )
    numbers: np.ndarray = np.frombuffer(data, kind, offset=start).reshape(sizes).astype(np.float32)
    if kind.itemsize == 1 and kind.kind == "u":
        numbers = numbers / 255
    rows = torch.from_numpy(numbers.reshape(sizes[0], -1).copy())
    height, width = (sizes[1], sizes[2]) if axes == 3 else (1, rows.shape[1])
    return Images(rows, (1, height, width), path.name)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Reading pictures needs Pillow: pip install pillow.") from None
    return Image
