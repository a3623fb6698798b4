"""Questions to a fitted table: every column given some, the most likely row, draws."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from kermix.data.readers.common import load_pyarrow
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import Schema, Unseen
from kermix.errors import OptionError
from kermix.explore.scales import Scale, positions, texts
from kermix.tables.model.conditioning import given_cell
from kermix.tables.model.distribution import ColumnDistribution
from kermix.tables.model.table_answers import TableAnswers
from kermix.tables.runs.table_run import drawn_parts

__all__ = ["MOST_DRAWS", "MOST_SHOWN", "Answering", "QueryService"]

MOST_DRAWS, MOST_SHOWN = 100_000, 100  # rows of a file, and of a table on the page
INTERVAL = (0.05, 0.5, 0.95)
LONGEST = 10_000  # letters of a value
LARGEST_SEED = 2**31 - 1
JUDGED, LARGE_SPREAD = 200, 0.3  # rows, and nats from which on a page says that order counts


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

    def __init__(self, model: Answering) -> None:
        self.model = model

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
        told = {"order_spread": spread} if spread >= LARGE_SPREAD else {}
        return {"columns": columns, "left_out": left_out, **told}

    @cached_property
    def order_spread(self) -> float:
        """How much log-densities depend on the order of columns, for rows of the model itself.

        Where it is large, draws, which go column by column, differ from what `ask` tells at once.
        """
        if not isinstance(self.model, TableAnswers) or len(self.alone) < 2:
            return 0.0  # closed forms have no order
        drawn = self.model.sample(JUDGED, random_state=0, frame="arrow")
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
        """Values that came as text, as the model takes them; refused by name if they are odd."""
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
        for name, value, low, high in (("n", count, 1, most), ("seed", seed, 0, LARGEST_SEED)):
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
