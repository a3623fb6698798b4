"""What the folder of a trained table model answers: samples, densities, fillings, predictions."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from kermix.data.readers.frames import Frame
from kermix.data.readers.reading import read_frame
from kermix.data.schema.keys import key_seed
from kermix.data.schema.schema import Schema
from kermix.errors import OptionError, RunError, SchemaError
from kermix.runs.folder import check_trained
from kermix.runs.run import Run
from kermix.tables.model.conditioning import place_of
from kermix.tables.model.distribution import ColumnDistribution
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.network import TableNetwork
from kermix.tables.model.sampling import network_rows_at_once
from kermix.tables.runs.table_mixture import TableMixture
from kermix.training.checkpoints import check_declared, load_checkpoint, rebuilding, tensors_of
from kermix.training.loop import load_model, make_fabric

if TYPE_CHECKING:
    from kermix.tables.model.table_estimator import TableModel

__all__ = ["OnRows", "TrainedTable", "drawn_parts", "generator_of"]

BLOCKS_AT_ONCE = 8
ROWS_AT_ONCE = 16_384  # conditional distributions that are held; draws of a mixture depend on it
OnRows = Callable[[int], None]


class TrainedTable(Run):
    """The part of `kermix.tables.runs.table_run.TableRun` that asks the trained model."""

    @cached_property
    def schema(self) -> Schema:
        """What the columns are."""
        if "schema" in self.config:
            return Schema.from_dict(self.config["schema"])
        return Schema.load(self.folder / "schema.json")

    @property
    def mixture_file(self) -> Path:
        """Where the mixture is that was better than the table model, if one was."""
        return self.checkpoints / "mixture.safetensors"

    def model(self) -> "TableModel | TableMixture":
        """A copy of the trained model, an estimator; of the mixture that was better, if any."""
        return deepcopy(self.trained_model())

    def trained_model(self) -> "TableModel | TableMixture":
        """The trained model itself, loaded once: to be asked, not to be changed."""
        path = self.mixture_file
        if self._keeps_mixture:
            frame = self.config["frame"]
            return self.loaded(path, lambda: TableMixture.load(path, self.schema, frame))
        return self.table_model()

    def table_model(self) -> "TableModel":
        """The table model as an estimator, also where a mixture was better."""
        path = self.checkpoints / "model.safetensors"
        return self.loaded(path, lambda: self._read_table_model(path))

    def _read_table_model(self, path: Path) -> "TableModel":
        place = make_fabric(self.config["device"], "32-true").device
        tensors, content = load_checkpoint(path)
        with rebuilding(path, tensors):
            network = self._network(tensors)
            load_model(network, tensors)
            return self._estimator(network.to(place), content)

    def model_so_far(self) -> "TableModel":
        """The best model of a training that goes on, or was stopped, as an estimator."""
        check_trained(self.folder, self.last)
        place = make_fabric(self.config["device"], "32-true").device
        tensors, content = load_checkpoint(self.last)
        with rebuilding(self.last, tensors):
            network = self._network(tensors)
            load_model(network, tensors)
            # As at the end: the best weights, or the mean of the last where none were held out.
            best = tensors_of("kept.", tensors) or tensors_of("average.", tensors)
            network.load_state_dict(best, strict=False)
            return self._estimator(network.to(place), content)

    def _network(self, tensors: Mapping[str, Tensor]) -> TableNetwork:
        settings = self.settings
        check_declared(settings, tensors)
        return TableNetwork(
            TableLayout.with_relations(self.schema, self.config),
            settings.width, settings.blocks, settings.components, settings.dropout,
            settings.members,
        )  # fmt: skip

    def _estimator(self, network: TableNetwork, content: Mapping[str, Any]) -> "TableModel":
        from kermix.tables.model.table_estimator import TableModel

        settings, schema = self.settings, self.schema
        device = self.config["device"]
        known = TableModel().get_params().keys() & settings.as_json().keys() - {"target"}
        model = TableModel(
            self.config["target"], device=device, random_state=settings.seed,
            **{name: getattr(settings, name) for name in sorted(known)},
        )  # fmt: skip
        kept = content["best_step"] or content["step"]
        return model.with_network(
            network.eval(), schema, content["history"], kept, self.config["frame"]
        )

    @property
    def target_alone(self) -> bool:
        """Whether only the distribution of one column given all others was learned."""
        return bool(self.settings.learns_target_alone)

    def check_can(self, what: str) -> None:
        """Refuse `"sample"` or `"impute"` where the run has no model for it; no file is read."""
        if self.target_alone:
            target, data = self.config["target"], shlex.quote(self.config["data"])
            raise RunError(
                f"{self.folder}: only the distribution of {target} given the other columns was "
                f"learned, so it can neither sample whole rows nor fill gaps; kermix fit {data} "
                f"--target {shlex.quote(target)} learns both."
            )
        if what == "impute" and self._keeps_mixture:
            raise RunError(
                f"{self.folder}: filled gaps need the table model, but this run kept a mixture, "
                "which was better on held-out rows; fit the table with model='table' (--model "
                "table)."
            )

    @property
    def _keeps_mixture(self) -> bool:
        return bool(self.config.get("contest")) and self.mixture_file.exists()

    def sample(
        self,
        n: int,
        seed: int = 0,
        given: Mapping[str, Any] | Any = None,
        *,
        deduplicate: bool = False,
        min_distance: float | None = None,
    ) -> Any:
        """Rows of the model, in the caller's kind of table.

        Args:
            n: How many.
            seed: Of the rows.
            given: Values of some columns; see `kermix.TableModel.sample`.
            deduplicate: Whether rows that equal a row of the run's table are drawn again.
            min_distance: Rows nearer than this to a row of the run's table are drawn again.
        """
        self.check_can("sample")
        model = self.trained_model()
        away = self._away(deduplicate, min_distance)
        return model.sample(n, given=given, random_state=generator_of(model, seed), **away)

    def _away(self, deduplicate: bool, min_distance: float | None) -> dict[str, Any]:
        """What sampling needs to keep away from the rows of the run's table, held out or not."""
        if not deduplicate and min_distance is None:
            return {}
        if self.config.get("stored"):
            raise OptionError(
                f"{self.folder}: the table of this run is larger than memory, so samples cannot "
                "be compared with all its rows; pass the relevant rows to "
                "TableModel.sample(against=...)."
            )
        against = self.dataset().encoded
        return {"against": against, "deduplicate": deduplicate, "min_distance": min_distance}

    def sample_parts(
        self,
        n: int,
        seed: int = 0,
        given: Mapping[str, Any] | Any = None,
        *,
        deduplicate: bool = False,
        min_distance: float | None = None,
    ) -> Iterator[Any]:
        """The same rows as Arrow tables, some ten thousand at a time."""
        self.check_can("sample")
        model = self.trained_model()
        away = self._away(deduplicate, min_distance)
        yield from drawn_parts(model, n, seed, BLOCKS_AT_ONCE, given=given, **away)

    def score(
        self, table: Any, *, orders: int | None = None, on_rows: OnRows | None = None
    ) -> Any:  # (N,)
        """Log-density of each row, in the order of the table; of a pandas table with its index."""
        values = self.trained_model().score_samples(table, orders=orders, on_rows=on_rows)
        if not hasattr(table, "iloc"):
            return values
        import pandas

        return pandas.Series(values, index=table.index, name="log_density")

    def impute(
        self,
        table: Any,
        *,
        columns: Sequence[str] | None = None,
        fill_all: bool = False,
        draws: int | None = None,
        seed: int = 0,
        on_rows: OnRows | None = None,
    ) -> Any:
        """The table with its gaps filled; see `kermix.TableModel.impute`."""
        self.check_can("impute")
        return self.trained_model().impute(
            table, columns=columns, fill_all=fill_all, draws=draws, random_state=seed,
            on_rows=on_rows,
        )  # fmt: skip

    def predict(self, table: Any, target: str | None = None) -> np.ndarray:  # (N,)
        """The most likely value, or the median of a number, for each row."""
        found = [np.asarray(part.values()) for part in self.conditionals(table, target)]
        return np.concatenate(found)

    def missing_columns(self, frame: Frame, target: str | None = None) -> list[str]:
        """Columns that the target is predicted from, and that a table does not have."""
        name = self.config["target"] if target is None else target
        names = [column.name for column in self.schema.modelled]
        return [n for n in names if n != name and n not in frame.columns]

    def told_of_open_cells(self) -> str:
        """What cells that are left open mean for predictions, if training had none."""
        if self.settings.target_share < 1:
            return ""
        return (
            "The model was trained with all columns observed, so its intervals and "
            "probabilities are overconfident here; kermix fit --target trains with some columns "
            "missing."
        )

    def conditionals(self, table: Any, target: str | None = None) -> Iterator[ColumnDistribution]:
        """Distributions of the target given the other cells of each row, part by part.

        Columns that the run does not have are passed over; cells that it cannot know (values that
        a category never had, gaps where there were none) are left open.
        """
        name = self.config["target"] if target is None else target
        if name is None:
            raise OptionError("Name the column to predict: target='...'.")
        model = self.trained_model()
        place_of(model.schema_, name)
        frame, _ = read_frame(table, self.schema.reading())
        kept = [c.name for c in model.schema_.modelled if c.name in frame.columns and
                c.name != name]  # fmt: skip
        if not kept:
            raise SchemaError(
                f"{frame.name}: none of the columns that {name} depends on is present "
                f"({', '.join(model.schema_.names[:12])})."
            )
        for start in range(0, frame.rows, ROWS_AT_ONCE):
            some = {n: frame.columns[n].slice(start, ROWS_AT_ONCE) for n in kept}
            types = {n: frame.types[n] for n in kept}
            part = Frame(frame.kind, frame.name, some, types, len(some[kept[0]]),
                         first_row=frame.first_row + start)  # fmt: skip
            yield model.conditional(name, part, unseen="unknown")


def drawn_parts(model: Any, n: int, seed: int, blocks: int = 1, **options: Any) -> Iterator[Any]:
    """Rows of a model as Arrow tables, the same ones however many are drawn at a time.

    Args:
        model: A `kermix.TableModel`, or the mixture that was better.
        n: How many rows.
        seed: Of the rows.
        blocks: How many of a network's blocks of rows are in a part.
        options: Further arguments of its `sample`.
    """
    generator, size = generator_of(model, seed), ROWS_AT_ONCE
    made = {c.name: c.source(key_seed(generator)) for c in model.schema_.left_out
            if c.what == "key"}  # fmt: skip
    if not isinstance(model, TableMixture):
        size = blocks * network_rows_at_once(model.network_)
    for start in range(0, n, size):
        rows = min(size, n - start)
        part = model.sample(rows, random_state=generator, frame="arrow", **options)
        for name, source in made.items():  # no key of a part is in another
            place = part.schema.get_field_index(name)
            field = part.schema.field(place)
            part = part.set_column(place, field, source(rows).cast(field.type))
        yield part


def generator_of(model: Any, seed: int) -> torch.Generator:
    """The source of the random numbers of samples, where the model is."""
    if isinstance(model, TableMixture):
        return torch.Generator().manual_seed(seed)
    return torch.Generator(model.network_.out.weight.device).manual_seed(seed)
