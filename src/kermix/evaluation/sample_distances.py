"""Distances between embeddings: kernel distance (KID) and Frechet distance."""

from typing import NamedTuple

import torch
from torch import Tensor

from kermix.checks import check_count, check_pair, check_seed
from kermix.costs.moments import fidelity
from kermix.errors import OptionError
from kermix.kernels.others import PolynomialKernel
from kermix.two_sample.error_bars import unbiased_distance_error

__all__ = ["KernelDistance", "frechet_distance", "frechet_of_moments", "kernel_distance"]

SUBSETS, SUBSET_SIZE = 100, 1000  # as usual for KID
ERROR_ROWS = 2000  # of each set that the standard error is of
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


def _error_of_all(x: Tensor, y: Tensor, generator: torch.Generator) -> float:
    """Of all pairs, whose mean that of many subsets is; of many rows, from some of them."""
    some = [
        s[torch.randperm(len(s), generator=generator)[:ERROR_ROWS].to(s.device)] for s in (x, y)
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
    centred = points - mean
    return mean, centred.mT @ centred / (len(points) - 1)
