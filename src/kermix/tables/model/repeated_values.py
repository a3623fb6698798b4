r"""Values that repeat, such as dates, coordinates or prices ending in 9: codes with a place.

No smooth density puts mass on values, and a code for each of a thousand values knows nothing of
its neighbours. So a number all of whose values repeat is drawn in two steps, a *cell* of
neighbouring values and then a value in it, and the logits of both are smooth functions of the
place with one free bias for each cell and value. The logit of a cell with the share $u$ of the
rows below it is

$$b_u + \sum_k f_k(x) \cos(\pi k u) / (1 + k / 4),$$

with features $f$ that the network returns: what a row tells of a value, it tells of those beside
it. Such a number is seen by its place as well: by its normal score and by functions of $u$ that
are piecewise linear. Gaps, and values that many rows have, are seen by codes of their own.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.checks import rows_at_once
from kermix.data.readers.frames import Frame
from kermix.data.schema.columns import NumberColumn
from kermix.data.schema.monotone import MonotoneMap
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.networks.linear import Linear

__all__ = [
    "CellValues",
    "RepeatedValues",
    "ValueCodes",
    "find_repeated",
    "repeated_of",
    "with_repeated",
]

# Chosen by the detection of tables for choosing (flights, satimage) on an H200.
CELLS, COSINES = 128, 96
RAMPS = 64  # piecewise linear functions of a place
HIDDEN = 128  # features of a row that tell of the values in a cell
SPIKE = 1 / 64  # share of rows whose value is seen by a code of its own
IMPOSSIBLE = -1e4  # a logit: an infinite one has no gradient


@dataclass(frozen=True, eq=False)
class RepeatedValues:
    """The values of a number, all of which repeat, in cells.

    Attributes:
        column: Its place among the columns that are modelled.
        number: Its place among the numbers.
        counts: How many rows have each value, (V,).
        missing: Whether there are gaps.

    Example:
        >>> values = RepeatedValues(0, 0, np.full(256, 10))
        >>> values.cells[:5].tolist(), len(values.sizes)
        ([0, 0, 1, 1, 2], 128)
    """

    column: int
    number: int
    counts: np.ndarray
    missing: bool = False

    @cached_property
    def cells(self) -> np.ndarray:  # (V,)
        """The cell of each value: of neighbours, about as many of them and of their rows."""
        count = len(self.counts)
        if count <= CELLS:
            return np.arange(count)
        weight = (self.shares + 1 / count) / 2
        own = ((weight.cumsum() - weight / 2) * CELLS).astype(np.int64)
        return np.unique(own, return_inverse=True)[1]

    @cached_property
    def sizes(self) -> np.ndarray:  # (C,)
        """Values of each cell."""
        return np.bincount(self.cells)

    @cached_property
    def inside(self) -> np.ndarray:  # (V,)
        """The place of each value in its cell."""
        return np.arange(len(self.counts)) - self.first[self.cells]

    @cached_property
    def first(self) -> np.ndarray:  # (C,)
        """The first value of each cell."""
        return np.asarray(self.sizes.cumsum() - self.sizes)

    @cached_property
    def shares(self) -> np.ndarray:  # (V,)
        """Of rows that have each value."""
        found = self.counts + 0.5
        return np.asarray(found / found.sum())

    @cached_property
    def ranks(self) -> np.ndarray:  # (V,)
        """Share of rows below each value."""
        return np.asarray(self.shares.cumsum() - self.shares / 2)

    @cached_property
    def cell_shares(self) -> np.ndarray:  # (C,)
        """Of rows that have a value of each cell."""
        return np.bincount(self.cells, self.shares)

    @cached_property
    def cell_ranks(self) -> np.ndarray:  # (C,)
        """Share of rows below each cell."""
        return np.asarray(self.cell_shares.cumsum() - self.cell_shares / 2)

    @property
    def is_deep(self) -> bool:
        """Whether some cell has several values; otherwise codes and logits are the same."""
        return len(self.sizes) < len(self.counts)

    @property
    def units(self) -> int:
        """Logits of the column: of values never seen, of cells, and of gaps."""
        return 1 + len(self.sizes) + self.missing

    @property
    def never_seen(self) -> float:
        """Probability of a value that is not among these: about the share of those of one row."""
        once = max(0.5, float((self.counts == 1).sum()))
        return min(0.1, once / max(1.0, float(self.counts.sum())))

    @cached_property
    def unit_of_code(self) -> np.ndarray:  # (codes,)
        """The logit of each code of the column."""
        more = [len(self.sizes) + 1] * self.missing
        return np.concatenate([[0], 1 + self.cells, more]).astype(np.int64)

    @cached_property
    def shown_by_code(self) -> np.ndarray:  # (codes,), bool
        """Which codes a network sees as such, not by their place."""
        spikes = (self.shares >= SPIKE) & (self.sizes[self.cells] == 1)
        return np.concatenate([[True], spikes, [True] * self.missing]).astype(bool)


def with_repeated(
    schema: Schema,
    frame: Frame,
    without: Collection[str] = (),
    most_values: int = 8192,
) -> Schema:
    """The schema in which all values of the numbers that repeat are atoms.

    Args:
        schema: What the columns are.
        frame: The table.
        without: Names of columns that stay as they are.
        most_values: Of a column.
    """
    columns, found = list(schema.columns), False
    for place, column in enumerate(columns):
        if not isinstance(column, NumberColumn) or column.name in without or not column.continuous:
            continue
        numbers = column.numbers(frame.columns[column.name], frame.name)
        values, counts = np.unique(numbers, return_counts=True)
        if len(values) <= most_values and _repeats(column, values, counts):
            found = True
            columns[place] = replace(
                column, atoms=values, map=MonotoneMap.of(values, counts), continuous=0.0
            )
    return replace(schema, columns=tuple(columns)) if found else schema


def _repeats(
    column: NumberColumn,
    values: np.ndarray,
    counts: np.ndarray,
    many_rows: float = 8.0,
    fewest_rows: float = 2.0,
    explained: float = 0.75,
    enough_rows: int = 1000,
) -> bool:
    """Whether values repeat so often that each should have a code.

    Args:
        column: The column, whose atoms many rows have anyway, and do not count.
        values: Its values.
        counts: How many rows have each.
        many_rows: Of a value, on average: so many are enough.
        fewest_rows: So many are needed, and that there are less different values than the next
            share of what rounding explains.
        explained: This share. Chosen, with the number before, on segment, flights and diamonds.
        enough_rows: Of a table, or numbers that rounding does not explain stay as they are, but
            for times: a few days in clumps.
    """
    if counts.sum() < enough_rows and not column.time:
        return False
    rest = ~np.isin(values, column.atoms)
    own, rows = values[rest], counts[rest]
    if not len(own) or rows.sum() >= many_rows * len(own):
        return True
    if rows.sum() < fewest_rows * len(own):
        return False
    return len(own) < explained * _rounded_values(own, rows, column.decimals)


def _rounded_values(
    values: np.ndarray, counts: np.ndarray, decimals: int | None, together: int = 32
) -> float:
    """How many different values there would be of a smooth density that is rounded.

    Args:
        values: The values that there are, increasing.
        counts: How many rows have each.
        decimals: To which they are rounded; None for all digits.
        together: So many neighbours are taken as rounded places of one density.
    """
    if decimals is None:
        return float(counts.sum())
    starts = np.arange(0, len(values), together)
    ends = np.minimum(starts + together, len(values)) - 1
    places = np.rint((values[ends] - values[starts]) * 10.0**decimals) + 1
    rows = np.add.reduceat(counts, starts)
    return float((-places * np.expm1(rows * np.log1p(-1 / np.maximum(places, 1.5)))).sum())


def find_repeated(
    schema: Schema, encoded: EncodedTable, fewest: int = 20
) -> tuple[RepeatedValues, ...]:
    """Numbers all of whose values are atoms, and how often there is each.

    Args:
        schema: What the columns are.
        encoded: The table.
        fewest: Values of a column, at least.
    """
    found = []
    for number, place in enumerate(schema.number_columns):
        column = schema.modelled[place]
        assert isinstance(column, NumberColumn)
        if column.continuous or len(column.atoms) < fewest:
            continue
        codes = encoded.codes[:, place]
        counts = np.bincount(codes[codes > 0], minlength=len(column.atoms) + 2)
        own = counts[1 : len(column.atoms) + 1]
        found.append(RepeatedValues(int(place), number, own, column.has_missing))
    return tuple(found)


def repeated_of(schema: Schema, counts: Mapping[str, Sequence[int]]) -> tuple[RepeatedValues, ...]:
    """Those of a model that was saved, by the counts of their values."""
    numbers = schema.number_columns.tolist()
    found = []
    for number, place in enumerate(numbers):
        column = schema.modelled[place]
        if column.name in counts:
            own = np.array(counts[column.name], np.int64)
            if len(own) + 1 + column.has_missing != column.code_count or (own < 0).any():
                raise ValueError(f"the values of {column.name} are not those of the schema")
            found.append(RepeatedValues(place, number, own, column.has_missing))
    return tuple(found)


def _cosines(places: np.ndarray, count: int) -> np.ndarray:  # (P,) -> (count, P)
    """Damped cosines of places from 0 to 1, without the constant."""
    k = np.arange(1, count + 1)[:, None]
    return np.cos(math.pi * k * places) / (1 + k / 4)


def _padded(rows: Sequence[np.ndarray], first: int = 0) -> Tensor:  # (G, ...)
    """Arrays of columns in one: as long as the longest, and longer by `first` at both ends."""
    most = max(row.shape[-1] for row in rows)
    wide = [np.pad(row, [(0, 0)] * (row.ndim - 1) + [(first, most - row.shape[-1] + first)])
            for row in rows]  # fmt: skip
    return torch.from_numpy(np.stack(wide))


def _buffers(repeated: Sequence[RepeatedValues]) -> dict[str, Tensor]:
    """Where the columns are, how many values each has, and the cell of each code."""
    return {
        "columns": torch.tensor([own.column for own in repeated]),
        "counts": torch.tensor([len(own.counts) for own in repeated]),
        "cells": _padded([own.cells for own in repeated], 1),
        "inside": _padded([own.inside for own in repeated], 1),
        "basis": _padded([_cosines(own.cell_ranks, COSINES) for own in repeated]).float(),
    }


def _value_biases(repeated: Sequence[RepeatedValues]) -> Tensor:  # (G, C, S)
    """Logarithms of the shares of values in their cells."""
    cells = max(len(own.sizes) for own in repeated)
    size = max(int(own.sizes.max()) for own in repeated)
    found = torch.full((len(repeated), cells, size), IMPOSSIBLE)
    for bias, own in zip(found, repeated, strict=True):
        shares = np.log(own.shares / own.cell_shares[own.cells])
        bias[own.cells, own.inside] = torch.from_numpy(shares).float()
    return found


class ValueCodes(nn.Module):
    """How a network sees the columns that repeat, and the logits of their cells.

    Args:
        repeated: The columns.
        width: Features of a row.
    """

    columns: Tensor
    numbers: Tensor
    counts: Tensor
    ranks: Tensor
    basis: Tensor

    def __init__(self, repeated: Sequence[RepeatedValues], width: int) -> None:
        super().__init__()
        self.groups = len(repeated)
        biases = _padded([np.log(own.cell_shares) for own in repeated])
        for name, tensor in (
            *_buffers(repeated).items(),
            ("numbers", torch.tensor([own.number for own in repeated])),
            ("ranks", _padded([own.ranks for own in repeated], 1).float()),
        ):
            self.register_buffer(name, tensor, persistent=False)
        self.bias = nn.Parameter(biases.float().flatten())  # flat, so that no decay shrinks it
        self.of_cells = Linear(width, self.groups * COSINES)
        deep = sum(own.is_deep for own in repeated)
        self.of_values = Linear(width, deep * HIDDEN) if deep else None
        with torch.no_grad():
            self.of_cells.weight.mul_(0.1)
            self.of_cells.bias.zero_()

    def ramps(self, codes: Tensor, scores: Tensor, seen: Tensor) -> Tensor:  # (N, G * RAMPS)
        """Piecewise linear functions of the places of values, 0 where they are not seen.

        Args:
            codes: Of all columns, (N, D).
            scores: Normal scores of all numbers, (N, Q), by which values never seen have a place.
            seen: Which cells count, (N, D).
        """
        own = torch.minimum(codes[:, self.columns].clamp(min=0), self.counts + 1)
        every = torch.arange(self.groups, device=codes.device)
        of_score = torch.special.ndtr(scores[:, self.numbers])
        place = torch.where(own == 0, of_score, self.ranks[every, own])
        there = seen[:, self.columns] & (own <= self.counts)
        steps = torch.arange(RAMPS, device=codes.device)
        ramps = (place.unsqueeze(-1) * RAMPS - steps).clamp(0, 1)
        return (ramps * there.unsqueeze(-1)).flatten(1)

    def cell_logits(self, features: Tensor) -> Tensor:  # (N, G * C)
        """Of all cells of each column."""
        told = self.of_cells(features).float().unflatten(-1, (self.groups, COSINES))
        return torch.einsum("ngf,gfc->ngc", told, self.basis).flatten(1) + self.bias

    def features(self, features: Tensor) -> Tensor:  # (N, 1, G, H)
        """What tells of the values in the cells of each column that has several in some."""
        if self.of_values is None:
            return features.new_zeros(len(features), 1, 0)
        return self.of_values(features).float().unflatten(-1, (1, -1, HIDDEN))


class CellValues(nn.Module):
    """Probabilities of the values in a cell, from what `ValueCodes.features` returned.

    Several networks have one in common, so that their rows are looked at together.

    Args:
        repeated: The columns, in each of which some cell has several values.
        columns: How many columns there are.
    """

    columns: Tensor
    counts: Tensor
    cells: Tensor
    inside: Tensor
    first: Tensor
    padding: Tensor
    of_column: Tensor
    basis: Tensor
    within: Tensor

    def __init__(self, repeated: Sequence[RepeatedValues], columns: int) -> None:
        super().__init__()
        self.repeated = tuple(repeated)
        biases = _value_biases(repeated)
        groups, _, size = biases.shape
        waves = min(COSINES, max(1, size - 1))
        of_column = torch.full((columns,), -1)
        for group, own in enumerate(repeated):
            of_column[own.column] = group
        within = _cosines((np.arange(size) + 0.5) / size, waves)
        for name, tensor in (
            *_buffers(repeated).items(),
            ("first", _padded([own.first for own in repeated])),
            ("padding", biases == IMPOSSIBLE),
            ("of_column", of_column),
            ("within", torch.from_numpy(within).float()),
        ):
            self.register_buffer(name, tensor, persistent=False)
        self.bias = nn.Parameter(biases.flatten())
        self.places = nn.Parameter(torch.randn(groups, COSINES, HIDDEN) / math.sqrt(COSINES / 4))
        self.told = nn.Parameter(torch.zeros(groups, HIDDEN, waves))

    def value_logits(self, features: Tensor, group: int, cells: Tensor) -> Tensor:  # (..., S)
        """Logarithms of the probabilities of the values in some cells of a column.

        Args:
            features: Of the column: (..., M, H).
            group: Which of the columns that repeat.
            cells: The cells, (...,).
        """
        at = (self.basis[group].T @ self.places[group])[cells]
        told = self.told[group] @ self.within
        hidden = functional.silu(features + at.unsqueeze(-2))
        return _mean_log_softmax(hidden @ told, self._bias()[group, cells])

    def log_probability(self, features: Tensor, codes: Tensor) -> Tensor:  # (N, G)
        """Of the values of codes in their cells; 0 for codes that are no values.

        Args:
            features: Of all columns, (N, M, G, H).
            codes: Of all columns, (N, D).
        """
        own = codes[:, self.columns]
        value = (own > 0) & (own <= self.counts)
        own = torch.where(value, own, 1)
        every = torch.arange(len(self.columns), device=codes.device)
        cells, inside = self.cells[every, own], self.inside[every, own]
        at = torch.einsum("gfc,gfh->gch", self.basis, self.places)[every, cells]
        hidden = functional.silu(features + at.unsqueeze(1))
        logits = torch.einsum("nmgh,ghs->ngms", hidden, self.told @ self.within)
        found = _mean_log_softmax(logits, self._bias()[every, cells])
        found = found.gather(-1, inside.unsqueeze(-1)).squeeze(-1)
        return torch.where(value, found, 0.0)

    def _bias(self) -> Tensor:  # (G, C, S)
        return self.bias.view(self.padding.shape).masked_fill(self.padding, IMPOSSIBLE)

    def drawn(
        self, features: Tensor, columns: Tensor, units: Tensor, generator: torch.Generator
    ) -> Tensor:  # (N,)
        """The code of one column of each row, by which of its logits was drawn.

        Args:
            features: Of all columns, (N, M, G, H).
            columns: The column of each row.
            units: Which of its logits was drawn.
            generator: Source of random numbers.
        """
        codes, groups = units.clone(), self.of_column[columns]
        for group, own in enumerate(self.repeated):
            chosen, count = groups == group, len(own.sizes)
            codes[chosen & (units > count)] = 1 + len(own.counts)  # a gap
            rows = (chosen & (units > 0) & (units <= count)).nonzero().flatten()
            cells = units[rows] - 1
            logits = self.value_logits(features[rows, :, group], group, cells)
            uniform = torch.rand(logits.shape, generator=generator, device=logits.device)
            noise = -(-uniform.clamp(min=1e-30).log()).log()
            codes[rows] = 1 + self.first[group, cells] + (logits + noise).argmax(-1)
        return codes

    def of_codes(self, column: int, logs: Tensor, features: Tensor) -> Tensor:  # (N, codes)
        """Logarithms of the probabilities of all codes of a column, from those of its logits.

        Args:
            column: Its place; the logits of one that does not repeat are those of its codes.
            logs: Of its logits, normalized, (N, units).
            features: Of all columns, (N, M, G, H).
        """
        group = int(self.of_column[column])
        if group < 0:
            return logs
        own = self.repeated[group]
        cells = torch.arange(len(own.sizes), device=logs.device)
        values = slice(1, 1 + len(own.counts))
        at = self.cells[group, values], self.inside[group, values]
        size = rows_at_once(len(cells) * features.shape[1] * HIDDEN)
        told = [self.value_logits(rows[:, None], group, cells)[:, *at]
                for rows in features[:, :, group].split(size)]  # fmt: skip
        found = logs[:, torch.from_numpy(own.unit_of_code).to(logs.device)]
        found[:, values] += torch.cat(told)
        return found


def _mean_log_softmax(logits: Tensor, bias: Tensor) -> Tensor:  # (..., M, S), (..., S)
    """Logarithms of the mean over members of probabilities."""
    each = (logits + bias.unsqueeze(-2)).log_softmax(-1)
    return torch.logsumexp(each, -2) - math.log(logits.shape[-2])
