"""Columns given others, in a fit's report: what the model says against what the data have."""

from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, Protocol

import numpy as np

from kermix.data.readers.frames import Frame, taken_rows
from kermix.data.schema.columns import CategoryColumn, NumberColumn
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.pages.charts import Bins
from kermix.tables.compare.column_changes import ColumnValues
from kermix.tables.compare.column_charts import encoded_values, step_of
from kermix.tables.model.distribution import ColumnDistribution
from kermix.tables.runs.table_quality import GROUPS, grouped

__all__ = ["Conditional", "conditionals_of", "strongest_pairs"]

PAIRS, VALUES = 3, 3
LEAST_ROWS, MOST_ROWS = 30, 200  # of a value of the other column: to show it, to ask about


class _Answers(Protocol):
    def conditional(self, column: str, given: Any, *, unseen: Any = ...) -> ColumnDistribution: ...


@dataclass(frozen=True)
class Conditional:
    """A column where another one has some value: shares of its own values.

    Attributes:
        column: The column.
        given: What the other one is, in words.
        values: The column's own values in the data's rows.
        bins: Intervals of a number; None for a category.
        data: Shares in the data's rows.
        model: Shares by the model, the mean over the same rows' values of the other column.
    """

    column: str
    given: str
    values: ColumnValues
    bins: Bins | None
    data: np.ndarray
    model: np.ndarray


def strongest_pairs(schema: Schema, data: EncodedTable) -> list[tuple[str, str]]:
    """Columns that tell most about each other, as (given, asked for); none in more than two pairs.

    By the mutual information of at most 8 groups of each. Numbers are asked for rather than
    categories.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.choice(["f", "m"], 400)
        >>> table = {"sex": sex, "size": rng.normal(170 + 10 * (sex == "m"), 5),
        ...          "luck": rng.normal(size=400)}
        >>> schema = Schema.infer(table)
        >>> strongest_pairs(schema, schema.encode(table))[0]
        ('sex', 'size')
    """
    columns, groups = schema.modelled, grouped(schema, data, data)
    plain = [k for k, c in enumerate(columns) if not isinstance(c, NumberColumn) or _is_plain(c)]
    told = {(a, b): _information(groups[:, a], groups[:, b]) for a, b in combinations(plain, 2)}
    found: list[tuple[str, str]] = []
    used: list[int] = []
    for a, b in sorted(told, key=lambda pair: -told[pair]):
        if max(used.count(a), used.count(b)) < 2 and len(found) < PAIRS:
            used += [a, b]
            given, asked = (b, a) if isinstance(columns[b], CategoryColumn) else (a, b)
            found.append((columns[given].name, columns[asked].name))
    return found


def _is_plain(column: NumberColumn) -> bool:
    return not column.time and column.origin == 0


def _information(first: np.ndarray, second: np.ndarray) -> float:
    joint = np.bincount(first * GROUPS + second, minlength=GROUPS**2).reshape(GROUPS, GROUPS)
    joint = joint / max(1, joint.sum())
    apart = joint.sum(1, keepdims=True) * joint.sum(0)
    at = joint > 0
    return float((joint[at] * np.log(joint[at] / apart[at])).sum())


def conditionals_of(
    model: _Answers, schema: Schema, frame: Frame, data: EncodedTable
) -> list[list[Conditional]]:
    """For each of the strongest pairs, one column where the other has each of some values."""
    found = []
    for given, asked in strongest_pairs(schema, data):
        row = []
        for words, rows in _values(schema, data, given):
            few = np.sort(np.random.default_rng(0).permutation(rows)[:MOST_ROWS])
            known = taken_rows(frame, few)
            alone = Frame(known.kind, known.name, {given: known.columns[given]},
                          {given: known.types[given]}, known.rows)  # fmt: skip
            answer = model.conditional(asked, alone, unseen="unknown")
            row.append(_compared(schema, data[rows], answer, words))
        if row:
            found.append(row)
    return found


def _values(schema: Schema, data: EncodedTable, name: str) -> list[tuple[str, np.ndarray]]:
    """Values of a column in words, and the rows that have them: frequent ones, or thirds."""
    found = encoded_values(schema, data, name)
    if found.codes is not None:
        column = schema[name]
        filled = found.codes != (-1 if column.missing_code is None else column.missing_code)
        often = np.bincount(found.codes[filled]).argsort(kind="stable")[::-1][:VALUES]
        groups = [(f"{name} = {found.names[k]}", found.codes == k) for k in often]
    else:
        assert found.numbers is not None
        values = found.numbers
        filled = ~np.isnan(values)
        ends = np.quantile(values[filled], np.arange(VALUES + 1) / VALUES)
        ends = np.unique(np.append(ends[:-1], np.nextafter(ends[-1], np.inf)))
        groups = []
        for low, high in pairwise(ends):
            rows = (values >= low) & (values < high)
            if rows.any():
                least, most = (f"{v:.4g}" for v in (values[rows].min(), values[rows].max()))
                words = least if least == most else f"{least} to {most}"
                groups.append((f"{name} = {words}", rows))
    return [(w, np.flatnonzero(r)) for w, r in groups if r.sum() >= LEAST_ROWS]


def _compared(
    schema: Schema, rows: EncodedTable, answer: ColumnDistribution, words: str
) -> Conditional:
    column = answer.column
    values = encoded_values(schema, rows, column.name)
    if values.codes is not None:
        chances = answer.filled.mean(0)
        own = np.bincount(values.codes, minlength=len(chances))[: len(chances)]
        return Conditional(column.name, words, values, None, own / max(1, own.sum()), chances)
    assert values.numbers is not None
    numbers = values.numbers[~np.isnan(values.numbers)]
    bins = Bins.over(numbers, step_of(values), log=False)
    model = answer.shares(bins.edges).mean(0)
    return Conditional(column.name, words, values, bins, bins.shares(numbers), model)
