"""A sample of the rows of typed files: the schema and the scales of a sketch.

It is of everything if that is little, else of random pieces.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import Reading, load_pyarrow
from kermix.data.readers.formats import Part
from kermix.data.readers.parts import (
    Files,
    open_files,
)
from kermix.data.schema.schema import Schema
from kermix.data.sources import MixedRows
from kermix.errors import OptionError, SampleError, TableError

__all__ = ["order_of_rows", "sampled", "typed_sample"]

SAMPLE = 20_000
READ_WHOLE_BELOW = 2**25  # bytes of files of which a sample may be drawn by reading all of them

Rows = TypeVar("Rows")


def order_of_rows(seed: int) -> np.random.Generator:
    """Random numbers that say which rows are drawn.

    They are those of a child of the seed: a table made with the same seed may hold the others, and
    its rows would be drawn by the values in them.
    """
    return np.random.default_rng(seed).spawn(1)[0]


def sampled(
    files: Files,
    generator: np.random.Generator,
    rows_of: Callable[[Part], Iterable[Rows]],
    join: Callable[[list[Rows]], Rows],
    take: Callable[[Rows, np.ndarray], Rows],
    few: int = 100,
) -> Rows:
    """Rows drawn at random: at most half of all, unless these are few. Tests leave them out.

    Args:
        files: Where from.
        generator: Of random numbers.
        rows_of: Some rows of a part after the other.
        join: Puts rows together.
        take: Rows by their numbers.
        few: Fewer rows than these are all taken.
    """
    if files.size <= READ_WHOLE_BELOW:
        whole: Reservoir[Rows] = Reservoir(SAMPLE, generator, join, take)
        for part in files.parts:
            whole.add_all(rows_of(part))
        found, seen = [whole.drawn(few)], whole.seen
    else:
        found, seen = [], 0
        for piece, count in _random_pieces(files, generator).items():
            some: Reservoir[Rows] = Reservoir(count, generator, join, take)
            some.add_all(rows_of(piece))
            seen += some.seen
            found.append(some.drawn())
    kept = [rows for rows in found if rows is not None]
    if not kept:
        raise SampleError(f"{files.addresses[0]}: no complete row was found among {seen}.")
    return join(kept)


def _random_pieces(
    files: Files, generator: np.random.Generator, count: int = 32
) -> dict[Part, int]:
    """Pieces from all over the files, and how many rows are drawn of each.

    A part that cannot be divided, drawn several times, is read once.
    """
    sizes = np.array([part.size for part in files.parts], dtype=float)
    drawn = generator.choice(len(sizes), count, p=sizes / sizes.sum())
    pieces = Counter(files.parts[k].piece(generator) for k in drawn)
    return {piece: times * -(-SAMPLE // count) for piece, times in pieces.items()}


class Reservoir(Generic[Rows]):
    """The rows with the smallest random keys among all that it has seen."""

    def __init__(
        self,
        count: int,
        generator: np.random.Generator,
        join: Callable[[list[Rows]], Rows],
        take: Callable[[Rows, np.ndarray], Rows],
    ) -> None:
        self.count, self.generator, self.join, self.take = count, generator, join, take
        self.rows: Rows | None = None
        self.keys = np.empty(0)
        self.seen = 0

    def add_all(self, several: Iterable[Rows]) -> None:
        """See some rows after the other."""
        for rows in several:
            self.add(rows)

    def add(self, rows: Rows) -> None:
        """See some more rows."""
        keys = self.generator.random(len(rows))  # type: ignore[arg-type]
        self.seen += len(keys)
        if not len(keys):
            return
        joined = rows if self.rows is None else self.join([self.rows, rows])
        keys = np.concatenate([self.keys, keys])
        order = keys.argsort()[: self.count]
        self.rows, self.keys = self.take(joined, order), keys[order]

    def drawn(self, few: int = 0) -> Rows | None:
        """What was kept, in random order: all if few were seen, else at most half."""
        if self.rows is None or self.seen < few:
            return self.rows
        return self.take(self.rows, np.arange(min(len(self.keys), max(1, self.seen // 2))))


def typed_sample(
    sources: Sequence[str],
    reading: Reading,
    standardize: bool | Literal["auto"],
    seed: int,
    gaps: bool = False,
) -> tuple[Files, MixedRows | None, Tensor]:
    """The files, how their mixed rows are made (None: all are numbers), and a sample of them.

    Args:
        sources: Paths, globs, folders or fsspec addresses.
        reading: What was said about them.
        standardize: Whether columns may be scaled, as mixed rows are.
        seed: Of the sample.
        gaps: Whether there are known to be missing values, which the sample may not have.
    """
    typed = open_files(sources, reading.columns, True, reading)
    kept = _kept_columns(typed, reading)
    table = None
    if gaps or not _has_arrays(typed):
        if reading.exclude:
            typed = open_files(sources, kept, True, reading)
        table = _drawn(typed, order_of_rows(seed))
    if table is None or not (gaps or _are_mixed(typed, table, reading)):
        files = open_files(sources, _named(kept, reading), reading=reading)
        return files, None, torch.empty(0, 0)
    if standardize is False:
        raise OptionError(
            "standardize=False: numbers in tables with categories or missing values must be "
            "scaled to be comparable with codes; remove it, or select only numeric columns."
        )
    maker, rows = _mixed(typed, table, reading)
    files = open_files(sources, maker.column_names, True, reading)
    notes = maker.schema.notes()
    if gaps:
        notes = ["read again: values are missing, and the sample missed none.", *notes]
    return replace(files, notes=(*files.notes, *notes)), maker, rows


def _named(kept: list[str], reading: Reading) -> list[str] | None:
    """The columns, if somebody has said which; else those that hold numbers are used."""
    return kept if reading.columns or reading.exclude else None


def _has_arrays(files: Files) -> bool:
    """Whether a file is an array of NumPy, which has nothing but numbers."""
    return any(address.lower().endswith(".npy") for address in files.addresses)


def _kept_columns(typed: Files, reading: Reading) -> list[str]:
    """The columns that are not excluded, of which there must be one."""
    unknown = [n for n in (*reading.exclude, *reading.kinds) if n not in typed.columns]
    if unknown:
        raise TableError(
            f"{typed.addresses[0]} has no column {unknown[0]}; it has {', '.join(typed.columns)}."
        )
    kept = [n for n in typed.columns if n not in reading.exclude]
    if not kept:
        raise TableError(f"{typed.addresses[0]}: no column is left.")
    return kept


def _mixed(typed: Files, table: Any, reading: Reading) -> tuple[MixedRows, Tensor]:
    """How mixed rows are made, learned from a sample, and those of the sample."""
    kinds: dict[str, Any] = dict(reading.kinds)
    schema = Schema.infer(table, kinds=kinds)
    if not schema.modelled:
        raise TableError(
            f"{typed.addresses[0]}: no column is left; {', '.join(schema.names)} are constants, "
            "keys or text."
        )
    encoded = schema.encode(table)
    maker = MixedRows.of(schema, [encoded], mark_all=True)
    return maker, maker(encoded)


def _are_mixed(typed: Files, table: Any, reading: Reading) -> bool:
    """Whether there are more than numbers, or a sample has gaps."""
    from pyarrow import compute

    types = load_pyarrow().types
    return bool(reading.kinds or typed.others) or any(
        c.null_count or (types.is_floating(c.type) and compute.any(compute.is_nan(c)).as_py())
        for c in table.columns
    )


def _drawn(files: Files, generator: np.random.Generator) -> Any:
    """Rows drawn at random, as an Arrow table."""
    arrow = load_pyarrow()
    return sampled(
        files,
        generator,
        lambda part: (_as_table(table) for table, _ in part.tables()),
        lambda tables: arrow.concat_tables(tables, promote_options="permissive"),
        lambda table, places: table.take(arrow.array(places)),
    )


def _as_table(table: Any) -> Any:
    arrow = load_pyarrow()
    return table if isinstance(table, arrow.Table) else arrow.Table.from_batches([table])
