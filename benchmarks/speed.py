"""Ratios of times within one run: fits, the SVD cost, a training step, threads beside others.

A time says more about a machine than about a program, and a ratio of two in one run less so: these
are what `--compare` holds against the last record of the same machine. On a CPU the seconds of
the SVD cost and of a training step are CPU seconds of all threads: other programs do not count.
"""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import kermix as km
from benchmarks.pixels import pixel_epochs
from benchmarks.range_parts import range_parts
from benchmarks.spectra import bounds
from benchmarks.svd import papers_way
from benchmarks.timing import captured, device_name, timed, training_step
from kermix.cli import SPINS, WAITING
from kermix.data.dataset import toy
from kermix.linalg.polar import polar_factor
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import Trainer
from kermix.training.samples_task import RowTask, build_model

__all__ = ["run"]

V = 1e-3
TRAINING_TOLERANCE = 1e-2
Rows = list[dict[str, Any]]


def run(quick: bool = False) -> Iterator[dict[str, Rows]]:
    """Tables of seconds and ratios; `ratios` has all of the latter, larger ones being better."""
    cuda = device_name() == "cuda"
    sizes = [300] if quick else [1000, 4000, 8000] if cuda else [300, 1000, 2000]
    cases = [(n, kind) for n in sizes for kind in ("uniform", "normal")]
    tables: dict[str, Rows] = {"training_step": _training_steps(200 if quick else 1000)}
    for n, kind in cases:
        tables.setdefault("svd_cost", []).append(_svd_cost(n, kind))
        yield _with_ratios(tables)
    tables["fit"] = _fits(quick)
    yield _with_ratios(tables)
    if cuda:
        tables["pixels"] = pixel_epochs(quick)
        yield _with_ratios(tables)
        tables["bounds"] = bounds(quick)
    else:
        n = sizes[0] if quick else 1000
        rows = [row for row in tables["svd_cost"] if row["what"] == f"N = {n}, uniform"]
        tables["parts"] = range_parts(n, rows[0]["rank"] or n // 2)
        yield _with_ratios(tables)
        tables["threads"] = _threads(quick)
    yield _with_ratios(tables)


def _with_ratios(tables: dict[str, Rows]) -> dict[str, Rows]:
    ratios = [
        {"what": f"{name}: {row['what']}: {key}", "ratio": row[key]}
        for name, rows in tables.items()
        for row in rows
        for key in row
        if key.startswith("times_")
    ]
    return {**tables, "ratios": ratios}


def _fit(device: str, graphs: bool, settings: FitSettings) -> tuple[float, float]:
    """Steps a second of a fit of grid25, and its held-out metric."""
    data = toy("grid25").sample(20_000, torch.Generator().manual_seed(0)).float()
    model, variances = build_model(data, settings)
    task = RowTask(model, data, data[:2000], settings, variances)
    trainer = Trainer(task, device=device, graphs=graphs)
    start = time.perf_counter()
    trainer.run()
    return trainer.total / (time.perf_counter() - start), trainer.history[-1]["metric"]


def _fits(quick: bool) -> Rows:
    """A default fit of grid25; on a GPU as graphs, step by step, and on two cores beside it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    ways, short = {"two cores": ("cpu", False)}, FitSettings(steps=20, refine_steps=10)
    if device_name() == "cuda":
        ways = {"graphs": ("cuda", True), "step by step": ("cuda", False), **ways}
    rows = []
    for what, (device, graphs) in ways.items():
        _fit(device, graphs, short)  # compiles, and sets up
        rate, metric = _fit(device, graphs, short if quick else FitSettings())
        rows.append({"what": what, "steps_per_s": rate, "held_out": metric})
    torch.set_num_threads(threads)
    if device_name() == "cuda":
        rows[0]["times_step_by_step"] = rows[0]["steps_per_s"] / rows[1]["steps_per_s"]
        rows[0]["times_two_cores"] = rows[0]["steps_per_s"] / rows[2]["steps_per_s"]
    return rows


def _points(n: int, kind: str) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    draw = torch.rand if kind == "uniform" else torch.randn
    x, y = (draw(n, 2, generator=generator).to(device_name()) for _ in range(2))
    return x, y


def eigenvector_way(x: Tensor, y: Tensor) -> Tensor:
    """The polar factor from eigenvectors of `P P'` in float64, as a constant of the gradient."""
    matrix = km.gram(y, x, V)
    wide = matrix.detach().double()
    squares, vectors = torch.linalg.eigh(wide @ wide.mT)
    inverse = torch.where(squares > 1e-14 * squares[-1], squares.clamp(min=1e-300).rsqrt(), 0.0)
    factor = ((vectors * inverse) @ vectors.mT @ wide).to(matrix.dtype)
    return -(factor * matrix).sum()


def _svd_cost(n: int, kind: str) -> dict[str, Any]:
    """Value and gradient at two tolerances, the paper's way and the eigenvector way."""
    x, y = _points(n, kind)
    y.requires_grad_()
    wide = km.gram(y.detach().double(), x.double(), V)
    exact = float(
        polar_factor(wide, 1e-8).value if wide.is_cuda else torch.linalg.svdvals(wide).sum()
    )

    def of(cost: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
        def call() -> None:
            y.grad = None
            cost(x, y).backward()

        return call

    many = 20 if n <= 1000 and y.is_cuda else 5
    row: dict[str, Any] = {"what": f"N = {n}, {kind}", "v": V}
    for name, tolerance in (("", 1e-4), ("_training", TRAINING_TOLERANCE)):
        loss = km.SVDLoss(V, log=False, tolerance=tolerance)
        value, info = km.svd_cost(x, y.detach(), V, tolerance=tolerance, return_info=True)
        timing = timed(of(loss), repeats=many, warmup=6 if y.is_cuda else 1)
        row |= {
            f"ours{name}_s": timing.seconds,
            f"method{name}": info.method,
            f"rank{name}": info.rank,
            f"relative_error{name}": abs(float(value) / exact - 1),
            f"raw_ours{name}_s": timing["raw_s"],
        }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the solver falls back to a slower one
        slow = n > 1000
        ways = {"paper": papers_way, "eigenvectors": eigenvector_way}
        if n > 4000 or (n > 1000 and kind == "normal"):
            return row  # minutes
        for name, way in ways.items():
            timing = timed(of(way), repeats=1 if slow else 5, warmup=0 if slow else 1)
            row |= {
                f"{name}_s": timing.seconds,
                f"raw_{name}_s": timing["raw_s"],
                f"times_{name}": timing.seconds / row["ours_s"],
                f"times_{name}_training": timing.seconds / row["ours_training_s"],
            }
    return row


def _training_steps(n: int) -> Rows:
    """One step of Adam of a small generator, for our loss and Sinkhorn's; also as graphs."""
    x, _ = _points(n, "uniform")
    losses: dict[str, Any] = {
        "kermix SVD": km.SVDLoss(V),
        "kermix SVD, training tolerance": km.SVDLoss(V, tolerance=TRAINING_TOLERANCE),
    }
    try:
        from geomloss import SamplesLoss

        # With diameter and weights said, it looks at no value, and can be captured.
        sinkhorn = SamplesLoss("sinkhorn", p=2, blur=0.05, diameter=2.0, backend="tensorized")
        weights = torch.full((n,), 1 / n, device=x.device)
        losses["geomloss Sinkhorn"] = lambda x, y: sinkhorn(weights, x, weights, y)
    except ImportError:
        pass
    # What network and optimizer take of a step, whatever the loss.
    losses["no loss"] = lambda x, y: y.mean()
    rows: Rows = []
    for name, loss in losses.items():
        row: dict[str, Any] = {"what": name, "N": n}
        for way in ("eager", "graph") if device_name() == "cuda" else ("eager",):
            step = _step(loss, x, n)
            if way == "graph":
                step = captured(step)
            timing = timed(step, repeats=20 if x.is_cuda else 5, warmup=6 if x.is_cuda else 1)
            row |= {f"{way}_s": timing.seconds, f"raw_{way}_s": timing["raw_s"]}
        rows.append(row)
    if len(rows) == 4:
        for row in rows[:2]:
            for way in ("eager", "graph"):
                if f"{way}_s" in row:
                    row[f"times_sinkhorn_{way}"] = rows[2][f"{way}_s"] / row[f"{way}_s"]
    return rows


def _step(loss: Any, x: Tensor, n: int) -> Callable[[], None]:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
    ).to(x.device)
    optimizer = torch.optim.Adam(
        network.parameters(), 1e-3, capturable=x.is_cuda, fused=x.is_cuda or None
    )
    with torch.no_grad():  # as far as at the end of a training: over the square
        network[-1].weight.mul_(3)
        network[-1].bias.fill_(0.5)
    noise = torch.rand(n, 10, device=x.device)

    return training_step(network, optimizer, loss, x, noise)


LONGEST = 120.0  # seconds after which a fit is not waited for
FIT = """
import time
import torch  # before what says how its threads wait
from benchmarks.speed import short_fit
short_fit(5)
start = time.perf_counter()
short_fit({steps})
print(time.perf_counter() - start)
"""
BUSY = "while True: sum(range(10000))"


def short_fit(steps: int) -> None:
    """The first steps of a default fit, on two cores."""
    data = toy("grid25").sample(5000, torch.Generator().manual_seed(0)).float()
    settings = FitSettings(steps=steps, refine_steps=0)
    model, variances = build_model(data, settings)
    Trainer(RowTask(model, data, None, settings, variances), device="cpu").run()


def _threads(quick: bool) -> Rows:
    """A fit with threads that spin briefly and as they are, alone and beside a busy process.

    What takes longer than `LONGEST` is noted as that.
    """
    rows, repeats = [], 1 if quick else 3
    for what, policy in (("spin briefly", {"GOMP_SPINCOUNT": SPINS}), ("as they are", {})):
        row: dict[str, Any] = {"what": what}
        for beside in (0, 1):
            busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(beside)]
            try:
                several = [_seconds_of_fit(10 if quick else 100, policy) for _ in range(repeats)]
            finally:
                for process in busy:
                    process.kill()
                    process.wait()
            way = "beside_one" if beside else "alone"
            row |= {f"{way}_s": sorted(several)[repeats // 2], f"raw_{way}_s": several}
        row["slower_beside_one"] = row["beside_one_s"] / row["alone_s"]
        rows.append(row)
    rows[0]["times_as_they_are"] = rows[1]["beside_one_s"] / rows[0]["beside_one_s"]
    return rows


def _seconds_of_fit(steps: int, policy: dict[str, str]) -> float:
    environment = {n: v for n, v in os.environ.items() if n not in WAITING}
    try:
        answer = subprocess.run(
            [sys.executable, "-c", FIT.format(steps=steps)],
            env={**environment, **policy, "OMP_NUM_THREADS": "2"},
            capture_output=True,
            text=True,
            check=True,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return LONGEST
    return float(answer.stdout.split()[-1])
