"""Which kind a column is of, judged by all of its values whatever their order.

Columns of several tables are judged as one, of a type that holds them all.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from kermix.data.readers.common import listed, load_pyarrow, names_apart
from kermix.data.readers.frames import ColumnType, Frame, declared_array
from kermix.data.readers.number_forms import NumberForm, look_at_numbers, without_marks
from kermix.data.schema.columns import (
    EXACT,
    CategoryColumn,
    Column,
    NumberColumn,
    family,
    origin_of,
    plain_numbers,
    rounded,
)
from kermix.data.schema.key_text import key_texts
from kermix.data.schema.keys import KeyPattern
from kermix.data.schema.monotone import MonotoneMap
from kermix.data.schema.times import (
    parse_times,
    resolution,
    seconds_of,
    text_format,
    ticks,
    time_note,
    zone_of,
    zones_differ,
)
from kermix.data.schema.unmodelled import LeftOutColumn
from kermix.errors import OptionError, SchemaError

__all__ = [
    "ColumnCells",
    "Judge",
    "check_same_names",
    "chosen_columns",
    "in_common",
    "left_out_note",
    "only_in",
    "pooled_column",
    "without_others",
]


def chosen_columns(
    frame: Frame, columns: Sequence[str] | None, exclude: Sequence[str]
) -> list[str]:
    """The columns that are wanted, of those that there are."""
    for what, given in (("columns", columns), ("exclude", exclude)):
        if isinstance(given, str):
            raise OptionError(f"{what}={given!r} must be a list of names.")
        unknown = [n for n in given or () if n not in frame.columns]
        if unknown:
            raise SchemaError(
                f"{frame.name}: there is no column {listed(unknown)}; there are "
                f"{listed(frame.columns)}."
            )
    away = set(exclude)
    names = [n for n in (frame.columns if columns is None else columns) if n not in away]
    if not names:
        raise SchemaError(f"{frame.name}: no column is left.")
    return names


def check_same_names(
    names: Sequence[str], first: Frame, frame: Frame, strict: bool, exclude: Sequence[str]
) -> None:
    """Refuse a table whose columns are not those of the first."""
    gone = [n for n in names if n not in frame.columns]
    known = {*names, *exclude}
    more = [n for n in frame.columns if n not in known] if strict else []
    if gone or more:
        own = names_apart(first.name, frame.name)
        parts = [f"only {n} has {listed(c)}" for n, c in zip(own, (gone, more), strict=True) if c]
        both = [n for n in names if n in frame.columns]
        hint = f"To use the columns in both, name them: {','.join(both)}." if both else ""
        raise SchemaError(f"The columns differ: {'; '.join(parts)}. {hint}".rstrip())


def only_in(names: Sequence[Sequence[str]], tables: Sequence[str]) -> list[str]:
    """Which columns one of two tables has alone, a text for each table that has such.

    Example:
        >>> only_in([["a", "note"], ["a"]], ["orders.csv", "new.csv"])
        ['note (only in orders.csv)']
    """
    first, second = names
    own = names_apart(*tables)
    return [
        f"{listed(alone)} (only in {table})"
        for table, here, there in zip(own, names, (second, first), strict=True)
        if (alone := [n for n in here if n not in there])
    ]


def in_common(names: Sequence[Sequence[str]], tables: Sequence[str]) -> list[str]:
    """The columns that two tables have, in the order of the first; refused if there are none."""
    both = [n for n in names[0] if n in names[1]]
    if not both:
        own = names_apart(*tables)
        told = "; ".join(f"{t} has {listed(n)}" for t, n in zip(own, names, strict=True))
        raise SchemaError(f"The tables have no column in common: {told}.")
    return both


def without_others(frames: Sequence[Frame]) -> tuple[list[Frame], list[str]]:
    """Two tables with the columns that both have alike, and a line on those that are left out.

    Left out are columns that one table has alone, and those whose types have nothing in common.
    """
    tables = [f.name for f in frames]
    own = names_apart(*tables)
    names = [list(f.columns) for f in frames]
    told, kept, refused = only_in(names, tables), [], []
    for name in in_common(names, tables):
        try:
            pooled_column(name, frames)
            kept.append(name)
        except SchemaError as error:
            refused.append(error)
            types = [f.columns[name].type for f in frames]
            held = [family(t) for t in types]
            shown = held if held[0] != held[1] else types  # times with and without a zone
            told.append(f"{name} ({shown[0]} in {own[0]}, {shown[1]} in {own[1]})")
    if not kept:
        raise refused[0]
    if not told:
        return list(frames), []
    found = [replace(f, columns={n: f.columns[n] for n in kept},
                     types={n: f.types[n] for n in kept}) for f in frames]  # fmt: skip
    return found, [left_out_note(told)]


def left_out_note(told: Sequence[str]) -> str:
    """The line on columns that are not compared."""
    return f"Compared by the columns that both have; left out: {'; '.join(told)}."


def pooled_column(name: str, frames: Sequence[Frame]) -> tuple[ColumnType, list[Any]]:
    """A column of all tables in one type that holds them all."""
    from pyarrow import compute

    pieces = [f.columns[name] for f in frames]
    types = [f.types[name] for f in frames]
    kind = next((t for t, p in zip(types, pieces, strict=True) if family(p.type) != "nothing"),
                types[0])  # fmt: skip
    if len(frames) == 1:
        return kind, pieces
    arrow = load_pyarrow()
    found = {p.type for p in pieces if family(p.type) != "nothing"} or {pieces[0].type}
    if len(found) > 1:
        families = {family(t) for t in found}
        if families == {"numbers"}:
            whole = all(arrow.types.is_integer(t) for t in found)
            target = arrow.int64() if whole else arrow.float64()
        elif families == {"text"}:
            target = arrow.string()
        elif families == {"times"} and len({str(t).partition("[")[0] for t in found}) == 1:
            target = _time_type(name, frames, [p.type for p in pieces])
        else:
            listed_types = " and ".join(sorted(str(t) for t in found))
            raise SchemaError(
                f"Column {name} holds {listed_types} in different tables; convert them to one "
                "type, or exclude it."
            )
        kind = replace(kind, arrow=str(target), pandas=None, declared=None)
    else:
        target = found.pop()
    try:
        pieces = [p.cast(target) for p in pieces]
    except arrow.ArrowInvalid:
        pieces = [p.cast(arrow.float64(), safe=False) for p in pieces]
        kind = replace(kind, arrow="double", pandas=None)
    declared = [t.declared for t in types if t.declared is not None]
    if kind.declared is not None and len(set(declared)) > 1:
        seen = compute.unique(arrow.chunked_array([c for p in pieces for c in p.chunks], target))
        every = dict.fromkeys(v for d in declared for v in d)
        order = sorted(every, key=str) if len(seen) else list(every)
        kind = replace(kind, declared=tuple(order), ordered=False)
    return kind, pieces


def _time_type(name: str, frames: Sequence[Frame], types: Sequence[Any]) -> Any:
    """The finest of several types of time, in the zone of the first that has one."""
    timed = [(f, t) for f, t in zip(frames, types, strict=True) if family(t) == "times"]
    zoned = [(f, t) for f, t in timed if zone_of(t) is not None]
    plain = [f for f, t in timed if zone_of(t) is None]
    if zoned and plain:
        frame, kind = zoned[0]
        named = (
            (frame.name, plain[0].name)
            if frame.name != plain[0].name
            else ("one table", "another")
        )
        raise SchemaError(zones_differ(f"Column {name}", kind, *named))
    finest = min((t for _, t in timed), key=seconds_of)
    return load_pyarrow().timestamp(finest.unit, zone_of(zoned[0][1])) if zoned else finest


LONG_TEXT = 60  # characters, on average: convention
MOST_CATEGORIES = 10_000  # of text that nobody has called a category: convention
MOST_DECIMALS = 12  # of numbers that are rounded: convention
FEWEST_OF_AN_ATOM = 10  # rows: convention
NEIGHBOURS, STANDS_OUT = 20, 8  # an atom has so many times the rows of the values beside it
MOST_STANDING_OUT = 200
ROW_NUMBERS = re.compile(
    r"(.*[_ .-])?(id|key|index|rownames?|row[_ ]?(number|nr|no)?)|unnamed: 0|", re.I
)
MODELLED = ("numbers", "truth values", "text", "times", "nothing")


@dataclass(frozen=True)
class ColumnCells:
    """The cells of a column of one or several tables, by which its kind is judged.

    Attributes:
        name: Of the column.
        type: What it was for the caller.
        pieces: Its cells in each table, of one type.
        table: How messages begin.
        explained: Whether somebody has said why it is text.
    """

    name: str
    type: ColumnType
    pieces: Sequence[Any]
    table: str
    explained: bool = False

    @cached_property
    def filled(self) -> Any:
        """The cells of all tables that are not empty."""
        chunks = [c for p in self.pieces for c in p.chunks]
        return load_pyarrow().chunked_array(chunks, self.pieces[0].type).drop_null()

    @cached_property
    def gaps(self) -> float:
        """The share of cells that are empty."""
        return (self.rows - len(self.filled)) / max(1, self.rows)

    @property
    def rows(self) -> int:
        """How many cells there are."""
        return sum(len(p) for p in self.pieces)

    @property
    def holds(self) -> str:
        """What the cells are, in one word."""
        return family(self.pieces[0].type)

    @property
    def is_free(self) -> bool:
        """Whether nobody has declared which values there are."""
        return self.type.declared is None

    @cached_property
    def counted(self) -> tuple[Any, np.ndarray]:
        """Its values, and how many cells have each."""
        from pyarrow import compute

        counted = compute.value_counts(self.filled)
        values = counted.field("values")
        if self.holds == "text":
            values = values.cast(load_pyarrow().string())
        return values, counted.field("counts").to_numpy()

    @property
    def all_differ(self) -> bool:
        """Whether no value is there twice, in all tables together or in each."""
        return len(self.counted[0]) == len(self.filled) or all(
            len(p.unique().drop_null()) == len(p) - p.null_count > 1 for p in self.pieces
        )

    def left_out(self, what: str, reason: str, sure: bool = False) -> LeftOutColumn:
        """The column as one that no model sees, with the pattern of its keys."""
        pattern, kind = None, self.type
        interval = (kind.pandas or "").startswith("interval[")
        if what == "key" and self.is_free and not kind.mixed and not interval:
            texts = key_texts(self.filled)
            if texts is not None:
                pattern = KeyPattern.of(texts.unique(), len(texts), sure)
        return LeftOutColumn(self.name, kind, self.gaps, what, reason=reason, pattern=pattern)

    def constant(self) -> LeftOutColumn:
        """The column as one that has a single value."""
        plain = self.filled.slice(0, 1).combine_chunks()
        if self.holds == "times" or load_pyarrow().types.is_decimal(plain.type):
            plain = plain.cast("string")
        return LeftOutColumn(self.name, self.type, 0.0, "constant", plain[0].as_py())


@dataclass(frozen=True)
class Judge:
    """The settings by which kinds are found, and what is to be said about columns.

    Attributes:
        category_up_to: Whole numbers with at most so many distinct values are a category.
        atom_share: A number that so many of the rows have is an atom.
        atoms_up_to: Of a number column with at most so many distinct values, each is an atom.
        fold_below: Values of a category that are seen less often become "other"; None: no "other".
        remarks: Sentences about columns that may be meant otherwise.
    """

    category_up_to: int = 20
    atom_share: float = 0.004
    atoms_up_to: int = 300
    fold_below: int | None = None
    remarks: list[str] = field(default_factory=list)

    def column(self, cells: ColumnCells, wanted: str | None) -> Column:
        """The column of these cells; `wanted` is the kind that the caller has said."""
        if wanted in ("key", "text"):
            return cells.left_out(wanted, "as you said", sure=True)
        if cells.holds not in MODELLED:
            return cells.left_out("text", f"holds {cells.filled.type}")
        if not len(cells.filled):
            return LeftOutColumn(cells.name, cells.type, cells.gaps, "constant", None)
        kind = wanted or {"numbers": "number", "times": "time"}.get(cells.holds)
        if kind == "number":
            return self._number(cells, wanted)
        if kind == "time":
            return self._time(cells, wanted)
        return self._values(cells, wanted)

    def _values(self, cells: ColumnCells, wanted: str | None) -> Column:
        """Truth values or text, whatever the text tells; or any cells as a category."""
        if wanted == "category":
            return self._category(cells)
        values, _ = cells.counted
        if len(values) == 1 and not cells.gaps and cells.is_free:
            return cells.constant()
        if wanted == "constant":
            raise SchemaError(
                f"{cells.table}, column {cells.name}: has {len(values)} "
                f"values{' and gaps' if cells.gaps else ''}, so it is not a constant."
            )
        if cells.holds != "text" or not cells.is_free:
            return self._category(cells)
        if cells.type.mixed:
            return self._text(cells) or self._category(cells)
        return self._words(cells)

    def _words(self, cells: ColumnCells) -> Column:
        """Text by what it tells: times, numbers in a form, ids, free text, or a category."""
        values, counts = cells.counted
        dates = without_marks(values).drop_null()
        way = text_format(dates)
        note = time_note(cells.name, dates, way)
        if way is not None:
            self.remarks.extend([note] if note else [])
            return self._time(cells, None, way)
        look = look_at_numbers(values, counts=counts)
        if look.form is not None:
            return self._written_numbers(cells, look.form)
        note = note or look.note(cells.name)
        may_be_key = note is None or look.may_be_codes  # what is mostly money is no id
        note = None if cells.explained else note
        self.remarks.extend([note] if note else [])
        return self._text(cells, may_be_key) or self._category(cells)

    def _written_numbers(self, cells: ColumnCells, form: NumberForm) -> NumberColumn:
        numbers = form.read(cells.filled)
        gaps = (cells.rows - len(numbers) + numbers.null_count) / cells.rows
        x = numbers.drop_null().to_numpy()
        counted = np.unique(x, return_counts=True)
        decimals = _decimals(counted[0], np.float64)
        column = self._numbers(cells, counted, decimals=decimals)
        return replace(column, gaps=gaps, form=form)

    def _category(self, cells: ColumnCells) -> CategoryColumn:
        from pyarrow import compute

        values, counts = cells.counted
        if cells.is_free:
            keep = counts >= (0 if self.fold_below is None else self.fold_below)
            values = values.filter(load_pyarrow().array(keep))
            values = values.take(compute.sort_indices(values))
        else:
            values = declared_array(cells.type).cast(values.type)
        kept = values
        if cells.holds not in ("numbers", "truth values", "text"):
            kept = kept.cast("string")
        if load_pyarrow().types.is_decimal(kept.type):
            kept = kept.cast("string")
        return CategoryColumn(cells.name, cells.type, cells.gaps, tuple(kept.to_pylist()),
                              str(values.type), self.fold_below is not None)  # fmt: skip

    def _text(self, cells: ColumnCells, may_be_key: bool = True) -> LeftOutColumn | None:
        """Text that is no category: a key, or free text."""
        from pyarrow import compute

        values, _ = cells.counted
        if len(values) <= self.category_up_to:
            return None
        length = compute.mean(compute.utf8_length(values)).as_py()
        if length > LONG_TEXT:
            reason = f"text of {length:.0f} characters"
        elif cells.all_differ:
            reason = "all different"
        elif len(values) > MOST_CATEGORIES or 2 * len(values) > len(cells.filled):
            reason = f"{len(values):,} different values in {len(cells.filled):,} rows"
        else:
            return None
        spaced = compute.any(compute.match_substring_regex(values, r"\s")).as_py()
        if may_be_key and (length <= LONG_TEXT or not spaced):
            found = cells.left_out("key", reason)
            if found.pattern is not None:
                return found
        return cells.left_out("text", reason)

    def _number(self, cells: ColumnCells, wanted: str | None) -> Column:
        """A number, unless it is a constant, has few whole values, or counts rows."""
        if cells.holds == "text":
            form = look_at_numbers(cells.counted[0], sure=True).form
            if form is not None:
                return self._written_numbers(cells, form)
        filled = cells.filled
        integer = load_pyarrow().types.is_integer(filled.type)
        origin = origin_of(filled)
        x = plain_numbers(filled, cells.name, cells.table, origin)
        values, counts = np.unique(x, return_counts=True)
        decimals = 0 if integer else _decimals_of(values, filled.type)
        if wanted is None:
            if len(values) == 1 and not cells.gaps and cells.is_free:
                return cells.constant()
            exact = bool(not integer or origin or abs(x).max() < EXACT)
            few = len(values) <= self.category_up_to and 2 * len(values) <= len(x)
            if not cells.is_free or (few and (decimals == 0 or not exact)):
                return self._category(cells)
            whole = decimals == 0 and len(x) > self.category_up_to
            if whole and _is_key(cells, x, values, origin):
                return cells.left_out("key", "a row number")
        return self._numbers(cells, (values, counts), decimals=decimals, origin=origin)

    def _time(
        self, cells: ColumnCells, wanted: str | None, way: tuple[str, str] | None = None
    ) -> Column:
        filled = cells.filled
        if cells.holds == "text":
            filled = without_marks(filled).drop_null()
            way = way or text_format(filled.unique())
            if way is None:
                raise SchemaError(
                    f"{cells.table}, column {cells.name}: {filled[0].as_py()!r} and the others "
                    "are not all dates in one known format."
                )
            filled = parse_times(filled.cast(load_pyarrow().string()), *way)
        elif cells.holds != "times":
            raise SchemaError(
                f"{cells.table}, column {cells.name}: holds {filled.type}, which is not a time."
            )
        whole = ticks(filled)
        single = not cells.gaps and cells.is_free and whole.min() == whole.max()
        if wanted is None and single and way is None:
            return cells.constant()
        step = resolution(whole, seconds_of(filled.type))
        origin = int(whole.min())
        counted = np.unique((whole - origin) / step, return_counts=True)
        column = self._numbers(
            cells, counted, decimals=0, origin=origin, step=step, text=way, time=True
        )
        return replace(column, gaps=(cells.rows - len(whole)) / cells.rows)

    def _numbers(
        self, cells: ColumnCells, counted: tuple[np.ndarray, np.ndarray], **more: Any
    ) -> NumberColumn:
        """A column of these numbers, with its atoms and its scale."""
        values, counts = counted
        rows = counts.sum()
        all_atoms = len(values) <= self.atoms_up_to and rows >= FEWEST_OF_AN_ATOM * len(values)
        is_atom = counts >= max(self.atom_share * rows, FEWEST_OF_AN_ATOM)
        is_atom |= _stands_out(counts) | all_atoms
        rest = ~is_atom
        share = float(counts[rest].sum() / rows)
        if all_atoms or rest.sum() < 2:
            rest = np.ones_like(is_atom)
        return NumberColumn(
            cells.name, cells.type, cells.gaps, low=float(values[0]), high=float(values[-1]),
            atoms=values[is_atom], map=MonotoneMap.of(values[rest], counts[rest]),
            continuous=share, **more,
        )  # fmt: skip


def _stands_out(counts: np.ndarray) -> np.ndarray:
    """Values that far more rows have than those beside them, such as 4500 beside 4479."""
    found = np.zeros(len(counts), bool)
    if len(counts) <= 2 * NEIGHBOURS:
        return found
    windows = np.lib.stride_tricks.sliding_window_view(counts, 2 * NEIGHBOURS + 1)
    usual = np.pad(np.median(windows, axis=1), NEIGHBOURS, mode="edge")
    chosen = np.flatnonzero((counts >= FEWEST_OF_AN_ATOM) & (counts >= STANDS_OUT * usual))
    found[chosen[np.argsort(-counts[chosen], kind="stable")][:MOST_STANDING_OUT]] = True
    return found


def _counts_rows(x: np.ndarray, values: np.ndarray, name: str) -> bool:
    if len(values) < len(x):
        return False
    # Numbers that are drawn, not counted, would meet twice or leave one out.
    return bool(np.ptp(np.diff(values)) == 0 or ROW_NUMBERS.fullmatch(name.strip()))


def _is_key(cells: ColumnCells, x: np.ndarray, values: np.ndarray, origin: int) -> bool:
    """Whether whole numbers count rows, all together or in each table."""
    if _counts_rows(x, values, cells.name):
        return True
    if len(cells.pieces) < 2:
        return False
    each = [plain_numbers(p.drop_null(), cells.name, cells.table, origin) for p in cells.pieces]
    return all(len(e) > 1 and _counts_rows(e, np.unique(e), cells.name) for e in each)


def _decimals_of(values: np.ndarray, kind: Any) -> int | None:
    """The fewest decimals with which all values of an Arrow type can be written."""
    arrow = load_pyarrow()
    if arrow.types.is_decimal(kind):
        return max(0, kind.scale)
    return _decimals(values, np.float32 if kind in (arrow.float32(), arrow.float16())
                     else np.float64)  # fmt: skip


def _decimals(values: np.ndarray, own: Any) -> int | None:
    """The fewest decimals with which all values can be written in a precision."""
    given = values.astype(own)
    for decimals in range(MOST_DECIMALS + 1):
        if (rounded(values, decimals).astype(own) == given).all():
            return decimals if np.abs(values).max() * 10.0**decimals < EXACT else None
    return None
