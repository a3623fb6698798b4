"""Parts of two samples, and the standard error that their values tell."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "LARGEST_SCATTER",
    "Groups",
    "Halves",
    "error_of_root",
    "exchanges",
    "groups",
    "halves",
    "jackknife",
    "jackknife_error",
    "standard_error",
]

LARGEST_SHARE = 0.6
LARGEST_SCATTER = 1.0  # of logarithms: a value that is more skewed has no error bar


@dataclass(frozen=True)
class Halves:
    """Random splits of both samples: which members are in the one half and in the other."""

    x: Tensor  # (S, 2, n // 2)
    y: Tensor  # (S, 2, m // 2)

    def __len__(self) -> int:
        return len(self.x)


def halves(n: int, m: int, count: int, generator: torch.Generator) -> Halves:
    """`count` random splits of `n` and `m` members; of an odd number, one is left out.

    All of them: halves of fewer would say too little, because costs depend on the number of rows
    that they are of, and so does how sensitive they are.
    """
    found = []
    for size in (n, m):
        order = torch.rand(count, size, generator=generator).argsort(1)
        half = max(1, size // 2)
        found.append(torch.stack([order[:, :half], order[:, size - half :]], 1))
    return Halves(found[0], found[1])


@dataclass(frozen=True)
class Groups:
    """Both samples without one group of their rows after the other."""

    x: list[Tensor]
    y: list[Tensor]

    def __len__(self) -> int:
        return len(self.x)


def groups(n: int, m: int, count: int, generator: torch.Generator) -> Groups:
    """Random groups of `n` and `m` members, at most `count`; which members are left by each.

    None where a sample has a single member: without it nothing would be left.
    """
    count = min(count, n, m)
    if count < 2:
        return Groups([], [])
    found = []
    for size in (n, m):
        label = torch.empty(size, dtype=torch.int64)
        label[torch.randperm(size, generator=generator)] = torch.arange(size) % count
        found.append([(label != k).nonzero().flatten() for k in range(count)])
    return Groups(found[0], found[1])


def exchanges(count: int) -> int:
    """How many exchanges of labels go with so many groups."""
    return max(5, count // 4)


def standard_error(rows: float, interactions: float) -> float:
    r"""Standard error of a value from the variances `A` of its rows and `B` of their interactions.

    Let the value be $\theta(\delta) = \theta_0 + L \delta + \delta^\top Q \delta$ in the
    deviation $\delta$ of the samples from their sources, with covariance
    $\Sigma$: near equal sources distances are all `Q`. What each row adds to the value, with
    the others as they are, has the variance $A = (L + 2 \delta^\top Q) \Sigma
    (L + 2 \delta^\top Q)^\top$, which is $L \Sigma L^\top + 2 B$ on average, where
    $B = 2 \operatorname{tr} (Q \Sigma)^2$ is the variance of what rows add together. So
    what is wanted is $A - B$. (A jackknife is `A`, a bootstrap `A + B`: twice and three
    times too much where `L` is nothing.) Near equal sources `A` may by chance be less than `B`,
    and half of `B` is kept: with normal $\delta$, the mean of the errors is then between
    12 % below and 9 % above the scatter, whatever `L` and `Q`.

    Example:
        >>> standard_error(5.0, 1.0), standard_error(0.0, 8.0)
        (2.0, 2.0)
    """
    return math.sqrt(max(rows - interactions, interactions / 2))


def jackknife(values: Tensor) -> float:  # (G,)
    """The variance `A` of `standard_error`, from values without one group of rows each.

    Example:
        >>> jackknife(torch.tensor([1.0, 3.0]))
        1.0
    """
    return float((values - values.mean()).square().mean() * (len(values) - 1))


def jackknife_error(values: Tensor, of_halves: Tensor) -> float:  # (G,), (S, 2)
    r"""Standard error of a value without a closed form, from its values at parts of the samples.

    The halves of a split deviate by $\delta + \epsilon$ and $\delta - \epsilon$,
    where $\epsilon$ is as large as $\delta$. So half the difference of their values
    has on average the variance `A`, and their mean has `B`. As many costs of half the rows are
    other numbers, only the share `B / A` comes from them, and `A` from the jackknife. The share
    is at most a half, or more where three rows and more add something together.

    Example:
        >>> jackknife_error(torch.tensor([1.0, 3.0]), torch.tensor([[1.0, 3.0], [3.0, 1.0]]))
        1.0
    """
    rows = jackknife(values)
    difference = float(((of_halves[:, 0] - of_halves[:, 1]) / 2).square().mean())
    mean = float(of_halves.mean(1).var())
    share = min(mean / difference, LARGEST_SHARE) if difference > 0 else 0.0
    return standard_error(rows, share * rows)


def error_of_root(square: float, error: float) -> float:
    """Standard error of a root from that of its square, finite where the square vanishes.

    The added half of the squared error is what makes it right on average near zero too, where
    squares are as those of normal vectors.

    Example:
        >>> [round(error_of_root(square, 1.0), 4) for square in (100.0, 0.0)]
        [0.05, 0.5946]
    """
    return error / (2 * math.sqrt(math.hypot(square, error / math.sqrt(2)))) if error > 0 else 0.0
