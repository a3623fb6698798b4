"""A random sample of the rows of files: of everything if that is little, else of random pieces."""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

import numpy as np

from kermix.data.tables.batches import Files, Part
from kermix.errors import SampleError

__all__ = ["order_of_rows", "sampled"]

SAMPLE = 20_000
PIECES = 32
READ_WHOLE_BELOW = 2**25  # bytes of files of which a sample may be drawn by reading all of them
FEW_ROWS = 100

Rows = TypeVar("Rows")


def order_of_rows(seed: int) -> np.random.Generator:
    """Random numbers that say which rows are drawn.

    They are those of a child of the seed: a table made with the same seed may hold the others, and
    its rows would be drawn by the values in them.
    """
    return np.random.default_rng(seed).spawn(1)[0]


def sampled(
    files: Files,
    generator: np.random.Generator,
    rows_of: Callable[[Part], Iterable[Rows]],
    join: Callable[[list[Rows]], Rows],
    take: Callable[[Rows, np.ndarray], Rows],
) -> Rows:
    """Rows drawn at random: at most half of all, unless these are few. Tests leave them out.

    Args:
        files: Where from.
        generator: Of random numbers.
        rows_of: Some rows of a part after the other.
        join: Puts rows together.
        take: Rows by their numbers.
    """
    if files.size <= READ_WHOLE_BELOW:
        whole: Reservoir[Rows] = Reservoir(SAMPLE, generator, join, take)
        for part in files.parts:
            for rows in rows_of(part):
                whole.add(rows)
        found = [whole.drawn(few=FEW_ROWS)]
        seen = whole.seen
    else:
        sizes = np.array([part.size for part in files.parts], dtype=float)
        drawn = generator.choice(len(sizes), PIECES, p=sizes / sizes.sum())
        # A part that cannot be divided, drawn several times, is read once.
        pieces = Counter(files.parts[k].piece(generator) for k in drawn)
        found, seen = [], 0
        for piece, times in pieces.items():
            some: Reservoir[Rows] = Reservoir(times * -(-SAMPLE // PIECES), generator, join, take)
            for rows in rows_of(piece):
                some.add(rows)
            seen += some.seen
            found.append(some.drawn())
    kept = [rows for rows in found if rows is not None]
    if not kept:
        raise SampleError(f"{files.addresses[0]}: no complete row was found among {seen}.")
    return join(kept)


class Reservoir(Generic[Rows]):
    """The rows with the smallest random keys among all that it has seen."""

    def __init__(
        self,
        count: int,
        generator: np.random.Generator,
        join: Callable[[list[Rows]], Rows],
        take: Callable[[Rows, np.ndarray], Rows],
    ) -> None:
        self.count, self.generator, self.join, self.take = count, generator, join, take
        self.rows: Rows | None = None
        self.keys = np.empty(0)
        self.seen = 0

    def add(self, rows: Rows) -> None:
        """See some more rows."""
        keys = self.generator.random(len(rows))  # type: ignore[arg-type]
        self.seen += len(keys)
        if not len(keys):
            return
        joined = rows if self.rows is None else self.join([self.rows, rows])
        keys = np.concatenate([self.keys, keys])
        order = keys.argsort()[: self.count]
        self.rows, self.keys = self.take(joined, order), keys[order]

    def drawn(self, few: int = 0) -> Rows | None:
        """What was kept, in random order: all if few were seen, else at most half."""
        if self.rows is None or self.seen < few:
            return self.rows
        return self.take(self.rows, np.arange(min(len(self.keys), max(1, self.seen // 2))))
