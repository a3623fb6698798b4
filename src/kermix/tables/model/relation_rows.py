"""The rows by which exact relations are looked for: half of them teach, half of them judge."""

from dataclasses import dataclass

import numpy as np

from kermix.tables.model.relations import RawColumns, Relation

__all__ = ["SearchOptions", "SplitHalves"]


@dataclass(frozen=True)
class SearchOptions:
    """How relations are looked for; `python -m benchmarks planted-relations` judges it.

    Attributes:
        rows: That are looked at.
        fewest: Rows with all cells, of each half.
        share: Of rows in which a relation holds, at least.
        errors: Its exceptions, at most, as a share of those by chance.
        systems: Small systems that propose a relation in raw units.
        checks: Differences of two rows that judge a proposal.
        refined: Proposals for a column that are fitted.
        fitted_to: Rows that factors are fitted to, at most.
        most_numbers: Columns of numbers of which all pairs are tried.
        most_pairs: Pairs of columns that are tried as a table's key, for all columns together.
        most_keys: Rows of a table of values, at most.
        seed: Of the choice of rows.
    """

    rows: int = 20_000
    fewest: int = 25
    share: float = 0.88
    errors: float = 0.25
    systems: int = 12
    checks: int = 14
    refined: int = 4
    fitted_to: int = 2000
    most_numbers: int = 100
    most_pairs: int = 20_000
    most_keys: int = 2000
    seed: int = 0


class SplitHalves:
    """Raw cells of some rows, half of which teach and half of which judge.

    Args:
        columns: What raw cells are.
        cells: The rows, (N, D).
        options: How to look.
        without: Places of columns that are not looked at.
    """

    def __init__(
        self, columns: RawColumns, cells: np.ndarray, options: SearchOptions, without: set[int]
    ) -> None:
        random = np.random.default_rng(options.seed)
        self.columns, self.options = columns, options
        self.cells = cells[random.permutation(len(cells))]
        self.taught, self.judged = self.cells[::2], self.cells[1::2]
        self.distinct = np.array([len(np.unique(c[~np.isnan(c)])) for c in self.cells.T])
        filled = (~np.isnan(self.cells)).sum(0)
        self.filled = filled
        good = (filled >= 2 * options.fewest) & (self.distinct >= 2)
        self.places = [k for k in range(cells.shape[1]) if good[k] and k not in without]
        some = [k for k in self.places if columns.is_number(k) or columns.is_time(k)]
        some = [k for k in some if self.distinct[k] >= 3]
        self.numbers = some if len(some) <= options.most_numbers else []

    def share(self, relation: Relation, cells: np.ndarray) -> float:
        """Of these rows that have all cells, how many keep a relation; 0 if too few tell."""
        known = relation.known(cells)
        if known.sum() < self.options.fewest:
            return 0.0
        return float(relation.holds(self.columns, cells[known]).mean())

    def believed(self, relation: Relation) -> bool:
        """Whether the rows that judge keep it, and not by chance."""
        rows = self.judged[relation.known(self.judged)]
        least, most = self.options.share, self.options.errors
        if len(rows) < self.options.fewest or self.share(relation, self.taught) < least:
            return False
        kept = relation.holds(self.columns, rows)
        if kept.mean() < least:
            return False
        own = rows[:, relation.place]
        values, counts = np.unique(own, return_counts=True)
        others = own != values[counts.argmax()]  # whatever a heavy value would hide
        if others.sum() < 10 or kept[others].mean() < least - 0.1:
            return False
        shuffled = rows.copy()
        chances = []
        for shift in (1, len(rows) // 3, len(rows) // 2):  # rows are in a random order
            shuffled[:, relation.place] = np.roll(own, shift)
            chances.append(relation.holds(self.columns, shuffled).mean())
        chance = float(np.mean(chances))
        return bool(chance < 0.9 and 1 - kept.mean() <= most * (1 - chance))
