"""What changed in how two columns go together, from the first sample to the second, in words."""

import numpy as np

from kermix.tables.compare.column_changes import (
    OF_A_PAIR,
    Change,
    ColumnValues,
    middle_ranks,
    pair_groups,
    sides_of,
)

__all__ = ["change_of_pair"]

SAME = 0.05  # difference of two measures of dependence that is not worth naming: convention


def change_of_pair(first: ColumnValues, second: ColumnValues, n: int) -> Change:
    """Whether two columns depend more or less on each other, and on what scale.

    Of numbers and times by the correlation of their ranks, else, and where that is the same, by
    Cramer's V of groups of their values.

    Example:
        >>> x = np.arange(200.0)
        >>> y = np.concatenate([x[:100], x[:99:-1]])
        >>> one, two = (ColumnValues(name, "number", v) for name, v in (("x", x), ("y", y)))
        >>> change_of_pair(one, two, 100)
        Change(short='the other way', description='rank correlation 1.00 -> -1.00')
    """
    if first.numbers is not None and second.numbers is not None:
        both = zip(sides_of(first.numbers, n), sides_of(second.numbers, n), strict=True)
        a, b = (_rank_correlation(*side) for side in both)
        if abs(b - a) > SAME:
            return Change(_word(a, b), f"rank correlation {a:.2f} -> {b:.2f}")
    a, b = (_cramers_v(side) for side in sides_of(pair_groups(first, second), n))
    told = f"Cramer's V of groups of values {a:.2f} -> {b:.2f}"
    return Change(_word(a, b), told)


def _word(a: float, b: float) -> str:
    if abs(abs(b) - abs(a)) > SAME:
        return f"depend {'more' if abs(b) > abs(a) else 'less'} on each other"
    return "the other way" if a * b < 0 else "go together in another way"


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Spearman's of the rows without a gap; 0 if one of them is constant."""
    there = ~(np.isnan(x) | np.isnan(y))
    ranks = [middle_ranks(side[there]) for side in (x, y)]
    if min((len(np.unique(r)) for r in ranks), default=0) < 2:
        return 0.0
    return float(np.corrcoef(ranks)[0, 1])


def _cramers_v(groups: np.ndarray) -> float:
    """How much two columns tell of each other, between 0 and 1, less what chance explains."""
    table = np.bincount(groups, minlength=OF_A_PAIR**2).reshape(-1, OF_A_PAIR).astype(float)
    table = table[table.any(1)][:, table.any(0)]
    n, (rows, columns) = table.sum(), table.shape
    if min(rows, columns) < 2 or n < 2:
        return 0.0
    expected = np.outer(table.sum(1), table.sum(0)) / n
    chance = (rows - 1) * (columns - 1) / (n - 1)
    excess = max(0.0, float(((table - expected) ** 2 / expected).sum() / n) - chance)
    sizes = (k - (k - 1) ** 2 / (n - 1) for k in (rows, columns))
    return float(min(1.0, excess / max(min(sizes) - 1, 1e-12)) ** 0.5)
