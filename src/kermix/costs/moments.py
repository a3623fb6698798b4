r"""Statistics of the costs from moments of features: primal forms, with their error bounds.

With features $\phi$ the data have the mean $\mu$ and the second moment
$\rho$, and $C = N \rho$. What a Nystrom map leaves out of the kernel is positive
semi-definite and has the mean diagonal `e`, the residual; from that follow the bounds, together
with what rounding does to features and to sums of them.

Costs are given by their logarithms, and moments of points that are far from all landmarks with
their scale taken out, so that the logarithm has a value and a gradient where the cost underflows.
There the features know neither the norm nor the Gram matrix of the points, which are then taken to
be those of points that are far from each other too: it is the distance that counts.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.costs.formulas import Correlations, Scaled
from kermix.info import Info
from kermix.linalg.cholesky import ridged_factor, shrunk
from kermix.linalg.polar import polar_factor
from kermix.sketches.sketch import ROUNDING, Moments, rounding_slip

__all__ = [
    "Interval",
    "MomentStatistics",
    "fidelity",
    "relative_interval",
    "scalar_interval",
    "svd_interval",
    "vector_interval",
]

POLAR_TOLERANCE = 1e-9
NO_OVERLAP = 1e-12  # products of mean squared features far below this stand for no overlap
SUDDEN = 8


class MomentStatistics:
    """Statistics of the costs from moments of features.

    Args:
        x: Moments of the data.
        y: Moments of the centres.
        weighted: Whether the sets are measures, see `kermix.costs.formulas.Statistics`.
        ridge: Ridge of the Gram matrices; never smaller than the rounding of the moments.
    """

    def __init__(self, x: Moments, y: Moments, weighted: bool, ridge: float = 0.0) -> None:
        self.x, self.y, self.ridge = x, y, ridge
        self.weighted = weighted
        self.sizes = x.size, y.size
        self.log_traces = 0.0, 0.0
        self._log_scale = x.log_scale + y.log_scale

    def log_cross(self) -> Tensor:
        r"""$\log \mu_x \mu_y$.

        Without any overlap the mean of the kernel, whose sign is then rounding of the features,
        gives way to the root of its mean square.
        """
        x, y = self.x, self.y
        apart = (NO_OVERLAP / (NO_OVERLAP + x.held * y.held)).square()
        squares = (y.mean @ x.second @ y.mean + x.mean @ y.second @ x.mean) / 2
        square = (1 - apart) * (x.mean @ y.mean).square() + apart * squares
        return self._log_scale + _positive(square).log() / 2

    def log_norm_x(self) -> Tensor:
        r"""$\log |\mu_x|^2$."""
        return _log_norm(self.x)

    def log_norm_y(self) -> Tensor:
        r"""$\log |\mu_y|^2$."""
        return _log_norm(self.y)

    def predicted(self) -> Scaled:
        r"""$\mu_x^\top C_y (C_y + \epsilon)^{-1} \mu_x$."""
        c, used, of_factor = _ridged(self.y, self.x, self.ridge)
        factor = ridged_factor(c, *of_factor)
        z = torch.cholesky_solve(self.x.mean.unsqueeze(-1), factor).squeeze(-1)
        return self._scaled(self.x.mean @ c @ z, used)

    def total_correlation(self, data_fixed: bool) -> Scaled:
        r"""$\mathrm{tr}(C_x (C_x + \epsilon)^{-1} C_y (C_y + \epsilon)^{-1})$.

        With `data_fixed`, $\mathrm{tr}(C_x C_y (C_y + \epsilon)^{-1})$.
        """
        right, used = _shrunk(self.y, self.x, self.ridge)
        if data_fixed:
            left = self.x.size * self.x.second
        else:
            left, other = _shrunk(self.x, self.y, self.ridge)
            used = torch.maximum(used, other)
        return self._scaled((left * right).sum(), used)

    def correlations(self) -> Correlations:
        """The matrix of which the trace is taken."""
        left, used = _shrunk(self.x, self.y, self.ridge)
        right, other = _shrunk(self.y, self.x, self.ridge)
        info = Info("sketch", torch.maximum(used, other))
        return Correlations(left @ right, 2 * self._log_scale, info, symmetric=False)

    def nuclear(self) -> Scaled:
        r"""Fidelity $\mathrm{tr}(\rho_x^{1/2} \rho_y \rho_x^{1/2})^{1/2}$."""
        value = _positive(fidelity(self.x.second, self.y.second))
        return Scaled(value, self._log_scale, Info("sketch"))

    def _scaled(self, value: Tensor, ridge: Tensor) -> Scaled:
        return Scaled(_positive(value), 2 * self._log_scale, Info("sketch", ridge))


class Interval(NamedTuple):
    """What holds the exact value."""

    lowest: Tensor
    highest: Tensor


def relative_interval(found: Interval | None, x: Moments) -> Interval | None:
    """That of a cost divided by the norm of the data density: at most 1."""
    if found is None:
        return None
    least, most = _norm_interval(x)
    return Interval(found.lowest / most, (found.highest / least).clamp(max=1))


def scalar_interval(x: Moments, y: Moments) -> Interval | None:
    r"""Bounds of the scalar cost; None where the features have no certificate.

    $|\langle p, q\rangle - \mu_x \mu_y| \le \sqrt{e_x e_y}$, because what is left out is an
    inner product too, and $0 \le \langle q, q\rangle - |\mu_y|^2 \le e_y$. The norm of K
    points is also at least 1 / K, whatever the features hold of it.
    """
    if x.slack is None or y.slack is None:
        return None
    value = (x.log_scale + y.log_scale).exp() * (x.mean @ y.mean).abs()
    slack = (x.slack * y.slack).sqrt() + rounding_slip(x) + rounding_slip(y)
    least, most = _norm_interval(y)
    lowest = (value - slack).clamp(min=0).square() / most
    return Interval(lowest, (value + slack).square() / least)


def vector_interval(x: Moments, y: Moments, ridge: Tensor) -> Interval | None:
    r"""Bounds of the vector cost with the ridge that was used.

    The cost is the maximum over weights `w` of $2 \langle p, w\rangle - |w|_R^2 - \epsilon
    |w|^2$. Comparing the maximisers with and without the features, the exact cost is at most
    $e_x$ above the value and at most $2 a b + b^2$ below, with $a = \sqrt{e_x}$,
    $b = |w| \sqrt{K e_y}$ and $|w|^2 = \mu^\top C (C + \epsilon)^{-2} \mu$. The bounds
    hold for any `z`, so that it need not be an exact solution: the weights $w = \Phi z$ are
    worth no more than the best ones; and for any function `u`, here $\epsilon z$, the cost
    is at most $|p - u|^2 + \sum_k u(y_k)^2 / \epsilon$.
    """
    if x.slack is None or y.slack is None:
        return None
    c, mean = y.size * y.plain_second, x.plain_mean
    factor = ridged_factor(c, ridge)
    z = torch.cholesky_solve(mean.unsqueeze(-1), factor).squeeze(-1)
    length, fitted = z.norm(), c @ z
    # Of C by its sums, and of the features in it.
    of_sums = ROUNDING * torch.finfo(c.dtype).eps * y.size * y.held * length
    of_features = y.size**0.5 * rounding_slip(y)
    weights = ((z @ fitted).clamp(min=0) + of_sums * length).sqrt()
    error = of_sums + weights * of_features
    least = 2 * mean @ fitted - fitted @ fitted - ridge * weights.square()
    least = least - 2 * (mean.norm() + fitted.norm()) * error - error.square()
    a, b = x.slack.sqrt(), weights * (y.size * y.slack).sqrt()
    lowest = least - 2 * rounding_slip(x) * fitted.norm() - 2 * a * b - b.square()
    rest = (mean - ridge * z).norm() + rounding_slip(x)
    highest = rest.square() + x.slack + ridge * (weights + length * of_features).square()
    return Interval(lowest.clamp(min=0), torch.minimum(highest, _norm_interval(x)[1]))


def svd_interval(x: Moments, y: Moments, value: Tensor) -> Interval | None:
    r"""Bounds of the fidelity whose value in features is given.

    Within $\sqrt{e_x e_y}$ of the exact one: a sum of nuclear norms, of which the one that
    is left out is bounded by Cauchy and Schwarz. An error of norm $\theta$ in a moment, of
    which roots are taken, changes it by at most $\sqrt\theta \, \mathrm{tr}\,\rho^{1/2}$ of
    the other (Rotfel'd).
    """
    if x.slack is None or y.slack is None:
        return None
    roots = [torch.linalg.eigvalsh(m.plain_second).clamp(min=0).sqrt().sum() for m in (x, y)]
    theta = ROUNDING * torch.finfo(x.second.dtype).eps * torch.stack([x.held, y.held])
    rounding = (theta[0].sqrt() * roots[1]) + (theta[1].sqrt() * roots[0])
    rounding = rounding + len(x.second) * theta.prod().sqrt() + rounding_slip(x) + rounding_slip(y)
    slack = (x.slack * y.slack).sqrt() + rounding
    return Interval((value - slack).clamp(min=0), (value + slack).clamp(max=1))


def fidelity(a: Tensor, b: Tensor) -> Tensor:  # (r, r), (r, r) -> ()
    r"""$\mathrm{tr}(a^{1/2} b a^{1/2})^{1/2}$ of positive semi-definite matrices."""
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
    r"""$a^{1/2} (a^{1/2} b a^{1/2})^{-1/2} a^{1/2}$, the derivative of the fidelity in b."""
    root = _root(a)
    eigenvalues, vectors = torch.linalg.eigh(root @ b @ root)
    level = eigenvalues[-1] * len(b) * torch.finfo(b.dtype).eps
    inverse = torch.where(eigenvalues > level, eigenvalues.clamp(min=level).rsqrt(), 0.0)
    half = root @ vectors
    return (half * inverse) @ half.mT


def _log_norm(x: Moments) -> Tensor:
    r"""Logarithm of $\langle p, p \rangle$; of N points it is at least 1 / N."""
    norm = 2 * x.log_scale + _positive(x.mean @ x.mean).log()
    return torch.maximum(norm, torch.full_like(norm, x.size).log().neg())


def _norm_interval(x: Moments) -> tuple[Tensor, Tensor]:
    assert x.slack is not None
    norm = x.plain_mean @ x.plain_mean
    least = (norm - 2 * rounding_slip(x) * norm.sqrt()).clamp(min=1 / x.size)
    return least, torch.maximum(norm + x.slack, least)


def _shrunk(x: Moments, other: Moments, ridge: float) -> tuple[Tensor, Tensor]:
    """`C (C + ridge)^{-1}` divided by the square of the scale, and the ridge."""
    c, used, of_factor = _ridged(x, other, ridge)
    return shrunk(c, *of_factor), used


def _ridged(
    x: Moments, other: Moments, ridge: float
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
    """C without its scale, the ridge, and both ridge and scale of what is to be factored.

    The ridge is never smaller than the rounding of C. If the features hold far less of these
    points than of the others, the points' Gram matrix has a diagonal that the features do not
    know: it is added to the ridge in the factor.
    """
    scale = (2 * x.log_scale).exp()
    c = x.size * x.second
    whole = scale.detach() * c.detach().diagonal().sum()
    tiny = torch.finfo(c.dtype).tiny ** 0.5
    used = (whole * len(c) * torch.finfo(c.dtype).eps).clamp(min=max(ridge, tiny))
    unknown = (1 - x.held / other.held.detach().clamp(min=tiny)).clamp(min=0) ** SUDDEN
    return c, used, (used + unknown, scale)


def _positive(value: Tensor) -> Tensor:
    """What is not negative but for rounding, such that its logarithm is finite."""
    return value.clamp(min=torch.finfo(value.dtype).tiny)


def _root(matrix: Tensor) -> Tensor:
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    return (vectors * eigenvalues.clamp(min=0).sqrt()) @ vectors.mT
