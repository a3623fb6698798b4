"""Expectation-maximization of Gaussian mixtures with free covariances, one product each way.

The log-density of a Gaussian is linear in the features $x$ and $x_i x_j$, and its moments are
their means. So a pass is two products of matrices with features that are computed once: one gives
the responsibilities, the other the moments.

Expectation-maximization where cells are missing: they are integrated out, not filled in.

For each pattern of missing cells, a component's conditional mean and covariance stand for the
cells: exact for cells that are missing at random.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from kermix.mixtures.mixture import GaussianMixture, gap_patterns

__all__ = [
    "KINDS",
    "NUMBERS_AT_ONCE",
    "PASSES",
    "REVIVING_PASSES",
    "RIDGE",
    "CovarianceName",
    "EMRows",
    "EMState",
    "completed",
    "first_state",
    "improved",
    "improved_with_gaps",
    "maximized",
]

CovarianceName: TypeAlias = Literal["isotropic", "diagonal", "low-rank", "full"]
KINDS: tuple[CovarianceName, ...] = get_args(CovarianceName)
PASSES, TOLERANCE = 100, 1e-3  # nats a pass
RIDGE = 1e-6  # of a column's variance: what covariances have at least
RANK = 8
NUMBERS_AT_ONCE = 2**23
NUMBERS_KEPT = 2**25  # features
LEAST_MASS = 10.0  # rows: a component with fewer is started anew
REVIVING_PASSES = 8
PRIOR_ROWS = 0.1  # rows with the usual variances that every component has besides its own
ROUNDING = 4 * torch.finfo(torch.float64).eps


class EMRows:
    """Rows on a common scale and their features: `x`, and `x_i x_j` or, diagonal, `x_i^2`."""

    def __init__(self, values: Tensor, kind: CovarianceName) -> None:  # (N, d)
        self.values = values
        self.kind = kind
        d = values.shape[1]
        self.pairs = torch.triu_indices(d, d) if self.whole else torch.arange(d).expand(2, d)

    @property
    def whole(self) -> bool:
        """Whether there are covariances between columns."""
        return self.kind in ("low-rank", "full")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def width(self) -> int:
        """Number of features."""
        return self.values.shape[1] + self.pairs.shape[1]

    def features(self, rows: Tensor) -> Tensor:
        """Of some rows."""
        i, j = self.pairs
        return torch.cat([rows, rows[:, i] * rows[:, j]], 1)

    @cached_property
    def _kept(self) -> Tensor:
        return self.features(self.values)

    def blocks(self, components: int) -> Iterator[tuple[slice, Tensor]]:
        """Parts of the rows with their features, small enough for so many components."""
        keep = len(self) * self.width <= NUMBERS_KEPT
        step = max(1, NUMBERS_AT_ONCE // (components if keep else components + self.width))
        for start in range(0, len(self), step):
            part = slice(start, start + step)
            yield part, self._kept[part] if keep else self.features(self.values[part])


@dataclass(frozen=True)
class EMState:
    """A mixture between two passes."""

    log_weights: Tensor  # (K,)
    means: Tensor  # (K, d)
    covariances: Tensor  # (K,), (K, d) or (K, d, d)

    def mixture(self) -> GaussianMixture:
        """The mixture, on the scale of the rows."""
        return GaussianMixture(self.log_weights.exp(), self.means, self.covariances)

    def natural(self, rows: EMRows) -> tuple[Tensor, Tensor]:  # (K,), (K, features)
        """Constants and factors of the features in the logarithms of weighted densities."""
        d = self.means.shape[1]
        if rows.whole:
            factor = torch.linalg.cholesky(self.covariances)
            precision = torch.cholesky_inverse(factor)
            log_det = 2 * factor.diagonal(dim1=-2, dim2=-1).log().sum(1)
            linear = (precision @ self.means.unsqueeze(2)).squeeze(2)
            i, j = rows.pairs
            squares = precision[:, i, j] * torch.where(i == j, -0.5, -1.0)
        else:
            flat = (1 / self.covariances).reshape(len(self.means), -1).expand(-1, d)
            log_det, linear, squares = -flat.log().sum(1), self.means * flat, -0.5 * flat
        constant = log_det + d * math.log(2 * math.pi) + (linear * self.means).sum(1)
        return self.log_weights - 0.5 * constant, torch.cat([linear, squares], 1)

    def log_densities(self, rows: EMRows) -> Tensor:  # (N,)
        """Of each row."""
        constant, factors = self.natural(rows)
        blocks = rows.blocks(len(constant))
        return torch.cat([torch.addmm(constant, f, factors.T).logsumexp(1) for _, f in blocks])


def first_state(
    rows: EMRows, components: int, generator: torch.Generator, lean: float = 0.0
) -> EMState:
    """Clusters of k-means, which start at rows far from each other."""
    values = rows.values
    label = _nearest(values, _centres(values, components, generator))
    mass = torch.bincount(label, minlength=components).to(values)
    sums = values.new_zeros(components, rows.width)
    for part, features in rows.blocks(components):
        sums.index_add_(0, label[part], features)
    return maximized(rows, mass, sums, lean)


def improved(
    rows: EMRows, state: EMState, passes: int, lean: float = 0.0, reviving: int = 0
) -> tuple[EMState, int]:
    """Passes of expectation-maximization until they gain little; a single component needs one.

    Args:
        rows: The data.
        state: From where to go on.
        passes: How many, at most.
        lean: Correlations lean toward those that components have on average, as if each had
            this many rows with them.
        reviving: In so many first passes, components with hardly any rows are started anew: one
            that is as small afterwards has rows of its own.

    Returns:
        The state and the number of passes.
    """
    before = -math.inf
    for done in range(1, passes + 1):
        constant, factors = state.natural(rows)
        mass, sums = torch.zeros_like(constant), torch.zeros_like(factors)
        likelihood = rows.values.new_empty(len(rows))
        for part, features in rows.blocks(len(constant)):
            logs = torch.addmm(constant, features, factors.T)
            largest = logs.amax(1, keepdim=True)
            responsibility = logs.sub_(largest).exp_()
            total = responsibility.sum(1, keepdim=True)
            likelihood[part] = (total.log() + largest).squeeze(1)
            responsibility /= total
            mass += responsibility.sum(0)
            sums += responsibility.T @ features
        revived = done <= reviving and _revive(rows, likelihood, mass, sums)
        state = maximized(rows, mass, sums, lean)
        now = float(likelihood.mean())
        if (abs(now - before) < TOLERANCE and not revived) or len(state.means) == 1:
            return state, done
        before = now
    return state, passes


def _revive(rows: EMRows, likelihood: Tensor, mass: Tensor, sums: Tensor) -> bool:
    """Components with hardly any rows get some of those that the mixture likes least."""
    poor = (mass < min(LEAST_MASS, len(rows) / 2)).nonzero().flatten()
    if not len(poor) or len(poor) == len(mass):
        return False
    take = max(1, min(2 * int(LEAST_MASS), len(rows) // (2 * len(poor))))
    worst = likelihood.topk(take * len(poor), largest=False).indices
    given = rows.features(rows.values[worst]).unflatten(0, (len(poor), take))
    mass[poor] += 0.5 * take
    sums[poor] += 0.5 * given.sum(1)
    return True


def maximized(rows: EMRows, mass: Tensor, sums: Tensor, lean: float) -> EMState:
    """The likeliest state, from each component's mass and sums of features."""
    mass = mass.clamp(min=1e-10)
    moments = sums / mass.unsqueeze(1)
    d = rows.values.shape[1]
    means, seconds = moments[:, :d], moments[:, d:]
    weights = mass / mass.sum()
    i, j = rows.pairs
    squares = seconds[:, i == j]
    # What is lost in the difference would else be a variance of zero, or less.
    floor = RIDGE + ROUNDING * d * squares
    variances = (squares - means.square()).clamp(min=0) + floor
    usual = (weights.unsqueeze(1) * variances.log()).sum(0).exp()
    share = PRIOR_ROWS / (mass.unsqueeze(1) + PRIOR_ROWS) if len(mass) > 1 else 0.0
    widened = variances + share * (usual - variances)
    if not rows.whole:
        covariances = widened.mean(1) if rows.kind == "isotropic" else widened
        return EMState(weights.log(), means, covariances)
    found = means.new_zeros(len(mass), d, d)
    found[:, i, j] = seconds - means[:, i] * means[:, j]
    found[:, j, i] = found[:, i, j]
    deviations = variances.sqrt()
    found /= deviations.unsqueeze(2) * deviations.unsqueeze(1)
    found.diagonal(dim1=-2, dim2=-1).fill_(1)
    if lean:
        common = (weights.reshape(-1, 1, 1) * found).sum(0)
        found += (lean / (mass + lean)).reshape(-1, 1, 1) * (common - found)
    deviations = widened.sqrt()
    found *= deviations.unsqueeze(2) * deviations.unsqueeze(1)
    if rows.kind == "low-rank":
        found = _low_rank(found)
    failed = torch.linalg.cholesky_ex(found).info > 0
    found[failed] = torch.diag_embed(widened[failed])
    return EMState(weights.log(), means, found)


def _low_rank(covariances: Tensor) -> Tensor:
    """The leading directions, and the mean variance of the others: the likeliest such matrix."""
    dimension = covariances.shape[-1]
    rank = min(RANK, dimension // 2)
    values, vectors = torch.linalg.eigh(covariances)
    rest = values[:, : dimension - rank].mean(1, keepdim=True)
    kept = torch.cat([rest.expand(-1, dimension - rank), values[:, dimension - rank :]], 1)
    return (vectors * kept.unsqueeze(1)) @ vectors.mT


def _centres(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows far from each other, as k-means++ draws them, then a few passes of k-means."""
    chosen = [int(torch.randint(len(rows), (1,), generator=generator))]
    nearest = (rows - rows[chosen[0]]).square().sum(1)
    while len(chosen) < count:
        # All rows are taken where nothing is left: equal ones are.
        weights = nearest if bool(nearest.sum() > 0) else torch.ones_like(nearest)
        chosen.append(int(torch.multinomial(weights, 1, generator=generator)))
        nearest = torch.minimum(nearest, (rows - rows[chosen[-1]]).square().sum(1))
    centres = rows[chosen]
    for _ in range(8 if count > 1 else 0):
        label = _nearest(rows, centres)
        mass = torch.bincount(label, minlength=count).to(rows).unsqueeze(1)
        sums = torch.zeros_like(centres).index_add(0, label, rows)
        centres = torch.where(mass > 0, sums / mass.clamp(min=1), centres)
    return centres


def _nearest(rows: Tensor, centres: Tensor) -> Tensor:  # (N,)
    return torch.addmm(centres.square().sum(1), rows, centres.T, alpha=-2).argmin(1)


MISSING_CELLS_TOLERANCE = 1e-5  # nats a pass, which gains the less the more is missing


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
        if abs(total / len(values) - before) < MISSING_CELLS_TOLERANCE:
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
