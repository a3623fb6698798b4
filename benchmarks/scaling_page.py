"""The documentation's page on scaling out, written from result files."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page import markdown_table
from kermix.errors import RunError

__all__ = ["write_scaling_page"]

GPUS = (8, 64, 256, 1024)
ROWS = 10**12
COLUMNS = 10
READ = 2e9  # bytes a second that a machine reads from storage: an assumption, stated on the page
GPUS_IN_A_NODE = 8
CORES_IN_A_MACHINE = 64


@dataclass(frozen=True)
class _SketchRate:
    """Seconds for each row, from what the last factor of ten of the sketch benchmark took."""

    seconds: float
    rank: int
    source: str


def write_scaling_page(results: Path, page: Path) -> Path:
    """Write `page`, a Markdown file, from the result files in a folder."""
    records = {path.name: json.loads(path.read_text()) for path in sorted(results.glob("*.json"))}
    scaling = {n: r for n, r in records.items() if r.get("benchmark") == "scaling"}
    if not scaling:
        raise RunError(f"{results}: no scaling-*.json; run python -m benchmarks.scaling first.")
    lines = [ABOUT]
    for name, record in scaling.items():
        lines += _measured(name, record)
    lines += _rows(records)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines) + "\n")
    return page


def _measured(name: str, record: dict[str, Any]) -> list[str]:
    tables, machine = record["tables"], record["machine"]
    where = machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}"
    shown = ("cost", "strategy", "N", "K", "d", "ranks", "seconds", "payload_bytes")
    steps = [{key: row[key] for key in shown} for row in tables["steps"]]
    return [
        "## Measured", "",
        f"{where}, commit `{record['commit']}`, `results/bench/{name}`"
        + (" (the small version)" if record["quick"] else "")
        + f". Four processes share {machine['cores']} cores. A step is the value and the gradient "
        "at the centres; `payload_bytes` is what one rank passes to collectives:", "",
        *markdown_table(steps), "",
        "Collectives alone:", "",
        *markdown_table(tables["collectives"]), "",
    ]  # fmt: skip


def _rows(records: dict[str, Any]) -> list[str]:
    rows = []
    for name, record in records.items():
        if record.get("benchmark") == "sketch" and not record["quick"]:
            rate = _rate(name, record)
            if record["machine"]["gpu"]:
                rows += [_sketching(rate, n, n / GPUS_IN_A_NODE, f"{n} GPUs") for n in GPUS]
            else:
                cores = record["machine"]["cores"]
                for machines in (16, 128, 1024):
                    units = machines * CORES_IN_A_MACHINE / cores
                    kind = f"{machines} machines of {CORES_IN_A_MACHINE} cores"
                    rows.append(_sketching(rate, units, machines, kind))
    if not rows:
        return []
    return [
        "## Predicted: a trillion rows", "",
        f"A sketch of {ROWS:.0e} rows of {COLUMNS} float32 columns "
        f"({ROWS * COLUMNS * 4 / 1e12:.0f} TB), from the seconds for each row that the sketch "
        "benchmark measured in two columns (its rank is beside it; work grows with its square) "
        f"and {READ / 1e9:.0f} GB/s of reading a machine (or node of 8 GPUs), assumed. Merging is "
        "a tree of r x r sums. Whichever of reading and computing is slower decides; measured "
        "runs of `kermix sketch` are in [the benchmarks](benchmarks.md).", "",
        *markdown_table(rows), "",
        "Costs between two such sketches take the same milliseconds as between small ones.", "",
    ]  # fmt: skip


def _rate(name: str, record: dict[str, Any]) -> _SketchRate:
    before, last = record["tables"]["from_points_to_costs"][-2:]
    points = 2 * (last["N"] - before["N"])
    seconds = (last["all_costs_s"] - before["all_costs_s"]) / points
    return _SketchRate(seconds, last["rank"], f"results/bench/{name}")


def _sketching(rate: _SketchRate, units: float, machines: float, kind: str) -> dict[str, Any]:
    computing = ROWS * rate.seconds / units
    reading = ROWS * COLUMNS * 4 / (READ * max(1.0, machines))
    merging = math.ceil(math.log2(max(2.0, units))) * rate.rank**2 * 8 / 1e9
    return {
        "on": kind, "rank": rate.rank, "computing h": computing / 3600,
        "reading h": reading / 3600, "merging s": merging,
        "whole h": (max(computing, reading) + merging) / 3600, "rate from": f"`{rate.source}`",
    }  # fmt: skip


ABOUT = """# Scaling out

Written by `python -m benchmarks.scaling --page docs/scaling.md` from the files in
`results/bench/`.

## One cost over many processes

A kernel cost is not a mean over samples. Averaging the gradients of each process's own loss,
as data-parallel training does by default, optimizes a different objective: that of smaller
batches.
`kermix.distributed.loss.DistributedLoss` treats the rows of all ranks as one batch:

```python
from kermix.distributed.loss import DistributedLoss

loss = DistributedLoss(km.SVDLoss(0.01))  # strategy="auto", "gather", "shard" or "moments"
value, info = loss(x, y, return_info=True)  # rows of this rank; info.strategy: what was chosen
```

After the backward pass the *mean over ranks* of the gradients, which DistributedDataParallel
and Fabric compute, is the gradient of one process with the whole batch (tests: 1, 2 and 4 processes, all
costs, weights, unequal and empty shares, to 1e-6 in float64). Ranks may have any number of rows.
BatchNorm layers become `torch.nn.SyncBatchNorm`, which needs GPUs: on CPUs, generators are trained by
one process.

Fits: `kermix fit DATA --devices N --nodes M`, `torchrun -m kermix fit DATA`, or
`kermix.runs.train.train(run, dataset)` in Python. Every rank draws the random numbers of the whole
batch and keeps its share, so the trajectory is that of one process up to rounding, and
`kermix resume RUN --devices M` continues with another number of processes. If one rank fails, all
stop with that rank's error. On several machines, run the same command on each, with MASTER_ADDR,
MASTER_PORT and NODE_RANK set.
"""  # noqa: E501
