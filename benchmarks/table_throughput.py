"""How many rows a second the table model draws, scores and completes, and a fit of a wide table.

`python -m benchmarks.table_throughput --data FOLDER --device cpu|cuda`: the folder holds
adult-train.csv.gz (32,561 rows of 15 columns). The model is `TableModel()` as it is but for the
number of training steps, which its speed does not depend on. Each call is made once before it is
timed `--repeats` times, and the median counts:

- sample: `sample(rows)`, from nothing to a pandas table; also with two columns given.
- score: `score_samples(table)`, one order of the chain rule.
- impute: `impute(table)` of a table without 30 % of its cells; rows, not cells, are counted.
- predict: `predict_proba(table, "income")`.

`rows_per_second` is by the clock. `rows_per_core_second` counts seconds of the processor instead,
which other programs on the machine do not add to; a GPU's are not among them.

`--wide` measures parts of a fit of `benchmarks.wide_table.houses()` (2,930 rows of 74 columns, 40
of them categories) instead, on one core, in the processor's seconds: finding what columns tell
about each other, with and without a look at labels first (once each), and training steps, whose
layers' products are by oneDNN (`kermix.networks.linear`) and by MKL in turns; medians count, and
`times_before` is their ratio. It is of these two changes alone, not of a whole fit.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.quality import default_path, write_record
from benchmarks.timing import device_name, measure
from benchmarks.wide_table import houses
from kermix.data.readers.reading import read_frame
from kermix.data.schema.schema import Schema
from kermix.errors import OptionError
from kermix.networks import linear
from kermix.tables.model import relation_search
from kermix.tables.model.layout_search import find_layout
from kermix.tables.model.table_estimator import TableModel
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.table_training import TableModelTask
from kermix.tables.runs.training_data import TableData
from kermix.training.loop import Trainer

__all__ = ["ROWS", "main", "measured", "run", "wide"]

ROWS = {"cpu": 10_000, "cuda": 500_000}
STEPS, REPEATS, SHARE = 20, 3, 0.3
OPEN = nullcontext()


def timed(call: Callable[[], Any], rows: int, repeats: int) -> dict[str, float]:
    """Rows a second, by the clock and by the processor's seconds."""
    call()
    before = time.process_time()
    found = measure(call, repeats, warmup=0)
    used = (time.process_time() - before) / repeats
    return {"rows_per_second": rows / found.seconds, "rows_per_core_second": rows / used,
            "median_s": found.seconds}  # fmt: skip


def with_gaps(table: Any, seed: int = 0) -> Any:
    """The table without 30 % of its cells, at random."""
    removed = np.random.default_rng(seed).random(table.shape) < SHARE
    wide = table.astype({c: float for c in table if table[c].dtype.kind in "iu"})
    return wide.mask(removed)


def measured(
    folder: Path, device: str, rows: int, repeats: int = REPEATS, steps: int = STEPS
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The table of results, row by row."""
    import pandas as pd

    path = folder / "adult-train.csv.gz"
    if not path.is_file():
        raise OptionError(f"{path}: there is no such file; name the folder that holds it.")
    adult = pd.read_csv(path)
    gaps = with_gaps(adult)
    # Gaps are among the codes, so that tables with gaps can be completed and scored.
    model = TableModel("income", steps=steps, device=device, random_state=0)
    model.fit(pd.concat([adult, gaps]))
    many, holes = (pd.concat([t] * -(-rows // len(t)), ignore_index=True)[:rows]
                   for t in (adult, gaps))  # fmt: skip
    given = {"sex": "Female", "age": 40}
    calls: dict[str, Callable[[], Any]] = {
        "sample": lambda: model.sample(rows, random_state=1),
        "sample, two columns given": lambda: model.sample(rows, given=given, random_state=1),
        "score": lambda: model.score_samples(many),
        "impute": lambda: model.impute(holes, random_state=1),
        "predict": lambda: model.predict_proba(many.drop(columns="income")),
    }
    parameters = sum(p.numel() for p in model.network_.parameters())
    base = {"table": "adult", "columns": adult.shape[1], "device": device,
            "threads": torch.get_num_threads(), "parameters": parameters,
            "rows": rows}  # fmt: skip
    found: list[dict[str, Any]] = []
    for name, call in calls.items():
        found.append({**base, "call": name, **timed(call, rows, repeats)})
        yield {"rows_a_second": found}


def wide(steps: int = STEPS, rows: int = 2930) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Parts of a fit of a wide table, as they are and as they were before, in turns."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    frame, _ = read_frame(houses(rows))
    schema = Schema.infer(frame)
    encoded = schema.encode(frame)
    layouts = []
    found: list[dict[str, Any]] = []
    seconds: list[list[float]] = [[], []]
    for way in (0, 1):
        with mock.patch.object(relation_search, "_may_beat", return_value=True) if way else OPEN:
            start = time.process_time()
            layouts.append(find_layout(schema, frame, encoded))
            seconds[way].append(time.process_time() - start)
    same = layouts[0].relations(schema) == layouts[1].relations(schema)
    found.append(_in_turns("relations", seconds) | {"same": same})
    yield {"wide_fit": found}
    found.append(_in_turns("training step", _steps(TableData.of(frame, schema), 2 * steps)))
    yield {"wide_fit": found}
    torch.set_num_threads(threads)


def _steps(data: TableData, steps: int) -> list[list[float]]:
    """Seconds of steps by oneDNN, where it is faster, and of as many by MKL."""
    task = TableModelTask(data.layout, data.to_train(), TableModelSettings().for_rows(data.rows))
    seconds: list[list[float]] = [[], []]
    start = time.process_time()

    def on_step(done: int) -> None:
        nonlocal start
        seconds[(done - 1) % 2].append(time.process_time() - start)
        linear.HAS_ONEDNN = has if done % 2 == 0 else False
        start = time.process_time()

    with mock.patch.object(linear, "HAS_ONEDNN", has := linear.HAS_ONEDNN):
        Trainer(task, device="cpu").run(
            on_step=on_step, should_stop=lambda: sum(map(len, seconds)) >= steps
        )
    return seconds


def _in_turns(what: str, seconds: Sequence[Sequence[float]]) -> dict[str, Any]:
    now, before = map(statistics.median, seconds)
    return {"what": what, "cpu_s": now, "before_cpu_s": before, "times_before": before / now}


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """On this machine's device; the environment variable KERMIX_TABLES says where adult is."""
    folder, device = Path(os.environ.get("KERMIX_TABLES", "tables")), device_name()
    return measured(folder, device, 500 if quick else ROWS[device], 1 if quick else REPEATS,
                    2 if quick else STEPS)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, row by row."""
    parser = argparse.ArgumentParser("benchmarks.table_throughput", description=__doc__)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path)
    source.add_argument("--wide", action="store_true")
    parser.add_argument("--device", choices=tuple(ROWS), default=device_name())
    parser.add_argument("--rows", type=int)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=default_path("table-throughput"))
    given = parser.parse_args(arguments)
    path: Path = given.out
    shown = "wide_fit" if given.wide else "rows_a_second"
    found = wide(given.steps, given.rows or 2930) if given.wide else measured(
        given.data, given.device, given.rows or ROWS[given.device], given.repeats, given.steps
    )  # fmt: skip
    for tables in found:
        path = write_record("table-throughput", given.out, tables, {"protocol": __doc__},
                            shown=shown)  # fmt: skip
    return path


if __name__ == "__main__":
    main()
