"""The gaps of a caller's table: which are filled, and which stay because there is no value."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from kermix.data.tables.columns import UNKNOWN
from kermix.data.tables.encoded import EncodedTable
from kermix.data.tables.frames import Frame
from kermix.models.table.absences import Absence, where_absent
from kermix.models.table.cells import Cells, TableCells
from kermix.models.table.drawing import complete
from kermix.models.table.network import TableNetwork

__all__ = ["Gaps"]


class Gaps:
    """Empty cells of a table.

    Where a column has no value is judged on the row as it will be: "empty unless status is
    hurricane" by the status that is filled in, if that was a gap too, and "empty where wind is"
    only if wind stays empty.

    Args:
        cells: What the columns of the model are.
        frame: The table.
        absences: Where columns have no value.
    """

    def __init__(self, cells: TableCells, frame: Frame, absences: Sequence[Absence]) -> None:
        self._cells, self._frame, self._absences = cells, frame, absences
        columns = cells.schema.modelled
        self._encoded = cells.schema.encode(frame, unseen="unknown", extra=True)
        self._missing = np.array([UNKNOWN if c.missing_code is None else c.missing_code
                                  for c in columns], np.int64)  # fmt: skip
        self._empty = np.stack(
            [np.asarray(frame.columns[c.name].is_null().to_numpy()) for c in columns], 1
        )
        ruled = np.zeros(len(columns), bool)
        ruled[[absence.place for absence in absences]] = True
        self._stays, before = self._empty & ruled, -1
        # Of columns that are empty together none is the first: all stay, or none does.
        while self._stays.sum() != before:
            before = self._stays.sum()
            self._stays &= self._absent(self._encoded, self._filled)

    @property
    def _filled(self) -> np.ndarray:  # (N, D), bool
        """Gaps that are filled, as far as other cells tell that are no gaps."""
        return self._empty & ~self._stays

    def _absent(self, encoded: EncodedTable, unknown: np.ndarray) -> np.ndarray:  # (N, D)
        codes = np.where(unknown, UNKNOWN, encoded.codes)
        return where_absent(self._cells.schema, self._absences, replace(encoded, codes=codes))

    @property
    def missing_codes(self) -> Tensor:  # (T,), bool
        """Codes that are never drawn."""
        layout = self._cells.layout
        codes = torch.zeros(layout.total, dtype=torch.bool, device=self._cells.device)
        for k, code in enumerate(self._missing):
            if code != UNKNOWN:
                codes[int(layout.offsets[k]) + int(code)] = True
        return codes

    def given(self) -> Cells:
        """What is known of each row; that there is no value is known as well."""
        codes = np.where(self._filled, UNKNOWN, self._encoded.codes)
        return self._cells.tensors(self._frame, replace(self._encoded, codes=codes))

    def drawn(self, network: TableNetwork, generator: torch.Generator) -> Cells:
        """The same, with cells drawn that tell whether others in their row have a value.

        A category drawn first would make a hurricane of every storm whose status is a gap.
        """
        codes, values, seen = self.given()
        telling = self._telling()
        at = torch.from_numpy(np.flatnonzero(telling.any(1))).to(codes.device)
        if not len(at):
            return codes, values, seen
        width = telling.shape[1]
        own = torch.from_numpy(telling).to(codes.device)
        drawn, numbers = complete(network, codes[at], values[at], seen[at], generator)
        codes[at, :width] = torch.where(own[at], drawn[:, :width], codes[at, :width])
        values[at] = torch.where(
            seen[at][:, list(self._cells.layout.numbers)], values[at], numbers
        )
        own &= codes[:, :width] != torch.from_numpy(self._missing).to(codes)
        seen[:, :width] |= own
        absent = torch.from_numpy(self._settled(codes, values, own.cpu().numpy()))
        absent = absent.to(codes.device)
        seen[:, :width] |= absent
        return self._emptied(codes, absent), values, seen

    def settled(self, codes: Tensor, values: Tensor, seen: Tensor) -> Cells:
        """Completed rows, of which cells without a value are empty again."""
        absent = torch.from_numpy(self._settled(codes, values, self._filled)).to(codes.device)
        seen = seen.clone()
        seen[:, : absent.shape[1]] |= absent
        return self._emptied(codes, absent), values, seen

    def _telling(self) -> np.ndarray:  # (N, D), bool
        """Cells to be filled by which it is decided whether others are."""
        filled = self._filled
        telling = np.zeros_like(filled)
        for absence in self._absences:
            for place in absence.places:
                telling[:, place] |= filled[:, absence.place] & filled[:, place]
        return telling

    def _settled(self, codes: Tensor, values: Tensor, new: np.ndarray) -> np.ndarray:
        """Which cells have no value, given new ones of some cells."""
        own, open_ = codes[:, : new.shape[1]].cpu().numpy(), self._filled
        known = np.where(new, own, np.where(open_, UNKNOWN, self._encoded.codes))
        numbers = new[:, list(self._cells.layout.numbers)]
        values_ = np.where(numbers, values.double().cpu().numpy(), self._encoded.values)
        rows = replace(self._encoded, codes=known.copy(), values=values_)
        positions = self._cells.schema.positions(rows)
        absent = np.zeros_like(open_)
        # One after the other: of two columns of which one is always empty, the other is filled.
        for _ in self._absences:
            before = absent.copy()
            for absence in self._absences:
                place = absence.place
                holds = absence.holds(self._cells.schema, rows, positions)
                absent[:, place] = open_[:, place] & holds
                rows.codes[:, place] = np.where(absent[:, place], self._missing[place],
                                                known[:, place])  # fmt: skip
            if (absent == before).all():
                break
        return self._stays | absent

    def _emptied(self, codes: Tensor, absent: Tensor) -> Tensor:
        codes, width = codes.clone(), absent.shape[1]
        missing = torch.from_numpy(self._missing).to(codes)
        codes[:, :width] = torch.where(absent, missing, codes[:, :width])
        return codes
