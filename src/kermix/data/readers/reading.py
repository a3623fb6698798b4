"""The one reader of typed tables: files of every kind, whole or in parts, and tables in memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
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
from kermix.data.readers.delimited import CsvPart, csv_file, numeric_names, read_csv
from kermix.data.readers.formats import numbers_of, read_whole
from kermix.data.readers.frames import Frame, as_frame, without_missing
from kermix.data.readers.number_forms import without_marks
from kermix.data.readers.parts import FileLook, Part, look_at_file
from kermix.data.readers.text_columns import (
    CellType,
    ColumnJudge,
    StrayWords,
    alike,
    is_code_text,
)
from kermix.errors import SchemaError, TableError

__all__ = ["Files", "open_files", "read_alike", "read_frame"]


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


@dataclass(frozen=True)
class Files:
    """Files of the same columns, and the parts that they are read in."""

    looks: tuple[FileLook, ...]
    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    ignored: tuple[str, ...]  # columns that are left out because they hold no numbers
    notes: tuple[str, ...] = ()  # what was assumed
    others: tuple[str, ...] = ()  # columns without numbers that are used

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where the files are."""
        return tuple(look.address for look in self.looks)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    def chosen(self, columns: Sequence[str] | None = None, typed: bool = False) -> "Files":
        """The same files with other columns.

        Args:
            columns: Which; by default all that hold numbers.
            typed: Whether columns of all kinds count.
        """
        return replace(_chosen_columns(self.looks, columns, typed), notes=self.notes)


def open_files(
    sources: Sequence[str],
    columns: Sequence[str] | None = None,
    typed: bool = False,
    reading: Reading | None = None,
) -> Files:
    """Look at all files, and refuse those whose columns are not those of the first.

    Args:
        sources: Paths, globs, folders or fsspec addresses.
        columns: Which columns to use; by default all that hold numbers.
        typed: Whether columns of all kinds count.
        reading: How text files are written, where that is known, and kinds of columns.
    """
    looks = [_looked_at(address, reading or Reading()) for address in expand(sources)]
    return _chosen_columns(_alike(looks), columns, typed)


def _alike(looks: list[FileLook]) -> tuple[FileLook, ...]:
    """Text files whose columns have one type in all of them."""
    types = {look.address: dict(part.types) for look in looks for part in look.parts[:1]
             if isinstance(part, CsvPart)}  # fmt: skip
    if len(types) > 1:
        _make_alike(list(types.values()))
    return tuple(_typed(look, types.get(look.address)) for look in looks)


def _make_alike(types: Sequence[dict[str, CellType]]) -> None:
    """Change the types of columns to those in which the rows of all files can be read."""
    for name in {name for own in types for name in own}:
        having = [own for own in types if name in own]
        for own, kind in zip(having, alike([own[name] for own in having]), strict=True):
            own[name] = kind


def _typed(look: FileLook, types: Mapping[str, CellType] | None) -> FileLook:
    """A file with other types of its columns, if it is text."""
    if types is None:
        return look
    parts = tuple(replace(p, types=types) for p in look.parts)  # type: ignore[call-arg]
    return replace(look, parts=parts, columns=numeric_names(types))


def _chosen_columns(
    looks: tuple[FileLook, ...], columns: Sequence[str] | None, typed: bool
) -> Files:
    shown = [replace(k, columns=k.all_columns) if typed else k for k in looks]
    first = looks[0]
    wanted = tuple(shown[0].columns if columns is None else columns)
    if not wanted:
        raise TableError(
            f"{first.address}: no column holds numbers; it has {', '.join(first.all_columns)}."
        )
    strict = columns is None
    parts = tuple(chain.from_iterable(_parts_of(k, shown[0], wanted, strict) for k in shown))
    if not parts:
        raise TableError(f"{first.address}: there are no rows in it, nor in any other file.")
    files = Files(looks, wanted, parts, (), tuple(dict.fromkeys(_notes(looks))))
    if typed:
        return replace(files, others=tuple(c for c in first.others if c in wanted))
    return replace(files, ignored=() if columns else first.others)


def _notes(looks: Sequence[FileLook]) -> list[str]:
    return [note for look in looks for note in look.notes]


def _parts_of(
    look: FileLook, first: FileLook, wanted: tuple[str, ...], strict: bool
) -> list[Part]:
    """The parts of a file with the columns that are wanted, which must be without a fault."""
    names = _matched(look, first, wanted, strict)
    for name, fault in look.faults.items():
        if strict or name in names:
            raise SchemaError(fault)
    return [replace(part, columns=names) for part in look.parts]


def _matched(
    file: FileLook, first: FileLook, wanted: tuple[str, ...], strict: bool
) -> tuple[str, ...]:
    """The names that the wanted columns have in a file."""
    if not (file.named and first.named) and strict:
        if len(file.columns) != len(wanted):
            raise TableError(
                f"{file.address}: {len(file.columns)} columns of numbers, but {first.address} "
                f"has {len(wanted)}."
            )
        return file.columns
    for name in wanted:
        if name not in file.columns:
            raise TableError(
                file.explained.get(name, f"{file.address}: {_why_not(name, file, first)}.")
            )
    extra = [c for c in file.columns if c not in wanted]
    if strict and extra:
        raise TableError(
            f"{file.address}: column {extra[0]} is not in {first.address}. Name the columns to "
            f"use: {','.join(wanted)}."
        )
    return wanted


def _why_not(name: str, file: FileLook, first: FileLook) -> str:
    if name in file.all_columns:
        return f"column {name} holds no numbers"
    other = "it" if file is first else f"{first.address} has it, and this file"
    return f"there is no column {name}; {other} has {', '.join(file.all_columns)}"


def _looked_at(address: str, reading: Reading) -> FileLook:
    suffix, packed = kind_of_file(address)
    return csv_file(address, reading, packed) if suffix in TEXT else look_at_file(address, reading)
