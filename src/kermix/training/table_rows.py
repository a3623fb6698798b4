"""The rows that a table network is trained with: in memory, or in a file."""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.tables.row_store import RowStore

__all__ = ["LARGEST_SHUFFLE", "OtherRows", "StoredRows", "TableRows", "split_rows"]

LARGEST_SHUFFLE = 2**20  # rows; beyond, an order of all of them would be what memory is full of


class TableRows(NamedTuple):
    """Rows of a table as tensors."""

    codes: Tensor  # (N, D), int64
    values: Tensor  # (N, Q), float32
    weights: Tensor | None = None  # (N,)

    @property
    def rows(self) -> int:
        """How many there are."""
        return len(self.codes)

    @property
    def device(self) -> torch.device:
        """Where their numbers are asked for."""
        return self.codes.device

    def to(self, device: torch.device) -> "TableRows":
        """The same on a device."""
        moved = None if self.weights is None else self.weights.to(device)
        return TableRows(self.codes.to(device), self.values.to(device), moved)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and values of the rows with these numbers."""
        return self.codes[rows], self.values[rows]


@dataclass(frozen=True)
class StoredRows:
    """Rows of a file, of which only those of a step are in memory."""

    store: RowStore
    to_device: str | torch.device = "cpu"
    weights: ClassVar[None] = None

    @property
    def device(self) -> torch.device:
        """Numbers of rows are drawn where the file is read: nothing waits for a GPU."""
        return torch.device("cpu")

    @property
    def rows(self) -> int:
        """How many there are."""
        return self.store.rows

    def to(self, device: torch.device) -> "StoredRows":
        """The same, whose rows are brought to a device."""
        return replace(self, to_device=device)

    def take(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Codes and values of the rows with these numbers, read from the file."""
        codes, values = self.store.take(rows.numpy())
        return (torch.from_numpy(codes).to(self.to_device),
                torch.from_numpy(values).to(self.to_device))  # fmt: skip


class OtherRows:
    """Numbers of all rows but a few, without a list of them.

    Args:
        rows: How many rows there are.
        left_out: Numbers of those that are not meant.

    Example:
        >>> others = OtherRows(6, torch.tensor([4, 1]))
        >>> len(others), others[torch.arange(4)].tolist()
        (4, [0, 2, 3, 5])
    """

    def __init__(self, rows: int, left_out: Tensor) -> None:
        self._count, self._left_out = rows - len(left_out), left_out
        # The k-th of the others has so many left out before it as are at most k here.
        self._steps = left_out.sort().values - torch.arange(len(left_out), device=left_out.device)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, places: Tensor) -> Tensor:
        return places + torch.searchsorted(self._steps, places, right=True)

    def to(self, device: torch.device) -> "OtherRows":
        """The same on a device."""
        return OtherRows(self._count + len(self._left_out), self._left_out.to(device))


def split_rows(rows: int, held: int, seed: int) -> tuple[Tensor, "Tensor | OtherRows"]:
    """Numbers of some rows that are held out, at random, and of the others."""
    if rows <= LARGEST_SHUFFLE:
        order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed))
        return order[:held], order[held:]
    drawn = np.random.default_rng(seed).choice(rows, held, replace=False)
    chosen = torch.from_numpy(drawn.astype(np.int64))
    return chosen, OtherRows(rows, chosen)
