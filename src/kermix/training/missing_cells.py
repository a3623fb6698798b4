r"""Expectation-maximization where cells are missing: they are integrated out, not filled in.

For each pattern of missing cells, a component's conditional mean and covariance stand for the
cells: exact for cells that are missing at random.
"""

import math

import torch
from torch import Tensor

from kermix.mixtures.marginals import gap_patterns
from kermix.training.mixture_em import (
    NUMBERS_AT_ONCE,
    PASSES,
    CovarianceName,
    EMRows,
    EMState,
    maximized,
)

__all__ = ["completed", "improved_with_gaps"]

TOLERANCE = 1e-5  # nats a pass, which gains the less the more is missing


def improved_with_gaps(
    values: Tensor,  # (N, d), NaN where cells are missing
    state: EMState,
    kind: CovarianceName,
    passes: int = PASSES,
    lean: float = 0.0,
) -> tuple[EMState, int]:
    """Passes until they gain little, as `improved` does without gaps.

    Args:
        values: The data.
        state: From where to go on.
        kind: Of the covariances.
        passes: How many, at most.
        lean: As that of `improved`.
    """
    rows = EMRows(values[:0], kind)
    patterns = list(gap_patterns(values))
    before = -math.inf
    for done in range(1, passes + 1):
        total, mass, sums = 0.0, torch.zeros_like(state.log_weights), None
        for seen, places in patterns:
            step = max(1, NUMBERS_AT_ONCE // state.means.numel())
            for part in places.split(step):
                logs, mean, rest = _conditionals(values[part], seen, state)
                likelihood = logs.logsumexp(0)
                share = (logs - likelihood).exp()  # (K, n)
                total += float(likelihood.sum())
                mass = mass + share.sum(1)
                second = (share.unsqueeze(2) * mean).mT @ mean
                second += share.sum(1)[:, None, None] * rest
                i, j = rows.pairs
                first = (share.unsqueeze(2) * mean).sum(1)
                new = torch.cat([first, second[:, i, j]], 1)
                sums = new if sums is None else sums + new
        assert sums is not None
        state = maximized(rows, mass, sums, lean)
        if abs(total / len(values) - before) < TOLERANCE:
            return state, done
        before = total / len(values)
    return state, passes


def completed(values: Tensor, generator: torch.Generator) -> Tensor:
    """Rows whose missing cells are drawn as one Gaussian has them, given the others."""
    seen = ~values.isnan()
    mean = values.nanmean(0)
    spread = (values - mean).square().nanmean(0)
    start = EMState(values.new_zeros(1), mean[None], torch.diag(spread + 1e-3)[None])
    state = improved_with_gaps(values, start, "full")[0]
    found = values.clone()
    for here, places in gap_patterns(values):
        if bool(here.all()):
            continue
        _, means, rest = _conditionals(values[places], here, state)
        factor = torch.linalg.cholesky_ex(rest[0][~here][:, ~here]).L
        noise = torch.randn(len(places), len(factor), dtype=values.dtype, generator=generator)
        cells = means[0][:, ~here] + noise @ factor.T
        found[places[:, None], (~here).nonzero().T] = cells
    return torch.where(seen, values, found)


def _conditionals(
    values: Tensor,  # (n, d)
    seen: Tensor,  # (d,)
    state: EMState,
) -> tuple[Tensor, Tensor, Tensor]:  # (K, n), (K, n, d), (K, d, d)
    """Weighted log-densities of seen cells, rows as each component completes them, covariances."""
    count, d = state.means.shape
    covariances = state.covariances
    if covariances.ndim < 3:
        covariances = torch.diag_embed(covariances.reshape(count, -1).expand(-1, d))
    means = state.means.unsqueeze(1)
    gaps = values[:, seen] - means[..., seen]  # (K, n, o)
    factor = torch.linalg.cholesky(covariances[:, seen][:, :, seen])
    white = torch.linalg.solve_triangular(factor, gaps.mT, upper=False)
    log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
    constant = log_det + int(seen.sum()) * math.log(2 * math.pi)
    logs = state.log_weights[:, None] - 0.5 * (white.square().sum(1) + constant[:, None])
    mean = values.expand(count, -1, -1).clone()
    rest = torch.zeros_like(covariances)
    if not bool(seen.all()):
        slope = torch.cholesky_solve(covariances[:, seen][:, :, ~seen], factor)  # (K, o, m)
        mean[..., ~seen] = means[..., ~seen] + gaps @ slope
        between = covariances[:, ~seen][:, :, seen] @ slope
        places = (~seen).nonzero().flatten()
        rest[:, places[:, None], places] = covariances[:, ~seen][:, :, ~seen] - between
    return logs, mean, rest
