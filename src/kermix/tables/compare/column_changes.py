"""What changed in a column from the first sample to the second, in words.

The user's columns of encoded rows: numbers, times and categories in their own units.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.schema.columns import CategoryColumn, NumberColumn, rounded
from kermix.data.schema.mixed_rows import MixedRows
from kermix.kernels.distances import Layout
from kermix.two_sample.column_scores import ColumnPlace, places_of_columns, places_of_names

__all__ = [
    "Change",
    "ColumnValues",
    "ComparedRows",
    "change_of",
    "difference_of",
    "groups_of",
    "number_text",
]

UNKNOWN = "(unknown)"
DIGITS, MOST_DIGITS = 4, 13  # of numbers in words: usually, and to tell two of them apart


@dataclass(frozen=True)
class ColumnValues:
    """One column of both samples.

    Attributes:
        name: Of the column.
        kind: "number", "time" or "category".
        numbers: Of numbers and times, NaN where they are missing, (N,).
        codes: Of categories, places among `names`, (N,).
        names: Of the codes.
        column: How numbers were read; None if they are as they were given.
    """

    name: str
    kind: str
    numbers: np.ndarray | None = None
    codes: np.ndarray | None = None
    names: tuple[str, ...] = ()
    column: NumberColumn | None = None

    def shown(self, number: float, digits: int = DIGITS) -> str:
        """A number or time as text."""
        if not np.isfinite(number):
            return "missing"
        if self.column is None:
            return number_text(number, digits)
        if self.column.time:
            return self.column.shown_time(number)
        return number_text(number + self.column.origin, digits)

    def shown_apart(self, numbers: Sequence[float]) -> list[str]:
        """Numbers as text, with as many digits as tell those apart that differ."""
        texts: list[str] = []
        for digits in range(DIGITS, MOST_DIGITS + 1):
            texts = [self.shown(float(number), digits) for number in numbers]
            if len({*texts}) == len({*map(float, numbers)}):
                break
        return texts

    def cell(self, row: int) -> str:
        """What is in a row, as text."""
        if self.codes is not None:
            return self.names[self.codes[row]]
        assert self.numbers is not None
        return self.shown(float(self.numbers[row]))


@dataclass(frozen=True)
class ComparedRows:
    """Rows of two samples, those of the first one first.

    Attributes:
        pooled: Numbers as they are, or mixed rows, (n + m, d).
        n: How many are of the first sample.
        names: Of the user's columns.
        mixed: How mixed rows were made.
    """

    pooled: Tensor
    n: int
    names: tuple[str, ...]
    mixed: MixedRows | None = None

    @property
    def layout(self) -> Layout | None:
        """Which columns of the rows are codes."""
        return None if self.mixed is None else self.mixed.layout

    @cached_property
    def places(self) -> tuple[ColumnPlace, ...]:
        """Where the rows hold each of the user's columns."""
        if self.mixed is not None:
            return places_of_columns(self.mixed)
        return places_of_names(self.names)

    @cached_property
    def _order(self) -> dict[str, int]:
        return {name: k for k, name in enumerate(self.names)}

    def column(self, name: str, rows: Tensor | None = None) -> ColumnValues:
        """One column of all rows, or of some."""
        k = self._order[name]
        place = self.places[k]
        chosen = self.pooled if rows is None else self.pooled[rows]
        if self.mixed is None:
            return ColumnValues(name, "number", chosen[:, k].double().numpy())
        column = self.mixed.schema.modelled[k]
        if isinstance(column, CategoryColumn):
            assert place.codes is not None
            codes = chosen[:, place.codes].long()
            names = (*column.code_names, UNKNOWN)
            codes = torch.where(codes < 0, len(names) - 1, codes)
            return ColumnValues(name, "category", codes=codes.numpy(), names=names)
        assert isinstance(column, NumberColumn)
        assert place.numbers is not None
        q = place.numbers
        scores = chosen[:, q].numpy() * self.mixed.spread[q] + self.mixed.centre[q]
        numbers = np.clip(column.map.inverse(scores), column.low, column.high)
        if column.decimals is not None:
            numbers = rounded(numbers, column.decimals)
        else:
            numbers = _without_last_digits(numbers, max(abs(column.low), abs(column.high)))
        if place.codes is not None:
            numbers = np.where(chosen[:, place.codes].numpy() == 0, numbers, np.nan)
        return ColumnValues(name, column.kind, numbers, column=column)


def _without_last_digits(numbers: np.ndarray, largest: float) -> np.ndarray:
    """Numbers that went to normal scores and back: a zero is zero again."""
    if not 1e-280 < largest < 1e280:
        return numbers
    return np.round(numbers, MOST_DIGITS - 1 - math.floor(math.log10(largest))) + 0.0


def number_text(number: float, digits: int = DIGITS) -> str:
    """A number to so many digits, without an exponent where that is short.

    Example:
        >>> [number_text(x) for x in (0.123456, 2013, 1234567.0, 1e-9)]
        ['0.1235', '2013', '1,235,000', '1e-09']
    """
    short = float(f"{number:.{digits}g}")
    if short == 0 or 1e-4 <= abs(short) < 1e9:
        most = max(digits, 10)
        return f"{short:,.{most}g}" if abs(short) >= 10_000 else f"{short:.{most}g}"
    return f"{short:.{digits}g}"


def sides_of(values: Sequence | np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The part of the first sample, and that of the second."""
    every = np.asarray(values)
    return every[:n], every[n:]


FEW_VALUES = 8
COMMON = 0.1  # a value of so many rows is spoken of by itself
CLEAR = 2.0  # standard deviations
FEWEST_FOR_A_SPREAD = 4  # rows of a side
PARTS = {"middle half": (0.25, 0.75), "middle nine tenths": (0.05, 0.95)}
GROUPS = 20


class Change(NamedTuple):
    """What changed most: in two words, and with its numbers."""

    short: str
    told: str


def change_of(values: ColumnValues, n: int) -> Change:
    """What changed most in a column: its place, its spread, a share, or its gaps.

    Example:
        >>> numbers = np.concatenate([np.arange(100.0), np.arange(100.0) + 50])
        >>> change_of(ColumnValues("x", "number", numbers), 100)
        Change(short='higher', told='median 49.5 -> 99.5')
    """
    if values.codes is not None:
        shares = [np.bincount(c, minlength=len(values.names)) / len(c)
                  for c in sides_of(values.codes, n)]  # fmt: skip
        return _share(values.names, *shares)
    assert values.numbers is not None
    sides = sides_of(values.numbers, n)
    filled = [side[~np.isnan(side)] for side in sides]
    gaps = [1 - len(f) / len(s) for f, s in zip(filled, sides, strict=True)]
    of_gaps = _gap_change(gaps, (len(sides[0]), len(sides[1])))
    if not len(filled[0]) or not len(filled[1]):
        return of_gaps[1]
    found = _of_numbers(values, *filled)
    if of_gaps[0] < CLEAR:
        return found[1]
    first, then = (found, of_gaps) if found[0] >= of_gaps[0] else (of_gaps, found)
    return Change(first[1].short, f"{first[1].told}; {then[1].short}, {then[1].told}")


def groups_of(values: ColumnValues, most: int = GROUPS) -> tuple[np.ndarray, int]:  # (N,)
    """A group for each row, and how many there are: common values, ranges, and gaps.

    Categories beyond the most common share the last group; ranges hold equally many rows.
    """
    if values.codes is not None:
        counts = np.bincount(values.codes, minlength=len(values.names))
        order = np.argsort(-counts, kind="stable")
        group = np.empty(len(order), np.int64)
        group[order] = np.minimum(np.arange(len(order)), most - 1)
        return group[values.codes], min(most, len(order))
    assert values.numbers is not None
    gaps = np.isnan(values.numbers)
    filled = values.numbers[~gaps]
    found = np.zeros(len(gaps), np.int64)
    if len(filled):
        edges = np.unique(np.quantile(filled, np.linspace(0, 1, most)[1:-1]))
        found[~gaps] = np.searchsorted(edges, filled, side="right")
        if len(distinct := np.unique(filled[:100_000])) < most:
            found[~gaps] = np.searchsorted(distinct, filled).clip(max=len(distinct) - 1)
    found[gaps] = most - 1
    return found, most


def difference_of(values: ColumnValues, n: int) -> float:
    """Total variation between both samples' shares of groups of values."""
    group, count = groups_of(values)
    a, b = (np.bincount(g, minlength=count) / len(g) for g in sides_of(group, n))
    return float(np.abs(a - b).sum() / 2)


def _of_numbers(values: ColumnValues, a: np.ndarray, b: np.ndarray) -> tuple[float, Change]:
    """How clear the change is, in standard deviations, and what it is."""
    both = np.concatenate([a, b])
    distinct, index = np.unique(both, return_inverse=True)
    unit = math.sqrt(1 / len(a) + 1 / len(b))
    if len(distinct) == 1:
        return 0.0, Change("the same", f"always {values.shown(float(distinct[0]))}")
    ranks = _middle_ranks(both)
    if len(distinct) <= FEW_VALUES:
        shares = [np.bincount(side, minlength=len(distinct)) / len(side)
                  for side in sides_of(index, len(a))]  # fmt: skip
        spread = ranks.std()
        clear = abs(ranks[: len(a)].mean() - ranks[len(a) :].mean()) / max(spread * unit, 1e-12)
        return clear, _share(values.shown_apart(distinct.tolist()), *shares)
    # Far from the middle of its own side: a shift alone leaves that as it was.
    far = _middle_ranks(np.concatenate([np.abs(side - np.median(side)) for side in (a, b)]))
    place, spread = (
        (part[len(a) :].mean() - part[: len(a)].mean()) / max(part.std() * unit, 1e-12)
        for part in (ranks, far)
    )
    if min(len(a), len(b)) < FEWEST_FOR_A_SPREAD:
        spread = 0.0
    middles = [float(np.median(side)) for side in (a, b)]
    of_atom = _atom_change(values, a, b)
    if of_atom is not None:
        return of_atom
    if abs(spread) > max(abs(place), CLEAR) and values.kind != "time":
        word = "more spread" if spread > 0 else "less spread"
        for what, quantiles in PARTS.items():
            ends = [np.quantile(side, quantiles) for side in (a, b)]
            texts = values.shown_apart([float(end) for pair in ends for end in pair])
            wide = [f"{low} to {high}" for low, high in (texts[:2], texts[2:])]
            grew = np.diff(ends[1])[0] - np.diff(ends[0])[0]
            if wide[0] != wide[1] and grew * spread > 0:  # what is shown agrees with the word
                return abs(spread), Change(word, f"{what} {wide[0]} -> {wide[1]}")
    what = "median"
    if middles[0] == middles[1] or len({*map(values.shown, middles)}) == 1:
        what, middles = "mean", [float(side.mean()) for side in (a, b)]
    words = ("later", "earlier") if values.kind == "time" else ("higher", "lower")
    shown = values.shown_apart(middles)
    if abs(place) < CLEAR:
        same = np.array_equal(np.sort(a), np.sort(b))
        word = "the same" if same else "another shape"
        return abs(place), Change(word, f"{what} {shown[0]} -> {shown[1]}")
    return abs(place), Change(words[0 if place > 0 else 1], f"{what} {shown[0]} -> {shown[1]}")


def _atom_change(
    values: ColumnValues, a: np.ndarray, b: np.ndarray
) -> tuple[float, Change] | None:
    """The share of the commonest value, if it changed more clearly than the other values did."""
    distinct, counts = np.unique(np.concatenate([a, b]), return_counts=True)
    atom = distinct[np.argmax(counts)]
    if counts.max() < COMMON * counts.sum():
        return None
    shares = [float((side == atom).mean()) for side in (a, b)]
    clear = _share_change(shares, (len(a), len(b)))
    others = [side[side != atom] for side in (a, b)]
    if clear < CLEAR or (all(map(len, others)) and _of_numbers(values, *others)[0] > clear):
        return None
    common = distinct[np.argsort(-counts, kind="stable")[:FEW_VALUES]].tolist()
    name = values.shown_apart(common)[0]  # told apart from other common values
    word = f"{'more' if shares[1] > shares[0] else 'fewer'} {name}"
    return clear, Change(word, f"{_percent(shares[0])} -> {_percent(shares[1])}")


def _middle_ranks(numbers: np.ndarray) -> np.ndarray:  # between 0 and 1
    _, index, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return ((np.cumsum(counts) - counts / 2) / len(numbers))[index]


def _share(names: list[str] | tuple[str, ...], a: np.ndarray, b: np.ndarray) -> Change:
    """The value whose share changed most; of two, that which grew."""
    moved = b - a
    k = int(np.argmax(np.abs(moved) + 1e-9 * (moved > 0)))
    return Change(
        f"{'more' if moved[k] > 0 else 'fewer'} {names[k]}" if moved[k] else "the same",
        f"{_percent(a[k])} -> {_percent(b[k])}",
    )


def _gap_change(gaps: list[float], sizes: tuple[int, int]) -> tuple[float, Change]:
    word = "more gaps" if gaps[1] > gaps[0] else "fewer gaps"
    told = f"{_percent(gaps[0])} -> {_percent(gaps[1])}"
    return _share_change(gaps, sizes), Change(word if gaps[0] != gaps[1] else "the same", told)


def _share_change(shares: list[float], sizes: tuple[int, int]) -> float:
    """How many standard deviations two shares are apart."""
    share = (shares[0] * sizes[0] + shares[1] * sizes[1]) / sum(sizes)
    unit = math.sqrt(max(share * (1 - share), 1e-12) * (1 / sizes[0] + 1 / sizes[1]))
    return abs(shares[1] - shares[0]) / unit


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 0.995 or share == 1 else f"{100 * share:.4g} %"
