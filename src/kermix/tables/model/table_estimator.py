"""The table model as an estimator: generate, score, condition, complete and predict tables."""

import copy
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from kermix.checks import check_count, check_option, row_weights, seed_from
from kermix.data.readers.common import Reading, listed
from kermix.data.readers.frames import FRAME_KINDS, Frame, build_frame
from kermix.data.readers.reading import read_frame
from kermix.data.schema.columns import CategoryColumn
from kermix.data.schema.keys import key_seed
from kermix.data.schema.schema import EncodedTable, Schema, Unseen
from kermix.errors import OptionError, PoorFitWarning, RunError, SchemaError, TableError
from kermix.tables.model.closeness import KeepAway
from kermix.tables.model.conditioning import (
    Cells,
    TableCells,
    is_one_row,
    never_seen,
    place_of,
    rows_of_zero_density,
)
from kermix.tables.model.distribution import ColumnDistribution, column_distribution
from kermix.tables.model.equal_columns import (
    check_twins,
    find_links,
    find_twins,
    unequal_twins,
    with_link_codes,
)
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.network import ColumnParts, TableNetwork
from kermix.tables.model.sampling import (
    Gaps,
    chain_log_density,
    complete,
    most_likely_cells,
    most_likely_rows,
    network_rows_at_once,
    orders_of,
)
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.table_training import TableModelTask
from kermix.tables.model.training_rows import TableRows, table_split
from kermix.training.checkpoints import (
    check_declared,
    load_checkpoint,
    rebuilding,
    save_checkpoint,
)
from kermix.training.loop import Trainer, gradients_on

__all__ = ["TableAnswers", "TableModel"]


class TableAnswers:
    """The part of `kermix.TableModel` that needs its schema and network alone."""

    schema_: Schema
    network_: TableNetwork
    target: str | None
    target_share: float
    orders: int
    _frame: str  # the kind of table that samples are

    @property
    def _cells(self) -> TableCells:
        check_is_fitted(self, "network_")
        where = self.network_.out.weight.device
        return TableCells(self.schema_, self.network_.layout, where)

    def _generator(self, random_state: Any) -> torch.Generator:
        if isinstance(random_state, torch.Generator):
            return random_state
        return torch.Generator(self._cells.device).manual_seed(seed_from(random_state))

    def _check_whole(self, what: str) -> None:
        """Refuse what needs the distributions of all columns, if one alone was learned."""
        check_is_fitted(self, "network_")
        if self.target_share >= 1:
            raise OptionError(
                f"The model was trained to predict only {self.target} (target_share=1), so it "
                f"cannot {what}; fit one with a smaller target_share."
            )

    def sample(
        self,
        n_samples: int = 1,
        *,
        given: Mapping[str, Any] | Any = None,
        random_state: Any = None,
        frame: str | None = None,
        on_rows: Callable[[int], None] | None = None,
        against: Any = None,
        deduplicate: bool = False,
        min_distance: float | None = None,
    ) -> Any:
        """Draw rows with all columns, in the kind of table that the model was fitted to.

        Keys are new ones in the pattern of those of the table: none of these, and no two alike.
        Free text is empty.

        Args:
            n_samples: Number of rows.
            given: Values of some columns, the same for all rows: `{"sex": "Female", "age": 40}`;
                or a table of such columns with `n_samples` rows.
            random_state: Seed of the rows.
            frame: The kind of table: "pandas", "polars", "arrow", "dict" or "array".
            on_rows: Called with the number of rows done, block by block.
            against: Rows to keep away from, such as the fitted table; for the next two options.
            deduplicate: Whether to redraw rows that equal one of `against` in all modelled
                columns.
            min_distance: Redraw rows closer than this to one of `against`. The distance is that of
                the report: the mean over columns of 0 or 1 for categories and missing values, and
                of the difference of normal scores for numbers. Neither option provides
                differential privacy.
        """
        self._check_whole("sample rows")
        check_count("n_samples", n_samples, 0)
        generator = self._generator(random_state)
        cells, keys = self._cells, key_seed(generator)
        codes, values, seen = cells.given(given, n_samples, inside=True)
        kind = frame or self._frame
        check_option("frame", kind, FRAME_KINDS)
        if not deduplicate and min_distance is None:
            found = complete(self.network_, codes, values, seen, generator, on_rows=on_rows)
            return cells.table(*found, seen, kind, given, keys)
        drawn = codes.clone(), values.clone()

        def draw(rows: np.ndarray) -> EncodedTable:
            at = torch.from_numpy(rows).to(cells.device)
            some = complete(self.network_, codes[at], values[at], seen[at], generator)
            for whole, part in zip(drawn, some, strict=True):
                whole[at] = part.to(whole.dtype)
            return cells.as_written(*some, seen[at])

        keep = KeepAway(self.schema_, against, deduplicate, min_distance)
        keep.settle(n_samples, draw, on_rows)
        return cells.table(*drawn, seen, kind, given, keys)

    def score_samples(
        self, X: Any, *, orders: int | None = None, on_rows: Callable[[int], None] | None = None
    ) -> np.ndarray:  # (N,)
        """Log-density of each row, in the units of its columns; codes by counting measure.

        A missing value in a column that had none is integrated out: the row's density is that of
        its other cells. A row with an unseen value of a category has density zero, so minus
        infinity, and a warning says which.
        """
        logs, impossible = self._order_scores(X, orders, on_rows)
        found = (torch.logsumexp(logs, 0) - math.log(len(logs))).cpu().numpy()
        return np.where(impossible, -np.inf, found)

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density of the rows."""
        return float(self.score_samples(X).mean())

    def order_spread(self, X: Any, *, orders: int = 4) -> float:
        """Dependence of a row's log-density on the order: standard deviation, mean over rows."""
        logs, impossible = self._order_scores(X, max(2, orders), None)
        return float(logs.cpu()[:, ~impossible].std(0).mean())

    def _order_scores(
        self, X: Any, orders: int | None, on_rows: Callable[[int], None] | None
    ) -> tuple[Tensor, np.ndarray]:  # (O, N), (N,)
        """Log-densities by each order, and which rows have density zero whatever these say."""
        count = self.orders if orders is None else orders
        check_count("orders", count, 1)
        self._check_whole("score rows")
        frame = read_frame(X, self.schema_.reading())[0]
        encoded = self.schema_.encode(frame, unseen="unknown", extra=True)
        layout = self.network_.layout
        impossible = rows_of_zero_density(len(encoded), (
            *never_seen(self.schema_, frame, encoded),
            *unequal_twins(self.schema_, layout.twins, frame, encoded),
        ))  # fmt: skip
        derivatives = torch.zeros(len(encoded), layout.columns, dtype=torch.float64)
        derivatives[:, list(layout.numbers)] = torch.from_numpy(
            self.schema_.log_derivative(encoded)
        )
        cells = self._cells
        codes, values, known = cells.tensors(frame, encoded)
        # One source for all rows and calls: a mixture over orders is a density then.
        generator = torch.Generator().manual_seed(0)
        chosen = orders_of(layout, count, generator)
        logs = chain_log_density(
            self.network_, codes, values, chosen, known=known,
            derivatives=derivatives.to(cells.device), on_rows=on_rows,
        )  # fmt: skip
        return logs, impossible

    def conditional(
        self, column: str, given: Mapping[str, Any] | Any = None, *, unseen: Unseen = "error"
    ) -> ColumnDistribution:
        """The distribution of a column given others; one for each row of `given`.

        Args:
            column: Its name.
            given: Values of columns, or a table of them; columns not named are unknown. Given
                values of `column` itself are ignored.
            unseen: "unknown" treats cells that the model cannot know as unknown: unseen values of
                a category, and missing values in columns that had none.
        """
        cells, place = self._cells, place_of(self.schema_, column)
        rows = 1 if given is None or is_one_row(given) else None
        parts = self._parts(cells.given(given, rows, unseen, without=place))
        return column_distribution(self.network_, parts, place, self.schema_.modelled[place])

    def conditionals(
        self, given: Mapping[str, Any] | None = None
    ) -> dict[str, ColumnDistribution]:
        """The distribution of every column given the others, in one pass through the network.

        Each is what `conditional` returns: the given value of a column is ignored for that column
        itself, as are those of columns that equal it in all rows. Numbers outside the range of
        their columns are refused, as in `sample`.

        Args:
            given: Values of some columns by name, one each.
        """
        self._check_whole("tell about all columns")
        cells, columns = self._cells, self.schema_.modelled
        codes, values, seen = cells.given(given, 1, inside=True)
        hidden = [self._hidden(place) for place in range(len(columns))]
        own = [k for k, places in enumerate(hidden) if bool(seen[0, places].any())]
        seen = seen.repeat(1 + len(own), 1)
        for row, place in enumerate(own, 1):
            seen[row, hidden[place]] = False
        rows = len(seen)
        parts = self._parts((codes.expand(rows, -1), values.expand(rows, -1), seen))
        found = {}
        for place, column in enumerate(columns):
            row = own.index(place) + 1 if place in own else 0
            alone = ColumnParts(*(part[row : row + 1] for part in parts))
            found[column.name] = column_distribution(self.network_, alone, place, column)
        return found

    def _hidden(self, place: int) -> list[int]:
        """What must not be seen where a column is asked for: its twins, and links to them."""
        layout = self.network_.layout
        twins = layout.twins_of(place)
        links = [k for k, link in enumerate(layout.links, layout.table_columns)
                 if link.first in twins or link.second in twins]  # fmt: skip
        return [*twins, *links]

    def most_likely(self, given: Mapping[str, Any] | None = None, frame: str = "dict") -> Any:
        """One whole row: what is given, and a likely value of every other column.

        Columns are filled one after another, each with its most likely category or the median of
        its number, given those before, so that the row is consistent.

        Args:
            given: Values of some columns by name.
            frame: The kind of table that the row is.
        """
        self._check_whole("complete a row")
        check_option("frame", frame, FRAME_KINDS)
        cells = self._cells
        codes, values, seen = cells.given(given, 1, inside=True)
        found = most_likely_rows(self.network_, self.schema_, codes, values, seen)
        return cells.table(*found, seen, frame, given)

    @torch.no_grad()
    def _parts(self, cells: Cells) -> ColumnParts:
        codes, values, seen = cells
        size = network_rows_at_once(self.network_)
        blocks = torch.arange(len(codes), device=codes.device).split(size)
        found = [self.network_(codes[b], values[b], seen[b]) for b in blocks]
        found = found or [self.network_(codes, values, seen)]
        return ColumnParts(*(torch.cat(part) for part in zip(*found, strict=True)))

    def impute(
        self,
        X: Any,
        *,
        columns: Sequence[str] | None = None,
        fill_all: bool = False,
        draws: int | None = None,
        random_state: Any = None,
        on_rows: Callable[[int], None] | None = None,
    ) -> Any:
        """Fill the gaps of a table, apart from those of cells that have no value.

        A gap stays where rows of its kind are empty in the data that the model was fitted to (see
        `absences`): storms that are no hurricanes get no category of hurricanes. A gap of a
        constant is filled with it, if the column has no other value.

        Args:
            X: A table with gaps.
            columns: Names of the columns to fill. By default all.
            fill_all: Whether to fill cells that have no value, too.
            draws: None fills each gap with its most likely category, or the mean of a number,
                given the other cells: each gap of a row gets its own best guess, and a sum of
                several is right only as far as means are. A number returns this many tables, in
                each of which the gaps are drawn jointly at random: where they differ, the value
                is uncertain.
            random_state: Seed of the draws.
            on_rows: Called with the number of rows done, block by block.
        """
        if draws is not None:
            check_count("draws", draws, 1)
        self._check_whole("fill gaps")
        chosen = self._to_fill(columns)
        frame = read_frame(X, self.schema_.reading())[0]
        cells = self._cells
        gaps = Gaps(cells, frame, () if fill_all else self.network_.layout.absences)
        if draws is None:
            given = gaps.given()
            means = most_likely_cells(self.network_, self.schema_, *given, on_rows)
            found = [cells.filled(frame, chosen, *gaps.settled(*means, given[2]))]
        else:
            generator = self._generator(random_state)
            found = []
            for _ in range(draws):
                given = gaps.drawn(self.network_, generator)
                drawn = complete(self.network_, *given, generator, excluded=gaps.missing_codes,
                                 on_rows=on_rows)  # fmt: skip
                found.append(cells.filled(frame, chosen, *gaps.settled(*drawn, given[2])))
        if frame.kind == "pandas" and hasattr(X, "index"):
            for table in found:
                table.index = X.index
        return found[0] if draws is None else found

    @property
    def absences(self) -> dict[str, str]:
        """Columns that have no value in some rows, and where: a clause each.

        Of rows for which it holds, at least 95 % are empty, and no more than half as many are
        filled as in all rows; both are lower bounds, from rows that it was not found in.
        """
        check_is_fitted(self, "network_")
        return {
            self.schema_.modelled[a.place].name: a.told(self.schema_)
            for a in self.network_.layout.absences
        }

    def _to_fill(self, columns: Sequence[str] | None) -> list[str]:
        """Names of columns whose gaps are filled: those modelled, and constants."""
        left_out = {c.name: c for c in self.schema_.left_out if c.what != "constant" or
                    c.value is None}  # fmt: skip
        known = [name for name in self.schema_.names if name not in left_out]
        chosen = known if columns is None else list(columns)
        for name in chosen:
            if name not in known:
                told = "is not a column of the model"
                if name in left_out:
                    told = {"key": "is a key", "text": "is free text"}.get(
                        left_out[name].what, "was always empty"
                    )
                raise OptionError(
                    f"columns: {name} {told}, so its gaps cannot be filled; those of "
                    f"{listed(known)} can."
                )
        return chosen

    def predict(self, X: Any, target: str | None = None) -> np.ndarray:
        """The most likely value of the target, or the median of a number, for each row."""
        return np.asarray(self._of_target(X, target).values())

    def predict_proba(self, X: Any, target: str | None = None) -> np.ndarray:
        """Probabilities of the target's values, in the order of `classes`."""
        found = self._of_target(X, target)
        if found.is_number:
            raise OptionError(f"{found.column.name} is a number; use conditional(...).quantile.")
        return found.filled

    def classes(self, target: str | None = None) -> np.ndarray:
        """The values of a target, in the order of `predict_proba`."""
        check_is_fitted(self, "network_")
        column = self.schema_.modelled[place_of(self.schema_, self._target(target))]
        if not isinstance(column, CategoryColumn):
            raise OptionError(f"{column.name} is a number and has no classes.")
        codes = np.arange(column.code_count - column.has_missing)
        frame = build_frame("pandas", {column.name: column.decode(codes)},
                            {column.name: column.type}, len(codes))  # fmt: skip
        return np.asarray(frame[column.name])

    @property
    def classes_(self) -> np.ndarray:
        """The values of the model's target, as in scikit-learn."""
        if self.target is None:
            raise AttributeError("The model has no target, and so no classes.")
        return self.classes()

    def _target(self, target: str | None) -> str:
        name = self.target if target is None else target
        if name is None:
            raise OptionError("Name the column to predict: target='...'.")
        return name

    def _of_target(self, X: Any, target: str | None) -> ColumnDistribution:
        check_is_fitted(self, "network_")
        name = self._target(target)
        return self.conditional(name, X)


FORMAT, VERSION = "kermix table model", 1


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
        kinds: Kinds of columns by name, to override those of `kermix.Schema.of`.
        width: Number of features per row.
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
        held_out: Share of held-out rows, which decide which step is kept; 0 keeps the last. For
            small tables it is up to three times larger or, to calibrate three or more members,
            half of the rows, each left out by two members and used for training by the others.
        equal_columns: Whether to detect columns that are equal in all rows, and numbers that are
            often equal, such as a payment and a bill, and to keep them equal.
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
        width: int = 256,
        blocks: int = 3,
        steps: int = 2000,
        batch_size: int = 2048,
        learning_rate: float = 2e-3,
        dropout: float = 0.1,
        members: int = 1,
        calibrate: bool | None = None,
        average: int = 200,
        patience: int = 10,
        held_out: float = 0.05,
        equal_columns: bool = True,
        orders: int = 1,
        order_share: float = 0.3,
        target_share: float = 0.0,
        device: str = "auto",
        random_state: Any = None,
    ) -> None:
        self.target = target
        self.kinds = kinds
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
        self.held_out = held_out
        self.equal_columns = equal_columns
        self.orders = orders
        self.order_share = order_share
        self.target_share = target_share
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model to a table.

        Args:
            X: A pandas, Polars or Arrow table, a dictionary of columns, or an array.
            y: Not used.
            sample_weight: A weight for each row; rows with weight 0 are ignored.
        """
        said = Reading(kinds=dict(self.kinds or {}))
        frame, weights = _weighted(read_frame(X, said)[0], sample_weight)
        schema = Schema.of(frame, kinds=self.kinds)
        if not schema.modelled:
            raise SchemaError(
                "No column can be modelled: " + " ".join(schema.notes() or ["there is none."])
            )
        if self.target is not None:
            place_of(schema, self.target)
        encoded = schema.encode(frame)
        same: tuple[tuple[str, str], ...] = ()
        equal: tuple[tuple[str, str], ...] = ()
        if self.equal_columns:
            same = find_twins(schema, encoded)
            equal = find_links(schema, frame, encoded.codes, [b for _, b in same])
        layout = TableLayout.found(schema, encoded, equal, same)
        return self._trained(schema, layout, frame, encoded, weights)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
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
        frame, weights = _weighted(read_frame(X, self.schema_.reading())[0], sample_weight)
        encoded = self.schema_.encode(frame, extra=True)
        if not len(encoded):
            raise TableError(f"{frame.name}: there are no rows to train on.")
        check_twins(self.schema_, self.network_.layout.twins, frame, encoded)
        network = self.network_
        return self._trained(self.schema_, network.layout, frame, encoded, weights, network)

    def _trained(
        self,
        schema: Schema,
        layout: TableLayout,
        frame: Frame,
        encoded: EncodedTable,
        weights: Tensor | None,
        network: TableNetwork | None = None,
    ) -> Self:
        settings = TableModelSettings(
            width=self.width, blocks=self.blocks, steps=self.steps, batch_size=self.batch_size,
            learning_rate=self.learning_rate, dropout=self.dropout,
            members=self.members if network is None else network.members,
            calibrate=self.calibrate, crossed=True, average=self.average,
            patience=self.patience, held_out=self.held_out, seed=seed_from(self.random_state),
            target=None if self.target is None else place_of(schema, self.target),
            order_share=self.order_share, target_share=self.target_share,
        ).for_rows(len(encoded))  # fmt: skip
        with gradients_on():
            codes, values = with_link_codes(schema, layout.links, frame, encoded).tensors()
            rows = TableRows(codes, values, weights)
            network = copy.deepcopy(network)  # an error leaves the model as it was
            task = TableModelTask(layout, rows, settings, network)
            trainer = Trainer(task, device=self.device)
            trainer.run()
        held, _ = table_split(len(encoded), settings)
        judged = len(held) > 0 or settings.crosses(len(encoded))
        if not judged and self.held_out > 0:
            warnings.warn(
                f"{len(encoded)} rows are too few to hold some out for early stopping, so the "
                "model may memorize them, and its intervals may be too narrow.",
                PoorFitWarning,
                stacklevel=3,
            )
        kept = trainer.task.best_step if judged else trainer.step
        return self.with_network(trainer.task.model, schema, trainer.history, kept, encoded.frame)

    def save(self, path: str | Path) -> None:
        """Write schema, settings and weights to one file, for `load`."""
        check_is_fitted(self, "network_")
        told = {name: value for name, value in self.get_params().items() if name != "random_state"}
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
            network = TableNetwork(layout, model.width, model.blocks, members=model.members)
            if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
                raise ValueError("its weights are not finite")
            network.load_state_dict(tensors)
            kept, frame = int(content["n_iter"]), content["frame"]
            check_option("frame", frame, FRAME_KINDS)
        network = network.eval().to(device)
        return model.with_network(network, schema, [], kept, frame)

    def with_network(
        self,
        network: TableNetwork,
        schema: Schema,
        history: list[dict[str, float]],
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
        self.history_, self.n_iter_ = history, kept
        self.n_features_in_ = len(schema)
        self.feature_names_in_ = np.array(schema.names, dtype=object)
        self._frame = frame
        return self


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
