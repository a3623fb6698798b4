"""The rows that a table network is trained with: in memory, or in a file of encoded rows.

Tables that memory does not hold are trained from the file, row by row.
"""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.schema.schema import EncodedTable
from kermix.errors import RunError
from kermix.files import whole_file
from kermix.tables.model.table_settings import TableModelSettings

__all__ = [
    "LARGEST_SHUFFLE",
    "OtherRows",
    "RowStore",
    "StoreWriter",
    "StoredRows",
    "TableRows",
    "split_rows",
    "table_split",
]

NARROW = 2**15  # codes that two bytes hold


@dataclass(frozen=True)
class RowStore:
    """A file of rows of equal size: codes of two or four bytes, then scores of four.

    Attributes:
        path: The file.
        rows: How many rows there are.
        columns: Codes of a row.
        numbers: Scores of a row.
        wide: Whether a code has four bytes.

    Example:
        >>> import tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with RowStore.writing(Path(folder.name) / "rows.bin", (3,), 1) as writer:
        ...     writer.write(EncodedTable(np.array([[1], [2]]), np.array([[0.5], [0.25]])))
        >>> codes, values = writer.store.take(np.array([1, 0, 1]))
        >>> codes[:, 0].tolist(), values[:, 0].tolist()
        ([2, 1, 2], [0.25, 0.5, 0.25])
        >>> folder.cleanup()
    """

    path: Path
    rows: int
    columns: int
    numbers: int
    wide: bool

    @classmethod
    @contextmanager
    def writing(cls, path: Path, counts: tuple[int, ...], numbers: int) -> Iterator["StoreWriter"]:
        """A writer of a new file, which is there once all is written.

        Args:
            path: Where.
            counts: How many codes each column has.
            numbers: Scores of a row.
        """
        wide = max(counts, default=0) > NARROW
        writer = StoreWriter(cls(path, 0, len(counts), numbers, wide))
        with whole_file(path) as part, part.open("wb") as writer.file:
            yield writer

    @property
    def form(self) -> np.dtype:
        """A row."""
        code = "<i4" if self.wide else "<i2"
        return np.dtype([("codes", code, (self.columns,)), ("values", "<f4", (self.numbers,))])

    def take(self, rows: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
        """Codes, int64, and scores, float32, of the rows with these numbers."""
        try:
            # Mapped anew each time: pages that were looked at do not stay in memory.
            mapped = np.memmap(self.path, self.form, "r", shape=(self.rows,))
        except (OSError, ValueError) as error:
            raise RunError(f"{self.path}: the rows of the run cannot be read ({error}).") from None
        some = np.array(mapped[rows])
        return some["codes"].astype(np.int64), np.ascontiguousarray(some["values"])

    def blocks(self, size: int = 2**18) -> Iterator[EncodedTable]:
        """All rows, some hundred thousand at a time."""
        for start in range(0, self.rows, size):
            codes, values = self.take(slice(start, start + size))
            yield EncodedTable(codes, values.astype(np.float64), "arrow")

    def fingerprint(self) -> str:
        """What tells whether the rows have changed."""
        digest = hashlib.sha256(str((self.rows, self.form)).encode())
        try:
            with self.path.open("rb") as file:
                while block := file.read(2**22):
                    digest.update(block)
        except OSError as error:
            raise RunError(f"{self.path}: cannot be read ({error.strerror}).") from None
        return digest.hexdigest()[:16]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, but for where it is."""
        return {name: value for name, value in asdict(self).items() if name != "path"}


class StoreWriter:
    """Adds rows to a new file."""

    file: Any

    def __init__(self, store: RowStore) -> None:
        self.store = store

    def write(self, encoded: EncodedTable) -> None:
        """Add some rows."""
        content = np.empty(len(encoded), self.store.form)
        content["codes"], content["values"] = encoded.codes, encoded.values
        content.tofile(self.file)
        known = self.store
        self.store = RowStore(
            known.path, known.rows + len(encoded), known.columns, known.numbers, known.wide
        )


# Reasoned, no record.
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


def table_split(rows: int, settings: TableModelSettings) -> tuple[Tensor, Tensor | OtherRows]:
    """Numbers of the rows that are held out, and of those to train with.

    None is held out by all members where each row is learned by some.
    """
    held = 0 if settings.is_out_of_fold(rows) else settings.held_out_rows(rows)
    return split_rows(rows, held, settings.seed)
