"""Scores of tables by columns and by pairs of columns: the differences that `km.compare` tells.

SDMetrics has scores of its own; where it is installed, it computes them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import combinations

import numpy as np

from kermix.tables.compare.column_changes import (
    ColumnValues,
    ComparedRows,
    groups_of,
    pair_groups,
    sides_of,
    variation,
)

__all__ = ["TableDifferences", "TableScores", "sdmetrics_scores", "table_scores"]

MOST_PAIRS = 2000  # others are left out, at random: convention


@dataclass(frozen=True)
class TableDifferences:
    """Differences of columns, or of pairs of them, as `ColumnVerdict.difference` is.

    Attributes:
        each: Names of columns, and the total variation of their groups of values.
        if_same: The mean if both tables had the same distribution: what chance makes.
    """

    each: tuple[tuple[tuple[str, ...], float], ...]
    if_same: float

    @property
    def score(self) -> float:
        """1 minus their mean: 1 if nothing differs."""
        return 1 - float(np.mean([d for _, d in self.each])) if self.each else 1.0

    @property
    def scatter(self) -> float:
        """Their standard deviation: it says how unlike they are, not how surely they are known."""
        return float(np.std([d for _, d in self.each], ddof=1)) if len(self.each) > 1 else 0.0


@dataclass(frozen=True)
class TableScores:
    """Differences of single columns (shape), and of two together (pairs)."""

    shape: TableDifferences
    pairs: TableDifferences


def table_scores(rows: ComparedRows, seed: int = 0) -> TableScores:
    """Differences of two tables, real rows first; of very many pairs of columns some are drawn.

    Args:
        rows: Of both.
        seed: Of the pairs.
    """
    columns = {name: rows.column(name) for name in rows.names}
    pairs = list(combinations(rows.names, 2))
    if len(pairs) > MOST_PAIRS:
        chosen = np.random.default_rng(seed).permutation(len(pairs))[:MOST_PAIRS]
        pairs = [pairs[k] for k in np.sort(chosen)]
    return TableScores(
        _differences([((name,), groups_of(c)[0]) for name, c in columns.items()], rows.n),
        _differences([(p, pair_groups(columns[p[0]], columns[p[1]])) for p in pairs], rows.n),
    )


def _differences(
    grouped: Sequence[tuple[tuple[str, ...], np.ndarray]], n: int
) -> TableDifferences:
    each = tuple((names, variation(groups, n)) for names, groups in grouped)
    by_chance = [_by_chance(groups, n) for _, groups in grouped]
    return TableDifferences(each, float(np.mean(by_chance)) if by_chance else 0.0)


def _by_chance(groups: np.ndarray, n: int) -> float:
    """The total variation to be expected of equal distributions: shares are about normal."""
    shares = np.bincount(groups) / len(groups)
    unit = 1 / n + 1 / (len(groups) - n)
    return float(np.sqrt(2 / math.pi * shares * (1 - shares) * unit).sum() / 2)


def sdmetrics_scores(rows: ComparedRows) -> list[tuple[str, str, float]]:
    """SDMetrics' own scores by its own code: names, titles and values; none if it is missing."""
    try:
        reports = import_module("sdmetrics.reports.single_table")
        metrics = import_module("sdmetrics.single_table")
    except ImportError:
        return []
    import pandas as pd

    columns = [rows.column(name) for name in rows.names]
    real, fake = (pd.DataFrame({c.name: _cells(c, rows.n)[side] for c in columns})
                  for side in (0, 1))  # fmt: skip
    kinds = {c.name: {"sdtype": "numerical" if c.codes is None else "categorical"}
             for c in columns}  # fmt: skip
    report = reports.QualityReport()
    report.generate(real, fake, {"columns": kinds}, verbose=False)
    detection = metrics.LogisticDetection.compute(real, fake, metadata={"columns": kinds})
    return [
        ("sdmetrics_quality", "SDMetrics quality", float(report.get_score())),
        ("sdmetrics_detection", "SDMetrics logistic detection", float(detection)),
    ]


def _cells(column: ColumnValues, n: int) -> tuple[np.ndarray, np.ndarray]:
    if column.codes is None:
        assert column.numbers is not None
        return sides_of(column.numbers, n)
    return sides_of(np.array(column.names, dtype=object)[column.codes], n)
