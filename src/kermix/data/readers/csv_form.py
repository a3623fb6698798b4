"""How a text file is written, and lines written in the same way."""

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from kermix.data.readers.common import load_pyarrow

__all__ = ["TRUTHS", "CsvForm", "as_cells", "csv_lines", "name_line", "truth_words"]

ROWS = 65_536  # that are made into text at once
TRUTHS = ("false", "true")


@dataclass(frozen=True)
class CsvForm:
    """How a text file is written.

    Attributes:
        delimiter: Between cells.
        decimal: "." or ",".
        encoding: As Python calls it; "utf-8-sig" begins with a mark.
        line_end: Of each row.
        named: Whether the first line holds the names of columns.
        truths: What is written for no and for yes.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    line_end: str = "\n"
    named: bool = True
    truths: tuple[str, str] = TRUTHS

    def __post_init__(self) -> None:
        if self.delimiter == self.decimal:
            object.__setattr__(self, "delimiter", ";")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any] | None) -> "CsvForm":
        """What was saved, or the usual form."""
        given = dict(saved or {})
        return cls(**{**given, "truths": tuple(given.get("truths", TRUTHS))})

    def between(self, source: str, target: str) -> "CsvForm":
        r"""The form of a file that comes from another: tabs belong to the ending .tsv.

        Example:
            >>> CsvForm("\t").between("t.tsv", "t.csv").delimiter
            ','
        """
        tabs = [".tsv" in name.lower() for name in (source, target)]
        if tabs[0] == tabs[1]:
            return self
        return replace(self, delimiter="\t" if tabs[1] else ",")

    def encoder(self) -> codecs.IncrementalEncoder:
        """Makes bytes of one text after the other."""
        return codecs.getincrementalencoder(self.encoding)()


def csv_lines(table: Any, form: CsvForm) -> Iterator[str]:
    r"""The rows of an Arrow table as text, many at a time, without names.

    Example:
        >>> import pyarrow
        >>> table = pyarrow.table({"a": [1.5, None], "b": ["x;y", "z"]})
        >>> list(csv_lines(table, CsvForm(";", ",")))
        ['1,5;"x;y"\n;z\n']
    """
    from pyarrow import compute

    alone = table.num_columns == 1  # an empty line would be no row
    for start in range(0, table.num_rows, ROWS):
        part = table.slice(start, ROWS)
        cells = [_quoted(as_cells(column, form), form) for column in part.columns]
        if alone:
            rows = cells[0].fill_null('""')
        else:
            rows = compute.binary_join_element_wise(
                *cells, form.delimiter, null_handling="replace", null_replacement=""
            )
        yield form.line_end.join([*rows.to_pylist(), ""])


def as_cells(column: Any, form: CsvForm) -> Any:
    """A column as text; numbers have the form's decimal mark."""
    from pyarrow import compute

    arrow = load_pyarrow()
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_boolean(column.type) and form.truths != TRUTHS:
        return compute.if_else(column, form.truths[1], form.truths[0])
    text = column.cast(arrow.string())
    if form.decimal != "." and (types.is_floating(column.type) or types.is_decimal(column.type)):
        text = compute.replace_substring(text, ".", form.decimal)
    return text


def truth_words(read: Any, text: Any) -> tuple[str, str]:
    """How no and yes are written in a column; of a word that is not there, as the other one is.

    Args:
        read: Truth values.
        text: The same cells as they are written.

    Example:
        >>> import pyarrow
        >>> truth_words(pyarrow.array([None, True]), pyarrow.array(["", "TRUE"]))
        ('FALSE', 'TRUE')
    """
    from pyarrow import compute

    places = [compute.index(read, value).as_py() for value in (False, True)]
    words = [text[place].as_py() if place >= 0 else None for place in places]
    known = next((word for word in words if word is not None), TRUTHS[0])
    cased = str.upper if known.isupper() else str.title if known.istitle() else str.lower
    no, yes = (word or cased(usual) for word, usual in zip(words, TRUTHS, strict=True))
    return no, yes


def _quoted(cells: Any, form: CsvForm) -> Any:
    """Text with quotation marks around what would otherwise not be read as one cell."""
    from pyarrow import compute

    special = compute.match_substring_regex(cells, f'["\\r\\n{_escaped(form.delimiter)}]|^$')
    if not compute.any(special).as_py():
        return cells
    doubled = compute.replace_substring(cells, '"', '""')
    around = compute.binary_join_element_wise('"', doubled, '"', "")
    return compute.if_else(special, around, cells)


def name_line(names: Sequence[str], form: CsvForm) -> str:
    """The first line."""
    cells = _quoted(load_pyarrow().array(list(names)), form).to_pylist()
    return form.delimiter.join(cells) + form.line_end


def _escaped(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"
