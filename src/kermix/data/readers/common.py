"""What all readers of tables share."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kermix.errors import MissingExtraError, TableError

__all__ = [
    "GAPS",
    "KINDS",
    "MARKS",
    "NULLS",
    "PACKED",
    "READABLE",
    "TEXT",
    "is_index",
    "is_number",
    "kind_of_file",
    "listed",
    "load_pyarrow",
    "names_apart",
]

KINDS = ("category", "number", "time", "constant", "key", "text")  # of columns
NULLS = ("", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND",
         "1.#QNAN", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")  # fmt: skip
MARKS = ("-", "--", "?", "none", "None", "NONE", ".", "na", "N.A.", "n.a.", "<NA>")
GAPS = frozenset((*NULLS, *MARKS))  # what stands for a gap among numbers; the first anywhere
TEXT = (".csv", ".tsv", ".txt")
JSON = (".jsonl", ".ndjson")
PACKED = {".gz": "gzip", ".zst": "zstd", ".bz2": "bz2"}  # as Arrow calls them
READABLE = (*TEXT, ".parquet", ".feather", ".arrow", *JSON, ".xlsx", ".npy", ".npz")


def kind_of_file(path: str | Path) -> tuple[str, str | None]:
    """How the name of a table ends, without what it is packed by, and that; else refused.

    Example:
        >>> kind_of_file("orders.csv.gz"), kind_of_file("orders.parquet")
        (('.csv', 'gzip'), ('.parquet', None))
    """
    name = Path(path)
    packed = PACKED.get(name.suffix.lower())
    suffix = Path(name.stem if packed else name.name).suffix.lower()
    if suffix not in READABLE or (packed and suffix not in (*TEXT, *JSON)):
        raise TableError(
            f"{path}: files of type {''.join(name.suffixes[-2:]) or '(none)'} are not read; use "
            f"one of {', '.join(READABLE)} (text also with {', '.join(PACKED)})."
        )
    return suffix, packed


def is_index(name: str) -> bool:
    """Whether a column is the nameless index that pandas wrote beside a table."""
    return name.startswith("__index_level_") and name.endswith("__")


def is_number(text: str, decimal: str = ".") -> bool:
    """Whether a cell is a number."""
    try:
        float(text.replace(",", ".", 1) if decimal == "," else text)
    except ValueError:
        return False
    return True


def listed(names: Iterable[str]) -> str:
    """Names with commas between; of many, the first twelve."""
    shown = [str(n) for n in names]
    return ", ".join(shown[:12]) + (f" and {len(shown) - 12} more" if len(shown) > 12 else "")


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
