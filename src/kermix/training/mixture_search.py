r"""The mixture of rows whose size and kind held-out rows choose.

Components start at data (k-means++) and the likelihood is maximized in closed form. Sizes, kinds
of covariances and how far correlations lean toward common ones are compared by held-out rows, or
by cross-validation where rows are few. More than one Gaussian is taken only where these rows
clearly gain by it: nothing else tells how much detail a table supports.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from kermix.checks import check_count, check_option, check_samples
from kermix.errors import OptionError, SampleError
from kermix.mixtures.mixture import GaussianMixture
from kermix.training.column_scale import ColumnScale
from kermix.training.mixture_em import KINDS, PASSES, CovarianceName
from kermix.training.mixture_trials import MixtureTrials, Tried

__all__ = ["ChosenMixture", "Trial", "choose_mixture", "gaussian_log_densities"]


@dataclass(frozen=True)
class Trial:
    """One mixture that was tried, and how held-out rows like it.

    Attributes:
        covariance_type: Kind of its covariances.
        components: Their number; the broad ones that are added to several are not counted.
        held_out: Mean log-density of held-out rows, in the units of the data.
        lean: Rows with common correlations that each component has, for each column.
    """

    covariance_type: CovarianceName
    components: int
    held_out: float
    lean: float = 0.0


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
    scale = ColumnScale.of(rows.double())
    values = scale(rows.double())
    search = MixtureTrials(values, components, generator, passes)
    search.compare(covariance_type)
    best, clear = search.choice(covariance_type)
    state, done = search.fitted(best, passes)

    def told(one: Tried) -> Trial:
        held_out = float(one.held_out.mean()) - scale.log_volume
        return Trial(one.kind, one.size, held_out, one.lean)

    trials = tuple(told(one) for one in search.tried)
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
    scale = ColumnScale.of(rows.double())
    values = scale(rows.double())
    search = MixtureTrials(values, 1, torch.Generator().manual_seed(0), 1)
    state, _ = search.fitted(search.one, 1)
    asked = values if judged is None else scale(judged.double())
    return state.mixture().log_prob(asked) - scale.log_volume
