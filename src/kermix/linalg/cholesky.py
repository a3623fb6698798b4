"""Factorizations of Gram matrices: Cholesky with a relative ridge, leading singular triplets.

With the factor go the systems that are solved with it, and sums of squares of what it whitens,
whose gradients need no derivative of a factor. The triplets of a large matrix come from subspace
iteration.
"""

from dataclasses import dataclass
from typing import Any

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
    matrix: Tensor  # (*B, K, K), what was factored

    def whiten(self, columns: Tensor) -> Tensor:  # (*B, K, M) -> (*B, K, M)
        """Multiply by the inverse of the factor."""
        return torch.linalg.solve_triangular(self.factor, columns, upper=False)

    def solve(self, columns: Tensor) -> Tensor:  # (*B, K, M) -> (*B, K, M)
        """Multiply by the inverse of the regularized matrix."""
        return torch.cholesky_solve(columns, self.factor)

    def whitened_square(
        self, columns: Tensor, others: "Cholesky | None" = None
    ) -> Tensor:  # (*B, K, M) -> (*B,)
        r"""The sum of the squares of whitened columns: $\mathrm{tr}(C^\top R^{-1} C)$.

        Args:
            columns: The columns.
            others: What whitens their rows as well, of an (M, M) matrix.
        """
        if torch.compiler.is_compiling():  # it differentiates the plain formula by itself
            found = self.whiten(columns)
            found = found if others is None else others.whiten(found.mT)
            return found.square().sum((-2, -1))
        sides = [side for side in (self, others) if side is not None]
        shapes = (t.shape[:-2] for t in (columns, *(side.factor for side in sides)))
        batch = torch.broadcast_shapes(*shapes)
        given = [columns.expand(*batch, *columns.shape[-2:])]
        for side in sides:  # of a constant factor: the matrix has the gradient
            shape = *batch, *side.matrix.shape[-2:]
            given += [side.matrix.expand(shape), side.factor.detach().expand(shape)]
        kind = _WhitenedSquare if others is None else _TwiceWhitenedSquare
        value: Tensor = kind.apply(*given)[0]
        return value


class _Solve(torch.autograd.Function):
    """Columns times the inverse of a matrix whose factor is known; so is its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(columns: Tensor, matrix: Tensor, factor: Tensor) -> Tensor:
        return torch.cholesky_solve(columns, factor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        matrix, factor, found = ctx.saved_tensors
        pulled = _Solve.apply(grad, matrix, factor)
        return pulled, -pulled @ found.mT, None


class _WhitenedSquare(torch.autograd.Function):
    r"""$|L^{-1} C|^2$ of columns `C`, whose gradients are products of $W = R^{-1} C$."""

    generate_vmap_rule = True

    @staticmethod
    def forward(columns: Tensor, matrix: Tensor, factor: Tensor) -> tuple[Tensor, Tensor]:
        whitened = torch.linalg.solve_triangular(factor, columns, upper=False)
        return whitened.square().sum((-2, -1)), whitened

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, Tensor | None, None]:
        columns, matrix, factor, whitened = ctx.saved_tensors
        if torch.is_grad_enabled():
            solved = _Solve.apply(columns, matrix, factor)
        else:
            solved = torch.linalg.solve_triangular(factor.mT, whitened, upper=True)
        scaled = grad[..., None, None] * solved
        return 2 * scaled, -scaled @ solved.mT if ctx.needs_input_grad[1] else None, None


class _TwiceWhitenedSquare(torch.autograd.Function):
    r"""$|L_1^{-1} C L_2^{-\top}|^2$, likewise: by $R_1^{-1} C L_2^{-\top}$ and its like."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        columns: Tensor, matrix: Tensor, factor: Tensor, other_matrix: Tensor, other: Tensor
    ) -> tuple[Tensor, Tensor]:
        whitened = torch.linalg.solve_triangular(factor, columns, upper=False)
        whitened = torch.linalg.solve_triangular(other.mT, whitened, upper=True, left=False)
        return whitened.square().sum((-2, -1)), whitened

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        columns, matrix, factor, other_matrix, other, whitened = ctx.saved_tensors
        scale = grad[..., None, None]
        _, of_matrix, _, of_other, _ = ctx.needs_input_grad
        if torch.is_grad_enabled():
            rows = _Solve.apply(columns, matrix, factor)
            both = _Solve.apply(rows.mT, other_matrix, other)  # (*B, M, K)
            beside = _Solve.apply(columns.mT, other_matrix, other)
            grads = -scale * (both.mT @ rows.mT), -scale * (both @ beside.mT)
            return 2 * scale * both.mT, grads[0], None, grads[1], None
        rows = torch.linalg.solve_triangular(factor.mT, whitened, upper=True)
        both = torch.linalg.solve_triangular(other, rows, upper=False, left=False)
        for_matrix = -scale * (rows @ rows.mT) if of_matrix else None
        for_other = None
        if of_other:
            beside = torch.linalg.solve_triangular(other.mT, whitened.mT, upper=True)
            for_other = -scale * (beside @ beside.mT)
        return 2 * scale * both, for_matrix, None, for_other, None


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
    used = torch.full_like(diagonal[..., 0], ridge).detach()

    def shifted(relative: Tensor) -> Tensor:
        moved = diagonal + (relative * diagonal.mean(-1)).unsqueeze(-1)
        return torch.diagonal_scatter(matrix, moved, dim1=-2, dim2=-1)

    safe = 2 * k * (k + 1) * torch.finfo(matrix.dtype).eps
    if ridge < safe:
        with torch.no_grad():
            failed = torch.linalg.cholesky_ex(shifted(used)).info != 0
        used = torch.where(failed, torch.full_like(used, safe), used)
    moved = shifted(used)
    return Cholesky(torch.linalg.cholesky_ex(moved).L, used, moved)


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
