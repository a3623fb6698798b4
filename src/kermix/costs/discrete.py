"""The discrete form of the SVD cost: two probability vectors and a kernel matrix."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.checks import (
    finite_in,
    full_precision,
    is_concrete,
    normalized_weights,
    working_dtype,
)
from kermix.errors import DeviceError, KernelError, ShapeError
from kermix.linalg.cholesky import sqrt_or_zero
from kermix.linalg.nuclear import NuclearMethod, nuclear_norm

__all__ = ["DiscreteDecomposition", "decompose_discrete", "discrete_cost"]


@dataclass(frozen=True)
class DiscreteDecomposition:
    r"""Singular values and vectors of $\mathrm{diag}(\sqrt p) K \, \mathrm{diag}(\sqrt q)$.

    `left` and `right` have orthonormal columns, Eq. (17). The functions of Eq. (18), which
    decompose `K` itself and are orthonormal under `p` and `q`, are `left_functions` and
    `right_functions`.
    """

    singular_values: Tensor  # (*B, k)
    left: Tensor  # (*B, N, k)
    right: Tensor  # (*B, M, k)
    p: Tensor  # (*B, N)
    q: Tensor  # (*B, M)

    def left_functions(self) -> Tensor:  # (*B, N, k)
        """Left vectors divided by the roots of `p`; zero where `p` is."""
        return _divided(self.left, self.p)

    def right_functions(self) -> Tensor:  # (*B, M, k)
        """Right vectors divided by the roots of `q`; zero where `q` is."""
        return _divided(self.right, self.q)


def discrete_cost(
    p: Tensor,  # (*B, N)
    q: Tensor,  # (*B, M)
    kernel: Tensor,  # (*B, N, M)
    *,
    normalized: bool = False,
    method: NuclearMethod = "auto",
    tolerance: float = 1e-4,
) -> Tensor:  # (*B,)
    r"""SVD cost of two discrete distributions, Eqs. (17) to (19).

    $$\| \mathrm{diag}(\sqrt p) \, K \, \mathrm{diag}(\sqrt q) \|_* \le
        \sqrt{\textstyle\sum_i p_i K_{ii} \sum_i q_i K_{ii}}$$

    The normalized form is divided by the bound, which holds for a positive semi-definite `K` over
    one set of states and is attained for $p = q$. With the identity for `K` the cost is the
    Bhattacharyya coefficient $\sum_i \sqrt{p_i q_i}$.

    Args:
        p: Non-negative probabilities; they are divided by their sum.
        q: The probabilities of the other distribution.
        kernel: The matrix `K`, of any kernel between the states of `p` and those of `q`.
        normalized: Whether to divide by the bound; `K` must then be square.
        method: How the nuclear norm is computed, see `kermix.nuclear_norm`.
        tolerance: Relative error allowed for `"polar"`.

    Example:
        >>> p, q = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0.0, 0.5, 0.5])
        >>> discrete_cost(p, q, torch.eye(3))
        tensor(0.5000)
    """
    p, q, matrix = _checked(p, q, kernel, square=normalized)
    dtype = torch.promote_types(torch.promote_types(p.dtype, q.dtype), kernel.dtype)
    with full_precision(matrix.device):
        cost = nuclear_norm(_rooted(p, q, matrix), method=method, tolerance=tolerance)
        if normalized:
            diagonal = matrix.diagonal(dim1=-2, dim2=-1)
            traces = (p * diagonal).sum(-1) * (q * diagonal).sum(-1)
            ratio = cost / traces.clamp(min=torch.finfo(traces.dtype).tiny).sqrt()
            # Rounding may lead above the bound; the gradient stays what it was.
            cost = ratio - (ratio.detach() - 1).clamp(min=0)
        return finite_in(cost, dtype)


@torch.no_grad()
def decompose_discrete(
    p: Tensor,  # (*B, N)
    q: Tensor,  # (*B, M)
    kernel: Tensor,  # (*B, N, M)
) -> DiscreteDecomposition:
    r"""Decompose $\mathrm{diag}(\sqrt p) K \, \mathrm{diag}(\sqrt q) = U S V$, Eq. (17).

    Args:
        p: Non-negative probabilities; they are divided by their sum.
        q: The probabilities of the other distribution.
        kernel: The matrix `K`, of any kernel between the states of `p` and those of `q`.

    Example:
        >>> p = torch.tensor([0.25, 0.75])
        >>> found = decompose_discrete(p, p, torch.eye(2))
        >>> found.singular_values
        tensor([0.7500, 0.2500])
        >>> found.left_functions().abs()  # of norm 1 under p
        tensor([[0.0000, 2.0000],
                [1.1547, 0.0000]])
    """
    p, q, matrix = _checked(p, q, kernel, square=False)
    u, s, wh = torch.linalg.svd(_rooted(p, q, matrix), full_matrices=False)
    return DiscreteDecomposition(s, u, wh.mT, p, q)


def _rooted(p: Tensor, q: Tensor, matrix: Tensor) -> Tensor:
    return sqrt_or_zero(p).unsqueeze(-1) * matrix * sqrt_or_zero(q).unsqueeze(-2)


def _divided(vectors: Tensor, weights: Tensor) -> Tensor:
    roots = sqrt_or_zero(weights)
    positive = roots > 0
    inverse = torch.where(positive, 1 / torch.where(positive, roots, 1.0), 0.0)
    return vectors * inverse.unsqueeze(-1)


def _kind_of(value: object) -> str:
    return str(tuple(value.shape)) if isinstance(value, Tensor) else type(value).__name__


def _check_kernel(kernel: Tensor, square: bool) -> None:
    if not isinstance(kernel, Tensor) or not kernel.dtype.is_floating_point or kernel.ndim < 2:
        raise KernelError(
            f"kernel is {_kind_of(kernel)}; give a floating-point matrix of shape (N, M)."
        )
    if square and kernel.shape[-1] != kernel.shape[-2]:
        raise ShapeError(
            f"kernel has shape {tuple(kernel.shape)}: the bound of Eq. (19) is for a single set "
            "of states, so normalized=True needs a square matrix."
        )
    if is_concrete(kernel):
        if not bool(torch.isfinite(kernel).all()):
            raise KernelError("kernel has NaN or infinite values.")
        if square and not torch.allclose(kernel, kernel.mT, rtol=1e-4, atol=1e-6):
            raise KernelError("kernel is not symmetric, so the bound of Eq. (19) does not hold.")


def _checked(p: Tensor, q: Tensor, kernel: Tensor, square: bool) -> tuple[Tensor, Tensor, Tensor]:
    _check_kernel(kernel, square)
    parts = []
    for name, weights, axis in (("p", p, -2), ("q", q, -1)):
        if not isinstance(weights, Tensor) or weights.shape[-1:] != kernel.shape[axis:][:1]:
            raise ShapeError(
                f"{name} is {_kind_of(weights)} for a kernel of shape {tuple(kernel.shape)}; p "
                "has a probability for each row, q for each column."
            )
        if weights.device != kernel.device:
            raise DeviceError(f"{name} is on {weights.device} and kernel on {kernel.device}.")
        like = weights.new_empty((*weights.shape, 1)) if weights.ndim else weights
        parts.append(normalized_weights(name, weights, like))
    dtype = working_dtype(*parts, kernel)
    return parts[0].to(dtype), parts[1].to(dtype), kernel.to(dtype)
