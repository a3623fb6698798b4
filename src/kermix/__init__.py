"""Fit, complete, generate and compare tables and samples with kernelized matrix costs.

Example:
    >>> import torch, kermix as km
    >>> x = torch.linspace(0, 1, 50)[:, None]
    >>> round(km.svd_cost(x, x.flip(0), 0.01, normalized=True).item(), 4)
    1.0
"""

import importlib
from typing import TYPE_CHECKING

from kermix import errors
from kermix.version import __version__

if TYPE_CHECKING:
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
    from kermix.runs.fit import fit, resume
    from kermix.sketches.features import fourier_features, nystrom_features
    from kermix.sketches.files import sketch_files
    from kermix.sketches.kernel_features import kernel_features
    from kermix.sketches.sketch import Sketch
    from kermix.sklearn.mixture import KernelMixture
    from kermix.sklearn.product import ProductClassifier, ProductRegressor
    from kermix.sklearn.table import TableModel
    from kermix.spectrum import decompose, decompose_grid

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


_WHERE = {
    "kermix.comparison.compare": "compare",
    "kermix.comparison.drift_monitor": "DriftMonitor",
    "kermix.comparison.period_drift": "drift_over_time",
    "kermix.comparison.twosample": "two_sample_test",
    "kermix.costs.debiased": "DebiasedLoss",
    "kermix.costs.discrete": "decompose_discrete discrete_cost",
    "kermix.costs.functions": "matrix_cost scalar_cost svd_cost vector_cost vector_weights",
    "kermix.costs.losses": "MatrixLoss SVDLoss ScalarLoss VectorLoss",
    "kermix.data.tables.schema": "EncodedTable Schema",
    "kermix.evaluation.diversity": "rke vendi",
    "kermix.evaluation.evaluate": "evaluate",
    "kermix.evaluation.novelty": "ken novel_modes",
    "kermix.evaluation.variances": "stable_variance",
    "kermix.kernels.gaussian": "GaussianKernel bandwidth",
    "kermix.kernels.gram": "gram",
    "kermix.kernels.others": "CosineKernel FunctionKernel LaplaceKernel "
    "PolynomialKernel RationalQuadraticKernel",
    "kermix.linalg.nuclear": "nuclear_norm",
    "kermix.mixtures.mixture": "GaussianMixture",
    "kermix.mixtures.sampled_mixture": "SampledMixture",
    "kermix.runs.fit": "fit resume",
    "kermix.sketches.features": "fourier_features nystrom_features",
    "kermix.sketches.files": "sketch_files",
    "kermix.sketches.kernel_features": "kernel_features",
    "kermix.sketches.sketch": "Sketch",
    "kermix.sklearn.mixture": "KernelMixture",
    "kermix.sklearn.product": "ProductClassifier ProductRegressor",
    "kermix.sklearn.table": "TableModel",
    "kermix.spectrum": "decompose decompose_grid",
}
_ROOMS = ("comparison", "costs", "data", "distributed", "evaluation", "kernels", "linalg",
          "mixtures", "models", "paper", "reports", "runs", "sketches", "sklearn", "spectrum",
          "training")  # fmt: skip
_MODULE_OF = {name: module for module, names in _WHERE.items() for name in names.split()}


def __getattr__(name: str) -> object:
    if name == "metrics":
        return importlib.import_module("kermix.evaluation.metrics")
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
