"""Folders of pictures, with and without labels, of any size and mode."""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kermix.data.images.image_cache import (
    SUFFIXES,
    Form,
    Plan,
    Prepared,
    decode_all,
    fingerprint,
    is_picture,
    prepared,
    probe,
    unreadable,
)
from kermix.errors import ImageError

__all__ = [
    "ClassFolders",
    "damage_note",
    "find_pictures",
    "held_out",
    "part_folders",
    "prepare_files",
    "read_class_folders",
]

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
        workers: See `kermix.data.images.image_cache.decode_all`.
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
        except unreadable():
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
