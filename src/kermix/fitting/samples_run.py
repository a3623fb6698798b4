"""Fits of rows: run folders of `kermix fit` and `kermix.fit`.

Beside what every run has: `checkpoint/best` is what is sampled from, `samples.npy` are samples of
it, and `figure.svg` shows data against samples. The page warns of what a user should know about
the data before believing its numbers.
"""

import csv
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kermix.costs.baselines import energy_distance, mode_coverage
from kermix.data.dataset import Dataset
from kermix.data.loading import BUILT_IN, load
from kermix.data.readers.common import counted, listed
from kermix.data.sources import Source, read_table
from kermix.distributed.processes import check_ranks
from kermix.errors import SampleError, ShapeError, TableError
from kermix.files import whole_file, write_array
from kermix.fitting.samples_page import FitQuality, write_fit_report
from kermix.networks.scaled import ScaledModel, column_moments
from kermix.runs.folder import FIT, check_data
from kermix.runs.run import Draw, Kind, Numbers, OnRows, Outcome, Run, Start, has_folder
from kermix.runs.train import stage_of
from kermix.training.checkpoints import (
    check_declared,
    load_checkpoint,
    load_model,
    rebuilding,
)
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import Row, Trainer
from kermix.training.mixture_search import clearly_better, gaussian_log_densities
from kermix.training.samples_task import (
    RowTask,
    Split,
    build_model,
    build_trainer,
    check_shares,
    split_rows,
)

__all__ = ["SAMPLES", "begin_samples", "fit_notes", "of_rows"]


def fit_notes(dataset: Dataset, split: Split) -> list[str]:
    """One sentence or two for each thing: what was left out, too few rows, constant columns.

    Example:
        >>> from kermix.training.samples_task import split_rows
        >>> rows = torch.tensor([[1.0, 5.0], [2.0, 5.0]])
        >>> for note in fit_notes(Dataset("two", rows, ["a", "b"]), split_rows(rows, 0)):
        ...     print(note)
        two: 2 rows are too few to hold some out; metrics are for the training rows only.
        two: constant column: b. Samples vary around its value; leave it out if they must not.
    """
    notes = list(dataset.notes)
    if not split.apart:
        count = len(split.train)
        notes.append(
            f"{dataset.name}: {count} row{'s are' if count != 1 else ' is'} too few to hold some "
            "out; metrics are for the training rows only."
        )
    if dataset.image is not None or len(split.train) == 1:
        return notes
    scale = column_moments(split.train)[1][0]
    constant = [name for name, s in zip(dataset.columns, scale.tolist(), strict=True) if s == 0]
    if constant:
        one = len(constant) == 1
        notes.append(
            f"{dataset.name}: constant column{'' if one else 's'}: {listed(constant)}. Samples "
            f"vary around {'its value; leave it' if one else 'their values; leave them'} out if "
            "they must not."
        )
    return notes


def of_rows(metric: str, split: Split) -> str:
    """A metric's name with the rows that it is of."""
    return f"held-out {metric}" if split.apart else f"{metric} of the rows fitted"


SAMPLE_COUNT = 2500
COMPARED = 2000


def begin_samples(
    folder: Path,
    source: str,
    dataset: Dataset,
    settings: FitSettings,
    start: Start,
    options: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Run:
    """Begin a fit of rows in a folder that must not exist.

    Args:
        folder: Where.
        source: What the data are loaded from: a name or a path.
        dataset: The data.
        settings: What the user chose.
        start: How the training is started.
        options: Further arguments of `kermix.data.loading.load`: rows, data_root, size.
        notes: What a user should know of the choice of the model.
    """
    check_ranks(start.devices, start.nodes)
    split = split_rows(dataset.values, settings.seed)
    settings = settings.for_data(len(split.train))
    check_shares(settings, start.devices * start.nodes)
    _, variances = build_model(split.train, settings, dataset.image)
    start.check_device()
    return Run.begin(
        SAMPLES,
        folder,
        source,
        settings,
        start,
        options=options or {},
        facts={
            "shape": list(dataset.values.shape),
            "fingerprint": _fingerprint(dataset.values),
            "columns": dataset.columns,
            "notes": [*notes, *fit_notes(dataset, split)],
            "image": dataset.image,
            "variance": {"start": variances.start, "end": variances.end},
            "ranks": start.ranks,
        },
        writes=has_folder(start.devices, start.nodes),
    )


def _dataset(run: Run) -> Dataset:
    dataset = load(run.source, run.settings.seed, **run.options)
    check_data(run.folder, run.config, _fingerprint(dataset.values))
    return dataset


def _trainer(run: Run, dataset: Dataset) -> Trainer[RowTask]:
    devices, nodes, strategy = run.ranks
    return build_trainer(
        split_rows(dataset.values, run.settings.seed),
        run.settings,
        dataset.image,
        device=run.config["device"],
        precision=run.config["precision"],
        devices=devices,
        nodes=nodes,
        strategy=strategy,
    )


def _metric(settings: FitSettings) -> str:
    """The name of the held-out metric."""
    return "NLL" if settings.is_mixture else "energy distance"


def _shown(run: Run, row: Row) -> dict[str, str]:
    """The stage with its cost, and the held-out metric."""
    metric = f"{_metric(run.settings)} {row['metric']:.4f}"
    return {**stage_of(run.settings, row), "metric": metric}


def _read_model(run: Run, best: Path) -> ScaledModel:
    """The best model so far."""
    tensors, _ = load_checkpoint(best)
    image = run.config["image"]
    # Any data of the right width will do: the scale comes from the checkpoint.
    with rebuilding(best, tensors):
        check_declared(run.settings, tensors)
        blank = torch.zeros(2, run.config["shape"][1])
        model, _ = build_model(blank, run.settings, None if image is None else tuple(image))
        load_model(model, tensors)
        model.kernel_variance = run.config["variance"]["end"]
    return model.eval()


def _sample(run: Run, n: int, seed: int) -> Tensor:  # (n, d)
    found: Tensor = run.trained_model().sample(n, torch.Generator().manual_seed(seed))
    return found


def _write_samples(run: Run, path: Path, draw: Draw, on_rows: OnRows) -> None:
    values = run.sample(draw.n, draw.seed).numpy()
    if path.suffix.lower() == ".npy":
        write_array(path, values)
    else:
        with whole_file(path) as part, part.open("w", newline="") as text:
            writer = csv.writer(text)
            writer.writerow(run.config["columns"])
            writer.writerows(values.tolist())
    on_rows(draw.n)


def _score(run: Run, rows: Source, names: list[str] | None = None) -> Tensor:  # (n, d) -> (n,)
    """Log-density of rows under the best model; columns are matched by their names."""
    table = read_table(rows)
    if table.dropped:
        raise TableError(
            f"{table.name}: {table.dropped} of "
            f"{counted(len(table) + table.dropped, 'row')} have missing values and therefore "
            "no density; remove them."
        )
    names = table.columns if names is None and table.named else names
    found: Tensor = run.trained_model().log_prob(_in_order(run, table.values, names))
    return found


def _in_order(run: Run, values: Tensor, names: list[str] | None) -> Tensor:
    """The columns of rows as the run has them, by their names if both have some."""
    columns = run.config["columns"]
    if values.shape[1] != len(columns):
        raise ShapeError(
            f"The rows have {counted(values.shape[1], 'column')}, but the run in "
            f"{run.folder} was fitted to {len(columns)} ({', '.join(columns[:12])})."
        )
    unnamed = [f"x{i}" for i in range(len(columns))]
    if names is not None and sorted(names) == sorted(columns):
        return values[:, [names.index(name) for name in columns]]
    if names is not None and unnamed not in (names, columns):
        raise ShapeError(
            f"The rows have the columns {', '.join(names[:12])} and the run in {run.folder} "
            f"was fitted to {', '.join(columns[:12])}: the names must match, in any order."
        )
    return values


def _finish(run: Run, data: Dataset, outcome: Outcome) -> Numbers:
    """Write samples, figure and report of the best model."""
    model, history = run.trained_model(), outcome.history
    generator = torch.Generator().manual_seed(run.settings.seed + 1)
    samples = model.sample(SAMPLE_COUNT, generator)
    write_array(run.folder / "samples.npy", samples.numpy())
    split = split_rows(data.values, run.settings.seed)
    quality = _quality(model, split, samples)
    rows = _numbers(quality, data, split, samples, history)
    write_fit_report(run, rows, quality, (data, split), samples, model.mixture(), history)
    return rows


def _refusal(run: Run, question: str) -> str | None:
    if question not in ("sample", "write_samples", "score"):
        return "a fit of rows, which cannot do what the table model does."
    return None


SAMPLES = Kind(
    FIT, FitSettings, ("shape", "columns", "image", "variance"),
    _dataset, _trainer, _shown, _finish, ("best",), _read_model,
    {"sample": _sample, "write_samples": _write_samples, "score": _score}, _refusal, BUILT_IN,
)  # fmt: skip


def _numbers(
    quality: FitQuality,
    dataset: Dataset,
    split: Split,
    samples: Tensor,
    history: list[Row],
) -> Numbers:
    rows = [("data", f"{dataset.name}, {' x '.join(map(str, dataset.values.shape))}")]
    if quality.nll is not None:
        rows.append((of_rows("NLL", split), f"{quality.nll:.4f} nats"))
        if quality.gaussian is not None:
            rows.append(("NLL of one Gaussian", f"{quality.gaussian:.4f} nats"))
            if not quality.clear:
                rows.append(("warning", "the model is not clearly better than one Gaussian"))
        if dataset.entropy is not None:
            rows.append(("entropy of the data", f"{dataset.entropy:.3f} nats"))
    shown = f"{quality.distance:.5f}"
    if quality.floor is not None:
        shown += f" (two sets of data: {quality.floor:.5f})"
    rows.append(("energy distance", shown))
    if dataset.modes is not None:
        found = mode_coverage(samples, dataset.modes.centres.double(), dataset.modes.deviation)
        rows.append(("modes covered", f"{found.modes} of {found.total}"))
        rows.append(("good samples", f"{found.high_quality:.1%} (a perfect sampler: 98.9%)"))
        rows.append(("KL of modes", f"{found.kl:.4f}"))
    what = "centre plus learned noise" if quality.nll is not None else "centre"
    rows.append(("a sample is a", what))
    rows.append(("steps", f"{int(history[-1]['step'])}"))
    return rows


def _quality(model: ScaledModel, split: Split, samples: Tensor) -> FitQuality:
    """How good a model is on rows held out, or else on those fitted."""
    held_out = split.held_out[:COMPARED]
    nll = gaussian = None
    clear = False
    if model.is_mixture or model.is_continuous:
        log_density = model.log_prob(held_out)
        nll = float(-log_density.mean())
        reference = _gaussian(split, held_out)
        if reference is not None:
            gaussian = float(-reference.mean())
            clear = clearly_better(log_density.double() - reference)
    others, held = model.scaler.scaled(samples[: len(held_out)]), model.scaler.scaled(held_out)
    floor = None
    if split.apart:
        floor = float(energy_distance(held, model.scaler.scaled(split.train[: len(others)])))
    return FitQuality(nll, gaussian, clear, float(energy_distance(held, others)), floor)


def _gaussian(split: Split, judged: Tensor) -> Tensor | None:
    """Log-densities of a single Gaussian, if there is one."""
    if not bool((split.train != split.train[0]).any(0).all()):
        return None  # densities of constant columns are as high as one likes
    try:
        return gaussian_log_densities(split.train, judged)
    except SampleError:
        return None  # numbers too large or small to have variances


def _fingerprint(values: Tensor) -> str:
    digest = hashlib.sha256(str(tuple(values.shape)).encode())
    digest.update(values.contiguous().cpu().numpy().tobytes())
    return digest.hexdigest()[:16]
