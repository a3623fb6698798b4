"""Models of images, with classes or without: noise to codes or images, mixtures of codes."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.errors import OptionError
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.generators import ConvDecoder, MLPGenerator, Prior
from kermix.networks.image_networks import Autoencoder, doublings_of
from kermix.networks.mixture_networks import (
    MixtureTable,
    ProductMixture,
    WeightedPoints,
    stratified_draw,
)
from kermix.networks.scaled import evaluating

__all__ = ["ImageModel", "LabelledDraw", "PixelGenerator", "code_network"]

ROWS_AT_ONCE = 4096  # a convention, on which draws depend


class LabelledDraw(NamedTuple):
    """Images in [0, 1] and their classes."""

    images: Tensor  # (n, c, h, w)
    labels: Tensor  # (n,)

    def as_bytes(self) -> np.ndarray:
        """The images as bytes, (n, c, h, w)."""
        return self.images.mul(255).round().byte().cpu().numpy()


class ImageModel(nn.Module):
    """Noise and a class to images.

    A *point* is what the cost is taken of: a code, or for `"conv"` an image, flattened.

    Args:
        network: From noise beside a one-hot class to points, or a mixture with one batch item for
            each class.
        shape: Channels, height and width.
        frequencies: How frequent each class is; their number is that of the classes.
        prior: Where noise comes from; None for a mixture.
        autoencoder: Turns codes into images and back; None if there are no codes.
        encodes_only: Whether points are images all the same, and the autoencoder serves as a
            space to compare them in.
    """

    frequencies: Tensor  # (classes,)

    def __init__(
        self,
        network: nn.Module,
        shape: tuple[int, int, int],
        frequencies: Tensor,
        prior: Prior | None,
        autoencoder: Autoencoder | None,
        encodes_only: bool = False,
    ) -> None:
        super().__init__()
        if prior is None and not isinstance(network, MixtureTable | ProductMixture):
            raise OptionError("A network needs a prior for its noise.")
        self.network, self.autoencoder, self.prior = network, autoencoder, prior
        self.shape, self.encodes_only = shape, encodes_only
        self.register_buffer("frequencies", frequencies / frequencies.sum())

    @property
    def classes(self) -> int:
        """Number of classes; 1 where there are none to tell apart."""
        return len(self.frequencies)

    @property
    def is_mixture(self) -> bool:
        """Whether a sample is a centre plus noise of the learned variance, or a centre."""
        return isinstance(self.network, MixtureTable | ProductMixture)

    @property
    def decodes(self) -> bool:
        """Whether points are codes."""
        return self.autoencoder is not None and not self.encodes_only

    def inputs(self, labels: Tensor, generator: torch.Generator) -> Tensor:  # (n,) -> (n, k)
        """Noise beside one-hot classes."""
        assert self.prior is not None
        noise = self.prior.sample(len(labels), generator)
        if self.classes == 1:
            return noise
        return torch.cat([noise, functional.one_hot(labels, self.classes).to(noise)], 1)

    def each_class(self, per_class: int) -> Tensor:  # (classes * per_class,)
        """So many of each class, in order."""
        device = self.frequencies.device
        return torch.arange(self.classes, device=device).repeat_interleave(per_class)

    def draw(self, per_class: int, generator: torch.Generator) -> WeightedPoints:
        """Differentiable points (classes, n, d), `per_class` of each or a little more."""
        if isinstance(self.network, MixtureTable):
            mixture = self.network()
            repeats = -(-per_class // mixture.means.shape[-2])
            return WeightedPoints(*stratified_draw(mixture, repeats, generator))
        if isinstance(self.network, ProductMixture):
            return self.network.draw(per_class, generator)
        points = self.network(self.inputs(self.each_class(per_class), generator))
        return WeightedPoints(points.unflatten(0, (self.classes, per_class)), None)

    def to_images(self, points: Tensor) -> Tensor:  # (n, d) -> (n, c, h, w)
        """Images, with values in [0, 1], of points."""
        if self.decodes:
            assert self.autoencoder is not None
            return self.autoencoder.decode(points)
        return points.unflatten(-1, self.shape)

    def draw_labels(self, n: int, generator: torch.Generator) -> Tensor:  # (n,)
        """Classes as frequent as in the data, exactly up to rounding, in random order."""
        shares = (self.frequencies.double().cumsum(0) * n).round().long()
        counts = torch.diff(shares, prepend=shares.new_zeros(1))
        labels = torch.arange(self.classes, device=shares.device).repeat_interleave(counts)
        return labels[torch.randperm(n, generator=generator, device=labels.device)]

    @torch.no_grad()
    def points(self, labels: Tensor, generator: torch.Generator) -> Tensor:  # (n,) -> (n, d)
        """Points of these classes."""
        if isinstance(self.network, MixtureTable):
            mixture = self.network()
            rows = labels.split(ROWS_AT_ONCE)
            return torch.cat([_of_classes(mixture, part, generator) for part in rows])
        if isinstance(self.network, ProductMixture):
            parts = labels.split(ROWS_AT_ONCE)
            return torch.cat([self.network.points(part, generator) for part in parts])
        parts = self.inputs(labels, generator).split(ROWS_AT_ONCE)
        return torch.cat([self.network(part) for part in parts])

    @torch.no_grad()
    def sample(
        self, n: int, generator: torch.Generator, labels: Tensor | None = None
    ) -> LabelledDraw:
        """Images, of classes as frequent as in the data, or of given classes."""
        chosen = self.draw_labels(n, generator) if labels is None else labels
        with evaluating(self):
            points = self.points(chosen, generator)
            images = torch.cat([self.to_images(part) for part in points.split(ROWS_AT_ONCE)])
        return LabelledDraw(images, chosen)


def _of_classes(mixture: GaussianMixture, labels: Tensor, generator: torch.Generator) -> Tensor:
    """One point (a centre plus noise) of the batch item of each label."""
    chosen = torch.multinomial(mixture.weights[labels], 1, generator=generator).squeeze(1)
    means, variances = mixture.means[labels, chosen], mixture.covariances[labels, chosen]
    if mixture.covariance_kind == "isotropic":
        variances = variances.unsqueeze(-1)
    noise = torch.randn(means.shape, generator=generator, device=means.device)
    return means + variances.sqrt() * noise


def code_network(
    code: int, classes: int, prior: Prior, hidden: int, generator: torch.Generator
) -> nn.Module:
    """From noise beside a class to codes."""
    inputs = prior.dimension + (classes if classes > 1 else 0)
    return MLPGenerator(inputs, code, hidden, generator=generator)


class PixelGenerator(nn.Module):
    """From noise beside a class to images in [0, 1], flattened.

    Example:
        >>> network = PixelGenerator(5, (1, 8, 8), 16, generator=torch.Generator().manual_seed(0))
        >>> network(torch.zeros(4, 5)).shape
        torch.Size([4, 64])
    """

    def __init__(
        self,
        inputs: int,
        shape: tuple[int, int, int],
        width: int = 128,
        *,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if shape[1] != shape[2]:
            raise OptionError(
                f"Images of {shape[1]} x {shape[2]} pixels: only square images can be generated."
            )
        self.decoder = ConvDecoder(
            inputs, shape[1], shape[0], width, doublings_of(shape[1]), generator=generator
        )

    def forward(self, noise: Tensor) -> Tensor:  # (n, k) -> (n, d)
        """Map noise to images."""
        return self.decoder(noise).sigmoid()
