"""Draw the pictures of the documentation: `python scripts/figures.py`, or `make figures`.

The numbers that the pages quote from them go to `results/docs/costs.json`.
"""

import shutil
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from typer.testing import CliRunner

import kermix as km
from kermix.cli.app import app
from kermix.data.dataset import toy
from kermix.environment import environment
from kermix.files import write_json

ROOT = Path(__file__).resolve().parents[1]
PICTURES, NUMBERS = ROOT / "docs" / "pictures", ROOT / "results" / "docs" / "costs.json"
BLUE, ORANGE, GREEN, PINK = COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
COSTS = {
    "scalar": km.scalar_cost,
    "vector": km.vector_cost,
    "matrix": km.matrix_cost,
    "svd": km.svd_cost,
}


def normalized(x: Tensor, y: Tensor, v: float) -> dict[str, float]:
    """All four costs in [0, 1]."""
    return {
        n: float(cost(x.double(), y.double(), v, normalized=True)) for n, cost in COSTS.items()
    }


def shifted(generator: torch.Generator) -> tuple[Tensor, dict[str, list[float]]]:
    """The costs while one copy of a mixture moves past another."""
    mixture = toy("mixture10")
    x, y = (mixture.sample(300, generator) for _ in range(2))
    scale = x.std()
    shifts = torch.linspace(-1, 1, 41)
    curves: dict[str, list[float]] = {name: [] for name in COSTS}
    for shift in shifts:
        moved = y / scale + torch.tensor([1.0, 0.0]) * shift
        for name, value in normalized(x / scale, moved, 0.01).items():
            curves[name].append(value)
    return shifts, curves


def draw_shift(axes: plt.Axes, shifts: Tensor, curves: dict[str, list[float]]) -> None:
    """The paper's figure: each cost divided by its peak."""
    for (name, curve), colour in zip(curves.items(), COLOURS, strict=True):
        axes.plot(shifts, torch.tensor(curve) / max(curve), color=colour, label=name)
    axes.set(xlabel="shift", title="a measure")
    axes.legend(fontsize=6)


def start() -> None:
    """The strip on the first page: fit, measure, look inside, find the difference."""
    generator = torch.Generator().manual_seed(0)
    moons = toy("moons").sample(400, generator)
    figure, axes = plt.subplots(1, 4, figsize=(11, 2.8), layout="constrained")
    points = (0.3 * torch.randn(200, 2, generator=generator) - 2).requires_grad_()
    optimizer = torch.optim.Adam([points], lr=0.05)
    path = []
    for step in range(300):
        v = 0.5 * 0.01 ** (step / 300)
        loss = km.SVDLoss([v, 10 * v])(moons, points)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        path.append(points.detach().clone())
    lines = torch.stack(path)[::4, ::5]
    axes[0].plot(lines[..., 0], lines[..., 1], color="0.85", linewidth=0.5)
    axes[0].scatter(*moons.T, s=3, color=BLUE, alpha=0.5)
    axes[0].scatter(*points.detach().T, s=5, color=ORANGE)
    axes[0].set_title("a loss: points find the data")
    draw_shift(axes[1], *shifted(generator))
    gaussian = torch.randn(600, 2, generator=generator)
    result = km.decompose(toy("moons").sample(600, generator), gaussian, 0.1, rank=2)
    axes[2].scatter(*gaussian.T, c=result.right()[:, 1], s=4, cmap="cividis")
    axes[2].set_title("singular functions")
    angle = 2 * torch.pi * torch.rand(500, generator=generator)
    ring = 1.4 * torch.stack([angle.cos(), angle.sin()], 1)
    ring = ring + 0.2 * torch.randn(500, 2, generator=generator)
    comparison = km.compare(gaussian, ring, permutations=0, jackknife_groups=0)
    side = torch.linspace(-3, 3, 60)
    witness = comparison.witness(torch.cartesian_prod(side, side)).reshape(60, 60).numpy()
    axes[3].imshow(witness.T, origin="lower", extent=(-3, 3, -3, 3), cmap="PuOr")
    axes[3].scatter(*ring[::3].T, s=2, color="black", alpha=0.4)
    axes[3].set_title("where two samples differ")
    for k in (0, 2, 3):
        axes[k].set(xticks=[], yticks=[])
    for ax in axes:
        ax.title.set_size(9)
    figure.savefig(PICTURES / "start.png", dpi=100)


def cases(generator: torch.Generator) -> dict[str, tuple[Tensor, Tensor]]:
    """Pairs of samples in which the costs disagree."""

    def blobs(left: int, right: int) -> Tensor:
        noise = 0.3 * torch.randn(left + right, 2, generator=generator)
        noise[:left, 0] -= 1.5
        noise[left:, 0] += 1.5
        return noise

    far = 0.3 * torch.randn(100, 2, generator=generator) + torch.tensor([0.0, 3.0])
    angle = 2 * torch.pi * torch.rand(200, generator=generator)
    ring = 1.4 * torch.stack([angle.cos(), angle.sin()], 1)
    return {
        "two samples of one density": (blobs(100, 100), blobs(100, 100)),
        "wrong proportions": (blobs(180, 20), blobs(20, 180)),
        "centres too many, far away": (blobs(100, 100), torch.cat([blobs(100, 100), far])),
        "a blob missing": (blobs(100, 100), blobs(200, 0)),
        "same mean and covariance": (
            torch.randn(200, 2, generator=generator),
            ring + 0.2 * torch.randn(200, 2, generator=generator),
        ),
    }


def what_costs_see(v: float = 0.1) -> list[dict[str, object]]:
    """Five pairs of samples, and the four costs of each."""
    pairs = cases(torch.Generator().manual_seed(0))
    rows = [{"case": name, **normalized(*pair, v)} for name, pair in pairs.items()]
    figure, axes = plt.subplots(2, len(pairs), figsize=(11, 4.4), layout="constrained")
    for k, ((name, (x, y)), row) in enumerate(zip(pairs.items(), rows, strict=True)):
        axes[0, k].scatter(*x.T, s=4, color=BLUE, alpha=0.6)
        axes[0, k].scatter(*y.T, s=4, color=ORANGE, alpha=0.6)
        axes[0, k].set(xlim=(-3.5, 3.5), ylim=(-3, 4), xticks=[], yticks=[])
        axes[0, k].set_title(name, fontsize=8)
        heights = [row[cost] for cost in COSTS]
        bars = axes[1, k].bar(list(COSTS), heights, color=COLOURS)
        axes[1, k].bar_label(bars, fmt="%.2f", fontsize=7)
        axes[1, k].set(ylim=(0, 1.12), yticks=[0, 0.5, 1] if k == 0 else [])
        axes[1, k].tick_params(labelsize=7)
    figure.savefig(PICTURES / "what-costs-see.png", dpi=100)
    return rows


def variances() -> list[dict[str, float]]:
    """Fidelity of two samples of one density, and of two densities, against the variance."""
    generator = torch.Generator().manual_seed(0)
    moons, circles = toy("moons"), toy("circles")
    rows = []
    figure, ax = plt.subplots(figsize=(5.5, 3), layout="constrained")
    for n, style in ((100, ":"), (400, "--"), (1000, "-")):
        x, again, other = (t.sample(n, generator) for t in (moons, moons, circles))
        grid = torch.logspace(-4, 2, 25).tolist()
        same, different = (
            [float(km.svd_cost(x, y, v, normalized=True)) for v in grid] for y in (again, other)
        )
        ax.semilogx(grid, same, style, color=BLUE, label=f"two samples of the moons, N = {n}")
        ax.semilogx(grid, different, style, color=ORANGE, label=f"moons and circles, N = {n}")
        gaps = [a - b for a, b in zip(same, different, strict=True)]
        best = max(range(len(grid)), key=gaps.__getitem__)
        rows.append({"N": n, "widest_gap_at": grid[best], "same": same[best],
                     "different": different[best], "median": float(km.choose_variance(x)),
                     "silverman": float(km.choose_variance(x, "silverman"))})  # fmt: skip
    ax.set(xlabel="variance", ylabel="fidelity (normalized SVD cost)")
    ax.legend(fontsize=6)
    figure.savefig(PICTURES / "variance.png", dpi=110)
    return rows


def fit() -> None:
    """The figure that `kermix fit moons --quick` writes."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "moons"
        CliRunner().invoke(app, ["fit", "moons", "--quick", "--out", str(run)])
        shutil.copyfile(run / "figure.svg", PICTURES / "fit.svg")


def main() -> None:
    """Draw everything."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    start()
    fit()
    figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
    shifts, curves = shifted(torch.Generator().manual_seed(0))
    draw_shift(ax, shifts, curves)
    ax.set_title("")
    figure.savefig(PICTURES / "shift.png", dpi=110)
    tables = {"what costs see": what_costs_see(), "variance": variances()}
    write_json(NUMBERS, {"tables": tables, **environment()})
    print(f"{PICTURES} and {NUMBERS}: {time.perf_counter() - begin:.0f} s")


if __name__ == "__main__":
    main()
