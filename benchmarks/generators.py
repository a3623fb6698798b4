"""Generators of tables that `benchmarks.generated_tables` trains, ours and others'.

Each takes rows, the columns that are no numbers, and a `Job`, and gives as many rows as it was
trained with and what is told about the training. Settings of the others are their own defaults:
TabularARGN (`mostlyai-engine`; its protection of rare values, which costs it likeness, is off),
CTGAN and TVAE (`ctgan`, 300 epochs each), the Gaussian copula of SDV (`sdv`).
"""

import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from kermix.errors import MissingExtraError

__all__ = ["METHODS", "Job", "imported"]

SETTINGS = {
    "cuda": {"width": 512, "blocks": 4, "steps": 12_000, "learning_rate": 3e-4, "average": 500,
             "patience": 6, "order_share": 0.5},
    "cpu": {"width": 256, "blocks": 3, "steps": 2500, "learning_rate": 1e-3, "average": 300,
            "order_share": 0.5},
}  # fmt: skip


class Job(NamedTuple):
    """One model: of what, where and how."""

    table: str
    seed: int
    device: str
    settings: dict[str, Any]


def kermix_samples(rows: Any, texts: Sequence[str], job: Job) -> tuple[Any, dict[str, Any]]:
    """Rows drawn from a table model, and what is told about it."""
    import torch

    from kermix.tables.model.table_estimator import TableModel

    on_gpu = job.device.startswith("cuda")
    settings = {**SETTINGS["cuda" if on_gpu else "cpu"], **job.settings}
    if on_gpu:
        torch.set_float32_matmul_precision("high")
    start = time.perf_counter()
    kinds = dict.fromkeys(texts, "category")
    model = TableModel(kinds=kinds, device=job.device, random_state=job.seed, **settings).fit(rows)
    trained = time.perf_counter()
    drawn = model.sample(len(rows), random_state=job.seed)
    speed = len(rows) / (time.perf_counter() - trained)
    return drawn, {**settings, "best_step": model.n_iter_, "training_seconds": trained - start,
                   "sampled_rows_a_second": speed}  # fmt: skip


def imported(module: str, package: str) -> Any:
    """A module of another project, or which package is missing."""
    try:
        return import_module(module)
    except ImportError:
        raise MissingExtraError(f"{module} needs: pip install {package}.") from None


def peer_samples(rows: Any, texts: Sequence[str], fit: Any) -> tuple[Any, dict[str, Any]]:
    """Rows of a generator that takes texts only: `fit(rows)` gives `draw(count)`."""
    given = rows.astype(dict.fromkeys(texts, str))
    start = time.perf_counter()
    draw = fit(given)
    trained = time.perf_counter()
    drawn = draw(len(rows))
    speed = len(rows) / (time.perf_counter() - trained)
    for name in texts:  # "False" is true as a truth value
        drawn[name] = drawn[name].map({str(value): value for value in rows[name].unique()})
    return drawn, {"training_seconds": trained - start, "sampled_rows_a_second": speed}


def argn_samples(rows: Any, texts: Sequence[str], job: Job) -> tuple[Any, dict[str, Any]]:
    """Rows drawn from TabularARGN, and what is told about it."""
    engine = imported("mostlyai.engine", "mostlyai-engine")

    def fit(given: Any) -> Any:
        model = engine.TabularARGN(value_protection=False, random_state=job.seed,
                                   device=job.device, **job.settings)  # fmt: skip
        model.fit(given)
        return model.sample

    drawn, told = peer_samples(rows, texts, fit)
    return drawn, {**job.settings, **told}


def adversarial_samples(
    name: str, rows: Any, texts: Sequence[str], job: Job
) -> tuple[Any, dict[str, Any]]:
    """Rows drawn from CTGAN or TVAE, and what is told about it."""
    import torch

    generator = getattr(imported("ctgan", "ctgan"), name)

    def fit(given: Any) -> Any:
        torch.manual_seed(job.seed)
        model = generator(enable_gpu=job.device.startswith("cuda"), **job.settings)
        model.set_random_state(job.seed)
        model.fit(given, discrete_columns=list(texts))
        return model.sample

    drawn, told = peer_samples(rows, texts, fit)
    return drawn, {**job.settings, **told}


def ctgan_samples(rows: Any, texts: Sequence[str], job: Job) -> tuple[Any, dict[str, Any]]:
    """Rows drawn from CTGAN."""
    return adversarial_samples("CTGAN", rows, texts, job)


def tvae_samples(rows: Any, texts: Sequence[str], job: Job) -> tuple[Any, dict[str, Any]]:
    """Rows drawn from TVAE."""
    return adversarial_samples("TVAE", rows, texts, job)


def copula_samples(rows: Any, texts: Sequence[str], job: Job) -> tuple[Any, dict[str, Any]]:
    """Rows drawn from the Gaussian copula of SDV."""
    synthesizers = imported("sdv.single_table", "sdv")
    metadata = imported("sdv.metadata", "sdv").Metadata.load_from_dict({"tables": {"rows": {
        "columns": {c: {"sdtype": "categorical" if c in texts else "numerical"} for c in rows}
    }}})  # fmt: skip

    def fit(given: Any) -> Any:
        model = synthesizers.GaussianCopulaSynthesizer(metadata, **job.settings)
        model.fit({"rows": given})
        return lambda count: model.sample(count)["rows"]

    drawn, told = peer_samples(rows, texts, fit)
    return drawn, {**job.settings, **told}


METHODS = {
    "kermix": kermix_samples, "tabular-argn": argn_samples, "ctgan": ctgan_samples,
    "tvae": tvae_samples, "gaussian-copula": copula_samples,
}  # fmt: skip
