"""The user's columns of encoded rows: numbers, times and categories in their own units."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from kermix.comparison.column_places import ColumnPlace, places_of_columns, places_of_names
from kermix.data.tables.columns import CategoryColumn, NumberColumn, rounded
from kermix.data.tables.mixed_rows import MixedRows
from kermix.kernels.distances import Layout

__all__ = ["ColumnValues", "ComparedRows", "number_text"]

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
