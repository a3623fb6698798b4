"""Tables written to files of many kinds, piece by piece, whole or not at all.

`filled_text` keeps every cell of a text file as it was written, but for the gaps that are filled.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kermix.data.readers.common import PACKED, WRITABLE, CsvForm, load_pyarrow
from kermix.data.readers.delimited import text_of_file, whole_text
from kermix.data.readers.dialect import truth_words
from kermix.data.readers.formats import ROWS
from kermix.data.readers.frames import (
    Frame,
    family,
)
from kermix.data.readers.number_forms import NumberForm
from kermix.errors import OptionError, TableError
from kermix.files import whole_file

__all__ = [
    "CsvText",
    "TableWriter",
    "csv_lines",
    "filled_lines",
    "filled_text",
    "is_text",
    "spreadsheet_safe",
    "table_writer",
]

FORMULAS = "=+-@\t\r"  # what a spreadsheet takes for the beginning of a formula


class TableWriter(Protocol):
    """Takes Arrow tables of the same columns, one after the other; for a text file, also text."""

    def write(self, table: Any) -> None:
        """Write some rows."""


@contextmanager
def table_writer(
    path: str | Path, safe: bool = False, form: CsvForm | None = None
) -> Iterator[TableWriter]:
    """A writer for the format given by the file name; the file appears when everything is written.

    Args:
        path: A name that ends as one of `WRITABLE`; .npy if all columns are numbers without gaps.
        safe: Whether to escape text that a spreadsheet would take for a formula.
        form: How a text file is written; by default with commas, decimal points and UTF-8.

    Example:
        >>> import pyarrow, tempfile
        >>> folder = tempfile.TemporaryDirectory()
        >>> with table_writer(Path(folder.name) / "t.csv", safe=True) as writer:
        ...     writer.write(pyarrow.table({"n": [1], "text": ["=1+1"]}))
        ...     writer.write(pyarrow.table({"n": [2], "text": ["fine"]}))
        >>> print((Path(folder.name) / "t.csv").read_text().strip())
        n,text
        1,'=1+1
        2,fine
        >>> folder.cleanup()
    """
    path = Path(path)
    ends = path.name.lower()
    if not any(ends.endswith(s) for s in WRITABLE):
        raise OptionError(f"{path}: tables are written as {', '.join(WRITABLE)}.")
    with whole_file(path) as part:
        writer: _Writer
        if ends.endswith(".npy"):
            writer = _Npy(part, path, safe)
        elif ends.endswith(".parquet"):
            writer = _Parquet(part, path, safe)
        elif ends.endswith(".feather"):
            writer = _Feather(part, path, safe)
        elif ends.endswith(".jsonl"):
            writer = _Json(part, path, safe)
        else:
            writer = _Csv(part, path, safe, form or CsvForm())
        try:
            yield writer
        finally:
            writer.close()


def is_text(path: Path) -> bool:
    """Whether a file of this name is written as text with delimiters."""
    return any(end in (".csv", ".tsv") for end in path.suffixes[-2:])


def spreadsheet_safe(table: Any) -> Any:
    """The table with a quotation mark before text, and names, that begin like a formula."""
    from pyarrow import compute

    arrow = load_pyarrow()
    pattern = "^[" + "".join("\\" + c for c in FORMULAS) + "]"
    columns = []
    for column in table.columns:
        if arrow.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if family(column.type) == "text":
            marks = compute.match_substring_regex(column, pattern)
            escaped = compute.binary_join_element_wise("'", column.cast(arrow.string()), "")
            column = compute.if_else(marks, escaped, column.cast(arrow.string()))
        columns.append(column)
    names = ["'" + n if n[:1] in FORMULAS and n else n for n in table.column_names]
    return arrow.table(columns, names=names)


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
        named = zip(part.column_names, part.columns, strict=True)
        cells = [quoted(as_cells(column, form, name), form) for name, column in named]
        if alone:
            rows = cells[0].fill_null('""')
        else:
            rows = compute.binary_join_element_wise(
                *cells, form.delimiter, null_handling="replace", null_replacement=""
            )
        yield form.line_end.join([*rows.to_pylist(), ""])


def as_cells(column: Any, form: CsvForm, name: str | None = None) -> Any:
    """A column as text, as one of its name is written; numbers have the form's decimal mark."""
    from pyarrow import compute

    arrow = load_pyarrow()
    types = arrow.types
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    way = form.ways.get(name, {}) if name is not None else {}
    if types.is_boolean(column.type):
        no, yes = way.get("truths", form.truths)
        return compute.if_else(column, yes, no)
    if family(column.type) == "numbers":
        return _written_numbers(column, form, way)
    if way and (types.is_timestamp(column.type) or types.is_time(column.type)):
        return _written_times(column, way)
    return column.cast(arrow.string())


def _written_numbers(column: Any, form: CsvForm, way: Mapping[str, Any]) -> Any:
    from pyarrow import compute

    arrow = load_pyarrow()
    if "form" in way:
        numbers = column.cast(arrow.float64(), safe=False)
        empty = np.asarray(numbers.is_null())
        texts = NumberForm.from_dict(way["form"]).write(numbers.fill_null(0.0).to_numpy())
        return arrow.chunked_array([arrow.array(texts, arrow.string(), mask=empty)])
    text = column.cast(arrow.string())
    if arrow.types.is_floating(column.type):
        text = _with_decimals(text, way.get("decimals", 0))
    return text if form.decimal == "." else compute.replace_substring(text, ".", form.decimal)


def _with_decimals(text: Any, decimals: int) -> Any:
    """Numbers with at least so many digits after the point; those with an exponent as they are."""
    from pyarrow import compute

    for k in range(decimals):
        point, zeros = ("", ".") if k == 0 else (rf"\.\d{{{k}}}", ""), "0" * (decimals - k)
        text = compute.replace_substring_regex(text, rf"^(-?\d+{point[0]})$",
                                               rf"\1{point[1]}{zeros}")  # fmt: skip
    return text


def _written_times(column: Any, way: Mapping[str, Any]) -> Any:
    from pyarrow import compute

    arrow, kind = load_pyarrow(), column.type
    between, zone = way.get("between", " "), way.get("zone")
    if zone is None or getattr(kind, "tz", None) is None:
        text = _as_exact(column.cast(arrow.string()), way)
        return compute.replace_substring(text, " ", between)
    column = column.cast(arrow.timestamp(kind.unit, zone))
    text = _as_exact(compute.local_timestamp(column).cast(arrow.string()), way)
    offset: Any = way["offset"]
    if offset != "Z":
        offset = compute.strftime(column, format="%z", locale="C").cast(arrow.string())
        ends = {"+00:00": r"\1:\2", "+00": r"\1"}.get(way["offset"])
        if ends is not None:
            offset = compute.replace_substring_regex(offset, r"^([+-]\d\d)(\d\d)$", ends)
    text = compute.replace_substring(text, " ", between)
    return compute.binary_join_element_wise(text, offset, "")


def _as_exact(text: Any, way: Mapping[str, Any]) -> Any:
    """Times with as much of their seconds as the file has."""
    from pyarrow import compute

    exact = way.get("exact")
    if exact is None:
        return text
    if exact == "minutes":
        return compute.replace_substring_regex(text, r"(:\d\d):00(?:\.0+)?$", r"\1")
    text = compute.replace_substring_regex(text, rf"(\.\d{{{exact}}})0+$", r"\1")
    return compute.replace_substring_regex(text, r"\.0+$", "") if way.get("bare") else text


def quoted(cells: Any, form: CsvForm) -> Any:
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
    cells = quoted(load_pyarrow().array(list(names)), form).to_pylist()
    return form.delimiter.join(cells) + form.line_end


def _escaped(character: str) -> str:
    return f"\\x{{{ord(character):x}}}"


class CsvText:
    """Text of Arrow tables of the same columns, one after the other, with their names once.

    Args:
        form: How the text is written.
        name: Of the file, for messages.
    """

    def __init__(self, form: CsvForm, name: str) -> None:
        self._form, self._name = form, name
        self._encoder, self._begun = form.encoder(), False

    def pieces(self, table: Any) -> Iterator[bytes]:
        """Some rows, many at a time."""
        if self._form.named and not self._begun:
            yield self.encoded(name_line(table.column_names, self._form))
        self._begun = True
        for text in csv_lines(table, self._form):
            yield self.encoded(text)

    def encoded(self, text: str) -> bytes:
        """Text as it is written, such as whole lines."""
        try:
            return self._encoder.encode(text)
        except UnicodeEncodeError as error:
            raise TableError(
                f"{self._name}: {text[error.start]!r} cannot be written in "
                f"{self._form.encoding}, the encoding of the input; write another kind of file, "
                "such as .parquet."
            ) from None


class _Writer:
    """Opens what it writes to with the first rows, whose columns all others have."""

    def __init__(self, part: Path, path: Path, safe: bool) -> None:
        self.part, self.path, self.safe = part, path, safe
        self.open: Any = None

    def write(self, table: Any) -> None:
        """Write some rows."""
        if self.safe and not isinstance(table, str):
            table = spreadsheet_safe(table)
        if self.open is None:
            self.open = self.opened(table)
        self.put(table)

    def opened(self, table: Any) -> Any:
        raise NotImplementedError

    def put(self, table: Any) -> None:
        self.open.write_table(table)

    def close(self) -> None:
        if self.open is not None:
            self.open.close()


class _Csv(_Writer):
    def __init__(self, part: Path, path: Path, safe: bool, form: CsvForm) -> None:
        super().__init__(part, path, safe)
        tabs = ".tsv" in path.name.lower()
        self.form = replace(form, delimiter="\t") if tabs else form

    def opened(self, table: Any) -> Any:
        arrow = load_pyarrow()
        packed = PACKED.get(self.path.suffix.lower())
        self.text = CsvText(self.form, str(self.path))
        return arrow.output_stream(self.part, compression=packed)

    def put(self, table: Any) -> None:
        pieces = [self.text.encoded(table)] if isinstance(table, str) else self.text.pieces(table)
        for data in pieces:
            self.open.write(data)


class _Parquet(_Writer):
    def opened(self, table: Any) -> Any:
        from pyarrow import parquet

        return parquet.ParquetWriter(self.part, table.schema)


class _Feather(_Writer):
    def opened(self, table: Any) -> Any:
        arrow = load_pyarrow()
        options = arrow.ipc.IpcWriteOptions(unify_dictionaries=True)
        return arrow.ipc.new_file(str(self.part), _plain(table).schema, options=options)

    def put(self, table: Any) -> None:
        self.open.write_table(_plain(table))


class _Json(_Writer):
    def opened(self, table: Any) -> Any:
        return self.part.open("w", encoding="utf-8")

    def put(self, table: Any) -> None:
        import json

        for row in table.to_pylist():
            self.open.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")


class _Npy(_Writer):
    """Numbers; how many rows there are is known, and written, at the end."""

    rows = 0

    def opened(self, table: Any) -> Any:
        self.width = table.num_columns
        file = self.part.open("wb")
        file.write(self._header())
        return file

    def _header(self) -> bytes:
        shape = (self.rows, self.width)
        text = str({"descr": "<f8", "fortran_order": False, "shape": shape})
        return (
            b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little") + text.ljust(117).encode() + b"\n"
        )

    def put(self, table: Any) -> None:
        for name, column in zip(table.column_names, table.columns, strict=True):
            if family(column.type) not in ("numbers", "truth values") or column.null_count:
                raise TableError(
                    f"{self.path}: column {name} is not all numbers, so no .npy file is written; "
                    "use .csv or .parquet."
                )
        columns = [np.asarray(c.to_numpy(), dtype=np.float64) for c in table.columns]
        self.open.write(np.stack(columns, axis=1).tobytes())
        self.rows += table.num_rows

    def close(self) -> None:
        if self.open is not None:
            self.open.seek(0)
            self.open.write(self._header())
        super().close()


def _plain(table: Any) -> Any:
    """Without dictionaries, which not every kind of file has."""
    arrow = load_pyarrow()
    columns = [
        c.cast(c.type.value_type) if arrow.types.is_dictionary(c.type) else c
        for c in table.columns
    ]
    return arrow.table(columns, names=table.column_names)


def filled_lines(path: Path, frame: Frame, found: Any) -> Iterator[str] | None:
    """The text of a file with new cells where there were gaps, and not a letter else changed.

    None if that cannot be, as where a quotation mark is missing so that lines cannot be told
    apart, or if the table has some of its columns alone: use `filled_text` then.

    Args:
        path: The file.
        frame: What was read from it.
        found: The same rows with fewer gaps, an Arrow table.
    """
    assert frame.form is not None
    try:
        text = whole_text(path, frame.form)
    except UnicodeDecodeError:
        return None
    lines = _RawRows(text, frame.form.delimiter)
    rows = [span for span in lines.spans() if span[0] < span[1]]  # an empty line is no row
    if frame.form.named:
        rows = rows[1:]
    width = len(found.column_names)
    if len(rows) != frame.rows or any(len(lines.cells(*row)) != width for row in rows[:1]):
        return None
    return _with_new_cells(path, frame, found, text, lines, rows)


def _with_new_cells(
    path: Path, frame: Frame, found: Any, text: str, lines: "_RawRows", rows: list[tuple[int, int]]
) -> Iterator[str]:
    done = start = 0
    for batch, new in _new_cells(path, frame, found):
        changed: dict[int, dict[int, str]] = {}
        for name, (where, cells) in new.items():
            column = found.column_names.index(name)
            assert frame.form is not None
            shown = quoted(cells, frame.form).filter(where).to_pylist()
            for row, cell in zip(np.flatnonzero(where).tolist(), shown, strict=True):
                changed.setdefault(row, {})[column] = cell
        parts = []
        for row in sorted(changed):
            first, last = rows[start + row]
            cells = lines.cells(first, last)
            own = [changed[row].get(k, cell) for k, cell in enumerate(cells)]
            parts += [text[done:first], lines.delimiter.join(own)]
            done = last
        start += batch.num_rows
        yield "".join(parts)
    yield text[done:]


class _RawRows:
    """Where the rows of a text begin and end, and what their cells are, marks and all.

    Args:
        text: The rows.
        delimiter: Between cells.
    """

    def __init__(self, text: str, delimiter: str) -> None:
        self._text, self.delimiter = text, delimiter
        other = rf"[^{re.escape(delimiter)}\r\n]"
        # What follows a closing quotation mark belongs to the cell, as for Arrow.
        cell = rf'(?:"(?:[^"]++|"")*+"{other}*+|(?!"){other}++)?+'
        self._cell = re.compile(cell)
        self._row = re.compile(rf"{cell}(?:{re.escape(delimiter)}{cell})*+(\r\n|\n|\r|\Z)")

    def spans(self) -> Iterator[tuple[int, int]]:
        """Beginning and end of each row, without what ends its line."""
        place = 0
        while place < len(self._text) and (row := self._row.match(self._text, place)):
            yield place, row.start(1)
            place = row.end()

    def cells(self, first: int, last: int) -> list[str]:
        """The cells of a row as they are written."""
        found = []
        while True:
            cell = self._cell.match(self._text, first, last)
            assert cell is not None  # it may be empty
            found.append(cell[0])
            first = cell.end() + len(self.delimiter)
            if first > last:
                return found


def filled_text(path: Path, frame: Frame, found: Any) -> Iterator[Any]:
    """The cells of a file as text, some rows at a time, with new ones where there were gaps.

    Args:
        path: The file.
        frame: What was read from it.
        found: The same rows with fewer gaps, an Arrow table.
    """
    from pyarrow import compute

    for batch, new in _new_cells(path, frame, found):
        columns = []
        for name in found.column_names:
            text = load_pyarrow().chunked_array([batch.column(name)])
            text = compute.if_else(compute.equal(text, ""), None, text)  # written as it was
            if name in new:
                where, cells = new[name]
                text = compute.if_else(load_pyarrow().array(where), cells, text)
            columns.append(text)
        yield load_pyarrow().table(columns, names=found.column_names)


def _new_cells(
    path: Path, frame: Frame, found: Any
) -> Iterator[tuple[Any, dict[str, tuple[np.ndarray, Any]]]]:
    """Rows of a file as text; of columns with gaps that are filled, which, and the new text."""
    assert frame.form is not None
    names = list(found.column_names)
    styles = {
        name: _Style(name, frame.columns[name].type, frame.form)
        for name in names
        if frame.columns[name].null_count > found.column(name).null_count
    }
    start = 0
    for batch in text_of_file(path, frame.form, names):
        rows, new = batch.num_rows, {}
        for name, style in styles.items():
            read = frame.columns[name].slice(start, rows)
            cells = found.column(name).slice(start, rows)
            style.look(load_pyarrow().chunked_array([batch.column(name)]), read)
            where = np.asarray(read.is_null()) & np.asarray(cells.is_valid())
            if where.any():
                new[name] = where, style.write(cells)
        start += rows
        yield batch, new
    if start != frame.rows:
        raise TableError(f"{path}: has changed while it was read; {start} rows, not {frame.rows}.")


class _Style:
    """How a column of a file is written, as far as its first cells tell."""

    def __init__(self, name: str, kind: Any, form: CsvForm) -> None:
        self.form = form
        self.write: Callable[[Any], Any] = lambda cells: as_cells(cells, form, name)
        self.known = name in form.ways or family(kind) not in ("times", "truth values")

    def look(self, text: Any, read: Any) -> None:
        """Look at cells as they are written, unless enough were seen."""
        from pyarrow import compute

        if self.known or read.null_count == len(read):
            return
        self.known = True
        if family(read.type) == "truth values":
            no, yes = truth_words(read, text)
            self.write = lambda cells: compute.if_else(cells, yes, no)
        elif "T" in text.filter(read.is_valid())[0].as_py():
            self.write = lambda cells: compute.replace_substring(
                as_cells(cells, self.form), " ", "T"
            )
