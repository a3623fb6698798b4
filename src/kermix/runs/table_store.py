"""Tables that are trained from a file of encoded rows, because memory does not hold them."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from kermix.data.tables.batches import Files, open_files
from kermix.data.tables.common import TEXT, kind_of_file, listed, load_pyarrow
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.frames import Frame, as_frame, taken_rows
from kermix.data.tables.keys import KeyPattern, key_texts
from kermix.data.tables.left_out import LeftOutColumn
from kermix.data.tables.look_through import Look, frames_of, look_through
from kermix.data.tables.reading import parquet_errors, read_frame
from kermix.data.tables.row_store import RowStore
from kermix.data.tables.schema import Schema
from kermix.errors import SchemaError, TableError
from kermix.models.table.links import with_link_codes
from kermix.runs.table_data import TableData, keep_frame
from kermix.training.table_settings import TableModelSettings, table_split

__all__ = ["LargeTable", "is_large", "kept_rows", "look_at_large", "move_into",
           "stored_table", "with_store"]  # fmt: skip

ROWS, SOME = "rows.bin", "some-rows.parquet"  # all rows, encoded, and those that are judged
JUDGED = 20_000  # training rows of the report
BYTES_OF_A_CELL = 48  # in memory: as read, as codes and scores, as tensors
BYTES_OF_TEXT = 8  # in memory, for each byte of a text file
PACKED = 4
SHARE = 0.5  # of the free memory that a table may need


class LargeTable(NamedTuple):
    """Files of a table that is not held in memory, and what its columns are."""

    source: str
    files: Files
    look: Look
    schema: Schema
    notes: tuple[str, ...]


def free_memory() -> int:
    """Bytes that may be used: of the machine, and of the container that this runs in."""
    found = []
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        told = dict(line.split(":") for line in lines if ":" in line)
        found.append(int(told["MemAvailable"].split()[0]) * 1024)
    except (OSError, KeyError, ValueError, IndexError):
        if hasattr(os, "sysconf"):
            found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2)
    try:
        most, used = (int(Path(f"/sys/fs/cgroup/memory.{n}").read_text())
                      for n in ("max", "current"))  # fmt: skip
        found.append(most - used)
    except (OSError, ValueError):
        pass  # no limit of its own
    return max(0, min(found, default=2**62))


def is_large(source: str | Path, reading: Reading) -> str | None:
    """Why a table is trained from a file, as a sentence; None if memory holds it."""
    try:
        needed = _needed(str(source), reading)
    except TableError:
        return None  # refused where it is read
    free = free_memory()
    if needed <= SHARE * free:
        return None
    return (
        f"{Path(source).name} is read in blocks and trained from disk: in memory it may need "
        f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free (override with "
        "--in-memory)."
    )


def _needed(source: str, reading: Reading) -> int:
    from kermix.data.tables.addresses import expand, size_of

    total = 0
    for address in expand([source]):
        suffix, packed = kind_of_file(address)
        if suffix == ".parquet":
            from pyarrow import parquet

            with parquet_errors(address):
                told = parquet.read_metadata(address)
            columns = len(reading.columns or ()) or told.num_columns
            total += told.num_rows * columns * BYTES_OF_A_CELL
        elif suffix in TEXT:
            total += size_of(address) * BYTES_OF_TEXT * (PACKED if packed else 1)
    return total


def look_at_large(
    source: str | Path, reading: Mapping[str, Any], seed: int, sample: int | None = None
) -> LargeTable:
    """Read a table once, in blocks, and find what its columns are.

    Args:
        source: A file, or a name with `*` for several.
        reading: What was said about it.
        seed: Of the rows that the schema is learned from.
        sample: How many these are.
    """
    given = {name: value for name, value in reading.items() if value is not None}
    said = Reading(**given)
    files = open_files([str(source)], said.columns, True, said)
    unknown = [n for n in (*said.exclude, *said.kinds) if n not in files.columns]
    if unknown:
        raise TableError(
            f"{files.addresses[0]} has no column {unknown[0]}; it has {listed(files.columns)}."
        )
    kept = [n for n in files.columns if n not in said.exclude]
    if not kept:
        raise TableError(f"{files.addresses[0]}: no column is left.")
    if said.exclude:
        files = open_files([str(source)], kept, True, said)
    look = look_through(files, seed) if sample is None else look_through(files, seed, sample)
    kinds: dict[str, Any] = dict.fromkeys(look.counters, "key")
    kinds.update(said.kinds)
    schema = Schema.of(look.sample, kinds=kinds)
    named = replace(look, sample=replace(look.sample, name=Path(source).name))
    return LargeTable(str(source), files, named, schema, files.notes)


@contextmanager
def stored_table(
    table: LargeTable, settings: TableModelSettings, beside: Path
) -> Iterator[tuple[TableData, Path]]:
    """All rows, encoded in a file of a folder that is gone afterwards, unless it is moved.

    Args:
        table: The table.
        settings: Those of the training: which rows are held out depends on them.
        beside: A folder that the file may be moved to without copying.
    """
    beside.mkdir(parents=True, exist_ok=True)
    # What is equal in a sample need not be so in all rows.
    some_rows = table.look.sample
    sample = TableData.of(some_rows, table.schema, whole=some_rows.rows == table.look.rows)
    numbers = _judged(table.look.rows, settings)
    patterns = {c.name: c.pattern.emptied(table.look.rows) for c in table.schema.left_out
                if c.pattern is not None}  # fmt: skip
    with tempfile.TemporaryDirectory(prefix=".rows-", dir=beside) as folder:
        place = Path(folder)
        layout = sample.layout
        some = []
        with RowStore.writing(place / ROWS, layout.counts, len(layout.numbers)) as writer:
            for frame in _typed(table):
                writer.write(_encoded(table, sample, frame))
                for name, pattern in patterns.items():  # an id that no sample has is taken, too
                    patterns[name] = pattern.with_more(key_texts(frame.columns[name]))
                first = frame.first_row
                low, high = np.searchsorted(numbers, [first, first + frame.rows])
                some.append(taken_rows(frame, numbers[low:high] - first).columns)
        if writer.store.rows != table.look.rows:
            raise TableError(f"{table.look.sample.name}: changed while it was read; start again.")
        arrow = load_pyarrow()
        whole = arrow.concat_tables([arrow.table(c) for c in some])
        frame = replace(as_frame(whole, table.look.sample.name), form=_form(table.files),
                        types={c.name: c.type for c in table.schema.columns})  # fmt: skip
        keep_frame(frame, place / SOME)
        data = TableData.of(frame, _with_patterns(table.schema, patterns), layout)
        yield data._replace(stored=writer.store, numbers=numbers), place


def _with_patterns(schema: Schema, patterns: Mapping[str, KeyPattern]) -> Schema:
    columns = [replace(c, pattern=patterns[c.name])
               if isinstance(c, LeftOutColumn) and c.name in patterns else c
               for c in schema.columns]  # fmt: skip
    return replace(schema, columns=tuple(columns))


def _judged(rows: int, settings: TableModelSettings) -> np.ndarray:
    """Numbers of the rows held out and of some others, in their order."""
    held, _ = table_split(rows, settings)
    generator = np.random.default_rng(settings.seed)
    others = generator.choice(rows, min(rows, JUDGED), replace=False)
    return np.unique(np.concatenate([held.numpy(), others]))


def _typed(table: LargeTable) -> Iterator[Frame]:
    types = {c.name: c.type for c in table.schema.columns}
    for frame in frames_of(table.files):
        yield replace(frame, types=types, name=table.look.sample.name)


def _encoded(table: LargeTable, sample: TableData, frame: Frame) -> Any:
    try:
        encoded = table.schema.encode(frame, extra=True)
    except SchemaError as error:
        raise SchemaError(
            f"{error} The table is read in blocks, and a rare value was missed when the column "
            "kinds were detected; exclude the column (--exclude), or give its kind (--kind)."
        ) from None
    return with_link_codes(table.schema, sample.layout.links, frame, encoded)


def _form(files: Files) -> Any:
    look = getattr(files.parts[0], "look", None)
    return None if look is None else look.form


def kept_rows(folder: Path, schema: Schema, name: str) -> Frame:
    """The rows of a stored table that are judged; messages call it by this name."""
    frame, _ = read_frame(folder / SOME, schema.reading())
    return replace(frame, name=name, types={c.name: c.type for c in schema.columns})


def with_store(
    data: TableData, folder: Path, stored: Mapping[str, Any], settings: TableModelSettings
) -> TableData:
    """The data of a run that has its rows in a file."""
    store = RowStore(folder / ROWS, **stored)
    return data._replace(stored=store, numbers=_judged(store.rows, settings))


def move_into(folder: Path, place: Path, data: TableData) -> TableData:
    """Bring the files of a stored table into the folder of its run."""
    for name in (ROWS, SOME):
        (place / name).replace(folder / name)
    assert data.stored is not None
    return data._replace(stored=replace(data.stored, path=folder / ROWS))
