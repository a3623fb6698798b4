"""Checkpoints: one file of tensors and JSON, written at once, from which training goes on.

Tensors are in the safetensors format and the JSON is in its header: nothing in the file executes
when it is read. A file is written under a temporary name and renamed, so that at any moment the
last checkpoint is whole. It carries a checksum of all its bytes, which is compared on reading;
`last` leaves the one before it as `previous`, in case a disk or a copy damages it. Averages of
weights along a training are kept with the statistics that belong to them.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from kermix.errors import MissingExtraError, OptionError, RunError
from kermix.files import read_checksummed, whole_file, write_checksummed

__all__ = [
    "RunningAverage",
    "check_declared",
    "device_of",
    "load_checkpoint",
    "load_model",
    "optimizer_tensors",
    "rebuilding",
    "restore_optimizer",
    "save_checkpoint",
    "set_statistics",
    "tensors_of",
]


MISSING = "Checkpoints need safetensors: pip install 'kermix[fit]'."
# What a damaged checkpoint can be replaced by.
SUBSTITUTES = {"last": ("previous",), "best": ("last", "previous")}
# Settings that are sizes of networks.
SIZES = frozenset({"width", "blocks", "members", "components", "depth", "code", "hidden",
                   "output_width"})  # fmt: skip
# Of what is allocated while a model is rebuilt: buffers that are not saved are no larger.
ROOM, MORE_THAN_STORED = 2**26, 16


def save_checkpoint(path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> Path:
    """Write tensors and what describes them, as one step."""
    text = json.dumps(content, allow_nan=False)
    if path.stem == "last":
        _keep_as_previous(path)
    write_checksummed(path, tensors, text, MISSING)
    return path


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote."""
    if not path.is_file():
        raise RunError(f"{path}: there is no such checkpoint.")
    try:
        return read_checksummed(path, MISSING)
    except ValueError as error:
        raise RunError(
            f"{path}: damaged, or not a checkpoint ({error}). {_what_to_do(path)}"
        ) from None


def load_model(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Give a model the weights of a checkpoint."""
    model.load_state_dict(tensors_of("model.", tensors))


def device_of(name: str) -> torch.device:
    """Where a trained model is asked: a device by its name; `"auto"` is an accelerator, if any.

    Example:
        >>> device_of("cpu")
        device(type='cpu')
    """
    if name in ("auto", "gpu"):
        there = [n for n in ("mps", "cuda") if getattr(torch, n).is_available()]
        name = there[0] if there else "cpu" if name == "auto" else "cuda"
    try:
        device = torch.device(name)
        return torch.empty(0, device=device).device  # with its number
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise OptionError(
            f"device={name!r} cannot be used here: {' '.join(str(error).split())}"
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
            _, content = read_checksummed(other, MISSING)
            return (
                f"To continue, replace it with {other} (step {content['step']}), which is intact."
            )
        except (KeyError, TypeError, ValueError):
            continue
    if path.stem in SUBSTITUTES:
        return "No other checkpoint of the run is intact: restore a copy, or start a new run."
    return "Restore a copy, or remove it and start again."


def check_declared(settings: Any, tensors: Mapping[str, Tensor]) -> None:
    """Refuse settings whose sizes are larger than what a file holds, before anything is built.

    Each unit of a size takes a number or more.

    Args:
        settings: A dictionary, or settings, of which those count that the model has.
        tensors: What the file holds.
    """
    stored = sum(t.numel() for t in tensors.values())
    given = settings if isinstance(settings, dict) else settings.as_json()
    for name in SIZES & given.keys():
        size = given[name]
        if size is None or isinstance(size, str):
            continue
        if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= stored:
            raise ValueError(f"{name}={size!r:.80}, but it holds {stored} numbers")


@contextmanager
def rebuilding(path: Path, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Build what a file describes: whatever is wrong with it, the error is one that names it.

    Args:
        path: The file.
        tensors: What it holds.
    """
    stored = sum(t.numel() for t in tensors.values())
    try:
        with _Allocations(MORE_THAN_STORED * stored + ROOM):
            yield
    except (MissingExtraError, RunError):
        raise
    except (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError,
            RuntimeError, TypeError, ValueError) as error:  # fmt: skip
        told = " ".join(f"{type(error).__name__}: {error}".split()) or type(error).__name__
        raise RunError(
            f"{path}: damaged, or changed by hand: what it says does not fit what it holds "
            f"({told:.300}). {_what_to_do(path)}"
        ) from None


class _Allocations(TorchDispatchMode):
    """Refuses tensors that are together larger than they can be, before they are made."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._left = most

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: PyTorch would import its compiler, for a second, and nothing here is compiled."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(isinstance(argument, Tensor) for argument in args):
            sizes = [a for a in args if isinstance(a, list | tuple) and all(map(_is_size, a))]
            self._left -= max((math.prod(size) for size in sizes), default=0)
            if self._left < 0:
                raise ValueError("it declares larger sizes than those of its tensors")
        return func(*args, **(kwargs or {}))


def _is_size(value: Any) -> bool:
    return isinstance(value, int)


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


class RunningAverage:
    """An exponential running mean of a model's parameters.

    torch's own `AveragedModel` keeps its count on the device and reads it at every step, which
    makes the host wait.

    Args:
        model: Whose parameters are averaged.
        steps: Steps over which the mean reaches back; 0 for none, which leaves the model as it is.
        behind: Steps that are not counted: with one, the first update forgets the start.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> average = RunningAverage(layer, steps=4)
        >>> _ = layer.weight.data.fill_(1.0)
        >>> average.update(done=1000)  # a quarter of the way
    """

    def __init__(self, model: nn.Module, steps: float, behind: int = 0) -> None:
        self.model, self.steps, self.behind = model, steps, behind
        self.tensors: dict[str, Tensor] = {}
        if steps > 0:
            self.tensors = {n: p.detach().clone() for n, p in model.named_parameters()}

    def share(self, done: int) -> float:
        """The part of the way to the model; larger early in a training: the start is forgotten."""
        return max(1 / max(self.steps, 1.0), min(1.0, 10 / (done - self.behind + 10)))

    def update(self, done: int) -> None:
        """Move towards the model, when so many steps are done."""
        self.move(self.share(done))

    @torch.no_grad()
    def move(self, share: float | Tensor) -> None:
        """Move towards the model by a share of the way, which may be a number on the device."""
        if self.steps <= 0:
            return
        means = list(self.tensors.values())
        parameters = [p.detach() for p in self.model.parameters()]
        if isinstance(share, Tensor):
            shares = [share.to(t.dtype).expand_as(t) for t in means]
            torch._foreach_lerp_(means, parameters, shares)
        else:
            torch._foreach_lerp_(means, parameters, share)

    def copy_to(self, model: nn.Module) -> None:
        """Give a model the averaged parameters."""
        model.load_state_dict(self.tensors, strict=False)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Within it the model has the averaged parameters; afterwards its own again."""
        parameters = self.model.named_parameters()
        own = {n: p.detach().clone() for n, p in parameters if n in self.tensors}
        self.copy_to(self.model)
        try:
            yield
        finally:
            self.model.load_state_dict(own, strict=False)

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take the averages of a checkpoint."""
        for name, tensor in tensors.items():
            self.tensors[name].copy_(tensor)


@torch.no_grad()
def set_statistics(
    model: nn.Module,
    batches: Iterable[Tensor],
    autocast: Callable[[], AbstractContextManager[Any]],
) -> None:
    """Set the running statistics of batch normalization to means over these batches."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # a plain mean
        norm.train()
    with autocast():
        for batch in batches:
            model(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.eval()
