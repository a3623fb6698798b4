"""Networks: priors, generators of centres, and networks that return whole mixtures."""

from kermix.models.images.cnn import PlainCNN
from kermix.models.mixture.continuous import ContinuousMixtureNetwork
from kermix.models.mixture.generators import ConvDecoder, Generator, MLPGenerator
from kermix.models.mixture.networks import (
    ConditionalMixtureNetwork,
    Draw,
    MixtureNetwork,
    MixtureTable,
    stratified_draw,
)
from kermix.models.mixture.priors import GaussianPrior, HybridPrior, Prior, UniformPrior
from kermix.models.mixture.product_mixture import ProductMixture
from kermix.models.product.classifier import GaussianProductClassifier
from kermix.models.product.layers import GaussianLayer, GaussianOutput
from kermix.models.product.rows import GaussianProduct

__all__ = [
    "ConditionalMixtureNetwork",
    "ContinuousMixtureNetwork",
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
