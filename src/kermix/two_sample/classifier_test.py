"""How well two samples can be told apart: the AUC of a classifier on rows that it has not seen.

The classifier is ridge regression of the labels on scores of single columns and on features of the
kernel of all columns. Its solution is linear in the labels, so that it can be learned again for
many exchanged labellings at almost no cost: these tell how much the folds have in common, which
the usual variance of cross-fitted scores leaves out.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from kermix.kernels.distances import Layout
from kermix.kernels.subsets import distinct_rows
from kermix.sketches.principal import features_at_two_scales
from kermix.two_sample.column_scores import FEWEST_ROWS, ColumnPlace, ColumnScores

__all__ = ["ToldApart", "auc", "tell_apart"]

# Reasoned, no record; folds and the confidence are conventions.
MOST_ROWS = 2500  # of a side
FOLDS = 5
EXCHANGES = 60
KERNEL_FEATURES, CANDIDATES = 250, 2000
MOST_SCORES = 400
NUMBERS = 4_000_000  # of the features of all rows
SCORES_OF_FEW, ROWS_OF_A_SCORE = 2, 10  # of few rows only the first scores of a number are used
RIDGES = 10.0 ** torch.arange(-6, 1.5, 0.5, dtype=torch.float64)
ROOT_OF_LEAST_RIDGE = 5.0  # divided by the number of rows
CONFIDENCE = 1.959964  # standard deviations, 95 %
FURTHEST_SCORE = 3.0


@dataclass(frozen=True)
class ToldApart:
    """How well a classifier tells two samples apart.

    Attributes:
        auc: Probability that it scores a row of the second sample higher than one of the first,
            both unseen: 0.5 if it cannot tell them apart, 1 if it always can.
        interval: Of 95 % for that probability.
        chosen: Which of the pooled rows took part, (N,).
        scores: Their held-out scores, (N,): high for rows of the second sample.
    """

    auc: float
    interval: tuple[float, float]
    chosen: Tensor
    scores: Tensor


@torch.no_grad()
def tell_apart(
    pooled: Tensor,  # (n + m, d), float64
    n: int,
    places: Sequence[ColumnPlace],
    layout: Layout | None,
    generator: torch.Generator,
) -> ToldApart | None:
    """Cross-fit the classifier; None where there are too few rows, or all rows are equal.

    Args:
        pooled: Encoded rows, those of the first sample first.
        n: How many are of the first sample.
        places: Where the rows hold each of the user's columns.
        layout: Which columns are codes, if any are.
        generator: Of the rows that are drawn, the folds and the exchanges of labels.
    """
    m = len(pooled) - n
    if min(n, m) < FEWEST_ROWS:
        return None
    most = min(MOST_ROWS, max(100, NUMBERS // (2 * max(1, len(places)))))
    chosen = torch.cat([
        start + torch.randperm(count, generator=generator)[:most].sort().values
        for start, count in ((0, n), (n, m))
    ])  # fmt: skip
    second = chosen >= n
    rows = pooled[chosen] + 0.0  # minus zero becomes zero
    features = _features(rows, places, layout)
    if features is None:
        return None
    folds = _folds(rows, second, generator)
    labels = _exchanged(second, folds, generator)  # (P, N), the given one first
    scores = _held_out(features, labels.double(), folds)
    areas, variances = _areas(scores, labels, folds)
    centre, spread = areas[1:] - 0.5, variances[1:].mean().sqrt()
    together = max(1.0, float(centre.square().mean().sqrt() / spread.clamp(min=1e-12)))
    sizes = int((~second).sum()) / FOLDS, int(second.sum()) / FOLDS
    interval = _interval(float(areas[0]), float(variances[0]), sizes, together**2)
    return ToldApart(float(areas[0]), interval, chosen, scores[0])


def auc(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:  # (..., n), (..., m)
    """The probability that a score of the second is higher, ties halved, and its variance.

    The variance is DeLong's, from the ranks of each score in both samples together and in its own.

    Example:
        >>> area, variance = auc(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([1.0, 3.0]))
        >>> round(area.item(), 4), round(variance.item(), 4)
        (0.75, 0.0833)
    """
    n, m = first.shape[-1], second.shape[-1]
    both = _middle_ranks(torch.cat([first, second], -1))
    above = (both[..., n:] - _middle_ranks(second)) / n  # share of the first below each second
    below = 1 - (both[..., :n] - _middle_ranks(first)) / m
    area = above.mean(-1)
    variance = sum(
        part.var(-1, correction=1) / part.shape[-1] if part.shape[-1] > 1 else 0.25
        for part in (above, below)
    )
    return area, variance * torch.ones_like(area)


def _middle_ranks(values: Tensor) -> Tensor:  # (..., n), in 0.5 .. n - 0.5
    ordered = values.sort(-1).values
    below = torch.searchsorted(ordered, values.contiguous())
    upto = torch.searchsorted(ordered, values.contiguous(), right=True)
    return (below + upto).double() / 2


def _features(
    rows: Tensor, places: Sequence[ColumnPlace], layout: Layout | None
) -> Tensor | None:  # (N, q), float64
    """Scores of each column, and features of the kernel of all: each part of total variance 1."""
    # Of mixed rows the numbers are normal scores already.
    ranks = None if layout is not None else _middle_ranks(rows.mT.contiguous()).mT / len(rows)
    single = _scores_of_columns(rows, places, ranks)
    if single is None:
        return None
    parts = [single]
    ranked = rows if ranks is None else torch.special.ndtri(ranks)
    kernels = features_at_two_scales(ranked, layout, KERNEL_FEATURES, CANDIDATES)
    parts += [features(ranked) for features in kernels]
    scaled = []
    for part in parts:
        part = part - part.mean(0)
        scaled.append(part / part.square().sum(1).mean().sqrt().clamp(min=1e-12))
    return torch.cat(scaled, 1)


def _scores_of_columns(
    rows: Tensor, places: Sequence[ColumnPlace], ranks: Tensor | None
) -> Tensor | None:  # (N, q)
    """Some hundred scores of all columns; ranks alone of very many."""
    each = max(1, MOST_SCORES // max(1, len(places)))
    if ranks is not None and each == 1:
        return ranks - 0.5 if bool((ranks != 0.5).any()) else None
    shares = rows.new_full((len(rows),), 1 / len(rows))
    found = []
    for place in places:
        column = ColumnScores.of(place, rows, shares)
        if not column.informative:
            continue
        scores = column(rows)
        most = each
        if column.ranks is not None:
            most = min(each, max(SCORES_OF_FEW, len(rows) // ROWS_OF_A_SCORE))
        if scores.shape[1] > most:
            last = scores[:, -1:] if column.gap > 0 else scores[:, most - 1 : most]
            scores = torch.cat([scores[:, : most - 1], last], 1)
        found.append(scores.clamp(-FURTHEST_SCORE, FURTHEST_SCORE))
    return torch.cat(found, 1) if found else None


def _folds(rows: Tensor, second: Tensor, generator: torch.Generator) -> Tensor:  # (N,)
    """A fold for each row, as many of each sample in all.

    Where few rows are repeated, those that are stay together: a copy of a row in the other sample
    would otherwise teach the wrong label.
    """
    kept, place = distinct_rows(rows)
    folds = torch.empty(len(rows), dtype=torch.long)
    if len(kept) == len(rows) or len(kept) < len(rows) / 4:
        for side in (~second, second):
            index = side.nonzero()[:, 0]
            order = torch.randperm(len(index), generator=generator)
            folds[index[order]] = torch.arange(len(index)) % FOLDS
        return folds
    counts = torch.zeros(len(kept), 2).index_put_(
        (place, second.long()), torch.ones(len(rows)), accumulate=True
    )
    kind = (counts > 0).long() @ torch.tensor([1, 2])
    of_row = torch.empty(len(kept), dtype=torch.long)
    for k in (1, 2, 3):
        index = (kind == k).nonzero()[:, 0]
        order = torch.randperm(len(index), generator=generator)
        of_row[index[order]] = torch.arange(len(index)) % FOLDS
    return of_row[place]


def _exchanged(second: Tensor, folds: Tensor, generator: torch.Generator) -> Tensor:  # (P, N)
    """The given labels, and then labels exchanged at random within folds."""
    found = second.expand(EXCHANGES + 1, -1).clone()
    for fold in range(FOLDS):
        index = (folds == fold).nonzero()[:, 0]
        for k in range(1, EXCHANGES + 1):
            order = torch.randperm(len(index), generator=generator)
            found[k, index] = second[index[order]]
    return found


def _held_out(features: Tensor, labels: Tensor, folds: Tensor) -> Tensor:  # (P, N)
    """Scores of each fold from ridge regression on the others; the ridge by cross-validation.

    The ridge is that of the smallest generalized cross-validation error among the training rows.
    """
    wide = features.shape[1] > len(features)
    gram = features @ features.mT if wide else features.mT @ features
    found = torch.zeros_like(labels)
    for fold in range(FOLDS):
        test = folds == fold
        train = ~test
        if not test.any() or not train.any():
            continue
        y = labels[:, train]
        y = y - y.mean(1, keepdim=True)
        if wide:
            inner = gram[train][:, train]
            across, given = gram[test][:, train], y.mT
        else:
            inner = gram - features[test].mT @ features[test]
            across, given = features[test], features[train].mT @ y.mT
        values, vectors = torch.linalg.eigh(inner)
        values = values.clamp(min=0)
        turned = vectors.mT @ given  # (r, P)
        # Where features are more than rows, cross-validation would take hardly any ridge for none.
        ridges = RIDGES.clamp(min=(ROOT_OF_LEAST_RIDGE / y.shape[1]) ** 2) * y.shape[1]
        ridge = ridges[_best_ridge(values, turned, y, ridges, wide)]  # (P,)
        solved = vectors @ (turned / (values[:, None] + ridge))
        found[:, test] = (across @ solved).mT
    return found


def _best_ridge(
    values: Tensor, turned: Tensor, y: Tensor, ridges: Tensor, wide: bool
) -> Tensor:  # (P,)
    total, count = y.square().sum(1), y.shape[1]
    errors = []
    for ridge in ridges:
        shrunk = values / (values + ridge)
        if wide:
            fitted = turned.square()
        else:
            tiny = values.amax() * 1e-12
            fitted = turned.square() / values.clamp(min=tiny)[:, None]
        left = total - ((2 * shrunk - shrunk.square())[:, None] * fitted).sum(0)
        errors.append(left.clamp(min=0) / (count - shrunk.sum().clamp(max=count - 1)) ** 2)
    return torch.stack(errors).argmin(0)


def _areas(scores: Tensor, labels: Tensor, folds: Tensor) -> tuple[Tensor, Tensor]:  # (P,), (P,)
    """The mean of the folds' areas, and its variance were the folds independent."""
    areas, variances, weights = [], [], []
    for fold in range(FOLDS):
        inside = folds == fold
        of_second = labels[:, inside]
        m = int(of_second[0].sum())
        n = of_second.shape[1] - m
        if min(n, m) == 0:
            continue
        ordered = of_second.long().argsort(dim=1, stable=True)
        taken = scores[:, inside].gather(1, ordered)
        area, variance = auc(taken[:, :n], taken[:, n:])
        areas.append(area)
        variances.append(variance)
        weights.append(float(n * m) / (n + m))
    share = torch.tensor(weights).double() / sum(weights)
    return (
        (torch.stack(areas) * share[:, None]).sum(0),
        (torch.stack(variances) * share[:, None].square()).sum(0),
    )


def _interval(
    area: float, variance: float, sizes: tuple[float, float], times: float
) -> tuple[float, float]:
    r"""The areas from which the given one is not further than 1.96 standard deviations.

    The standard deviation changes with the area as Hanley and McNeil's does (Newcombe 2006), so
    that the interval stays within 0 and 1 and is not empty where all scores are apart.
    """
    own = _spread_at(area, sizes) ** 2
    times *= max(1.0, variance / own) if own > 0 else 1.0

    def end(towards: float) -> float:
        inside, outside = area, towards
        for _ in range(60):
            middle = (inside + outside) / 2
            spread = math.sqrt(times) * _spread_at(middle, sizes)
            if abs(middle - area) <= CONFIDENCE * spread:
                inside = middle
            else:
                outside = middle
        return inside

    return end(0.0), end(1.0)


def _spread_at(area: float, sizes: tuple[float, float]) -> float:
    """Standard deviation of the mean area of the folds, each of so many rows."""
    n, m = sizes
    pairs = (n + m) / 2 - 1
    inside = 1 + pairs * (1 - area) / (2 - area) + pairs * area / (1 + area)
    return math.sqrt(max(0.0, area * (1 - area) * inside / (n * m) / FOLDS))
