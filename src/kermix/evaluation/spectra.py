r"""Eigenvalues of the kernel between samples, what a sketch leaves open, and modes of differences.

With $k(x, x) = 1$ the matrix $K / n$ of n samples has eigenvalues
$\lambda_1 \ge \lambda_2 \ge \ldots \ge 0$ that sum to 1. Nystrom features reproduce a part
of it, $\hat K \preceq K$, whose eigenvalues $\hat\lambda_i$ are those of the features'
second moment, and leave out $R = (K - \hat K) / n \succeq 0$ of the known trace `t`. By
Weyl $\lambda_i \ge \hat\lambda_i$, and all excesses together are `t`. Among such spectra
one majorizes all others, $\hat\lambda + t e_1$, and one is majorized by all others: the `t`
poured onto the smallest values up to one level. Every entropy lies between those of the two, and
both can occur: given what a sketch knows, no bounds are narrower. The variance is as fine as so
many samples can resolve: the finest at which the score is stable. Eigenfunctions of a difference
of second moments, $C_x - \eta C_y$, are the modes that one sample has more often.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kermix.checks import (
    check_number,
    check_option,
    check_samples,
    finite_in,
    normalized_weights,
    rows_at_once,
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
    "RESIDUAL",
    "RULES",
    "NovelMode",
    "Spectrum",
    "StableRule",
    "check_eta",
    "checked_points",
    "chosen_kernel",
    "diversity_of",
    "effective_number",
    "feature_map_of",
    "modes_of",
    "normalized_gram",
    "novelty_of",
    "novelty_score",
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


def diversity_of(spectrum: Spectrum, order: float = 1.0) -> tuple[Tensor, Tensor | None]:
    """The score of a spectrum and its error bound; the middle of the interval of a sketch."""
    if not spectrum.certified:
        return effective_number(spectrum.eigenvalues, order), None
    interval = number_interval(spectrum, order)
    assert interval is not None
    if spectrum.left_out == 0:
        value = effective_number(spectrum.eigenvalues, order)
    else:
        value = (interval.lowest * interval.highest).sqrt()
    bound = torch.maximum(interval.highest - value, value - interval.lowest).clamp(min=0)
    return value, bound.detach()


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


def novelty_of(x: Moments, y: Moments, eta: float) -> Tensor:  # (r, r)
    r"""$C_x - \eta C_y$ in features."""
    return x.plain_second - eta * y.plain_second


def novelty_score(values: Tensor) -> Tensor:
    """The score of the eigenvalues, of which the positive ones count."""
    positive = values.clamp(min=0)
    return (torch.special.entr(positive).sum() - torch.special.entr(positive.sum())).clamp(min=0)


@dataclass(frozen=True)
class NovelMode:
    """A mode that is more frequent in one sample than in another.

    Attributes:
        mass: The eigenvalue: the share of `x` minus `eta` times the share of `y` in its
            eigenfunction, which covers only a part of a mode that is not narrow.
        share: Share of `x` in the eigenfunction.
        share_elsewhere: Share of `y` in it.
        rows: Share of the rows of `x` in the mode: those with a score above half of the best.
        exemplars: Rows of `x` that are most typical of it, the best first.
        scores: The eigenfunction at these rows; 1 at the center of a narrow mode.
    """

    mass: float
    share: float
    share_elsewhere: float
    rows: float
    exemplars: tuple[int, ...]
    scores: tuple[float, ...]

    @property
    def excess(self) -> float:
        """Approximate share of the rows of `x` in excess: its rows minus those expected."""
        return self.rows * self.mass / max(self.share, 1e-12)


def modes_of(
    x: Moments,
    y: Moments,
    feature_map: FeatureMap,
    rows: Tensor,
    eta: float,
    count: int,
    exemplars: int,
    least: float = 0.0,
) -> list[tuple[NovelMode, Tensor]]:
    """Modes of a mass above `least`, with exemplars among rows of `x`, and which rows are in."""
    values, vectors = torch.linalg.eigh(novelty_of(x, y, eta))
    least = max(least, 1e-9)
    kept = [k for k in range(len(values) - 1, -1, -1) if float(values[k]) > least]
    kept = kept[: 2 * count + 10]
    if not kept:
        return []
    values, vectors = values[kept], vectors[:, kept]
    parts = rows.split(rows_at_once(feature_map.rank))
    scores = torch.cat([feature_map(part) @ vectors for part in parts])
    turn = _untangled(scores, values)
    vectors, scores = vectors @ turn, scores @ turn
    shares = [torch.einsum("rk,rs,sk->k", vectors, m.plain_second, vectors) for m in (x, y)]
    masses = shares[0] - eta * shares[1]
    sign = torch.where(scores.sum(0) < 0, -1.0, 1.0)
    scores = scores * sign
    found: list[tuple[NovelMode, Tensor]] = []
    taken: list[int] = []
    for k in masses.argsort(descending=True).tolist():
        best = scores[:, k].topk(min(exemplars, len(rows)))
        # Only samples that are in the mode more than outside of it.
        inside = [j for j, s in enumerate(best.values.tolist()) if s > best.values[0] / 2]
        in_others = scores[best.indices[inside]][:, taken].mean(0) / scores[:, taken].amax(0)
        if bool((in_others > PART_OF).any()):
            continue
        taken.append(k)
        members = scores[:, k] > best.values[0] / 2
        mode = NovelMode(
            float(masses[k]),
            float(shares[0][k]),
            max(0.0, float(shares[1][k])),
            float(members.double().mean()),
            tuple(int(best.indices[j]) for j in inside),
            tuple(float(best.values[j]) for j in inside),
        )
        found.append((mode, members))
    return found[:count]


def _untangled(
    scores: Tensor, values: Tensor, near: float = 4.0
) -> Tensor:  # (N, k), (k,) -> (k, k)
    """A rotation among eigenvectors of near eigenvalues, after which samples are in few modes.

    Eigenvalues that are less than so many times as large as others have eigenvectors that mix.
    """
    k = len(values)
    turn = torch.eye(k, dtype=scores.dtype, device=scores.device)
    start = 0
    while start < k:
        stop = start + 1
        while stop < k and float(values[start]) < near * float(values[stop]):
            stop += 1
        if stop - start > 1:
            turn[start:stop, start:stop] = _varimax(scores[:, start:stop])
        start = stop
    return turn


def _varimax(scores: Tensor, rotations: int = 100) -> Tensor:  # (N, k) -> (k, k)
    """The rotation that makes the fourth powers of scores largest (quartimax of the rows)."""
    turn = torch.eye(scores.shape[1], dtype=scores.dtype, device=scores.device)
    last = -1.0
    for _ in range(rotations):
        turned = scores @ turn
        u, s, vh = torch.linalg.svd(scores.mT @ turned.pow(3))
        turn = u @ vh
        if float(s.sum()) <= last * (1 + 1e-10):
            break
        last = float(s.sum())
    return turn


def check_eta(eta: float) -> None:
    """Refuse what cannot be how often."""
    check_number("eta", eta)
    if not 0 <= eta < math.inf:
        raise OptionError(f"eta={eta}: must be a non-negative number.")


StableRule: TypeAlias = Literal["stable"]
RULES = ("median", "silverman", "stable")

# Reasoned, no record.
PART_OF = 0.25  # of a mode's best score: rows above are in it, and no mode of their own
RESIDUAL = 1e-3  # of features of novelty
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


def _some(points: Tensor, count: int, seed: int) -> Tensor:
    if len(points) <= count:
        return points.double()
    generator = torch.Generator().manual_seed(seed)
    return points[torch.randperm(len(points), generator=generator)[:count]].double()
