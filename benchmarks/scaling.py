"""One cost over 1, 2 and 4 processes, by every strategy.

`python -m benchmarks.scaling` writes `results/bench/scaling-MACHINE.json`, and with
`--page docs/scaling.md` the documentation's page from it.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

import kermix as km
from kermix.distributed.loss import DistributedLoss
from kermix.distributed.processes import Ranks, launch, shares, slice_of

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
STRATEGIES = ("gather", "shard", "moments")
PINGS = (8, 2**16, 2**20, 2**23)  # bytes
FEATURES = 128


class Problem(NamedTuple):
    """A step: the value of a loss of N data and K centres, and its gradient at the centres."""

    cost: str
    n: int
    k: int
    d: int


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Steps of every cost and strategy, and collectives."""
    problems = _problems(quick)
    repeats = 3 if quick else 5
    measured = {w: launch(_rank, problems, repeats, devices=w) for w in WORLDS}
    steps = [{**found, "ranks": w} for w in WORLDS for found in measured[w]["steps"]]
    pings = [{**found, "ranks": w} for w in WORLDS[1:] for found in measured[w]["collectives"]]
    return {"collectives": pings, "steps": steps}


def _problems(quick: bool) -> list[tuple[Problem, str]]:
    sizes = [(400, 100, 2)] if quick else [(2000, 250, 2), (4000, 500, 2), (4000, 250, 64)]
    # A factor of the data's whole Gram matrix takes cubic time.
    cubic = [(200, 100, 2)] if quick else [(1000, 250, 2), (2000, 250, 2)]
    return [
        (Problem(cost, n, k, d), strategy)
        for cost in LOSSES
        for n, k, d in (cubic if cost == "trace" else sizes)
        for strategy in STRATEGIES
    ]


def _rank(problems: list[tuple[Problem, str]], repeats: int) -> dict[str, Any]:
    """Seconds of each problem's steps, and of collectives, as the slowest rank saw them."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    ranks = Ranks()
    steps = [_step(ranks, problem, strategy, repeats) for problem, strategy in problems]
    pings = [_ping(ranks, kind, size) for kind in ("sum", "gather") for size in PINGS]
    dist.destroy_process_group()
    return {"steps": steps, "collectives": pings}


def _step(ranks: Ranks, problem: Problem, strategy: str, repeats: int) -> dict[str, Any]:
    x, y = (_points(rows, problem.d, seed) for rows, seed in ((problem.n, 1), (problem.k, 2)))
    # Landmarks are all alike: what a step costs depends on their number alone.
    features = km.nystrom_features(x, V, rank=FEATURES, landmarks="uniform")
    moments = strategy == "moments"
    loss = DistributedLoss(
        LOSSES[problem.cost](None if moments else V),
        strategy,  # type: ignore[arg-type]
        features=features if moments else None,
    )
    mine = x[slice_of(shares(problem.n, ranks.size), ranks.rank)]
    centres = y[slice_of(shares(problem.k, ranks.size), ranks.rank)].clone().requires_grad_()
    sent = 0

    def step() -> None:
        nonlocal sent
        centres.grad = None
        value, info = loss(mine, centres, return_info=True)
        value.backward()
        sent = info.ranks.payload

    raw = _timed(ranks, step, repeats)
    return {
        "cost": problem.cost, "strategy": strategy, "N": problem.n, "K": problem.k,
        "d": problem.d, "seconds": float(np.median(raw)), "payload_bytes": sent, "raw_s": raw,
    }  # fmt: skip


def _ping(ranks: Ranks, kind: str, size: int) -> dict[str, Any]:
    tensor = torch.zeros(size // 8, dtype=torch.float64)
    counts = [len(tensor)] * ranks.size

    def once() -> Tensor:
        return ranks.sum(tensor) if kind == "sum" else ranks.gather(tensor, counts, dim=0)

    return {
        "collective": kind,
        "bytes": size,
        "seconds": float(np.median(_timed(ranks, once, 15))),
    }


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
    path, _ = run_benchmark("scaling", chosen.out, chosen.quick)
    sys.stdout.write(f"Results: {path}\n")


if __name__ == "__main__":
    # Under its own name, so that ranks can find what they are to run.
    from benchmarks.scaling import main as run_main

    run_main()
