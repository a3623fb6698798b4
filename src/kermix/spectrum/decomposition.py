"""What a decomposition holds: singular values, vectors, and functions of points or components."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from kermix.checks import check_option, check_samples
from kermix.costs.components import (
    Mixture,
    log_unit_gram,
    points_as_components,
)
from kermix.errors import KernelError, OptionError, ShapeError, VarianceError
from kermix.kernels.gaussian import GaussianKernel
from kermix.kernels.gram import gram_matrix
from kermix.kernels.means import log_kernel_means
from kermix.kernels.others import PointKernel
from kermix.linalg.cholesky import sqrt_or_zero
from kermix.mixtures.components import Components
from kermix.mixtures.gaussian_products import log_density, log_normal
from kermix.mixtures.grams import log_squared_norms

__all__ = [
    "Decomposition",
    "Density",
    "FunctionForm",
    "IdentityWeighting",
    "Side",
    "unit_gaussians",
]

FunctionForm: TypeAlias = Literal["probability", "lebesgue"]
IdentityWeighting: TypeAlias = Literal["projection", "smoothed"]
Density: TypeAlias = Tensor | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Side:
    """One of the two distributions: its points, and the singular vectors over them."""

    points: Tensor  # (N, d)
    weights: Tensor  # (N,), summing to 1
    vectors: Tensor  # (N, k), orthonormal columns
    factor: Tensor | None  # (N, N), the Gram matrix's root whose inverse whitens, if any
    variance: tuple[float, ...]
    density: Tensor | None = None  # (N,), at the points, if known
    components: Components | None = None  # the Gaussians, if either side is a mixture
    own: bool = False  # whether they are a mixture's, with covariances of their own


@dataclass(frozen=True)
class Decomposition:
    r"""Singular values and functions of $\sqrt{p(X)} K(X, X') \sqrt{q(X')}$, Property 8.

    Left functions belong to `x` (density `p`), right functions to `y` (density `q`). The sign of
    each pair is fixed: the left vector's entry of largest size is positive.

    With `whitened` (Property 9) the singular values are canonical correlations, and the functions
    are combinations of the Gaussians at the samples, orthonormal in dX.

    For a mixture, vectors and functions belong to its components: the singular functions of the
    kernel are functions of mean *and* covariance, and are evaluated at the components of another
    mixture. Those of the whitened form, and `identity`, are functions of points.
    """

    singular_values: Tensor  # (k,)
    kernel: GaussianKernel | PointKernel | None  # None: two mixtures, which have their variances
    whitened: bool
    method: str
    _left: Side
    _right: Side

    def __len__(self) -> int:
        return len(self.singular_values)

    @property
    def left_vectors(self) -> Tensor:  # (N, k)
        """Left singular vectors of the weighted Gram matrix, one row for each point of `x`."""
        return self._left.vectors

    @property
    def right_vectors(self) -> Tensor:  # (K, k)
        """Right singular vectors, one row for each point of `y`."""
        return self._right.vectors

    def swapped(self) -> "Decomposition":
        """The same decomposition with the roles of `x` and `y` exchanged."""
        kernel = self.kernel
        points = self._left.components is None
        if isinstance(kernel, GaussianKernel) and kernel.layout is None and points:
            kernel = GaussianKernel(self._right.variance, self._left.variance,
                                    kernel.per_dimension)  # fmt: skip
        return replace(self, kernel=kernel, _left=self._right, _right=self._left)

    def left(
        self,
        points: Tensor | Mixture | None = None,  # (M, d)
        form: FunctionForm = "probability",
        density: Density | None = None,
    ) -> Tensor:  # (M, k)
        r"""Left singular functions at new points, or at `x`.

        Out of sample by the Nystrom extension
        $\hat\phi_k(x) = \lambda_k^{-1} \sum_j b_j K(x, y_j) \hat\psi_k(y_j)$; functions of a
        singular value that is lost in rounding are zero.

        Args:
            points: Where to evaluate; by default at `x` itself. If `x` is a mixture, another
                mixture, whose weights do not matter; points in the whitened form.
            form: `"probability"`: $\hat\phi$, orthonormal under `p`. `"lebesgue"`:
                $\phi = \hat\phi \sqrt p$, orthonormal in dX.
            density: `p`, as a function of points or its values there, for the Lebesgue form; by
                default the Gaussian mixture that the samples and their variance define (on a
                grid, the given density).
        """
        return self._functions(self._left, self._right, points, form, density)

    def right(
        self,
        points: Tensor | Mixture | None = None,  # (M, d)
        form: FunctionForm = "probability",
        density: Density | None = None,
    ) -> Tensor:  # (M, k)
        """Right singular functions at new points, or at `y`; see `left`."""
        return self._functions(self._right, self._left, points, form, density)

    def identity(
        self,
        points_y: Tensor,  # (M, d)
        points_x: Tensor,  # (L, d)
        weighting: IdentityWeighting = "projection",
    ) -> Tensor:  # (M, L)
        r"""The identity $1\{X' = X\}$ as seen by the Gaussians at the samples, Eq. (22).

        With $\hat f = U^\top f$ and $\hat g = V^\top g$, where `f` and `g` are the
        Gaussians (of unit norm) at `y` and `x`:

        - `"projection"`: $\sum_k \sigma_k^{-1} \hat f_k(X') \hat g_k(X)$, which reproduces
          the Gaussians: an oblique projection;
        - `"smoothed"`: $\sum_k \sigma_k \hat f_k(X') \hat g_k(X)$, the paper's formula.

        In the whitened form $\hat f$ and $\hat g$ are orthonormal.
        """
        check_option("weighting", weighting, ("projection", "smoothed"))
        f, g = (
            self._transformed(side, points)
            for side, points in ((self._right, points_y), (self._left, points_x))
        )
        if not self.whitened:
            n, k = len(self._left.points), len(self._right.points)
            f, g = f * k**0.5, g * n**0.5
        sigma = self.singular_values * (1 if self.whitened else (n * k) ** 0.5)
        weights = self._inverse(sigma) if weighting == "projection" else sigma
        return (f * weights) @ g.T

    def reconstruct(
        self, points_x: Tensor | Mixture, points_y: Tensor | Mixture
    ) -> Tensor:  # (M, L)
        r"""The kernel from its functions, $\sum_k \lambda_k \hat\phi_k \hat\psi_k$."""
        self._needs_kernel_form("reconstruct")
        return (self.left(points_x) * self.singular_values) @ self.right(points_y).T

    def _functions(
        self,
        side: Side,
        other: Side,
        points: Tensor | Mixture | None,
        form: FunctionForm,
        density: Density | None,
    ) -> Tensor:
        check_option("form", form, ("probability", "lebesgue"))
        if side.own and not self.whitened:
            if form == "lebesgue":
                raise OptionError(
                    "form='lebesgue' is for functions of points, but those of a mixture are "
                    "functions of its components; decompose with whiten=True."
                )
            return self._at_components(side, other, points)
        at = side.points if points is None else check_samples("points", points)  # type: ignore[arg-type]
        at = at.to(side.points)
        if at.ndim != 2 or at.shape[1] != side.points.shape[1]:
            raise ShapeError(
                f"points has shape {tuple(at.shape)}; the functions take points of shape "
                f"(M, {side.points.shape[1]})."
            )
        if self.whitened:
            values = self._transformed(side, at)
            if form == "lebesgue":
                return values
            return values / self._density(side, at, points is None, density).sqrt().unsqueeze(-1)
        if points is None:
            values = _divided(side)
        else:
            values = self._extended(self._kernel_with(at, side, other), other)
        if form == "probability":
            return values
        return values * self._density(side, at, points is None, density).sqrt().unsqueeze(-1)

    def _at_components(
        self, side: Side, other: Side, points: Tensor | Mixture | None
    ) -> Tensor:  # (M, k)
        if points is None:
            return _divided(side)
        if not isinstance(points, Mixture) or points.means.shape[1:] != side.points.shape[1:]:
            raise OptionError(
                "The singular functions of a mixture are functions of mean and covariance: give "
                f"points as a mixture in {side.points.shape[1]} dimensions, or decompose with "
                "whiten=True for functions of points."
            )
        assert other.components is not None
        asked = points._components.to(other.components.means.dtype)
        return self._extended(log_unit_gram(asked, other.components).exp(), other)

    def _extended(self, matrix: Tensor, other: Side) -> Tensor:  # (M, N) -> (M, k)
        """The Nystrom extension, from the kernel between new points and the other side."""
        columns = other.vectors * sqrt_or_zero(other.weights).unsqueeze(-1)
        return (matrix.to(columns) @ columns) * self._inverse(self.singular_values)

    def _kernel_with(self, at: Tensor, side: Side, other: Side) -> Tensor:  # (M, N)
        if isinstance(self.kernel, PointKernel):
            return self.kernel.gram(at, other.points)
        assert self.kernel is not None, "points have a variance"
        if other.components is not None:
            return log_unit_gram(
                points_as_components(at, None, self.kernel), other.components
            ).exp()
        return gram_matrix(at, other.points, self.kernel.cross_terms(at.shape[-1]), at.dtype)

    def _inverse(self, sigma: Tensor) -> Tensor:
        level = sigma[0] * torch.finfo(sigma.dtype).eps * max(
            len(self._left.points), len(self._right.points)
        )  # fmt: skip
        return torch.where(sigma > level, 1 / sigma, 0.0)

    def _density(self, side: Side, at: Tensor, own: bool, given: Density | None) -> Tensor:
        if given is not None:
            values = given if isinstance(given, Tensor) else given(at)
            if values.shape != at.shape[:1]:
                raise ShapeError(
                    f"density has shape {tuple(values.shape)} for {len(at)} points; give one "
                    "value per point."
                )
            return values.to(at)
        if own and side.density is not None:
            return side.density
        if side.components is not None:
            return log_density(side.components, at).exp()
        return _mixture_density(at, side, self._gaussian("density=None").per_dimension)

    def _transformed(self, side: Side, points: Tensor) -> Tensor:  # (M, k)
        """The Gaussians at the samples, turned by the singular vectors (and whitened)."""
        at = check_samples("points", points).to(side.points)
        if side.components is not None:
            everything = slice(None)
            logarithms = log_normal(at, None, side.components, side.components.kind)
            norms = log_squared_norms(side.components) / 2
            residuals = (logarithms(everything, everything) - norms).exp()
        else:
            divided = self._gaussian("The identity").per_dimension
            residuals = unit_gaussians(at, side.points, self._one(side), divided)
        if side.factor is None:
            return (residuals * sqrt_or_zero(side.weights)) @ side.vectors
        return residuals @ (side.factor @ side.vectors)

    def _gaussian(self, what: str) -> GaussianKernel:
        if not isinstance(self.kernel, GaussianKernel):
            raise KernelError(
                f"{what} needs Gaussians at the points, but the kernel is {self.kernel}."
            )
        if self.kernel.layout is not None:
            raise OptionError(
                "Rows with codes have no density with respect to dX: use form='probability', "
                "which is orthonormal under the data."
            )
        return self.kernel

    def _one(self, side: Side) -> float:
        if len(side.variance) > 1:
            raise VarianceError(
                "This needs Gaussians of a single variance, but the kernel is an average of "
                f"{len(side.variance)}. Decompose with one variance."
            )
        return side.variance[0]

    def _needs_kernel_form(self, what: str) -> None:
        if self.whitened:
            raise OptionError(f"{what} is only defined for the kernel itself: use whiten=False.")


def _divided(side: Side) -> Tensor:  # (N, k)
    """Vectors divided by the roots of the weights: functions at the points themselves."""
    roots = sqrt_or_zero(side.weights)
    return side.vectors * torch.where(roots > 0, 1 / roots, 0.0).unsqueeze(-1)


def unit_gaussians(
    points: Tensor,  # (M, d)
    centres: Tensor,  # (N, d)
    variance: float,
    per_dimension: bool = True,
) -> Tensor:  # (M, N)
    r"""Gaussians of unit $L_2$ norm at the centres, evaluated at the points.

    Their inner products are the kernel: $\int f_i f_j \, dX = K_{2v}(y_i, y_j)$. This is the
    half-variance root of the kernel in $C = \mathrm{diag}(\sqrt p) K_{half}$, Eq. (20).

    Example:
        >>> unit_gaussians(torch.zeros(1, 1), torch.zeros(1, 1), 1 / torch.pi)
        tensor([[1.]])
    """
    d = points.shape[-1]
    spread = variance * (d if per_dimension else 1)
    terms = GaussianKernel(variance / 2, per_dimension=per_dimension).cross_terms(d)
    log_constant = -d / 4 * math.log(math.pi * spread)
    return gram_matrix(points, centres, terms, points.dtype) * math.exp(log_constant)


def _mixture_density(at: Tensor, side: Side, per_dimension: bool) -> Tensor:  # (M,)
    d, parts = at.shape[-1], []
    for variance in side.variance:
        spread = variance * (d if per_dimension else 1)
        terms = GaussianKernel(variance / 2, per_dimension=per_dimension).cross_terms(d)
        logs = log_kernel_means(at, side.points, terms, side.weights, at.dtype)
        parts.append((logs - d / 2 * math.log(2 * math.pi * spread)).exp())
    return torch.stack(parts).mean(0)
