"""Finds products among columns, and logarithms of sums: what is linear in logarithms.

Zeros and signs tell nothing there; a relation is accepted in raw units alone, after rounding.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from kermix.tables.model.relation_formulas import (
    SplitHalves,
    Sums,
    round_factors,
    stabbed,
    trimmed,
)
from kermix.tables.model.relations import PowerRelation, Relation

__all__ = ["Logarithms", "ProductsOfPowers"]

POWERS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, -3.0, 1 / 3, -1 / 3, 1.5, -1.5)  # convention


class ProductsOfPowers(Sums):
    """Proposes and fits products, in logarithms."""

    def __init__(self, rows: SplitHalves) -> None:
        super().__init__(rows)
        with np.errstate(all="ignore"):  # how far logarithms may be from those before rounding
            shares = self.columns.half_units[self.places] / np.abs(rows.taught[:, self.places])
        self._rounded = np.where(np.isfinite(shares), shares, 0.0)

    def _fits(self, place: int) -> bool:
        if self.columns.is_time(place):
            return False
        own = self.rows.cells[:, place]
        return bool((np.abs(own) > 0).sum() >= 2 * self.options.fewest)

    def _transformed(self, cells: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            logs = np.log(np.abs(cells))
        return np.where(np.isfinite(logs), logs, np.nan)

    def _tolerance(self, place: int, cells: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):
            found = self.columns.half_units[place] / np.abs(cells)
        return np.where(found < 0.4, found * 1.3, np.nan)

    def _single(
        self, own: np.ndarray, tolerance: np.ndarray, size: np.ndarray, others: np.ndarray
    ) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        powers = np.array([p for p in POWERS if p != 1.0])  # a factor alone is linear
        wrong = np.abs(own[:, None] - powers[:, None, None] * others)
        factors = np.broadcast_to(powers[:, None], (len(powers), others.shape[1]))
        return self._best(wrong, tolerance[:, None], np.ones(len(own)), own, (factors,),
                          [(k,) for k in range(others.shape[1])])  # fmt: skip

    def _double(
        self, own: np.ndarray, tolerance: np.ndarray, size: np.ndarray, others: np.ndarray
    ) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
        first, second = np.triu_indices(others.shape[1], 1)
        pairs = [(p, q) for p in POWERS[:6] for q in POWERS[:6] if abs(p) == 1 or abs(q) == 1]
        pairs.append((0.5, 0.5))
        some = slice(0, self.options.checks + 2)
        a, b = others[some, first], others[some, second]
        wrong = np.stack([np.abs(own[some, None] - p * a - q * b) for p, q in pairs])
        names = list(zip(first.tolist(), second.tolist(), strict=True))
        blur = self._rounded[self._pairs[0][some]] + self._rounded[self._pairs[1][some]]
        blurs = np.stack([abs(p) * blur[:, first] + abs(q) * blur[:, second] for p, q in pairs])
        factors = [
            np.repeat(np.array(v)[:, None], len(first), 1) for v in zip(*pairs, strict=True)
        ]
        return self._best(wrong, tolerance[some, None], np.ones(len(own[some])), own[some],
                          factors, names, blurs)  # fmt: skip

    def _believed(
        self, place: int, sources: tuple[int, ...], factors: Sequence[float] | np.ndarray
    ) -> Iterator[Relation]:
        """The product of columns as they are, or else of what they were before rounding."""
        for before in (False, True) if len(sources) > 1 else (False,):
            relation = self._power(place, sources, factors, before)
            if relation is not None and self.rows.believed(relation):
                yield relation
                return

    def _power(
        self,
        place: int,
        sources: tuple[int, ...],
        factors: Sequence[float] | np.ndarray,
        before: bool,
    ) -> PowerRelation | None:
        """The product with the factor by most rows, as round as rows allow."""
        powers = [min(POWERS, key=lambda p: abs(p - f)) for f in factors]
        if any(abs(p - f) > 0.15 for p, f in zip(powers, factors, strict=True)):
            return None
        relation = PowerRelation(place, sources, 1.0, tuple(powers), before_rounding=before)
        rows = self.rows.taught[relation.known(self.rows.taught)]
        relation = _with_otherwise(relation, rows)
        rows = rows[: self.options.fitted_to]
        wanted = relation.expected(rows)
        with np.errstate(all="ignore"):
            ratio = rows[:, place] / wanted
            half = (self.columns.half_units[place] + 1e-9 * np.abs(rows[:, place])) / np.abs(
                wanted
            )
            half = half + relation.slack(self.columns, rows) / np.abs(wanted)
        good = np.isfinite(ratio) & np.isfinite(half)
        if good.sum() < self.options.fewest:
            return None
        return _best_factor(relation, self.rows, rows, ratio[good], half[good])


class Logarithms(Sums):
    """Proposes and fits logarithms of columns and of sums of two, times a column or not."""

    def __init__(self, rows: SplitHalves) -> None:
        super().__init__(rows)
        self.raw = self.numbers
        with np.errstate(all="ignore"):
            logs = np.log(np.where(self.raw > 0, self.raw, np.nan))
        self.logs = logs

    def _fits(self, place: int) -> bool:
        own = self.rows.cells[:, place]
        return not self.columns.is_time(place) and bool((own > 0).mean() > 0.5)

    def believed_of(self, place: int, without: set[int]) -> Iterator[Relation]:
        """Those of a column that are believed, not with some columns."""
        own = self.rows.taught[:, place]
        others = [k for k, p in enumerate(self.places) if p not in {place, *without}]
        if not others or self.columns.is_time(place):
            return
        random = np.random.default_rng(self.options.seed + place)
        good = np.flatnonzero(~np.isnan(own))
        if len(good) < self.options.fewest:
            return
        first, second = random.choice(good, (2, 6 * self.options.checks))
        proposals = [*self._alone(own, first, second, others),
                     *self._of_sums(own, first, second, others)]  # fmt: skip
        for relation in proposals:
            fitted = self._logarithm(replace(relation, place=place))
            if fitted is not None and self.rows.believed(fitted):
                yield fitted

    def _alone(
        self, own: np.ndarray, first: np.ndarray, second: np.ndarray, others: Sequence[int]
    ) -> Iterator[PowerRelation]:
        """Logarithms of one column, with a factor and a constant; the most likely ones."""
        difference = own[first] - own[second]
        logs = self.logs[first] - self.logs[second]
        with np.errstate(all="ignore"):
            slopes = np.where(np.abs(logs) > 0.1, difference[:, None] / logs, np.nan)
        for k in others:
            known = slopes[:, k][np.isfinite(slopes[:, k])]
            if len(known) < self.options.checks:
                continue
            middle = float(np.median(known))
            if middle and np.median(np.abs(known - middle)) < 0.1 * abs(middle):
                yield PowerRelation(-1, (int(self.places[k]),), 1.0, (), middle, 1)

    def _of_sums(
        self, own: np.ndarray, first: np.ndarray, second: np.ndarray, others: Sequence[int]
    ) -> list[PowerRelation]:
        """Logarithms of one column or of the sum of two, times or by another one or none."""
        with np.errstate(all="ignore"):
            logs = np.log(np.where(own > 0, own, np.nan))
            wanted = logs[first] - logs[second]
        some = np.flatnonzero(np.abs(wanted) > 0.05)[: 2 * self.options.checks]
        if len(some) < self.options.checks or len(others) > self.options.most_summed:
            return []
        first, second, wanted = first[some], second[some], wanted[some]
        inside = [(k,) for k in others] + list(combinations(others, 2))
        raw = self.raw[:, others]
        place = {k: j for j, k in enumerate(others)}
        a = np.array([place[pair[0]] for pair in inside])
        b = np.array([place[pair[-1]] for pair in inside])
        twice = np.array([len(pair) == 2 for pair in inside])
        with np.errstate(all="ignore"):
            sums = raw[:, a] + twice * raw[:, b]
            told = np.log(np.log(sums[first])) - np.log(np.log(sums[second]))  # (P, pairs)
        told[~np.isfinite(told)] = np.nan
        found: list[tuple[float, PowerRelation]] = []
        size = np.median(np.abs(wanted))
        for outer, power in [(None, 0.0), *((k, p) for k in others for p in (1.0, -1.0))]:
            rest = wanted
            if outer is not None:
                rest = wanted - power * (self.logs[first, outer] - self.logs[second, outer])
            with np.errstate(invalid="ignore"):
                near = np.abs(rest[:, None] - told) < 0.02 * size
            agree = near.mean(0)
            agree[[outer in pair for pair in inside]] = 0.0
            for k in np.argsort(-agree)[: self.options.refined]:
                if agree[k] >= 0.6:
                    factors = () if outer is None else (int(self.places[outer]),)
                    of = tuple(int(self.places[j]) for j in inside[k])
                    powers = () if outer is None else (power,)
                    relation = PowerRelation(-1, (*factors, *of), 1.0, powers, 1.0, len(of))
                    found.append((float(agree[k]), relation))
        found.sort(key=lambda one: -one[0])
        return [relation for _, relation in found[: self.options.refined]]

    def _logarithm(self, relation: PowerRelation) -> PowerRelation | None:
        """A logarithm with its factor and its constant by most rows, as round as they allow."""
        rows = self.rows.taught[relation.known(self.rows.taught)][: self.options.fitted_to]
        if relation.powers:
            relation = _with_otherwise(relation, rows)
        half = self.columns.half_units[relation.place]
        bare = replace(relation, factor=1.0).expected(rows)
        own = rows[:, relation.place]
        good = np.isfinite(bare) & (bare != 0)
        if good.sum() < self.options.fewest:
            return None
        bare, own = bare[good], own[good]
        if relation.factor != 1.0:
            return self._with_constant(relation, bare, own, half + 1e-9 * np.abs(own))
        ratio, halves = own / bare, (half + 1e-9 * np.abs(own)) / np.abs(bare)
        return _best_factor(relation, self.rows, rows, ratio, halves)

    def _with_constant(
        self, relation: PowerRelation, bare: np.ndarray, own: np.ndarray, half: np.ndarray
    ) -> PowerRelation | None:
        sums = float(
            trimmed(bare[:, None], own, np.array([relation.factor]), 1 - self.options.share)[0]
        )
        best, share = None, 0.0
        for factor in (*_bases(sums), *_round(sums), sums):
            middle, width = stabbed(own - factor * bare, half)
            for constant in (0.0, *round_factors(middle, width), middle):
                one = replace(relation, factor=float(factor), constant=float(constant))
                kept = self.rows.share(one, self.rows.taught)
                if kept > share + 0.002:
                    best, share = one, kept
        return best


def _bases(factor: float) -> Iterator[float]:
    """Round multiples of logarithms to the bases 2 and 10 that are near a factor."""
    for base in (1.0, math.log(2), math.log(10)):
        near = float(f"{factor * base:.3g}")
        if abs(near / base - factor) < 1e-2 * abs(factor):
            yield near / base
        yield float(f"{factor * base:.2g}") / base


def _round(factor: float) -> Iterator[float]:
    for digits in range(1, 6):
        yield float(f"{factor:.{digits}g}")


def _with_otherwise(
    relation: PowerRelation, rows: np.ndarray, fewest: int = 5, share: float = 0.9
) -> PowerRelation:
    """With the value of rows in which it is not defined, if nearly all of them have one."""
    own = rows[~np.isfinite(relation.expected(rows)), relation.place]
    if len(own) < fewest:
        return relation
    values, counts = np.unique(own, return_counts=True)
    if counts.max() < share * len(own):
        return relation
    return replace(relation, otherwise=float(values[counts.argmax()]))


def _best_factor(
    relation: PowerRelation,
    halves: SplitHalves,
    rows: np.ndarray,
    ratio: np.ndarray,
    half: np.ndarray,
) -> PowerRelation | None:
    """The relation with a factor that most rows allow, as round as may be."""
    best, share = None, 0.0
    middle, width = stabbed(ratio, half)
    near = [f for f in _bases(middle) if abs(f - middle) <= max(width, 1e-12 * abs(middle))]
    bases = near if relation.summed else []
    for factor in (*bases, *round_factors(middle, width), middle):
        if factor == 0:
            continue
        one = replace(relation, factor=float(factor))
        kept = halves.share(one, rows)
        if kept > share + 0.002:
            best, share = one, kept
    return best
