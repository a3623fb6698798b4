"""Gaussian-product networks on tables, in the manner of scikit-learn: each column a variable."""

from typing import Any, Self

import numpy as np
import torch

from kermix.errors import SampleError
from kermix.models.mixture.scaled import Scaler
from kermix.models.product.rows import ProductForm
from kermix.models.product.sureness import draw_in
from kermix.sklearn.product_fit import (
    FOR_MORE_CLASSES,
    PRECISIONS,
    ProductEstimator,
    as_before_if_it_fails,
    with_weight,
)
from kermix.training.loop import gradients_on

# isort: split
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

__all__ = ["FOR_MORE_CLASSES", "ProductClassifier", "ProductRegressor"]

FARTHEST_TARGET = 1e12  # usual deviations: squares of farther ones have no room in float32


class ProductClassifier(ClassifierMixin, ProductEstimator):
    r"""A classifier for tables, with scores $A_F \exp(-\frac{\alpha}{T} \sum_t d_t(x_t)^2)$.

    Each column is a variable with its own Gaussian layers; the columns interact only in the last
    exponential, where each Gaussian has its own precision $\alpha$. A variable is two numbers: the
    scaled column and its rank. Several networks with different initializations are trained side by
    side, and their probabilities are averaged.

    Each network holds out some rows. They decide whether an earlier epoch was clearly better than
    the last, and how confident predictions may be: scores are shrunk towards those of the base
    rate as far as makes these rows most likely. If there is nothing to learn, the probabilities
    are close to the shares of the classes; below about 200 rows, so few are held out that they
    may still be overconfident.

    On a CPU, columns with more than 128 distinct values (64 for two classes) are binned at their
    quantiles during training, except for values that many rows share, and the layers process each
    value once per step, whatever the number of rows. Predictions use the exact numbers, but those
    beyond the outermost bins are treated as the outermost.

    The same random state gives the same fit on the same machine with the same number of threads
    (`torch.set_num_threads`): with another number, sums are rounded differently.

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
        validation_fraction: Share of the rows that each network holds out; None means a tenth, at
            most 250 rows. 0 trains on all rows for all epochs, as do tables of fewer than 20 rows:
            the probabilities are then overconfident.
        n_iter_no_change: Number of epochs without improvement on held-out rows after which
            training stops.
        device: "cpu", "cuda", "auto", ...
        random_state: Source of all randomness: a seed, None for a different one each time, or a
            NumPy generator (`np.random.default_rng(0)` or a `RandomState`), whose state advances.

    Attributes:
        classes_: The labels.
        network_: The fitted networks, side by side.
        loss_curve_: Mean loss of each epoch.
        validation_curve_: The same on held-out rows, if any, with the best confidence for them.
        best_epochs_: The epoch whose weights each network has, the same for all.
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
    _may_be_none = ("n_terms", "max_epochs", "validation_fraction")

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
        validation_fraction: float | None = None,
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

    @gradients_on()
    @as_before_if_it_fails
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows (n, d) and their labels (n,).

        Args:
            X: Rows.
            y: Labels.
            sample_weight: A weight for each row, (n,): a row of weight 2 counts as two rows, and
                rows of weight 0 are left out.
        """
        rows, labels = validate_data(self, X, y, dtype=PRECISIONS)
        check_classification_targets(labels)
        rows, labels, weights = with_weight(rows, labels, sample_weight)
        self.classes_, codes = np.unique(labels, return_inverse=True)
        targets = torch.from_numpy(codes.reshape(-1)).long()
        fitted = self._fit(rows, targets, len(self.classes_), weights)
        self._sureness, self._rates = fitted.sureness, fitted.rates.double()
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class for each row, (n, classes)."""
        scores = draw_in(self._values(X), self._sureness, self._rates)
        probabilities: np.ndarray = scores.softmax(-1).mean(1).numpy()
        return probabilities

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        likely = self.predict_proba(X).argmax(1)
        chosen: np.ndarray = self.classes_.take(likely)
        return chosen


class ProductRegressor(RegressorMixin, ProductEstimator):
    r"""A regressor for tables: $A_F \exp(-\frac{\alpha}{T} \sum_t d_t(x_t)^2)$.

    Like `ProductClassifier`, with the mean of the networks' values, and without ranks of the
    columns. Targets are also scaled internally, and may have several columns. Inputs beyond the
    range of the training rows are treated as those at its ends, column by column.

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

    @gradients_on()
    @as_before_if_it_fails
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows (n, d) and their targets, (n,) or (n, outputs).

        Args:
            X: Rows.
            y: Targets.
            sample_weight: A weight for each row, (n,): a row of weight 2 counts as two rows, and
                rows of weight 0 are left out.
        """
        rows, targets = validate_data(
            self, X, y, dtype=PRECISIONS, multi_output=True, y_numeric=True
        )
        rows, targets, weights = with_weight(rows, targets, sample_weight)
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
        self._fit(rows, scaled.float(), wide.shape[1], weights)
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
