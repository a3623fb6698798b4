"""Where encoded rows hold each of the user's columns."""

from collections.abc import Sequence
from typing import NamedTuple

from kermix.data.tables.columns import NumberColumn
from kermix.data.tables.mixed_rows import MixedRows

__all__ = ["ColumnPlace", "places_of_columns", "places_of_names"]


class ColumnPlace(NamedTuple):
    """Where encoded rows hold one of the user's columns.

    A column with both is a number with gaps, whose code says whether it is missing.
    """

    name: str
    numbers: int | None
    codes: int | None


def places_of_columns(maker: MixedRows) -> tuple[ColumnPlace, ...]:
    """Where mixed rows hold each of the user's columns."""
    count = len(maker.schema.numbers)
    numbers = iter(range(count))
    categories = iter(range(count, len(maker.schema.modelled)))
    marks = iter(range(len(maker.schema.modelled), count + maker.layout.codes))
    found = []
    for column in maker.schema.modelled:
        if isinstance(column, NumberColumn):
            k = next(numbers)
            gaps = next(marks) if maker.marked[k] else None
            found.append(ColumnPlace(column.name, k, gaps))
        else:
            found.append(ColumnPlace(column.name, None, next(categories)))
    return tuple(found)


def places_of_names(names: Sequence[str], codes: int = 0) -> tuple[ColumnPlace, ...]:
    """One place for each column of the rows, the last ones with codes.

    Example:
        >>> places_of_names(["height", "colour"], codes=1)[1]
        ColumnPlace(name='colour', numbers=None, codes=1)
    """
    numbers = len(names) - codes
    return tuple(
        ColumnPlace(name, k, None) if k < numbers else ColumnPlace(name, None, k)
        for k, name in enumerate(names)
    )
