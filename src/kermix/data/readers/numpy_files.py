"""NumPy files, whole; what packed files announce is checked before memory is taken."""

import zipfile
from pathlib import Path

import numpy as np

from kermix.data.readers.common import listed
from kermix.errors import SizeError, TableError

__all__ = ["check_declared_size", "load_numpy", "most_bytes"]

LARGEST = 2**34  # bytes that a packed file may become
RATIO = 200  # and how many times its own size: what is packed in earnest has less, bombs have 1000
SMALL = 2**26  # but this much in any case


def most_bytes(size: int, small: int = SMALL) -> int:
    """Bytes that a packed file of this size may become."""
    return min(LARGEST, max(RATIO * size, small))


def load_numpy(path: Path, array: str | None) -> np.ndarray:
    """The array of a .npy file, or one array of a .npz file."""
    if path.suffix.lower() == ".npz":
        check_declared_size(path)
    elif path.suffix.lower() == ".npy":
        _check_header(path)
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        reason = str(error).partition(". ")[0]
        if "allow_pickle" in str(error):  # how to load it unsafely is no advice of ours
            reason = "it holds Python objects, or was not written by NumPy"
        raise TableError(f"{path}: not a readable NumPy file of numbers ({reason}).") from None
    if isinstance(loaded, np.ndarray):
        return loaded
    with loaded:
        if array is None and len(loaded.files) == 1:
            array = loaded.files[0]
        if array not in loaded.files:
            asked = f"say which: {path}:{loaded.files[0]}" if loaded.files else "there is none"
            asked = asked if array is None else f"{array!r} is not among them"
            raise TableError(f"{path} holds the arrays {listed(loaded.files)}; {asked}.")
        try:
            return loaded[array]
        except (ValueError, OSError, EOFError, MemoryError, zipfile.BadZipFile) as error:
            raise TableError(f"{path}, array {array}: {error}.") from None


def check_declared_size(path: Path) -> None:
    """Refuse a zip file whose parts announce to become very large, before any of it is read.

    Parts of a .npz file are looked into: what the header of an array announces counts too.
    """
    size = path.stat().st_size
    limit = most_bytes(size)
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(i.file_size for i in archive.infolist())
            for part in archive.infolist():
                if part.filename.endswith(".npy"):
                    with archive.open(part) as file:
                        total = max(total, _announced(file))
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError) as error:
        raise TableError(f"{path}: not a readable file ({error}).") from None
    if total > limit:
        raise SizeError(
            f"{path}: announces {total >> 20} MiB in a file of {size} bytes, more than "
            f"{limit >> 20} MiB; it is not read. Unpack it yourself if that is right."
        )


def _check_header(path: Path) -> None:
    try:
        with path.open("rb") as file:
            announced = _announced(file)
    except (OSError, ValueError, EOFError):
        return  # NumPy says better what is wrong
    size = path.stat().st_size
    if announced > size:
        raise TableError(
            f"{path}: not a readable NumPy file of numbers (its header announces {announced} "
            f"bytes of numbers, and the file has {size})."
        )


def _announced(file: object) -> int:
    """Bytes of the array that a header announces."""
    formats = np.lib.format
    version = formats.read_magic(file)  # type: ignore[arg-type]
    read = formats.read_array_header_1_0 if version == (1, 0) else formats.read_array_header_2_0
    shape, _, dtype = read(file)  # type: ignore[arg-type]
    count = 1
    for length in shape:
        count *= int(length)
    return 0 if dtype.hasobject else count * dtype.itemsize
