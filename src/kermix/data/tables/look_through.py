"""One look through files of any size: how many rows they have, and rows to learn a schema from."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kermix.data.tables.batches import Files
from kermix.data.tables.columns import family
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.frames import Frame, as_frame

__all__ = ["Look", "frames_of", "look_through"]

SAMPLE = 100_000  # rows that a schema is learned from
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


def look_through(files: Files, seed: int, sample: int = SAMPLE) -> Look:
    """Read all rows once; memory holds a sample of them and a block.

    Args:
        files: The files, with columns of all kinds.
        seed: Of the sample.
        sample: How many rows it has.
    """
    arrow = load_pyarrow()
    generator = np.random.default_rng(seed).spawn(1)[0]  # a table may hold those of the seed
    seen = {name: _Seen() for name in files.columns}
    keys, numbers, rows = np.empty(0), np.empty(0, np.int64), 0
    kept: Any = None
    rare: list[Any] = []
    rare_numbers: list[int] = []
    for frame in frames_of(files):
        new = np.array(sorted({k for n, c in frame.columns.items() for k in _news(seen[n], c)}),
                       np.int64)  # fmt: skip
        table = arrow.table(frame.columns)
        if len(new):
            rare.append(table.take(arrow.array(new)))
            rare_numbers += (new + rows).tolist()
        own = generator.random(frame.rows)
        # Rows that would be dropped at once are not copied.
        worth = np.flatnonzero(own < (keys.max() if len(keys) >= sample else 1.0))
        keys = np.concatenate([keys, own[worth]])
        numbers = np.concatenate([numbers, worth + rows])
        some = table.take(arrow.array(worth))
        kept = some if kept is None else _joined([kept, some])
        if len(keys) > sample:
            chosen = np.sort(np.argsort(keys, kind="stable")[:sample])
            keys, numbers = keys[chosen], numbers[chosen]
            kept = kept.take(arrow.array(chosen)).combine_chunks()
        rows += frame.rows
    if rare:
        missed = ~np.isin(rare_numbers, numbers)
        whole = _joined(rare).take(arrow.array(np.flatnonzero(missed)))
        numbers = np.concatenate([numbers, np.array(rare_numbers)[missed]])
        order = np.argsort(numbers, kind="stable")
        kept = _joined([kept, whole]).take(arrow.array(order))
    found = as_frame(kept.combine_chunks(), files.addresses[0])
    counters = tuple(n for n, s in seen.items() if _counts(s, rows, found.columns[n]))
    return Look(rows, found, counters if rows > sample else ())


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
        ends = compute.min_max(column).as_py()
        if seen.low is None or ends["min"] < seen.low:
            seen.low = ends["min"]
            found.append(_place(column, seen.low))
        if seen.high is None or ends["max"] > seen.high:
            seen.high = ends["max"]
            found.append(_place(column, seen.high))
    if seen.values is None:
        return found
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
    whole = isinstance(seen.low, int) or (isinstance(seen.low, float) and seen.low.is_integer())
    if not whole or isinstance(seen.low, bool) or seen.gap or seen.high - seen.low != rows - 1:
        return False
    return len(sample.unique()) == len(sample)


def _joined(tables: list[Any]) -> Any:
    return load_pyarrow().concat_tables(tables, promote_options="permissive")
