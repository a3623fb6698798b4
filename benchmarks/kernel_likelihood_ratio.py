r"""Santoro and Panaretos' kernel likelihood ratio test KLR0, from its formula and settings.

Columns of the Gram matrix `K` of both samples are features. With second moments `S` of a pool of
both samples in which the second counts for a hundredth, and `S_Y` of the second sample, its
statistic is the sum of the squared eigenvalues of `(S + r)^{-1/2} (S - S_Y) (S + r)^{-1/2}`, of
which those below -1 count as -1. With weights `w` of the rows in the pool and `c` of their
difference these eigenvalues solve

$$\operatorname{diag}(c)\, v = \lambda (r K^{-2} + \operatorname{diag}(w))\, v.$$

Five widths and seven ridges make 35 tests, of which the smallest p-value times 35 must be below
the level; with 300 permutations that is a statistic above those of all permutations. (The
published code counts no permutation for the given labels, so its level could be .12; the 35 depend
on each other, and its published levels lie between .01 and .07.) A difference from that code: it
adds up to some 1e-7 of the identity where `S` has a condition above 1e9.
"""

from collections.abc import Iterator

import torch
from torch import Generator, Tensor

__all__ = ["KLR", "OF_SECOND", "likelihood_ratio_test", "statistics"]

KLR = "KLR0"
# Settings of the published code.
RIDGES = tuple(10.0**k for k in range(-6, 1))
WIDTHS = (1.0, 0.1, 5.0, 0.05, 10.0)  # in any order: one that finds a difference ends the search
OF_SECOND = 0.01
NOISE = 1e-8
SMALLEST = 1e-12


def likelihood_ratio_test(
    x: Tensor,  # (n, d)
    y: Tensor,  # (n, d)
    generator: Generator,
    permutations: int = 300,
    squared: bool = False,
) -> bool:
    """Whether the test rejects at the level .05.

    Args:
        x: One sample.
        y: The other, of the same size.
        generator: Of the permutations.
        permutations: So few that only the most extreme place of all rejects.
        squared: Whether the kernel is Gaussian, of squared distances, rather than Laplace's.
    """
    rows = torch.cat([x, y]).double()
    apart = torch.cdist(rows, rows)
    apart = apart.square() if squared else apart
    width = 2 * float(apart[apart > 0].median())
    orders = torch.rand(permutations, len(rows), generator=generator).argsort(1)
    return any(
        _is_highest((-apart / (factor * width)).exp(), ridge, len(x), orders)
        for factor in WIDTHS
        for ridge in RIDGES
    )


def _is_highest(kernel: Tensor, ridge: float, n: int, orders: Tensor) -> bool:
    """Whether the statistic is above those of all permutations."""
    given, *_ = statistics(kernel, ridge, n, torch.arange(len(kernel))[None])
    return all(value <= given - NOISE for value in statistics(kernel, ridge, n, orders))


def statistics(kernel: Tensor, ridge: float, n: int, orders: Tensor) -> Iterator[float]:
    """The statistic under each order of the rows."""
    values, vectors = torch.linalg.eigh(kernel)
    inverse = values.clamp(min=SMALLEST).reciprocal().square()
    known = (vectors * (ridge * inverse)) @ vectors.mT
    for order in orders:
        weights = known.new_full((len(known),), OF_SECOND / n)
        signs = known.new_full((len(known),), -(1 - OF_SECOND) / n)
        weights[order[:n]] = signs[order[:n]] = (1 - OF_SECOND) / n
        root = torch.linalg.cholesky(known + weights.diag())
        half = torch.linalg.solve_triangular(root, signs.diag(), upper=False)
        matrix = torch.linalg.solve_triangular(root, half.mT, upper=False)
        found = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
        yield float(found.clamp(min=-1).square().sum())
