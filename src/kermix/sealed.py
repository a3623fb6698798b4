"""Files of tensors and JSON with a checksum of all their bytes, which is compared on reading.

Tensors are in the safetensors format and the JSON is in its header: nothing in the file executes
when it is read. Sketches and checkpoints are such files.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from kermix.errors import MissingExtraError
from kermix.files import whole_file

__all__ = ["read_sealed", "write_sealed"]

BLANK = "0" * 64  # stands for the checksum while it is computed


def write_sealed(path: Path, tensors: Mapping[str, Tensor], text: str, missing: str) -> None:
    """Write tensors and what describes them, as one step.

    Args:
        path: Where.
        tensors: By name.
        text: JSON.
        missing: What to say where safetensors is not installed.
    """
    library = _safetensors(missing)
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    sealed = f'{{"sha256": "{BLANK}", "content": {text}}}'
    data = library.save(plain, metadata={"kermix": sealed})
    header = data[: _header_end(data)]
    filled = header.replace(BLANK.encode(), _checksum(data).encode(), 1)
    with whole_file(path) as part, part.open("wb") as file:
        file.write(filled)
        file.write(memoryview(data)[len(header) :])
        file.flush()
        os.fsync(file.fileno())


def read_sealed(path: Path, missing: str) -> tuple[dict[str, Tensor], Any]:
    """Tensors and content of such a file; a ValueError says what is wrong with it."""
    library = _safetensors(missing)
    from safetensors import SafetensorError

    try:
        data = path.read_bytes()
        header = data[: _header_end(data)]
        words = json.loads(header[8:]).get("__metadata__", {}).get("kermix")
        if words is None:
            raise ValueError("it was not written by kermix")
        sealed = json.loads(words)
        _compare(sealed["sha256"], header, memoryview(data)[len(header) :])
        return library.load(data), sealed["content"]
    except (KeyError, TypeError, AttributeError, OSError, SafetensorError) as error:
        raise ValueError(error) from None


def _compare(noted: Any, header: bytes, rest: memoryview) -> None:
    if not isinstance(noted, str) or len(noted) != len(BLANK):
        raise ValueError("its checksum cannot be read")
    blank = header.replace(noted.encode(), BLANK.encode(), 1)
    if _checksum(blank, rest) != noted:
        raise ValueError("its bytes do not have the checksum that was written with them")


def _header_end(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")


def _checksum(*parts: bytes | memoryview) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return digest.hexdigest()


def _safetensors(missing: str) -> Any:
    try:
        from safetensors import torch as library
    except ImportError:
        raise MissingExtraError(missing) from None
    return library
