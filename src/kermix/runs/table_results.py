"""What a fit of the table model ends with: the better model, samples, numbers and the report."""

from dataclasses import replace

import numpy as np

from kermix.data.tables.csv_form import CsvForm
from kermix.data.tables.frames import as_frame, taken_rows
from kermix.data.tables.writing import table_writer
from kermix.reports.provenance import write_json
from kermix.reports.table_conditionals import conditionals_of
from kermix.reports.table_quality import TableQuality, judge_samples
from kermix.reports.table_report import write_table_report
from kermix.runs.run import Numbers, Outcome
from kermix.runs.table_answers import TrainedTable
from kermix.runs.table_data import TableData
from kermix.runs.table_mixture import TableMixture, rivals

__all__ = ["write_results"]

LEAST_JUDGED, MOST_JUDGED = 1000, 10_000  # rows that are drawn for the report
KEPT_SAMPLES = 2500
TABLE_MODEL = "table model"


def write_results(run: TrainedTable, data: TableData, outcome: Outcome, form: CsvForm) -> Numbers:
    """Write samples and report; returns the numbers to show.

    Args:
        run: The run, trained.
        data: Its table.
        outcome: How training ended.
        form: How a text file of samples is written.
    """
    settings = run.settings
    held, train = data.split(settings)
    densities = _contest(run, data, train, np.sort(held)) if run.config.get("contest") else {}
    model = run.model()
    count = min(MOST_JUDGED, max(LEAST_JUDGED, len(data.encoded)))
    drawn = model.sample(count, random_state=settings.seed + 1, frame="arrow")
    path = run.folder / f"samples{run.config['form']}"
    with table_writer(path, form=form) as writer:
        writer.write(drawn.slice(0, KEPT_SAMPLES))
    types = {c.name: c.type for c in data.schema.columns}
    samples = data.schema.encode(replace(as_frame(drawn, "samples"), types=types), extra=True)
    judged = np.sort(held if len(held) else train[:MOST_JUDGED])
    log_density = model.score_samples(taken_rows(data.frame, judged))
    quality = judge_samples(data.schema, data.encoded, samples, train, held, log_density)
    copied = data.copied(samples)
    if copied is not None:
        quality = replace(quality, copies=copied)
    name = model.name if isinstance(model, TableMixture) else TABLE_MODEL
    others = [(n, d) for n, d in densities.items() if n != name]
    named = {n for n, _ in others} | {name}
    kept = [(n, d) for n, d in quality.references if n not in named]
    quality = replace(quality, references=(*others, *kept))
    chosen = {"model": name, "models": densities} if densities else {}
    write_json(run.folder / "result.json", {**chosen, **quality.as_json()})
    rows = _numbers(data, quality, outcome, model.n_iter_)
    if len(densities) > 1:
        rows.insert(0, ("model", f"{name}, chosen by the log-density of {len(held)} held-out "
                        "rows"))  # fmt: skip
    given = []
    if not isinstance(model, TableMixture):
        given = conditionals_of(model, data.schema, data.frame, data.encoded)
    write_table_report(run, rows, data.schema, data.encoded, samples, quality,
                       outcome.history, name, given)  # fmt: skip
    return rows


def _contest(
    run: TrainedTable, data: TableData, train: np.ndarray, held: np.ndarray
) -> dict[str, float]:
    """Mean log-densities of the held-out rows by model; a mixture that is ahead is kept."""
    own = run.table_model().score_samples(taken_rows(data.frame, held))
    others = rivals(data.schema, data.frame, train, held, run.settings.seed)
    path = run.mixture_file
    path.unlink(missing_ok=True)
    best = max(others, key=lambda rival: rival.log_density.mean(), default=None)
    if best is not None and best.log_density.mean() > own.mean():
        frame = run.config["frame"]
        TableMixture(data.schema, best.mixture, frame, best.name).save(path)
    return {TABLE_MODEL: float(own.mean()),
            **{rival.name: float(rival.log_density.mean()) for rival in others}}  # fmt: skip


def _numbers(data: TableData, quality: TableQuality, outcome: Outcome, kept: int) -> Numbers:
    schema = data.schema
    kinds = [c.kind for c in schema.columns]
    counted = ", ".join(f"{kinds.count(k)} {k}" for k in dict.fromkeys(kinds))
    told = "too few rows to tell"
    if quality.detection is not None:
        told = f"{quality.detection:.3f} (1: a classifier cannot, 0: it always can)"
    against = "; ".join(f"{name}: {value:.3f}" for name, value in quality.references)
    return [
        (quality.density_name, f"{quality.log_density:.3f} nats a row ({against})"),
        ("told apart from data", told),
        ("exact copies", f"{quality.copies:.2%} of the samples ({quality.copies_held:.2%} of "
         "held-out rows)"),
        ("data", f"{data.frame.name}: {data.rows:,} rows, {len(schema)} columns "
         f"({counted})"),
        ("steps", f"{outcome.step}" + (f", of which step {kept} was kept" if kept else "")),
    ]  # fmt: skip
