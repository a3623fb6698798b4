"""How a column is shown: as bars, one for each value, or as shares of intervals of its numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from kermix.data.schema.columns import CategoryColumn, NumberColumn, rounded
from kermix.tables.model.distribution import ColumnDistribution

__all__ = ["Scale", "interval_texts", "positions", "texts"]

BINS = 48
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
        edges: Of the intervals, in the column's own numbers (from its origin, in its steps);
            what lies beyond the ends is counted at the ends.
    """

    column: CategoryColumn | NumberColumn
    names: tuple[str, ...]
    edges: np.ndarray

    @classmethod
    def of(cls, alone: ColumnDistribution) -> "Scale":
        """The scale of a column whose distribution, given nothing, is `alone`."""
        column = alone.column
        if isinstance(column, CategoryColumn):
            known = texts(column.decode(np.arange(len(column.values))))
            other = ("(other)",) * column.other
            return cls(column, (*(str(text) for text in known), *other), np.empty(0))
        outside = float(alone.filled[0, 0])
        if 0 < len(column.atoms) <= MOST_ATOMS and outside < LEAST_OUTSIDE:
            return cls(column, (*atom_texts(column), OTHER), np.empty(0))
        return cls(column, (), _edges(column, *_quantiles(alone, MIDDLE)))

    def shares(self, found: ColumnDistribution) -> np.ndarray:  # (bars or intervals,)
        """Probabilities, if the cell is filled, of the first row."""
        if not self.names:
            return np.asarray(found.shares(self.edges)[0])
        shares = found.filled[0]
        return shares if isinstance(self.column, CategoryColumn) else np.roll(shares, -1)

    def counted(self, codes: np.ndarray, scores: np.ndarray | None) -> np.ndarray:
        """Shares of the filled ones among encoded cells."""
        column = self.column
        filled = codes != (-1 if column.missing_code is None else column.missing_code)
        codes = codes[filled]
        if self.names:
            counts = np.bincount(codes, minlength=len(self.names))[: len(self.names)]
            if isinstance(column, NumberColumn):
                counts = np.roll(counts, -1)
        else:
            assert isinstance(column, NumberColumn)
            assert scores is not None
            numbers = column.numbers_of(codes, scores[filled])
            inside = numbers.clip(self.edges[0], self.edges[-1])
            counts = np.histogram(inside, self.edges)[0]
        return np.asarray(counts / max(1, counts.sum()))

    def place_of(self, codes: np.ndarray, scores: np.ndarray | None) -> float | None:
        """Where the first of some encoded cells lies: a bar, or a place between the ends."""
        code = int(codes[0])
        if code < 0 or code == self.column.missing_code:
            return None
        if isinstance(self.column, CategoryColumn):
            return float(code)
        if self.names:
            return float(code - 1 if code else len(self.names) - 1)
        assert scores is not None
        number = self.column.numbers_of(codes[:1], scores[:1])[0]
        low, high = self.edges[0], self.edges[-1]
        return float(np.clip((number - low) / (high - low), 0, 1))

    def described(self) -> dict[str, Any]:
        """What the page needs to draw it."""
        if self.names:
            return {"bars": list(self.names)}
        assert isinstance(self.column, NumberColumn)
        low, high = self.edges[[0, -1]]
        if self.column.decimals is not None:  # the values inside, not the middle to the next ones
            low, high = (
                low + 0.5 * 10.0**-self.column.decimals,
                high - 0.5 * 10.0**-self.column.decimals,
            )
        at = np.array([low, (low + high) / 2, high])
        return {"bins": len(self.edges) - 1, "labels": interval_texts(self.column, at)}


def atom_texts(column: NumberColumn) -> list[str]:
    """The values that many rows share, as text."""
    codes = np.arange(1, len(column.atoms) + 1)
    return [str(text) for text in texts(column.decode(codes, np.zeros(len(codes))))]


def interval_texts(column: NumberColumn, numbers: np.ndarray) -> list[str]:
    """Places on the scale of a column, for people."""
    if column.time:
        return [column.shown_time(float(number)).partition(" ")[0] for number in numbers]
    return [_digits(number + column.origin, 4 if column.origin == 0 else 12) for number in numbers]


def _digits(number: float, count: int) -> str:
    """A number with so many digits that count, and without an exponent where it is short.

    Example:
        >>> _digits(24891.4, 4), _digits(0.00012345, 4), _digits(3.0, 4)
        ('24890', '0.0001234', '3')
    """
    text = f"{number:.{count}g}"
    return f"{float(text):.0f}" if 1e3 <= abs(number) < 1e9 else text


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


def _edges(column: NumberColumn, low: float, high: float) -> np.ndarray:
    """Equal intervals, each with as many values as the others where numbers are rounded."""
    if not high > low:
        low, high = low - 0.5, high + 0.5
    if column.decimals is None:
        return np.linspace(low, high, BINS + 1)
    step = 10.0**-column.decimals
    width = max(1, int(np.ceil((high - low) / step / BINS)))
    count = max(1, int(np.ceil(((high - low) / step + 1) / width)))
    return low - step / 2 + step * width * np.arange(count + 1)
