"""The scikit-learn face: a density estimator that is fitted in one line."""

import warnings
from typing import Any, Self

import numpy as np
import torch

from kermix.checks import seed_from
from kermix.errors import MissingExtraError, PoorFitWarning
from kermix.mixtures.mixture import GaussianMixture, marginal_log_prob
from kermix.training.fit_settings import CostName, FitSettings, ModelName
from kermix.training.loop import gradients_on

__all__ = ["KernelMixture"]

try:
    from sklearn.base import BaseEstimator, DensityMixin
    from sklearn.utils.validation import check_is_fitted, validate_data
except ImportError:
    raise MissingExtraError(
        "The estimators need scikit-learn: pip install 'kermix[fit]'."
    ) from None


class KernelMixture(DensityMixin, BaseEstimator):
    """A Gaussian mixture estimator with closed-form densities, inner products and divergences.

    By default, the number of components and the covariance type are chosen on held-out rows (by
    cross-validation below 1000 rows), components start at data points, and the likelihood is
    maximized. If several components are not clearly better on these rows, the result is one
    Gaussian, with correlations shrunk towards zero if there are few rows; a mixture of several
    also contains the Gaussian of all rows, with the weight of one row. With a `cost` of the paper,
    or any training setting, the mixture is trained with that cost and then refined.

    Missing cells (NaN) are integrated out, in fits and in densities; they are assumed to be
    missing at random. Columns are standardized internally. A constant column `c` gets the standard
    deviation `1e-6 |c|` (`1e-6` for 0). If the requested number of components, or the training, is
    not clearly better than one Gaussian, a `PoorFitWarning` says so.

    Args:
        n_components: Number of Gaussians; None chooses it. When training with a cost, None means
            128, or one per 10 rows if there are fewer than 1280.
        cost: Cost to optimize: "svd", "scalar", "vector" or "matrix", or a baseline; None means
            the likelihood, by expectation-maximization, or "svd" if a training setting is given.
        model: "mixture", a table of components, or "network", which maps noise to components.
        covariance_type: "isotropic", "diagonal", "low-rank" or "full"; None chooses. When training
            with a cost: "isotropic" (None) or "diagonal".
        steps: Number of training steps with the cost; None means 800.
        refine_steps: Number of refinement steps after training, which maximize the likelihood;
            None means 500.
        batch_size: Batch size; None means 256.
        variance: Final kernel variance, for scaled data; None estimates it.
        learning_rate: Peak learning rate; None depends on the model.
        device: "auto", "cpu", "cuda", ...
        random_state: Seed, or a NumPy generator of either kind, for all randomness.

    Attributes:
        weights_: Weights of the components, (K,).
        means_: Centers, (K, d).
        covariances_: Variances (K, d), or covariance matrices (K, d, d).
        variances_: Variances in each coordinate, (K, d).
        trials_: The trials: covariance type, number of components, held-out log-density; empty if
            trained with a cost.
        chosen_: The selected trial; None if trained with a cost.
        one_gaussian_: Held-out log-density of a single Gaussian, as a reference; on the training
            rows if trained with a cost.
        clearly_better_: Whether the mixture is clearly better on these rows (by 1.5 standard
            errors).
        n_iter_: Number of steps done.
        n_features_in_: Number of columns.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).normal([[0.0, 5.0]], 1.0, (500, 2))
        >>> model = KernelMixture(random_state=0).fit(rows)
        >>> model.sample(3).shape, model.score_samples(rows[:4]).shape
        ((3, 2), (4,))
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        cost: CostName | None = None,
        model: ModelName | None = None,
        covariance_type: str | None = None,
        steps: int | None = None,
        refine_steps: int | None = None,
        batch_size: int | None = None,
        variance: float | None = None,
        learning_rate: float | None = None,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.cost = cost
        self.model = model
        self.covariance_type = covariance_type
        self.steps = steps
        self.refine_steps = refine_steps
        self.batch_size = batch_size
        self.variance = variance
        self.learning_rate = learning_rate
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Fit the mixture to rows.

        Args:
            X: Rows, (N, d). NaN is a missing cell, which is integrated out; not allowed when
                training with a cost.
            y: Not used.
        """
        finite = True if self._trains() else "allow-nan"
        rows = validate_data(self, X, dtype=np.float64, ensure_all_finite=finite)
        seed = seed_from(self.random_state)
        if not self._trains():
            return self._choose(rows, seed)
        with gradients_on():
            return self._train(rows, seed)

    def _trains(self) -> bool:
        settings = (self.cost, self.model, self.steps, self.refine_steps, self.batch_size,
                    self.variance, self.learning_rate)  # fmt: skip
        return any(s is not None for s in settings)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = not self._trains()
        return tags

    def _choose(self, rows: np.ndarray, seed: int) -> Self:
        from kermix.training.mixture_search import choose_mixture

        kind: Any = self.covariance_type or "auto"
        generator = torch.Generator().manual_seed(seed)
        found = choose_mixture(torch.tensor(rows), self.n_components, kind, generator=generator)
        self.trials_: tuple[Any, ...] = found.trials
        self.chosen_: Any = found.chosen
        self.n_iter_ = found.passes
        self._keep(found.mixture)
        self._compare(found.chosen.held_out, found.one_gaussian, found.clearly_better)
        return self

    def _train(self, rows: np.ndarray, seed: int) -> Self:
        from kermix.training.mixture_search import clearly_better, gaussian_log_densities
        from kermix.training.samples_task import Split, build_trainer

        given = {
            "cost": self.cost, "model": self.model, "components": self.n_components,
            "covariance_type": self.covariance_type, "steps": self.steps,
            "batch_size": self.batch_size, "variance": self.variance,
            "learning_rate": self.learning_rate,
        }  # fmt: skip
        chosen: dict[str, Any] = {n: v for n, v in given.items() if v is not None}
        settings = FitSettings(**chosen, refine_steps=self.refine_steps, seed=seed)
        values = torch.tensor(rows)
        trainer = build_trainer(Split(values, values), settings, device=self.device)
        trainer.run()
        self.trials_, self.chosen_ = (), None
        self.n_iter_ = trainer.total
        self._keep(trainer.model.mixture())
        found = self.mixture_.log_prob(values)
        reference = gaussian_log_densities(values)
        clear = clearly_better(found - reference)
        self._compare(float(found.mean()), float(reference.mean()), clear)
        return self

    def _compare(self, found: float, one_gaussian: float, clear: bool) -> None:
        self.one_gaussian_ = one_gaussian
        self.clearly_better_ = clear
        if not clear and len(self.weights_) > 1:
            warnings.warn(
                f"The mixture is not clearly better than one Gaussian: mean log-density "
                f"{found:.4g}, against {one_gaussian:.4g}. Give it more steps, or let "
                "KernelMixture() choose.",
                PoorFitWarning,
                stacklevel=4,
            )

    def _keep(self, mixture: GaussianMixture) -> None:
        self.weights_ = mixture.weights.cpu().numpy()
        self.means_ = mixture.means.cpu().numpy()
        self.covariances_ = mixture.covariances.cpu().numpy()

    @property
    def variances_(self) -> np.ndarray:  # (K, d)
        """Variances of the components in each coordinate."""
        check_is_fitted(self)
        if self.covariances_.ndim == 3:
            return np.diagonal(self.covariances_, axis1=1, axis2=2).copy()
        return self.covariances_

    @property
    def mixture_(self) -> GaussianMixture:
        """The fitted density, with the closed forms of Gaussian mixtures."""
        check_is_fitted(self)
        return GaussianMixture(
            torch.tensor(self.weights_), torch.tensor(self.means_), torch.tensor(self.covariances_)
        )

    def score_samples(self, X: Any) -> np.ndarray:
        """Log-density of each row, in nats; if some cells are NaN, that of the others."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite="allow-nan")
        density: np.ndarray = marginal_log_prob(self.mixture_, torch.tensor(rows)).numpy()
        return density

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density of the rows: larger is better."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Draw rows from the fitted density; always the same ones unless a seed is given."""
        check_is_fitted(self)
        chosen = self.random_state if random_state is None else random_state
        seed = seed_from(chosen)
        generator = torch.Generator().manual_seed(seed)
        rows: np.ndarray = self.mixture_.sample((n_samples,), generator=generator).numpy()
        return rows
