"""Files that are written whole or not at all, and files of tensors with a checksum.

Tensors are in the safetensors format and JSON is in its header: nothing in the file executes when
it is read, and the checksum of all its bytes is compared. Sketches and checkpoints are such files.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kermix.errors import MissingExtraError, RunError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

__all__ = [
    "finite_json",
    "read_checksummed",
    "whole_file",
    "write_array",
    "write_checksummed",
    "write_json",
]


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A name to write to, which becomes `path` once all is written.

    A reader sees the old content or the new, never a part; what fails leaves nothing behind and
    names the file. Folders that are missing are made.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> file = Path(folder.name) / "new" / "numbers.txt"
        >>> with whole_file(file) as part:
        ...     _ = part.write_text("1 2 3")
        >>> file.read_text(), [p.name for p in file.parent.iterdir()]
        ('1 2 3', ['numbers.txt'])
        >>> folder.cleanup()
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        part.replace(path)
    except OSError as error:
        raise RunError(f"{path}: cannot be written ({error.strerror or error}).") from None
    finally:
        with suppress(OSError):
            part.unlink()


def write_json(path: Path, content: Any) -> Path:
    """Write a file in one step: a reader sees the old content or the new, never a part."""
    with whole_file(path) as part:
        part.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def write_array(path: Path, array: "np.ndarray") -> None:
    """Write a `.npy` file in one step."""
    import numpy as np

    with whole_file(path) as part, part.open("wb") as file:
        np.save(file, array)


def finite_json(content: Any) -> Any:
    """Make of a value what JSON can hold: it has no NaN and no infinities, which become null.

    Example:
        >>> finite_json({"loss": [1.5, float("nan")]})
        {'loss': [1.5, None]}
    """
    if isinstance(content, dict):
        return {key: finite_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite_json(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


BLANK = "0" * 64  # stands for the checksum while it is computed


def write_checksummed(
    path: Path, tensors: "Mapping[str, Tensor]", text: str, missing: str
) -> None:
    """Write tensors and what describes them, as one step.

    Args:
        path: Where.
        tensors: By name.
        text: JSON.
        missing: What to say where safetensors is not installed.
    """
    library = _safetensors(missing)
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    described = f'{{"sha256": "{BLANK}", "content": {text}}}'
    data = library.save(plain, metadata={"kermix": described})
    header = data[: _header_end(data)]
    filled = header.replace(BLANK.encode(), _checksum(data).encode(), 1)
    with whole_file(path) as part, part.open("wb") as file:
        file.write(filled)
        file.write(memoryview(data)[len(header) :])
        file.flush()
        os.fsync(file.fileno())


def read_checksummed(path: Path, missing: str) -> "tuple[dict[str, Tensor], Any]":
    """Tensors and content of such a file; a ValueError says what is wrong with it."""
    library = _safetensors(missing)
    from safetensors import SafetensorError

    try:
        data = path.read_bytes()
        header = data[: _header_end(data)]
        words = json.loads(header[8:]).get("__metadata__", {}).get("kermix")
        if words is None:
            raise ValueError("it was not written by kermix")
        noted = json.loads(words)
        _compare(noted["sha256"], header, memoryview(data)[len(header) :])
        return library.load(data), noted["content"]
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
