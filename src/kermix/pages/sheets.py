"""Images side by side as PNG files, and grids of points at which functions are drawn."""

import io
import math
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kermix.errors import MissingExtraError
from kermix.files import whole_file

__all__ = ["grid_over", "png_bytes", "save_png", "sheet", "signed"]


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
    side = 400 if columns == 1 else 80  # points of a line, and of a side of the plane: convention
    axes = [
        torch.linspace(float(a), float(b), side, dtype=points.dtype)
        for a, b in zip(low - beyond, high + beyond, strict=True)
    ]
    grid = torch.cartesian_prod(*axes).reshape(-1, columns)
    return grid, None if columns == 1 else (side, side)


def sheet(images: Tensor, across: int = 10, gap: int = 1) -> np.ndarray:  # (n, c, h, w)
    """Images with values in [0, 1], side by side in rows of at most `across`, as bytes (H, W, 3).

    Two channels get a third that is black; of more than three the first three are shown.

    Example:
        >>> import torch
        >>> sheet(torch.ones(5, 1, 8, 8), across=3).shape
        (17, 26, 3)
    """
    n, channels, height, width = images.shape
    across = max(1, min(across, n))
    pixels = images.detach().float().clamp(0, 1).mul(255).round().byte().cpu().numpy()
    if channels == 1:
        pixels = pixels.repeat(3, 1)
    elif channels == 2:
        pixels = np.concatenate([pixels, np.zeros_like(pixels[:, :1])], 1)
    down = math.ceil(n / across)
    shown = np.full((down * (height + gap) - gap, across * (width + gap) - gap, 3), 128, np.uint8)
    for i, one in enumerate(pixels[:, :3].transpose(0, 2, 3, 1)):
        top, left = (i // across) * (height + gap), (i % across) * (width + gap)
        shown[top : top + height, left : left + width] = one
    return shown


BLUE, WHITE, ORANGE = (0.0, 0.447, 0.698), (1.0, 1.0, 1.0), (0.835, 0.369, 0.0)


def signed(images: Tensor) -> Tensor:  # (n, h, w) or (n, c, h, w) -> (n, 3, h, w)
    """Images of any numbers as colors, each on its own scale: white is zero, orange positive.

    Example:
        >>> signed(torch.tensor([[[-2.0, 0.0, 2.0]]]))[0, 0, 0]
        tensor([0.0000, 1.0000, 0.8350])
    """
    one = images.float().mean(1) if images.ndim == 4 else images.float()
    strength = one / one.abs().amax((1, 2), keepdim=True).clamp(min=1e-30)
    blue, white, orange = (torch.tensor(c).view(3, 1, 1) for c in (BLUE, WHITE, ORANGE))
    end = torch.where(strength[:, None] < 0, blue, orange)
    return white + strength[:, None].abs() * (end - white)


def png_bytes(array: np.ndarray, zoom: int = 2) -> bytes:
    """A sheet as a PNG file, each pixel as a square of `zoom`."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("Images need Pillow: pip install 'kermix[images]'.") from None
    buffer = io.BytesIO()
    large = array.repeat(zoom, 0).repeat(zoom, 1)
    Image.fromarray(large).save(buffer, format="png", optimize=True)
    return buffer.getvalue()


def save_png(array: np.ndarray, path: Path, zoom: int = 2) -> Path:
    """Write a sheet, each pixel as a square of `zoom`, first to a temporary name."""
    content = png_bytes(array, zoom)
    with whole_file(path) as part:
        part.write_bytes(content)
    return path
