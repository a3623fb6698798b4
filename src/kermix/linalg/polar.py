r"""The polar factor by matrix products alone.

An odd polynomial of a matrix acts on its singular values. Each step applies the cubic
$a x - b x^3$ that comes closest to 1 on the interval that still holds the singular values of
interest, which is known in closed form; a chain of such cubics is the best composite polynomial
for two products a step. Everything that decides the steps is a Python float, so nothing waits for
the device but, where it may, one look at the error bound.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from kermix.checks import is_traced

__all__ = ["Polar", "Reduction", "polar_factor"]

# The interval's lower end is not followed below this share of its upper end: a cubic that sends
# large singular values close to zero would drown them in the rounding of the product.
CUSHION = 0.02
ROUNDING_MARGIN = 1.002
ROUNDINGS_OF_THE_VALUE = 6.0
FINEST_TF32_TOLERANCE = 1e-4


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
    readable = _may_wait_for(matrix)
    resolved = max(tolerance, finest) if readable else finest
    interval = _Interval(resolved, low=resolved)
    with _matrix_products(matrix, tolerance):
        x, gram, unit = _scaled(matrix.reshape(-1, *matrix.shape[-2:]), over)
        while True:
            low, high = interval.low, interval.high
            a, b = interval.step()
            x = torch.baddbmm(x, gram, x, beta=a, alpha=-b)
            if interval.spread <= tolerance / 4:
                value = _total((x * matrix.reshape(x.shape)).sum((-2, -1)), over) / interval.high
                bound = value * interval.spread / (1 - interval.spread)
                bound = bound + unit * interval.resolved * high / low * _unresolved(gram, high)
                if interval.resolved <= finest:
                    break
                excess = float((bound / (tolerance * value)).nan_to_num(0).max())
                if excess <= 1:
                    break
                # The bound is proportional to the smallest singular value that is resolved.
                interval.extend(min(max(2 * excess, 4.0), interval.resolved / finest))
            gram = _total(torch.bmm(x, x.mT), over)
    finfo = torch.finfo(matrix.dtype)
    rounding = ROUNDINGS_OF_THE_VALUE * finfo.eps * value.abs() + finfo.tiny * (value != 0)
    bound = bound.clamp(min=0) + rounding
    shape = matrix.shape[:-2]
    factor = (x / interval.high).reshape(matrix.shape)
    return Polar(factor, value.reshape(shape), bound.reshape(shape))


def _may_wait_for(matrix: Tensor) -> bool:
    """Whether a value may be read now, at the price of waiting for the device once."""
    capturing = matrix.is_cuda and torch.cuda.is_current_stream_capturing()
    return not (capturing or is_traced(matrix))


def _total(tensor: Tensor, over: Reduction | None) -> Tensor:
    return tensor if over is None else over.sum(tensor)


def _scaled(
    matrix: Tensor, over: Reduction | None
) -> tuple[Tensor, Tensor, Tensor]:  # (B, M, N), (B, M, M), (B,)
    """The matrix divided by a bound of its largest singular value, its Gram matrix, the bound.

    The bound is the root of the Gram matrix's Frobenius or row-sum norm, whichever is smaller.
    """
    least = torch.finfo(matrix.dtype).tiny
    if matrix.shape[-1]:
        largest = matrix.abs().amax((-2, -1), keepdim=True).clamp(min=least)
    else:  # a process without columns
        largest = matrix.new_full((len(matrix), 1, 1), least)
    largest = largest if over is None else over.max(largest)
    x = matrix / largest
    gram = _total(torch.bmm(x, x.mT), over)
    frobenius = gram.square().sum((-2, -1), keepdim=True).sqrt()
    square = torch.minimum(frobenius, gram.abs().sum(-1, keepdim=True).amax(-2, keepdim=True))
    square = (square * ROUNDING_MARGIN).clamp(min=torch.finfo(matrix.dtype).tiny)
    root = square.sqrt()
    return x / root, gram / square, (largest * root)[..., 0, 0]


def _unresolved(gram: Tensor, high: float) -> Tensor:  # (B, M, M) -> (B,)
    r"""A bound of $\sum_i q_i (1 - q_i)$, for singular values `q` divided by `high`.

    With the sums of squares and of fourth powers, by the inequality of Cauchy and Schwarz.
    """
    squares = gram.diagonal(dim1=-2, dim2=-1).sum(-1) / high**2
    fourths = gram.square().sum((-2, -1)) / high**4
    missing = (gram.shape[-1] - squares).clamp(min=0)
    return (missing * (squares - fourths).clamp(min=0)).sqrt()


@contextlib.contextmanager
def _matrix_products(matrix: Tensor, tolerance: float) -> Iterator[None]:
    """TF32 products on a GPU if the tolerance allows for their rounding, else full float32."""
    if matrix.device.type != "cuda" or matrix.dtype != torch.float32:
        yield
        return
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tolerance >= FINEST_TF32_TOLERANCE
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
