"""Finds sums among columns: what is linear in raw units; products are of `relation_products`.

Half of the rows teach a relation, the other half judges it (`SplitHalves`). Differences of two
rows know neither constants nor factors, and two such differences tell both coefficients, so that
rows which break the relation, and gaps, disturb few of many small systems.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from kermix.tables.model.relations import LinearRelation, RawColumns, Relation

__all__ = ["SearchOptions", "SplitHalves", "Sums", "round_factors", "stabbed", "trimmed"]


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
        most_summed: Columns of numbers of which all pairs are tried as a logarithm's sum.
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
    most_summed: int = 40
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
        self.numbers = some if len(some) <= options.most_numbers else []

    @property
    def followers(self) -> list[int]:
        """Columns of numbers that may follow from others: two values say too little."""
        return [k for k in self.numbers if self.distinct[k] >= 3]

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


class Sums:
    """Proposes and fits sums, in raw units.

    Args:
        rows: The rows.
    """

    def __init__(self, rows: SplitHalves) -> None:
        self.rows, self.columns, self.options = rows, rows.columns, rows.options
        self.places = np.array([k for k in rows.numbers if self._fits(k)], int)
        self.numbers = self._transformed(rows.taught)[:, self.places]  # (N, m)

    def _fits(self, place: int) -> bool:
        return True

    def _transformed(self, cells: np.ndarray) -> np.ndarray:
        return cells

    def _tolerance(self, place: int, cells: np.ndarray) -> np.ndarray:  # (N,)
        """How far a sum may be from a column's own cells that are rounded."""
        return np.full(len(cells), self.columns.half_units[place])

    def relations_of(self, place: int) -> Iterator[Relation]:
        """Those of a column with one or two others that are believed."""
        at = np.flatnonzero(self.places == place)
        if not len(at):
            return
        pairs = self._differences(int(at[0]), place)
        if pairs is None:
            return
        for proposals in (self._single, self._double):
            for sources, factors in proposals(*pairs):
                yield from self._believed(place, sources, factors)

    def _believed(
        self, place: int, sources: tuple[int, ...], factors: Sequence[float] | np.ndarray
    ) -> Iterator[Relation]:
        relation = self._fitted(place, sources, factors)
        if relation is not None and self.rows.believed(relation):
            yield relation

    def _differences(
        self, at: int, place: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray] | None:
        """Differences of pairs of rows: of a column (P,), its tolerance, its own size, others."""
        own = self.numbers[:, at]
        tolerance = self._tolerance(place, self.rows.taught[:, place])
        good = np.flatnonzero(~np.isnan(own) & np.isfinite(tolerance))
        count = 2 * self.options.systems + self.options.checks
        if len(good) < self.options.fewest:
            return None
        random = np.random.default_rng(self.options.seed + place)
        first, second = random.choice(good, (2, 40 * count))
        some = np.flatnonzero(own[first] != own[second])[:count]
        if len(some) < count:
            return None
        first, second = first[some], second[some]
        others = self.numbers[first] - self.numbers[second]
        others[:, at] = np.nan
        size = np.fmax(np.nanmax(np.abs(self.numbers[first]), 1), np.abs(own[first]))
        self._pairs = first, second
        return own[first] - own[second], tolerance[first] + tolerance[second], size, others

    def _single(
        self, own: np.ndarray, tolerance: np.ndarray, size: np.ndarray, others: np.ndarray
    ) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Proposals of one source, with its factor."""
        checks = slice(2 * self.options.systems, None)
        with np.errstate(all="ignore"):
            factors = own[: checks.start, None] / others[: checks.start]  # (S, m)
            slack = tolerance[: checks.start, None] / np.abs(others[: checks.start])
            wrong = np.abs(own[checks, None] - factors[:, None] * others[checks])  # (S, C, m)
            loose = tolerance[checks, None] + slack[:, None] * np.abs(others[checks])
        return self._best(wrong, loose, size[checks], own[checks], (factors,),
                          [(k,) for k in range(others.shape[1])])  # fmt: skip

    def _double(
        self, own: np.ndarray, tolerance: np.ndarray, size: np.ndarray, others: np.ndarray
    ) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Proposals of two sources, with their factors."""
        first, second = np.triu_indices(others.shape[1], 1)
        checks = slice(2 * self.options.systems, None)
        a, b = others[: checks.start, first], others[: checks.start, second]
        (a1, a2), (b1, b2) = (a[::2], a[1::2]), (b[::2], b[1::2])
        (y1, y2), (t1, t2) = ((v[: checks.start : 2, None], v[1 : checks.start : 2, None])
                              for v in (own, tolerance))  # fmt: skip
        with np.errstate(all="ignore"):
            det = a1 * b2 - a2 * b1
            p, q = (y1 * b2 - y2 * b1) / det, (a1 * y2 - a2 * y1) / det  # (S, pairs)
            p_slack = (t1 * np.abs(b2) + t2 * np.abs(b1)) / np.abs(det)
            q_slack = (t1 * np.abs(a2) + t2 * np.abs(a1)) / np.abs(det)
            a, b = others[checks, first], others[checks, second]  # (C, pairs)
            wrong = np.abs(own[checks, None] - p[:, None] * a - q[:, None] * b)
            loose = tolerance[checks, None] + p_slack[:, None] * np.abs(a)
            loose = loose + q_slack[:, None] * np.abs(b)
        names = list(zip(first.tolist(), second.tolist(), strict=True))
        return self._best(wrong, loose, size[checks], own[checks], (p, q), names)

    def _best(
        self,
        wrong: np.ndarray,  # (S, C, proposals)
        loose: np.ndarray,
        size: np.ndarray,  # (C,)
        own: np.ndarray,  # (C,)
        factors: Sequence[np.ndarray],  # (S, proposals) each
        sources: Sequence[tuple[int, ...]],
        blur: np.ndarray | float = 0.0,  # like `wrong`
    ) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        """Proposals most checks agree with: to the last digit, but for rounding, or blurred."""
        least = max(4, int(0.4 * len(own)))
        exact = 1e-8 * np.maximum(size, np.abs(own))[:, None]
        most = 0.3 * np.median(np.abs(own))
        rounded, blurred = np.minimum(loose, most), np.minimum(loose + blur, most)
        scores = []
        with np.errstate(invalid="ignore"):
            counted = (~np.isnan(wrong)).sum(1)
            for allowed, worth in ((exact, 2.0), (rounded, 1.0), (blurred, 0.0)):
                share = (wrong <= allowed).sum(1) / np.maximum(counted, 1)
                scores.append(np.where((counted >= least) & (share >= 0.6), worth + share, 0.0))
        score = np.max(scores, 0)  # (S, proposals)
        system, best = score.argmax(0), score.max(0)
        chosen = [k for k in np.argsort(-best)[: self.options.refined] if best[k] > 0]
        return [(tuple(int(self.places[s]) for s in sources[k]),
                 tuple(float(f[system[k], k]) for f in factors)) for k in chosen]  # fmt: skip

    def _fitted(
        self, place: int, sources: tuple[int, ...], factors: Sequence[float] | np.ndarray
    ) -> Relation | None:
        """The sum with factors by most rows, as round as rows allow."""
        cells = self.rows.taught
        cells = cells[~np.isnan(cells[:, [*sources, place]]).any(1)][: self.options.fitted_to]
        if len(cells) < self.options.fewest:
            return None
        x, y = cells[:, list(sources)], cells[:, place]
        found = trimmed(x, y, np.array(factors), 1 - self.options.share)
        spread = float(np.subtract(*np.quantile(y, (0.95, 0.05)))) or float(y.std())
        with np.errstate(over="ignore", invalid="ignore"):  # squares of numbers near the largest
            says_nothing = np.abs(found) * x.std(0) < 3e-4 * spread
        if says_nothing.any():
            return None
        if not self._may_add(place, sources, found):
            return None
        half = self.columns.half_units[place] + 1e-9 * np.abs(y)

        def best_of(factors: np.ndarray) -> tuple[float, LinearRelation]:
            constants = _constants(y - x @ factors, half)
            some = [LinearRelation(place, sources, 1.0, tuple(factors.tolist()), constant)
                    for constant in constants]  # fmt: skip
            shares = [self.rows.share(relation, cells) for relation in some]
            best = next(k for k, s in enumerate(shares) if s >= max(shares) - 0.002)
            return shares[best], some[best]

        share, best = best_of(found)
        if share < self.options.share - 0.3:  # digits too many are worth that much at most
            return None
        for rounder in _rounder(found):
            kept, relation = best_of(rounder)
            if kept >= share - 0.002 and kept > 0:
                return relation
        return best

    def _may_add(self, place: int, sources: tuple[int, ...], factors: np.ndarray) -> bool:
        """Whether what is told is a time, or tells how far times are apart."""
        columns = self.columns
        if columns.is_time(place) or not any(columns.is_time(k) for k in sources):
            return True
        seconds = [f / columns.unit(k) for f, k in zip(factors, sources, strict=True)
                   if columns.is_time(k)]  # fmt: skip
        return bool(abs(sum(seconds)) < 1e-3 * max(np.abs(seconds)))

    def longer_relations_of(self, place: int, without: set[int]) -> Iterator[Relation]:
        """One with three sources or more, if it is believed; not with some columns."""
        at = np.flatnonzero(self.places == place)
        others = np.array([k for k, p in enumerate(self.places) if p not in {place, *without}])
        if not len(at) or len(others) < 3:
            return
        found = _sparse(self.numbers[:, others], self.numbers[:, at[0]],
                        self._tolerance(place, self.rows.taught[:, place]))  # fmt: skip
        if found is None or len(found[0]) < 3:
            return
        some = found[0]
        sources = tuple(int(k) for k in self.places[others[some]])
        yield from self._believed(place, sources, found[1])


def trimmed(x: np.ndarray, y: np.ndarray, factors: np.ndarray, left_out: float) -> np.ndarray:
    """Factors by least squares of the rows that are nearest to the line, again and again."""
    centred = np.column_stack([x, np.ones(len(x))])
    size = np.abs(centred).max(0)
    size[size == 0] = 1.0
    start = np.append(factors, np.median(y - x @ factors))
    for _ in range(12):
        error = np.abs(y - centred @ start)
        near = error <= np.quantile(error, 1 - left_out)
        new = np.linalg.lstsq(centred[near] / size, y[near], rcond=None)[0] / size
        if np.allclose(new, start, 1e-12, 0):
            break
        start = new
    return np.asarray(start[:-1])


def _rounder(factors: np.ndarray) -> Iterator[np.ndarray]:
    """Factors as round as may be, or what is divided by, then less and less so."""
    found = [np.round(factors)]
    with np.errstate(all="ignore"):
        for digits in range(1, 8):
            found.append(_to_digits(factors, digits))
            found.append(1 / _to_digits(1 / factors, digits))
    for rounded_ in (*found, factors):
        if rounded_.all() and np.isfinite(rounded_).all():
            yield rounded_


def _to_digits(numbers: np.ndarray, digits: int) -> np.ndarray:
    return np.array([float(f"{f:.{digits}g}") for f in numbers])


def _constants(error: np.ndarray, half: np.ndarray) -> Iterator[float]:
    """None, the most common error, and what is nearest to most of them."""
    middle, width = stabbed(error, half)
    yield 0.0
    if np.abs(np.median(error)) > np.median(half):
        yield float(f"{np.median(error):.9g}")
    if np.abs(np.median(error)) > 0.2 * np.median(half):  # such as what is rounded down
        yield next(iter(round_factors(middle, width)), middle)


def stabbed(middle: np.ndarray, half: np.ndarray) -> tuple[float, float]:
    """A number that is inside as many of some intervals as may be, and how far it may move."""
    ends = np.concatenate([middle - half, middle + half])
    step = np.repeat([-1, 1], len(middle))  # at one place, intervals begin before others end
    order = np.lexsort([step, ends])
    inside = -np.cumsum(step[order])
    best = int(inside.argmax())
    low, high = ends[order][best], ends[order][min(best + 1, len(ends) - 1)]
    return float((low + high) / 2), float((high - low) / 2)


def round_factors(middle: float, width: float) -> Iterator[float]:
    """The roundest number in an interval, and the roundest that one is divided by."""
    width = max(width, 1e-12 * abs(middle))
    for digits in range(1, 12):
        near = float(f"{middle:.{digits}g}")
        if abs(near - middle) <= width:
            yield near
            break
    if 0 < abs(middle) < 1:
        for digits in range(1, 9):
            near = 1 / float(f"{1 / middle:.{digits}g}")
            if abs(near - middle) <= width:
                yield near
                break


def _sparse(
    x: np.ndarray, y: np.ndarray, tolerance: np.ndarray, most: int = 800
) -> tuple[np.ndarray, np.ndarray] | None:
    """The few columns whose sum, with factors, is another one in most rows.

    Columns with most gaps are left out until enough rows are complete. Sums of absolute errors
    are least for the relation that most rows keep, whatever the others do.
    """
    filled = ~np.isnan(x)
    some = np.arange(x.shape[1])
    while len(some) >= 3:
        good = filled[:, some].all(1) & ~np.isnan(y) & np.isfinite(tolerance)
        if good.sum() >= 3 * len(some) + 20:
            break
        some = np.delete(some, filled[:, some].mean(0).argmin())
    else:
        return None
    rows = np.flatnonzero(good)[:most]
    x, y, tolerance = x[rows][:, some], y[rows], tolerance[rows]
    center, size = np.median(x, 0), x.std(0)
    size[size == 0] = 1.0
    scaled = np.column_stack([(x - center) / size, np.ones(len(x))])
    spread = float(np.median(np.abs(y - np.median(y)))) or float(y.std())
    if not spread:
        return None
    found = _least_absolute(scaled, y / spread)
    for least in (0.02, 0.0):  # first of what matters, then of that alone
        error = np.abs(y / spread - scaled @ found)
        if np.median(error) > 0.03:
            return None
        near = error <= np.quantile(error, 0.85)
        own = np.abs(found) > max(least, 1e-7)
        own[-1] = True
        found = np.zeros_like(found)
        found[own] = np.linalg.lstsq(scaled[near][:, own], y[near] / spread, rcond=None)[0]
    error = np.abs(y - spread * (scaled @ found))
    if np.mean(error <= 2 * tolerance + 1e-6 * spread) < 0.6:
        return None
    chosen = np.flatnonzero(found[:-1])
    return some[chosen], found[chosen] * spread / size[chosen]


def _least_absolute(x: np.ndarray, y: np.ndarray, rounds: int = 25) -> np.ndarray:
    """Coefficients of least absolute error, by reweighted squares; given up where none is near."""
    weights = np.ones(len(y))
    found = np.zeros(x.shape[1])
    ridge = 1e-9 * len(y) * np.eye(x.shape[1])
    for k in range(rounds):
        weighted = x * weights[:, None]
        found = np.linalg.solve(x.T @ weighted + ridge, weighted.T @ y)
        error = np.abs(y - x @ found)
        if k == 6 and np.median(error) > 0.2:
            break
        weights = 1 / np.maximum(error, 1e-6 + 1e-3 * np.median(error))
    return np.asarray(found)
