"""The paper's four costs: two sets of points, components or moments in, one number out.

Public functions, losses for training, and the formulas behind both.
"""

from kermix.costs.functions import (
    matrix_cost,
    scalar_cost,
    svd_cost,
    vector_cost,
    vector_weights,
)

__all__ = [
    "matrix_cost",
    "scalar_cost",
    "svd_cost",
    "vector_cost",
    "vector_weights",
]
