"""Weights of two sides of one pooled sample: as given, bootstrapped, and with exchanged labels."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.comparison.permutation import labellings, signed_weights

__all__ = ["Draws", "anchored", "draws", "exchanges"]


@dataclass(frozen=True)
class Draws:
    """Weights of both sides: as given, bootstrapped, and with exchanged labels; (P, N) each."""

    a: Tensor
    b: Tensor
    bootstrap: int

    def errors(self, values: Tensor) -> tuple[float | None, float | None]:
        """Standard error, and the mean under exchanged labels."""
        if not self.bootstrap:
            return None, None
        drawn = values[1 : 1 + self.bootstrap]
        return float(drawn.std()), float(values[1 + self.bootstrap :].mean())


def exchanges(bootstrap: int) -> int:
    """How many exchanges of labels go with so many draws."""
    return max(5, bootstrap // 4)


def draws(n: int, m: int, count: int, generator: torch.Generator, dtype: torch.dtype) -> Draws:
    """Weights of `n` and `m` points: the given ones, `count` bootstrap draws, exchanges."""
    labels = labellings(n, m, exchanges(count), generator)
    a, b = signed_weights(labels, None)
    if count == 0:
        return Draws(a[:1].to(dtype), b[:1].to(dtype), 0)
    # Exponential weights make a draw from the Bayesian bootstrap.
    exponential = -torch.rand(count, n + m, generator=generator, dtype=torch.float64).log()
    drawn = signed_weights(labels[:1].expand(count, -1), exponential)
    a, b = (torch.cat([s[:1], d, s[1:]]) for s, d in zip((a, b), drawn, strict=True))
    return Draws(a.to(dtype), b.to(dtype), count)


def anchored(values: Tensor, normalized: float) -> Tensor:
    """Draws from truncated features, scaled so that the undisturbed one is the exact value."""
    return values * (normalized / values[0]) if values[0] != 0 else values
