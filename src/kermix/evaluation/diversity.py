r"""How many different samples there are, and what one sample has and another has not.

Vendi score and RKE are effective numbers of the eigenvalues of a kernel matrix. Entropic novelty
(KEN) is of the positive eigenvalues of $C_x - \eta C_y$, a difference of second moments in the
kernel's space: the masses of modes that `x` has more than $\eta$ times as often as `y`; their
eigenfunctions are large at the samples of the mode.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.checks import check_count, check_number, check_pair, check_weights, rows_at_once
from kermix.errors import OptionError, WeightError
from kermix.evaluation.spectra import (
    EXACT_UP_TO,
    Aim,
    Spectrum,
    StableRule,
    checked_points,
    checked_tolerance,
    chosen_kernel,
    effective_number,
    fine_sketches,
    normalized_gram,
    number_interval,
    refuse_beside_sketch,
    residual_for,
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

__all__ = [
    "NovelMode",
    "check_eta",
    "diversity_of",
    "ken",
    "novel_modes",
    "novelty_of",
    "novelty_score",
    "rke",
    "vendi",
]


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


def _relative_error(spectrum: Spectrum, order: float) -> float:
    value, bound = diversity_of(spectrum, order)
    return math.inf if bound is None else float(bound / value)


# Reasoned, no record.
RESIDUAL, MOST_FEATURES = 1e-3, 512
PART_OF = 0.25  # of a mode's best score: rows above are in it, and no mode of their own


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
        scores: The eigenfunction at these rows; 1 at the centre of a narrow mode.
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


def novelty_of(x: Moments, y: Moments, eta: float) -> Tensor:  # (r, r)
    r"""$C_x - \eta C_y$ in features."""
    return x.plain_second - eta * y.plain_second


def novelty_score(values: Tensor) -> Tensor:
    """The score of the eigenvalues, of which the positive ones count."""
    positive = values.clamp(min=0)
    return (torch.special.entr(positive).sum() - torch.special.entr(positive.sum())).clamp(min=0)


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


def _pair(x: object, y: object) -> tuple[Tensor, Tensor]:
    first, second = checked_points("x", x), checked_points("y", y)
    check_pair(first, second)
    return first, second


def _rank(sketch: Sketch) -> int:
    return sketch.feature_map.rank


def check_eta(eta: float) -> None:
    """Refuse what cannot be how often."""
    check_number("eta", eta)
    if not 0 <= eta < math.inf:
        raise OptionError(f"eta={eta}: must be a non-negative number.")
