"""Scores of tables by columns and pairs of columns: shape, trend and detection of SDMetrics."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from kermix.errors import MissingExtraError
from kermix.tables.compare.column_changes import ColumnValues, ComparedRows, sides_of

__all__ = ["TableScores", "detection_score", "shape_score", "table_scores", "trend_score"]

CORRELATED, ASSOCIATED = 0.5, 0.3  # above which columns are called related
DECIMALS = 14  # numbers are compared to so many
MOST_PAIRS = 2000
LEAST_CLASSIFIED = 6
FOLDS = 3
MOST_VALUES = 100  # of a category, as features of the classifier


@dataclass(frozen=True)
class TableScores:
    """Scores between 0 and 1, 1 if nothing differs.

    Attributes:
        shape: Mean over columns: of numbers 1 less the Kolmogorov-Smirnov distance, of categories
            1 less the total variation.
        trend: Mean over pairs of columns that are related in real data (a correlation above 0.5,
            or Cramer's V above 0.3; all pairs if none is): of numbers 1 less half the difference
            of correlations, of categories 1 less the total variation of their combinations, a
            number beside a category in ten bins of its range.
        detection: `1 - (2 max(AUC, 1/2) - 1)` of logistic regression on three folds.
        columns: Shapes by column.
        pairs: Trends of all pairs, and whether they are related in real data.
    """

    shape: float
    trend: float | None
    detection: float | None
    columns: tuple[tuple[str, float], ...]
    pairs: tuple[tuple[str, str, float, bool], ...]

    @property
    def shape_error(self) -> float:
        """One standard error of the mean over columns."""
        return _spread([s for _, s in self.columns])

    @property
    def trend_error(self) -> float:
        """One standard error of the mean over pairs."""
        return _spread(_counted(self.pairs))


def _spread(scores: Sequence[float]) -> float:
    return float(np.std(scores, ddof=1) / np.sqrt(len(scores))) if len(scores) > 1 else 0.0


def table_scores(rows: ComparedRows, seed: int = 0) -> TableScores:
    """Scores of two tables, real rows first; of very many pairs of columns some are drawn.

    Args:
        rows: Of both.
        seed: Of the folds, and of the pairs.
    """
    columns = {name: rows.column(name) for name in rows.names}
    shapes = [(name, shape_score(c, rows.n)) for name, c in columns.items()]
    shapes = [(name, s) for name, s in shapes if np.isfinite(s)]
    pairs = list(combinations(rows.names, 2))
    if len(pairs) > MOST_PAIRS:
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:MOST_PAIRS]
        pairs = [pairs[k] for k in np.sort(chosen)]
    bins = {name: _bins(c, rows.n) for name, c in columns.items() if c.numbers is not None}
    trends = [(a, b, *trend_score(columns[a], columns[b], rows.n, bins)) for a, b in pairs]
    trends = [t for t in trends if np.isfinite(t[2])]
    return TableScores(
        float(np.mean([s for _, s in shapes])) if shapes else 1.0,
        float(np.mean(_counted(trends))) if trends else None,
        detection_score(list(columns.values()), rows.n, seed),
        tuple(shapes),
        tuple(trends),
    )


def _counted(pairs: Sequence[tuple[str, str, float, bool]]) -> list[float]:
    """Trends of pairs that are related, or of all."""
    return [t for *_, t, related in pairs if related] or [t for *_, t, _ in pairs]


def shape_score(column: ColumnValues, n: int) -> float:
    """Of one column; NaN where a side has no values."""
    if column.numbers is not None:
        real, fake = (_filled(side) for side in sides_of(column.numbers, n))
        if not len(real) or not len(fake):
            return np.nan
        real, fake = (np.sort(np.round(side, DECIMALS)) for side in (real, fake))
        both = np.concatenate([real, fake])
        shares = [np.searchsorted(s, both, side="right") / len(s) for s in (real, fake)]
        return float(1 - np.abs(shares[0] - shares[1]).max())
    assert column.codes is not None
    gaps = [k for k, name in enumerate(column.names) if name == "(missing)"]
    real, fake = (side[~np.isin(side, gaps)] for side in sides_of(column.codes, n))
    if not len(real) or not len(fake):
        return np.nan
    return 1 - _variation(real, fake)


def trend_score(
    a: ColumnValues, b: ColumnValues, n: int, bins: dict[str, tuple[np.ndarray, np.ndarray]]
) -> tuple[float, bool]:
    """Of two columns, and whether they are related in real data; NaN where a number is constant.

    Args:
        a: One column.
        b: The other.
        n: How many rows are real.
        bins: Of columns of numbers, places in ten bins, of real rows and of fake ones.
    """
    if a.numbers is not None and b.numbers is not None:
        found = []
        for x, y in zip(sides_of(a.numbers, n), sides_of(b.numbers, n), strict=True):
            whole = np.isfinite(x) & np.isfinite(y)
            found.append(_correlation(x[whole], y[whole]))
        return 1 - abs(found[0] - found[1]) / 2, abs(found[0]) > CORRELATED
    first, second = (bins[c.name] if c.codes is None else sides_of(c.codes, n) for c in (a, b))
    times = 1 + max(int(side.max(initial=0)) for side in second)
    real, fake = (x.astype(np.int64) * times + y for x, y in zip(first, second, strict=True))
    return 1 - _variation(real, fake), _cramers_v(first[0], second[0]) > ASSOCIATED


def detection_score(columns: Sequence[ColumnValues], n: int, seed: int = 0) -> float | None:
    """Logistic regression that tells fake rows from real ones; None for very few rows.

    Numbers with gaps as their mean in the real rows, categories as one column for each value that
    real rows have, all divided by their middle half; three folds.
    """
    first = columns[0].numbers if columns[0].codes is None else columns[0].codes
    assert first is not None
    m = len(first) - n
    if min(n, m) < LEAST_CLASSIFIED:
        return None
    try:
        from sklearn.model_selection import StratifiedKFold
    except ImportError:
        raise MissingExtraError(
            "Detection needs scikit-learn: pip install 'kermix[fit]'."
        ) from None
    features = np.column_stack([f for c in columns for f in _features(c, n)])
    real = np.arange(n + m) < n
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    scores = [
        2 * max(0.5, _area(features, real, train, test)) - 1
        for train, test in folds.split(features, real)
    ]
    return float(1 - np.mean(scores))


def _area(features: np.ndarray, real: np.ndarray, train: np.ndarray, test: np.ndarray) -> float:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import RobustScaler

    model = make_pipeline(RobustScaler(), LogisticRegression())
    with warnings.catch_warnings():
        # Rows that a hyperplane parts have no best coefficients; their order is found though.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features[train], real[train])
    return float(roc_auc_score(real[test], model.predict_proba(features[test])[:, 1]))


def _features(column: ColumnValues, n: int) -> list[Any]:
    if column.numbers is not None:
        known = _filled(column.numbers[:n])
        middle = float(known.mean()) if len(known) else 0.0
        return [np.where(np.isfinite(column.numbers), column.numbers, middle)]
    assert column.codes is not None
    values, counts = np.unique(column.codes[:n], return_counts=True)
    often = values[np.argsort(-counts, kind="stable")[:MOST_VALUES]]
    return [(column.codes == value).astype(float) for value in np.sort(often)]


def _bins(column: ColumnValues, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Places in ten equal bins of the range, real and fake rows each in their own."""
    assert column.numbers is not None
    found = []
    for side in sides_of(column.numbers, n):
        known = _filled(side)
        edges = np.histogram_bin_edges(known) if len(known) else np.zeros(1)
        found.append(np.digitize(side, edges))
    return found[0], found[1]


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return np.nan
    return float(np.corrcoef(x, y)[0, 1])


def _cramers_v(x: np.ndarray, y: np.ndarray) -> float:
    """From 0 for independent codes to 1 where one tells the other."""
    (_, x), (_, y) = (np.unique(codes, return_inverse=True) for codes in (x, y))
    counts = np.zeros((x.max(initial=0) + 1, y.max(initial=0) + 1))
    np.add.at(counts, (x, y), 1)
    if min(counts.shape) < 2:
        return 0.0
    expected = np.outer(counts.sum(1), counts.sum(0)) / len(x)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    return float(np.sqrt(chi_squared / len(x) / (min(counts.shape) - 1)))


def _variation(real: np.ndarray, fake: np.ndarray) -> float:
    values, places = np.unique(np.concatenate([real, fake]), return_inverse=True)
    shares = [
        np.bincount(side, minlength=len(values)) / len(side)
        for side in (places[: len(real)], places[len(real) :])
    ]
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def _filled(numbers: np.ndarray) -> np.ndarray:
    return numbers[np.isfinite(numbers)]
