"""Factorizations of Gram matrices: Cholesky with a relative ridge, and what is solved with it.

The leading singular triplets of a large matrix, by subspace iteration.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.checks import check_number
from kermix.errors import OptionError

__all__ = [
    "Cholesky",
    "checked_ridge",
    "cholesky",
    "default_ridge",
    "leading_svd",
    "ridged_factor",
    "shrunk",
    "solve_dtype",
    "sqrt_or_zero",
]

# The smallest powers of ten for which two correct programs agree to the precision asked of them
# (1e-9 in float64, 1e-4 in float32): below, the answer is the rounding of the kernel's entries.
DEFAULT_RIDGE = {torch.float64: 1e-6, torch.float32: 1e-4}


@dataclass(frozen=True)
class Cholesky:
    """The lower factor of `R + ridge * mean(diagonal) * I`, and the ridge that was needed."""

    factor: Tensor  # (*B, K, K)
    ridge: Tensor  # (*B,)

    def whiten(self, columns: Tensor) -> Tensor:  # (*B, K, M) -> (*B, K, M)
        """Multiply by the inverse of the factor."""
        return torch.linalg.solve_triangular(self.factor, columns, upper=False)

    def solve(self, columns: Tensor) -> Tensor:  # (*B, K, M) -> (*B, K, M)
        """Multiply by the inverse of the regularized matrix."""
        return torch.cholesky_solve(columns, self.factor)


def default_ridge(dtype: torch.dtype) -> float:
    """The ridge that is used for samples of this dtype when none is asked for."""
    return DEFAULT_RIDGE[dtype]


def solve_dtype(device: torch.device) -> torch.dtype:
    """The dtype in which systems are solved: a nearly singular Gram matrix needs every digit."""
    return torch.float32 if device.type == "mps" else torch.float64


def cholesky(
    matrix: Tensor,  # (*B, K, K)
    ridge: float,
) -> Cholesky:
    r"""Factor a symmetric positive semi-definite matrix with a ridge relative to its diagonal.

    A factorization cannot fail when the ridge exceeds $2 K (K + 1) \epsilon$ (Higham,
    Accuracy and Stability, Theorem 10.7). A smaller one is tried as it is, and raised to that
    bound for those batch items alone that fail. Nothing waits for the device.
    """
    checked_ridge(ridge)
    k = matrix.shape[-1]
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    eye = torch.eye(k, dtype=matrix.dtype, device=matrix.device)
    used = torch.full_like(diagonal[..., 0], ridge).detach()

    def shifted(relative: Tensor) -> Tensor:
        return matrix + (relative * diagonal.mean(-1))[..., None, None] * eye

    safe = 2 * k * (k + 1) * torch.finfo(matrix.dtype).eps
    if ridge < safe:
        with torch.no_grad():
            failed = torch.linalg.cholesky_ex(shifted(used)).info != 0
        used = torch.where(failed, torch.full_like(used, safe), used)
    return Cholesky(torch.linalg.cholesky_ex(shifted(used)).L, used)


def shrunk(
    matrix: Tensor,  # (*B, K, K)
    ridge: Tensor | float,
    scale: Tensor | float = 1.0,
) -> Tensor:  # (*B, K, K)
    r"""$C (s C + \epsilon)^{-1}$ of a positive semi-definite matrix, for a ridge above rounding.

    Example:
        >>> shrunk(torch.eye(2), 1.0)
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    return torch.cholesky_solve(matrix, ridged_factor(matrix, ridge, scale))


def ridged_factor(matrix: Tensor, ridge: Tensor | float, scale: Tensor | float = 1.0) -> Tensor:
    r"""The Cholesky factor of $s C + \epsilon$."""
    eye = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    return torch.linalg.cholesky(scale * matrix + ridge * eye)


def checked_ridge(ridge: float) -> float:
    """The ridge, if it can be one."""
    check_number("ridge", ridge)
    if not 0 <= ridge < float("inf"):
        raise OptionError(f"ridge={ridge}: a ridge must be finite and non-negative.")
    return ridge


def sqrt_or_zero(values: Tensor) -> Tensor:
    """Square root whose derivative at zero is zero instead of infinite."""
    positive = values > 0
    return torch.where(positive, torch.where(positive, values, 1.0).sqrt(), 0.0)


MOST_ITERATIONS = 100


def leading_svd(matrix: Tensor, rank: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    r"""Leading `rank` singular triplets of an (N, K) matrix: (N, k), (k,), (K, k).

    Subspace iteration with $k + \max(10, k)$ vectors, each step the best approximation in
    the subspace, until the singular values stand still. The start is random but always the same.

    Example:
        >>> u, s, w = leading_svd(torch.diag(torch.arange(1.0, 31.0)), 2)
        >>> [round(value, 3) for value in s.tolist()]
        [30.0, 29.0]
    """
    n, k = matrix.shape
    width = min(n, k, rank + max(10, rank))
    generator = torch.Generator().manual_seed(seed)
    block = torch.randn(k, width, generator=generator, dtype=matrix.dtype).to(matrix.device)
    settled = 100 * torch.finfo(matrix.dtype).eps
    before = matrix.new_zeros(rank)
    for _ in range(MOST_ITERATIONS):
        left = torch.linalg.qr(matrix @ block).Q
        u, s, wh = torch.linalg.svd(left.T @ matrix, full_matrices=False)
        block = wh.T
        if bool(((s[:rank] - before).abs() <= settled * s[0]).all()):
            break
        before = s[:rank]
    return (left @ u)[:, :rank], s[:rank], block[:, :rank]
