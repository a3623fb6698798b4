"""A text file with its gaps filled, of which every other cell stays as it was written."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from kermix.data.tables.columns import family
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.csv_files import text_of_file, whole_text
from kermix.data.tables.csv_form import CsvForm, as_cells, quoted, truth_words
from kermix.data.tables.frames import Frame
from kermix.errors import TableError

__all__ = ["filled_lines", "filled_text"]


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
    lines = _Lines(text, frame.form.delimiter)
    rows = [span for span in lines.spans() if span[0] < span[1]]  # an empty line is no row
    if frame.form.named:
        rows = rows[1:]
    width = len(found.column_names)
    if len(rows) != frame.rows or any(len(lines.cells(*row)) != width for row in rows[:1]):
        return None
    return _with_new_cells(path, frame, found, text, lines, rows)


def _with_new_cells(
    path: Path, frame: Frame, found: Any, text: str, lines: "_Lines", rows: list[tuple[int, int]]
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


class _Lines:
    """Where the rows of a text begin and end, and what their cells are, marks and all."""

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
        name: _Style(frame.columns[name].type, frame.form)
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

    def __init__(self, kind: Any, form: CsvForm) -> None:
        self.form = form
        self.write: Callable[[Any], Any] = lambda cells: as_cells(cells, form)
        self.known = family(kind) not in ("times", "truth values")

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
