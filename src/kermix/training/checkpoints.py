"""Checkpoints: one file of tensors and JSON, written at once, from which training goes on.

Tensors are in the safetensors format and the JSON is in its header: nothing in the file executes
when it is read. A file is written under a temporary name and renamed, so that at any moment the
last checkpoint is whole. It carries a checksum of all its bytes, which is compared on reading;
`last` leaves the one before it as `previous`, in case a disk or a copy damages it.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kermix.errors import RunError
from kermix.files import whole_file
from kermix.sealed import read_sealed, write_sealed

__all__ = [
    "load_checkpoint",
    "optimizer_tensors",
    "restore_optimizer",
    "save_checkpoint",
    "tensors_of",
]


MISSING = "Checkpoints need safetensors: pip install 'kermix[fit]'."
# What a damaged checkpoint can be replaced by.
SUBSTITUTES = {"last": ("previous",), "best": ("last", "previous")}


def save_checkpoint(path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> Path:
    """Write tensors and what describes them, as one step."""
    text = json.dumps(content, allow_nan=False)
    if path.stem == "last":
        _keep_as_previous(path)
    write_sealed(path, tensors, text, MISSING)
    return path


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote."""
    if not path.is_file():
        raise RunError(f"{path}: there is no such checkpoint.")
    try:
        return read_sealed(path, MISSING)
    except ValueError as error:
        raise RunError(
            f"{path}: damaged, or not a checkpoint ({error}). {_what_to_do(path)}"
        ) from None


def _keep_as_previous(path: Path) -> None:
    if not path.is_file():
        return
    with whole_file(path.with_stem("previous")) as part:
        try:
            os.link(path, part)  # another name for the same bytes, until `path` gets new ones
        except OSError:
            shutil.copyfile(path, part)


def _what_to_do(path: Path) -> str:
    """A sentence for an error: how to go on without a damaged checkpoint."""
    if path.stem == "model":
        return "Remove it; `kermix resume` will write it again."
    for name in SUBSTITUTES.get(path.stem, ()):
        other = path.with_stem(name)
        try:
            _, content = read_sealed(other, MISSING)
            return (
                f"To continue, replace it with {other} (step {content['step']}), which is intact."
            )
        except (KeyError, TypeError, ValueError):
            continue
    if path.stem in SUBSTITUTES:
        return "No other checkpoint of the run is intact: restore a copy, or start a new run."
    return "Restore a copy, or remove it and start again."


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
    """Give the optimizer the state that `optimizer_tensors` named."""
    whole = optimizer.state_dict()
    whole["state"] = {}
    for key, value in tensors.items():
        prefix, _, rest = key.partition(".")
        if prefix == "optimizer":
            index, _, name = rest.partition(".")
            whole["state"].setdefault(int(index), {})[name] = value
    optimizer.load_state_dict(whole)
