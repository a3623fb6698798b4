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
from kermix.environment import __version__

if TYPE_CHECKING:
    from kermix import networks
    from kermix.costs.discrete import decompose_discrete, discrete_cost
    from kermix.costs.functions import (
        matrix_cost,
        scalar_cost,
        svd_cost,
        vector_cost,
        vector_weights,
    )
    from kermix.costs.losses import DebiasedLoss, MatrixLoss, ScalarLoss, SVDLoss, VectorLoss
    from kermix.data.schema.schema import EncodedTable, Schema
    from kermix.estimators.kernel_mixture import KernelMixture
    from kermix.estimators.product import ProductClassifier, ProductRegressor
    from kermix.evaluation import metrics
    from kermix.fitting.fit import fit, resume
    from kermix.kernels.gaussian import GaussianKernel, choose_variance
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
    from kermix.sketches.features import fourier_features, nystrom_features
    from kermix.sketches.kernel_features import kernel_features
    from kermix.sketches.sketch import Sketch
    from kermix.spectrum import decompose, decompose_grid
    from kermix.tables.compare.compare import compare
    from kermix.tables.drift.monitor import DriftMonitor
    from kermix.tables.drift.period_drift import drift_over_time
    from kermix.tables.evaluate.evaluate import evaluate
    from kermix.tables.evaluate.ranking import rank_generators
    from kermix.tables.model.table_estimator import TableModel
    from kermix.tables.sketch_files import sketch_files
    from kermix.training.conditional import fit_conditional
    from kermix.two_sample.cost_test import dependence, two_sample_test

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
    "choose_variance",
    "compare",
    "decompose",
    "decompose_discrete",
    "decompose_grid",
    "dependence",
    "discrete_cost",
    "drift_over_time",
    "errors",
    "evaluate",
    "fit",
    "fit_conditional",
    "fourier_features",
    "gram",
    "kernel_features",
    "matrix_cost",
    "metrics",
    "networks",
    "nuclear_norm",
    "nystrom_features",
    "rank_generators",
    "resume",
    "scalar_cost",
    "sketch_files",
    "svd_cost",
    "two_sample_test",
    "vector_cost",
    "vector_weights",
]

_PUBLIC = {
    "kermix.costs.discrete": "decompose_discrete discrete_cost",
    "kermix.costs.functions": "matrix_cost scalar_cost svd_cost vector_cost vector_weights",
    "kermix.costs.losses": "DebiasedLoss MatrixLoss SVDLoss ScalarLoss VectorLoss",
    "kermix.data.schema.schema": "EncodedTable Schema",
    "kermix.estimators.kernel_mixture": "KernelMixture",
    "kermix.estimators.product": "ProductClassifier ProductRegressor",
    "kermix.fitting.fit": "fit resume",
    "kermix.kernels.gaussian": "GaussianKernel choose_variance",
    "kermix.kernels.gram": "gram",
    "kermix.kernels.others": "CosineKernel FunctionKernel LaplaceKernel PolynomialKernel "
    "RationalQuadraticKernel",
    "kermix.linalg.nuclear": "nuclear_norm",
    "kermix.mixtures.mixture": "GaussianMixture",
    "kermix.mixtures.sampled_mixture": "SampledMixture",
    "kermix.sketches.features": "fourier_features nystrom_features",
    "kermix.sketches.kernel_features": "kernel_features",
    "kermix.sketches.sketch": "Sketch",
    "kermix.spectrum": "decompose decompose_grid",
    "kermix.tables.compare.compare": "compare",
    "kermix.tables.drift.monitor": "DriftMonitor",
    "kermix.tables.drift.period_drift": "drift_over_time",
    "kermix.tables.evaluate.evaluate": "evaluate",
    "kermix.tables.evaluate.ranking": "rank_generators",
    "kermix.tables.model.table_estimator": "TableModel",
    "kermix.tables.sketch_files": "sketch_files",
    "kermix.training.conditional": "fit_conditional",
    "kermix.two_sample.cost_test": "dependence two_sample_test",
}
_MODULE_OF = {name: module for module, names in _PUBLIC.items() for name in names.split()}
_ROOMS = (
    "cli",
    "costs",
    "data",
    "distributed",
    "estimators",
    "evaluation",
    "explore",
    "fitting",
    "images",
    "kernels",
    "linalg",
    "mixtures",
    "networks",
    "pages",
    "paper",
    "runs",
    "sketches",
    "spectrum",
    "tables",
    "training",
    "two_sample",
)


def __getattr__(name: str) -> object:
    if name == "metrics":
        return importlib.import_module("kermix.evaluation.metrics")
    if name in _ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = found  # looked up once
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
