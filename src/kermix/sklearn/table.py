"""The table model as an estimator: generate, score, condition, complete and predict tables."""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_count, check_option
from kermix.data.tables.closeness import KeepAway
from kermix.data.tables.columns import UNKNOWN, CategoryColumn
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.frame_building import FRAME_KINDS, build_frame
from kermix.data.tables.frames import Frame, as_frame
from kermix.data.tables.reading import read_frame
from kermix.data.tables.schema import EncodedTable, Schema, Unseen
from kermix.errors import MissingExtraError, OptionError, RunError, SchemaError, TableError
from kermix.models.table.anchors import find_anchors
from kermix.models.table.distribution import ColumnDistribution, column_distribution
from kermix.models.table.drawing import chain_log_density, complete, orders_of, rows_at_once
from kermix.models.table.filling import most_likely_cells
from kermix.models.table.given import check_seen_before, encode_some
from kermix.models.table.layout import TableLayout
from kermix.models.table.links import equalize, find_links, with_link_codes
from kermix.models.table.network import ColumnParts, TableNetwork
from kermix.sklearn.mixture import seed_from
from kermix.training.checkpoints import load_checkpoint, save_checkpoint
from kermix.training.loop import Trainer
from kermix.training.table_model import (
    TableModelSettings,
    TableModelTask,
    TableRows,
    table_split,
)

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils.validation import check_is_fitted
except ImportError:
    raise MissingExtraError(
        "The estimators need scikit-learn: pip install 'kermix[fit]'."
    ) from None

__all__ = ["TableModel"]

FORMAT, VERSION = "kermix table model", 1


class TableModel(BaseEstimator):
    """A density of whole rows of a mixed table, which any columns may be the condition of.

    One network takes the columns that are seen and returns the mixture of every other one:
    probabilities of categories, atoms and gaps, and Gaussians for numbers. Columns are found by a
    :class:`~kermix.Schema`; a gap is a value like any other, and no row is dropped.

    Args:
        target: A column that :meth:`predict` is about; also settable there.
        target_share: Share of the training in which all columns but the target are seen: 1 makes
            a conditional density of the target, and nothing else.
        kinds: Kinds of columns by name, where you know better than :meth:`kermix.Schema.of`.
        width: Features of a row.
        blocks: Residual blocks.
        steps: Training steps.
        batch_size: Rows in each step.
        learning_rate: Peak learning rate.
        dropout: Share of features left out in training.
        members: Networks whose mixtures are averaged: more probable and better calibrated
            densities, mostly of small tables, for as many times the work.
        average: Steps that the running average of the weights reaches back.
        patience: Reports, forty in a training, without progress after which it ends.
        held_out: Share of rows that decide which step is kept; 0 keeps the last.
        equal_columns: Whether numbers that are often equal, such as a payment and a bill, are
            found and kept so.
        orders: Orders of the chain rule that :meth:`score_samples` averages over.
        device: "auto", "cpu", "cuda", ...
        random_state: Seed, or a NumPy generator of either kind, from which all randomness comes.

    Attributes:
        schema_: What the columns are.
        network_: The network.
        history_: What was reported in training.
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
        average: int = 200,
        patience: int = 10,
        held_out: float = 0.05,
        equal_columns: bool = True,
        orders: int = 1,
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
        self.average = average
        self.patience = patience
        self.held_out = held_out
        self.equal_columns = equal_columns
        self.orders = orders
        self.target_share = target_share
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Fit the model to a table.

        Args:
            X: A pandas, Polars or Arrow table, a dictionary of columns, or an array.
            y: Not used.
            sample_weight: A weight for each row; rows of weight 0 are left out.
        """
        frame, weights = _weighted(read_frame(X)[0], sample_weight)
        schema = Schema.of(frame, kinds=self.kinds)
        if not schema.modelled:
            raise SchemaError(
                "No column can be modelled: " + " ".join(schema.notes() or ["there is none."])
            )
        if self.target is not None:
            _place(schema, self.target)
        encoded = schema.encode(frame)
        equal = find_links(schema, frame, encoded.codes) if self.equal_columns else ()
        layout = TableLayout.of(schema, equal, find_anchors(schema, encoded))
        return self._trained(schema, layout, frame, encoded, weights)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Go on from the present weights, with other rows of the same columns.

        `steps` steps more are taken, with these rows alone: the model becomes one of them, and
        forgets others in time. What columns are, and which are equal, stays as :meth:`fit` found
        it: a value that a category never had and a gap where there was none are refused; a number
        outside the range is learned from, but samples stay inside it. If no step is better for
        the new rows that are held out, the weights stay as they were, and `n_iter_` is 0. Rows too
        few to hold some out (below about fifty) are trained with to the end.

        Args:
            X: As for :meth:`fit`, which this is before the first fit.
            y: Not used.
            sample_weight: As for :meth:`fit`.
        """
        if not hasattr(self, "network_"):
            return self.fit(X, y, sample_weight)
        frame, weights = _weighted(read_frame(X, self._reading(X))[0], sample_weight)
        encoded = self.schema_.encode(frame, extra=True)
        if not len(encoded):
            raise TableError(f"{frame.name}: there are no rows to go on with.")
        network = copy.deepcopy(self.network_)  # an error leaves the model as it was
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
            learning_rate=self.learning_rate, dropout=self.dropout, members=self.members,
            average=self.average,
            patience=self.patience, held_out=self.held_out, seed=seed_from(self.random_state),
            target=None if self.target is None else _place(schema, self.target),
            target_share=self.target_share,
        ).for_rows(len(encoded))  # fmt: skip
        codes, values = with_link_codes(schema, layout.links, frame, encoded).tensors()
        rows = TableRows(codes, values, weights)
        trainer = Trainer(TableModelTask(layout, rows, settings, network), device=self.device)
        trainer.run()
        judged = len(table_split(len(encoded), settings)[0]) > 0
        kept = trainer.task.best_step if judged else trainer.step
        return self.with_network(trainer.task.model, schema, trainer.history, kept, encoded.frame)

    @property
    def _where(self) -> torch.device:
        check_is_fitted(self, "network_")
        return self.network_.out.weight.device

    def _generator(self, random_state: Any) -> torch.Generator:
        if isinstance(random_state, torch.Generator):
            return random_state
        return torch.Generator(self._where).manual_seed(seed_from(random_state))

    def _reading(self, X: Any) -> Reading | None:
        """Files are read as the columns were found: codes with leading zeros are text again."""
        return self.schema_.reading() if isinstance(X, str | Path) else None

    def _check_whole(self, what: str) -> None:
        """Refuse what needs the distributions of all columns, if one alone was learned."""
        check_is_fitted(self, "network_")
        if self.target_share >= 1:
            raise OptionError(
                f"The model has learned {self.target} alone (target_share=1), so it cannot "
                f"{what}; fit one with a smaller target_share."
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
        """Draw rows, in the kind of table that the model was fitted to.

        Args:
            n_samples: How many rows.
            given: Values of some columns, the same for all rows: `{"sex": "Female", "age": 40}`;
                or a table of such columns with `n_samples` rows.
            random_state: Seed of the rows.
            frame: The kind of table: "pandas", "polars", "arrow", "dict" or "array".
            on_rows: Called with the number of rows that are done, block by block.
            against: Rows to keep away from, such as the table that was fitted; for the next two.
            deduplicate: Whether rows that equal one of `against` in all modelled columns are drawn
                again.
            min_distance: Rows nearer than this to one of `against` are drawn again. The distance
                is the report's: the mean over columns of 0 or 1 for categories and gaps, and of
                the difference of normal scores for numbers. Neither option is a promise in the
                sense of differential privacy.
        """
        self._check_whole("sample rows")
        check_count("n_samples", n_samples, 0)
        generator = self._generator(random_state)
        codes, values, seen = self._given(given, n_samples, inside=True)
        kind = frame or self._frame
        check_option("frame", kind, FRAME_KINDS)
        if not deduplicate and min_distance is None:
            found = complete(self.network_, codes, values, seen, generator, on_rows=on_rows)
            return self._decode(*found, seen, kind)
        drawn = codes.clone(), values.clone()

        def draw(rows: np.ndarray) -> EncodedTable:
            at = torch.from_numpy(rows).to(self._where)
            some = complete(self.network_, codes[at], values[at], seen[at], generator)
            for whole, part in zip(drawn, some, strict=True):
                whole[at] = part.to(whole.dtype)
            return self._as_written(*some, seen[at])

        keep = KeepAway(self.schema_, against, deduplicate, min_distance)
        keep.settle(n_samples, draw, on_rows)
        return self._decode(*drawn, seen, kind)

    def _as_written(self, codes: Tensor, values: Tensor, seen: Tensor) -> EncodedTable:
        """Rows as a reader of the table finds them: rounded, and with equal columns equal."""
        table = as_frame(self._decode(codes, values, seen, "arrow"), "samples")
        types = {c.name: c.type for c in self.schema_.columns}
        return self.schema_.encode(replace(table, types=types), extra=True)

    def score_samples(
        self, X: Any, *, orders: int | None = None, on_rows: Callable[[int], None] | None = None
    ) -> np.ndarray:  # (N,)
        """Log-density of each row, in the units of its columns; codes by counting measure.

        A gap in a column that never had one is left open: the row's density is that of its other
        cells. A value that a category never had is an error.
        """
        logs = self._order_scores(X, orders, on_rows)
        return (torch.logsumexp(logs, 0) - math.log(len(logs))).cpu().numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log-density of the rows."""
        return float(self.score_samples(X).mean())

    def order_spread(self, X: Any, *, orders: int = 4) -> float:
        """How much a row's log-density depends on the order: its deviation, mean over rows."""
        logs = self._order_scores(X, max(2, orders), None)
        return float(logs.std(0).mean())

    def _order_scores(
        self, X: Any, orders: int | None, on_rows: Callable[[int], None] | None
    ) -> Tensor:  # (O, N)
        count = self.orders if orders is None else orders
        check_count("orders", count, 1)
        self._check_whole("score rows")
        frame = read_frame(X, self._reading(X))[0]
        encoded = self.schema_.encode(frame, unseen="unknown", extra=True)
        check_seen_before(self.schema_, frame, encoded)
        layout = self.network_.layout
        derivatives = torch.zeros(len(encoded), layout.columns, dtype=torch.float64)
        derivatives[:, list(layout.numbers)] = torch.from_numpy(
            self.schema_.log_derivative(encoded)
        )
        whole = with_link_codes(self.schema_, layout.links, frame, encoded)
        codes, values = whole.tensors(self._where)
        known, codes = codes >= 0, codes.clamp(min=0)
        # One source for all rows and calls: a mixture over orders is a density then.
        generator = torch.Generator().manual_seed(0)
        chosen = orders_of(layout, count, generator)
        return chain_log_density(
            self.network_, codes, values, chosen, known=known,
            derivatives=derivatives.to(self._where), on_rows=on_rows,
        )  # fmt: skip

    def conditional(
        self, column: str, given: Mapping[str, Any] | Any = None, *, unseen: Unseen = "error"
    ) -> ColumnDistribution:
        """The distribution of a column, given others; one for each row of `given`.

        Args:
            column: Its name.
            given: Values of columns, or a table of them; those not named are left open. Given
                values of `column` itself do not count.
            unseen: "unknown" leaves cells open that the model cannot know: values that a category
                never had, and gaps where there were none.
        """
        place = _place(self.schema_, column)
        rows = 1 if given is None or (isinstance(given, Mapping) and _scalars(given)) else None
        codes, values, seen = self._given(given, rows, unseen, without=place)
        return column_distribution(
            self.network_, self._parts(codes, values, seen), place, self.schema_.modelled[place]
        )

    @torch.no_grad()
    def _parts(self, codes: Tensor, values: Tensor, seen: Tensor) -> ColumnParts:
        blocks = torch.arange(len(codes), device=codes.device).split(rows_at_once(self.network_))
        found = [self.network_(codes[b], values[b], seen[b]) for b in blocks]
        found = found or [self.network_(codes, values, seen)]
        return ColumnParts(*(torch.cat(part) for part in zip(*found, strict=True)))

    def impute(
        self,
        X: Any,
        *,
        draws: int | None = None,
        random_state: Any = None,
        on_rows: Callable[[int], None] | None = None,
    ) -> Any:
        """Fill the gaps of a table.

        Args:
            X: A table with gaps.
            draws: None fills each gap with its most likely value, or the mean of a number's
                values, given the cells that are filled already. A number returns so many tables,
                in each of which gaps are drawn at random, jointly: what differs between them is
                not known.
            random_state: Seed of the draws.
            on_rows: Called with the number of rows that are done, block by block.
        """
        if draws is not None:
            check_count("draws", draws, 1)
        self._check_whole("fill gaps")
        frame = read_frame(X, self._reading(X))[0]
        encoded = self.schema_.encode(frame, unseen="unknown", extra=True)
        layout, device = self.network_.layout, self._where
        excluded = torch.zeros(layout.total, dtype=torch.bool, device=device)
        for k, column in enumerate(self.schema_.modelled):
            if column.missing_code is not None:
                encoded.codes[encoded.codes[:, k] == column.missing_code, k] = UNKNOWN
                excluded[int(layout.offsets[k]) + column.missing_code] = True
        whole = with_link_codes(self.schema_, layout.links, frame, encoded)
        codes, values = whole.tensors(device)
        seen, codes = codes >= 0, codes.clamp(min=0)
        cells = codes, values, seen
        if draws is None:
            means = most_likely_cells(self.network_, self.schema_, *cells, on_rows)
            found = [self._filled(frame, seen, *means)]
        else:
            generator = self._generator(random_state)
            found = [
                self._filled(frame, seen, *complete(self.network_, *cells, generator,
                                                    excluded=excluded, on_rows=on_rows))
                for _ in range(draws)
            ]  # fmt: skip
        if frame.kind == "pandas" and hasattr(X, "index"):
            for table in found:
                table.index = X.index
        return found[0] if draws is None else found

    def predict(self, X: Any, target: str | None = None) -> np.ndarray:
        """The most likely value of the target, or the median of a number, for each row."""
        return np.asarray(self._of_target(X, target).values())

    def predict_proba(self, X: Any, target: str | None = None) -> np.ndarray:
        """Probabilities of the target's values, in the order of :meth:`classes`."""
        found = self._of_target(X, target)
        if found.is_number:
            raise OptionError(f"{found.column.name} is a number; use conditional(...).quantile.")
        return found.filled

    def classes(self, target: str | None = None) -> np.ndarray:
        """The values of a target, in the order of :meth:`predict_proba`."""
        check_is_fitted(self, "network_")
        column = self.schema_.modelled[_place(self.schema_, self._target(target))]
        if not isinstance(column, CategoryColumn):
            raise OptionError(f"{column.name} is a number; it has no classes.")
        codes = np.arange(column.code_count - column.has_missing)
        frame = build_frame("pandas", {column.name: column.decode(codes)},
                            {column.name: column.type}, len(codes))  # fmt: skip
        return np.asarray(frame[column.name])

    @property
    def classes_(self) -> np.ndarray:
        """The values of the target that the model was made for, as scikit-learn has them."""
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

    def _given(
        self,
        given: Any,
        rows: int | None,
        unseen: Unseen = "error",
        inside: bool = False,
        without: int | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        check_is_fitted(self, "network_")
        layout, device = self.network_.layout, self._where
        if given is None or (isinstance(given, Mapping) and not given):
            count = 1 if rows is None else rows
            codes = torch.zeros(count, layout.columns, dtype=torch.long, device=device)
            values = torch.zeros(len(codes), len(layout.numbers), device=device)
            return codes, values, torch.zeros_like(codes, dtype=torch.bool)
        if isinstance(given, Mapping) and _scalars(given):
            given = {name: [value] for name, value in given.items()}
        encoded, frame = encode_some(self.schema_, given, unseen, inside)
        if without is not None:
            encoded.codes[:, without] = UNKNOWN
        encoded = with_link_codes(self.schema_, layout.links, frame, encoded)
        if rows is not None and len(encoded) not in (1, rows):
            raise OptionError(
                f"given has {len(encoded)} rows for {rows} samples; give 1 or {rows}."
            )
        codes, values = encoded.tensors(device)
        seen = codes >= 0
        if rows is not None and len(codes) != rows:
            codes, values, seen = (t.expand(rows, -1) for t in (codes, values, seen))
        return codes.clamp(min=0).contiguous(), values.contiguous(), seen.clone()

    def _filled(self, frame: Frame, seen: Tensor, codes: Tensor, values: Tensor) -> Any:
        """The caller's table, of which the gaps alone are filled."""
        from pyarrow import compute

        encoded = self.network_.layout.encoded(codes, values, "arrow")
        columns, types = dict(frame.columns), dict(frame.types)
        arrays = self.schema_.decoded_columns(encoded)
        for column in self.schema_.modelled:
            cells, found = columns[column.name], arrays[column.name]
            if cells.null_count == len(cells):
                columns[column.name], types[column.name] = found, column.type
            elif cells.null_count:
                whole = cells.combine_chunks()
                wide = found.cast(whole.type, safe=False)
                columns[column.name] = compute.if_else(whole.is_null(), wide, whole)
        return build_frame(frame.kind, self._equal(columns, codes, seen), types, frame.rows)

    def _decode(self, codes: Tensor, values: Tensor, seen: Tensor, frame: str) -> Any:
        arrays = self.schema_.decoded_columns(self.network_.layout.encoded(codes, values, frame))
        types = {c.name: c.type for c in self.schema_.columns if c.name in arrays}
        return build_frame(frame, self._equal(arrays, codes, seen), types, len(codes))

    def _equal(self, arrays: dict[str, Any], codes: Tensor, seen: Tensor) -> dict[str, Any]:
        links, base = self.network_.layout.links, self.network_.layout.table_columns
        own, given = codes[:, base:].cpu().numpy(), seen[:, :base].cpu().numpy()
        return equalize(self.schema_, links, arrays, own, given)

    def save(self, path: str | Path) -> None:
        """Write schema, settings and weights into one file that :meth:`load` reads."""
        check_is_fitted(self, "network_")
        told = {name: value for name, value in self.get_params().items() if name != "random_state"}
        content = {"format": FORMAT, "version": VERSION, "schema": self.schema_.to_dict(),
                   "equal": self.network_.layout.pairs([c.name for c in self.schema_.modelled]),
                   "anchors": self.network_.layout.anchor_names(
                       [c.name for c in self.schema_.numbers]),
                   "parameters": told, "frame": self._frame, "n_iter": self.n_iter_}  # fmt: skip
        save_checkpoint(Path(path), dict(self.network_.state_dict()), content)

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> "TableModel":
        """Read a model that was saved."""
        tensors, content = load_checkpoint(Path(path))
        if content.get("format") != FORMAT or content.get("version") != VERSION:
            raise RunError(f"{path} holds no table model that this kermix reads.")
        model = cls(**{**content["parameters"], "device": device})
        schema = Schema.from_dict(content["schema"])
        layout = TableLayout.of(schema, content.get("equal", ()), content.get("anchors", ()))
        network = TableNetwork(layout, model.width, model.blocks, members=model.members)
        network.load_state_dict(tensors)
        network = network.eval().to(device)
        return model.with_network(network, schema, [], content["n_iter"], content["frame"])

    def with_network(
        self,
        network: TableNetwork,
        schema: Schema,
        history: list[dict[str, float]],
        kept: int,
        frame: str,
    ) -> Self:
        """The estimator, fitted by a training that took place elsewhere.

        Args:
            network: The trained network.
            schema: What the columns are.
            history: What was reported in training.
            kept: The step whose weights were kept.
            frame: The kind of table that samples are.
        """
        self.schema_, self.network_ = schema, network
        self.history_, self.n_iter_ = history, kept
        self.n_features_in_ = len(schema)
        self.feature_names_in_ = np.array(schema.names, dtype=object)
        self._frame = frame
        return self


def _scalars(given: Mapping[str, Any]) -> bool:
    return all(isinstance(v, str) or not hasattr(v, "__len__") for v in given.values())


def _place(schema: Schema, name: str) -> int:
    for place, column in enumerate(schema.modelled):
        if column.name == name:
            return place
    names = ", ".join(c.name for c in schema.modelled)
    raise OptionError(f"Column {name!r} is not modelled; there are {names}.")


def _weighted(frame: Frame, given: Any) -> tuple[Frame, Tensor | None]:
    """The rows that have a weight, and the weights as shares of the largest."""
    if given is None:
        return frame, None
    try:
        weights = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        weights = np.empty(0)  # refused below
    good = weights.shape == (frame.rows,) and bool(np.isfinite(weights).all())
    if not good or bool((weights < 0).any()) or not bool((weights > 0).any()):
        raise OptionError(
            f"sample_weight must be {frame.rows} finite numbers, not negative and not all 0."
        )
    shares = (weights / weights.max()).astype(np.float32)
    some = shares > 0
    if some.all():
        return frame, torch.as_tensor(shares)
    kept = {name: column.filter(some) for name, column in frame.columns.items()}
    frame = replace(frame, columns=kept, rows=int(some.sum()))
    return frame, torch.as_tensor(shares[some])
