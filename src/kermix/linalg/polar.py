"""The polar factor by matrix products alone, in the precision that a tolerance and a device allow.

An odd polynomial of a matrix acts on its singular values. Each step applies the cubic
$a x - b x^3$ that comes closest to 1 on the interval that still holds the singular values of
interest, which is known in closed form; a chain of such cubics is the best composite polynomial
for two products a step. Everything that decides the steps is a Python float, so nothing waits for
the device but, where it may, one look at the error bound.
"""

import functools
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kermix.checks import has_triton, is_traced

__all__ = [
    "FINEST_TF32_TOLERANCE",
    "Polar",
    "Products",
    "Reduction",
    "binary_unit",
    "can_sync",
    "full_products",
    "polar_factor",
    "probing_signs",
    "products_for",
    "square_bound",
]

FINEST_TF32_TOLERANCE = 1e-4
# Of the value with a mantissa of ten bits, beside what probes find of it, or without them.
ROUNDING_BESIDE_PROBES, ROUNDING_WITHOUT_PROBES = 1e-4, 2e-3
ROUNDING_MARGIN = 1.002
SMALLEST_BOUND = 1e-20  # of a Gram matrix of zeros; others have an entry near 1
# Rows and columns below which conversions take as long as they save; in a graph they are cheaper,
# and as a part of the products they are free.
HALVES_FROM, HALVES_IN_GRAPHS_FROM, FUSED_FROM = 1536, 768, 768
# Of PyTorch 2.8 and newer.
HAS_HALF_PRODUCTS = all(
    "dtype" in getattr(torch.ops.aten, name).overloads() for name in ("bmm", "baddbmm")
)
FUSED_UP_TO = 2**17  # columns: a Gram matrix divided by many more is below float16
# Above, the library's products save more than a pass over the memory takes.
LIBRARY_STEPS_FROM = 6144
FUSED_ON = (9, 10)  # generations of GPUs whose blocks have the memory that the tiles need
ENLARGED = 256.0  # what entries of at most 2 are multiplied by, to have more digits in float16


def products_for(matrix: Tensor, tolerance: float, shared: bool) -> "Products":
    """The fastest products of matrices (B, M, N) whose rounding is within the tolerance.

    Args:
        matrix: The matrices.
        tolerance: Relative error of the nuclear norm.
        shared: Whether their columns lie in several processes.
    """
    if matrix.device.type != "cuda" or matrix.dtype != torch.float32:
        return Products()
    if tolerance < FINEST_TF32_TOLERANCE:
        return _SinglePrecision()
    smaller = 0 if shared or is_traced(matrix) else min(matrix.shape[-2:])
    if smaller >= FUSED_FROM and matrix.shape[-1] <= FUSED_UP_TO and _can_fuse(matrix.device):
        return _Fused(matrix)
    least = HALVES_IN_GRAPHS_FROM if torch.cuda.is_current_stream_capturing() else HALVES_FROM
    if smaller >= least and HAS_HALF_PRODUCTS:
        return _HalfPrecision(matrix.shape[-1])
    return _SinglePrecision(tf32=True, shared=shared)


def _can_fuse(device: torch.device) -> bool:
    generation = torch.cuda.get_device_capability(device)[0]
    return torch.version.hip is None and generation in FUSED_ON and has_triton()


def full_products(matrix: Tensor) -> AbstractContextManager[None]:
    """A context in which products on a GPU have all digits of float32, whatever is set."""
    return _SinglePrecision().precision() if matrix.is_cuda else nullcontext()


def square_bound(gram: Tensor) -> Tensor:  # (B, M, M) -> (B, 1, 1)
    """A bound of the largest eigenvalue, rounding included: the smaller one of two norms."""
    wide = torch.promote_types(gram.dtype, torch.float32)
    frobenius = torch.linalg.vector_norm(gram, dim=(-2, -1), keepdim=True, dtype=wide)
    rows = torch.linalg.vector_norm(gram, 1, dim=-1, keepdim=True, dtype=wide)
    bound = torch.minimum(frobenius, rows.amax(-2, keepdim=True)) * ROUNDING_MARGIN
    return bound.clamp(min=SMALLEST_BOUND)


def probing_signs(count: int, probes: int, like: Tensor) -> Tensor:  # (count, probes)
    """Signs without a pattern, the same each time: a graph may not ask a generator for them."""
    mixed = torch.arange(1, count * probes + 1, device=like.device)
    for factor in (-7046029254386353131, -4658895280553007687, -7723592293110705685):
        mixed = mixed * factor
        mixed = mixed ^ (mixed >> 31)
    return ((mixed & 1) * 2 - 1).to(like.dtype).view(count, probes)


class Products:
    """Products in the precision of the matrix."""

    gram_scale = 1.0  # Gram matrices are those of the matrix times this
    rounding = 0.0  # of the value, relative, beyond that of its dtype
    is_short = False  # whether the mantissa is shorter than that of the dtype
    can_skip = False  # steps of matrices that are said to be done

    def precision(self) -> AbstractContextManager[None]:
        """Set what products need while they are formed."""
        return nullcontext()

    def first(self, matrix: Tensor, gram: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix divided by a bound of its largest singular value, its Gram matrix, the bound.

        Args:
            matrix: Matrices (B, M, N) whose largest entries are between 1 and 2, or zero.
            gram: Their Gram matrices (B, M, M), where the matrices are parts of larger ones.
        """
        gram = torch.bmm(matrix, matrix.mT) if gram is None else gram
        square = square_bound(gram)
        root = square.sqrt()
        return matrix / root, gram / (square / self.gram_scale), root[..., 0, 0]

    def gram(self, x: Tensor) -> Tensor:  # (B, M, N) -> (B, M, M)
        """The product with the transpose."""
        return torch.bmm(x, x.mT)

    def step(self, x: Tensor, gram: Tensor, a: float, b: float) -> Tensor:  # (B, M, N)
        """The cubic `a x - b x x' x`."""
        return torch.baddbmm(x, gram, x, beta=a, alpha=-b)

    def skip(self, done: Tensor) -> None:  # (B,)
        """From now on leave matrices that are done as they are; only where `can_skip`."""
        raise NotImplementedError


class _SinglePrecision(Products):
    """Products of float32 on a GPU: exact to float32, or with the mantissa of TF32."""

    def __init__(self, tf32: bool = False, shared: bool = False) -> None:
        self._tf32 = self.is_short = tf32
        if tf32:
            self.rounding = ROUNDING_WITHOUT_PROBES if shared else ROUNDING_BESIDE_PROBES

    @contextmanager
    def precision(self) -> Iterator[None]:
        """TF32 or not, whatever the program has set."""
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self._tf32
        try:
            yield
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before


class _HalfPrecision(_SinglePrecision):
    """Float16 in and float32 out: the mantissa of TF32 at twice its rate.

    Entries of a matrix whose norm is about 1 are small: multiplied by about the root of its
    size they use the range of float16, and cannot leave it.
    """

    def __init__(self, columns: int) -> None:
        super().__init__(tf32=True)
        self._scale = 2.0 ** round(math.log2(columns) / 2)
        self.gram_scale = self._scale**2
        self._half: Tensor | None = None  # of the matrix whose Gram matrix was formed last

    def gram(self, x: Tensor) -> Tensor:  # (B, M, N) -> (B, M, M)
        """The product with the transpose."""
        self._half = _halved(x, self._scale)
        return torch.bmm(self._half, self._half.mT, out_dtype=torch.float32)

    def step(self, x: Tensor, gram: Tensor, a: float, b: float) -> Tensor:  # (B, M, N)
        """The cubic `a x - b x x' x`, in place of the matrix."""
        half = _halved(x, self._scale) if self._half is None else self._half
        self._half = None
        return torch.baddbmm(
            x,
            _halved(gram, 1 / self._scale),
            half,
            out_dtype=torch.float32,
            beta=a,
            alpha=-b / self._scale**2,
            out=x,
        )


def _halved(x: Tensor, factor: float) -> Tensor:
    return torch.mul(x, factor, out=torch.empty_like(x, dtype=torch.float16))


class _Fused(Products):
    """The same by kernels of our own, which also round what the next product takes.

    Of a Gram matrix one half is formed. Halves lie in memory whose sides are whole tiles, filled
    up with zeros.
    """

    is_short = True
    rounding = ROUNDING_BESIDE_PROBES

    def __init__(self, matrix: Tensor) -> None:
        from kermix.linalg import polar_triton

        self._kernels = polar_triton
        batch, self._m, self._n = matrix.shape
        rows, columns = (polar_triton.whole_tiles(side) for side in (self._m, self._n))
        self._by_library = min(self._m, self._n) >= LIBRARY_STEPS_FROM and HAS_HALF_PRODUCTS
        self.can_skip = not self._by_library
        self._half = matrix.new_zeros(batch, rows, columns, dtype=torch.float16)
        self._next = torch.zeros_like(self._half) if self.can_skip else self._half
        self._gram = matrix.new_empty(batch, rows, rows, dtype=torch.float16)
        self._done = matrix.new_zeros(batch, dtype=torch.int32)
        self.gram_scale = 2.0 ** round(math.log2(self._n) / 2)

    def first(self, matrix: Tensor, gram: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix divided by a bound of its largest singular value, its Gram matrix, the bound.

        Args:
            matrix: Matrices (B, M, N) whose largest entries are between 1 and 2, or zero.
            gram: Not here.
        """
        matrix = matrix.contiguous()
        self._kernels.halve(matrix, self._half, ENLARGED)
        shrunk = (ENLARGED * self.gram_scale) ** 2
        gram = self._formed_gram(1 / shrunk)
        square = square_bound(gram)
        gram.mul_(self.gram_scale / square)
        root = (square * self.gram_scale**2).sqrt()
        x = matrix / root
        self._kernels.halve(x, self._half, self.gram_scale)
        return x, gram, root[..., 0, 0]

    def gram(self, x: Tensor) -> Tensor:  # (B, M, N) -> (B, M, M)
        """The product with the transpose, of the halves that the step before has left."""
        return self._formed_gram(1 / self.gram_scale)

    def step(self, x: Tensor, gram: Tensor, a: float, b: float) -> Tensor:  # (B, M, N)
        """The cubic `a x - b x x' x`, in place of the matrix."""
        scale = self.gram_scale
        if self._by_library:
            half = self._half[:, : self._m, : self._n]
            x = torch.baddbmm(
                x, gram, half, out_dtype=torch.float32, beta=a, alpha=-b / scale**2, out=x
            )
            self._kernels.halve(x, self._half, scale)
            return x
        self._kernels.cubic_step(
            self._gram, self._half, x, self._next, self._done, a, b / scale**2, scale
        )
        self._half, self._next = self._next, self._half
        return x

    def skip(self, done: Tensor) -> None:  # (B,)
        """From now on leave matrices that are done as they are."""
        self._done.copy_(done)

    def _formed_gram(self, factor: float) -> Tensor:
        self._kernels.gram(self._half, self._gram, self._done, factor)
        return self._gram[:, : self._m, : self._m]


# The interval's lower end is not followed below this share of its upper end: a cubic that sends
# large singular values close to zero would drown them in the rounding of the product, which turns
# their vectors. Nothing tells that later.
CUSHION = 0.1
ROUNDINGS_OF_THE_VALUE = 6.0
PROBES = 16  # vectors that tell the rounding of short products, but for a share of it
SHARE_OF_MISSING = 0.25
LARGEST_CORRECTION = 1e-3  # of the factor; what is more comes from what is not resolved
# Of the tolerance, times the largest: singular values that are resolved before the first look at
# the bound. What it takes grows with the number of those that are not, by about as much. A look
# that comes too early costs four steps, a step more before it costs one.
SHARE_OF_A_START, SMALLEST_SHARE, SHARE_IN_A_GRAPH = 8.0, 0.005, 0.08
SHARE_OF_SPREAD = 1 / 16  # of the tolerance: how far from one what is resolved may be
MOST_STEPS, GRAIN = 40, 0.01  # of chains that are planned; of logarithms


class Reduction(Protocol):
    """Sums and maxima over the processes that hold the columns of one matrix."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum over processes."""

    def max(self, tensor: Tensor) -> Tensor:
        """The largest over processes, element by element."""


@dataclass(frozen=True)
class Polar:
    """An approximate polar factor `Q` of norm at most 1, and what is lost by it."""

    factor: Tensor  # (*B, M, N)
    value: Tensor  # (*B,)  <Q, P>, but for rounding a lower bound of the nuclear norm
    error_bound: Tensor  # (*B,)  the nuclear norm is within this of the value, rounding included

    def times(self, unit: Tensor) -> "Polar":  # (*B,)
        """That of the matrix times a positive number: the factor is the same."""
        tiny = torch.finfo(self.value.dtype).tiny
        value = self.value * unit
        # What is subnormal loses digits, and where it is flushed to zero all of them.
        bound = (self.error_bound * unit).clamp(min=tiny)
        bound = torch.where(value < tiny, bound + tiny, bound)
        return Polar(self.factor, value, torch.where(self.value == 0, 0.0, bound))


@dataclass
class _Interval:
    """Bounds on the polynomial reached so far, as a function of the scaled singular value.

    Singular values from `resolved` to 1 lie in [low, high]; smaller ones are multiplied by at
    least `low / resolved`.
    """

    resolved: float
    low: float
    high: float = 1.0

    def step(self) -> tuple[float, float]:
        """The best cubic's coefficients; the interval becomes its image."""
        low, high = max(self.low, CUSHION * self.high), self.high
        square = (low * low + low * high + high * high) / 3
        peak = square**1.5
        b = 2 / (2 * peak + low * (3 * square - low * low))
        a = 3 * b * square
        ends = (a * x - b * x**3 for x in (self.low, self.high))
        self.low, self.high = min(ends), 2 * b * peak
        return a, b

    def extend(self, resolved: float) -> None:
        """Follow smaller singular values."""
        self.low *= resolved / self.resolved
        self.resolved = resolved

    @property
    def spread(self) -> float:
        return 1 - self.low / self.high


def polar_factor(
    matrix: Tensor,  # (*B, M, N)
    tolerance: float,
    over: Reduction | None = None,
) -> Polar:
    """The polar factor, to a relative error of the nuclear norm within `tolerance`.

    First only singular values above a share of `tolerance` times the largest are resolved. If the
    bound on what the others hold is not within the tolerance, the chain goes on for smaller ones.
    Where values cannot be read (under the compiler, a transform, or while a CUDA graph is
    captured) the chain is long enough for any matrix; matrices that are done leave it early where
    the products are kernels of our own.

    Args:
        matrix: Any real matrices.
        tolerance: Relative error of the nuclear norm.
        over: Where the columns of one matrix lie in several processes, how sums go over them: the
            factor's columns are then those of this process, and nothing larger than M x M is sent.
    """
    if over is None and matrix.shape[-2] > matrix.shape[-1]:
        polar = polar_factor(matrix.mT, tolerance)
        return Polar(polar.factor.mT, polar.value, polar.error_bound)
    count = math.prod(matrix.shape[:-2])  # a process may have no columns, which tell nothing
    flat = matrix.reshape(count, *matrix.shape[-2:])
    products = products_for(flat, tolerance, over is not None)
    with products.precision():
        unit = binary_unit(flat, over)
        flat = flat / unit
        x, (value, bound, high) = _chain(flat, tolerance, products, over)
    rounding = (ROUNDINGS_OF_THE_VALUE * torch.finfo(matrix.dtype).eps + products.rounding) * value
    if products.is_short and over is None:
        missing, error = _missing(x, flat, high)
        known = missing.clamp(-LARGEST_CORRECTION, LARGEST_CORRECTION)
        known = torch.where(missing.abs() > 2 * error, known, 0.0)
        value, high = value / (1 - known), high * (1 - known)
        missing = (missing - known).abs() + SHARE_OF_MISSING * known.abs() + 4 * error
        rounding = rounding + missing * value
    bound = bound.clamp(min=0) + rounding
    shape = matrix.shape[:-2]
    factor = (x / high[:, None, None]).reshape(matrix.shape)
    found = Polar(factor, value.reshape(shape), bound.reshape(shape))
    return found.times(unit.reshape(shape))


class _Look(NamedTuple):
    """Value, bound and scale of each matrix after some steps, but for rounding."""

    value: Tensor
    bound: Tensor
    high: Tensor  # what the factor is to be divided by


def _chain(
    matrix: Tensor,  # (B, M, N)
    tolerance: float,
    products: Products,
    over: Reduction | None,
) -> tuple[Tensor, _Look]:  # (B, M, N)
    """Steps until the bound is within the tolerance, or nothing smaller can be resolved."""
    parts = None if over is None else over.sum(torch.bmm(matrix, matrix.mT))
    x, gram, root = products.first(matrix, parts)
    readable = can_sync(matrix)
    if readable:
        share = _share_of_a_start(gram, products.gram_scale)
    else:
        share = SHARE_IN_A_GRAPH if products.can_skip else 0.0
    finest = max(tolerance / (2 * _rows(matrix)), torch.finfo(matrix.dtype).eps)
    resolved = max(_reached(share * tolerance, tolerance) if share else 0.0, finest)
    interval = _Interval(resolved, low=resolved)
    settled: tuple[_Look, Tensor] | None = None  # the first look, and what is done, unread
    while True:
        low, high = interval.low, interval.high
        a, b = interval.step()
        x = products.step(x, gram, a, b)
        if interval.spread <= SHARE_OF_SPREAD * tolerance:
            value = _total((x * matrix).sum((-2, -1)), over) / interval.high
            bound = value * interval.spread / (1 - interval.spread)
            left = _unresolved(gram, high * high * products.gram_scale)
            bound = bound + root * interval.resolved * high / low * left
            look = _Look(value, bound, torch.full_like(value, interval.high))
            if interval.resolved <= finest:
                break
            excess = (bound / (tolerance * value)).nan_to_num(0)
            if readable:
                largest = float(excess.max())
                if largest <= 1:
                    break
                # The bound is proportional to the smallest singular value that is resolved.
                interval.extend(max(interval.resolved / max(2 * largest, 4.0), finest))
            else:
                settled = look, excess <= 1
                products.skip(settled[1])
                interval.extend(finest)
        gram = _total(products.gram(x), over)
    if settled is not None:
        first, done = settled
        look = _Look(*(torch.where(done, *pair) for pair in zip(first, look, strict=True)))
    return x, look


def _reached(wanted: float, tolerance: float) -> float:
    """The smallest singular value that as many steps resolve as the wanted one needs."""
    return next((least for least in _least_of_steps(tolerance) if least <= wanted), wanted)


@functools.cache
def _least_of_steps(tolerance: float) -> tuple[float, ...]:
    """The smallest singular value that 1, 2, ... steps resolve."""
    found = []
    for steps in range(1, MOST_STEPS + 1):
        low, high = math.log(torch.finfo(torch.float64).eps), 0.0
        while high - low > GRAIN:
            middle = (low + high) / 2
            interval = _Interval(math.exp(middle), math.exp(middle))
            for _ in range(steps):
                interval.step()
            within = interval.spread <= SHARE_OF_SPREAD * tolerance
            low, high = (low, middle) if within else (middle, high)
        found.append(math.exp(high))
    return tuple(found)


def _rows(matrix: Tensor) -> int:
    """How many, and for the compiler a bound of it: no coefficient may depend on a symbol."""
    if not torch.compiler.is_compiling():
        return matrix.shape[-2]
    bound = 1
    while bound < matrix.shape[-2]:
        bound *= 2
    return bound


def can_sync(matrix: Tensor) -> bool:
    """Whether a value may be read now, at the price of waiting for the device once."""
    capturing = matrix.is_cuda and torch.cuda.is_current_stream_capturing()
    return not (capturing or is_traced(matrix))


def _total(tensor: Tensor, over: Reduction | None) -> Tensor:
    return tensor if over is None else over.sum(tensor)


def binary_unit(matrix: Tensor, over: Reduction | None = None) -> Tensor:  # (*B, 1, 1)
    """A power of two within a factor of two of the largest entry, and 1 if all are zero.

    A matrix divided by it is the same matrix, digit by digit, and its squares neither overflow
    nor vanish.
    """
    if matrix.shape[-1]:
        largest = torch.linalg.vector_norm(matrix, math.inf, dim=(-2, -1), keepdim=True)
    else:  # a process without columns
        largest = matrix.new_zeros(*matrix.shape[:-2], 1, 1)
    largest = largest if over is None else over.max(largest)
    finfo = torch.finfo(matrix.dtype)
    # Neither the unit nor what it is multiplied by to be 1 may leave the range of normal numbers.
    inside = torch.where(largest > 0, largest.clamp(finfo.tiny, finfo.max / 4), 1.0)
    return inside / (2 * torch.frexp(inside).mantissa)


def _share_of_a_start(gram: Tensor, scale: float) -> float:  # (B, M, M)
    """How small a share of the tolerance to resolve before the first look at the bound.

    The bound is about that share, times the number of rows over the nuclear norm of the scaled
    matrix, which the sums of squares and of fourth powers bound from below.
    """
    squares, fourths = _moments(gram, scale)
    norm = squares.pow(1.5) / fourths.sqrt()
    least = float((SHARE_OF_A_START / gram.shape[-1] * norm).nan_to_num(1.0).min())
    return min(max(least, SMALLEST_SHARE), 1.0)


def _missing(x: Tensor, matrix: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:  # (B,), (B,)
    r"""The share of the nuclear norm that a factor `x / high` misses by rounding, and its error.

    Where entries repeat, as of an identity, so does their rounding: it does not average out.
    To first order what is missed is half of $\langle P, Q (I - Q^\top Q) \rangle$, which
    full products with a few vectors estimate; negative where singular values are above 1. As a
    share of what they find of the value, it is exact where all singular values are off alike.
    """
    with full_products(matrix):
        signs = probing_signs(matrix.shape[-1], PROBES, matrix)
        scale = high[:, None, None]
        ours, theirs = x @ signs / scale, matrix @ signs  # (B, M, PROBES)
        missed = x @ (signs - x.mT @ ours / scale) / scale
    missed, found = (missed * theirs).sum(-2) / 2, (ours * theirs).sum(-2)  # (B, PROBES)
    whole = found.sum(-1)
    share = missed.sum(-1) / whole
    scatter = torch.linalg.vector_norm(missed - share[:, None] * found, dim=-1) / whole.abs()
    return share.nan_to_num(0), scatter.nan_to_num(0)


def _moments(gram: Tensor, scale: float) -> tuple[Tensor, Tensor]:  # (B, M, M) -> (B,), (B,)
    """Sums of squares and of fourth powers of singular values, from `scale` times their Gram."""
    wide = torch.promote_types(gram.dtype, torch.float32)
    squares = gram.diagonal(dim1=-2, dim2=-1).sum(-1, dtype=wide) / scale
    fourths = torch.linalg.vector_norm(gram, dim=(-2, -1), dtype=wide).square() / scale**2
    return squares, fourths


def _unresolved(gram: Tensor, scale: float) -> Tensor:  # (B, M, M) -> (B,)
    r"""A bound of $\sum_i q_i (1 - q_i)$, for singular values `q`, from `scale` times their Gram.

    With the sums of squares and of fourth powers, by the inequality of Cauchy and Schwarz.
    """
    squares, fourths = _moments(gram, scale)
    missing = (gram.shape[-1] - squares).clamp(min=0)
    return (missing * (squares - fourths).clamp(min=0)).sqrt()
