"""Gaussian-product networks on tables, in the manner of scikit-learn: each column a variable."""

from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

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
from kermix.training.loop import with_gradients

# isort: split
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

__all__ = ["FOR_MORE_CLASSES", "ProductClassifier", "ProductRegressor"]

FARTHEST_TARGET = 1e12  # usual deviations: squares of farther ones have no room in float32


class ProductClassifier(ClassifierMixin, ProductEstimator):
    r"""A classifier of tables: scores $A_F \exp(-\frac{\alpha}{T} \sum_t d_t(x_t)^2)$.

    Each column is a variable with Gaussian layers of its own; the columns meet only in the last
    exponential, where each Gaussian has its own precision $\alpha$. A variable is two numbers:
    the scaled column and its rank. Several networks with different starts are trained side by
    side, and their probabilities averaged.

    Each network holds out some rows of its own. They say whether an earlier epoch was clearly
    better than the last, and how sure the answers may be: scores are drawn towards those of the
    base rate as far as makes these rows most likely. Where there is nothing to learn, the
    probabilities are the shares of the classes.

    On a CPU, columns of more than 128 distinct values (64 for two classes) are cut at their
    quantiles while training, all but values that many rows share, and the layers see each value
    once in a step, whatever the number of rows. Answers are for the numbers as they are, but those
    beyond the outermost of these values are answered as the outermost.

    The same random state gives the same fit on the same machine with the same number of threads
    (`torch.set_num_threads`): other numbers round sums differently, and trainings drift apart.

    Args:
        n_terms: Products in the sum; None takes 32 for two classes and 64 for more.
        width: Features of a column in the layers before the last.
        depth: Gaussian layers.
        form: `"variational"`, `"product"` or `"signed"`, see
            `kermix.models.GaussianProduct`.
        n_members: Networks that are averaged.
        max_epochs: At most so many passes over the rows; None takes 30 for two classes and 50
            for more.
        batch_size: Rows in each step; None takes a tenth of them for two classes, from 16 to
            2048, and a twelfth for more, from 16 to 1024.
        learning_rate: Peak learning rate.
        weight_decay: Of the affine maps.
        validation_fraction: Share of the rows that each network holds out; None takes a tenth,
            and at most 250 rows. 0 trains with all rows for all epochs, as a table of fewer than
            20 rows does: nothing then says how sure the answers may be, and they are too sure.
        n_iter_no_change: Epochs without progress on held-out rows after which a fit stops.
        device: "cpu", "cuda", "auto", ...
        random_state: Where all randomness comes from: a seed, None for another one each time, or
            a generator of NumPy (`np.random.default_rng(0)` or a `RandomState`), which moves on.

    Attributes:
        classes_: The labels.
        network_: The fitted networks, side by side.
        loss_curve_: Mean loss of each epoch.
        validation_curve_: The same on held-out rows, if any, were each network as sure as is best
            for them.
        best_epochs_: The epoch whose weights each network has, one for all.
        n_iter_: Epochs that were done.
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
    _rates: Tensor | None = None  # of models that were saved before there was a sureness

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

    @with_gradients
    @as_before_if_it_fails
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows (n, d) and their labels (n,).

        Args:
            X: Rows.
            y: Labels.
            sample_weight: A weight for each row, (n,): with 2, it is as if the row stood twice,
                and rows of weight 0 are left out.
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
        scores = self._values(X)
        if self._rates is not None:
            scores = draw_in(scores, self._sureness, self._rates)
        probabilities: np.ndarray = scores.softmax(-1).mean(1).numpy()
        return probabilities

    def predict(self, X: Any) -> np.ndarray:
        """The most probable class of each row."""
        likely = self.predict_proba(X).argmax(1)
        chosen: np.ndarray = self.classes_.take(likely)
        return chosen


class ProductRegressor(RegressorMixin, ProductEstimator):
    r"""A regressor on tables: $A_F \exp(-\frac{\alpha}{T} \sum_t d_t(x_t)^2)$.

    As `ProductClassifier`, with the mean of the networks' values, and of the columns alone,
    without ranks. Targets are scaled inside too, and may have several columns. Inputs beyond the
    range of the training rows are answered as those at its ends, column by column.

    Args:
        n_terms: Products in the sum.
        width: Features of a column in the layers before the last.
        depth: Gaussian layers.
        form: `"variational"`, `"product"` or `"signed"`, see
            `kermix.models.GaussianProduct`.
        n_members: Networks that are averaged.
        max_epochs: At most so many passes over the rows.
        batch_size: Rows in each step; None takes a sixteenth of them, from 16 to 256.
        learning_rate: Peak learning rate.
        weight_decay: Of the affine maps.
        validation_fraction: Share of the rows that each network holds out to stop in time; 0
            trains with all rows for all epochs, and so does a table of fewer than 20 rows.
        n_iter_no_change: Epochs without progress on held-out rows after which a network stops.
        device: "cpu", "cuda", "auto", ...
        random_state: Where all randomness comes from: a seed, None for another one each time, or
            a generator of NumPy (`np.random.default_rng(0)` or a `RandomState`), which moves on.

    Attributes:
        network_: The fitted networks, side by side.
        loss_curve_: Mean loss of each epoch.
        validation_curve_: The same on held-out rows.
        best_epochs_: The epoch that each network was best at.
        n_iter_: Epochs that were done.
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

    @with_gradients
    @as_before_if_it_fails
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from rows (n, d) and their targets, (n,) or (n, outputs).

        Args:
            X: Rows.
            y: Targets.
            sample_weight: A weight for each row, (n,): with 2, it is as if the row stood twice,
                and rows of weight 0 are left out.
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
                f"y: the target of row {row} (from 0) is {float(wide[row, column]):g}, which is "
                f"more than {FARTHEST_TARGET:g} times as far from the others as they are from "
                "each other. Leave it out, or take logarithms."
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
