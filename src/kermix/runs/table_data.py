"""The table of a run: read, looked at, kept beside the run, and recognized again."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.tables.closeness import copies
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.frames import Frame, taken_rows
from kermix.data.tables.row_store import RowStore
from kermix.data.tables.schema import EncodedTable, Schema
from kermix.data.tables.writing import WRITABLE, table_writer
from kermix.models.table.layout import TableLayout
from kermix.models.table.links import find_links, link_notes, with_link_codes
from kermix.models.table.twins import find_twins, twin_notes
from kermix.training.table_rows import StoredRows, TableRows
from kermix.training.table_settings import TableModelSettings, table_split

__all__ = ["TableData", "fingerprint", "form_of", "keep_frame", "rows_of"]


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
                not given.
            whole: Whether the table has all rows, so that columns may be known to be equal in all.
        """
        encoded = schema.encode(frame, name=frame.name, extra=True)
        if layout is None:
            same = find_twins(schema, encoded) if whole else ()
            equal = find_links(schema, frame, encoded.codes, [b for _, b in same])
            layout = TableLayout.found(schema, encoded, equal, same)
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
        return with_link_codes(self.schema, self.layout.links, self.frame, self.encoded)

    def link_notes(self) -> list[str]:
        """What is said about columns that are always or often equal."""
        codes = self.linked.codes[:, self.layout.table_columns :]
        return [*twin_notes(self.schema, self.layout.twins),
                *link_notes(self.schema, self.layout.links, codes)]  # fmt: skip


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
    digest = hashlib.sha256(str(encoded.codes.shape).encode())
    for part in (encoded.codes, encoded.values):
        digest.update(np.ascontiguousarray(part).tobytes())
    return digest.hexdigest()[:16]
