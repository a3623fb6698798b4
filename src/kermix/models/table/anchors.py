"""Which numbers follow which others closely.

A network knows a number that it sees only roughly, so it cannot put a narrow mixture where another
column is almost the same: last month's bill and this month's. Means of mixtures may therefore move
with some *anchors*, the numbers that a column is most correlated with, by factors that the network
returns.
"""

from collections.abc import Sequence

import numpy as np

from kermix.data.tables.schema import EncodedTable, Schema

__all__ = ["ANCHORS", "anchor_places", "find_anchors"]

ANCHORS = 3
LEAST_CORRELATION = 0.3
LOOKED_AT = 20_000
MOST_COLUMNS = 1000  # whose correlations are looked at


def find_anchors(schema: Schema, encoded: EncodedTable) -> tuple[tuple[str, ...], ...]:
    """Names of the numbers that each number follows most closely; none where all are loose.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a = rng.normal(size=400)
        >>> table = {"a": a, "b": a + 0.1 * rng.normal(size=400), "c": rng.normal(size=400)}
        >>> schema = Schema.of(table)
        >>> find_anchors(schema, schema.encode(table))
        (('b',), ('a',), ())
    """
    names = [column.name for column in schema.numbers]
    if not 2 <= len(names) <= MOST_COLUMNS or len(encoded) < 2:
        return ((),) * len(names)
    encoded = encoded[:: max(1, len(encoded) // LOOKED_AT)]
    scores = schema.positions(encoded)
    scores = scores - scores.mean(0)
    sizes = np.sqrt(np.square(scores).sum(0))
    sizes[sizes == 0] = np.inf
    closeness = np.abs(scores.T @ scores / sizes[:, None] / sizes)
    np.fill_diagonal(closeness, 0.0)
    best = np.argsort(-closeness, axis=1, kind="stable")[:, :ANCHORS]
    return tuple(
        tuple(names[k] for k in row if closeness[j, k] >= LEAST_CORRELATION)
        for j, row in enumerate(best)
    )


def anchor_places(schema: Schema, anchors: Sequence[Sequence[str]]) -> tuple[tuple[int, ...], ...]:
    """Anchors by their place among the numbers; -1 where there are fewer than there may be."""
    names = [column.name for column in schema.numbers]
    if not any(anchors):
        return ()
    return tuple(
        tuple(names.index(row[k]) if k < len(row) else -1 for k in range(ANCHORS))
        for row in anchors
    )
