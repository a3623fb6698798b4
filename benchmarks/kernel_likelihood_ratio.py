r"""Santoro and Panaretos' kernel likelihood ratio tests, from their formulas and settings.

Columns of the Gram matrix `K` of both samples are features. With second moments `S` of a pool of
both samples in which the second counts for a hundredth, and `S_Y` of the second sample, the test
KLR0 takes the squared Hilbert-Schmidt norm of `(S + r)^{-1/2} (S - S_Y) (S + r)^{-1/2}`, and *KLR*
adds half of the squared norm of the likewise whitened difference of the means. With weights
`w` and `c` of the rows these are

$$\sum_{ij} c_i c_j G_{ij}^2, \qquad G = (r K^{-2} + \operatorname{diag} w)^{-1},$$

and $c^\top G c / 2$, which takes one small inverse for each permutation. Five widths and seven
ridges make 35 tests, of which the smallest p-value times 35 must be below the level; with 300
permutations that is a statistic above those of all permutations. (The published code counts no
permutation for the given labels, so its level could be .12; the 35 depend on each other, and its
published levels lie between .01 and .07.)
"""

from dataclasses import dataclass

import torch
from torch import Generator, Tensor

__all__ = ["KLR", "PermutedKernel", "likelihood_ratio_tests"]

KLR = ("KLR0", "*KLR*")
# Settings of the published code.
RIDGES = tuple(10.0**k for k in range(-6, 1))
WIDTHS = (1.0, 0.1, 5.0, 0.05, 10.0)  # in any order: one that finds a difference ends the search
OF_SECOND = 0.01
NOISE, SMALLEST = 1e-8, 1e-12
PART = 25  # permutations at a time


def likelihood_ratio_tests(
    x: Tensor,  # (n, d)
    y: Tensor,  # (n, d)
    generator: Generator,
    permutations: int = 300,
    squared: bool = False,
) -> dict[str, bool]:
    """Whether each of the two tests rejects at the level .05.

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
    found = dict.fromkeys(KLR, False)
    for factor in WIDTHS:
        survivors = _survivors((-apart / (factor * width)).exp(), len(x), generator, permutations)
        found = {name: found[name] or bool(s) for name, s in zip(KLR, survivors, strict=True)}
        if all(found.values()):
            break
    return found


@dataclass(frozen=True)
class PermutedKernel:
    """What both statistics need of a kernel with a ridge, whatever the order of the rows.

    Attributes:
        known: `(r K^-2 + w)^-1` with all rows weighed as those of the second sample.
        n: Rows of the first sample.
    """

    known: Tensor  # (N, N)
    n: int

    @classmethod
    def of(cls, kernel: Tensor, n: int, ridge: float) -> "PermutedKernel":
        """From a Gram matrix of both samples, which are of one size."""
        values, vectors = torch.linalg.eigh(kernel)
        inverse = values.clamp(min=SMALLEST).reciprocal().square()
        return cls((vectors / (ridge * inverse + OF_SECOND / n)) @ vectors.mT, n)

    def __call__(self, orders: Tensor) -> Tensor:  # (B, N) -> (B, 2)
        """Both statistics under each order of the rows."""
        known, n = self.known, self.n
        first = orders[:, :n]
        rows = known[first]  # (B, n, N)
        inner = rows.gather(2, first[:, None].expand(-1, n, -1))
        inner = inner + torch.eye(n).to(inner) * n / (1 - 2 * OF_SECOND)
        roots = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), rows, upper=False)
        whitened = known - roots.mT @ roots
        weight = (1 - OF_SECOND) / n
        signs = known.new_full((len(orders), len(known)), -weight).scatter_(1, first, weight)
        second = (signs[:, None] @ whitened.square() @ signs[..., None]).flatten()
        mean = (signs[:, None] @ whitened @ signs[..., None]).flatten() / 2
        return torch.stack([second, second + mean], 1)


def _survivors(
    kernel: Tensor, n: int, generator: Generator, permutations: int
) -> tuple[bool, bool]:
    """Whether with any ridge a statistic is above those of all permutations."""
    kernels = [PermutedKernel.of(kernel, n, ridge) for ridge in RIDGES]
    given = torch.arange(len(kernel))[None]
    highest = [known(given)[0] for known in kernels]
    alive = {(k, s) for k in range(len(RIDGES)) for s in range(len(KLR))}
    for start in range(0, permutations, PART):
        count = min(PART, permutations - start)
        orders = torch.rand(count, len(kernel), generator=generator).argsort(1)
        for k in {ridge for ridge, _ in alive}:
            above = (kernels[k](orders) > highest[k] - NOISE).any(0)
            alive -= {(k, s) for s, yes in enumerate(above.tolist()) if yes}
        if not alive:
            break
    found = {s for _, s in alive}
    return 0 in found, 1 in found
