"""CIFAR-10: the official binary batches, packed or not, and copies as pictures in an archive."""

import gzip
import lzma
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np

from kermix.data.images.cache import Plan, Prepared, content_digest, prepared
from kermix.data.images.decoding import Form, decode_all, is_picture
from kermix.errors import ImageError

__all__ = ["CLASSES", "read_binary_archive", "read_binary_batches", "read_picture_archive"]

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE  # the label, then red, green and blue
BATCHES = {
    "train": tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
    "test": ("test_batch.bin",),
}

Split = Literal["train", "test"]


def read_binary_batches(folder: Path, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """Images (uint8, (N, 3, 32, 32)) and labels of `data_batch_1.bin` and so on."""
    contents = []
    for name in BATCHES[split]:
        try:
            contents.append((str(folder / name), (folder / name).read_bytes()))
        except OSError as error:
            raise ImageError(f"{folder / name}: cannot be read ({error.strerror}).") from None
    return _records(contents)


def read_binary_archive(path: Path, split: Split) -> tuple[np.ndarray, np.ndarray]:
    """The same from `cifar-10-binary.tar.gz`, without unpacking it."""
    wanted, contents = set(BATCHES[split]), {}
    for name, content in _archived(path):
        if (name := name.rsplit("/", 1)[-1]) in wanted:
            contents[name] = content
    missing = sorted(wanted - contents.keys())
    if missing:
        raise ImageError(f"{path}: {missing[0]} is not in this archive; download it again.")
    return _records([(f"{path}: {name}", contents[name]) for name in BATCHES[split]])


def read_picture_archive(
    path: Path, split: Split, *, cache: Path | None = None, workers: int | None = None
) -> Prepared:
    """The pictures of an archive with `train/CLASS/*.jpg` and `test/CLASS/*.jpg`.

    The archive is read once, its pictures are decoded from memory.
    """

    def plan() -> Plan:
        pictures = _members(path, split)
        labels = [CLASSES.index(name.split("/")[-2]) for name, _ in pictures]
        form = Form(3, SIDE, SIDE)
        return Plan(
            (len(pictures), 3, SIDE, SIDE),
            np.array(labels, np.int64),
            lambda: decode_all(pictures, len(pictures), form, workers),
        )

    try:
        digest = content_digest(path, split)
    except OSError as error:
        raise ImageError(f"{path}: cannot be read ({error.strerror}).") from None
    found = prepared(f"cifar10-{split}-{digest}", plan, cache)
    if not len(found.images):
        raise ImageError(f"{path}: no picture could be read; the first is {found.damaged[0]}.")
    return found


def _members(path: Path, split: Split) -> list[tuple[str, bytes]]:
    found = []
    for name, content in _archived(path):
        parts = name.split("/")
        if len(parts) < 3 or parts[-3] != split or not is_picture(name):
            continue
        if parts[-2] not in CLASSES:
            raise ImageError(f"{path}: {name} does not belong to a class of CIFAR-10.")
        found.append((name, content))
    if not found:
        raise ImageError(f"{path}: no pictures {split}/CLASS/*.jpg in this archive.")
    return found


def _archived(path: Path) -> Iterator[tuple[str, bytes]]:
    """The files of an archive with what is in them, in the order they are in it."""
    # tarfile alone takes the end of a packed file that was cut off for the end of the archive.
    unpack = lzma.open if path.suffix == ".xz" else gzip.open
    try:
        with unpack(path, "rb") as stream:
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if (file := archive.extractfile(member)) is not None:
                        yield member.name, file.read()
            while stream.read(2**20):
                pass
    except (tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, OSError) as error:
        raise ImageError(f"{path}: damaged or incomplete ({error}); download it again.") from None


def _records(contents: list[tuple[str, bytes]]) -> tuple[np.ndarray, np.ndarray]:
    for name, data in contents:
        if not data or len(data) % RECORD:
            raise ImageError(
                f"{name}: damaged; {len(data)} bytes are not a multiple of the {RECORD} bytes of "
                "an image. Download it again."
            )
        largest = max(data[::RECORD])
        if largest >= len(CLASSES):
            raise ImageError(f"{name}: not from CIFAR-10; it has a label {largest}.")
    rows: np.ndarray = np.concatenate([np.frombuffer(data, np.uint8) for _, data in contents])
    rows = rows.reshape(-1, RECORD)
    return rows[:, 1:].reshape(-1, 3, SIDE, SIDE), rows[:, 0].astype(np.int64)
