r"""Expectation-maximisation: the likelihood finish of a mixture, on all data and on any device.

Gradient steps on the likelihood need thousands of small batches until the masses of components are
right; a pass of expectation-maximisation sets each mass to what the data give it. scikit-learn's
works on one CPU and on one set; here K and N may be in the thousands, for every class at once.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kermix.errors import ShapeError
from kermix.models.mixture_networks import MixtureTable

__all__ = ["em_pass"]

PAIRS_AT_ONCE = 2**28
LEAST_MASS = 1e-3  # in points: a component with less stays where it is


@torch.no_grad()
def em_pass(
    table: MixtureTable,
    data: Sequence[Tensor],  # for each batch item (n, d)
    floor: float = 0.0,
) -> Tensor:  # ()
    """One pass over all data; returns their mean negative log-likelihood before it.

    Args:
        table: The mixture, or a batch of them; changed in place.
        data: The points of each batch item; their numbers may differ.
        floor: What variances have at least.

    Example:
        >>> table = MixtureTable(1, 1, generator=torch.Generator().manual_seed(0))
        >>> _ = em_pass(table, [torch.tensor([[1.0], [3.0]])])
        >>> mixture = table()
        >>> [t.detach().round(decimals=3) for t in (mixture.means, mixture.covariances)]
        [tensor([[2.]]), tensor([1.])]
    """
    means = table.means.data.reshape(-1, *table.means.shape[-2:])
    logits = table.logits.data.reshape(len(means), -1)
    logs = table.log_variances.data.reshape(len(means), means.shape[1], -1)
    if len(data) != len(means):
        raise ShapeError(f"{len(data)} sets of points for {len(means)} mixtures: one for each.")
    total = means.new_zeros(())
    for item, points in enumerate(data):
        before = means[item], logits[item].log_softmax(0), logs[item].exp()
        likelihood, mass, first, second = _expectation(points, *before)
        total += likelihood
        enough = (mass > LEAST_MASS).unsqueeze(-1)
        weight = mass.clamp(min=LEAST_MASS).unsqueeze(-1)
        centre = torch.where(enough, first / weight, before[0])
        spread = (second / weight - centre.square()).clamp(min=0)
        if logs.shape[-1] == 1:
            spread = spread.mean(-1, keepdim=True)
        spread = torch.where(enough, spread, before[2]).clamp(min=max(floor, 1e-10))
        means[item], logs[item] = centre, spread.log()
        logits[item] = mass.clamp(min=1e-12).log()
    return -total / sum(len(points) for points in data)


def _expectation(
    points: Tensor, means: Tensor, log_weights: Tensor, variances: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sum of log-likelihoods, and of responsibilities (K,) times 1, points and their squares."""
    precision = (1 / variances).expand_as(means)
    constant = log_weights - 0.5 * (
        (means.square() * precision).sum(-1)
        - precision.log().sum(-1)
        + means.shape[-1] * math.log(2 * math.pi)
    )
    total, mass = points.new_zeros(()), torch.zeros_like(log_weights)
    first, second = torch.zeros_like(means), torch.zeros_like(means)
    for part in points.split(max(1, PAIRS_AT_ONCE // len(means))):
        logs = constant + part @ (means * precision).mT - 0.5 * part.square() @ precision.mT
        sums = logs.logsumexp(-1, keepdim=True)
        responsibility = (logs - sums).exp_()
        total += sums.sum()
        mass += responsibility.sum(0)
        first += responsibility.mT @ part
        second += responsibility.mT @ part.square()
    return total, mass, first, second
