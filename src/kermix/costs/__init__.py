"""The paper's four costs: public functions, losses, and the formulas behind both."""

from kermix.costs.functions import (
    matrix_cost,
    scalar_cost,
    svd_cost,
    vector_cost,
    vector_weights,
)
from kermix.moved import moved_name

__all__ = [
    "matrix_cost",
    "scalar_cost",
    "svd_cost",
    "vector_cost",
    "vector_weights",
]


def __getattr__(name: str) -> object:
    return moved_name(__name__, name)
