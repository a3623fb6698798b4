"""Columns by kind: how each becomes codes and numbers, and how it comes back.

Numbers are floats; whole and decimal ones far from zero are differences that lose nothing.
"""

import math
import re
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, ClassVar

import numpy as np

from kermix.data.readers.common import counted, listed, load_pyarrow
from kermix.data.readers.frames import ColumnType, arrow_type, family, typed_array
from kermix.data.readers.number_forms import NumberForm, without_marks
from kermix.data.schema.monotone import MonotoneMap
from kermix.data.schema.times import (
    from_ticks,
    parse_times,
    seconds_of,
    ticks,
    write_times,
    zone_of,
    zones_differ,
)
from kermix.errors import SchemaError

__all__ = [
    "EXACT",
    "UNKNOWN",
    "CategoryColumn",
    "Column",
    "NumberColumn",
    "as_floats",
    "from_floats",
    "origin_of",
    "rounded",
]

STEPS: dict[float, str] = {86_400: "a day", 3600: "an hour", 60: "a minute", 1: "a second"}
EXACT = 2**53  # whole numbers below are floats
DIGITS = Context(prec=100)  # of decimal numbers; 76 at most


def origin_of(filled: Any) -> int:
    """A whole number near to all cells, so that differences are exact or nearly so; 0 if none is.

    Args:
        filled: Cells without gaps, of whole or decimal numbers, at least one.

    Example:
        >>> import pyarrow
        >>> origin_of(pyarrow.array([10**18 + 5, 10**18 + 7])), origin_of(pyarrow.array([5, 7]))
        (1000000000000000005, 0)
    """
    from pyarrow import compute

    types = load_pyarrow().types
    if not types.is_integer(filled.type) and not types.is_decimal(filled.type):
        return 0
    ends = compute.min_max(filled).as_py()
    places = _places(filled.type)
    low, high = (_unscaled(ends[name], places) for name in ("min", "max"))
    near = high - low < max(EXACT, min(abs(low), abs(high)))
    if max(abs(low), abs(high)) < EXACT or not near:
        return 0
    return math.floor(ends["min"])


def as_floats(filled: Any, origin: int) -> np.ndarray:
    """Cells without gaps, less an origin."""
    arrow = load_pyarrow()
    if origin and arrow.types.is_integer(filled.type):
        # Python's whole numbers do not overflow.
        return (np.asarray(filled.to_numpy()).astype(object) - origin).astype(np.float64)
    if origin and arrow.types.is_decimal(filled.type):
        places = _places(filled.type)
        base, unit = origin * 10**places, 10**places
        cells = filled.to_pylist()
        return np.array([(_unscaled(c, places) - base) / unit for c in cells], dtype=np.float64)
    numbers = np.asarray(filled.cast(arrow.float64(), safe=False).to_numpy(), dtype=np.float64)
    return numbers - origin if origin else numbers


def from_floats(numbers: np.ndarray, origin: int, own: Any, gone: np.ndarray) -> Any:
    """Floats plus an origin as an Arrow array of a type of numbers, with gaps."""
    arrow = load_pyarrow()
    if arrow.types.is_integer(own):
        return arrow.array(_whole(numbers, origin, own), mask=gone).cast(own)
    if arrow.types.is_decimal(own):
        if origin:
            places = _places(own)
            base, unit = origin * 10**places, 10.0**places
            cells = [None if g else DIGITS.scaleb(Decimal(round(n * unit) + base), -places)
                     for n, g in zip(numbers.tolist(), gone.tolist(), strict=True)]  # fmt: skip
            return arrow.array(cells, own)
        from pyarrow import compute

        found = compute.round(arrow.array(numbers, mask=gone), ndigits=own.scale)
        return found.cast(arrow.decimal256(70, own.scale)).cast(own)
    return arrow.array(numbers, mask=gone).cast(own)


def rounded(numbers: np.ndarray, decimals: int) -> np.ndarray:
    """Numbers with so many decimals; those too large to have any stay as they are."""
    factor = 10.0**decimals
    small = np.abs(numbers) < EXACT / factor
    with np.errstate(over="ignore"):
        return np.where(small, np.rint(numbers * factor) / factor, numbers)


def _places(kind: Any) -> int:
    """Digits after the point."""
    return max(0, kind.scale) if load_pyarrow().types.is_decimal(kind) else 0


def _unscaled(value: Any, places: int) -> int:
    return int(DIGITS.scaleb(value, places)) if isinstance(value, Decimal) else int(value)


def _whole(numbers: np.ndarray, origin: int, own: Any) -> np.ndarray:
    """Floats as whole numbers; the least and the largest of their type where they are beyond."""
    info = np.iinfo(own.to_pandas_dtype())
    wide = np.uint64 if info.min == 0 else np.int64
    if origin:
        steps = [round(n) + origin for n in numbers.tolist()]
        return np.array([min(max(s, info.min), info.max) for s in steps], dtype=wide)
    over = numbers >= float(info.max)
    found = np.where(over, 0.0, np.maximum(numbers, float(info.min))).astype(wide)
    found[over] = info.max
    return found


UNKNOWN = -1  # a code: this cell is not known
NOTHING_IN_IT = re.compile(r" 00:00:00(\.0+)?$|(?<=:\d\d)\.0+(?=Z?$)")  # zeros of a time


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a table: its name, what it was, and its kind."""

    kind: ClassVar[str] = ""
    name: str
    type: ColumnType
    gaps: float  # share of missing values

    @property
    def has_missing(self) -> bool:
        """Whether it has a code for missing values."""
        return self.gaps > 0

    @property
    def code_names(self) -> tuple[str, ...]:
        """A name for each code, in order."""
        return ()

    @property
    def code_count(self) -> int:
        """How many codes there are."""
        return len(self.code_names)

    @property
    def missing_code(self) -> int | None:
        """The code of missing values: the last one."""
        return self.code_count - 1 if self.has_missing else None

    @property
    def has_continuous(self) -> bool:
        """Whether code 0 stands for the continuous part, whose number tells the value."""
        return False

    def details(self) -> str:
        """What to tell about it, in a few words."""
        return ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"name": self.name, "kind": self.kind, "type": self.type.to_dict(),
                "gaps": self.gaps}  # fmt: skip


@dataclass(frozen=True, eq=False)
class CategoryColumn(Column):
    """One code for each value; then "other", if there is one, and "missing"."""

    kind: ClassVar[str] = "category"
    values: tuple[Any, ...]  # as JSON has them
    value_type: str  # of Arrow
    other: bool = False

    @property
    def code_names(self) -> tuple[str, ...]:
        """The values, "other" and "missing"."""
        more = ("(other)",) * self.other + ("(missing)",) * self.has_missing
        return (*(str(v) for v in self.values), *more)

    def encode(self, column: Any, table: str, unseen: str, first_row: int = 0) -> np.ndarray:
        """Codes of the cells; `unseen` says what becomes of values that were never seen."""
        from pyarrow import compute

        arrow = load_pyarrow()
        value_set = typed_array(list(self.values), arrow_type(self.value_type))
        empty = np.asarray(column.is_null().to_numpy())
        cells = _cast(column, value_set.type, self, table)
        if cells.type != value_set.type:
            value_set = value_set.cast(cells.type, safe=False)
        places = compute.index_in(cells, value_set=value_set).fill_null(UNKNOWN)
        codes = np.array(places.to_numpy(), dtype=np.int64)
        new = (codes == UNKNOWN) & ~empty
        if new.any():
            if unseen == "other" and self.other:
                codes[new] = len(self.values)
            elif unseen != "unknown":
                found = compute.unique(cells.filter(arrow.array(new))).to_pylist()
                ways = "unseen='other'" if self.other else "fold_below=1 when the schema is made"
                raise SchemaError(
                    f"{table}, row {first_row + int(new.argmax())}, column {self.name}: the "
                    f"schema has no value {listed(repr(v) for v in found[:3])} ({int(new.sum())} "
                    f"such cells, {len(found)} distinct). To allow unseen values, use {ways}."
                )
        return _with_gaps(codes, empty, self, table, unseen, first_row)

    def decode(self, codes: np.ndarray) -> Any:
        """The values of codes, as an Arrow array of the column's own type."""
        arrow = load_pyarrow()
        values = typed_array(list(self.values), arrow_type(self.value_type))
        gone = (codes >= len(self.values)) | (codes < 0)
        if self.other and family(values.type) == "text":
            values = arrow.concat_arrays([values, arrow.array(["other"], values.type)])
            gone = (codes > len(self.values)) | (codes < 0)
        taken = values.take(arrow.array(np.where(gone, 0, codes), mask=gone))
        return taken.cast(arrow_type(self.type.arrow))

    def details(self) -> str:
        """Some of its values."""
        shown = ", ".join(str(v) for v in self.values[:4])
        more = ", ..." if len(self.values) > 4 else ""
        return f"{len(self.values)} values: {shown}{more}"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        more = {"values": list(self.values), "value_type": self.value_type, "other": self.other}
        return {**super().to_dict(), **more}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "CategoryColumn":
        """What was saved, its type apart; ValueError if it is damaged."""
        values = typed_array(saved["values"], arrow_type(saved["value_type"]))
        if len(values.unique()) < len(values):
            raise ValueError(f"column {saved['name']} has a value twice")
        return cls(**{**saved, "values": tuple(saved["values"])})


@dataclass(frozen=True, eq=False)
class NumberColumn(Column):
    """Code 0 is the continuous part; then a code for each atom, and "missing".

    Numbers are looked at as `(value - origin) / step`: times as whole steps since the first, huge
    integers as differences, others as they are.
    """

    low: float
    high: float
    decimals: int | None  # None: all digits count
    atoms: np.ndarray  # increasing
    map: MonotoneMap
    continuous: float  # share of the filled cells that are no atoms
    origin: int = 0
    step: int = 1
    text: tuple[str, str] | None = None  # how times are written, and their unit
    time: bool = False
    form: NumberForm | None = None  # how numbers are written that are text

    @property
    def kind(self) -> str:  # type: ignore[override]
        """A number, or a time."""
        return "time" if self.time else "number"

    @property
    def has_continuous(self) -> bool:
        """Always: a value that was never seen has a density."""
        return True

    @property
    def code_names(self) -> tuple[str, ...]:
        """The continuous part, the atoms and "missing"."""
        return (
            "(continuous)",
            *(f"{a:g}" for a in self.atoms),
            *("(missing)",) * self.has_missing,
        )

    @property
    def code_count(self) -> int:
        """How many codes there are."""
        return 1 + len(self.atoms) + self.has_missing

    def encode(
        self, column: Any, table: str, unseen: str, first_row: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Codes of the cells, and normal scores of those that are no atoms (0 elsewhere)."""
        column = self.with_gaps(column)
        empty = np.asarray(column.is_null().to_numpy())
        numbers = self.numbers(column, table)
        codes, scores = np.zeros(len(empty), np.int64), np.zeros(len(empty))
        found = np.zeros(len(numbers), np.int64)
        if len(self.atoms):
            places = np.searchsorted(self.atoms, numbers).clip(max=len(self.atoms) - 1)
            found = np.where(self.atoms[places] == numbers, places + 1, 0)
        present = np.flatnonzero(~empty)
        codes[present] = found
        codes[empty] = UNKNOWN
        rest = found == 0
        scores[present[rest]] = self.map(numbers[rest])
        return _with_gaps(codes, empty, self, table, unseen, first_row), scores

    def with_gaps(self, column: Any) -> Any:
        """Cells without the marks that stand for gaps among written numbers or times: "-"."""
        if (self.form is None and self.text is None) or family(column.type) != "text":
            return column
        return without_marks(column)

    def numbers(self, column: Any, table: str) -> np.ndarray:
        """The numbers of the cells that are not missing."""
        filled = self.with_gaps(column).drop_null()
        if not len(filled):
            return np.empty(0)
        own = arrow_type(self.type.arrow)
        if self.text is not None:
            filled = _cast(filled, load_pyarrow().string(), self, table)
            times = parse_times(filled, *self.text)
            if times is None or times.null_count:
                bad = filled if times is None else filled.filter(times.is_null())
                raise SchemaError(
                    f"{table}, column {self.name}: {bad[0].as_py()!r} is not a time written as "
                    f"{self.text[0]}, as the schema says."
                )
            return self._shifted(ticks(times))
        if self.time:
            return self._shifted(ticks(_cast(filled, own, self, table)))
        if self.form is not None and family(filled.type) == "text":
            return self._read(filled, table)
        return plain_numbers(filled, self.name, table, self.origin)

    def _read(self, filled: Any, table: str) -> np.ndarray:
        """The numbers of cells that are text."""
        assert self.form is not None
        numbers = self.form.read(filled)
        if numbers.null_count:
            bad = filled.filter(numbers.is_null())[0].as_py()
            usual = self.form.write(np.array([self.low]))[0]
            raise SchemaError(
                f"{table}, column {self.name}: {bad!r} is not a number written as {usual!r} is, "
                "as the schema says."
            )
        return np.asarray(numbers.to_numpy(), dtype=np.float64)

    def _shifted(self, whole: np.ndarray) -> np.ndarray:
        return (whole - self.origin) / self.step

    def numbers_of(self, codes: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """The numbers of encoded cells, inside the column's range; NaN where they are missing."""
        numbers = np.array(self.map.inverse(scores), float)
        at = (codes > 0) & (codes <= len(self.atoms))
        numbers[at] = self.atoms[codes[at] - 1]
        numbers = np.clip(numbers, self.low, self.high)
        numbers[(codes < 0) | (codes > len(self.atoms))] = np.nan
        return numbers

    def decode(self, codes: np.ndarray, scores: np.ndarray) -> Any:
        """Values, rounded as the column's own are and inside its range, as an Arrow array."""
        numbers = self.map.inverse(scores)
        if len(self.atoms):
            at = (codes > 0) & (codes <= len(self.atoms))
            numbers[at] = self.atoms[codes[at] - 1]
        if self.decimals is not None:
            numbers = rounded(numbers, self.decimals)
        numbers = np.clip(numbers, self.low, self.high)
        gone = (codes > len(self.atoms)) | (codes < 0)
        numbers[gone] = self.low
        arrow = load_pyarrow()
        own = arrow_type(self.type.arrow)
        if self.text is not None:
            whole = numbers.astype(np.int64) * self.step + self.origin
            return write_times(
                from_ticks(whole, arrow.timestamp(self.text[1]), gone), self.text[0]
            )
        if self.time:
            return from_ticks(numbers.astype(np.int64) * self.step + self.origin, own, gone)
        if self.form is not None:
            return arrow.array(self.form.write(numbers), "string", mask=gone).cast(own)
        if family(own) == "text":
            return arrow.array(numbers, mask=gone).cast("string")
        return from_floats(numbers, self.origin, own, gone)

    def log_derivative(self, codes: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Logarithm of the map's derivative by the number in the user's units, seconds for times.

        The probability of an atom becomes a density where it is divided by the step to which
        numbers are rounded; it stays as it is where all digits count, and that of a gap too.
        """
        number = np.where(codes <= len(self.atoms), self.log_density_of_one, 0.0)
        return np.where(codes == 0, self.map.log_derivative(scores) - self._log_unit, number)

    @property
    def log_density_of_one(self) -> float:
        """Log-density of a value that is sure: one by the step to which numbers are rounded."""
        return 0.0 if self.decimals is None else self.decimals * math.log(10) - self._log_unit

    @property
    def _log_unit(self) -> float:
        return math.log(self.step * seconds_of(self.time_type)) if self.time else 0.0

    def positions(self, codes: np.ndarray, scores: np.ndarray) -> np.ndarray:
        """Normal scores of all cells, atoms among them; 0 where a value is missing."""
        table = np.concatenate([[0.0], self.map(self.atoms), [0.0]])
        return np.where(codes == 0, scores, table[np.clip(codes, 0, len(table) - 1)])

    def shown(self, number: float, digits: int = 6) -> str:
        """A number as the column has it: a time, or written in its form."""
        if self.time:
            return self.shown_time(number)
        if self.form is not None:
            return self.form.write(np.array([number]))[0].strip()
        return f"{number + self.origin:.{digits}g}"

    def shown_time(self, number: float | None) -> str:
        """A number of steps as the time that it stands for."""
        if number is None:
            return "nothing"
        ticks_ = np.array([round(number)], dtype=np.int64) * self.step + self.origin
        shown = from_ticks(ticks_, self.time_type, np.zeros(1, bool)).cast("string")
        return NOTHING_IN_IT.sub("", str(shown[0].as_py()))

    @property
    def time_type(self) -> Any:
        """The Arrow type of its times, also of those that are text."""
        if self.text is None:
            return arrow_type(self.type.arrow)
        return load_pyarrow().timestamp(self.text[1])

    def details(self) -> str:
        """Its range, its digits and its atoms."""
        if self.time:
            seconds = seconds_of(self.time_type) * self.step
            first, last = (self.shown_time(v) for v in (self.low, self.high))
            told = f"{first} to {last}, steps of {STEPS.get(seconds, f'{seconds:g} s')}"
        else:
            low, high = (self.shown(v) for v in (self.low, self.high))
            told = f"{low} to {high}"
            if self.decimals is not None:
                told += f", {counted(self.decimals, 'decimal') if self.decimals else 'whole'}"
        return told + (f", {counted(len(self.atoms), 'atom')}" if len(self.atoms) else "")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        more = {
            n: getattr(self, n)
            for n in ("low", "high", "decimals", "continuous", "origin", "step", "time")
        }
        text = None if self.text is None else list(self.text)
        form = {} if self.form is None else {"form": self.form.to_dict()}
        atoms = self.atoms.tolist()
        return {**super().to_dict(), **more, "text": text, **form, "atoms": atoms,
                "map": self.map.to_dict()}  # fmt: skip

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "NumberColumn":
        """What was saved, its type apart; ValueError if it is damaged."""
        fields, text = dict(saved), saved["text"]
        if text is not None and [type(part) for part in text] != [str, str]:
            raise ValueError(f"text is {text!r:.60}")
        atoms = np.array(fields["atoms"], np.float64)
        if (
            not fields["low"] <= fields["high"]
            or atoms.ndim != 1
            or not (np.diff(atoms) > 0).all()
        ):
            raise ValueError(f"the numbers of column {fields['name']} do not increase")
        fields |= {"map": MonotoneMap.from_dict(fields["map"]), "atoms": atoms,
                   "text": None if text is None else tuple(text)}  # fmt: skip
        if "form" in fields:
            fields["form"] = NumberForm.from_dict(fields["form"])
        return cls(**fields)


def plain_numbers(filled: Any, name: str, table: str, origin: int = 0) -> np.ndarray:
    """Cells without gaps as finite floats, less an origin."""
    arrow = load_pyarrow()
    if family(filled.type) not in ("numbers", "text"):
        raise SchemaError(
            f"{table}, column {name}: holds {filled.type}, and the schema says numbers."
        )
    try:
        numbers = as_floats(filled, origin)
    except arrow.ArrowInvalid as error:
        text = str(error).partition(": '")[2].partition("'")[0]
        raise SchemaError(f"{table}, column {name}: {text!r} is not a number.") from None
    if not np.isfinite(numbers).all():
        bad = ~np.isfinite(numbers)
        raise SchemaError(
            f"{table}, column {name}: {int(bad.sum())} values are infinite; remove or replace "
            "them."
        )
    return numbers


def _cast(column: Any, kind: Any, owner: Column, table: str) -> Any:
    """Cells in the schema's type, where that loses nothing."""
    if column.type == kind:
        return column
    arrow = load_pyarrow()
    given = family(column.type)
    if given == family(kind) == "times" and (zone_of(column.type) is None) != (
        zone_of(kind) is None
    ):
        zoned, first, second = column.type, table, "the schema"
        if zone_of(zoned) is None:
            zoned, first, second = kind, second, first
        raise SchemaError(zones_differ(f"{table}, column {owner.name}", zoned, first, second))
    if given == "text" and family(kind) == "times":
        return _read_times(column, kind, owner, table)
    if given in (family(kind), "nothing"):
        try:
            return column.cast(kind)
        except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
            if given == "numbers":  # 1.5 among whole numbers
                return column.cast(arrow.float64(), safe=False)
    raise SchemaError(
        f"{table}, column {owner.name}: holds {given} ({column.type}), and the schema says "
        f"{owner.kind} of {family(kind)} ({owner.type.shown})."
    )


def _read_times(column: Any, kind: Any, owner: Column, table: str) -> Any:
    """Times that are written as the standard has it, where the schema has times that are not."""
    arrow = load_pyarrow()
    try:
        return column.cast(arrow.string()).cast(kind)
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError):
        forms = "2024-01-31 or 2024-01-31 12:30:00"
        if zone_of(kind) is not None:
            forms = "2024-01-31 12:30:00+00:00, with its zone"
        raise SchemaError(
            f"{table}, column {owner.name}: {column.drop_null()[0].as_py()!r} and the others are "
            f"not all times written as {forms}; the schema says {owner.type.shown}."
        ) from None


def _with_gaps(
    codes: np.ndarray, empty: np.ndarray, owner: Column, table: str, unseen: str, first_row: int
) -> np.ndarray:
    if not empty.any():
        return codes
    if owner.missing_code is not None:
        codes[empty] = owner.missing_code
    elif unseen != "unknown":
        raise SchemaError(
            f"{table}, row {first_row + int(empty.argmax())}, column {owner.name}: "
            f"{int(empty.sum())} values are missing, but the schema was learned from rows "
            "without missing values in it."
        )
    return codes
