"""An autoencoder of images: a small space in which distances between images mean something."""

import math

import torch
from torch import Tensor, nn

from kermix.errors import OptionError
from kermix.models.mixture.generators import ConvDecoder, reset_with

__all__ = ["Autoencoder", "ConvEncoder", "doublings_of"]

LARGEST_FIRST_MAP = 8


def doublings_of(side: int) -> int:
    """How often a decoder doubles: twice up to 32 pixels, three times up to 64, and so on.

    Example:
        >>> doublings_of(28), doublings_of(64)
        (2, 3)
    """
    return max(2, math.ceil(math.log2(side / LARGEST_FIRST_MAP)))


class ConvEncoder(nn.Module):
    """Images to codes by strided convolutions: the mirror of `ConvDecoder`.

    Every coordinate of a code is normalized over the batch (and, outside training, by running
    means): its mean is 0 and its deviation 1, whatever the images are.

    Args:
        side: Side of the image in pixels.
        channels: Number of channels.
        code: Length of a code.
        width: Channels of the last feature map.
        doublings: How often the side is halved.
        generator: Where initial weights come from.

    Example:
        >>> encoder = ConvEncoder(8, 1, 3, generator=torch.Generator().manual_seed(0))
        >>> encoder(torch.rand(4, 1, 8, 8)).shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        side: int,
        channels: int,
        code: int,
        width: int = 128,
        doublings: int = 2,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        before = channels
        for step in reversed(range(doublings)):
            after = width >> step
            layers += [nn.Conv2d(before, after, 4, 2, 1), nn.BatchNorm2d(after), nn.ReLU()]
            before, side = after, side // 2
        layers += [nn.Conv2d(before, before, 3, padding=1), nn.BatchNorm2d(before), nn.ReLU()]
        self.maps = nn.Sequential(*layers)
        self.last = nn.Linear(before * side * side, code)
        self.normalize = nn.BatchNorm1d(code, affine=False)
        reset_with(self, generator)

    def forward(self, images: Tensor) -> Tensor:  # (n, c, h, w) -> (n, code)
        """Map images to codes."""
        return self.normalize(self.last(self.maps(images).flatten(1)).float())


class Autoencoder(nn.Module):
    """Images to codes and back.

    Args:
        shape: Channels, height and width of the images, which are square.
        code: Length of a code.
        width: Channels of the smallest feature maps.
        by_channel: Whether each channel is coded by itself, all by the same network, as suits
            channels that are pictures of their own; the length of a code must be a multiple.
        generator: Where initial weights come from.

    Example:
        >>> model = Autoencoder((1, 8, 8), 3, generator=torch.Generator().manual_seed(0))
        >>> model.decode(model.encode(torch.rand(4, 1, 8, 8))).shape
        torch.Size([4, 1, 8, 8])
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        code: int = 16,
        width: int = 128,
        by_channel: bool = False,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        channels, height, side = shape
        if height != side:
            raise OptionError(
                f"Images of {height} x {side} pixels: the autoencoder needs square images."
            )
        self.parts = channels if by_channel else 1
        if code < 1 or code % self.parts:
            raise OptionError(
                f"code={code}: a code needs at least one coordinate, and equally many for each "
                f"of the {self.parts} parts."
            )
        self.shape, self.code = shape, code
        doublings = doublings_of(side)
        each = (channels // self.parts, code // self.parts)
        self.encoder = ConvEncoder(side, *each, width, doublings, generator=generator)
        self.decoder = ConvDecoder(each[1], side, each[0], width, doublings, generator=generator)

    def encode(self, images: Tensor) -> Tensor:  # (n, c, h, w) -> (n, code)
        """Codes of images with values in [0, 1]."""
        if self.parts == 1:
            return self.encoder(images)
        codes = self.encoder(images.flatten(0, 1).unsqueeze(1))
        return codes.unflatten(0, (-1, self.parts)).flatten(1)

    def logits(self, codes: Tensor) -> Tensor:  # (n, code) -> (n, c, h, w)
        """Images before the last nonlinearity."""
        if self.parts > 1:
            codes = codes.unflatten(1, (self.parts, -1)).flatten(0, 1)
        return self.decoder(codes).view(-1, *self.shape)

    def decode(self, codes: Tensor) -> Tensor:  # (n, code) -> (n, c, h, w)
        """Images of codes, with values in [0, 1]."""
        return self.logits(codes).sigmoid()
