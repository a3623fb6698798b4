r"""The polar factor of a matrix of low numerical rank, by a basis of what matters in it.

Random sums of rows have an orthonormal basis `U` of what matters: $P^\top = U B + R$ with
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
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kermix.linalg.polar import (
    FINEST_TF32_TOLERANCE,
    Polar,
    binary_unit,
    can_sync,
    full_products,
    polar_factor,
    probing_signs,
)

__all__ = ["FINDERS", "low_rank_polar", "may_be_low_rank"]

ROUNDINGS = 8.0  # that sums and products of a float32 matrix may be off by
ROWS_IN_A_SUM = 8  # of a sketch: as good as sums of all, without a product


@dataclass(frozen=True)
class RangeFinder:
    """How a basis is looked for, on a kind of device; all settings are conventions.

    Attributes:
        least_side: Below, other ways are as fast.
        largest_share: Of the smaller side that the rank may be; above, they are faster.
        room: Of the tolerance, what may be left out: the norms of all rows add up to 1.3 times
            the nuclear norm, and products may take half of it.
        least_of_effective_ranks: A try is worth it if the rank may be this many times the
            effective one; None: without asking. On a GPU a try takes as long as a product of the
            whole matrix, and Gaussian kernels of points in the plane need 9 to 15 times.
        residual_share: Of the room, what `R` may take; the rest is for rows of `B`.
        blocks: How many blocks of columns the first sketch has.
        block_share: Of the smaller side that a block is, from `smallest_block` to `largest_block`.
        smallest_block: Columns of a block at least.
        largest_block: Columns of a block at most.
        margin: By which the residual is planned to be below what is allowed.
        plan_share: Of the columns that are missing, drawn next: most spectra fall faster as they
            go on.
        worth_a_try: Times what is allowed, which single rows that no sum had may well hold.
        smallest_rank: Of a plan: few columns cost little.
        fine_tolerance: To which a plan holds the columns that it has: a gradient may have most of
            its length in what is small.
    """

    least_side: int
    largest_share: float
    room: float
    least_of_effective_ranks: float | None = None
    residual_share: float = 0.7
    blocks: int = 3
    block_share: float = 1 / 16
    smallest_block: int = 16
    largest_block: int = 128
    margin: float = 2.0
    plan_share: float = 0.85
    worth_a_try: float = 100.0
    smallest_rank: int = 32
    fine_tolerance: float = 1e-4

    def sizes(self, side: int) -> tuple[int, int]:
        """Columns of a block, and the largest rank that pays, for a smaller side."""
        wanted = max(self.smallest_block, round(side * self.block_share))
        return min(wanted, self.largest_block), round(self.largest_share * side)


FINDERS = {
    "cpu": RangeFinder(least_side=200, largest_share=0.65, room=0.7),
    "cuda": RangeFinder(6000, largest_share=0.15, room=0.4, least_of_effective_ranks=8.0),
}


def may_be_low_rank(matrix: Tensor) -> bool:
    """Whether a range finder is worth a try: one large matrix in single precision."""
    finder = FINDERS.get(matrix.device.type)
    return (
        finder is not None
        and matrix.ndim == 2
        and min(matrix.shape) >= finder.least_side
        and matrix.dtype == torch.float32
        and can_sync(matrix)
    )


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
    is_unit = bool(unit == 1)
    matrix = matrix if is_unit else matrix / unit
    times = FINDERS[matrix.device.type].least_of_effective_ranks
    largest = FINDERS[matrix.device.type].sizes(min(matrix.shape))[1]
    with full_products(matrix):
        if times is not None and times * _effective_rank(matrix) > largest:
            return None
        found = _low_rank_polar(matrix, tolerance, torch.Generator().manual_seed(seed))
    return found if found is None or is_unit else (found[0].times(unit[0, 0]), found[1])


def _low_rank_polar(
    matrix: Tensor, tolerance: float, generator: torch.Generator
) -> tuple[Polar, int] | None:
    """That of a matrix whose largest entry is about 1."""
    finder, smaller = FINDERS[matrix.device.type], min(matrix.shape)
    block, largest = finder.sizes(smaller)
    new, triangle = _orthonormal(_sketch(matrix, finder.blocks * block, generator))
    plan = _plan(triangle, len(matrix), smaller, tolerance, finder)
    if plan is None or (plan.rank > largest and plan.excess > finder.worth_a_try):
        return None
    basis = _Basis(matrix, finder.residual_share * finder.room * tolerance)
    basis.add(new[:, : plan.rank])
    missing = basis.missing(plan.fall, finder.plan_share)
    most = largest
    if basis.rank + missing > most and basis.excess < finder.worth_a_try:
        missing = block  # how wrong the plan was, a block tells
        most = max(most, math.ceil(basis.rank + missing))
    while not basis.excess <= 1:
        if not basis.rank + missing <= most:
            return None
        width = min(max(block // 2, math.ceil(missing)), smaller - basis.rank)
        before, most = basis.excess, largest
        if not basis.grow(width, generator):
            return None
        fall = math.log(before / basis.excess) / basis.width
        missing = basis.missing(fall, finder.plan_share)
    basis.shorten(finder.room * tolerance, min(plan.rank, finder.blocks * block))
    return _certified(matrix, basis.columns, basis.rest, basis.left_out, tolerance)


@dataclass(eq=False)
class _Basis:
    """A basis, the products of a matrix with it, and what they leave out.

    Attributes:
        matrix: The matrix, (M, N).
        allowed: Of the sum of the norms of `rest`'s columns, what may be left out.
        columns: The basis, (N, r).
        rest: The matrix times it, (M, r).
        residual: The matrix less what the basis has of it.
        unseen: A bound of its rounding, of which nothing is seen in it.
        norms: Norms of the columns of `rest`, in float64.
        missed: Norms of the rows of `residual`, likewise.
        left_out: A bound of its nuclear norm.
        excess: That over what is allowed.
        rank: How many columns it has.
        width: How many of them came last.
    """

    matrix: Tensor
    allowed: float
    columns: Tensor = field(init=False)
    rest: Tensor = field(init=False)
    residual: Tensor = field(init=False)
    unseen: Tensor = field(init=False)
    norms: Tensor = field(init=False)
    missed: Tensor = field(init=False)
    left_out: Tensor = field(init=False)
    excess: float = math.inf
    rank: int = 0
    width: int = 0

    def __post_init__(self) -> None:
        rows, columns = self.matrix.shape
        self.columns, self.rest = (self.matrix.new_empty(n, 0) for n in (columns, rows))
        self.residual, eps = self.matrix, torch.finfo(self.matrix.dtype).eps
        size = torch.linalg.vector_norm(self.matrix).double()
        self.unseen = math.sqrt(min(rows, columns)) * eps * size

    def add(self, new: Tensor) -> None:  # (N, w)
        """Add orthonormal columns beside those that it has."""
        part = self.residual @ new  # (M, w)
        if self.residual is self.matrix:
            self.residual = torch.addmm(self.residual, part, new.mT, alpha=-1)
        else:
            self.residual.addmm_(part, new.mT, alpha=-1)
        self.columns, self.rest = (
            torch.cat([self.columns, new], 1),
            torch.cat([self.rest, part], 1),
        )
        self.width, smaller = new.shape[1], min(self.matrix.shape)
        self.rank = self.rest.shape[1]
        self.norms = torch.linalg.vector_norm(self.rest, dim=0).double()
        self.missed = torch.linalg.vector_norm(self.residual, dim=1).double()
        found = math.sqrt(smaller - self.rank) * torch.linalg.vector_norm(self.missed)
        self.left_out = self.unseen + found
        self.excess = float(self.left_out / (self.allowed * self.norms.sum()))

    def missing(self, fall: float, share: float) -> float:
        """About how many columns are missing, if the excess' logarithm falls like this by each."""
        return share**2 * math.log(max(self.excess, 1.0)) / max(fall, 1e-6)

    def grow(self, width: int, generator: torch.Generator) -> bool:
        """Add columns from sums of the residual's rows; False if they are but rounding."""
        if not bool(self.missed.sum() > 0):
            return False
        sums = _sketch(self.residual, width, generator, self.missed)
        new = _beside(self.columns, sums)
        if new.shape[1]:
            self.add(new)
        return bool(new.shape[1])

    def shorten(self, room: float, least: int) -> None:
        """Leave out the last columns, with the residual no more than what there is room for."""
        # Beside column i are all that follow: the sum of their norms bounds their nuclear norm.
        beside = self.norms.flip(0).cumsum(0).flip(0)
        kept = max(int((self.left_out + beside > room * beside[0]).sum()), least)
        if kept < self.rank:
            self.left_out = self.left_out + beside[kept]
            self.columns, self.rest = self.columns[:, :kept], self.rest[:, :kept]


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


def _effective_rank(matrix: Tensor, probes: int = 16) -> float:
    r"""About $(\sum_i \sigma_i^2)^2 / \sum_i \sigma_i^4$, which is at most the rank, by probes."""
    image = matrix @ probing_signs(matrix.shape[1], probes, matrix)
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


def _beside(
    basis: Tensor,  # (N, r)
    columns: Tensor,  # (N, w)
    least_share: float = 1e-3,
    least_beside: float = 0.5,
) -> Tensor:  # (N, at most w)
    """The span of columns beside an orthonormal basis, less what is nothing but rounding.

    Args:
        basis: The basis.
        columns: The columns.
        least_share: Of the longest column; in shorter ones rounding shows.
        least_beside: Of a direction beside the basis, the second time; less is rounding.
    """
    new, triangle = _orthonormal(torch.addmm(columns, basis, basis.mT @ columns, alpha=-1))
    sizes = triangle.diagonal().abs()
    new = new[:, sizes > least_share * sizes.amax()]
    # Of short columns rounding within the basis is left, which a second time takes away.
    new, triangle = _orthonormal(torch.addmm(new, basis, basis.mT @ new, alpha=-1))
    return new[:, triangle.diagonal().abs() > least_beside]


def _orthonormal(columns: Tensor, passes: int = 3) -> tuple[Tensor, Tensor]:  # (N, r), (r, r)
    """The QR decomposition; on a GPU, which is slow at it, by Cholesky factors in float64."""
    if not columns.is_cuda:
        with _one_thread():
            return torch.linalg.qr(columns)
    basis = columns.double()
    triangle = torch.eye(basis.shape[1], dtype=basis.dtype, device=basis.device)
    for number in range(passes):
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


def _by_eigenvectors(
    rest: Tensor, tolerance: float, largest_stretch: float = 1e-3
) -> tuple[Tensor, Tensor, Tensor]:
    """Nuclear norm and polar factor of a wide matrix, and what the norm does not hold.

    Where rounding stretches the factor by more than `largest_stretch`, float64 forms it.
    """
    wide = rest.double()
    squares, vectors = torch.linalg.eigh(wide @ wide.mT)
    values = squares.clamp(min=0).sqrt()
    # Float32 holds nothing of what is smaller; without a bound that says so, it is left out.
    seen = values > ROUNDINGS * torch.finfo(rest.dtype).eps * values[-1]
    root = (vectors * torch.where(seen, 1 / values, 0.0)) @ vectors.mT
    core = root.to(rest.dtype) @ rest
    stretch = core.square().sum(dtype=wide.dtype) - seen.sum()
    if not bool(stretch.abs() <= largest_stretch):
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


def _plan(
    triangle: Tensor, rows: int, smaller: int, tolerance: float, finder: RangeFinder
) -> _Plan | None:
    r"""How many columns are needed, by those that were drawn; None for a matrix of nothing.

    What a column of the sketch has beside the columns before it is, on average, the residual at
    their rank; from one block to the next it falls by about the same factor, as it would for
    singular values $\sigma_j \propto q^j$.
    """
    (block, _), blocks = finder.sizes(smaller), finder.blocks
    columns = triangle.diagonal().double().abs().cpu() * math.sqrt(rows / ROWS_IN_A_SUM)
    whole = float(columns[:block].square().mean().sqrt())
    # Not their means: a few sums may have rows like no other, which are soon found.
    _, before, after = columns.unflatten(0, (blocks, block)).median(1).values.tolist()
    if not 0 < whole < math.inf:
        return None
    fall = min(max(after / max(before, 1e-30), 1e-6), 1 - 1e-6)
    ratio = fall ** (1 / block)
    norm = whole * math.sqrt(1 - ratio**2) / (1 - ratio)
    allowed = norm / (finder.margin * math.sqrt(smaller))
    large = (columns > min(tolerance, finder.fine_tolerance) * allowed).nonzero()
    rank = max(int(large.max()) + 1 if len(large) else 1, finder.smallest_rank)
    excess = after / (tolerance * allowed)
    if rank >= blocks * block and excess > 1:
        rank += math.ceil(finder.plan_share * math.log(excess) / -math.log(ratio))
    return _Plan(rank, excess, -math.log(ratio))
