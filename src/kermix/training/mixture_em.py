"""Expectation-maximization of Gaussian mixtures, wherever kermix does it.

Mixtures with free covariances of rows (`em`), starting from scikit-learn's k-means; mixtures that
are a network's parameters, with thousands of components and on any device (`em_pass`); and sums of
products of mixtures (`product_em_pass`).

The log-density of a Gaussian is linear in the features $x$ and $x_i x_j$, and its moments are
their means. So a pass is two products of matrices with features that are computed once: one gives
the responsibilities, the other the moments. Cells that are missing at random are integrated out,
not filled in: for each pattern of them, conditional means and covariances stand for the cells.
"""

import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple, TypeAlias, get_args

import torch
from torch import Tensor

from kermix.checks import rows_at_once
from kermix.errors import ShapeError
from kermix.mixtures.mixture import GaussianMixture, gap_patterns
from kermix.networks.mixture_networks import MixtureTable, ProductMixture, part_log_densities

__all__ = [
    "KINDS",
    "PASSES",
    "RIDGE",
    "CovarianceName",
    "EMRows",
    "EMRowsWithGaps",
    "EMState",
    "completed",
    "em",
    "em_pass",
    "kmeans_start",
    "product_em_pass",
]

CovarianceName: TypeAlias = Literal["isotropic", "diagonal", "low-rank", "full"]
KINDS: tuple[CovarianceName, ...] = get_args(CovarianceName)
# Conventions: passes, tolerance and ridge are scikit-learn's.
PASSES, TOLERANCE = 100, 1e-3  # nats a pass
RIDGE = 1e-6  # of a column's variance: what covariances have at least


class Expectation(NamedTuple):
    """The result of an expectation step: log-densities, and sums weighted by responsibilities."""

    log_densities: Tensor  # (N,)
    mass: Tensor  # (K,), responsibilities
    sums: Tensor  # (K, features)


class EMRows:
    """Rows on a common scale and their features: `x`, and `x_i x_j` or, diagonal, `x_i^2`."""

    tolerance = TOLERANCE

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

    def blocks(self, components: int, most: int = 2**25) -> Iterator[tuple[slice, Tensor]]:
        """Parts of the rows with their features, small enough for so many components.

        Features of all rows are kept if they are at most so many numbers.
        """
        keep = len(self) * self.width <= most
        step = rows_at_once(components if keep else components + self.width)
        for start in range(0, len(self), step):
            part = slice(start, start + step)
            yield part, self._kept[part] if keep else self.features(self.values[part])

    def moments(self, state: "EMState") -> Expectation:
        """The expectation step."""
        constant, factors = state.natural(self)
        mass, sums = torch.zeros_like(constant), torch.zeros_like(factors)
        log_densities = self.values.new_empty(len(self))
        for part, features in self.blocks(len(constant)):
            logs = torch.addmm(constant, features, factors.T)
            largest = logs.amax(1, keepdim=True)
            responsibility = logs.sub_(largest).exp_()
            total = responsibility.sum(1, keepdim=True)
            log_densities[part] = (total.log() + largest).squeeze(1)
            responsibility /= total
            mass += responsibility.sum(0)
            sums += responsibility.T @ features
        return Expectation(log_densities, mass, sums)


class EMRowsWithGaps(EMRows):
    """Rows with missing cells (NaN), which are integrated out."""

    tolerance = 1e-5  # a pass gains the less the more is missing

    @cached_property
    def _patterns(self) -> list[tuple[Tensor, Tensor]]:
        return list(gap_patterns(self.values))

    def moments(self, state: "EMState") -> Expectation:
        """The expectation step."""
        mass = torch.zeros_like(state.log_weights)
        sums = state.means.new_zeros(len(mass), self.width)
        log_densities = self.values.new_empty(len(self))
        i, j = self.pairs
        for seen, places in self._patterns:
            for part in places.split(rows_at_once(state.means.numel())):
                logs, mean, rest = _conditionals(self.values[part], seen, state)
                log_densities[part] = logs.logsumexp(0)
                share = (logs - log_densities[part]).exp()  # (K, n)
                mass += share.sum(1)
                second = (share.unsqueeze(2) * mean).mT @ mean
                second += share.sum(1)[:, None, None] * rest
                first = (share.unsqueeze(2) * mean).sum(1)
                sums += torch.cat([first, second[:, i, j]], 1)
        return Expectation(log_densities, mass, sums)


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


def kmeans_start(
    rows: EMRows,
    components: int,
    generator: torch.Generator,
    shrinkage: float = 0.0,
    passes: int = 8,
) -> EMState:
    """The state of the clusters that k-means finds in a few passes."""
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    clusters = min(components, len(rows))  # a component without rows has hardly any weight
    model = KMeans(clusters, n_init=1, max_iter=passes, random_state=seed)
    # Of several threads, the order of sums would differ from run to run.
    with threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # equal rows, of which fewer clusters can be made
        found = model.fit(rows.values.cpu().numpy()).labels_
    label = torch.as_tensor(found, dtype=torch.long, device=rows.values.device)
    mass = torch.bincount(label, minlength=components).to(rows.values)
    sums = rows.values.new_zeros(components, rows.width)
    for part, features in rows.blocks(components):
        sums.index_add_(0, label[part], features)
    return _m_step(rows, mass, sums, shrinkage)


def em(
    rows: EMRows, state: EMState, passes: int, shrinkage: float = 0.0, restarting: int = 0
) -> tuple[EMState, int]:
    """Passes of expectation-maximization until they gain little.

    Args:
        rows: The data.
        state: From where to go on.
        passes: How many, at most.
        shrinkage: Correlations are drawn toward those that components have on average, as if each
            had this many rows with them.
        restarting: In so many first passes, components with hardly any rows are started anew: one
            that is as small afterwards has rows of its own.

    Returns:
        The state and the number of passes.
    """
    before = -math.inf
    alone = len(state.means) == 1 and not isinstance(rows, EMRowsWithGaps)  # one pass is all
    for done in range(1, passes + 1):
        log_densities, mass, sums = rows.moments(state)
        restarted = done <= restarting and _restart_empty(rows, log_densities, mass, sums)
        state = _m_step(rows, mass, sums, shrinkage)
        now = float(log_densities.mean())
        if (abs(now - before) < rows.tolerance and not restarted) or alone:
            return state, done
        before = now
    return state, passes


def _restart_empty(
    rows: EMRows, log_densities: Tensor, mass: Tensor, sums: Tensor, least: float = 10.0
) -> bool:
    """Components with fewer rows than `least` get some of those that the mixture likes least."""
    poor = (mass < min(least, len(rows) / 2)).nonzero().flatten()
    if not len(poor) or len(poor) == len(mass):
        return False
    take = max(1, min(2 * int(least), len(rows) // (2 * len(poor))))
    worst = log_densities.topk(take * len(poor), largest=False).indices
    given = rows.features(rows.values[worst]).unflatten(0, (len(poor), take))
    mass[poor] += 0.5 * take
    sums[poor] += 0.5 * given.sum(1)
    return True


def _m_step(
    rows: EMRows, mass: Tensor, sums: Tensor, shrinkage: float, prior_rows: float = 0.1
) -> EMState:
    """The likeliest state, from each component's mass and sums of features.

    Every component has so many rows with the usual variances besides its own.
    """
    mass = mass.clamp(min=1e-10)
    moments = sums / mass.unsqueeze(1)
    d = rows.values.shape[1]
    means, seconds = moments[:, :d], moments[:, d:]
    weights = mass / mass.sum()
    i, j = rows.pairs
    squares = seconds[:, i == j]
    # What is lost in the difference would else be a variance of zero, or less.
    floor = RIDGE + 4 * torch.finfo(torch.float64).eps * d * squares
    variances = (squares - means.square()).clamp(min=0) + floor
    usual = (weights.unsqueeze(1) * variances.log()).sum(0).exp()
    share = prior_rows / (mass.unsqueeze(1) + prior_rows) if len(mass) > 1 else 0.0
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
    if shrinkage:
        common = (weights.reshape(-1, 1, 1) * found).sum(0)
        found += (shrinkage / (mass + shrinkage)).reshape(-1, 1, 1) * (common - found)
    deviations = widened.sqrt()
    found *= deviations.unsqueeze(2) * deviations.unsqueeze(1)
    if rows.kind == "low-rank":
        found = _low_rank(found)
    failed = torch.linalg.cholesky_ex(found).info > 0
    found[failed] = torch.diag_embed(widened[failed])
    return EMState(weights.log(), means, found)


def _low_rank(covariances: Tensor, rank: int = 8) -> Tensor:
    """The leading directions, and the mean variance of the others: the likeliest such matrix."""
    dimension = covariances.shape[-1]
    rank = min(rank, dimension // 2)
    values, vectors = torch.linalg.eigh(covariances)
    rest = values[:, : dimension - rank].mean(1, keepdim=True)
    kept = torch.cat([rest.expand(-1, dimension - rank), values[:, dimension - rank :]], 1)
    return (vectors * kept.unsqueeze(1)) @ vectors.mT


def completed(values: Tensor, generator: torch.Generator) -> Tensor:
    """Rows whose missing cells are drawn as one Gaussian has them, given the others."""
    seen = ~values.isnan()
    mean = values.nanmean(0)
    spread = (values - mean).square().nanmean(0)
    start = EMState(values.new_zeros(1), mean[None], torch.diag(spread + 1e-3)[None])
    state = em(EMRowsWithGaps(values, "full"), start, PASSES)[0]
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
    kind: CovarianceName = "isotropic" if logs.shape[2] == 1 else "diagonal"
    d = means.shape[2]
    if len(data) != len(means):
        raise ShapeError(
            f"{len(data)} sets of points for {len(means)} mixtures; the numbers must match."
        )
    total = means.new_zeros(())
    for item, points in enumerate(data):
        state = EMState(logits[item].log_softmax(0), means[item], logs[item].exp())
        log_densities, mass, sums = EMRows(points, kind).moments(state)
        total += log_densities.sum()
        moments = mass, sums[:, :d], sums[:, d:]
        means[item], spread = _diagonal_m_step(*moments, state.means, state.covariances, floor)
        logs[item] = spread.log()
        logits[item] = mass.clamp(min=1e-12).log()
    return -total / sum(len(points) for points in data)


def _diagonal_m_step(
    mass: Tensor,  # (..., K)
    first: Tensor,  # (..., K, d)
    second: Tensor,  # (..., K, d)
    means: Tensor,  # (..., K, d)
    variances: Tensor,  # (..., K, d) or (..., K, 1)
    floor: float,
    least: float = 1e-3,
) -> tuple[Tensor, Tensor]:
    """Means and variances from the moments; a component without points keeps its own."""
    enough = (mass > least).unsqueeze(-1)
    weight = mass.clamp(min=least).unsqueeze(-1)
    center = torch.where(enough, first / weight, means)
    spread = (second / weight - center.square()).clamp(min=0)
    if variances.shape[-1] == 1:
        spread = spread.mean(-1, keepdim=True)
    return center, torch.where(enough, spread, variances).clamp(min=max(floor, 1e-10))


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
        sums = _product_moments(points, *before, groups, weights)
        likelihood, group_mass, choice_mass, mass, first, second = sums
        total += likelihood
        means[item], spread = _diagonal_m_step(mass, first, second, *before, floor)
        logs[item] = spread.log()
        # No weight of a product is exactly zero.
        logits[item], choices[item] = (group_mass + 1e-6).log(), (choice_mass + 1e-6).log()
    return -total / sum(len(points) for points in data)


def _product_moments(
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
    for rows in points.split(rows_at_once(2 * parts * components, 2**28)):
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
