"""Places at which a function of one or two columns is drawn."""

import torch
from torch import Tensor

__all__ = ["grid_over"]

LINE, SIDE = 400, 80


def grid_over(
    points: Tensor,  # (n, 1 or 2)
    margin: float = 0.0,
) -> tuple[Tensor, tuple[int, int] | None]:  # (m, 1 or 2)
    """A grid over the range of points, and its shape if it is one of two columns.

    Args:
        points: The points.
        margin: How far the grid reaches beyond them on each side, relative to their range.

    Example:
        >>> grid, shape = grid_over(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
        >>> grid[0], grid[-1], shape
        (tensor([0., 1.]), tensor([2., 5.]), (80, 80))
    """
    low, high = points.amin(0), points.amax(0)
    beyond = margin * (high - low)
    columns = points.shape[1]
    side = LINE if columns == 1 else SIDE
    axes = [
        torch.linspace(float(a), float(b), side, dtype=points.dtype)
        for a, b in zip(low - beyond, high + beyond, strict=True)
    ]
    grid = torch.cartesian_prod(*axes).reshape(-1, columns)
    return grid, None if columns == 1 else (side, side)
