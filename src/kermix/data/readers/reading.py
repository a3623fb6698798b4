"""The one reader of typed tables: whole files of every kind, and tables in memory."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kermix.data.readers.common import (
    TEXT,
    Reading,
    check_file,
    expand,
    is_pattern,
    kind_of_file,
    listed,
    load_pyarrow,
    split_part,
)
from kermix.data.readers.delimited import read_csv
from kermix.data.readers.formats import numbers_of, read_whole
from kermix.data.readers.frames import Frame, as_frame, without_missing
from kermix.data.readers.number_forms import without_marks
from kermix.data.readers.text_columns import (
    ColumnJudge,
    StrayWords,
    is_code_text,
)
from kermix.errors import SchemaError, TableError

__all__ = ["read_alike", "read_frame"]


def read_frame(source: Any, reading: Reading | None = None) -> tuple[Frame, list[str]]:
    """The columns of a file or of a table in memory, and notes on what was assumed.

    Args:
        source: A path (of `READABLE`, text also packed), a name with `*` for several, several
            paths, a table of a database (`shop.duckdb:orders`), a pandas, Polars or Arrow table or
            another with `__arrow_c_stream__`, a dictionary of columns, an array or a tensor.
        reading: The user's reading options.

    Example:
        >>> frame, notes = read_frame({"a": [1, 2], "b": ["x", "y"]})
        >>> list(frame.columns), frame.rows
        (['a', 'b'], 2)
    """
    reading = Reading() if reading is None else reading
    if is_pattern(source):
        source = expand([source])
    if (
        isinstance(source, list | tuple)
        and source
        and all(isinstance(s, str | Path) for s in source)
    ):
        return _several([Path(s) for s in source], reading)
    if isinstance(source, str | Path):
        frame, notes = _file(Path(source), reading)
    else:
        frame, notes = _with_gaps(as_frame(source, _name(source)), reading.missing), []
    frame, said = _without_faults(_chosen(frame, reading), reading)
    return _with_marks(frame, reading), [*notes, *said]


def _name(source: Any) -> str:
    return "data frame" if hasattr(source, "columns") else type(source).__name__.lower()


def read_alike(
    sources: Sequence[Any], reading: Reading | None = None
) -> list[tuple[Frame, list[str]]]:
    """Several tables, as `read_frame`; what is a code in one text file is so in the others.

    Args:
        sources: Files, or tables in memory.
        reading: What the user said about them.
    """
    reading = Reading() if reading is None else reading
    found = [read_frame(source, reading) for source in sources]
    codes = {n for f, _ in found if f.form is not None
             for n, c in f.columns.items() if is_code_text(c)}  # fmt: skip
    known = replace(reading, known_text=(*reading.known_text, *sorted(codes)))
    types = load_pyarrow().types
    for k, (frame, _) in enumerate(found):
        numbers = [n for n, c in frame.columns.items()
                   if types.is_integer(c.type) or types.is_floating(c.type)]  # fmt: skip
        if frame.form is not None and not codes.isdisjoint(numbers):
            found[k] = read_frame(sources[k], known)
    return found


def _several(paths: list[Path], reading: Reading) -> tuple[Frame, list[str]]:
    found = read_alike(paths, reading)
    explained = tuple(dict.fromkeys(n for frame, _ in found for n in frame.explained))
    notes = [n for _, said in found for n in said]
    if explained:  # text in one file is text in all
        known = replace(reading, known_text=(*reading.known_text, *explained))
        found = read_alike(paths, known)
    return replace(_put_together([frame for frame, _ in found]), explained=explained), notes


def _put_together(frames: Sequence[Frame]) -> Frame:
    """The rows of tables with the same columns, which are those of the first."""
    arrow = load_pyarrow()
    first = frames[0]
    for frame in frames[1:]:
        if {*frame.columns} != {*first.columns}:
            raise TableError(
                f"{frame.name}: its columns are {listed(frame.columns)}, and {first.name} has "
                f"{listed(first.columns)}."
            )
    try:
        tables = [arrow.table({n: f.columns[n] for n in first.columns}) for f in frames]
        whole = arrow.concat_tables(tables, promote_options="permissive")
    except arrow.ArrowException as error:
        raise TableError(f"{first.name} and the others: {error}.") from None
    return replace(as_frame(whole, first.name), form=first.form)


def _file(path: Path, reading: Reading) -> tuple[Frame, list[str]]:
    file, part = split_part(path)
    check_file(file)
    suffix, packed = kind_of_file(file)
    if suffix in TEXT:
        table, look = read_csv(str(path), reading, packed)
        frame = as_frame(table, path.name)
        frame = replace(
            frame, first_row=1 + look.form.named, form=look.form, explained=tuple(look.explained)
        )
        return frame, list(look.notes)
    if suffix in (".npy", ".npz"):
        return as_frame(numbers_of(file, part, reading.missing), path.name), []
    table, notes = read_whole(file, part, reading)
    frame = as_frame(table, path.name)
    return (replace(frame, first_row=2) if suffix == ".xlsx" else frame), notes


def _with_gaps(frame: Frame, missing: Sequence[str]) -> Frame:
    table = without_missing(load_pyarrow().table(frame.columns), missing)
    return replace(frame, columns=dict(zip(table.column_names, table.columns, strict=True)))


def _with_marks(frame: Frame, reading: Reading) -> Frame:
    """The frame with gaps where text that stands for numbers or times has a mark of one."""
    types = load_pyarrow().types
    marked = {
        n: without_marks(c) for n, c in frame.columns.items()
        if n in reading.known_forms and (types.is_string(c.type) or types.is_large_string(c.type))
    }  # fmt: skip
    return replace(frame, columns={**frame.columns, **marked})


def _chosen(frame: Frame, reading: Reading) -> Frame:
    for given in (reading.columns or (), reading.exclude, tuple(reading.kinds)):
        unknown = [n for n in given if n not in frame.columns]
        if unknown:
            raise TableError(
                f"{frame.name} has no column {listed(unknown)}; it has {listed(frame.columns)}."
            )
    kept = reading.used(reading.columns or frame.columns)
    if not kept:
        raise TableError(f"{frame.name}: no column is left.")
    if not frame.rows:
        raise TableError(f"{frame.name}: there are no rows in it.")
    return replace(frame, columns={n: frame.columns[n] for n in kept},
                   types={n: frame.types[n] for n in kept})  # fmt: skip


def _without_faults(frame: Frame, reading: Reading) -> tuple[Frame, list[str]]:
    """The frame, unless words are among numbers, and notes; text files were judged before."""
    if frame.form is not None:
        return frame, []
    found = [_stray_words(frame, name, reading) for name in frame.columns]
    notes = []
    for stray in (s for s in found if s is not None):
        place = f"{frame.name}, row {stray.row + frame.first_row}"
        if stray.are_fault():
            raise SchemaError(stray.fault(place))
        notes.append(stray.note(place))
    explained = tuple(s.column for s in found if s is not None)
    return replace(frame, explained=explained), notes


def _stray_words(frame: Frame, name: str, reading: Reading) -> StrayWords | None:
    """Words among numbers in a column of text that nobody has declared to be text."""
    types = load_pyarrow().types
    column, kind, asked = frame.columns[name], frame.types[name], reading.asked(name)
    text = types.is_string(column.type) or types.is_large_string(column.type)
    if not text or kind.declared or kind.mixed or kind.pandas or asked == "text":
        return None
    judge = ColumnJudge(".", asked)
    judge.look(column.cast(load_pyarrow().string()))
    return judge.stray_words(name)
