r"""The closed-form mixture of rows: expectation-maximization, with its size and kind chosen.

Components start at data (k-means++), the likelihood is maximized in closed form, and the number of
components and the kind of their covariances are those that held-out rows like best: nothing else
tells how much detail a table supports.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import torch
from torch import Tensor

from kermix.checks import check_count, check_option, check_samples
from kermix.errors import OptionError
from kermix.kernels.distances import squared_distances
from kermix.mixtures.mixture import GaussianMixture

__all__ = ["ChosenMixture", "CovarianceName", "Trial", "choose_mixture", "fit_by_em"]

CovarianceName: TypeAlias = Literal["isotropic", "diagonal", "low-rank", "full"]
KINDS: tuple[CovarianceName, ...] = get_args(CovarianceName)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
LARGEST = {"full": 64, "low-rank": 64, "diagonal": 128, "isotropic": 128}
PASSES, TOLERANCE = 100, 1e-3  # nats a pass
SEARCH_PASSES = 20
RIDGE = 1e-4  # of a column's variance: what covariances have at least
SAMPLE = 5000  # rows that a search looks at
HELD_OUT = 0.15
RANK = 8
NUMBERS_AT_ONCE = 2**23
LEAST_MASS = 10.0  # rows: a component with fewer is started anew


@dataclass(frozen=True)
class Trial:
    """One mixture that was tried: its kind and size, and how held-out rows like it."""

    covariance_type: CovarianceName
    components: int
    held_out: float  # mean log-density


@dataclass(frozen=True)
class ChosenMixture:
    """The mixture that held-out rows like best, fitted to all rows.

    Attributes:
        mixture: The mixture, in the units of the rows.
        chosen: Its kind and size.
        trials: All that was tried.
        passes: Passes of the last fit.
        one_gaussian: Held-out log-density of a single Gaussian: what to be better than.
    """

    mixture: GaussianMixture
    chosen: Trial
    trials: tuple[Trial, ...]
    passes: int

    @property
    def one_gaussian(self) -> float:
        """The reference: a single Gaussian with a full covariance."""
        return next(t.held_out for t in self.trials if t.components == 1)


@torch.no_grad()
def choose_mixture(
    rows: Tensor,  # (N, d)
    components: int | None = None,
    covariance_type: CovarianceName | Literal["auto"] = "auto",
    *,
    generator: torch.Generator,
    passes: int = PASSES,
) -> ChosenMixture:
    """Fit mixtures of growing size and several kinds, and keep what held-out rows like best.

    Args:
        rows: The data.
        components: Number of components; None chooses it.
        covariance_type: Kind of covariance; "auto" chooses it.
        generator: Source of starts and of the held-out rows.
        passes: Passes of expectation-maximization, at most.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> middle = 8 * torch.arange(2).repeat(200)[:, None]
        >>> rows = torch.randn(400, 2, generator=generator) + middle
        >>> choose_mixture(rows, generator=generator).chosen.components
        2
    """
    check_samples("rows", rows)
    check_option("covariance_type", covariance_type, ("auto", *KINDS))
    if components is not None:
        check_count("components", components, 1)
        if components > len(rows):
            raise OptionError(f"components={components} for {len(rows)} rows: fewer are needed.")
    scaler = _Scale.of(rows.double())
    scaled = scaler(rows.double())
    order = torch.randperm(len(scaled), generator=generator)
    held = round(HELD_OUT * min(len(order), SAMPLE))
    settled = components is not None and covariance_type != "auto"
    if held < 2 or settled:
        kind = "full" if covariance_type == "auto" else covariance_type
        state, done = _fitted(scaled, components or 1, kind, generator, passes)
        fitted = state.mixture()
        told = Trial(kind, len(fitted.weights), float(fitted.log_prob(scaled).mean()))
        one = _one_gaussian(scaled, scaled, generator)
        one, told = _in_units((one, told), scaler)
        return ChosenMixture(scaler.back(fitted), told, (one, told), done)
    test, train = scaled[order[:held]], scaled[order[held:]]
    sample = train[:SAMPLE]
    trials = [_one_gaussian(sample, test, generator)]
    kinds = _kinds(rows.shape[1]) if covariance_type == "auto" else (covariance_type,)
    states: dict[Trial, _State] = {}
    for kind in kinds:
        tried = _search(sample, test, kind, components, generator, min(passes, SEARCH_PASSES))
        states |= dict(tried)
    trials += states
    best = max(states, key=lambda t: t.held_out)
    # From where the search ended: a start drawn anew may end elsewhere.
    state, done = _improved(scaled, states[best], best.covariance_type, passes)
    every = _in_units(trials, scaler)
    return ChosenMixture(scaler.back(state.mixture()), every[trials.index(best)], every, done)


def _kinds(dimension: int) -> tuple[CovarianceName, ...]:
    """Those worth a try: spheres hardly ever win, and few columns leave no rest."""
    return ("diagonal", "low-rank", "full") if dimension > RANK else ("diagonal", "full")


def _one_gaussian(train: Tensor, test: Tensor, generator: torch.Generator) -> Trial:
    fitted = fit_by_em(train, 1, "full", generator=generator, passes=1)
    return Trial("full", 1, float(fitted.log_prob(test).mean()))


def _search(
    train: Tensor,
    test: Tensor,
    kind: CovarianceName,
    components: int | None,
    generator: torch.Generator,
    passes: int,
) -> "Iterator[tuple[Trial, _State]]":
    """Sizes, doubled for as long as held-out rows gain by it."""
    sizes: Sequence[int] = SIZES if components is None else (components,)
    most = min(LARGEST[kind], max(1, len(train) // 10)) if components is None else components
    best, waited = -math.inf, 0
    for size in (s for s in sizes if s <= most):
        state, _ = _fitted(train, size, kind, generator, passes)
        found = float(state.mixture().log_prob(test).mean())
        yield Trial(kind, size, found), state
        waited = 0 if found > best + 0.01 else waited + 1
        best = max(best, found)
        if waited == 2:
            return


@torch.no_grad()
def fit_by_em(
    rows: Tensor,  # (N, d)
    components: int,
    covariance_type: CovarianceName = "full",
    *,
    generator: torch.Generator,
    passes: int = PASSES,
) -> GaussianMixture:
    """Maximize the likelihood from a start at data; `rows` are expected on a common scale.

    Covariances of `"low-rank"` have at most eight directions and one variance for the rest; they
    are returned as whole matrices, so that every closed form holds for them.
    """
    check_option("covariance_type", covariance_type, KINDS)
    return _fitted(rows, components, covariance_type, generator, passes)[0].mixture()


def _fitted(
    rows: Tensor, components: int, kind: CovarianceName, generator: torch.Generator, passes: int
) -> "tuple[_State, int]":
    means = _start(rows, components, generator)
    responsibility = torch.nn.functional.one_hot(
        squared_distances(rows, means).argmin(1), components
    ).to(rows)
    return _improved(rows, _maximized(rows, responsibility, kind), kind, passes)


def _improved(
    rows: Tensor, state: "_State", kind: CovarianceName, passes: int
) -> "tuple[_State, int]":
    """Passes of expectation-maximization until they gain little; a single component needs one."""
    before = -math.inf
    for done in range(1, passes + 1):
        logs = _log_joint(rows, state)
        likelihood = logs.logsumexp(1)
        now = float(likelihood.mean())
        responsibility = (logs - likelihood.unsqueeze(1)).exp()
        state = _maximized(rows, _revived(rows, responsibility, likelihood), kind)
        if abs(now - before) < TOLERANCE or len(state.means) == 1:
            return state, done
        before = now
    return state, passes


@dataclass(frozen=True)
class _State:
    log_weights: Tensor  # (K,)
    means: Tensor  # (K, d)
    covariances: Tensor  # (K,), (K, d) or (K, d, d)

    def mixture(self) -> GaussianMixture:
        return GaussianMixture(self.log_weights.exp(), self.means, self.covariances)


def _start(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Rows far from each other, as k-means++ draws them, then a few passes of k-means."""
    first = int(torch.randint(len(rows), (1,), generator=generator))
    chosen = rows[first : first + 1]
    nearest = squared_distances(rows, chosen)[:, 0]
    while len(chosen) < count:
        weights = nearest.clamp(min=0)
        if not bool(weights.sum() > 0):  # all rows are taken: equal ones are left
            weights = torch.ones_like(weights)
        new = int(torch.multinomial(weights, 1, generator=generator))
        chosen = torch.cat([chosen, rows[new : new + 1]])
        nearest = torch.minimum(nearest, squared_distances(rows, chosen[-1:])[:, 0])
    for _ in range(10 if count > 1 else 0):
        label = squared_distances(rows, chosen).argmin(1)
        mass = torch.bincount(label, minlength=count).to(rows).unsqueeze(1)
        sums = torch.zeros_like(chosen).index_add(0, label, rows)
        chosen = torch.where(mass > 0, sums / mass.clamp(min=1), chosen)
    return chosen


def _maximized(rows: Tensor, responsibility: Tensor, kind: CovarianceName) -> _State:
    mass = responsibility.sum(0).clamp(min=1e-10)
    means = responsibility.T @ rows / mass.unsqueeze(1)
    if kind in ("isotropic", "diagonal"):
        squares = responsibility.T @ rows.square() / mass.unsqueeze(1) - means.square()
        variances = squares.clamp(min=0) + RIDGE
        covariances = variances.mean(1) if kind == "isotropic" else variances
    else:
        covariances = _second_moments(rows, responsibility) / mass.reshape(-1, 1, 1)
        covariances -= means.unsqueeze(2) * means.unsqueeze(1)
        covariances.diagonal(dim1=-2, dim2=-1).clamp_(min=0).add_(RIDGE)
        if kind == "low-rank":
            covariances = _low_rank(covariances)
    return _State((mass / mass.sum()).log(), means, covariances)


def _second_moments(rows: Tensor, responsibility: Tensor) -> Tensor:  # (K, d, d)
    """Sums of products of columns: one product of matrices, as no library has it batched."""
    d = rows.shape[1]
    i, j = torch.triu_indices(d, d)
    sums = rows.new_zeros(responsibility.shape[1], len(i))
    step = max(1, NUMBERS_AT_ONCE // len(i))
    for part, shares in zip(rows.split(step), responsibility.split(step), strict=True):
        sums += shares.T @ (part[:, i] * part[:, j])
    found = rows.new_zeros(len(sums), d, d)
    found[:, i, j] = sums
    found[:, j, i] = sums
    return found


def _low_rank(covariances: Tensor) -> Tensor:
    """The leading directions, and the mean variance of the others: the likeliest such matrix."""
    dimension = covariances.shape[-1]
    rank = min(RANK, dimension // 2)
    values, vectors = torch.linalg.eigh(covariances)
    rest = values[:, : dimension - rank].mean(1, keepdim=True)
    kept = torch.cat([rest.expand(-1, dimension - rank), values[:, dimension - rank :]], 1)
    return (vectors * kept.unsqueeze(1)) @ vectors.mT


def _log_joint(rows: Tensor, state: _State) -> Tensor:  # (N, K)
    d = rows.shape[1]
    if state.covariances.ndim < 3:
        variances = state.covariances
        precision = (1 / variances).reshape(len(variances), -1).expand(-1, d)
        squares = (
            rows.square() @ precision.T
            - 2 * rows @ (state.means * precision).T
            + (state.means.square() * precision).sum(1)
        )
        log_det = -precision.log().sum(1)
    else:
        factors = torch.linalg.cholesky(state.covariances)
        log_det = 2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(1)
        identity = torch.eye(d, dtype=rows.dtype).expand_as(factors)
        # Inverses of well-conditioned factors, so that all rows are one product of matrices.
        whiten = torch.linalg.solve_triangular(factors, identity, upper=False)
        turned = whiten.flatten(0, 1)  # (K d, d)
        shift = (whiten @ state.means.unsqueeze(2)).flatten()
        step = max(1, NUMBERS_AT_ONCE // len(turned))
        squares = torch.cat([
            (part @ turned.T - shift).square_().unflatten(1, (-1, d)).sum(2)
            for part in rows.split(step)
        ])  # fmt: skip
    return state.log_weights - 0.5 * (squares + log_det + d * math.log(2 * math.pi))


def _revived(rows: Tensor, responsibility: Tensor, likelihood: Tensor) -> Tensor:
    """Components with hardly any rows get those that the mixture likes least."""
    poor = (responsibility.sum(0) < min(LEAST_MASS, len(rows) / 2)).nonzero().flatten()
    if not len(poor) or len(poor) == responsibility.shape[1]:
        return responsibility
    found = responsibility.clone()
    order = likelihood.argsort()
    take = max(1, min(2 * int(LEAST_MASS), len(rows) // (2 * len(poor))))
    for place, component in enumerate(poor.tolist()):
        given = order[place * take : (place + 1) * take]
        found[given] *= 0.5
        found[given, component] += 0.5
    return found


@dataclass(frozen=True)
class _Scale:
    middle: Tensor  # (d,)
    scale: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "_Scale":
        scale = rows.std(0, unbiased=False) if len(rows) > 1 else torch.ones_like(rows[0])
        tiny = 1e-9 * rows.abs().amax(0).clamp(min=1e-300)
        return cls(rows.mean(0), torch.where(scale > tiny, scale, 1.0))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.middle) / self.scale

    @property
    def log_volume(self) -> float:
        return float(self.scale.log().sum())

    def back(self, mixture: GaussianMixture) -> GaussianMixture:
        covariances = mixture.covariances
        if covariances.ndim == 1:
            covariances = covariances.unsqueeze(1)
        if covariances.ndim == 2:
            covariances = covariances * self.scale.square()
        else:
            covariances = covariances * self.scale.unsqueeze(1) * self.scale
        means = mixture.means * self.scale + self.middle
        return GaussianMixture(mixture.weights, means, covariances)


def _in_units(trials: Sequence[Trial], scaler: _Scale) -> tuple[Trial, ...]:
    """Log-densities in the units of the rows."""
    return tuple(
        Trial(t.covariance_type, t.components, t.held_out - scaler.log_volume) for t in trials
    )
