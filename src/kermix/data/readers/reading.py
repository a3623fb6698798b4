"""Files of every kind as Arrow columns, whole: the one reader of typed tables."""

import io
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from kermix.data.readers.addresses import expand, is_pattern
from kermix.data.readers.common import (
    TEXT,
    is_index,
    is_number,
    kind_of_file,
    listed,
    load_pyarrow,
)
from kermix.data.readers.csv_files import read_csv, unpacked
from kermix.data.readers.frames import Frame, as_frame
from kermix.data.readers.numpy_files import check_declared_size, load_numpy, most_bytes
from kermix.data.readers.sniff import Reading
from kermix.data.readers.text_numbers import are_codes, is_code_text
from kermix.errors import MissingExtraError, SchemaError, SizeError, TableError

__all__ = ["read_alike", "read_frame", "read_whole"]

SMALL_PARQUET = 2**30  # Parquet is good at packing equal cells


def read_frame(source: Any, reading: Reading | None = None) -> tuple[Frame, list[str]]:
    """The columns of a file or of a table in memory, and notes on what was assumed.

    Args:
        source: A path (.csv, .tsv, also .gz, .zst or .bz2; .parquet, .feather, .jsonl, .xlsx,
            .npy, .npz), a name with `*` for several, several paths, a pandas, Polars or Arrow
            table, a dictionary of columns, an array or a tensor.
        reading: The user's reading options.

    Example:
        >>> frame, notes = read_frame({"a": [1, 2], "b": ["x", "y"]})
        >>> list(frame.columns), frame.rows
        (['a', 'b'], 2)
    """
    reading = Reading() if reading is None else reading
    if is_pattern(source):
        source = expand([source])
    if (
        isinstance(source, list | tuple)
        and source
        and all(isinstance(s, str | Path) for s in source)
    ):
        return _several([Path(s) for s in source], reading)
    if isinstance(source, str | Path):
        frame, notes = _file(Path(source), reading)
    else:
        frame, notes = as_frame(source, _name(source)), []
    return _checked(_chosen(frame, reading), reading), notes


def _name(source: Any) -> str:
    return "data frame" if hasattr(source, "columns") else type(source).__name__.lower()


def read_alike(
    sources: Sequence[Any], reading: Reading | None = None
) -> list[tuple[Frame, list[str]]]:
    """Several tables, as `read_frame`; what is a code in one text file is so in the others.

    Args:
        sources: Files, or tables in memory.
        reading: What the user said about them.
    """
    reading = Reading() if reading is None else reading
    found = [read_frame(source, reading) for source in sources]
    codes = {n for f, _ in found if f.form is not None
             for n, c in f.columns.items() if is_code_text(c)}  # fmt: skip
    known = replace(reading, known_text=(*reading.known_text, *sorted(codes)))
    types = load_pyarrow().types
    for k, (frame, _) in enumerate(found):
        numbers = [n for n, c in frame.columns.items()
                   if types.is_integer(c.type) or types.is_floating(c.type)]  # fmt: skip
        if frame.form is not None and not codes.isdisjoint(numbers):
            found[k] = read_frame(sources[k], known)
    return found


def _several(paths: list[Path], reading: Reading) -> tuple[Frame, list[str]]:
    arrow = load_pyarrow()
    found = read_alike(paths, reading)
    first = found[0][0]
    for frame, _ in found[1:]:
        if list(frame.columns) != list(first.columns):
            raise TableError(
                f"{frame.name}: its columns are {listed(frame.columns)}, and {first.name} has "
                f"{listed(first.columns)}."
            )
    try:
        tables = [arrow.table(dict(f.columns)) for f, _ in found]
        whole = arrow.concat_tables(tables, promote_options="permissive")
    except arrow.ArrowException as error:
        raise TableError(f"{first.name} and the others: {error}.") from None
    frame = replace(as_frame(whole, first.name), form=first.form)
    return frame, [n for _, notes in found for n in notes]


def _file(path: Path, reading: Reading) -> tuple[Frame, list[str]]:
    before, inside, array = str(path).rpartition(".npz:")
    if inside and not path.exists():
        return as_frame(_numpy(Path(before + ".npz"), array), path.name), []
    if path.is_dir():
        raise TableError(f"{path}: a folder; name a file in it.")
    if not path.is_file():
        raise TableError(f"{path}: there is no such file.")
    suffix, packed = kind_of_file(path)
    if suffix in TEXT:
        return _csv(path, reading, packed)
    if suffix in (".npy", ".npz"):
        return as_frame(_numpy(path, None), path.name), []
    return as_frame(read_whole(path, suffix), path.name), []


def read_whole(path: Path, suffix: str) -> Any:
    """A file that is neither text nor of NumPy, as an Arrow or pandas table."""
    readers: dict[str, Callable[[Path], Any]] = {
        ".parquet": _parquet,
        ".feather": _feather,
        ".arrow": _feather,
        ".xlsx": _excel,
    }
    return readers.get(suffix, _json)(path)


def _csv(path: Path, reading: Reading, packed: str | None) -> tuple[Frame, list[str]]:
    table, look = read_csv(path, reading, packed)
    frame = as_frame(table, path.name)
    return replace(frame, first_row=1 + look.named, form=look.form), list(look.notes)


def _parquet(path: Path) -> Any:
    arrow = load_pyarrow()
    from pyarrow import parquet

    try:
        file = parquet.ParquetFile(path)
        _check_announced(path, file)
        return without_index(file.read())
    except (arrow.ArrowException, OSError) as error:
        raise TableError(f"{path}: not a readable Parquet file ({_line(error)}).") from None


def without_index(table: Any) -> Any:
    """The table without the numbers of rows that pandas wrote beside it."""
    return table.select([name for name in table.column_names if not is_index(name)])


def _check_announced(path: Path, file: Any) -> None:
    """Refuse a Parquet file of few bytes that stand for very many equal cells."""
    rows = file.metadata.num_rows
    total = sum(rows * _bytes_of(field.type) for field in file.schema_arrow)
    limit = most_bytes(path.stat().st_size, SMALL_PARQUET)
    if total > limit:
        raise SizeError(
            f"{path}: announces {rows} rows, at least {total >> 20} MiB, more than {limit >> 20} "
            "MiB; it is not read at once. Use kermix sketch, which reads it in parts."
        )


def _bytes_of(kind: Any) -> int:
    try:
        return int(kind.bit_width + 7) // 8
    except ValueError:
        return 4  # an offset of a text


def _feather(path: Path) -> Any:
    arrow = load_pyarrow()
    from pyarrow import feather

    try:
        return without_index(feather.read_table(path))
    except (arrow.ArrowException, OSError) as error:
        raise TableError(f"{path}: not a readable Feather file ({_line(error)}).") from None


def _json(path: Path) -> Any:
    arrow = load_pyarrow()
    from pyarrow import json

    _, packed = kind_of_file(path)
    content = io.BytesIO(unpacked(path, packed)) if packed else path
    try:
        return json.read_json(content)
    except (arrow.ArrowException, OSError) as error:
        raise TableError(f"{path}: not readable as JSON lines ({_line(error)}).") from None


def _excel(path: Path) -> Any:
    check_declared_size(path)
    try:
        import pandas

        return pandas.read_excel(path)
    except ImportError:
        raise MissingExtraError(
            f"{path}: Excel files need pandas and openpyxl: pip install pandas openpyxl."
        ) from None
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise TableError(f"{path}: not a readable Excel file ({_line(error)}).") from None


def _numpy(path: Path, array: str | None) -> np.ndarray:
    found = load_numpy(path, array)
    if found.ndim == 0 or found.size == 0 or found.dtype.kind not in "fiub":
        raise TableError(
            f"{path}: rows of real numbers are needed, not {found.dtype} of shape {found.shape}."
        )
    return found.reshape(len(found), -1)


def _line(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")


def _chosen(frame: Frame, reading: Reading) -> Frame:
    names = list(frame.columns)
    for given in (reading.columns or (), reading.exclude, tuple(reading.kinds)):
        unknown = [n for n in given if n not in frame.columns]
        if unknown:
            raise TableError(
                f"{frame.name} has no column {listed(unknown)}; it has {listed(names)}."
            )
    kept = [n for n in (reading.columns or names) if n not in reading.exclude]
    if not kept:
        raise TableError(f"{frame.name}: no column is left.")
    if not frame.rows:
        raise TableError(f"{frame.name}: there are no rows in it.")
    return replace(frame, columns={n: frame.columns[n] for n in kept},
                   types={n: frame.types[n] for n in kept})  # fmt: skip


def _checked(frame: Frame, reading: Reading) -> Frame:
    """The frame, unless text in it is mostly numbers: some cell is then wrong, and named."""
    from pyarrow import compute

    arrow = load_pyarrow()
    decimal = "." if frame.form is None else frame.form.decimal
    for name, column in frame.columns.items():
        text = arrow.types.is_string(column.type) or arrow.types.is_large_string(column.type)
        kind = frame.types[name]
        known = name in reading.kinds or name in reading.known_text
        if not text or kind.declared or kind.mixed or kind.pandas or known:
            continue
        words = compute.unique(compute.utf8_trim_whitespace(column.drop_null())).to_pylist()
        parsed = [is_number(w, decimal) for w in words if w]
        if all(parsed) or 2 * sum(parsed) <= len(parsed) or are_codes(words):
            continue  # quoted numbers are codes, which stay text
        odd = next(w for w in words if w and not is_number(w, decimal))
        row = compute.index(compute.utf8_trim_whitespace(column), odd).as_py()
        raise SchemaError(
            f"{frame.name}, row {row + frame.first_row}, column {name}: {odd!r} is not a number, "
            "and most cells of this column are. Correct it, exclude the column, or use --kind "
            f"{name}=category."
        )
    return frame
