"""Classes of images without labels: files, folders, arrays."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.images.image_sets import is_idx, read_idx_array
from kermix.data.images.pictures import Form, decode_all, find_pictures, is_picture
from kermix.errors import ImageError, ShapeError
from kermix.images.classifier_run import classifier, shape_of
from kermix.runs.run import Run
from kermix.training.checkpoints import device_of

__all__ = ["Predictions", "Unlabelled", "predictions", "read_unlabelled"]


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
