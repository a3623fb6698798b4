"""Distances between sets of samples: kernel distance (KID), Frechet distance, and neighbours.

The scores from nearest neighbours are precision, recall, density and coverage, as published.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from kermix.checks import NUMBERS_AT_ONCE, check_count, check_pair, check_seed, rows_at_once
from kermix.costs.moments import fidelity
from kermix.errors import OptionError
from kermix.kernels.distances import squared_distances
from kermix.kernels.others import PolynomialKernel
from kermix.two_sample.error_bars import unbiased_distance_error

__all__ = [
    "KernelDistance",
    "NeighborScores",
    "frechet_distance",
    "frechet_of_moments",
    "kernel_distance",
    "nearest",
    "neighbor_scores",
    "neighbor_values",
]

SUBSETS, SUBSET_SIZE = 100, 1000  # as usual for KID
CUBIC = PolynomialKernel(3, 1.0)


class KernelDistance(NamedTuple):
    """Squared MMD with the cubic kernel: mean and standard deviation over random subsets."""

    value: float
    spread: float
    subset_size: int
    error: float  # one standard error of the value, over new samples of both sets


@torch.no_grad()
def kernel_distance(
    real: Tensor,
    fake: Tensor,
    *,
    subsets: int = SUBSETS,
    subset_size: int | None = None,
    seed: int = 0,
) -> KernelDistance:
    r"""Kernel distance of embeddings (KID): unbiased squared MMD, $(a \cdot b / d + 1)^3$.

    The mean over random subsets of both sets, of equal size, of

    $$\frac{1}{m (m - 1)} \sum_{i \ne j} [k(x_i, x_j) + k(y_i, y_j)]
        - \frac{2}{m^2} \sum_{i, j} k(x_i, y_j)$$

    Args:
        real: Embeddings, shape (N, d).
        fake: Embeddings of a generator's samples, shape (M, d).
        subsets: How many.
        subset_size: Of how many samples; by default 1000, or all if there are fewer.
        seed: Of the subsets.

    Example:
        >>> x = torch.randn(300, 4, generator=torch.Generator().manual_seed(0))
        >>> found = kernel_distance(x[:150], x[150:] + 1, subset_size=100)
        >>> 3 < found.value < 40
        True
    """
    check_pair(real, fake, ("real", "fake"))
    check_count("subsets", subsets)
    check_seed(seed)
    smaller = min(len(real), len(fake))
    size = min(SUBSET_SIZE, smaller) if subset_size is None else subset_size
    check_count("subset_size", size, least=2)
    if size > smaller:
        raise OptionError(f"subset_size={size}: the smaller set has {smaller} samples.")
    generator = torch.Generator().manual_seed(seed)
    x, y = real.double(), fake.double()
    whole = size == len(x) == len(y)
    values = []
    for _ in range(1 if whole else subsets):
        a, b = (s[torch.randperm(len(s), generator=generator)[:size].to(s.device)] for s in (x, y))
        values.append(_squared_mmd(a, b))
    found = torch.stack(values)
    spread = float(found.std(correction=0))
    error = (_error_of_all(x, y, generator) ** 2 + spread**2 / len(values)) ** 0.5
    return KernelDistance(float(found.mean()), spread, size, error)


def _squared_mmd(a: Tensor, b: Tensor) -> Tensor:
    m = len(a)
    within = sum(
        (g := CUBIC.gram(s, s)).sum() - g.diagonal().sum() for s in (a, b)
    )  # fmt: skip
    return within / (m * (m - 1)) - 2 * CUBIC.gram(a, b).sum() / m**2


def _error_of_all(
    x: Tensor, y: Tensor, generator: torch.Generator, most_rows: int = 2000
) -> float:
    """Of all pairs, whose mean that of many subsets is; of many rows, from some of them."""
    some = [
        s[torch.randperm(len(s), generator=generator)[:most_rows].to(s.device)] for s in (x, y)
    ]
    fewer = max(len(a) / len(s) for a, s in zip(some, (x, y), strict=True))
    return unbiased_distance_error(some[0], some[1], CUBIC.gram) * fewer**0.5


@torch.no_grad()
def frechet_distance(real: Tensor, fake: Tensor) -> float:
    r"""Frechet distance of the Gaussians with the embeddings' means and covariances.

    $$\|m_x - m_y\|^2 + \mathrm{tr}(S_x + S_y - 2 (S_x S_y)^{1/2})$$

    With Inception's embeddings it is the FID. It increases as the number of samples decreases,
    especially in many dimensions: compare only values for the same number of samples.

    Example:
        >>> x = torch.tensor([[-1.0], [1.0]])  # mean 0, variance 2
        >>> round(frechet_distance(x, 2 * x + 3), 6)
        11.0
    """
    check_pair(real, fake, ("real", "fake"))
    if min(len(real), len(fake)) < 2:
        raise OptionError("The Frechet distance needs two samples of each set.")
    moments = [_mean_covariance(s.double()) for s in (real, fake)]
    return frechet_of_moments(*moments[0], *moments[1])


def frechet_of_moments(m_x: Tensor, s_x: Tensor, m_y: Tensor, s_y: Tensor) -> float:
    """The same from means and covariances."""
    value = (m_x - m_y).square().sum() + (s_x.diagonal() + s_y.diagonal()).sum()
    return max(0.0, float(value - 2 * fidelity(s_x, s_y)))


def _mean_covariance(points: Tensor) -> tuple[Tensor, Tensor]:
    mean = points.mean(0)
    centered = points - mean
    return mean, centered.mT @ centered / (len(points) - 1)


class NeighborScores(NamedTuple):
    """Four shares, and one standard error of each over new samples of both sets.

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
def neighbor_scores(
    real: Tensor, fake: Tensor, neighbors: int = 5, seed: int = 0
) -> NeighborScores:
    """Precision, recall, density and coverage of fake samples.

    The ball around a sample reaches to its k-th nearest neighbour in its own set. The balls change
    with the samples, so the scores vary more than shares of independent rows: standard errors come
    from scores of random halves of both sets, of up to 1000 rows each.

    Args:
        real: Samples, shape (N, d), more than `neighbors`.
        fake: Samples of a generator, shape (M, d), more than `neighbors`.
        neighbors: The number k.
        seed: Of the halves behind the standard errors.

    Example:
        >>> x = torch.linspace(0, 1, 101)[:, None]
        >>> found = neighbor_scores(x, x[:50] + 0.001, 3)
        >>> round(found.precision, 2), round(found.recall, 2), round(found.coverage, 2)
        (1.0, 0.52, 0.51)
    """
    values, variances = neighbor_values(real, fake, neighbors)
    errors = _errors(real.double(), fake.double(), neighbors, variances, seed)
    a, b, c, d = values.tolist()
    e, f, g, h = errors.tolist()
    return NeighborScores(a, b, c, d, (e, f, g, h))


@torch.no_grad()
def neighbor_values(
    real: Tensor, fake: Tensor, neighbors: int, pairs_at_once: int = NUMBERS_AT_ONCE
) -> tuple[Tensor, Tensor]:  # (4,), (4,)
    """The four scores, and what their variances would be if each row were by itself."""
    check_pair(real, fake, ("real", "fake"))
    check_count("neighbors", neighbors)
    if min(len(real), len(fake)) <= neighbors:
        raise OptionError(
            f"neighbors={neighbors} of {len(real)} real and {len(fake)} fake samples: there "
            "must be more samples than that in each set."
        )
    real, fake = real.double(), fake.double()
    reach = [
        nearest(s, s, neighbors + 1, pairs_at_once=pairs_at_once)[0][:, -1] for s in (real, fake)
    ]
    return _scores(reach[0], reach[1], _blocks(real, fake, pairs_at_once), neighbors)


def _scores(
    around_real: Tensor, around_fake: Tensor, blocks: Iterable[tuple[slice, Tensor]], k: int
) -> tuple[Tensor, Tensor]:  # (4,), (4,)
    """The scores, and what their variances would be if each row were by itself.

    Args:
        around_real: How far the balls around real samples reach, (N,).
        around_fake: The same of fake ones, (M,).
        blocks: Some real samples, and their distances to all fake ones.
        k: Neighbours in a ball.
    """
    balls = torch.zeros_like(around_fake)
    reached = torch.zeros_like(around_real, dtype=torch.bool)
    covered = torch.zeros_like(reached)
    for part, distances in blocks:
        inside = distances < around_real[part, None]
        balls += inside.sum(0)
        covered[part] = inside.any(1)
        reached[part] = (distances < around_fake).any(1)
    shares = (balls > 0).double(), reached.double(), balls / k, covered.double()
    means = torch.stack([s.mean() for s in shares])
    return means, torch.stack([s.var() / len(s) for s in shares])


def _errors(
    real: Tensor, fake: Tensor, neighbors: int, single: Tensor, seed: int, few: int = 1000
) -> Tensor:
    """Standard errors: of few rows from halves, of more by how much more than single rows' it is.

    How many times the variance of single rows that of all is, a thousand rows tell; they and ten
    splits were chosen on other samples than those of results/bench/evaluate-errors-cpu2.json.
    """
    generator = torch.Generator().manual_seed(seed)
    if max(len(real), len(fake)) <= few:
        return _scatter_of_halves(real, fake, neighbors, generator)[0].sqrt()
    real, fake = (
        s[torch.randperm(len(s), generator=generator)[:few].to(s.device)] for s in (real, fake)
    )
    of_some, single_of_some = _scatter_of_halves(real, fake, neighbors, generator)
    return (single * _times(of_some, single_of_some)).sqrt()


def _scatter_of_halves(
    real: Tensor, fake: Tensor, neighbors: int, generator: torch.Generator, splits: int = 10
) -> tuple[Tensor, Tensor]:  # (4,), (4,)
    """Variances of the scores over new samples, and if each row were by itself.

    The mean of two halves scatters as the whole does, where scores are means of what rows have
    nearby, whatever balls have in common. Where single rows scatter more in the whole than they
    do in halves, so does their mean.
    """
    within = [_distances(s, s) for s in (real, fake)]
    across = _distances(real, fake)

    def scores(one: Tensor, other: Tensor, k: int) -> tuple[Tensor, Tensor]:
        reach = [
            d[i][:, i].topk(k + 1, 1, largest=False).values[:, -1]
            for d, i in zip(within, (one, other), strict=True)
        ]
        return _scores(reach[0], reach[1], [(slice(None), across[one][:, other])], k)

    places = [torch.arange(len(s), device=s.device) for s in (real, fake)]
    single = scores(places[0], places[1], neighbors)[1]
    k = min(neighbors, min(len(real), len(fake)) // 2 - 1)
    if k < 1:
        return single, single
    between, inside = [], []
    for _ in range(splits):
        halves = [i[torch.randperm(len(i), generator=generator)].tensor_split(2) for i in places]
        one, other = (scores(a, b, k) for a, b in zip(*halves, strict=True))
        between.append((one[0] - other[0]).square() / 4)
        inside.append((one[1] + other[1]) / 4)
    scatter, rows = torch.stack(between).mean(0), torch.stack(inside).mean(0)
    return torch.maximum(scatter * _times(single, rows), single), single


def _times(variance: Tensor, of_rows: Tensor) -> Tensor:
    """How many times the one is the other, at least once."""
    return torch.where(of_rows > 0, variance / of_rows.clamp(min=1e-300), 1.0).clamp(min=1)


def _blocks(real: Tensor, fake: Tensor, pairs_at_once: int) -> Iterator[tuple[slice, Tensor]]:
    step = rows_at_once(len(fake), pairs_at_once)
    for start in range(0, len(real), step):
        part = slice(start, start + step)
        yield part, _distances(real[part], fake)


@torch.no_grad()
def nearest(
    rows: Tensor,
    others: Tensor,
    count: int = 1,
    groups: Tensor | None = None,
    their_groups: Tensor | None = None,
    pairs_at_once: int = NUMBERS_AT_ONCE,
) -> tuple[Tensor, Tensor]:
    """Distances of rows to the nearest of the others, (N, count), and their places among them.

    Args:
        rows: Shape (N, d).
        others: Shape (M, d).
        count: How many of the nearest.
        groups: Of the rows, (N,): rows of other groups are infinitely far.
        their_groups: Of the others, (M,).
        pairs_at_once: How many distances are held.
    """
    step = rows_at_once(len(others), pairs_at_once)
    found = []
    for k, part in enumerate(rows.split(step)):
        distances = _distances(part, others)
        if groups is not None and their_groups is not None:
            own = groups[k * step : (k + 1) * step, None]
            distances = torch.where(own == their_groups, distances, torch.inf)
        found.append(distances.topk(min(count, len(others)), dim=1, largest=False))
    return torch.cat([f.values for f in found]), torch.cat([f.indices for f in found])


def _distances(a: Tensor, b: Tensor) -> Tensor:
    # Small distances between far points, which memorizing is about, do not cancel here.
    return squared_distances(a, b).clamp(min=0).sqrt()
