"""What the classifiers of images share: pixels as numbers, and what a trainer asks of a model."""

from abc import ABC, abstractmethod
from typing import TypeAlias

import torch
from torch import Tensor, nn

from kermix.errors import OptionError, SampleError, ShapeError

__all__ = ["ImageClassifier", "ImageShape", "as_numbers"]

ImageShape: TypeAlias = tuple[int, int, int]


def as_numbers(images: Tensor) -> Tensor:
    """Pixels as numbers from 0 to 1: bytes are divided by 255, floats are taken as they are.

    Example:
        >>> as_numbers(torch.tensor([0, 51, 255], dtype=torch.uint8))
        tensor([0.0000, 0.2000, 1.0000])
    """
    if images.dtype == torch.uint8:
        return images.float() / 255
    if not images.is_floating_point():
        raise SampleError(
            f"images are {images.dtype}; pixels are bytes (torch.uint8) or floats from 0 to 1."
        )
    return images if images.dtype == torch.float64 else images.float()


class ImageClassifier(nn.Module, ABC):
    """A network from images (B, C, H, W), bytes or floats from 0 to 1, to class scores.

    Args:
        shape: Channels, height and width of the images.
        classes: Number of classes.
    """

    def __init__(self, shape: ImageShape, classes: int) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape) < 1:
            raise OptionError(f"shape={shape}: give channels, height and width.")
        if classes < 2:
            raise OptionError(f"classes={classes}: there must be at least 2 classes.")
        self.shape, self.classes = shape, classes

    @abstractmethod
    def prepare(self, images: Tensor, generator: torch.Generator) -> None:
        """Take from training images what is not learned, such as their mean; call it once."""

    @abstractmethod
    def scores(self, pixels: Tensor) -> Tensor:
        """Class scores (B, classes) of float pixels (B, C, H, W)."""

    def forward(self, images: Tensor) -> Tensor:  # (B, C, H, W) -> (B, classes)
        """Scores of each class."""
        return self.scores(self.checked(images))

    def checked(self, images: Tensor) -> Tensor:
        """The images as numbers, if they have the shape that the network is made for."""
        if images.ndim != 4 or tuple(images.shape[1:]) != self.shape:
            raise ShapeError(
                f"images have shape {tuple(images.shape)}; this network takes (any number, "
                f"{', '.join(map(str, self.shape))})."
            )
        return as_numbers(images).to(next(self.parameters()).dtype)

    @property
    @abstractmethod
    def numbers_per_image(self) -> int:
        """Size of the largest array that one image becomes on its way."""

    @property
    def parameter_count(self) -> int:
        """Numbers that are learned."""
        return sum(p.numel() for p in self.parameters())
