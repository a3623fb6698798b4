"""Which kind a column is of, judged by all of its values whatever their order.

Columns of several tables as one, of a type that holds them all.

Columns that no model sees: constants, keys and free text.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np

from kermix.data.readers.common import listed, load_pyarrow, names_apart
from kermix.data.readers.frames import ColumnType, Frame, arrow_type, declared_array, typed_array
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
from kermix.data.schema.monotone import MonotoneMap
from kermix.data.schema.times import (
    parse_times,
    resolution,
    seconds_of,
    text_format,
    ticks,
    zone_of,
    zones_differ,
)
from kermix.errors import OptionError, SchemaError

__all__ = ["Judge", "LeftOutColumn", "check_same_names", "chosen_columns", "pooled_column"]


@dataclass(frozen=True, eq=False)
class LeftOutColumn(Column):
    """A constant, a key or free text: no model sees it."""

    what: str = "text"  # constant, key or text
    value: Any = None  # the constant, or the first of a key's numbers
    prefix: str = ""  # of a key that is text
    digits: int = 0
    reason: str = ""

    @property
    def kind(self) -> str:  # type: ignore[override]
        """A constant, a key, or text."""
        return self.what

    def decode(self, rows: int, first: int = 0) -> Any | None:
        """A constant again, a key numbered anew; free text does not come back.

        Args:
            rows: How many.
            first: How many rows are before them.
        """
        if self.what == "text":
            return None
        arrow = load_pyarrow()
        own = arrow_type(self.type.arrow)
        if self.what == "constant":
            if self.value is None:
                return arrow.nulls(rows, own)
            return typed_array([self.value], own).take(arrow.array(np.zeros(rows, np.int64)))
        numbers = range(self.value + first, self.value + first + rows)
        if family(own) == "text":
            return arrow.array([f"{self.prefix}{k:0{self.digits}d}" for k in numbers], own)
        if family(own) == "numbers":
            if arrow.types.is_decimal(own) or numbers.stop >= 2**63:
                return arrow.array([str(k) for k in numbers]).cast(own)
            return arrow.array(numbers, arrow.int64()).cast(own, safe=False)
        return arrow.nulls(rows, own)

    def details(self) -> str:
        """What becomes of it."""
        if self.what == "constant":
            return f"always {self.value!r}" if self.value is not None else "empty"
        return self.reason + ("; not modelled, renumbered" if self.what == "key" else "; left out")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        more = {n: getattr(self, n) for n in ("value", "prefix", "digits", "reason")}
        return {**super().to_dict(), **more}


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


LONG_TEXT = 60  # characters, on average
MOST_CATEGORIES = 10_000  # of text that nobody has called a category
MOST_DECIMALS = 12
FEWEST_OF_AN_ATOM = 10  # rows
NEIGHBOURS, STANDS_OUT = 20, 8  # an atom has so many times the rows of the values beside it
MOST_STANDING_OUT = 200
ROW_NUMBERS = re.compile(
    r"(.*[_ .-])?(id|key|index|rownames?|row[_ ]?(number|nr|no)?)|unnamed: 0|", re.I
)


@dataclass(frozen=True)
class Judge:
    """The settings by which kinds are found.

    Attributes:
        category_up_to: Whole numbers with at most so many distinct values are a category.
        atom_share: A number that so many of the rows have is an atom.
        atoms_up_to: Of a number column with at most so many distinct values, each is an atom.
        fold_below: Values of a category that are seen less often become "other"; None: no "other".
    """

    category_up_to: int = 20
    atom_share: float = 0.004
    atoms_up_to: int = 300
    fold_below: int | None = None

    def column(
        self, name: str, kind: ColumnType, pieces: Sequence[Any], wanted: str | None, table: str
    ) -> Column:
        """The column that holds all pieces; `wanted` is the kind that the caller has said."""
        arrow = load_pyarrow()
        whole = arrow.chunked_array([c for p in pieces for c in p.chunks], pieces[0].type)
        filled = whole.drop_null()
        gaps = whole.null_count / max(1, len(whole))
        holds = family(whole.type)
        if wanted in ("key", "text"):
            return _left_out(name, kind, gaps, wanted, filled, "as you said")
        known = ("numbers", "truth values", "text", "times", "nothing")
        if holds not in known:
            return _left_out(name, kind, gaps, "text", filled, f"holds {whole.type}")
        if not len(filled):
            return LeftOutColumn(name, kind, gaps, "constant", None)
        if wanted == "number" or (wanted is None and holds == "numbers"):
            return self._number(name, kind, gaps, pieces, filled, wanted, table)
        if wanted == "time" or (wanted is None and holds == "times"):
            return self._time(name, kind, gaps, filled, wanted, table)
        return self._category(name, kind, gaps, pieces, filled, wanted, table)

    def _category(
        self, name: str, kind: ColumnType, gaps: float, pieces: Sequence[Any], filled: Any,
        wanted: str | None, table: str,
    ) -> Column:  # fmt: skip
        from pyarrow import compute

        arrow = load_pyarrow()
        counted = compute.value_counts(filled)
        values, counts = counted.field("values"), counted.field("counts").to_numpy()
        if family(values.type) == "text" and values.type != arrow.string():
            values = values.cast(arrow.string())
        if wanted is None or wanted == "constant":
            if len(values) == 1 and not gaps and kind.declared is None:
                return _constant(name, kind, values)
            if wanted == "constant":
                raise SchemaError(
                    f"{table}, column {name}: has {len(values)} "
                    f"values{' and gaps' if gaps else ''}, so it is not a constant."
                )
        if wanted is None and kind.declared is None and family(values.type) == "text":
            way = None if kind.mixed else text_format(values)
            if way is not None:
                return self._time(name, kind, gaps, filled, None, table, way)
            left = self._text(name, kind, gaps, pieces, filled, values)
            if left is not None:
                return left
        keep = np.ones(len(values), bool)
        if self.fold_below is not None:
            keep = counts >= self.fold_below
        if kind.declared is None:
            kept = values.filter(arrow.array(keep))
            kept = kept.take(compute.sort_indices(kept))
        else:
            kept = _declared(kind, values.type)
        value_type = str(kept.type)
        plain = (
            kept
            if family(kept.type) in ("numbers", "truth values", "text")
            else kept.cast("string")
        )
        if arrow.types.is_decimal(plain.type):
            plain = plain.cast("string")
        return CategoryColumn(
            name, kind, gaps, tuple(plain.to_pylist()), value_type, self.fold_below is not None
        )

    def _text(
        self, name: str, kind: ColumnType, gaps: float, pieces: Sequence[Any], filled: Any,
        values: Any,
    ) -> Column | None:  # fmt: skip
        """Text that is no category: a key, or free text."""
        from pyarrow import compute

        if len(values) <= self.category_up_to:
            return None
        length = compute.mean(compute.utf8_length(values)).as_py()
        if length > LONG_TEXT:
            return _left_out(name, kind, gaps, "text", values, f"text of {length:.0f} characters")
        distinct = len(values) == len(filled) or all(
            len(p.unique().drop_null()) == len(p) - p.null_count > 1 for p in pieces
        )
        if distinct:
            return _left_out(name, kind, gaps, "key", values, "all different")
        if len(values) > MOST_CATEGORIES or 2 * len(values) > len(filled):
            reason = f"{len(values):,} different values in {len(filled):,} rows"
            return _left_out(name, kind, gaps, "text", values, reason)
        return None

    def _number(
        self, name: str, kind: ColumnType, gaps: float, pieces: Sequence[Any], filled: Any,
        wanted: str | None, table: str,
    ) -> Column:  # fmt: skip
        arrow = load_pyarrow()
        integer = arrow.types.is_integer(filled.type)
        origin = origin_of(filled)
        x = plain_numbers(filled, name, table, origin)
        values, counts = np.unique(x, return_counts=True)
        decimals = 0 if integer else _decimals(values, filled)
        if wanted is None:
            if len(values) == 1 and not gaps and kind.declared is None:
                return _constant(name, kind, filled.slice(0, 1).combine_chunks())
            exact = not integer or origin or abs(x).max() < EXACT
            few = len(values) <= self.category_up_to and 2 * len(values) <= len(x)
            if (
                kind.declared is not None
                or (decimals == 0 and few and exact)
                or (not exact and few)
            ):
                return self._category(name, kind, gaps, pieces, filled, "category", table)
            whole = decimals == 0 and len(x) > self.category_up_to
            if whole and self._is_key(name, x, values, pieces, table, origin):
                first = int(values[0]) + origin
                return LeftOutColumn(name, kind, gaps, "key", first, reason="a row number")
        return self._numbers(name, kind, gaps, (values, counts), decimals, origin)

    def _is_key(
        self, name: str, x: np.ndarray, values: np.ndarray, pieces: Sequence[Any], table: str,
        origin: int,
    ) -> bool:  # fmt: skip
        """Whether whole numbers count rows, all together or in each table."""
        if _counts_rows(x, values, name):
            return True
        if len(pieces) < 2:
            return False
        each = [plain_numbers(p.drop_null(), name, table, origin) for p in pieces]
        return all(len(e) > 1 and _counts_rows(e, np.unique(e), name) for e in each)

    def _time(
        self, name: str, kind: ColumnType, gaps: float, filled: Any, wanted: str | None,
        table: str, way: tuple[str, str] | None = None,
    ) -> Column:  # fmt: skip
        arrow = load_pyarrow()
        own = filled.type
        if family(own) == "text":
            way = way or text_format(filled.unique())
            if way is None:
                raise SchemaError(
                    f"{table}, column {name}: {filled[0].as_py()!r} and the others are not all "
                    "dates in one known format."
                )
            filled = parse_times(filled.cast(arrow.string()), *way)
            own = filled.type
        elif family(own) != "times":
            raise SchemaError(f"{table}, column {name}: holds {own}, which is not a time.")
        whole = ticks(filled)
        if wanted is None and not gaps and kind.declared is None and whole.min() == whole.max():
            value = filled.slice(0, 1) if way is None else None
            if value is not None:
                return _constant(name, kind, value.combine_chunks())
        step = resolution(whole, seconds_of(own))
        origin = int(whole.min())
        x = (whole - origin) / step
        counted = np.unique(x, return_counts=True)
        return self._numbers(name, kind, gaps, counted, 0, origin, step, way, True)

    def _numbers(
        self, name: str, kind: ColumnType, gaps: float, counted: tuple[np.ndarray, np.ndarray],
        decimals: int | None, origin: int = 0, step: int = 1,
        text: tuple[str, str] | None = None, time: bool = False,
    ) -> NumberColumn:  # fmt: skip
        values, counts = counted
        rows = counts.sum()
        all_atoms = len(values) <= self.atoms_up_to and rows >= FEWEST_OF_AN_ATOM * len(values)
        is_atom = counts >= max(self.atom_share * rows, FEWEST_OF_AN_ATOM)
        is_atom |= _stands_out(counts) | all_atoms
        rest = ~is_atom
        share = float(counts[rest].sum() / rows)
        if all_atoms or rest.sum() < 2:
            rest = np.ones_like(is_atom)
        low, high = float(values[0]), float(values[-1])
        learned = MonotoneMap.of(values[rest], counts[rest])
        return NumberColumn(
            name,
            kind,
            gaps,
            low,
            high,
            decimals,
            values[is_atom],
            learned,
            share,
            origin,
            step,
            text,
            time,
        )


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
    return values[-1] - values[0] == len(x) - 1 or bool(ROW_NUMBERS.fullmatch(name.strip()))


def _decimals(values: np.ndarray, filled: Any) -> int | None:
    """The fewest decimals with which all values can be written, in their own precision."""
    arrow = load_pyarrow()
    if arrow.types.is_decimal(filled.type):
        return max(0, filled.type.scale)
    own = np.float32 if filled.type in (arrow.float32(), arrow.float16()) else np.float64
    given = values.astype(own)
    for decimals in range(MOST_DECIMALS + 1):
        if (rounded(values, decimals).astype(own) == given).all():
            if np.abs(values).max() * 10.0**decimals >= EXACT:
                return None
            return decimals
    return None


def _constant(name: str, kind: ColumnType, values: Any) -> LeftOutColumn:
    holds = family(values.type)
    plain = values if holds in ("numbers", "truth values", "text") else values.cast("string")
    if load_pyarrow().types.is_decimal(plain.type):
        plain = plain.cast("string")
    return LeftOutColumn(name, kind, 0.0, "constant", plain[0].as_py())


def _left_out(
    name: str, kind: ColumnType, gaps: float, what: str, values: Any, reason: str
) -> LeftOutColumn:
    if what == "text" or not len(values):
        return LeftOutColumn(name, kind, gaps, what, 0, reason=reason)
    if family(values.type) == "text":
        words = values.to_pylist()
        pairs = takewhile(lambda p: p[0] == p[1], zip(min(words), max(words), strict=False))
        prefix = "".join(a for a, _ in pairs).rstrip("0123456789")
        rests = [w[len(prefix) :] for w in words]
        if all(r.isascii() and r.isdigit() and len(r) < 18 for r in rests):
            widths = {len(r) for r in rests}
            digits = widths.pop() if len(widths) == 1 else 0
            first = min(int(r) for r in rests)
            return LeftOutColumn(name, kind, gaps, what, first, prefix, digits, reason)
        return LeftOutColumn(name, kind, gaps, what, 1, reason=reason)
    first = 1
    if family(values.type) == "numbers":
        from pyarrow import compute

        first = int(compute.min(values).as_py())
    return LeftOutColumn(name, kind, gaps, what, first, reason=reason)


def _declared(kind: ColumnType, value_type: Any) -> Any:
    return declared_array(kind).cast(value_type)
