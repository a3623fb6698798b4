"""Fits of the table model: run folders of `kermix fit TABLE`; of one column, see `target_fit`.

Beside what every run has: `schema.json` says what the columns are, `checkpoint/model.safetensors`
holds the network, `checkpoint/mixture.safetensors` the mixture that was better, if one was, and
`samples.csv` (or the input's format) are rows drawn. A fit ends with the better model, samples,
numbers and the report.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kermix.data.readers.common import CsvForm, Reading, counted
from kermix.data.readers.frames import Frame, as_frame, taken_rows
from kermix.data.readers.reading import read_frame
from kermix.data.schema.keys import key_seed
from kermix.data.schema.schema import EncodedTable, Schema
from kermix.data.writing import table_writer
from kermix.errors import OptionError, SchemaError, nearest
from kermix.files import write_json
from kermix.runs.folder import TABLE, check_data, check_trained
from kermix.runs.run import Draw, Kind, Numbers, OnRows, Outcome, Run
from kermix.tables.model.conditioning import given_cell, place_of
from kermix.tables.model.distribution import ColumnDistribution
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.network import TableNetwork, network_rows_at_once
from kermix.tables.model.table_answers import TableAnswers
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.table_training import TableModelTask
from kermix.tables.runs.table_mixture import TableMixture, candidates
from kermix.tables.runs.training_data import TableData, kept_rows, rows_of, with_store
from kermix.training.budget import Course
from kermix.training.checkpoints import (
    check_declared,
    device_of,
    load_checkpoint,
    load_model,
    rebuilding,
    tensors_of,
)
from kermix.training.loop import Row, Trainer

# What judges a fit and writes its report is imported where it ends: not to draw samples.
if TYPE_CHECKING:
    from kermix.tables.runs.table_quality import TableQuality

__all__ = [
    "TABLE_RUN",
    "checked_data",
    "conditionals",
    "csv_form",
    "drawn_parts",
    "frame_of",
    "losses_shown",
    "missing_columns",
    "model_so_far",
    "parse_given",
    "read_as",
    "rows_judged",
    "schema_of",
    "table_model",
    "told_of_open_cells",
]

LEAST_JUDGED, MOST_JUDGED = 1000, 2500  # rows that are drawn for the report, and kept
BLOCKS_AT_ONCE = 8
ROWS_AT_ONCE = 16_384  # conditional distributions that are held; draws of a mixture depend on it
MODEL, MIXTURE = "model", "mixture"  # files of what was trained


def schema_of(run: Run) -> Schema:
    """What the columns of a run's table are."""

    def read() -> Schema:
        if "schema" in run.config:  # of a run whose folder is on another node
            return Schema.from_dict(run.config["schema"])
        return Schema.load(run.folder / "schema.json")

    return run.once("schema", read)


def read_as(run: Run, said: Reading) -> Reading:
    """How files of the run's kind are read: as its own, unless something else is said.

    Kinds of columns are those of the run.
    """
    schema, options = schema_of(run), run.options
    kinds = {column.name: column.kind for column in schema.columns}
    for name, kind in said.kinds.items():
        if kinds.get(name, kind) != kind:
            raise OptionError(f"{name}={kind}: in the run {run.folder} it is a {kinds[name]}.")
    names = ("delimiter", "decimal", "encoding", "header", "missing", "sheet")
    own: dict[str, Any] = {name: options[name] for name in names if name in options}
    return schema.reading(**{**own, **said.said()})


def csv_form(run: Run, name: str) -> CsvForm:
    """How a text file of samples is written: as the run's own, with names of columns."""
    own = CsvForm.from_dict(run.config.get("csv"))
    return replace(own, named=True).between(run.config["data"], name)


def frame_of(run: Run) -> Frame:
    """All rows of the run's table, read again."""
    schema, options = schema_of(run), run.options
    own: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v
           for name, v in options.items() if name != "rows"}  # fmt: skip
    frame, _ = read_frame(run.source, schema.reading(**own))
    if run.source != run.config["data"] or run.folder in Path(run.source).parents:
        # Rows that were in memory: Parquet does not say what they were there.
        frame = replace(frame, types={c.name: c.type for c in schema.columns})
    return rows_of(frame, options.get("rows"), run.settings.seed)


def checked_data(run: Run, frame: Frame) -> TableData:
    """The table and its layout; refused where the table is not that of the run."""
    schema = schema_of(run)
    data = TableData.of(frame, schema, TableLayout.with_relations(schema, run.config))
    stored = run.config["stored"]
    if stored is not None:
        data = with_store(data, run.folder, stored, run.settings)
    check_data(run.folder, run.config, data.fingerprint())
    return data


def _dataset(run: Run) -> TableData:
    if run.config["stored"] is None:
        return checked_data(run, frame_of(run))
    name = Path(run.config["data"]).name
    return checked_data(run, kept_rows(run.folder, schema_of(run), name))


def _trainer(run: Run, data: TableData) -> Trainer[TableModelTask]:
    timed = run.config.get("course")
    course = None if timed is None else Course(run.settings.steps, **timed)
    task = TableModelTask(data.layout, data.to_train(), run.settings, course=course)
    devices, nodes, _ = run.ranks
    return Trainer(
        task, run.config["device"], run.config["precision"], devices=devices, nodes=nodes
    )


def losses_shown(run: Run, row: Row) -> dict[str, str]:
    """The loss of a batch, and that of held-out rows."""
    return {"stage": f"loss {row['loss']:.3f}", "metric": f"held-out {row['metric']:.3f}"}


def _read_model(run: Run, path: Path) -> TableAnswers | TableMixture:
    """The table model, or the mixture that was better."""
    if path.stem == MIXTURE:
        return TableMixture.load(path, schema_of(run), run.config["frame"])
    return _read_network(run, path)


def table_model(run: Run) -> TableAnswers:
    """The table model, also where a mixture was better."""
    path = run.checkpoints / f"{MODEL}.safetensors"
    return run.loaded(path, lambda: _read_network(run, path))


def model_so_far(run: Run) -> TableAnswers:
    """The best model of a training that goes on, or was stopped."""
    check_trained(run.folder, run.last)
    return _read_network(run, run.last)


def _read_network(run: Run, path: Path) -> TableAnswers:
    settings, schema, place = run.settings, schema_of(run), device_of(run.config["device"])
    tensors, content = load_checkpoint(path)
    with rebuilding(path, tensors):
        check_declared(settings, tensors)
        network = TableNetwork(
            TableLayout.with_relations(schema, run.config),
            settings.width, settings.blocks, settings.components, settings.dropout,
            settings.members,
        )  # fmt: skip
        load_model(network, tensors)
        # As at the end: the best weights, or the mean of the last where none were held out.
        best = tensors_of("kept.", tensors) or tensors_of("average.", tensors)
        if path == run.last:
            network.load_state_dict(best, strict=False)
        return TableAnswers(
            schema, network.to(place).eval(), run.config["frame"],
            kept=content["best_step"] or content["step"], history=content["history"],
            target=run.config["target"], target_share=settings.target_share,
        )  # fmt: skip


def _model(run: Run) -> Any:
    """A copy of the trained model, as an estimator; of the mixture that was better, if any."""
    found = deepcopy(run.trained_model())
    if isinstance(found, TableMixture):
        return found
    from kermix.tables.model.table_estimator import TableModel

    return TableModel.of_settings(run.settings, found, run.config["device"])


def _sample(
    run: Run,
    n: int,
    seed: int = 0,
    given: Mapping[str, Any] | Any = None,
    *,
    deduplicate: bool = False,
    min_distance: float | None = None,
) -> Any:
    """Rows of the model, in the caller's kind of table."""
    model = run.trained_model()
    away = _away(run, deduplicate, min_distance)
    return model.sample(n, given=given, random_state=seed, **away)


def _sample_parts(
    run: Run,
    n: int,
    seed: int = 0,
    given: Mapping[str, Any] | Any = None,
    *,
    deduplicate: bool = False,
    min_distance: float | None = None,
) -> Iterator[Any]:
    """The same rows as Arrow tables, some ten thousand at a time."""
    away = _away(run, deduplicate, min_distance)
    return drawn_parts(run.trained_model(), n, seed, BLOCKS_AT_ONCE, given=given, **away)


def _write_samples(run: Run, path: Path, draw: Draw, on_rows: OnRows) -> None:
    """Write rows of the model, part by part."""
    given = parse_given(draw.given, schema_of(run))
    away: dict[str, Any] = {"deduplicate": draw.deduplicate, "min_distance": draw.min_distance}
    parts = _sample_parts(run, draw.n, draw.seed, given, **away)
    with table_writer(path, draw.spreadsheet_safe, csv_form(run, path.name)) as writer:
        for part in parts:
            writer.write(part)
            on_rows(len(part))


def _away(run: Run, deduplicate: bool, min_distance: float | None) -> dict[str, Any]:
    """What sampling needs to keep away from the rows of the run's table, held out or not."""
    if not deduplicate and min_distance is None:
        return {}
    if run.config["stored"]:
        raise OptionError(
            f"{run.folder}: the table of this run is larger than memory, so samples cannot "
            "be compared with all its rows; pass the relevant rows to "
            "TableModel.sample(against=...)."
        )
    against = run.dataset().encoded
    return {"against": against, "deduplicate": deduplicate, "min_distance": min_distance}


def parse_given(texts: Sequence[str], schema: Schema) -> dict[str, Any] | None:
    """Conditions that were written as NAME=VALUE; an empty value is a gap.

    Example:
        >>> schema = Schema.infer({"sex": ["f", "m"] * 20, "age": [20.5, 31.5, 42.25, 18.0] * 10})
        >>> parse_given(["sex=m"], schema)["sex"].to_pylist()
        ['m']
    """
    found: dict[str, Any] = {}
    for text in texts:
        names = [name for name in schema.names if text.startswith(f"{name}=")]
        if not names:
            name, equals, _ = text.partition("=")
            told = f"there is no column {name}" if equals else "write COLUMN=VALUE"
            raise OptionError(f"--given {text}: {told}{nearest(name, schema.names)}")
        name = max(names, key=len)
        if name in found:
            raise OptionError(f"--given {text}: {name} is given twice.")
        found[name] = given_cell(schema, name, text[len(name) + 1 :] or None, f"--given {text}")
    return found or None


def _score(
    run: Run, table: Any, *, orders: int | None = None, on_rows: OnRows | None = None
) -> Any:  # (N,)
    """Log-density of each row, in the order of the table; of a pandas table with its index."""
    values = run.trained_model().score_samples(table, orders=orders, on_rows=on_rows)
    if not hasattr(table, "iloc"):
        return values
    import pandas

    return pandas.Series(values, index=table.index, name="log_density")


def _impute(run: Run, table: Any, *, seed: int = 0, **options: Any) -> Any:
    """The table with its gaps filled; see `kermix.TableModel.impute`."""
    return run.trained_model().impute(table, random_state=seed, **options)


def missing_columns(run: Run, frame: Frame, target: str | None = None) -> list[str]:
    """Columns that the target is predicted from, and that a table does not have."""
    name = run.config["target"] if target is None else target
    names = [column.name for column in schema_of(run).modelled]
    return [n for n in names if n != name and n not in frame.columns]


def told_of_open_cells(run: Run) -> str:
    """What cells that are left open mean for predictions, if training had none."""
    if run.settings.target_share < 1:
        return ""
    return (
        "The model was trained with all columns observed, so its intervals and "
        "probabilities are overconfident here; kermix fit --target trains with some columns "
        "missing."
    )


def conditionals(run: Run, table: Any, target: str | None = None) -> Iterator[ColumnDistribution]:
    """Distributions of the target given the other cells of each row, part by part.

    Columns that the run does not have are passed over; cells that it cannot know (values that
    a category never had, gaps where there were none) are left open.
    """
    name = run.config["target"] if target is None else target
    if name is None:
        raise OptionError("Name the column to predict: --target COLUMN (target=).")
    model, schema = run.trained_model(), schema_of(run)
    place_of(schema, name)
    frame, _ = read_frame(table, schema.reading())
    kept = [c.name for c in schema.modelled if c.name in frame.columns and c.name != name]
    if not kept:
        raise SchemaError(
            f"{frame.name}: none of the columns that {name} depends on is present "
            f"({', '.join([n for n in schema.names if n != name][:12])})."
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
    generator, size = model.generator(seed), ROWS_AT_ONCE
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


def _finish(run: Run, data: TableData, outcome: Outcome) -> Numbers:
    """Write samples and report; returns the numbers to show."""
    from kermix.tables.runs.run_pages import ANSWER, write_table_report
    from kermix.tables.runs.table_quality import conditionals_of, not_good_yet

    held, train = data.split(run.settings)
    densities = {}
    if run.config.get("compare_models"):
        densities = _compare_models(run, data, train, np.sort(held))
    model = run.trained_model()
    drawn = _report_samples(run, model, data)
    samples = data.schema.encode(drawn, extra=True)
    quality = _judged(model, data, (drawn, samples), (held, train), densities)
    chosen = {"model": model.name, "models": densities} if densities else {}
    write_json(run.folder / "result.json", {**chosen, **quality.as_json()})
    rows = _numbers(data, quality, outcome, model.n_iter_, run.settings)
    poor = not_good_yet(quality, outcome, model.n_iter_, run.settings)
    if poor:
        rows.insert(0, (ANSWER, poor))
    if len(densities) > 1:
        rows.insert(0, ("model", f"{model.name}, chosen by the log-density of {len(held)} "
                        "held-out rows"))  # fmt: skip
    given = []
    if not isinstance(model, TableMixture):
        given = conditionals_of(model, data.schema, data.frame, data.encoded)
    write_table_report(run, rows, data.schema, (data.encoded, samples), quality,
                       outcome.history, model.name, given)  # fmt: skip
    return rows


def rows_judged(data: TableData) -> int:
    """How many rows are drawn for the report."""
    return min(MOST_JUDGED, max(LEAST_JUDGED, len(data.encoded)))


def _report_samples(run: Run, model: Any, data: TableData) -> Frame:
    """Rows for the report, which are kept in the folder."""
    file = f"samples{run.config['form']}"
    drawn = model.sample(rows_judged(data), random_state=run.settings.seed + 1, frame="arrow")
    with table_writer(run.folder / file, form=csv_form(run, file)) as writer:
        writer.write(drawn)
    types = {c.name: c.type for c in data.schema.columns}
    return replace(as_frame(drawn, "samples"), types=types)


def _judged(
    model: Any,
    data: TableData,
    drawn: tuple[Frame, EncodedTable],
    split: tuple[np.ndarray, np.ndarray],
    densities: Mapping[str, float],
) -> "TableQuality":
    """How good samples and densities are, beside those of the models that were compared."""
    from kermix.tables.runs.table_quality import judge_samples

    (table, samples), (held, train) = drawn, split
    rows = np.sort(held if len(held) else train[:MOST_JUDGED])
    log_density = model.score_samples(taken_rows(data.frame, rows))
    tables = data.frame, table
    quality = judge_samples(tables, data.schema, data.encoded, samples, train, held, log_density)
    copied = data.copied(samples)
    if copied is not None:
        quality = replace(quality, copies=copied)
    others = {name: value for name, value in densities.items() if name != model.name}
    kept = [(n, d) for n, d in quality.references if n not in (*others, model.name)]
    return replace(quality, references=(*others.items(), *kept))


def _compare_models(
    run: Run, data: TableData, train: np.ndarray, held: np.ndarray
) -> dict[str, float]:
    """Mean log-densities of the held-out rows by model; a mixture that is ahead is kept."""
    own = table_model(run).score_samples(taken_rows(data.frame, held))
    others = candidates(data.schema, data.frame, train, held, run.settings.seed)
    path = run.checkpoints / f"{MIXTURE}.safetensors"
    path.unlink(missing_ok=True)
    best = max(others, key=lambda other: other.log_density.mean(), default=None)
    if best is not None and best.log_density.mean() > own.mean():
        frame = run.config["frame"]
        TableMixture(data.schema, best.mixture, frame, best.name).save(path)
    return {TableAnswers.name: float(own.mean()),
            **{other.name: float(other.log_density.mean()) for other in others}}  # fmt: skip


def _numbers(
    data: TableData,
    quality: "TableQuality",
    outcome: Outcome,
    kept: int,
    settings: TableModelSettings,
) -> Numbers:
    from kermix.tables.runs.table_quality import steps_told
    from kermix.two_sample.classifier_test import area_text

    schema = data.schema
    kinds = [c.kind for c in schema.columns]
    listed_kinds = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
    told = "too few rows to tell"
    if quality.auc is not None and quality.interval is not None:
        told = f"{area_text(quality.auc, quality.interval)} of a classifier"
    share = quality.copies_held
    of_held = "; no rows were held out" if share is None else f" ({share:.2%} of held-out rows)"
    against = "; ".join(f"{name}: {value:.3f}" for name, value in quality.references)
    return [
        (quality.density_name, f"{quality.log_density:.3f} nats a row ({against})"),
        ("told apart from data", told),
        ("exact copies", f"{quality.copies:.2%} of the samples{of_held}"),
        ("data", f"{data.frame.name}: {counted(data.rows, 'row')}, "
         f"{counted(len(schema), 'column')} ({listed_kinds})"),
        ("steps", steps_told(outcome, kept, settings)),
    ]  # fmt: skip


def _refusal(run: Run, question: str) -> str | None:
    if question == "impute" and (run.checkpoints / f"{MIXTURE}.safetensors").exists():
        return (
            "filled gaps need the table model, but this run kept a mixture, which was better on "
            "held-out rows; fit the table with model='table' (--model table)."
        )
    return None


ANSWERS: dict[str, Callable[..., Any]] = {
    "sample": _sample, "sample_parts": _sample_parts, "write_samples": _write_samples,
    "score": _score, "impute": _impute, "conditionals": conditionals,
}  # fmt: skip
TABLE_RUN = Kind(
    TABLE, TableModelSettings,
    ("shape", "columns", "target", "frame", "stored", "equal", "regressors", "same",
     "lines", "absences", "repeated", "exact"),
    _dataset, _trainer, losses_shown, _finish, (MIXTURE, MODEL), _read_model, ANSWERS, _refusal,
    reported=("step", "loss", "metric"), model=_model,
)  # fmt: skip
