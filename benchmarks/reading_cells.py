"""What the reader of tables makes of files, as JSON: also of the one before, from another folder.

    python -m benchmarks.reading_cells LIST OUT

`LIST` holds paths with reading options, `OUT` what was read, in the same order. Which kermix reads
is that on `PYTHONPATH`.
"""

import datetime
import hashlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPEATS = 5
LONG = 20_000  # rows beyond which cells are told by their digest alone; a convention


def plain(value: Any) -> Any:
    """A cell as JSON has it: times in universal time."""
    if isinstance(value, datetime.datetime):
        if value.tzinfo is not None:
            value = value.astimezone(datetime.UTC)
        nanos = getattr(value, "nanosecond", 0)
        return value.isoformat() + (f"+{nanos}ns" if nanos else "")
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return (
        repr(value)
        if isinstance(value, float) and value in (float("inf"), -float("inf"))
        else value
    )


def described(path: str, options: dict[str, Any], batches: bool) -> dict[str, Any]:
    """Columns with their types and cells, and what was said; or the error."""
    import pyarrow

    from kermix.data.readers.reading import read_frame
    from kermix.errors import KermixError

    try:
        from kermix.data.readers.common import Reading
    except ImportError:  # of the reader before
        Reading = importlib.import_module("kermix.data.readers.sniff").Reading
    try:
        if batches:
            columns, notes, form = _in_batches(path, Reading(**options))
        else:
            frame, notes = read_frame(Path(path), Reading(**options))
            columns, form = frame.columns, frame.form
    except KermixError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    except Exception as error:  # noqa: BLE001
        return {"crash": f"{type(error).__name__}: {error}"}
    found = {}
    for name, column in columns.items():
        cells = [plain(c) for c in column.to_pylist()] if len(column) <= LONG else None
        digest = None
        if cells is None:
            text = column.cast(pyarrow.string()).to_pylist()
            digest = hashlib.sha256(json.dumps(text).encode()).hexdigest()
        found[name] = {"type": str(column.type), "cells": cells, "digest": digest}
    ways = {} if form is None else {n: dict(w) for n, w in form.ways.items()}
    rows = len(next(iter(columns.values())))
    return {"rows": rows, "columns": found, "notes": list(notes), "ways": ways}


def timed(call: Callable[[], Any]) -> dict[str, float]:
    """Seconds by the clock, the least of them, and of the processors."""
    call()
    found = []
    for _ in range(REPEATS):
        wall, used = time.perf_counter(), time.process_time()
        call()
        found.append((time.perf_counter() - wall, time.process_time() - used))
    walls, uses = ([pair[k] for pair in found] for k in (0, 1))
    return {"wall_s": sorted(walls)[REPEATS // 2], "least_wall_s": min(walls),
            "cpu_s": sorted(uses)[REPEATS // 2]}  # fmt: skip


def _in_batches(path: str, reading: Any) -> tuple[dict[str, Any], list[str], Any]:
    import pyarrow

    from internals import open_files

    files = open_files([path], typed=True, reading=reading)
    tables = []
    for part in files.parts:
        for found, *_ in part.tables():
            table = found if isinstance(found, pyarrow.Table) else pyarrow.table(found)
            tables.append(table)
    whole = pyarrow.concat_tables(tables)
    return dict(zip(whole.column_names, whole.columns, strict=True)), list(files.notes), None


if __name__ == "__main__":
    source, target, *rest = sys.argv[1:]
    asked = json.loads(Path(source).read_text())
    Path(target).write_text(json.dumps([described(*a, "--batches" in rest) for a in asked]))
