"""Tables as rows of scaled numbers and codes: what the kernel of mixed rows compares."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.data.schema.columns import UNKNOWN, CategoryColumn, rounded
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import mismatch_of

__all__ = ["MixedRows"]


@dataclass(frozen=True, eq=False)
class MixedRows:
    """The way from encoded tables to mixed rows.

    A number becomes its normal score, atoms too, less the mean and divided by the spread of those
    that are not missing; where it is missing it is 0, and a code says so. A category is its code,
    with one for missing values.

    Attributes:
        schema: Of the tables.
        centre: Means of the scores, (numbers,).
        spread: Their standard deviations, (numbers,).
        marked: Which numbers have a code for gaps, (numbers,), bool.
        layout: Of the rows.
    """

    schema: Schema
    centre: np.ndarray
    spread: np.ndarray
    marked: np.ndarray
    layout: Layout

    @classmethod
    def of(
        cls, schema: Schema, encoded: Sequence[EncodedTable], *, mark_all: bool = False
    ) -> "MixedRows":
        """Scales from all rows together, whatever their order and the table they are in.

        Args:
            schema: Of the tables.
            encoded: The tables.
            mark_all: Whether also numbers without gaps so far have a code for them.
        """
        scores = np.concatenate([schema.positions(e) for e in encoded])
        gaps = np.concatenate([_gaps(schema, e) for e in encoded])
        centre, spread = np.zeros(scores.shape[1]), np.ones(scores.shape[1])
        for k in range(scores.shape[1]):
            # Sums of sorted numbers do not depend, not even by rounding, on the order of rows.
            filled = np.sort(scores[~gaps[:, k], k])
            if len(filled):
                centre[k] = filled.mean()
                spread[k] = filled.std() or 1.0
        marked = np.array([mark_all or c.has_missing for c in schema.numbers], bool)
        categories = _categories(schema)
        codes = np.concatenate([e.codes[:, categories] for e in encoded])
        mismatch = mismatch_of(torch.from_numpy(codes))
        columns = max(1, len(schema.modelled))
        layout = Layout(len(categories) + int(marked.sum()), mismatch, columns)
        return cls(schema, centre, spread, marked, layout)

    def __call__(self, encoded: EncodedTable) -> Tensor:  # (rows, numbers + codes)
        """The rows of a table: numbers, codes of categories, codes of gaps."""
        gaps = _gaps(self.schema, encoded)
        scores = (self.schema.positions(encoded) - self.centre) / self.spread
        codes = encoded.codes[:, _categories(self.schema)]
        parts = [np.where(gaps, 0.0, scores), codes, gaps[:, self.marked]]
        return torch.from_numpy(np.concatenate(parts, axis=1, dtype=np.float64))

    def numbers(self, rows: Tensor) -> Tensor:  # (rows, numbers)
        """Numbers and times of rows whose table is gone, NaN where they are missing.

        They went to normal scores and back: the last digits of those without decimals are lost.
        """
        found = []
        marks = iter(range(rows.shape[1] - int(self.marked.sum()), rows.shape[1]))
        for k, column in enumerate(self.schema.numbers):
            scores = rows[:, k].numpy() * self.spread[k] + self.centre[k]
            numbers = np.clip(column.map.inverse(scores), column.low, column.high)
            if column.decimals is not None:
                numbers = rounded(numbers, column.decimals)
            else:
                numbers = _without_last_digits(numbers, max(abs(column.low), abs(column.high)))
            if self.marked[k]:
                numbers = np.where(rows[:, next(marks)].numpy() == 0, numbers, np.nan)
            found.append(torch.from_numpy(numbers))
        return torch.stack(found, 1) if found else rows.new_zeros(len(rows), 0)

    @property
    def column_names(self) -> tuple[str, ...]:
        """The user's columns that the rows hold."""
        return tuple(c.name for c in self.schema.modelled)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        lists = {n: getattr(self, n).tolist() for n in ("centre", "spread", "marked")}
        return {"schema": self.schema.to_dict(), "layout": list(self.layout), **lists}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "MixedRows":
        """What was saved."""
        codes, mismatch, columns = saved["layout"]
        return cls(
            Schema.from_dict(saved["schema"]),
            np.array(saved["centre"], dtype=np.float64),
            np.array(saved["spread"], dtype=np.float64),
            np.array(saved["marked"], dtype=bool),
            Layout(int(codes), float(mismatch), int(columns)),
        )


def _without_last_digits(numbers: np.ndarray, largest: float, digits: int = 13) -> np.ndarray:
    """As many digits as normal scores and back leave of a number; a zero is zero again."""
    if not 1e-280 < largest < 1e280:
        return numbers
    return np.round(numbers, digits - 1 - math.floor(math.log10(largest))) + 0.0


def _categories(schema: Schema) -> list[int]:
    return [k for k, c in enumerate(schema.modelled) if isinstance(c, CategoryColumn)]


def _gaps(schema: Schema, encoded: EncodedTable) -> np.ndarray:  # (rows, numbers), bool
    codes = encoded.codes[:, schema.number_columns]
    missing = [UNKNOWN if c.missing_code is None else c.missing_code for c in schema.numbers]
    return (codes == np.array(missing, dtype=np.int64)) | (codes < 0)
