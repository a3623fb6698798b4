"""The Gaussian kernel of numbers, and of mixed rows: variances, averages, choosing them."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from kermix.checks import check_option, check_samples, is_concrete, working_dtype
from kermix.errors import DegenerateDataWarning, KernelError, ShapeError, VarianceError
from kermix.kernels.distances import Layout, squared_distances
from kermix.kernels.subsets import symmetric_subset

__all__ = [
    "GaussianKernel",
    "Kernel",
    "KernelTerms",
    "MixedKernel",
    "Numbers",
    "Variance",
    "VarianceRule",
    "as_kernel",
    "choose_variance",
    "mixed_kernel",
    "variance_grid",
]

VarianceRule: TypeAlias = Literal["median", "silverman"]
Scalar: TypeAlias = float | Tensor
Numbers: TypeAlias = tuple[float, ...] | Tensor
Variance: TypeAlias = float | Sequence[float] | Tensor

BANDWIDTH_SUBSAMPLE = 1000


@dataclass(frozen=True)
class KernelTerms:
    r"""A kernel ready to be evaluated: $\sum_l \exp(\lambda_l - \beta_l \|a - b\|^2)$.

    Numbers stay Python floats unless they are tensors that somebody learns: a tensor made from
    floats at every call would have to travel to the accelerator, which makes the host wait.
    """

    rates: Numbers  # (L,)
    log_weights: Numbers  # (L,)
    layout: Layout | None = None  # of mixed rows


class GaussianKernel:
    r"""The Gaussian kernel of samples, each smoothed with a variance.

    With $M(a, b) = \|a - b\|^2 / d$ and $K_s = \exp(-M / 2s)$, samples `x` of variance
    `v_p` and centers `y` of variance `v_q` have

    $$P = K_{v_p + v_q}(y, x), \quad R_F = K_{2 v_q}(y, y), \quad R_G = K_{2 v_p}(x, x).$$

    The normalizing constant is dropped, so that $K_s(a, a) = 1$. Where a bound depends on it (the
    [0, 1] forms and the log-determinant), the cross kernel is multiplied by the inner product of
    two concentric Gaussians of unit norm, $(2 \sqrt{v_p v_q} / (v_p + v_q))^{d/2}$, which is 1 in
    the usual case of equal variances.

    Args:
        v: Variance of the data: a number, several numbers (their kernels are averaged), or a
            tensor of them, which may require a gradient and is read at each use.
        v_q: Variance of the centers, equally many as in `v`. The default is `v`.
        per_dimension: Whether squared distances are divided by the dimension.

    Example:
        >>> kernel = GaussianKernel([0.1, 1.0])
        >>> kernel
        GaussianKernel([0.1, 1.0])
    """

    def __init__(
        self, v: Variance, v_q: Variance | None = None, per_dimension: bool = True
    ) -> None:
        self._v_p = _checked("v", v)
        self._v_q = None if v_q is None else _checked("v_q", v_q)
        self.per_dimension = per_dimension
        given = [t for t in (self._v_p, self._v_q) if t is not None]
        counts = [len(t.reshape(-1)) if isinstance(t, Tensor) else len(t) for t in given]
        if counts[0] != counts[-1]:
            raise VarianceError(
                f"v has {counts[0]} values and v_q has {counts[-1]}; kernels are averaged pair "
                "by pair, so give equally many of each."
            )
        if isinstance(self._v_p, tuple) and self._v_p == self._v_q:
            self._v_q = None

    @property
    def v_p(self) -> tuple[Scalar, ...]:
        """Variances of the data."""
        return _numbers(self._v_p)

    @property
    def v_q(self) -> tuple[Scalar, ...]:
        """Variances of the centers."""
        return _numbers(self._v_p if self._v_q is None else self._v_q)

    @property
    def given(self) -> tuple[tuple[float, ...] | Tensor, tuple[float, ...] | Tensor | None]:
        """Variances of the data, and of the centers if they differ, as they were given."""
        return self._v_p, self._v_q

    @property
    def learned(self) -> dict[str, torch.nn.Parameter]:
        """The parameters among the variances."""
        given = {"v": self._v_p, "v_q": self._v_q}
        return {k: v for k, v in given.items() if isinstance(v, torch.nn.Parameter)}

    def __repr__(self) -> str:
        def show(variances: tuple[Scalar, ...]) -> str:
            numbers = [float(f"{float(v):.6g}") for v in variances]
            return str(numbers[0] if len(numbers) == 1 else numbers)

        other = "" if self.symmetric else f", v_q={show(self.v_q)}"
        scaling = "" if self.per_dimension else ", per_dimension=False"
        return f"GaussianKernel({show(self.v_p)}{other}{scaling})"

    @property
    def symmetric(self) -> bool:
        """Whether data and centers have the same variance."""
        return self._v_q is None

    @property
    def layout(self) -> Layout | None:
        """Which columns of mixed rows are codes; None if all are numbers."""
        return None

    def data_terms(self, dimension: int) -> KernelTerms:
        """The kernel between two data points, of variance `2 v_p`."""
        return self._terms([2 * v for v in self.v_p], dimension)

    def center_terms(self, dimension: int) -> KernelTerms:
        """The kernel between two centers, of variance `2 v_q`."""
        return self._terms([2 * v for v in self.v_q], dimension)

    def cross_terms(self, dimension: int, unit_norm: bool = False) -> KernelTerms:
        """The kernel between a data point and a center, of variance `v_p + v_q`.

        Args:
            dimension: Dimension of the points.
            unit_norm: Whether the Gaussians are scaled to unit norm, which keeps the block matrix
                of `R_F`, `P` and `R_G` positive definite when the variances differ.
        """
        if self.symmetric:
            return self._terms([2 * v for v in self.v_p], dimension)
        scales = [p + q for p, q in zip(self.v_p, self.v_q, strict=True)]
        if not unit_norm:
            return self._terms(scales, dimension)
        log_overlaps = [
            dimension / 2 * (math.log(2) + (_log(p) + _log(q)) / 2 - _log(s))
            for p, q, s in zip(self.v_p, self.v_q, scales, strict=True)
        ]
        return self._terms(scales, dimension, log_overlaps)

    def density_terms(self, dimension: int) -> KernelTerms:
        r"""The cross kernel of Gaussians of unit mass, in units in which `R_F` is the centers'.

        Two concentric ones then have the inner product $(2 v_q / (v_p + v_q))^{d/2}$.
        """
        scales = [p + q for p, q in zip(self.v_p, self.v_q, strict=True)]
        log_overlaps = [
            0.0 if self.symmetric else dimension / 2 * (math.log(2) + _log(q) - _log(s))
            for q, s in zip(self.v_q, scales, strict=True)
        ]
        return self._terms(scales, dimension, log_overlaps)

    def _terms(
        self,
        scales: Sequence[Scalar],
        dimension: int,
        log_overlaps: Sequence[Scalar] | None = None,
    ) -> KernelTerms:
        divisor = 2 * (dimension if self.per_dimension else 1)
        rates = [1 / (divisor * s) for s in scales]
        log_mean = -math.log(len(scales))
        return KernelTerms(
            _pack(rates), _pack([log_mean + o for o in log_overlaps or [0.0] * len(scales)])
        )


class MixedKernel(GaussianKernel):
    r"""The kernel of rows of numbers and codes: a Gaussian of numbers times 1 or $\rho$ per code.

    Rows hold scaled numbers first and codes last (categories, and whether a number is missing),
    all in one tensor; codes are only ever compared. The kernel is positive definite because it
    *is* the Gaussian of one-hot columns of height $s / \sqrt 2$, so whatever holds for the
    Gaussian (bounds, certificates, merging of sketches, losses over processes) holds for it. The
    squared distance is divided by the number of the user's columns.

    $$K(a, b) = \exp\Big(-\frac{\sum_k (a_k - b_k)^2 + s^2 \, \#\{j: c_j \ne c'_j\}}
        {2 d (v + v)}\Big)$$

    Args:
        v: Variance, or several whose kernels are averaged.
        layout: Which columns are codes, what a difference of codes adds, and `d`.

    Example:
        >>> kernel = MixedKernel(0.5, Layout(codes=1, mismatch=2.0, columns=2))
        >>> rows = torch.tensor([[0.0, 7.0], [1.0, 7.0], [0.0, 8.0]])
        >>> km.gram(rows, rows, kernel)[0]
        tensor([1.0000, 0.7788, 0.6065])
    """

    def __init__(self, v: Variance, layout: Layout) -> None:
        super().__init__(v)
        if not layout.mismatch > 0 or layout.codes < 0 or layout.columns < 1:
            raise VarianceError(
                f"{layout}: the distance between different codes must be positive."
            )
        self._layout = layout

    @property
    def layout(self) -> Layout:
        """Which columns are codes."""
        return self._layout

    def __repr__(self) -> str:
        numbers = super().__repr__().partition("(")[2]
        codes, mismatch, columns = self._layout
        return f"MixedKernel({numbers[:-1]}, {codes} codes, s^2={mismatch:.4g}, {columns} columns)"

    def _terms(
        self,
        scales: Sequence[Scalar],
        dimension: int,
        log_overlaps: Sequence[Scalar] | None = None,
    ) -> KernelTerms:
        if dimension < self._layout.codes:
            raise ShapeError(
                f"Rows have {dimension} columns, but the kernel takes the last "
                f"{self._layout.codes} of them as codes."
            )
        terms = super()._terms(scales, self._layout.columns, log_overlaps)
        return replace(terms, layout=self._layout)


Kernel: TypeAlias = GaussianKernel | Variance | VarianceRule  # what a user may give as `v`


def as_kernel(v: Kernel, x: Tensor) -> GaussianKernel:
    """Turn what a user may give as `v` into a kernel; a rule's name is applied to the data `x`.

    A tensor of several variances is refused: it could be meant for the points one by one.
    """
    if isinstance(v, GaussianKernel):
        return v
    if not isinstance(v, str | Sequence):
        shape = tuple(getattr(v, "shape", ()))
        if len(shape) == 1 and shape[0] > 1:
            raise VarianceError(
                f"v has shape {shape}: several variances can mean the average of their kernels "
                "or one variance for each point. For the average use km.GaussianKernel(v), or a "
                "list of numbers; Gaussians of different variances are a km.GaussianMixture."
            )
    return GaussianKernel(choose_variance(x, v) if isinstance(v, str) else v)


@torch.no_grad()
def choose_variance(
    x: Tensor,  # (*B, N, d)
    rule: VarianceRule = "median",
    per_dimension: bool = True,
    layout: Layout | None = None,
) -> Tensor:  # ()
    r"""Choose one variance `v` from data; all batch items share it.

    `"median"`: half the median squared distance between points that differ, so that the kernel
    $K_{2v}$ of the median pair is $e^{-1/2}$; at most 1000 points are used. `"silverman"`: $h^2 =
    (4 / (N (d + 2)))^{2 / (d + 4)} \bar\sigma^2$, the variance for which a kernel density estimate
    of a Gaussian is best; $\bar\sigma^2$ is the mean variance of the coordinates.

    Data that are all equal have no scale: the result is then 1, with a
    `kermix.errors.DegenerateDataWarning`.

    Example:
        >>> choose_variance(torch.tensor([[0.0], [1.0], [2.0], [2.0]]))
        tensor(0.5000)
    """
    check_option("rule", rule, ("median", "silverman"))
    check_samples("x", x)
    points = x.to(working_dtype(x)).reshape(-1, x.shape[-1])
    n, d = points.shape
    if rule == "silverman":
        # Around their middle the mean of far points does not round their spread away.
        centerd = points - points.median(0).values
        h2 = (4 / (n * (d + 2))) ** (2 / (d + 4)) * centerd.var(0, correction=0).mean()
        v = h2 / d if per_dimension else h2
    else:
        # Whatever the order of the points: a test that pools two samples must not tell them apart.
        points = points[symmetric_subset(points, BANDWIDTH_SUBSAMPLE)]
        if layout is None:
            squares = torch.nn.functional.pdist(points).square()
        else:
            above = torch.ones(2 * (len(points),), dtype=torch.bool, device=x.device).triu(1)
            squares, d = squared_distances(points, points, True, layout)[above], layout.columns
        v = squares[squares > 0].median() / (2 * d if per_dimension else 2)
    if not bool(v > 0):  # also true of the NaN that a median of nothing is
        warnings.warn(
            f"All {n} points are equal, so they have no scale; using the variance 1. Give a "
            "variance if you know one.",
            DegenerateDataWarning,
            stacklevel=2,
        )
        return torch.ones_like(v)
    return v


def variance_grid(
    points: Tensor,  # (N, d)
    count: int = 6,
    layout: Layout | None = None,
) -> tuple[float, ...]:
    r"""Variances from the fine to the coarse structure of data, evenly spaced in the logarithm.

    From the median squared distance to the $\sqrt N$-th neighbour to half the median
    squared distance, both divided by twice the dimension; at most 1000 points are looked at.

    Example:
        >>> [round(v, 3) for v in variance_grid(torch.linspace(0, 1, 101)[:, None], 3)]
        [0.002, 0.006, 0.023]
    """
    coarse = float(choose_variance(points, layout=layout)) / 2
    seen = points[symmetric_subset(points, BANDWIDTH_SUBSAMPLE)]
    rank = math.ceil(math.sqrt(len(seen)))
    squares = squared_distances(seen, seen, True, layout)
    squares = squares.sort(1).values[:, min(rank, len(seen) - 1)]
    d = points.shape[1] if layout is None else layout.columns
    fine = float(squares[squares > 0].median()) / (2 * d) if squares.any() else 0.0
    if not 0 < fine < coarse or count == 1:
        return (coarse,)
    ratio = (coarse / fine) ** (1 / (count - 1))
    return tuple(fine * ratio**k for k in range(count))


def mixed_kernel(
    points: Tensor, layout: Layout | None, v: Variance | None = None
) -> GaussianKernel:
    """The kernel of rows with a layout; without a variance, that of the median rule."""
    variance = choose_variance(points, layout=layout) if v is None else v
    if isinstance(variance, Tensor):
        variance = float(variance)
    return GaussianKernel(variance) if layout is None else MixedKernel(variance, layout)


def _log(value: Scalar) -> Scalar:
    return value.log() if isinstance(value, Tensor) else math.log(value)


def _pack(values: list[Scalar]) -> Numbers:
    tensors = [v for v in values if isinstance(v, Tensor)]
    if not tensors:
        return tuple(float(v) for v in values)
    like = tensors[0]
    return torch.stack([torch.as_tensor(v, dtype=like.dtype, device=like.device) for v in values])


def _checked_tensor(name: str, v: Tensor) -> Tensor:
    if v.ndim > 1:
        raise ShapeError(
            f"{name} has shape {tuple(v.shape)}; give one variance, or a list of them."
        )
    if not v.dtype.is_floating_point:
        raise VarianceError(f"{name} has dtype {v.dtype}; a variance is a real number.")
    _check_values(name, v)
    if not v.numel():
        raise VarianceError(f"{name} is empty; give at least one variance.")
    return v


def _checked(name: str, v: Variance) -> tuple[float, ...] | Tensor:
    """Variances as numbers, or as the tensor that they were given as."""
    if isinstance(v, Tensor):
        return _checked_tensor(name, v)
    if callable(v):
        raise KernelError(
            f"{name} is {v!r}, which is not a Gaussian kernel. Pass other kernels as kernel= to "
            "the costs, their losses, km.decompose and km.two_sample_test; features based on "
            "closed forms of Gaussians (two variances, sketches, km.compare) support no other."
        )
    try:
        given: Any = v.tolist() if hasattr(v, "tolist") else v
        numbers = tuple(map(float, given if isinstance(given, Sequence) else (given,)))
    except (TypeError, ValueError):
        raise VarianceError(
            f"{name} is {v!r}; give a positive number, a list of them, or a tensor."
        ) from None
    if not all(math.isfinite(u) and u > 0 for u in numbers):
        raise VarianceError(f"{name} is {v}; variances are positive and finite.")
    if not numbers:
        raise VarianceError(f"{name} is empty; give at least one variance.")
    return numbers


def _numbers(variances: tuple[float, ...] | Tensor) -> tuple[Scalar, ...]:
    if not isinstance(variances, Tensor):
        return variances
    _check_values("v", variances)  # a learned one may have changed
    # In float64 the derivative of 1 / v stays in range for very small variances.
    wide = variances if variances.device.type == "mps" else variances.double()
    return tuple(wide.reshape(-1).unbind())


def _check_values(name: str, v: Tensor) -> None:
    if is_concrete(v) and not bool((torch.isfinite(v) & (v > 0)).all()):
        raise VarianceError(f"{name} is {v.tolist()}; variances are positive and finite.")
