"""Questions to a fitted table: every column given some, the most likely row, draws.

A column is shown as bars, one for each value, or as shares of intervals of its numbers.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

from kermix.data.readers.common import load_pyarrow
from kermix.data.schema.columns import CategoryColumn, NumberColumn, rounded
from kermix.data.schema.schema import Schema, Unseen
from kermix.errors import OptionError
from kermix.pages.charts import Bins, bars, histogram
from kermix.pages.plot import Svg
from kermix.tables.compare.column_charts import tick_of
from kermix.tables.model.conditioning import given_cell
from kermix.tables.model.distribution import ColumnDistribution
from kermix.tables.model.table_answers import TableAnswers
from kermix.tables.runs.table_run import drawn_parts

__all__ = ["MOST_DRAWS", "MOST_SHOWN", "Answering", "QueryService", "texts"]

MOST_DRAWS, MOST_SHOWN = 100_000, 100  # rows of a file, and of a table on the page
INTERVAL = (0.05, 0.5, 0.95)
LONGEST = 10_000  # letters of a value


MOST_ATOMS, LEAST_OUTSIDE = 24, 0.02  # few values that hold nearly all rows are shown as bars
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
    def of(
        cls, alone: ColumnDistribution, spanned: tuple[float, ...] = (0.005, 0.5, 0.995)
    ) -> "Scale":
        """The scale of a column whose distribution, given nothing, is `alone`."""
        column = alone.column
        if isinstance(column, CategoryColumn):
            known = texts(column.decode(np.arange(len(column.values))))
            other = ("(other)",) * column.other
            return cls(column, (*(str(text) for text in known), *other))
        outside = float(alone.filled[0, 0])
        if 0 < len(column.atoms) <= MOST_ATOMS and outside < LEAST_OUTSIDE:
            return cls(column, (*atom_texts(column), OTHER))
        log = not column.time and column.origin == 0
        return cls(column, (), Bins.spanning(_quantiles(alone, spanned), _step(column), log))

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
        return float(self.bins.place(number))

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


def positions(alone: ColumnDistribution, steps: int = 100) -> list[str]:
    """Values of a number for the positions of a slider: about as many rows between each two."""
    column = alone.column
    assert isinstance(column, NumberColumn)
    shares = np.linspace(0, 1, steps + 1)
    low, high = alone.ends()
    numbers = np.concatenate([low[:1], _quantiles(alone, shares[1:-1]), high[:1]])
    codes, scores = alone.coded(numbers)
    return list(dict.fromkeys(str(text) for text in texts(column.decode(codes, scores))))


def _quantiles(alone: ColumnDistribution, shares: Any, farthest: float = 4.5) -> np.ndarray:
    """Quantiles in the column's own numbers, from one look at many places."""
    column = alone.column
    assert isinstance(column, NumberColumn)
    assert alone.means is not None
    assert alone.scales is not None
    means, scales = alone.means[0], alone.scales[0]
    ends = float((means - farthest * scales).min()), float((means + farthest * scales).max())
    places = column.map.inverse(np.linspace(*ends, 1001))
    places = np.unique(np.concatenate([places, column.atoms]).clip(column.low, column.high))
    upto = np.cumsum(alone.shares(np.concatenate([[-np.inf], places, [np.inf]]))[0])[:-1]
    found = places[np.searchsorted(upto, np.asarray(shares)).clip(max=len(places) - 1)]
    if column.decimals is not None:
        found = rounded(found, column.decimals)
    return np.asarray(found)


class Answering(Protocol):
    """What is asked: a `kermix.TableModel`, or the mixture that was better."""

    @property
    def schema_(self) -> Schema:
        """What the columns are."""

    def conditionals(self, given: Any = ...) -> dict[str, ColumnDistribution]:
        """Every column given the others."""

    def conditional(
        self, column: str, given: Any = ..., *, unseen: Unseen = ...
    ) -> ColumnDistribution:
        """One column given others, for each row of a table."""

    def most_likely(self, given: Any = ..., frame: str = ...) -> Any:
        """One whole row."""

    def sample(
        self, n_samples: int = ..., *, given: Any = ..., random_state: Any = ..., frame: Any = ...
    ) -> Any:
        """Rows."""

    def score_samples(self, X: Any, *, on_rows: Any = ...) -> np.ndarray:
        """Log-density of each row."""


class QueryService:
    """Asks a model, and puts its answers as a page shows them. It keeps nothing of a question.

    Args:
        model: The model.

    Example:
        >>> import pandas as pd
        >>> from kermix import TableModel
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.choice(["f", "m"], 400)
        >>> table = pd.DataFrame({"sex": sex, "size": rng.normal(170 + 10 * (sex == "m"), 5)})
        >>> model = TableModel(width=16, blocks=1, steps=60, random_state=0).fit(table)
        >>> 165 < float(QueryService(model).ask({"sex": "m"})["size"]["middle"]) < 195
        True
    """

    def __init__(self, model: Answering, large_spread: float = 0.3) -> None:
        # Nats from which on a page says that the order of columns counts: convention.
        self.model, self._large_spread = model, large_spread

    @property
    def schema(self) -> Schema:
        """What the columns are."""
        return self.model.schema_

    @cached_property
    def alone(self) -> dict[str, ColumnDistribution]:
        """Each column, given nothing."""
        return self.model.conditionals(None)

    @cached_property
    def scales(self) -> dict[str, Scale]:
        """How each column is shown."""
        return {name: Scale.of(found) for name, found in self.alone.items()}

    @cached_property
    def described(self) -> dict[str, Any]:
        """The columns, their controls and what they are given nothing."""
        columns = [self._described(name) for name in self.alone]
        left_out = [{"name": c.name, "kind": c.kind} for c in self.schema.left_out]
        spread = self.order_spread
        told = {"order_spread": spread} if spread >= self._large_spread else {}
        return {"columns": columns, "left_out": left_out, **told}

    @cached_property
    def order_spread(self) -> float:
        """How much log-densities depend on the order of columns, for rows of the model itself.

        Where it is large, draws, which go column by column, differ from what `ask` tells at once.
        """
        if not isinstance(self.model, TableAnswers) or len(self.alone) < 2:
            return 0.0  # closed forms have no order
        drawn = self.model.sample(200, random_state=0, frame="arrow")
        found = self.model.order_spread(drawn)
        return found if math.isfinite(found) else 0.0

    def warm(self) -> None:
        """Ask once what readers will ask, so that modules are not imported by several threads."""
        first = self.described["columns"][0]
        value = first.get("values", first.get("positions"))[0]
        self.ask({first["name"]: value})
        self.likely({first["name"]: value})

    def _described(self, name: str) -> dict[str, Any]:
        column, alone = self.schema[name], self.alone[name]
        assert isinstance(column, CategoryColumn | NumberColumn)
        told = {"name": name, "kind": column.kind, "gap": column.has_missing,
                "details": column.details(), **self._unknown(name),
                "alone": self._answer(name, alone)}  # fmt: skip
        if isinstance(column, CategoryColumn):
            values = texts(column.decode(np.arange(len(column.values))))
            return {**told, "values": values}
        return {**told, "positions": positions(alone)}

    def typed(self, given: Any) -> dict[str, Any]:
        """Values that came as text, as the model takes them; refused by name if they cannot be."""
        if not isinstance(given, Mapping):
            raise OptionError("given: expected an object of values by column.")
        cells = {}
        for name, text in given.items():
            if not isinstance(name, str) or not isinstance(text, str | None):
                raise OptionError(f"given: {name!r} must be text, or null for missing.")
            if text is not None and len(text) > LONGEST:
                raise OptionError(
                    f"given: the value of {name!r} has more than {LONGEST} characters."
                )
            cells[name] = given_cell(self.schema, name, text, f"given {name}")
        return cells

    def ask(self, given: Any) -> dict[str, Any]:
        """Every column given the others that are set.

        Args:
            given: Texts by column; None is a gap.
        """
        cells = self.typed(given)
        return {
            name: self._answer(name, found, cells.get(name))
            for name, found in self.model.conditionals(cells).items()
        }

    def likely(self, given: Any) -> dict[str, str | None]:
        """The most likely row with what is set, as text."""
        row = self.model.most_likely(self.typed(given), "arrow")
        told = {name: texts(row.column(name))[0] for name in row.column_names}
        return {**told, **given}  # what is given to the last digit

    def _unknown(self, name: str) -> dict[str, Any]:
        """The chart of a column that has no answer, and names of its bars."""
        scale, alone = self.scales[name], self.scales[name].shares(self.alone[name])
        return {
            "bars": list(scale.names),
            "chart": scale.chart(np.full(len(alone), np.nan), alone),
        }

    def _answer(self, name: str, found: ColumnDistribution, cell: Any = None) -> dict[str, Any]:
        """What a page shows of a column: shares, middle, ends, and a chart beside `alone`.

        Args:
            name: The column.
            found: Its distribution.
            cell: The value that was set, if one was.
        """
        scale = self.scales[name]
        shares = scale.shares(found)
        told: dict[str, Any] = {"shares": np.round(shares, 6).tolist()}
        if cell is not None:
            told["place"] = self._place(name, cell, found)
        alone = scale.shares(self.alone[name])
        told["chart"] = scale.chart(shares, alone, told.get("place"))
        if found.column.missing_code is not None:
            told["missing"] = float(found.probabilities[0, found.column.missing_code])
        if isinstance(found.column, NumberColumn):
            cells = found.repeated(len(INTERVAL)).quantile_cells(np.array(INTERVAL))
            told["low"], told["middle"], told["high"] = texts(cells)
        else:
            told["middle"] = texts(found.most_likely())[0]
        return told

    def _place(self, name: str, cell: Any, found: ColumnDistribution) -> float | None:
        column, cell = found.column, load_pyarrow().chunked_array([cell])
        if isinstance(column, CategoryColumn):
            return self.scales[name].place_of(column.encode(cell, "given", "unknown"), None)
        return self.scales[name].place_of(*column.encode(cell, "given", "unknown"))

    def draws(self, given: Any, count: Any, seed: Any, most: int = MOST_DRAWS) -> Any:
        """Rows with what is given, as an Arrow table.

        Args:
            given: As for `ask`.
            count: How many.
            seed: Of the rows.
            most: How many may be asked for.
        """
        return load_pyarrow().concat_tables(self.draw_parts(given, count, seed, most))

    def draw_parts(
        self,
        given: Any,
        count: Any,
        seed: Any,
        most: int = MOST_DRAWS,
        on_rows: Callable[[int], None] | None = None,
    ) -> Iterator[Any]:
        """The same rows, some at a time; refused before the first of them is drawn.

        Args:
            given: As for `ask`.
            count: How many.
            seed: Of the rows.
            most: How many may be asked for.
            on_rows: As for `kermix.TableModel.sample`; who raises in it stops the work.
        """
        for name, value, low, high in (("n", count, 1, most), ("seed", seed, 0, 2**31 - 1)):
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise OptionError(f"{name}={value!r}: a whole number from {low} to {high:,}.")
        cells = self.typed(given)
        # The rows of `kermix sample`.
        return drawn_parts(self.model, count, seed, given=cells or None, on_rows=on_rows)

    def shown_draws(self, given: Any, count: Any, seed: Any) -> dict[str, Any]:
        """A few rows as text."""
        table = self.draws(given, count, seed, MOST_SHOWN)
        columns = [texts(table.column(name)) for name in table.column_names]
        return {
            "names": table.column_names,
            "rows": [list(row) for row in zip(*columns, strict=True)],
        }
