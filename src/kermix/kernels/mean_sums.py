"""What the fused and the compiled evaluation of kernel means have in common."""

from typing import NamedTuple

from torch import Tensor

__all__ = ["KernelMoments"]


class KernelMoments(NamedTuple):
    """Sums over the others of `w k`, `w k (other - target)` and `w k distance`."""

    mass: Tensor  # (B, M)
    pull: Tensor | None  # (B, M, d)
    spread: Tensor | None  # (B, M)
