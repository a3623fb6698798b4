"""Columns that are equal: always, of which one is a copy; or often, such as payment and bill.

Where columns are equal in every row of a table, gaps and atoms included, nothing is left to learn:
a cell of one is known as soon as that of the other is. One is learned with the other columns, and
the other copied.

No smooth density gives two numbers the same value. Where a table does so often, whether they are
equal becomes a code of its own, a *link*, which a network learns like any other column: if it says
yes, one number is drawn and the other copied. Links are a forest over the columns, so any of them
may hold without contradicting the others. Columns that are always equal have no
link, because no network is ever quite sure of a code.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.common import load_pyarrow
from kermix.data.readers.frames import Frame, arrow_type
from kermix.data.schema.columns import CategoryColumn, NumberColumn, rounded
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.errors import SchemaError

__all__ = [
    "Link",
    "ZeroDensity",
    "check_equal_columns",
    "copy_equal_columns",
    "equal_notes",
    "equalize",
    "find_equal_columns",
    "find_links",
    "implied",
    "link_codes",
    "link_notes",
    "linked",
    "same_cells",
    "transferred",
    "unequal_rows",
    "with_equal_columns",
]

EqualPairs = Sequence[tuple[int, int]]  # the first of some equal columns, and another one
# Reasoned, no record.
LEAST_ROWS = 20  # of fewer, columns may be equal by chance
LEAST_SHARE = 0.01  # of the rows that a link needs
OVER_CHANCE = 5.0  # times as often as columns would be equal that have nothing to do with another
LOOKED_AT = 20_000
DOUBLE = 64  # bits
GRID = torch.linspace(-6, 6, 385)  # of normal scores


def find_equal_columns(schema: Schema, encoded: EncodedTable) -> tuple[tuple[str, str], ...]:
    """Columns that are equal in all rows: the first of each kind, with every other one.

    Example:
        >>> table = {"a": list("xyz") * 20, "n": [0.5, 1.5, 2.5] * 20, "b": list("xyz") * 20}
        >>> schema = Schema.infer(table)
        >>> find_equal_columns(schema, schema.encode(table))
        (('a', 'b'),)
    """
    if len(encoded) < LEAST_ROWS:
        return ()
    place = {int(k): q for q, k in enumerate(schema.number_columns)}
    first: dict[int, list[int]] = {}
    found = []
    for k, column in enumerate(schema.modelled):
        codes = encoded.codes[:, k]
        if (codes == codes[0]).all() and isinstance(column, CategoryColumn):
            continue
        scores = encoded.values[:, place[k]] if k in place else encoded.values[:, :0]
        # Equal columns have one hash, and hardly any others do: most are compared with none.
        alike = first.setdefault(hash((_meaning(column), _bytes(codes), _bytes(scores))), [])
        of = next((j for j in alike if _are_same(schema, encoded, place, j, k)), None)
        if of is None:
            alike.append(k)
        else:
            found.append((schema.modelled[of].name, column.name))
    return tuple(found)


def _bytes(cells: np.ndarray) -> bytes:
    return (cells + 0).tobytes()  # without a zero that is negative


def _meaning(column: CategoryColumn | NumberColumn) -> tuple[Any, ...]:
    """What the codes and scores of a column mean, alike for columns that mean the same."""
    if isinstance(column, CategoryColumn):
        return ("category", column.value_type, *column.values)
    own = (column.type.arrow, column.origin, column.step, column.time, column.text)
    # A price and twice that price have the same scores, each on its own scale.
    scale = (column.map.middle, column.map.scale, *column.map.knots, *column.map.scores)
    return ("number", own, column.decimals, *column.atoms.tolist(), "map", *scale)


def _are_same(
    schema: Schema, encoded: EncodedTable, place: dict[int, int], first: int, second: int
) -> bool:
    """Whether columns have the same codes and numbers, and mean the same by them."""
    a, b = schema.modelled[first], schema.modelled[second]
    if not np.array_equal(encoded.codes[:, first], encoded.codes[:, second]):
        return False
    if _meaning(a) != _meaning(b):
        return False
    if first not in place:
        return True
    return np.array_equal(encoded.values[:, place[first]], encoded.values[:, place[second]])


def equal_notes(schema: Schema, equal_pairs: EqualPairs) -> list[str]:
    """A sentence about columns that are equal in all rows."""
    names = [column.name for column in schema.modelled]
    told = ", ".join(f"{names[a]} and {names[b]}" for a, b in equal_pairs)
    return [f"Equal in all rows, and kept so: {told}."] if told else []


def with_equal_columns(equal_pairs: EqualPairs, seen: Tensor) -> Tensor:  # (N, D)
    """Cells that are known once some are seen."""
    if not equal_pairs:
        return seen
    seen = seen.clone()
    # Of three equal columns two pairs have the first in common: it hears of all, then tells all.
    for a, b in equal_pairs:
        seen[:, a] |= seen[:, b]
    for a, b in equal_pairs:
        seen[:, b] |= seen[:, a]
    return seen


def copy_equal_columns(
    equal_pairs: EqualPairs, numbers: Tensor, codes: Tensor, values: Tensor, seen: Tensor
) -> None:
    """Give cells the code and number of a cell that is seen and equal, in place.

    Args:
        equal_pairs: Columns that are equal.
        numbers: Which number a column has, or -1, (D,).
        codes: Codes, (N, D).
        values: Normal scores, (N, Q).
        seen: Cells that are known; those that get a value are, afterwards.
    """
    for source, target in (*((b, a) for a, b in equal_pairs), *equal_pairs):
        rows = (seen[:, source] & ~seen[:, target]).nonzero().flatten()
        codes[rows, target] = codes[rows, source]
        if int(numbers[target]) >= 0:
            values[rows, numbers[target]] = values[rows, numbers[source]]
        seen[rows, target] = True


def same_cells(
    schema: Schema, equal_pairs: EqualPairs, columns: dict[str, Any], given: np.ndarray
) -> dict[str, Any]:
    """Columns of a completed table, in which a cell that was given is copied to the letter.

    Args:
        schema: What the columns are.
        equal_pairs: Columns that are equal.
        columns: Arrow arrays by name.
        given: Cells that stay as they are, (N, D).
    """
    from pyarrow import array, compute

    columns, fixed = dict(columns), given.copy()
    # First what is given; then, where neither is, the first, which links may have mended.
    backward = [(second, first) for first, second in equal_pairs]
    for certain, pairs in ((True, [*backward, *equal_pairs]), (False, list(equal_pairs))):
        for source, target in pairs:
            rows = (fixed[:, source] | (not certain)) & ~fixed[:, target]
            if not rows.any():
                continue
            a, b = (schema.modelled[k].name for k in (source, target))
            columns[b] = compute.if_else(array(rows), _whole(columns[a]).cast(columns[b].type),
                                         _whole(columns[b]))  # fmt: skip
            fixed[rows, target] = certain
    return columns


def _whole(cells: Any) -> Any:
    return cells.combine_chunks() if hasattr(cells, "combine_chunks") else cells


class ZeroDensity(NamedTuple):
    """Rows that a model cannot have made.

    Attributes:
        rows: Which, bool, (N,).
        why: What is wrong with the first of them.
    """

    rows: np.ndarray
    why: str


def unequal_rows(
    schema: Schema, equal_pairs: EqualPairs, frame: Frame, encoded: EncodedTable
) -> Iterator[ZeroDensity]:
    """Rows in which columns differ that never did, by pair of columns."""
    place = {int(k): q for q, k in enumerate(schema.number_columns)}
    for a, b in equal_pairs:
        first, second = encoded.codes[:, a], encoded.codes[:, b]
        apart = first != second
        if a in place:
            apart |= encoded.values[:, place[a]] != encoded.values[:, place[b]]
        apart &= (first >= 0) & (second >= 0)
        if apart.any():
            row = int(apart.argmax())
            names = [schema.modelled[k].name for k in (a, b)]
            cells = [frame.columns[name][row].as_py() for name in names]
            yield ZeroDensity(
                apart,
                f"{frame.name}, row {row + frame.first_row}: {names[0]} and {names[1]} are equal "
                f"in all rows that the model was fitted to, but here they are {cells[0]!r} and "
                f"{cells[1]!r}",
            )


def check_equal_columns(
    schema: Schema, equal_pairs: EqualPairs, frame: Frame, encoded: EncodedTable
) -> None:
    """Refuse rows in which columns differ that never did: their density is zero."""
    for found in unequal_rows(schema, equal_pairs, frame, encoded):
        raise SchemaError(f"{found.why} ({int(found.rows.sum())} such rows); the density is zero.")


@dataclass(frozen=True)
class Link:
    """Two numbers of which some rows have one value.

    Attributes:
        first: A column, by its place among those that are modelled.
        second: Another one.
        forward: Normal scores of the second column, for those of the first on a fixed grid.
        backward: The other way round.
    """

    first: int
    second: int
    forward: tuple[float, ...]
    backward: tuple[float, ...]


def linked(schema: Schema, pairs: Sequence[tuple[str, str]]) -> tuple[Link, ...]:
    """Links between columns of these names."""
    places = {column.name: k for k, column in enumerate(schema.modelled)}
    columns = {column.name: column for column in schema.numbers}
    found = []
    for a, b in pairs:
        tables = (_moved(columns[a], columns[b]), _moved(columns[b], columns[a]))
        found.append(Link(places[a], places[b], *tables))
    return tuple(found)


def _moved(source: NumberColumn, target: NumberColumn) -> tuple[float, ...]:
    """Scores in another column of the values that have the grid's scores in this one."""
    values = source.map.inverse(GRID.double().numpy())
    return tuple(target.map(np.clip(values, target.low, target.high)).tolist())


def find_links(
    schema: Schema, frame: Frame, codes: np.ndarray, without: Sequence[str] = ()
) -> tuple[tuple[str, str], ...]:
    """Pairs of numbers that are equal much more often than by chance, a forest of the surest.

    Atoms are left aside: they are codes already, and equal ones are no surprise.

    Args:
        schema: What the columns are.
        frame: The table.
        codes: Its codes, (N, D).
        without: Columns that are not looked at.

    Example:
        >>> from kermix.data.readers.frames import as_frame
        >>> rng = np.random.default_rng(0)
        >>> bill = rng.lognormal(size=500).round(4)
        >>> paid = np.where(rng.random(500) < 0.3, bill, rng.lognormal(size=500).round(4))
        >>> table = as_frame({"bill": bill, "paid": paid}, "table")
        >>> schema = Schema.infer(table)
        >>> find_links(schema, table, schema.encode(table).codes)
        (('bill', 'paid'),)
    """
    left_out = set(without)
    numbers = [c for c in schema.numbers if _is_plain(c) and c.name not in left_out]
    if len(numbers) < 2 or not frame.rows:
        return ()
    # Every so many rows, so that no part of a sorted table is left out.
    every = slice(None, None, max(1, frame.rows // LOOKED_AT))
    places = {column.name: k for k, column in enumerate(schema.modelled)}
    values = np.stack([_continuous(frame, codes[:, places[c.name]], c)[every] for c in numbers], 1)
    least = max(LEAST_ROWS / len(values), LEAST_SHARE)
    shares = {}
    for a, b in _candidates(values, least / 2):
        share = float((values[:, a] == values[:, b]).mean())
        if share >= max(least, OVER_CHANCE * _chance(values[:, a], values[:, b])):
            shares[a, b] = share
    return tuple((numbers[a].name, numbers[b].name) for a, b in _forest(shares, len(numbers)))


def _is_plain(column: NumberColumn) -> bool:
    """Whether its values are numbers as they stand: no times, no text, no huge integers."""
    kinds = load_pyarrow().types
    kind = arrow_type(column.type.arrow)
    return column.origin == 0 and (kinds.is_integer(kind) or kinds.is_floating(kind))


def _continuous(frame: Frame, codes: np.ndarray, column: NumberColumn) -> np.ndarray:  # (N,)
    """Numbers of a column where they are neither atoms nor missing, else NaN."""
    found = np.full(frame.rows, np.nan)
    cells = frame.columns.get(column.name)
    if cells is not None:
        found[~np.asarray(cells.is_null().to_numpy())] = column.numbers(cells, frame.name)
    found[codes != 0] = np.nan
    return found


def _candidates(values: np.ndarray, least: float) -> list[tuple[int, int]]:
    """Pairs that are neighbours in the order of a row's values, and equal, in this share of rows.

    Sorting finds them among thousands of columns, where pairs are too many to try each.
    """
    order = np.argsort(values, axis=1, kind="stable")
    along = np.take_along_axis(values, order, 1)
    rows, places = np.nonzero(along[:, 1:] == along[:, :-1])
    pairs = np.stack([order[rows, places], order[rows, places + 1]], 1)
    found, counts = np.unique(pairs, axis=0, return_counts=True)
    return [(int(a), int(b)) for a, b in found[counts >= least * len(values)]]


def _chance(first: np.ndarray, second: np.ndarray) -> float:
    """How often the two would be equal if rows were shuffled."""
    (a, in_a), (b, in_b) = (
        np.unique(v[~np.isnan(v)], return_counts=True) for v in (first, second)
    )
    _, of_a, of_b = np.intersect1d(a, b, assume_unique=True, return_indices=True)
    return float((in_a[of_a] / len(first)) @ (in_b[of_b] / len(second)))


def _forest(shares: dict[tuple[int, int], float], columns: int) -> list[tuple[int, int]]:
    """The surest links that close no circle, from the root of each tree outwards."""
    group = list(range(columns))
    near: dict[int, list[int]] = {}
    for a, b in sorted(shares, key=lambda pair: -shares[pair]):
        if group[a] != group[b]:
            group = [group[a] if g == group[b] else g for g in group]
            near.setdefault(a, []).append(b)
            near.setdefault(b, []).append(a)
    found, met = [], set()
    for root in sorted(near):
        reached = [] if root in met else [root]
        for a in reached:
            met.add(a)
            new = [b for b in near[a] if b not in met]
            found += [(a, b) for b in new]
            reached += new
    return found


def link_codes(
    schema: Schema, links: Sequence[Link], frame: Frame, codes: np.ndarray
) -> np.ndarray:  # (N, E)
    """Whether linked columns are equal: 1, 0, or -1 where a cell that decides is not known.

    Args:
        schema: What the columns are.
        links: Between its columns.
        frame: The table, or some of its columns.
        codes: Codes of its cells, (N, D); -1 where a cell is not known.
    """
    found = np.zeros((frame.rows, len(links)), np.int64)
    for k, link in enumerate(links):
        first, second = (
            _continuous(frame, codes[:, place], cast(NumberColumn, schema.modelled[place]))
            for place in (link.first, link.second)
        )
        found[:, k] = first == second
        of = codes[:, [link.first, link.second]]
        # An atom or a gap equals no number, whatever the other cell is.
        found[(of < 0).any(1) & (of <= 0).all(1), k] = -1
        for value, other in ((first, link.second), (second, link.first)):
            column = cast(NumberColumn, schema.modelled[other])
            found[(value < column.low) | (value > column.high), k] = 0  # the other never is
    return found


def link_notes(schema: Schema, links: Sequence[Link], codes: np.ndarray) -> list[str]:
    """A sentence about the links of a table, from their codes."""
    names = [c.name for c in schema.modelled]
    told = [
        f"{names[link.first]} and {names[link.second]} ({share:.1%} of the rows)"
        for link, share in zip(links, (codes == 1).mean(0), strict=True)
    ]
    return [f"Often equal, and kept so: {', '.join(told)}."] if told else []


def implied(links: Sequence[Link], codes: Tensor, seen: Tensor) -> Tensor:  # (N, D + E)
    """Cells that are known once some are seen: equal numbers, and whether two are equal.

    Args:
        links: Between columns; the code of each follows those of all columns.
        codes: Codes of whole rows.
        seen: Which cells are.
    """
    if not links:
        return seen
    seen = seen.clone()
    base = seen.shape[1] - len(links)
    # From the leaves to the roots and back: every equal number is reached.
    for k in (*reversed(range(len(links))), *range(len(links))):
        a, b, link = links[k].first, links[k].second, base + k
        other = (seen[:, a] & (codes[:, a] != 0)) | (seen[:, b] & (codes[:, b] != 0))
        seen[:, link] |= (seen[:, a] & seen[:, b]) | other
        both = seen[:, link] & (codes[:, link] == 1) & (seen[:, a] | seen[:, b])
        seen[:, a] |= both
        seen[:, b] |= both
    return seen


def transferred(
    links: Sequence[Link], numbers: Tensor, codes: Tensor, values: Tensor, seen: Tensor
) -> None:
    """Give numbers that a link says are equal to one that is seen its value, in place.

    Args:
        links: Between columns.
        numbers: Which number a column has, (D + E,).
        codes: Codes, (N, D + E).
        values: Normal scores, (N, Q).
        seen: Cells that are known, (N, D + E); those that get a value are, afterwards.
    """
    base = seen.shape[1] - len(links)
    for k in (*reversed(range(len(links))), *range(len(links))):
        link = links[k]
        equal = seen[:, base + k] & (codes[:, base + k] == 1)
        for source, target, table in (
            (link.first, link.second, link.forward),
            (link.second, link.first, link.backward),
        ):
            rows = (equal & seen[:, source] & ~seen[:, target]).nonzero().flatten()
            moved = _interpolated(values[rows, numbers[source]], table)
            values[rows, numbers[target]] = moved
            codes[rows, target] = 0
            seen[rows, target] = True


def _interpolated(scores: Tensor, table: tuple[float, ...]) -> Tensor:
    heights = torch.tensor(table, device=scores.device, dtype=scores.dtype)
    step = float(GRID[1] - GRID[0])
    place = ((scores - float(GRID[0])) / step).clamp(0, len(table) - 1.001)
    below = place.floor().long()
    part = place - below
    return heights[below] * (1 - part) + heights[below + 1] * part


def equalize(
    schema: Schema,
    links: Sequence[Link],
    arrays: dict[str, Any],
    codes: np.ndarray,  # (N, E)
    given: np.ndarray,  # (N, D)
) -> dict[str, Any]:
    """Columns of completed rows, of which linked numbers are equal to the last digit.

    Args:
        schema: Of the table.
        links: Between its columns.
        arrays: Arrow arrays by name, as `kermix.Schema.decoded_columns` has them.
        codes: Of the links.
        given: Cells that stay as they are.
    """
    arrays, fixed = dict(arrays), given.copy()
    inward = [(k, link.second, link.first) for k, link in enumerate(links)][::-1]
    outward = [(k, link.first, link.second) for k, link in enumerate(links)]
    # What is given spreads first, then the root of each tree.
    for k, source, target in (*inward, *outward):
        rows = (codes[:, k] == 1) & fixed[:, source] & ~fixed[:, target]
        _copy(schema, arrays, rows, source, target)
        fixed[rows, target] = True
    for k, source, target in outward:
        rows = (codes[:, k] == 1) & ~fixed[:, target]
        _copy(schema, arrays, rows, source, target)
    return arrays


def _copy(
    schema: Schema, arrays: dict[str, Any], rows: np.ndarray, source: int, target: int
) -> None:
    """Copy cells whose value the other column may have."""
    from pyarrow import array, compute

    first, second = (cast(NumberColumn, schema.modelled[k]) for k in (source, target))
    cells = arrays[first.name]
    numbers = np.full(len(cells), np.nan)
    numbers[~np.asarray(cells.is_null())] = first.numbers(cells, "samples")
    fits = (numbers >= second.low) & (numbers <= second.high)
    if second.decimals is not None:
        # In the column's own precision: decimals of single precision are none of double.
        own = np.float32 if arrays[second.name].type.bit_width < DOUBLE else np.float64
        near = rounded(np.where(fits, numbers, 0.0), second.decimals)
        fits &= near.astype(own) == numbers.astype(own)
    chosen = array(rows & fits)
    moved = cells.cast(arrays[second.name].type, safe=False)
    arrays[second.name] = compute.if_else(chosen, moved, arrays[second.name])
