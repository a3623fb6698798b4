r"""The polar factor by matrix products alone.

An odd polynomial of a matrix acts on its singular values. Each step applies the cubic
$a x - b x^3$ that comes closest to 1 on the interval that still holds the singular values of
interest, which is known in closed form; a chain of such cubics is the best composite polynomial
for two products a step. Everything that decides the steps is a Python float, so nothing waits for
the device but, where it may, one look at the error bound.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from kermix.checks import is_traced
from kermix.linalg.polar_products import Products, full_products, probing_signs, products_for

__all__ = ["Polar", "Reduction", "binary_unit", "may_wait_for", "polar_factor"]

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
    """What is known of each matrix after some steps, but for rounding."""

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
    readable = may_wait_for(matrix)
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


def may_wait_for(matrix: Tensor) -> bool:
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
