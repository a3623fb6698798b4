"""The four costs between data and centers, as functions.

All are maximized when the centers follow the data, and all are computed in log space: when data
and centers do not overlap the value underflows to zero, but its logarithm (`log=True`, and every
loss) is exact and has a gradient that pulls the two sets together. `statistics_of` finds the
source of statistics of what was given: points, mixtures, another kernel, or sketches. On a GPU,
where launching the kernels of a small cost takes longer than computing it, a cost of points is a
CUDA graph (`kermix.graphs`) after some calls of a kind, whoever makes them.
"""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, ParamSpec, TypeAlias

import torch
from torch import Tensor

from kermix.checks import (
    check_number,
    check_option,
    full_precision,
    is_traced,
    working_dtype,
)
from kermix.costs import formulas
from kermix.costs.components import ComponentStatistics
from kermix.costs.formulas import Weights
from kermix.costs.moments import MomentStatistics
from kermix.costs.points import (
    DEFAULTS,
    GaussianStatistics,
    KernelStatistics,
    Numerics,
    PointStatistics,
    SetStatistics,
)
from kermix.errors import KernelError, MissingExtraError, OptionError
from kermix.graphs import ReplayedCalls
from kermix.info import Info, informative
from kermix.kernels.gaussian import (
    GaussianKernel,
    Kernel,
    as_kernel,
)
from kermix.kernels.others import AnyKernel, as_point_kernel
from kermix.linalg.cholesky import Cholesky
from kermix.mixtures.sampled_mixture import Mixture
from kermix.settings import MatrixForm
from kermix.sketches.sketch import Sketch

__all__ = [
    "SVDMethod",
    "matrix_cost",
    "scalar_cost",
    "set_statistics",
    "statistics_of",
    "svd_cost",
    "vector_cost",
    "vector_weights",
]

SVDMethod: TypeAlias = Literal["auto", "svd", "polar", "sketch"]

SKETCH_ABOVE = {"cpu": 4096, "cuda": 20_000}


def statistics_of(
    x: Tensor | Mixture | Sketch,
    y: Tensor | Mixture | Sketch,
    v: Kernel | None = None,
    kernel: AnyKernel | None = None,
    weights: Weights = (None, None),
    numerics: Numerics = DEFAULTS,
    unit_norm: bool = False,
) -> SetStatistics | MomentStatistics:
    """The source of statistics of what a user gave.

    Args:
        x: Data.
        y: Centers.
        v: Variance of the Gaussian kernel.
        kernel: Another kernel.
        weights: Weights of the data and of the centers.
        numerics: How statistics are computed.
        unit_norm: Whether the kernel between points is that of functions of unit norm.
    """
    if not (isinstance(x, Sketch) or isinstance(y, Sketch)):
        return set_statistics(x, y, v, kernel, weights, numerics, unit_norm)
    if kernel is not None:
        raise KernelError(
            "kernel is given for a sketch, which has the Gaussian kernel it was made with; omit "
            "kernel, or give points."
        )
    if isinstance(x, Mixture) or isinstance(y, Mixture):
        name = "x" if isinstance(x, Sketch) else "y"
        raise OptionError(
            f"{name} is a sketch and the other argument is a mixture, but a sketch only has "
            "moments of points. Give the points instead of the sketch, or points of the "
            "mixture: mixture.sample((1000,))."
        )
    if v is not None:
        raise OptionError(
            "v is given for a sketch, which has the kernel it was made with; omit v."
        )
    return MomentStatistics.of_sketches(x, y, weights, numerics.ridge)


def set_statistics(
    x: Tensor | Mixture,
    y: Tensor | Mixture,
    v: Kernel | None = None,
    kernel: AnyKernel | None = None,
    weights: Weights = (None, None),
    numerics: Numerics = DEFAULTS,
    unit_norm: bool = False,
) -> SetStatistics:
    """The source of statistics of points and mixtures; arguments are those of `statistics_of`."""
    if kernel is not None and v is not None:
        raise OptionError("v and kernel are both given; give only one.")
    if isinstance(kernel, GaussianKernel):
        v, kernel = kernel, None
    mixtures = isinstance(x, Mixture) or isinstance(y, Mixture)
    if kernel is not None:
        if mixtures:
            raise KernelError(
                "kernel is given for a mixture, but inner products of its Gaussians have a "
                "closed form only for the Gaussian kernel. Omit kernel, or draw points: "
                "mixture.sample((1000,))."
            )
        named = as_point_kernel(kernel)
        return KernelStatistics(x, y, named, weights, numerics, unit_norm)  # type: ignore[arg-type]
    if mixtures:
        return ComponentStatistics(x, y, v, weights, numerics)
    scale: Literal["norm", "kernel"] = "norm" if unit_norm else "kernel"
    return PointStatistics(x, y, v, weights, numerics, scale)  # type: ignore[arg-type]


Arguments = ParamSpec("Arguments")
CALLS = ReplayedCalls()
SAMPLES = ("x", "y", "weights_x", "weights_y")


def by_graph(
    compute: Callable[..., tuple[Tensor, Info]], args: tuple[Any, ...], options: dict[str, Any]
) -> Tensor | None:
    """The cost of points on a GPU, by a graph if it was asked often; None: as it is."""
    first = args[0] if args else options.get("x")
    if not (isinstance(first, Tensor) and first.is_cuda):
        return None
    return graphed(compute, args, options)


def graphed(
    compute: Callable[..., tuple[Tensor, Info]], args: tuple[Any, ...], options: dict[str, Any]
) -> Tensor | None:
    """The same of any device, if it is what a graph can hold."""
    settings = _settings(compute, args, options)
    if settings is None:
        return None
    samples = [settings.pop(name) for name in SAMPLES]
    v, kernel = settings.pop("v"), settings.pop("kernel", None)
    if isinstance(kernel, GaussianKernel) and v is None:
        v, kernel = kernel, None
    if v is None or kernel is not None or not (_few_points(samples) and _looks_at_none(settings)):
        return None
    found = as_kernel(v, samples[0])
    if type(found) is not GaussianKernel:
        return None
    variances = _Variances.of(found)

    def again(tensors: Sequence[Tensor | None], numbers: Sequence[float] | Tensor) -> Tensor:
        x, y, *weights = tensors[: len(SAMPLES)]
        same = variances.kernel(tensors[len(SAMPLES) :], numbers)
        named = dict(zip(SAMPLES[2:], weights, strict=True))
        return compute(x, y, same, **named, **settings)[0]

    how = (compute.__name__, variances.how, *sorted(settings.items()))
    return CALLS.value(again, [*samples, *variances.tensors], variances.numbers, how)


def _settings(
    compute: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]
) -> dict[str, Any] | None:
    """All arguments by their names; None where Python refuses the call, in its own words."""
    usual, named = _defaults(compute), dict(zip(("x", "y", "v"), args, strict=False))
    found = {**usual, **named, **options}
    whole = len(args) <= 3 and not named.keys() & options.keys()
    return found if whole and found.keys() == usual.keys() else None


@functools.cache
def _defaults(compute: Callable[..., Any]) -> dict[str, Any]:
    """Of all parameters; those that have none are no tensors."""
    return {p.name: p.default for p in inspect.signature(compute).parameters.values()}


def _few_points(samples: Sequence[Any], most: int = 4608) -> bool:
    """Whether these are two sets, and weights, of which launches take a share of the time."""
    given = [t for t in samples if t is not None]
    return (
        all(isinstance(t, Tensor) for t in given)
        and [t.ndim for t in given] == [2, 2] + [1] * len(given[2:])
        and min(len(t) for t in given[:2]) >= 2
        and math.prod(len(t) for t in given[:2]) <= most**2
        and working_dtype(*given) == torch.float32
    )


def _looks_at_none(settings: dict[str, Any]) -> bool:
    """Whether no value is looked at on the way, and settings are what calls are told apart by."""
    return (
        settings.get("method", "auto") in ("auto", "polar")
        and settings.get("form") != "logdet"
        and all(o is None or isinstance(o, bool | int | float | str) for o in settings.values())
    )


# Makes a cost informative, and one of few points on a GPU a single launch.
replayed = functools.partial(informative, shorter=by_graph)


@dataclass(frozen=True)
class _Variances:
    """Variances of the data and of the centers, which change in the course of a training.

    A graph has them among its numbers, or its tensors where somebody learns them.
    """

    parts: list[tuple[float, ...] | Tensor | None]
    per_dimension: bool

    @classmethod
    def of(cls, kernel: GaussianKernel) -> "_Variances":
        """Those of a kernel; as numbers where the host knows them."""
        known = [
            isinstance(u, Tensor) and not (u.is_cuda or u.requires_grad) for u in kernel.given
        ]
        parts = [tuple(u.reshape(-1).tolist()) if host else u  # type: ignore[union-attr]
                 for u, host in zip(kernel.given, known, strict=True)]  # fmt: skip
        return cls(parts, kernel.per_dimension)

    @property
    def numbers(self) -> tuple[float, ...]:
        """All that are numbers."""
        return tuple(u for part in self.parts if isinstance(part, tuple) for u in part)

    @property
    def tensors(self) -> list[Tensor | None]:
        """All that are tensors, in their places."""
        return [part if isinstance(part, Tensor) else None for part in self.parts]

    @property
    def how(self) -> tuple[Any, ...]:
        """What they do not have in common with others of the same shapes."""
        counts = (len(part) if isinstance(part, tuple) else None for part in self.parts)
        return (self.per_dimension, *counts)

    def kernel(
        self, tensors: Sequence[Tensor | None], numbers: Sequence[float] | Tensor
    ) -> GaussianKernel:
        """The kernel of other variances of this kind."""
        found: list[Any] = []
        first = 0
        for part, tensor in zip(self.parts, tensors, strict=True):
            count = len(part) if isinstance(part, tuple) else 0
            found.append(numbers[first : first + count] if isinstance(part, tuple) else tensor)
            first += count
        return GaussianKernel(found[0], found[1], self.per_dimension)


@replayed
def scalar_cost(
    x: Tensor | Mixture | Sketch,  # (*B, N, d)
    y: Tensor | Mixture | Sketch,  # (*B, K, d)
    v: Kernel | None = None,
    *,
    kernel: AnyKernel | None = None,
    weights_x: Tensor | None = None,  # (*B, N)
    weights_y: Tensor | None = None,  # (*B, K)
    normalized: bool = False,
    log: bool = False,
    chunk: int | None = None,
) -> tuple[Tensor, Info]:  # (*B,)
    r"""Scalar (Cauchy-Schwarz) cost $\langle p, q\rangle^2 / \langle q, q\rangle$, Prop. 4.

    Bounded by $\langle p, p\rangle$; divided by it, the cost is $e^{-D_{CS}}$ with the
    Cauchy-Schwarz divergence $D_{CS}$. No Gram matrix is stored: time is quadratic in the number
    of points, memory is not. Without overlap the gradient of the logarithm moves every center
    towards the data nearest to it.

    For a mixture, the density is its own, $p = \sum_n a_n N(m_n, S_n)$, and inner products are
    exact. The value is divided by $\sum_n a_n \|N(m_n, S_n)\|^2$ of the data, the constant that is
    dropped for points: if all Gaussians share one variance, the value equals that of the means as
    weighted points. Normalized, the divergence is that of `GaussianMixture.cauchy_schwarz`.

    Args:
        x: Data, a mixture, or a sketch of them.
        y: Centers, a mixture, or a sketch of them.
        v: Variance, several of them, a rule that finds one from the data, or a Gaussian kernel;
            None if both arguments are mixtures, or one is a sketch. If only one is a mixture, the
            variance of the points in the other.
        kernel: Kernel to use instead of the Gaussian, such as `kermix.LaplaceKernel`, or a
            function of two sets of points that returns their Gram matrix; then omit `v`. Means and
            second moments are then those in its feature space; a bound that involves the kernel's
            diagonal uses its weighted mean.
        weights_x: Non-negative weights of the data; they are divided by their sum.
        weights_y: Weights of the centers.
        normalized: Whether to return the form in [0, 1].
        log: Whether to return the natural logarithm.
        chunk: Side of the tiles in which the kernel is evaluated; smaller tiles need less memory.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> scalar_cost(x, x, 0.5, normalized=True)
        tensor(1.)
    """
    numerics, weights = Numerics(chunk=chunk), (weights_x, weights_y)
    sides = statistics_of(x, y, v, kernel, weights, numerics, unit_norm=normalized)
    with full_precision(sides.device):
        found = formulas.log_scalar_cost(sides, normalized), Info("tiles")
        return sides.answer("scalar", found, normalized, log)


@replayed
def vector_cost(
    x: Tensor | Mixture | Sketch,  # (*B, N, d)
    y: Tensor | Mixture | Sketch,  # (*B, K, d)
    v: Kernel | None = None,
    *,
    kernel: AnyKernel | None = None,
    weights_x: Tensor | None = None,  # (*B, N)
    weights_y: Tensor | None = None,  # (*B, K)
    ridge: float | None = None,
    normalized: bool = False,
    log: bool = False,
    chunk: int | None = None,
) -> tuple[Tensor, Info]:  # (*B,)
    r"""Vector-matrix cost $P_1^\top R_F^{-1} P_1$ with $P_1 = P a$, Proposition 5.

    How well the centers' Gaussians predict the data density with the best weights,
    `vector_weights`. Bounded by $\langle p, p\rangle$. Weights of the centers do not change what
    can be predicted; they matter only through the ridge, with each Gaussian scaled by $\sqrt{K
    b_k}$. Without overlap the gradient of the logarithm moves the centers nearest to the data.

    If the centers are a mixture, the Gaussians are its components, whose scale does not matter:
    they have unit norm. If the data are a mixture, it is the density `p`, in the units of
    `scalar_cost`.

    Args:
        x: Data, a mixture, or a sketch of them.
        y: Centers, a mixture, or a sketch of them.
        v: Variance, several of them, a rule that finds one from the data, or a Gaussian kernel;
            None if both arguments are mixtures, or one is a sketch. If only one is a mixture, the
            variance of the points in the other.
        kernel: Kernel to use instead of the Gaussian, such as `kermix.LaplaceKernel`, or a
            function of two sets of points that returns their Gram matrix; then omit `v`.
        weights_x: Non-negative weights of the data; they are divided by their sum.
        weights_y: Weights of the centers.
        ridge: Added to the diagonal of `R_F`, relative to its mean; by default 1e-6 for float64
            samples and for sketches, 1e-4 for others. Systems are solved in float64 for both.
        normalized: Whether to return the form in [0, 1].
        log: Whether to return the natural logarithm.
        chunk: Side of the tiles in which the cross kernel is evaluated; smaller tiles need less
            memory.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> vector_cost(x, x, 0.5, ridge=0.0, normalized=True)
        tensor(1., dtype=torch.float64)
    """
    numerics, weights = Numerics(solves=True, ridge=ridge, chunk=chunk), (weights_x, weights_y)
    sides = statistics_of(x, y, v, kernel, weights, numerics, unit_norm=normalized)
    with full_precision(sides.device):
        found = formulas.log_vector_cost(sides, normalized)
        return sides.answer("vector", found, normalized, log)


def vector_weights(
    x: Tensor | Mixture,  # (*B, N, d)
    y: Tensor | Mixture,  # (*B, K, d)
    v: Kernel | None = None,
    *,
    weights_x: Tensor | None = None,  # (*B, N)
    ridge: float | None = None,
    nonnegative: bool = False,
    chunk: int | None = None,
) -> Tensor:  # (*B, K)
    r"""Weights with which the centers' Gaussians best predict the data density.

    The weights `w` that minimize $\int (\sum_n a_n N(z; x_n, v_p) - \sum_k w_k N(z; y_k, v_q))^2
    dz$, some of which may be negative. For equal variances they are $R_F^{-1} P_1$, otherwise $(2
    v_q / (v_p + v_q))^{d/2}$ times that. (For an average of kernels, they minimize the sum of
    these errors, each divided by the squared norm of a center's Gaussian.) With `nonnegative=True`
    the error is minimized over non-negative weights, which are then divided by their sum, giving a
    density (not differentiable; needs SciPy).

    For mixtures, the weights are those of the components' own Gaussians: the weights of `y` matter
    only through the ridge, and a component with zero weight keeps it.

    Example:
        >>> x = torch.tensor([[0.0], [0.1], [5.0]], dtype=torch.float64)
        >>> vector_weights(x, torch.tensor([[0.0], [5.0]], dtype=torch.float64), 0.1)
        tensor([0.6584, 0.3333], dtype=torch.float64)
    """
    numerics, weights = Numerics(solves=True, ridge=ridge, chunk=chunk), (weights_x, None)
    sides: GaussianStatistics
    if isinstance(x, Mixture) or isinstance(y, Mixture):
        sides = ComponentStatistics(x, y, v, weights, numerics)
    else:
        sides = PointStatistics(x, y, v, weights, numerics, "mass")
    with full_precision(sides.device):
        projection, log_scale = sides.projection()
        factor = sides.factor_y()
        if nonnegative:
            found = _nonnegative_weights(projection, factor)
        else:
            solution = factor.solve(projection.unsqueeze(-1)).squeeze(-1)
            found = solution * log_scale.exp().unsqueeze(-1)
        log_masses = sides.log_masses()
        if log_masses is not None:
            found = found * log_masses.exp()
        if nonnegative:
            found = found / found.sum(-1, keepdim=True)
        return sides.in_callers_dtype(found)


@replayed
def matrix_cost(
    x: Tensor | Mixture | Sketch,  # (*B, N, d)
    y: Tensor | Mixture | Sketch,  # (*B, K, d)
    v: Kernel | None = None,
    *,
    kernel: AnyKernel | None = None,
    form: MatrixForm = "trace",
    weights_x: Tensor | None = None,  # (*B, N)
    weights_y: Tensor | None = None,  # (*B, K)
    ridge: float | None = None,
    normalized: bool = False,
    log: bool = False,
) -> tuple[Tensor, Info]:  # (*B,)
    r"""Matrix-matrix cost, Proposition 6: how well two sets of Gaussians predict each other.

    | form           | value                                           | bound       |
    | -------------- | ----------------------------------------------- | ----------- |
    | `"trace"`      | $\mathrm{tr}(R_G^{-1} P^\top R_F^{-1} P)$       | `min(N, K)` |
    | `"data_fixed"` | $\mathrm{tr}(P^\top R_F^{-1} P)$                | `N`         |
    | `"logdet"`     | $\log\det R_{FG} - \log\det R_F - \log\det R_G$ | at most 0   |

    The trace is the sum of the squared canonical correlations $s_k^2$, and the log-determinant,
    which is minimized, is $\sum_k \log(1 - s_k^2)$. Weights scale the Gaussians by $\sqrt{N a_n}$
    and $\sqrt{K b_k}$, which matters only through the ridge, except that in `"data_fixed"` data
    are weighted by $N a_n$. Without overlap the gradient of the logarithm acts on the nearest
    pairs.

    The paper calls the trace that of the Schur complement. With whitened sets the Schur complement
    of $R_F$ in the joint Gram matrix is $I - R_G^{-1/2} P^\top R_F^{-1} P R_G^{-1/2}$, what is
    left unpredicted: the cost is `N` minus its trace.

    For mixtures the Gaussians are the components, each with unit norm, so that the bounds hold.

    Args:
        x: Data, a mixture, or a sketch of them.
        y: Centers, a mixture, or a sketch of them.
        v: Variance, several of them, a rule that finds one from the data, or a Gaussian kernel;
            None if both arguments are mixtures, or one is a sketch. If only one is a mixture, the
            variance of the points in the other.
        kernel: Kernel to use instead of the Gaussian, such as `kermix.LaplaceKernel`, or a
            function of two sets of points that returns their Gram matrix; then omit `v`.
        form: Which of the three forms.
        weights_x: Non-negative weights of the data; they are divided by their sum.
        weights_y: Weights of the centers.
        ridge: Added to the diagonals of `R_F` and `R_G`, relative to their means; by default
            1e-6 for float64 samples and for sketches, 1e-4 for others. Systems are solved in
            float64 for all.
        normalized: Whether to divide by the bound; not for `"logdet"`, which has none.
        log: Whether to return the natural logarithm; for `"logdet"`, of the negative value.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
        >>> round(matrix_cost(x, x, 0.5, ridge=0.0).item(), 9)
        2.0
    """
    check_option("form", form, ("trace", "data_fixed", "logdet"))
    if normalized and form == "logdet":
        raise OptionError(
            "normalized=True with form='logdet': the log-determinant has no lower bound. "
            "Use form='trace', whose normalized value is the mean squared canonical correlation."
        )
    numerics, weights = Numerics(solves=True, ridge=ridge), (weights_x, weights_y)
    unit_norm = normalized or form == "logdet"
    sides = statistics_of(x, y, v, kernel, weights, numerics, unit_norm)
    with full_precision(sides.device):
        found = formulas.log_matrix_cost(sides, form, normalized)
        value, info = sides.answer("matrix", found, normalized, log)
        return -value if form == "logdet" and not log else value, info


@replayed
def svd_cost(
    x: Tensor | Mixture | Sketch,  # (*B, N, d)
    y: Tensor | Mixture | Sketch,  # (*B, K, d)
    v: Kernel | None = None,
    *,
    kernel: AnyKernel | None = None,
    weights_x: Tensor | None = None,  # (*B, N)
    weights_y: Tensor | None = None,  # (*B, K)
    method: SVDMethod = "auto",
    tolerance: float = 1e-4,
    rank: int | None = None,
    normalized: bool = False,
    log: bool = False,
) -> tuple[Tensor, Info]:  # (*B,)
    r"""SVD cost $\|P\|_* = \sum_k \sigma_k(P)$, Proposition 7, the nuclear norm.

    Bounded by $\sqrt{N K}$. With weights, the nuclear norm of
    $\mathrm{diag}(\sqrt b) P \, \mathrm{diag}(\sqrt a)$, bounded by 1. Normalized, it is the
    fidelity $F$ of the two distributions: $\sqrt{2 - 2F}$ is the Bures distance
    between their kernel covariance operators, and for a very small variance $F$ is the
    Bhattacharyya coefficient. Symmetric in `x` and `y`. Without overlap the gradient of the
    logarithm acts on the nearest pairs.

    For mixtures `P` holds the inner products of the components, each with unit norm; they have
    weights, so this is the form bounded by 1. (For components of unit mass, multiply the weights
    by the squared norms, which are proportional to $\det S_k^{-1/2}$.) If data and centers have
    different variances, it is $(2 \sqrt{v_p v_q} / (v_p + v_q))^{d/2}$ times the cost of the means
    as points.

    Args:
        x: Data, a mixture, or a sketch of them.
        y: Centers, a mixture, or a sketch of them.
        v: Variance, several of them, a rule that finds one from the data, or a Gaussian kernel;
            None if both arguments are mixtures, or one is a sketch. If only one is a mixture, the
            variance of the points in the other.
        kernel: Kernel to use instead of the Gaussian, such as `kermix.LaplaceKernel`, or a
            function of two sets of points that returns their Gram matrix; then omit `v`.
        weights_x: Non-negative weights of the data; they are divided by their sum.
        weights_y: Weights of the centers; uniform if only the data have weights.
        method: How the nuclear norm is computed: `"svd"` or `"polar"`, see `kermix.nuclear_norm`,
            or `"sketch"`: linear in the number of points, through Nystrom features of both sets.
            `"auto"` chooses between the first two, and tries the third if both sets have more than
            4096 points (20 000 on a GPU) and equal variances, and uses it if its error bound is
            within the tolerance.
        tolerance: Relative error allowed for `"polar"`, `"sketch"` and `"auto"`.
        rank: Number of features for `"sketch"`; by default as many as the tolerance requires.
        normalized: Whether to return the form in [0, 1].
        log: Whether to return the natural logarithm.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> x = torch.tensor([[0.0], [1.0]])
        >>> svd_cost(x, x + 0.5, 0.1), svd_cost(x, x + 0.5, 0.1, normalized=True)
        (tensor(1.1953), tensor(0.5976))
    """
    check_option("method", method, ("auto", "svd", "polar", "sketch"))
    check_number("tolerance", tolerance)
    if not 0 < tolerance < 1:
        raise OptionError(f"tolerance={tolerance}: a relative error must be between 0 and 1.")
    dense_method = "auto" if method == "sketch" else method
    numerics = Numerics(method=dense_method, tolerance=tolerance)
    # K of v_p + v_q is a kernel by itself, whose fidelity is in [0, 1] without the unit norm.
    of_kernel = kernel is not None and normalized
    given = statistics_of(x, y, v, kernel, (weights_x, weights_y), numerics, of_kernel)
    sides = _sketched(given, method, tolerance, rank)
    with full_precision(sides.device):
        found = formulas.log_svd_cost(sides, normalized)
        value, info = sides.answer("svd", found, normalized, log)
        return given.in_callers_dtype(value), info  # sketches were made in float32 at least


def _sketched(
    sides: SetStatistics | MomentStatistics, method: SVDMethod, tolerance: float, rank: int | None
) -> SetStatistics | MomentStatistics:
    """The same sides, or sketches of them: if asked for, or worth a try and exact enough."""
    if isinstance(sides, MomentStatistics):
        if method not in ("auto", "sketch"):
            raise OptionError(f"method={method!r} needs samples as both arguments, not a sketch.")
        return sides
    if not isinstance(sides, PointStatistics):
        if method == "sketch":
            of = f"kernel={sides.kernel}" if isinstance(sides, KernelStatistics) else "a mixture"
            raise KernelError(
                f"method='sketch' needs points and the Gaussian kernel, and {of} is given."
            )
        return sides
    if method != "sketch" and not (method == "auto" and _large(sides)):
        return sides
    if rank is not None:
        return MomentStatistics.of_points(sides, None, rank)
    return _exact_enough(sides, method, tolerance)


def _exact_enough(
    sides: PointStatistics, method: SVDMethod, tolerance: float, attempts: int = 3
) -> PointStatistics | MomentStatistics:
    """Sketches with an error within the tolerance; else, if nobody asked for them, the points."""
    most = round(sum(sides.sizes)) if method == "sketch" else round(min(sides.sizes)) // 4
    residual = tolerance / 4
    for _ in range(attempts if method == "sketch" else 1):
        sketched = MomentStatistics.of_points(sides, residual, most)
        error = sketched.svd_error()
        if error <= tolerance:
            return sketched
        # The bound is proportional to the residual.
        residual *= tolerance / error / 4
    if method == "auto":
        return sides
    raise OptionError(
        f"method='sketch' does not reach tolerance={tolerance}: its error bound is {error:.1e} "
        f"with {len(sketched.x.mean)} features. Allow a larger tolerance, give the rank, or "
        "use method='polar' or 'svd'."
    )


def _large(sides: PointStatistics) -> bool:
    """Whether a sketch is worth a try: large sets of one variance, not under a transform."""
    x, y = sides.data.points, sides.centers.points
    return (
        sides.kernel.symmetric  # features stand for one kernel
        and x.ndim == y.ndim == 2
        and min(len(x), len(y)) > SKETCH_ABOVE.get(x.device.type, 4096)
        and not is_traced(x, y)
        and not (x.is_cuda and torch.cuda.is_current_stream_capturing())
    )


def _nonnegative_weights(projection: Tensor, factor: Cholesky) -> Tensor:  # (*B, K)
    try:
        from scipy.optimize import nnls
    except ImportError:
        raise MissingExtraError(
            "Non-negative weights need SciPy: pip install 'kermix[scipy]'."
        ) from None
    # |L^T w - L^{-1} P|^2 differs from the squared error of the density by a constant.
    target = factor.whiten(projection.unsqueeze(-1)).squeeze(-1)
    flat_factors = factor.factor.detach().reshape(-1, *factor.factor.shape[-2:]).cpu().numpy()
    flat_targets = target.detach().reshape(-1, target.shape[-1]).cpu().numpy()
    solutions = [nnls(f.T, t)[0] for f, t in zip(flat_factors, flat_targets, strict=True)]
    weights = torch.stack([torch.from_numpy(w) for w in solutions]).to(target)
    return weights.reshape(target.shape)
