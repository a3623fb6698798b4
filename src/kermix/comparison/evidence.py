"""Statistics of many kinds on one scale, combined, and corrected for their number."""

import math

import torch
from torch import Tensor

from kermix.comparison.permutation import pvalues

__all__ = ["corrected_pvalues", "evidence", "mean_evidence", "ranked_rows", "settled"]

DIGITS = 1e-9  # statistics that agree to so many digits are equal


def evidence(statistics: Tensor) -> Tensor:  # (..., P) -> (..., P)
    r"""Statistics on one scale, $z |z| / 2$, with cube roots `z` of mean 0 and variance 1.

    Cube roots of quadratic forms are nearly normal (Wilson and Hilferty), so that the largest of
    several is not always that with the longest tail.
    """
    roots = settled(statistics).clamp(min=0) ** (1 / 3)
    spread, centre = torch.std_mean(roots, -1, correction=0, keepdim=True)
    apart = spread > DIGITS * roots.amax(-1, keepdim=True)
    scores = torch.where(apart, (roots - centre) / spread.clamp(min=1e-300), 0.0)
    return scores * scores.abs() / 2


def mean_evidence(evidence: Tensor) -> Tensor:  # (M, P) -> (P,)
    r"""The logarithm of the mean of $e^{z |z| / 2}$, which is ruled by its largest terms."""
    return evidence.logsumexp(0) - math.log(len(evidence))


def settled(statistics: Tensor) -> Tensor:
    """Statistics to so many digits of the largest that rounding does not tell labellings apart."""
    unit = statistics.abs().amax(-1, keepdim=True) * DIGITS
    return torch.where(unit > 0, (statistics / unit.clamp(min=1e-300)).round() * unit, 0.0)


def corrected_pvalues(table: Tensor) -> Tensor:  # (M, P) -> (M,)
    """Share of labellings whose largest statistic is at least as large as each given one."""
    table = settled(table)
    largest = table.amax(0).sort().values
    below = torch.searchsorted(largest, table[:, 0].contiguous())
    return (table.shape[1] - below).double() / table.shape[1]


def ranked_rows(table: Tensor) -> list[tuple[int, float, float, float]]:
    """Place, statistic, own and corrected p-value of each row, the most different first."""
    if not len(table):
        return []
    own, corrected = pvalues(settled(table))[:, 0], corrected_pvalues(table)
    order = table[:, 0].argsort(descending=True, stable=True).tolist()
    return [(k, float(table[k, 0]), float(own[k]), float(corrected[k])) for k in order]
