"""Singular functions of the kernel between tables, or within one."""

from typing import NamedTuple

import torch
from torch import Tensor

from kermix.comparison.sources import Sources
from kermix.errors import OptionError
from kermix.kernels.gaussian import bandwidth
from kermix.kernels.mixed import mixed_kernel
from kermix.spectrum import Decomposition, decompose

__all__ = ["TableSpectrum", "decompose_tables"]

SHARE_OF_MEDIAN = 10  # finer than what two-sample tests need, to show detail


class TableSpectrum(NamedTuple):
    """A decomposition, and what it is of.

    Attributes:
        result: The singular functions.
        names: Of the tables.
        sets: Rows of each that were used.
        variance: Of the kernel.
        notes: What was left out or chosen.
    """

    result: Decomposition
    names: list[str]
    sets: list[Tensor]
    variance: float | list[float]
    notes: list[str]


def decompose_tables(
    read: Sources,
    variance: float | list[float] | None = None,
    rank: int = 6,
    max_points: int = 4000,
    seed: int = 0,
) -> TableSpectrum:
    """Decompose the kernel within one table, or between two.

    Args:
        read: One table or two, as numbers and codes.
        variance: Of the kernel; by default a tenth of the median heuristic.
        rank: How many singular functions, at most as many as there are rows.
        max_points: How many rows of each to use, drawn at random.
        seed: For drawing them.
    """
    if max_points < 1:
        raise OptionError(f"max_points={max_points}: must be at least 1.")
    layout = None if read.mixed is None else read.mixed.layout
    generator = torch.Generator().manual_seed(seed)
    sets, notes = [], list(read.notes)
    for table in read.tables:
        values = table.values
        if len(table) > max_points:
            values = values[torch.randperm(len(table), generator=generator)[:max_points]]
            notes.append(
                f"{table.name}: using {max_points} of {len(table)} rows, drawn at random."
            )
        sets.append(values)
    if variance is None:
        variance = float(bandwidth(torch.cat(sets), layout=layout)) / SHARE_OF_MEDIAN
        notes.append(f"Variance {variance:.4g}: a tenth of the median heuristic.")
    kernel = mixed_kernel(sets[0], layout, variance)
    other = sets[1] if len(sets) > 1 else None
    result = decompose(sets[0], other, kernel, rank=min(rank, *(len(s) for s in sets)))
    return TableSpectrum(result, [t.name for t in read.tables], sets, variance, notes)
