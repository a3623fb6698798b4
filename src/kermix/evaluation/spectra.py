r"""Eigenvalues of the kernel between samples, what a sketch leaves open, and sketches fine enough.

With $k(x, x) = 1$ the matrix $K / n$ of n samples has eigenvalues
$\lambda_1 \ge \lambda_2 \ge \ldots \ge 0$ that sum to 1. Nystrom features reproduce a part
of it, $\hat K \preceq K$, whose eigenvalues $\hat\lambda_i$ are those of the features'
second moment, and leave out $R = (K - \hat K) / n \succeq 0$ of the known trace `t`. By
Weyl $\lambda_i \ge \hat\lambda_i$, and all excesses together are `t`. Among such spectra
one majorizes all others, $\hat\lambda + t e_1$, and one is majorized by all others: the `t`
poured onto the smallest values up to one level. Every entropy lies between those of the two, and
both can occur: given what a sketch knows, no bounds are narrower. The variance is as fine as so
many samples can resolve: the finest at which the score is stable.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kermix.checks import (
    check_count,
    check_number,
    check_option,
    check_samples,
    check_seed,
    finite_in,
    normalized_weights,
)
from kermix.costs.moments import Interval
from kermix.errors import OptionError, ShapeError
from kermix.kernels.gaussian import (
    GaussianKernel,
    Kernel,
    as_kernel,
    choose_variance,
)
from kermix.kernels.gram import gram_matrix
from kermix.kernels.others import AnyKernel, PointKernel, kernel_matrix
from kermix.sketches.accumulation import (
    Moments,
    rounding_slip,
)
from kermix.sketches.features import FeatureMap, nystrom_features
from kermix.sketches.kernel_features import kernel_features, unit_kernel
from kermix.sketches.sketch import Sketch

__all__ = [
    "CANDIDATES",
    "EXACT_UP_TO",
    "Aim",
    "Spectrum",
    "StableRule",
    "checked_points",
    "chosen_kernel",
    "effective_number",
    "feature_map_of",
    "fine_sketches",
    "normalized_gram",
    "number_interval",
    "refuse_beside_sketch",
    "spectrum_of_moments",
    "stable_variance",
    "told_in",
]


class Spectrum(NamedTuple):
    """Eigenvalues of a kernel matrix of trace 1, or of the part of it that features hold."""

    eigenvalues: Tensor  # (r,), descending, none negative
    left_out: float  # trace of what the features do not hold
    size: float  # number of samples: no more eigenvalues are positive
    rounding: float  # bound of the sum of the eigenvalues' errors by rounding
    certified: bool = True  # False: errors of the features are not known


def spectrum_of_matrix(matrix: Tensor) -> Spectrum:
    """The spectrum of a kernel matrix of trace 1, differentiable."""
    found = torch.linalg.eigvalsh(matrix).flip(-1).clamp(min=0)
    rounding = 8.0 * len(matrix) * torch.finfo(matrix.dtype).eps
    return Spectrum(found, 0.0, float(len(matrix)), rounding)


@torch.no_grad()
def spectrum_of_moments(moments: Moments) -> Spectrum:
    """What a sketch knows of the spectrum."""
    found = torch.linalg.eigvalsh(moments.plain_second).flip(-1).clamp(min=0)
    found = found[: max(1, int(min(len(found), moments.size)))]
    held = float(found.sum())
    if moments.residual is None:
        # Fourier features have squares that sum to 1, but for rounding.
        return Spectrum(found / max(held, 1e-300), 0.0, moments.size, 0.0, certified=False)
    left_out = max(0.0, 1 - held)
    rounding = 4 * rounding_slip(moments) + abs(left_out - float(moments.residual))
    return Spectrum(found, left_out, moments.size, rounding)


def spectrum_of_sketch(sketch: Sketch) -> Spectrum:
    """The same of a sketch."""
    return spectrum_of_moments(sketch.moments)


def effective_number(values: Tensor, order: float = 1.0) -> Tensor:
    r"""Exponential of the Renyi entropy, $(\sum \lambda^q)^{1/(1-q)}$; of Shannon's for 1.

    Example:
        >>> round(effective_number(torch.full((5,), 0.2)).item(), 6)
        5.0
    """
    if order == 1:
        # The derivative of the entropy at zero is infinite, and zeros do not count.
        return torch.special.entr(values.clamp(min=1e-300)).sum().exp()
    if math.isinf(order):
        return 1 / values.max()
    return values.clamp(min=0).pow(order).sum().pow(1 / (1 - order))


@torch.no_grad()
def number_interval(spectrum: Spectrum, order: float = 1.0) -> Interval | None:
    """What holds the effective number of all eigenvalues; None without a certificate."""
    if not spectrum.certified:
        return None
    values, t = spectrum.eigenvalues.detach(), spectrum.left_out
    concentrated = values.clone()
    concentrated[0] += t
    lowest = _entropy(concentrated, order)
    level = _water_level(values, t, spectrum.size)
    more = max(0.0, spectrum.size - len(values))
    highest = _entropy(values.clamp(min=level), order, more, level)
    slip = _entropy_slip(spectrum, order, min(float(lowest), float(highest)))
    most = math.log(max(1.0, spectrum.size))
    return Interval(
        (lowest - slip).clamp(0, most).exp(), (highest + slip).clamp(0, most).exp()
    )  # fmt: skip


def _water_level(values: Tensor, amount: float, count: float) -> float:
    """The level to which the smallest of `count` values can be raised with an amount."""
    below = values.flip(0).cumsum(0).flip(0)  # sum of each value and all smaller ones
    zero = values.new_zeros(1)
    sums = torch.cat([below, zero])
    places = torch.arange(len(values) + 1, dtype=values.dtype, device=values.device)
    levels = (amount + sums) / (count - places).clamp(min=1)
    fits = levels >= torch.cat([values, zero])
    if count <= len(values):
        fits[-1] = False  # no value is left to be raised
    return float(levels[int(fits.to(torch.int8).argmax())])


def _entropy(values: Tensor, order: float, more: float = 0.0, level: float = 0.0) -> Tensor:
    """Renyi entropy of values, and of `more` values that are all at a level; they sum to 1."""
    level_ = values.new_tensor(level)
    if order == 1:
        return torch.special.entr(values).sum() + more * torch.special.entr(level_)
    if math.isinf(order):
        return -torch.maximum(values.max(), level_).log()
    return (values.pow(order).sum() + more * level_.pow(order)).log() / (1 - order)


def _entropy_slip(spectrum: Spectrum, order: float, entropy: float) -> float:
    r"""How much errors of the eigenvalues, $\theta$ in all, change their entropy at most.

    Shannon's by $T \log n + h(T)$ with $T = \theta$ (Fannes and Audenaert, who have
    half of it, for spectra that sum to 1); a sum of powers by $q \theta$, or by
    $n^{1 - q} \theta^q$ for q < 1.
    """
    theta, n = min(spectrum.rounding, 0.5), max(2.0, spectrum.size)
    if theta == 0:
        return 0.0
    if order == 1:
        return theta * math.log(n) - theta * math.log(theta) - (1 - theta) * math.log1p(-theta)
    if math.isinf(order):
        return -math.log(max(1e-300, 1 - theta / math.exp(-entropy)))
    change = order * theta if order > 1 else n ** (1 - order) * theta**order
    # Relative to the sum of powers, which is exp((1 - q) H).
    share = change * math.exp((order - 1) * entropy)
    return math.inf if share >= 1 else -math.log1p(-share) / abs(1 - order)


@torch.no_grad()
def stable_variance(x: Tensor, change: float = 0.05) -> float:  # (N, d)
    r"""The smallest variance whose Vendi score can be estimated from this many samples.

    With a very small variance all samples are distinct, and the score grows with their number;
    with a very large one all are alike. In between, this chooses the smallest variance for which
    the score of all samples is at most `change` (relative) above that of half of them. At most 800
    samples are used; which ones depends neither on their order nor on their units. Equal samples
    have no scale: the result is then 1, with a `kermix.errors.DegenerateDataWarning`.

    Args:
        x: Samples, shape (N, d); stack several sets that should share one variance.
        change: Relative change of the score that counts as stable.

    Example:
        >>> x = torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
        >>> 0.05 < stable_variance(x) < 2
        True
    """
    check_samples("x", x)
    check_number("change", change)
    if not 0 < change < 1:
        raise OptionError(f"change={change}: a relative change must be between 0 and 1.")
    points = x.reshape(-1, x.shape[-1]).double()
    order = _order_of_values(points)
    drawn = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:800]
    points = points[order[drawn.to(order.device)]]
    middle = float(choose_variance(points))
    if len(points) < 4 or bool((points == points[0]).all()):
        return middle
    low, high = 1e-4 * middle, 4.0 * middle
    for _ in range(10):  # so the variance is known to one percent
        tried = (low * high) ** 0.5
        low, high = (low, tried) if _is_stable(points, tried, change) else (tried, high)
    return high


def _order_of_values(points: Tensor) -> Tensor:  # (N, d) -> (N,)
    """Rows from the smallest to the largest, by the first column in which they differ.

    Neither the order of rows nor the unit of their numbers matters: hashes of numbers would be
    others for grams than for kilograms.
    """
    rank = torch.zeros(len(points), dtype=torch.int64, device=points.device)
    for column in points.mT:
        place = column.unique(return_inverse=True)[1]
        rank = (rank * len(points) + place).unique(return_inverse=True)[1]
        if int(rank.max()) == len(points) - 1:
            break
    return rank.argsort(stable=True)


def _is_stable(points: Tensor, v: float, change: float) -> bool:
    terms = GaussianKernel(v).cross_terms(points.shape[1])
    matrix = gram_matrix(points, points, terms, points.dtype)
    whole, one, other = (
        effective_number(torch.linalg.eigvalsh(part / len(part)))
        for part in (matrix, matrix[::2, ::2], matrix[1::2, 1::2])
    )
    return bool(whole <= (1 + change) * (one * other).sqrt())


StableRule: TypeAlias = Literal["stable"]
RULES = ("median", "silverman", "stable")

# Reasoned, no record.
EXACT_UP_TO = 2000  # samples, whose kernel matrix is decomposed
CANDIDATES = 20_000


def checked_points(name: str, x: Any) -> Tensor:
    """Samples of shape (N, d), checked."""
    check_samples(name, x)
    if x.ndim != 2:
        raise ShapeError(f"{name} has shape {tuple(x.shape)}; give one set of shape (N, d).")
    return x


def chosen_kernel(
    v: Kernel | StableRule | None, kernel: AnyKernel | None, points: Tensor
) -> GaussianKernel | PointKernel:
    """The kernel that `v` or `kernel` means, with ones on its diagonal.

    A rule, or the scale of a kernel that leaves it to the data, is applied to the points.
    """
    if kernel is not None:
        if v is not None:
            raise OptionError(
                "v and kernel are both given, but v is the variance of a Gaussian kernel."
            )
        return kernel if isinstance(kernel, GaussianKernel) else unit_kernel(kernel, points)
    if v is None:
        raise OptionError(
            "Give a variance v (a number, 'median' or 'stable'), or a kernel such as "
            "km.CosineKernel()."
        )
    if isinstance(v, str):
        check_option("v", v, RULES)
    if isinstance(v, str) and v == "stable":
        return GaussianKernel(stable_variance(points))
    found = as_kernel(v, points)
    if not found.symmetric:
        raise OptionError(f"{found}: scores of samples have one variance; leave v_q out.")
    return found


def told_in(
    dtype: torch.dtype, value: Tensor, bound: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """A score in the dtype of the samples, and its error bound with what that rounds away.

    Example:
        >>> told_in(torch.float32, torch.tensor(0.1, dtype=torch.float64), torch.tensor(0.0))[1]
        tensor(1.4901e-09, dtype=torch.float64)
    """
    told = finite_in(value, dtype)
    if bound is not None:
        bound = bound + (told.detach().double() - value.detach().double()).abs()
    return told, bound


def refuse_beside_sketch(**given: object) -> None:
    """Refuse options of samples where a sketch, which has its kernel and rank, is given."""
    said = [name for name, value in given.items() if value is not None]
    if said:
        raise OptionError(
            f"{', '.join(said)} given for a sketch, which has the kernel, the weights and the "
            "rank it was made with; omit it."
        )


def normalized_gram(
    points: Tensor, kernel: GaussianKernel | PointKernel, weights: Tensor | None
) -> Tensor:  # (N, N)
    r"""The matrix $\sqrt{w_i w_j} \, k(x_i, x_j)$ of trace 1, in float64."""
    terms = kernel.cross_terms(points.shape[1]) if isinstance(kernel, GaussianKernel) else kernel
    matrix = kernel_matrix(points, points, terms, torch.float64)
    if weights is None:
        return matrix / len(points)
    roots = normalized_weights("weights", weights, points).double().sqrt()
    return matrix * roots[:, None] * roots


def feature_map_of(
    sides: Sequence[Tensor],
    kernel: GaussianKernel | PointKernel,
    rank: int,
    tolerance: float | None,
    seed: int,
) -> FeatureMap:
    """Features with landmarks from all sides, as many candidates of each."""
    each = CANDIDATES // len(sides)
    pooled = torch.cat([_some(side.detach(), each, seed) for side in sides])
    rank = min(rank, len(pooled))
    if isinstance(kernel, GaussianKernel):
        return nystrom_features(pooled, kernel, rank, tolerance, candidates=len(pooled), seed=seed)
    return kernel_features(pooled, kernel, rank, tolerance, len(pooled), seed)


class Aim(NamedTuple):
    """How good sketches shall be.

    Attributes:
        residual: The mean residual to begin with.
        error: The certified error of sketches.
        wanted: The largest error; None: as good as `most` features are.
        most: How many features where no error is wanted.
        most_for_wanted: How many where one is.
        attempts: To reach it.
    """

    residual: float
    error: Callable[[Sequence[Sketch]], float] = lambda _: 0.0
    wanted: float | None = None
    most: int = 1024
    most_for_wanted: int = 4096
    attempts: int = 3


def fine_sketches(
    sides: Sequence[Tensor],
    kernel: GaussianKernel | PointKernel,
    weights: Sequence[Tensor | None],
    aim: Aim,
    rank: int | None,
    seed: int = 0,
) -> list[Sketch]:
    """Sketches of samples whose certified error is as small as wanted, or of the rank asked for.

    Args:
        sides: Sets of samples, sketched with one map.
        kernel: The kernel.
        weights: Of each set.
        aim: What is wanted.
        rank: Number of features, instead.
        seed: Of the landmarks.
    """
    check_seed(seed)
    wanted, residual = aim.wanted, aim.residual
    if rank is not None:
        check_count("rank", rank)
        if wanted is not None:
            raise OptionError("rank and tolerance are both given; give only one.")
        return _sketched(sides, feature_map_of(sides, kernel, rank, None, seed), weights)
    most = aim.most
    if wanted is not None:
        most = min(aim.most_for_wanted, max(len(s) for s in sides))
    for _ in range(aim.attempts):
        made = _sketched(sides, feature_map_of(sides, kernel, most, residual, seed), weights)
        found = aim.error(made)
        if wanted is None or found <= wanted:
            return made
        if made[0].feature_map.rank >= most:
            break
        residual *= wanted / found / 2
    raise OptionError(
        f"tolerance={wanted:g} is not reached: the certified error is {found:.2g} with "
        f"{made[0].feature_map.rank} features. Allow a larger one, give a rank, or use a larger "
        "variance."
    )


def residual_for(log_width: float, count: int) -> float:
    """The mean residual `t` for which the entropy is known to a width: t log(n / t), about."""
    t = log_width / math.log(max(3.0, count))
    for _ in range(20):
        t = log_width / math.log(max(3.0, count / t))
    return t / 1.5  # rows that are no candidates have larger residuals


def checked_tolerance(tolerance: float | None) -> None:
    """Refuse what is no relative error."""
    if tolerance is not None:
        check_number("tolerance", tolerance)
        if not 0 < tolerance < 1:
            raise OptionError(f"tolerance={tolerance}: a relative error must be between 0 and 1.")


def _sketched(
    sides: Sequence[Tensor], features: FeatureMap, weights: Sequence[Tensor | None]
) -> list[Sketch]:
    return [Sketch(features).update(s, w) for s, w in zip(sides, weights, strict=True)]


def _some(points: Tensor, count: int, seed: int) -> Tensor:
    if len(points) <= count:
        return points.double()
    generator = torch.Generator().manual_seed(seed)
    return points[torch.randperm(len(points), generator=generator)[:count]].double()
