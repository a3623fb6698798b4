"""Tables written to files of many kinds, piece by piece, whole or not at all.

A text file with its gaps filled, of which every other cell stays as it was written.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kermix.data.readers.common import load_pyarrow
from kermix.data.readers.csv_files import text_of_file
from kermix.data.readers.csv_form import CsvForm, as_cells, csv_lines, name_line, truth_words
from kermix.data.readers.frames import Frame
from kermix.data.schema.columns import family
from kermix.errors import OptionError, TableError
from kermix.files import whole_file

__all__ = [
    "WRITABLE",
    "CsvText",
    "TableWriter",
    "filled_text",
    "is_text",
    "spreadsheet_safe",
    "table_writer",
]

WRITABLE = (".csv", ".tsv", ".parquet", ".feather", ".jsonl", ".npy", ".csv.gz", ".csv.zst")
FORMULAS = "=+-@\t\r"  # what a spreadsheet takes for the beginning of a formula


class TableWriter(Protocol):
    """Takes Arrow tables of the same columns, one after the other."""

    def write(self, table: Any) -> None:
        """Write some rows."""


@contextmanager
def table_writer(
    path: str | Path, safe: bool = False, form: CsvForm | None = None
) -> Iterator[TableWriter]:
    """A writer for the format given by the file name; the file appears when everything is written.

    Args:
        path: .csv, .tsv (also with .gz or .zst), .parquet, .feather, .jsonl, or .npy if all
            columns are numbers without gaps.
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
            yield self._encoded(name_line(table.column_names, self._form))
        self._begun = True
        for text in csv_lines(table, self._form):
            yield self._encoded(text)

    def _encoded(self, text: str) -> bytes:
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
        if self.safe:
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
        packed = {".gz": "gzip", ".zst": "zstd"}.get(self.path.suffix.lower())
        self.text = CsvText(self.form, str(self.path))
        return arrow.output_stream(self.part, compression=packed)

    def put(self, table: Any) -> None:
        for data in self.text.pieces(table):
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


def filled_text(path: Path, frame: Frame, found: Any, names: Sequence[str]) -> Iterator[Any]:
    """The text of a file, some rows at a time, with new cells where there were gaps.

    Args:
        path: The file.
        frame: What was read from it.
        found: The same rows without gaps, an Arrow table.
        names: Columns whose gaps are filled.
    """
    assert frame.form is not None
    kept = list(found.column_names)
    styles = {name: _Style(frame.columns[name].type, frame.form) for name in names}
    start = 0
    for batch in text_of_file(path, frame.form, kept):
        rows = batch.num_rows
        columns = []
        for name in kept:
            text = load_pyarrow().chunked_array([batch.column(name)])
            if name in styles:
                read = frame.columns[name].slice(start, rows)
                text = styles[name].filled(text, read, found.column(name).slice(start, rows))
            columns.append(text)
        start += rows
        yield load_pyarrow().table(columns, names=kept)
    if start != frame.rows:
        raise TableError(f"{path}: has changed while it was read; {start} rows, not {frame.rows}.")


class _Style:
    """How a column of a file is written, as far as its first cells tell."""

    def __init__(self, kind: Any, form: CsvForm) -> None:
        self.form = form
        self.write: Callable[[Any], Any] = lambda cells: as_cells(cells, form)
        self.known = family(kind) not in ("times", "truth values")

    def filled(self, text: Any, read: Any, found: Any) -> Any:
        """Text with the cells found where nothing could be read."""
        from pyarrow import compute

        if not self.known and read.null_count < len(read):
            self._look(text, read)
        if not read.null_count:
            return text
        new = self.write(found)
        return compute.if_else(read.is_null(), new, text)

    def _look(self, text: Any, read: Any) -> None:
        from pyarrow import compute

        self.known = True
        if family(read.type) == "truth values":
            no, yes = truth_words(read, text)
            self.write = lambda cells: compute.if_else(cells, yes, no)
        elif "T" in text.filter(read.is_valid())[0].as_py():
            self.write = lambda cells: compute.replace_substring(
                as_cells(cells, self.form), " ", "T"
            )
