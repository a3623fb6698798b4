"""Networks: priors, generators of centres, and networks that return whole mixtures."""

from .gaussian_product import GaussianProduct
from .generators import ConvDecoder, Generator, MLPGenerator
from .mixture_networks import (
    ConditionalMixtureNetwork,
    Draw,
    MixtureNetwork,
    MixtureTable,
    stratified_draw,
)
from .priors import GaussianPrior, HybridPrior, Prior, UniformPrior

__all__ = [
    "ConditionalMixtureNetwork",
    "ConvDecoder",
    "Draw",
    "GaussianPrior",
    "GaussianProduct",
    "Generator",
    "HybridPrior",
    "MLPGenerator",
    "MixtureNetwork",
    "MixtureTable",
    "Prior",
    "UniformPrior",
    "stratified_draw",
]
