"""Spectra: two sets (or one) in, singular values and functions of the kernel between them out."""

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
