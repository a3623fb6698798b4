"""Rows of a reference, and of batches that are read as the reference was."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_samples
from kermix.comparison.column_values import ComparedRows
from kermix.data.tables.common import listed
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.mixed_rows import MixedRows
from kermix.data.tables.reading import read_frame
from kermix.data.tables.schema import Schema
from kermix.errors import SampleError, SchemaError, ShapeError

__all__ = ["RowReader", "read_reference"]


@dataclass(frozen=True)
class RowReader:
    """How batches become rows.

    Attributes:
        names: Of the user's columns.
        mixed: How mixed rows are made; None if rows are arrays of numbers.
    """

    names: tuple[str, ...]
    mixed: MixedRows | None

    def __call__(self, batch: Any) -> Tensor:  # (N, d), float64
        """The rows of a batch; categories that the reference did not have are unknown ones."""
        if self.mixed is None:
            rows = _numbers(batch)
            if rows is None:
                raise SampleError(
                    "The reference is an array of numbers, but the batch is a "
                    f"{type(batch).__name__}; give both as arrays, or both as tables."
                )
            check_samples("batch", rows)
            if rows.shape[1] != len(self.names):
                raise ShapeError(
                    f"The batch has {rows.shape[1]} columns, but the reference has "
                    f"{len(self.names)}."
                )
            return rows
        schema = self.mixed.schema
        known = schema.reading() if isinstance(batch, str) or hasattr(batch, "suffix") else None
        frame, _ = read_frame(batch, known)
        return self.mixed(schema.encode(frame, unseen="unknown", name=frame.name, extra=True))

    def compared(self, reference: Tensor, batch: Tensor) -> ComparedRows:
        """The reference and a batch in the user's units."""
        return ComparedRows(torch.cat([reference, batch]), len(reference), self.names, self.mixed)


def read_reference(source: Any, reading: Reading) -> tuple[Tensor, RowReader, list[str]]:
    """The rows of a reference, how batches are read like it, and what was assumed."""
    numbers = _numbers(source)
    if numbers is not None and not torch.isnan(numbers).any() and not reading.said():
        check_samples("reference", numbers)
        return numbers, RowReader(tuple(f"x{k}" for k in range(numbers.shape[1])), None), []
    frame, notes = read_frame(source, reading)
    kinds: dict[str, Any] = dict(reading.kinds)
    schema = Schema.of(frame, kinds=kinds)
    if not schema.modelled:
        raise SchemaError(
            f"No column is left to monitor: {listed(schema.names)} are constants, keys or text."
        )
    encoded = schema.encode(frame, name=frame.name)
    maker = MixedRows.of(schema, [encoded], mark_all=True)
    return maker(encoded), RowReader(maker.column_names, maker), [*notes, *schema.notes()]


def _numbers(source: Any) -> Tensor | None:
    """An array of numbers as rows; None if it is something else."""
    if isinstance(source, np.ndarray) and source.dtype.kind in "fiub":
        source = torch.from_numpy(np.ascontiguousarray(source))
    if not isinstance(source, Tensor):
        return None
    if source.dim() != 2:
        raise ShapeError(
            f"Expected rows and columns, but the array has shape {tuple(source.shape)}."
        )
    return source.detach().cpu().double()
