"""Encoded rows in a file: tables that memory does not hold are trained from it, row by row."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kermix.data.tables.encoded import EncodedTable
from kermix.errors import RunError
from kermix.files import whole_file

__all__ = ["RowStore", "StoreWriter"]

ROWS_AT_ONCE = 2**18  # that are looked at when all are
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

    def blocks(self) -> Iterator[EncodedTable]:
        """All rows, some hundred thousand at a time."""
        for start in range(0, self.rows, ROWS_AT_ONCE):
            codes, values = self.take(slice(start, start + ROWS_AT_ONCE))
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
