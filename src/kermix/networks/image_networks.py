"""Networks of images: an autoencoder, and classifiers to compare Gaussian products with.

In the autoencoder's small space distances between images mean something. The classifiers are a
plain convolutional network, the baseline of the classification table, fully connected layers, and
a linear map; all share how pixels become numbers and what a trainer asks of a model.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from kermix.errors import OptionError, SampleError, ShapeError
from kermix.networks.generators import ConvDecoder, reset_with

__all__ = [
    "Autoencoder",
    "ConvEncoder",
    "ImageClassifier",
    "ImageShape",
    "PlainCNN",
    "as_numbers",
    "doublings_of",
    "linear_classifier",
    "mlp_classifier",
]


def doublings_of(side: int, largest_first_map: int = 8) -> int:
    """How often a decoder doubles: twice up to 32 pixels, three times up to 64, and so on.

    Example:
        >>> doublings_of(28), doublings_of(64)
        (2, 3)
    """
    return max(2, math.ceil(math.log2(side / largest_first_map)))


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


class PlainCNN(ImageClassifier):
    """Stages of 3 x 3 convolutions, batch normalization and ReLU, each ending in a maximum pool.

    Args:
        shape: Channels, height and width of the images.
        classes: Number of classes.
        widths: Channels of each stage.
        convolutions: Convolutions in a stage.
        generator: Where initial weights come from.

    Example:
        >>> network = PlainCNN((3, 32, 32), 10, generator=torch.Generator().manual_seed(0))
        >>> network(torch.zeros(2, 3, 32, 32)).shape, network.parameter_count
        (torch.Size([2, 10]), 1148874)
    """

    mean: Tensor
    deviation: Tensor

    def __init__(
        self,
        shape: ImageShape,
        classes: int,
        *,
        widths: Sequence[int] = (64, 128, 256),
        convolutions: int = 2,
        generator: torch.Generator,
    ) -> None:
        super().__init__(shape, classes)
        self.register_buffer("mean", torch.zeros(shape[0], 1, 1))
        self.register_buffer("deviation", torch.ones(shape[0], 1, 1))
        layers: list[nn.Module] = []
        inputs = shape[0]
        for width in widths:
            for _ in range(convolutions):
                layers += [
                    nn.Conv2d(inputs, width, 3, padding=1, bias=False),
                    nn.BatchNorm2d(width),
                    nn.ReLU(),
                ]
                inputs = width
            # Rounded up: a side of one pixel stays.
            layers.append(nn.MaxPool2d(2, ceil_mode=True))
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.head = nn.Linear(inputs, classes)
        reset_with(self, generator)
        for layer in self.layers:
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=generator)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @torch.no_grad()
    def prepare(self, images: Tensor, generator: torch.Generator, most: int = 10_000) -> None:
        """Take mean and deviation of each channel, of so many images at most."""
        chosen = torch.randperm(len(images), generator=generator)[:most]
        pixels = as_numbers(images[chosen.to(images.device)])
        deviation, mean = torch.std_mean(pixels, (0, 2, 3))
        self.mean.copy_(mean.view_as(self.mean))
        self.deviation.copy_(deviation.clamp(min=1e-6).view_as(self.deviation))

    @property
    def numbers_per_image(self) -> int:
        """Size of the largest array that one image becomes on its way."""
        first = self.layers[0]
        assert isinstance(first, nn.Conv2d)
        return first.out_channels * self.shape[1] * self.shape[2]

    def features(self, images: Tensor) -> Tensor:  # (B, C, H, W) -> (B, width of the last stage)
        """The features of which the scores are a linear function."""
        return self._features(self.checked(images)).float()

    def scores(self, pixels: Tensor) -> Tensor:  # (B, C, H, W) -> (B, classes)
        """Class scores of float pixels."""
        return self.head(self._features(pixels)).float()

    def _features(self, pixels: Tensor) -> Tensor:
        scaled = ((pixels - self.mean) / self.deviation).contiguous(
            memory_format=torch.channels_last
        )
        return self.layers(scaled)


def linear_classifier(
    shape: tuple[int, int, int], classes: int, generator: torch.Generator
) -> nn.Module:
    """Logistic regression on pixels."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))
    reset_with(network, generator)
    return network


def mlp_classifier(
    shape: tuple[int, int, int], classes: int, generator: torch.Generator, width: int = 512
) -> nn.Module:
    """Two hidden layers with dropout, on pixels."""
    network = nn.Sequential(
        nn.Flatten(),
        nn.Linear(shape[0] * shape[1] * shape[2], width), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(width, classes),
    )  # fmt: skip
    reset_with(network, generator)
    return network
