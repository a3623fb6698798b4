"""Pictures in files and folders, of any size and mode, as arrays, many at once.

A folder may have classes, each a folder in it, and folders for training and for the test.
"""

import hashlib
import importlib
import io
import os
import struct
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from kermix.data.images.image_cache import Decoded, Plan, Prepared, fingerprint, prepared
from kermix.errors import ImageError, MissingExtraError

__all__ = [
    "ClassFolders",
    "Content",
    "Form",
    "damage_note",
    "decode",
    "decode_all",
    "find_pictures",
    "held_out",
    "is_picture",
    "part_folders",
    "prepare_files",
    "probe",
    "read_class_folders",
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
    yield from _decoded_by(workers, blocks, form)


def _decoded_by(
    workers: int,
    blocks: Iterator[tuple[int, list[tuple[str, Content]]]],
    form: Form,
    ahead: int = 4,
) -> Iterator[Decoded]:
    """Blocks decoded by several processes, for each of which some are read ahead.

    Unlike the standard library's, these processes neither fork this one, which may run threads or
    hold a GPU, nor import the user's script again; unlike joblib's, they end with the last block,
    and say nothing of those that nobody waits for any more.
    """
    loky = _needed("joblib.externals.loky")
    waiting: deque[Future[Decoded]] = deque()
    with loky.ProcessPoolExecutor(max_workers=workers) as pool:
        try:
            for start, block in blocks:
                waiting.append(pool.submit(_decode_block, start, block, form))
                if len(waiting) > ahead * workers:
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
        except _unreadable() as error:
            damaged.append(f"{name} ({_reason(error)})")
        else:
            kept.append(i)
    stack = np.empty((len(images), form.channels, form.height, form.width), np.uint8)
    if images:
        np.stack(images, out=stack)
    return Decoded(stack, kept, damaged)


def _unreadable() -> tuple[type[Exception], ...]:
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


TEST_NAMES = ("test", "val", "valid", "validation")


@dataclass(frozen=True)
class ClassFolders:
    """Where the pictures of each class and split are; the label is the place of the class."""

    classes: tuple[str, ...]
    train: list[tuple[Path, int]]  # picture, label
    test: list[tuple[Path, int]]
    notes: tuple[str, ...] = ()

    def split(self, name: Literal["train", "test"]) -> list[tuple[Path, int]]:
        """The pictures of a split."""
        return self.train if name == "train" else self.test


def find_pictures(folder: Path) -> list[Path]:
    """All pictures in a folder and the folders in it, in the order of their names."""
    files = sorted(p for p in folder.rglob("*") if is_picture(p.name) and p.is_file())
    if not files:
        raise ImageError(
            f"{folder}: no images in this folder; supported files end in {', '.join(SUFFIXES)}."
        )
    return files


def read_class_folders(folder: Path) -> ClassFolders:
    """Find the pictures of a folder with one folder for each class.

    Either `train/CLASS/*.png` and `test/CLASS/*.png`, or `CLASS/*.png`; then a fifth of each class
    becomes the test set, chosen by the pictures' names and so always the same.
    """
    parts = part_folders(folder)
    return _with_held_out(folder) if parts is None else _with_test_folder(*parts)


def _with_test_folder(train: Path, test: Path) -> ClassFolders:
    """The classes of two folders, those of the test among those of the training."""
    train_classes, test_classes = _classes(train), _classes(test)
    classes = tuple(train_classes)
    unknown = [c for c in test_classes if c not in train_classes]
    if unknown:
        raise ImageError(
            f"{test / unknown[0]}: a class without a folder in {train}; the classes there are "
            f"{', '.join(classes)}."
        )
    return ClassFolders(
        classes,
        [(file, i) for i, c in enumerate(classes) for file in train_classes[c]],
        [(file, i) for i, c in enumerate(classes) for file in test_classes.get(c, [])],
    )


def _with_held_out(folder: Path) -> ClassFolders:
    """The classes of a folder, a fifth of each for the test."""
    found = _classes(folder)
    kept: list[tuple[Path, int]] = []
    held: list[tuple[Path, int]] = []
    for label, files in enumerate(found.values()):
        chosen = held_out(files)
        kept += [(file, label) for file in files if file not in chosen]
        held += [(file, label) for file in files if file in chosen]
    if not held:
        raise ImageError(
            f"{folder}: too few images per class to hold some out for testing; at least one "
            "class needs 3, or use folders train/ and test/."
        )
    note = (
        f"{folder.name}: no test folder; a fifth of each class was held out, {len(held)} in all."
    )
    return ClassFolders(tuple(found), kept, held, (note,))


def part_folders(folder: Path) -> tuple[Path, Path] | None:
    """The folders for training and for the test in a folder, if it has both."""
    inner = {p.name.lower(): p for p in _folders(folder)}
    test = next((inner[name] for name in TEST_NAMES if name in inner), None)
    return (inner["train"], test) if "train" in inner and test is not None else None


def held_out(files: Sequence[Path]) -> set[Path]:
    """A fifth of the pictures, chosen by their names and so always the same."""
    return set(sorted(files, key=_shuffled)[: round(len(files) / 5)])


def prepare_files(
    name: str,
    root: Path,
    files: Sequence[Path],
    labels: Sequence[int] | None = None,
    *,
    together: Sequence[Path] | None = None,
    form: Form | int | None = None,
    cache: Path | None = None,
    workers: int | None = None,
) -> Prepared:
    """Decode picture files, or take them from the cache.

    Args:
        name: For the cache and messages.
        root: A folder that holds them all.
        files: What to decode.
        labels: One for each file; by default its place.
        together: The pictures that decide on the common form; by default the files themselves.
        form: What to bring them to, or the side in pixels; by default the most common size.
        cache: See `kermix.data.images.image_cache.prepared`.
        workers: See `kermix.data.images.pictures.decode_all`.
    """
    deciding = files if together is None else together
    whole, size = (form, None) if isinstance(form, Form) else (None, form)

    def plan() -> Plan:
        chosen, notes = _common_form(root, deciding, size) if whole is None else (whole, ())
        named = [(file.relative_to(root).as_posix(), file) for file in files]
        return Plan(
            (len(files), chosen.channels, chosen.height, chosen.width),
            np.arange(len(files)) if labels is None else np.array(labels, np.int64),
            lambda: decode_all(named, len(named), chosen, workers),
            notes,
        )

    digest = fingerprint(root, [*files, *deciding], len(files), labels, size, whole)
    result = prepared(f"{name}-{digest}", plan, cache)
    if not len(result.images):
        raise ImageError(f"{root}: no image could be read; the first is {result.damaged[0]}.")
    return result


def damage_note(name: str, found: Prepared, most: int = 5) -> tuple[str, ...]:
    """A sentence that counts the pictures that were skipped, if any, and names the first."""
    if not found.damaged:
        return ()
    total = len(found.images) + len(found.damaged)
    listed = ", ".join(found.damaged[:most])
    more = len(found.damaged) - most
    listed += f" and {more} more" if more > 0 else ""
    count = f"{len(found.damaged)} of {total} pictures"
    return (f"{name}: {count} are damaged and were skipped: {listed}.",)


def _common_form(
    root: Path, files: Sequence[Path], size: int | None
) -> tuple[Form, tuple[str, ...]]:
    sizes: Counter[tuple[int, int]] = Counter()
    channels = 1
    for file in files:
        try:
            colours, height, width = probe(file)
        except _unreadable():
            continue  # named when it is decoded
        channels = max(channels, colours)
        sizes[height, width] += 1
    if not sizes:
        raise ImageError(f"{root}: none of {len(files)} pictures can be read, as {files[0].name}.")
    height, width = (size, size) if size is not None else sizes.most_common(1)[0][0]
    others = sum(sizes.values()) - sizes[height, width]
    notes: tuple[str, ...] = ()
    if others:
        why = "the size asked for" if size is not None else "the most common size"
        notes = (
            f"{root.name}: {others} of {sum(sizes.values())} images were centre-cropped and "
            f"resized to {width} x {height}, {why}.",
        )
    return Form(channels, height, width), notes


def _classes(folder: Path) -> dict[str, list[Path]]:
    found = {p.name: find_pictures(p) for p in _folders(folder)}
    if len(found) < 2:
        raise ImageError(
            f"{folder}: {len(found)} folders with images, but each class needs a folder of its "
            "own; expected FOLDER/CLASS/*.png, or FOLDER/train/CLASS/*.png and "
            "FOLDER/test/CLASS/*.png."
        )
    return found


def _folders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _shuffled(file: Path) -> bytes:
    return hashlib.sha256(f"{file.parent.name}/{file.name}".encode(errors="replace")).digest()
