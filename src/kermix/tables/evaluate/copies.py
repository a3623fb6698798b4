"""Memorizing: samples of a generator that are nearer to training rows than new rows ever are.

How likely rows of continuous columns are to be equal by chance.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.checks import check_pair
from kermix.errors import OptionError
from kermix.evaluation.neighbours import nearest
from kermix.two_sample.classifier_test import auc

__all__ = ["Memorizing", "chance_of_equal_rows", "memorizing", "poisson_tail"]

FINEST = 1e-7  # steps of a column that are told, relative to its range
ROUNDING = 2 * torch.finfo(torch.float32).eps  # of numbers that may have been float32
SAFE = 2.0  # times the estimate


def chance_of_equal_rows(rows: Tensor) -> float:  # (N, c)
    r"""About the probability that two independent rows are equal, at most.

    Equal rows are equal in each column, so the smallest of the columns' probabilities is taken:
    columns may depend on each other. That of a column is the larger of two: how many of its pairs
    are equal, and $u \int f^2$ with the step `u` that all its differences are multiples of
    (of counts 1, of prices 0.01), and the density `f` of its values. Numbers of which no step is
    found have one of a ten-millionth of their range.

    Example:
        >>> x = torch.rand(500, 1, generator=torch.Generator().manual_seed(0)).double()
        >>> chance_of_equal_rows(x) < 1e-6, 0.1 < chance_of_equal_rows((10 * x).round()) < 0.4
        (True, True)
    """
    chances = [_chance_in(column.sort().values) for column in rows.mT]
    return min([1.0, *chances])


def _chance_in(ordered: Tensor) -> float:  # (N,)
    n = len(ordered)
    gaps = ordered.diff()
    width = float(ordered[-1] - ordered[0])
    if width == 0:
        return 1.0
    step = _step(gaps, max(FINEST * width, ROUNDING * float(ordered.abs().max())))
    _, counts = ordered.unique_consecutive(return_counts=True)
    equal = float((counts.double() * (counts - 1)).sum()) / (n * (n - 1))
    near = max(1, math.isqrt(n) // 2)
    spacings = (ordered[near:] - ordered[:-near]).clamp(min=step)
    return min(1.0, SAFE * max(equal, float((near * step / n / spacings).mean())))


def _step(gaps: Tensor, finest: float) -> float:
    """The greatest common divisor of gaps, up to rounding; not below the finest."""
    found = gaps[gaps > finest]
    if not len(found):
        return finest
    while True:
        step = found.min()
        rest = found.remainder(step)
        rest = torch.minimum(rest, step - rest)
        rest = rest[rest > finest]
        if not len(rest):
            return float(step)
        if float(rest.min()) < 4 * finest:
            return finest
        found = torch.cat([step[None], rest])


def poisson_tail(least: int, mean: float) -> float:
    """The probability of at least so many events.

    Example:
        >>> round(poisson_tail(3, 1.0), 4), poisson_tail(0, 2.0), poisson_tail(200, 0.1) < 1e-300
        (0.0803, 1.0, True)
    """
    if least <= 0:
        return 1.0
    # The lower incomplete gamma function, which does not cancel where the tail is tiny.
    shape, at = (torch.tensor(float(v), dtype=torch.float64) for v in (least, mean))
    return float(torch.special.gammainc(shape, at))


LEVELS = (0.0, 0.01, 0.05)  # shares of new rows that may be nearer than the samples looked at
SHOWN = 20
MOST_COMPARED = 5000  # training rows that take the place of held-out ones
EQUAL = 1e-9  # of a typical distance
FEWEST_COPIED = 3  # training rows: one or two may be a value that stands for something missing
OF_EQUALITY = 0.05  # share of the level: tails of this test are steep
EXACT = 1e-6  # ratio below which a sample is a copy
PAIRED = 2  # training rows that are near to each other are so both


@dataclass(frozen=True)
class Memorizing:
    """The result of `memorizing`.

    Attributes:
        copies: Share of samples that equal a training row.
        copies_held_out: Share of held-out rows that do.
        memorized: Estimated share of samples that are too close to a training row.
        pvalue: P-value of the hypothesis that held-out rows and samples are equally close to
            training rows.
        nearer: How often a sample is closer to its nearest training row than a held-out row is to
            its own; 1/2 if nothing is memorized, and less if samples are far from all data.
        error: One standard error of `nearer`.
        rows: Samples and the training rows that they are nearest to, the worst first.
        held_out: Number of held-out rows; 0 means that training rows were compared with the other
            training rows instead.
    """

    copies: float
    copies_held_out: float
    memorized: float
    pvalue: float
    nearer: float
    error: float
    rows: tuple[tuple[int, int], ...]
    held_out: int


@torch.no_grad()
def memorizing(
    training: Tensor,
    samples: Tensor,
    held_out: Tensor | None = None,
    columns: Tensor | None = None,
) -> Memorizing:
    r"""Whether a generator copies its training rows.

    For each sample, the distance to the nearest training row is divided by that to the second
    nearest: near 0 for a copy, whatever the local scale. If samples were new rows, these ratios
    would be distributed like those of held-out rows, so equal shares of both should be below any
    level; the p-value is exact for that (hypergeometric, for the smallest ratios and two more
    levels). Without held-out rows, at most 5000 training rows are compared with the others. If two
    of them are close to each other, both have a small ratio, so they count half.

    In addition to these three there is a fourth test, which gets a twentieth of any level; the
    three share the rest equally. If no real row repeats a training row, it compares the number of
    training rows that samples equal, if three or more, with the number expected by chance. Rows of
    categories and counts coincide by chance, rows of measured numbers do not.

    Args:
        training: Training rows of the generator, shape (N, d), at least three.
        samples: Samples of the generator, shape (M, d).
        held_out: Real rows that it has not seen, shape (K, d).
        columns: Numbers of the training rows in their own units, shape (N, c), which show their
            resolution; by default the training rows.

    Example:
        >>> x = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
        >>> copied = torch.cat([x[:20] + 1e-4, x[1000:1500]])
        >>> found = memorizing(x[:1000], copied, x[1500:])
        >>> found.pvalue < 1e-4, 0.03 < found.memorized < 0.05, found.rows[0][0] < 20
        (True, True, True)
    """
    check_pair(training, samples, ("training", "samples"))
    if held_out is not None:
        check_pair(training, held_out, ("training", "held_out"))
    if len(training) < 3:
        raise OptionError(f"training has {len(training)} rows; memorizing needs at least three.")
    columns = training if columns is None else columns
    training, samples = training.double(), samples.double()
    near, places = nearest(samples, training, 2)
    if held_out is not None:
        new, _ = nearest(held_out.double(), training, 2)
    else:
        order = torch.randperm(len(training), generator=torch.Generator().manual_seed(0))
        some = training[order[:MOST_COMPARED].to(training.device)]
        new = nearest(some, training, 3)[0][:, 1:]  # the nearest of all is the row itself
    tiny = EQUAL * float(new[:, 0].median().clamp(min=EQUAL * float(training.abs().max())))
    equal, equal_new = near[:, 0] <= tiny, new[:, 0] <= tiny
    ratio, ratio_new = _ratios(near, tiny), _ratios(new, tiny)
    by_ratio = _too_near(ratio, ratio_new, 1 if held_out is not None else PAIRED)
    by_equality = 1.0
    if not bool(equal_new.any()):
        copied = len(places[equal, 0].unique())
        by_equality = _equal_by_chance(copied, len(samples), columns)
    p, share, limit = by_ratio
    pvalue, of_equality = p * len(LEVELS) / (1 - OF_EQUALITY), by_equality / OF_EQUALITY
    if of_equality < min(1.0, pvalue):
        pvalue, share, limit = of_equality, float(equal.double().mean()), EXACT
    if pvalue >= 1:
        pvalue, share, limit = 1.0, 0.0, 0.0
    order = ratio.argsort(stable=True)
    worst = [int(i) for i in order[:SHOWN] if float(ratio[i]) < limit] if pvalue < 0.05 else []
    nearer, error = _nearer(near[:, 0], new[:, 0])
    return Memorizing(
        float(equal.double().mean()), float(equal_new.double().mean()), share, pvalue,
        nearer, error, tuple((i, int(places[i, 0])) for i in worst),
        0 if held_out is None else len(held_out),
    )  # fmt: skip


def _ratios(distances: Tensor, tiny: float) -> Tensor:
    """Nearest to second nearest; 1 where both are equal rows, of which many are alike."""
    first, second = distances[:, 0], distances[:, -1]
    return torch.where(second <= tiny, 1.0, first / second.clamp(min=tiny))


def _equal_by_chance(copied: int, samples: int, columns: Tensor) -> float:
    """Probability that samples equal so many training rows or more, if none is copied."""
    if copied < FEWEST_COPIED:
        return 1.0
    mean = samples * len(columns) * chance_of_equal_rows(columns.double())
    return poisson_tail(copied, mean)


def _too_near(ratio: Tensor, new: Tensor, alike: int) -> tuple[float, float, float]:
    """p-value, the share of samples in excess, and the ratio below which samples are suspect.

    The number of samples below the j-th smallest ratio of m new rows is at least k if and only if
    at most j - 1 new rows are among the k + j - 1 smallest of all. New rows of which so many are
    alike count once.
    """
    n, m = len(ratio), len(new)
    ordered = new.sort().values
    best = (1.0, 0.0, 0.0)
    for level in LEVELS:
        j = int(level * m)  # new rows that may be nearer
        if j >= m:
            continue
        limit = float(ordered[j])
        k = int((ratio < limit).sum())
        few = -(-j // alike)
        p = _hypergeometric(few, n, m // alike, k + few) if k else 1.0
        if p < best[0]:
            best = (p, max(0.0, k / n - j / m), limit)
    return best


def _hypergeometric(most: int, n: int, m: int, drawn: int) -> float:
    """Probability of at most so many new rows among some of n samples and m new rows."""

    def log_ways(a: int, b: int) -> float:
        return math.lgamma(a + 1) - math.lgamma(b + 1) - math.lgamma(a - b + 1)

    whole = log_ways(n + m, drawn)
    return sum(
        math.exp(log_ways(m, i) + log_ways(n, drawn - i) - whole)
        for i in range(max(0, drawn - n), min(most, m, drawn) + 1)
    )


def _nearer(samples: Tensor, new: Tensor) -> tuple[float, float]:
    """How often a sample is nearer than a new row, ties halved, and one standard error."""
    area, variance = auc(samples, new)
    return float(area), float(variance.clamp(min=0).sqrt())
