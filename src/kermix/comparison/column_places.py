"""Where encoded rows hold each of the user's columns."""

from typing import NamedTuple

from kermix.data.tables.columns import NumberColumn
from kermix.data.tables.mixed_rows import MixedRows

__all__ = ["ColumnPlace", "places_of_columns"]


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
