"""Times that are written differently in several tables, as times."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from kermix.data.tables.columns import family
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.frames import ColumnType, Frame
from kermix.data.tables.times import parse_times, text_format

__all__ = ["with_same_times"]


def with_same_times(
    frames: Sequence[Frame], known: Collection[str] = ()
) -> tuple[list[Frame], list[str]]:
    """Tables whose times are no text where they are written in several ways, and what to say.

    Args:
        frames: Tables, most columns of which have the same names.
        known: Columns whose kind is known, which stay as they are.
    """
    found, notes = list(frames), []
    for name in frames[0].columns if len(frames) > 1 else ():
        if name in known or not all(name in f.columns for f in frames):
            continue
        ways = [_way(frame, name) for frame in frames]
        if None in ways or len(set(ways)) == 1 or _written_alike(frames, name):
            continue
        shown = [f"{way[0] or 'times'} in {f.name}" for way, f in zip(ways, frames, strict=True)
                 if way is not None]  # fmt: skip
        notes.append(f"Column {name} is written as {' and '.join(shown)}; compared as times.")
        for k, way in enumerate(ways):
            assert way is not None
            column = _times(found[k].columns[name], way)
            types = {**found[k].types, name: ColumnType(str(column.type))}
            columns = {**found[k].columns, name: column}
            found[k] = replace(found[k], columns=columns, types=types)
    return found, notes


def _written_alike(frames: Sequence[Frame], name: str) -> bool:
    """Whether one way fits all tables: 01/02/2020 may be of January, but not beside 31/01/2020."""
    columns = [f.columns[name] for f in frames]
    if any(family(c.type) != "text" for c in columns):
        return False
    arrow = load_pyarrow()
    chunks = [chunk for c in columns for chunk in c.cast(arrow.string()).chunks]
    return text_format(arrow.chunked_array(chunks).drop_null().unique()) is not None


def _way(frame: Frame, name: str) -> tuple[str, str] | None:
    """How a column of times is written; empty text where it is no text, None if it is none."""
    column, kind = frame.columns[name], frame.types[name]
    types = load_pyarrow().types
    if types.is_timestamp(column.type) or types.is_date(column.type):
        return "", ""
    if family(column.type) != "text" or kind.declared is not None or kind.mixed:
        return None
    return text_format(column.drop_null().cast("string").unique())


def _times(column: Any, way: tuple[str, str]) -> Any:
    arrow = load_pyarrow()
    form, unit = way
    if form:
        times = parse_times(column.cast(arrow.string()), form, unit)
        assert times is not None
        zoned = form.endswith(("Z", "+00:00"))
        return times.cast(arrow.timestamp(unit, "UTC" if zoned else None))
    if not arrow.types.is_date(column.type):
        return column
    return column.cast(arrow.timestamp("s"))
