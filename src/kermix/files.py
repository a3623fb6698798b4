"""Files that are written whole, or not at all."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kermix.errors import RunError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["finite_json", "whole_file", "write_array"]


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


def write_array(path: Path, array: "np.ndarray") -> None:
    """Write a `.npy` file in one step."""
    import numpy as np

    with whole_file(path) as part, part.open("wb") as file:
        np.save(file, array)


def finite_json(content: Any) -> Any:
    """What JSON can hold: it has no NaN and no infinities, which become null.

    Example:
        >>> finite_json({"loss": [1.5, float("nan")]})
        {'loss': [1.5, None]}
    """
    if isinstance(content, dict):
        return {key: finite_json(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite_json(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
