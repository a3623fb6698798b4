"""What the classifier and the regressor of Gaussian products share: options, fits, answers."""

import math
import numbers
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_sizes
from kermix.errors import OptionError
from kermix.models.mixture.scaled import Scaler
from kermix.models.product.bins import MOST_VALUES, ColumnBins
from kermix.models.product.rows import GaussianProduct, ProductForm
from kermix.sklearn.mixture import (
    seed_from,  # first: it says what to install if scikit-learn is missing
)
from kermix.sklearn.weights import row_weights
from kermix.training.tabular import FittedTable, TableSettings, fit_table

# isort: split
from sklearn.base import BaseEstimator
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = [
    "FOR_MORE_CLASSES",
    "PRECISIONS",
    "ProductEstimator",
    "as_before_if_it_fails",
    "with_weight",
]

Own = TypeVar("Own", bound="ProductEstimator")
Given = ParamSpec("Given")
Result = TypeVar("Result")

ROWS_TO_SPLIT = 20
# Held out of each network where nothing is said: one epoch and one number are found with them.
SHARE_HELD_OUT, MOST_HELD_OUT = 0.1, 250
ROWS_AT_ONCE = 1024
FARTHEST = 1e6  # usual deviations: what is farther is as far, for all Gaussians
SIZES = ("n_terms", "width", "depth", "n_members", "max_epochs", "n_iter_no_change")
# Terms and epochs of a classifier where nothing is said: more classes need more of both, and the
# trees of boosting, whose time is the measure, are as many as the classes, or one for two.
FOR_TWO_CLASSES, FOR_MORE_CLASSES = (32, 30), (64, 50)
VALUES_FOR_TWO_CLASSES = 64  # of a column
PRECISIONS = (np.float64, np.float32)  # float32 stays: how far its numbers are rounded matters


def as_before_if_it_fails(
    fit: Callable[Concatenate[Own, Given], Result],
) -> Callable[Concatenate[Own, Given], Result]:
    """Let an estimator that was fitted before stay so, whole, where another fit fails."""

    @wraps(fit)
    def fits(self: Own, /, *given: Given.args, **named: Given.kwargs) -> Result:
        before = dict(self.__dict__)
        try:
            return fit(self, *given, **named)
        except BaseException:  # also a stop by hand
            self.__dict__ = before
            raise

    return fits


class ProductEstimator(BaseEstimator):
    """The base of both."""

    _by_ranks = False
    _may_be_none: tuple[str, ...] = ()
    _bins: ColumnBins | None  # None where networks see the numbers themselves
    _ends: tuple[Tensor, Tensor]  # of the scaled columns

    def __init__(
        self,
        n_terms: int | None = 32,
        *,
        width: int = 8,
        depth: int = 2,
        form: ProductForm = "variational",
        n_members: int = 4,
        max_epochs: int | None = 40,
        batch_size: int | None = None,
        learning_rate: float = 2e-2,
        weight_decay: float = 0.1,
        validation_fraction: float | None = 0.1,
        n_iter_no_change: int = 20,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        self.n_terms = n_terms
        self.width = width
        self.depth = depth
        self.form = form
        self.n_members = n_members
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.n_iter_no_change = n_iter_no_change
        self.device = device
        self.random_state = random_state

    def _fit(
        self, rows: np.ndarray, targets: Tensor, outputs: int, weights: Tensor | None
    ) -> FittedTable:
        """Train and keep the networks."""
        self._check_options()
        seed = seed_from(self.random_state)
        terms, epochs = self._sizes(outputs)
        settings = TableSettings(
            terms=terms,
            width=int(self.width),
            depth=int(self.depth),
            form=self.form,
            epochs=epochs,
            batch_size=None if self.batch_size is None else int(self.batch_size),
            learning_rate=float(self.learning_rate),
            decay=float(self.weight_decay),
            patience=int(self.n_iter_no_change),
            seed=seed,
        )
        splits = self._splits(targets, seed)
        values = torch.tensor(rows)
        self.scaler_ = Scaler(values)
        scaled = self._scaled(values)
        bins = self._bins_of(scaled, outputs, weights) if self._by_ranks else None
        fitted = fit_table(
            scaled.float() if bins is None else scaled.double(),
            targets,
            outputs,
            splits,
            settings,
            bins=bins,
            weights=weights,
            device=self.device,
        )
        self._bins = None if bins is None else bins.without_rows()
        self._ends = scaled.amin(0).double(), scaled.amax(0).double()
        self._keep(fitted)
        return fitted

    def _bins_of(self, scaled: Tensor, outputs: int, weights: Tensor | None) -> ColumnBins:
        most = VALUES_FOR_TWO_CLASSES if outputs <= 2 else MOST_VALUES
        shares = None if weights is None else weights.double().numpy()
        return ColumnBins(scaled.double().numpy(), most, shares)

    def _sizes(self, outputs: int) -> tuple[int, int]:
        """Terms and epochs."""
        usual = FOR_TWO_CLASSES if outputs <= 2 else FOR_MORE_CLASSES
        given = (self.n_terms, self.max_epochs)
        terms, epochs = (int(b if a is None else a) for a, b in zip(given, usual, strict=True))
        return terms, epochs

    def _check_options(self) -> None:
        for name in SIZES:
            if getattr(self, name) is None and name not in self._may_be_none:
                raise OptionError(f"{name}=None must be a whole number, at least 1.")
        check_sizes(**{name: getattr(self, name) for name in (*SIZES, "batch_size")})
        if not (_is_number(self.learning_rate) and 0 < self.learning_rate < math.inf):
            raise OptionError(f"learning_rate={self.learning_rate!r} must be a number above 0.")
        if not (_is_number(self.weight_decay) and 0 <= self.weight_decay < math.inf):
            raise OptionError(f"weight_decay={self.weight_decay!r} must be a non-negative number.")
        share = self.validation_fraction
        if share is None and "validation_fraction" in self._may_be_none:
            return
        if not (_is_number(share) and 0 <= float(share or 0) < 1):
            raise OptionError(
                f"validation_fraction={share!r} must be at least 0 (nothing held out) and below 1."
            )

    def _keep(self, fitted: FittedTable) -> None:
        # In float64 a row's prediction does not depend on the rows beside it.
        self.network_: GaussianProduct = fitted.network.double()
        self.loss_curve_ = fitted.losses
        self.validation_curve_ = fitted.held_out
        self.n_iter_ = len(fitted.losses)
        self.best_epochs_ = fitted.best

    def _splits(self, targets: Tensor, seed: int) -> list[tuple[Tensor, Tensor]]:
        """For each member, the rows that it trains with and those that it holds out."""
        rows, labels = len(targets), targets.numpy()
        share = self.validation_fraction
        held_out = min(int(rows * SHARE_HELD_OUT), MOST_HELD_OUT)
        if share is not None:
            held_out = int(rows * share)
        if rows < ROWS_TO_SPLIT or not held_out:
            everything = torch.arange(rows)
            return [(everything, everything[:0])] * int(self.n_members)
        if rows - held_out < 2:
            raise OptionError(
                f"validation_fraction={share:g} leaves one of {rows} rows for "
                "training. Use less; 0 holds out nothing."
            )
        options = {"n_splits": int(self.n_members), "test_size": held_out, "random_state": seed}
        chooser = ShuffleSplit(**options)
        if targets.ndim == 1:
            counts = np.bincount(labels)
            if counts.min() >= 2 and min(held_out, rows - held_out) >= len(counts):
                chooser = StratifiedShuffleSplit(**options)
        parts = chooser.split(np.zeros((rows, 1)), labels)
        return [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in parts]

    @torch.no_grad()
    def _values(self, X: Any) -> Tensor:  # (n, members, outputs)
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        scaled = self._scaled(torch.tensor(np.ascontiguousarray(rows)))
        if self._bins is not None:
            scaled = self._bins.inputs(scaled.numpy())
        else:
            scaled = scaled.clamp(*self._ends)
        parts = scaled.split(ROWS_AT_ONCE)
        return torch.cat([self.network_(part) for part in parts])

    def _scaled(self, rows: Tensor) -> Tensor:
        scaled = (rows - self.scaler_.location) / self.scaler_.scale
        return scaled.clamp(-FARTHEST, FARTHEST)


def with_weight(
    rows: np.ndarray, targets: np.ndarray, sample_weight: Any
) -> tuple[np.ndarray, np.ndarray, Tensor | None]:
    """The rows that have a weight, without gaps in memory, and the weights."""
    if sample_weight is None:
        return np.ascontiguousarray(rows), np.ascontiguousarray(targets), None
    weights = row_weights(sample_weight, len(rows))
    some = weights > 0
    return rows[some], targets[some], torch.from_numpy(weights[some])


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)
