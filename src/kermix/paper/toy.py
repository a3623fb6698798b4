"""Figure 1 in the setting of its authors, as far as their notebooks tell it.

Data and networks are those of the notebooks at github.com/bohu615/kernelized-matrix-cost
(`experiments_quantitative_analysis_compute_the_maximal_bound.ipynb` makes the mixture,
`produce_comparison_figures_organized.ipynb` has the networks and the optimizer): ten Gaussians
with weights, means and variances at random, 20,000 samples in the unit square; 10 uniform numbers
through three layers of 2000 with ReLU and then batch normalization, and a sigmoid; Adam with 1e-4
and betas (0.5, 0.9). The costs are maximized as they are, without a logarithm. Every seed has
data, noise and weights of its own, which the costs of a seed share; the first is the authors' 42.

A training is a file, so that several processes can share them on one machine:
`python -m kermix.paper.toy --seeds 42,43 --cost svd,scalar --cells FOLDER`, and at the end
`kermix reproduce fig-toy --cells FOLDER`, which trains what is not there.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from kermix.costs.baselines import energy_distance
from kermix.costs.functions import matrix_cost, scalar_cost, svd_cost, vector_cost
from kermix.distributed.processes import Ranks
from kermix.environment import environment
from kermix.errors import RunError
from kermix.files import write_json
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.generators import UniformPrior, reset_with
from kermix.paper.artefact import (
    BEST,
    NO_DIFFICULTIES,
    SIMILAR,
    Artefact,
    Claim,
    Rows,
    Tick,
    ignore,
    points_panel,
    sheet,
)
from kermix.paper.generation import NOISE, V
from kermix.paper.verdicts import best, decided, excess, of_seeds, similar_excess, spread
from kermix.training.loop import Forward, Task, Trainer, adam

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["COSTS", "ToyTraining", "authors_mixture", "claims", "judged", "run", "train_cell"]

COSTS = {
    "svd": lambda x, y: -svd_cost(x, y, V),
    "scalar": lambda x, y: -scalar_cost(x, y, V),
    "vector": lambda x, y: -vector_cost(x, y, V),
    "matrix": lambda x, y: -matrix_cost(x, y, V, form="data_fixed"),
}
TITLES = {"scalar": "Scalar", "vector": "Vector-matrix", "matrix": "Matrix-matrix", "svd": "SVD"}
FIRST_SEED = 42  # a convention: the default of the authors' generator


@dataclass(frozen=True)
class ToyTraining:
    """How each network is trained, and how its samples are looked at."""

    seeds: int = 6
    steps: int = 6000
    batch_size: int = 1000
    width: int = 2000
    depth: int = 3
    samples: int = 20_000
    compared: int = 10_000
    learning_rate: float = 1e-4

    @classmethod
    def quick(cls) -> "ToyTraining":
        """Fewer seeds and steps and smaller networks."""
        return cls(seeds=2, steps=120, batch_size=150, width=128, compared=1000,
                   learning_rate=2e-3)  # fmt: skip


def authors_mixture(seed: int, count: int, components: int = 10) -> tuple[Tensor, GaussianMixture]:
    """The authors' data, in the unit square, and the mixture that they are samples of.

    One NumPy generator draws weights, means, variances, the components of the samples, and then
    the samples of each component in turn.

    Example:
        >>> data, mixture = authors_mixture(42, 1000)
        >>> float(data.min()), float(data.max()), mixture.means.shape
        (0.0, 1.0, torch.Size([10, 2]))
    """
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(components))
    means = rng.uniform(-5.0, 5.0, size=(components, 2))
    variances = rng.uniform(0.05, 1.0, size=components)
    chosen = rng.choice(components, size=count, p=weights)
    rows = np.empty((count, 2))
    for k in range(components):
        own = np.flatnonzero(chosen == k)
        if own.size:
            rows[own] = rng.multivariate_normal(means[k], variances[k] * np.eye(2), size=own.size)
    low = rows.min()
    scale = (rows - low).max()
    mixture = GaussianMixture(
        torch.from_numpy(weights),
        torch.from_numpy((means - low) / scale),
        torch.from_numpy(variances / scale**2),
    )
    return torch.from_numpy((rows - low) / scale), mixture


class ToyTask(Task):
    """The training of one network by one cost."""

    def __init__(self, data: Tensor, cost: str, seed: int, training: ToyTraining) -> None:
        weights = torch.Generator().manual_seed(seed)
        self._data, self._cost, self._training = data.float(), COSTS[cost], training
        self.prior, self._seed = UniformPrior(NOISE), seed
        layers: list[nn.Module] = []
        for i in range(training.depth):
            inputs = training.width if i else NOISE
            layers += [nn.Linear(inputs, training.width), nn.ReLU(),
                       nn.BatchNorm1d(training.width)]  # fmt: skip
        network = nn.Sequential(*layers, nn.Linear(training.width, 2), nn.Sigmoid())
        reset_with(network, weights)
        self.model = self.module = network

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """The optimizer of the authors' notebooks."""
        self._data = self._data.to(fabric.device)
        self.model.to(fabric.device)
        self.generator = torch.Generator(fabric.device).manual_seed(self._seed)
        return [adam(self.model.parameters(), fabric.device, betas=(0.5, 0.9))]

    @property
    def total(self) -> int:
        """Steps of the setting."""
        return self._training.steps

    @property
    def reports_every(self) -> int:
        """To see early that a loss is not finite."""
        return 500

    def learning_rate(self, step: int) -> float:
        """The same throughout."""
        return self._training.learning_rate

    def kind(self, step: int) -> str:
        """All steps are alike."""
        return "cost"

    def batch(self, step: int) -> Tensor:
        """Rows at random, with replacement."""
        size, device = self._training.batch_size, self._data.device
        rows = torch.randint(len(self._data), (size,), generator=self.generator, device=device)
        return self._data[rows]

    def loss(self, forward: Forward | None, batch: Tensor, step: int) -> Tensor:
        """Minus the cost between the rows and as many samples of the network."""
        assert forward is not None
        return self._cost(batch, forward(self.prior.sample(len(batch), self.generator)))

    def failure(self, step: int) -> str:
        """Fast steps are what fails."""
        return f"The loss is not finite at step {step}; try a lower learning rate."


def train_cell(
    cost: str, seed: int, training: ToyTraining, device: str = "auto", shown: int = 700
) -> dict[str, Any]:
    """Train one network; returns its numbers, some samples, and how it was made."""
    data, mixture = authors_mixture(seed, training.samples)
    task = ToyTask(data, cost, seed, training)
    trainer = Trainer(task, device=device)
    start = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - start
    fresh = torch.Generator().manual_seed(10_000 + seed)
    held_out, other = (mixture.sample((training.compared,), generator=fresh) for _ in range(2))
    where = next(task.model.parameters()).device
    noise = task.prior.sample(training.compared, fresh).to(where)
    with torch.no_grad():
        smooth = task.model.eval()(noise).double()
        task.model.train()
        batches = noise.split(training.batch_size)
        samples = torch.cat([task.model(batch) for batch in batches]).double()
    held_out, other = held_out.to(where), other.to(where)
    found, of_data = (_measured(points, held_out, mixture) for points in (samples, other))
    made = environment()
    return {
        "cost": cost,
        "seed": seed,
        "training": asdict(training),
        "numbers": found
        | {f"{name} of data": value for name, value in of_data.items()}
        | {"nll by running statistics": float(-_smoothed_density(smooth, held_out).mean())},
        "seconds": seconds,
        "samples": samples[:shown].float().cpu().tolist(),
        "data": data[:shown].float().tolist(),
        **{key: made[key] for key in ("machine", "versions", "commit", "command")},
    }


def _measured(
    points: Tensor,
    held_out: Tensor,
    mixture: GaussianMixture,
    deviations: float = 3,
    rare: float = 0.01,
    found: float = 0.1,
) -> dict[str, float]:
    """Of points, as good a set as any if they are samples of the mixture themselves.

    Args:
        points: What is measured.
        held_out: Samples of the mixture.
        mixture: The truth.
        deviations: A good sample is so near to the mean of some component.
        rare: Components of less weight are not counted as modes.
        found: A mode is found if it has this share of the samples that it should have.
    """
    means, variances, weights = (
        part.to(points.device) for part in (mixture.means, mixture.covariances, mixture.weights)
    )
    squares = torch.cdist(points, means).square()
    good = (squares <= deviations**2 * variances).any(1).double().mean()
    shares = _shares(points, means, variances, weights)
    modes = (shares >= found * weights)[weights >= rare]
    return {
        "nll": float(-_smoothed_density(points, held_out).mean()),
        "good samples": float(good),
        "error of mode shares": float((shares - weights).abs().sum()) / 2,
        "energy distance": float(energy_distance(held_out.float(), points.float())),
        "share of modes": float(modes.double().mean()),
    }


def _shares(points: Tensor, means: Tensor, variances: Tensor, weights: Tensor) -> Tensor:
    """Mean probabilities of the components, given each point."""
    logs = weights.log() - variances.log() - torch.cdist(points, means).square() / 2 / variances
    return logs.softmax(1).mean(0)


def _smoothed_density(centres: Tensor, points: Tensor) -> Tensor:
    """Log-density of points under Gaussians at the centres, as wide as the kernel makes them."""
    variance = V * centres.shape[1]
    squares = torch.cat([torch.cdist(part, centres).square().div(-2 * variance).logsumexp(1)
                         for part in points.split(1000)])  # fmt: skip
    return squares - np.log(len(centres)) - np.log(2 * np.pi * variance)


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    cells: Path | None = None,
    training: ToyTraining | None = None,
    device: str = "auto",
) -> Artefact:
    """Compute the figure.

    Args:
        quick: Whether to take fewer seeds and steps and smaller networks.
        data_root: Not used.
        tick: Called with the share that is done.
        cells: Folder of trained networks, which are taken where they are there.
        training: Instead of the full or quick setting.
        device: Where to train.
    """
    training = training or (ToyTraining.quick() if quick else ToyTraining())
    found, total = [], training.seeds * len(COSTS)
    for seed in range(FIRST_SEED, FIRST_SEED + training.seeds):
        for cost in COSTS:
            found.append(_cell(cost, seed, training, cells, device))
            tick(len(found) / total)
    rows = [{"cost": c["cost"], "seed": c["seed"], **c["numbers"],
             "seconds": round(c["seconds"], 1)} for c in found]  # fmt: skip
    machines = dict.fromkeys(c["machine"]["gpu"] or c["machine"]["cpu"] for c in found)
    commits = dict.fromkeys(str(c["commit"]) for c in found)
    return Artefact(
        name="fig-toy",
        title="Figure 1 in the authors' setting",
        caption="Data (blue) and samples (orange) of networks trained with each cost, v = "
        f"{V}, {training.steps} steps; seed {FIRST_SEED}, the first of {training.seeds}. A sample "
        "is a centre, without the kernel's noise.",
        figure=_figure(found[: len(COSTS)]),
        settings={
            "v": V, "first seed": FIRST_SEED, "data": "authors_mixture: 10 Gaussians, weights, "
            "means and variances at random, in the unit square", "noise": f"{NOISE}-D uniform",
            "network": "linear, ReLU, BatchNorm; sigmoid at the end",
            "optimiser": "Adam, betas (0.5, 0.9), constant rate", "loss": "minus the cost",
            "matrix-matrix cost": "tr(P^T R_F^-1 P), the data being fixed", **asdict(training),
            "trained on": list(machines), "trained at commit": list(commits),
        },
        tables={"costs": _means(rows), "seeds": rows},
        claims=claims(rows),
        notes=[
            "Data and networks: github.com/bohu615/kernelized-matrix-cost. The number of steps "
            "and the size of a batch are ours. Samples are drawn as there, in batches like those "
            "of training, which are normalized by their own statistics.",
            "Smoothed samples are a mixture of Gaussians at the samples with the variance that "
            f"the kernel gives them, {V} times the dimension in each coordinate. Data are judged "
            "as samples are, by as many fresh samples of the true mixture.",
        ],
    )  # fmt: skip


def _cell(
    cost: str, seed: int, training: ToyTraining, cells: Path | None, device: str
) -> dict[str, Any]:
    path = None if cells is None else _cell_file(cells, cost, seed)
    if path is None or not path.exists():
        made = train_cell(cost, seed, training, device)
        if path is not None:
            write_json(path, made)
        return made
    try:
        kept: dict[str, Any] = json.loads(path.read_text())
        if kept["training"] | {"seeds": 0} != asdict(training) | {"seeds": 0}:
            raise RunError(f"{path} was trained with {kept['training']}; remove it.")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path}: not a cell of fig-toy ({error}).") from None
    return kept


def _cell_file(cells: Path, cost: str, seed: int) -> Path:
    return cells / f"toy-{cost}-{seed}.json"


def _means(rows: Rows) -> Rows:
    names = [name for name in rows[0] if name not in ("cost", "seed", "seconds")]
    return [
        {"cost": cost,
         **{name: mean(r[name] for r in rows if r["cost"] == cost) for name in names},
         "excess nll": mean(r["nll"] - r["nll of data"] for r in rows if r["cost"] == cost)}
        for cost in COSTS
    ]  # fmt: skip


def claims(rows: Rows) -> list[Claim]:
    """Judge what the paper says of this figure, from the numbers of each seed."""

    def values(key: str) -> dict[str, list[float]]:
        return of_seeds(rows, key, COSTS)

    def of_data(key: str) -> list[float]:
        return values(f"{key} of data")["svd"]

    modes = values("share of modes")
    collapsed = [c for c in COSTS if mean(modes[c]) <= 0.5]
    readings = (
        ("likelihood of held-out data", "nll", "least negative log-likelihood", -1),
        ("share of good samples", "good samples", "most samples within three deviations", 1),
        (
            "shares of the modes",
            "error of mode shares",
            "least total variation from the true weights",
            -1,
        ),
        ("energy distance", "energy distance", "least energy distance to held-out data", -1),
    )
    return [
        decided(
            "There are no difficulties in fitting the mixture with any of the four costs (the "
            "authors' setting).",
            "each finds at least nine tenths of the components of 1 % and more: a tenth of their "
            "samples at least",
            {f"modes, {c}": spread(own) for c, own in modes.items()},
            least=0.9,
            statement=NO_DIFFICULTIES,
        ),
        *(
            best(
                f"The SVD cost fits best (the authors' setting; read as: {reading}).",
                f"{rule}, by paired differences to each other cost",
                values(key),
                sign,
                data=of_data(key),
                collapsed=collapsed,
                statement=BEST,
            )
            for reading, key, rule, sign in readings
        ),
        similar_excess(
            "The scalar, vector-matrix and matrix-matrix costs perform similarly (the authors' "
            "setting).",
            excess(values("nll"), of_data("nll"), ("scalar", "vector", "matrix")),
            collapsed=collapsed,
            statement=SIMILAR,
        ),
    ]


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers, by the rules of today."""
    return claims(tables["seeds"])


def _figure(cells: Sequence[Mapping[str, Any]]) -> "Figure":
    figure, (panels,) = sheet(1, len(COSTS), 8.6, 2.4)
    by_cost = {cell["cost"]: cell for cell in cells}
    for axes, cost in zip(panels, TITLES, strict=True):
        data, samples = (np.array(by_cost[cost][name]) for name in ("data", "samples"))
        points_panel(axes, data, samples, TITLES[cost])
    return figure


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the networks that are asked for and not there."""
    parser = argparse.ArgumentParser("kermix.paper.toy")
    parser.add_argument("--cost", default=",".join(COSTS), help="with commas between")
    parser.add_argument("--seeds", default="42,43,44,45,46,47")
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--quick", action="store_true", help="small networks, to try it")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    given = parser.parse_args(arguments)
    start = time.perf_counter()
    training = ToyTraining.quick() if given.quick else ToyTraining()
    for seed in map(int, given.seeds.split(",")):
        for cost in given.cost.split(","):
            path = _cell_file(given.cells, cost, seed)
            if path.exists() or time.perf_counter() - start > given.stop_after:
                continue
            cell = train_cell(cost, seed, training, given.device)
            write_json(path, cell)
            sys.stdout.write(
                f"{path.name} {json.dumps(cell['numbers'])} {cell['seconds']:.0f} s\n"
            )
            sys.stdout.flush()


if __name__ == "__main__":
    main()
