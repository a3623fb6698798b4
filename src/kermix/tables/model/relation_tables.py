"""Finds tables of values among columns: one is known once another is, or two others are."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np

from kermix.data.schema.columns import NumberColumn
from kermix.tables.model.relation_rows import SplitHalves
from kermix.tables.model.relations import LookupRelation, Relation

__all__ = ["lookups", "table_of"]


def lookups(rows: SplitHalves) -> Iterator[Relation]:
    """Tables of values: one column by another one, or by two."""
    keys = [k for k in rows.places if _is_key(rows, k)]
    labels = {k: _labels(rows.taught[:, k]) for k in rows.places}
    purities = {(place, key): _purity(labels[key], labels[place])
                for place in rows.places for key in keys if key != place}  # fmt: skip
    found = set()
    for (place, key), purity in purities.items():
        relation = _believed_table(rows, place, (key,), purity)
        if relation is not None:
            found.add(place)
            yield relation
    for place, pair in _pairs(rows, keys, found, purities):
        purity = _purity(_joint(labels[pair[0]], labels[pair[1]]), labels[place])
        relation = _believed_table(rows, place, pair, purity)
        if relation is not None:
            yield relation


def _believed_table(
    rows: SplitHalves, place: int, keys: tuple[int, ...], purity: float
) -> LookupRelation | None:
    if purity < rows.options.share:
        return None
    relation = table_of(rows.taught, place, keys, rows.options.most_keys)
    good = relation is not None and _beats(rows, relation, keys if len(keys) > 1 else ())
    return relation if good else None


def _pairs(
    rows: SplitHalves,
    keys: Sequence[int],
    found: set[int],
    purities: Mapping[tuple[int, int], float],
) -> list[tuple[int, tuple[int, int]]]:
    """Columns with two keys each that may tell them together; the most promising first."""
    open_ = [key for key in keys if key not in found]
    pairs = [(a, b) for a, b in combinations(open_, 2)
             if 4 * rows.distinct[a] * rows.distinct[b] <= len(rows.taught)]  # fmt: skip
    tried = [(place, pair) for place in rows.places if place not in found
             for pair in pairs if place not in pair]  # fmt: skip
    tried.sort(key=lambda t: -sum(purities[t[0], key] for key in t[1]))
    return tried[: rows.options.most_pairs]


def _joint(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    joint = first * (second.max() + 1) + second
    joint[(first < 0) | (second < 0)] = -1
    return joint


def _is_key(rows: SplitHalves, place: int) -> bool:
    """Whether a column has few values that come again and again, and no others."""
    column, distinct = rows.columns.schema.modelled[place], rows.distinct[place]
    if isinstance(column, NumberColumn) and column.continuous > 0.3 and distinct > 300:
        return False
    return bool(distinct <= rows.options.most_keys and 4 * distinct <= rows.filled[place])


def _labels(cells: np.ndarray) -> np.ndarray:  # (N,), -1 where there is none
    found = np.full(len(cells), -1)
    known = ~np.isnan(cells)
    found[known] = np.unique(cells[known], return_inverse=True)[1]
    return found


def _purity(keys: np.ndarray, values: np.ndarray, most: int = 2000) -> float:
    """Share of rows that have the most common value of their key, as far as some rows tell.

    Of each key one row is not counted: a value that is seen once tells nothing.
    """
    known = np.flatnonzero((keys >= 0) & (values >= 0))[:most]
    if len(known) < 20:
        return 0.0
    own, count = keys[known], int(values.max()) + 1
    keys_ = int(own.max()) + 1
    joint = own * count + values[known]
    if keys_ * count <= 4 * most:
        best = np.bincount(joint, minlength=keys_ * count).reshape(keys_, count).max(1)
    else:
        joint, counts = np.unique(joint, return_counts=True)
        best = np.zeros(keys_, int)
        np.maximum.at(best, joint // count, counts)
    seen = np.count_nonzero(best)
    return float((best.sum() - seen) / max(1, len(known) - seen))


def table_of(
    cells: np.ndarray, place: int, sources: tuple[int, ...], most: int
) -> LookupRelation | None:
    """The table of some rows: of each key its most common value; None if it is too long."""
    cells = cells[:, [*sources, place]]
    cells = cells[~np.isnan(cells).any(1)]
    joint, counts = np.unique(cells, axis=0, return_counts=True)
    best: dict[tuple[float, ...], tuple[int, float]] = {}
    for row, count in zip(joint.tolist(), counts.tolist(), strict=True):
        key, value = tuple(row[:-1]), row[-1]
        if count > best.get(key, (0, 0.0))[0]:
            best[key] = count, value
    if not 2 <= len(best) <= most:
        return None
    return LookupRelation(place, sources, 1.0, tuple(best), tuple(v for _, v in best.values()))


def _beats(rows: SplitHalves, relation: LookupRelation, keys: Sequence[int]) -> bool:
    """Whether a table is right where the most common value, or one key alone, is not."""
    if not rows.believed(relation):
        return False
    cells = rows.judged[relation.known(rows.judged)]
    own = cells[:, relation.place]
    wrong = 1 - relation.holds(rows.columns, cells).mean()
    alone = [1 - np.unique(own, return_counts=True)[1].max() / len(own)]
    for key in keys:
        single = table_of(rows.taught, relation.place, (key,), rows.options.most_keys)
        if single is not None:
            alone.append(1 - single.holds(rows.columns, cells).mean())
    return bool(wrong <= rows.options.errors * min(alone))
