"""Panels: tables whose rows are of entities at places, such as countries in years.

Rows of an entity are near to each other because of the entity, and each of its places has one
row. So how near a new row is to others can only be told within its entity, and whatever its place.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.schema.columns import NumberColumn
from kermix.tables.compare.column_changes import ColumnValues, ComparedRows
from kermix.two_sample.column_scores import ColumnPlace

__all__ = ["Panel", "RowsOfEntities", "looked_at", "panel_of", "within_entities"]

# Reasoned, no record.
LOOKED_AT = 5000  # rows: pairs of them tell a key from chance
MOST_COLUMNS = 30
FEWEST_PAIRS = 10.0  # expected by chance: that there is none has probability exp(-10)
OF_CHANCE = 0.05  # equal pairs, at most so many of those expected
ORDERS = 10.0  # times as large as the smallest: then numbers of one sign are told by logarithms
NEAR_PLACES, FEWEST_FOR_A_SLOPE = 6, 5  # rows of the entity that tell what is usual at a place


@dataclass(frozen=True)
class Panel:
    """Which columns name the entity of a row, and which its place within the entity."""

    entity: tuple[str, ...]
    places: tuple[str, ...]


class RowsOfEntities(NamedTuple):
    """All rows, less what is usual for their entity at their place.

    Attributes:
        rows: Numbers, and then the codes of the given rows, without the columns of the panel.
        codes: How many codes.
        entities: A number for each row, (N,).
    """

    rows: Tensor
    codes: int
    entities: Tensor


def panel_of(columns: Mapping[str, ColumnValues]) -> Panel | None:
    """The panel that a table is; None if it is none.

    Entities and places both have many rows, but a pair of them hardly ever two, although chance
    would give pairs.

    Args:
        columns: Some rows of the table (`looked_at`), by the names of the columns.
    """
    if len(columns) > MOST_COLUMNS:
        return None
    codes = {name: _codes(c) for name, c in columns.items()}
    repeated = [n for n, c in codes.items() if 1 < len(np.unique(c)) <= len(c) / 2]
    named = [n for n in repeated if columns[n].codes is not None]
    for entities in ([(n,) for n in repeated], list(combinations(named, 2))):
        keys = []
        for entity in entities:
            places = tuple(n for n in repeated if n not in entity and _is_key(
                [codes[e] for e in entity], codes[n]))  # fmt: skip
            if places:
                keys.append(Panel(entity, places))
        if keys:
            return min(keys, key=lambda k: _strangeness(k, columns, codes))
    return None


def looked_at(rows: int) -> Tensor:
    """Which of so many rows are enough to tell a panel."""
    return torch.randperm(rows, generator=torch.Generator().manual_seed(0))[:LOOKED_AT]


def _codes(column: ColumnValues) -> np.ndarray:
    if column.codes is not None:
        return column.codes
    assert column.numbers is not None
    return np.unique(np.nan_to_num(column.numbers), return_inverse=True)[1]


def _together(codes: list[np.ndarray]) -> np.ndarray:
    return np.unique(np.stack(codes, 1), axis=0, return_inverse=True)[1].reshape(-1)


def _is_key(entity: list[np.ndarray], place: np.ndarray) -> bool:
    """Whether an entity and a place have one row, where chance would give many pairs of rows."""
    one = _together(entity)
    by_chance = _pairs(one) * _pairs(place) / (len(place) * (len(place) - 1) / 2)
    return by_chance >= FEWEST_PAIRS and _pairs(_together([one, place])) <= OF_CHANCE * by_chance


def _pairs(codes: np.ndarray) -> float:
    counts = np.bincount(codes).astype(float)
    return float((counts * (counts - 1)).sum() / 2)


def _strangeness(
    panel: Panel, columns: Mapping[str, ColumnValues], codes: dict[str, np.ndarray]
) -> tuple[int, float]:
    """What entities are by nature comes first: names, and what rows are alike by.

    Entity and place may be exchanged; rows of an entity are more alike than those of a place.
    """
    of_numbers = sum(columns[n].codes is None for n in panel.entity)
    of_names = sum(columns[n].codes is not None for n in panel.places)
    group = _together([codes[n] for n in panel.entity])
    shares = []
    for name, column in columns.items():
        if name in panel.entity or name in panel.places or column.numbers is None:
            continue
        # Ranks, so that one large value is not all that counts.
        ranks = column.numbers.argsort(kind="stable").argsort(kind="stable").astype(float)
        counts = np.bincount(group)
        means = np.bincount(group, ranks) / np.maximum(1, counts)
        within = ((ranks - means[group]) ** 2).sum() / max(1, len(ranks) - (counts > 0).sum())
        shares.append(within / max(ranks.var(), 1e-300))
    return of_numbers + of_names, float(np.mean(shares)) if shares else 0.0


def within_entities(rows: ComparedRows, panel: Panel, training: int) -> RowsOfEntities:
    """Rows without the columns of the panel, and numbers less what is usual at their place.

    What is usual is a line through the training rows of the entity at the nearest other places.
    A row that was trained with does not count for its own place, and neither does it for a sample
    at that place, so samples and new rows are treated alike. What is left is divided by what
    usually is for the entity.

    Args:
        rows: All rows, training rows first.
        panel: What entity and place are.
        training: How many are training rows.
    """
    entity = torch.from_numpy(_together([_codes(rows.column(n)) for n in panel.entity]))
    place = _number_of(rows.column(panel.places[0]))
    left = [p for p in rows.places if p.name not in (*panel.entity, *panel.places)]
    numbers = [p for p in left if p.numbers is not None]
    codes = rows.pooled[:, [p.codes for p in left if p.codes is not None]]
    values = torch.stack([_warped(rows, p, training) for p in numbers], 1)
    order = entity.argsort(stable=True)
    _, counts = entity[order].unique_consecutive(return_counts=True)
    for part in order.split(counts.tolist()):
        own = part[part < training]
        if len(own) > 1:
            off = values[part] - _usual(place[part], place[own], values[own])
            size = off[part < training].square().mean(0).sqrt()
            values[part] = off / torch.where(size > 0, size, 1.0)
    for q, p in enumerate(numbers):
        if p.codes is not None:
            values[:, q] = torch.where(rows.pooled[:, p.codes] == 0, values[:, q], 0.0)
    return RowsOfEntities(torch.cat([values, codes.double()], 1), codes.shape[1], entity)


def _warped(rows: ComparedRows, place: ColumnPlace, training: int) -> Tensor:  # (N,)
    """A number of all rows: its logarithm, or its own units with a logarithm far out.

    Positive numbers of different size grow by shares, so their logarithms are even. Normal scores
    bend where they please, and what grows evenly would not be even in them.
    """
    found = rows.pooled[:, place.numbers].double()
    if rows.mixed is not None:
        q = place.numbers
        column = rows.mixed.schema[place.name]
        assert q is not None
        assert isinstance(column, NumberColumn)
        scores = found.numpy() * rows.mixed.spread[q] + rows.mixed.centre[q]
        found = torch.from_numpy(column.map.inverse(scores))
    own = found[:training]
    if float(found.min()) > 0 and float(own.max()) > ORDERS * float(own.min()):
        return found.log()
    low, middle, high = own.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64))
    scale = high - low if high > low else own.std()
    return ((found - middle) / (scale if scale > 0 else 1.0)).asinh()


def _number_of(column: ColumnValues) -> Tensor:  # (N,)
    """Places in their order: numbers, names that are numbers, or else codes."""
    if column.numbers is not None:
        return torch.from_numpy(np.nan_to_num(column.numbers))
    assert column.codes is not None
    try:
        values = np.array([float(n) for n in column.names[:-1]] + [0.0])
    except ValueError:
        values = np.arange(len(column.names), dtype=float)
    return torch.from_numpy(values[column.codes])


def _usual(at: Tensor, places: Tensor, values: Tensor) -> Tensor:  # (n,), (m,), (m, d) -> (n, d)
    """What lines through values at the nearest other places say."""
    apart = (at[:, None] - places).abs()
    apart = torch.where(apart == 0, torch.inf, apart)
    some = apart.topk(min(NEAR_PLACES, len(places)), dim=1, largest=False)
    weight = some.values.isfinite().double()
    count = weight.sum(1, keepdim=True).clamp(min=1)
    near, value = places[some.indices].double(), values[some.indices]
    centre = (weight * near).sum(1, keepdim=True) / count
    mean = (weight[..., None] * value).sum(1) / count
    off = weight * (near - centre)
    slope = (off[..., None] * value).sum(1) / off.square().sum(1, keepdim=True).clamp(min=1e-300)
    steep = (weight.sum(1, keepdim=True) >= FEWEST_FOR_A_SLOPE) & (off.abs().sum(1, True) > 0)
    return mean + torch.where(steep, (at[:, None] - centre) * slope, 0.0)
