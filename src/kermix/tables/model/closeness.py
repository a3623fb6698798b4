"""How near rows of a table are to other rows: copies, distances, and how to keep away."""

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from kermix.checks import NUMBERS_AT_ONCE, rows_at_once
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.errors import OptionError

__all__ = ["KeepAway", "closest_distances", "copies"]


def copies(rows: EncodedTable, others: EncodedTable) -> np.ndarray:  # (N,), bool
    """Which rows are among the others, to six decimals of their normal scores."""
    known = set(_keys(others))
    return np.array([key in known for key in _keys(rows)], bool)


def _keys(rows: EncodedTable) -> list[bytes]:
    values = np.round(rows.values, 6) + 0.0
    return [c.tobytes() + v.tobytes() for c, v in zip(rows.codes, values, strict=True)]


def closest_distances(
    schema: Schema,
    rows: EncodedTable,
    others: EncodedTable,
    ignored: Collection[str] = (),
    pairs_at_once: int = NUMBERS_AT_ONCE,
) -> np.ndarray:
    """The distance of each row to the closest of the others.

    The distance of two rows is the mean over columns of 0 or 1 for categories and gaps, and of the
    difference of normal scores for numbers; some columns may be ignored.

    Example:
        >>> table = {"a": list("xy") * 50, "b": np.arange(100.0) ** 2}
        >>> schema = Schema.infer(table)
        >>> encoded = schema.encode(table)
        >>> closest_distances(schema, encoded[:2], encoded[1:])[1]
        np.float32(0.0)
    """
    step = rows_at_once(len(others), pairs_at_once)
    found = [
        _closest(schema, rows[k : k + step], others, ignored) for k in range(0, len(rows), step)
    ]
    return np.concatenate(found) if found else np.empty(0, np.float32)


def _closest(
    schema: Schema, rows: EncodedTable, others: EncodedTable, ignored: Collection[str]
) -> np.ndarray:  # (N,)
    total = np.zeros((len(rows), len(others)), np.float32)
    places, there = (schema.positions(t).astype(np.float32) for t in (rows, others))
    number = {int(k): q for q, k in enumerate(schema.number_columns)}
    for k, column in enumerate(schema.modelled):
        if column.name in ignored:
            continue
        a, b = rows.codes[:, k], others.codes[:, k]
        if k not in number:
            total += a[:, None] != b
            continue
        q = number[k]
        apart = np.abs(places[:, q][:, None] - there[:, q])
        if column.missing_code is not None:
            gone = (a == column.missing_code)[:, None] != (b == column.missing_code)
            apart = np.where(gone, np.float32(1), apart)
        total += apart
    return np.asarray(total.min(1) / len(schema.modelled))


class KeepAway:
    """Rows that are drawn again until they are no copies of some rows, or far enough from them.

    Args:
        schema: What the columns are.
        against: The rows to keep away from: a table, or one that is encoded.
        deduplicate: Whether rows that equal one of them in all modelled columns are refused.
        min_distance: The distance (`closest_distances`) below which rows are refused.
    """

    def __init__(
        self,
        schema: Schema,
        against: Any,
        deduplicate: bool = False,
        min_distance: float | None = None,
    ) -> None:
        if against is None:
            raise OptionError(
                "deduplicate and min_distance need the rows to keep away from: against=table."
            )
        good = isinstance(min_distance, int | float) and 0 < min_distance < math.inf
        if min_distance is not None and (isinstance(min_distance, bool) or not good):
            raise OptionError(f"min_distance={min_distance!r} must be a positive number.")
        self.schema, self.deduplicate, self.min_distance = schema, deduplicate, min_distance
        if not isinstance(against, EncodedTable):
            # A value that the schema does not know cannot be drawn, and so not copied.
            against = schema.encode(against, unseen="unknown", name="against", extra=True)
        self.against = against
        self._known = set(_keys(against)) if deduplicate else set()

    def refused(self, rows: EncodedTable) -> np.ndarray:  # (N,), bool
        """Which rows are copies, or too near."""
        found = np.array([key in self._known for key in _keys(rows)], bool)
        if self.min_distance is not None and len(self.against):
            found |= closest_distances(self.schema, rows, self.against) < self.min_distance
        return found

    def settle(
        self,
        rows: int,
        draw: Callable[[np.ndarray], EncodedTable],
        on_rows: Callable[[int], None] | None = None,
        rounds: int = 50,
    ) -> None:
        """Draw rows, and those that are refused again, until none is.

        Args:
            rows: How many.
            draw: Draws the rows with these numbers anew, and returns them.
            on_rows: Called with the number of rows that have been accepted.
            rounds: In which rows that are refused are drawn again.
        """
        left = np.arange(rows)
        for _ in range(rounds):
            refused = self.refused(draw(left))
            if on_rows is not None:
                on_rows(int((~refused).sum()))
            left = left[refused]
            if not len(left):
                return
        told = [f"nearer than min_distance={self.min_distance:g}"] if self.min_distance else []
        told += ["copies"] if self.deduplicate else []
        raise OptionError(
            f"After {rounds} rounds {len(left)} of {rows} rows are still {' or '.join(told)} of "
            "the rows to keep away from: use a smaller distance, or condition on fewer values."
        )
