r"""Eigenvalues of the kernel between samples, and what a sketch of them leaves open.

With $k(x, x) = 1$ the matrix $K / n$ of n samples has eigenvalues
$\lambda_1 \ge \lambda_2 \ge \ldots \ge 0$ that sum to 1. Nystrom features reproduce a part
of it, $\hat K \preceq K$, whose eigenvalues $\hat\lambda_i$ are those of the features'
second moment, and leave out $R = (K - \hat K) / n \succeq 0$ of the known trace `t`. By
Weyl $\lambda_i \ge \hat\lambda_i$, and all excesses together are `t`. Among such spectra
one majorizes all others, $\hat\lambda + t e_1$, and one is majorized by all others: the `t`
poured onto the smallest values up to one level. Every entropy lies between those of the two, and
both can occur: given what a sketch knows, no bounds are narrower.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.costs.primal import Interval
from kermix.sketches.moments import Moments, rounding_slip
from kermix.sketches.sketch import Sketch

__all__ = ["Spectrum", "effective_number", "number_interval", "spectrum_of_moments"]

EXACT_ROUNDINGS = 8.0  # of an eigenvalue, relative to the largest, for each row


class Spectrum(NamedTuple):
    """Eigenvalues of a kernel matrix of trace 1, or of the part of it that features hold."""

    eigenvalues: Tensor  # (r,), descending, none negative
    left_out: float  # trace of what the features do not hold
    size: float  # number of samples: no more eigenvalues are positive
    rounding: float  # bound of the sum of the eigenvalues' errors by rounding
    certified: bool = True  # False: errors of the features are not known


def spectrum_of_matrix(matrix: Tensor) -> Spectrum:
    """The spectrum of a kernel matrix of trace 1, differentiable."""
    found = torch.linalg.eigvalsh(matrix).flip(-1).clamp(min=0)
    rounding = EXACT_ROUNDINGS * len(matrix) * torch.finfo(matrix.dtype).eps
    return Spectrum(found, 0.0, float(len(matrix)), rounding)


@torch.no_grad()
def spectrum_of_moments(moments: Moments) -> Spectrum:
    """What a sketch knows of the spectrum."""
    found = torch.linalg.eigvalsh(moments.plain_second).flip(-1).clamp(min=0)
    found = found[: max(1, int(min(len(found), moments.size)))]
    held = float(found.sum())
    if moments.residual is None:
        # Fourier features have squares that sum to 1, but for rounding.
        return Spectrum(found / max(held, 1e-300), 0.0, moments.size, 0.0, certified=False)
    left_out = max(0.0, 1 - held)
    rounding = 4 * rounding_slip(moments) + abs(left_out - float(moments.residual))
    return Spectrum(found, left_out, moments.size, rounding)


def spectrum_of_sketch(sketch: Sketch) -> Spectrum:
    """The same of a sketch."""
    return spectrum_of_moments(sketch.moments)


def effective_number(values: Tensor, order: float = 1.0) -> Tensor:
    r"""Exponential of the Renyi entropy, $(\sum \lambda^q)^{1/(1-q)}$; of Shannon's for 1.

    Example:
        >>> round(effective_number(torch.full((5,), 0.2)).item(), 6)
        5.0
    """
    if order == 1:
        # The derivative of the entropy at zero is infinite, and zeros do not count.
        return torch.special.entr(values.clamp(min=1e-300)).sum().exp()
    if math.isinf(order):
        return 1 / values.max()
    return values.clamp(min=0).pow(order).sum().pow(1 / (1 - order))


@torch.no_grad()
def number_interval(spectrum: Spectrum, order: float = 1.0) -> Interval | None:
    """What holds the effective number of all eigenvalues; None without a certificate."""
    if not spectrum.certified:
        return None
    values, t = spectrum.eigenvalues.detach(), spectrum.left_out
    concentrated = values.clone()
    concentrated[0] += t
    lowest = _entropy(concentrated, order)
    level = _water_level(values, t, spectrum.size)
    more = max(0.0, spectrum.size - len(values))
    highest = _entropy(values.clamp(min=level), order, more, level)
    slip = _entropy_slip(spectrum, order, min(float(lowest), float(highest)))
    most = math.log(max(1.0, spectrum.size))
    return Interval(
        (lowest - slip).clamp(0, most).exp(), (highest + slip).clamp(0, most).exp()
    )  # fmt: skip


def _water_level(values: Tensor, amount: float, count: float) -> float:
    """The level to which the smallest of `count` values can be raised with an amount."""
    below = values.flip(0).cumsum(0).flip(0)  # sum of each value and all smaller ones
    zero = values.new_zeros(1)
    sums = torch.cat([below, zero])
    places = torch.arange(len(values) + 1, dtype=values.dtype, device=values.device)
    levels = (amount + sums) / (count - places).clamp(min=1)
    fits = levels >= torch.cat([values, zero])
    if count <= len(values):
        fits[-1] = False  # no value is left to be raised
    return float(levels[int(fits.to(torch.int8).argmax())])


def _entropy(values: Tensor, order: float, more: float = 0.0, level: float = 0.0) -> Tensor:
    """Renyi entropy of values, and of `more` values that are all at a level; they sum to 1."""
    level_ = values.new_tensor(level)
    if order == 1:
        return torch.special.entr(values).sum() + more * torch.special.entr(level_)
    if math.isinf(order):
        return -torch.maximum(values.max(), level_).log()
    return (values.pow(order).sum() + more * level_.pow(order)).log() / (1 - order)


def _entropy_slip(spectrum: Spectrum, order: float, entropy: float) -> float:
    r"""How much errors of the eigenvalues, $\theta$ in all, change their entropy at most.

    Shannon's by $T \log n + h(T)$ with $T = \theta$ (Fannes and Audenaert, who have
    half of it, for spectra that sum to 1); a sum of powers by $q \theta$, or by
    $n^{1 - q} \theta^q$ for q < 1.
    """
    theta, n = min(spectrum.rounding, 0.5), max(2.0, spectrum.size)
    if theta == 0:
        return 0.0
    if order == 1:
        return theta * math.log(n) - theta * math.log(theta) - (1 - theta) * math.log1p(-theta)
    if math.isinf(order):
        return -math.log(max(1e-300, 1 - theta / math.exp(-entropy)))
    change = order * theta if order > 1 else n ** (1 - order) * theta**order
    # Relative to the sum of powers, which is exp((1 - q) H).
    share = change * math.exp((order - 1) * entropy)
    return math.inf if share >= 1 else -math.log1p(-share) / abs(1 - order)
