"""Expectation-maximization: refines a mixture by the likelihood, on all data and on any device.

Gradient steps on the likelihood need thousands of small batches until the masses of components are
right; a pass of expectation-maximization sets each mass to what the data give it. scikit-learn's
works on one CPU and on one set; here K and N may be in the thousands, for every class at once.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from kermix.errors import ShapeError
from kermix.networks.mixture_networks import MixtureTable, ProductMixture, part_log_densities

__all__ = ["em_pass", "product_em_pass"]

PAIRS_AT_ONCE = 2**28
LEAST_MASS = 1e-3  # in points: a component with less stays where it is
PRIOR_MASS = 1e-6  # in points: no weight of a product is exactly zero


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
        raise ShapeError(
            f"{len(data)} sets of points for {len(means)} mixtures; the numbers must match."
        )
    total = means.new_zeros(())
    for item, points in enumerate(data):
        before = means[item], logits[item].log_softmax(0), logs[item].exp()
        likelihood, mass, first, second = _expectation(points, *before)
        total += likelihood
        means[item], spread = _maximum(mass, first, second, before[0], before[2], floor)
        logs[item] = spread.log()
        logits[item] = mass.clamp(min=1e-12).log()
    return -total / sum(len(points) for points in data)


def _maximum(
    mass: Tensor,  # (..., K)
    first: Tensor,  # (..., K, d)
    second: Tensor,  # (..., K, d)
    means: Tensor,  # (..., K, d)
    variances: Tensor,  # (..., K, d) or (..., K, 1)
    floor: float,
) -> tuple[Tensor, Tensor]:
    """Means and variances from the moments; a component without points keeps its own."""
    enough = (mass > LEAST_MASS).unsqueeze(-1)
    weight = mass.clamp(min=LEAST_MASS).unsqueeze(-1)
    centre = torch.where(enough, first / weight, means)
    spread = (second / weight - centre.square()).clamp(min=0)
    if variances.shape[-1] == 1:
        spread = spread.mean(-1, keepdim=True)
    return centre, torch.where(enough, spread, variances).clamp(min=max(floor, 1e-10))


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


@torch.no_grad()
def product_em_pass(
    model: ProductMixture,
    data: Sequence[Tensor],  # for each batch item (n, C * d)
    floor: float = 0.0,
) -> Tensor:  # ()
    """One pass of expectation-maximization for a sum of products, as `em_pass` is for one.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> model = ProductMixture(2, 1, components=1, groups=1, generator=generator)
        >>> _ = product_em_pass(model, [torch.tensor([[1.0, 5.0], [3.0, 5.0]])], floor=0.1)
        >>> model.means.detach().flatten(), model.variances.detach().flatten()
        (tensor([2., 5.]), tensor([1.0000, 0.1000]))
    """
    items = model.means.shape[:-3].numel()
    if len(data) != items:
        raise ShapeError(
            f"{len(data)} sets of points for {items} mixtures; the numbers must match."
        )
    means, logs, choices = (
        t.data.view(items, *t.shape[-3:])
        for t in (model.means, model.log_variances, model.part_logits)
    )
    logits = model.logits.data.view(items, -1)
    total = means.new_zeros(())
    for item, points in enumerate(data):
        before = means[item], logs[item].exp()
        groups, weights = logits[item].log_softmax(0), choices[item].softmax(-1)
        sums = _product_expectation(points, *before, groups, weights)
        likelihood, group_mass, choice_mass, mass, first, second = sums
        total += likelihood
        means[item], spread = _maximum(mass, first, second, *before, floor)
        logs[item] = spread.log()
        logits[item] = (group_mass + PRIOR_MASS).log()
        choices[item] = (choice_mass + PRIOR_MASS).log()
    return -total / sum(len(points) for points in data)


def _product_expectation(
    points: Tensor,  # (n, C * d)
    means: Tensor,  # (C, K, d)
    variances: Tensor,  # (C, K, d)
    groups: Tensor,  # (L,), logarithms
    weights: Tensor,  # (C, L, K)
) -> tuple[Tensor, ...]:
    """Sum of log-likelihoods, masses of groups, of choices and of components, and moments."""
    parts, components, dimension = means.shape
    found = (
        points.new_zeros(()), torch.zeros_like(groups), torch.zeros_like(weights),
        torch.zeros_like(means[..., 0]), torch.zeros_like(means), torch.zeros_like(means),
    )  # fmt: skip
    total, group_mass, choice_mass, mass, first, second = found
    for rows in points.split(max(1, PAIRS_AT_ONCE // (2 * parts * components))):
        part = rows.unflatten(1, (parts, dimension))
        logs = part_log_densities(part, means, variances).movedim(1, 0)  # (C, n, K)
        largest = logs.amax(-1, keepdim=True)
        values = (logs - largest).exp_()
        within = values @ weights.mT  # (C, n, L), up to exp(largest)
        joint = groups + (within.log() + largest).sum(0)
        sums = joint.logsumexp(-1, keepdim=True)
        chance = (joint - sums).exp()  # of a group, (n, L)
        total += sums.sum()
        group_mass += chance.sum(0)
        share = chance / within  # (C, n, L)
        choice_mass += share.mT @ values * weights
        values *= share @ weights  # of a component, (C, n, K)
        mass += values.sum(1)
        part = part.movedim(1, 0)
        first += values.mT @ part
        second += values.mT @ part.square()
    return found
