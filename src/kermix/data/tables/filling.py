"""A text file with its gaps filled, of which every other cell stays as it was written."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kermix.data.tables.columns import family
from kermix.data.tables.common import load_pyarrow
from kermix.data.tables.csv_files import text_of_file
from kermix.data.tables.csv_form import CsvForm, as_cells, truth_words
from kermix.data.tables.frames import Frame
from kermix.errors import TableError

__all__ = ["filled_text"]


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
