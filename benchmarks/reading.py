"""How tables are read: the reader against the one before it, and three engines for its text.

`python -m benchmarks.reading --data FOLDER`: the folder holds tables (`.csv.gz`, `.parquet`, and
`.npz` in `uci`), among them `flights.parquet`, which is written as CSV first. The reader before is
that of commit `acf440aa`, whose source git gives.

- generated: 500 text files as people write them (`benchmarks.reading_files`), of which is known
  what is in them. A column is right if its cells are those, of the type that they should be.
- differences: columns and files in which the readers differ, by what they hold, with the reason.
- forms: 240 files with money, units, dates and codes (`benchmarks.reading_forms`), judged by what
  their columns are in the end, and whether they are written back to the letter.
- tables: real tables, read by both; equal means types, cells, notes and how cells are written.
  Where only one of them reads a table, the error of the other is given.
- faults: files with a fault each (`tests/table_faults.py`, with `tests` on `PYTHONPATH`), and
  whether both readers refuse them.
- engines: all cells as text by Arrow, DuckDB and Polars, with the delimiter and encoding that are
  known. An engine is wrong about a file if a cell differs, or if a ragged row is not refused.
  DuckDB reads UTF-8 alone, and not what bzip2 has packed; by it those files had to be rewritten.
- speed: seconds to read flights from CSV, typed, by one and two threads; by the clock, and of the
  processors.
- memory: peak of a process that reads 10,000,000 rows of 10 columns, or flights, in parts.
"""

import argparse
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality import default_path, write_record
from benchmarks.reading_cells import plain, timed
from benchmarks.reading_files import Column, TextFile, generated_files, write_files
from benchmarks.reading_forms import judged_forms
from table_faults import FAULTS, write

__all__ = ["main", "measured", "run"]

BEFORE = "acf440aa"
FILES, FORMS, MANY_ROWS = 500, 240, 10_000_000
TYPES = {
    "int": ("int64",), "float": ("double",), "bool": ("bool",), "date": ("date32[day]",),
    "clock": ("time32[s]",), "time": ("timestamp[s]", "timestamp[ns]"),
    "zoned": ("timestamp[s, tz=UTC]",), "text": ("string",),
}  # fmt: skip
# Why the readers differ, by what a column or a file is.
REASONS = {
    "codes of countries": "NA among codes of two letters is one of them, unless gaps are "
    "written so elsewhere in the file",
    "hexadecimal codes": "0x1f is a code; as a number it would not be written back",
    "truth values in two spellings": "0, 1, true and false in one column stay as they are written",
    "gaps between blanks": "a gap is one with blanks around it, too",
    "whole numbers of 18 or 19 digits": "whole numbers that fit into 64 bits stay so, whatever "
    "stands for a gap and however many rows there are",
    "whole numbers": "a file of one row has the types of its cells",
    "numbers with exponents": "4,2e+05 has a decimal comma",
    "thousands separators": "text in one form, which the schema reads as numbers and writes so",
    "stray text": "a column of numbers with a text in it is text, and the file is read",
    "dates": "times above times are no names of columns",
    "plain": "times above times are no names of columns, and one column does not refuse a file",
    "wide": "one column does not refuse a file",
    "many rows": "one column does not refuse a file",
    "no header": "times above times are no names of columns",
}


def measured(folder: Path, quick: bool) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """All tables of the record, one after the other."""
    tables: dict[str, list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as place:
        work = Path(place)
        before = _source_before(work / "before")
        files = generated_files(20 if quick else FILES)
        (work / "files").mkdir()
        paths = write_files(files, work / "files")
        old, new = (_read(paths, work, source) for source in (before, None))
        parts = _read(paths, work, None, "--batches")
        tables["generated"] = [_judged("before", files, old), _judged("now", files, new),
                               _judged("now, in parts", files, parts)]  # fmt: skip
        tables["differences"] = _differences(files, old, new)
        yield tables
        (work / "forms").mkdir()
        tables["forms"] = [*judged_forms(20 if quick else FORMS, work / "forms")]
        yield tables
        real = sorted([*folder.glob("*.csv.gz"), *folder.glob("*.parquet")])
        arrays = [Path(f"{path}:features") for path in sorted(folder.glob("uci/*.npz"))]
        flights = _flights(folder, work)
        read = [*[*real, *arrays][: 2 if quick else None], flights]
        both = [_read(read, work, source) for source in (before, None)]
        tables["tables"] = [_compared(*all_) for all_ in zip(read, *both, strict=True)]
        yield tables
        faulty = [write(work / f"fault-{k}-{name}", content)
                  for k, (name, content, _) in enumerate(FAULTS.values())]  # fmt: skip
        both = [_read(faulty, work, source) for source in (before, None)]
        tables["faults"] = [
            {"fault": what, "refused before": "error" in a, "refused now": "error" in b,
             "said now": re.search(said, b.get("error", "")) is not None}
            for (what, (_, _, said)), a, b in zip(FAULTS.items(), *both, strict=True)
        ]  # fmt: skip
        yield tables
        tables["engines"] = [_engine(name, read, files, paths, flights)
                             for name, read in ENGINES.items()]  # fmt: skip
        yield tables
        tables["speed"] = [
            {"reader": name, "threads": threads, **_seconds(flights, source, threads)}
            for name, source in (("before", before), ("now", None)) for threads in (1, 2)
        ]  # fmt: skip
        yield tables
        large = _large(work / "large.csv", 10_000 if quick else MANY_ROWS)
        tables["memory"] = _memory([flights, large])
        yield tables


def _source_before(place: Path) -> Path:
    """The package as it was, without its history."""
    content = subprocess.run(
        ["git", "archive", BEFORE, "src", "tests/internals.py"], capture_output=True, check=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        archive.extractall(place, filter="data")
    return place


def _environment(source: Path | None) -> dict[str, str]:
    root = Path.cwd() if source is None else source
    places = [root / "src", root / "tests", Path.cwd()]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}


def _read(
    paths: Sequence[Path], work: Path, source: Path | None, *options: str
) -> list[dict[str, Any]]:
    asked, answer = work / "asked.json", work / "answer.json"
    asked.write_text(json.dumps([[str(path), {}] for path in paths]))
    command = [sys.executable, "-m", "benchmarks.reading_cells", str(asked), str(answer), *options]
    subprocess.run(command, check=True, env=_environment(source))
    found: list[dict[str, Any]] = json.loads(answer.read_text())
    return found


# --- What is right.


def _is_right(column: Column, found: dict[str, Any]) -> bool:
    if all(value is None for value in column.values):
        return all(cell is None for cell in found["cells"])
    if found["cells"] == column.cells and column.what == "thousands separators":
        return found["type"] == "string" and _is_written_number(column)
    cells = [plain(value) for value in column.values]
    return found["type"] in TYPES[column.kind] and found["cells"] == cells


def _is_written_number(column: Column) -> bool:
    """Whether the schema reads text as the numbers that it stands for."""
    try:
        from kermix.data.readers.number_forms import look_at_numbers
    except ImportError:
        return False
    import pyarrow

    cells = pyarrow.array(column.cells)
    look = look_at_numbers(cells)
    return look.form is not None and look.form.read(cells).to_pylist() == column.values


def _judged(reader: str, files: list[TextFile], found: list[dict[str, Any]]) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for file, answer in zip(files, found, strict=True):
        counts["crashes"] += "crash" in answer
        if file.columns is None:
            counts["faults refused" if "columns" not in answer else "faults read"] += 1
        elif "columns" not in answer:
            counts["files refused"] += 1
        elif list(answer["columns"]) != file.names:
            counts["names wrong"] += 1
        else:
            right = [_is_right(c, answer["columns"][n])
                     for c, n in zip(file.columns, file.names, strict=True)]  # fmt: skip
            counts["columns right"] += sum(right)
            counts["columns wrong"] += len(right) - sum(right)
    names = ("columns right", "columns wrong", "names wrong", "files refused", "faults refused",
             "faults read", "crashes")  # fmt: skip
    return {"reader": reader, "files": len(files), **{name: counts[name] for name in names}}


def _differences(
    files: list[TextFile], old: list[dict[str, Any]], new: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Where the readers differ: how often before was right, and how often now is."""
    classes: dict[str, Counter[str]] = defaultdict(Counter)
    for file, a, b in zip(files, old, new, strict=True):
        if list(a.get("columns", ())) != list(b.get("columns", ())):
            wanted = file.names if file.columns is not None else []
            counts = classes[f"file: {file.trait}"]
            counts["count"] += 1
            counts["right before"] += list(a.get("columns", ())) == wanted
            counts["right now"] += list(b.get("columns", ())) == wanted
            continue
        for column, name in zip(file.columns or (), file.names, strict=False):
            if name not in a.get("columns", {}) or a["columns"][name] == b["columns"][name]:
                continue
            counts = classes[f"column: {column.what.partition(', gaps')[0]}"]
            counts["count"] += 1
            counts["right before"] += _is_right(column, a["columns"][name])
            counts["right now"] += _is_right(column, b["columns"][name])
    return [
        {"what": what, **counts, "reason": REASONS.get(what.partition(": ")[2], "")}
        for what, counts in sorted(classes.items(), key=lambda item: -item[1]["count"])
    ]


# --- Engines.


def _by_arrow(path: Path, file: TextFile) -> Any:
    import pyarrow
    from pyarrow import csv

    encoding = file.encoding.removesuffix("-sig")
    return csv.read_csv(
        path,
        csv.ReadOptions(
            column_names=file.names, skip_rows=int(_has_names(file)), encoding=encoding
        ),
        csv.ParseOptions(delimiter=file.delimiter, newlines_in_values=True),
        csv.ConvertOptions(column_types=dict.fromkeys(file.names, pyarrow.string())),
    )


def _by_duckdb(path: Path, file: TextFile) -> Any:
    import duckdb

    columns = dict.fromkeys(file.names, "VARCHAR")
    return duckdb.read_csv(
        str(path), auto_detect=False, columns=columns, header=_has_names(file),
        delimiter=file.delimiter, quotechar='"', escapechar='"',
        encoding=file.encoding.removesuffix("-sig"),
    ).to_arrow_table()  # fmt: skip


def _by_polars(path: Path, file: TextFile) -> Any:
    import polars

    return polars.read_csv(
        path, separator=file.delimiter, infer_schema=False, has_header=_has_names(file),
        encoding="utf8" if file.encoding.startswith("utf-8") else file.encoding,
    ).to_arrow()  # fmt: skip


ENGINES: dict[str, Callable[[Path, TextFile], Any]] = {
    "arrow": _by_arrow, "duckdb": _by_duckdb, "polars": _by_polars
}  # fmt: skip


def _has_names(file: TextFile) -> bool:
    return file.names[:1] != ["x0"]


def _engine(
    name: str,
    read: Callable[[Path, TextFile], Any],
    files: list[TextFile],
    paths: list[Path],
    flights: Path,
) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    for file, path in zip(files, paths, strict=True):
        if file.trait in ("empty", "zeros", "names twice", "empty first line", "only a header"):
            continue
        counts[_answer(read, path, file)] += 1
    names = flights.read_text().partition("\n")[0].split(",")
    known = TextFile("flights", b"", ",", "utf-8", "plain", names, [], [])
    return {"engine": name, **counts, **timed(lambda: read(flights, known))}


def _answer(read: Callable[[Path, TextFile], Any], path: Path, file: TextFile) -> str:
    try:
        found = read(path, file)
    except BaseException as error:  # a panic of Polars, too
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return "refused although right" if file.columns is not None else "faults refused"
    if file.columns is None:
        return "faults read"
    cells = [list(row) for row in zip(*(c.to_pylist() for c in found.columns), strict=True)]
    written = [["" if c in NOTHING else c for c in row] for row in file.cells]
    same = [["" if c in NOTHING else c for c in row] for row in cells] == written
    return "cells right" if same else "cells wrong"


NOTHING = (None, "", "NA", "NaN", "null", "n/a")  # which engines take for gaps


# --- Time and memory.


def _flights(folder: Path, work: Path) -> Path:
    import pandas as pd

    path = work / "flights.csv"
    pd.read_parquet(folder / "flights.parquet").to_csv(path, index=False)
    return path


def _compared(path: Path, before: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """Whether both readers make the same of a table; else in what they differ."""
    found = {"table": path.name, "rows": now.get("rows"), "equal": before == now}
    differ = {key for key in {*before, *now} if before.get(key) != now.get(key)}
    if "error" in differ:
        return {**found, "differ": "error", "before": before.get("error"), "now": now.get("error")}
    return {**found, "differ": ", ".join(sorted(differ)), "before": None, "now": None}


def _seconds(path: Path, source: Path | None, threads: int) -> dict[str, float]:
    program = (
        "import json, sys; from benchmarks.reading_cells import timed\n"
        "from kermix.data.readers.reading import read_frame\n"
        "print(json.dumps(timed(lambda: read_frame(sys.argv[1]))))"
    )
    return _said([sys.executable, "-c", program, str(path)], source, threads)


def _large(path: Path, rows: int) -> Path:
    import numpy as np
    import pandas as pd

    rng = np.random.default_rng(0)
    words = np.array(["red", "green", "dark blue", "x"])
    for start in range(0, rows, 500_000):
        n = min(500_000, rows - start)
        block = {f"n{k}": rng.normal(size=n).round(3) for k in range(5)}
        block |= {f"k{k}": rng.integers(0, 1000, n) for k in range(3)}
        block |= {f"w{k}": words[rng.integers(0, 4, n)] for k in range(2)}
        pd.DataFrame(block).to_csv(path, mode="a", header=not start, index=False)
    return path


def _memory(paths: Sequence[Path]) -> list[dict[str, Any]]:
    program = (
        "import json, re, sys, time\n"
        "from kermix.data.readers.parts import open_files\n"
        "start, used = time.perf_counter(), time.process_time()\n"
        "files = open_files([sys.argv[1]], typed=True)\n"
        "rows = sum(len(t) for part in files.parts for t, _ in part.tables())\n"
        "wall, cpu = time.perf_counter() - start, time.process_time() - used\n"
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())\n"
        "print(json.dumps(dict(rows=rows, peak_mb=int(peak[1]) / 1024, wall_s=wall, cpu_s=cpu)))"
    )
    found = []
    for path in paths:
        said = _said([sys.executable, "-c", program, str(path)], None)
        found.append({"file": path.name, "file_mb": path.stat().st_size / 2**20, **said})
    return found


def _said(command: Sequence[str], source: Path | None, threads: int = 2) -> dict[str, float]:
    """What a program prints, as JSON."""
    own = {**_environment(source), "OMP_NUM_THREADS": str(threads)}
    answer = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    found: dict[str, float] = json.loads(answer.stdout)
    return found


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """On this machine; the environment variable KERMIX_TABLES says where the tables are."""
    return measured(Path(os.environ.get("KERMIX_TABLES", "tables")), quick)


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, table by table."""
    parser = argparse.ArgumentParser("benchmarks.reading", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=default_path("reading"))
    given = parser.parse_args(arguments)
    path: Path = given.out
    for tables in measured(given.data, given.quick):
        shown = next(reversed(tables))
        path = write_record("reading", given.out, tables, {"protocol": __doc__}, shown=shown,
                            quick=given.quick)  # fmt: skip
    return path


if __name__ == "__main__":
    main()
