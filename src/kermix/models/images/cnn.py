"""A plain convolutional network, the baseline of the classification table."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from kermix.models.images.classifier import ImageClassifier, ImageShape, as_numbers
from kermix.models.mixture.generators import reset_with

__all__ = ["PlainCNN"]

IMAGES_FOR_STATISTICS = 10_000


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
    def prepare(self, images: Tensor, generator: torch.Generator) -> None:
        """Take mean and deviation of each channel."""
        chosen = torch.randperm(len(images), generator=generator)[:IMAGES_FOR_STATISTICS]
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
        """What the scores are a linear function of."""
        return self._features(self.checked(images)).float()

    def scores(self, pixels: Tensor) -> Tensor:  # (B, C, H, W) -> (B, classes)
        """Class scores of float pixels."""
        return self.head(self._features(pixels)).float()

    def _features(self, pixels: Tensor) -> Tensor:
        scaled = ((pixels - self.mean) / self.deviation).contiguous(
            memory_format=torch.channels_last
        )
        return self.layers(scaled)
