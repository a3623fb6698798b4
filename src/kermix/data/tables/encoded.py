"""Rows of a table as codes and numbers."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["EncodedTable"]


@dataclass(frozen=True, eq=False)
class EncodedTable:
    """Rows as codes and numbers.

    Attributes:
        codes: int64, (rows, modelled columns). Codes of a column are `0 ... code_count - 1`. For a
            number or a time, 0 is its continuous part and the next codes are its atoms; for a
            category, each value has a code. The last code is "missing", if the column has missing
            values. -1 means that a cell is unknown (see `Schema.encode`).
        values: float64, (rows, numbers and times). Normal scores where the code is 0, and 0
            elsewhere.
        frame: The caller's kind of table, which `Schema.decode` returns.
    """

    codes: np.ndarray
    values: np.ndarray
    frame: str = "pandas"

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: Any) -> "EncodedTable":
        """Some of the rows, by a slice, a mask or numbers."""
        return replace(self, codes=self.codes[rows], values=self.values[rows])

    def tensors(
        self, device: torch.device | str | None = None, dtype: torch.dtype = torch.float32
    ) -> tuple[Tensor, Tensor]:
        """Codes and values as tensors."""
        codes = torch.from_numpy(np.ascontiguousarray(self.codes))
        values = torch.from_numpy(np.ascontiguousarray(self.values))
        return codes.to(device), values.to(device, dtype)
