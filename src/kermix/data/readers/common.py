"""What all readers of tables share: names of files, what a user says about them, and gaps.

Files have paths, patterns, folders, or addresses that fsspec can open. `READABLE` is the one list
of formats that are read, `WRITABLE` of those that are written; help texts and errors are made
from them.
"""

import codecs
import glob
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, BinaryIO, TypedDict

from kermix.errors import MissingExtraError, OptionError, SizeError, TableError

__all__ = [
    "AS_FOUND",
    "DATABASES",
    "GAPS",
    "JSON",
    "KINDS",
    "MARKS",
    "NAMELESS",
    "NULLS",
    "PACKED",
    "READABLE",
    "READABLE_SHOWN",
    "TEXT",
    "TRUTHS",
    "WRITABLE",
    "CsvForm",
    "Reading",
    "ReadingOptions",
    "all_match",
    "any_match",
    "check_expanded",
    "check_file",
    "counted",
    "expand",
    "is_index",
    "is_number",
    "is_pattern",
    "is_remote",
    "kind_of_file",
    "listed",
    "load_pyarrow",
    "most_bytes",
    "names_apart",
    "number_text",
    "one_line",
    "opened",
    "reading_of",
    "size_of",
    "split_part",
    "unpacking",
]

KINDS = ("category", "number", "time", "constant", "key", "text")  # of columns
NULLS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
         "1.#QNAN", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip
MARKS = ("-", "--", "?", "none", "None", "NONE", ".", "na", "N.A.", "n.a.", "<NA>")
GAPS = frozenset((*NULLS, *MARKS))  # what stands for a gap among numbers; the first anywhere
NAMELESS = "(no name)"  # instead of a name that is empty
TRUTHS = ("false", "true")
TEXT = (".csv", ".tsv", ".txt")
JSON = (".jsonl", ".ndjson")
DATABASES = (".duckdb", ".sqlite", ".sqlite3", ".db")
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}  # as Arrow calls them
READABLE = (
    *TEXT, ".parquet", ".feather", ".arrow", *JSON, ".xlsx", ".npy", ".npz", *DATABASES
)  # fmt: skip
_PACKABLE = (*TEXT, *JSON)
READABLE_SHOWN = (
    f"{', '.join(_PACKABLE)} (also {', '.join(PACKED)}), "
    f"{', '.join(end for end in READABLE if end not in _PACKABLE)}"
)
WRITABLE = (
    ".csv", ".tsv", ".parquet", ".feather", ".jsonl", ".npy",
    *(text + packed for text in (".csv", ".tsv") for packed in PACKED),
)  # fmt: skip
# What a folder is read for; other files in it, such as a text beside the data, are passed over.
IN_FOLDERS = (".parquet", ".csv", ".tsv", ".npy", ".feather", ".arrow", *JSON)
IN_PARTS = (".npz", *DATABASES)  # files that hold several tables


def kind_of_file(path: str | Path) -> tuple[str, str | None]:
    """How the name of a table ends, without what it is packed by, and that; else refused.

    Example:
        >>> kind_of_file("orders.csv.gz"), kind_of_file("shop.duckdb:orders")
        (('.csv', 'gzip'), ('.duckdb', None))
    """
    name, _ = split_part(path)
    packed = PACKED.get(name.suffix.lower())
    suffix = Path(name.stem if packed else name.name).suffix.lower()
    if suffix not in READABLE or (packed and suffix not in _PACKABLE):
        raise TableError(
            f"{path}: files of type {''.join(name.suffixes[-2:]) or '(none)'} are not read; use "
            f"one of {READABLE_SHOWN}."
        )
    return suffix, packed


def split_part(path: str | Path) -> tuple[Path, str | None]:
    """A file, and which of its tables is meant, if the name says so.

    Example:
        >>> split_part("a/shop.duckdb:orders"), split_part("t.csv")[1]
        ((PosixPath('a/shop.duckdb'), 'orders'), None)
    """
    name = Path(path)
    before, colon, part = name.name.partition(":")
    if colon and part and before.lower().endswith(IN_PARTS) and not name.exists():
        return name.with_name(before), part
    return name, None


def is_index(name: str) -> bool:
    """Whether a column is the nameless index that pandas wrote beside a table."""
    return name.startswith("__index_level_") and name.endswith("__")


def is_number(text: str, decimal: str = ".") -> bool:
    """Whether a cell is a number."""
    try:
        float(text.replace(",", ".", 1) if decimal == "," else text)
    except ValueError:
        return False
    return "_" not in text


def listed(names: Iterable[str]) -> str:
    """Names with commas between; of many, the first twelve."""
    shown = [str(n) or NAMELESS for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


def counted(count: int, what: str) -> str:
    """A count of things with the right form of their name.

    Example:
        >>> counted(1, "row"), counted(1500, "row")
        ('1 row', '1,500 rows')
    """
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def number_text(number: float, digits: int = 4) -> str:
    """A number to so many digits, without an exponent where that is short.

    Example:
        >>> [number_text(x) for x in (0.123456, 2013, 1234567.0, 1e-9)]
        ['0.1235', '2013', '1,235,000', '1e-09']
    """
    short = float(f"{number:.{digits}g}")
    if short == 0 or 1e-4 <= abs(short) < 1e9:
        most = max(digits, 10)
        return f"{short:,.{most}g}" if abs(short) >= 10_000 else f"{short:.{most}g}"
    return f"{short:.{digits}g}"


def names_apart(first: str, second: str) -> tuple[str, str]:
    """Two names, with "the first" and "the second" before them where they are the same.

    Example:
        >>> names_apart("data frame", "data frame"), names_apart("a.csv", "b.csv")
        (('the first data frame', 'the second data frame'), ('a.csv', 'b.csv'))
    """
    if first != second:
        return first, second
    return f"the first {first}", f"the second {second}"


def load_pyarrow() -> Any:
    """PyArrow, or an error that says how to install it."""
    try:
        import pyarrow
    except ImportError:
        raise MissingExtraError(
            "Reading tables needs PyArrow: pip install 'kermix[tables]'."
        ) from None
    return pyarrow


def all_match(cells: Any, pattern: str) -> bool:
    """Whether a regular expression is found in all cells that are not empty."""
    from pyarrow import compute

    return bool(compute.all(compute.match_substring_regex(cells, pattern), min_count=0).as_py())


def any_match(cells: Any, pattern: str) -> bool:
    """Whether a regular expression is found in one of the cells."""
    from pyarrow import compute

    return bool(compute.any(compute.match_substring_regex(cells, pattern)).as_py())


@dataclass(frozen=True)
class Reading:
    """The user's options for reading a table.

    Attributes:
        columns: Columns to use, in this order; None means all.
        exclude: Columns to ignore.
        kinds: Kinds of columns by name.
        delimiter: Field delimiter of a text file.
        decimal: "." or ",".
        encoding: Of a text file.
        header: Whether the first line holds column names; None means detected.
        missing: Cells that stand for a gap, beside those that always do.
        sheet: Of an Excel file; None means the largest.
        known_text: Columns that hold text, whatever their cells look like; some may not be there.
        known_numbers: Columns that hold numbers, though their cells may look like codes.
        known_forms: Columns of text that stands for numbers or times, where "-" is a gap.
    """

    columns: tuple[str, ...] | None = None
    exclude: tuple[str, ...] = ()
    kinds: Mapping[str, str] = field(default_factory=dict)
    delimiter: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    header: bool | None = None
    missing: tuple[str, ...] = ()
    sheet: str | None = None
    known_text: tuple[str, ...] = ()
    known_numbers: tuple[str, ...] = ()
    known_forms: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.missing, str):  # type: ignore[unreachable]
            raise OptionError(f"missing={self.missing!r} must be a list of cells.")
        object.__setattr__(self, "missing", tuple(map(str, self.missing)))
        if self.decimal not in (None, ".", ","):
            raise OptionError(f"decimal={self.decimal!r}: give '.' or ','.")
        if self.delimiter is not None and len(self.delimiter) != 1:
            raise OptionError(f"delimiter={self.delimiter!r}: give one character.")
        if self.delimiter is not None and self.delimiter == self.decimal:
            raise OptionError(f"The delimiter and the decimal mark are both {self.decimal!r}.")
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except LookupError:
                raise OptionError(f"encoding={self.encoding!r} is not known.") from None

    def said(self) -> dict[str, Any]:
        """The options that differ from the default, by name.

        Example:
            >>> Reading(exclude=("id",), decimal=",").said()
            {'exclude': ('id',), 'decimal': ','}
        """
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in found.items() if value not in (None, (), {})}

    def used(self, names: Iterable[str]) -> list[str]:
        """Of the columns that there are, those that are wanted.

        Example:
            >>> Reading(exclude=("id",)).used(["id", "size"])
            ['size']
        """
        return [n for n in names if n in (self.columns or (n,)) and n not in self.exclude]

    def asked(self, name: str) -> str | None:
        """What the user said of a column, or what is known of it, as a kind."""
        if name in self.known_text:
            return "text"
        return self.kinds.get(name, "number" if name in self.known_numbers else None)


class ReadingOptions(TypedDict, total=False):
    """The keywords of a function that reads tables, which `reading_of` makes a `Reading` of."""

    columns: Sequence[str] | None
    exclude: Sequence[str]
    kinds: Mapping[str, str] | None
    delimiter: str | None
    decimal: str | None
    encoding: str | None
    header: bool | None
    missing: Sequence[str]
    sheet: str | None


AS_FOUND: ReadingOptions = {
    "columns": None, "exclude": (), "kinds": None, "delimiter": None, "decimal": None,
    "encoding": None, "header": None, "missing": (), "sheet": None,
}  # fmt: skip


def reading_of(options: ReadingOptions) -> Reading:
    """How tables are read, by keywords."""
    columns, kinds = options["columns"], dict(options["kinds"] or {})
    return Reading(
        None if columns is None else _names(columns), _names(options["exclude"]), kinds,
        options["delimiter"], options["decimal"], options["encoding"], options["header"],
        _names(options["missing"]), options["sheet"],
    )  # fmt: skip


def _names(given: Sequence[str]) -> tuple[str, ...]:
    try:
        return (given,) if isinstance(given, str) else tuple(given)
    except TypeError:
        raise TableError(f"columns={given!r} must be a list of names.") from None


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
        ways: How the cells of columns are written, by name, as `dialect.cell_ways` finds it.
    """

    delimiter: str = ","
    decimal: str = "."
    encoding: str = "utf-8"
    line_end: str = "\n"
    named: bool = True
    truths: tuple[str, str] = TRUTHS
    ways: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, hash=False)

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

    def with_ways(self, ways: Mapping[str, Mapping[str, Any]]) -> "CsvForm":
        """The same, with how cells of columns are written."""
        words = next((tuple(way["truths"]) for way in ways.values() if "truths" in way), TRUTHS)
        return replace(self, truths=words, ways=ways)

    def encoder(self) -> codecs.IncrementalEncoder:
        """Makes bytes of one text after the other."""
        return codecs.getincrementalencoder(self.encoding)()


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


def check_file(path: Path) -> None:
    """Refuse what is no file of this machine, without opening it: a pipe would wait for ever."""
    # A path has lost one of the two strokes of an address.
    remote = re.match(r"([a-z][a-z0-9+.-]+):/+(.*)", str(path))
    if remote and not path.exists():
        raise TableError(
            f"{remote[1]}://{remote[2]}: only kermix sketch reads files of other machines; copy "
            "it to this one first."
        )
    if path.is_dir():
        raise TableError(f"{path}: a folder; name a file in it.")
    if not path.exists():
        raise TableError(f"{path}: there is no such file.")
    if not path.is_file():
        raise TableError(
            f"{path}: a pipe or device, which can be read only once; write its content to a file "
            "first."
        )


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


def most_bytes(size: int, small: int = 2**26, ratio: int = 200, largest: int = 2**34) -> int:
    """Bytes that a packed file may become.

    Args:
        size: Its bytes.
        small: Bytes that any file may become: a convention.
        ratio: How many times its size it may become: what is packed in earnest has less, and
            bombs have 1000.
        largest: The most that any file may become: a convention.
    """
    return min(largest, max(ratio * size, small))


@contextmanager
def unpacking(address: str | Path) -> Iterator[None]:
    """Name the packed file that cannot be unpacked."""
    try:
        yield
    except (load_pyarrow().ArrowException, EOFError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise TableError(f"{address}: cannot be unpacked ({one_line(error)}).") from None


def check_expanded(address: str | Path, total: int, most: int) -> None:
    """Refuse to unpack more than so many bytes of a file."""
    if total > most:
        raise SizeError(
            f"{address}: would expand from {size_of(str(address))} bytes to more than "
            f"{most >> 20} MiB; unpack it yourself if that is right."
        )


def one_line(error: Exception) -> str:
    """What an error says, on one line."""
    return " ".join(str(error).split()).rstrip(".")


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
        check_file(path)
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
    except (OSError, ValueError) as error:
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
        raise MissingExtraError(f"{address}: {str(error).rstrip('.')}.") from None
    except ValueError as error:
        raise TableError(f"{address}: {error}.") from None


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
