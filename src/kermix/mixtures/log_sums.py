"""Sums of weighted exponentials in log space, in blocks that bound memory.

Blocks hold about a million numbers (16 million on an accelerator), and the backward pass computes
them anew.
"""

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

__all__ = [
    "ScaledSum",
    "block_elements",
    "log_of_sums",
    "map_blocks",
    "powers_and_factors",
    "scaled_sum",
    "slices",
]

BLOCK_ELEMENTS = 2**20

Result = TypeVar("Result")
ScaledSum = tuple[Tensor, Tensor]  # (m, s) stands for s * exp(m); m carries no gradient


def powers_and_factors(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Write w as factor * exp(power), with the weights that are zero in the linear factor.

    A zero then has a gradient, the true one, which log(0) has not.
    """
    positive = weights > 0
    one = torch.ones_like(weights)
    return torch.where(positive, weights, one).log(), torch.where(positive, one, weights)


def scaled_sum(powers: Tensor, factors: Tensor, *dims: int) -> ScaledSum:
    """Sum factors * exp(powers), scaled by the largest term that is not zero."""
    limits = torch.finfo(powers.dtype)
    # Minus infinity, where a square overflows, would have a gradient that is not a number.
    powers = powers.clamp(min=limits.min)
    detached = powers.detach()
    present = torch.where(factors > 0, detached, -torch.inf).amax(dims, keepdim=True)
    scale = torch.where(present > -torch.inf, present, detached.amax(dims, keepdim=True))
    # Terms above the limit have factor zero: they add nothing, and their gradient must not be inf.
    terms = factors * (powers - scale).clamp(max=0.9 * math.log(limits.max)).exp()
    return scale.squeeze(dims), terms.sum(dims)


def log_of_sums(sums: list[ScaledSum]) -> Tensor:
    """The logarithm of the sum of them all."""
    scales, totals = zip(*sums, strict=True)
    scale, total = scaled_sum(torch.stack(scales, -1), torch.stack(totals, -1), -1)
    return scale + total.log()


def map_blocks(
    function: Callable[..., Result], blocks: list[tuple[Any, ...]], like: Tensor
) -> list[Result]:
    """Apply to each block; when there are several, keep only results for the backward pass."""
    transformed = not torch.compiler.is_compiling() and (
        torch._C._functorch.is_functorch_wrapped_tensor(like)
    )
    if len(blocks) == 1 or not torch.is_grad_enabled() or transformed:
        return [function(*block) for block in blocks]
    return [
        checkpoint(function, *block, use_reentrant=False, preserve_rng_state=False)
        for block in blocks
    ]


def block_elements(device: torch.device) -> int:
    """How many numbers a block holds."""
    # A block fits the cache of a CPU (six times faster than one that does not); an accelerator
    # needs larger ones to be busy.
    return BLOCK_ELEMENTS if device.type == "cpu" else 16 * BLOCK_ELEMENTS


def slices(length: int, step: int) -> list[slice]:
    """Cut an axis into slices of at most `step`."""
    return [slice(start, start + step) for start in range(0, length, step)]
