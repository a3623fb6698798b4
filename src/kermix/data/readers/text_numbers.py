"""Cells of text files: codes that look like numbers, and numbers that do not.

`01067` is no 1067; `2.480,29` is a number where commas are decimal marks, and `-` is a gap there.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kermix.data.readers.common import GAPS, MARKS, listed, load_pyarrow

__all__ = [
    "are_codes",
    "code_columns",
    "code_note",
    "has_padded_cells",
    "is_code_text",
    "may_be_codes",
    "numbers_of_text",
    "written_notes",
]

WHOLE = r"^\+?[0-9]+$"
PADDED = r"^\+?0[0-9]"
PHONE = r"^\+[0-9]{7,}$"
NUMBERS = {
    d: (
        re.compile(rf"[-+]?(\d+{m}?\d*|{m}\d+)([eE][-+]?\d+)?"),
        re.compile(rf"[-+]?\d{{1,3}}({t}\d{{3}})+({m}\d+)?"),
    )
    for d, m, t in ((".", r"\.", ","), (",", ",", r"\."))
}  # plain numbers by decimal mark, and those with marks between thousands
LONG = 19  # digits, with which 64 bits may not hold a whole number


def code_columns(batches: Iterable[Any], names: Sequence[str]) -> list[str]:
    """Columns of digits that are no numbers.

    Some cells have leading zeros, or all begin with a plus sign as telephone numbers do, or all
    are equally long and longer than numbers are.

    Args:
        batches: The rows as text, with gaps.
        names: Columns that were taken for numbers.

    Example:
        >>> import pyarrow
        >>> rows = pyarrow.table({"zip": ["01067", "50667"], "size": ["0.5", "0"]})
        >>> code_columns([rows], rows.column_names)
        ['zip']
    """
    looks = {name: _TextLook() for name in names}
    open_ = list(names)
    for batch in batches:
        open_ = [name for name in open_ if looks[name].still_digits(batch.column(name))]
        if not open_:
            break
    return [name for name in open_ if looks[name].is_code]


def may_be_codes(table: Any, content: Iterable[bytes], delimiter: str, encoding: str) -> list[str]:
    """Columns that a look at text could show to be codes: a quick test, for most files all.

    Args:
        table: The columns as Arrow reads them.
        content: The file.
        delimiter: Between cells.
        encoding: Of the file.
    """
    from pyarrow import compute

    types = load_pyarrow().types
    whole, fractions = [], []
    for field, column in zip(table.schema, table.columns, strict=True):
        if types.is_integer(field.type) and (compute.min(column).as_py() or 0) >= 0:
            whole.append(field.name)
        elif types.is_floating(field.type) and _all(compute.equal(column, compute.floor(column))):
            fractions.append(field.name)
    in_bytes = "0,".encode(encoding) == b"0,"  # else not to be found byte by byte
    if whole and in_bytes and not has_padded_cells(content, delimiter):
        whole = []
    return [*whole, *fractions]


def has_padded_cells(content: Iterable[bytes], delimiter: str) -> bool:
    """Whether some cell begins with a zero and another digit.

    Example:
        >>> has_padded_cells([b"0.5,0", b"7"], ","), has_padded_cells([b"10,20"], ",")
        (True, False)
    """
    before = np.zeros(256, bool)
    before[[ord(c) for c in f'{delimiter}"\n\r +']] = True
    carry = b"\n"
    for block in content:
        cells = np.frombuffer(carry + block, np.uint8)
        zeros = np.flatnonzero(cells[1:-1] == ord("0")) + 1
        digits = (cells[zeros + 1] >= ord("0")) & (cells[zeros + 1] <= ord("9"))
        if before[cells[zeros[digits] - 1]].any():
            return True
        carry = cells[-2:].tobytes()
    return False


class WrittenNumbers(NamedTuple):
    """A column of numbers that were written in an unusual way."""

    numbers: Any  # an Arrow array
    gaps: tuple[str, ...]  # what stands for a gap
    grouped: str | None  # a number with marks between thousands


def numbers_of_text(column: Any, decimal: str) -> WrittenNumbers | None:
    """Text as numbers, if all cells are numbers or gaps as people write them; else None.

    Args:
        column: Cells that are not all numbers as they stand.
        decimal: The decimal mark.

    Example:
        >>> import pyarrow
        >>> numbers_of_text(pyarrow.chunked_array([["2.480,29", "-", "7,5"]]), ",").numbers[0]
        <pyarrow.DoubleScalar: 2480.29>
    """
    from pyarrow import compute

    arrow = load_pyarrow()
    cells = compute.utf8_trim_whitespace(column)
    words = [w for w in compute.unique(cells).to_pylist() if w is not None]
    filled = [w for w in words if w not in GAPS]
    marks = tuple(sorted({w for w in words if w in MARKS}))
    plain, grouped = NUMBERS[decimal]
    odd = [w for w in filled if not plain.fullmatch(w)]
    if not filled or not (marks or odd) or not all(grouped.fullmatch(w) for w in odd):
        return None
    if are_codes(filled):
        return None
    thousands = "," if decimal == "." else "."
    values = {w: w.replace(thousands, "").replace(",", ".") for w in filled}
    encoded = cells.dictionary_encode().combine_chunks()
    shown = arrow.array([values.get(w) for w in encoded.dictionary.to_pylist()], arrow.string())
    kind = arrow.float64()
    if all(v.lstrip("+-").isdigit() and len(v) < LONG for v in values.values()):
        shown, kind = compute.utf8_ltrim(shown, "+"), arrow.int64()
    found = shown.cast(kind).take(encoded.indices)
    return WrittenNumbers(found, marks, odd[0] if odd else None)


def written_notes(name: str, found: Mapping[str, WrittenNumbers]) -> list[str]:
    """What to say of columns of such numbers."""
    notes = []
    gaps = {column: f for column, f in found.items() if f.gaps}
    grouped = {column: f for column, f in found.items() if f.grouped}
    if gaps:
        marks = listed(repr(m) for m in sorted({m for f in gaps.values() for m in f.gaps}))
        notes.append(
            f"{name}: {marks} in {listed(gaps)} means missing; if it is a value, use --kind "
            f"{next(iter(gaps))}=category."
        )
    if grouped:
        column, first = next(iter(grouped.items()))
        notes.append(
            f"{name}: {listed(grouped)} has thousands separators, as in {first.grouped!r}; if "
            f"these are not numbers, use --kind {column}=category."
        )
    return notes


def are_codes(words: Sequence[str]) -> bool:
    """Whether all words are codes, or gaps."""
    look = _TextLook()
    filled = [w for w in words if w not in GAPS]
    return look.still_digits(load_pyarrow().array(filled, "string")) and look.is_code


def is_code_text(column: Any) -> bool:
    """Whether a column is text of digits alone, which in another file might look like numbers."""
    from pyarrow import compute

    types = load_pyarrow().types
    if not types.is_string(column.type) or column.null_count == len(column):
        return False
    return _all(compute.match_substring_regex(compute.utf8_trim_whitespace(column), WHOLE))


def code_note(name: str, columns: Sequence[str]) -> str:
    """What to say of columns of codes."""
    return (
        f"{name}: digits of {listed(columns)} are text, because of leading zeros or signs; for "
        f"numbers, use --kind {columns[0]}=number."
    )


class _TextLook:
    """What was seen of a column so far."""

    def __init__(self) -> None:
        self.padded = False
        self.phones = True
        self.lengths: set[int] = set()

    def still_digits(self, cells: Any) -> bool:
        """Look at more cells; whether all of them are digits."""
        from pyarrow import compute

        cells = compute.utf8_trim_whitespace(cells.drop_null())
        if not len(cells):
            return True
        if not _all(compute.match_substring_regex(cells, WHOLE)):
            return False
        self.padded = self.padded or _any(compute.match_substring_regex(cells, PADDED))
        self.phones = self.phones and _all(compute.match_substring_regex(cells, PHONE))
        ends = compute.min_max(compute.binary_length(cells)).as_py()
        self.lengths |= {ends["min"], ends["max"]}
        return True

    @property
    def is_code(self) -> bool:
        if not self.lengths:
            return False
        long = len(self.lengths) == 1 and min(self.lengths) >= LONG
        return self.padded or self.phones or long


def _all(marks: Any) -> bool:
    from pyarrow import compute

    return bool(compute.all(marks).as_py())


def _any(marks: Any) -> bool:
    from pyarrow import compute

    return bool(compute.any(marks).as_py())
