"""The table of a run: read, looked at, kept beside the run, and recognized again."""

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.frames import Frame, taken_rows
from kermix.data.tables.schema import EncodedTable, Schema
from kermix.data.tables.writing import WRITABLE, table_writer
from kermix.models.table.anchors import find_anchors
from kermix.models.table.layout import TableLayout
from kermix.models.table.links import find_links, link_notes, with_link_codes

__all__ = ["TableData", "fingerprint", "form_of", "keep_frame", "rows_of"]


class TableData(NamedTuple):
    """A table, what its columns are, and its rows as codes and numbers.

    Attributes:
        frame: The table.
        schema: What its columns are.
        encoded: Its rows.
        layout: How they lie in a network.
    """

    frame: Frame
    schema: Schema
    encoded: EncodedTable
    layout: TableLayout

    @classmethod
    def of(
        cls,
        frame: Frame,
        schema: Schema,
        layout: TableLayout | None = None,
    ) -> "TableData":
        """A table that matches a schema.

        Args:
            frame: The table.
            schema: What its columns are.
            layout: How columns lie in the network and depend on each other; looked for, if it is
                not given.
        """
        encoded = schema.encode(frame, name=frame.name, extra=True)
        if layout is None:
            equal = find_links(schema, frame, encoded.codes)
            layout = TableLayout.of(schema, equal, find_anchors(schema, encoded))
        return cls(frame, schema, encoded, layout)

    @property
    def linked(self) -> EncodedTable:
        """Rows with the codes of the links."""
        return with_link_codes(self.schema, self.layout.links, self.frame, self.encoded)

    def link_notes(self) -> list[str]:
        """What is said about columns that are often equal."""
        codes = self.linked.codes[:, self.layout.table_columns :]
        return link_notes(self.schema, self.layout.links, codes)


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
