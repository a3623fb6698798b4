"""The rows that a table network is trained with, and how near other rows are to them.

Rows are in memory, or, where memory does not hold them, in a file of encoded rows, which is read
row by row. Samples may be copies of them, close to them, or kept away from them.
"""

import hashlib
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.checks import NUMBERS_AT_ONCE, rows_at_once
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.errors import OptionError, RunError
from kermix.files import whole_file
from kermix.tables.model.table_settings import TableModelSettings

__all__ = [
    "LARGEST_SHUFFLE",
    "KeepAway",
    "OtherRows",
    "RowStore",
    "StoreWriter",
    "StoredRows",
    "TableRows",
    "closest_distances",
    "copies",
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


def copies(rows: EncodedTable, others: EncodedTable) -> np.ndarray:  # (N,), bool
    """Which rows are among the others, to six decimals of their normal scores."""
    known = set(_keys(others))
    return np.array([key in known for key in _keys(rows)], bool)


def _keys(rows: EncodedTable) -> list[bytes]:
    values = np.round(rows.values, 6) + 0.0
    return [c.tobytes() + v.tobytes() for c, v in zip(rows.codes, values, strict=True)]


def closest_distances(
    schema: Schema,
    rows: EncodedTable,
    others: EncodedTable,
    ignored: Collection[str] = (),
    pairs_at_once: int = NUMBERS_AT_ONCE,
) -> np.ndarray:
    """The distance of each row to the closest of the others.

    The distance of two rows is the mean over columns of 0 or 1 for categories and gaps, and of the
    difference of normal scores for numbers; some columns may be ignored.

    Example:
        >>> table = {"a": list("xy") * 50, "b": np.arange(100.0) ** 2}
        >>> schema = Schema.infer(table)
        >>> encoded = schema.encode(table)
        >>> closest_distances(schema, encoded[:2], encoded[1:])[1]
        np.float32(0.0)
    """
    step = rows_at_once(len(others), pairs_at_once)
    found = [
        _closest(schema, rows[k : k + step], others, ignored) for k in range(0, len(rows), step)
    ]
    return np.concatenate(found) if found else np.empty(0, np.float32)


def _closest(
    schema: Schema, rows: EncodedTable, others: EncodedTable, ignored: Collection[str]
) -> np.ndarray:  # (N,)
    total = np.zeros((len(rows), len(others)), np.float32)
    places, there = (schema.positions(t).astype(np.float32) for t in (rows, others))
    number = {int(k): q for q, k in enumerate(schema.number_columns)}
    for k, column in enumerate(schema.modelled):
        if column.name in ignored:
            continue
        a, b = rows.codes[:, k], others.codes[:, k]
        if k not in number:
            total += a[:, None] != b
            continue
        q = number[k]
        apart = np.abs(places[:, q][:, None] - there[:, q])
        if column.missing_code is not None:
            gone = (a == column.missing_code)[:, None] != (b == column.missing_code)
            apart = np.where(gone, np.float32(1), apart)
        total += apart
    return np.asarray(total.min(1) / len(schema.modelled))


class KeepAway:
    """Rows that are drawn again until they are no copies of some rows, or far enough from them.

    Args:
        schema: What the columns are.
        against: The rows to keep away from: a table, or one that is encoded.
        deduplicate: Whether rows that equal one of them in all modelled columns are refused.
        min_distance: The distance (`closest_distances`) below which rows are refused.
    """

    def __init__(
        self,
        schema: Schema,
        against: Any,
        deduplicate: bool = False,
        min_distance: float | None = None,
    ) -> None:
        if against is None:
            raise OptionError(
                "deduplicate and min_distance need the rows to keep away from: against=table."
            )
        good = isinstance(min_distance, int | float) and 0 < min_distance < math.inf
        if min_distance is not None and (isinstance(min_distance, bool) or not good):
            raise OptionError(f"min_distance={min_distance!r} must be a positive number.")
        self.schema, self.deduplicate, self.min_distance = schema, deduplicate, min_distance
        if not isinstance(against, EncodedTable):
            # A value that the schema does not know cannot be drawn, and so not copied.
            against = schema.encode(against, unseen="unknown", name="against", extra=True)
        self.against = against
        self._known = set(_keys(against)) if deduplicate else set()

    def refused(self, rows: EncodedTable) -> np.ndarray:  # (N,), bool
        """Which rows are copies, or too near."""
        found = np.array([key in self._known for key in _keys(rows)], bool)
        if self.min_distance is not None and len(self.against):
            found |= closest_distances(self.schema, rows, self.against) < self.min_distance
        return found

    def settle(
        self,
        rows: int,
        draw: Callable[[np.ndarray], EncodedTable],
        on_rows: Callable[[int], None] | None = None,
        rounds: int = 50,
    ) -> None:
        """Draw rows, and those that are refused again, until none is.

        Args:
            rows: How many.
            draw: Draws the rows with these numbers anew, and returns them.
            on_rows: Called with the number of rows that have been accepted.
            rounds: In which rows that are refused are drawn again.
        """
        left = np.arange(rows)
        for _ in range(rounds):
            refused = self.refused(draw(left))
            if on_rows is not None:
                on_rows(int((~refused).sum()))
            left = left[refused]
            if not len(left):
                return
        told = [f"nearer than min_distance={self.min_distance:g}"] if self.min_distance else []
        told += ["copies"] if self.deduplicate else []
        raise OptionError(
            f"After {rounds} rounds {len(left)} of {rows} rows are still {' or '.join(told)} of "
            "the rows to keep away from: use a smaller distance, or condition on fewer values."
        )
