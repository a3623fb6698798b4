"""The table of a run: read, looked at, kept beside the run, and recognized again.

Tables that memory does not hold are encoded to a file. One look through their files finds how many
rows they have, and rows to learn a schema from.
"""

import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import (
    TEXT,
    WRITABLE,
    Reading,
    expand,
    kind_of_file,
    listed,
    load_pyarrow,
    size_of,
)
from kermix.data.readers.formats import parquet_errors
from kermix.data.readers.frames import (
    Frame,
    as_frame,
    family,
    taken_rows,
)
from kermix.data.readers.parts import (
    Files,
    open_files,
)
from kermix.data.readers.reading import read_frame
from kermix.data.schema.key_text import key_texts
from kermix.data.schema.keys import KeyPattern
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.data.writing import table_writer
from kermix.errors import SchemaError, TableError
from kermix.runs.folder import digest_of
from kermix.tables.model.equal_columns import (
    equal_notes,
    link_notes,
)
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.layout_search import find_layout, with_codes
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.training_rows import RowStore, StoredRows, TableRows, copies, table_split

__all__ = [
    "LargeTable",
    "Look",
    "TableData",
    "fingerprint",
    "form_of",
    "frames_of",
    "is_large",
    "keep_frame",
    "kept_rows",
    "look_at_large",
    "move_into",
    "rows_of",
    "scan",
    "stored_table",
    "with_store",
]

MOST_VALUES = 10_000  # of a column of text, beyond which it is no category
MOST_NUMBERS = 50  # different ones, beyond which a column is no category


@dataclass(frozen=True)
class Look:
    """What a look through files has found.

    Attributes:
        rows: How many there are.
        sample: Some of them in their order, and those that a sample might miss: the least and
            the largest number of each column, a gap, each value of a category.
        counters: Columns of whole numbers that count all rows, whatever a sample of them does.
    """

    rows: int
    sample: Frame
    counters: tuple[str, ...] = ()


@dataclass
class _Seen:
    """What was seen of a column."""

    gap: bool = False
    low: Any = None
    high: Any = None
    values: set[Any] | None = field(default_factory=set)  # None: too many


def frames_of(files: Files) -> Any:
    """All rows of files as frames, in their order, each with the number of its first row."""
    arrow = load_pyarrow()
    row = 0
    for part in files.parts:
        for table, _ in part.tables():
            whole = table if isinstance(table, arrow.Table) else arrow.table(table)
            frame = as_frame(whole.rename_columns(list(files.columns)), part.address)
            yield replace(frame, first_row=row)
            row += frame.rows


def scan(files: Files, seed: int, sample: int = 100_000) -> Look:
    """Read all rows once; memory holds a sample of them and a block.

    Args:
        files: The files, with columns of all kinds.
        seed: Of the sample.
        sample: How many rows it has, from which a schema is learned.
    """
    arrow = load_pyarrow()
    generator = np.random.default_rng(seed).spawn(1)[0]  # a table may hold those of the seed
    seen = {name: _Seen() for name in files.columns}
    kept, rare, rows = _Sample(sample), _Rare(), 0
    for frame in frames_of(files):
        new = np.array(sorted({k for n, c in frame.columns.items() for k in _news(seen[n], c)}),
                       np.int64)  # fmt: skip
        table = arrow.table(frame.columns)
        rare.add(table, new, rows)
        kept.add(table, generator.random(frame.rows), rows)
        rows += frame.rows
    found = as_frame(rare.beside(kept).combine_chunks(), files.addresses[0])
    counters = tuple(n for n, s in seen.items() if _counts(s, rows, found.columns[n]))
    return Look(rows, found, counters if rows > sample else ())


@dataclass
class _Sample:
    """Rows with the smallest of random keys, as many as are wanted: an even sample of all."""

    wanted: int
    keys: np.ndarray = field(default_factory=lambda: np.empty(0))
    numbers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    table: Any = None

    def add(self, table: Any, keys: np.ndarray, first: int) -> None:
        """Take rows of a block, each with its key; those that would be dropped are not copied."""
        arrow = load_pyarrow()
        worth = np.flatnonzero(keys < (self.keys.max() if len(self.keys) >= self.wanted else 1.0))
        self.keys = np.concatenate([self.keys, keys[worth]])
        self.numbers = np.concatenate([self.numbers, worth + first])
        some = table.take(arrow.array(worth))
        self.table = some if self.table is None else _joined([self.table, some])
        if len(self.keys) > self.wanted:
            chosen = np.sort(np.argsort(self.keys, kind="stable")[: self.wanted])
            self.keys, self.numbers = self.keys[chosen], self.numbers[chosen]
            self.table = self.table.take(arrow.array(chosen)).combine_chunks()


@dataclass
class _Rare:
    """Rows with something that a sample might miss."""

    tables: list[Any] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)

    def add(self, table: Any, rows: np.ndarray, first: int) -> None:
        """Take some rows of a block."""
        if len(rows):
            self.tables.append(table.take(load_pyarrow().array(rows)))
            self.numbers += (rows + first).tolist()

    def beside(self, kept: _Sample) -> Any:
        """A sample with those of these rows that it lacks, all in their order."""
        if not self.tables:
            return kept.table
        arrow = load_pyarrow()
        missed = ~np.isin(self.numbers, kept.numbers)
        whole = _joined(self.tables).take(arrow.array(np.flatnonzero(missed)))
        numbers = np.concatenate([kept.numbers, np.array(self.numbers)[missed]])
        order = np.argsort(numbers, kind="stable")
        return _joined([kept.table, whole]).take(arrow.array(order))


def _news(seen: _Seen, column: Any) -> list[int]:
    """Rows of a block with something that was not seen in the column before."""
    from pyarrow import compute

    found = []
    if column.null_count and not seen.gap:
        seen.gap = True
        found.append(compute.index(column.is_null(), True).as_py())
    if column.null_count == len(column):
        return found
    if family(column.type) in ("numbers", "times"):
        found += _new_ends(seen, column)
    if seen.values is not None:
        found += _new_values(seen, column)
    return found


def _new_ends(seen: _Seen, column: Any) -> list[int]:
    """Rows of the smallest and the largest number, where they are beyond those before."""
    from pyarrow import compute

    found, ends = [], compute.min_max(column).as_py()
    if seen.low is None or ends["min"] < seen.low:
        seen.low = ends["min"]
        found.append(_place(column, seen.low))
    if seen.high is None or ends["max"] > seen.high:
        seen.high = ends["max"]
        found.append(_place(column, seen.high))
    return found


def _new_values(seen: _Seen, column: Any) -> list[int]:
    """Rows of values that are new, until there are too many for a category."""
    from pyarrow import compute

    assert seen.values is not None
    found: list[int] = []
    most = MOST_VALUES if family(column.type) == "text" else MOST_NUMBERS
    different = compute.unique(column).drop_null()
    if len(different) > most:
        seen.values = None
        return found
    for value in different.to_pylist():
        if value not in seen.values:
            seen.values.add(value)
            found.append(_place(column, value))
    if len(seen.values) > most:
        seen.values = None
    return found


def _place(column: Any, value: Any) -> int:
    from pyarrow import compute

    arrow = load_pyarrow()
    return int(compute.index(column, arrow.scalar(value, column.type)).as_py())


def _counts(seen: _Seen, rows: int, sample: Any) -> bool:
    """Whether whole numbers go on evenly from row to row: each has one of its own."""
    if not _is_whole(seen.low) or seen.gap or rows < 2:
        return False
    step, rest = divmod(int(seen.high) - int(seen.low), rows - 1)
    if rest or not step or len(sample.unique()) < len(sample):
        return False
    return step == 1 or not ((np.asarray(sample) - seen.low) % step).any()


def _is_whole(number: Any) -> bool:
    if isinstance(number, bool):
        return False
    return isinstance(number, int) or (isinstance(number, float) and number.is_integer())


def _joined(tables: list[Any]) -> Any:
    return load_pyarrow().concat_tables(tables, promote_options="permissive")


class TableData(NamedTuple):
    """A table, what its columns are, and its rows as codes and numbers.

    Attributes:
        frame: The table.
        schema: What its columns are.
        encoded: Its rows.
        layout: How they lie in a network.
        test: Rows of the same columns that are kept for a test, where a run has one.
        stored: All rows, in a file, where memory does not hold them. The table above has some of
            them then, those held out among them.
        numbers: Which rows these are of those stored, or of the file where some were left out.
    """

    frame: Frame
    schema: Schema
    encoded: EncodedTable
    layout: TableLayout
    test: Frame | None = None
    stored: RowStore | None = None
    numbers: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        frame: Frame,
        schema: Schema,
        layout: TableLayout | None = None,
        whole: bool = True,
    ) -> "TableData":
        """A table that matches a schema.

        Args:
            frame: The table.
            schema: What its columns are.
            layout: How columns lie in the network and depend on each other; looked for, if it is
                not given, and values that repeat are codes of the schema then.
            whole: Whether the table has all rows, so that columns may be known to be equal in all.
        """
        encoded = schema.encode(frame, name=frame.name, extra=True)
        if layout is None:
            layout = find_layout(schema, frame, encoded, whole=whole)
            schema, encoded, layout = with_codes(schema, frame, encoded, layout)
        return cls(frame, schema, encoded, layout)

    @property
    def rows(self) -> int:
        """How many rows the whole table has."""
        return len(self.encoded) if self.stored is None else self.stored.rows

    def fingerprint(self) -> str:
        """What tells whether the table has changed."""
        return fingerprint(self.encoded) if self.stored is None else self.stored.fingerprint()

    def to_train(self) -> TableRows | StoredRows:
        """All rows, as a training takes them."""
        if self.stored is not None:
            return StoredRows(self.stored)
        return TableRows(*self.linked.tensors())

    def split(self, settings: TableModelSettings) -> tuple[np.ndarray, np.ndarray]:
        """Which rows of the table here are held out, and which are trained with."""
        held, train = table_split(self.rows, settings)
        if self.stored is None and isinstance(train, Tensor):
            return held.numpy(), train.numpy()
        here = np.arange(self.rows) if self.numbers is None else self.numbers
        chosen = np.isin(here, held.numpy())
        return np.flatnonzero(chosen), np.flatnonzero(~chosen)

    def copied(self, rows: EncodedTable) -> float | None:
        """The share of rows that are copies of stored ones; None where all rows are here."""
        if self.stored is None:
            return None
        # As they are stored: what is equal there has to be equal here.
        short = replace(rows, values=rows.values.astype(np.float32).astype(np.float64))
        found = np.zeros(len(rows), bool)
        for block in self.stored.blocks():
            own = replace(block, codes=block.codes[:, : self.layout.table_columns])
            found |= copies(short, own)
        return float(found.mean())

    @property
    def linked(self) -> EncodedTable:
        """Rows with the codes of the links."""
        return self.layout.with_flags(self.schema, self.frame, self.encoded)

    def link_notes(self) -> list[str]:
        """What is said about columns that are always or often equal, or follow from others."""
        links, exact = self.layout.links, self.layout.exact
        codes = self.linked.codes[:, self.layout.columns - len(links) :]
        told = [] if exact is None else [f"{line}." for line in exact.descriptions()]
        return [*equal_notes(self.schema, self.layout.equal_pairs),
                *link_notes(self.schema, links, codes), *told]  # fmt: skip


def form_of(source: str) -> str:
    """How a file of samples ends: as the input does, where such a file can be written.

    Example:
        >>> form_of("orders.parquet"), form_of("orders.csv.gz"), form_of("orders.xlsx")
        ('.parquet', '.csv.gz', '.csv')
    """
    ends = [end for end in WRITABLE if source.lower().endswith(end)]
    return max(ends, key=len, default=".csv")


def rows_of(frame: Frame, rows: int | None, seed: int) -> Frame:
    """Some rows of a table, drawn at random, in their order."""
    if rows is None or rows >= frame.rows:
        return frame
    order = torch.randperm(frame.rows, generator=torch.Generator().manual_seed(seed))
    return taken_rows(frame, order[:rows].sort().values.numpy())


def keep_frame(frame: Frame, path: Path) -> None:
    """Write a table that was in memory beside its run, which reads it again when it goes on."""
    arrow = load_pyarrow()
    with table_writer(path) as writer:
        writer.write(arrow.table(dict(frame.columns)))


def fingerprint(encoded: EncodedTable) -> str:
    """What tells whether a table has changed."""
    return digest_of((str(encoded.codes.shape), encoded.codes, encoded.values))


ROWS, SOME = "rows.bin", "some-rows.parquet"  # all rows, encoded, and those that are judged


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


def is_large(source: str | Path, reading: Reading, share: float = 0.5) -> str | None:
    """Why a table is trained from a file, as a sentence; None if memory holds it."""
    try:
        needed = _needed(str(source), reading)
    except TableError:
        return None  # refused where it is read
    free = free_memory()
    if needed <= share * free:
        return None
    return (
        f"{Path(source).name} is read in blocks and trained from disk: in memory it may need "
        f"{needed / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free (override with "
        "--in-memory)."
    )


def _needed(
    source: str,
    reading: Reading,
    packed_times: int = 4,
    bytes_of_a_cell: int = 48,
    bytes_of_text: int = 8,
) -> int:
    total = 0
    for address in expand([source]):
        suffix, packed = kind_of_file(address)
        if suffix == ".parquet":
            from pyarrow import parquet

            with parquet_errors(address):
                told = parquet.read_metadata(address)
            columns = len(reading.columns or ()) or told.num_columns
            total += told.num_rows * columns * bytes_of_a_cell
        elif suffix in TEXT:
            total += size_of(address) * bytes_of_text * (packed_times if packed else 1)
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
    look = scan(files, seed) if sample is None else scan(files, seed, sample)
    kinds: dict[str, Any] = dict.fromkeys(look.counters, "key")
    kinds.update(said.kinds)
    schema = Schema.infer(look.sample, kinds=kinds)
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
        data = TableData.of(frame, _with_patterns(sample.schema, patterns), layout)
        yield data._replace(stored=writer.store, numbers=numbers), place


def _with_patterns(schema: Schema, patterns: Mapping[str, KeyPattern]) -> Schema:
    columns = [replace(c, pattern=patterns[c.name])
               if isinstance(c, LeftOutColumn) and c.name in patterns else c
               for c in schema.columns]  # fmt: skip
    return replace(schema, columns=tuple(columns))


def _judged(rows: int, settings: TableModelSettings, most: int = 20_000) -> np.ndarray:
    """Numbers of the rows held out and of some others, in their order."""
    held, _ = table_split(rows, settings)
    generator = np.random.default_rng(settings.seed)
    others = generator.choice(rows, min(rows, most), replace=False)
    return np.unique(np.concatenate([held.numpy(), others]))


def _typed(table: LargeTable) -> Iterator[Frame]:
    types = {c.name: c.type for c in table.schema.columns}
    for frame in frames_of(table.files):
        yield replace(frame, types=types, name=table.look.sample.name)


def _encoded(table: LargeTable, sample: TableData, frame: Frame) -> Any:
    try:
        encoded = sample.schema.encode(frame, extra=True)
    except SchemaError as error:
        raise SchemaError(
            f"{error} The table is read in blocks, and a rare value was missed when the column "
            "kinds were detected; exclude the column (--exclude), or give its kind (--kind)."
        ) from None
    return sample.layout.with_flags(sample.schema, frame, encoded)


def _form(files: Files) -> Any:
    return getattr(files.parts[0], "form", None)


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
