"""How a column is shown: as bars, one for each value, or as shares of intervals of its numbers."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kermix.data.schema.columns import CategoryColumn, NumberColumn, rounded
from kermix.pages.charts import Bins, bars, histogram
from kermix.pages.plot import Svg
from kermix.tables.compare.column_charts import tick_of
from kermix.tables.model.distribution import ColumnDistribution

__all__ = ["Scale", "positions", "texts"]

MOST_ATOMS, LEAST_OUTSIDE = 24, 0.02  # few values that hold nearly all rows are shown as bars
MIDDLE = (0.005, 0.995)  # of what the model expects lies between the ends
STEPS = 100  # of a slider
FINE = 1001  # places at which a distribution is looked at for them
FARTHEST = 4.5  # normal scores
OTHER = "(other numbers)"


def texts(cells: Any) -> list[str | None]:
    """Arrow cells as text that is read back as the same values; None for gaps."""
    whole = cells.combine_chunks() if hasattr(cells, "combine_chunks") else cells
    return list(whole.cast("string").to_pylist())


@dataclass(frozen=True, eq=False)
class Scale:
    """Where the shares of a column's values are drawn.

    Attributes:
        column: The column, as its distributions have it.
        names: Of the bars; empty where there are intervals.
        bins: Intervals of the column's own numbers (from its origin, in its steps); None of bars.
    """

    column: CategoryColumn | NumberColumn
    names: tuple[str, ...]
    bins: Bins | None = None

    @classmethod
    def of(cls, alone: ColumnDistribution) -> "Scale":
        """The scale of a column whose distribution, given nothing, is `alone`."""
        column = alone.column
        if isinstance(column, CategoryColumn):
            known = texts(column.decode(np.arange(len(column.values))))
            other = ("(other)",) * column.other
            return cls(column, (*(str(text) for text in known), *other))
        outside = float(alone.filled[0, 0])
        if 0 < len(column.atoms) <= MOST_ATOMS and outside < LEAST_OUTSIDE:
            return cls(column, (*atom_texts(column), OTHER))
        low, high = _quantiles(alone, MIDDLE)
        return cls(column, (), Bins.between(low, high, _step(column)))

    def shares(self, found: ColumnDistribution) -> np.ndarray:  # (bars or intervals,)
        """Probabilities, if the cell is filled, of the first row."""
        if self.bins is not None:
            return np.asarray(found.shares(self.bins.edges)[0])
        shares = found.filled[0]
        return shares if isinstance(self.column, CategoryColumn) else np.roll(shares, -1)

    def place_of(self, codes: np.ndarray, scores: np.ndarray | None) -> float | None:
        """Where the first of some encoded cells lies: a bar, or a place between the ends."""
        code = int(codes[0])
        if code < 0 or code == self.column.missing_code:
            return None
        if isinstance(self.column, CategoryColumn):
            return float(code)
        if self.bins is None:
            return float(code - 1 if code else len(self.names) - 1)
        assert scores is not None
        number = self.column.numbers_of(codes[:1], scores[:1])[0]
        low, high = self.bins.edges[0], self.bins.edges[-1]
        return float(np.clip((number - low) / (high - low), 0, 1))

    def chart(
        self, shares: np.ndarray, alone: np.ndarray, place: float | None = None
    ) -> Svg:  # fmt: skip
        """Shares filled, and as an outline those of the column given nothing.

        Args:
            shares: Of the bars or intervals; NaN where they are not known.
            alone: Given nothing.
            place: Where a value that was set lies.
        """
        column, sets = self.column, (shares, alone)
        if self.bins is None:
            mark = None if place is None else int(place)
            return bars(self.names, sets, column.name, mark=mark)
        assert isinstance(column, NumberColumn)
        ticks = self.bins.ticks(partial(tick_of, column), _step(column))
        return histogram(self.bins.places, sets, ticks, column.name, place)


def _step(column: NumberColumn) -> float | None:
    """What all numbers of a column are multiples of, if they are."""
    return None if column.decimals is None else 10.0**-column.decimals


def atom_texts(column: NumberColumn) -> list[str]:
    """The values that many rows share, as text."""
    codes = np.arange(1, len(column.atoms) + 1)
    return [str(text) for text in texts(column.decode(codes, np.zeros(len(codes))))]


def positions(alone: ColumnDistribution) -> list[str]:
    """Values of a number for the positions of a slider: about as many rows between each two."""
    column = alone.column
    assert isinstance(column, NumberColumn)
    shares = np.linspace(0, 1, STEPS + 1)
    low, high = alone.ends()
    numbers = np.concatenate([low[:1], _quantiles(alone, shares[1:-1]), high[:1]])
    codes, scores = alone.coded(numbers)
    return list(dict.fromkeys(str(text) for text in texts(column.decode(codes, scores))))


def _quantiles(alone: ColumnDistribution, shares: Any) -> np.ndarray:
    """Quantiles in the column's own numbers, from one look at many places."""
    column = alone.column
    assert isinstance(column, NumberColumn)
    assert alone.means is not None
    assert alone.scales is not None
    means, scales = alone.means[0], alone.scales[0]
    ends = float((means - FARTHEST * scales).min()), float((means + FARTHEST * scales).max())
    places = column.map.inverse(np.linspace(*ends, FINE))
    places = np.unique(np.concatenate([places, column.atoms]).clip(column.low, column.high))
    upto = np.cumsum(alone.shares(np.concatenate([[-np.inf], places, [np.inf]]))[0])[:-1]
    found = places[np.searchsorted(upto, np.asarray(shares)).clip(max=len(places) - 1)]
    if column.decimals is not None:
        found = rounded(found, column.decimals)
    return np.asarray(found)
