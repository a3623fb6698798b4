"""How many different samples there are: Vendi score and RKE, of samples or sketches."""

import math

import torch
from torch import Tensor

from kermix.checks import check_number, check_weights
from kermix.costs.functions import Kernel
from kermix.errors import OptionError, WeightError
from kermix.evaluation.spectra import (
    EXACT_UP_TO,
    Aim,
    Spectrum,
    StableRule,
    checked_points,
    checked_tolerance,
    chosen_kernel,
    effective_number,
    fine_sketches,
    normalized_gram,
    number_interval,
    refuse_beside_sketch,
    residual_for,
    spectrum_of_matrix,
    spectrum_of_sketch,
    told_in,
)
from kermix.info import Info, informative
from kermix.kernels.others import AnyKernel
from kermix.sketches.sketch import Sketch

__all__ = ["diversity_of", "rke", "vendi"]


@informative
def vendi(
    x: Tensor | Sketch,  # (N, d)
    v: Kernel | StableRule | None = None,
    *,
    kernel: AnyKernel | None = None,
    weights: Tensor | None = None,  # (N,)
    order: float = 1.0,
    tolerance: float | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Info]:
    r"""Vendi score: the effective number of distinct samples, from 1 to N.

    $$\exp\Big(-\sum_i \lambda_i \log \lambda_i\Big)$$

    with the eigenvalues $\lambda_i$ of $K / N$. A variance `v` stands for the kernel of the costs,
    $k(a, b) = \exp(-\|a - b\|^2 / (4 v d))$ in `d` dimensions: the Gaussian of standard deviation
    $\sigma = \sqrt{2 v d}$. Other kernels are normalized to $k(x, x) = 1$.

    Up to 2000 samples the kernel matrix is decomposed, and the score is differentiable. For more
    samples, and for sketches, the score lies in a certified interval (see the page Mathematics);
    the value is the geometric mean of its ends, and `return_info=True` adds the error bound and
    the rank. Memory and time are linear in N. Sketches with Fourier features have no bound.

    Args:
        x: Samples, or a sketch of them.
        v: Variance, several of them, `"median"`, `"silverman"`, `"stable"`
            (`stable_variance`), or a Gaussian kernel; None for a sketch.
        kernel: Another kernel, such as `kermix.CosineKernel` or
            `kermix.PolynomialKernel`, instead of `v`.
        weights: Of the samples.
        order: Of the Renyi entropy; `math.inf` for the inverse of the largest eigenvalue.
        tolerance: Certified relative error to reach; raises an error if it is not reached. By
            default 1 % is aimed for, with at most 1024 features.
        rank: Number of features, instead.
        seed: Of the landmarks.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> x = torch.tensor([[0.0], [0.0], [9.0], [9.0]])
        >>> vendi(x, 0.1)
        tensor(2.)
    """
    spectrum, dtype, info = _spectrum(x, v, kernel, weights, order, tolerance, rank, seed)
    value, bound = told_in(dtype, *diversity_of(spectrum, order))
    return value, info._replace(error_bound=bound)


@informative
def rke(
    x: Tensor | Sketch,  # (N, d)
    v: Kernel | StableRule | None = None,
    *,
    kernel: AnyKernel | None = None,
    weights: Tensor | None = None,  # (N,)
    tolerance: float | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Info]:
    r"""Renyi kernel entropy: the number of modes, $1 / \|K / N\|_F^2$.

    The exponential of the entropy of order 2, so `vendi` with `order=2`: frequent modes count more
    than in the Vendi score, and it needs fewer samples. Arguments are those of `vendi`.

    Example:
        >>> rke(torch.tensor([[0.0], [0.0], [9.0], [9.0]]), 0.1)
        tensor(2.)
    """
    return vendi(
        x,
        v,
        kernel=kernel,
        weights=weights,
        order=2.0,
        tolerance=tolerance,
        rank=rank,
        seed=seed,
        return_info=True,
    )


def diversity_of(spectrum: Spectrum, order: float = 1.0) -> tuple[Tensor, Tensor | None]:
    """The score of a spectrum and its error bound; the middle of the interval of a sketch."""
    if not spectrum.certified:
        return effective_number(spectrum.eigenvalues, order), None
    interval = number_interval(spectrum, order)
    assert interval is not None
    if spectrum.left_out == 0:
        value = effective_number(spectrum.eigenvalues, order)
    else:
        value = (interval.lowest * interval.highest).sqrt()
    bound = torch.maximum(interval.highest - value, value - interval.lowest).clamp(min=0)
    return value, bound.detach()


def _spectrum(
    x: Tensor | Sketch,
    v: Kernel | StableRule | None,
    kernel: AnyKernel | None,
    weights: Tensor | None,
    order: float,
    tolerance: float | None,
    rank: int | None,
    seed: int,
) -> tuple[Spectrum, torch.dtype, Info]:
    check_number("order", order)
    if not order > 0:
        raise OptionError(f"order={order}: orders of entropies are positive.")
    checked_tolerance(tolerance)
    if isinstance(x, Sketch):
        refuse_beside_sketch(v=v, kernel=kernel, weights=weights, tolerance=tolerance, rank=rank)
        found, dtype = spectrum_of_sketch(x), x.feature_map.parameters.dtype
        return found, dtype, Info("sketch", rank=x.feature_map.rank)
    points = checked_points("x", x)
    if weights is not None:
        check_weights("weights", weights, points)
        if weights.ndim != 1:
            raise WeightError(f"weights has shape {tuple(weights.shape)}; give ({len(points)},).")
    chosen = chosen_kernel(v, kernel, points)
    if rank is None and len(points) <= EXACT_UP_TO:
        return spectrum_of_matrix(normalized_gram(points, chosen, weights)), x.dtype, Info("dense")
    aim = Aim(
        residual_for(2 * math.log1p(0.01 if tolerance is None else tolerance), len(points)),
        lambda made: _relative_error(spectrum_of_sketch(made[0]), order),
        tolerance,
    )
    with torch.no_grad():
        (sketch,) = fine_sketches([points], chosen, [weights], aim, rank, seed)
    info = Info("sketch", rank=sketch.feature_map.rank)
    return spectrum_of_sketch(sketch), x.dtype, info


def _relative_error(spectrum: Spectrum, order: float) -> float:
    value, bound = diversity_of(spectrum, order)
    return math.inf if bound is None else float(bound / value)
