"""Spaces in which images are compared: pixels, coarse pixels, random features, codes.

A Gaussian kernel on pixels sees two images of one thing, shifted by a pixel, as far apart as two
images of different things; what minimizes a cost of such a kernel is blurred. The other spaces are
smoother in this respect. A cost may act in several of them at once.
"""

from collections.abc import Callable
from typing import TypeAlias, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.checks import check_option
from kermix.errors import OptionError
from kermix.networks.generators import reset_with
from kermix.networks.image_networks import Autoencoder
from kermix.training.fit_settings import CODED, SpaceName

__all__ = ["SPACES", "Pooled", "RandomFeatures", "Space", "make_space"]

Space: TypeAlias = Callable[[Tensor], Tensor]
SPACES: tuple[str, ...] = get_args(SpaceName)


class Pooled(nn.Module):
    """Means of squares of pixels; of single ones, the image itself.

    Example:
        >>> Pooled(4)(torch.ones(2, 3, 8, 8)).shape
        torch.Size([2, 12])
    """

    def __init__(self, side: int = 1) -> None:
        super().__init__()
        self.side = side

    def forward(self, images: Tensor) -> Tensor:  # (n, c, h, w) -> (n, d)
        """Map images to vectors."""
        pooled = functional.avg_pool2d(images, self.side) if self.side > 1 else images
        return pooled.flatten(1)


class RandomFeatures(nn.Module):
    """Features of a convolutional network with random weights, on two scales.

    Each layer normalizes its channels by what it saw of the first images, so the features have
    comparable scales; nothing is trained.

    Args:
        images: Some images of the data, to normalise with.
        width: Channels of the first layer.
        generator: Where the weights come from.

    Example:
        >>> images = torch.rand(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        >>> space = RandomFeatures(images, 4, generator=torch.Generator().manual_seed(0))
        >>> space(images).shape
        torch.Size([16, 96])
    """

    def __init__(self, images: Tensor, width: int = 32, *, generator: torch.Generator) -> None:
        super().__init__()
        channels = images.shape[1]
        self.layers = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(before, after, 5, 2, 2),
                nn.BatchNorm2d(after, affine=False, momentum=None),
                nn.LeakyReLU(0.2),
            )
            for before, after in ((channels, width), (width, 2 * width))
        )
        reset_with(self, generator)
        self.to(images.device)
        with torch.no_grad():
            self(images)
        self.eval().requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:  # (n, c, h, w) -> (n, d)
        """Map images to vectors."""
        found: list[Tensor] = []
        for layer in self.layers:
            images = layer(images)
            found.append(functional.adaptive_avg_pool2d(images, (4, 4)) if len(found) == 0
                         else images)  # fmt: skip
        return torch.cat([maps.flatten(1) for maps in found], 1)


def make_space(
    name: SpaceName,
    images: Tensor,  # (n, c, h, w)
    autoencoder: Autoencoder | None,
    generator: torch.Generator,
) -> Space:
    """The space of that name.

    Args:
        name: `"pixels"`; `"coarse"`, means of 4 x 4 pixels; `"random"`, features of random
            convolutions; `"codes"`, those of an autoencoder; `"channels"`, the same, but with
            the code of each channel compared by itself.
        images: Some images of the data.
        autoencoder: For `"codes"`.
        generator: For `"random"`.
    """
    check_option("space", name, SPACES)
    if name in CODED:
        if autoencoder is None:
            raise OptionError(f"The space {name!r} is that of an autoencoder; there is none.")
        return autoencoder.encode
    if name == "random":
        return RandomFeatures(images, generator=generator)
    return Pooled(4 if name == "coarse" else 1)
