"""Kernel means of points in few dimensions on a CPU, compiled: no kernel value reaches memory.

The same two functions as `kermix.kernels.means_triton`, written plainly: the compiler turns
each into one loop over pairs. Compiling takes some seconds, so this is for sums that would
take longer.
"""

import functools
import shutil
import types
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.checks import LARGEST_EXPONENT, ROOM_FOR_SUMS

__all__ = ["KernelMoments", "has_compiler", "kernel_moments", "nearest_distances"]


class KernelMoments(NamedTuple):
    """Sums over the others of `w k`, `w k (other - target)` and `w k distance`."""

    mass: Tensor  # (B, M)
    pull: Tensor | None  # (B, M, d)
    spread: Tensor | None  # (B, M)


@functools.cache
def has_compiler() -> bool:
    """Whether a C++ compiler is on the path, which `torch.compile` needs for a CPU."""
    return any(shutil.which(name) for name in ("g++", "clang++", "c++"))


def nearest_distances(points: Tensor, sources: Tensor, weights: Tensor) -> Tensor:  # (B, M)
    """Squared distance from each point to the nearest source of positive weight."""
    largest = torch.finfo(points.dtype).max
    penalties = torch.zeros_like(weights).masked_fill(weights <= 0, largest / 4)
    find = _compiled(_nearest, *_kind(points))
    triples = zip(points, sources, penalties, strict=True)
    return torch.stack([find(p, s, penalty) for p, s, penalty in triples])


def kernel_moments(
    targets: Tensor,  # (B, M, d)
    others: Tensor,  # (B, N, d)
    weights: Tensor,  # (B, N)
    rate: Tensor,  # ()
    near_targets: Tensor | None = None,  # (B, M)
    near_others: Tensor | None = None,  # (B, N)
    gradient: bool = False,
) -> KernelMoments:
    """Sums of the kernel `exp(-rate * (distance - near))`, with what its gradient needs."""
    near_t = targets.new_zeros(targets.shape[:-1]) if near_targets is None else near_targets
    near_o = others.new_zeros(others.shape[:-1]) if near_others is None else near_others
    sums = _compiled(_sums_with_gradient if gradient else _sums, *_kind(targets))
    items = zip(targets, others, weights, near_t, near_o, strict=True)
    found = [sums(*item, rate) for item in items]
    if not gradient:
        return KernelMoments(torch.stack([f[0] for f in found]), None, None)
    mass, spread, *pulls = (torch.stack(part) for part in zip(*found, strict=True))
    return KernelMoments(mass, torch.stack(pulls, -1), spread)


def _kind(points: Tensor) -> tuple[torch.dtype, int]:
    return points.dtype, points.shape[-1]


@functools.cache
def _compiled(
    function: types.FunctionType, dtype: torch.dtype, dimension: int
) -> Callable[..., Any]:
    # The compiler counts versions by code object, and gives up at the ninth: a dtype and dimension
    # has one of its own.
    code = function.__code__.replace(co_name=f"{function.__name__}_{dimension}")
    own = types.FunctionType(code, function.__globals__, closure=function.__closure__)
    return torch.compile(own, dynamic=True, fullgraph=True)


def _distances(targets: Tensor, others: Tensor) -> Tensor:
    differences = _differences(targets, others)
    total = sum((d * d for d in differences[1:]), start=differences[0] * differences[0])
    return total.clamp(max=torch.finfo(targets.dtype).max * ROOM_FOR_SUMS)


def _differences(targets: Tensor, others: Tensor) -> list[Tensor]:
    return [
        o.unsqueeze(0) - t.unsqueeze(1)
        for t, o in zip(targets.unbind(-1), others.unbind(-1), strict=True)
    ]


def _nearest(points: Tensor, sources: Tensor, penalties: Tensor) -> Tensor:
    return (_distances(points, sources) + penalties).amin(1)


def _kernel(
    targets: Tensor, others: Tensor, weights: Tensor, near_t: Tensor, near_o: Tensor, rate: Tensor
) -> Tensor:
    beyond = _distances(targets, others) - near_t.unsqueeze(1) - near_o.unsqueeze(0)
    return weights.unsqueeze(0) * (-rate * beyond).clamp(max=LARGEST_EXPONENT).exp()


def _sums(*arguments: Tensor) -> tuple[Tensor]:
    return (_kernel(*arguments).sum(1),)


def _sums_with_gradient(*arguments: Tensor) -> tuple[Tensor, ...]:
    targets, others = arguments[:2]
    values = _kernel(*arguments)
    pulls = [(values * d).sum(1) for d in _differences(targets, others)]
    return values.sum(1), (values * _distances(targets, others)).sum(1), *pulls
