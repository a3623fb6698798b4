"""Finds exact relations between the columns of a table, before any training.

Each family is proposed cheaply for all columns at once, on a few rows, and judged by all: a
relation is fitted to one half of the rows, and believed if it holds in the other half, there too
where the column has not its most common value, and far more often than for rows that are put
together at random. See `relation_formulas`, `relation_tables`
and `relation_orders`.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from kermix.data.schema.schema import EncodedTable, Schema
from kermix.tables.model.relation_formulas import formulas
from kermix.tables.model.relation_orders import find_orders, find_steps
from kermix.tables.model.relation_rows import SearchOptions, SplitHalves
from kermix.tables.model.relation_tables import lookups, table_of
from kermix.tables.model.relations import (
    LinearRelation,
    LookupRelation,
    RawColumns,
    Relation,
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
    chosen = _ordered(_chosen([*formulas(rows), *lookups(rows)], rows))
    told = {relation.place for relation in chosen}
    chosen += find_steps(columns, rows.cells, [k for k in rows.numbers if k not in told])
    in_order = columns.cells(encoded[np.sort(order)])
    chosen += find_orders(columns, in_order, chosen, rows.places)
    cells = columns.cells(encoded)
    return tuple(_with_share(r, columns, cells, options) for r in chosen)


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


def _chosen(found: Sequence[Relation], rows: SplitHalves) -> list[Relation]:
    """One relation for a column, so that none follows from itself; the simplest first."""

    def worth(relation: Relation) -> tuple[float, ...]:
        signs = relation.factors if isinstance(relation, LinearRelation) else ()
        share = rows.share(relation, rows.judged)
        # Fewer sources and no minus are worth a few exceptions; and so is a column of many values:
        # a price follows from amount and count, but a count by rounding says little of an amount.
        simple = share - 0.02 * len(relation.sources) - 0.004 * sum(s < 0 for s in signs)
        simple += 0.005 * float(np.log(rows.distinct[relation.place]))
        simple -= 0.002 * isinstance(relation, LookupRelation)
        return -simple, -relation.place

    chosen: dict[int, Relation] = {}
    for relation in sorted(found, key=worth):
        if relation.place not in chosen and not _leads_to(chosen, relation):
            chosen[relation.place] = relation
    return list(chosen.values())


def _leads_to(chosen: dict[int, Relation], new: Relation) -> bool:
    """Whether a column would follow from itself."""
    open_, met = list(new.sources), set()
    while open_:
        place = open_.pop()
        if place == new.place:
            return True
        if place in chosen and place not in met:
            met.add(place)
            open_ += chosen[place].sources
    return False


def _ordered(relations: Sequence[Relation]) -> list[Relation]:
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

    for relation in sorted(relations, key=lambda r: r.place):
        visit(relation)
    return found
