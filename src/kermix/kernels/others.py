"""Kernels other than the Gaussian: Laplace, rational quadratic, polynomial, cosine, any function.

Property 8 (Eqs. 15 to 19) holds for every positive semi-definite kernel, so the costs,
`kermix.decompose` and `kermix.two_sample_test` take these as `kernel=`. What rests
on the closed form of Gaussians (mixtures, two variances, sketches) does not.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, TypeAlias

import torch
from torch import Tensor

from kermix.checks import LARGEST_EXPONENT, broadcast_shape, check_count, check_number, is_concrete
from kermix.errors import KernelError
from kermix.kernels.distances import squared_distances
from kermix.kernels.gaussian import GaussianKernel, KernelTerms, choose_variance
from kermix.kernels.gram import ScaledGram, aligned, gram_matrix

__all__ = [
    "AnyKernel",
    "CosineKernel",
    "FunctionKernel",
    "LaplaceKernel",
    "LogStationary",
    "NormalizedKernel",
    "PointKernel",
    "PolynomialKernel",
    "RationalQuadraticKernel",
    "as_point_kernel",
    "kernel_matrix",
]

Scale: TypeAlias = float | Literal["median"]


class PointKernel(ABC):
    """A positive semi-definite kernel between points."""

    @abstractmethod
    def gram(self, a: Tensor, b: Tensor) -> Tensor:  # (*B, M, d), (*B, N, d) -> (*B, M, N)
        """The Gram matrix; of `a` with itself if both are the same tensor."""

    def __call__(self, a: Tensor, b: Tensor) -> Tensor:
        """The Gram matrix."""
        return self.gram(a, b)

    @abstractmethod
    def diagonal(self, a: Tensor) -> Tensor:  # (*B, M, d) -> (*B, M)
        """The kernel of each point with itself."""

    def fitted(self, x: Tensor) -> Self:
        """The same kernel with what it leaves to the data taken from `x`."""
        return self

    def scaled_gram(self, a: Tensor, b: Tensor, idle: Tensor | None = None) -> ScaledGram:
        """The Gram matrix with the scale of its largest entry taken out.

        Entries marked `idle` do not count in the search for it.
        """
        matrix = self.gram(a, b)
        sizes = matrix.detach().abs()
        sizes = sizes if idle is None else sizes.masked_fill(idle, 0)
        largest = sizes.amax((-2, -1), keepdim=True).clamp(min=torch.finfo(matrix.dtype).tiny)
        return ScaledGram(matrix / largest, largest[..., 0, 0].log())


class _Stationary(PointKernel):
    """A function of the distance alone, 1 at distance zero."""

    scale: Scale
    per_dimension: bool

    def diagonal(self, a: Tensor) -> Tensor:
        """Ones."""
        return a.new_ones(a.shape[:-1])

    def fitted(self, x: Tensor) -> Self:
        """With the median distance as the scale, if that is left to the data."""
        if self.scale != "median":
            return self
        half = choose_variance(x, "median", self.per_dimension)
        return replace(self, scale=float(2 * half) ** 0.5)  # type: ignore[type-var]

    def _squares(self, a: Tensor, b: Tensor) -> Tensor:
        """Squared distances in units of the scale."""
        if isinstance(self.scale, str):
            raise KernelError(f"{self} has no scale yet; use kernel.fitted(x).")
        a, b = aligned(a, b, a.dtype) if b is not a else (a, a)
        unit = self.scale**2 * (a.shape[-1] if self.per_dimension else 1)
        return squared_distances(a, b, same=b is a) / unit


class LogStationary(_Stationary):
    """One that is known by its logarithm, so that points however far apart have a kernel."""

    @abstractmethod
    def log_gram(self, a: Tensor, b: Tensor) -> Tensor:  # (*B, M, d), (*B, N, d) -> (*B, M, N)
        """Logarithms of the Gram matrix."""

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """The Gram matrix."""
        return self.log_gram(a, b).exp()

    def scaled_gram(self, a: Tensor, b: Tensor, idle: Tensor | None = None) -> ScaledGram:
        """The Gram matrix divided by its largest entry, which does not underflow."""
        logarithms = self.log_gram(a, b)
        seen = logarithms.detach()
        seen = seen if idle is None else seen.masked_fill(idle, -torch.inf)
        log_scale = seen.amax((-2, -1), keepdim=True)
        matrix = (logarithms - log_scale).clamp(max=LARGEST_EXPONENT).exp()
        # Subnormal numbers make every product with the matrix slow.
        smallest = torch.finfo(matrix.dtype).tiny
        return ScaledGram(matrix.where(matrix >= smallest, 0.0), log_scale[..., 0, 0])


@dataclass(frozen=True)
class LaplaceKernel(LogStationary):
    r"""The Laplace kernel $\exp(-\sqrt{M} / \ell)$ with $M = \|a - b\|^2 / d$.

    It has heavier tails than the Gaussian and a corner at zero, so it detects finer differences.
    It has no derivative where two points coincide; zero is used there.

    Args:
        scale: The distance $\ell$ at which the kernel is 1/e; `"median"`: the median
            distance of the data.
        per_dimension: Whether squared distances are divided by the dimension.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> LaplaceKernel(0.5).gram(x, x)
        tensor([[1.0000, 0.1353],
                [0.1353, 1.0000]])
    """

    scale: Scale = "median"
    per_dimension: bool = True

    def __post_init__(self) -> None:
        _check_scale(self.scale)

    def log_gram(self, a: Tensor, b: Tensor) -> Tensor:
        """Negative distances in units of the scale."""
        squares = self._squares(a, b)
        apart = squares != 0
        return -(torch.where(apart, squares, 1.0).sqrt() * apart)


@dataclass(frozen=True)
class RationalQuadraticKernel(_Stationary):
    r"""The rational quadratic kernel $(1 + M / (2 \alpha \ell^2))^{-\alpha}$.

    An average of Gaussian kernels of many variances; with a large $\alpha$ the Gaussian kernel of
    variance $\ell^2$. It decays like a power: distant points still attract.

    Args:
        scale: The distance $\ell$; `"median"`: the median distance of the data.
        alpha: Rate of decay.
        per_dimension: Whether squared distances are divided by the dimension.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> RationalQuadraticKernel(0.5).gram(x, x)
        tensor([[1.0000, 0.3333],
                [0.3333, 1.0000]])
    """

    scale: Scale = "median"
    alpha: float = 1.0
    per_dimension: bool = True

    def __post_init__(self) -> None:
        _check_scale(self.scale)
        _check_positive("alpha", self.alpha)

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """Powers of the distances."""
        return (1 + self._squares(a, b) / (2 * self.alpha)).pow(-self.alpha)


@dataclass(frozen=True)
class PolynomialKernel(PointKernel):
    r"""The polynomial kernel $(a \cdot b / d + c)^p$: moments up to order `p`.

    It is not bounded, and distant points outweigh the others: scale the data first. It cannot tell
    two samples apart whose moments up to order `p` (`2 p` for the SVD and matrix costs) agree.

    Args:
        degree: The power `p`.
        constant: The number `c`, non-negative.
        per_dimension: Whether products are divided by the dimension.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> PolynomialKernel(2).gram(x, x)
        tensor([[1., 1.],
                [1., 4.]])
    """

    degree: int = 2
    constant: float = 1.0
    per_dimension: bool = True

    def __post_init__(self) -> None:
        check_count("degree", self.degree)
        check_number("constant", self.constant)
        if not 0 <= float(self.constant) < float("inf"):
            raise KernelError(
                f"constant={self.constant}: a negative constant does not give a kernel; give 0 "
                "or more."
            )

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """Powers of the inner products."""
        return self._of_products(a @ b.mT, a.shape[-1])

    def diagonal(self, a: Tensor) -> Tensor:
        """Powers of the squared norms."""
        return self._of_products(a.square().sum(-1), a.shape[-1])

    def _of_products(self, products: Tensor, dimension: int) -> Tensor:
        return (products / (dimension if self.per_dimension else 1) + self.constant).pow(
            self.degree
        )


@dataclass(frozen=True)
class CosineKernel(PointKernel):
    r"""The cosine of the angle, $a \cdot b / (\|a\| \|b\|)$; 0 where a point is the origin.

    For directions, such as embeddings. Like the polynomial kernel, it compares only moments.

    Example:
        >>> CosineKernel().gram(torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, 1.0]]))
        tensor([[0.7071]])
    """

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """Inner products of directions."""
        return _directions(a) @ _directions(b).mT

    def diagonal(self, a: Tensor) -> Tensor:
        """Ones, and zeros at the origin."""
        return _directions(a).square().sum(-1)


@dataclass(frozen=True)
class NormalizedKernel(PointKernel):
    r"""Another kernel with a diagonal of ones, $k(a, b) / \sqrt{k(a, a) \, k(b, b)}$.

    Args:
        kernel: The kernel, positive at each point with itself.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> NormalizedKernel(PolynomialKernel(2)).gram(x, x)
        tensor([[1.0000, 0.5000],
                [0.5000, 1.0000]])
    """

    kernel: PointKernel

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """The other's Gram matrix, divided by the lengths of both points in its space."""
        lengths = self._lengths(a)
        across = lengths if b is a else self._lengths(b)
        return self.kernel.gram(a, b) / (lengths.unsqueeze(-1) * across.unsqueeze(-2))

    def diagonal(self, a: Tensor) -> Tensor:
        """Ones."""
        return a.new_ones(a.shape[:-1])

    def fitted(self, x: Tensor) -> Self:
        """With what the other leaves to the data taken from `x`."""
        return replace(self, kernel=self.kernel.fitted(x))

    def _lengths(self, a: Tensor) -> Tensor:
        squares = self.kernel.diagonal(a)
        if is_concrete(squares) and not bool((squares > 0).all()):
            row = int((~(squares > 0)).reshape(-1).nonzero()[0])
            raise KernelError(
                f"{self.kernel} is zero between row {row} and itself, so it cannot be "
                "normalized: remove rows of zeros, or use another kernel."
            )
        return squares.sqrt()


@dataclass(frozen=True)
class FunctionKernel(PointKernel):
    """Any function of two sets of points that returns their Gram matrix.

    It must be symmetric and positive semi-definite; otherwise the bounds of the costs do not hold.
    Symmetry is checked where values can be read.

    Args:
        function: From points (*B, M, d) and (*B, N, d) to the matrix (*B, M, N).

    Example:
        >>> x = torch.tensor([[1.0], [2.0]])
        >>> FunctionKernel(lambda a, b: torch.minimum(a, b.mT)).gram(x, x)
        tensor([[1., 1.],
                [1., 2.]])
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def gram(self, a: Tensor, b: Tensor) -> Tensor:
        """The matrix that the function returns, checked."""
        matrix = self.function(a, b)
        batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
        wanted = (*batch, a.shape[-2], b.shape[-2])
        if not isinstance(matrix, Tensor) or tuple(matrix.shape) != wanted:
            found = tuple(matrix.shape) if isinstance(matrix, Tensor) else type(matrix).__name__
            raise KernelError(
                f"kernel returned {found} for points of shapes {tuple(a.shape)} and "
                f"{tuple(b.shape)}; it must return their Gram matrix, of shape {wanted}."
            )
        if is_concrete(matrix):
            self._check_values(matrix.detach(), b is a)
        return matrix.to(a.dtype)

    def diagonal(self, a: Tensor) -> Tensor:
        """The diagonal of the matrix."""
        return self.gram(a, a).diagonal(dim1=-2, dim2=-1)

    def _check_values(self, matrix: Tensor, same: bool) -> None:
        if not bool(torch.isfinite(matrix).all()):
            raise KernelError(
                f"kernel returned {int((~torch.isfinite(matrix)).sum())} NaN or infinite values."
            )
        if not same:
            return
        gap = float((matrix - matrix.mT).abs().max())
        if gap > 1e-4 * float(matrix.abs().max()):
            raise KernelError(
                f"kernel is not symmetric: K(a, b) and K(b, a) differ by up to {gap:g}; "
                "a kernel is symmetric and positive semi-definite."
            )
        if bool((matrix.diagonal(dim1=-2, dim2=-1) < 0).any()):
            raise KernelError(
                "kernel is negative between a point and itself; a kernel is positive "
                "semi-definite (the negative of a distance is not, but its exponential may be)."
            )


AnyKernel: TypeAlias = GaussianKernel | PointKernel | Callable[[Tensor, Tensor], Tensor]


def kernel_matrix(
    a: Tensor, b: Tensor, terms: KernelTerms | PointKernel, dtype: torch.dtype
) -> Tensor:
    """The Gram matrix of the Gaussian kernel or of another, computed and returned in `dtype`."""
    if isinstance(terms, KernelTerms):
        return gram_matrix(a, b, terms, dtype)
    first = a.to(dtype)
    return terms.gram(first, first if b is a else b.to(dtype))


def as_point_kernel(kernel: Any) -> PointKernel:
    """Make a kernel between points of what a user may give as `kernel=`, other than a Gaussian."""
    if isinstance(kernel, PointKernel):
        return kernel
    if callable(kernel) and not isinstance(kernel, type):
        return FunctionKernel(kernel)
    named = kernel.__name__ + ", a class" if isinstance(kernel, type) else repr(kernel)
    raise KernelError(
        f"kernel={named}: give km.LaplaceKernel(...) or another kernel, or a function of two sets "
        "of points that returns their Gram matrix."
    )


def _directions(points: Tensor) -> Tensor:
    # Divided by the largest coordinate first, so that squares neither under- nor overflow.
    largest = points.detach().abs().amax(-1, keepdim=True)
    points = points / torch.where(largest > 0, largest, 1.0)
    squares = points.square().sum(-1, keepdim=True)
    return points * torch.where(squares > 0, squares, 1.0).rsqrt()


def _check_scale(scale: Scale) -> None:
    if isinstance(scale, str):
        if scale != "median":
            raise KernelError(f"scale={scale!r}: give a positive number, or 'median'.")
        return
    _check_positive("scale", scale)


def _check_positive(name: str, value: Any) -> None:
    check_number(name, value)
    if not 0 < float(value) < float("inf"):
        raise KernelError(f"{name}={value}: must be positive and finite.")
