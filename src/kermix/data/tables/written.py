"""Cells of text files that look like numbers and are codes: `01067` is no 1067."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from kermix.data.tables.common import listed, load_pyarrow

__all__ = ["GAPS", "code_columns", "code_note", "has_padded_cells", "is_code_text", "may_be_codes"]

WHOLE = r"^\+?[0-9]+$"
PADDED = r"^\+?0[0-9]"
PHONE = r"^\+[0-9]{7,}$"
NULLS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
         "1.#QNAN", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip
MARKS = ("-", "--", "?", "none", "None", "NONE", ".", "na", "N.A.", "n.a.", "<NA>")
GAPS = frozenset((*NULLS, *MARKS))  # what stands for a gap among numbers; the first anywhere
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
    looks = {name: _Look() for name in names}
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
        f"{name}: digits of {listed(columns)} are text, with their leading zeros and signs; for "
        f"numbers, say --kind {columns[0]}=number."
    )


class _Look:
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
