"""From raw columns to the units in which landmarks and frequencies are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.errors import ShapeError, VarianceError

__all__ = ["ColumnScale", "same_scale"]

LARGEST_COORDINATE = 1e120  # its square is finite


@dataclass(frozen=True, eq=False)
class ColumnScale:
    """Points are `(row - center) / spread`, column by column.

    It is a part of a feature map, so whatever takes a sketch takes raw rows beside it.

    Args:
        center: What is subtracted, shape (d,).
        spread: What is divided by, shape (d,), positive.

    Example:
        >>> scale = ColumnScale(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 1.0]))
        >>> scale(torch.tensor([[5.0, 5.0]]))
        tensor([[2., 5.]], dtype=torch.float64)
    """

    center: Tensor  # (d,)
    spread: Tensor  # (d,)

    def __post_init__(self) -> None:
        dtype = torch.float32 if self.center.device.type == "mps" else torch.float64
        for name in ("center", "spread"):
            object.__setattr__(self, name, getattr(self, name).detach().to(dtype))
        if self.center.ndim != 1 or self.center.shape != self.spread.shape:
            raise ShapeError(
                f"center has shape {tuple(self.center.shape)} and spread "
                f"{tuple(self.spread.shape)}; give one of each per column."
            )
        if not bool((self.center.isfinite() & self.spread.isfinite() & (self.spread > 0)).all()):
            raise VarianceError("center and spread must be finite, and spread positive.")

    def __call__(self, rows: Tensor) -> Tensor:  # (N, d) -> (N, d)
        """The rows in the units of the landmarks, differentiable."""
        points = (rows.to(self.center) - self.center) / self.spread
        return points.clamp(-LARGEST_COORDINATE, LARGEST_COORDINATE)

    def to(self, device: torch.device | str) -> "ColumnScale":
        """The same on another device."""
        return ColumnScale(self.center.to(device), self.spread.to(device))


def same_scale(a: ColumnScale | None, b: ColumnScale | None) -> bool:
    """Whether two maps take the same raw columns."""
    if a is None or b is None:
        return a is b
    return torch.equal(a.center.cpu(), b.center.cpu()) and torch.equal(
        a.spread.cpu(), b.spread.cpu()
    )
