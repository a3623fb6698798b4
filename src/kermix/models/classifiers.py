"""Classifiers that judge what generators of images make: linear, MLP and convolutional."""

import torch
from torch import Tensor, nn

from .generators import reset_with

__all__ = ["ConvClassifier", "linear_classifier", "mlp_classifier"]


class ConvClassifier(nn.Module):
    """Pairs of convolutions with pooling between them, then two linear layers.

    Args:
        shape: Channels, height and width.
        classes: Number of classes.
        width: Channels of the first pair; each pooling doubles them.
        pools: How often the side is halved.
        features: Length of the last hidden layer, the features that images are compared by.
        generator: Where initial weights come from.

    Example:
        >>> network = ConvClassifier((1, 8, 8), 10, 8, generator=torch.Generator().manual_seed(0))
        >>> network(torch.rand(4, 1, 8, 8)).shape, network.features(torch.rand(4, 1, 8, 8)).shape
        (torch.Size([4, 10]), torch.Size([4, 128]))
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        classes: int,
        width: int = 32,
        pools: int = 2,
        features: int = 128,
        dropout: float = 0.25,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        channels, height, side = shape
        layers: list[nn.Module] = []
        for step in range(pools):
            after = width << step
            for _ in range(2):
                layers += [
                    nn.Conv2d(channels, after, 3, padding=1, bias=False),
                    nn.BatchNorm2d(after),
                    nn.ReLU(),
                ]
                channels = after
            layers += [nn.MaxPool2d(2), nn.Dropout(dropout)]
            height, side = height // 2, side // 2
        self.maps = nn.Sequential(*layers)
        self.hidden = nn.Sequential(nn.Linear(channels * height * side, features), nn.ReLU())
        self.last = nn.Sequential(nn.Dropout(dropout), nn.Linear(features, classes))
        reset_with(self, generator)

    def features(self, images: Tensor) -> Tensor:  # (n, c, h, w) -> (n, features)
        """The last hidden layer."""
        return self.hidden(self.maps(images).flatten(1))

    def forward(self, images: Tensor) -> Tensor:  # (n, c, h, w) -> (n, classes)
        """Scores of the classes."""
        return self.last(self.features(images))


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
