"""Files with a fault each: what they hold, and what an error has to say."""

import gzip

__all__ = ["FAULTS", "PLAIN", "write"]

PLAIN = "name,size\nann,1.5\nbob,2.5\n"


def write(path, content, encoding="utf-8"):
    """A file of text or bytes."""
    path.write_bytes(content if isinstance(content, bytes) else content.encode(encoding))
    return path


FAULTS = {
    "short row": ("t.csv", "a,b\n1,2\n3\n", "line 3: 1 cell, and there are 2 columns"),
    "long row": ("t.csv", "a,b\n1,2\n3,4,5\n", "line 3: 3 cells, and there are 2 columns"),
    "names twice": ("t.csv", "a,a\n1,2\n", "twice: a"),
    "names twice but for blanks": ("t.csv", "a, a\n1,2\n", "twice: a"),
    "empty": ("t.csv", "", "the file is empty"),
    "only a header": ("t.csv", "a,b\n", "no rows"),
    "empty first line": ("t.csv", "\n1,2\n", "first line is empty"),
    "zeros": ("t.csv", b"a\0,b\0\n1\0,2\0\n", "not a text file"),
    "binary": ("t.csv", bytes(range(256)), "not a text file"),
    "one odd cell": ("t.csv", "a\n1\n2\n3\noops\n", "line 5, column a: 'oops' is not a number"),
    "text as Parquet": ("t.parquet", "no", "not a readable Parquet file"),
    "half a Parquet file": ("t.parquet", b"PAR1" + b"\0" * 50, "not a readable Parquet file"),
    "text as Feather": ("t.feather", "no", "not a readable Feather file"),
    "text as JSON": ("t.jsonl", "no", "not readable as JSON lines"),
    "JSON of another shape": ("t.jsonl", "[1, 2]\n", "JSON lines"),
    "text as gzip": ("t.csv.gz", "no", "cannot be unpacked"),
    "half a gzip file": (
        "t.csv.gz", gzip.compress(PLAIN.encode() * 99)[:30], "cannot be unpacked"
    ),
    "text as zstd": ("t.csv.zst", "no", "cannot be unpacked"),
    "text as NumPy": ("t.npy", "no", "not a readable NumPy file"),
    "text as npz": ("t.npz", "no", "not a readable file"),
    "text as Excel": ("t.xlsx", "no", "not a readable|openpyxl"),
    "no such kind": ("t.docx", "no", "files of type .docx are not read"),
    "no kind at all": ("table", "no", "are not read"),
    "packed Parquet": ("t.parquet.gz", "no", "are not read"),
}  # fmt: skip
