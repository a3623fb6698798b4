"""Decoding of picture files: every mode and size, many at once in worker processes."""

import importlib
import io
import os
import struct
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from kermix.errors import ImageError, MissingExtraError

__all__ = [
    "SUFFIXES",
    "Content",
    "Decoded",
    "Form",
    "decode",
    "decode_all",
    "is_picture",
    "probe",
    "unreadable",
]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SIXTEEN_BITS = ("I", "I;16", "I;16L", "I;16B", "I;16N")
GREY = ("1", "L", "LA", "La", "F", *SIXTEEN_BITS)
SIDEWAYS = (5, 6, 7, 8)  # EXIF orientations that exchange width and height
ORIENTATION = 0x0112
BLOCK = 64  # pictures handed to a worker at a time
AHEAD = 4  # blocks read ahead for each worker
WORKER_SECONDS = 2.0  # what starting one costs
BAR_SECONDS = 2.0  # before a progress bar appears

Content: TypeAlias = Path | bytes  # a picture in a file, or already read


@dataclass(frozen=True)
class Form:
    """What pictures are brought to.

    Attributes:
        channels: One (grey) or three (colour).
        height: Of the result.
        width: Of the result.
        crop: First cut out the square of this side in the middle; by default the largest part in
            the middle that has the proportions of the result.
    """

    channels: int
    height: int
    width: int
    crop: int | None = None


@dataclass(frozen=True)
class Decoded:
    """Some pictures in their order, those that could be read, and why others could not."""

    images: np.ndarray  # uint8, (n, C, H, W)
    kept: list[int]  # which of the pictures these are
    damaged: list[str]  # "name (reason)"


def is_picture(name: str) -> bool:
    """Whether a file's name is that of a picture; hidden files, as `._a.jpg`, are none."""
    name = name.rsplit("/", 1)[-1].lower()
    return name.endswith(SUFFIXES) and not name.startswith(".")


def probe(content: Content) -> tuple[int, int, int]:
    """Channels, height and width of a picture, from its first bytes."""
    with _open(content) as picture:
        width, height = picture.size
        # A PNG's own method would decode all of it.
        if _pillow().Image.getexif(picture).get(ORIENTATION) in SIDEWAYS:
            width, height = height, width
        return (1 if picture.mode in GREY else 3), height, width


def decode(content: Content, form: Form) -> np.ndarray:  # uint8, (C, H, W)
    """A picture as numbers: the first frame, upright, what is transparent on white."""
    from PIL import Image, ImageOps

    with _open(content) as opened:
        grey = opened.mode in GREY
        picture = ImageOps.exif_transpose(opened)
        if picture.mode in SIXTEEN_BITS or picture.mode == "F":
            picture = Image.fromarray(_eight_bits(np.asarray(picture), picture.mode))
        elif picture.has_transparency_data:
            above = picture.convert("RGBA")
            picture = Image.new("RGBA", above.size, "white")
            picture.alpha_composite(above)
        picture = picture.convert("L" if grey and form.channels == 1 else "RGB")
        if form.crop is not None:
            side = min(form.crop, *picture.size)
            left, top = (picture.width - side) // 2, (picture.height - side) // 2
            picture = picture.crop((left, top, left + side, top + side))
        if picture.size != (form.width, form.height):
            picture = ImageOps.fit(picture, (form.width, form.height), Image.Resampling.LANCZOS)
        if form.channels == 1:
            return np.asarray(picture.convert("L"))[None]
        return np.asarray(picture).transpose(2, 0, 1)


def decode_all(
    pictures: Iterable[tuple[str, Content]], count: int, form: Form, workers: int | None = None
) -> Iterator[Decoded]:
    """Decode many pictures, in blocks, in their order; a bar shows it if it takes long.

    Args:
        pictures: Name (for messages) and content of each.
        count: How many there are.
        form: What they are brought to.
        workers: How many processes; by default as many as are worth their start. One: this
            process does it.
    """
    options = {"desc": "decoding", "unit": " pictures", "delay": BAR_SECONDS, "leave": False}
    with _needed("tqdm").tqdm(total=count, disable=None, **options) as bar:
        for block in _decode_blocks(pictures, count, form, workers):
            bar.update(len(block.kept) + len(block.damaged))
            yield block


def _decode_blocks(
    pictures: Iterable[tuple[str, Content]], count: int, form: Form, workers: int | None
) -> Iterator[Decoded]:
    blocks = _blocks(iter(pictures))
    if workers is None:
        start, block = next(blocks)
        began = time.perf_counter()
        yield _decode_block(start, block, form)
        rest = (time.perf_counter() - began) * (count / len(block) - 1)
        workers = max(1, min(_cores(), int(rest / WORKER_SECONDS)))
    if workers == 1:
        for start, block in blocks:
            yield _decode_block(start, block, form)
        return
    # Unlike the standard library's, these processes neither fork this one, which may run threads
    # or hold a GPU, nor import the user's script again.
    loky = _needed("joblib.externals.loky")
    waiting: deque[Future[Decoded]] = deque()
    with loky.ProcessPoolExecutor(max_workers=workers) as pool:
        try:
            for start, block in blocks:
                waiting.append(pool.submit(_decode_block, start, block, form))
                if len(waiting) > AHEAD * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except loky.BrokenProcessPool:
            raise ImageError(
                "A process that decodes images was killed, most likely for lack of memory; try "
                "again with workers=1."
            ) from None
        finally:
            for future in waiting:
                future.cancel()


def _blocks(
    pictures: Iterator[tuple[str, Content]],
) -> Iterator[tuple[int, list[tuple[str, Content]]]]:
    start = 0
    while block := list(islice(pictures, BLOCK)):
        yield start, block
        start += len(block)


def _decode_block(start: int, block: Sequence[tuple[str, Content]], form: Form) -> Decoded:
    images, kept, damaged = [], [], []
    for i, (name, content) in enumerate(block, start):
        try:
            images.append(decode(content, form))
        except unreadable() as error:
            damaged.append(f"{name} ({_reason(error)})")
        else:
            kept.append(i)
    stack = np.empty((len(images), form.channels, form.height, form.width), np.uint8)
    if images:
        np.stack(images, out=stack)
    return Decoded(stack, kept, damaged)


def unreadable() -> tuple[type[Exception], ...]:
    """What Pillow raises on a picture that is damaged, or is none, or is too large to be one."""
    from PIL import Image

    return (
        OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError, struct.error,
        Image.DecompressionBombError,
    )  # fmt: skip


def _reason(error: Exception) -> str:
    return "no picture" if "cannot identify" in str(error) else str(error) or type(error).__name__


def _eight_bits(values: np.ndarray, mode: str) -> np.ndarray:
    if mode == "F":
        values = np.nan_to_num(values)
        scale = 255.0 if values.max(initial=0.0) <= 1 else 1.0
        return (values * scale).round().clip(0, 255).astype(np.uint8)
    return (values.clip(0, 65535) / 257).round().astype(np.uint8)


def _open(content: Content) -> Any:
    return _pillow().open(io.BytesIO(content) if isinstance(content, bytes) else content)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _pillow() -> Any:
    return _needed("PIL.Image")


def _needed(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        package = module.partition(".")[0].replace("PIL", "Pillow")
        raise MissingExtraError(
            f"Reading images needs {package}: pip install 'kermix[images]'."
        ) from None
