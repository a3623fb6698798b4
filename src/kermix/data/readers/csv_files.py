"""Text files as Arrow columns, and as the text that they are."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kermix.data.readers.common import kind_of_file, load_pyarrow
from kermix.data.readers.csv_form import CsvForm, truth_words
from kermix.data.readers.numpy_files import most_bytes
from kermix.data.readers.sniff import CsvLook, Reading, latin_note, look_at_csv
from kermix.data.readers.text_numbers import (
    code_columns,
    code_note,
    may_be_codes,
    numbers_of_text,
    written_notes,
)
from kermix.errors import SizeError, TableError

__all__ = ["read_csv", "text_batches", "text_of_file", "unpacked"]

HEAD = 2**16
TEXT_BLOCK = 2**24


def unpacked(path: Path, packed: str) -> bytes:
    """The content of a packed file, unpacked no further than a limit."""
    arrow = load_pyarrow()
    size = path.stat().st_size
    limit = most_bytes(size)
    parts, total = [], 0
    try:
        with arrow.input_stream(path, compression=packed) as stream:
            while part := stream.read(2**24):
                total += len(part)
                if total > limit:
                    raise SizeError(
                        f"{path}: would expand from {size} bytes to more than {limit >> 20} MiB; "
                        "unpack it yourself if that is right."
                    )
                parts.append(part)
    except (OSError, EOFError, arrow.ArrowException) as error:
        raise TableError(
            f"{path}: cannot be unpacked ({' '.join(str(error).split()).rstrip('.')})."
        ) from None
    return b"".join(parts)


def read_csv(path: Path, reading: Reading, packed: str | None) -> tuple[Any, CsvLook]:
    """A text file as an Arrow table, and what a look at it told."""
    head, source = _text_of(path, packed)
    look = look_at_csv(_whole_lines(head), str(path), reading)
    table, look = _inferred(path, source, look, reading)
    codes = _codes(table, source, look, reading)
    if codes:
        look = replace(look, notes=(*look.notes, code_note(str(path), codes)))
        known = replace(reading, known_text=(*reading.known_text, *codes))
        table, look = _inferred(path, source, look, known)
        reading = known
    look = replace(look, truths=_truths(table, source, look))
    return _with_written_numbers(path, table, look, reading)


def _truths(table: Any, source: Callable[[], Any], look: CsvLook) -> tuple[str, str]:
    """How the first column of truth values writes them, as far as its first rows tell."""
    types = load_pyarrow().types
    for name, column in zip(table.column_names, table.columns, strict=True):
        if types.is_boolean(column.type):
            text = next(text_batches(source, look, [name])).column(name)
            return truth_words(column.slice(0, len(text)), text)
    return look.truths


def _with_written_numbers(
    path: Path, table: Any, look: CsvLook, reading: Reading
) -> tuple[Any, CsvLook]:
    """The table with columns as numbers that Arrow takes for text."""
    types = load_pyarrow().types
    found = {}
    for k, (name, column) in enumerate(zip(table.column_names, table.columns, strict=True)):
        known = reading.kinds.get(name, "number") != "number" or name in reading.known_text
        if known or not types.is_string(column.type):
            continue
        numbers = numbers_of_text(column, look.decimal)
        if numbers is not None:
            found[name] = numbers
            table = table.set_column(k, name, numbers.numbers)
    return table, replace(look, notes=(*look.notes, *written_notes(str(path), found)))


def _text_of(path: Path, packed: str | None) -> tuple[bytes, Callable[[], Any]]:
    """The beginning of a text file, and what Arrow reads it from, again and again."""
    if packed:
        content = unpacked(path, packed)
        return content[:HEAD], lambda: io.BytesIO(content)
    with path.open("rb") as file:
        return file.read(HEAD), lambda: path


def _codes(table: Any, source: Callable[[], Any], look: CsvLook, reading: Reading) -> list[str]:
    """Columns that Arrow takes for numbers, and that are codes."""
    if not table.num_rows:
        return []
    known = {n for n, kind in reading.kinds.items() if kind == "number"}
    known |= {*reading.known_numbers, *reading.known_text}
    numbers = table.select([n for n in table.column_names if n not in known])
    names = may_be_codes(numbers, _blocks(source), look.delimiter, look.encoding)
    return code_columns(text_batches(source, look, names), names) if names else []


def text_of_file(path: Path, form: CsvForm, names: Sequence[str]) -> Iterator[Any]:
    """Columns of a text file as they are written, gaps too, some rows at a time."""
    head, source = _text_of(path, kind_of_file(path)[1])
    said = Reading(delimiter=form.delimiter, decimal=form.decimal, encoding=form.encoding,
                   header=form.named)  # fmt: skip
    look = look_at_csv(_whole_lines(head), str(path), said)
    look = replace(look, encoding=look.encoding.removesuffix("-sig"))
    yield from text_batches(source, look, names, gaps=False)


def _blocks(source: Callable[[], Any]) -> Iterator[bytes]:
    opened = source()
    with opened.open("rb") if isinstance(opened, Path) else opened as file:
        while block := file.read(TEXT_BLOCK):
            yield block


def text_batches(
    source: Callable[[], Any], look: CsvLook, names: Sequence[str], gaps: bool = True
) -> Iterator[Any]:
    """Rows of a text file as text, some at a time.

    Args:
        source: What Arrow reads.
        look: What a look at the file told.
        names: Which columns.
        gaps: Whether text that stands for a gap is one.
    """
    arrow = load_pyarrow()
    from pyarrow import csv as arrow_csv

    with arrow_csv.open_csv(
        source(),
        read_options=arrow_csv.ReadOptions(
            column_names=list(look.names),
            skip_rows=int(look.named),
            encoding=look.encoding,
            block_size=TEXT_BLOCK,
        ),
        parse_options=arrow_csv.ParseOptions(delimiter=look.delimiter, newlines_in_values=True),
        convert_options=arrow_csv.ConvertOptions(
            strings_can_be_null=gaps,
            include_columns=list(names),
            column_types={n: arrow.string() for n in names},
        ),
    ) as reader:
        yield from reader


def _inferred(
    path: Path, source: Callable[[], Any], look: CsvLook, reading: Reading
) -> tuple[Any, CsvLook]:
    """The table with the types that Arrow finds, and the look with the right encoding."""
    arrow = load_pyarrow()
    try:
        table = csv_table(source, look, reading)
        if not any(arrow.types.is_binary(kind) for kind in table.schema.types):
            return table, look
        raise arrow.ArrowInvalid("invalid UTF8")  # what Arrow cannot decode it leaves as bytes
    except (arrow.ArrowInvalid, UnicodeDecodeError) as error:
        # A letter of Latin-1 may be anywhere.
        if reading.encoding is None and look.encoding == "utf-8" and "UTF8" in str(error):
            notes = (*look.notes, latin_note(str(path)))
            look = replace(look, encoding="latin-1", notes=notes, mark=False)
            try:
                return csv_table(source, look, reading), look
            except (arrow.ArrowInvalid, UnicodeDecodeError) as second:
                raise TableError(_explained(path, second)) from None
        raise TableError(_explained(path, error)) from None


def csv_table(source: Callable[[], Any], look: CsvLook, reading: Reading) -> Any:
    """Read text that has been looked at; the second time slowly, so that errors tell the row."""
    arrow = load_pyarrow()
    from pyarrow import csv as arrow_csv

    def read(threads: bool) -> Any:
        return arrow_csv.read_csv(
            source(),
            read_options=arrow_csv.ReadOptions(
                column_names=list(look.names),
                skip_rows=int(look.named),
                use_threads=threads,
                encoding=look.encoding,
            ),
            parse_options=arrow_csv.ParseOptions(
                delimiter=look.delimiter, newlines_in_values=not threads
            ),
            convert_options=arrow_csv.ConvertOptions(
                strings_can_be_null=True,
                decimal_point=look.decimal,
                column_types={n: arrow.string() for n in reading.known_text},
            ),
        )

    try:
        return read(threads=True)
    except (arrow.ArrowInvalid, UnicodeDecodeError):
        return read(threads=False)


def _explained(path: Path, error: Exception) -> str:
    text = str(error).removeprefix("CSV parse error: ").replace("Row #", "row ")
    return f"{path}{', ' if text.startswith('row') else ': '}{text}"


def _whole_lines(head: bytes) -> bytes:
    if len(head) < HEAD:
        return head
    return head[: head.rfind(b"\n") + 1] or head
