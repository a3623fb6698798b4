"""Large files in batches of rows: Parquet by row groups, CSV and NumPy files by pieces.

The rules are those of `kermix.data.tables.table`, and none of these files is ever held whole;
Feather, JSON lines, Excel and .npz files are. A `Part` is a piece of one file that can be
read by itself, on any machine that sees the file.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kermix.data.tables.addresses import expand
from kermix.data.tables.common import TEXT, kind_of_file
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.csv_parts import csv_file
from kermix.data.tables.parts import Batch, FileLook, Part, npy_file, parquet_file, whole_file
from kermix.errors import TableError

__all__ = ["Batch", "Files", "Part", "open_files"]


@dataclass(frozen=True)
class Files:
    """Files of the same columns, and the parts that they are read in."""

    addresses: tuple[str, ...]
    columns: tuple[str, ...]
    parts: tuple[Part, ...]
    ignored: tuple[str, ...]  # columns that are left out because they hold no numbers
    notes: tuple[str, ...] = ()  # what was assumed
    others: tuple[str, ...] = ()  # columns without numbers that are used

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)


def open_files(
    sources: Sequence[str],
    columns: Sequence[str] | None = None,
    typed: bool = False,
    reading: Reading | None = None,
) -> Files:
    """Look at all files, and refuse those whose columns are not those of the first.

    Args:
        sources: Paths, globs, folders or fsspec addresses.
        columns: Which columns to use; by default all that hold numbers.
        typed: Whether columns of all kinds count.
        reading: How text files are written, where that is known, and kinds of columns.
    """
    found = [_looked_at(address, reading or Reading()) for address in expand(sources)]
    others = tuple(c for c in found[0].all_columns if c not in found[0].columns)
    if typed:
        found = [replace(file, columns=file.all_columns) for file in found]
    first = found[0]
    wanted = tuple(first.columns if columns is None else columns)
    if not wanted:
        raise TableError(
            f"{first.address}: no column holds numbers; it has {', '.join(first.all_columns)}."
        )
    parts: list[Part] = []
    for file in found:
        names = _matched(file, first, wanted, strict=columns is None)
        parts += [replace(part, columns=names) for part in file.parts]
    if not parts:
        raise TableError(f"{first.address}: there are no rows in it, nor in any other file.")
    addresses = tuple(f.address for f in found)
    used = tuple(c for c in others if c in wanted) if typed else ()
    ignored = () if typed or columns else others
    notes = dict.fromkeys(note for file in found for note in file.notes)
    return Files(addresses, wanted, tuple(parts), ignored, tuple(notes), used)


def _matched(
    file: FileLook, first: FileLook, wanted: tuple[str, ...], strict: bool
) -> tuple[str, ...]:
    """The names that the wanted columns have in a file."""
    if not (file.named and first.named) and strict:
        if len(file.columns) != len(wanted):
            raise TableError(
                f"{file.address}: {len(file.columns)} columns of numbers, but {first.address} "
                f"has {len(wanted)}."
            )
        return file.columns
    missing = [c for c in wanted if c not in file.columns]
    if missing:
        name = missing[0]
        if name in file.all_columns:
            raise TableError(f"{file.address}: column {name} holds no numbers.")
        other = "it" if file is first else f"{first.address} has it, and this file"
        raise TableError(
            f"{file.address}: there is no column {name}; {other} has "
            f"{', '.join(file.all_columns)}."
        )
    extra = [c for c in file.columns if c not in wanted]
    if strict and extra:
        raise TableError(
            f"{file.address}: column {extra[0]} is not in {first.address}. Name the columns to "
            f"use: {','.join(wanted)}."
        )
    return wanted


def _looked_at(address: str, reading: Reading) -> FileLook:
    suffix, packed = kind_of_file(address)
    if suffix in TEXT:
        return csv_file(address, reading, packed)
    looks = {".parquet": parquet_file, ".npy": npy_file}
    return looks.get(suffix, whole_file)(address)
