"""Files by address: paths, globs, folders, and whatever fsspec can open."""

import glob
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from kermix.data.readers.common import kind_of_file
from kermix.errors import MissingExtraError, TableError

__all__ = ["expand", "is_pattern", "is_remote", "opened", "size_of"]

# What a folder is read for; other files in it, such as a text beside the data, are passed over.
IN_FOLDERS = (".parquet", ".csv", ".tsv", ".npy", ".feather", ".arrow", ".jsonl", ".ndjson")


def expand(sources: Iterable[str | Path]) -> list[str]:
    """The files that paths, globs, folders and fsspec addresses stand for, each once, in order.

    Example:
        >>> expand(["nothing/here-*.csv"])
        Traceback (most recent call last):
        kermix.errors.TableError: nothing/here-*.csv: no file matches this name.
    """
    found: dict[str, None] = {}
    for source in sources:
        text = str(source)
        matches = _remote(text) if is_remote(text) else _local(text)
        if not matches:
            if Path(text).is_dir():
                ends = ", ".join(IN_FOLDERS)
                raise TableError(f"{text}: no file in this folder ends in {ends}.")
            raise TableError(f"{text}: no file matches this name.")
        for match in matches:
            kind_of_file(match)
        found.update(dict.fromkeys(matches))
    if not found:
        raise TableError("No files are given.")
    return list(found)


def size_of(address: str) -> int:
    """Bytes of a file."""
    try:
        if is_remote(address):
            filesystem, path = _filesystem(address)
            return int(filesystem.size(path))
        return Path(address).stat().st_size
    except FileNotFoundError:
        raise TableError(f"{address}: there is no such file.") from None
    except OSError as error:
        raise TableError(f"{address}: cannot be read ({_reason(error)}).") from None


@contextmanager
def opened(address: str) -> Iterator[BinaryIO]:
    """A file open for reading bytes; whatever fails while it is read names it."""
    try:
        if is_remote(address):
            filesystem, path = _filesystem(address)
            with filesystem.open(path, "rb") as file:
                yield file
        else:
            with Path(address).open("rb") as file:
                yield file
    except OSError as error:
        raise TableError(f"{address}: cannot be read ({_reason(error)}).") from None


def is_pattern(source: Any) -> bool:
    """Whether a source is a name with `*` and the like that stands for several files."""
    return (
        isinstance(source, str | Path)
        and glob.has_magic(str(source))
        and not is_remote(str(source))
        and not Path(source).exists()
    )


def is_remote(text: str) -> bool:
    """Whether an address is one of fsspec's."""
    return "://" in text


def _is_table(name: str) -> bool:
    try:
        return kind_of_file(name)[0] in IN_FOLDERS
    except TableError:
        return False


def _local(text: str) -> list[str]:
    path = Path(text)
    if path.is_dir():
        return sorted(str(p) for p in path.iterdir() if _is_table(p.name))
    if path.exists() or not glob.has_magic(text):
        return [text]
    return sorted(glob.glob(text, recursive=True))


def _remote(text: str) -> list[str]:
    filesystem, path = _filesystem(text)
    try:
        if glob.has_magic(path):
            matches = filesystem.glob(path)
        elif filesystem.isdir(path):
            inside = filesystem.ls(path, detail=False)
            matches = [p for p in inside if _is_table(p)]
        else:
            matches = [path]
    except OSError as error:
        raise TableError(f"{text}: cannot be listed ({_reason(error)}).") from None
    return sorted(str(filesystem.unstrip_protocol(p)) for p in matches)


def _filesystem(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise MissingExtraError(
            f"{address}: remote addresses need fsspec: pip install 'kermix[dask]'."
        ) from None
    try:
        return url_to_fs(address)
    except ImportError as error:
        raise MissingExtraError(f"{address}: {error}") from None
    except ValueError as error:
        raise TableError(f"{address}: {error}.") from None


def _reason(error: OSError) -> str:
    return error.strerror or str(error) or type(error).__name__
