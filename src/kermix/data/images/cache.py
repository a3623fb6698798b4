"""Prepared images, kept as memory-mapped files so that they are decoded once.

An entry is a folder with `images.npy`, `labels.npy` and `entry.json` (checksum, damaged
pictures, notes). It is written under a temporary name and renamed when whole,
so that a half-written entry is never taken for a whole one; when two processes prepare the same
entry, the first to finish wins. The name holds a fingerprint of the source: changed pictures make
a new entry.
"""

import glob
import hashlib
import io
import json
import math
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from kermix.data.images.decoding import Decoded
from kermix.errors import MissingExtraError

__all__ = ["Plan", "Prepared", "cache_folder", "content_digest", "fingerprint", "prepared"]

VERSION = 1  # of the decoding: raised when the same pictures give other numbers
ARRAYS = ("images.npy", "labels.npy")
FORGOTTEN = 24 * 3600.0  # seconds after which what a killed process left is removed
WORTH_KEEPING = 2**24  # bytes; less is decoded in a moment, and kept only where a cache was named


@dataclass(frozen=True)
class Plan:
    """How images are prepared: their number and form, and what decodes them."""

    shape: tuple[int, int, int, int]  # N, C, H, W, if no picture is damaged
    labels: np.ndarray  # int64, (N,)
    blocks: Callable[[], Iterable[Decoded]]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """Decoded images.

    Attributes:
        images: uint8, (N, C, H, W); mapped from the cache, or in memory.
        labels: int64, (N,).
        damaged: "name (reason)" of each picture that was skipped.
        notes: What went otherwise than usual.
    """

    images: np.ndarray
    labels: np.ndarray
    damaged: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def cache_folder() -> Path:
    """Where prepared data are kept: `$KERMIX_CACHE`, or the user's folder for such files."""
    if chosen := os.environ.get("KERMIX_CACHE"):
        return Path(chosen)
    try:
        from pooch import os_cache
    except ImportError:
        raise MissingExtraError(
            "Caching prepared images needs pooch: pip install 'kermix[images]'."
        ) from None
    return os_cache("kermix")


def content_digest(path: Path, *options: object) -> str:
    """Twenty hexadecimal digits of a file's content and of options."""
    return hashlib.sha256(f"{_checksum(path)} {VERSION} {options}".encode()).hexdigest()[:20]


def fingerprint(root: Path, files: Iterable[Path], *options: object) -> str:
    """Twenty hexadecimal digits of the files' places, sizes and times, and of options."""
    digest = hashlib.sha256(repr((VERSION, options, str(root.resolve()))).encode())
    for file in files:
        status = file.stat()
        line = f"{file.relative_to(root).as_posix()}\0{status.st_size}\0{status.st_mtime_ns}\n"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:20]


def prepared(name: str, plan: Callable[[], Plan], cache: Path | None) -> Prepared:
    """Images from the cache, or decoded now and kept there.

    Where the cache cannot be written, or the disk is full, they stay in memory and a note says so.

    Args:
        name: Of the entry, with the fingerprint of the source.
        plan: Looks at the pictures and says how to decode them; not called if the entry exists.
        cache: The folder; by default `cache_folder`, and only for what takes some time.
    """
    folder = cache_folder() if cache is None else cache
    entry = folder / name
    found = _read(entry)
    if found is not None:
        return found
    chosen = plan()
    size = math.prod(chosen.shape)
    if cache is None and size < WORTH_KEEPING:
        return _in_memory(chosen)
    try:
        with _temporary(folder, name) as temporary:
            _check_space(temporary, size)
            _write(temporary, chosen)
            _put(temporary, entry)
        found = _read(entry)
    except OSError as error:
        note = f"Not cached in {folder}: {error.strerror or error}."
    else:
        if found is not None:
            return found
        note = f"Not cached in {folder}: it could not be read back."
    return _in_memory(chosen, note)


def _in_memory(plan: Plan, *notes: str) -> Prepared:
    parts = list(plan.blocks())
    images = np.concatenate([p.images for p in parts])
    labels = plan.labels[[i for p in parts for i in p.kept]]
    damaged = tuple(d for p in parts for d in p.damaged)
    return Prepared(images, labels, damaged, (*plan.notes, *notes))


@contextmanager
def _temporary(folder: Path, name: str) -> Iterator[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{glob.escape(name)}.*.part"):
        with suppress(FileNotFoundError):  # another process may have just finished with it
            if time.time() - left.stat().st_mtime > FORGOTTEN:
                shutil.rmtree(left, ignore_errors=True)
    # Not made by tempfile, whose folders other users of a common cache cannot read.
    temporary = folder / f"{name}.{uuid.uuid4().hex}.part"
    temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < size:
        raise OSError(f"{size / 1e6:.0f} MB are needed and {free / 1e6:.0f} MB are free")


def _write(folder: Path, plan: Plan) -> None:
    kept: list[int] = []
    damaged: list[str] = []
    # Written piece by piece, not through a map: on a full disk a map ends the whole process.
    with (folder / "images.npy").open("wb") as file:
        _write_header(file, plan.shape)
        for block in plan.blocks():
            file.write(np.ascontiguousarray(block.images).data)
            kept += block.kept
            damaged += block.damaged
        # NumPy leaves room for another number of rows: this header is as long as the first.
        file.seek(0)
        _write_header(file, (len(kept), *plan.shape[1:]))
    np.save(folder / "labels.npy", plan.labels[kept])
    sums = {name: _checksum(folder / name) for name in ARRAYS}
    content = {"sha256": sums, "damaged": damaged, "notes": plan.notes}
    (folder / "entry.json").write_text(json.dumps(content, indent=1))


def _write_header(file: BinaryIO, shape: tuple[int, ...]) -> None:
    header = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    file.write(header.getvalue())


def _put(temporary: Path, entry: Path) -> None:
    try:
        temporary.rename(entry)
    except OSError:
        # Another process was first, or there is a damaged entry.
        if _read(entry) is None:
            aside = temporary.with_suffix(".old.part")
            with suppress(OSError):
                entry.rename(aside)
            shutil.rmtree(aside, ignore_errors=True)
            temporary.rename(entry)


def _read(entry: Path) -> Prepared | None:
    """An entry, or nothing if there is none or it is damaged."""
    try:
        content = json.loads((entry / "entry.json").read_text())
        if any(_checksum(entry / name) != content["sha256"][name] for name in ARRAYS):
            return None
        # Copy on write: torch.from_numpy takes it as it is, and the file never changes.
        images = np.load(entry / "images.npy", mmap_mode="c")
        labels = np.load(entry / "labels.npy")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Prepared(images, labels, tuple(content["damaged"]), tuple(content["notes"]))


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
