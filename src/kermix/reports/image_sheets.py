"""Sheets of images: many small pictures in one array or PNG file."""

import io
import math
from pathlib import Path

import numpy as np
from torch import Tensor

from kermix.errors import MissingExtraError
from kermix.files import whole_file

__all__ = ["png_bytes", "save_png", "sheet"]


def sheet(images: Tensor, across: int = 10, gap: int = 1) -> np.ndarray:  # (n, c, h, w)
    """Images with values in [0, 1], side by side in rows, as bytes (H, W, 3).

    Two channels get a third that is black; of more than three the first three are shown.

    Example:
        >>> import torch
        >>> sheet(torch.ones(5, 1, 8, 8), across=3).shape
        (17, 26, 3)
    """
    n, channels, height, width = images.shape
    pictures = images.detach().float().clamp(0, 1).mul(255).round().byte().cpu().numpy()
    if channels == 1:
        pictures = pictures.repeat(3, 1)
    elif channels == 2:
        pictures = np.concatenate([pictures, np.zeros_like(pictures[:, :1])], 1)
    down = math.ceil(n / across)
    shown = np.full((down * (height + gap) - gap, across * (width + gap) - gap, 3), 128, np.uint8)
    for i, picture in enumerate(pictures[:, :3].transpose(0, 2, 3, 1)):
        top, left = (i // across) * (height + gap), (i % across) * (width + gap)
        shown[top : top + height, left : left + width] = picture
    return shown


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
