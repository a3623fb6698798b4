"""Sums over the parts of files, wherever they are computed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from kermix.data.tables.batches import Batch, Part
from kermix.data.tables.mixed_rows import MixedRows
from kermix.sketches.accumulation import FeatureSums, NystromSums, apart, no_sums
from kermix.sketches.features import NystromFeatures
from kermix.sketches.sketch import both

__all__ = ["PartSums", "Tick", "absolute", "mixed_batches", "sketch_part"]

Tick: TypeAlias = Callable[[int], None]


class PartSums(NamedTuple):
    """What is known of one part, or of several."""

    sums: FeatureSums
    apart: FeatureSums | None  # over the rows that the map was chosen from
    counts: dict[str, tuple[int, int]]  # rows and dropped rows by file

    @property
    def dropped(self) -> int:
        """Rows with missing values, which were left out."""
        return sum(dropped for _, dropped in self.counts.values())

    def plus(self, other: "PartSums") -> "PartSums":
        """Both together."""
        counts = dict(self.counts)
        for name, (rows, dropped) in other.counts.items():
            before = counts.get(name, (0, 0))
            counts[name] = (before[0] + rows, before[1] + dropped)
        return PartSums(self.sums.plus(other.sums), both(self.apart, other.apart), counts)


def sketch_part(
    part: Part,
    features: NystromFeatures,
    tick: Tick = lambda size: None,
    maker: MixedRows | None = None,
) -> PartSums:
    """Sums over the rows of one part of a file, which `maker` makes of a typed table."""
    accumulate = NystromSums(features)
    sums = no_sums(features)
    held = None if features.chosen_from is None else sums
    dropped = 0
    for batch in part.batches() if maker is None else mixed_batches(part, maker):
        rows = torch.from_numpy(np.ascontiguousarray(batch.values)).double()
        sums = sums.plus(accumulate(rows))
        held = both(held, apart(features, rows, None))
        dropped += batch.dropped
        tick(batch.size)
    return PartSums(sums, held, {part.address: (int(sums.total), dropped)})


def mixed_batches(part: Part, maker: MixedRows) -> Iterator[Batch]:
    """Mixed rows of a part; a value that the schema does not know is "unknown", a code."""
    for table, size in part.tables():
        encoded = maker.schema.encode(table, unseen="unknown", name=part.address, extra=True)
        yield Batch(maker(encoded).numpy(), 0, size)


def absolute(part: Part) -> Part:
    """The part with an address that other processes understand."""
    if "://" in part.address:
        return part
    return replace(part, address=str(Path(part.address).absolute()))
