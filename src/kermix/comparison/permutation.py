"""Permutations of labels, and p-values that are exact because the data are one of them."""

import math

import torch
from torch import Tensor

from kermix.checks import check_count, check_seed
from kermix.errors import OptionError, ShapeError

__all__ = ["combined", "labellings", "own_generator", "pvalues", "signed_weights", "tied"]


def own_generator(seed: int | torch.Generator) -> torch.Generator:
    """A generator from a seed, whose numbers are not those of a data set made with that seed.

    Were they the same, the first permutations would depend on the data, and the p-value would not
    be exact.
    """
    if isinstance(seed, torch.Generator):
        return seed
    check_seed(seed)
    return torch.Generator().manual_seed((int(seed) + 1) * 0x9E3779B97F4A7C15 % 2**63)


def labellings(
    n: int,
    m: int,
    permutations: int,
    generator: torch.Generator,
    groups: tuple[Tensor, Tensor] | None = None,
) -> Tensor:  # (permutations + 1, n + m), bool
    """Which pooled points are called `x`: as given in the first row, at random in the others.

    With groups (of repeated measurements, say), whole groups change sides: as many of them are
    called `x` as there are in `x`.
    """
    check_count("permutations", permutations)
    if groups is None:
        units, count, given = torch.arange(n + m), n + m, n
    else:
        units, count, given = _groups(groups, n, m)
    shuffled = torch.rand(permutations, count, generator=generator).argsort(1)
    chosen = torch.zeros(permutations + 1, count, dtype=torch.bool)
    chosen[0, :given] = True
    chosen[1:].scatter_(1, shuffled[:, :given], True)
    return chosen[:, units]


def _groups(groups: tuple[Tensor, Tensor], n: int, m: int) -> tuple[Tensor, int, int]:
    """Index of each point's group, groups of `x` first; their number; how many are in `x`."""
    if not isinstance(groups, tuple | list) or len(groups) != 2:
        raise OptionError("groups must be a pair: the labels of x and those of y.")
    labels = [torch.as_tensor(g).reshape(-1).cpu() for g in groups]
    for name, label, size in zip(("x", "y"), labels, (n, m), strict=True):
        if len(label) != size:
            raise ShapeError(f"{name} has {size} points and {len(label)} group labels.")
    (in_x, index_x), (in_y, index_y) = (torch.unique(g, return_inverse=True) for g in labels)
    both = in_x[torch.isin(in_x, in_y)]
    if len(both):
        raise OptionError(
            f"The group {both[0].item()} has points in x and in y; a group is permuted as a "
            "whole, so all its points must be in the same sample."
        )
    return torch.cat([index_x, len(in_x) + index_y]), len(in_x) + len(in_y), len(in_x)


def signed_weights(labels: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """Weights of both sides under each labelling, summing to 1 on each: (P, N) and (P, N)."""
    share = labels.new_ones(labels.shape[1], dtype=torch.float64) if weights is None else weights
    sides = (labels * share, ~labels * share)
    return tuple(  # type: ignore[return-value]
        side / side.sum(1, keepdim=True).clamp(min=torch.finfo(side.dtype).tiny) for side in sides
    )


def pvalues(statistics: Tensor) -> Tensor:  # (..., P) -> (..., P)
    """Share of all labellings whose statistic is at least as large, for each of them."""
    ordered = statistics.sort(-1).values.contiguous()
    below = torch.searchsorted(ordered, statistics.contiguous(), right=False)
    return (statistics.shape[-1] - below).double() / statistics.shape[-1]


def tied(statistics: Tensor, noise: float) -> Tensor:  # (P,) -> (P,)
    """Statistics in which those that rounding may have told apart are equal.

    In rising order, what is no further than `noise` above the one before is equal to it. All
    labellings are treated alike, so a p-value among them stays exact.

    Example:
        >>> tied(torch.tensor([3.0, 1.0, 1.1, 1.2, 2.0]), 0.15)
        tensor([3., 1., 1., 1., 2.])
    """
    ordered, order = statistics.sort()
    new = torch.ones_like(ordered, dtype=torch.bool)
    new[1:] = ordered[1:] - ordered[:-1] > noise
    places = torch.arange(len(ordered), device=ordered.device)
    first = torch.where(new, places, 0).cummax(0).values
    return torch.empty_like(statistics).scatter(0, order, ordered[first])


def combined(statistics: Tensor) -> Tensor:  # (L, P) -> (P,)
    r"""One statistic from several: Cauchy's combination of their p-values.

    $\sum_l \tan(\pi (1/2 - p_l))$, a sum that is ruled by its smallest p-values. It treats
    all labellings alike, so its own p-value among them is exact whatever the dependence between
    the statistics.
    """
    if len(statistics) == 1:
        return statistics[0]
    half_step = 0.5 / statistics.shape[-1]
    return torch.tan(math.pi * (0.5 - (pvalues(statistics) - half_step))).mean(0)
