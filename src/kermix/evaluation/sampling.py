"""From samples to sketches that are fine enough: which kernel, which landmarks, how many."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias

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
from kermix.costs.functions import Kernel
from kermix.errors import OptionError, ShapeError
from kermix.kernels.gaussian import GaussianKernel, as_kernel
from kermix.kernels.others import AnyKernel, PointKernel, kernel_matrix
from kermix.sketches.features import FeatureMap, nystrom_features
from kermix.sketches.kernel_features import kernel_features, unit_kernel
from kermix.sketches.sketch import Sketch

__all__ = [
    "CANDIDATES",
    "EXACT_UP_TO",
    "VarianceRule",
    "checked_points",
    "chosen_kernel",
    "feature_map_of",
    "fine_sketches",
    "normalized_gram",
    "refuse_beside_sketch",
    "told_in",
]

VarianceRule: TypeAlias = Literal["stable"]
RULES = ("median", "silverman", "stable")

EXACT_UP_TO = 2000  # samples, whose kernel matrix is decomposed
CANDIDATES = 20_000
MOST_FEATURES = 1024  # where nothing else is asked for
MOST_FOR_TOLERANCE = 4096
ATTEMPTS = 3


def checked_points(name: str, x: Any) -> Tensor:
    """Samples of shape (N, d), checked."""
    check_samples(name, x)
    if x.ndim != 2:
        raise ShapeError(f"{name} has shape {tuple(x.shape)}; give one set of shape (N, d).")
    return x


def chosen_kernel(
    v: Kernel | VarianceRule | None, kernel: AnyKernel | None, points: Tensor
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
        from kermix.evaluation.variances import stable_variance

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


def fine_sketches(
    sides: Sequence[Tensor],
    kernel: GaussianKernel | PointKernel,
    weights: Sequence[Tensor | None],
    residual: float,
    error: Callable[[Sequence[Sketch]], float],
    wanted: float | None,
    rank: int | None,
    seed: int = 0,
    most: int = MOST_FEATURES,
) -> list[Sketch]:
    """Sketches of samples whose certified error is as small as wanted, or of the rank asked for.

    Args:
        sides: Sets of samples, sketched with one map.
        kernel: The kernel.
        weights: Of each set.
        residual: The mean residual to begin with.
        error: The certified error of sketches.
        wanted: The largest error; None: as good as `most` features are.
        rank: Number of features, instead.
        seed: Of the landmarks.
        most: How many features where no error is wanted.
    """
    check_seed(seed)
    if rank is not None:
        check_count("rank", rank)
        if wanted is not None:
            raise OptionError("rank and tolerance are both given; give only one.")
        return _sketched(sides, feature_map_of(sides, kernel, rank, None, seed), weights)
    most = most if wanted is None else min(MOST_FOR_TOLERANCE, max(len(s) for s in sides))
    for _ in range(ATTEMPTS):
        made = _sketched(sides, feature_map_of(sides, kernel, most, residual, seed), weights)
        found = error(made)
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
