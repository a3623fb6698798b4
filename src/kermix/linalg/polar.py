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
# Of PyTorch 2.8 and newer.
HAS_HALF_PRODUCTS = all(
    "dtype" in getattr(torch.ops.aten, name).overloads() for name in ("bmm", "baddbmm")
)


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
    for kind in (_Fused, _HalfPrecision):
        if kind.pays(matrix, smaller):
            return kind(matrix)
    return _SinglePrecision(tf32=True, shared=shared)


def full_products(matrix: Tensor) -> AbstractContextManager[None]:
    """A context in which products on a GPU have all digits of float32, whatever is set."""
    return _SinglePrecision().precision() if matrix.is_cuda else nullcontext()


def square_bound(
    gram: Tensor,  # (B, M, M)
    margin: float = 1.002,
    smallest: float = 1e-20,
) -> Tensor:  # (B, 1, 1)
    """A bound of the largest eigenvalue: the smaller one of two norms.

    Args:
        gram: Gram matrices.
        margin: For rounding.
        smallest: The bound of a matrix of zeros; others have an entry near 1.
    """
    wide = torch.promote_types(gram.dtype, torch.float32)
    frobenius = torch.linalg.vector_norm(gram, dim=(-2, -1), keepdim=True, dtype=wide)
    rows = torch.linalg.vector_norm(gram, 1, dim=-1, keepdim=True, dtype=wide)
    bound = torch.minimum(frobenius, rows.amax(-2, keepdim=True)) * margin
    return bound.clamp(min=smallest)


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
    can_skip = False  # steps of matrices that need none

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

    def skip(self, idle: Tensor) -> None:  # (B,), bool
        """From now on leave these matrices, and no others, as they are; only where `can_skip`."""
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

    # Conventions: sides below which conversions took as long as they saved on an H200; in a graph
    # they are cheaper.
    least, least_in_graphs = 1536, 768

    def __init__(self, matrix: Tensor) -> None:
        super().__init__(tf32=True)
        self._scale = 2.0 ** round(math.log2(matrix.shape[-1]) / 2)
        self.gram_scale = self._scale**2
        self._half: Tensor | None = None  # of the matrix whose Gram matrix was formed last

    @classmethod
    def pays(cls, matrix: Tensor, smaller: int) -> bool:
        """Whether they are the fastest for a matrix on a GPU with such a smaller side."""
        capturing = torch.cuda.is_current_stream_capturing()
        return HAS_HALF_PRODUCTS and smaller >= (cls.least_in_graphs if capturing else cls.least)

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
    # Conventions: from this side on they were the fastest on an H200, and the library's steps,
    # whose products save more than a pass over the memory takes.
    least, least_by_library = 768, 6144
    most_columns = 2**17  # a Gram matrix divided by many more is below float16
    generations = (9, 10)  # of GPUs whose blocks have the memory that the tiles need
    enlarged = 256.0  # what entries of at most 2 are multiplied by, to have more digits in float16

    def __init__(self, matrix: Tensor) -> None:
        from kermix.linalg import polar_triton

        self._kernels = polar_triton
        batch, self._m, self._n = matrix.shape
        rows, columns = (polar_triton.whole_tiles(side) for side in (self._m, self._n))
        self._by_library = min(self._m, self._n) >= self.least_by_library and HAS_HALF_PRODUCTS
        self.can_skip = not self._by_library
        self._half = matrix.new_zeros(batch, rows, columns, dtype=torch.float16)
        self._next = self._half if self._by_library else torch.zeros_like(self._half)
        self._gram = matrix.new_empty(batch, rows, rows, dtype=torch.float16)
        self._done = matrix.new_zeros(batch, dtype=torch.int32)
        self.gram_scale = 2.0 ** round(math.log2(self._n) / 2)

    @classmethod
    def pays(cls, matrix: Tensor, smaller: int) -> bool:
        """Whether they are the fastest for a matrix on a GPU with such a smaller side."""
        if smaller < cls.least or matrix.shape[-1] > cls.most_columns:
            return False
        generation = torch.cuda.get_device_capability(matrix.device)[0]
        return torch.version.hip is None and generation in cls.generations and has_triton()

    def first(self, matrix: Tensor, gram: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The matrix divided by a bound of its largest singular value, its Gram matrix, the bound.

        Args:
            matrix: Matrices (B, M, N) whose largest entries are between 1 and 2, or zero.
            gram: Not here.
        """
        matrix = matrix.contiguous()
        self._kernels.halve(matrix, self._half, self.enlarged)
        shrunk = (self.enlarged * self.gram_scale) ** 2
        gram = self._formed_gram(1 / shrunk)
        square = square_bound(gram)
        gram.mul_(self.gram_scale / square)
        root = (square * self.gram_scale**2).sqrt()
        x = matrix / root
        for half in (self._half, self._next) if self.can_skip else (self._half,):
            self._kernels.halve(x, half, self.gram_scale)  # a step may be skipped
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

    def skip(self, idle: Tensor) -> None:  # (B,), bool
        """From now on leave these matrices, and no others, as they are."""
        self._done.copy_(idle)

    def _formed_gram(self, factor: float) -> Tensor:
        self._kernels.gram(self._half, self._gram, self._done, factor)
        return self._gram[:, : self._m, : self._m]


SHARE_OF_SPREAD = 1 / 16  # of the tolerance: how far from one what is resolved may be. Convention


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

    @classmethod
    def of(cls, resolved: float) -> "_Interval":
        """That of the singular values themselves."""
        return cls(resolved, low=resolved)

    def step(self, cushion: float = 0.1) -> tuple[float, float]:
        """The best cubic's coefficients; the interval becomes its image.

        The lower end is not followed below `cushion` times the upper one: a cubic that sends large
        singular values close to zero would drown them in the rounding of the product, which turns
        their vectors. Nothing tells that later.
        """
        low, high = max(self.low, cushion * self.high), self.high
        square = (low * low + low * high + high * high) / 3
        peak = square**1.5
        b = 2 / (2 * peak + low * (3 * square - low * low))
        a = 3 * b * square
        ends = (a * x - b * x**3 for x in (self.low, self.high))
        self.low, self.high = min(ends), 2 * b * peak
        return a, b

    def unit_step(self) -> tuple[float, float]:
        """The same, of a cubic whose largest value is 1 again."""
        a, b = self.step()
        high, self.low, self.high = self.high, self.low / self.high, 1.0
        return a / high, b / high

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
    if products.is_short and over is None:
        value, high, missing = _corrected(x, flat, value, high)
    else:
        missing = torch.zeros_like(value)
    rounding = 6 * torch.finfo(matrix.dtype).eps + products.rounding
    bound = bound.clamp(min=0) + (rounding + missing) * value
    shape = matrix.shape[:-2]
    factor = (x / high[:, None, None]).reshape(matrix.shape)
    found = Polar(factor, value.reshape(shape), bound.reshape(shape))
    return found.times(unit.reshape(shape))


def _corrected(
    x: Tensor,  # (B, M, N)
    matrix: Tensor,
    value: Tensor,  # (B,)
    high: Tensor,  # (B,)
    largest: float = 1e-3,
    unsure: float = 0.25,
) -> tuple[Tensor, Tensor, Tensor]:
    """Value and scale less what probes find missing by rounding, and what may still be missing.

    Args:
        x: The factor, times a scale.
        matrix: The matrix.
        value: Its nuclear norm.
        high: The scale.
        largest: Correction of the factor; what is more comes from what is not resolved.
        unsure: Share of a correction by which it may be wrong.
    """
    missing, error = _missing(x, matrix, high)
    known = missing.clamp(-largest, largest)
    known = torch.where(missing.abs() > 2 * error, known, 0.0)
    left = (missing - known).abs() + unsure * known.abs() + 4 * error
    return value / (1 - known), high * (1 - known), left


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
    readable, scale = can_sync(matrix), products.gram_scale
    finest = max(tolerance / (2 * _rows(matrix)), torch.finfo(matrix.dtype).eps)
    x, gram, interval, resolved = _started(x, gram, tolerance, finest, products, readable)
    settled: tuple[_Look, Tensor] | None = None  # the first look, and what is done, unread
    while True:
        before = interval.low, interval.high
        a, b = interval.step()
        x = products.step(x, gram, a, b)
        if interval.spread <= SHARE_OF_SPREAD * tolerance:
            value = _total((x * matrix).sum((-2, -1)), over) / interval.high
            look = _looked(value, root * resolved, interval, before, gram, scale)
            if interval.resolved <= finest:
                break
            excess = (look.bound / (tolerance * value)).nan_to_num(0)
            if readable:
                largest = float(excess.max())
                if largest <= 1:
                    break
                # The bound is proportional to the smallest singular value that is resolved.
                interval.extend(max(interval.resolved / max(2 * largest, 4.0), finest))
                resolved = interval.resolved
            else:
                settled = look, excess <= 1
                products.skip(settled[1])
                interval.extend(finest)
                resolved = finest
        gram = _total(products.gram(x), over)
    if settled is not None:
        first, done = settled
        look = _Look(*(torch.where(done, *pair) for pair in zip(first, look, strict=True)))
    return x, look


def _started(
    x: Tensor, gram: Tensor, tolerance: float, finest: float, products: Products, readable: bool
) -> tuple[Tensor, Tensor, _Interval, Tensor | float]:
    """The first steps that some matrices do not need, by those that do; what each resolves then.

    Step by step this is the chain of the smallest singular value that is resolved for any matrix;
    one that leaves out the first steps is as if it had begun later. Where values can be read, or
    no matrix can be skipped, there are no such steps.
    """
    if not (readable or products.can_skip):
        return x, gram, _Interval.of(finest), finest
    wanted = _to_resolve(gram, products.gram_scale, tolerance)
    if readable:
        interval = _Interval.of(max(_reached(float(wanted.min()), tolerance), finest))
        return x, gram, interval, interval.resolved
    least, most = (max(_reached(share * tolerance, tolerance), finest) for share in (0.005, 0.35))
    interval = _Interval.of(least)
    resolved = torch.full_like(wanted, least)
    while interval.low < 0.95 * most:
        a, b = interval.unit_step()
        idle = wanted >= interval.low
        resolved = torch.where(idle, interval.low, resolved)
        products.skip(idle)
        x = products.step(x, gram, a, b)
        gram = products.gram(x)
    products.skip(torch.zeros_like(wanted, dtype=torch.bool))
    interval.resolved = interval.low  # of those that resolve least
    return x, gram, interval, resolved


def _looked(
    value: Tensor,  # (B,)
    resolved: Tensor,  # (B,)
    interval: _Interval,
    before: tuple[float, float],
    gram: Tensor,  # (B, M, M)
    scale: float,
) -> _Look:
    """Value and bound after a step, with the interval and the Gram matrix before it.

    `resolved` is the smallest singular value in the interval.
    """
    low, high = before
    bound = value * interval.spread / (1 - interval.spread)
    bound = bound + resolved * high / low * _unresolved(gram, high * high * scale)
    return _Look(value, bound, torch.full_like(value, interval.high))


def _reached(wanted: float, tolerance: float) -> float:
    """The smallest singular value that as many steps resolve as the wanted one needs."""
    return next((least for least in _least_of_steps(tolerance) if least <= wanted), wanted)


@functools.cache
def _least_of_steps(tolerance: float, most: int = 40, grain: float = 0.01) -> tuple[float, ...]:
    """The smallest singular value that 1, 2, ... steps resolve."""
    found = []
    for steps in range(1, most + 1):
        low, high = math.log(torch.finfo(torch.float64).eps), 0.0
        while high - low > grain:
            middle = (low + high) / 2
            interval = _Interval.of(math.exp(middle))
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


def _to_resolve(
    gram: Tensor,  # (B, M, M)
    scale: float,
    tolerance: float,
    of_root: float = 0.6,
    smallest: float = 0.005,
) -> Tensor:  # (B,)
    """The smallest singular value to resolve before the first look at the bound.

    The bound is about that value, times the root of the number of rows over the nuclear norm of
    the scaled matrix, of which the largest singular value and, for the others, the sums of squares
    and of fourth powers tell a part. A look that comes too early costs four steps, a step more
    before it costs one: `of_root` is for one look at most kernel matrices.
    """
    squares, fourths = _moments(gram, scale)
    largest = _about_largest(gram) / scale
    others = (squares - largest).clamp(min=0).pow(1.5)
    norm = largest.sqrt() + others / (fourths - largest.square()).clamp(min=1e-12).sqrt()
    share = (of_root / math.sqrt(gram.shape[-1]) * norm).nan_to_num(1.0)
    return tolerance * share.clamp(smallest, 1.0)


def _about_largest(gram: Tensor, rounds: int = 2, probes: int = 8) -> Tensor:  # (B, M, M) -> (B,)
    """The largest eigenvalue but for a little, from below."""
    wide = torch.promote_types(gram.dtype, torch.float32)
    vectors = probing_signs(gram.shape[-1], probes, gram).expand(len(gram), -1, -1)
    for _ in range(rounds + 1):
        sizes = torch.linalg.vector_norm(vectors, dim=-2, keepdim=True, dtype=wide)
        vectors = (vectors / sizes.clamp(min=torch.finfo(wide).tiny)).to(gram.dtype)
        vectors = gram @ vectors
    return torch.linalg.vector_norm(vectors, dim=-2, dtype=wide).amax(-1)


def _missing(
    x: Tensor, matrix: Tensor, high: Tensor, probes: int = 16
) -> tuple[Tensor, Tensor]:  # (B,), (B,)
    r"""The share of the nuclear norm that a factor `x / high` misses by rounding, and its error.

    Where entries repeat, as of an identity, so does their rounding: it does not average out.
    To first order what is missed is half of $\langle P, Q (I - Q^\top Q) \rangle$, which
    full products with a few vectors estimate; negative where singular values are above 1. As a
    share of what they find of the value, it is exact where all singular values are off alike.
    """
    with full_products(matrix):
        signs = probing_signs(matrix.shape[-1], probes, matrix)
        scale = high[:, None, None]
        ours, theirs = x @ signs / scale, matrix @ signs  # (B, M, probes)
        missed = x @ (signs - x.mT @ ours / scale) / scale
    missed, found = (missed * theirs).sum(-2) / 2, (ours * theirs).sum(-2)  # (B, probes)
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
