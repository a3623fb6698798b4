"""The simplest classifiers of images: linear, and fully connected layers."""

import torch
from torch import nn

from kermix.models.mixture.generators import reset_with

__all__ = ["linear_classifier", "mlp_classifier"]


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
