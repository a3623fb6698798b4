"""How well two samples can be told apart: the AUC of a classifier on rows that it has not seen.

This is the package's one answer to the question, for a verdict, an evaluation and the report of a
fit. The classifier is scikit-learn's gradient-boosted trees with its defaults: on real tables
they see much that ridge regression on scores of columns and features of kernels overlooks, on
samples of a fit no less, and they take about as long (results/bench/classifiers-cpu2.json).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kermix.errors import MissingExtraError
from kermix.kernels.subsets import distinct_rows
from kermix.two_sample.column_scores import FEWEST_ROWS, ColumnPlace

__all__ = ["ToldApart", "area_text", "auc", "auc_text", "tell_apart"]

MOST_ROWS = 2500  # of a side: convention
NUMBERS = 1_000_000  # cells of all rows, so that wide tables take no longer: convention
FOLDS = 5  # convention
LEAF_SHARE, LEAF = 0.1, 20  # rows of a leaf, at least: scikit-learn's default, less of few rows
TREES, TREES_PER_ROW = (40, 100), 0.1  # scikit-learn's default, less of few rows: convention
BINS, ALL_BINS = (15, 255), 50_000  # of a column (the most is scikit-learn's), of all: convention
CONFIDENCE = 1.959964  # standard deviations, 95 %
# Each pair of rows of two folds counts twice, once with either as the one that is learned from:
# the variance is twice that of independent folds for a score that is linear in the labels, and
# about that for trees (results/bench/classifiers-cpu2.json).
SHARED = 2.0


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


def auc_text(area: float) -> str:
    """Two digits, and more where it would look like 1 and is not."""
    if area < 0.99:
        return f"{area:.2f}"
    return f"{area:.3f}" if area < 0.999 else f"{min(area, 0.9999):.4f}" if area < 1 else "1"


def area_text(area: float, interval: tuple[float, float]) -> str:
    """How well the classifier tells rows apart, as it is said everywhere.

    Example:
        >>> area_text(0.614, (0.588, 0.64))
        'AUC 0.61 (0.59 to 0.64; 0.5 is chance)'
    """
    low, high = map(auc_text, interval)
    below = ", and less is no better" if interval[1] < 0.5 else ""
    return f"AUC {auc_text(area)} ({low} to {high}; 0.5 is chance{below})"


def tell_apart(
    pooled: Tensor,  # (n + m, d)
    n: int,
    places: Sequence[ColumnPlace],
    generator: torch.Generator,
) -> ToldApart | None:
    """Cross-fit the classifier; None where there are too few rows, or all rows are equal.

    Args:
        pooled: Encoded rows, those of the first sample first.
        n: How many are of the first sample.
        places: Where the rows hold each of the user's columns.
        generator: Of the rows that are drawn, and of the folds.
    """
    m = len(pooled) - n
    if min(n, m) < FEWEST_ROWS:
        return None
    most = min(MOST_ROWS, max(100, NUMBERS // (2 * max(1, len(places)))))
    chosen = torch.cat([
        start + torch.randperm(count, generator=generator)[:most].sort().values
        for start, count in ((0, n), (n, m))
    ])  # fmt: skip
    rows, second = pooled[chosen].double() + 0.0, (chosen >= n).numpy()  # no minus zeros
    bins = max(BINS[0], min(BINS[1], ALL_BINS // max(1, len(places))))
    features, categories = tree_features(rows, places, bins)
    if not features.shape[1]:
        return None
    seed = int(torch.randint(2**31, (1,), generator=generator))
    folds = _folds(rows, second, seed)
    scores = _held_out(features, categories, bins, second, folds)
    area, variance = _area(scores, second, folds)
    sizes = (~second).sum() / FOLDS, second.sum() / FOLDS
    interval = _interval(area, variance, sizes)
    return ToldApart(area, interval, chosen, torch.from_numpy(scores))


def auc(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """The probability that a score of the second is higher, ties halved, and its variance.

    The variance is DeLong's, from the ranks of each score in both samples together and in its own.

    Example:
        >>> area, variance = auc(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0]))
        >>> round(area, 4), round(variance, 4)
        (0.75, 0.0833)
    """
    try:
        from scipy.stats import rankdata
    except ImportError:
        raise MissingExtraError("An AUC needs SciPy: pip install 'kermix[scipy]'.") from None
    n, m = len(first), len(second)
    both = rankdata(np.concatenate([first, second]))
    above = (both[n:] - rankdata(second)) / n  # share of the first below each second
    below = 1 - (both[:n] - rankdata(first)) / m
    variances = (p.var(ddof=1) / len(p) if len(p) > 1 else 0.25 for p in (above, below))
    return float(above.mean()), float(sum(variances))


def tree_features(
    rows: Tensor, places: Sequence[ColumnPlace], most_values: int
) -> tuple[np.ndarray, list[bool]]:  # (N, q)
    """Columns that are not constant as trees take them, and which are categories; gaps are NaN.

    Categories are numbered from the most common one on; the rarest share the last number.
    """
    found, categories = [], []
    for place in places:
        if place.numbers is None:
            values, codes, counts = np.unique(
                rows[:, place.codes].numpy(), return_inverse=True, return_counts=True
            )
            rank = np.empty(len(values))
            rank[np.argsort(-counts, kind="stable")] = np.arange(len(values))
            column = rank.clip(max=most_values - 1)[codes]
        else:
            column = rows[:, place.numbers].numpy().copy()
            if place.codes is not None:
                column[rows[:, place.codes].numpy() != 0] = np.nan
        if len(np.unique(column)) > 1:
            found.append(column)
            categories.append(place.numbers is None)
    return np.stack(found, 1) if found else np.empty((len(rows), 0)), categories


def _folds(rows: Tensor, second: np.ndarray, seed: int) -> np.ndarray:  # (N,)
    """A fold for each row, as many of each sample in all.

    Where few rows are repeated, those that are stay together: a copy of a row in the other sample
    would otherwise teach the wrong label.
    """
    try:
        from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
    except ImportError:
        raise MissingExtraError(
            "How well a classifier tells rows apart needs scikit-learn: pip install 'kermix[fit]'."
        ) from None
    kept, place = distinct_rows(rows)
    apart = len(kept) == len(rows) or len(kept) < len(rows) / 4
    kind = StratifiedKFold if apart else StratifiedGroupKFold
    split = kind(FOLDS, shuffle=True, random_state=seed)
    folds = np.empty(len(rows), np.int64)
    for k, (_, test) in enumerate(split.split(folds, second, None if apart else place.numpy())):
        folds[test] = k
    return folds


def _held_out(
    features: np.ndarray, categories: list[bool], bins: int, second: np.ndarray, folds: np.ndarray
) -> np.ndarray:  # (N,)
    """Scores of each fold by trees that learned the others."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    leaf = max(1, min(LEAF, int(LEAF_SHARE * len(features))))
    count = max(TREES[0], min(TREES[1], int(TREES_PER_ROW * len(features))))
    scores = np.zeros(len(features))
    for fold in range(FOLDS):
        test = folds == fold
        trees = HistGradientBoostingClassifier(
            max_iter=count, min_samples_leaf=leaf, max_bins=bins, early_stopping=False,
            categorical_features=categories if any(categories) else None, random_state=0,
        )  # fmt: skip
        trees.fit(features[~test], second[~test])
        scores[test] = trees.decision_function(features[test])
    return scores


def _area(scores: np.ndarray, second: np.ndarray, folds: np.ndarray) -> tuple[float, float]:
    """The mean of the folds' areas, and its variance were the folds independent."""
    found = []
    for fold in range(FOLDS):
        sides = [scores[(folds == fold) & side] for side in (~second, second)]
        if all(map(len, sides)):
            weight = len(sides[0]) * len(sides[1]) / (len(sides[0]) + len(sides[1]))
            found.append((*auc(*sides), weight))
    areas, variances, weights = np.array(found).T
    shares = weights / weights.sum()
    return float(shares @ areas), float(shares**2 @ variances)


def _interval(area: float, variance: float, sizes: tuple[float, float]) -> tuple[float, float]:
    r"""The areas from which the given one is not further than 1.96 standard deviations.

    The standard deviation changes with the area as Hanley and McNeil's does (Newcombe 2006), so
    that the interval stays within 0 and 1 and is not empty where all scores are apart.
    """
    own = _spread_at(area, sizes) ** 2
    times = SHARED * (max(1.0, variance / own) if own > 0 else 1.0)

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
