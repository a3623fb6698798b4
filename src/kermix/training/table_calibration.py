"""Calibration of a table network: how wide its mixtures should have been for rows it never saw.

Networks are too sure of what they learned by heart. After the training, each column gets two
numbers: a factor of the standard deviations of its Gaussians, and a temperature of the
probabilities of its codes, which make held-out rows most likely. Both count in full if all other
columns are seen, less if fewer are, and not at all if none is. The result is a density like any
other: samples, quantiles and log-densities all come from it.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from kermix.models.table.network import ColumnParts, TableNetwork

__all__ = ["calibrate"]

# Towards no change: both logarithms are normal, of deviation 1/2, before any row is seen.
PULL = 2.0
FARTHEST = 1.5  # a factor of 4.5
STEPS = 18  # to within 3e-4 of the best logarithm
GOLDEN = (5**0.5 - 1) / 2


@torch.no_grad()
def calibrate(
    network: TableNetwork,
    parts: ColumnParts,
    codes: Tensor,  # (N, D)
    values: Tensor,  # (N, Q)
    known: Tensor,  # (N, D), bool
    weights: Tensor,  # (N, 1) or (N, D)
) -> None:
    """Find the spread and the heat of each column, and give them to the network.

    Args:
        network: The network, which is changed.
        parts: What it returned for held-out rows, without calibration.
        codes: Codes of these rows.
        values: Normal scores.
        known: Cells that were seen, which do not count.
        weights: Of the other cells, such that those of each column sum to the number of rows.
    """

    def losses() -> Tensor:  # (D,)
        calibrated = network.calibrated(parts, known)
        cells = network.column_log_likelihood(calibrated, codes, values, known)
        return -(cells.masked_fill(known, 0.0).double() * weights).sum(0)

    def of_spread(spread: Tensor) -> Tensor:
        network.spread = spread
        return PULL * spread.double().square() + losses()[network.numbers]

    def of_heat(heat: Tensor) -> Tensor:
        network.heat = heat
        return PULL * heat.double().square() + losses()

    # A spread changes the density of its own number alone, a heat the codes of its own column:
    # all columns are searched side by side, each for one number at a time.
    network.heat = torch.zeros_like(network.heat)
    network.spread = _least(of_spread, torch.zeros_like(network.spread))
    network.heat = _least(of_heat, torch.zeros_like(network.heat))


def _least(losses: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    """Where each of several functions of one number is least, by golden sections.

    The start is kept where nothing that was found is better.
    """
    low, high = start - FARTHEST, start + FARTHEST
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    at_left, at_right = losses(left), losses(right)
    for _ in range(STEPS):
        leftward = at_left < at_right
        low, high = torch.where(leftward, low, left), torch.where(leftward, right, high)
        kept, kept_at = torch.where(leftward, left, right), torch.minimum(at_left, at_right)
        part = GOLDEN * (high - low)
        new = torch.where(leftward, high - part, low + part)
        new_at = losses(new)
        left, right = torch.where(leftward, new, kept), torch.where(leftward, kept, new)
        at_left, at_right = (
            torch.where(leftward, new_at, kept_at),
            torch.where(leftward, kept_at, new_at),
        )
    best = (low + high) / 2
    return torch.where(losses(best) < losses(start), best, start)
