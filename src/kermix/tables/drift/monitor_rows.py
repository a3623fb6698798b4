"""What a drift monitor measures of rows: scores of each column, and features of kernels of all.

Batches are read as the reference was.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_samples
from kermix.data.readers.common import Reading, listed
from kermix.data.readers.reading import read_frame
from kermix.data.schema.mixed_rows import MixedRows
from kermix.data.schema.schema import Schema
from kermix.errors import SampleError, SchemaError, ShapeError
from kermix.kernels.distances import Layout
from kermix.sketches.features import NystromFeatures
from kermix.sketches.principal import features_at_two_scales
from kermix.tables.compare.column_changes import ComparedRows
from kermix.two_sample.column_scores import ColumnPlace, ColumnScores, MiddleRanks

__all__ = ["MonitorFeatures", "RowReader", "read_reference"]

# Reasoned, no record; results/bench/drift-monitor-cpu2.json measures what they give.
SCORES_OF_A_NUMBER = 4
MOST_SCORES = 256  # of all columns together, if that leaves each at least one
KERNEL_FEATURES, CANDIDATES = 32, 1000
LANDMARK_EVERY = 4  # landmarks are chosen among every fourth row of the reference
ROWS_OF_A_FEATURE = 16  # fewer rows have fewer kernel features
ROWS_AT_ONCE = 2**14  # sums depend on it


@dataclass(frozen=True)
class MonitorFeatures:
    """Features whose means tell whether rows are like those of the reference.

    Every part, a column or a kernel, has features of its own; its statistic is a weighted sum of
    the squares of their mean differences.

    Attributes:
        columns: Scores of each column.
        widths: How many of them are used.
        kernels: Features of all columns together, at a small and at a large variance.
        ranks: Among the reference, where rows are numbers as they were given; these kernels see
            normal scores.
        centre: Mean features of the reference, (q,).
        weights: Of the squares of each feature in each part's statistic, (q, parts); columns
            first.
    """

    columns: tuple[ColumnScores, ...]
    widths: tuple[int, ...]
    kernels: tuple[NystromFeatures, ...]
    ranks: MiddleRanks | None
    centre: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls, rows: Tensor, places: Sequence[ColumnPlace], layout: Layout | None
    ) -> "MonitorFeatures":
        """Features from the rows of the reference, (N, d), float64."""
        shares = rows.new_full((len(rows),), 1 / len(rows))
        columns = tuple(_seeing_what_is_new(ColumnScores.of(p, rows, shares), rows, shares)
                        for p in places)  # fmt: skip
        most = max(1, MOST_SCORES // max(1, len(places)))
        each = tuple(min(most, max(1, len(c.values)) if c.ranks is None else SCORES_OF_A_NUMBER)
                     for c in columns)  # fmt: skip
        ranks = MiddleRanks.of(rows, shares) if layout is None else None
        found = cls(columns, each, (), ranks, rows.new_zeros(0), rows.new_zeros(0, 0))
        points = found._points(rows)
        rank = max(2, min(KERNEL_FEATURES, len(rows) // ROWS_OF_A_FEATURE))
        kernels = features_at_two_scales(
            points, layout, rank, CANDIDATES, points[::LANDMARK_EVERY]
        )
        found = replace(found, kernels=kernels)
        parts = found._parts(rows[:1])
        weights = rows.new_zeros(sum(p.shape[1] for p in parts), len(parts))
        at = 0
        for k, part in enumerate(parts):
            width = part.shape[1]
            weights[at : at + width, k] = 1.0
            if k < len(columns) and columns[k].ranks is not None:
                # Places and spreads move more often than finer things.
                falling = 1 / torch.arange(1, each[k] + 1).to(weights)
                weights[at : at + each[k], k] = falling
            at += width
        return replace(found, centre=found.mean(rows), weights=weights)

    def __call__(self, rows: Tensor) -> Tensor:  # (N, d) -> (N, q)
        """Features less their means in the reference."""
        return torch.cat([
            torch.cat(self._parts(some), 1) - self.centre for some in rows.split(ROWS_AT_ONCE)
        ])  # fmt: skip

    def of_others(self, rows: Tensor) -> Tensor:  # (N, d) -> (M, q)
        """Features of the rows of the reference that landmarks were not chosen from, of mean 0.

        Landmarks are rows that stand out, and kernel features vary more there than elsewhere.
        """
        found = self(rows[torch.arange(len(rows)) % LANDMARK_EVERY > 0])
        return found - found.mean(0)

    def mean(self, rows: Tensor) -> Tensor:  # (q,)
        """Mean features of rows."""
        sums = [torch.cat(self._parts(some), 1).sum(0) for some in rows.split(ROWS_AT_ONCE)]
        return torch.stack(sums).sum(0) / len(rows)

    def _parts(self, rows: Tensor) -> list[Tensor]:
        found = []
        for column, width in zip(self.columns, self.widths, strict=True):
            scores = column(rows)
            kept = scores[:, :width]
            if column.gap > 0:
                kept = torch.cat([scores[:, :-1][:, :width], scores[:, -1:]], 1)
            found.append(kept)
        points = self._points(rows)
        return found + [kernel(points) for kernel in self.kernels]

    def _points(self, rows: Tensor) -> Tensor:
        """Numbers as normal scores among the reference; those of mixed rows are already."""
        if self.ranks is None:
            return rows
        edge = self.ranks(self.ranks.ordered[:, :1].mT) / 2
        return torch.special.ndtri(self.ranks(rows).clamp(edge, 1 - edge))


def _seeing_what_is_new(column: ColumnScores, rows: Tensor, shares: Tensor) -> ColumnScores:
    """Scores that also see the first gap, and the first change of a constant."""
    rare = math.sqrt(0.5 / (len(rows) + 1))  # as if half a row had it
    place = column.place
    if place.numbers is not None and place.codes is not None:
        column = replace(column, gap=max(column.gap, rare))
    if column.ranks is None and not len(column.values):
        at = place.codes if place.numbers is None else place.numbers
        assert at is not None
        known = rows[:, at]
        if place.numbers is not None and place.codes is not None:
            known = known[rows[:, place.codes] == 0]
        if len(known):
            column = replace(column, values=known[:1], roots=known.new_tensor([rare]))
    return column


@dataclass(frozen=True)
class RowReader:
    """How batches become rows.

    Attributes:
        names: Of the user's columns.
        mixed: How mixed rows are made; None if rows are arrays of numbers.
    """

    names: tuple[str, ...]
    mixed: MixedRows | None

    def __call__(self, batch: Any) -> Tensor:  # (N, d), float64
        """The rows of a batch; categories that the reference did not have are unknown ones."""
        if self.mixed is None:
            rows = _numbers(batch)
            if rows is None:
                raise SampleError(
                    "The reference is an array of numbers, but the batch is a "
                    f"{type(batch).__name__}; give both as arrays, or both as tables."
                )
            check_samples("batch", rows)
            if rows.shape[1] != len(self.names):
                raise ShapeError(
                    f"The batch has {rows.shape[1]} columns, but the reference has "
                    f"{len(self.names)}."
                )
            return rows
        schema = self.mixed.schema
        frame, _ = read_frame(batch, schema.reading())
        return self.mixed(schema.encode(frame, unseen="unknown", name=frame.name, extra=True))

    def compared(self, reference: Tensor, batch: Tensor) -> ComparedRows:
        """The reference and a batch in the user's units."""
        return ComparedRows(torch.cat([reference, batch]), len(reference), self.names, self.mixed)


def read_reference(source: Any, reading: Reading) -> tuple[Tensor, RowReader, list[str]]:
    """The rows of a reference, how batches are read like it, and what was assumed."""
    numbers = _numbers(source)
    if numbers is not None and not torch.isnan(numbers).any() and not reading.said():
        check_samples("reference", numbers)
        return numbers, RowReader(tuple(f"x{k}" for k in range(numbers.shape[1])), None), []
    frame, notes = read_frame(source, reading)
    kinds: dict[str, Any] = dict(reading.kinds)
    schema = Schema.of(frame, kinds=kinds)
    if not schema.modelled:
        raise SchemaError(
            f"No column is left to monitor: {listed(schema.names)} are constants, keys or text."
        )
    encoded = schema.encode(frame, name=frame.name)
    maker = MixedRows.of(schema, [encoded], mark_all=True)
    return maker(encoded), RowReader(maker.column_names, maker), [*notes, *schema.notes()]


def _numbers(source: Any) -> Tensor | None:
    """An array of numbers as rows; None if it is something else."""
    if isinstance(source, np.ndarray) and source.dtype.kind in "fiub":
        source = torch.from_numpy(np.ascontiguousarray(source))
    if not isinstance(source, Tensor):
        return None
    if source.dim() != 2:
        raise ShapeError(
            f"Expected rows and columns, but the array has shape {tuple(source.shape)}."
        )
    return source.detach().cpu().double()
