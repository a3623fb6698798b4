r"""Integrals of products of Gaussians (Properties 1 and 2, corollary), and their Gram matrices.

Everything is summed in log space, so that 784 dimensions neither under- nor overflow, and in
blocks of about a million numbers (16 million on an accelerator), which the backward pass computes
anew: memory stays bounded whatever the number of components. Isotropic components take their
squared distances from `gram`: above 8 dimensions no array of pairs times dimensions exists.
Entries of Gram matrices are $\log N(m_i - m'_j; 0, S_i + S'_j)$, without the weights.
"""

import math
import operator
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import chain, combinations, combinations_with_replacement, islice, product
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kermix.checks import (
    broadcast_shape,
    full_precision,
    working_dtype,
)
from kermix.errors import OptionError, SizeError
from kermix.kernels.distances import DIRECT_DIFFERENCES_UP_TO, squared_distances
from kermix.mixtures.covariance import (
    KINDS,
    Components,
    CovarianceKind,
    cholesky_or_nan,
    log_determinant,
)

__all__ = [
    "ScaledSum",
    "block_elements",
    "check_power",
    "elements_for_pair",
    "log_density",
    "log_gram",
    "log_normal",
    "log_of_sums",
    "log_pair_sum",
    "log_power_sum",
    "log_row_sums",
    "log_squared_norms",
    "map_blocks",
    "powers_and_factors",
    "scaled_sum",
    "slices",
]

BLOCK_ELEMENTS = 2**20  # numbers of a block on a CPU: a convention

Result = TypeVar("Result")
ScaledSum = tuple[Tensor, Tensor]  # (m, s) stands for s * exp(m); m carries no gradient


def powers_and_factors(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Write w as factor * exp(power), with the weights that are zero in the linear factor.

    A zero then has a gradient, the true one, which log(0) has not.
    """
    positive = weights > 0
    one = torch.ones_like(weights)
    return torch.where(positive, weights, one).log(), torch.where(positive, one, weights)


def scaled_sum(powers: Tensor, factors: Tensor, *dims: int) -> ScaledSum:
    """Sum factors * exp(powers), scaled by the largest term that is not zero."""
    limits = torch.finfo(powers.dtype)
    # Minus infinity, where a square overflows, would have a gradient that is not a number.
    powers = powers.clamp(min=limits.min)
    detached = powers.detach()
    present = torch.where(factors > 0, detached, -torch.inf).amax(dims, keepdim=True)
    scale = torch.where(present > -torch.inf, present, detached.amax(dims, keepdim=True))
    # Terms above the limit have factor zero: they add nothing, and their gradient must not be inf.
    terms = factors * (powers - scale).clamp(max=0.9 * math.log(limits.max)).exp()
    return scale.squeeze(dims), terms.sum(dims)


def log_of_sums(sums: list[ScaledSum]) -> Tensor:
    """The logarithm of the sum of them all."""
    scales, totals = zip(*sums, strict=True)
    scale, total = scaled_sum(torch.stack(scales, -1), torch.stack(totals, -1), -1)
    return scale + total.log()


def map_blocks(
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


def block_elements(device: torch.device) -> int:
    """How many numbers a block holds."""
    # A block fits the cache of a CPU (six times faster than one that does not); an accelerator
    # needs larger ones to be busy.
    return BLOCK_ELEMENTS if device.type == "cpu" else 16 * BLOCK_ELEMENTS


def slices(length: int, step: int) -> list[slice]:
    """Cut an axis into slices of at most `step`."""
    return [slice(start, start + step) for start in range(0, length, step)]


LOG_2PI = math.log(2 * math.pi)


def log_normal(
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

        def isotropic(rows: slice, columns: slice) -> Tensor:
            squares = squared_distances(means[..., rows, :], other_means[..., columns, :])
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
        other_factors = cholesky_or_nan(other_covariances)

        def full_at_points(rows: slice, columns: slice) -> Tensor:
            gaps = means[..., None, rows, :] - other_means[..., columns, None, :]
            factor = other_factors[..., columns, :, :]
            squares = torch.linalg.solve_triangular(factor, gaps.mT, upper=False).square().sum(-2)
            constant = log_determinant(factor) + dim * LOG_2PI
            return -0.5 * (squares + constant.unsqueeze(-1)).mT

        return full_at_points

    def full(rows: slice, columns: slice) -> Tensor:
        gaps = means[..., rows, None, :] - other_means[..., None, columns, :]
        factor = cholesky_or_nan(
            covariances[..., rows, None, :, :] + other_covariances[..., None, columns, :, :]
        )
        whitened = torch.linalg.solve_triangular(factor, gaps.unsqueeze(-1), upper=False)
        squares = whitened.squeeze(-1).square().sum(-1)
        return -0.5 * (squares + log_determinant(factor) + dim * LOG_2PI)

    return full


def elements_for_pair(kind: CovarianceKind, dim: int, at_points: bool) -> int:
    """How many numbers a pair takes while its inner product is computed."""
    if kind == "isotropic":
        return dim if dim <= DIRECT_DIFFERENCES_UP_TO else 1
    return dim * dim if kind == "full" and not at_points else dim


def log_density(components: Components, points: Tensor) -> Tensor:  # (*B, N, d) -> (*B, N)
    """Return log sum_k w_k N(x; m_k, S_k)."""
    with full_precision(components.means.device):
        kind = components.kind
        block = log_normal(points, None, components, kind)
        powers, factors = powers_and_factors(components.weights)

        def log_sum(rows: slice) -> Tensor:
            terms = block(rows, slice(None)) + powers.unsqueeze(-2)
            return log_of_sums([scaled_sum(terms, factors.unsqueeze(-2), -1)])

        dim, count = points.shape[-1], components.means.shape[-2]
        row_size = components.batch_shape.numel() * count * elements_for_pair(kind, dim, True)
        rows = slices(points.shape[-2], max(1, block_elements(points.device) // row_size))
        return torch.cat(map_blocks(log_sum, [(r,) for r in rows], points), -1)


def log_pair_sum(p: Components, q: Components, distinct: bool = False) -> Tensor:  # (*B)
    """Return log sum_ij w_i w'_j N(m_i - m'_j; 0, S_i + S'_j); `distinct` leaves out i = j."""
    with full_precision(p.means.device):
        dtype = working_dtype(p.means, q.means)
        p, q = p.to(dtype), q.to(dtype)
        kind = max(p.kind, q.kind, key=KINDS.index)
        block = log_normal(p.means, p.covariances_as(kind), q, kind)
        p_powers, p_factors = powers_and_factors(p.weights)
        q_powers, q_factors = powers_and_factors(q.weights)
        (p_count, dim), q_count = p.means.shape[-2:], q.means.shape[-2]
        index = torch.arange(max(p_count, q_count), device=p.means.device)

        def block_sum(rows: slice, columns: slice) -> ScaledSum:
            powers = (
                block(rows, columns) + p_powers[..., rows, None] + q_powers[..., None, columns]
            )
            factors = p_factors[..., rows, None] * q_factors[..., None, columns]
            if distinct:
                factors = factors.masked_fill(index[rows, None] == index[columns], 0)
            return scaled_sum(powers, factors, -2, -1)

        batch = broadcast_shape(p.batch_shape, q.batch_shape).numel()
        size = batch * elements_for_pair(kind, dim, False)
        pairs = max(1, block_elements(p.means.device) // size)
        width = min(q_count, pairs)
        blocks = product(slices(p_count, max(1, pairs // width)), slices(q_count, width))
        return log_of_sums(map_blocks(block_sum, list(blocks), p.means))


def _log_products(components: Components) -> Callable[[Tensor], Tensor]:
    """The log-integral of N(.; m_a, S_a) N(.; m_b, S_b) ... for rows of indices a, b, ...

    With precisions T_a, their sum T and m the precision-weighted mean, it is
    -1/2 [sum_a log det(2 pi S_a) + log det(T / 2 pi) + sum_a (m_a - m)' T_a (m_a - m)].
    """
    dim = components.means.shape[-1]
    means, covariances = components.means, components.covariances

    if components.kind == "isotropic":
        squares = squared_distances(means, means, same=True)

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
            here = means[..., indices, :] - means[..., indices[:, :1], :]
            center = (precisions * here).sum(-2) / total
            spread = (precisions * (here - center.unsqueeze(-2)).square()).sum(-2)
            logs = (variances.log() + LOG_2PI).sum(-2) + total.log() - LOG_2PI
            return -0.5 * (logs + spread).sum(-1)

        return diagonal

    factors = cholesky_or_nan(covariances)
    logs = log_determinant(factors) + dim * LOG_2PI
    identity = torch.eye(dim, dtype=means.dtype, device=means.device)
    whitening = torch.linalg.solve_triangular(factors, identity, upper=False)
    precisions = whitening.mT @ whitening

    def full(indices: Tensor) -> Tensor:
        columns = indices.unbind(-1)
        total = cholesky_or_nan(reduce(torch.add, (precisions[..., c, :, :] for c in columns)))
        # From the first mean of each product, the others keep their digits.
        gaps = [(means[..., c, :] - means[..., columns[0], :]).unsqueeze(-1) for c in columns]
        pulls = (precisions[..., c, :, :] @ gap for c, gap in zip(columns, gaps, strict=True))
        center = torch.cholesky_solve(reduce(torch.add, pulls), total)
        spread = reduce(
            torch.add,
            (
                (whitening[..., c, :, :] @ (gap - center)).square().sum((-2, -1))
                for c, gap in zip(columns, gaps, strict=True)
            ),
        )
        constant = logs[..., indices].sum(-1) + log_determinant(total) - dim * LOG_2PI
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


def _check_power_size(
    components: Components,
    n: int,
    distinct: bool,
    most_products: int = 2_000_000,
    most_operations: int = 10**12,
) -> int:
    """Refuse a sum over tuples that cannot finish; return the numbers held for each tuple."""
    count, dim = components.means.shape[-2:]
    products = math.comb(count, n) if distinct else math.comb(count + n - 1, n)
    elements = {"isotropic": n * n, "diagonal": n * dim, "full": n * dim + dim * dim}
    batch = components.batch_shape.numel()
    operations = batch * products * elements[components.kind]
    if components.kind == "full":
        operations += batch * products * (dim**3 + n * dim * dim)
    if products > most_products or operations > most_operations:
        raise SizeError(
            f"n = {n} with {count} {components.kind} components in {dim} dimensions is a sum over "
            f"{products:,} products of Gaussians, about {operations:.1e} operations; at most "
            f"{most_products:,} products and {most_operations:.0e} operations are attempted. Use "
            "a smaller n, fewer components or a simpler kind of covariance, or estimate the "
            "integral of p^n as the mean of exp((n - 1) * p.log_prob(x)) over samples x of p."
        )
    return batch * elements[components.kind]


def log_single_powers(components: Components, n: float) -> Tensor:  # (*B, K)
    r"""Logarithms of $\int (w_k N_k)^n$ for any positive exponent.

    $$\int \mathcal{N}(x; m, S)^n dx = |2 \pi S|^{(1 - n) / 2} n^{-d / 2}$$
    """
    dim = components.means.shape[-1]
    if components.kind == "full":
        factor = cholesky_or_nan(components.covariances)
        log_volume = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
    elif components.kind == "diagonal":
        log_volume = components.covariances.log().sum(-1)
    else:
        log_volume = dim * components.covariances.log()
    log_volume = log_volume + dim * math.log(2 * math.pi)
    return n * components.weights.log() + (1 - n) / 2 * log_volume - dim / 2 * math.log(n)


def log_power_sum(components: Components, n: float, distinct: bool = False) -> Tensor:  # (*B)
    """Return log int (sum_k w_k N_k)^n; `distinct` leaves out tuples that repeat a component.

    An n that is no integer is for one component alone.
    """
    if not isinstance(n, int):
        return log_single_powers(components, n).squeeze(-1)
    if n == 2:
        return log_pair_sum(components, components, distinct)
    powers, factors = powers_and_factors(components.weights)
    if n == 1:
        return log_of_sums([scaled_sum(powers, factors, -1)])
    size = _check_power_size(components, n, distinct)
    count, device = components.means.shape[-2], components.means.device
    with full_precision(components.means.device):
        log_products = _log_products(components)

        def block_sum(indices: Tensor, log_orders: Tensor) -> ScaledSum:
            exponents = log_products(indices) + powers[..., indices].sum(-1)
            weights = reduce(torch.mul, factors[..., indices].unbind(-1))
            return scaled_sum(exponents + log_orders.to(exponents.dtype), weights, -1)

        rows = max(1, block_elements(device) // size)
        blocks = list(_index_blocks(count, n, distinct, rows, device))
        return log_of_sums(map_blocks(block_sum, blocks, components.means))


def check_power(n: float, components: int) -> float:
    """Return n, as an int if it is one: of several components, only these have a closed form."""
    try:
        whole = operator.index(n)  # type: ignore[arg-type]
    except TypeError:
        whole = 0
    if not isinstance(n, bool) and whole >= 1:
        return whole
    real = isinstance(n, float) and 0 < n < math.inf
    if real and n == int(n):
        return int(n)
    if real and components == 1:
        return n
    if real:
        raise OptionError(
            f"n = {n!r}: the norm of a mixture of {components} Gaussians has a closed form for "
            "positive integers n only. GaussianMixture.lp_norm_estimate(n) estimates it, with the "
            "error of the estimate."
        )
    raise OptionError(f"n = {n!r}: the exponent of a norm is a positive number.")


def log_gram(p: Components, q: Components) -> Tensor:  # (*B, K, K')
    r"""Logarithms of all $\langle p_i, q_j\rangle$."""
    return _by_rows(p, q, summed=False)


def log_row_sums(p: Components, q: Components) -> Tensor:  # (*B, K)
    r"""Logarithms of $\langle p_i, q\rangle = \sum_j w'_j \langle p_i, q_j\rangle$."""
    return _by_rows(p, q, summed=True)


def log_squared_norms(components: Components) -> Tensor:  # (*B, K)
    r"""Logarithms of $\langle p_k, p_k\rangle = N(0; 0, 2 S_k)$."""
    dim, covariances = components.means.shape[-1], components.covariances
    if components.kind == "isotropic":
        log_determinants = dim * covariances.log()
    elif components.kind == "diagonal":
        log_determinants = covariances.log().sum(-1)
    else:
        log_determinants = log_determinant(cholesky_or_nan(covariances))
    return -0.5 * (log_determinants + dim * math.log(4 * math.pi))


def _by_rows(p: Components, q: Components, summed: bool) -> Tensor:
    with full_precision(p.means.device):
        dtype = working_dtype(p.means, q.means)
        own = q is p
        p = p.to(dtype)
        q = p if own else q.to(dtype)
        kind = max(p.kind, q.kind, key=KINDS.index)
        block = log_normal(p.means, p.covariances_as(kind), q, kind)
        powers, factors = (t.unsqueeze(-2) for t in powers_and_factors(q.weights))

        def of_rows(rows: slice) -> Tensor:
            entries = block(rows, slice(None))
            if not summed:
                return entries
            return log_of_sums([scaled_sum(entries + powers, factors, -1)])

        (count, dim), others = p.means.shape[-2:], q.means.shape[-2]
        batch = broadcast_shape(p.batch_shape, q.batch_shape).numel()
        row_size = batch * others * elements_for_pair(kind, dim, False)
        rows = slices(count, max(1, block_elements(p.means.device) // row_size))
        found = map_blocks(of_rows, [(r,) for r in rows], p.means)
        return torch.cat(found, -1 if summed else -2)
