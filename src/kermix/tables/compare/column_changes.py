"""What changed in a column from the first sample to the second, in words and in its own units."""

import difflib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import number_text
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.sources import (
    MixedRows,
    Sources,
)
from kermix.kernels.distances import Layout
from kermix.kernels.subsets import distinct_rows
from kermix.two_sample.column_scores import (
    FEW_VALUES,
    ColumnPlace,
    places_of_columns,
    places_of_names,
)

__all__ = [
    "CHANCE",
    "CLEAR",
    "Change",
    "ColumnValues",
    "ComparedRows",
    "change_of",
    "change_of_counts",
    "difference_of",
    "groups_of",
    "middle_ranks",
    "new_and_gone",
    "pair_groups",
    "share_change",
    "values_of_one",
    "variation",
    "variation_by_chance",
]

UNKNOWN = "(unknown)"


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

    def shown(self, number: float, digits: int = 4) -> str:
        """A number or time as text."""
        if not np.isfinite(number):
            return "missing"
        if self.column is None:
            return number_text(number, digits)
        if self.column.time:
            return self.column.shown_time(number)
        text = number_text(number + self.column.origin, digits)
        return text if self.column.form is None else self.column.form.dressed(text)

    def shown_apart(self, numbers: Sequence[float], fewest: int = 4, most: int = 13) -> list[str]:
        """Numbers as text, with as many digits as tell those apart that differ."""
        texts: list[str] = []
        for digits in range(fewest, most + 1):
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
        numbers: The numbers of mixed rows as the user's tables have them, less their origin, NaN
            where they are missing, (n + m, numbers).
    """

    pooled: Tensor
    n: int
    names: tuple[str, ...]
    mixed: MixedRows | None = None
    numbers: Tensor | None = None

    @classmethod
    def of(cls, read: Sources, chosen: Sequence[Tensor] | None = None) -> "ComparedRows":
        """Rows of two tables that were read, or some of each."""
        first, second = read.tables
        picked: Sequence[Any] = [slice(None)] * 2 if chosen is None else chosen
        sides = [t.values[some] for t, some in zip((first, second), picked, strict=True)]
        numbers = None
        if read.mixed is not None:
            own = read.mixed.schema.own_numbers
            parts = zip(read.frames, picked, strict=True)
            numbers = torch.cat([torch.from_numpy(own(frame))[some] for frame, some in parts])
        names = tuple(first.columns)
        return cls(torch.cat(sides), len(sides[0]), names, read.mixed, numbers)

    def some(self, rows: Tensor, n: int) -> "ComparedRows":
        """Some of the rows, of which the first n are of the first sample."""
        numbers = None if self.numbers is None else self.numbers[rows]
        return replace(self, pooled=self.pooled[rows], n=n, numbers=numbers)

    @property
    def layout(self) -> Layout | None:
        """Which columns of the rows are codes."""
        return None if self.mixed is None else self.mixed.layout

    @cached_property
    def distinct(self) -> tuple[Tensor, Tensor, Tensor]:  # (k,), (n + m,), (2, k)
        """One of each of the distinct rows, which of them each row is, and how many of each."""
        kept, place = distinct_rows(self.pooled + 0.0)
        second = (torch.arange(len(place)) >= self.n).long()
        counts = torch.zeros(2, len(kept)).index_put_(
            (second, place), torch.ones(len(place)), True
        )
        return kept, place, counts

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
        assert self.numbers is not None
        own = self.numbers[:, place.numbers]
        numbers = (own if rows is None else own[rows]).numpy()
        return ColumnValues(name, column.kind, numbers, column=column)


def sides_of(values: Sequence | np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The part of the first sample, and that of the second."""
    every = np.asarray(values)
    return every[:n], every[n:]


# Reasoned, no record.
CLEAR = 2.0  # standard deviations
MIDDLES: dict[str, Callable[[np.ndarray], float]] = {
    "median": np.median,
    "mean": np.mean,
    "lower quartile": lambda numbers: np.quantile(numbers, 0.25),
    "upper quartile": lambda numbers: np.quantile(numbers, 0.75),
}
PARTS = {"middle half": (0.25, 0.75), "middle nine tenths": (0.05, 0.95)}
GROUPS, OF_A_PAIR = 20, 8  # of a column alone, and of each of two together: convention
NAMED = 3  # columns, and values that are new or gone, that are spoken of by name: convention
CHANCE = 0.05  # share of the values called new or gone that may be so by chance
MISSING = "(missing)"


class Change(NamedTuple):
    """What changed most: in two words, and with its numbers."""

    short: str
    description: str


def change_of(values: ColumnValues, n: int) -> Change:
    """What changed most in a column: its place, its spread, a share, or its gaps.

    Example:
        >>> numbers = np.concatenate([np.arange(100.0), np.arange(100.0) + 50])
        >>> change_of(ColumnValues("x", "number", numbers), 100)
        Change(short='higher', description='median 49.5 -> 99.5')
    """
    if values.codes is not None:
        counts = (np.bincount(c, minlength=len(values.names)) for c in sides_of(values.codes, n))
        return change_of_counts(values.names, *counts)
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
    return Change(
        first[1].short, f"{first[1].description}; {then[1].short}, {then[1].description}"
    )


def change_of_counts(names: Sequence[str], a: np.ndarray, b: np.ndarray) -> Change:
    """What changed most in a category: values that are new, gone or renamed come first.

    Args:
        names: Of the values.
        a: Rows of the first sample with each value.
        b: Rows of the second.

    Example:
        >>> change_of_counts(["A", "B", "H"], np.array([60, 40, 0]), np.array([55, 35, 10]))
        Change(short='new H', description='0 % -> 10 %')
        >>> change_of_counts(["A", "B", "H"], np.array([60, 40, 0]), np.array([59, 40, 1]))
        Change(short='more H', description='0 -> 1 row')
    """
    counts = _ValueCounts.of(names, a, b)
    new, gone = new_and_gone(a, b)
    if not len(new) + len(gone):
        return counts.most_moved()
    moved = counts.clearly_moved()
    renamed = _renamed(names, counts, (*new, *gone), others_moved=moved is not None)
    words, spoken = counts.spoken(new, gone, renamed)
    if len(counts.both) == 1 and len(spoken) > 1:  # all that is left, or was there before
        moved = counts.change_of(int(counts.both[0]))
    more = "" if moved is None else f"; {moved.short}, {moved.description}"
    return Change(", ".join(words), counts.changes(spoken) + more)


Spoken = list[tuple[str, Sequence[int]]]


class _ValueCounts(NamedTuple):
    """How often both samples have the values of a category, named as people read them."""

    names: list[str]
    a: np.ndarray
    b: np.ndarray
    shares: tuple[np.ndarray, np.ndarray]

    @classmethod
    def of(cls, names: Sequence[str], a: np.ndarray, b: np.ndarray) -> "_ValueCounts":
        shares = a / max(1, int(a.sum())), b / max(1, int(b.sum()))
        return cls(["gaps" if name == MISSING else _quoted(name) for name in names], a, b, shares)

    @property
    def both(self) -> np.ndarray:
        """Values that both samples have."""
        return np.flatnonzero((self.a > 0) & (self.b > 0))

    def change_of(self, k: int) -> Change:
        """The change of one value."""
        return _change_of_share(self.names, *self.shares, k)

    def most_moved(self) -> Change:
        """The change of the value that moved most."""
        k = _most_moved(*self.shares)
        a, b = self.a[k], self.b[k]
        # Of a value that may be absent by chance, rows: 0 % would say more.
        if min(a, b) == 0 and max(a, b) > 0:
            return Change(self.change_of(k).short, f"{a} -> {b} row{'' if b == 1 else 's'}")
        return self.change_of(k)

    def clearly_moved(self) -> Change | None:
        """The change of the value of both whose share clearly changed most, if any did."""
        both = self.both
        at = _moved(self.a[both], self.b[both], [share[both] for share in self.shares])
        return None if at is None else self.change_of(int(both[at]))

    def spoken(
        self, new: np.ndarray, gone: np.ndarray, renamed: Sequence[tuple[int, int]]
    ) -> tuple[list[str], Spoken]:
        """What is said of new, gone and renamed values, and the values whose shares are given."""
        words = [f"{self.names[v]} probably renamed {self.names[w]}" for v, w in renamed[:NAMED]]
        words += [f"{len(renamed) - NAMED} more renamed"] * (len(renamed) > NAMED)
        spoken: Spoken = [(self.names[k], [k]) for pair in renamed[:NAMED] for k in pair]
        known = {k for pair in renamed for k in pair}
        for word, values in (("new", new), ("no more", gone)):
            left = [k for k in values if k not in known]
            if not left:
                continue
            those = self._first(left)
            words.append(f"{word} {_listed([name for name, _ in those])}")
            spoken += those
        return words, spoken

    def _first(self, values: Sequence[int]) -> Spoken:
        """The first values by name, the rest together."""
        shown = len(values) if len(values) <= NAMED + 1 else NAMED
        found: Spoken = [(self.names[k], [k]) for k in values[:shown]]
        rest = values[shown:]
        return [*found, (f"{len(rest)} others", rest)] if rest else found

    def changes(self, spoken: Spoken) -> str:
        """The shares before and after of values, together where several are one word."""
        named = len(spoken) > 1
        return ", ".join(
            f"{name} " * named + " -> ".join(_percent(s[k].sum()) for s in self.shares)
            for name, k in spoken
        )


def values_of_one(values: ColumnValues, n: int) -> Change | None:
    """Values that are new or gone beyond chance, as numbers of rows; None if there are none.

    Example:
        >>> codes = np.array([0] * 60 + [0] * 50 + [1] * 10)
        >>> values_of_one(ColumnValues("grade", "category", codes=codes, names=("A", "Z")), 60)
        Change(short='more Z', description='Z: 0 -> 10 rows')
    """
    if values.codes is None:
        return None
    a, b = (np.bincount(c, minlength=len(values.names)) for c in sides_of(values.codes, n))
    names = ["gaps" if name == MISSING else _quoted(name) for name in values.names]
    new, gone = new_and_gone(a, b)
    both = [*new, *gone]
    if not both:
        return None
    description = [f"{names[k]}: {a[k]:,} -> {b[k]:,} rows" for k in both[:NAMED]]
    more = len(both) - NAMED
    description += [f"{more} more value{'s' * (more > 1)}"] * (more > 0)
    first = names[both[0]]
    return Change(f"more {first}" if len(new) else f"{first} less often", ", ".join(description))


def new_and_gone(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Values that only the second sample has, and those that only the first has, largest first.

    Those whose absence from the other sample may be chance are left out: if labels of rows were
    random, all t rows of a value would be of one sample with a probability of its share of the
    rows to the power of t. The correction is that of Benjamini and Hochberg: many rare values may
    be clear together where one is not.

    Example:
        >>> new_and_gone(np.array([90, 10, 0, 0]), np.array([88, 0, 11, 1]))
        (array([2]), array([1]))
    """
    total = max(1, int(a.sum() + b.sum()))
    chances = [np.where((side > 0) & (other == 0), (side.sum() / total) ** side, 1.0)
               for side, other in ((b, a), (a, b))]  # fmt: skip
    ordered = np.sort(np.concatenate(chances))
    limits = CHANCE * np.arange(1, len(ordered) + 1) / max(1, 2 * int((a + b > 0).sum()))
    passed = ordered[ordered <= limits]
    most = passed[-1] if len(passed) else -1.0
    new, gone = (
        np.array(sorted(np.flatnonzero(chance <= most), key=lambda k: -side[k]), int)
        for chance, side in zip(chances, (b, a), strict=True)
    )
    return new, gone


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
    return variation(groups_of(values)[0], n)


def pair_groups(first: ColumnValues, second: ColumnValues) -> np.ndarray:  # (N,)
    """A group for each row by two columns together: at most eight groups of each."""
    return groups_of(first, OF_A_PAIR)[0] * OF_A_PAIR + groups_of(second, OF_A_PAIR)[0]


def variation(groups: np.ndarray, n: int) -> float:
    """Total variation between both samples: half the sum of the differences of shares."""
    count = int(groups.max(initial=0)) + 1
    a, b = (np.bincount(g, minlength=count) / max(1, len(g)) for g in sides_of(groups, n))
    return float(np.abs(a - b).sum() / 2)


def variation_by_chance(groups: np.ndarray, n: int) -> float:
    """That to be expected of two samples of one distribution: shares are about normal."""
    shares = np.bincount(groups) / len(groups)
    unit = 1 / n + 1 / (len(groups) - n)
    return float(np.sqrt(2 / math.pi * shares * (1 - shares) * unit).sum() / 2)


def _of_numbers(values: ColumnValues, a: np.ndarray, b: np.ndarray) -> tuple[float, Change]:
    """How clear the change is, in standard deviations, and what it is."""
    distinct, index = np.unique(np.concatenate([a, b]), return_inverse=True)
    if len(distinct) == 1:
        return 0.0, Change("the same", f"always {values.shown(float(distinct[0]))}")
    moves = _Moves.of(a, b)
    if len(distinct) <= FEW_VALUES:
        shares = [np.bincount(side, minlength=len(distinct)) / len(side)
                  for side in sides_of(index, len(a))]  # fmt: skip
        return abs(moves.place), _share(values.shown_apart(distinct.tolist()), *shares)
    return (
        _atom_change(values, a, b)
        or _spread_change(values, a, b, moves)
        or _place_change(values, a, b, moves)
    )


class _Moves(NamedTuple):
    """By how many standard deviations numbers moved, by their ranks among both samples.

    Attributes:
        place: How much higher the second sample is.
        spread: How much further from the middle of its own side it is: a shift alone leaves that
            as it was.
        above: How often a number of the second is above one of the first, ties halved.
    """

    place: float
    spread: float
    above: float

    @classmethod
    def of(cls, a: np.ndarray, b: np.ndarray, fewest_for_a_spread: int = 4) -> "_Moves":
        unit = math.sqrt(1 / len(a) + 1 / len(b))
        ranks = middle_ranks(np.concatenate([a, b]))
        far = middle_ranks(np.concatenate([np.abs(side - np.median(side)) for side in (a, b)]))
        place, spread = (
            float((part[len(a) :].mean() - part[: len(a)].mean()) / max(part.std() * unit, 1e-12))
            for part in (ranks, far)
        )
        if min(len(a), len(b)) < fewest_for_a_spread:
            spread = 0.0
        second = ranks[len(a) :].mean()  # among both, half of its own included
        return cls(place, spread, 0.5 + (second - 0.5) * (len(a) + len(b)) / len(a))


def _spread_change(
    values: ColumnValues, a: np.ndarray, b: np.ndarray, moves: _Moves
) -> tuple[float, Change] | None:
    """That numbers are further apart or nearer to each other, if that is the clearest change."""
    spread = moves.spread
    if abs(spread) <= max(abs(moves.place), CLEAR) or values.kind == "time":
        return None
    word = "more spread" if spread > 0 else "less spread"
    for what, quantiles in PARTS.items():
        ends = [np.quantile(side, quantiles) for side in (a, b)]
        texts = values.shown_apart(np.concatenate(ends).tolist())
        wide = [f"{low} to {high}" for low, high in (texts[:2], texts[2:])]
        grew = np.diff(ends[1])[0] - np.diff(ends[0])[0]
        if wide[0] != wide[1] and grew * spread > 0:  # what is shown agrees with the word
            return abs(spread), Change(word, f"{what} {wide[0]} -> {wide[1]}")
    return None


def _place_change(
    values: ColumnValues, a: np.ndarray, b: np.ndarray, moves: _Moves
) -> tuple[float, Change]:
    """Whether numbers are higher or lower."""
    place = moves.place
    if abs(place) < CLEAR:
        same = np.array_equal(np.sort(a), np.sort(b))
        description = next(_middles(values, a, b))[1]
        return abs(place), Change("the same" if same else "another shape", description)
    words = ("later", "earlier") if values.kind == "time" else ("higher", "lower")
    word = words[0 if place > 0 else 1]
    for grew, description in _middles(values, a, b):
        if grew * place > 0:  # what is shown agrees with the word
            return abs(place), Change(word, description)
    share = _percent(max(moves.above, 1 - moves.above))
    return abs(place), Change(f"mostly {word}", f"in {share} of pairs of rows")


def _middles(values: ColumnValues, a: np.ndarray, b: np.ndarray) -> Iterator[tuple[float, str]]:
    """How much medians, means and quartiles grew, and in words; equal medians are left out."""
    for what, of in MIDDLES.items():
        ends = float(of(a)), float(of(b))
        if what == "median" and len({*map(values.shown, ends)}) == 1:
            continue
        shown = values.shown_apart(ends)
        yield ends[1] - ends[0], f"{what} {shown[0]} -> {shown[1]}"


def _atom_change(
    values: ColumnValues, a: np.ndarray, b: np.ndarray, common_from: float = 0.1
) -> tuple[float, Change] | None:
    """The share of the commonest value, if it changed more clearly than the other values did."""
    distinct, counts = np.unique(np.concatenate([a, b]), return_counts=True)
    atom = distinct[np.argmax(counts)]
    if counts.max() < common_from * counts.sum():
        return None
    shares = [float((side == atom).mean()) for side in (a, b)]
    clear = share_change(shares, (len(a), len(b)))
    others = [side[side != atom] for side in (a, b)]
    if clear < CLEAR or (all(map(len, others)) and _of_numbers(values, *others)[0] > clear):
        return None
    common = distinct[np.argsort(-counts, kind="stable")[:FEW_VALUES]].tolist()
    name = values.shown_apart(common)[0]  # told apart from other common values
    word = f"more {name}" if shares[1] > shares[0] else f"{name} less often"
    return clear, Change(word, f"{_percent(shares[0])} -> {_percent(shares[1])}")


def middle_ranks(numbers: np.ndarray) -> np.ndarray:  # between 0 and 1
    """Ranks of numbers, the same of equal ones."""
    _, index, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    return ((np.cumsum(counts) - counts / 2) / len(numbers))[index]


def _share(names: Sequence[str], a: np.ndarray, b: np.ndarray) -> Change:
    """The value whose share changed most."""
    return _change_of_share(names, a, b, _most_moved(a, b))


def _change_of_share(names: Sequence[str], a: np.ndarray, b: np.ndarray, k: int) -> Change:
    return Change(
        "the same"
        if b[k] == a[k]
        else (f"more {names[k]}" if b[k] > a[k] else f"{names[k]} less often"),
        f"{_percent(a[k])} -> {_percent(b[k])}",
    )


def _most_moved(a: np.ndarray, b: np.ndarray) -> int:
    """Of two that moved as much, the one that grew."""
    return int(np.argmax(np.abs(b - a) + 1e-9 * (b > a)))


def _moved(a: np.ndarray, b: np.ndarray, shares: Sequence[np.ndarray]) -> int | None:
    """Of values that both samples have, the one whose share among these clearly changed most.

    Its share of all rows, which is what is shown, must have changed in the same direction.
    """
    if len(a) < 2:
        return None
    sizes = int(a.sum()), int(b.sum())
    clear = np.array(
        [share_change((x / sizes[0], y / sizes[1]), sizes) for x, y in zip(a, b, strict=True)]
    )
    if math.erfc(clear.max() / math.sqrt(2)) > CHANCE / len(a):
        return None
    same = (b / sizes[1] - a / sizes[0]) * (shares[1] - shares[0]) > 0
    return int(np.argmax(np.where(same, clear, -1.0)))


def _renamed(
    names: Sequence[str], counts: _ValueCounts, changed: Sequence[int], others_moved: bool
) -> list[tuple[int, int]]:
    """Values that are gone, each with the new one that has its share of the rows.

    No other may have that share, and the rest must be as it was; or their names are alike.
    """
    a, b = counts.a, counts.b
    sizes = int(a.sum()), int(b.sum())
    known = [k for k in changed if counts.names[k] != "gaps"]
    same = [(v, w) for v in known for w in known
            if a[v] and b[w] and share_change((a[v] / sizes[0], b[w] / sizes[1]), sizes) < CLEAR
            ]  # fmt: skip
    found = _alike_by_name(names, same)
    if not others_moved:
        found += [pair for pair in _alone_in_share(same, a, b) if pair not in found]
    return sorted(found, key=lambda pair: -a[pair[0]])


def _alike_by_name(
    names: Sequence[str], pairs: Sequence[tuple[int, int]], likeness: float = 0.6
) -> list[tuple[int, int]]:
    """Pairs with names that difflib takes for a close match, each value in one: the best first."""
    found: list[tuple[int, int]] = []
    for alike, v, w in sorted(((_likeness(names[v], names[w]), v, w) for v, w in pairs),
                              key=lambda one: -one[0]):  # fmt: skip
        if alike >= likeness and not any(v == x or w == y for x, y in found):
            found.append((v, w))
    return found


def _alone_in_share(
    pairs: Sequence[tuple[int, int]], a: np.ndarray, b: np.ndarray, fewest: int = 50
) -> Iterator[tuple[int, int]]:
    """Pairs of many rows in which neither value is in another one: the share alone tells them."""
    for v, w in pairs:
        alone = sum(v == x or w == y for x, y in pairs) == 1
        if alone and min(a[v], b[w]) >= fewest:
            yield v, w


def _likeness(one: str, two: str) -> float:
    return difflib.SequenceMatcher(None, one.casefold(), two.casefold()).ratio()


def _quoted(name: str) -> str:
    """A value as people read it: in quotes where they would not see what it is."""
    return name if name and name == name.strip() else f'"{name}"'


def _listed(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _gap_change(gaps: list[float], sizes: tuple[int, int]) -> tuple[float, Change]:
    word = "more gaps" if gaps[1] > gaps[0] else "fewer gaps"
    description = f"{_percent(gaps[0])} -> {_percent(gaps[1])}"
    return share_change(gaps, sizes), Change(
        word if gaps[0] != gaps[1] else "the same", description
    )


def share_change(shares: Sequence[float], sizes: tuple[int, int]) -> float:
    """How many standard deviations two shares are apart."""
    share = (shares[0] * sizes[0] + shares[1] * sizes[1]) / sum(sizes)
    unit = math.sqrt(max(share * (1 - share), 1e-12) * (1 / sizes[0] + 1 / sizes[1]))
    return abs(shares[1] - shares[0]) / unit


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share < 0.995 or share == 1 else f"{100 * share:.4g} %"
