"""Networks: priors, generators of centres, and networks that return whole mixtures."""

from .cnn import PlainCNN
from .gaussian_layers import GaussianLayer, GaussianOutput
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
from .product_classifier import GaussianProductClassifier
from .product_mixture import ProductMixture

__all__ = [
    "ConditionalMixtureNetwork",
    "ConvDecoder",
    "Draw",
    "GaussianLayer",
    "GaussianOutput",
    "GaussianPrior",
    "GaussianProduct",
    "GaussianProductClassifier",
    "Generator",
    "HybridPrior",
    "MLPGenerator",
    "MixtureNetwork",
    "MixtureTable",
    "PlainCNN",
    "Prior",
    "ProductMixture",
    "UniformPrior",
    "stratified_draw",
]
