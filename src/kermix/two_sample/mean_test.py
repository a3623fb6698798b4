"""A test of equal kernel means from sketches alone, at its level also for few or unequal rows.

Two things can spoil the level. Rows that landmarks were chosen from fit them better than others
do: they are left out, unless the landmarks leave out so little of the kernel that their choice
cannot matter. And rows with rare features decide a mean of few rows: the whitening is damped in
proportion to how unequal the samples are, see `mean_test`.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.sketches.accumulation import FeatureSums
from kermix.sketches.sketch import Sketch, check_comparable
from kermix.two_sample.column_scores import FEWEST_ROWS
from kermix.two_sample.cost_statistics import COST_RIDGE

__all__ = ["MeanTest", "mean_test"]

# Reasoned, no record.
DAMPING = 10.0
LARGEST_SHARE = 0.25  # degrees of freedom for each row
# Features that leave out a tenth of the ridge miss a tenth of a degree of freedom at most.
NEGLIGIBLE_RESIDUAL = 0.1 * COST_RIDGE


class MeanTest(NamedTuple):
    """A test of equal kernel means; `if_same` is the MMD to be expected of equal sources."""

    mmd: float
    if_same: float
    pvalue: float | None
    note: str | None = None  # why there is no p-value, or what it leaves out


@torch.no_grad()
def mean_test(x: Sketch, y: Sketch) -> MeanTest:
    r"""Whether two sketches have equal means of features, from their moments alone.

    With $\delta$ the difference of the means and $\Sigma$ the pooled covariance of
    the features, whose eigenvalues are $\lambda_i$, the statistic is
    $T = \delta^\top (\Sigma + \epsilon)^{-1} \delta / (1/n + 1/m)$. Under permutations of
    the $N = n + m$ rows it has the mean $N/(N-1) \sum_i w_i$ with
    $w_i = \lambda_i / (\lambda_i + \epsilon)$ and, were all rows of equal weight in it, the
    variance $2 (\sum w_i^2 - (\sum w_i)^2 / (N - 1))$; for normal features without
    $\epsilon$, $T/N$ has a beta distribution with these moments. The p-value matches
    them and the third cumulant (Hall, Buckley, Eagleson).

    Rows are not of equal weight: what unequal samples add to the variance is, relative to it, at
    most $(n - m)^2 / (2 n m N \epsilon)$, and $\epsilon$ is large enough to keep that
    below a twentieth. It also keeps $\sum w_i$ below a quarter of the rows.

    Rows that the landmarks were chosen from are left out. There is no p-value, but a note that
    says why, if fewer than ten rows of a sketch are left, if it is not known which rows these
    are, and where rows have weights.

    Example:
        >>> x = torch.randn(4000, 1, generator=torch.Generator().manual_seed(0))
        >>> features = km.nystrom_features(x, 0.5, rank=20, tolerance=1e-6)
        >>> a, b, c = (km.Sketch(features).update(p) for p in (x[:2000], x[2000:], x[2000:] + 0.2))
        >>> mean_test(a, b).pvalue > 0.001, mean_test(a, c).pvalue < 1e-4
        (True, True)
    """
    check_comparable(x, y)
    rotated, values = _difference(x.sums, y.sums)
    distance = float(torch.linalg.vector_norm(rotated.difference))
    if_same = math.sqrt(float(values.sum()) * (1 / x.count + 1 / y.count))
    if x.weighted or y.weighted:
        return MeanTest(distance, if_same, None, "none, because rows have weights.")
    used, note = _rows_to_test(x, y)
    if used is None:
        return MeanTest(distance, if_same, None, note)
    return MeanTest(distance, if_same, _pvalue(*used), note)


class _Rotated(NamedTuple):
    difference: Tensor  # (r,), of the means, in the eigenvectors of the pooled covariance
    rows: tuple[float, float]


def _difference(a: FeatureSums, b: FeatureSums) -> tuple[_Rotated, Tensor]:
    """The difference of the means, and the eigenvalues of the pooled covariance."""
    total = a.total + b.total
    mean = (a.first + b.first) / total
    covariance = (a.second + b.second) / total - torch.outer(mean, mean)
    values, vectors = torch.linalg.eigh(covariance)
    difference = vectors.mT @ (a.first / a.total - b.first / b.total)
    return _Rotated(difference, (float(a.total), float(b.total))), values.clamp(min=0)


def _rows_to_test(
    x: Sketch, y: Sketch
) -> tuple[tuple[FeatureSums, FeatureSums] | None, str | None]:
    """Sums over the rows that a test may use, and what there is to say about the others."""
    left_out = [0.0 if r is None else float(r) for r in (x.mean_residual, y.mean_residual)]
    if max(left_out) <= NEGLIGIBLE_RESIDUAL:
        used, note = (x.sums, y.sums), None
    elif x.apart is None or y.apart is None:
        return None, (
            "none, because it is not known which rows the landmarks were chosen from, and these "
            "must not be tested. Make the sketches again: km.nystrom_features, km.sketch_files "
            "and kermix sketch record them."
        )
    else:
        used = x.sums.minus(x.apart), y.sums.minus(y.apart)
        held = int(x.apart.total), int(y.apart.total)
        note = None
        if any(held):
            note = (
                f"equal kernel means, for independent rows; {held[0]:,} and {held[1]:,} rows "
                "that the landmarks were chosen from, or that equal these, are left out."
            )
    fewest = min(float(sums.total) for sums in used)
    if fewest < FEWEST_ROWS:
        return None, (
            f"none, because only {int(fewest)} rows of a sketch were not candidates for "
            f"landmarks, but {FEWEST_ROWS} are needed. Choose the landmarks from other rows: "
            "--landmarks-from (landmarks_from) the sketch of an earlier file."
            if note is not None
            else f"none, because a sketch has {int(fewest)} rows, but {FEWEST_ROWS} are needed."
        )
    return used, note


def _pvalue(a: FeatureSums, b: FeatureSums) -> float:
    rotated, values = _difference(a, b)
    n, m = rotated.rows
    rows = n + m
    ridge = max(COST_RIDGE, DAMPING * (n - m) ** 2 / (n * m * rows))
    while float((values / (values + ridge)).sum()) > LARGEST_SHARE * rows:
        ridge *= 2
    statistic = (rotated.difference.square() / (values + ridge)).sum() / (1 / n + 1 / m)
    weights = values / (values + ridge)
    sums = [float((weights**k).sum()) for k in (1, 2, 3)]
    if not sums[1] > 0:
        return 1.0
    taken = min(sums[0] ** 2 / ((rows - 1) * sums[1]), 1 - LARGEST_SHARE)
    mean = sums[0] * rows / (rows - 1)
    variance = 2 * sums[1] * (1 - taken)
    third = 8 * sums[2] * (1 - taken) * max(1 - 2 * taken, LARGEST_SHARE)
    freedom = 8 * variance**3 / third**2
    standard = (float(statistic) - mean) / math.sqrt(variance)
    chi_square = max(standard * math.sqrt(2 * freedom) + freedom, 0.0)
    halves = statistic.new_tensor([freedom / 2, chi_square / 2])
    return float(torch.special.gammaincc(halves[0], halves[1]).clamp(min=1e-300))
