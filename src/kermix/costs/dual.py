"""The four costs as functions of Gram matrices, one for each proposition of the paper.

Each function returns the logarithm of the paper's number. A cross Gram matrix comes with its scale
taken out (:class:`~kermix.kernels.gram.ScaledGram`), so that the logarithm is finite, and has a
gradient, where the cost itself underflows.
"""

import torch
from torch import Tensor

from kermix.kernels.gram import ScaledGram
from kermix.linalg.cholesky import Cholesky

__all__ = [
    "log_determinant_cost",
    "log_determinant_of",
    "log_matrix_cost",
    "log_vector_cost",
    "vector_weights",
]


def log_vector_cost(
    projection: Tensor,  # (*B, K)
    log_scale: Tensor,  # (*B,)
    centres: Cholesky,
) -> Tensor:  # (*B,)
    r"""Proposition 5: :math:`\log P_1^\top R_F^{-1} P_1`, `P_1 = exp(log_scale) projection`."""
    whitened = centres.whiten(projection.unsqueeze(-1)).squeeze(-1)
    return 2 * log_scale + whitened.square().sum(-1).log()


def vector_weights(projection: Tensor, centres: Cholesky) -> Tensor:  # (*B, K) -> (*B, K)
    r"""The weights that predict the data density best, :math:`R_F^{-1} P_1`."""
    return centres.solve(projection.unsqueeze(-1)).squeeze(-1)


def log_matrix_cost(
    cross: ScaledGram,  # (*B, K, N)
    centres: Cholesky,
    data: Cholesky | None,
) -> Tensor:  # (*B,)
    r"""Proposition 6: :math:`\log \mathrm{tr}(R_G^{-1} P^\top R_F^{-1} P)`; no `data`, no R_G."""
    correlations = _correlations(cross, centres, data)
    return 2 * cross.log_scale + correlations.square().sum((-2, -1)).log()


def log_determinant_cost(
    cross: ScaledGram,  # (*B, K, N)
    centres: Cholesky,
    data: Cholesky,
) -> Tensor:  # (*B,)
    r"""Proposition 6, log-determinant: :math:`\log(-\sum_k \log(1 - s_k^2))`.

    :math:`s_k` are the canonical correlations and the sum is
    :math:`\log\det R_{FG} - \log\det R_F - \log\det R_G`.
    """
    correlations = _correlations(cross, centres, data)
    if correlations.shape[-2] > correlations.shape[-1]:
        correlations = correlations.mT
    return log_determinant_of(correlations @ correlations.mT, cross.log_scale)


def log_determinant_of(squares_matrix: Tensor, log_scale: Tensor) -> Tensor:  # (*B, K, K) -> (*B,)
    r""":math:`\log(-\sum_k \log(1 - s_k^2))` from the matrix whose eigenvalues are `s_k^2`.

    Args:
        squares_matrix: The matrix, divided by `exp(2 log_scale)`.
        log_scale: Logarithm of the scale of the correlations.
    """
    scaled = torch.linalg.eigvalsh(squares_matrix).clamp(min=0)
    below_one = 1 - torch.finfo(scaled.dtype).eps
    squares = (scaled * (2 * log_scale).exp().unsqueeze(-1)).clamp(max=below_one)
    # -log(1 - u) / u tends to 1, and must not be formed where u vanishes.
    tiny = squares < 1e-8
    safe = torch.where(tiny, 0.5, squares)
    growth = torch.where(tiny, 1 + squares / 2, -torch.log1p(-safe) / safe)
    return 2 * log_scale + (scaled * growth).sum(-1).log()


def _correlations(cross: ScaledGram, centres: Cholesky, data: Cholesky | None) -> Tensor:
    whitened = centres.whiten(cross.matrix)
    return whitened if data is None else data.whiten(whitened.mT).mT
