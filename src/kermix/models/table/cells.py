"""From the cells of a caller's table to what the network takes and draws, and back."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kermix.data.tables.frame_building import build_frame
from kermix.data.tables.frames import Frame, as_frame
from kermix.data.tables.left_out import LeftOutColumn
from kermix.data.tables.schema import EncodedTable, Schema, Unseen
from kermix.errors import OptionError
from kermix.models.table.given import encode_some, is_one_row, numbers_as_given
from kermix.models.table.layout import TableLayout
from kermix.models.table.links import equalize, with_link_codes
from kermix.models.table.twins import check_twins, copy_twins, same_cells

__all__ = ["Cells", "TableCells", "place_of"]

Cells = tuple[Tensor, Tensor, Tensor]  # codes, values, and which columns are seen


def place_of(schema: Schema, name: str) -> int:
    """The place of a column among those that are modelled."""
    names = [column.name for column in schema.modelled]
    if name not in names:
        raise OptionError(f"Column {name!r} is not modelled; there are {', '.join(names)}.")
    return names.index(name)


@dataclass(frozen=True)
class TableCells:
    """Cells of tables that have the columns of a model.

    Attributes:
        schema: What the columns are.
        layout: How the network holds them.
        device: Where the network is.
    """

    schema: Schema
    layout: TableLayout
    device: torch.device

    def tensors(self, frame: Frame, encoded: EncodedTable) -> Cells:
        """Codes and numbers of a table, and which of them are known."""
        linked = with_link_codes(self.schema, self.layout.links, frame, encoded)
        codes, values = linked.tensors(self.device)
        return codes.clamp(min=0), values, codes >= 0

    def given(
        self,
        given: Any,
        rows: int | None,
        unseen: Unseen = "error",
        inside: bool = False,
        without: int | None = None,
    ) -> Cells:
        """What is given of each row.

        Args:
            given: Values of some columns by name, a table of them, or None.
            rows: How many rows there are; None for as many as are given.
            unseen: As for `kermix.Schema.encode`.
            inside: Whether numbers outside the range of their columns are refused.
            without: The place of a column whose values do not count, nor those of columns that
                are equal to it in all rows.
        """
        if given is None or (isinstance(given, Mapping) and not given):
            count = 1 if rows is None else rows
            codes = torch.zeros(count, self.layout.columns, dtype=torch.long, device=self.device)
            values = torch.zeros(count, len(self.layout.numbers), device=self.device)
            return codes, values, torch.zeros_like(codes, dtype=torch.bool)
        if is_one_row(given):
            given = {name: [value] for name, value in given.items()}
        # What is equal in all rows would be the answer itself.
        open_ones = [] if without is None else self.layout.twins_of(without)
        names = [self.schema.modelled[k].name for k in open_ones]
        encoded, frame = encode_some(self.schema, given, unseen, inside, names)
        check_twins(self.schema, self.layout.twins, frame, encoded)
        if rows is not None and len(encoded) not in (1, rows):
            raise OptionError(
                f"given has {len(encoded)} rows for {rows} samples; give 1 or {rows}."
            )
        codes, values, seen = self.tensors(frame, encoded)
        copy_twins(self.layout.twins, self.layout.number_of_column, codes, values, seen)
        if rows is not None and len(codes) != rows:
            codes, values, seen = (t.expand(rows, -1) for t in (codes, values, seen))
        return codes.contiguous(), values.contiguous(), seen.clone()

    def table(
        self, codes: Tensor, values: Tensor, seen: Tensor, kind: str, given: Any = None,
        seed: int | None = 0,
    ) -> Any:  # fmt: skip
        """Rows that were drawn, as a table of one of the kinds of `build_frame`.

        Args:
            codes: Codes of all columns.
            values: Normal scores of the numbers.
            seen: Which cells were given.
            kind: The kind of table.
            given: What was given of each row: numbers are written to the last digit as they were.
            seed: Of the keys; None for a table of what is modelled alone.
        """
        arrays = self.schema.decoded_columns(self.layout.encoded(codes, values, kind), seed)
        arrays |= numbers_as_given(self.schema, given, arrays, len(codes), self.layout.twins)
        types = {c.name: c.type for c in self.schema.columns if c.name in arrays}
        return build_frame(kind, self._equal(arrays, codes, seen), types, len(codes))

    def as_written(self, codes: Tensor, values: Tensor, seen: Tensor) -> EncodedTable:
        """Rows as a reader of the table finds them: rounded, and with equal columns equal."""
        table = as_frame(self.table(codes, values, seen, "arrow", seed=None), "samples")
        types = {c.name: c.type for c in self.schema.columns}
        return self.schema.encode(replace(table, types=types), extra=True)

    def filled(
        self, frame: Frame, chosen: Sequence[str], codes: Tensor, values: Tensor, seen: Tensor
    ) -> Any:
        """The caller's table, of which the gaps of some columns alone are filled."""
        from pyarrow import compute

        encoded = self.layout.encoded(codes, values, "arrow")
        columns, types = dict(frame.columns), dict(frame.types)
        constants = [*self._constants(frame)]
        arrays = self.schema.decoded_columns(encoded, None)
        arrays |= {c.name: c.decode(len(codes), 0) for c in constants}
        for column in (*self.schema.modelled, *constants):
            cells, found = columns[column.name], arrays[column.name]
            if cells.null_count == len(cells):
                columns[column.name], types[column.name] = found, column.type
            elif cells.null_count:
                whole = cells.combine_chunks()
                wide = found.cast(whole.type, safe=False)
                columns[column.name] = compute.if_else(whole.is_null(), wide, whole)
        columns = self._equal(columns, codes, seen)
        for name in columns.keys() - set(chosen):
            columns[name], types[name] = frame.columns[name], frame.types[name]
        return build_frame(frame.kind, columns, types, frame.rows)

    def _constants(self, frame: Frame) -> Iterator[LeftOutColumn]:
        """Constants of the model that are constants of the table, too."""
        for column in self.schema.left_out:
            if column.what == "constant" and column.is_constant_in(frame):
                yield column

    def _equal(self, arrays: dict[str, Any], codes: Tensor, seen: Tensor) -> dict[str, Any]:
        base = self.layout.table_columns
        own, given = codes[:, base:].cpu().numpy(), seen[:, :base].cpu().numpy()
        found = equalize(self.schema, self.layout.links, arrays, own, given)
        return same_cells(self.schema, self.layout.twins, found, given)
