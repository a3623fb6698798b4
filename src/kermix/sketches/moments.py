"""What a cost needs to know of a set of samples, in features."""

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["ROUNDING", "Moments", "rounding_slip"]

ROUNDING = 8.0  # roundings of a moment, relative to its trace


class Moments(NamedTuple):
    """What a cost needs to know of a set of samples.

    Mean and second moment are to be multiplied by `exp(log_scale)` and `exp(2 log_scale)`.
    """

    size: float
    mean: Tensor  # (r,)
    second: Tensor  # (r, r)
    residual: Tensor | None  # ()  None where the map has no certificate
    log_scale: Tensor  # ()  a constant for differentiation
    rounding: float = 0.0  # root mean square of the errors of the features

    @property
    def held(self) -> Tensor:
        """Mean squared norm of the features, at most 1."""
        return (2 * self.log_scale).exp() * self.second.diagonal().sum()

    @property
    def plain_mean(self) -> Tensor:
        """The mean itself, which may underflow."""
        return self.log_scale.exp() * self.mean

    @property
    def plain_second(self) -> Tensor:
        """The second moment itself, which may underflow."""
        return (2 * self.log_scale).exp() * self.second

    @property
    def slack(self) -> Tensor | None:
        """The mean residual, and as much more as rounding may hide of it."""
        return None if self.residual is None else self.residual + 2 * rounding_slip(self)


def rounding_slip(x: Moments) -> float:
    """How far features, and means of them, may be from those of exact arithmetic."""
    return x.rounding + ROUNDING * torch.finfo(x.second.dtype).eps * len(x.second)
