"""Gaussian mixtures and the closed forms of their products (Properties 1 and 2, corollary).

Everything is summed in log space, so that 784 dimensions neither under- nor overflow. Work is done
in blocks of about a million numbers (16 million on an accelerator), which the backward pass
computes anew: memory stays bounded whatever the number of components. Above 8 dimensions,
isotropic components take their squared distances from a matrix product, so no array of pairs times
dimensions exists at all; its precision is then that of torch.get_float32_matmul_precision().
"""

import math
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import reduce
from itertools import chain, combinations, combinations_with_replacement, islice, product
from typing import Any, Literal, Self, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.distributions import Distribution, constraints
from torch.types import _size
from torch.utils.checkpoint import checkpoint

from .errors import (
    DeviceError,
    OptionError,
    ReparametrizationError,
    ShapeError,
    SizeError,
    VarianceError,
)
from .validation import (
    check_pair,
    check_samples,
    normalized_weights,
    values_are_readable,
    working_dtype,
)

__all__ = ["ClosedForms", "Components", "CovarianceKind", "GaussianMixture"]

CovarianceKind = Literal["isotropic", "diagonal", "full"]
KINDS: tuple[CovarianceKind, ...] = ("isotropic", "diagonal", "full")  # from simple to general

BLOCK_ELEMENTS = 2**20
MAX_PRODUCTS = 2_000_000
MAX_OPERATIONS = 10**12
LOG_2PI = math.log(2 * math.pi)

Result = TypeVar("Result")
ScaledSum = tuple[Tensor, Tensor]  # (m, s) stands for s * exp(m); m carries no gradient


@dataclass(frozen=True)
class Components:
    """Weighted Gaussians in the precision that is computed in, expanded to one batch shape."""

    weights: Tensor  # (*B, K)
    means: Tensor  # (*B, K, d)
    covariances: Tensor  # (*B, K), (*B, K, d) or (*B, K, d, d)

    @classmethod
    def checked(
        cls, weights: Tensor, means: Tensor, covariances: Tensor, check_values: bool = True
    ) -> Self:
        """Check covariances against checked weights and means; broadcast and convert all."""
        kind = _checked_kind(means, covariances)
        if check_values and values_are_readable(covariances):
            _check_covariance_values(covariances, kind)
        tail = KINDS.index(kind) + 1
        try:
            batch = torch.broadcast_shapes(
                weights.shape[:-1], means.shape[:-2], covariances.shape[:-tail]
            )
        except RuntimeError:
            raise ShapeError(
                f"weights, means and covariances have batch shapes {tuple(weights.shape[:-1])}, "
                f"{tuple(means.shape[:-2])} and {tuple(covariances.shape[:-tail])}, which cannot "
                "be broadcast to one another; make them equal, or 1 where values are shared."
            ) from None
        dtype = working_dtype(weights, means, covariances)
        return cls(weights.to(dtype), means.to(dtype), covariances.to(dtype)).expand(batch)

    @property
    def kind(self) -> CovarianceKind:
        """What the covariances are, told by their number of axes."""
        return KINDS[self.covariances.ndim - self.means.ndim + 1]

    @property
    def batch_shape(self) -> torch.Size:
        """The axes before the components."""
        return self.means.shape[:-2]

    def expand(self, batch: _size) -> Self:
        """Repeat the components, without copying, to a larger batch shape."""
        tail = KINDS.index(self.kind) + 1
        old = self.covariances
        missing = (1,) * (len(batch) + tail - old.ndim)
        return type(self)(
            self.weights.expand(*batch, -1),
            self.means.expand(*batch, -1, -1),
            old.reshape(missing + old.shape).expand(*batch, *old.shape[-tail:]),
        )

    def to(self, dtype: torch.dtype) -> "Components":
        """Convert all numbers."""
        if self.means.dtype == dtype:
            return self
        return Components(self.weights.to(dtype), self.means.to(dtype), self.covariances.to(dtype))

    def covariances_as(self, kind: CovarianceKind) -> Tensor:
        """The covariances written as a kind that is at least as general as their own."""
        if self.kind == kind:
            return self.covariances
        diagonal = self.covariances
        if self.kind == "isotropic":
            diagonal = diagonal.unsqueeze(-1).expand(self.means.shape)
        return torch.diag_embed(diagonal) if kind == "full" else diagonal


def _checked_kind(means: Tensor, covariances: Tensor) -> CovarianceKind:
    if not isinstance(covariances, Tensor) or not covariances.dtype.is_floating_point:
        tensor = isinstance(covariances, Tensor)
        found = covariances.dtype if tensor else type(covariances).__name__
        raise VarianceError(
            f"covariances must be a floating-point tensor, not {found}; "
            "use covariances.float() or torch.as_tensor(covariances, dtype=means.dtype)."
        )
    count, dim = means.shape[-2:]
    tails = {"isotropic": (count,), "diagonal": (count, dim), "full": (count, dim, dim)}
    position = covariances.ndim - means.ndim + 1
    kind = KINDS[position] if 0 <= position < 3 else None
    if kind is None or covariances.shape[-len(tails[kind]) :] != tails[kind]:
        offered = ", ".join(f"{name} (*batch, {str(tail)[1:]}" for name, tail in tails.items())
        raise ShapeError(
            f"covariances has shape {tuple(covariances.shape)} with means of shape "
            f"{tuple(means.shape)}. Give as many batch axes as the means have (size 1 where "
            f"shared); the number of axes tells the kind: {offered}."
        )
    if covariances.device != means.device:
        raise DeviceError(
            f"covariances is on {covariances.device} and means on {means.device}; "
            "move one of them with .to(device)."
        )
    return kind


def _check_covariance_values(covariances: Tensor, kind: CovarianceKind) -> None:
    values = covariances.detach()
    bad = int((~torch.isfinite(values)).sum())
    if bad:
        raise VarianceError(
            f"covariances has {bad} NaN or infinite values; find out where they come from "
            "(a learning rate that is too high, or an exponential that overflows, are common)."
        )
    if kind != "full":
        if bool((values <= 0).any()):
            raise VarianceError(
                f"covariances has {int((values <= 0).sum())} values that are not positive "
                f"(smallest {float(values.min()):g}); pass variances through exp or softplus, "
                "or add a floor."
            )
        return
    asymmetry = float((values - values.mT).abs().max())
    if asymmetry > math.sqrt(torch.finfo(values.dtype).eps) * float(values.abs().max()):
        raise VarianceError(
            f"covariances has matrices that are not symmetric (largest difference {asymmetry:g}); "
            "give S = A @ A.mT, or (S + S.mT) / 2."
        )
    values = values.to(working_dtype(values))
    if bool(torch.linalg.cholesky_ex(values).info.any()):
        raise VarianceError(
            "covariances has matrices that are not positive definite (smallest eigenvalue "
            f"{float(torch.linalg.eigvalsh(values).min()):g}); "
            "give S = A @ A.mT + floor * torch.eye(d)."
        )


def _without_autocast(device: torch.device) -> AbstractContextManager[Any]:
    if torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def _cholesky(matrices: Tensor) -> Tensor:
    # A failure shows as NaN: asking whether there was one would make the host wait for the device.
    factor, info = torch.linalg.cholesky_ex(matrices)
    return torch.where(info[..., None, None] > 0, torch.nan, factor)


def _log_determinant(factor: Tensor) -> Tensor:
    return 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)


def _powers_and_factors(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Write w as factor * exp(power), with the weights that are zero in the linear factor.

    A zero then has a gradient, the true one, which log(0) has not.
    """
    positive = weights > 0
    one = torch.ones_like(weights)
    return torch.where(positive, weights, one).log(), torch.where(positive, one, weights)


def _scaled_sum(powers: Tensor, factors: Tensor, dim: int | tuple[int, ...]) -> ScaledSum:
    """Sum factors * exp(powers), scaled by the largest term that is not zero."""
    detached = powers.detach()
    present = torch.where(factors > 0, detached, -torch.inf).amax(dim, keepdim=True)
    scale = torch.where(present > -torch.inf, present, detached.amax(dim, keepdim=True))
    limits = torch.finfo(powers.dtype)
    scale = scale.clamp(min=limits.min)
    # Terms above the limit have factor zero: they add nothing, and their gradient must not be inf.
    terms = factors * (powers - scale).clamp(max=0.9 * math.log(limits.max)).exp()
    total = terms.sum(dim, keepdim=True)
    axes = (dim,) if isinstance(dim, int) else dim
    return scale.squeeze(axes), total.squeeze(axes)


def _log_of_sums(sums: list[ScaledSum]) -> Tensor:
    if len(sums) == 1:
        scale, total = sums[0]
    else:
        scales, totals = zip(*sums, strict=True)
        scale, total = _scaled_sum(torch.stack(scales, -1), torch.stack(totals, -1), -1)
    return scale + total.log()


def _map_blocks(
    function: Callable[..., Result], blocks: list[tuple[Any, ...]], like: Tensor
) -> list[Result]:
    """Apply to each block; when there are several, keep only results for the backward pass."""
    transformed = not torch.compiler.is_compiling() and (
        torch._C._functorch.is_functorch_wrapped_tensor(like)
    )
    if len(blocks) == 1 or not torch.is_grad_enabled() or transformed:
        return [function(*block) for block in blocks]
    return [
        checkpoint(function, *block, use_reentrant=False, preserve_rng_state=False)
        for block in blocks
    ]


def _block_elements(device: torch.device) -> int:
    # A block fits the cache of a CPU (six times faster than one that does not); an accelerator
    # needs larger ones to be busy.
    return BLOCK_ELEMENTS if device.type == "cpu" else 16 * BLOCK_ELEMENTS


def _slices(length: int, step: int) -> list[slice]:
    return [slice(start, start + step) for start in range(0, length, step)]


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:  # (*B, N, d), (*B, K, d) -> (*B, N, K)
    if x.shape[-1] <= 8:
        return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)
    squares = x.square().sum(-1).unsqueeze(-1) + y.square().sum(-1).unsqueeze(-2)
    return (squares - 2 * (x @ y.mT)).clamp(min=0)


def _distances_between_means(means: Tensor) -> Tensor:  # (*B, K, d) -> (*B, K, K)
    centred = means - means.detach().mean(-2, keepdim=True)
    same = torch.eye(means.shape[-2], dtype=torch.bool, device=means.device)
    return _squared_distances(centred, centred).masked_fill(same, 0)


def _log_normal(
    means: Tensor,  # (*B, N, d)
    covariances: Tensor | None,  # of the same kind as the components'; None is zero
    others: Components,
    kind: CovarianceKind,
) -> Callable[[slice, slice], Tensor]:
    """Property 1 for blocks of pairs: log N(m_i - m'_j; 0, S_i + S'_j)."""
    dim = means.shape[-1]
    other_means, other_covariances = others.means, others.covariances_as(kind)
    same = means is other_means

    if kind == "isotropic":
        centre = other_means.detach().mean(-2, keepdim=True)
        left, right = means - centre, other_means - centre

        def isotropic(rows: slice, columns: slice) -> Tensor:
            squares = _squared_distances(left[..., rows, :], right[..., columns, :])
            if same:  # rounding in the matrix product would be magnified by a small variance
                i = torch.arange(means.shape[-2], device=means.device)
                squares = squares.masked_fill(i[rows, None] == i[columns], 0)
            total = other_covariances[..., None, columns]
            if covariances is not None:
                total = total + covariances[..., rows, None]
            return -0.5 * (squares / total + dim * (total.log() + LOG_2PI))

        return isotropic

    if kind == "diagonal":

        def diagonal(rows: slice, columns: slice) -> Tensor:
            gaps = means[..., rows, None, :] - other_means[..., None, columns, :]
            total = other_covariances[..., None, columns, :]
            if covariances is not None:
                total = total + covariances[..., rows, None, :]
            return -0.5 * ((gaps.square() / total).sum(-1) + (total.log() + LOG_2PI).sum(-1))

        return diagonal

    if covariances is None:
        other_factors = _cholesky(other_covariances)

        def full_at_points(rows: slice, columns: slice) -> Tensor:
            gaps = means[..., None, rows, :] - other_means[..., columns, None, :]
            factor = other_factors[..., columns, :, :]
            squares = torch.linalg.solve_triangular(factor, gaps.mT, upper=False).square().sum(-2)
            constant = _log_determinant(factor) + dim * LOG_2PI
            return -0.5 * (squares + constant.unsqueeze(-1)).mT

        return full_at_points

    def full(rows: slice, columns: slice) -> Tensor:
        gaps = means[..., rows, None, :] - other_means[..., None, columns, :]
        factor = _cholesky(
            covariances[..., rows, None, :, :] + other_covariances[..., None, columns, :, :]
        )
        whitened = torch.linalg.solve_triangular(factor, gaps.unsqueeze(-1), upper=False)
        squares = whitened.squeeze(-1).square().sum(-1)
        return -0.5 * (squares + _log_determinant(factor) + dim * LOG_2PI)

    return full


def _elements_for_pair(kind: CovarianceKind, dim: int, at_points: bool) -> int:
    if kind == "isotropic":
        return dim if dim <= 8 else 1
    return dim * dim if kind == "full" and not at_points else dim


def log_density(components: Components, points: Tensor) -> Tensor:  # (*B, N, d) -> (*B, N)
    """Return log sum_k w_k N(x; m_k, S_k)."""
    with _without_autocast(points.device):
        kind = components.kind
        block = _log_normal(points, None, components, kind)
        powers, factors = _powers_and_factors(components.weights)

        def log_sum(rows: slice) -> Tensor:
            terms = block(rows, slice(None)) + powers.unsqueeze(-2)
            return _log_of_sums([_scaled_sum(terms, factors.unsqueeze(-2).expand_as(terms), -1)])

        dim, count = points.shape[-1], components.means.shape[-2]
        row_size = components.batch_shape.numel() * count * _elements_for_pair(kind, dim, True)
        rows = _slices(points.shape[-2], max(1, _block_elements(points.device) // row_size))
        return torch.cat(_map_blocks(log_sum, [(r,) for r in rows], points), -1)


def log_pair_sum(p: Components, q: Components, distinct: bool = False) -> Tensor:  # (*B)
    """Return log sum_ij w_i w'_j N(m_i - m'_j; 0, S_i + S'_j); `distinct` leaves out i = j."""
    with _without_autocast(p.means.device):
        dtype = working_dtype(p.means, q.means)
        p, q = p.to(dtype), q.to(dtype)
        kind = max(p.kind, q.kind, key=KINDS.index)
        block = _log_normal(p.means, p.covariances_as(kind), q, kind)
        p_powers, p_factors = _powers_and_factors(p.weights)
        q_powers, q_factors = _powers_and_factors(q.weights)
        (p_count, dim), q_count = p.means.shape[-2:], q.means.shape[-2]
        index = torch.arange(max(p_count, q_count), device=p.means.device)

        def block_sum(rows: slice, columns: slice) -> ScaledSum:
            powers = (
                block(rows, columns) + p_powers[..., rows, None] + q_powers[..., None, columns]
            )
            factors = p_factors[..., rows, None] * q_factors[..., None, columns]
            if distinct:
                factors = factors.masked_fill(index[rows, None] == index[columns], 0)
            return _scaled_sum(powers, factors.expand_as(powers), (-2, -1))

        batch = torch.broadcast_shapes(p.batch_shape, q.batch_shape).numel()
        size = batch * _elements_for_pair(kind, dim, False)
        pairs = max(1, _block_elements(p.means.device) // size)
        width = min(q_count, pairs)
        blocks = product(_slices(p_count, max(1, pairs // width)), _slices(q_count, width))
        return _log_of_sums(_map_blocks(block_sum, list(blocks), p.means))


def _log_products(components: Components) -> Callable[[Tensor], Tensor]:
    """The log-integral of N(.; m_a, S_a) N(.; m_b, S_b) ... for rows of indices a, b, ...

    With precisions T_a, their sum T and m the precision-weighted mean, it is
    -1/2 [sum_a log det(2 pi S_a) + log det(T / 2 pi) + sum_a (m_a - m)' T_a (m_a - m)].
    """
    dim = components.means.shape[-1]
    means = components.means - components.means.detach().mean(-2, keepdim=True)
    covariances = components.covariances

    if components.kind == "isotropic":
        squares = _distances_between_means(means)

        def isotropic(indices: Tensor) -> Tensor:
            variances = covariances[..., indices]
            total = variances.reciprocal().sum(-1)
            shares = variances.reciprocal() / total.unsqueeze(-1)
            gaps = squares[..., indices[:, :, None], indices[:, None, :]]
            spread = 0.5 * total * (gaps @ shares.unsqueeze(-1)).squeeze(-1).mul(shares).sum(-1)
            logs = (variances.log() + LOG_2PI).sum(-1) + total.log() - LOG_2PI
            return -0.5 * (dim * logs + spread)

        return isotropic

    if components.kind == "diagonal":

        def diagonal(indices: Tensor) -> Tensor:
            variances = covariances[..., indices, :]
            precisions = variances.reciprocal()
            total = precisions.sum(-2)
            here = means[..., indices, :]
            centre = (precisions * here).sum(-2) / total
            spread = (precisions * (here - centre.unsqueeze(-2)).square()).sum(-2)
            logs = (variances.log() + LOG_2PI).sum(-2) + total.log() - LOG_2PI
            return -0.5 * (logs + spread).sum(-1)

        return diagonal

    factors = _cholesky(covariances)
    logs = _log_determinant(factors) + dim * LOG_2PI
    identity = torch.eye(dim, dtype=means.dtype, device=means.device)
    whitening = torch.linalg.solve_triangular(factors, identity, upper=False)
    precisions = whitening.mT @ whitening
    pulls = (precisions @ means.unsqueeze(-1)).squeeze(-1)

    def full(indices: Tensor) -> Tensor:
        columns = indices.unbind(-1)
        total = _cholesky(reduce(torch.add, (precisions[..., c, :, :] for c in columns)))
        pull = pulls[..., indices, :].sum(-2).unsqueeze(-1)
        centre = torch.cholesky_solve(pull, total)
        spread = reduce(
            torch.add,
            (
                (whitening[..., c, :, :] @ (means[..., c, :].unsqueeze(-1) - centre))
                .square()
                .sum((-2, -1))
                for c in columns
            ),
        )
        constant = logs[..., indices].sum(-1) + _log_determinant(total) - dim * LOG_2PI
        return -0.5 * (constant + spread)

    return full


def _index_blocks(
    count: int, n: int, distinct: bool, rows: int, device: torch.device
) -> Iterator[tuple[Tensor, Tensor]]:
    """Rows of n ascending indices below `count`, with the log of the orders each can take."""
    choices = (combinations if distinct else combinations_with_replacement)(range(count), n)
    while True:
        flat = np.fromiter(chain.from_iterable(islice(choices, rows)), dtype=np.int64)
        if not flat.size:
            return
        indices = flat.reshape(-1, n)
        run = np.ones(len(indices))
        log_orders = np.full(len(indices), math.lgamma(n + 1))
        for k in range(1, n):
            run = np.where(indices[:, k] == indices[:, k - 1], run + 1, 1)
            log_orders -= np.log(run)
        yield torch.from_numpy(indices).to(device), torch.from_numpy(log_orders).to(device)


def _check_power_size(components: Components, n: int, distinct: bool) -> int:
    """Refuse a sum over tuples that cannot finish; return the numbers held for each tuple."""
    count, dim = components.means.shape[-2:]
    products = math.comb(count, n) if distinct else math.comb(count + n - 1, n)
    elements = {"isotropic": n * n, "diagonal": n * dim, "full": n * dim + dim * dim}
    batch = components.batch_shape.numel()
    operations = batch * products * elements[components.kind]
    if components.kind == "full":
        operations += batch * products * (dim**3 + n * dim * dim)
    if products > MAX_PRODUCTS or operations > MAX_OPERATIONS:
        raise SizeError(
            f"n = {n} with {count} {components.kind} components in {dim} dimensions is a sum over "
            f"{products:,} products of Gaussians, about {operations:.1e} operations; at most "
            f"{MAX_PRODUCTS:,} products and {MAX_OPERATIONS:.0e} operations are attempted. Use "
            "a smaller n, fewer components or a simpler kind of covariance, or estimate the "
            "integral of p^n as the mean of exp((n - 1) * p.log_prob(x)) over samples x of p."
        )
    return batch * elements[components.kind]


def log_power_sum(components: Components, n: int, distinct: bool = False) -> Tensor:  # (*B)
    """Return log int (sum_k w_k N_k)^n; `distinct` leaves out tuples that repeat a component."""
    if n == 2:
        return log_pair_sum(components, components, distinct)
    powers, factors = _powers_and_factors(components.weights)
    if n == 1:
        return _log_of_sums([_scaled_sum(powers, factors, -1)])
    size = _check_power_size(components, n, distinct)
    count, device = components.means.shape[-2], components.means.device
    with _without_autocast(device):
        log_products = _log_products(components)

        def block_sum(indices: Tensor, log_orders: Tensor) -> ScaledSum:
            exponents = log_products(indices) + powers[..., indices].sum(-1)
            weights = reduce(torch.mul, factors[..., indices].unbind(-1))
            return _scaled_sum(exponents + log_orders.to(exponents.dtype), weights, -1)

        rows = max(1, _block_elements(device) // size)
        blocks = list(_index_blocks(count, n, distinct, rows, device))
        return _log_of_sums(_map_blocks(block_sum, blocks, components.means))


def check_power(n: int) -> int:
    """Return n if it is a positive integer: other norms have no closed form."""
    try:
        whole = operator.index(n)
    except TypeError:
        whole = 0
    if isinstance(n, bool) or whole < 1:
        raise OptionError(
            f"n = {n!r}: the norm has a closed form for positive integers n only. For another "
            "exponent, estimate the mean of exp((n - 1) * p.log_prob(x)) over samples x of p."
        )
    return whole


class ClosedForms:
    """What every Gaussian mixture can compute exactly, whatever its prior."""

    _components: Components
    _dtype: torch.dtype

    @property
    def covariance_kind(self) -> CovarianceKind:
        """Which kind of covariance the components have: "isotropic", "diagonal" or "full"."""
        return self._components.kind

    def _log_power(self, n: int, unbiased: bool) -> Tensor:
        raise NotImplementedError

    def log_prob(self, value: Tensor) -> Tensor:
        r"""The log-density $\log \sum_k w_k \mathcal{N}(x; m_k, S_k)$.

        Args:
            value: Points, (*sample, *B, d), broadcast to the batch shape B.

        Returns:
            Shape (*sample, *B).
        """
        components = self._components
        batch, dim = components.batch_shape, components.means.shape[-1]
        check_samples("value", value.unsqueeze(0) if getattr(value, "ndim", 0) else value)
        try:
            shape = torch.broadcast_shapes(value.shape[:-1], batch)
        except RuntimeError:
            shape = None
        if shape is None or value.shape[-1] != dim:
            raise ShapeError(
                f"value has shape {tuple(value.shape)}; a mixture of batch shape {tuple(batch)} "
                f"in {dim} dimensions takes points of shape {('*sample', *batch, dim)}."
            )
        if value.device != components.means.device:
            raise DeviceError(
                f"value is on {value.device} and the mixture on {components.means.device}; "
                "move one of them with .to(device)."
            )
        dtype = working_dtype(value, components.means)
        points = value.to(dtype).expand(*shape, dim)
        points = points.reshape(-1, *batch, dim).movedim(0, -2)
        result = log_density(components.to(dtype), points).movedim(-1, 0).reshape(shape)
        return result.to(torch.promote_types(self._dtype, value.dtype))

    def _log_inner(self, q: "ClosedForms") -> Tensor:
        if not isinstance(q, ClosedForms):
            raise OptionError(
                f"q is a {type(q).__name__}; give a GaussianMixture or a SampledMixture. "
                "For samples, use the costs, for example scalar_cost."
            )
        check_pair(self._components.means, q._components.means, ("p.means", "q.means"))
        return log_pair_sum(self._components, q._components)

    def log_inner(self, q: "ClosedForms") -> Tensor:
        r"""$\log \langle p, q \rangle$, finite where the inner product itself underflows.

        Args:
            q: Another mixture, with any kind of covariance, whose batch shape can be broadcast.

        Returns:
            The broadcast batch shape.
        """
        return self._log_inner(q).to(torch.promote_types(self._dtype, q._dtype))

    def inner(self, q: "ClosedForms") -> Tensor:
        r"""The inner product, Property 2 (and 3, with expectations for sums).

        $$\langle p, q \rangle = \sum_{ij} w_i w'_j \mathcal{N}(m_i - m'_j; 0, S_i + S'_j)$$
        """
        return self._log_inner(q).exp().to(torch.promote_types(self._dtype, q._dtype))

    def log_norm2(self) -> Tensor:
        r"""$\log \langle p, p \rangle$."""
        return self._log_power(2, False).to(self._dtype)

    def norm2(self) -> Tensor:
        r"""The squared $L_2$ norm $\langle p, p \rangle$, Property 2."""
        return self._log_power(2, False).exp().to(self._dtype)

    def log_lp_norm(self, n: int) -> Tensor:
        r"""$\log \|p\|_n$; see `lp_norm`."""
        return (self._log_power(check_power(n), False) / n).to(self._dtype)

    def lp_norm(self, n: int) -> Tensor:
        r"""The norm $\|p\|_n = (\int p(x)^n dx)^{1/n}$, from the corollary to Property 3.

        The power of the sum is a sum over multisets of n components, each the integral of a
        product of n Gaussians times the number of its orders. (The paper says any exponent; the
        closed form exists for positive integers.)

        Args:
            n: A positive integer. `SizeError` if more than two million multisets are needed.

        Returns:
            The batch shape.
        """
        return (self._log_power(check_power(n), False) / n).exp().to(self._dtype)

    def cauchy_schwarz(self, q: "ClosedForms") -> Tensor:
        r"""The divergence $-\log(\langle p,q\rangle^2 / (\langle p,p\rangle \langle q,q\rangle))$.

        It is zero if and only if the mixtures are proportional. A value that rounding made
        negative is returned as zero, with the gradient it had.
        """
        divergence = self._cauchy_schwarz(q, False)
        rounded = divergence.clamp(min=0) - divergence
        return (divergence + rounded.detach()).to(torch.promote_types(self._dtype, q._dtype))

    def _cauchy_schwarz(self, q: "ClosedForms", unbiased: bool) -> Tensor:
        cross = self._log_inner(q)
        return self._log_power(2, unbiased) + q._log_power(2, unbiased) - 2 * cross


class GaussianMixture(ClosedForms, Distribution):
    r"""A mixture of Gaussians with exact inner products and norms (Properties 1 and 2).

    $$p(x) = \sum_{k=1}^K w_k \mathcal{N}(x; m_k, S_k)$$

    Half precision is computed in float32, and results have the type that was given. Weights may be
    zero and still have the right gradient.

    Args:
        weights: Non-negative, (*B, K); divided by their sum.
        means: (*B, K, d).
        covariances: Isotropic (*B, K), diagonal (*B, K, d) or full (*B, K, d, d). The kind is
            told by the number of axes alone, compared with the means': one fewer, as many, or one
            more. So covariances carry as many batch axes as the means, of size 1 where shared.
            Batch shapes of the three arguments are broadcast.
        validate_args: False skips the checks of the covariances' values (a Cholesky factorisation
            where they are full), which are otherwise made on the CPU, outside torch.func and
            torch.compile, whatever torch's default for distributions.

    Example:
        >>> import torch
        >>> weights, means = torch.tensor([1.0, 3.0]), torch.tensor([[-1.0], [1.0]])
        >>> p = GaussianMixture(weights, means, torch.tensor([0.5, 0.5]))
        >>> p.batch_shape, p.event_shape, p.mean
        (torch.Size([]), torch.Size([1]), tensor([0.5000]))
        >>> q = GaussianMixture(torch.ones(1), torch.zeros(1, 1), torch.ones(1))
        >>> round(float(p.inner(q)), 4)
        0.2334
        >>> round(float(p.cauchy_schwarz(q)), 4), round(float(p.lp_norm(3)), 4)
        (0.3336, 0.4441)
    """

    arg_constraints = {  # noqa: RUF012 (torch's own way of stating them)
        "weights": constraints.simplex,
        "means": constraints.independent(constraints.real, 2),
        "covariances": constraints.dependent(is_discrete=False),
    }
    support = constraints.real_vector

    def __init__(
        self,
        weights: Tensor,
        means: Tensor,
        covariances: Tensor,
        validate_args: bool | None = None,
    ) -> None:
        check_samples("means", means)
        normalized = normalized_weights("weights", weights, means)
        # torch.compile sets torch's own default to False for good, so None does not ask for it.
        check_values = validate_args is not False
        components = Components.checked(normalized, means, covariances, check_values)
        given = torch.promote_types(weights.dtype, means.dtype)
        self._set(components, torch.promote_types(given, covariances.dtype))

    def _set(self, components: Components, dtype: torch.dtype) -> None:
        self._components, self._dtype = components, dtype
        given = components.to(dtype)
        self.weights, self.means, self.covariances = given.weights, given.means, given.covariances
        count, dim = components.means.shape[-2:]
        self.has_rsample = count == 1
        # The arguments are checked above: torch's own checks would wait for the device.
        super().__init__(components.batch_shape, torch.Size([dim]), validate_args=False)

    def _log_power(self, n: int, unbiased: bool) -> Tensor:
        return log_power_sum(self._components, n)  # exact: there is no bias to remove

    def expand(self, batch_shape: _size, _instance: Distribution | None = None) -> Self:
        """The same mixture repeated, without copying, to a larger batch shape."""
        new = self._get_checked_instance(GaussianMixture, _instance)
        new._set(self._components.expand(torch.Size(batch_shape)), self._dtype)
        return new

    @property
    def mean(self) -> Tensor:
        """The mean of the mixture, (*B, d)."""
        return self._mean().to(self._dtype)

    def _mean(self) -> Tensor:
        return (self._components.weights.unsqueeze(-1) * self._components.means).sum(-2)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, (*B, d)."""
        c = self._components
        if c.kind == "full":
            within = c.covariances.diagonal(dim1=-2, dim2=-1)
        else:
            within = c.covariances_as("diagonal")
        between = (c.means - self._mean().unsqueeze(-2)).square()
        return (c.weights.unsqueeze(-1) * (within + between)).sum(-2).to(self._dtype)

    @property
    def covariance_matrix(self) -> Tensor:
        """The covariance of the mixture, (*B, d, d)."""
        c = self._components
        with _without_autocast(c.means.device):
            gaps = c.means - self._mean().unsqueeze(-2)
            between = (c.weights.unsqueeze(-1) * gaps).mT @ gaps
            if c.kind == "full":
                within = (c.weights[..., None, None] * c.covariances).sum(-3)
            else:
                diagonal = c.covariances_as("diagonal")
                within = torch.diag_embed((c.weights.unsqueeze(-1) * diagonal).sum(-2))
            return (within + between).to(self._dtype)

    def sample(
        self, sample_shape: _size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Independent samples, (*sample_shape, *B, d), without gradient."""
        with torch.no_grad():
            return self._draw(torch.Size(sample_shape), generator)

    def rsample(
        self, sample_shape: _size = (), *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Samples that are differentiable in mean and covariance, for K = 1 only."""
        if not self.has_rsample:
            raise ReparametrizationError(
                f"rsample of {self.means.shape[-2]} components: which component a sample comes "
                "from is a discrete choice, through which no gradient flows. Use sample() with "
                "log_prob (score function), the closed forms (inner, norm2, cauchy_schwarz), or "
                "one component."
            )
        return self._draw(torch.Size(sample_shape), generator)

    def _draw(self, shape: torch.Size, generator: torch.Generator | None) -> Tensor:
        c = self._components
        batch, (count, dim) = c.batch_shape, c.means.shape[-2:]
        copies, draws = batch.numel(), shape.numel()
        if not copies * draws:
            return c.means.new_empty(shape + batch + (dim,)).to(self._dtype)
        weights, device = c.weights.detach().reshape(copies, count), c.means.device
        labels = torch.multinomial(weights, draws, replacement=True, generator=generator)
        labels = (labels + count * torch.arange(copies, device=device).unsqueeze(-1)).flatten()
        noise = torch.randn(
            copies * draws, dim, dtype=c.means.dtype, device=device, generator=generator
        )
        with _without_autocast(device):
            if c.kind == "full":
                noise = _grouped_products(_cholesky(c.covariances).flatten(0, -3), noise, labels)
            else:
                scales = c.covariances.reshape(copies * count, -1).sqrt()
                noise = scales[labels] * noise
        points = c.means.reshape(-1, dim)[labels] + noise
        points = points.reshape(copies, draws, dim).movedim(0, 1)
        return points.reshape(shape + batch + (dim,)).to(self._dtype)


def _grouped_products(matrices: Tensor, vectors: Tensor, labels: Tensor) -> Tensor:
    """matrices[labels] @ vectors, without a copy of a matrix for each vector."""
    order = labels.argsort()
    sizes = torch.bincount(labels, minlength=len(matrices)).tolist()
    groups = vectors[order].split(sizes)
    products = [group @ matrix.mT for group, matrix in zip(groups, matrices, strict=True)]
    return torch.cat(products)[order.argsort()]
