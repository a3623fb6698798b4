r"""The polar factor by matrix products alone.

An odd polynomial of a matrix acts on its singular values. Each step applies the cubic
$a x - b x^3$ that comes closest to 1 on the interval that still holds the singular values of
interest, which is known in closed form; a chain of such cubics is the best composite polynomial
for two products a step. Everything that decides the steps is a Python float, so nothing waits for
the device but, where it may, one look at the error bound.
"""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kermix.checks import is_traced

__all__ = ["FINEST_TF32_TOLERANCE", "Polar", "Reduction", "binary_unit", "full_products",
           "may_wait_for", "polar_factor"]  # fmt: skip

# The interval's lower end is not followed below this share of its upper end: a cubic that sends
# large singular values close to zero would drown them in the rounding of the product.
CUSHION = 0.02
ROUNDING_MARGIN = 1.002
ROUNDINGS_OF_THE_VALUE = 6.0
FINEST_TF32_TOLERANCE = 1e-4
# Of the value with a mantissa of ten bits: the largest of 500 random spectra was 0.9e-4.
ROUNDING_OF_SHORT_PRODUCTS = 1e-4
# Rows and columns below which conversions take as long as they save; in a graph they are cheaper.
HALVES_FROM, HALVES_IN_GRAPHS_FROM = 1536, 768
# Of PyTorch 2.8 and newer.
HAS_HALF_PRODUCTS = all(
    "dtype" in getattr(torch.ops.aten, name).overloads() for name in ("bmm", "baddbmm")
)


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

    def extend(self, factor: float) -> None:
        """Follow singular values that are smaller by a factor."""
        self.resolved /= factor
        self.low /= factor

    @property
    def spread(self) -> float:
        return 1 - self.low / self.high


def polar_factor(
    matrix: Tensor,  # (*B, M, N)
    tolerance: float,
    over: Reduction | None = None,
) -> Polar:
    """The polar factor, to a relative error of the nuclear norm within `tolerance`.

    First only singular values above `tolerance` times the largest are resolved. If the bound on
    what the others hold is not within the tolerance, the chain goes on for smaller ones. Where
    values cannot be read (under the compiler, a transform, or while a CUDA graph is captured) the
    chain is long enough for any matrix.

    Args:
        matrix: Any real matrices.
        tolerance: Relative error of the nuclear norm.
        over: Where the columns of one matrix lie in several processes, how sums go over them: the
            factor's columns are then those of this process, and nothing larger than M x M is sent.
    """
    if over is None and matrix.shape[-2] > matrix.shape[-1]:
        polar = polar_factor(matrix.mT, tolerance)
        return Polar(polar.factor.mT, polar.value, polar.error_bound)
    finest = max(tolerance / (2 * matrix.shape[-2]), torch.finfo(matrix.dtype).eps)
    readable = may_wait_for(matrix)
    resolved = max(tolerance, finest) if readable else finest
    interval = _Interval(resolved, low=resolved)
    products = _products_for(matrix, tolerance, over)
    with products.precision():
        flat = matrix.reshape(-1, *matrix.shape[-2:])
        unit = binary_unit(flat, over)
        flat = flat / unit
        x, gram, root = _scaled(flat, over)
        gram = gram if products.scale == 1 else gram * products.scale**2
        while True:
            low, high = interval.low, interval.high
            a, b = interval.step()
            x = products.step(x, gram, a, b)
            if interval.spread <= tolerance / 4:
                value = _total((x * flat).sum((-2, -1)), over) / interval.high
                bound = value * interval.spread / (1 - interval.spread)
                bound = bound + root * interval.resolved * high / low * _unresolved(
                    gram, high * products.scale
                )
                if interval.resolved <= finest:
                    break
                excess = float((bound / (tolerance * value)).nan_to_num(0).max())
                if excess <= 1:
                    break
                # The bound is proportional to the smallest singular value that is resolved.
                interval.extend(min(max(2 * excess, 4.0), interval.resolved / finest))
            gram = _total(products.gram(x), over)
    relative = ROUNDINGS_OF_THE_VALUE * torch.finfo(matrix.dtype).eps + products.rounding
    bound = bound.clamp(min=0) + relative * value.abs()
    shape = matrix.shape[:-2]
    factor = (x / interval.high).reshape(matrix.shape)
    found = Polar(factor, value.reshape(shape), bound.reshape(shape))
    return found.times(unit.reshape(shape))


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
        largest = matrix.abs().amax((-2, -1), keepdim=True)
    else:  # a process without columns
        largest = matrix.new_zeros(*matrix.shape[:-2], 1, 1)
    largest = largest if over is None else over.max(largest)
    finfo = torch.finfo(matrix.dtype)
    # Neither the unit nor what it is multiplied by to be 1 may leave the range of normal numbers.
    inside = torch.where(largest > 0, largest.clamp(finfo.tiny, finfo.max / 4), 1.0)
    return inside / (2 * torch.frexp(inside).mantissa)


def _scaled(
    matrix: Tensor, over: Reduction | None
) -> tuple[Tensor, Tensor, Tensor]:  # (B, M, N), (B, M, M), (B,)
    """The matrix divided by a bound of its largest singular value, its Gram matrix, the bound.

    The bound is the root of the Gram matrix's Frobenius or row-sum norm, whichever is smaller.
    """
    gram = _total(torch.bmm(matrix, matrix.mT), over)
    frobenius = gram.square().sum((-2, -1), keepdim=True).sqrt()
    square = torch.minimum(frobenius, gram.abs().sum(-1, keepdim=True).amax(-2, keepdim=True))
    square = (square * ROUNDING_MARGIN).clamp(min=torch.finfo(matrix.dtype).tiny)
    root = square.sqrt()
    return matrix / root, gram / square, root[..., 0, 0]


def _unresolved(gram: Tensor, high: float) -> Tensor:  # (B, M, M) -> (B,)
    r"""A bound of $\sum_i q_i (1 - q_i)$, for singular values `q` divided by `high`.

    With the sums of squares and of fourth powers, by the inequality of Cauchy and Schwarz.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1).sum(-1) / high**2
    fourths = gram.square().sum((-2, -1)) / high**4
    missing = (gram.shape[-1] - squares).clamp(min=0)
    return (missing * (squares - fourths).clamp(min=0)).sqrt()


def _products_for(matrix: Tensor, tolerance: float, over: Reduction | None) -> "_Products":
    if matrix.device.type != "cuda" or matrix.dtype != torch.float32:
        return _Products()
    if tolerance < FINEST_TF32_TOLERANCE:
        return _SinglePrecision()
    halves = HAS_HALF_PRODUCTS and over is None and not is_traced(matrix)
    least = HALVES_IN_GRAPHS_FROM if torch.cuda.is_current_stream_capturing() else HALVES_FROM
    if halves and min(matrix.shape[-2:]) >= least:
        return _HalfPrecision(matrix.shape[-1])
    return _SinglePrecision(tf32=True)


def full_products(matrix: Tensor) -> AbstractContextManager[None]:
    """A context in which products on a GPU have all digits of float32, whatever is set."""
    return _SinglePrecision().precision() if matrix.is_cuda else nullcontext()


class _Products:
    """Products in the precision of the matrix."""

    scale = 1.0  # Gram matrices are those of the matrix times this
    rounding = 0.0  # of the value, relative, beyond that of its dtype

    def precision(self) -> AbstractContextManager[None]:
        """What is to be set while products are formed."""
        return nullcontext()

    def gram(self, x: Tensor) -> Tensor:  # (B, M, N) -> (B, M, M)
        """The product with the transpose."""
        return torch.bmm(x, x.mT)

    def step(self, x: Tensor, gram: Tensor, a: float, b: float) -> Tensor:  # (B, M, N)
        """The cubic `a x - b x x' x`."""
        return torch.baddbmm(x, gram, x, beta=a, alpha=-b)


class _SinglePrecision(_Products):
    """Products of float32 on a GPU: exact to float32, or with the mantissa of TF32."""

    def __init__(self, tf32: bool = False) -> None:
        self._tf32 = tf32
        self.rounding = ROUNDING_OF_SHORT_PRODUCTS if tf32 else 0.0

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
        self.scale = 2.0 ** round(math.log2(columns) / 2)
        self._half: Tensor | None = None  # of the matrix whose Gram matrix was formed last

    def gram(self, x: Tensor) -> Tensor:  # (B, M, N) -> (B, M, M)
        """The product with the transpose."""
        self._half = _halved(x, self.scale)
        return torch.bmm(self._half, self._half.mT, out_dtype=torch.float32)

    def step(self, x: Tensor, gram: Tensor, a: float, b: float) -> Tensor:  # (B, M, N)
        """The cubic `a x - b x x' x`, in place of the matrix."""
        half = _halved(x, self.scale) if self._half is None else self._half
        self._half = None
        return torch.baddbmm(
            x,
            _halved(gram, 1 / self.scale),
            half,
            out_dtype=torch.float32,
            beta=a,
            alpha=-b / self.scale**2,
            out=x,
        )


def _halved(x: Tensor, factor: float) -> Tensor:
    return torch.mul(x, factor, out=torch.empty_like(x, dtype=torch.float16))
