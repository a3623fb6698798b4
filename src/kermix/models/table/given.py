"""Cells that are given to a table model, as codes and numbers: some columns, checked by name."""

from typing import Any

import numpy as np

from kermix.data.tables.columns import UNKNOWN, NumberColumn
from kermix.data.tables.frames import Frame, arrow_type, as_frame, typed_array
from kermix.data.tables.schema import EncodedTable, Schema, Unseen
from kermix.errors import OptionError, SchemaError

__all__ = ["check_seen_before", "encode_some"]


def encode_some(
    schema: Schema, table: Any, unseen: Unseen = "error", inside: bool = False
) -> tuple[EncodedTable, Frame]:
    """Codes and numbers of a table that has some of the columns (-1 elsewhere), and the table.

    Args:
        schema: Of the whole table.
        table: Some of its columns.
        unseen: As for :meth:`kermix.Schema.encode`.
        inside: Whether numbers outside the range of their columns are refused.
    """
    frame = as_frame(table, "given")
    known = np.array([c.name in frame.columns for c in schema.modelled])
    unknown = [n for n in frame.columns if n not in schema.names]
    if unknown:
        raise SchemaError(
            f"given: there is no column {unknown[0]}; there are {', '.join(schema.names)}."
        )
    part = Schema(tuple(c for c in schema.columns if c.name in frame.columns), schema.frame)
    found = part.encode(frame, unseen=unseen, name="given")
    _check_constants(schema, frame)
    for column in part.numbers if inside else ():
        _check_inside(column, frame)
    codes = np.full((frame.rows, len(schema.modelled)), UNKNOWN, np.int64)
    values = np.zeros((frame.rows, len(schema.numbers)))
    codes[:, known] = found.codes
    values[:, [c.name in frame.columns for c in schema.numbers]] = found.values
    return EncodedTable(codes, values, found.frame), frame


def _check_inside(column: NumberColumn, frame: Frame) -> None:
    numbers = column.numbers(frame.columns[column.name], frame.name)
    outside = (numbers < column.low) | (numbers > column.high)
    if outside.any():
        cells = frame.columns[column.name].drop_null()
        raise OptionError(
            f"{frame.name}: {column.name}={cells[int(outside.argmax())]} is outside of the range "
            f"that the model knows ({column.details()}), in which all its samples are."
        )


def _check_constants(schema: Schema, frame: Frame) -> None:
    from pyarrow import compute

    for column in schema.left_out:
        cells = frame.columns.get(column.name)
        if column.what != "constant" or column.value is None or cells is None:
            continue
        always = typed_array([column.value], arrow_type(column.type.arrow))[0]
        other = compute.not_equal(cells.cast(always.type, safe=False), always).fill_null(False)
        if compute.any(other).as_py():
            row = compute.index(other, True).as_py()
            raise SchemaError(
                f"{frame.name}, row {row + frame.first_row}, column {column.name}: the model "
                f"knows {always.as_py()!r} alone, and this is {cells[row].as_py()!r}; its density "
                "is zero."
            )


def check_seen_before(schema: Schema, frame: Frame, encoded: EncodedTable) -> None:
    """Refuse values that a category or a constant never had: their density is zero."""
    _check_constants(schema, frame)
    for k, column in enumerate(schema.modelled):
        unknown = encoded.codes[:, k] < 0
        if not unknown.any():
            continue
        cells = frame.columns[column.name]
        new = unknown & ~np.asarray(cells.is_null().to_numpy())
        if new.any():
            row = int(new.argmax())
            raise SchemaError(
                f"{frame.name}, row {row + frame.first_row}, column {column.name}: the model has "
                f"never seen the value {cells[row].as_py()!r} "
                f"({int(new.sum())} such cells); its density is zero."
            )
