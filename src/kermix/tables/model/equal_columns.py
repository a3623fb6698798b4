"""Columns that are equal in all rows: one is learned with the others, and the other copied.

Whether two columns are equal is a code that a network learns, see `links`, and no network is ever
quite sure. Where they are equal in every row of a table, gaps and atoms included, nothing is left
to learn: they are *twins*, and a cell of one is known as soon as that of the other is.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from kermix.data.readers.frames import Frame
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.errors import SchemaError

__all__ = ["check_twins", "copy_twins", "find_twins", "same_cells", "twin_notes", "with_twins"]

Twins = Sequence[tuple[int, int]]  # the first of some equal columns, and another one
LEAST_ROWS = 20  # of fewer, columns may be equal by chance


def find_twins(schema: Schema, encoded: EncodedTable) -> tuple[tuple[str, str], ...]:
    """Columns that are equal in all rows: the first of each kind, with every other one.

    Example:
        >>> table = {"a": list("xyz") * 20, "n": [0.5, 1.5, 2.5] * 20, "b": list("xyz") * 20}
        >>> schema = Schema.of(table)
        >>> find_twins(schema, schema.encode(table))
        (('a', 'b'),)
    """
    if len(encoded) < LEAST_ROWS:
        return ()
    first: dict[bytes, list[int]] = {}
    found = []
    for k, column in enumerate(schema.modelled):
        codes = encoded.codes[:, k]
        if (codes == codes[0]).all() and isinstance(column, CategoryColumn):
            continue
        alike = first.setdefault(np.ascontiguousarray(codes).tobytes(), [])
        of = next((j for j in alike if _are_same(schema, encoded, j, k)), None)
        if of is None:
            alike.append(k)
        else:
            found.append((schema.modelled[of].name, column.name))
    return tuple(found)


def _are_same(schema: Schema, encoded: EncodedTable, first: int, second: int) -> bool:
    """Whether columns with the same codes mean the same by them, and have the same numbers."""
    a, b = schema.modelled[first], schema.modelled[second]
    if isinstance(a, CategoryColumn) and isinstance(b, CategoryColumn):
        return a.values == b.values and a.value_type == b.value_type
    if not isinstance(a, NumberColumn) or not isinstance(b, NumberColumn):
        return False
    kinds = [(c.type.arrow, c.origin, c.step, c.time, c.text, c.decimals) for c in (a, b)]
    if kinds[0] != kinds[1] or not np.array_equal(a.atoms, b.atoms):
        return False
    # A price and twice that price have the same scores, each on its own scale.
    scales = [(c.map.middle, c.map.scale, *c.map.knots, *c.map.scores) for c in (a, b)]
    if scales[0] != scales[1]:
        return False
    first_scores, second_scores = (encoded.values[:, schema.numbers.index(c)] for c in (a, b))
    return np.array_equal(first_scores, second_scores)


def twin_notes(schema: Schema, twins: Twins) -> list[str]:
    """A sentence about columns that are equal in all rows."""
    names = [column.name for column in schema.modelled]
    told = ", ".join(f"{names[a]} and {names[b]}" for a, b in twins)
    return [f"Equal in all rows, and kept so: {told}."] if told else []


def with_twins(twins: Twins, seen: Tensor) -> Tensor:  # (N, D)
    """Cells that are known once some are seen."""
    if not twins:
        return seen
    seen = seen.clone()
    # Of three equal columns two pairs have the first in common: it hears of all, then tells all.
    for a, b in twins:
        seen[:, a] |= seen[:, b]
    for a, b in twins:
        seen[:, b] |= seen[:, a]
    return seen


def copy_twins(twins: Twins, numbers: Tensor, codes: Tensor, values: Tensor, seen: Tensor) -> None:
    """Give cells whose twin is seen its code and number, in place.

    Args:
        twins: Columns that are equal.
        numbers: Which number a column has, or -1, (D,).
        codes: Codes, (N, D).
        values: Normal scores, (N, Q).
        seen: Cells that are known; those that get a value are, afterwards.
    """
    for source, target in (*((b, a) for a, b in twins), *twins):
        rows = (seen[:, source] & ~seen[:, target]).nonzero().flatten()
        codes[rows, target] = codes[rows, source]
        if int(numbers[target]) >= 0:
            values[rows, numbers[target]] = values[rows, numbers[source]]
        seen[rows, target] = True


def same_cells(
    schema: Schema, twins: Twins, columns: dict[str, Any], given: np.ndarray
) -> dict[str, Any]:
    """Columns of a completed table, in which a cell that was given is copied to the letter.

    Args:
        schema: What the columns are.
        twins: Columns that are equal.
        columns: Arrow arrays by name.
        given: Cells that stay as they are, (N, D).
    """
    from pyarrow import array, compute

    columns, fixed = dict(columns), given.copy()
    # First what is given; then, where neither is, the first, which links may have mended.
    backward = [(second, first) for first, second in twins]
    for certain, pairs in ((True, [*backward, *twins]), (False, list(twins))):
        for source, target in pairs:
            rows = (fixed[:, source] | (not certain)) & ~fixed[:, target]
            if not rows.any():
                continue
            a, b = (schema.modelled[k].name for k in (source, target))
            columns[b] = compute.if_else(array(rows), _whole(columns[a]).cast(columns[b].type),
                                         _whole(columns[b]))  # fmt: skip
            fixed[rows, target] = certain
    return columns


def _whole(cells: Any) -> Any:
    return cells.combine_chunks() if hasattr(cells, "combine_chunks") else cells


def check_twins(schema: Schema, twins: Twins, frame: Frame, encoded: EncodedTable) -> None:
    """Refuse rows in which columns differ that never did: their density is zero."""
    place = {int(k): q for q, k in enumerate(schema.number_columns)}
    for a, b in twins:
        first, second = encoded.codes[:, a], encoded.codes[:, b]
        apart = first != second
        if a in place:
            apart |= encoded.values[:, place[a]] != encoded.values[:, place[b]]
        apart &= (first >= 0) & (second >= 0)
        if apart.any():
            row = int(apart.argmax())
            names = [schema.modelled[k].name for k in (a, b)]
            cells = [frame.columns[name][row].as_py() for name in names]
            raise SchemaError(
                f"{frame.name}, row {row + frame.first_row}: {names[0]} and {names[1]} are equal "
                f"in all rows that the model was fitted to, but here they are {cells[0]!r} and "
                f"{cells[1]!r} ({int(apart.sum())} such rows); the density is zero."
            )
