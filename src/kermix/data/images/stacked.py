"""Stacked MNIST: three digits as the colours of one image, a thousand modes to be counted."""

import numpy as np

from kermix.data.images.labelled import LabelledImages
from kermix.errors import OptionError, ShapeError

__all__ = ["STACKED", "stacked_mnist"]

STACKED = 128_000  # images, as in the papers that count modes
CLASSES = tuple(f"{i:03}" for i in range(1000))


def stacked_mnist(
    images: np.ndarray, labels: np.ndarray, n: int = STACKED, seed: int = 0
) -> LabelledImages:
    """Draw three digits for each image, independently and with repetition.

    Args:
        images: Grey digits, uint8, (N, 1, H, W).
        labels: Their classes, 0 to 9, (N,).
        n: How many images to make.
        seed: The same seed gives the same images.

    Returns:
        Images (n, 3, H, W), labelled with the number that the three digits write, 0 to 999.

    Example:
        >>> import numpy as np
        >>> digits = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
        >>> found = stacked_mnist(digits, np.arange(10), 4)
        >>> bool((found.images[:, :, 0, 0] @ [100, 10, 1] == found.labels).all())
        True
    """
    if images.ndim != 4 or images.shape[1] != 1 or len(images) != len(labels):
        raise ShapeError(
            f"images {images.shape} and labels {labels.shape} are not (N, 1, H, W) and (N,)."
        )
    if not len(images) or n < 1:
        raise OptionError(f"{n} images from {len(images)} digits: at least one of each is needed.")
    chosen = np.random.default_rng(seed).integers(len(images), size=(n, 3))
    digits = labels[chosen].astype(np.int64)
    return LabelledImages(
        "stacked-mnist", images[chosen, 0], digits @ np.array([100, 10, 1]), CLASSES
    )
