"""What a search for a mixture tries, and how held-out rows like it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from kermix.mixtures.marginals import marginal_log_prob
from kermix.training.missing_cells import completed, improved_with_gaps
from kermix.training.mixture_em import (
    REVIVING_PASSES,
    CovarianceName,
    EMRows,
    EMState,
    first_state,
    improved,
)
from kermix.training.one_gaussian import (
    LEANS_OF_ONE,
    leaning_gaussian,
    one_gaussian,
    with_background,
)

__all__ = ["MixtureTrials", "Tried", "clearly_better"]

LARGEST = {"full": 64, "low-rank": 64, "diagonal": 128, "isotropic": 128}
LEANS = (0.0, 0.25, 1.0, 4.0)  # times the number of columns
SEARCH_PASSES, NEAR_PASSES = 15, 8  # from a start at data, and from a mixture nearby
SAMPLE = 8000  # rows that a search looks at
HELD_OUT = 0.15
FEW, FOLDS = 1000, 5  # below so many rows, cross-validation
FEWEST = 20  # below, each row is held out once, and only one Gaussian is looked at
HOPELESS = 2.0  # a kind whose last step gained this much less than it needs is given up
CLEAR = 1.5  # standard errors by which held-out rows must gain over one Gaussian,
SIMPLER = 1.0  # and over a smaller mixture


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
    lean: float
    held_out: Tensor  # log-density of each held-out row
    states: list[EMState]  # of each fold


class MixtureTrials:
    """What is tried on the folds of some rows."""

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
        leans = (math.inf,) if few or values.shape[1] == 1 else LEANS_OF_ONE
        self.ones = [self._one(x, "diagonal" if math.isinf(x) else "full") for x in leans]
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
                if best is not None and not clearly_better(-self.gain(best), SIMPLER):
                    self._climb(best)

    def choice(self, covariance_type: CovarianceName | Literal["auto"]) -> tuple[Tried, bool]:
        """The best, if it is clearly better than a single Gaussian or was asked for."""
        several = [t for t in self.tried if t.size > 1]
        best = max(several, key=lambda t: float(self.gain(t).mean()), default=self.one)
        clear = best is not self.one and clearly_better(self.gain(best))
        if clear or (self.components or 1) > 1:
            several.sort(key=self._parameters)
            like = (t for t in several if not clearly_better(best.held_out - t.held_out, SIMPLER))
            return next(like), clear
        if covariance_type == "auto" or covariance_type == self.one.kind:
            return self.one, False
        if covariance_type == "diagonal":
            self.tried.append(self.ones[-1])
        elif covariance_type == "full":
            whole = self.ones[:-1] or [self._one(math.inf, "full")]
            self.tried.append(max(whole, key=lambda t: float(t.held_out.mean())))
        elif not any(t.size == 1 and t.kind == covariance_type for t in self.tried):
            self._try(covariance_type, 1, 0.0)
        return next(t for t in self.tried if t.size == 1 and t.kind == covariance_type), False

    def fitted(self, best: Tried, passes: int) -> tuple[EMState, int]:
        """The same for all rows, from where the search ended: another start may end elsewhere."""
        if best.size == 1 and best.kind in ("full", "diagonal"):
            state = one_gaussian(self.values, best.lean, best.kind)
            if self.gaps is None:
                return state, 1
            start = one_gaussian(self.values, best.lean)
            whole, done = improved_with_gaps(self.gaps, start, "full", passes)
            moments = whole.means[0], whole.covariances[0]
            return leaning_gaussian(*moments, len(self.values), best.lean, best.kind), done
        rows = EMRows(self.values, best.kind)
        lean = best.lean * self.values.shape[1]
        state, done = improved(rows, best.states[0], passes, lean)
        if self.gaps is not None:
            state, done = improved_with_gaps(self.gaps, state, best.kind, passes, lean)
        return self._told(state, self.values), done

    def _told(self, state: EMState, values: Tensor) -> EMState:
        if self.components is not None or len(state.means) == 1:
            return state
        return with_background(state, values, self.one.lean)

    def _one(self, lean: float, kind: CovarianceName) -> Tried:
        states = [one_gaussian(fold.train, lean, kind) for fold in self.folds]
        # Not by features: a thousand columns, of which one Gaussian is made, have half a million.
        pairs = zip(states, self.folds, strict=True)
        held_out = torch.cat([marginal_log_prob(s.mixture(), fold.test) for s, fold in pairs])
        return Tried(kind, 1, lean, held_out, states)

    def _judged(self, states: Sequence[EMState], kind: CovarianceName) -> Tensor:
        pairs = list(zip(states, self.folds, strict=True))
        if self.gaps is not None:
            return torch.cat([marginal_log_prob(s.mixture(), fold.test) for s, fold in pairs])
        return torch.cat([s.log_densities(fold.rows(kind)[1]) for s, fold in pairs])

    def _try(
        self, kind: CovarianceName, size: int, lean: float, near: Tried | None = None
    ) -> Tried:
        states = []
        for place, fold in enumerate(self.folds):
            rows = fold.rows(kind)[0]
            rows_of_lean = lean * self.values.shape[1]
            if near is None:
                start = first_state(rows, size, self.generator, rows_of_lean)
            else:
                start = near.states[place]
            passes = self.passes if near is None else min(self.passes, NEAR_PASSES)
            reviving = REVIVING_PASSES if near is None else 0
            states.append(improved(rows, start, passes, rows_of_lean, reviving)[0])
        told = [self._told(s, f.train) for s, f in zip(states, self.folds, strict=True)]
        found = Tried(kind, size, lean, self._judged(told, kind), states)
        self.tried.append(found)
        return found

    def _parameters(self, tried: Tried) -> int:
        return tried.size * (1 + EMRows(self.values[:1], tried.kind).width)

    def _most(self, kind: CovarianceName) -> int:
        return min(LARGEST[kind], len(self.folds[0].train) // 10)

    def _sizes(self, kind: CovarianceName) -> Tried | None:
        """Sizes, doubled for as long as held-out rows gain by it."""
        leaning = kind in ("low-rank", "full") and self.values.shape[1] > 1
        lean = LEANS[1] if leaning else 0.0
        if self.components is not None:
            return self._try(kind, self.components, lean)
        top = max(float(self.gain(t).mean()) for t in self.tried)
        best, falls, size = None, 0, 2
        while size <= self._most(kind) and falls < 2:
            found = self._try(kind, size, lean)
            if best is None:
                best, falls = found, int(not clearly_better(self.gain(found), 0.0))
            elif self._better(found, best):
                gained = float((found.held_out - best.held_out).mean())
                best, falls = found, 0
                if top - float(self.gain(best).mean()) > HOPELESS * gained:
                    return None
            else:
                falls += 1 if size < 16 else 2
            size *= 2 if kind in ("low-rank", "full") else 4
        return best

    def _climb(self, best: Tried) -> None:
        """Other leans and sizes next to the best, until none is better."""
        while True:
            neighbours = list(self._neighbours(best))
            if not neighbours:
                return
            found = max(neighbours, key=lambda t: float(self.gain(t).mean()))
            if not self._better(found, best):
                return
            best = found

    def _neighbours(self, best: Tried) -> Iterable[Tried]:
        seen = {(t.size, t.lean) for t in self.tried if t.kind == best.kind}
        if best.kind in ("low-rank", "full") and self.values.shape[1] > 1:
            at = LEANS.index(best.lean)
            for lean in LEANS[max(at - 1, 0) : at + 2]:
                if (best.size, lean) not in seen:
                    yield self._try(best.kind, best.size, lean, best)
        if self.components is None:
            for size in (best.size // 2, 2 * best.size):
                if 1 < size <= self._most(best.kind) and (size, best.lean) not in seen:
                    yield self._try(best.kind, size, best.lean)

    def _better(self, found: Tried, best: Tried) -> bool:
        return float(self.gain(found).mean()) > float(self.gain(best).mean())


def _folds(values: Tensor, judged: Tensor, generator: torch.Generator) -> list[_Fold]:
    """Some rows to fit to, without gaps, and the others as they are."""
    count = len(values)
    if count < 4:
        return [_Fold(values, judged)]
    order = torch.randperm(count, generator=generator)
    if count >= FEW:
        held = round(HELD_OUT * min(count, SAMPLE))
        return [_Fold(values[order[held:][:SAMPLE]], judged[order[:held]])]
    parts = order.tensor_split(FOLDS if count >= FEWEST else count)
    return [
        _Fold(values[torch.cat([*parts[:k], *parts[k + 1 :]])], judged[part])
        for k, part in enumerate(parts)
    ]


def clearly_better(gain: Tensor, errors: float = CLEAR) -> bool:  # (N,)
    """Whether the mean gain of rows is not chance; that of a few far rows does not count whole.

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
