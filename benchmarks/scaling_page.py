"""The documentation's page on scaling out, written from result files and the cost model."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.page import markdown_table
from kermix.distributed.planning import GPU, Machine, Problem, StrategyName, plan
from kermix.errors import RunError

__all__ = ["write_scaling_page"]

GPUS = (8, 64, 256, 1024)
ROWS = 10**12
COLUMNS = 10
READ = 2e9  # bytes a second that a machine reads from storage: an assumption, stated on the page
IN_A_NODE, BETWEEN_NODES, GPUS_IN_A_NODE = 450e9, 50e9, 8
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
    lines = [MODEL]
    for name, record in scaling.items():
        lines += _measured(name, record)
    lines += _gpus(records)
    lines += _rows(records)
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines) + "\n")
    return page


def _measured(name: str, record: dict[str, Any]) -> list[str]:
    tables, machine = record["tables"], record["machine"]
    where = machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}"
    fitted = tables["machine"][0]
    units = {
        "call_s": "seconds of an empty step", "kernel_s": "seconds for each kernel value",
        "kernel_d_s": "more for each dimension", "product_s": "seconds for each multiply-add",
        "factor_s": "the same in QR and SVD", "latency_s": "seconds for each message",
        "bandwidth": "bytes a second",
    }  # fmt: skip
    constants = [{"constant": key, "value": fitted[key], "is": text}
                 for key, text in units.items()]  # fmt: skip
    steps = [
        {key: row[key] for key in ("cost", "strategy", "N", "K", "d", "ranks", "seconds",
                                   "predicted_s", "predicted_over_measured", "payload_bytes")}
        for row in tables["steps"]
    ]  # fmt: skip
    worst = max(row["worst_factor"] for row in tables["errors"] if row["ranks"] > 1)
    return [
        "## Checked against measurements", "",
        f"{where}, commit `{record['commit']}`, `results/bench/{name}`"
        + (" (the small version)" if record["quick"] else "") + ". The constants come "
        "from steps of one process and from collectives of two. All times for two and four "
        "processes are predicted from them, before they are measured; four processes on "
        f"{machine['cores']} cores share them, which the model accounts for. The worst is off "
        f"by a factor of {worst:.2g}.", "",
        *markdown_table(constants), "",
        "Prediction errors as factors (1.25: a quarter too much or too little):", "",
        *markdown_table(tables["errors"]), "",
        "Every step (value, and gradient at the centres; `payload_bytes` is what one rank passes "
        "to collectives, and is not fitted: tests check that it is exact):", "",
        *markdown_table(steps), "",
        "Collectives alone:", "",
        *markdown_table(tables["collectives"]), "",
    ]  # fmt: skip


def _gpus(records: dict[str, Any]) -> list[str]:
    gpu, source = _gpu(records)
    rows = []
    for ranks in GPUS:
        for strategy in ("gather", "shard", "moments"):
            rows.append(_predicted(gpu, ranks, strategy))
    return [
        "## Predicted: 8 to 1024 GPUs", "",
        "SVD cost by the polar iteration, 4096 points on *each* GPU, 4096 centres in all, 784 "
        f"dimensions, 1024 features; float32, the moments in float64. {source} The GPU's other "
        f"rates are the nominal ones of an H200. Assumed network: {IN_A_NODE / 1e9:.0f} GB/s "
        f"from each GPU within a node of {GPUS_IN_A_NODE}, {BETWEEN_NODES / 1e9:.0f} GB/s "
        f"beyond, {GPU.latency_s * 1e6:.0f} microseconds a message. No such machine was "
        "measured.", "",
        *markdown_table(rows), "",
        "Gathering makes every GPU do all the work, so its time grows with their number. Sharding "
        "keeps the work of a GPU constant and sends as many K x K matrices as there are steps, "
        "whatever the batch. Moments send r x r sums, once forward and once backward.", "",
    ]  # fmt: skip


def _predicted(gpu: Machine, ranks: int, strategy: StrategyName) -> dict[str, Any]:
    bandwidth = IN_A_NODE if ranks <= GPUS_IN_A_NODE else BETWEEN_NODES
    problem = Problem("svd", 4096 * ranks, 4096, 784, ranks, r=1024, method="polar", told=False)
    expected = plan(problem, strategy, replace(gpu, bandwidth=bandwidth))
    return {
        "GPUs": ranks, "data in a batch": problem.n, "strategy": strategy,
        "ms": 1e3 * expected.seconds, "of which network ms": 1e3 * expected.network_s,
        "MB sent by each GPU": expected.bytes_moved / 1e6,
    }  # fmt: skip


def _gpu(records: dict[str, Any]) -> tuple[Machine, str]:
    """The GPU's rate of products from its own benchmark, if there is one."""
    for name, record in records.items():
        if record.get("benchmark") == "svd" and record["machine"]["gpu"]:
            row = max(record["tables"]["value_and_gradient"], key=lambda r: r["N"])
            problem = Problem("svd", row["N"], row["N"], row["d"], 1, method="polar")
            rest = plan(problem, "gather", replace(GPU, product_s=0.0)).seconds
            whole = plan(problem, "gather", replace(GPU, product_s=1.0)).seconds - rest
            found = (row["ours_s"] - rest) / whole
            text = (
                f"The rate of products is that of {record['machine']['gpu']} in "
                f"`results/bench/{name}` at N = {row['N']}: {1 / found:.3g} multiply-adds a "
                "second."
            )
            return replace(GPU, product_s=found), text
    return GPU, "The constants are the nominal ones of an H200."


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


MODEL = """# Scaling out

Written by `python -m benchmarks.scaling --page docs/scaling.md` from the files in
`results/bench/`; the cost model is `kermix.distributed.planning`, which `strategy="auto"` also uses.

## One cost over many processes

A kernel cost is not a mean over samples. Averaging the gradients of each process's own loss,
as data-parallel training does by default, optimizes a different objective: that of smaller
batches.
`kermix.distributed.DistributedLoss` treats the rows of all ranks as one batch:

```python
from kermix.distributed import DistributedLoss

loss = DistributedLoss(km.SVDLoss(0.01))  # strategy="auto", "gather", "shard" or "moments"
value, info = loss.with_info(x, y)  # rows of this rank; info.strategy: what was chosen
```

After the backward pass the *mean over ranks* of the gradients, which DistributedDataParallel
and Fabric compute, is the gradient of one process with the whole batch (tests: 1, 2 and 4 processes, all
costs, weights, unequal and empty shares, to 1e-6 in float64). Ranks may have any number of rows.
BatchNorm layers are synchronized over all ranks: `torch.nn.SyncBatchNorm` on GPUs,
`kermix.distributed.BatchNormOverRanks` elsewhere.

Fits: `kermix fit DATA --devices N --nodes M`, `torchrun -m kermix fit DATA`, or
`kermix.runs.training.train(run, dataset)` in Python. Every rank draws the random numbers of the whole
batch and keeps its share, so the trajectory is that of one process up to rounding, and
`kermix resume RUN --devices M` continues with another number of processes. If one rank fails, all
stop with that rank's error. On several machines, run the same command on each, with MASTER_ADDR,
MASTER_PORT and NODE_RANK set.

## The cost model

With N data and K centres on all ranks together, d dimensions, r features, W ranks, e bytes a
number (K <= N; in the SVD cost the smaller set takes K's place). One step is the value and the
gradient at the centres:

| strategy | kernel values, each rank | other work, each rank | handed to collectives, each rank |
|---|---|---|---|
| gather, svd | N K | 5 N K^2 | e d (N/W + K/W + K) |
| shard, svd | N K / W | 4 N K^2 / W + 2 W K^3 + 4 K^3 | e (d K/W + d K + min(K, N/W) K) |
| shard, svd by products | N K / W | 32 N K^2 / W | e (d K/W + d K + 16 K^2) |
| gather, scalar | N K + N^2 + K^2 | | e d (N/W + K/W + K) |
| shard, scalar | (N K + N^2 + K^2) / W | | e d (N/W + K/W + K) |
| gather, vector | N K + N^2 + K^2 | 3 K^3 | e d (N/W + K/W + K) |
| shard, vector | (N K + N^2) / W + K^2 | 3 K^3 | as gathered, + 8 (K/W + K) |
| gather, matrix with data fixed | N K + K^2 | 3 N K^2 + 3 K^3 | e d (N/W + K/W + K) |
| shard, matrix with data fixed | N K / W + K^2 | 3 N K^2 / W + 3 K^3 | e d (K/W + K) |
| gather, matrix with both Gram matrices | N K + N^2 + K^2 | N^3 + 2 N^2 K + 3 K^3 | e d (N/W + K/W + K) |
| shard, the same | (N K + N^2) / W + K^2 | (N^3/2 + 2 N^2 K) / W + 3 K^3 | as gathered, + 16 (N^2/W + N K + K^2) |
| moments, any | r (N + 3 K) / W | 2 r^2 (N + 3 K) / W + 8 r^3 | 24 (r^2 + r + 2) + 16 |

plus a few numbers. A gather of b bytes from each rank sends (W - 1) b from each, a sum of b
bytes 2 b (W - 1) / W; each waits log2 W messages. Times are the counts times constants of the
machine, as in `planning.Machine`.
"""  # noqa: E501
