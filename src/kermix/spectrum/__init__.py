"""Singular functions: what structure a kernel sees in two distributions, or in one."""

from kermix.spectrum.decomposing import decompose, decompose_grid
from kermix.spectrum.decomposition import (
    Decomposition,
    FunctionForm,
    IdentityWeighting,
    unit_gaussians,
)

__all__ = [
    "Decomposition",
    "FunctionForm",
    "IdentityWeighting",
    "decompose",
    "decompose_grid",
    "unit_gaussians",
]
