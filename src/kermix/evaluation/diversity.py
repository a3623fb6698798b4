r"""How many different samples there are, and what one sample has and another has not.

Vendi score and RKE are effective numbers of the eigenvalues of a kernel matrix. Entropic novelty
(KEN) is of the positive eigenvalues of $C_x - \eta C_y$, a difference of second moments in the
kernel's space: the masses of modes that `x` has more than $\eta$ times as often as `y`; their
eigenfunctions are large at the samples of the mode.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.checks import check_count, check_number, check_pair, check_seed, check_weights
from kermix.errors import OptionError, WeightError
from kermix.evaluation.spectra import (
    EXACT_UP_TO,
    RESIDUAL,
    NovelMode,
    Spectrum,
    StableRule,
    check_eta,
    checked_points,
    chosen_kernel,
    diversity_of,
    feature_map_of,
    modes_of,
    normalized_gram,
    novelty_of,
    novelty_score,
    refuse_beside_sketch,
    spectrum_of_matrix,
    spectrum_of_sketch,
    told_in,
)
from kermix.info import Info, informative
from kermix.kernels.gaussian import (
    GaussianKernel,
    Kernel,
)
from kermix.kernels.others import AnyKernel, PointKernel
from kermix.sketches.accumulation import Moments
from kermix.sketches.features import FeatureMap
from kermix.sketches.sketch import Sketch, check_comparable

__all__ = ["Aim", "ken", "novel_modes", "rke", "vendi"]


@informative
def vendi(
    x: Tensor | Sketch,  # (N, d)
    v: Kernel | StableRule | None = None,
    *,
    kernel: AnyKernel | None = None,
    weights: Tensor | None = None,  # (N,)
    order: float = 1.0,
    tolerance: float | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Info]:
    r"""Vendi score: the effective number of distinct samples, from 1 to N.

    $$\exp\Big(-\sum_i \lambda_i \log \lambda_i\Big)$$

    with the eigenvalues $\lambda_i$ of $K / N$. A variance `v` stands for the kernel of the costs,
    $k(a, b) = \exp(-\|a - b\|^2 / (4 v d))$ in `d` dimensions: the Gaussian of standard deviation
    $\sigma = \sqrt{2 v d}$. Other kernels are normalized to $k(x, x) = 1$.

    Up to 2000 samples the kernel matrix is decomposed, and the score is differentiable. For more
    samples, and for sketches, the score lies in a certified interval (see the page Mathematics);
    the value is the geometric mean of its ends, and `return_info=True` adds the error bound and
    the rank. Memory and time are linear in N. Sketches with Fourier features have no bound.

    Args:
        x: Samples, or a sketch of them.
        v: Variance, several of them, `"median"`, `"silverman"`, `"stable"`
            (`stable_variance`), or a Gaussian kernel; None for a sketch.
        kernel: Another kernel, such as `kermix.CosineKernel` or
            `kermix.PolynomialKernel`, instead of `v`.
        weights: Of the samples.
        order: Of the Renyi entropy; `math.inf` for the inverse of the largest eigenvalue.
        tolerance: Certified relative error to reach; raises an error if it is not reached. By
            default 1 % is aimed for, with at most 1024 features.
        rank: Number of features, instead.
        seed: Of the landmarks.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> x = torch.tensor([[0.0], [0.0], [9.0], [9.0]])
        >>> vendi(x, 0.1)
        tensor(2.)
    """
    spectrum, dtype, info = _spectrum(x, v, kernel, weights, order, tolerance, rank, seed)
    value, bound = told_in(dtype, *diversity_of(spectrum, order))
    return value, info._replace(error_bound=bound)


@informative
def rke(
    x: Tensor | Sketch,  # (N, d)
    v: Kernel | StableRule | None = None,
    *,
    kernel: AnyKernel | None = None,
    weights: Tensor | None = None,  # (N,)
    tolerance: float | None = None,
    rank: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Info]:
    r"""Renyi kernel entropy: the number of modes, $1 / \|K / N\|_F^2$.

    The exponential of the entropy of order 2, so `vendi` with `order=2`: frequent modes count more
    than in the Vendi score, and it needs fewer samples. Arguments are those of `vendi`.

    Example:
        >>> rke(torch.tensor([[0.0], [0.0], [9.0], [9.0]]), 0.1)
        tensor(2.)
    """
    return vendi(
        x,
        v,
        kernel=kernel,
        weights=weights,
        order=2.0,
        tolerance=tolerance,
        rank=rank,
        seed=seed,
        return_info=True,
    )


def _spectrum(
    x: Tensor | Sketch,
    v: Kernel | StableRule | None,
    kernel: AnyKernel | None,
    weights: Tensor | None,
    order: float,
    tolerance: float | None,
    rank: int | None,
    seed: int,
) -> tuple[Spectrum, torch.dtype, Info]:
    check_number("order", order)
    if not order > 0:
        raise OptionError(f"order={order}: orders of entropies are positive.")
    checked_tolerance(tolerance)
    if isinstance(x, Sketch):
        refuse_beside_sketch(v=v, kernel=kernel, weights=weights, tolerance=tolerance, rank=rank)
        found, dtype = spectrum_of_sketch(x), x.feature_map.parameters.dtype
        return found, dtype, Info("sketch", rank=x.feature_map.rank)
    points = checked_points("x", x)
    if weights is not None:
        check_weights("weights", weights, points)
        if weights.ndim != 1:
            raise WeightError(f"weights has shape {tuple(weights.shape)}; give ({len(points)},).")
    chosen = chosen_kernel(v, kernel, points)
    if rank is None and len(points) <= EXACT_UP_TO:
        return spectrum_of_matrix(normalized_gram(points, chosen, weights)), x.dtype, Info("dense")
    aim = Aim(
        residual_for(2 * math.log1p(0.01 if tolerance is None else tolerance), len(points)),
        lambda made: _relative_error(spectrum_of_sketch(made[0]), order),
        tolerance,
    )
    with torch.no_grad():
        (sketch,) = fine_sketches([points], chosen, [weights], aim, rank, seed)
    info = Info("sketch", rank=sketch.feature_map.rank)
    return spectrum_of_sketch(sketch), x.dtype, info


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


def _relative_error(spectrum: Spectrum, order: float) -> float:
    value, bound = diversity_of(spectrum, order)
    return math.inf if bound is None else float(bound / value)


# Reasoned, no record.
MOST_FEATURES = 512


@informative
def ken(
    x: Tensor | Sketch,  # (N, d)
    y: Tensor | Sketch,  # (M, d)
    v: Kernel | StableRule | None = None,
    *,
    kernel: AnyKernel | None = None,
    eta: float = 1.0,
    rank: int | None = None,
    seed: int = 0,
) -> tuple[Tensor, Info]:
    r"""Kernel entropic novelty: mass and variety of what `x` has more often than `y`.

    $$\sum_{\lambda_i > 0} \lambda_i \log \frac{S}{\lambda_i}, \qquad
        S = \sum_{\lambda_i > 0} \lambda_i,$$

    for the eigenvalues of $C_x - \eta C_y$: the mass `S` of the novel part times the entropy of
    its modes. A single novel mode has the score 0, whatever its mass; `novel_modes` returns masses
    and samples. The kernel is that of `vendi`.

    Up to 2000 samples in total, the eigenvalues are exact. For more, and for sketches, the score
    is an estimate: the residual of a difference of operators has no definite sign, so
    `return_info=True` adds only the square-root bound, which is wide; see the page Mathematics.

    Args:
        x: Samples that may have something new, or a sketch of them.
        y: The reference, or a sketch of it.
        v: As in `vendi`; a rule is applied to both sets together.
        kernel: As in `vendi`.
        eta: How many times more frequent in `x` than in `y` a mode must be to count; usually at
            least 1; larger values find only what is strongly novel.
        rank: Number of features; by default as many as a residual of 0.001 requires, up to 512.
        seed: Random seed of the landmarks.
        return_info: Whether to return also how the value was computed, a `kermix.info.Info`.

    Example:
        >>> x = torch.tensor([[0.0], [5.0], [9.0], [9.0]])
        >>> round(ken(x, x[2:], 0.01).item(), 4)  # two modes of mass 1/4 are new
        0.3466
    """
    check_eta(eta)
    sketched = isinstance(x, Sketch) or isinstance(y, Sketch)
    if not sketched and rank is None:
        first, second = _pair(x, y)
        if len(first) + len(second) <= EXACT_UP_TO:
            pooled = torch.cat([first.double(), second.double()])
            values = _exact(pooled, len(first), chosen_kernel(v, kernel, pooled), eta)
            score = novelty_score(values)
            # A root of the matrix, of norm up to N, has N parts that are rounded.
            slip = 8 * (1 + eta) * len(pooled) ** 2 * torch.finfo(torch.float64).eps
            score, wide = told_in(first.dtype, score, _score_slip(slip, len(first)))
            return score, Info("dense", error_bound=wide)
    one, two = novelty_sketches(x, y, v, kernel=kernel, rank=rank, seed=seed)
    values = torch.linalg.eigvalsh(novelty_of(one.moments, two.moments, eta))
    bound = _ken_bound(one.moments, two.moments, eta)
    dtype = next((s.dtype for s in (x, y) if isinstance(s, Tensor)), torch.float64)
    score, bound = told_in(dtype, novelty_score(values), bound)
    return score, Info("sketch", None, bound, _rank(one))


@torch.no_grad()
def novel_modes(
    x: Tensor,  # (N, d)
    y: Tensor | Sketch,  # (M, d)
    v: Kernel | StableRule | None = None,
    *,
    kernel: AnyKernel | None = None,
    eta: float = 1.0,
    count: int = 10,
    exemplars: int = 5,
    rank: int | None = None,
    seed: int = 0,
) -> tuple[NovelMode, ...]:
    """Modes that are more frequent in `x` than in `y`, the largest first, with samples of each.

    Modes of nearly equal mass have mixed eigenfunctions; they are rotated (varimax) so that each
    sample belongs to as few modes as possible. A mode that is not narrow has further
    eigenfunctions for its parts; they are left out.

    Args:
        x: Samples that may have something new.
        y: The reference, or a sketch of it, which then also has the kernel.
        v: As in `ken`.
        kernel: As in `ken`.
        eta: As in `ken`. With 1, a rare novel mode may rank below chance differences of common
            ones; with 2, for example, these do not count.
        count: Maximum number of modes.
        exemplars: Number of samples of each mode.
        rank: As in `ken`.
        seed: Random seed of the landmarks.

    Example:
        >>> x = torch.tensor([[0.0], [5.0], [5.0], [9.0], [9.0]])
        >>> [(round(m.mass, 3), m.exemplars) for m in novel_modes(x, x[3:], 0.01, exemplars=2)]
        [(0.4, (1, 2)), (0.2, (0,))]
    """
    check_eta(eta)
    check_count("count", count)
    check_count("exemplars", exemplars)
    checked_points("x", x)
    one, two = novelty_sketches(x, y, v, kernel=kernel, rank=rank, seed=seed)
    found = modes_of(one.moments, two.moments, one.feature_map, x, eta, count, exemplars)
    return tuple(mode for mode, _ in found)


def novelty_sketches(
    x: Tensor | Sketch,
    y: Tensor | Sketch,
    v: Kernel | StableRule | None,
    *,
    kernel: AnyKernel | None,
    rank: int | None,
    seed: int,
) -> tuple[Sketch, Sketch]:
    """Sketches of both with one map: given ones as they are, samples beside one with its map."""
    known = x if isinstance(x, Sketch) else y if isinstance(y, Sketch) else None
    if known is not None:
        refuse_beside_sketch(v=v, kernel=kernel, rank=rank)
        made = [
            s if isinstance(s, Sketch) else Sketch(known.feature_map).update(checked_points(n, s))
            for n, s in (("x", x), ("y", y))
        ]
        check_comparable(*made)
        return made[0], made[1]
    first, second = _pair(x, y)
    chosen = chosen_kernel(v, kernel, torch.cat([first, second]))
    aim = Aim(RESIDUAL, most=MOST_FEATURES)
    made = fine_sketches([first, second], chosen, [None, None], aim, rank, seed)
    return made[0], made[1]


def _exact(pooled: Tensor, n: int, kernel: GaussianKernel | PointKernel, eta: float) -> Tensor:
    matrix = normalized_gram(pooled, kernel, None) * len(pooled)
    values, vectors = torch.linalg.eigh(matrix)
    features = vectors * values.clamp(min=0).sqrt()
    shares = torch.full((len(pooled), 1), 1 / n, dtype=torch.float64)
    shares[n:] = -eta / (len(pooled) - n)
    return torch.linalg.eigvalsh(features.mT @ (shares.to(features) * features))


def _ken_bound(x: Moments, y: Moments, eta: float) -> Tensor | None:
    r"""The square-root bound: $\|C - P C P\|_1 \le 2 \sqrt{t (1 - t)} + t$ for each."""
    if x.slack is None or y.slack is None:
        return None
    change = 0.0
    for moments, times in ((x, 1.0), (y, eta)):
        assert moments.slack is not None
        t = min(1.0, float(moments.slack))
        change += times * (2 * math.sqrt(t * (1 - t)) + t)
    return _score_slip(change, x.size)


def _score_slip(change: float, count: float) -> Tensor:
    """How much the score of at most `count` positive eigenvalues changes, if they do in all.

    The entropy of a number changes by no more than that of the change, where this is below one
    half, and entropies of parts are largest if all parts are equal.
    """
    if change >= 0.5:
        return torch.tensor(math.inf, dtype=torch.float64)
    count = max(2.0, count)
    found = change * math.log(count / change) - change * math.log(change) if change else 0.0
    return torch.tensor(found, dtype=torch.float64)


def _pair(x: object, y: object) -> tuple[Tensor, Tensor]:
    first, second = checked_points("x", x), checked_points("y", y)
    check_pair(first, second)
    return first, second


def _rank(sketch: Sketch) -> int:
    return sketch.feature_map.rank
