"""One cost over 1, 2 and 4 processes against what the cost model expects of it.

The machine's constants are found from one process and from collectives of two; times of two and
four processes are then *predicted*, and measured. `python -m benchmarks.scaling` writes
`results/bench/scaling-MACHINE.json`, `--page docs/scaling.md` the documentation's page from it.
"""

import argparse
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import kermix as km
from kermix.distributed import DistributedLoss, Ranks, launch, shares, slice_of
from kermix.distributed.planning import Machine, Problem, StrategyName, plan, work
from kermix.errors import MissingExtraError

__all__ = ["run"]

V = 0.05
WORLDS = (1, 2, 4)
LOSSES: dict[str, Any] = {
    "scalar": km.ScalarLoss,
    "vector": km.VectorLoss,
    "matrix": lambda v: km.MatrixLoss(v, form="data_fixed"),
    "trace": km.MatrixLoss,
    "svd": km.SVDLoss,
}
STRATEGIES: tuple[StrategyName, ...] = ("gather", "shard", "moments")
PINGS = (8, 2**16, 2**20, 2**23)  # bytes


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Measure, fit, predict; one table for each."""
    problems = _problems(quick)
    repeats = 3 if quick else 5
    measured = {w: launch(_rank, problems, repeats, devices=w) for w in WORLDS}
    machine, fits = _fit(problems, measured[1]["seconds"], measured[2]["pings"])
    rows = []
    for w in WORLDS:
        for (problem, strategy), raw in zip(problems, measured[w]["seconds"], strict=True):
            rows.append(_row(replace(problem, ranks=w), strategy, raw, machine))
    return {
        "machine": [asdict(machine)],
        "constants_from_one_process": fits,
        "collectives": _pings(measured, machine),
        "steps": rows,
        "errors": _errors(rows),
    }


def _problems(quick: bool) -> list[tuple[Problem, StrategyName]]:
    sizes = [(400, 100, 2)] if quick else [(2000, 250, 2), (4000, 500, 2), (4000, 250, 64)]
    # A factor of the data's whole Gram matrix takes cubic time.
    cubic = [(200, 100, 2)] if quick else [(1000, 250, 2), (2000, 250, 2)]
    return [
        (Problem(cost, n, k, d, 1, r=128, element=8), strategy)  # type: ignore[arg-type]
        for cost in LOSSES
        for n, k, d in (cubic if cost == "trace" else sizes)
        for strategy in STRATEGIES
    ]


def _rank(problems: list[tuple[Problem, StrategyName]], repeats: int) -> dict[str, Any]:
    """Seconds of each problem's steps, and of collectives, as the slowest rank saw them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = Ranks()
    seconds = [_steps(ranks, problem, strategy, repeats) for problem, strategy in problems]
    pings = {kind: [_ping(ranks, kind, size) for size in PINGS] for kind in ("sum", "gather")}
    dist.destroy_process_group()
    return {"seconds": seconds, "pings": pings}


def _steps(ranks: Ranks, problem: Problem, strategy: StrategyName, repeats: int) -> list[float]:
    x, y = (_points(rows, problem.d, seed) for rows, seed in ((problem.n, 1), (problem.k, 2)))
    # Landmarks are all alike: what a step costs depends on their number alone.
    features = km.nystrom_features(x, V, rank=problem.r, landmarks="uniform")
    moments = strategy == "moments"
    loss = DistributedLoss(
        LOSSES[problem.cost](None if moments else V),
        strategy,
        features=features if moments else None,
    )
    mine = x[slice_of(shares(problem.n, ranks.size), ranks.rank)]
    centres = y[slice_of(shares(problem.k, ranks.size), ranks.rank)].clone().requires_grad_()

    def step() -> None:
        centres.grad = None
        loss(mine, centres).backward()

    return _timed(ranks, step, repeats)


def _ping(ranks: Ranks, kind: str, size: int) -> list[float]:
    tensor = torch.zeros(size // 8, dtype=torch.float64)
    counts = [len(tensor)] * ranks.size

    def once() -> Tensor:
        return ranks.sum(tensor) if kind == "sum" else ranks.gather(tensor, counts, dim=0)

    return _timed(ranks, once, 15)


def _timed(ranks: Ranks, call: Any, repeats: int) -> list[float]:
    call()
    times = []
    for _ in range(repeats):
        if ranks.size > 1:
            dist.barrier()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return ranks.max(torch.tensor(times, dtype=torch.float64)).tolist()


def _points(rows: int, d: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, d, generator=generator, dtype=torch.float64)


def _fit(
    problems: list[tuple[Problem, StrategyName]], seconds: list[list[float]], pings: Any
) -> tuple[Machine, list[dict[str, Any]]]:
    """Constants by least squares of relative errors, none of them negative."""
    try:
        from scipy.optimize import nnls
    except ImportError:
        raise MissingExtraError(
            "The benchmark needs SciPy: pip install 'kermix[scipy]'."
        ) from None
    times = np.array([np.median(raw) for raw in seconds])
    counts = []
    for problem, strategy in problems:
        done = work(problem, strategy)
        counts.append([1.0, done.kernels, done.kernels * problem.d, done.products, done.factors])
    found, _ = nnls(np.array(counts) / times[:, None], np.ones(len(times)))
    # A sum of b bytes among two ranks sends b of them, a gather of b bytes too.
    sizes = np.array([float(s) for s in PINGS] * 2)
    heard = np.array([np.median(raw) for kind in ("sum", "gather") for raw in pings[kind]])
    network, _ = nnls(np.stack([np.ones_like(sizes), sizes], 1) / heard[:, None], np.ones(8))
    machine = Machine(
        f"a core of {os.cpu_count()}",
        call_s=float(found[0]),
        kernel_s=float(found[1]),
        kernel_d_s=float(found[2]),
        product_s=float(found[3]),
        factor_s=float(found[4]),
        latency_s=float(network[0]),
        bandwidth=float(1 / max(network[1], 1e-15)),
        cores=os.cpu_count(),
    )
    rows = [_row(problem, s, raw, machine) for (problem, s), raw in
            zip(problems, seconds, strict=True)]  # fmt: skip
    return machine, rows


def _row(
    problem: Problem, strategy: StrategyName, raw: list[float], machine: Machine
) -> dict[str, Any]:
    expected = plan(problem, strategy, machine)
    seconds = float(np.median(raw))
    return {
        "cost": problem.cost, "strategy": strategy, "N": problem.n, "K": problem.k,
        "d": problem.d, "ranks": problem.ranks, "seconds": seconds,
        "predicted_s": expected.seconds, "predicted_over_measured": expected.seconds / seconds,
        "network_s": expected.network_s, "payload_bytes": expected.payload, "raw_s": raw,
    }  # fmt: skip


def _pings(measured: dict[int, Any], machine: Machine) -> list[dict[str, Any]]:
    from kermix.distributed.planning import Collective, collective_seconds

    rows = []
    for w in WORLDS[1:]:
        for kind, found in measured[w]["pings"].items():
            for size, raw in zip(PINGS, found, strict=True):
                seconds = float(np.median(raw))
                expected = collective_seconds(Collective(kind, size), w, machine)
                rows.append(
                    {"collective": kind, "ranks": w, "bytes": size, "seconds": seconds,
                     "predicted_s": expected, "predicted_over_measured": expected / seconds}
                )  # fmt: skip
    return rows


def _errors(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """How far predictions are off, as factors: 1.25 is a quarter too much or too little."""
    found = []
    for w in WORLDS:
        for strategy in STRATEGIES:
            ratios = [r["predicted_over_measured"] for r in rows
                      if r["ranks"] == w and r["strategy"] == strategy]  # fmt: skip
            factors = sorted(max(ratio, 1 / ratio) for ratio in ratios)
            found.append(
                {"ranks": w, "strategy": strategy, "steps": len(factors),
                 "median_factor": factors[len(factors) // 2], "worst_factor": factors[-1],
                 "predicted": "no: fitted" if w == 1 else "yes"}
            )  # fmt: skip
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run the benchmark, or write the page."""
    from benchmarks.catalogue import run_benchmark

    parser = argparse.ArgumentParser(prog="python -m benchmarks.scaling", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="result files")
    parser.add_argument("--quick", action="store_true", help="a small version")
    parser.add_argument("--page", type=Path, help="write this page from the results, and stop")
    chosen = parser.parse_args(arguments)
    if chosen.page is not None:
        from benchmarks.scaling_page import write_scaling_page

        sys.stdout.write(f"Page: {write_scaling_page(chosen.out, chosen.page)}\n")
        return
    path, tables = run_benchmark("scaling", chosen.out, chosen.quick)
    for row in tables["errors"]:
        sys.stdout.write(f"{row}\n")
    sys.stdout.write(f"Results: {path}\n")


if __name__ == "__main__":
    # Under its own name, so that ranks can find what they are to run.
    from benchmarks.scaling import main as run_main

    run_main()
