"""The cost model: laws of its counts, the fit of its constants, the page it is shown on."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.scaling import PINGS, _fit, _problems
from benchmarks.scaling_page import write_scaling_page

from kermix.distributed.planning import (
    CPU,
    GPU,
    Collective,
    Problem,
    bytes_moved,
    collective_seconds,
    fastest,
    plan,
    traffic,
    work,
)
from kermix.errors import OptionError, RunError

RESULTS = Path(__file__).parents[2] / "results" / "bench"


def problem(cost="svd", **sizes):
    return Problem(cost, **{"n": 4096, "k": 512, "d": 8, "ranks": 4, **sizes})


@pytest.mark.parametrize("cost", ["scalar", "vector", "matrix", "trace", "svd"])
def test_moments_send_the_same_whatever_the_batch(cost):
    few, many = problem(cost), problem(cost, n=4 * 10**9, k=5 * 10**6)
    assert traffic(few, "moments") == traffic(many, "moments")
    assert plan(many, "gather", CPU).payload > 1e3 * plan(many, "moments", CPU).payload


@pytest.mark.parametrize("cost", ["scalar", "vector", "matrix", "trace", "svd"])
def test_sharding_divides_the_kernel_values(cost):
    one, many = (work(problem(cost, ranks=w, n=64 * 4096), "shard").kernels for w in (1, 64))
    assert one / 64 <= many <= one / 64 + 512**2
    gathered = [work(problem(cost, ranks=w), "gather") for w in (1, 64)]
    assert gathered[0] == gathered[1]


def test_one_rank_sends_nothing():
    for strategy in ("gather", "shard", "moments"):
        assert plan(problem(ranks=1), strategy, CPU).bytes_moved == 0


def test_bytes_of_a_ring():
    assert bytes_moved(Collective("gather", 100), 4) == 300
    assert bytes_moved(Collective("sum", 100), 4) == 150
    assert collective_seconds(Collective("sum", 100), 1, CPU) == 0


def test_fastest_follows_the_plan():
    for cost in ("scalar", "svd", "trace"):
        for n in (100, 1000, 20_000):
            asked = problem(cost, n=n)
            seconds = [plan(asked, s, CPU).seconds for s in ("gather", "shard")]
            assert fastest(asked, "cpu") == ("shard" if seconds[1] < seconds[0] else "gather")
    assert fastest(problem(n=100, k=100, d=2), "cuda") == "gather"
    with pytest.raises(OptionError, match="sizes"):
        problem(n=0)


def test_constants_are_found_again():
    truth = replace(CPU, kernel_s=3e-9, latency_s=2e-4, bandwidth=5e8)
    problems = _problems(quick=False)
    seconds = [[plan(p, s, truth).seconds] * 3 for p, s in problems]
    pings = {
        kind: [[collective_seconds(Collective(kind, size), 2, truth)] for size in PINGS]
        for kind in ("sum", "gather")
    }
    machine, rows = _fit(problems, seconds, pings)
    for name in ("call_s", "kernel_s", "kernel_d_s", "product_s", "factor_s", "latency_s"):
        assert getattr(machine, name) == pytest.approx(getattr(truth, name), rel=1e-6), name
    assert machine.bandwidth == pytest.approx(truth.bandwidth, rel=1e-6)
    assert all(row["predicted_over_measured"] == pytest.approx(1) for row in rows)


def test_slow_ranks_share_cores():
    crowded = replace(CPU, cores=2)
    alone = plan(problem(), "gather", CPU).seconds
    assert plan(problem(), "gather", crowded).seconds == pytest.approx(2 * alone)
    assert GPU.cores is None


def test_page_shows_every_measured_step(tmp_path):
    page = write_scaling_page(RESULTS, tmp_path / "scaling.md").read_text()
    record = json.loads(next(RESULTS.glob("scaling-*.json")).read_text())
    for row in record["tables"]["steps"]:
        assert f"| {row['seconds']:.4g} | {row['predicted_s']:.4g} |" in page
    for heading in ("Checked against measurements", "8 to 1024 GPUs", "a trillion rows"):
        assert heading in page
    (tmp_path / "none").mkdir()
    with pytest.raises(RunError, match="no scaling"):
        write_scaling_page(tmp_path / "none", tmp_path / "page.md")
