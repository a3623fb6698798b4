"""Log-densities of eight real tables by the table model, against mixtures and a spline flow.

`python -m benchmarks.density_table_model --data FOLDER`: tables, splits, dithering and mixtures
are those of `benchmarks.density_tables`, so that all columns are continuous and no row has an atom
or a code. Mean test log-density in nats, in the units of the standardized columns.

- kermix: `TableModel(equal_columns=False, orders=8)` with every column a number, and what
  `--settings` adds: eight orders of the chain rule are averaged.
- zuko: `NSF(features, transforms=5, hidden_features=(128, 128, 128))`, a neural spline flow, by
  AdamW at 1e-3 with a cosine, batches of 512 and 10 % of the training rows held out for the step
  that is kept, **for as many seconds as the table model took to fit**, on the same device: CPU
  seconds on a CPU, wall-clock seconds elsewhere.
- `KernelMixture()`, scikit-learn's mixtures and one Gaussian as in the other benchmark.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from benchmarks.density_tables import TABLES, measure_split, named_tables, prepared
from benchmarks.quality import default_path, side_by_side, write_record
from kermix.errors import MissingExtraError, OptionError
from kermix.tables.model.table_estimator import TableModel

__all__ = ["main", "measured", "spline_flow", "summary", "table_model"]

OURS, FLOW = "kermix TableModel", "zuko NSF"
ORDERS = 8
BATCH, HELD_OUT, LOOK_EVERY = 512, 0.1, 25


class Job(NamedTuple):
    """A split of a table, and how it is measured."""

    name: str
    folder: Path
    seed: int
    device: str
    settings: dict[str, Any]
    flow: bool
    mixtures: bool


def clock(device: str) -> Callable[[], float]:
    """What tells the seconds of a fit: other processes do not count on a CPU."""
    return time.process_time if device == "cpu" else time.perf_counter


def _named(rows: np.ndarray) -> Any:
    import pandas as pd

    return pd.DataFrame({f"x{k}": column for k, column in enumerate(rows.T)})


def table_model(
    train: np.ndarray, test: np.ndarray, seed: int, device: str, settings: dict[str, Any]
) -> tuple[np.ndarray, dict[str, Any]]:
    """Log-densities of the test rows by our model, and what to tell about it."""
    now = clock(device)
    start = now()
    kinds = {f"x{k}": "number" for k in range(train.shape[1])}
    model = TableModel(kinds=kinds, equal_columns=False, orders=ORDERS, device=device,
                       random_state=seed, **settings).fit(_named(train))  # fmt: skip
    seconds = now() - start
    atoms = sum(len(column.atoms) for column in model.schema_.numbers)
    if atoms or len(model.schema_.numbers) != train.shape[1]:
        raise OptionError(f"{atoms} values are codes, whose densities would be infinite.")
    return model.score_samples(_named(test)), {"seconds": seconds, "best_step": model.n_iter_}


def spline_flow(
    train: np.ndarray, test: np.ndarray, seed: int, device: str, seconds: float
) -> tuple[np.ndarray, dict[str, Any]]:
    """Log-densities of the test rows by a flow that is trained for so many seconds."""
    try:
        import zuko
    except ImportError:
        raise MissingExtraError("This peer needs: pip install --no-deps zuko.") from None
    now = clock(device)
    start = now()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        flow = zuko.flows.NSF(train.shape[1], transforms=5, hidden_features=(128, 128, 128))
        flow = flow.to(device)
    rows = torch.as_tensor(train, dtype=torch.float32, device=device)
    generator = torch.Generator(device).manual_seed(seed)
    order = torch.randperm(len(rows), generator=generator, device=device)
    held, own = order.tensor_split([round(HELD_OUT * len(rows))])
    optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-3)
    best, best_step, step, kept = math.inf, 0, 0, flow.state_dict()
    while now() - start < seconds:
        share = min(1.0, (now() - start) / seconds)
        optimizer.param_groups[0]["lr"] = 5e-4 * (1 + math.cos(math.pi * share)) + 1e-6
        at = torch.randint(len(own), (min(BATCH, len(own)),), generator=generator, device=device)
        loss = -flow().log_prob(rows[own[at]]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 10.0)
        optimizer.step()
        step += 1
        if step % LOOK_EVERY == 0:
            with torch.no_grad():
                found = -float(flow().log_prob(rows[held]).mean())
            if found < best:
                best, best_step = found, step
                kept = {name: tensor.clone() for name, tensor in flow.state_dict().items()}
    flow.load_state_dict(kept)
    with torch.no_grad():
        tested = torch.as_tensor(test, dtype=torch.float32, device=device)
        found_test = torch.cat([flow().log_prob(part) for part in tested.split(2000)])
    told = {"seconds": now() - start, "best_step": best_step, "steps": step}
    return found_test.double().cpu().numpy(), told


def measure_job(job: Job) -> list[dict[str, Any]]:
    """One row for each model."""
    train, test = prepared(job.name, job.folder, job.seed)
    base = {"table": job.name, "columns": train.shape[1], "seed": job.seed}
    found: list[dict[str, Any]] = []
    if job.mixtures:
        found += measure_split(job.name, job.seed, train, test)
    log_density, told = table_model(train, test, job.seed, job.device, job.settings)
    found.append({**base, "model": OURS, "log_density": float(log_density.mean()), **told})
    if job.flow:
        log_density, told = spline_flow(train, test, job.seed, job.device, told["seconds"])
        found.append({**base, "model": FLOW, "log_density": float(log_density.mean()), **told})
    return found


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """A line for each table: means over splits, and how far ahead our model is of the best."""
    found = []
    for name in dict.fromkeys(row["table"] for row in rows):
        own = [row for row in rows if row["table"] == name]
        line: dict[str, Any] = {"table": name, "splits": len({row["seed"] for row in own})}
        for model in dict.fromkeys(row["model"] for row in own):
            every = [row["log_density"] for row in own if row["model"] == model]
            line[model] = float(np.mean(every))
        others = [value for model, value in line.items()
                  if model not in ("table", "splits", OURS)]  # fmt: skip
        if others:
            line["ahead"] = line[OURS] - max(others)
        found.append(line)
    return found


def measured(jobs: Sequence[Job], processes: int) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The tables of results, one more split of a table at a time."""
    rows: list[dict[str, Any]] = []
    for found in side_by_side(measure_job, jobs, processes):
        rows += found
        rows.sort(key=lambda row: (row["seed"], TABLES.index(row["table"])))
        yield {"summary": summary(rows), "density": rows}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run the benchmark and write its result file, table by table."""
    parser = argparse.ArgumentParser("benchmarks.density_table_model", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--settings", type=json.loads, default={}, help="of TableModel, as JSON")
    parser.add_argument("--without-flow", action="store_true")
    parser.add_argument("--without-mixtures", action="store_true")
    parser.add_argument("--processes", type=int, default=1, help="splits side by side")
    parser.add_argument("--out", type=Path, default=default_path("density-table-model"))
    given = parser.parse_args(arguments)
    names = named_tables(given.tables)
    jobs = [
        Job(name, given.data, int(seed), given.device, given.settings, not given.without_flow,
            not given.without_mixtures)
        for seed in given.seeds.split(",") for name in names
    ]  # fmt: skip
    told = {"protocol": __doc__, "settings": given.settings, "processes": given.processes}
    path: Path = given.out
    for tables in measured(jobs, given.processes):
        path = write_record("density-table-model", given.out, tables, told, shown="summary")
    return path


if __name__ == "__main__":
    main()
