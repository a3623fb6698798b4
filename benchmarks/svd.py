"""Speed of the SVD cost with its gradient, against the way the paper computes it."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn

import kermix as km
from benchmarks.timing import captured, device_name, measure, peak_memory_of, training_step
from kermix.linalg.polar import polar_factor

__all__ = ["run"]

V = 1e-3


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Rows of value and gradient, of memory, and of a training step."""
    cuda = device_name() == "cuda"
    sizes = [200] if quick else [1000, 4000, 8000] if cuda else [1000]
    cases = [(n, 2) for n in sizes] + ([] if cuda or quick else [(1000, 784)])
    tables = {"value_and_gradient": [_value_and_gradient(n, d) for n, d in cases]}
    tables["profile"] = _profile(200 if quick else 1000)
    if not cuda:
        tables["peak_memory"] = [_memory(200 if quick else 1000, 784)]
    tables["training_step"] = _training_steps(200 if quick else 1000)
    return tables


def papers_way(x: Tensor, y: Tensor) -> Tensor:
    """The full difference tensor, its exponential, and autograd through an SVD."""
    distances = ((x[:, None] - y[None]) ** 2).mean(-1)
    return -torch.linalg.svd(torch.exp(-distances / (4 * V)))[1].sum()


def _data(n: int, d: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, d, generator=generator)
    # In high dimension independent points do not overlap: the centres are near the data.
    near = x + 0.03 * torch.randn(n, d, generator=generator)
    y = torch.randn(n, d, generator=generator) if d <= 8 else near
    return x.to(device_name()), y.to(device_name())


def _value_and_gradient(n: int, d: int) -> dict[str, Any]:
    x, y = _data(n, d)
    y.requires_grad_()
    loss = km.SVDLoss(V, log=False)

    def step(cost: Any) -> None:
        y.grad = None
        cost(x, y).backward()

    exact = km.svd_cost(
        x.double(), y.detach().double(), V, method="svd" if n <= 1000 else "polar", tolerance=1e-9
    )
    value, info = km.svd_cost(x, y.detach(), V, return_info=True)
    row: dict[str, Any] = {
        "N": n,
        "d": d,
        "v": V,
        "method": info.method,
        "relative_error": abs(float(value) / float(exact) - 1),
    }
    ours = measure(lambda: step(loss), repeats=20 if n <= 1000 else 5, warmup=3)
    if y.is_cuda:
        row["eager_s"] = ours["median_s"]
        graphed = torch.cuda.make_graphed_callables(loss, (x, y.detach().requires_grad_()))
        ours = measure(lambda: step(graphed), repeats=20, warmup=3)
        y.grad = None
    with warnings.catch_warnings():
        # The solver says so when it falls back to a slower one that converges.
        warnings.simplefilter("ignore", UserWarning)
        slow = n > 1000 or d > 8
        paper = measure(
            lambda: step(papers_way), repeats=1 if slow else 5, warmup=0 if slow else 1
        )
    row |= {
        "ours_s": ours["median_s"],
        "paper_s": paper["median_s"],
        "ratio": paper.seconds / ours.seconds,
        "raw_ours_s": ours["raw_s"],
        "raw_paper_s": paper["raw_s"],
    }
    return row


def _profile(n: int) -> list[dict[str, Any]]:
    """Seconds of the parts of one step, and of other ways to the polar factor."""
    x, y = _data(n, 2)
    y.requires_grad_()
    matrix = km.gram(y, x, V)
    fixed = matrix.detach()
    weights = torch.ones_like(fixed)
    parts = {
        "Gram matrix": lambda: km.gram(y, x, V),
        "its gradient": lambda: torch.autograd.grad(matrix, y, weights, retain_graph=True),
        "SVD": lambda: torch.linalg.svd(fixed, full_matrices=False),
        "product of two matrices": lambda: fixed @ fixed,
        "eigenvectors of P P'": lambda: torch.linalg.eigh(fixed @ fixed.mT),
        "polar factor by products": lambda: polar_factor(fixed, 1e-4),
    }
    return [{"part": k, "N": n, "seconds": measure(c, 5, 2).seconds} for k, c in parts.items()]


def _memory(n: int, d: int) -> dict[str, Any]:
    common = (
        "import kermix as km\n"
        "from benchmarks.svd import _data, papers_way\n"
        f"x, y = _data({n}, {d}); y.requires_grad_()\n"
        "km.svd_cost(x[:5], y[:5], 1e-3).backward(); papers_way(x[:5], y[:5]).backward()\n"
        "before = peak()\n"
    )
    ours = peak_memory_of(common + "km.SVDLoss(1e-3)(x, y).backward(); print(peak() - before)")
    paper = peak_memory_of(common + "papers_way(x, y).backward(); print(peak() - before)")
    return {"N": n, "d": d, "ours_mb": ours, "paper_mb": paper, "ratio": paper / max(ours, 1e-9)}


def _training_steps(n: int) -> list[dict[str, Any]]:
    """One step of Adam of a small generator, for each loss."""
    device = device_name()
    x, _ = _data(n, 2)
    losses: dict[str, Any] = {
        "kermix SVD": km.SVDLoss(V),
        "paper's way": papers_way,
    }
    try:
        from geomloss import SamplesLoss

        sinkhorn = SamplesLoss("sinkhorn", p=2, blur=0.05, backend="tensorized")
        losses["geomloss Sinkhorn"] = lambda x, y: sinkhorn(x, y)
    except ImportError:
        pass
    rows = []
    for name, loss in losses.items():
        torch.manual_seed(0)
        network = nn.Sequential(
            nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
        ).to(device)
        optimizer = torch.optim.Adam(network.parameters(), 1e-3, capturable=device == "cuda")
        noise = torch.rand(n, 10, device=device)
        call = training_step(network, optimizer, loss, x, noise)
        if device == "cuda" and name.startswith("kermix"):
            call = captured(call)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            timing = measure(call, repeats=5 if name.startswith("paper") else 20, warmup=2)
        rows.append({"loss": name, "N": n, "step_s": timing["median_s"], "raw_s": timing["raw_s"]})
    for row in rows:
        row["times_ours"] = row["step_s"] / rows[0]["step_s"]
    return rows
