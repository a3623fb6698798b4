"""Files of public sets of images: CelebA, CIFAR-10, and the IDX files of MNIST.

CelebA: `img_align_celeba/*.jpg`, `list_eval_partition.txt` and `list_attr_celeba.txt` may lie in
one folder or, as they are published, in `Img`, `Eval` and `Anno`; without the lists the pictures
alone will do. CIFAR-10: the official binary batches, packed or not, and copies as pictures.
"""

import gzip
import lzma
import math
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from kermix.data.images.image_cache import Plan, Prepared, content_digest, prepared
from kermix.data.images.pictures import (
    Form,
    damage_note,
    decode_all,
    find_pictures,
    held_out,
    is_picture,
    prepare_files,
)
from kermix.errors import ImageError, OptionError

__all__ = [
    "CLASSES",
    "Faces",
    "Split",
    "is_idx",
    "read_binary_archive",
    "read_binary_batches",
    "read_celeba",
    "read_idx_array",
    "read_picture_archive",
]

TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def is_idx(path: Path) -> bool:
    """Whether a name is that of an IDX file: `...-ubyte`, `.idx`, and these with `.gz`."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith(("ubyte", ".idx"))


def read_idx_array(path: Path) -> np.ndarray:
    """The numbers of an IDX file, packed with gzip or not, in the type and shape it names."""
    data = _unpacked(path)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in TYPES:
        raise ImageError(f"{path}: not an IDX file; its first bytes are {data[:4].hex(' ')}.")
    kind, axes = np.dtype(TYPES[data[2]]), data[3]
    start = 4 + 4 * axes
    sizes = [int.from_bytes(data[i : i + 4], "big") for i in range(4, start, 4)]
    expected = start + math.prod(sizes) * kind.itemsize
    if axes < 1 or len(data) != expected or not math.prod(sizes):
        raise ImageError(
            f"{path}: damaged; {expected} bytes are announced for shape {tuple(sizes)} and there "
            f"are {len(data)}."
        )
    return np.frombuffer(data, kind, offset=start).reshape(sizes)


def _unpacked(path: Path) -> bytes:
    """The content of a file that may be packed with gzip."""
    try:
        data = path.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except FileNotFoundError:
        raise ImageError(f"{path}: there is no such file.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ImageError(f"{path}: cannot be read ({error}).") from None


CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip
SIDE = 32
BATCHES = {
    "train": tuple(f"data_batch_{i}.bin" for i in "12345"),
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
    size = 1 + 3 * SIDE * SIDE  # the label, then red, green and blue
    for name, data in contents:
        if not data or len(data) % size:
            raise ImageError(
                f"{name}: damaged; {len(data)} bytes are not a multiple of the {size} bytes of "
                "an image. Download it again."
            )
        largest = max(data[::size])
        if largest >= len(CLASSES):
            raise ImageError(f"{name}: not from CIFAR-10; it has a label {largest}.")
    rows: np.ndarray = np.concatenate([np.frombuffer(data, np.uint8) for _, data in contents])
    rows = rows.reshape(-1, size)
    return rows[:, 1:].reshape(-1, 3, SIDE, SIDE), rows[:, 0].astype(np.int64)


PICTURES = "img_align_celeba"
PARTS_LIST = "list_eval_partition.txt"
ATTRIBUTES_LIST = "list_attr_celeba.txt"
PARTS = ("train", "valid", "test")  # by their numbers in the list
BY_HAND = (
    "It must be downloaded manually, because its authors ask every user to agree to its terms."
)


@dataclass(frozen=True)
class Faces:
    """Faces and what is known of them.

    Attributes:
        images: uint8, (N, 3, size, size), may be mapped from a file.
        names: Of the attributes; empty without the list.
        attributes: Whether a face has each, bool, (N, attributes).
        notes: What was left out.
    """

    images: np.ndarray
    names: tuple[str, ...]
    attributes: np.ndarray
    notes: tuple[str, ...]

    def attribute(self, name: str) -> np.ndarray:  # int64, (N,)
        """One attribute, as 0 and 1."""
        if name not in self.names:
            known = ", ".join(self.names) or f"none, as there is no {ATTRIBUTES_LIST}"
            raise OptionError(f"{name!r} is not an attribute of the faces; choose from {known}.")
        return self.attributes[:, self.names.index(name)].astype(np.int64)


def read_celeba(
    root: Path | None,
    part: Literal["train", "valid", "test"] = "train",
    *,
    size: int | None = None,
    crop: int = 148,
    cache: Path | None = None,
    workers: int | None = None,
) -> Faces:
    """Read faces: cut out the middle, bring it to one size, keep it for the next time.

    Args:
        root: The folder of the set, or one that holds it.
        part: As the list says; without it, "test" is a fifth of the pictures and "valid" empty.
        size: Side of the images in pixels; by default 64.
        crop: Side of the square that is cut out before, of 178 x 218 pixels: by default the face,
            with little of what is behind it.
        cache: Where decoded pictures are kept, see `kermix.data.images.image_cache.prepared`.
        workers: How many processes decode them, see
            `kermix.data.images.pictures.decode_all`.
    """
    if part not in PARTS:
        raise OptionError(f"part is {part!r}; offered are {', '.join(PARTS)}.")
    if root is None:
        raise ImageError(f"celeba: give its folder as data_root. {BY_HAND}")
    folder = celeba_folder(root)
    files, notes = _part(folder, part)
    side = 64 if size is None else size
    form = Form(3, side, side, crop)
    found = prepare_files(f"celeba-{part}", folder, files, form=form, cache=cache, workers=workers)
    names, table = _attributes(folder, [files[i].name for i in found.labels])
    notes += (*found.notes, *damage_note("celeba", found))
    return Faces(found.images, names, table, notes)


def celeba_folder(root: Path) -> Path:
    """Where the pictures are: in the folder of the set, or of one that holds it."""
    bases = [root, root / "celeba", root / "CelebA"]
    places = [base / inner / name for base in bases for inner in (".", "Img", "img")
              for name in (f"{PICTURES}/{PICTURES}", PICTURES)]  # fmt: skip
    places += [root] if root.name == PICTURES else []
    found = next(filter(Path.is_dir, places), None)
    if found is not None:
        return found.resolve()
    packed = next((p for base in bases for p in base.rglob(f"{PICTURES}.zip")), None)
    if packed is not None:
        raise ImageError(f"{packed}: still packed; unpack it in place.")
    raise ImageError(f"{root}: no folder {PICTURES} in it. {BY_HAND}")


def _find_list(folder: Path, name: str) -> Path | None:
    for base in list(folder.parents)[:3]:
        for place in (base, base / "Anno", base / "Eval"):
            if (place / name).is_file():
                return place / name
    return None


def _part(folder: Path, part: str) -> tuple[list[Path], tuple[str, ...]]:
    there = {file.name: file for file in find_pictures(folder)}
    path = _find_list(folder, PARTS_LIST)
    if path is None:
        held = held_out(list(there.values()))
        files = [f for f in there.values() if part != "valid" and (f in held) == (part == "test")]
        notes = [f"celeba: no {PARTS_LIST}; a fifth of the images is held out for testing."]
    else:
        files, notes = _listed_part(there, _read_parts(path), part)
    if not files:
        raise ImageError(f"{folder}: no pictures of the part {part!r}.")
    return files, tuple(notes)


def _listed_part(
    there: dict[str, Path], listed: dict[str, str], part: str
) -> tuple[list[Path], list[str]]:
    """The pictures of a part by the list, and what to say of those that differ from it."""
    wanted = [name for name, own in listed.items() if own == part]
    missing = [name for name in wanted if name not in there]
    notes = []
    if missing:
        notes.append(
            f"celeba: {len(missing)} of {len(wanted)} pictures in the list of the part {part} "
            f"are not there, as {missing[0]}."
        )
    if extra := there.keys() - listed.keys():
        notes.append(f"celeba: {len(extra)} images are in no list and are ignored.")
    return [there[name] for name in wanted if name in there], notes


def _read_parts(path: Path) -> dict[str, str]:
    """The part of each picture."""
    found = {}
    for number, line in enumerate(_lines(path), 1):
        words = line.split()
        if len(words) != 2 or words[1] not in ("0", "1", "2"):
            raise ImageError(f"{path}, line {number}: not a name and 0, 1 or 2, but {line!r}.")
        found[words[0]] = PARTS[int(words[1])]
    return found


def _attributes(folder: Path, files: list[str]) -> tuple[tuple[str, ...], np.ndarray]:
    path = _find_list(folder, ATTRIBUTES_LIST)
    if path is None:
        return (), np.zeros((len(files), 0), bool)
    lines = _lines(path)
    if len(lines) < 2 or not lines[0].strip().isdigit():
        raise ImageError(
            f"{path}: damaged; it must begin with a count and the names of the attributes."
        )
    names = tuple(lines[1].split())
    found = dict(_attributes_of(path, number, line, len(names))
                 for number, line in enumerate(lines[2:], 3))  # fmt: skip
    if missing := [name for name in files if name not in found]:
        raise ImageError(f"{path}: {len(missing)} pictures are not in it, as {missing[0]}.")
    return names, np.array([found[name] for name in files], bool)


def _attributes_of(path: Path, number: int, line: str, count: int) -> tuple[str, list[bool]]:
    """A picture and whether it has each of the attributes, from a line of the list."""
    name, *values = line.split()
    if len(values) != count or set(values) - {"1", "-1"}:
        raise ImageError(
            f"{path}, line {number}: not a name and {count} times 1 or -1, but {line!r}."
        )
    return name, [value == "1" for value in values]


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ImageError(f"{path}: cannot be read ({error}).") from None
