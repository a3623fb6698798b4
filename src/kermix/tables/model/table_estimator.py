"""The table model as an estimator: fitted, trained further, saved and loaded."""

import copy
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kermix.checks import check_count, check_option, row_weights, seed_from
from kermix.data.readers.common import Reading
from kermix.data.readers.frames import FRAME_KINDS, Frame
from kermix.data.readers.reading import read_frame
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.errors import OptionError, PoorFitWarning, RunError, SchemaError, TableError
from kermix.tables.model.conditioning import place_of
from kermix.tables.model.equal_columns import check_equal_columns
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.layout_search import find_layout, with_codes
from kermix.tables.model.network import TableNetwork
from kermix.tables.model.planning import SIZES, planned
from kermix.tables.model.table_answers import TableAnswers
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.table_training import TableModelTask
from kermix.tables.model.training_rows import TableRows, table_split
from kermix.training.budget import seconds_of
from kermix.training.checkpoints import (
    check_declared,
    device_of,
    load_checkpoint,
    rebuilding,
    save_checkpoint,
)
from kermix.training.loop import Trainer, gradients_on

__all__ = ["TableModel"]


FORMAT, VERSION = "kermix table model", 1
BY_DEVICE = ("width", "blocks", "steps", "learning_rate", "average", "patience", "order_share")


class _Encoded(NamedTuple):
    """Rows to train with."""

    schema: Schema
    layout: TableLayout
    frame: Frame
    encoded: EncodedTable
    weights: Tensor | None


class TableModel(TableAnswers, BaseEstimator):
    """A density of whole rows of a mixed table, which can be conditioned on any columns.

    One network takes the observed columns and returns the distribution of every other one:
    probabilities of categories, atoms and missing values, and Gaussians for numbers. A
    `kermix.Schema` detects the kinds of columns; missing is a value like any other, and no row is
    dropped.

    Args:
        target: Column for `predict`, which can override it.
        order_share: Share of the training that predicts the next column given those before it, as
            rows are drawn and scored; the rest predicts any columns given any others.
        target_share: Share of the training in which all columns but the target are observed: 1
            trains only a conditional density of the target.
        kinds: Kinds of columns by name, to override those of `kermix.Schema.infer`.
        budget: "quick", "default" or "best", or a time in which `fit` is to end, such as "90s" or
            "2m".
        width: Number of features per row. Where this, or another of the settings that are None, is
            not given, it suits the device: a GPU has time for a wide network and many steps.
        blocks: Number of residual blocks.
        steps: Number of training steps.
        batch_size: Batch size.
        learning_rate: Peak learning rate.
        dropout: Dropout rate.
        members: Number of ensemble members whose mixtures are averaged: better and better
            calibrated densities, mostly for small tables, at a proportional cost.
        calibrate: Whether to calibrate the width of the mixtures on held-out rows after training.
            By default only that of the target, if `target_share` is above 0; True is for all
            columns. Without held-out rows there is no calibration.
        average: Number of steps covered by the running average of the weights.
        patience: Early stopping: number of reports without improvement, of forty in a full
            training.
        validation_fraction: Share of held-out rows, which decide which step is kept; 0 keeps the
            last. For small tables it is up to three times larger or, to calibrate three or more
            members, half of the rows, each left out by two members and used for training by the
            others.
        equal_columns: Whether to detect columns that are equal in all rows, numbers that are often
            equal, such as a payment and a bill, and columns that follow from others (`relations`:
            sums, products, tables of values, orders), and to keep them so.
        orders: Number of column orders of the chain rule that `score_samples` averages over.
        device: "auto", "cpu", "cuda", ...
        random_state: Seed, or a NumPy generator of either kind, for all randomness.

    Attributes:
        schema_: The schema of the table.
        network_: The network.
        history_: Reports of the training.
        n_iter_: The step whose weights were kept.

    Example:
        >>> import pandas as pd
        >>> rng = np.random.default_rng(0)
        >>> sex = rng.choice(["f", "m"], 400)
        >>> table = pd.DataFrame({"sex": sex, "size": rng.normal(170 + 10 * (sex == "m"), 5)})
        >>> model = TableModel(width=16, blocks=1, steps=60, random_state=0).fit(table)
        >>> model.sample(3, given={"sex": "m"}).shape
        (3, 2)
    """

    def __init__(
        self,
        target: str | None = None,
        *,
        kinds: Mapping[str, Any] | None = None,
        budget: str | None = None,
        width: int | None = None,
        blocks: int | None = None,
        steps: int | None = None,
        batch_size: int = 2048,
        learning_rate: float | None = None,
        dropout: float = 0.1,
        members: int = 1,
        calibrate: bool | None = None,
        average: int | None = None,
        patience: int | None = None,
        validation_fraction: float = 0.05,
        equal_columns: bool = True,
        orders: int = 1,
        order_share: float | None = None,
        target_share: float = 0.0,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.target = target
        self.kinds = kinds
        self.budget = budget
        self.width = width
        self.blocks = blocks
        self.steps = steps
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.dropout = dropout
        self.members = members
        self.calibrate = calibrate
        self.average = average
        self.patience = patience
        self.validation_fraction = validation_fraction
        self.equal_columns = equal_columns
        self.orders = orders
        self.order_share = order_share
        self.target_share = target_share
        self.device = device
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True  # a missing cell
        tags.input_tags.categorical = tags.input_tags.string = True
        return tags

    def _check_fitted(self) -> None:
        check_is_fitted(self, "network_")

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model to a table.

        Args:
            X: A pandas, Polars or Arrow table, a dictionary of columns, or an array.
            y: Not used.
            sample_weight: A weight for each row; rows with weight 0 are ignored.
        """
        began = time.monotonic()
        said = Reading(kinds=dict(self.kinds or {}))
        frame, weights = _weighted(read_frame(checked_array(X), said)[0], sample_weight)
        schema = Schema.infer(frame, kinds=self.kinds)
        if not schema.modelled:
            few = "1 sample" if frame.rows == 1 else f"{frame.rows} samples"
            raise SchemaError(
                f"No column can be modelled, of {few}: "
                + " ".join(schema.notes() or ["there is none."])
            )
        if self.target is not None:
            place_of(schema, self.target)
        encoded = schema.encode(frame)
        layout = find_layout(schema, frame, encoded, self.equal_columns)
        schema, encoded, layout = with_codes(schema, frame, encoded, layout)
        found = _Encoded(schema, layout, frame, encoded, weights)
        return self._trained(found, began)

    def adapt(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Continue training from the current weights, on other rows with the same columns.

        It takes `steps` more steps with these rows only: the model adapts to them and gradually
        forgets the others. The schema, and which columns are equal, stay as `fit` found them: an
        unseen value of a category, or a missing value in a column that had none, is refused; a
        number outside the range is used for training, but samples stay inside it. If no step is
        better on the held-out new rows, the weights stay unchanged, and `n_iter_` is 0. If there
        are too few rows to hold some out (below about fifty), training runs to the end.

        Args:
            X: As for `fit`; before the first fit, this is the same as `fit`.
            y: Not used.
            sample_weight: As for `fit`.
        """
        if not hasattr(self, "network_"):
            return self.fit(X, y, sample_weight)
        began = time.monotonic()
        read = read_frame(checked_array(X), self.schema_.reading())[0]
        frame, weights = _weighted(read, sample_weight)
        encoded = self.schema_.encode(frame, extra=True)
        if not len(encoded):
            raise TableError(f"{frame.name}: there are no rows to train on.")
        check_equal_columns(self.schema_, self.network_.layout.equal_pairs, frame, encoded)
        found = _Encoded(self.schema_, self.network_.layout, frame, encoded, weights)
        return self._trained(found, began, self.network_)

    def predict(self, X: Any, target: str | None = None) -> np.ndarray:
        """The most likely value of the target, or the median of a number, for each row."""
        return super().predict(self._to_predict(X, target), target)

    def predict_proba(self, X: Any, target: str | None = None) -> np.ndarray:
        """Probabilities of the target's values, in the order of `classes`."""
        return super().predict_proba(self._to_predict(X, target), target)

    def _to_predict(self, X: Any, target: str | None) -> Any:
        self._check_fitted()
        X = checked_array(X)
        return self._of_my_width(X, self._target(target))

    def _order_scores(
        self, X: Any, orders: int | None, on_rows: Callable[[int], None] | None
    ) -> tuple[Tensor, np.ndarray]:
        self._check_fitted()
        return super()._order_scores(self._of_my_width(checked_array(X)), orders, on_rows)

    def _of_my_width(self, X: Any, target: str | None = None) -> Any:
        """Refuse an array of other columns; that of the target may be left out, if it is last."""
        names = self.feature_names_in_
        width = X.shape[1] if isinstance(X, np.ndarray) else len(names)
        if width != len(names) and not (width == len(names) - 1 and names[-1] == target):
            raise SchemaError(
                f"X has {width} features, but TableModel is expecting {len(names)} features as "
                "input. Give all columns in their order, or a data frame of those that are known."
            )
        return X

    def _trained(
        self, found: "_Encoded", began: float, network: TableNetwork | None = None
    ) -> Self:
        schema, layout, frame, encoded, weights = found
        settings = self._settings(schema, network).for_rows(len(encoded))
        with gradients_on():
            codes, values = layout.with_flags(schema, frame, encoded).tensors()
            rows = TableRows(codes, values, weights)
            chosen = network is not None or any(getattr(self, name) is not None for name in SIZES)
            plan = planned(layout, rows, settings, began=began, device=self.device, chosen=chosen)
            settings = settings if plan is None else plan.settings
            network = copy.deepcopy(network)  # an error leaves the model as it was
            course = None if plan is None else plan.course()
            task = TableModelTask(layout, rows, settings, network, course=course)
            trainer = Trainer(task, device=self.device)
            trainer.run()
        held, _ = table_split(len(encoded), settings)
        judged = len(held) > 0 or settings.is_out_of_fold(len(encoded))
        if not judged and self.validation_fraction > 0:
            warnings.warn(
                f"{len(encoded)} rows are too few to hold some out for early stopping, so the "
                "model may memorize them, and its intervals may be too narrow.",
                PoorFitWarning,
                stacklevel=3,
            )
        kept = trainer.task.best_step if judged else trainer.step
        return self.with_network(trainer.task.model, schema, trainer.history, kept, encoded.frame)

    def _settings(self, schema: Schema, network: TableNetwork | None) -> TableModelSettings:
        """What was chosen; what was not, as it suits the device."""
        if self.steps is not None and seconds_of(self.budget) is not None:
            raise OptionError(
                f"steps={self.steps}: budget={self.budget!r} says how long to train; leave out "
                "one of them."
            )
        settings = TableModelSettings(
            budget=self.budget, batch_size=self.batch_size, dropout=self.dropout,
            members=self.members if network is None else network.members,
            calibrate=self.calibrate, out_of_fold=True,
            validation_fraction=self.validation_fraction,
            seed=seed_from(self.random_state),
            target=None if self.target is None else place_of(schema, self.target),
            target_share=self.target_share,
        )  # fmt: skip
        settings = settings.suited(device_of(self.device).type == "cuda")
        chosen = {name: getattr(self, name) for name in BY_DEVICE}
        return replace(settings, **{n: v for n, v in chosen.items() if v is not None})

    def save(self, path: str | Path) -> None:
        """Write schema, settings and weights to one file, for `load`."""
        check_is_fitted(self, "network_")
        told = {name: value for name, value in self.get_params().items() if name != "random_state"}
        if self.budget is None:
            del told["budget"]
        told |= {"width": self.network_.width, "blocks": len(self.network_.blocks)}
        content = {"format": FORMAT, "version": VERSION, "schema": self.schema_.to_dict(),
                   **self.network_.layout.relations(self.schema_),
                   "parameters": told, "frame": self._frame, "n_iter": self.n_iter_}  # fmt: skip
        save_checkpoint(Path(path), dict(self.network_.state_dict()), content)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "TableModel":
        """Read a saved model."""
        path = Path(path)
        tensors, content = load_checkpoint(path)
        if not isinstance(content, dict) or (content.get("format"), content.get("version")) != (
            FORMAT, VERSION
        ):  # fmt: skip
            raise RunError(f"{path} is not a table model that this version of kermix can read.")
        with rebuilding(path, tensors):
            check_declared(content["parameters"], tensors)
            model = cls(**{**content["parameters"], "device": device})
            schema = Schema.from_dict(content["schema"])
            layout = TableLayout.with_relations(schema, content)
            network = TableNetwork(
                layout, content["parameters"]["width"], content["parameters"]["blocks"],
                members=model.members,
            )  # fmt: skip
            if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
                raise ValueError("its weights are not finite")
            network.load_state_dict(tensors)
            network.eval().try_out()
            check_count("orders", model.orders, 1)
            kept, frame = int(content["n_iter"]), content["frame"]
            check_option("frame", frame, FRAME_KINDS)
        return model.with_network(network.to(device), schema, [], kept, frame)

    @classmethod
    def of_settings(
        cls, settings: TableModelSettings, trained: TableAnswers, device: str
    ) -> "TableModel":
        """The estimator of a model that was trained in a run.

        Args:
            settings: Of the run.
            trained: What it has trained.
            device: As the run was given it.
        """
        spent = {"budget"} if seconds_of(settings.budget) is not None else set()
        known = cls().get_params().keys() & settings.as_json().keys() - {"target"}
        model = cls(
            trained.target, device=device, random_state=settings.seed,
            **{name: getattr(settings, name) for name in sorted(known - spent)},
        )  # fmt: skip
        return model.with_network(
            trained.network_, trained.schema_, trained.history_, trained.n_iter_, trained._frame
        )

    def with_network(
        self,
        network: TableNetwork,
        schema: Schema,
        history: Sequence[Mapping[str, float]],
        kept: int,
        frame: str,
    ) -> Self:
        """The estimator with a network trained elsewhere.

        Args:
            network: The trained network.
            schema: The schema of the table.
            history: Reports of the training.
            kept: The step whose weights were kept.
            frame: The kind of table that samples are.
        """
        self.schema_, self.network_ = schema, network
        self.history_, self.n_iter_ = list(history), kept
        self.n_features_in_ = len(schema)
        self.feature_names_in_ = np.array(schema.names, dtype=object)
        self._frame = frame
        return self


def checked_array(X: Any) -> Any:
    """An array of numbers, refused as scikit-learn does if it is none; other tables as they are.

    Example:
        >>> checked_array([[1, 2]])
        [[1, 2]]
        >>> checked_array(np.array([[1, 2.5]], dtype=object)).dtype
        dtype('float64')
    """
    if hasattr(X, "toarray") and hasattr(X, "nnz"):
        raise SchemaError(
            f"{type(X).__name__}: sparse data are not supported; give X.toarray() or a frame."
        )
    return _refused_or_numbers(np.asarray(X)) if _is_only_an_array(X) else X


def _refused_or_numbers(array: np.ndarray) -> np.ndarray:
    """An array that may be a table; one of objects as numbers."""
    if array.ndim < 2:
        raise SchemaError(
            f"Expected a 2D array, got one of shape {array.shape}. Reshape your data: "
            "X.reshape(-1, 1) is a column, X.reshape(1, -1) a row."
        )
    if np.iscomplexobj(array):
        raise SchemaError("Complex data not supported: give real and imaginary parts as columns.")
    if array.ndim == 2 and not array.shape[1]:
        raise SchemaError(
            f"0 feature(s) (shape={array.shape}) while a minimum of 1 is required: give columns."
        )
    if array.dtype != object:
        return array
    try:
        return array.astype(np.float64)
    except ValueError as error:
        raise SchemaError(
            f"An array of objects that are no numbers ({error}): give a data frame."
        ) from None


def _is_only_an_array(X: Any) -> bool:
    """Whether all that is known of X is how to make it an array; tensors are read as they are."""
    frame = ("columns", "__arrow_c_stream__", "__dataframe__")
    if isinstance(X, Tensor):
        return False
    return hasattr(X, "__array__") and not any(hasattr(X, name) for name in frame)


def _weighted(frame: Frame, given: Any) -> tuple[Frame, Tensor | None]:
    """The rows that have a weight, and the weights as shares of the largest."""
    if given is None:
        return frame, None
    shares = row_weights(given, frame.rows)
    some = shares > 0
    if some.all():
        return frame, torch.as_tensor(shares)
    kept = {name: column.filter(some) for name, column in frame.columns.items()}
    frame = replace(frame, columns=kept, rows=int(some.sum()))
    return frame, torch.as_tensor(shares[some])
