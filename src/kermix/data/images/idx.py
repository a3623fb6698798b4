"""IDX files, the format of MNIST: a few bytes of type and shape, then the numbers."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np

from kermix.errors import ImageError

__all__ = ["is_idx", "read_idx_array"]

TYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}


def is_idx(path: Path) -> bool:
    """Whether a name is that of an IDX file: `...-ubyte`, `.idx`, and these with `.gz`."""
    name = path.name.lower().removesuffix(".gz")
    return name.endswith(("ubyte", ".idx"))


def read_idx_array(path: Path) -> np.ndarray:
    """The numbers of an IDX file, packed with gzip or not, in the type and shape it names."""
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError:
        raise ImageError(f"{path}: there is no such file.") from None
    except (OSError, EOFError, zlib.error) as error:
        raise ImageError(f"{path}: cannot be read ({error}).") from None
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
