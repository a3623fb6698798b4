"""Scores from nearest neighbours: precision, recall, density and coverage, as published."""

from typing import NamedTuple

import torch
from torch import Tensor

from kermix.checks import check_count, check_pair
from kermix.errors import OptionError
from kermix.kernels.distances import squared_distances

__all__ = ["NeighbourScores", "nearest", "neighbour_scores"]

PAIRS_AT_ONCE = 2**23


class NeighbourScores(NamedTuple):
    """Four shares, and one standard error of each for the given real samples.

    Attributes:
        precision: Share of fake samples in the balls around real ones (Kynkaanniemi et al. 2019).
        recall: Share of real samples in the balls around fake ones.
        density: Balls around real samples that a fake one is in, on average, divided by k
            (Naeem et al. 2020): 1 for equal distributions, and not bounded by 1.
        coverage: Share of real samples whose ball has a fake sample in it; for equal
            distributions about $1 - 2^{-k}$.
        errors: Of the four, in this order.
    """

    precision: float
    recall: float
    density: float
    coverage: float
    errors: tuple[float, float, float, float]


@torch.no_grad()
def neighbour_scores(real: Tensor, fake: Tensor, neighbours: int = 5) -> NeighbourScores:
    """Precision, recall, density and coverage of fake samples.

    The ball around a sample reaches to its k-th nearest neighbour in its own set.

    Args:
        real: Samples, shape (N, d), more than `neighbours`.
        fake: Samples of a generator, shape (M, d), more than `neighbours`.
        neighbours: The number k.

    Example:
        >>> x = torch.linspace(0, 1, 101)[:, None]
        >>> found = neighbour_scores(x, x[:50] + 0.001, 3)
        >>> round(found.precision, 2), round(found.recall, 2), round(found.coverage, 2)
        (1.0, 0.52, 0.51)
    """
    check_pair(real, fake, ("real", "fake"))
    check_count("neighbours", neighbours)
    if min(len(real), len(fake)) <= neighbours:
        raise OptionError(
            f"neighbours={neighbours} of {len(real)} real and {len(fake)} fake samples: there "
            "must be more samples than that in each set."
        )
    real, fake = real.double(), fake.double()
    around_real, around_fake = (nearest(s, s, neighbours + 1)[0][:, -1] for s in (real, fake))
    balls = torch.zeros(len(fake), dtype=torch.float64, device=real.device)
    reached = torch.zeros(len(real), dtype=torch.bool, device=real.device)
    covered = torch.zeros_like(reached)
    step = max(1, PAIRS_AT_ONCE // len(fake))
    for start in range(0, len(real), step):
        part = slice(start, start + step)
        distances = _distances(real[part], fake)
        inside = distances < around_real[part, None]
        balls += inside.sum(0)
        covered[part] = inside.any(1)
        reached[part] = (distances < around_fake).any(1)
    shares = (balls > 0).double(), reached.double(), balls / neighbours, covered.double()
    a, b, c, d = (float(s.mean()) for s in shares)
    e, f, g, h = (float(s.std() / len(s) ** 0.5) for s in shares)
    return NeighbourScores(a, b, c, d, (e, f, g, h))


@torch.no_grad()
def nearest(rows: Tensor, others: Tensor, count: int = 1) -> tuple[Tensor, Tensor]:
    """Distances of rows to the nearest of the others, (N, count), and their places among them."""
    step = max(1, PAIRS_AT_ONCE // max(1, len(others)))
    found = [
        _distances(part, others).topk(min(count, len(others)), dim=1, largest=False)
        for part in rows.split(step)
    ]
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # Small distances between far points, which memorizing is about, do not cancel here.
    return squared_distances(a, b).clamp(min=0).sqrt()
