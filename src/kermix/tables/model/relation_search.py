"""Finds exact relations between the columns of a table, before any training.

Each family is proposed cheaply for all columns at once, on a few rows, and judged by all: a
relation is fitted to one half of the rows, and believed if it holds in the other half, there too
where the column has not its most common value, and far more often than for rows that are put
together at random. Sums and products are of `relation_formulas`; here are tables of values (a
column is known once another is, or two others are), columns in equal steps, and orders (an end
after its start).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, permutations
from typing import NamedTuple

import numpy as np

from kermix.data.schema.columns import NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.tables.model.relation_formulas import SearchOptions, SplitHalves, Sums
from kermix.tables.model.relation_products import Logarithms, ProductsOfPowers
from kermix.tables.model.relations import (
    LinearRelation,
    LookupRelation,
    OrderRelation,
    PowerRelation,
    RawColumns,
    Relation,
    StepRelation,
)

__all__ = ["find_relations"]


def find_relations(
    schema: Schema,
    encoded: EncodedTable,
    without: Sequence[str] = (),
    options: SearchOptions | None = None,
) -> tuple[Relation, ...]:
    """Relations that hold in nearly all rows, each after those that tell its sources.

    Args:
        schema: What the columns are.
        encoded: The rows.
        without: Columns that are not looked at, such as copies of others.
        options: How to look.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> price, count = rng.lognormal(3, 1, 500).round(2), rng.integers(1, 60, 500)
        >>> table = {"price": price, "count": count, "amount": (price * count).round(2)}
        >>> schema = Schema.infer(table)
        >>> [found] = find_relations(schema, schema.encode(table))
        >>> found.description(RawColumns(schema))
        'amount = price * count, in all rows'
    """
    options = options or SearchOptions()
    columns = RawColumns(schema)
    order = np.random.default_rng(options.seed).permutation(len(encoded))[: options.rows]
    if len(order) < 2 * options.fewest:
        return ()
    left_out = {k for k, name in enumerate(columns.names) if name in set(without)}
    rows = SplitHalves(columns, columns.cells(encoded[np.sort(order)]), options, left_out)
    short = _chosen([*_short_formulas(rows), *lookups(rows)], rows)
    chosen = _ordered(_chosen(_long_formulas(rows, short), rows, short).values())
    told = {relation.place for relation in chosen}
    chosen += find_steps(columns, rows.cells, [k for k in rows.numbers if k not in told])
    in_order = columns.cells(encoded[np.sort(order)])
    chosen += find_orders(columns, in_order, chosen, rows.places)
    cells = columns.cells(encoded)
    return tuple(_with_share(r, columns, cells, options) for r in chosen)


def _short_formulas(rows: SplitHalves) -> Iterator[Relation]:
    """What follows from one or two numbers by sums or products."""
    if len(rows.numbers) < 2:
        return
    for kind in (Sums, ProductsOfPowers):
        search = kind(rows)
        for place in rows.followers:
            yield from search.relations_of(place)


def _long_formulas(rows: SplitHalves, chosen: Mapping[int, Relation]) -> Iterator[Relation]:
    """What follows from more numbers, or by logarithms, of columns that none tells yet.

    Columns that follow from the column itself are no sources of it.
    """
    open_ = [place for place in rows.followers if place not in chosen]
    if len(rows.numbers) < 2 or not open_:
        return
    sums, products, logarithms = Sums(rows), ProductsOfPowers(rows), Logarithms(rows)
    for place in open_:
        own = {q for q in chosen if _follows(chosen, q, place)}
        yield from sums.longer_relations_of(place, own)
        yield from products.longer_relations_of(place, own)
        yield from logarithms.believed_of(place, own)


def _with_share(
    relation: Relation, columns: RawColumns, cells: np.ndarray, options: SearchOptions
) -> Relation:
    """The relation with its share of all rows, and a table with the keys of all."""
    if isinstance(relation, LookupRelation):
        whole = table_of(cells, relation.place, relation.sources, 4 * options.most_keys)
        relation = relation if whole is None else whole
    known = relation.known(cells)
    kept = relation.holds(columns, cells[known])
    empty = float(np.isnan(cells[:, relation.place]).mean())
    return replace(relation, share=float(kept.mean()) if len(kept) else 0.0, empty=empty)


def _chosen(
    found: Iterable[Relation], rows: SplitHalves, before: Mapping[int, Relation] | None = None
) -> dict[int, Relation]:
    """One relation for a column, so that none follows from itself; those that tell most first.

    Args:
        found: What there is to choose from.
        rows: The rows.
        before: What was chosen already.
    """

    def worth(relation: Relation) -> tuple[float, ...]:
        signs = relation.factors if isinstance(relation, LinearRelation) else ()
        share = rows.share(relation, rows.judged)
        # Fewer sources and no minus are worth a few exceptions.
        simple = share - 0.02 * len(relation.sources) - 0.004 * sum(s < 0 for s in signs)
        simple -= 0.002 * isinstance(relation, LookupRelation)
        if isinstance(relation, PowerRelation):
            simple -= 0.02 * relation.before_rounding
            simple -= 0.004 * sum(abs(power) != 1 for power in relation.powers)
        # A column of many values is more to tell: a price follows from amount and count, but a
        # count by rounding says little of an amount.
        return -simple * float(np.log(rows.distinct[relation.place])), -relation.place

    chosen = dict(before or {})
    for relation in sorted(found, key=worth):
        if relation.place not in chosen and not any(
            _follows(chosen, source, relation.place) for source in relation.sources
        ):
            chosen[relation.place] = relation
    return chosen


def _follows(chosen: Mapping[int, Relation], place: int, source: int) -> bool:
    """Whether a column is another one, or follows from it."""
    open_, met = [place], set()
    while open_:
        here = open_.pop()
        if here == source:
            return True
        if here in chosen and here not in met:
            met.add(here)
            open_ += chosen[here].sources
    return False


def _ordered(relations: Iterable[Relation]) -> list[Relation]:
    """Each after those that tell its sources."""
    by_place = {relation.place: relation for relation in relations}
    found: list[Relation] = []

    def visit(relation: Relation) -> None:
        if relation in found:
            return
        for source in relation.sources:
            if source in by_place:
                visit(by_place[source])
        found.append(relation)

    for _, relation in sorted(by_place.items()):
        visit(relation)
    return found


class Labels(NamedTuple):
    """Numbers of a column's values, in their order, of two halves of rows; -1: there is none."""

    taught: np.ndarray
    judged: np.ndarray

    @classmethod
    def of(cls, taught: np.ndarray, judged: np.ndarray) -> "Labels":
        """Those of raw cells."""
        cells = np.concatenate([taught, judged])
        found, known = np.full(len(cells), -1), ~np.isnan(cells)
        found[known] = np.unique(cells[known], return_inverse=True)[1]
        return cls(found[: len(taught)], found[len(taught) :])

    @property
    def different(self) -> int:
        """How many there may be."""
        return 1 + int(max(half.max(initial=-1) for half in self))


def lookups(rows: SplitHalves) -> Iterator[Relation]:
    """Tables of values: one column by another one, or by two."""
    keys = [k for k in rows.places if _is_key(rows, k)]
    labels = {k: Labels.of(rows.taught[:, k], rows.judged[:, k]) for k in rows.places}
    purities = {(place, key): _purity(labels[key].taught, labels[place].taught)
                for place in rows.places for key in keys if key != place}  # fmt: skip
    found = set()
    for (place, key), purity in purities.items():
        relation = _believed_table(rows, place, (key,), purity, labels)
        if relation is not None:
            found.add(place)
            yield relation
    for place, pair in _pairs(rows, keys, found, purities):
        joint = _joint(*(labels[key] for key in pair)).taught
        relation = _believed_table(rows, place, pair, _purity(joint, labels[place].taught), labels)
        if relation is not None:
            yield relation


def _believed_table(
    rows: SplitHalves,
    place: int,
    keys: tuple[int, ...],
    purity: float,
    labels: Mapping[int, Labels],
) -> LookupRelation | None:
    if purity < rows.options.share:
        return None
    if not _may_beat([labels[key] for key in keys], labels[place], rows.options.errors):
        return None
    relation = table_of(rows.taught, place, keys, rows.options.most_keys)
    good = relation is not None and _beats(rows, relation, keys if len(keys) > 1 else ())
    return relation if good else None


def _may_beat(keys: Sequence[Labels], values: Labels, errors: float, most: int = 2**21) -> bool:
    """Whether the table of the rows that teach beats the most common value, by labels alone.

    `_beats` asks for more, and takes far longer: a column that has one value in most rows seems to
    follow from any other.

    Args:
        keys: Labels of its sources.
        values: Labels of the column.
        errors: Of the most common value's, as many at most.
        most: Entries of a table; of a larger one it is not known.
    """
    key = keys[0] if len(keys) == 1 else _joint(*keys)
    width = values.different
    if key.different * width > most:
        return True
    taught, judged = ((own >= 0) & (told >= 0) for own, told in zip(key, values, strict=True))
    counts = np.bincount(key.taught[taught] * width + values.taught[taught],
                         minlength=key.different * width).reshape(-1, width)  # fmt: skip
    own, told = key.judged[judged], values.judged[judged]
    if not len(told):
        return False
    best = np.where(counts.any(1), counts.argmax(1), -1)
    return bool((best[own] != told).mean() <= errors * (1 - np.bincount(told).max() / len(told)))


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


def _joint(first: Labels, second: Labels) -> Labels:
    pairs = zip(first, second, strict=True)
    return Labels(*(np.where((a < 0) | (b < 0), -1, a * second.different + b) for a, b in pairs))


def _is_key(rows: SplitHalves, place: int) -> bool:
    """Whether a column has few values that come again and again, and no others."""
    column, distinct = rows.columns.schema.modelled[place], rows.distinct[place]
    if isinstance(column, NumberColumn) and column.continuous > 0.3 and distinct > 300:
        return False
    return bool(distinct <= rows.options.most_keys and 4 * distinct <= rows.filled[place])


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


# Convention: what people round to.
STEPS = (2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 24, 25, 30, 40, 50, 60, 75, 100, 120, 125, 150, 200,
         250, 300, 400, 500, 600, 1000, 1200, 1500, 2000, 2500, 5000, 10_000)  # fmt: skip


def find_steps(
    columns: RawColumns,
    cells: np.ndarray,
    places: Sequence[int],
    share: float = 0.9,
    most_places: int = 2000,
) -> list[Relation]:
    """Columns of numbers that are multiples of more than their last decimal.

    Args:
        columns: What raw cells are.
        cells: Rows in a random order, (N, D).
        places: Columns to look at.
        share: Of rows that have such a value, at least.
        most_places: Of a lattice, from its least value to its largest.
    """
    found: list[Relation] = []
    for place in places:
        column = columns.schema.modelled[place]
        unit = 2 * columns.half_units[place]
        if not isinstance(column, NumberColumn) or column.time or not unit:
            continue
        own = cells[:, place][~np.isnan(cells[:, place])]
        values, counts = np.unique(own, return_counts=True)
        own = own[~np.isin(own, values[counts > 0.1 * len(own)])]  # one value is on any lattice
        best = _step_of(np.round(own / unit).astype(np.int64), share)
        if best is not None and np.ptp(own) > most_places * best[0] * unit:
            continue  # as good as every number
        if best is not None:
            found.append(StepRelation(place, (), 1.0, best[0] * unit, best[1] * unit))
    return found


def _step_of(own: np.ndarray, share: float, fewest: int = 40) -> tuple[int, int] | None:
    """The widest step of most whole numbers, and where it starts; taught and judged by halves."""
    if len(own) < fewest:
        return None
    found: list[tuple[float, int, int]] = []
    for step in STEPS:
        rest, counts = np.unique(own[::2] % step, return_counts=True)
        start, judged = int(rest[counts.argmax()]), own[1::2]
        on = judged % step == start
        enough = min(counts.max() / len(own[::2]), on.mean()) >= share
        if enough and len(np.unique(judged[on])) >= 6:
            found.append((float(on.mean()), step, start))
    # Of exceptions some are on a lattice by chance: every second one on that of even numbers.
    broken = [(1 - kept) / (1 - 1 / step) for kept, step, _ in found]
    good = [(step, start) for exceptions, (_, step, start) in zip(broken, found, strict=True)
            if exceptions <= min(broken) + 0.02]  # fmt: skip
    return max(good, default=None)


def find_orders(
    columns: RawColumns,
    cells: np.ndarray,
    known: Sequence[Relation],
    places: Sequence[int],
    share: float = 0.93,
    most: int = 100,
) -> list[Relation]:
    """Pairs of columns of which one is at least the other, with a sharp edge where they are equal.

    Columns that only go together, one above the other, have no such edge: the density of their
    difference passes zero smoothly.

    Args:
        columns: What raw cells are.
        cells: Rows in a random order, (N, D).
        known: Relations that are known, of which orders may follow.
        places: Columns to look at.
        share: Of rows that have the order, at least.
        most: Columns of a kind, at most.
    """
    found: list[Relation] = []
    told = {frozenset((r.place, source)) for r in known for source in r.sources}
    follows = {r.place for r in known if r.determines}  # and any order with its sources
    for kind in (columns.is_number, columns.is_time):
        some = [k for k in places if kind(k) and k not in follows
                and isinstance(columns.schema.modelled[k], NumberColumn)]  # fmt: skip
        pairs = _pairs_in_order(columns, cells, some[:most], told, share)
        # What follows from two others is not said.
        found += [r for (a, b), r in pairs.items()
                  if not any((a, c) in pairs and (c, b) in pairs for c in some)]  # fmt: skip
    return found


def _pairs_in_order(
    columns: RawColumns,
    cells: np.ndarray,
    places: Sequence[int],
    told: set[frozenset[int]],
    share: float,
) -> dict[tuple[int, int], Relation]:
    light = {k: ~_heavy(cells[:, k]) for k in places}
    pairs = {}
    for a, b in permutations(places, 2):
        if frozenset((a, b)) not in told and _same_unit(columns, a, b):
            relation = _order(columns, cells, a, b, light[a] & light[b], share)
            if relation is not None:
                pairs[a, b] = relation
    return pairs


def _same_unit(columns: RawColumns, a: int, b: int) -> bool:
    first, second = columns.schema.modelled[a], columns.schema.modelled[b]
    if isinstance(first, NumberColumn) and isinstance(second, NumberColumn):
        return columns.unit(a) == columns.unit(b)
    return not (columns.is_time(a) or columns.is_time(b))


def _order(
    columns: RawColumns,
    cells: np.ndarray,
    a: int,
    b: int,
    light: np.ndarray,
    share: float,
    fewest: int = 50,
) -> Relation | None:
    shift = columns.origin(a) - columns.origin(b)
    some = slice(None, None, max(1, len(cells) // 800))
    first, second = cells[some, a] + shift, cells[some, b]
    if (first > second).sum() > (1.05 - share) * (first <= second).sum():
        return None
    first, second = cells[light, a] + shift, cells[light, b]
    good = ~(np.isnan(first) | np.isnan(second))
    first, second = first[good], second[good]
    if len(first) < fewest:
        return None
    broken, by_chance = _broken_shares(first, second)
    if broken > 1 - share or by_chance < 0.02 or broken > 0.35 * by_chance:
        return None
    with_room = _with_room(first, second)
    if len(with_room[0]) < fewest or not all(map(_is_edge, (first, with_room[0]),
                                                 (second, with_room[1]))):  # fmt: skip
        return None
    ties = bool((first == second).any())
    return OrderRelation(b, (a,), 1.0, ties, shift)


def _broken_shares(first: np.ndarray, second: np.ndarray) -> tuple[float, float]:
    """Of rows in which an order is broken, and of those that would break it by chance."""
    shuffled = np.roll(second, len(second) // 2)
    return float((second < first).mean()), float((shuffled < first).mean())


def _is_edge(first: np.ndarray, second: np.ndarray) -> bool:
    """Whether one number begins where the other is, also by their ratio if all are positive."""
    if not _has_edge(second - first):
        return False
    # Small numbers are near each other, whatever they are.
    positive = min(first.min(), second.min()) > 0
    return not positive or _has_edge(np.log(second) - np.log(first), least=8.0)


def _with_room(
    first: np.ndarray, second: np.ndarray, near: int = 60, room: float = 4.0
) -> tuple[np.ndarray, np.ndarray]:
    """Rows that are as far above the least number as they might differ: the smallest hardly can.

    Args:
        first: The smaller numbers.
        second: The larger ones.
        near: How many differences above zero are looked at.
        room: How often the largest of these has to fit.
    """
    above = np.sort((second - first)[second >= first])
    if len(above) < near:
        return first, second
    floor = min(first.min(), second.min())
    some = first + second - 2 * floor >= 2 * room * above[near - 1]
    some &= (first != second) | (first > floor)
    return first[some], second[some]


def _heavy(cells: np.ndarray, share: float = 0.1) -> np.ndarray:  # (N,), bool
    """Cells of values that many rows have, such as zeros: two of them are equal by chance."""
    _, at, counts = np.unique(cells, return_inverse=True, return_counts=True)
    return np.asarray((counts > share * len(cells))[at.reshape(-1)] & ~np.isnan(cells))


def _has_edge(gap: np.ndarray, near: int = 60, least: float = 12.5) -> bool:
    """Whether the density of a difference begins at zero, rather than passing it smoothly.

    Of the differences that are nearest to zero, some are below, some just above it and some
    farther above. In the tail of a smooth density, each of three such cells has as many times more
    than the one before; the likelihood of their counts, against any counts, says whether it may
    be one.

    Args:
        gap: Differences, in the order of the rows.
        near: How many differences above zero are looked at.
        least: Twice the logarithm of the ratio of likelihoods that is asked for.
    """
    above = np.sort(gap[gap >= 0])
    if len(above) < near:
        return False
    steps = np.diff(np.unique(gap))
    unit = steps.min() if len(steps) else 0.0
    width = float(above[near - 1])
    if unit > 1e-6 * max(width, unit):  # on a lattice, cells have as many places as they are wide
        width = 2 * unit * max(1, np.ceil((width + unit) / unit / 2))
    at = np.abs(gap) <= width
    inside = at & (gap < width) if unit else at
    apart = np.count_nonzero(np.diff(np.flatnonzero(inside)) > 1)
    if apart < 0.4 * min(near, inside.sum()) and inside.mean() < 0.5:
        return False  # rows that are near each other tell but once
    counts = np.array([((gap < 0) & (gap >= -width)).sum(), ((gap >= 0) & (gap < width / 2)).sum(),
                       ((gap >= width / 2) & (gap < width)).sum()], float)  # fmt: skip
    growth = np.exp(np.linspace(0.01, 5, 200))
    smooth = np.stack([1 - growth**-2, growth - 1, growth**2 - growth])
    smooth /= smooth.sum(0)
    with np.errstate(all="ignore"):
        logs = np.where(counts > 0, np.log(counts / counts.sum()), 0.0)
    ratio = 2 * (counts @ logs - (counts @ np.log(smooth)).max())
    below, first, second = counts + 0.5
    odds = np.log(first / second) - 0.5 * np.log(below / (first + second))
    return bool(ratio >= least and odds >= 1.0)
