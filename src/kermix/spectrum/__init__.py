"""Singular functions: what structure a kernel sees in two distributions, or in one."""

from kermix.spectrum.decomposition import (
    Decomposition,
    FunctionForm,
    IdentityWeighting,
    decompose,
    decompose_grid,
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
