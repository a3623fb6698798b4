"""Gaussian-product networks on tables, in the manner of scikit-learn: each column a variable."""

import math
import numbers
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_sizes
from kermix.errors import OptionError, SampleError
from kermix.models.mixture.scaled import Scaler
from kermix.models.product.bins import MOST_VALUES, ColumnBins
from kermix.models.product.rows import GaussianProduct, ProductForm
from kermix.sklearn.mixture import (
    seed_from,  # first: it says what to install if scikit-learn is missing
)
from kermix.training.tabular import FittedTable, TableSettings, fit_table

# isort: split
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["ProductClassifier", "ProductRegressor"]

ROWS_TO_SPLIT = 20
ROWS_AT_ONCE = 1024
# In usual deviations: what is farther is as far, for all Gaussians; squares of farther targets
# have no room in float32.
FARTHEST, FARTHEST_TARGET = 1e6, 1e12
SIZES = ("n_terms", "width", "depth", "n_members", "max_epochs", "n_iter_no_change")
# Terms and epochs of a classifier where nothing is said: more classes need more of both, and the
# trees of boosting, whose time is the measure, are as many as the classes, or one for two.
FOR_TWO_CLASSES, FOR_MORE_CLASSES = (32, 30), (64, 50)
VALUES_FOR_TWO_CLASSES = 64  # of a column
PRECISIONS = (np.float64, np.float32)  # float32 stays: how far its numbers are rounded matters


class _ProductEstimator(BaseEstimator):
    """What the classifier and the regressor share."""

    _by_ranks = False
    _may_be_none: tuple[str, ...] = ()
    _bins: ColumnBins | None = None  # also of models that were saved before there were any

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
        validation_fraction: float = 0.1,
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

    def _fit(self, rows: np.ndarray, targets: Tensor, outputs: int) -> None:
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
        values = torch.tensor(rows)
        self.scaler_ = Scaler(values)
        splits = self._splits(targets, seed)
        scaled = self._scaled(values)
        most = VALUES_FOR_TWO_CLASSES if outputs <= 2 else MOST_VALUES
        bins = ColumnBins(scaled.double().numpy(), most) if self._by_ranks else None
        rows_of = scaled.float() if bins is None else scaled.double()
        fitted = fit_table(
            rows_of, targets, outputs, splits, settings, bins=bins, device=self.device
        )
        self._bins = None if bins is None else bins.without_rows()
        self._keep(fitted)

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
        if not (_is_number(self.validation_fraction) and 0 <= self.validation_fraction < 1):
            raise OptionError(
                f"validation_fraction={self.validation_fraction!r} must be at least 0 (nothing "
                "held out) and below 1."
            )

    def _keep(self, fitted: FittedTable) -> None:
        # In float64 a row's prediction does not depend on the rows beside it.
        self.network_: GaussianProduct = fitted.network.double()
        self.loss_curve_ = fitted.losses
        self.validation_curve_ = fitted.held_out
        self.n_iter_ = len(fitted.losses)
        self.best_epochs_ = fitted.best

    def _splits(self, targets: Tensor, seed: int) -> list[tuple[Tensor, Tensor]]:
        rows, labels = len(targets), targets.numpy()
        held_out = int(rows * self.validation_fraction)
        if rows < ROWS_TO_SPLIT or not held_out:
            everything = torch.arange(rows)
            return [(everything, everything[:0])] * int(self.n_members)
        options = {"n_splits": int(self.n_members), "test_size": held_out, "random_state": seed}
        chooser = ShuffleSplit(**options)
        if targets.ndim == 1:
            counts = np.bincount(labels)
            if counts.min() >= 2 and held_out >= len(counts):
                chooser = StratifiedShuffleSplit(**options)
        parts = chooser.split(np.zeros((rows, 1)), labels)
        return [(torch.from_numpy(a), torch.from_numpy(b)) for a, b in parts]

    @torch.no_grad()
    def _values(self, X: Any) -> Tensor:  # (n, members, outputs)
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        scaled = self._scaled(torch.tensor(rows))
        inputs = scaled if self._bins is None else self._bins.inputs(scaled.double().numpy())
        parts = inputs.split(ROWS_AT_ONCE)
        return torch.cat([self.network_(part) for part in parts])

    def _scaled(self, rows: Tensor) -> Tensor:
        scaled = (rows - self.scaler_.location) / self.scaler_.scale
        return scaled.clamp(-FARTHEST, FARTHEST)


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


class ProductClassifier(ClassifierMixin, _ProductEstimator):
    r"""A classifier for tables, with scores $A_F \exp(-\frac{\alpha}{T} \sum_t d_t(x_t)^2)$.

    Each column is a variable with its own Gaussian layers; the columns interact only in the last
    exponential, where each Gaussian has its own precision $\alpha$. A variable is two numbers: the
    scaled column and its rank. Several networks with different initializations are trained side by
    side, and their probabilities are averaged.

    On a CPU, columns with more than 128 distinct values (64 for two classes) are binned at their
    quantiles during training, and the layers process each value once per step, whatever the number
    of rows; predictions use the exact numbers.

    Args:
        n_terms: Number of products in the sum; None means 32 for two classes and 64 for more.
        width: Number of features per column in the layers before the last.
        depth: Number of Gaussian layers.
        form: `"variational"`, `"product"` or `"signed"`, see
            `kermix.models.GaussianProduct`.
        n_members: Number of networks to average.
        max_epochs: Maximum number of epochs; None means 30 for two classes and 50 for more.
        batch_size: Batch size; None means a tenth of the rows for two classes, between 16 and
            2048, and a twelfth for more, between 16 and 1024.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay of the affine maps.
        validation_fraction: Share of the rows that each network holds out for early stopping; 0
            trains on all rows for all epochs, as do tables of fewer than 20 rows. A table with
            very noisy classes may benefit from 0.1.
        n_iter_no_change: Number of epochs without improvement on held-out rows after which a
            network stops.
        device: "cpu", "cuda", "auto", ...
        random_state: Source of all randomness: a seed, None for a different one each time, or a
            NumPy generator (`np.random.default_rng(0)` or a `RandomState`), whose state advances.

    Attributes:
        classes_: The labels.
        network_: The fitted networks, side by side.
        loss_curve_: Mean loss of each epoch.
        validation_curve_: The same on held-out rows, if any.
        best_epochs_: The best epoch of each network.
        n_iter_: Number of epochs done.
        n_features_in_: Number of columns.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> rows, labels = load_iris(return_X_y=True)
        >>> model = ProductClassifier(16, max_epochs=20, random_state=0).fit(rows, labels)
        >>> model.predict_proba(rows[:2]).shape, model.score(rows, labels) > 0.9
        ((2, 3), True)
    """

    _by_ranks = True
    _may_be_none = ("n_terms", "max_epochs")

    def __init__(
        self,
        n_terms: int | None = None,
        *,
        width: int = 12,
        depth: int = 3,
        form: ProductForm = "variational",
        n_members: int = 4,
        max_epochs: int | None = None,
        batch_size: int | None = None,
        learning_rate: float = 4e-2,
        weight_decay: float = 0.5,
        validation_fraction: float = 0.0,
        n_iter_no_change: int = 20,
        device: str = "cpu",
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_terms,
            width=width,
            depth=depth,
            form=form,
            n_members=n_members,
            max_epochs=max_epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            validation_fraction=validation_fraction,
            n_iter_no_change=n_iter_no_change,
            device=device,
            random_state=random_state,
        )

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows (n, d) and their labels (n,)."""
        rows, labels = validate_data(self, X, y, dtype=PRECISIONS)
        check_classification_targets(labels)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        self._fit(rows, torch.from_numpy(codes.reshape(-1)).long(), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class for each row, (n, classes)."""
        probabilities: np.ndarray = self._values(X).softmax(-1).mean(1).numpy()
        return probabilities

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        likely = self.predict_proba(X).argmax(1)
        chosen: np.ndarray = self.classes_.take(likely)
        return chosen


class ProductRegressor(RegressorMixin, _ProductEstimator):
    r"""A regressor for tables: $A_F \exp(-\frac{\alpha}{T} \sum_t d_t(x_t)^2)$.

    Like `ProductClassifier`, with the mean of the networks' values. Targets are also scaled
    internally, and may have several columns.

    Args:
        n_terms: Number of products in the sum.
        width: Number of features per column in the layers before the last.
        depth: Number of Gaussian layers.
        form: `"variational"`, `"product"` or `"signed"`, see
            `kermix.models.GaussianProduct`.
        n_members: Number of networks to average.
        max_epochs: Maximum number of epochs.
        batch_size: Batch size; None means a sixteenth of the rows, between 16 and 256.
        learning_rate: Peak learning rate.
        weight_decay: Weight decay of the affine maps.
        validation_fraction: Share of the rows that each network holds out for early stopping; 0
            trains on all rows for all epochs, as do tables of fewer than 20 rows.
        n_iter_no_change: Number of epochs without improvement on held-out rows after which a
            network stops.
        device: "cpu", "cuda", "auto", ...
        random_state: Source of all randomness: a seed, None for a different one each time, or a
            NumPy generator (`np.random.default_rng(0)` or a `RandomState`), whose state advances.

    Attributes:
        network_: The fitted networks, side by side.
        loss_curve_: Mean loss of each epoch.
        validation_curve_: The same on held-out rows.
        best_epochs_: The best epoch of each network.
        n_iter_: Number of epochs done.
        n_features_in_: Number of columns.

    Example:
        >>> import numpy as np
        >>> rows = np.random.default_rng(0).uniform(-2, 2, (300, 2))
        >>> target = np.sin(rows[:, 0]) * rows[:, 1]
        >>> model = ProductRegressor(16, n_members=2, batch_size=64, random_state=0)
        >>> model = model.set_params(max_epochs=30, learning_rate=0.02).fit(rows, target)
        >>> model.predict(rows).shape, model.score(rows, target) > 0.9
        ((300,), True)
    """

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from rows (n, d) and their targets, (n,) or (n, outputs)."""
        rows, targets = validate_data(
            self, X, y, dtype=PRECISIONS, multi_output=True, y_numeric=True
        )
        targets = np.asarray(targets, dtype=np.float64)
        self._one_target = targets.ndim == 1
        wide = torch.tensor(targets.reshape(len(targets), -1))
        self.target_scaler_ = Scaler(wide)
        scaled = self.target_scaler_.scaled(wide)
        far = (~(scaled.abs() <= FARTHEST_TARGET)).nonzero()
        if len(far):
            row, column = far[0].tolist()
            raise SampleError(
                f"y: the target of row {row} (from 0) is {float(wide[row, column]):g}, more than "
                f"{FARTHEST_TARGET:g} times as far from the others as they are from each other. "
                "Remove it, or take logarithms."
            )
        self._fit(rows, scaled, wide.shape[1])
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The target of each row."""
        mean = self._values(X).mean(1)
        values = self.target_scaler_.restored(mean)
        found: np.ndarray = (values[:, 0] if self._one_target else values).numpy()
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.single_output = True
        tags.target_tags.multi_output = True
        return tags
