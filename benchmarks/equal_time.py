"""A generator trained by the SVD cost and by Sinkhorn divergences, for the same CPU time.

`python -m benchmarks equal-time`: 8 modes on a ring and 25 on a grid, standardized; a network of
10-128-128-2 that maps uniform noise to points; 1000 new data and 1000 new samples a step; Adam, at
the same learning rate, which falls with the share of the time that is over. The SVD cost has the
schedule of variances that `kermix fit` starts with, from that of the data to 1e-3 by
themselves and ten and a hundred times that, and the tolerance of training. Sinkhorn divergences
are geomloss's, with its default blur of 0.05 and with 0.01. Then 2,500 samples: modes that are
reached, the share within three deviations of one, and the energy distance to 10,000 held-out
points, for which 2,500 of the data's own are shown as well.

Times are CPU seconds of one thread, so that other programs on the machine do not count.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import kermix as km
from kermix.costs.baselines import energy_distance, mode_coverage
from kermix.data.dataset import toy
from kermix.kernels.gaussian import choose_variance
from kermix.training.loop import learning_rate
from kermix.training.objective import VarianceSchedule

__all__ = ["run"]

SETS, SEEDS = ("ring8", "grid25"), (0, 1)
SECONDS, QUICK_SECONDS = 60.0, 0.3
N, DATA, HELD_OUT, SAMPLES = 1000, 100_000, 10_000, 2_500
PEAK, NARROWEST, TOLERANCE = 2e-3, 1e-3, 1e-2
BLURS = (0.05, 0.01)
OURS = "kermix SVD"

Loss = Callable[[Tensor, Tensor, float], Tensor]  # of data, samples, and the share that is over


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """A row for each set, method and seed, and their means."""
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for name in SETS:
        for seed in SEEDS[: 1 if quick else None]:
            rows += _trained(name, seed, QUICK_SECONDS if quick else SECONDS)
            yield {"equal_time": _means(rows), "seeds": rows}


def _means(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for name, method in dict.fromkeys((row["set"], row["method"]) for row in rows):
        own = [row for row in rows if (row["set"], row["method"]) == (name, method)]
        line: dict[str, Any] = {"set": name, "method": method, "seeds": len(own)}
        for key in ("steps", "modes", "high_quality", "energy_distance"):
            line[key] = statistics.mean(row[key] for row in own)
        found.append(line)
    return found


def _losses(data: Tensor) -> dict[str, Loss]:
    schedule = VarianceSchedule(float(choose_variance(data[:N])), NARROWEST, until=0.7)
    found: dict[str, Loss] = {
        OURS: lambda x, y, share: km.SVDLoss(schedule.at(share), tolerance=TOLERANCE)(x, y)
    }
    try:
        from geomloss import SamplesLoss
    except ImportError:
        return found
    for blur in BLURS:
        # With the diameter said, it looks at no value.
        sinkhorn = SamplesLoss("sinkhorn", p=2, blur=blur, diameter=4.0, backend="tensorized")
        found[f"geomloss Sinkhorn, blur {blur}"] = lambda x, y, _, of=sinkhorn: of(x, y)
    return found


def _trained(name: str, seed: int, seconds: float) -> list[dict[str, Any]]:
    """Every loss on a set, from the same start and with the same data."""
    chosen = toy(name)
    generator = torch.Generator().manual_seed(seed)
    data = chosen.sample(DATA + HELD_OUT + SAMPLES, generator).float()
    centre, scale = data[:DATA].mean(0), data[:DATA].std()
    data, held_out, own = ((data - centre) / scale).split([DATA, HELD_OUT, SAMPLES])
    assert chosen.modes is not None
    centres = (chosen.modes.centres - centre) / scale
    deviation = chosen.modes.deviation / float(scale)

    def judged(samples: Tensor) -> dict[str, Any]:
        found = mode_coverage(samples, centres, deviation)
        return {
            "modes": found.modes,
            "high_quality": found.high_quality,
            "energy_distance": float(energy_distance(held_out, samples)),
        }

    rows = []
    for method, loss in _losses(data).items():
        network, steps = _train(data, loss, seed, seconds)
        with torch.no_grad():
            noise = torch.rand(SAMPLES, 10, generator=torch.Generator().manual_seed(seed + 1000))
            samples = network(noise)
        rows.append({"set": name, "method": method, "seed": seed, "steps": steps,
                     "cpu_s": seconds, **judged(samples)})  # fmt: skip
    rows.append({"set": name, "method": "the data themselves", "seed": seed, "steps": 0,
                 "cpu_s": 0.0, **judged(own)})  # fmt: skip
    return rows


def _train(data: Tensor, loss: Loss, seed: int, seconds: float) -> tuple[nn.Module, int]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(
            nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 2)
        )
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(network.parameters())
    start, steps = time.process_time(), 0
    while (share := (time.process_time() - start) / seconds) < 1:
        optimizer.param_groups[0]["lr"] = learning_rate(share, PEAK)
        x = data[torch.randint(len(data), (N,), generator=generator)]
        samples = network(torch.rand(N, 10, generator=generator))
        optimizer.zero_grad(set_to_none=True)
        loss(x, samples, share).backward()
        optimizer.step()
        steps += 1
    return network, steps
