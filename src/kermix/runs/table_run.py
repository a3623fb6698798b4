"""Fits of the table model: run folders of `kermix fit TABLE` and :func:`kermix.fit`.

Beside what every run has: `schema.json` says what the columns are, `checkpoint/model.safetensors`
holds the network, and `samples.csv` (or the input's format) are rows drawn from it.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from kermix.data.tables.csv_form import CsvForm
from kermix.data.tables.csv_look import Reading
from kermix.data.tables.frames import Frame, as_frame, taken_rows
from kermix.data.tables.reading import read_frame
from kermix.data.tables.schema import Schema
from kermix.data.tables.writing import table_writer
from kermix.distributed import Strategy
from kermix.distributed.launch import check_ranks
from kermix.errors import OptionError, SchemaError
from kermix.models.table.distribution import ColumnDistribution
from kermix.models.table.drawing import rows_at_once
from kermix.models.table.layout import TableLayout
from kermix.models.table.network import TableNetwork
from kermix.reports.provenance import write_json
from kermix.reports.table_quality import TableQuality, judge_samples
from kermix.reports.table_report import write_table_report
from kermix.runs.folder import TABLE, check_data, check_trained
from kermix.runs.run import Numbers, Outcome, Row, Run, has_folder
from kermix.runs.table_data import TableData, fingerprint, rows_of
from kermix.runs.table_mixture import TableMixture, rivals
from kermix.training.checkpoints import load_checkpoint
from kermix.training.loop import Trainer, load_model, make_fabric
from kermix.training.table_model import (
    TableModelSettings,
    TableModelTask,
    TableRows,
    check_table_shares,
    table_split,
)

if TYPE_CHECKING:
    from kermix.sklearn.table import TableModel

__all__ = ["TableRun"]

LEAST_JUDGED, MOST_JUDGED = 1000, 10_000  # rows that are drawn for the report
KEPT_SAMPLES = 2500
BLOCKS_AT_ONCE = 8
ROWS_AT_ONCE = 16_384  # whose conditional distributions are held
TABLE_MODEL = "table model"
OnRows = Callable[[int], None]


class TableRun(Run):
    """A fit of the table model, with its folder."""

    kind: ClassVar[str] = TABLE
    reported: ClassVar[tuple[str, ...]] = ("step", "loss", "metric")

    @classmethod
    def create(
        cls,
        folder: Path,
        source: str,
        data: TableData,
        settings: TableModelSettings,
        *,
        frame: str,
        form: str,
        target: str | None = None,
        device: str = "auto",
        precision: str = "32-true",
        options: Mapping[str, Any] | None = None,
        notes: tuple[str, ...] = (),
        contest: bool = False,
        devices: int = 1,
        nodes: int = 1,
        strategy: Strategy = "auto",
    ) -> "TableRun":
        """Begin a run in a folder that must not exist.

        Args:
            folder: Where.
            source: The path that the table is read from.
            data: The table.
            settings: What the user chose.
            frame: The kind of table that samples are in Python.
            form: How a file of samples ends by default.
            target: The column that :meth:`predict` is about.
            device: `"auto"`, `"cpu"`, `"cuda"`, ...
            precision: A precision of Fabric's.
            options: How the table is read.
            notes: What was assumed when it was read.
            contest: Whether a mixture takes the place of the table model where held-out rows
                prefer it.
            devices: Processes on each node, among which batches are shared.
            nodes: Nodes. The folder is made on the first one alone.
            strategy: Of costs over processes; the table model has none.
        """
        check_ranks(devices, nodes)
        settings = settings.for_rows(len(data.encoded))
        if target is not None:
            _check_modelled(data.schema, target)
        if devices * nodes == 1:
            make_fabric(device, precision)  # refused, if it must be, before a folder is made
        else:
            _, train = table_split(len(data.encoded), settings)
            check_table_shares(settings, len(train), devices * nodes)
        main = has_folder(devices, nodes)
        run = cls.begin(
            folder,
            source,
            (),
            settings,
            device=device,
            precision=precision,
            options=options or {},
            facts={
                "shape": [data.frame.rows, len(data.schema)],
                "columns": list(data.schema.names),
                "target": target,
                "contest": contest,
                "frame": frame,
                "form": form,
                "csv": None if data.frame.form is None else data.frame.form.to_dict(),
                "fingerprint": fingerprint(data.encoded),
                "equal": data.layout.pairs([c.name for c in data.schema.modelled]),
                "anchors": data.layout.anchor_names([c.name for c in data.schema.numbers]),
                "notes": [
                    *notes,
                    *data.schema.notes(),
                    *data.link_notes(),
                    *_few_rows(data, settings),
                ],
                "ranks": {"devices": devices, "nodes": nodes, "strategy": strategy},
            },
            writes=main,
        )
        if main:
            data.schema.save(folder / "schema.json")
        # Processes on other nodes do not see the folder.
        return replace(run, config={**run.config, "schema": data.schema.to_dict()})

    @classmethod
    def _read_settings(cls, content: dict[str, Any]) -> TableModelSettings:
        return TableModelSettings.from_json(content)

    @property
    def schema(self) -> Schema:
        """What the columns are."""
        if "schema" in self.config:
            return Schema.from_dict(self.config["schema"])
        return Schema.load(self.folder / "schema.json")

    def reading(self, said: Reading) -> Reading:
        """How files of the run's kind are read: as its own, unless something else is said.

        Kinds of columns are those of the run.
        """
        kinds = {column.name: column.kind for column in self.schema.columns}
        for name, kind in said.kinds.items():
            if kinds.get(name, kind) != kind:
                raise OptionError(
                    f"{name}={kind}: in the run in {self.folder} it is a {kinds[name]}."
                )
        names = ("delimiter", "decimal", "encoding", "header")
        own: dict[str, Any] = {name: self.options[name] for name in names if name in self.options}
        return self.schema.reading(**{**own, **said.said()})

    def csv_form(self, name: str) -> CsvForm:
        """How a text file of samples is written: as the run's own, with names of columns."""
        own = CsvForm.from_dict(self.config.get("csv"))
        return replace(own, named=True).between(self.config["data"], name)

    def dataset(self) -> TableData:
        """The table of the run, read again."""
        schema, options = self.schema, self.options
        own: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v
               for name, v in options.items() if name != "rows"}  # fmt: skip
        frame, _ = read_frame(self.source, schema.reading(**own))
        if self.source != self.config["data"] or self.folder in Path(self.source).parents:
            # Rows that were in memory: Parquet does not say what they were there.
            types = {c.name: c.type for c in schema.columns}
            frame = replace(frame, types=types)
        frame = rows_of(frame, options.get("rows"), self.settings.seed)
        data = TableData.of(
            frame, schema, self.config.get("equal", ()), self.config.get("anchors", ())
        )
        check_data(self.folder, self.config, fingerprint(data.encoded))
        return data

    def trainer(self, data: TableData) -> Trainer[TableModelTask]:
        """A trainer at the last checkpoint, or at the first step if there is none."""
        codes, values = data.linked.tensors()
        task = TableModelTask(data.layout, TableRows(codes, values), self.settings)
        devices, nodes, _ = self.ranks
        trainer = Trainer(
            task, self.config["device"], self.config["precision"], devices=devices, nodes=nodes
        )
        if trainer.main_says(self.last.exists()):
            trainer.load(self.last)
        return trainer

    def shown(self, row: Row) -> dict[str, str]:
        """The loss of a batch, and that of held-out rows."""
        return {"stage": f"loss {row['loss']:.3f}", "metric": f"held-out {row['metric']:.3f}"}

    def model(self) -> "TableModel | TableMixture":
        """The trained model, as an estimator; the mixture that was better, if one was."""
        won = self.checkpoints / "mixture.safetensors"
        if self.config.get("contest") and won.exists():
            return TableMixture.load(won, self.schema, self.config["frame"])
        return self._table_model()

    def _table_model(self) -> "TableModel":
        from kermix.sklearn.table import TableModel

        path = self.checkpoints / "model.safetensors"
        check_trained(self.folder, path)
        tensors, content = load_checkpoint(path)
        settings, schema = self.settings, self.schema
        network = TableNetwork(
            TableLayout.of(schema, self.config.get("equal", ()), self.config.get("anchors", ())),
            settings.width, settings.blocks, settings.components, settings.dropout,
            settings.members,
        )  # fmt: skip
        load_model(network, tensors)
        device = self.config["device"]
        network = network.eval().to(make_fabric(device, "32-true").device)
        known = TableModel().get_params().keys() & settings.as_json().keys() - {"target"}
        model = TableModel(
            self.config["target"], device=device, random_state=settings.seed,
            **{name: getattr(settings, name) for name in sorted(known)},
        )  # fmt: skip
        kept = content["best_step"] or content["step"]
        return model.with_network(network, schema, content["history"], kept, self.config["frame"])

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
            given: Values of some columns; see :meth:`kermix.TableModel.sample`.
            deduplicate: Whether rows that equal a row of the run's table are drawn again.
            min_distance: Rows nearer than this to a row of the run's table are drawn again.
        """
        model = self.model()
        away = self._away(deduplicate, min_distance)
        return model.sample(n, given=given, random_state=_generator(model, seed), **away)

    def _away(self, deduplicate: bool, min_distance: float | None) -> dict[str, Any]:
        """What sampling needs to keep away from the rows of the run's table, held out or not."""
        if not deduplicate and min_distance is None:
            return {}
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
        model = self.model()
        away = self._away(deduplicate, min_distance)
        generator = _generator(model, seed)
        size = ROWS_AT_ONCE
        if not isinstance(model, TableMixture):
            size = BLOCKS_AT_ONCE * rows_at_once(model.network_)
        for start in range(0, n, size):
            rows = min(size, n - start)
            yield model.sample(rows, given=given, random_state=generator, frame="arrow", **away)

    def score(
        self, table: Any, *, orders: int | None = None, on_rows: OnRows | None = None
    ) -> Any:  # (N,)
        """Log-density of each row, in the order of the table; of a pandas table with its index."""
        values = self.model().score_samples(table, orders=orders, on_rows=on_rows)
        if not hasattr(table, "iloc"):
            return values
        import pandas

        return pandas.Series(values, index=table.index, name="log_density")

    def impute(
        self,
        table: Any,
        *,
        draws: int | None = None,
        seed: int = 0,
        on_rows: OnRows | None = None,
    ) -> Any:
        """The table with its gaps filled; see :meth:`kermix.TableModel.impute`."""
        return self.model().impute(table, draws=draws, random_state=seed, on_rows=on_rows)

    def predict(self, table: Any, target: str | None = None) -> np.ndarray:  # (N,)
        """The most likely value, or the median of a number, for each row."""
        found = [np.asarray(part.values()) for part in self.conditionals(table, target)]
        return np.concatenate(found)

    def conditionals(self, table: Any, target: str | None = None) -> Iterator[ColumnDistribution]:
        """Distributions of the target given the other cells of each row, part by part.

        Columns that the run does not have are passed over; cells that it cannot know (values that
        a category never had, gaps where there were none) are left open.
        """
        name = self.config["target"] if target is None else target
        if name is None:
            raise OptionError("Name the column to predict: target='...'.")
        model = self.model()
        _check_modelled(model.schema_, name)
        frame, _ = read_frame(table)
        kept = [c.name for c in model.schema_.modelled if c.name in frame.columns and
                c.name != name]  # fmt: skip
        if not kept:
            raise SchemaError(
                f"{frame.name}: none of the columns that {name} depends on is there "
                f"({', '.join(model.schema_.names[:12])})."
            )
        for start in range(0, frame.rows, ROWS_AT_ONCE):
            some = {n: frame.columns[n].slice(start, ROWS_AT_ONCE) for n in kept}
            types = {n: frame.types[n] for n in kept}
            part = Frame(frame.kind, frame.name, some, types, len(some[kept[0]]))
            yield model.conditional(name, part, unseen="unknown")

    def finish(self, data: TableData, outcome: Outcome) -> Numbers:
        """Write samples and report; returns the numbers to show."""
        settings = self.settings
        held, train = (part.numpy() for part in table_split(len(data.encoded), settings))
        densities = self._contest(data, train, np.sort(held)) if self.config.get("contest") else {}
        model = self.model()
        count = min(MOST_JUDGED, max(LEAST_JUDGED, len(data.encoded)))
        drawn = model.sample(count, random_state=settings.seed + 1, frame="arrow")
        path = self.folder / f"samples{self.config['form']}"
        with table_writer(path, form=self.csv_form(path.name)) as writer:
            writer.write(drawn.slice(0, KEPT_SAMPLES))
        types = {c.name: c.type for c in data.schema.columns}
        samples = data.schema.encode(replace(as_frame(drawn, "samples"), types=types), extra=True)
        judged = np.sort(held if len(held) else train[:MOST_JUDGED])
        log_density = model.score_samples(taken_rows(data.frame, judged))
        quality = judge_samples(data.schema, data.encoded, samples, train, held, log_density)
        name = model.name if isinstance(model, TableMixture) else TABLE_MODEL
        others = [(n, d) for n, d in densities.items() if n != name]
        named = {n for n, _ in others} | {name}
        kept = [(n, d) for n, d in quality.references if n not in named]
        quality = replace(quality, references=(*others, *kept))
        chosen = {"model": name, "models": densities} if densities else {}
        write_json(self.folder / "result.json", {**chosen, **quality.as_json()})
        rows = self._numbers(data, quality, outcome, model.n_iter_)
        if len(densities) > 1:
            rows.insert(0, ("model", f"{name}, chosen by the log-density of {len(held)} held-out "
                            "rows"))  # fmt: skip
        write_table_report(self, rows, data.schema, data.encoded, samples, quality,
                           outcome.history, name)  # fmt: skip
        return rows

    def _contest(self, data: TableData, train: np.ndarray, held: np.ndarray) -> dict[str, float]:
        """Mean log-densities of the held-out rows by model; a mixture that is ahead is kept."""
        own = self._table_model().score_samples(taken_rows(data.frame, held))
        others = rivals(data.schema, data.frame, train, held, self.settings.seed)
        path = self.checkpoints / "mixture.safetensors"
        path.unlink(missing_ok=True)
        best = max(others, key=lambda rival: rival.log_density.mean(), default=None)
        if best is not None and best.log_density.mean() > own.mean():
            frame = self.config["frame"]
            TableMixture(data.schema, best.mixture, frame, best.name).save(path)
        return {TABLE_MODEL: float(own.mean()),
                **{rival.name: float(rival.log_density.mean()) for rival in others}}  # fmt: skip

    def _numbers(
        self, data: TableData, quality: TableQuality, outcome: Outcome, kept: int
    ) -> Numbers:
        schema = data.schema
        kinds = [c.kind for c in schema.columns]
        counted = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
        told = "too few rows to try"
        if quality.detection is not None:
            told = f"{quality.detection:.3f} (1: a classifier cannot, 0: it always can)"
        against = "; ".join(f"{name}: {value:.3f}" for name, value in quality.references)
        return [
            (quality.density_name, f"{quality.log_density:.3f} nats a row ({against})"),
            ("told apart from data", told),
            ("exact copies", f"{quality.copies:.2%} of the samples ({quality.copies_held:.2%} of "
             "held-out rows)"),
            ("data", f"{data.frame.name}: {data.frame.rows:,} rows, {len(schema)} columns "
             f"({counted})"),
            ("steps", f"{outcome.step}" + (f", of which step {kept} was kept" if kept else "")),
        ]  # fmt: skip

    def command(self) -> str:
        """The command that repeats this run."""
        parts = ["kermix", "fit", shlex.quote(self.config["data"])]
        if not self.config.get("contest"):
            parts += ["--model", "table"]
        if self.config["target"] is not None:
            parts += ["--target", shlex.quote(self.config["target"])]
        parts += self.reading_options()
        default = TableModelSettings().for_rows(self.config["shape"][0]).as_json()
        for name, value in self.settings.as_json().items():
            if value != default[name]:
                parts += [f"--{name.replace('_', '-')}", str(value)]
        return " ".join(parts)

    def reading_options(self) -> list[str]:
        """The part of the command that says how the table is read."""
        parts = []
        for name, value in self.options.items():
            if name == "kinds":
                for column, kind in value.items():
                    parts += ["--kind", shlex.quote(f"{column}={kind}")]
            elif name == "header":
                parts.append("--header" if value else "--no-header")
            else:
                text = ",".join(value) if isinstance(value, list | tuple) else str(value)
                parts += [f"--{name}", shlex.quote(text)]
        return parts


def _generator(model: "TableModel | TableMixture", seed: int) -> torch.Generator:
    if isinstance(model, TableMixture):
        return torch.Generator().manual_seed(seed)
    return torch.Generator(model.network_.out.weight.device).manual_seed(seed)


def _few_rows(data: TableData, settings: TableModelSettings) -> list[str]:
    held, _ = table_split(len(data.encoded), settings)
    if len(held):
        return []
    return [
        f"{data.frame.name}: no rows are held out; numbers are of the rows fitted, not of others."
    ]


def _check_modelled(schema: Schema, name: str) -> None:
    names = [c.name for c in schema.modelled]
    if name not in names:
        raise OptionError(f"Column {name!r} is not modelled; there are {', '.join(names)}.")
