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
        # A GPU multiplies by an inverse ten times as fast as it solves for many columns.
        inverted = columns.is_cuda and columns.shape[-1] > 1
        for side in sides:  # of a constant factor: the matrix has the gradient
            shape, factor = (*batch, *side.matrix.shape[-2:]), side.factor.detach()
            factor = inverse_of_lower(factor) if inverted else factor
            given += [side.matrix.expand(shape), factor.expand(shape)]
        kind = _WhitenedSquare if others is None else _TwiceWhitenedSquare
        value: Tensor = kind.apply(*given, inverted)[0]
        return value


def _whitened(factor: Tensor, columns: Tensor, inverted: bool, turned: bool = False) -> Tensor:
    """Columns times the inverse of a lower factor, or of its transpose if `turned`.

    If `inverted`, that inverse is what is given.
    """
    left = factor.mT if turned else factor
    return (
        left @ columns if inverted else torch.linalg.solve_triangular(left, columns, upper=turned)
    )


class _Solve(torch.autograd.Function):
    """Columns times the inverse of a matrix whose factor is known; so is its derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(columns: Tensor, matrix: Tensor, factor: Tensor, inverted: bool) -> Tensor:
        return _whitened(factor, _whitened(factor, columns, inverted), inverted, turned=True)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, matrix, factor, ctx.inverted = inputs
        ctx.save_for_backward(matrix, factor, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        matrix, factor, found = ctx.saved_tensors
        pulled = _Solve.apply(grad, matrix, factor, ctx.inverted)
        return pulled, -pulled @ found.mT, None, None


class _WhitenedSquare(torch.autograd.Function):
    r"""$|L^{-1} C|^2$ of columns `C`, whose gradients are products of $W = R^{-1} C$."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        columns: Tensor, matrix: Tensor, factor: Tensor, inverted: bool
    ) -> tuple[Tensor, Tensor]:
        whitened = _whitened(factor, columns, inverted)
        return whitened.square().sum((-2, -1)), whitened

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.inverted = inputs[-1]
        ctx.save_for_backward(*inputs[:-1], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        columns, matrix, factor, whitened = ctx.saved_tensors
        if torch.is_grad_enabled():
            solved = _Solve.apply(columns, matrix, factor, ctx.inverted)
        else:
            solved = _whitened(factor, whitened, ctx.inverted, turned=True)
        scaled = grad[..., None, None] * solved
        of_matrix = -scaled @ solved.mT if ctx.needs_input_grad[1] else None
        return 2 * scaled, of_matrix, None, None


class _TwiceWhitenedSquare(torch.autograd.Function):
    r"""$|L_1^{-1} C L_2^{-\top}|^2$, likewise: by $R_1^{-1} C L_2^{-\top}$ and its like."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        columns: Tensor,
        matrix: Tensor,
        factor: Tensor,
        other_matrix: Tensor,
        other: Tensor,
        inverted: bool,
    ) -> tuple[Tensor, Tensor]:
        whitened = _whitened(factor, columns, inverted)
        whitened = _whitened(other, whitened.mT, inverted).mT
        return whitened.square().sum((-2, -1)), whitened

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.inverted = inputs[-1]
        ctx.save_for_backward(*inputs[:-1], output[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        columns, matrix, factor, other_matrix, other, whitened = ctx.saved_tensors
        scale, inverted = grad[..., None, None], ctx.inverted
        if torch.is_grad_enabled():
            rows = _Solve.apply(columns, matrix, factor, inverted)
            both = _Solve.apply(rows.mT, other_matrix, other, inverted).mT
            beside = _Solve.apply(columns.mT, other_matrix, other, inverted)
            grads = -scale * (both @ rows.mT), -scale * (both.mT @ beside.mT)
            return 2 * scale * both, grads[0], None, grads[1], None, None
        rows = _whitened(factor, whitened, inverted, turned=True)
        both = _whitened(other, rows.mT, inverted, turned=True).mT
        of_matrix, of_other = None, None
        if ctx.needs_input_grad[1]:
            of_matrix = -scale * (rows @ rows.mT)
        if ctx.needs_input_grad[3]:
            beside = _whitened(other, whitened.mT, inverted, turned=True)
            of_other = -scale * (beside @ beside.mT)
        return 2 * scale * both, of_matrix, None, of_other, None, None


def inverse_of_lower(factor: Tensor) -> Tensor:  # (*B, K, K)
    """The inverse of a lower triangular matrix: of blocks, and of twice as large ones from those.

    All are products, of which a GPU has many at once.

    Example:
        >>> inverse_of_lower(torch.tensor([[2.0, 0.0], [1.0, 1.0]]))
        tensor([[ 0.5000,  0.0000],
                [-0.5000,  1.0000]])
    """
    size, side = factor.shape[-1], 1
    whole = 1 << max(size - 1, 0).bit_length()
    filled = torch.nn.functional.pad(factor, (0, whole - size, 0, whole - size))
    filled.diagonal(dim1=-2, dim2=-1)[..., size:] = 1
    found = 1 / filled.diagonal(dim1=-2, dim2=-1)[..., None, None]  # (*B, blocks, side, side)
    while side < whole:
        parts = filled.unflatten(-1, (-1, side)).unflatten(-3, (-1, side))
        below = parts.diagonal(-1, dim1=-4, dim2=-2).movedim(-1, -3)[..., ::2, :, :]
        left, right = found[..., ::2, :, :], found[..., 1::2, :, :]
        found = torch.nn.functional.pad(left, (0, side, 0, side))
        found[..., side:, side:] = right
        found[..., side:, :side] = -right @ (below @ left)
        side *= 2
    return found[..., 0, :size, :size]


def default_ridge(dtype: torch.dtype) -> float:
    """The ridge that is used for samples of this dtype when none is asked for."""
    return DEFAULT_RIDGE[dtype]


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


def leading_svd(
    matrix: Tensor, rank: int, seed: int = 0, most: int = 100
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Leading `rank` singular triplets of an (N, K) matrix: (N, k), (k,), (K, k).

    Subspace iteration with $k + \max(10, k)$ vectors, each step the best approximation in
    the subspace, until the singular values stand still, `most` times. The start is random but
    always the same.

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
    for _ in range(most):
        left = torch.linalg.qr(matrix @ block).Q
        u, s, wh = torch.linalg.svd(left.T @ matrix, full_matrices=False)
        block = wh.T
        if bool(((s[:rank] - before).abs() <= settled * s[0]).all()):
            break
        before = s[:rank]
    return (left @ u)[:, :rank], s[:rank], block[:, :rank]
