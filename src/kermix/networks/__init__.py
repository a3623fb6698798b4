"""Networks: noise, contexts, rows or images in, centers, whole mixtures or classes out."""

from kermix.networks.generators import (
    ConvDecoder,
    GaussianPrior,
    Generator,
    HybridPrior,
    MLPGenerator,
    Prior,
    UniformPrior,
)
from kermix.networks.image_networks import PlainCNN
from kermix.networks.mixture_networks import (
    ConditionalMixtureNetwork,
    ContinuousMixtureNetwork,
    MixtureNetwork,
    MixtureTable,
    ProductMixture,
    WeightedPoints,
    stratified_draw,
)
from kermix.networks.product_images import GaussianProductClassifier, ProductDesign
from kermix.networks.product_layers import GaussianLayer, GaussianOutput
from kermix.networks.product_rows import GaussianProduct

__all__ = [
    "ConditionalMixtureNetwork",
    "ContinuousMixtureNetwork",
    "ConvDecoder",
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
    "ProductDesign",
    "ProductMixture",
    "UniformPrior",
    "WeightedPoints",
    "stratified_draw",
]
