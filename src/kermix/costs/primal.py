r"""The four costs as functions of moments of features: primal forms, with their error bounds.

With features :math:`\phi` the data have the mean :math:`\mu` and the second moment
:math:`\rho`, and :math:`C = N \rho`. What a Nystrom map leaves out of the kernel is positive
semi-definite and has the mean diagonal `e`, the residual; from that follow the bounds.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.linalg.polar import polar_factor

__all__ = [
    "Estimate",
    "Moments",
    "fidelity",
    "matrix_logdet",
    "matrix_trace",
    "norm_squared",
    "scalar",
    "svd",
    "vector",
]

POLAR_TOLERANCE = 1e-9
ROUNDING = 64.0


class Moments(NamedTuple):
    """What a cost needs to know of a set of samples."""

    size: float
    mean: Tensor  # (r,)
    second: Tensor  # (r, r)
    residual: Tensor | None  # ()  None where the map has no certificate


class Estimate(NamedTuple):
    """A value, and how far it can be from that of the exact kernel (None: not known)."""

    value: Tensor
    error_bound: Tensor | None


def norm_squared(x: Moments) -> Estimate:
    r""":math:`\langle p, p \rangle`; the exact one exceeds it by at most `e`."""
    return Estimate(x.mean @ x.mean, x.residual)


def scalar(x: Moments, y: Moments) -> Estimate:
    r""":math:`(\mu_x \mu_y)^2 / |\mu_y|^2`.

    :math:`|\langle p, q\rangle - \mu_x \mu_y| \le \sqrt{e_x e_y}`, because what is left out is an
    inner product too, and :math:`0 \le \langle q, q\rangle - |\mu_y|^2 \le e_y`.
    """
    cross, norm = x.mean @ y.mean, y.mean @ y.mean
    value = cross.square() / norm
    if x.residual is None or y.residual is None:
        return Estimate(value, None)
    slack = (x.residual * y.residual).sqrt()
    highest = (cross.abs() + slack).square() / norm
    lowest = (cross.abs() - slack).clamp(min=0).square() / (norm + y.residual)
    return Estimate(value, torch.maximum(highest - value, value - lowest))


def vector(x: Moments, y: Moments, ridge: float) -> Estimate:
    r""":math:`\mu_x^\top C_y (C_y + \epsilon)^{-1} \mu_x`.

    The cost is the maximum over weights `w` of :math:`2 \langle p, w\rangle - |w|_R^2 - \epsilon
    |w|^2`. Comparing the maximisers with and without the features, the exact cost is at most
    :math:`e_x` above the value and at most :math:`2 a b + b^2` below, with :math:`a = \sqrt{e_x}`,
    :math:`b = |w| \sqrt{K e_y}` and :math:`|w|^2 = \mu^\top C (C + \epsilon)^{-2} \mu`.
    """
    c = y.size * y.second
    z = torch.cholesky_solve(x.mean.unsqueeze(-1), _factor(c, ridge)).squeeze(-1)
    value = x.mean @ c @ z
    if x.residual is None or y.residual is None:
        return Estimate(value, None)
    weights = (z @ c @ z).clamp(min=0).sqrt()
    a, b = x.residual.sqrt(), weights * (y.size * y.residual).sqrt()
    return Estimate(value, torch.maximum(x.residual, 2 * a * b + b.square()))


def matrix_trace(x: Moments, y: Moments, ridge: float, data_fixed: bool) -> Tensor:
    r""":math:`\mathrm{tr}(C_x (C_x + \epsilon)^{-1} C_y (C_y + \epsilon)^{-1})`, without a bound.

    With `data_fixed`, :math:`\mathrm{tr}(C_x C_y (C_y + \epsilon)^{-1})`.
    """
    c_x = x.size * x.second
    left = c_x if data_fixed else _shrunk(c_x, ridge)
    return (left * _shrunk(y.size * y.second, ridge)).sum()


def matrix_logdet(x: Moments, y: Moments, ridge: float) -> Tensor:
    r""":math:`\sum_k \log(1 - s_k^2)` over the canonical correlations; no bound is known."""
    product = _shrunk(x.size * x.second, ridge) @ _shrunk(y.size * y.second, ridge)
    return torch.linalg.slogdet(_eye(product) - product).logabsdet


def svd(x: Moments, y: Moments) -> Estimate:
    r"""Fidelity :math:`F = \mathrm{tr}(\rho_x^{1/2} \rho_y \rho_x^{1/2})^{1/2}`.

    Within :math:`\sqrt{e_x e_y}` of the exact one: a sum of nuclear norms, of which the one that
    is left out is bounded by Cauchy and Schwarz.
    """
    value = fidelity(x.second, y.second)
    if x.residual is None or y.residual is None:
        return Estimate(value, None)
    # The moments themselves are rounded.
    rounding = ROUNDING * torch.finfo(value.dtype).eps * len(x.second)
    return Estimate(value, (x.residual * y.residual).sqrt() + rounding)


def fidelity(a: Tensor, b: Tensor) -> Tensor:  # (r, r), (r, r) -> ()
    r""":math:`\mathrm{tr}(a^{1/2} b a^{1/2})^{1/2}` of positive semi-definite matrices."""
    return _Fidelity.apply(a, b)


class _Fidelity(torch.autograd.Function):
    """The gradient is half the optimal map between two Gaussians, on the significant spectrum."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        # Of the product of the roots: the root of an eigenvalue would keep half the digits.
        product = _root(a) @ _root(b)
        if product.is_cuda:
            return polar_factor(product, POLAR_TOLERANCE).value
        return torch.linalg.svdvals(product).sum()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        grad_a = grad / 2 * _optimal_map(b, a) if ctx.needs_input_grad[0] else None
        grad_b = grad / 2 * _optimal_map(a, b) if ctx.needs_input_grad[1] else None
        return grad_a, grad_b


def _optimal_map(a: Tensor, b: Tensor) -> Tensor:
    r""":math:`a^{1/2} (a^{1/2} b a^{1/2})^{-1/2} a^{1/2}`, the derivative of the fidelity in b."""
    root = _root(a)
    eigenvalues, vectors = torch.linalg.eigh(root @ b @ root)
    level = eigenvalues[-1] * len(b) * torch.finfo(b.dtype).eps
    inverse = torch.where(eigenvalues > level, eigenvalues.clamp(min=level).rsqrt(), 0.0)
    half = root @ vectors
    return (half * inverse) @ half.mT


def _shrunk(matrix: Tensor, ridge: float) -> Tensor:
    """`C (C + ridge)^{-1}`."""
    return torch.cholesky_solve(matrix, _factor(matrix, ridge))


def _factor(matrix: Tensor, ridge: float) -> Tensor:
    """Cholesky factor with a ridge, which is never smaller than the rounding of the matrix."""
    largest = matrix.detach().diagonal().sum()
    safe = largest * len(matrix) * torch.finfo(matrix.dtype).eps
    return torch.linalg.cholesky(matrix + torch.clamp(safe, min=ridge) * _eye(matrix))


def _eye(matrix: Tensor) -> Tensor:
    return torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def _root(matrix: Tensor) -> Tensor:
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    return (vectors * eigenvalues.clamp(min=0).sqrt()) @ vectors.mT
