"""From the shape of images and settings to a model."""

import torch
from torch import Tensor, nn

from kermix.models.images.autoencoder import Autoencoder
from kermix.models.images.model import ImageModel, PixelGenerator, code_network
from kermix.models.mixture.networks import MixtureTable
from kermix.models.mixture.priors import make_prior
from kermix.models.mixture.product_mixture import ProductMixture
from kermix.training.image_settings import ImageSettings

__all__ = ["build_image_model"]


def build_image_model(
    shape: tuple[int, int, int], frequencies: Tensor, settings: ImageSettings
) -> ImageModel:
    """The untrained model."""
    generator = torch.Generator().manual_seed(settings.seed)
    autoencoder = None
    if settings.encodes:
        autoencoder = Autoencoder(
            shape, settings.code, settings.width, settings.by_channel, generator=generator
        )
    classes = len(frequencies)
    prior = make_prior(settings.prior, settings.noise, settings.states)
    network: nn.Module
    each = max(1, settings.components // classes)
    if settings.multiplies:
        assert autoencoder is not None
        network = ProductMixture(
            autoencoder.parts, settings.code // autoencoder.parts, each, settings.groups,
            (classes,), generator=generator,
        )  # fmt: skip
    elif settings.model == "mixture":
        network = MixtureTable(
            settings.code, each, settings.covariance_type, (classes,), generator=generator
        )
    elif settings.model == "codes":
        network = code_network(settings.code, classes, prior, settings.hidden, generator)
    else:
        inputs = prior.dimension + (classes if classes > 1 else 0)
        network = PixelGenerator(inputs, shape, settings.width, generator=generator)
    return ImageModel(
        network,
        shape,
        frequencies.float(),
        None if settings.model == "mixture" else prior,
        autoencoder,
        encodes_only=settings.model == "conv",
    )
