"""The mixture of rows whose size and kind held-out rows choose.

Components start at data (k-means++), on columns each scaled by its own spread, and the likelihood
is maximized in closed form. Sizes, kinds of covariances and how far correlations shrink toward
common ones are compared by held-out rows, or by cross-validation where rows are few. More than
one Gaussian is taken only where these rows clearly gain by it: nothing else tells how much detail
a table supports.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kermix.checks import check_count, check_option, check_samples
from kermix.errors import OptionError, SampleError
from kermix.mixtures.mixture import GaussianMixture, marginal_log_prob
from kermix.training.mixture_em import (
    KINDS,
    PASSES,
    RIDGE,
    CovarianceName,
    EMRows,
    EMRowsWithGaps,
    EMState,
    completed,
    em,
    kmeans_start,
)

__all__ = [
    "SHRINKAGES_OF_ONE",
    "ChosenMixture",
    "MixtureColumnScale",
    "MixtureTrials",
    "Trial",
    "Tried",
    "choose_mixture",
    "clearly_better",
    "gaussian_log_densities",
    "one_gaussian",
    "shrunk_gaussian",
    "with_background",
]

LARGEST, SMALLEST = 1e150, 1e-150  # beyond, variances are no numbers


@dataclass(frozen=True)
class MixtureColumnScale:
    """The median and the spread of each column.

    The spread is the standard deviation, or the width of the bulk where a few far rows make up
    most of the deviation. A constant `c` has the scale `1e-3 |c|` (`1e-3` if it is 0).

    Example:
        >>> rows = torch.tensor([[1e6 + 1e-3], [1e6], [1e6 - 1e-3]], dtype=torch.float64)
        >>> MixtureColumnScale.of(rows)(rows).flatten().round(decimals=3)
        tensor([ 1.2250,  0.0000, -1.2250], dtype=torch.float64)
    """

    middle: Tensor  # (d,)
    scale: Tensor  # (d,)

    @classmethod
    def of(
        cls,
        rows: Tensor,  # (N, d)
        first: int = 0,
        of_constants: float = 1e-3,
        reach: float = 1e12,
    ) -> "MixtureColumnScale":
        """The scale of these rows, each of them centered before anything is squared.

        Args:
            rows: The rows; missing cells (NaN) do not count.
            first: The number of the first column, in messages.
            of_constants: The scale of a constant, of its size.
            reach: How many scales a row may be from the middle.
        """
        if bool(rows.isnan().any()):
            columns = enumerate(rows.T)
            each = [cls.of(c[~c.isnan()].unsqueeze(1), first + k) for k, c in columns]
            return cls(*(torch.cat([getattr(e, n) for e in each]) for n in ("middle", "scale")))
        ordered = rows.sort(0).values
        middle = ordered[len(rows) // 2]
        widest = torch.maximum(ordered[-1] - middle, middle - ordered[0])
        constant = widest == 0
        unit = torch.where(constant, 1.0, widest)
        scale = unit * _spread_of_ordered((ordered - middle) / unit).clamp(min=1 / reach)
        size = torch.where(middle == 0, 1.0, middle.abs().clamp(min=SMALLEST / of_constants))
        scale = torch.where(constant, of_constants * size, scale)
        for column in ((widest > LARGEST) | (scale > LARGEST) | (scale < SMALLEST)).nonzero():
            k = int(column)
            raise SampleError(
                f"Column {first + k} (from 0) has numbers from {float(ordered[0, k]):.4g} to "
                f"{float(ordered[-1, k]):.4g}: the squares of their differences overflow or "
                "underflow in float64. Rescale the column so that its values are near 1."
            )
        return cls(middle, scale)

    def __call__(self, rows: Tensor) -> Tensor:
        """Rows on this scale."""
        return (rows - self.middle) / self.scale

    @property
    def log_volume(self) -> float:
        """The excess of log-densities on this scale over those in the columns' units."""
        return float(self.scale.log().sum())

    def back(self, mixture: GaussianMixture) -> GaussianMixture:
        """A mixture on this scale, in the columns' units."""
        covariances = mixture.covariances
        if covariances.ndim == 1:
            covariances = covariances.unsqueeze(1)
        if covariances.ndim == 2:
            covariances = covariances * self.scale.square()
        else:
            covariances = covariances * self.scale.unsqueeze(1) * self.scale
        means = mixture.means * self.scale + self.middle
        return GaussianMixture(mixture.weights, means, covariances)


def _spread_of_ordered(rows: Tensor, far: float = 5.0) -> Tensor:  # (N, d) -> (d,)
    """The deviation of each column, or its bulk's where it is that of a few far rows.

    It is if it is `far` times the bulk's. The bulk is the half in the middle; where all of that is
    equal, 90 or 98 % of the rows.
    """
    deviation = (rows - rows.mean(0)).square().mean(0).sqrt()
    spread, found = deviation, torch.zeros_like(deviation, dtype=torch.bool)
    for tail, width in ((0.25, 1.349), (0.05, 3.290), (0.01, 4.653)):  # of a normal's rest
        low, high = (round(share * (len(rows) - 1)) for share in (tail, 1 - tail))
        bulk = (rows[high] - rows[low]) / width
        new = ~found & (bulk > 0)
        spread = torch.where(new & (deviation > far * bulk), bulk, spread)
        found |= new
    return spread


# A convention; times the number of columns.
SHRINKAGES_OF_ONE = (0.0, 0.25, 1.0, 4.0, 16.0, math.inf)


def one_gaussian(
    values: Tensor,  # (N, d)
    shrinkage: float,
    kind: CovarianceName = "full",
) -> EMState:
    r"""A Gaussian that is as wide as few rows demand.

    Correlations shrink toward zero as if `shrinkage * d` rows had none. Variances are multiplied
    by $(N + 1) / (N - 2 - p)$, with p between 1 (no correlations) and d: the factor with which a
    Gaussian of estimated mean and variance expects the least loss on new rows. Where there is no
    such factor, for fewer rows than that, it is $4 (N + 1) / N$ at most.

    Example:
        >>> rows = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
        >>> one_gaussian(rows, math.inf, "diagonal").covariances.round(decimals=3)
        tensor([[6.]], dtype=torch.float64)
    """
    mean = values.mean(0)
    centerd = values - mean
    return shrunk_gaussian(mean, centerd.T @ centerd / len(values), len(values), shrinkage, kind)


def shrunk_gaussian(
    mean: Tensor, covariance: Tensor, count: int, shrinkage: float, kind: CovarianceName
) -> EMState:
    """The same, from the moments of so many rows."""
    d = len(mean)
    share = 1.0 if math.isinf(shrinkage) else shrinkage * d / (count + shrinkage * d)
    estimated = 1 + (1 - share) * (d - 1)
    factor = (count + 1) / max(count - 2 - estimated, count / 4)
    variances = factor * covariance.diagonal() + RIDGE
    covariance = factor * (1 - share) * covariance
    covariance.diagonal().copy_(variances)
    found = covariance if kind == "full" else variances
    return EMState(mean.new_zeros(1), mean.unsqueeze(0), found.unsqueeze(0))


def with_background(state: EMState, values: Tensor, shrinkage: float) -> EMState:
    """The mixture with the Gaussian of all rows besides, which has the weight of one row.

    Whole covariances get two of half a row each, with the correlations of the rows and without:
    new rows may also break what holds for all others.
    """
    count, d = values.shape
    whole = state.covariances.ndim == 3
    broad = [one_gaussian(values, math.inf, "diagonal")]
    if whole and d > 1 and not math.isinf(shrinkage):
        broad.append(one_gaussian(values, shrinkage))
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


SHRINKAGES = SHRINKAGES_OF_ONE[:4]
SEARCH_PASSES, NEAR_PASSES = 15, 8  # from a start at data, and from a mixture nearby


@dataclass(frozen=True)
class _Fold:
    train: Tensor
    test: Tensor
    kept: dict[CovarianceName, tuple[EMRows, EMRows]] = field(default_factory=dict)

    def rows(self, kind: CovarianceName) -> tuple[EMRows, EMRows]:
        """The same features for all mixtures of a kind."""
        if kind not in self.kept:
            self.kept[kind] = EMRows(self.train, kind), EMRows(self.test, kind)
        return self.kept[kind]


@dataclass(frozen=True, eq=False)
class Tried:
    """One mixture, of each fold."""

    kind: CovarianceName
    size: int
    shrinkage: float
    held_out: Tensor  # log-density of each held-out row
    states: list[EMState]  # of each fold


class MixtureTrials:
    """Mixtures that are tried on the folds of some rows."""

    def __init__(
        self, values: Tensor, components: int | None, generator: torch.Generator, passes: int
    ) -> None:
        self.gaps = values if bool(values.isnan().any()) else None
        self.values = values if self.gaps is None else completed(values, generator)
        self.components, self.generator = components, generator
        self.passes = min(passes, SEARCH_PASSES)
        self.folds = _folds(self.values, values, generator)
        self.tried: list[Tried] = []
        few = len(values) < 4  # of which none can be spared
        shrinkages = (math.inf,) if few or values.shape[1] == 1 else SHRINKAGES_OF_ONE
        self.ones = [self._one(x, "diagonal" if math.isinf(x) else "full") for x in shrinkages]
        self.one = max(self.ones, key=lambda t: float(t.held_out.mean()))
        self.tried.append(self.one)

    def gain(self, tried: Tried) -> Tensor:
        """How much more each held-out row likes it than a single Gaussian."""
        return tried.held_out - self.one.held_out

    def compare(self, covariance_type: CovarianceName | Literal["auto"]) -> None:
        """Try what may be better than a single Gaussian."""
        flat = self.values.shape[1] == 1
        kinds: Iterable[CovarianceName] = ("full",) if flat else ("full", "diagonal")
        for kind in kinds if covariance_type == "auto" else (covariance_type,):
            if self.components != 1 or kind in ("isotropic", "low-rank"):
                best = self._sizes(kind)
                if best is not None and not _is_worse(best, self.one):
                    self._climb(best)

    def choice(self, covariance_type: CovarianceName | Literal["auto"]) -> tuple[Tried, bool]:
        """The best, if it is clearly better than a single Gaussian or was asked for."""
        several = [t for t in self.tried if t.size > 1]
        best = max(several, key=lambda t: float(self.gain(t).mean()), default=self.one)
        clear = best is not self.one and clearly_better(self.gain(best))
        if clear or (self.components or 1) > 1:
            several.sort(key=self._parameters)
            like = (t for t in several if not _is_worse(t, best))
            return next(like), clear
        return self._single(covariance_type), False

    def _single(self, covariance_type: CovarianceName | Literal["auto"]) -> Tried:
        """A single Gaussian of this kind."""
        if covariance_type == "auto" or covariance_type == self.one.kind:
            return self.one
        if covariance_type == "diagonal":
            self.tried.append(self.ones[-1])
        elif covariance_type == "full":
            whole = self.ones[:-1] or [self._one(math.inf, "full")]
            self.tried.append(max(whole, key=lambda t: float(t.held_out.mean())))
        alone = [t for t in self.tried if t.size == 1 and t.kind == covariance_type]
        return alone[0] if alone else self._try(covariance_type, 1, 0.0)

    def fitted(self, best: Tried, passes: int) -> tuple[EMState, int]:
        """The same for all rows, from where the search ended: another start may end elsewhere."""
        if best.size == 1 and best.kind in ("full", "diagonal"):
            state = one_gaussian(self.values, best.shrinkage, best.kind)
            if self.gaps is None:
                return state, 1
            start = one_gaussian(self.values, best.shrinkage)
            whole, done = em(EMRowsWithGaps(self.gaps, "full"), start, passes)
            moments = whole.means[0], whole.covariances[0]
            return shrunk_gaussian(*moments, len(self.values), best.shrinkage, best.kind), done
        rows = EMRows(self.values, best.kind)
        shrinkage = best.shrinkage * self.values.shape[1]
        state, done = em(rows, best.states[0], passes, shrinkage)
        if self.gaps is not None:
            rows = EMRowsWithGaps(self.gaps, best.kind)
            state, done = em(rows, state, passes, shrinkage)
        return self._with_background(state, self.values), done

    def _with_background(self, state: EMState, values: Tensor) -> EMState:
        if self.components is not None or len(state.means) == 1:
            return state
        return with_background(state, values, self.one.shrinkage)

    def _one(self, shrinkage: float, kind: CovarianceName) -> Tried:
        states = [one_gaussian(fold.train, shrinkage, kind) for fold in self.folds]
        # Not by features: a thousand columns, of which one Gaussian is made, have half a million.
        pairs = zip(states, self.folds, strict=True)
        held_out = torch.cat([marginal_log_prob(s.mixture(), fold.test) for s, fold in pairs])
        return Tried(kind, 1, shrinkage, held_out, states)

    def _judged(self, states: Sequence[EMState], kind: CovarianceName) -> Tensor:
        pairs = list(zip(states, self.folds, strict=True))
        if self.gaps is not None:
            return torch.cat([marginal_log_prob(s.mixture(), fold.test) for s, fold in pairs])
        return torch.cat([s.log_densities(fold.rows(kind)[1]) for s, fold in pairs])

    def _try(
        self, kind: CovarianceName, size: int, shrinkage: float, near: Tried | None = None
    ) -> Tried:
        states = []
        for place, fold in enumerate(self.folds):
            rows = fold.rows(kind)[0]
            shrinkage_rows = shrinkage * self.values.shape[1]
            if near is None:
                start = kmeans_start(rows, size, self.generator, shrinkage_rows)
            else:
                start = near.states[place]
            passes = self.passes if near is None else min(self.passes, NEAR_PASSES)
            restarting = 8 if near is None else 0
            states.append(em(rows, start, passes, shrinkage_rows, restarting)[0])
        pairs = zip(states, self.folds, strict=True)
        judged = [self._with_background(state, fold.train) for state, fold in pairs]
        found = Tried(kind, size, shrinkage, self._judged(judged, kind), states)
        self.tried.append(found)
        return found

    def _parameters(self, tried: Tried) -> int:
        return tried.size * (1 + EMRows(self.values[:1], tried.kind).width)

    def _most(self, kind: CovarianceName) -> int:
        largest = 64 if kind in ("full", "low-rank") else 128
        return min(largest, len(self.folds[0].train) // 10)

    def _sizes(self, kind: CovarianceName) -> Tried | None:
        """The number of components that was asked for, or the best of several."""
        shrinks = kind in ("low-rank", "full") and self.values.shape[1] > 1
        shrinkage = SHRINKAGES[1] if shrinks else 0.0
        if self.components is not None:
            return self._try(kind, self.components, shrinkage)
        return self._doubled(kind, shrinkage)

    def _doubled(
        self, kind: CovarianceName, shrinkage: float, given_up: float = 2.0
    ) -> Tried | None:
        """Sizes, doubled for as long as held-out rows gain by it.

        A kind whose last step gained so many times less than it needs is given up.
        """
        top = max(float(self.gain(t).mean()) for t in self.tried)
        best, falls, size = None, 0, 2
        while size <= self._most(kind) and falls < 2:
            found = self._try(kind, size, shrinkage)
            if best is None:
                best, falls = found, int(not clearly_better(self.gain(found), 0.0))
            elif self._better(found, best):
                gained = float((found.held_out - best.held_out).mean())
                best, falls = found, 0
                if top - float(self.gain(best).mean()) > given_up * gained:
                    return None
            else:
                falls += 1 if size < 16 else 2
            size *= 2 if kind in ("low-rank", "full") else 4
        return best

    def _climb(self, best: Tried) -> None:
        """Other shrinkages and sizes next to the best, until none is better."""
        while True:
            neighbors = list(self._near(best))
            if not neighbors:
                return
            found = max(neighbors, key=lambda t: float(self.gain(t).mean()))
            if not self._better(found, best):
                return
            best = found

    def _near(self, best: Tried) -> Iterable[Tried]:
        seen = {(t.size, t.shrinkage) for t in self.tried if t.kind == best.kind}
        if best.kind in ("low-rank", "full") and self.values.shape[1] > 1:
            at = SHRINKAGES.index(best.shrinkage)
            for shrinkage in SHRINKAGES[max(at - 1, 0) : at + 2]:
                if (best.size, shrinkage) not in seen:
                    yield self._try(best.kind, best.size, shrinkage, best)
        if self.components is None:
            for size in (best.size // 2, 2 * best.size):
                if 1 < size <= self._most(best.kind) and (size, best.shrinkage) not in seen:
                    yield self._try(best.kind, size, best.shrinkage)

    def _better(self, found: Tried, best: Tried) -> bool:
        return float(self.gain(found).mean()) > float(self.gain(best).mean())


def _folds(
    values: Tensor, judged: Tensor, generator: torch.Generator, most: int = 8000
) -> list[_Fold]:
    """Some rows to fit to, without gaps and at most so many, and others as they are.

    Below 1000 rows there are five folds; below 20, each row is held out once.
    """
    count = len(values)
    if count < 4:
        return [_Fold(values, judged)]
    order = torch.randperm(count, generator=generator)
    if count >= 1000:
        held = round(0.15 * min(count, most))
        return [_Fold(values[order[held:][:most]], judged[order[:held]])]
    parts = order.tensor_split(5 if count >= 20 else count)
    return [
        _Fold(values[torch.cat([*parts[:k], *parts[k + 1 :]])], judged[part])
        for k, part in enumerate(parts)
    ]


def _is_worse(one: Tried, other: Tried) -> bool:
    """Whether held-out rows gain by the other, by a standard error."""
    return clearly_better(other.held_out - one.held_out, 1.0)


def clearly_better(gain: Tensor, errors: float = 1.5) -> bool:  # (N,)
    """Whether the mean gain of rows is not chance; that of a few far rows does not count whole.

    It is not if it is more than so many standard errors.

    Example:
        >>> clearly_better(torch.tensor([1.0, 2.0, 1.5]))
        True
        >>> clearly_better(torch.tensor([-3.0, 4.0]))
        False
    """
    if len(gain) < 2:
        return False
    upper_quarter = gain.kthvalue(math.ceil(0.75 * len(gain))).values
    most = max(math.log(len(gain)), float(upper_quarter))
    counted = gain.clamp(max=most)
    return float(counted.mean()) > errors * float(counted.std()) / math.sqrt(len(gain))


@dataclass(frozen=True)
class Trial:
    """One mixture that was tried, and how held-out rows like it.

    Attributes:
        covariance_type: Kind of its covariances.
        components: Their number; the broad ones that are added to several are not counted.
        held_out: Mean log-density of held-out rows, in the units of the data.
        shrinkage: Rows with common correlations that each component has, for each column.
    """

    covariance_type: CovarianceName
    components: int
    held_out: float
    shrinkage: float = 0.0


@dataclass(frozen=True)
class ChosenMixture:
    """The mixture that held-out rows like best, fitted to all rows.

    Attributes:
        mixture: The mixture, in the units of the rows.
        chosen: Its kind and size.
        trials: All that was tried; the first is a single Gaussian.
        passes: Passes of the last fit.
        clearly_better: Whether held-out rows clearly prefer it to a single Gaussian.
    """

    mixture: GaussianMixture
    chosen: Trial
    trials: tuple[Trial, ...]
    passes: int
    clearly_better: bool

    @property
    def one_gaussian(self) -> float:
        """Held-out log-density of a single Gaussian: what to be better than."""
        return self.trials[0].held_out


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

    A mixture of several components whose number was chosen also has the Gaussian of all rows, with
    and without their correlations and with the weight of one row: new rows may be where the others
    have hardly any density.

    Args:
        rows: The data; NaN is a missing cell, which is integrated out. Rows without any cell do
            not count.
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
    rows = _checked(rows)
    check_option("covariance_type", covariance_type, ("auto", *KINDS))
    if components is not None:
        check_count("components", components, 1)
        if components > len(rows):
            raise OptionError(
                f"components={components} for {len(rows)} rows: use fewer components."
            )
    scale = MixtureColumnScale.of(rows.double())
    values = scale(rows.double())
    search = MixtureTrials(values, components, generator, passes)
    search.compare(covariance_type)
    best, clear = search.choice(covariance_type)
    state, done = search.fitted(best, passes)

    def trial(one: Tried) -> Trial:
        held_out = float(one.held_out.mean()) - scale.log_volume
        return Trial(one.kind, one.size, held_out, one.shrinkage)

    trials = tuple(trial(one) for one in search.tried)
    mixture = scale.back(state.mixture())
    return ChosenMixture(mixture, trials[search.tried.index(best)], trials, done, clear)


def _checked(rows: Tensor) -> Tensor:
    missing = rows.isnan() if isinstance(rows, Tensor) else None
    if missing is None or not bool(missing.any()):
        return check_samples("rows", rows)
    check_samples("rows", rows.masked_fill(missing, 0))
    for column in missing.all(0).nonzero().flatten().tolist():
        raise SampleError(f"Column {column} (from 0) of the rows has no numbers: remove it.")
    return rows[~missing.all(1)]


@torch.no_grad()
def gaussian_log_densities(rows: Tensor, judged: Tensor | None = None) -> Tensor:  # (M,)
    """Log-densities under a single Gaussian of the rows: the reference of every fit.

    Args:
        rows: What it is fitted to, (N, d).
        judged: The rows whose densities are asked for, (M, d); None takes the same.

    Example:
        >>> gaussian_log_densities(torch.tensor([[-1.0], [1.0]]).repeat(500, 1))[:2]
        tensor([-1.4189, -1.4189], dtype=torch.float64)
    """
    check_samples("rows", rows)
    scale = MixtureColumnScale.of(rows.double())
    values = scale(rows.double())
    search = MixtureTrials(values, 1, torch.Generator().manual_seed(0), 1)
    state, _ = search.fitted(search.one, 1)
    asked = values if judged is None else scale(judged.double())
    return state.mixture().log_prob(asked) - scale.log_volume
