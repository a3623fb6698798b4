"""Checkpoints: one file of tensors and JSON, written at once, from which training goes on.

Tensors are in the safetensors format and the JSON is in its header: nothing in the file executes
when it is read. A file is written under a temporary name and renamed, so that at any moment the
last checkpoint is whole.
"""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kermix.errors import MissingExtraError, RunError
from kermix.files import whole_file

__all__ = [
    "last_good",
    "load_checkpoint",
    "optimizer_tensors",
    "restore_optimizer",
    "save_checkpoint",
    "tensors_of",
]


def save_checkpoint(path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> Path:
    """Write tensors and what describes them, as one step."""
    save = _safetensors().save
    plain = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    data = save(plain, metadata={"kermix": json.dumps(content, allow_nan=False)})
    with whole_file(path) as part, part.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return path


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what :func:`save_checkpoint` wrote."""
    library = _safetensors()
    if not path.is_file():
        raise RunError(f"{path}: there is no such checkpoint.")
    try:
        data = path.read_bytes()
        tensors = library.load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return tensors, json.loads(header["__metadata__"]["kermix"])
    except (library_error(), KeyError, ValueError, OSError) as error:
        raise RunError(
            f"{path}: not a readable checkpoint ({error}); it may have been cut short in copying."
        ) from None


def last_good(folder: Path | None) -> str:
    """A sentence for an error: which checkpoint is left."""
    if folder is not None and (folder / "last.safetensors").exists():
        return f"The last good checkpoint is {folder / 'last.safetensors'}."
    return "No checkpoint was asked for." if folder is None else "There is no checkpoint yet."


def tensors_of(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors whose names begin with a prefix, without it."""
    return {name[len(prefix) :]: t for name, t in tensors.items() if name.startswith(prefix)}


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as named tensors."""
    state = optimizer.state_dict()["state"]
    return {
        f"optimizer.{index}.{name}": torch.as_tensor(value)
        for index, values in state.items()
        for name, value in values.items()
    }


def restore_optimizer(optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer the state that :func:`optimizer_tensors` named."""
    whole = optimizer.state_dict()
    whole["state"] = {}
    for key, value in tensors.items():
        prefix, _, rest = key.partition(".")
        if prefix == "optimizer":
            index, _, name = rest.partition(".")
            whole["state"].setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(whole)


def _safetensors() -> Any:
    try:
        from safetensors import torch as library
    except ImportError:
        raise MissingExtraError(
            "Checkpoints need safetensors: pip install 'kermix[fit]'."
        ) from None
    return library


def library_error() -> type[Exception]:
    """The error that safetensors raises for a damaged file."""
    from safetensors import SafetensorError

    return SafetensorError
