"""A single Gaussian of few or many rows: what mixtures are compared with, and their background."""

import math

import torch
from torch import Tensor

from kermix.training.mixture_em import RIDGE, CovarianceName, EMState

__all__ = ["LEANS_OF_ONE", "leaning_gaussian", "one_gaussian", "with_background"]

LEANS_OF_ONE = (0.0, 0.25, 1.0, 4.0, 16.0, math.inf)  # times the number of columns


def one_gaussian(
    values: Tensor,  # (N, d)
    lean: float,
    kind: CovarianceName = "full",
) -> EMState:
    r"""A Gaussian that is as wide as few rows demand.

    Correlations lean toward zero as if `lean * d` rows had none. Variances are multiplied by
    $(N + 1) / (N - 2 - p)$, with p between 1 (no correlations) and d: the factor with which a
    Gaussian of estimated mean and variance expects the least loss on new rows. Where there is no
    such factor, for fewer rows than that, it is $4 (N + 1) / N$ at most.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
        >>> one_gaussian(rows, math.inf, "diagonal").covariances.round(decimals=3)
        tensor([[6.]], dtype=torch.float64)
    """
    mean = values.mean(0)
    centred = values - mean
    return leaning_gaussian(mean, centred.T @ centred / len(values), len(values), lean, kind)


def leaning_gaussian(
    mean: Tensor, covariance: Tensor, count: int, lean: float, kind: CovarianceName
) -> EMState:
    """The same, from the moments of so many rows."""
    d = len(mean)
    share = 1.0 if math.isinf(lean) else lean * d / (count + lean * d)
    estimated = 1 + (1 - share) * (d - 1)
    factor = (count + 1) / max(count - 2 - estimated, count / 4)
    variances = factor * covariance.diagonal() + RIDGE
    covariance = factor * (1 - share) * covariance
    covariance.diagonal().copy_(variances)
    found = covariance if kind == "full" else variances
    return EMState(mean.new_zeros(1), mean.unsqueeze(0), found.unsqueeze(0))


def with_background(state: EMState, values: Tensor, lean: float) -> EMState:
    """The mixture with the Gaussian of all rows besides, which has the weight of one row.

    Whole covariances get two of half a row each, with the correlations of the rows and without:
    new rows may also break what holds for all others.
    """
    count, d = values.shape
    whole = state.covariances.ndim == 3
    broad = [one_gaussian(values, math.inf, "diagonal")]
    if whole and d > 1 and not math.isinf(lean):
        broad.append(one_gaussian(values, lean))
    covariances = [b.covariances for b in broad]
    if whole:
        covariances[0] = torch.diag_embed(covariances[0])
    elif state.covariances.ndim == 1:
        covariances[0] = covariances[0].mean(1)
    share = values.new_full((len(broad),), 1 / (len(broad) * (count + 1)))
    return EMState(
        torch.cat([state.log_weights + math.log(count / (count + 1)), share.log()]),
        torch.cat([state.means, *(b.means for b in broad)]),
        torch.cat([state.covariances, *covariances]),
    )
