"""Finds what the columns of a table tell about each other, before any training: its layout.

Columns are equal or follow from others to the last digit, are near straight lines through others,
follow some closely, are empty where others say so, or have values that repeat.
"""

import numpy as np

from kermix.data.readers.frames import Frame
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.tables.model.absences import find_absences
from kermix.tables.model.equal_columns import find_equal_columns, find_links
from kermix.tables.model.layout import REGRESSORS, TableLayout
from kermix.tables.model.linear_relations import find_lines
from kermix.tables.model.relation_search import find_relations
from kermix.tables.model.relations import LookupRelation, Relation
from kermix.tables.model.repeated_values import find_repeated, with_repeated

__all__ = ["find_layout", "find_regressors", "with_codes"]


def find_layout(
    schema: Schema,
    frame: Frame,
    encoded: EncodedTable,
    equal_columns: bool = True,
    whole: bool = True,
    enough_rows: int = 500,
) -> TableLayout:
    """The layout of a table, with what its columns tell about each other.

    Args:
        schema: What the columns are.
        frame: The table.
        encoded: Its rows.
        equal_columns: Whether to look for columns that are equal, or follow from others.
        whole: Whether the table has all rows, so that columns may be known to be equal in all.
        enough_rows: For tables of values: of fewer rows, a column that is drawn first says
            more than one of which many values are in a row or two.
    """
    same: tuple[tuple[str, str], ...] = ()
    equal: tuple[tuple[str, str], ...] = ()
    exact: tuple[Relation, ...] = ()
    if equal_columns:
        same = find_equal_columns(schema, encoded) if whole else ()
        copied = [b for _, b in same]
        exact = find_relations(schema, encoded, copied)
        if len(encoded) < enough_rows:
            exact = tuple(r for r in exact if not isinstance(r, LookupRelation))
        told = [schema.modelled[r.place].name for r in exact if r.determines]
        equal = find_links(schema, frame, encoded.codes, [*copied, *told])
    regressors, lines = find_regressors(schema, encoded), find_lines(schema, encoded)
    absences = find_absences(schema, encoded, same)
    return TableLayout.of(schema, equal, regressors, same=same, lines=lines, absences=absences,
                  repeated=find_repeated(schema, encoded), exact=exact)  # fmt: skip


def find_regressors(
    schema: Schema,
    encoded: EncodedTable,
    least_correlation: float = 0.7,
    most_rows: int = 20_000,
    most_numbers: int = 1000,
) -> tuple[tuple[str, ...], ...]:
    """Names of the numbers that each number follows most closely; none where all are loose.

    Args:
        schema: What the columns are.
        encoded: The table.
        least_correlation: Of normal scores, or a number is loose.
        most_rows: That are looked at, every so many of all.
        most_numbers: Of tables with more, no correlations are looked at.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a = rng.normal(size=400)
        >>> table = {"a": a, "b": a + 0.1 * rng.normal(size=400), "c": rng.normal(size=400)}
        >>> schema = Schema.infer(table)
        >>> find_regressors(schema, schema.encode(table))
        (('b',), ('a',), ())
    """
    names = [column.name for column in schema.numbers]
    if not 2 <= len(names) <= most_numbers or len(encoded) < 2:
        return ((),) * len(names)
    encoded = encoded[:: max(1, len(encoded) // most_rows)]
    scores = schema.positions(encoded)
    scores = scores - scores.mean(0)
    sizes = np.sqrt(np.square(scores).sum(0))
    sizes[sizes == 0] = np.inf
    closeness = np.abs(scores.T @ scores / sizes[:, None] / sizes)
    np.fill_diagonal(closeness, 0.0)
    best = np.argsort(-closeness, axis=1, kind="stable")[:, :REGRESSORS]
    return tuple(
        tuple(names[k] for k in row if closeness[j, k] >= least_correlation)
        for j, row in enumerate(best)
    )


def with_codes(
    schema: Schema, frame: Frame, encoded: EncodedTable, layout: TableLayout
) -> tuple[Schema, EncodedTable, TableLayout]:
    """The table and its layout with codes for all values of the numbers that repeat.

    Numbers that follow from others stay as they are. Links between others go: a
    code that depends on a place is equal to it often enough by itself.

    Args:
        schema: What the columns are.
        frame: The table.
        encoded: Its rows.
        layout: What was found in them.
    """
    told = [] if layout.exact is None else layout.exact.determined
    names = {schema.modelled[place].name for place in told}
    own = with_repeated(schema, frame, names | _foretold(schema, layout))
    if own is schema:
        return schema, encoded, layout
    known = layout.relations(schema)
    encoded = own.encode(frame, extra=True)
    absences = find_absences(own, encoded, known["same"])
    coded = {column.name for column in own.numbers if not column.continuous}
    equal = [pair for pair in known["equal"] if not coded & {*pair}]
    return own, encoded, TableLayout.of(
        own, equal, find_regressors(own, encoded), known["same"],
        layout.lines, absences, find_repeated(own, encoded),
        layout.found_relations,
    )  # fmt: skip


def _foretold(schema: Schema, layout: TableLayout) -> set[str]:
    """Numbers that lines foretell to the last digit, as sums: codes would lose that."""
    if layout.lines is None:
        return set()
    lines = layout.lines
    squares = np.stack([1 / np.diag(np.linalg.inv(own)) for own in lines.correlation])
    errors = (lines.shares @ squares) ** 0.5 * lines.size
    steps = np.array([0.0 if c.decimals is None else 10.0**-c.decimals for c in schema.numbers])
    exact = lines.followed & (2 * errors < steps)
    return {name for name, found in zip(lines.names, exact, strict=True) if found}
