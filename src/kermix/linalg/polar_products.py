"""The two products of a cubic step, in the precision that a tolerance and a device allow."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from kermix.checks import is_traced, triton_is_there

__all__ = ["FINEST_TF32_TOLERANCE", "Products", "full_products", "probing_signs",
           "products_for", "square_bound"]  # fmt: skip

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
    return torch.version.hip is None and generation in FUSED_ON and triton_is_there()


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
        """What is to be set while products are formed."""
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
