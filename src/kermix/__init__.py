"""Kernelized matrix costs for distributions that are given by samples.

Example:
    >>> import torch, kermix as km
    >>> x = torch.linspace(0, 1, 50)[:, None]
    >>> round(km.svd_cost(x, x.flip(0), 0.01, normalized=True).item(), 4)
    1.0
"""

from typing import TYPE_CHECKING

from kermix import errors
from kermix.comparison.compare import compare
from kermix.comparison.drift_monitor import DriftMonitor
from kermix.comparison.period_drift import drift_over_time
from kermix.comparison.twosample import two_sample_test
from kermix.costs.debiased import DebiasedLoss
from kermix.costs.discrete import decompose_discrete, discrete_cost
from kermix.costs.functions import (
    matrix_cost,
    scalar_cost,
    svd_cost,
    vector_cost,
    vector_weights,
)
from kermix.costs.losses import MatrixLoss, ScalarLoss, SVDLoss, VectorLoss
from kermix.data.tables.schema import EncodedTable, Schema
from kermix.evaluation import metrics
from kermix.evaluation.diversity import rke, vendi
from kermix.evaluation.evaluate import evaluate
from kermix.evaluation.novelty import ken, novel_modes
from kermix.evaluation.variances import stable_variance
from kermix.kernels.gaussian import GaussianKernel, bandwidth
from kermix.kernels.gram import gram
from kermix.kernels.others import (
    CosineKernel,
    FunctionKernel,
    LaplaceKernel,
    PolynomialKernel,
    RationalQuadraticKernel,
)
from kermix.linalg.nuclear import nuclear_norm
from kermix.mixtures.mixture import GaussianMixture
from kermix.mixtures.sampled_mixture import SampledMixture
from kermix.moved import forward_moved_modules, moved_function
from kermix.sketches.features import fourier_features, nystrom_features
from kermix.sketches.files import sketch_files
from kermix.sketches.kernel_features import kernel_features
from kermix.sketches.sketch import Sketch
from kermix.spectrum import decompose, decompose_grid
from kermix.version import __version__

if TYPE_CHECKING:
    from kermix.runs.fit import fit, resume
    from kermix.sklearn.mixture import KernelMixture
    from kermix.sklearn.product import ProductClassifier, ProductRegressor
    from kermix.sklearn.table import TableModel

forward_moved_modules()

__all__ = [
    "CosineKernel",
    "DebiasedLoss",
    "DriftMonitor",
    "EncodedTable",
    "FunctionKernel",
    "GaussianKernel",
    "GaussianMixture",
    "KernelMixture",
    "LaplaceKernel",
    "MatrixLoss",
    "PolynomialKernel",
    "ProductClassifier",
    "ProductRegressor",
    "RationalQuadraticKernel",
    "SVDLoss",
    "SampledMixture",
    "ScalarLoss",
    "Schema",
    "Sketch",
    "TableModel",
    "VectorLoss",
    "__version__",
    "bandwidth",
    "compare",
    "decompose",
    "decompose_discrete",
    "decompose_grid",
    "discrete_cost",
    "drift_over_time",
    "errors",
    "evaluate",
    "fit",
    "fourier_features",
    "gram",
    "ken",
    "kernel_features",
    "matrix_cost",
    "metrics",
    "novel_modes",
    "nuclear_norm",
    "nystrom_features",
    "resume",
    "rke",
    "scalar_cost",
    "sketch_files",
    "stable_variance",
    "svd_cost",
    "two_sample_test",
    "vector_cost",
    "vector_weights",
    "vendi",
]


def __getattr__(name: str) -> object:
    # Imported when asked for: they need scikit-learn, which the rest does not.
    if name == "KernelMixture":
        from kermix.sklearn.mixture import KernelMixture

        return KernelMixture
    if name == "TableModel":
        from kermix.sklearn.table import TableModel

        return TableModel
    if name in ("ProductClassifier", "ProductRegressor"):
        from kermix.sklearn import product as product_estimators

        return getattr(product_estimators, name)
    if name in ("fit", "resume"):  # training needs Lightning
        from kermix.runs import fit

        return getattr(fit, name)
    return moved_function(__name__, name)
