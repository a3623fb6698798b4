r"""Gram matrices of the components of Gaussian mixtures (Property 1), by their logarithms.

Entries are $\langle p_i, q_j\rangle = N(m_i - m'_j; 0, S_i + S'_j)$, without the weights.
"""

import math

import torch
from torch import Tensor

from kermix.checks import broadcast_shape, working_dtype
from kermix.mixtures.components import Components
from kermix.mixtures.covariance import KINDS, cholesky_or_nan, log_determinant
from kermix.mixtures.gaussian_products import elements_for_pair, log_normal
from kermix.mixtures.log_sums import (
    block_elements,
    log_of_sums,
    map_blocks,
    powers_and_factors,
    scaled_sum,
    slices,
)

__all__ = ["log_gram", "log_row_sums", "log_squared_norms"]


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
    with p.full_precision():
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
