"""How the codes and numbers of a table lie in the inputs and outputs of a network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.data.tables.schema import EncodedTable, Schema
from kermix.models.table.anchors import anchor_places
from kermix.models.table.links import Link, linked

__all__ = ["TableLayout"]


@dataclass(frozen=True)
class TableLayout:
    """Codes of all columns in one row, column after column.

    Attributes:
        counts: Codes of each column.
        numbers: Which columns have a continuous part: code 0 says that the number counts.
        positions: Where on the scale of normal scores each code lies, if anywhere, else 0.
        links: Columns that are often equal. Whether they are is a column of two codes each, after
            those of the table.
        anchors: For each number, others that its mixture moves with, or -1; empty if there are
            none at all.
        in_order: Whether rows are drawn column after column, rather than each in an order of its
            own.

    Example:
        >>> layout = TableLayout((2, 3), (1,), (0.0, 0.0, 0.0, -1.0, 1.0))
        >>> layout.offsets.tolist(), layout.segments.tolist()
        ([0, 2], [0, 0, 1, 1, 1])
    """

    counts: tuple[int, ...]
    numbers: tuple[int, ...]
    positions: tuple[float, ...]
    links: tuple[Link, ...] = ()
    anchors: tuple[tuple[int, ...], ...] = ()
    in_order: bool = False

    @classmethod
    def of(
        cls,
        schema: Schema,
        equal: Sequence[tuple[str, str]] = (),
        anchors: Sequence[Sequence[str]] = (),
        in_order: bool = True,
    ) -> "TableLayout":
        """The layout of a schema's columns.

        Args:
            schema: What the columns are.
            equal: Pairs that are often equal.
            anchors: For each number, the names of those that it follows closely.
            in_order: Whether rows are drawn column after column.
        """
        counts, numbers = schema.code_counts, tuple(int(k) for k in schema.number_columns)
        places = []
        for k, count in enumerate(counts):
            found = np.zeros(count)
            if k in numbers:
                codes = np.arange(count)
                found = schema.numbers[numbers.index(k)].positions(codes, np.zeros(count))
            places.append(found)
        links = linked(schema, equal)
        places.append(np.zeros(2 * len(links)))
        counts = (*counts, *(2,) * len(links))
        positions = tuple(np.concatenate(places).tolist())
        return cls(counts, numbers, positions, links, anchor_places(schema, anchors), in_order)

    def relations(self, schema: Schema) -> dict[str, Any]:
        """What :meth:`with_relations` needs besides the schema, as plain names."""
        columns = [column.name for column in schema.modelled]
        numbers = [column.name for column in schema.numbers]
        return {
            "equal": [(columns[link.first], columns[link.second]) for link in self.links],
            "anchors": [[numbers[k] for k in row if k >= 0] for row in self.anchors],
            "in_order": self.in_order,
        }

    @classmethod
    def with_relations(cls, schema: Schema, content: Mapping[str, Any]) -> "TableLayout":
        """The layout of a model that was saved; older ones say nothing of relations."""
        return cls.of(
            schema, content.get("equal", ()), content.get("anchors", ()),
            content.get("in_order", False),
        )  # fmt: skip

    @property
    def columns(self) -> int:
        """Columns that the network models, links among them."""
        return len(self.counts)

    @property
    def table_columns(self) -> int:
        """Columns of the table."""
        return len(self.counts) - len(self.links)

    @property
    def total(self) -> int:
        """Codes of all columns together."""
        return sum(self.counts)

    @cached_property
    def offsets(self) -> Tensor:  # (D,)
        """Where the codes of each column begin."""
        return torch.tensor([0, *self.counts[:-1]]).cumsum(0)

    @cached_property
    def segments(self) -> Tensor:  # (T,)
        """The column of each code."""
        return torch.repeat_interleave(torch.tensor(self.counts))

    @cached_property
    def number_of_column(self) -> Tensor:  # (D,)
        """Which number a column has, or -1."""
        found = torch.full((self.columns,), -1)
        found[list(self.numbers)] = torch.arange(len(self.numbers))
        return found

    def encoded(self, codes: Tensor, values: Tensor, frame: str) -> EncodedTable:
        """Tensors as a table that a schema decodes."""
        own = codes[:, : self.table_columns]
        return EncodedTable(own.cpu().numpy(), values.double().cpu().numpy(), frame)
