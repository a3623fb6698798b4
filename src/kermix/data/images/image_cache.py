"""Pictures decoded once, many at once in worker processes, and kept as memory-mapped files.

An entry is a folder with `images.npy`, `labels.npy` and `entry.json` (checksum, damaged pictures,
notes), named by a fingerprint of the source: changed pictures make a new entry. It is written
under a temporary name and renamed when whole; when two processes prepare the same entry, the first
to finish wins.
"""

import glob
import hashlib
import importlib
import io
import json
import math
import os
import shutil
import struct
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np

from kermix.errors import ImageError, MissingExtraError

__all__ = [
    "SUFFIXES",
    "Content",
    "Decoded",
    "Form",
    "Plan",
    "Prepared",
    "cache_folder",
    "content_digest",
    "decode",
    "decode_all",
    "fingerprint",
    "is_picture",
    "prepared",
    "probe",
    "unreadable",
]

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SIXTEEN_BITS = ("I", "I;16", "I;16L", "I;16B", "I;16N")
GREY = ("1", "L", "LA", "La", "F", *SIXTEEN_BITS)

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
        tags = _pillow().Image.getexif(picture)
        if tags.get(_needed("PIL.ExifTags").Base.Orientation) in (5, 6, 7, 8):  # sideways
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
    options = {"desc": "decoding", "unit": " pictures", "delay": 2.0, "leave": False}
    with _needed("tqdm").tqdm(total=count, disable=None, **options) as bar:
        for block in _decode_blocks(pictures, count, form, workers):
            bar.update(len(block.kept) + len(block.damaged))
            yield block


def _decode_blocks(
    pictures: Iterable[tuple[str, Content]],
    count: int,
    form: Form,
    workers: int | None,
    start_seconds: float = 2.0,
) -> Iterator[Decoded]:
    """The same without a bar, by as many processes as save more than their start takes."""
    blocks = _blocks(iter(pictures))
    if workers is None:
        start, block = next(blocks)
        began = time.perf_counter()
        yield _decode_block(start, block, form)
        rest = (time.perf_counter() - began) * (count / len(block) - 1)
        workers = max(1, min(_cores(), int(rest / start_seconds)))
    if workers == 1:
        for start, block in blocks:
            yield _decode_block(start, block, form)
        return
    # Unlike the standard library's, these processes neither fork this one, which may run threads
    # or hold a GPU, nor import the user's script again.
    joblib = _needed("joblib")
    decode_in_turn = joblib.Parallel(
        workers, return_as="generator", batch_size=1, pre_dispatch="4 * n_jobs", mmap_mode=None
    )
    try:
        yield from decode_in_turn(
            joblib.delayed(_decode_block)(start, block, form) for start, block in blocks
        )
    except _needed("joblib.externals.loky").BrokenProcessPool:
        raise ImageError(
            "A process that decodes images was killed, most likely for lack of memory; try "
            "again with workers=1."
        ) from None


def _blocks(
    pictures: Iterator[tuple[str, Content]], size: int = 64
) -> Iterator[tuple[int, list[tuple[str, Content]]]]:
    start = 0
    while block := list(islice(pictures, size)):
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


VERSION = 1  # of the decoding: raised when the same pictures give other numbers
ARRAYS = ("images.npy", "labels.npy")


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


def prepared(
    name: str, plan: Callable[[], Plan], cache: Path | None, worth_keeping: int = 2**24
) -> Prepared:
    """Images from the cache, or decoded now and kept there.

    Where the cache cannot be written, or the disk is full, they stay in memory and a note says so.

    Args:
        name: Of the entry, with the fingerprint of the source.
        plan: Looks at the pictures and says how to decode them; not called if the entry exists.
        cache: The folder; by default `cache_folder`, and only for what takes some time.
        worth_keeping: From so many bytes on; less is decoded in a moment.
    """
    folder = cache_folder() if cache is None else cache
    entry = folder / name
    found = _read(entry)
    if found is not None:
        return found
    chosen = plan()
    size = math.prod(chosen.shape)
    if cache is None and size < worth_keeping:
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
def _temporary(folder: Path, name: str, forgotten: float = 24 * 3600.0) -> Iterator[Path]:
    """A folder for an entry; what a killed process left so many seconds ago is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{glob.escape(name)}.*.part"):
        with suppress(FileNotFoundError):  # another process may have just finished with it
            if time.time() - left.stat().st_mtime > forgotten:
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
