"""Several tables brought to the same columns, of types that hold the cells of all."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from kermix.data.readers.common import listed, load_pyarrow, names_apart
from kermix.data.readers.frames import (
    ColumnType,
    Frame,
    family,
)
from kermix.data.schema.times import (
    ZONES,
    parse_times,
    seconds_of,
    text_format,
    zone_of,
    zones_differ,
)
from kermix.errors import OptionError, SchemaError

__all__ = [
    "check_same_names",
    "chosen_columns",
    "in_common",
    "left_out_note",
    "only_in",
    "pooled_column",
    "with_columns",
    "with_same_times",
    "without_others",
]


def chosen_columns(
    frame: Frame, columns: Sequence[str] | None, exclude: Sequence[str]
) -> list[str]:
    """The columns that are wanted, of those that there are."""
    for what, given in (("columns", columns), ("exclude", exclude)):
        if isinstance(given, str):
            raise OptionError(f"{what}={given!r} must be a list of names.")
        unknown = [n for n in given or () if n not in frame.columns]
        if unknown:
            raise SchemaError(
                f"{frame.name}: there is no column {listed(unknown)}; there are "
                f"{listed(frame.columns)}."
            )
    away = set(exclude)
    names = [n for n in (frame.columns if columns is None else columns) if n not in away]
    if not names:
        raise SchemaError(f"{frame.name}: no column is left.")
    return names


def check_same_names(
    names: Sequence[str], first: Frame, frame: Frame, strict: bool, exclude: Sequence[str]
) -> None:
    """Refuse a table whose columns are not those of the first."""
    gone = [n for n in names if n not in frame.columns]
    known = {*names, *exclude}
    more = [n for n in frame.columns if n not in known] if strict else []
    if gone or more:
        own = names_apart(first.name, frame.name)
        parts = [f"only {n} has {listed(c)}" for n, c in zip(own, (gone, more), strict=True) if c]
        both = [n for n in names if n in frame.columns]
        hint = f"To use the columns in both, name them: {','.join(both)}." if both else ""
        raise SchemaError(f"The columns differ: {'; '.join(parts)}. {hint}".rstrip())


def only_in(names: Sequence[Sequence[str]], tables: Sequence[str]) -> list[str]:
    """Which columns one of two tables has alone, a text for each table that has such.

    Example:
        >>> only_in([["a", "note"], ["a"]], ["orders.csv", "new.csv"])
        ['note (only in orders.csv)']
    """
    first, second = names
    own = names_apart(*tables)
    return [
        f"{listed(alone)} (only in {table})"
        for table, here, there in zip(own, names, (second, first), strict=True)
        if (alone := [n for n in here if n not in there])
    ]


def in_common(names: Sequence[Sequence[str]], tables: Sequence[str]) -> list[str]:
    """The columns that two tables have, in the order of the first; refused if there are none."""
    both = [n for n in names[0] if n in names[1]]
    if not both:
        own = names_apart(*tables)
        told = "; ".join(f"{t} has {listed(n)}" for t, n in zip(own, names, strict=True))
        raise SchemaError(f"The tables have no column in common: {told}.")
    return both


def without_others(frames: Sequence[Frame]) -> tuple[list[Frame], list[str]]:
    """Two tables with the columns that both have alike, and a line on those that are left out.

    Left out are columns that one table has alone, and those whose types have nothing in common.
    """
    tables = [f.name for f in frames]
    names = [list(f.columns) for f in frames]
    faults = {name: _fault_of_types(name, frames) for name in in_common(names, tables)}
    refused = {name: fault for name, fault in faults.items() if fault is not None}
    if len(refused) == len(faults):
        raise next(iter(refused.values()))
    told = [*only_in(names, tables), *(_shown_types(name, frames) for name in refused)]
    if not told:
        return list(frames), []
    kept = [name for name in faults if name not in refused]
    return [with_columns(f, kept) for f in frames], [left_out_note(told)]


def with_columns(frame: Frame, names: Sequence[str]) -> Frame:
    """A table with some of its columns, in this order."""
    return replace(frame, columns={n: frame.columns[n] for n in names},
                   types={n: frame.types[n] for n in names})  # fmt: skip


def _fault_of_types(name: str, frames: Sequence[Frame]) -> SchemaError | None:
    """Why a column cannot be of one type in all tables."""
    try:
        pooled_column(name, frames)
    except SchemaError as error:
        return error
    return None


def _shown_types(name: str, frames: Sequence[Frame]) -> str:
    """A column, and what it holds in each of two tables."""
    types = [f.columns[name].type for f in frames]
    held = [family(t) for t in types]
    shown = held if held[0] != held[1] else types  # times with and without a zone
    own = names_apart(*(f.name for f in frames))
    return f"{name} ({shown[0]} in {own[0]}, {shown[1]} in {own[1]})"


def left_out_note(told: Sequence[str]) -> str:
    """The line on columns that are not compared."""
    return f"Compared by the columns that both have; left out: {'; '.join(told)}."


def pooled_column(name: str, frames: Sequence[Frame]) -> tuple[ColumnType, list[Any]]:
    """A column of all tables in one type that holds them all."""
    pieces = [f.columns[name] for f in frames]
    holding = [f for f in frames if family(f.columns[name].type) != "nothing"] or [frames[0]]
    kind = holding[0].types[name]
    if len(frames) == 1:
        return kind, pieces
    target = _common_type(name, holding)
    if any(f.columns[name].type != target for f in holding):
        kind = replace(kind, arrow=str(target), pandas=None, declared=None)
    arrow = load_pyarrow()
    try:
        pieces = [p.cast(target) for p in pieces]
    except arrow.ArrowInvalid:
        pieces = [p.cast(arrow.float64(), safe=False) for p in pieces]
        kind = replace(kind, arrow="double", pandas=None)
    return _with_all_declared(name, kind, frames), pieces


def _common_type(name: str, frames: Sequence[Frame]) -> Any:
    """The type that holds the cells of a column of all tables, which have some in it."""
    types = [f.columns[name].type for f in frames]
    if len(set(types)) == 1:
        return types[0]
    arrow, families = load_pyarrow(), {family(t) for t in types}
    if families == {"numbers"}:
        whole = all(map(arrow.types.is_integer, types))
        return arrow.int64() if whole else arrow.float64()
    if families == {"text"}:
        return arrow.string()
    if families == {"times"} and len({str(t).partition("[")[0] for t in types}) == 1:
        return _time_type(name, frames, types)
    shown = " and ".join(sorted(map(str, set(types))))
    raise SchemaError(
        f"Column {name} holds {shown} in different tables; convert them to one type, or exclude "
        "it."
    )


def _with_all_declared(name: str, kind: ColumnType, frames: Sequence[Frame]) -> ColumnType:
    """A categorical type with the values that any table declares, sorted if there are rows."""
    found = [f.types[name].declared for f in frames]
    declared = [values for values in found if values is not None]
    if kind.declared is None or len(set(declared)) < 2:
        return kind
    every = dict.fromkeys(value for values in declared for value in values)
    order = sorted(every, key=str) if any(f.rows for f in frames) else every
    return replace(kind, declared=tuple(order), ordered=False)


def _time_type(name: str, frames: Sequence[Frame], types: Sequence[Any]) -> Any:
    """The finest of several types of time, in the zone of the first that has one."""
    zoned = [k for k, t in enumerate(types) if zone_of(t) is not None]
    plain = [k for k, t in enumerate(types) if zone_of(t) is None]
    finest = min(types, key=seconds_of)
    if not zoned:
        return finest
    first = types[zoned[0]]
    if plain:
        named = frames[zoned[0]].name, frames[plain[0]].name
        named = named if named[0] != named[1] else ("one table", "another")
        raise SchemaError(zones_differ(f"Column {name}", first, *named))
    return load_pyarrow().timestamp(finest.unit, zone_of(first))


def with_same_times(
    frames: Sequence[Frame], known: Collection[str] = ()
) -> tuple[list[Frame], list[str]]:
    """Tables whose times are no text where they are written in several ways, and what to say.

    Args:
        frames: Tables, most columns of which have the same names.
        known: Columns whose kind is known, which stay as they are.
    """
    found, notes = list(frames), list[str]()
    if len(frames) < 2:
        return found, notes
    both = [n for n in frames[0].columns if all(n in f.columns for f in frames[1:])]
    for name in both:
        ways = None if name in known else _different_ways(frames, name)
        if ways is None:
            continue
        shown = [f"{way[0] or 'times'} in {f.name}"
                 for way, f in zip(ways, frames, strict=True)]  # fmt: skip
        notes.append(f"Column {name} is written as {' and '.join(shown)}; compared as times.")
        found = [_with_times(f, name, way) for f, way in zip(found, ways, strict=True)]
    return found, notes


def _different_ways(frames: Sequence[Frame], name: str) -> list[tuple[str, str]] | None:
    """How each table writes the times of a column; None if they do so alike, or it has none."""
    ways = [_way(frame, name) for frame in frames]
    found = [way for way in ways if way is not None]
    if len(found) < len(frames) or len(set(found)) == 1 or _written_alike(frames, name):
        return None
    return found


def _with_times(frame: Frame, name: str, way: tuple[str, str]) -> Frame:
    """The table with times in a column where it has text."""
    column = _times(frame.columns[name], way)
    types = {**frame.types, name: ColumnType(str(column.type))}
    return replace(frame, columns={**frame.columns, name: column}, types=types)


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
        zoned = form.endswith(ZONES)
        return times.cast(arrow.timestamp(unit, "UTC" if zoned else None))
    if not arrow.types.is_date(column.type):
        return column
    return column.cast(arrow.timestamp("s"))
