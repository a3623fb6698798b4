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

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from kermix.checks import check_samples, finite_in, normalized_weights
from kermix.costs.formulas import Correlations, FormulaName, Scaled, Weights, log_svd_cost
from kermix.errors import DeviceError, OptionError, ShapeError
from kermix.info import Info
from kermix.linalg.cholesky import checked_ridge, default_ridge, ridged_factor, shrunk
from kermix.linalg.polar import polar_factor
from kermix.sketches.accumulation import (
    ROUNDING,
    Moments,
    rounding_slip,
    sample_moments,
)
from kermix.sketches.features import FeatureMap, nystrom_features
from kermix.sketches.sketch import (
    Sketch,
    check_batch_weights,
    check_comparable,
)

if TYPE_CHECKING:
    from kermix.costs.points import PointStatistics

__all__ = ["CANDIDATES", "Interval", "MomentStatistics", "fidelity", "subsample", "svd_interval"]

CANDIDATES = 20_000
POLAR_TOLERANCE = 1e-9
NO_OVERLAP = 1e-12  # products of mean squared features far below this stand for no overlap


class MomentStatistics:
    """Statistics of the costs from moments of features.

    Args:
        x: Moments of the data.
        y: Moments of the centers.
        weighted: Whether the sets are measures, see `kermix.costs.formulas.Statistics`.
        ridge: Ridge of the Gram matrices; by default that of float64. Never smaller than the
            rounding of the moments.
        dtype: The dtype of the costs.
    """

    def __init__(
        self,
        x: Moments,
        y: Moments,
        weighted: bool,
        ridge: float | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.x, self.y = x, y
        self.ridge = default_ridge(torch.float64) if ridge is None else checked_ridge(ridge)
        self.weighted, self.dtype = weighted, dtype
        self.device, self.sizes = x.mean.device, (x.size, y.size)
        self.log_traces = 0.0, 0.0
        self._log_scale = x.log_scale + y.log_scale

    @classmethod
    def of_sketches(
        cls,
        x: Tensor | Sketch,
        y: Tensor | Sketch,
        weights: Weights = (None, None),
        ridge: float | None = None,
    ) -> "MomentStatistics":
        """Two sides of which at least one is a sketch, the other perhaps points."""
        if isinstance(x, Sketch) and isinstance(y, Sketch):
            check_comparable(x, y)
        known = x if isinstance(x, Sketch) else y
        assert isinstance(known, Sketch)
        features = known.feature_map
        sides = (("x", x, weights[0]), ("y", y, weights[1]))
        dtypes = [side.dtype for _, side, _ in sides if isinstance(side, Tensor)]
        weighted = any(w is not None for w in weights)
        weighted |= any(side.weighted for _, side, _ in sides if isinstance(side, Sketch))
        moments = [_moments(features, *side) for side in sides]
        dtype = dtypes[0] if dtypes else features.parameters.dtype
        return cls(moments[0], moments[1], weighted, ridge, dtype)

    @classmethod
    def of_points(
        cls, points: "PointStatistics", tolerance: float | None, rank: int
    ) -> "MomentStatistics":
        """Sketch both sets with Nystrom features chosen for them.

        Args:
            points: The points.
            tolerance: Wanted mean residual, if no rank is given.
            rank: Number of features at most.
        """
        x, y = points.data, points.centers
        if x.points.ndim != 2 or y.points.ndim != 2:
            raise ShapeError(
                "method='sketch' takes one set of points per argument, not batches of shape "
                f"{tuple(x.points.shape[:-2])} and {tuple(y.points.shape[:-2])}."
            )
        # Half of the candidates from each set, so that neither is forgotten.
        pooled = torch.cat([
            subsample(side.points.detach().double(), CANDIDATES // 2) for side in (x, y)
        ])  # fmt: skip
        features = nystrom_features(
            pooled, points.kernel, rank=rank, tolerance=tolerance, candidates=len(pooled)
        )
        of_x, of_y = (sample_moments(features, side.points, side.weights) for side in (x, y))
        return cls(of_x, of_y, points.weighted, dtype=points.working_dtype)

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

    def in_callers_dtype(self, value: Tensor) -> Tensor:
        """The value in the dtype of the costs, finite if it is finite here."""
        return finite_in(value, self.dtype)

    def answer(
        self, cost: FormulaName, found: tuple[Tensor, Info], normalized: bool, log: bool
    ) -> tuple[Tensor, Info]:
        """A cost, or its logarithm, and the bound of its error.

        Args:
            cost: Which cost; no bound is known of the matrix-matrix cost.
            found: Its logarithm, and what its formula tells.
            normalized: Whether it is the form in [0, 1].
            log: Whether the logarithm is asked for.
        """
        log_cost, info = found
        value = self.in_callers_dtype(log_cost if log else log_cost.exp())
        with torch.no_grad():
            interval = self._interval(cost, log_cost, info, normalized)
            bound = None
            if interval is not None:
                # As far as the value is from the ends, rounded to the dtype that is returned.
                shown = log_cost.exp() if log else value.to(log_cost)
                bound = torch.maximum(interval.highest - shown, shown - interval.lowest)
                bound = bound.clamp(min=0)
        return value, Info("sketch", info.ridge, bound, len(self.x.mean))

    def svd_error(self) -> float:
        """The bound of the SVD cost's relative error."""
        with torch.no_grad():
            value, info = self.answer("svd", log_svd_cost(self, normalized=True), True, log=False)
            return math.inf if info.error_bound is None else float(info.error_bound / value)

    def _interval(
        self, cost: FormulaName, log_cost: Tensor, info: Info, normalized: bool
    ) -> "Interval | None":
        x, y = self.x, self.y
        if cost == "matrix":
            return None
        if cost == "svd":
            measures = normalized or self.weighted
            factor = 1.0 if measures else math.sqrt(x.size * y.size)
            found = svd_interval(x, y, log_cost.exp() / factor)
            return None if found is None else Interval(*(factor * end for end in found))
        if cost == "scalar":
            found = scalar_interval(x, y)
        else:
            assert info.ridge is not None
            found = vector_interval(x, y, info.ridge)
        return relative_interval(found, x) if normalized else found

    def _scaled(self, value: Tensor, ridge: Tensor) -> Scaled:
        return Scaled(_positive(value), 2 * self._log_scale, Info("sketch", ridge))


def _moments(
    features: FeatureMap, name: str, side: Tensor | Sketch, weights: Tensor | None
) -> Moments:
    if isinstance(side, Sketch):
        if weights is not None:
            raise OptionError(f"weights_{name} is given for a sketch, which has its own weights.")
        return side.moments
    check_samples(name, side)
    if side.ndim != 2 or side.shape[1] != features.dimension:
        raise ShapeError(
            f"{name} has shape {tuple(side.shape)}; with this sketch it must have shape (N, "
            f"{features.dimension})."
        )
    if side.device != features.parameters.device:
        raise DeviceError(
            f"{name} is on {side.device}, the sketch on {features.parameters.device}."
        )
    if weights is not None:
        check_batch_weights(f"weights_{name}", weights, side)
        weights = normalized_weights(f"weights_{name}", weights, side)
    return sample_moments(features, side, weights)


def subsample(points: Tensor, size: int, seed: int = 0) -> Tensor:
    """All points, or `size` of them, the same for the same seed."""
    if len(points) <= size:
        return points
    generator = torch.Generator().manual_seed(seed)
    return points[torch.randperm(len(points), generator=generator)[:size].to(points.device)]


class Interval(NamedTuple):
    """An interval that holds the exact value."""

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
    x: Moments, other: Moments, ridge: float, sudden: int = 8
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
    unknown = (1 - x.held / other.held.detach().clamp(min=tiny)).clamp(min=0) ** sudden
    return c, used, (used + unknown, scale)


def _positive(value: Tensor) -> Tensor:
    """Raise what is negative by rounding alone, such that its logarithm is finite."""
    return value.clamp(min=torch.finfo(value.dtype).tiny)


def _root(matrix: Tensor) -> Tensor:
    eigenvalues, vectors = torch.linalg.eigh(matrix)
    return (vectors * eigenvalues.clamp(min=0).sqrt()) @ vectors.mT
