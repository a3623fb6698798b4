"""Who provides the statistics of what a user gave: points, mixtures, or another kernel."""

from typing import Any, TypeAlias

import torch
from torch import Tensor

from kermix.costs.components import Mixture, MixturePair, is_mixture
from kermix.costs.dense import SampleStatistics
from kermix.costs.kernelized import KernelPair, KernelStatistics
from kermix.costs.samples import SamplePair
from kermix.costs.sketched import SketchPair
from kermix.errors import KernelError, OptionError
from kermix.kernels.gaussian import BandwidthRule, GaussianKernel, Variance
from kermix.kernels.others import AnyKernel, as_point_kernel
from kermix.sketches.sketch import Sketch

__all__ = ["Pair", "needs_gaussian", "pair_of", "sketch_pair", "statistics_of"]

Pair: TypeAlias = SamplePair | MixturePair | KernelPair


def pair_of(
    x: Tensor | Mixture,
    y: Tensor | Mixture,
    v: GaussianKernel | Variance | BandwidthRule | None,
    weights_x: Tensor | None,
    weights_y: Tensor | None,
    kernel: AnyKernel | None,
    unit_norm: bool,
) -> Pair:
    """Data and centres, with the kernel that belongs to them."""
    if kernel is not None:
        if v is not None:
            raise OptionError("v and kernel are both given; give only one.")
        if isinstance(kernel, GaussianKernel):
            v = kernel
        elif is_mixture(x) or is_mixture(y):
            raise KernelError(
                "kernel is given for a mixture, but inner products of its Gaussians have a "
                "closed form only for the Gaussian kernel. Omit kernel, or draw points: "
                "mixture.sample((1000,))."
            )
        else:
            named = as_point_kernel(kernel)
            return KernelPair(x, y, named, weights_x, weights_y, unit_norm)  # type: ignore[arg-type]
    if is_mixture(x) or is_mixture(y):
        return MixturePair(x, y, v, weights_x, weights_y)
    return SamplePair(x, y, v, weights_x, weights_y, unit_norm)  # type: ignore[arg-type]


def sketch_pair(
    x: Any,
    y: Any,
    v: object,
    weights_x: Tensor | None,
    weights_y: Tensor | None,
    kernel: AnyKernel | None,
) -> SketchPair:
    """Two sides of which at least one is a sketch."""
    if kernel is not None:
        raise KernelError(
            "kernel is given for a sketch, which has the Gaussian kernel it was made with; omit "
            "kernel, or give points."
        )
    if is_mixture(x) or is_mixture(y):
        name = "x" if isinstance(x, Sketch) else "y"
        raise OptionError(
            f"{name} is a sketch and the other argument is a mixture, but a sketch only has "
            "moments of points. Give the points instead of the sketch, or points of the "
            "mixture: mixture.sample((1000,))."
        )
    return SketchPair(x, y, v, weights_x, weights_y)


def statistics_of(
    pair: Pair,
    dtype: torch.dtype,
    ridge: float | None = None,
    chunk: int | None = None,
    **how: Any,
) -> SampleStatistics | KernelStatistics:
    """The statistics that the formulas ask for; `how` is for the nuclear norm."""
    if isinstance(pair, SamplePair):
        return SampleStatistics(pair, dtype, ridge, chunk, **how)
    if chunk is not None:
        what = "mixtures" if isinstance(pair, MixturePair) else "another kernel"
        raise OptionError(f"chunk={chunk} is for points under the Gaussian kernel, not {what}.")
    if isinstance(pair, MixturePair):
        return SampleStatistics(pair, dtype, ridge, **how)
    return KernelStatistics(pair, dtype, ridge, **how)


def needs_gaussian(what: str, pair: Pair) -> KernelError:
    """The error that something is there for points under the Gaussian kernel alone."""
    found = "a mixture" if isinstance(pair, MixturePair) else f"kernel={pair.kernel}"
    return KernelError(f"{what} needs points and the Gaussian kernel, and {found} is given.")
