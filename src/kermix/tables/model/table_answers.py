"""What a trained table model answers: generate, score, condition, complete and predict tables."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kermix.checks import check_count, check_option, generator_from
from kermix.data.readers.common import listed
from kermix.data.readers.frames import FRAME_KINDS, build_frame
from kermix.data.readers.reading import read_frame
from kermix.data.schema.columns import CategoryColumn
from kermix.data.schema.keys import key_seed
from kermix.data.schema.schema import EncodedTable, Schema, Unseen
from kermix.errors import OptionError
from kermix.tables.model.conditioning import (
    Cells,
    TableCells,
    is_one_row,
    never_seen,
    place_of,
    rows_of_zero_density,
)
from kermix.tables.model.distribution import (
    ColumnDistribution,
    column_distribution,
    conditional_distribution,
)
from kermix.tables.model.equal_columns import unequal_rows
from kermix.tables.model.network import ColumnParts, TableNetwork, network_rows_at_once
from kermix.tables.model.sampling import (
    Gaps,
    chain_log_density,
    complete,
    most_likely_cells,
    most_likely_rows,
    orders_of,
)
from kermix.tables.model.training_rows import KeepAway

__all__ = ["TableAnswers"]

# Conventions: from so many different texts on, and gaps in such a share of rows, they are remarks.
MANY_TEXTS, OFTEN_EMPTY = 200, 0.2


class TableAnswers:
    """A trained network and the schema of its table: samples, densities, fillings, predictions.

    What `kermix.TableModel` answers once it is fitted, and the folder of a fit.

    Args:
        schema: The schema of the table.
        network: The trained network.
        frame: The kind of table that samples are.
        kept: The step whose weights were kept.
        history: Reports of the training.
        target: Column for `predict`.
        target_share: Share of the training that was about the target alone.
    """

    name = "table model"

    def __init__(
        self,
        schema: Schema,
        network: TableNetwork,
        frame: str,
        *,
        kept: int = 0,
        history: Sequence[Mapping[str, float]] = (),
        target: str | None = None,
        target_share: float = 0.0,
    ) -> None:
        self.schema_, self.network_, self._frame = schema, network, frame
        self.n_iter_, self.history_ = kept, list(history)
        self.target, self.target_share, self.orders = target, target_share, 1

    def _check_fitted(self) -> None:
        """Refuse what needs a network, if there is none yet."""

    @property
    def _cells(self) -> TableCells:
        self._check_fitted()
        where = self.network_.out.weight.device
        return TableCells(self.schema_, self.network_.layout, where)

    def generator(self, random_state: Any) -> torch.Generator:
        """The source of random numbers, where the network is: one, or a seed."""
        if isinstance(random_state, torch.Generator):
            return random_state
        return generator_from(random_state, self._cells.device)

    def _check_whole(self, what: str) -> None:
        """Refuse what needs the distributions of all columns, if one alone was learned."""
        self._check_fitted()
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
        generator = self.generator(random_state)
        cells, keys = self._cells, key_seed(generator) if self.schema_.left_out else 0
        codes, values, seen = cells.given(given, n_samples, inside=True)
        kind = frame or self._frame
        check_option("frame", kind, FRAME_KINDS)
        if not deduplicate and min_distance is None:
            found = complete(self.network_, codes, values, seen, generator, on_rows=on_rows)
            cells.warn_of_exceptions(*found, seen)
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
        cells.warn_of_exceptions(*drawn, seen)
        return cells.table(*drawn, seen, kind, given, keys)

    def score_samples(
        self, X: Any, *, orders: int | None = None, on_rows: Callable[[int], None] | None = None
    ) -> np.ndarray:  # (N,)
        """Log-density of each row, in the units of its columns.

        Categories and gaps count by their probability; so does a value of a number with a
        probability of its own, divided by the step to which its column is rounded.

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
            *unequal_rows(self.schema_, layout.equal_pairs, frame, encoded),
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
        place, given_cells = self._known(column, given, unseen)
        return self._distribution(place, given_cells)

    def _known(self, column: str, given: Any, unseen: Unseen = "error") -> tuple[int, Cells]:
        """The place of a column, and what is given of others."""
        place = place_of(self.schema_, column)
        rows = 1 if given is None or is_one_row(given) else None
        return place, self._cells.given(given, rows, unseen, without=place)

    def _distribution(self, place: int, cells: Cells) -> ColumnDistribution:
        columns = self.schema_.modelled
        return conditional_distribution(self.network_, self._parts, place, columns, cells)

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
            if self.network_.layout.deciders(place, seen[row : row + 1])[0]:
                one = codes, values, seen[row : row + 1]
                found[column.name] = self._distribution(place, one)
                continue
            alone = ColumnParts(*(part[row : row + 1] for part in parts))
            found[column.name] = column_distribution(self.network_, alone, place, column)
        return found

    def _hidden(self, place: int) -> list[int]:
        """What must not be seen where a column is asked for: its equals, and links to them."""
        layout = self.network_.layout
        equal = layout.equal_to(place)
        return [*equal, *layout.about(equal)]

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
        `absences`): storms that are no hurricanes get no category of hurricanes. So do gaps of
        categories that most rows do without, such as remarks (see `rarely_filled`). A gap of a
        constant is filled with it, if the column has no other value.

        Args:
            X: A table with gaps.
            columns: Names of the columns to fill. By default all but those rarely filled.
            fill_all: Whether to fill cells that have no value, and rarely filled columns, too.
            draws: None fills each gap with what `predict` says: its most likely category, or the
                median of a number, given the other cells. Each gap of a row gets its own best
                guess. A number returns this many tables, in each of which the gaps are drawn
                jointly at random: where they differ, the value is uncertain, and their mean is
                that of the number.
            random_state: Seed of the draws.
            on_rows: Called with the number of rows done, block by block.
        """
        if draws is not None:
            check_count("draws", draws, 1)
        self._check_whole("fill gaps")
        rare = () if fill_all else self.rarely_filled
        chosen = self._to_fill(columns, rare)
        frame = read_frame(X, self.schema_.reading())[0]
        cells = self._cells
        gaps = Gaps(cells, frame, () if fill_all else self.network_.layout.absences)
        if draws is None:
            given = gaps.given()
            best = most_likely_cells(self.network_, self.schema_, *given, on_rows)
            found = [cells.filled(frame, chosen, *gaps.settled(*best, given[2]))]
        else:
            generator = self.generator(random_state)
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
        self._check_fitted()
        return {
            self.schema_.modelled[a.place].name: a.description(self.schema_)
            for a in self.network_.layout.absences
        }

    @property
    def rarely_filled(self) -> dict[str, str]:
        """Words that most rows do without, such as remarks, and how many: a gap says something.

        Hundreds of different texts are remarks too where many rows have none. Columns of which a
        pattern is known are not among them (see `absences`).
        """
        ruled, found = self.absences, {}
        for column in self.schema_.modelled:
            if not isinstance(column, CategoryColumn) or column.name in ruled:
                continue
            texts = [value for value in column.values if isinstance(value, str)]
            of_remarks = len(texts) >= MANY_TEXTS and column.gaps >= OFTEN_EMPTY
            if texts and (column.gaps > 1 / 2 or of_remarks):
                many = f" has {len(texts):,} different texts, and" if of_remarks else ""
                found[column.name] = (
                    f"{column.name}{many} is empty in {100 * column.gaps:.3g} % of the rows"
                )
        return found

    @property
    def relations(self) -> list[str]:
        """Columns that follow from others, a line each: "b = v / 3000, in 98.9 % of rows".

        Shares are of the rows of the fitted table that have all cells of a relation. Samples keep
        relations as often, exceptions are drawn freely, and gaps are filled by them.
        """
        self._check_fitted()
        exact = self.network_.layout.exact
        return [] if exact is None else exact.descriptions()

    def _to_fill(self, columns: Sequence[str] | None, rare: Collection[str] = ()) -> list[str]:
        """Names of columns whose gaps are filled: those modelled, and constants."""
        left_out = {c.name: c for c in self.schema_.left_out if c.what != "constant" or
                    c.value is None}  # fmt: skip
        known = [name for name in self.schema_.names if name not in left_out]
        if columns is None:
            return [name for name in known if name not in rare]
        chosen = list(columns)
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
        self._check_fitted()
        place, cells = self._known(self._target(target), X)
        size = network_rows_at_once(self.network_)
        blocks = zip(*(part.split(size) for part in cells), strict=True)
        # A number of thousands of values has as many probabilities in each row.
        return np.concatenate([np.asarray(self._distribution(place, b).values()) for b in blocks])

    def predict_proba(self, X: Any, target: str | None = None) -> np.ndarray:
        """Probabilities of the target's values, in the order of `classes`."""
        found = self._of_target(X, target)
        if found.is_number:
            raise OptionError(f"{found.column.name} is a number; use conditional(...).quantile.")
        return found.filled

    def classes(self, target: str | None = None) -> np.ndarray:
        """The values of a target, in the order of `predict_proba`."""
        self._check_fitted()
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
            raise OptionError("Name the column to predict: --target COLUMN (target=).")
        return name

    def _of_target(self, X: Any, target: str | None) -> ColumnDistribution:
        self._check_fitted()
        name = self._target(target)
        return self.conditional(name, X)
