"""What the cells of a column of text are: numbers, times, truth values, codes, or text.

This alone decides it, for files of all kinds. Cells come in batches, of which none is kept: a
column is first looked at to its end, and then read. Numbers with something around them, such as
$5, stay text here; `number_forms` reads them where a schema is made.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kermix.data.readers.common import MARKS, NULLS, listed, load_pyarrow
from kermix.data.readers.frames import arrow_type
from kermix.data.readers.number_forms import look_at_numbers

__all__ = ["CellType", "ColumnLook", "cell_notes", "typed_column"]

WHOLE = r"^\+?[0-9]+$"
PADDED = r"^\+?0[0-9]"
PHONE = r"^\+[0-9]{7,}$"
TRUTHS = "^(?i:true|false)$"
PAIR = re.compile("[A-Z]{2}")
CODED_GAP = "NA"  # a pair of letters, as codes of countries and states are
LONG = 19  # digits, with which 64 bits may not hold a whole number
FEW = 100  # cells that tell most types apart: convention
LOOKED_AT = 1000  # cells of text, for numbers with something around them: convention
WIDER = {  # what else may hold cells that a type holds, the narrowest first
    "int64": ("int64", "double"),
    "double": ("double",),
    "bool": ("bool",),
    "time32[s]": ("time32[s]",),
    "date32[day]": ("date32[day]", "timestamp[s]", "timestamp[ns]"),
    "timestamp[s]": ("timestamp[s]", "timestamp[ns]"),
    "timestamp[ns]": ("timestamp[ns]",),
    "timestamp[s, tz=UTC]": ("timestamp[s, tz=UTC]", "timestamp[ns, tz=UTC]"),
    "timestamp[ns, tz=UTC]": ("timestamp[ns, tz=UTC]",),
}
NUMBERS = ("int64", "double")


@dataclass(frozen=True)
class CellType:
    """What the cells of a column are.

    Attributes:
        name: The Arrow type, as `arrow_type` takes it: "string" for text, "null" if all are gaps.
        decimal: The decimal mark of numbers.
        gaps: What stands for a gap.
        marks: What else does in this column, such as "-" among numbers.
        why: Why it is text though it may seem not to be: "digits", or "letters" of which NA are
            two; else empty.
    """

    name: str
    decimal: str = "."
    gaps: tuple[str, ...] = NULLS
    marks: tuple[str, ...] = ()
    why: str = ""

    def read(self, cells: Any) -> Any:
        """Cells in this type, with nulls for gaps."""
        from pyarrow import compute

        trimmed = compute.utf8_trim_whitespace(cells)
        empty = _is_in(trimmed, (*self.gaps, *self.marks))
        if self.name == "string":
            return compute.if_else(empty, None, cells)
        return _cast(compute.if_else(empty, None, trimmed), self.name, self.decimal)


class ColumnLook:
    """Looks at a column, some cells after the others.

    Args:
        decimal: The decimal mark.
        kind: The kind that the user has said, one of `KINDS`.
        text: Whether it is known to be text.
        missing: What else stands for a gap, as the user has said.

    Example:
        >>> import pyarrow
        >>> look = ColumnLook()
        >>> look.add(pyarrow.array(["1", "2"]))
        >>> look.add(pyarrow.array(["2.5", ""]))
        >>> look.found().read(pyarrow.array(["7", "NA"])).to_pylist()
        [7.0, None]
    """

    def __init__(
        self, decimal: str = ".", kind: str | None = None, text: bool = False,
        missing: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self._decimal, self._kind, self._gaps = decimal, kind, (*NULLS, *missing)
        self._name = "string" if text else "null"
        self._marks: set[str] = set()
        self._codes, self._pairs = _CodeLook(), _PairLook(CODED_GAP not in missing)
        self._some: list[str] = []

    def add(self, cells: Any) -> None:
        """Look at more cells."""
        from pyarrow import compute

        cells = cells.combine_chunks() if hasattr(cells, "chunks") else cells
        trimmed = compute.utf8_trim_whitespace(cells)
        self._pairs.add(trimmed)
        filled = trimmed.filter(compute.invert(_is_in(trimmed, self._gaps)))
        if self._name != "string":
            self._widen(filled)
        if self._name == "string" and len(self._some) < LOOKED_AT:
            self._some += filled.slice(0, LOOKED_AT).to_pylist()

    def _widen(self, filled: Any) -> None:
        """Take the narrowest type that holds these cells and those before."""
        from pyarrow import compute

        marked = _is_in(filled, MARKS)
        self._marks |= {*filled.filter(marked).unique().to_pylist()}
        filled = filled.filter(compute.invert(marked))
        if not len(filled):
            return
        wider = tuple(WIDER) if self._name == "null" else WIDER[self._name]
        few = filled.slice(0, FEW)  # which most types are not that cells do not have
        fits = (n for n in wider if _holds(few, n, self._decimal))
        self._name = next((n for n in fits if _holds(filled, n, self._decimal)), "string")
        if self._name in NUMBERS:
            self._codes.add(filled)

    def found(self) -> CellType:
        """What all cells together are."""
        name, marks = self._name, tuple(sorted(self._marks))
        is_number = name in NUMBERS
        if is_number and self._kind != "number" and self._codes.is_code:
            return CellType("string", self._decimal, self._gaps, why="digits")
        if is_number and (not marks or self._kind in (None, "number")):
            return CellType(name, self._decimal, self._gaps, marks)
        if name != "string" and not marks:
            return CellType(name, self._decimal, self._gaps)
        if self._pairs.are_codes:
            gaps = tuple(gap for gap in self._gaps if gap != CODED_GAP)
            return CellType("string", self._decimal, gaps, why="letters")
        return CellType("string", self._decimal, self._gaps, self._marks_of_text())

    def _marks_of_text(self) -> tuple[str, ...]:
        """What stands for a gap in text that holds numbers with something around them."""
        if self._kind not in (None, "number") or not self._some:
            return ()
        cells = load_pyarrow().array(self._some, "string")
        return MARKS if look_at_numbers(cells, self._decimal).form is not None else ()


def typed_column(cells: Any, **said: Any) -> tuple[Any, CellType]:
    """A whole column of text in the type of its cells, and what that is.

    Args:
        cells: Text.
        **said: As `ColumnLook` takes it.

    Example:
        >>> import pyarrow
        >>> typed_column(pyarrow.array(["7,5", "-", "8"]), decimal=",")[0].to_pylist()
        [7.5, None, 8.0]
        >>> typed_column(pyarrow.array(["01067", "50667"]))[0].to_pylist()
        ['01067', '50667']
    """
    look = ColumnLook(**said)
    look.add(cells)
    found = look.found()
    return found.read(cells), found


def cell_notes(name: str, types: Mapping[str, CellType]) -> list[str]:
    """What to say of columns whose cells may be meant otherwise.

    Args:
        name: Of the file.
        types: What the cells of columns are.

    Example:
        >>> print(cell_notes("t.csv", {"zip": CellType("string", why="digits")})[0][:29])
        t.csv: digits of zip are text
    """
    notes = []
    marked = {n: t for n, t in types.items() if t.marks and t.name in NUMBERS}
    digits, letters = ([n for n, t in types.items() if t.why == w] for w in ("digits", "letters"))
    if marked:
        marks = listed(repr(m) for m in sorted({m for t in marked.values() for m in t.marks}))
        notes.append(
            f"{name}: {marks} in {listed(marked)} means missing; if it is a value, use --kind "
            f"{next(iter(marked))}=category."
        )
    if digits:
        notes.append(
            f"{name}: digits of {listed(digits)} are text, because of leading zeros or signs; for "
            f"numbers, use --kind {digits[0]}=number."
        )
    if letters:
        notes.append(
            f"{name}: {CODED_GAP} in {listed(letters)} is a code of two letters as the others; if "
            f"it means missing, use --missing {CODED_GAP}."
        )
    return notes


class _CodeLook:
    """Whether digits are codes: by zeros before them, by a sign before all, or by their length."""

    def __init__(self) -> None:
        self.digits = True
        self.padded = False
        self.phones = True
        self.lengths: set[int] = set()

    def add(self, cells: Any) -> None:
        from pyarrow import compute

        if not self.digits:
            return
        self.digits = _all(compute.match_substring_regex(cells, WHOLE))
        self.padded = self.padded or _any(compute.match_substring_regex(cells, PADDED))
        self.phones = self.phones and _all(compute.match_substring_regex(cells, PHONE))
        ends = compute.min_max(compute.binary_length(cells)).as_py()
        self.lengths |= {ends["min"], ends["max"]}

    @property
    def is_code(self) -> bool:
        if not self.digits or not self.lengths:
            return False
        long = len(self.lengths) == 1 and min(self.lengths) >= LONG
        return self.padded or self.phones or long


class _PairLook:
    """Whether all cells are pairs of capital letters, NA among them."""

    def __init__(self, may_be: bool) -> None:
        self.may_be, self.values = may_be, set[str]()

    def add(self, trimmed: Any) -> None:
        from pyarrow import compute

        filled = trimmed.drop_null().filter(compute.not_equal(trimmed.drop_null(), ""))
        if not self.may_be or not len(filled):
            return
        self.may_be = PAIR.fullmatch(filled[0].as_py()) is not None and _all(
            compute.match_substring_regex(filled, f"^{PAIR.pattern}$")
        )
        if self.may_be:
            self.values |= {*filled.unique().to_pylist()}

    @property
    def are_codes(self) -> bool:
        return self.may_be and CODED_GAP in self.values and len(self.values) > 2


def _holds(cells: Any, name: str, decimal: str) -> bool:
    """Whether all cells can be read in a type."""
    from pyarrow import compute

    arrow = load_pyarrow()
    if decimal != "." and name == "double" and _any(compute.match_substring(cells, ".")):
        return False
    try:
        _cast(cells, name, decimal)
    except arrow.ArrowInvalid:
        return False
    # Arrow takes 0x1F for 31.
    return name != "int64" or not _any(compute.match_substring(cells, "x", ignore_case=True))


def _cast(cells: Any, name: str, decimal: str) -> Any:
    from pyarrow import compute

    arrow = load_pyarrow()
    if name == "null":
        return arrow.nulls(len(cells))
    if name == "bool" and not _all(compute.match_substring_regex(cells, TRUTHS)):
        raise arrow.ArrowInvalid("no truth values")  # 0 and 1 are numbers, also beside them
    if name == "double" and decimal != ".":
        cells = compute.replace_substring(cells, decimal, ".")
    if name == "time32[s]":
        if not _all(compute.match_substring_regex(cells, "^[0-9]{2}:[0-9]{2}(:[0-9]{2})?$")):
            raise arrow.ArrowInvalid("no times of day")
        cells = compute.binary_join_element_wise("1970-01-01", cells, " ").cast("timestamp[s]")
    return cells.cast(arrow_type(name))


def _is_in(cells: Any, words: Sequence[str]) -> Any:
    """Which cells are one of some words, or null."""
    from pyarrow import compute

    return compute.is_in(cells, value_set=load_pyarrow().array([*words, None], "string"))


def _all(marks: Any) -> bool:
    from pyarrow import compute

    return compute.all(marks).as_py() is not False


def _any(marks: Any) -> bool:
    from pyarrow import compute

    return bool(compute.any(marks).as_py())
