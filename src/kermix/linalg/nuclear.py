r"""The nuclear norm, and the polar factor that is its gradient, with a bound of what is left out.

Of a matrix of low numerical rank, random sums of rows have an orthonormal basis `U` of what
matters: $P^\top = U B + R$ with
$B = U^\top P^\top$. The polar factor of `U B` is `U` times that of `B`, which comes from the
eigenvectors of the small $B B^\top$ in float64. What is left out has a nuclear norm of at
most the root of its rank times the Frobenius norm of `R`, which is formed: as a difference of two
sums of squares it would be nothing but their rounding. Where that is too much, rows of `R` are
summed for more columns of `U`, long ones more often: those that no sum had before. The last rows
of `B`, whose norms add up to less than what is allowed, are left out as well.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from kermix.checks import check_number, check_option, is_concrete, working_dtype
from kermix.errors import OptionError, SampleError, ShapeError
from kermix.info import Info, informative
from kermix.linalg.polar import (
    FINEST_TF32_TOLERANCE,
    Polar,
    binary_unit,
    can_sync,
    full_products,
    polar_factor,
    probing_signs,
)

__all__ = ["SMALLEST_SKETCHED", "NuclearMethod", "chosen_method", "low_rank_polar", "nuclear_norm"]

SMALLEST_SKETCHED = {"cpu": 200, "cuda": 6000}  # sides below which other ways are as fast
BLOCKS, SHARE_OF_A_BLOCK, SMALLEST_BLOCK, LARGEST_BLOCK = 3, 1 / 16, 16, 128
CHOLESKY_PASSES = 3
LARGEST_SHARE = {"cpu": 0.65, "cuda": 0.15}  # of the smaller side, above which they are faster
MARGIN = 2.0  # by which the residual is planned to be below what is allowed
SHARE_OF_A_PLAN = 0.85  # of columns that are missing: most spectra fall faster as they go on
WORTH_A_TRY = 100.0  # times what is allowed, which single rows that no sum had may well hold
SHARE_OF_THE_RESIDUAL = 0.7  # of what may be left out; the rest is for rows of `B`
# Of what is allowed: the norms of all rows add up to 1.3 times the nuclear norm, and products may
# take half of it.
ROOM = {"cpu": 0.7, "cuda": 0.4}
ROUNDINGS = 8.0
SMALLEST_RANK, FINE_TOLERANCE = 32, 1e-4
LEAST_SHARE_OF_A_COLUMN = 1e-3  # of the longest; in shorter ones rounding shows
LEAST_SHARE_BESIDE = 0.5  # of a direction beside the basis, the second time; else it is rounding
LARGEST_STRETCH = 1e-3  # of a polar factor by rounding, above which float64 forms it
# On a GPU a try takes as long as a product of the whole matrix. Gaussian kernels of points in the
# plane need 9 to 15 times their effective rank.
PROBES, LEAST_OF_EFFECTIVE_RANKS = 16, 8.0
ROWS_IN_A_SUM = 8  # of the sketch: as good as sums of all, without a product


def low_rank_polar(matrix: Tensor, tolerance: float, seed: int = 0) -> tuple[Polar, int] | None:
    """The polar factor to a relative error of the nuclear norm, and its rank; None if it is high.

    Args:
        matrix: A matrix, (M, N), in float32.
        tolerance: Relative error of the nuclear norm.
        seed: Of the sketch: the same matrix has the same answer.

    Example:
        >>> points = torch.linspace(0, 1, 300)
        >>> matrix = (-(points[:, None] - points).square()).exp()
        >>> polar, rank = low_rank_polar(matrix, 1e-4)
        >>> rank, bool(polar.error_bound < 1e-4 * polar.value)
        (32, True)
    """
    unit = binary_unit(matrix)
    matrix = matrix if bool(unit == 1) else matrix / unit
    with full_products(matrix):
        found = _low_rank_polar(matrix, tolerance, torch.Generator().manual_seed(seed))
    return None if found is None else (found[0].times(unit[0, 0]), found[1])


def _low_rank_polar(
    matrix: Tensor, tolerance: float, generator: torch.Generator
) -> tuple[Polar, int] | None:
    """That of a matrix whose largest entry is about 1."""
    smaller, eps = min(matrix.shape), torch.finfo(matrix.dtype).eps
    block = min(max(SMALLEST_BLOCK, round(smaller * SHARE_OF_A_BLOCK)), LARGEST_BLOCK)
    room = ROOM[matrix.device.type] * tolerance
    most = round(LARGEST_SHARE[matrix.device.type] * smaller)
    if matrix.is_cuda and LEAST_OF_EFFECTIVE_RANKS * _effective_rank(matrix) > most:
        return None
    new, triangle = _orthonormal(_sketch(matrix, BLOCKS * block, generator))
    plan = _plan(triangle, len(matrix), block, smaller, tolerance)
    if plan is None or (plan.rank > most and plan.excess > WORTH_A_TRY):
        return None
    new, fall = new[:, : plan.rank], plan.fall
    # Rounding of the residual, of which nothing is seen in it.
    unseen = math.sqrt(smaller) * eps * torch.linalg.vector_norm(matrix).double()
    basis = matrix.new_empty(matrix.shape[1], 0)
    rest = matrix.new_empty(matrix.shape[0], 0)
    residual, before = matrix, math.inf
    while True:
        part = residual @ new  # (M, width)
        if residual is matrix:
            residual = torch.addmm(residual, part, new.mT, alpha=-1)
        else:
            residual.addmm_(part, new.mT, alpha=-1)
        basis, rest = torch.cat([basis, new], 1), torch.cat([rest, part], 1)
        rank, width = rest.shape[1], new.shape[1]
        norms = torch.linalg.vector_norm(rest, dim=0).double()
        missed = torch.linalg.vector_norm(residual, dim=1).double()  # (M,)
        left_out = unseen + math.sqrt(smaller - rank) * torch.linalg.vector_norm(missed)
        excess = float(left_out / (SHARE_OF_THE_RESIDUAL * room * norms.sum()))
        if excess <= 1:
            break
        if not bool(missed.sum() > 0):  # nothing is left but rounding, which is too much
            return None
        if before < math.inf:
            fall = math.log(before / excess) / width
        missing = SHARE_OF_A_PLAN**2 * math.log(excess) / max(fall, 1e-6)
        if not rank + missing <= most:
            if before < math.inf or not excess < WORTH_A_TRY:
                return None
            missing = block
        width = min(max(block // 2, math.ceil(missing)), smaller - rank)
        new = _beside(basis, _sketch(residual, width, generator, missed))
        if not new.shape[1]:
            return None
        before = excess
    # Beside row i are all that follow: the sum of their norms bounds their nuclear norm.
    beside = norms.flip(0).cumsum(0).flip(0)
    kept = int((left_out + beside > room * beside[0]).sum())
    kept = max(kept, min(plan.rank, BLOCKS * block))
    if kept < rank:
        left_out = left_out + beside[kept]
        basis, rest = basis[:, :kept], rest[:, :kept]
    return _certified(matrix, basis, rest, left_out, tolerance)


def _certified(
    matrix: Tensor, basis: Tensor, rest: Tensor, left_out: Tensor, tolerance: float
) -> tuple[Polar, int] | None:
    """The polar factor of what is in the basis, if its bound is within the tolerance."""
    eps = torch.finfo(matrix.dtype).eps
    core_of = _by_products if matrix.is_cuda else _by_eigenvectors
    value, core, bound = core_of(rest.mT, tolerance)
    bound = bound + left_out + ROUNDINGS * eps * value
    if not bool(bound <= tolerance * value):
        return None
    factor = core.mT @ basis.mT
    # Small singular values beside a huge one are lost to rounding, and the factor with them.
    if not bool(((factor * matrix).sum(dtype=value.dtype) - value).abs() <= tolerance * value):
        return None
    found = Polar(factor, value.to(matrix.dtype), bound.to(matrix.dtype))
    return found, rest.shape[1]


def _effective_rank(matrix: Tensor) -> float:
    r"""About $(\sum_i \sigma_i^2)^2 / \sum_i \sigma_i^4$, which is at most the rank, by probes."""
    image = matrix @ probing_signs(matrix.shape[1], PROBES, matrix)
    squares, fourths = (t.square().mean(1).sum() for t in (image, matrix.mT @ image))
    return float(squares.square() / fourths)


def _sketch(
    matrix: Tensor, width: int, generator: torch.Generator, norms: Tensor | None = None
) -> Tensor:  # (N, width)
    """Sums of a few random rows with random signs; of long ones, where their norms are known.

    All rows alike are the cheapest draw. Of what they left out, most may be in single rows.
    """
    shape, count = (width, ROWS_IN_A_SUM), width * ROWS_IN_A_SUM
    if norms is None:
        rows = torch.randint(len(matrix), shape, generator=generator)
    else:
        shares = norms.square().cpu()
        rows = torch.multinomial(shares, count, replacement=True, generator=generator).view(shape)
    signs = torch.randint(2, shape, generator=generator).to(matrix) * 2 - 1
    sums = nn.functional.embedding_bag(
        rows.to(matrix.device), matrix, mode="sum", per_sample_weights=signs
    )
    return sums.mT


def _beside(basis: Tensor, columns: Tensor) -> Tensor:  # (N, r), (N, w) -> (N, at most w)
    """The span of columns beside an orthonormal basis, less what is nothing but rounding."""
    new, triangle = _orthonormal(torch.addmm(columns, basis, basis.mT @ columns, alpha=-1))
    sizes = triangle.diagonal().abs()
    new = new[:, sizes > LEAST_SHARE_OF_A_COLUMN * sizes.amax()]
    # Of short columns rounding within the basis is left, which a second time takes away.
    new, triangle = _orthonormal(torch.addmm(new, basis, basis.mT @ new, alpha=-1))
    return new[:, triangle.diagonal().abs() > LEAST_SHARE_BESIDE]


def _orthonormal(columns: Tensor) -> tuple[Tensor, Tensor]:  # (N, r), (r, r)
    """The QR decomposition; on a GPU, which is slow at it, by Cholesky factors in float64."""
    if not columns.is_cuda:
        with _one_thread():
            return torch.linalg.qr(columns)
    basis = columns.double()
    triangle = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
    for number in range(CHOLESKY_PASSES):
        square = basis.mT @ basis
        if number == 0:  # no factorization fails then, and the next ones mend what that changed
            shift = len(square) * torch.finfo(square.dtype).eps * square.diagonal().sum()
            square.diagonal().add_(shift)
        lower = torch.linalg.cholesky_ex(square).L
        basis = torch.linalg.solve_triangular(lower, basis.mT, upper=False).mT
        triangle = lower.mT @ triangle
    return basis.to(columns.dtype), triangle


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads of a QR decomposition spin: beside busy processes it took 1000 times as long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _by_eigenvectors(rest: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """Nuclear norm and polar factor of a wide matrix, and what the norm does not hold."""
    wide = rest.double()
    squares, vectors = torch.linalg.eigh(wide @ wide.mT)
    values = squares.clamp(min=0).sqrt()
    # Float32 holds nothing of what is smaller; without a bound that says so, it is left out.
    seen = values > ROUNDINGS * torch.finfo(rest.dtype).eps * values[-1]
    root = (vectors * torch.where(seen, 1 / values, 0.0)) @ vectors.mT
    core = root.to(rest.dtype) @ rest
    stretch = core.square().sum(dtype=wide.dtype) - seen.sum()
    if not bool(stretch.abs() <= LARGEST_STRETCH):
        core = (root @ wide).to(rest.dtype)
    return values[seen].sum(), core, values[~seen].sum()


def _by_products(rest: Tensor, tolerance: float) -> tuple[Tensor, Tensor, Tensor]:
    """The same by matrix products, in full precision."""
    polar = polar_factor(rest, min(tolerance, FINEST_TF32_TOLERANCE) / 2)
    return polar.value.double(), polar.factor, polar.error_bound.double()


class _Plan(NamedTuple):
    rank: int
    excess: float  # of the residual at the last column over what is allowed
    fall: float  # of its logarithm from one column to the next


def _plan(triangle: Tensor, rows: int, block: int, smaller: int, tolerance: float) -> _Plan | None:
    r"""How many columns are needed, by those that were drawn; None for a matrix of nothing.

    What a column of the sketch has beside the columns before it is, on average, the residual at
    their rank; from one block to the next it falls by about the same factor, as it would for
    singular values $\sigma_j \propto q^j$.
    """
    columns = triangle.diagonal().double().abs().cpu() * math.sqrt(rows / ROWS_IN_A_SUM)
    whole = float(columns[:block].square().mean().sqrt())
    # Not their means: a few sums may have rows like no other, which are soon found.
    _, before, after = columns.unflatten(0, (BLOCKS, block)).median(1).values.tolist()
    if not 0 < whole < math.inf:
        return None
    fall = min(max(after / max(before, 1e-30), 1e-6), 1 - 1e-6)
    ratio = fall ** (1 / block)
    norm = whole * math.sqrt(1 - ratio**2) / (1 - ratio)
    allowed = norm / (MARGIN * math.sqrt(smaller))
    # Few columns cost little, and a gradient may have most of its length in what is small.
    large = (columns > min(tolerance, FINE_TOLERANCE) * allowed).nonzero()
    rank = max(int(large.max()) + 1 if len(large) else 1, SMALLEST_RANK)
    excess = after / (tolerance * allowed)
    if rank >= BLOCKS * block and excess > 1:
        rank += math.ceil(SHARE_OF_A_PLAN * math.log(excess) / -math.log(ratio))
    return _Plan(rank, excess, -math.log(ratio))


NuclearMethod: TypeAlias = Literal["auto", "svd", "polar"]

FINEST_TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}
HIDDEN_SHARE = (
    0.01  # of a second derivative that rounding may hide; with ten times as much, 2% were off
)


def _checked_dtype(matrix: Tensor, tolerance: float) -> torch.dtype:
    """The precision to work in, for a matrix and a tolerance that make sense."""
    if not isinstance(matrix, Tensor) or matrix.ndim < 2 or not matrix.dtype.is_floating_point:
        raise ShapeError("matrix must be a floating-point tensor of shape (*batch, M, N).")
    # A sum is found in one pass, and is finite but for bad values and some very large ones.
    if (
        is_concrete(matrix)
        and not bool(torch.isfinite(matrix.detach().sum()))
        and not bool(torch.isfinite(matrix).all())
    ):
        raise SampleError("matrix has NaN or infinite values, so it has no singular values.")
    dtype = working_dtype(matrix)
    check_number("tolerance", tolerance)
    if not FINEST_TOLERANCE[dtype] <= tolerance < 1:
        raise OptionError(
            f"tolerance={tolerance} is not between {FINEST_TOLERANCE[dtype]}, what {dtype} can "
            "resolve, and 1; for a smaller error use float64 or method='svd'."
        )
    return dtype


@informative
def nuclear_norm(
    matrix: Tensor,  # (*B, M, N)
    method: NuclearMethod = "auto",
    tolerance: float = 1e-4,
) -> tuple[Tensor, Info]:  # (*B,)
    r"""Sum of the singular values, $\|P\|_* = \langle Q, P \rangle$.

    The gradient is the polar factor $Q = U V^\top$. It needs no differences of singular values, so
    it is finite where the gradient through an SVD is not: for repeated and zero singular values,
    and for matrices without full rank. It can be differentiated once more, except under the
    compiler, along directions that keep the rank; where singular values leave zero, the norm has a
    kink, and a second derivative is refused (NaN in the transforms of `torch.func`).

    `"svd"` is exact, and its gradient is restricted to the singular values that stand out from
    rounding. `"polar"` computes `Q` with matrix products only: since the norm of `Q` is at most 1,
    its value is, up to rounding, a lower bound, and the nuclear norm is within `info.error_bound`
    of it, rounding included. `"auto"` uses `"polar"` for float32 on an accelerator and `"svd"`
    elsewhere, where it is faster; `chosen_method` returns the choice. A single float32 matrix of
    at least 200 rows and columns (6000 on a GPU) whose singular values decay fast is first
    factored into a product of smaller ones: `info.method` is then `"range"`, `info.rank` their
    size, and there is an error bound of the same kind. The gradient omits what the value may omit:
    directions whose singular values add up to less than the tolerance. If points are much closer
    to each other than the width of the kernel, these can be half of the gradient with respect to
    the points; a smaller tolerance or `"svd"` keeps them.

    Args:
        matrix: Any real matrices.
        method: How to compute it.
        tolerance: Relative error allowed for `"polar"` and `"auto"`.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> value, info = nuclear_norm(torch.tensor([[3.0, 0.0], [0.0, -4.0]]), return_info=True)
        >>> value, info.method
        (tensor(7.), 'svd')
    """
    check_option("method", method, ("auto", "svd", "polar"))
    dtype = _checked_dtype(matrix, tolerance)
    open_to_choice = method == "auto"
    method = chosen_method(matrix) if method == "auto" else method
    if matrix.numel() == 0:
        return matrix.new_zeros(matrix.shape[:-2]), Info(method)
    with torch.autocast(matrix.device.type, enabled=False):
        work = matrix.to(dtype)
        if open_to_choice and _may_be_low_rank(work):
            found = low_rank_polar(work.detach(), tolerance)
            if found is not None:
                polar, rank = found
                value, _, bound = _NuclearNorm.apply(work, polar, tolerance)
                return value.to(matrix.dtype), Info("range", error_bound=bound, rank=rank)
        if torch.compiler.is_compiling():
            # A constant polar factor has the right value and gradient, and the compiler, which
            # offers no second derivatives, can trace it.
            _, factor, bound = _NuclearNorm.forward(work.detach(), method, tolerance)
            value = (factor * work).sum((-2, -1))
        else:
            value, _, bound = _NuclearNorm.apply(work, method, tolerance)
    return value.to(matrix.dtype), Info(method, error_bound=bound if method == "polar" else None)


def chosen_method(matrix: Tensor) -> Literal["svd", "polar"]:
    """The method that `"auto"` stands for, for this matrix."""
    fast_products = matrix.device.type == "cuda" and matrix.dtype != torch.float64
    return "polar" if fast_products and min(matrix.shape[-2:]) > 1 else "svd"


def _may_be_low_rank(matrix: Tensor) -> bool:
    """Whether a range finder is worth a try: one large matrix in single precision."""
    least = SMALLEST_SKETCHED.get(matrix.device.type)
    return (
        least is not None
        and matrix.ndim == 2
        and min(matrix.shape) >= least
        and matrix.dtype == torch.float32
        and can_sync(matrix)
    )


def _svd(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The thin SVD, and 1 or 0 for singular values that are there or nothing but rounding."""
    u, s, vh = torch.linalg.svd(matrix, full_matrices=False)
    # Rounding may be as large as max(M, N) units, but what the vectors find of such a value in
    # the matrix is next to nothing; of a true one of a few units they find all.
    found = _along(matrix, u, vh) > s / 2
    above = s > s[..., :1] * torch.finfo(s.dtype).eps
    return u, s, vh, (found & above).to(s.dtype)


def _along(matrix: Tensor, u: Tensor, vh: Tensor) -> Tensor:  # (*B, R)
    r"""The products $u_k^\top P v_k$, which are the singular values up to rounding."""
    return ((u.mT @ matrix) * vh).sum(-1)


class _NuclearNorm(torch.autograd.Function):
    """Nuclear norm, polar factor, and a bound of what the norm exceeds the value by."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        matrix: Tensor, method: str | Polar, tolerance: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        if method == "polar":
            method = polar_factor(matrix, tolerance)
        if isinstance(method, Polar):  # one that is known already, too
            return method.value, method.factor, method.error_bound
        unit = binary_unit(matrix)
        matrix = matrix / unit
        u, s, vh, significant = _svd(matrix)
        # Each singular value that is nothing but rounding is positive, and in single precision a
        # thousand of them are seen; those of the products below cancel.
        single = matrix.dtype == torch.float32
        value = (_along(matrix, u, vh) if single else s).sum(-1) * unit[..., 0, 0]
        return value, (u * significant.unsqueeze(-2)) @ vh, torch.zeros_like(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, factor, bound = output
        ctx.mark_non_differentiable(factor, bound)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(inputs[0], factor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, *_: Any) -> tuple[Tensor | None, None, None]:
        if grad is None:
            return None, None, None
        matrix, factor = ctx.saved_tensors
        if torch.is_grad_enabled():
            factor = _PolarFactor.apply(matrix)
        return grad[..., None, None] * factor, None, None


class _PolarFactor(torch.autograd.Function):
    """The polar factor as a function of the matrix, for second derivatives."""

    generate_vmap_rule = True

    @staticmethod
    def forward(matrix: Tensor) -> Tensor:
        u, _, vh, significant = _svd(matrix / binary_unit(matrix))
        return (u * significant.unsqueeze(-2)) @ vh

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        # The polar factor is a gradient, so its derivative is symmetric: the vector-Jacobian
        # product is the derivative in the direction `grad`, among matrices of the same rank.
        unit, size = binary_unit(ctx.saved_tensors[0]), binary_unit(grad)
        u, s, vh, significant = _svd(ctx.saved_tensors[0] / unit)
        u, vh, grad = u * significant.unsqueeze(-2), vh * significant.unsqueeze(-1), grad / size
        core = u.mT @ grad @ vh.mT
        sums = s.unsqueeze(-1) + s.unsqueeze(-2)
        inverse = (significant / torch.where(s > 0, s, 1.0)).unsqueeze(-1)
        below, beside = grad, grad
        for _ in range(2):  # what rounding leaves inside is divided by small values, too
            below, beside = below - u @ (u.mT @ below), beside - (beside @ vh.mT) @ vh
        turned = u @ ((core - core.mT) / torch.where(sums > 0, sums, 1.0)) @ vh
        outside = (below @ vh.mT) @ (inverse * vh) + u @ (inverse * (u.mT @ beside))
        found = turned + outside
        swapped = (core * core.mT).abs() / torch.where(sums > 0, sums, 1.0) * inverse
        left_out = below - (below @ vh.mT) @ vh
        lost = _is_lost(grad, found, left_out, swapped, s[..., :1].unsqueeze(-1))
        if not can_sync(lost):
            found = torch.where(lost, torch.nan, found)
        elif bool(lost.any()):
            raise SampleError(
                "The nuclear norm has no second derivative here that can be computed in "
                f"{grad.dtype}: in the direction asked for, singular values leave zero or what "
                "rounding makes of it, where the norm has a kink (repeated points that are moved "
                "apart, say). Keep the rank along the direction (move repeated points together, "
                "or leave them out), or compute in float64 if the matrix has full rank."
            )
        return found * (size / unit)


def _is_lost(
    grad: Tensor, found: Tensor, left_out: Tensor, swapped: Tensor, largest: Tensor
) -> Tensor:
    """Whether what rounding hides may change the derivative `found` in the direction `grad`.

    Rounding moves singular values by a unit of the largest. By that, the curvature changes by
    this unit times the square of the derivative; what is left out turns vectors of values that
    may be as small as the unit; and which left vectors of such values belong to which right ones
    is chance. All are (*B, M, N), or (*B, 1, 1).
    """
    given = (grad, found, left_out, swapped, largest)
    grad, found, left_out, swapped, largest = (t.detach() for t in given)
    total = lambda t: t.sum((-2, -1), keepdim=True)  # noqa: E731
    unit = torch.finfo(grad.dtype).eps * largest
    hidden = unit * (total(found.square()) + 2 * total(swapped)) + total(left_out.square()) / unit
    seen = total(grad * found).clamp(min=0) + total(grad.square()) / largest
    return hidden.nan_to_num(0) > HIDDEN_SHARE * seen.nan_to_num(0)
