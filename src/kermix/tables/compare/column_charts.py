"""Charts of a column, or of two together, in two samples: two tables, or data and samples."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kermix.data.readers.common import number_text
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.pages import charts
from kermix.pages.plot import Svg
from kermix.tables.compare.column_changes import (
    OF_A_PAIR,
    ColumnValues,
    groups_of,
    new_and_gone,
    sides_of,
)

__all__ = ["column_chart", "encoded_values", "in_both", "pair_chart", "step_of", "tick_of"]


def encoded_values(schema: Schema, rows: EncodedTable, name: str) -> ColumnValues:
    """One column of encoded rows."""
    place = [column.name for column in schema.modelled].index(name)
    column, codes = schema.modelled[place], rows.codes[:, place]
    if isinstance(column, CategoryColumn):
        return ColumnValues(name, "category", codes=codes, names=column.code_names)
    assert isinstance(column, NumberColumn)
    numbers = column.numbers_of(codes, rows.values[:, schema.numbers.index(column)])
    return ColumnValues(name, column.kind, numbers, column=column)


def column_chart(values: ColumnValues, n: int) -> Svg:
    """Both samples' distribution of a column: histograms, or bars of a few values."""
    about = f"{values.name} in both samples"
    if values.codes is None:
        assert values.numbers is not None
        sets, log = sides_of(values.numbers, n), values.kind == "number"
        text = partial(tick_of, values.column)
        return charts.column_chart(about, sets, text, step_of(values), log)
    counts = [np.bincount(c, minlength=len(values.names)) for c in sides_of(values.codes, n)]
    one, two = (c / max(1, c.sum()) for c in counts)
    seen = np.flatnonzero(one + two)
    # What is spoken of is shown: new values, those that are gone, or what moved most.
    said = [some[0] for some in new_and_gone(*counts) if len(some)] or [np.abs(one - two).argmax()]
    return charts.bars([values.names[k] for k in seen], [one[seen], two[seen]], about,
                       np.searchsorted(seen, said).tolist())  # fmt: skip


def step_of(values: ColumnValues) -> float | None:
    """What the numbers of a column are multiples of, if they are."""
    if values.column is not None and values.column.decimals is not None:
        return float(10.0**-values.column.decimals)
    assert values.numbers is not None
    filled = values.numbers[np.isfinite(values.numbers)]
    return 1.0 if (filled == np.round(filled)).all() else None


def tick_of(column: NumberColumn | None, number: float) -> str:
    """A number of a column as a chart shows it; times as days."""
    if column is None:
        return number_text(number, 3)
    if column.time:
        return column.shown_time(number).partition(" ")[0]
    text = number_text(number + column.origin, 12 if column.origin else 3)
    return text if column.form is None else column.form.dressed(text)


def in_both(
    chart: Callable[..., Svg], schema: Schema, sets: Sequence[EncodedTable], *names: str
) -> Svg:
    """A chart of columns in two sets of encoded rows, `column_chart` or `pair_chart`."""
    first, second = ([encoded_values(schema, rows, name) for name in names] for rows in sets)
    return chart(*map(_together, first, second), len(sets[0]))


def _together(first: ColumnValues, second: ColumnValues) -> ColumnValues:
    """A column of two sets of rows, one after the other."""
    joined: dict[str, Any] = {
        what: np.concatenate([getattr(first, what), getattr(second, what)])
        for what in ("numbers", "codes") if getattr(first, what) is not None
    }  # fmt: skip
    return replace(first, **joined)


def pair_chart(first: ColumnValues, second: ColumnValues, n: int) -> Svg:
    """Cells of two columns, colored by which sample has more of its rows there."""
    groups = [groups_of(v, OF_A_PAIR)[0] for v in (first, second)]
    places = [np.unique(g, return_inverse=True) for g in groups]
    tables = []
    for part in (slice(None, n), slice(n, None)):
        table = np.zeros((len(places[1][0]), len(places[0][0])))
        np.add.at(table, (places[1][1][part], places[0][1][part]), 1.0)
        tables.append(table)
    one, two = (t / max(1.0, t.sum()) for t in tables)
    enough = tables[0] + tables[1] >= 4  # rows of a cell that has a color: convention
    more = np.where(enough, (two - one) / np.maximum(one + two, 1e-12), np.nan)
    across, up = (
        (v.name, _group_ticks(v, place)) for v, place in zip((first, second), places, strict=True)
    )
    return charts.heat_map(more, across, up, f"{first.name} with {second.name}: which has more")


def _group_ticks(
    values: ColumnValues, place: tuple[np.ndarray, np.ndarray]
) -> list[tuple[float, str]]:
    """What lies in the lowest, the middle and the highest group; all names of a few values."""
    count = len(place[0])
    few = values.codes is not None and count <= 3
    shown = range(count) if few else sorted({0, count // 2, count - 1})
    return [((k + 0.5) / count, _group_name(values, place[1] == k)) for k in shown]


def _group_name(values: ColumnValues, inside: np.ndarray) -> str:
    if values.codes is not None:
        found = np.unique(values.codes[inside])
        return values.names[found[0]] if len(found) == 1 else "others"
    assert values.numbers is not None
    numbers = values.numbers[inside]
    if np.isnan(numbers).all():
        return "missing"
    return tick_of(values.column, float(np.nanmedian(numbers)))
