"""Columns of several tables as one, of a type that holds them all; those that all have."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kermix.data.tables.columns import family
from kermix.data.tables.common import listed, load_pyarrow, names_apart
from kermix.data.tables.frames import ColumnType, Frame
from kermix.data.tables.times import seconds_of, zone_of, zones_differ
from kermix.errors import OptionError, SchemaError

__all__ = [
    "check_same_names",
    "chosen_columns",
    "in_common",
    "left_out_note",
    "only_in",
    "pooled_column",
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
    own = names_apart(*tables)
    names = [list(f.columns) for f in frames]
    told, kept, refused = only_in(names, tables), [], []
    for name in in_common(names, tables):
        try:
            pooled_column(name, frames)
            kept.append(name)
        except SchemaError as error:
            refused.append(error)
            types = [f.columns[name].type for f in frames]
            held = [family(t) for t in types]
            shown = held if held[0] != held[1] else types  # times with and without a zone
            told.append(f"{name} ({shown[0]} in {own[0]}, {shown[1]} in {own[1]})")
    if not kept:
        raise refused[0]
    if not told:
        return list(frames), []
    found = [replace(f, columns={n: f.columns[n] for n in kept},
                     types={n: f.types[n] for n in kept}) for f in frames]  # fmt: skip
    return found, [left_out_note(told)]


def left_out_note(told: Sequence[str]) -> str:
    """The line on columns that are not compared."""
    return f"Compared by the columns that both have; left out: {'; '.join(told)}."


def pooled_column(name: str, frames: Sequence[Frame]) -> tuple[ColumnType, list[Any]]:
    """A column of all tables in one type that holds them all."""
    from pyarrow import compute

    pieces = [f.columns[name] for f in frames]
    types = [f.types[name] for f in frames]
    kind = next((t for t, p in zip(types, pieces, strict=True) if family(p.type) != "nothing"),
                types[0])  # fmt: skip
    if len(frames) == 1:
        return kind, pieces
    arrow = load_pyarrow()
    found = {p.type for p in pieces if family(p.type) != "nothing"} or {pieces[0].type}
    if len(found) > 1:
        families = {family(t) for t in found}
        if families == {"numbers"}:
            whole = all(arrow.types.is_integer(t) for t in found)
            target = arrow.int64() if whole else arrow.float64()
        elif families == {"text"}:
            target = arrow.string()
        elif families == {"times"} and len({str(t).partition("[")[0] for t in found}) == 1:
            target = _time_type(name, frames, [p.type for p in pieces])
        else:
            listed_types = " and ".join(sorted(str(t) for t in found))
            raise SchemaError(
                f"Column {name} holds {listed_types} in different tables; convert them to one "
                "type, or exclude it."
            )
        kind = replace(kind, arrow=str(target), pandas=None, declared=None)
    else:
        target = found.pop()
    try:
        pieces = [p.cast(target) for p in pieces]
    except arrow.ArrowInvalid:
        pieces = [p.cast(arrow.float64(), safe=False) for p in pieces]
        kind = replace(kind, arrow="double", pandas=None)
    declared = [t.declared for t in types if t.declared is not None]
    if kind.declared is not None and len(set(declared)) > 1:
        seen = compute.unique(arrow.chunked_array([c for p in pieces for c in p.chunks], target))
        every = dict.fromkeys(v for d in declared for v in d)
        order = sorted(every, key=str) if len(seen) else list(every)
        kind = replace(kind, declared=tuple(order), ordered=False)
    return kind, pieces


def _time_type(name: str, frames: Sequence[Frame], types: Sequence[Any]) -> Any:
    """The finest of several types of time, in the zone of the first that has one."""
    timed = [(f, t) for f, t in zip(frames, types, strict=True) if family(t) == "times"]
    zoned = [(f, t) for f, t in timed if zone_of(t) is not None]
    plain = [f for f, t in timed if zone_of(t) is None]
    if zoned and plain:
        frame, kind = zoned[0]
        named = (
            (frame.name, plain[0].name)
            if frame.name != plain[0].name
            else ("one table", "another")
        )
        raise SchemaError(zones_differ(f"Column {name}", kind, *named))
    finest = min((t for _, t in timed), key=seconds_of)
    return load_pyarrow().timestamp(finest.unit, zone_of(zoned[0][1])) if zoned else finest
