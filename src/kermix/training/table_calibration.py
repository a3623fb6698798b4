"""Calibration of a table network: how wide its mixtures should have been for rows it never saw.

Networks are too sure of what they learned by heart. After the training, each column gets two
numbers: a factor of the standard deviations of its Gaussians, and a temperature of the
probabilities of its codes, which make held-out rows most likely. Both count in full if all other
columns are seen, less if fewer are, and not at all if none is. The result is a density like any
other: samples, quantiles and log-densities all come from it.
"""

import torch
from torch import Tensor

from kermix.models.table.network import ColumnParts, TableNetwork

__all__ = ["calibrate"]

# Towards no change: both logarithms are normal, of deviation 1/2, before any row is seen.
PULL = 2.0
FARTHEST = 1.5  # a factor of 4.5
STEPS = 20


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
    start = torch.zeros_like(network.spread), torch.zeros_like(network.heat)
    found = [t.clone().requires_grad_() for t in start]
    optimizer = torch.optim.LBFGS(found, max_iter=STEPS, line_search_fn="strong_wolfe")
    losses: list[Tensor] = []

    def loss() -> Tensor:
        network.spread, network.heat = found
        cells = network.column_log_likelihood(
            network.calibrated(parts, known), codes, values, known
        )
        pull = sum(PULL * t.double().square().sum() for t in found)
        return pull - (cells.masked_fill(known, 0.0).double() * weights).sum()

    def closure() -> Tensor:
        optimizer.zero_grad()
        losses.append(loss())
        losses[-1].backward()
        return losses[-1]

    with torch.enable_grad():
        optimizer.step(closure)
        better = bool(loss() < losses[0])
    network.spread, network.heat = (
        t.detach().clamp(-FARTHEST, FARTHEST) for t in (found if better else start)
    )
