"""Gaussian-product networks on tables, in the manner of scikit-learn: each column a variable.

The classifier and the regressor share options, fits, answers and weights of rows.
"""

import math
import numbers
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from kermix.checks import check_sizes, row_weights, seed_from
from kermix.errors import OptionError, SampleError
from kermix.networks.product_binned import ColumnBins, shrink_to_rates
from kermix.networks.product_rows import GaussianProduct
from kermix.networks.scaled import Scaler
from kermix.settings import ProductForm
from kermix.training.loop import gradients_on
from kermix.training.product_settings import ProductSettings
from kermix.training.product_training import FittedTable, fit_table
from kermix.training.samples_task import held_out_rows

__all__ = [
    "FOR_MORE_CLASSES",
    "PRECISIONS",
    "ProductClassifier",
    "ProductEstimator",
    "ProductRegressor",
    "atomic_fit",
    "hold_out_rare",
    "with_weight",
]


Own = TypeVar("Own", bound="ProductEstimator")
Given = ParamSpec("Given")
Result = TypeVar("Result")

# Held out of each network where nothing is said: one epoch and one number are found with them.
SHARE_HELD_OUT, MOST_HELD_OUT = 0.1, 250
FARTHEST = 1e6  # usual deviations: what is farther is as far, for all Gaussians
SIZES = ("n_terms", "width", "depth", "n_members", "max_epochs", "n_iter_no_change")
# Terms and epochs of a classifier where nothing is said: more classes need more of both, and the
# trees of boosting, whose time is the measure, are as many as the classes, or one for two.
FOR_TWO_CLASSES, FOR_MORE_CLASSES = (32, 30), (64, 50)
PRECISIONS = (np.float64, np.float32)  # float32 stays: how far its numbers are rounded matters


def atomic_fit(
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
        settings = ProductSettings(
            model="rows",
            terms=terms,
            width=int(self.width),
            depth=int(self.depth),
            form=self.form,
            epochs=epochs,
            batch_size=None if self.batch_size is None else int(self.batch_size),
            learning_rate=float(self.learning_rate),
            weight_decay=float(self.weight_decay),
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
        most = 64 if outputs <= 2 else 128  # values of a column
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
        self._check_share()

    def _check_share(self) -> None:
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
        if not held_out_rows(rows) or not held_out:
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
        parts = list(chooser.split(np.zeros((rows, 1)), labels))
        if targets.ndim == 1:
            hold_out_rare(parts, labels, np.random.default_rng(seed))
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
        # By so many rows, whose features then stay in a processor's cache.
        return torch.cat([self.network_(part) for part in scaled.split(128)])

    def _scaled(self, rows: Tensor) -> Tensor:
        scaled = (rows - self.scaler_.location) / self.scaler_.scale
        return scaled.clamp(-FARTHEST, FARTHEST)


def hold_out_rare(
    parts: list[tuple[np.ndarray, np.ndarray]], labels: np.ndarray, rng: np.random.Generator
) -> None:
    """Hold out a row of each class of which less than one is expected, in place.

    Without it, nothing tells that answers which rule the class out are too sure. Half of the
    members hold it out, for those that do not know the row more of the class; of a class of one
    row, one of several members does.

    Args:
        parts: The rows that each member trains with, and those that it holds out.
        labels: The class of each row.
        rng: What is random.
    """
    counts = np.bincount(labels)
    usual = counts * len(parts[0][1]) >= len(labels)
    for rare in np.flatnonzero((counts > 0) & ~usual):
        members = -(-len(parts) // 2) if counts[rare] > 1 else int(len(parts) > 1)
        holders = rng.permutation(len(parts))[:members]
        for member, (train, held) in enumerate(parts):
            least = int(member in holders)
            inside, outside = (np.flatnonzero(labels[part] == rare) for part in (held, train))
            of_held, of_train = (np.flatnonzero(usual[labels[part]]) for part in (held, train))
            if not len(inside) and least and len(of_held):
                a, b = rng.choice(outside), rng.choice(of_held)
                train[a], held[b] = held[b], train[a]
            moved = rng.permutation(inside)[least:][: len(of_train)]
            others = rng.permutation(of_train)[: len(moved)]
            train[others], held[moved] = held[moved], train[others]


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


class ProductClassifier(ClassifierMixin, ProductEstimator):
    r"""A classifier for tables, with scores $A_F \exp(-\frac{\alpha}{T} \sum_t d_t(x_t)^2)$.

    Each column is a variable with its own Gaussian layers; the columns interact only in the last
    exponential, where each Gaussian has its own precision $\alpha$. A variable is two numbers: the
    scaled column and its rank. Several networks with different initializations are trained side by
    side, and their probabilities are averaged.

    Each network holds out some rows. They decide whether an earlier epoch was clearly better than
    the last, and how confident predictions may be: scores are shrunk towards those of the base
    rate as far as makes these rows most likely. Of a class so rare that none would be held out,
    half of the networks hold out one row, which counts for its share. If there is nothing to
    learn, the probabilities are close to the shares of the classes; below about 200 rows, so few
    are held out that they may still be overconfident.

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
            `kermix.networks.product_rows.GaussianProduct`.
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
    @atomic_fit
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
        self._inverse_temperature, self._rates = fitted.inverse_temperature, fitted.rates.double()
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of each class for each row, (n, classes)."""
        scores = shrink_to_rates(self._values(X), self._inverse_temperature, self._rates)
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
            `kermix.networks.product_rows.GaussianProduct`.
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
    @atomic_fit
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
        farthest = 1e12  # usual deviations: squares of farther ones have no room in float32
        far = (~(scaled.abs() <= farthest)).nonzero()
        if len(far):
            row, column = far[0].tolist()
            raise SampleError(
                f"y: the target of row {row} (from 0) is {float(wide[row, column]):g}, more than "
                f"{farthest:g} times as far from the others as they are from each other. "
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
