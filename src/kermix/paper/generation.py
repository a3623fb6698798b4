"""The second case of Figure 1: networks trained with each cost on ten narrow modes far apart.

The first case, in the authors' own setting, is `kermix.paper.toy`. The paper's settings: ten
states with means at random, 10-D uniform noise, v = 0.001, a new batch for each step. It does not
give the spread of the states, the network, the optimiser, or the number of steps. Here data lie
in the unit square, the network is an MLP with BatchNorm, ReLU and a sigmoid at the end, and Adam
has betas (0.5, 0.9), as in its authors' notebooks for related work. Each seed has means, data,
noise and weights of its own; the costs of one seed share them. Means are at least six deviations
apart, so that there are ten modes to count.

The two ablations, numbers like the costs without what makes the costs work, are trained in the
same way; the paper calls them ineffective. Of the L2 distance matrix it is not said whether its
nuclear norm is to be large or small: both are tried.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn

from kermix.checks import (
    check_pair,
    full_precision,
    working_dtype,
)
from kermix.costs.baselines import energy_distance, mode_coverage
from kermix.costs.losses import MatrixLoss, ScalarLoss, SVDLoss, VectorLoss
from kermix.costs.points import PointStatistics
from kermix.distributed.processes import Ranks
from kermix.kernels.distances import squared_distances
from kermix.kernels.gaussian import Kernel
from kermix.linalg.nuclear import NuclearMethod, nuclear_norm
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.generators import MLPGenerator, UniformPrior
from kermix.paper.artefact import (
    BEST,
    COST_COLOURS,
    FROBENIUS,
    GREY,
    INK_COLOUR,
    L2,
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
from kermix.paper.verdicts import best, decided, excess, of_seeds, ratios, similar_excess, spread
from kermix.training.loop import Forward, Task, Trainer, learning_rate

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "METHODS",
    "GenerationTraining",
    "Loss",
    "SampleTask",
    "claims",
    "distance_nuclear_cost",
    "frobenius_cost",
    "judged",
    "run",
    "train",
    "train_each",
]


def frobenius_cost(x: Tensor, y: Tensor, v: Kernel) -> Tensor:  # (*B,)
    r"""Ablation: $\mathrm{tr}(P P^\top)$, which the paper reports as ineffective.

    Example:
        >>> frobenius_cost(torch.zeros(2, 1), torch.zeros(3, 1), 1.0)
        tensor(6.)
    """
    sides = PointStatistics(x, y, v)
    with full_precision(sides.device):
        cross = sides.cross_gram()
        log_cost = 2 * cross.log_scale + cross.matrix.square().sum((-2, -1)).log()
        return sides.in_callers_dtype(log_cost.exp())


def distance_nuclear_cost(
    x: Tensor, y: Tensor, method: NuclearMethod = "auto", per_dimension: bool = True
) -> Tensor:  # (*B,)
    r"""Ablation: nuclear norm of the squared distances, which the paper reports as ineffective.

    Example:
        >>> distance_nuclear_cost(torch.zeros(1, 2), torch.ones(1, 2))
        tensor(1.)
    """
    check_pair(x, y)
    with full_precision(x.device):
        dtype = working_dtype(x, y)
        distances = squared_distances(y.to(dtype), x.to(dtype), same=y is x)
        # Scaled first: the sum of singular values of the largest distances must not overflow.
        largest = distances.detach().amax((-2, -1)).clamp(min=torch.finfo(dtype).tiny)
        norm = largest * nuclear_norm(distances / largest[..., None, None], method=method)
        norm = norm / x.shape[-1] if per_dimension else norm
        limits = torch.finfo(torch.promote_types(x.dtype, y.dtype))
        return norm.clamp(max=limits.max).to(torch.promote_types(x.dtype, y.dtype))


Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
Trained: TypeAlias = tuple[dict[str, float], Tensor, Tensor]  # numbers, samples, held-out data

V = 0.001  # the paper's, also of `toy`, `prior` and `remarks`
STATES, DEVIATION, NOISE = 10, 0.025, 10
COSTS: dict[str, Loss] = {
    "svd": SVDLoss(V),
    "scalar": ScalarLoss(V),
    "vector": VectorLoss(V),
    "matrix": MatrixLoss(V, form="data_fixed"),
}
ABLATIONS: dict[str, Loss] = {
    "Frobenius": lambda x, y: -frobenius_cost(x, y, V).log(),
    "L2 large": lambda x, y: -distance_nuclear_cost(x, y).log(),
    "L2 small": lambda x, y: distance_nuclear_cost(x, y).log(),
}
METHODS = COSTS | ABLATIONS
TITLES = {
    "scalar": "Scalar", "vector": "Vector-matrix", "matrix": "Matrix-matrix", "svd": "SVD",
    "Frobenius": "Frobenius norm", "L2 large": "L2 distances, large",
    "L2 small": "L2 distances, small",
}  # fmt: skip


@dataclass(frozen=True)
class GenerationTraining:
    """How each network is trained, and how its samples are looked at."""

    seeds: int = 6
    steps: int = 800
    batch_size: int = 256
    width: int = 256
    depth: int = 3
    learning_rate: float = 0.01
    compared: int = 2500

    @classmethod
    def quick(cls) -> "GenerationTraining":
        """Fewer seeds and steps and smaller networks."""
        return cls(seeds=3, steps=200, batch_size=160, width=128)


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    training: GenerationTraining | None = None,
) -> Artefact:
    """Compute the figure.

    Args:
        quick: Whether to take fewer seeds and steps and smaller networks.
        data_root: Not used.
        tick: Called with the share that is done.
        training: Instead of the full or quick setting.
    """
    training = training or (GenerationTraining.quick() if quick else GenerationTraining())

    def one(method: str, seed: int) -> Trained:
        return train(method, seed, training)

    rows, shown = train_each("method", METHODS, training.seeds, one, tick)
    summary = summarise(rows)
    return Artefact(
        name="fig-generation",
        title="Figure 1, narrow modes far apart, and the ablations",
        caption=f"Data (blue) and samples (orange) of networks trained with each cost, v = {V}, "
        f"{training.steps} steps; the first of {training.seeds} seeds. A sample is a centre, "
        "without the kernel's noise. Below, the ablations; and by how much the negative "
        "log-likelihood of held-out data under the smoothed samples exceeds that under smoothed "
        "data, for each seed (small) and on average (bar).",
        figure=_figure(shown, rows),
        settings={
            "v": V, "states": STATES, "deviation of a state": DEVIATION,
            "means": f"uniform in the unit square, at least {_apart():g} apart",
            "noise": f"{NOISE}-D uniform", "optimiser": "Adam, betas (0.5, 0.9)",
            "network": "MLP, BatchNorm, ReLU, sigmoid at the end",
            "loss": "minus the logarithm of the normalized cost",
            "matrix-matrix cost": "tr(P^T R_F^-1 P), the data being fixed", **asdict(training),
        },
        tables={"methods": list(summary.values()), "seeds": rows},
        claims=claims(rows),
        notes=[
            "Smoothed samples are a mixture of Gaussians at the samples with the variance that "
            f"the kernel gives them, {V} times the dimension in each coordinate."
        ],
    )  # fmt: skip


def train_each(
    by: str,
    names: Collection[str],
    seeds: int,
    train: Callable[[str, int], Trained],
    tick: Tick,
) -> tuple[Rows, dict[str, Tensor]]:
    """Numbers for each name and seed, and samples and data of the first seed."""
    rows: Rows = []
    shown: dict[str, Tensor] = {}
    for seed, name in product(range(seeds), names):
        numbers, samples, data = train(name, seed)
        rows.append({by: name, "seed": seed, **numbers})
        if seed == 0:
            shown[name], shown["data"] = samples, data
        tick(len(rows) / (seeds * len(names)))
    return rows, shown


class SampleTask(Task):
    """The training of one network from noise to points."""

    def __init__(
        self,
        network: nn.Module,
        mixture: GaussianMixture,
        loss_of: Loss,
        training: GenerationTraining,
        generator: torch.Generator,
    ) -> None:
        self.model = self.module = network
        self.generator, self.prior = generator, UniformPrior(NOISE)
        self._mixture, self._loss_of, self._training = mixture, loss_of, training

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Adam as in its authors' notebooks; the paper names no optimizer."""
        return [torch.optim.Adam(self.model.parameters(), betas=(0.5, 0.9))]

    @property
    def total(self) -> int:
        """Steps of the figure's setting."""
        return self._training.steps

    @property
    def reports_every(self) -> int:
        """Nobody looks before the end."""
        return self._training.steps

    def learning_rate(self, step: int) -> float:
        """One rise and fall."""
        return learning_rate(step / self._training.steps, self._training.learning_rate)

    def batch(self, step: int) -> Tensor:
        """New points of the mixture."""
        return self._mixture.sample((self._training.batch_size,), generator=self.generator)

    def loss(self, forward: Forward | None, batch: Tensor, step: int) -> Tensor:
        """Between the points and as many of the network."""
        assert forward is not None
        noise = self.prior.sample(self._training.batch_size, self.generator)
        return self._loss_of(batch, forward(noise))

    def failure(self, step: int) -> str:
        """Fast steps are what fails."""
        return f"The loss is not finite at step {step}; try a lower learning rate."


def train(
    method: str, seed: int, training: GenerationTraining, loss: Loss | None = None
) -> Trained:
    """Train one network; returns its numbers, samples of it, and held-out data.

    Args:
        method: One of `METHODS`, unless a loss is given.
        seed: Of means, data, noise and weights.
        training: How it is trained.
        loss: Between data and samples, instead of the method's.
    """
    generator = torch.Generator().manual_seed(seed)
    means = random_means(generator)
    mixture = _smooth(means, DEVIATION**2)
    network = nn.Sequential(
        MLPGenerator(NOISE, 2, training.width, training.depth, generator=generator), nn.Sigmoid()
    )
    task = SampleTask(network, mixture, loss or METHODS[method], training, generator)
    Trainer(task, device="cpu").run()
    prior = task.prior
    network.eval()
    fresh = torch.Generator().manual_seed(10_000 + seed)
    with torch.no_grad():
        samples = network(prior.sample(training.compared, fresh))
    held_out, other = (mixture.sample((training.compared,), generator=fresh) for _ in range(2))
    coverage = mode_coverage(samples, means, DEVIATION)
    return (
        {
            "nll": _nll(samples, held_out),
            "nll of data": _nll(other, held_out),
            "energy distance": float(energy_distance(held_out, samples)),
            "energy distance of data": float(energy_distance(held_out, other)),
            "modes": coverage.modes,
            "good samples": coverage.high_quality,
            "kl of modes": coverage.kl,
        },
        samples,
        held_out,
    )


def random_means(generator: torch.Generator) -> Tensor:  # (10, 2)
    """Means at random in the unit square, drawn again while two of them touch.

    Example:
        >>> means = random_means(torch.Generator().manual_seed(0))
        >>> bool(torch.pdist(means).min() >= 0.15)
        True
    """
    while True:
        means = 0.05 + 0.9 * torch.rand(STATES, 2, generator=generator)
        if torch.pdist(means).min() >= _apart():
            return means


def _apart(deviations: float = 6) -> float:
    """How far apart means are at least."""
    return deviations * DEVIATION


def summarise(rows: Rows) -> dict[str, dict[str, float]]:
    """Means over seeds for each method; and, for the SVD cost, in how many seeds it is best."""
    summary = {}
    for method in dict.fromkeys(row["method"] for row in rows):
        own = [row for row in rows if row["method"] == method]
        numbers = [name for name in own[0] if name not in ("method", "seed")]
        above = [row["nll"] - row["nll of data"] for row in own]
        summary[method] = {
            "method": method,
            **{name: mean(row[name] for row in own) for name in numbers},
            "excess nll": mean(above),
            "sd of excess nll": stdev(above) if len(above) > 1 else 0.0,
        }
    return summary


def claims(rows: Rows) -> list[Claim]:
    """Judge what the paper says of this figure, from the numbers of each seed."""

    def values(key: str) -> dict[str, list[float]]:
        return of_seeds(rows, key, COSTS, by="method")

    def of_data(key: str) -> list[float]:
        return values(f"{key} of data")["svd"]

    modes, nll, energy = values("modes"), values("nll"), values("energy distance")
    collapsed = [name for name in COSTS if mean(modes[name]) <= STATES / 2]
    readings = (
        ("likelihood of held-out data", nll, "least negative log-likelihood", -1, of_data("nll")),
        ("share of good samples", values("good samples"), "most samples within three deviations",
         # Of a plane Gaussian, so many are within three deviations.
         1, [1 - math.exp(-9 / 2)] * len(nll["svd"])),
        ("energy distance", energy, "least energy distance to held-out data", -1,
         of_data("energy distance")),
    )  # fmt: skip
    return [
        decided(
            "There are no difficulties in fitting the mixture with any of the four costs.",
            "each covers at least nine of the ten modes",
            {name: spread(own) for name, own in modes.items()},
            least=9,
            statement=NO_DIFFICULTIES,
        ),
        *(
            best(
                f"The SVD cost fits best (read as: {reading}).",
                f"{rule}, by paired differences to each other cost",
                numbers,
                sign,
                data=data,
                collapsed=collapsed,
                statement=BEST,
            )
            for reading, numbers, rule, sign, data in readings
        ),
        similar_excess(
            "The scalar, vector-matrix and matrix-matrix costs perform similarly.",
            excess(nll, of_data("nll"), ("scalar", "vector", "matrix")),
            collapsed=collapsed,
            statement=SIMILAR,
        ),
        _ineffective(FROBENIUS, ["Frobenius"], rows, energy),
        _ineffective(L2, ["L2 large", "L2 small"], rows, energy),
    ]


def _ineffective(
    text: str, names: Sequence[str], rows: Rows, energy: Mapping[str, Sequence[float]]
) -> Claim:
    """The claim that other losses fail where the worst of the four costs does not."""
    worst = [max(of_costs) for of_costs in zip(*energy.values(), strict=True)]
    distances = of_seeds(rows, "energy distance", names, by="method")
    modes = of_seeds(rows, "modes", names, by="method")
    over = {f"distance of {n} over that of the worst": ratios(own, worst)
            for n, own in distances.items()}  # fmt: skip
    return decided(
        text,
        "energy distance at least five times that of the worst of the four costs, and at "
        "most five modes",
        over | {f"modes of {n}": spread(own) for n, own in modes.items()},
        least=dict.fromkeys(over, 5),
        most={f"modes of {n}": 5 for n in names},
        statement=text,
    )


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers, by the rules of today."""
    return claims(tables["seeds"])


def _smooth(centres: Tensor, variance: float) -> GaussianMixture:
    count = len(centres)
    return GaussianMixture(
        torch.full((count,), 1 / count), centres, torch.full((count,), variance)
    )


def _nll(samples: Tensor, held_out: Tensor) -> float:
    mixture = _smooth(samples.double(), V * samples.shape[1])
    return float(-mixture.log_prob(held_out.double()).mean())


def _figure(shown: Mapping[str, Tensor], rows: Rows) -> "Figure":
    figure, panels = sheet(2, 4, 8.6, 4.6)
    for axes, method in zip(panels.flat, TITLES, strict=False):
        data, samples = (shown[name][:700].numpy() for name in ("data", method))
        points_panel(axes, data, samples, TITLES[method])
    _strip(panels[1, 3], rows)
    return figure


def _strip(axes: "Axes", rows: Rows) -> None:
    """The excess of each seed, on a logarithmic line for each method."""
    methods = list(TITLES)
    for place, method in enumerate(methods):
        own = [r["nll"] - r["nll of data"] for r in rows if r["method"] == method]
        colour = COST_COLOURS.get(method, "#777777")
        axes.plot(own, [place] * len(own), "o", color=colour, markersize=3, alpha=0.6)
        axes.plot(mean(own), place, "|", color=INK_COLOUR, markersize=11, markeredgewidth=1.4)
        axes.text(0.02, place - 0.28, TITLES[method], fontsize=6.5, color=INK_COLOUR,
                  transform=axes.get_yaxis_transform())  # fmt: skip
    axes.set_xscale("log")
    axes.set(yticks=[], ylim=(len(methods) - 0.5, -0.8))
    axes.grid(axis="x", color=GREY, linewidth=0.5)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.set_title("excess NLL, nats", fontsize=8, color=INK_COLOUR)
