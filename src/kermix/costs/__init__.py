"""The paper's four costs: public functions, losses, and the formulas behind both."""

from kermix.costs.functions import (
    distance_nuclear_cost,
    frobenius_cost,
    matrix_cost,
    scalar_cost,
    svd_cost,
    vector_cost,
    vector_weights,
)

__all__ = [
    "distance_nuclear_cost",
    "frobenius_cost",
    "matrix_cost",
    "scalar_cost",
    "svd_cost",
    "vector_cost",
    "vector_weights",
]
