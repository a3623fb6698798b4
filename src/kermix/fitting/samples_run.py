"""Fits of rows: run folders of `kermix fit` and `kermix.fit`.

Beside what every run has: `checkpoint/best` is what is sampled from, `samples.npy` are samples of
it, and `figure.svg` shows data against samples. The page warns of what a user should know about
the data before believing its numbers.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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
from kermix.mixtures.mixture import GaussianMixture
from kermix.networks.scaled import ScaledModel, column_moments
from kermix.pages import charts
from kermix.pages.page import Card, save_charts
from kermix.pages.plot import Axis, Plot
from kermix.pages.sheets import grid_over, png_bytes, sheet
from kermix.runs.folder import FIT, check_data, digest_of
from kermix.runs.run import Draw, Kind, Numbers, OnRows, Outcome, Run, Start
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

__all__ = ["SAMPLES", "begin_samples", "fit_notes", "of_rows", "sample_charts"]


@dataclass(frozen=True)
class FitQuality:
    """How good a model of rows is.

    Attributes:
        nll: Mean negative log-likelihood of the rows held out, or else of those fitted; None if
            the model has no density.
        gaussian: That of one Gaussian; None if there is none, or no density to compare.
        clear: Whether the model is clearly better.
        distance: Energy distance of samples to these rows.
        floor: The same of two sets of the data; None where no rows are held out.
    """

    nll: float | None
    gaussian: float | None
    clear: bool
    distance: float
    floor: float | None


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


def begin_samples(
    folder: Path,
    source: str,
    dataset: Dataset,
    settings: FitSettings,
    start: Start,
    options: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> Run:
    """Begin a fit of rows, as `Run.begin` does.

    Args:
        folder: A new folder.
        source: A name or a path, as in `kermix.data.loading.load`.
        dataset: The rows.
        settings: Before defaults are filled in for so many rows.
        start: Devices, and the words of the command.
        options: Of `load`, beside the source.
        notes: On the choice of the model.
    """
    check_ranks(start.devices, start.nodes)
    split = split_rows(dataset.values, settings.seed)
    settings = settings.for_data(len(split.train))
    check_shares(settings, start.devices * start.nodes)
    _, variances = build_model(split.train, settings, dataset.image)
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
    samples = model.sample(2500, generator)
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
    what = "center plus learned noise" if quality.nll is not None else "center"
    rows.append(("a sample is a", what))
    rows.append(("steps", f"{int(history[-1]['step'])}"))
    return rows


def _quality(
    model: ScaledModel, split: Split, samples: Tensor, compared: int = 2000
) -> FitQuality:
    """How good a model is on rows held out, or else on those fitted."""
    held_out = split.held_out[:compared]
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
    return digest_of((str(tuple(values.shape)), values.cpu().numpy()))


def write_fit_report(
    run: Run,
    rows: Numbers,
    quality: FitQuality,
    sets: tuple[Dataset, Split],
    samples: Tensor,
    mixture: GaussianMixture,
    history: list[Row],
) -> None:
    """Write `figure.svg` and `report.html`: numbers, data and model, how to repeat it.

    Args:
        run: The run.
        rows: Its numbers, by name.
        quality: Those that the answer is made of.
        sets: The data, and which rows were trained with.
        samples: Of the model.
        mixture: Its density.
        history: What was reported in training.
    """
    settings, (dataset, split) = run.settings, sets
    about = f"Data and samples of {Path(run.config['data']).name}"
    cards = sample_charts(split.train, samples, mixture, dataset)
    save_charts(cards, run.folder / "figure.svg", about)
    metric = "NLL" if settings.is_mixture else "Energy distance"
    judged = "on held-out rows" if split.apart else "on training rows"
    run.write_page("samples", f"Fit of {Path(run.config['data']).name}", {
        "model": settings.model,
        "cost": settings.cost,
        "rows": rows,
        "quality": quality,
        "apart": split.apart,
        "charts": cards,
        "training": charts.training(history, f"{metric} {judged}"),
    }, {
        "variance": run.config["variance"]["end"],
        "learning_rate": settings.peak_rate,
        "start_variance": run.config["variance"]["start"],
    })  # fmt: skip


def sample_charts(
    data: Tensor,  # (N, d)
    samples: Tensor,  # (n, d)
    mixture: GaussianMixture,
    dataset: Dataset,
) -> list[Card]:
    """Data, samples and density, in the way that suits their dimension."""
    few = min(2000, len(data), len(samples))  # as many of each
    x, y = (rows[:few].detach().cpu().double() for rows in (data, samples))
    if dataset.image is not None:
        return [_sheet(rows, dataset.image, name) for rows, name in ((x, "Data"), (y, "Samples"))]
    if x.shape[1] == 1:
        return [_line(x, y, mixture, dataset.columns[0])]
    if x.shape[1] == 2:
        low, high = (x.quantile(share, 0) for share in (0.001, 0.999))
        across, up = (Axis.over([low[k], high[k]], label=dataset.columns[k], margin=0.12)
                      for k in (0, 1))  # fmt: skip
        return [_points(x, "Data", "one", across, up), _points(y, "Samples", "two", across, up),
                _density(mixture, across, up)]  # fmt: skip
    scale = x.std(0, correction=0)
    scale[scale == 0] = 1.0
    centred = (x - x.mean(0)) / scale
    directions = torch.linalg.svd(centred, full_matrices=len(x) < 2).Vh[:2].T
    drawn = (y - x.mean(0)) / scale @ directions
    seen = centred @ directions
    axes = [
        Axis.over(seen[:, k], drawn[:, k], label=f"{which} principal component", margin=0.05)
        for k, which in enumerate(("first", "second"))
    ]
    return [_points(seen, "Data", "one", *axes), _points(drawn, "Samples", "two", *axes)]


def _points(points: Tensor, name: str, kind: str, across: Axis, up: Axis) -> Card:
    plot = Plot(across, up, name, charts.CARD, charts.CARD)
    low, high = torch.tensor([across.low, up.low]), torch.tensor([across.high, up.high])
    x, y = points[((points >= low) & (points <= high)).all(1)].numpy().T
    return Card(name, plot.dots(x, y, kind, size=3 if len(x) > 500 else 4).svg())


def _density(mixture: GaussianMixture, across: Axis, up: Axis) -> Card:
    """The root of the density, which shows weak parts beside strong ones, and the centers."""
    corners = torch.tensor([[across.low, up.low], [across.high, up.high]], dtype=torch.float64)
    places, shape = grid_over(corners)
    assert shape is not None
    height = mixture.log_prob(places.to(mixture.means.device)).cpu()
    root = ((height - height.max()) / 2).exp().reshape(shape).T.numpy()
    plot = Plot(across, up, "Density of the model", charts.CARD, charts.CARD)
    return Card("Density of the model (root)", plot.field(root, "two").svg())


def _line(x: Tensor, y: Tensor, mixture: GaussianMixture, name: str) -> Card:
    """Histograms of both, and the density, as shares of the same intervals."""
    bins = charts.Bins.over(x[:, 0].numpy(), log=False)
    shares = [bins.shares(rows[:, 0].numpy()) for rows in (x, y)]
    width = float(bins.edges[1] - bins.edges[0])
    places = np.linspace(bins.edges[0], bins.edges[-1], 300)
    points = torch.from_numpy(places)[:, None].to(mixture.means.device)
    density = mixture.log_prob(points).exp().cpu().numpy() * width
    highest = max(float(np.max(some)) for some in (*shares, density))
    plot = Plot(Axis(bins.edges[0], bins.edges[-1], name), Axis(0, highest, "share"), name)
    plot.steps(bins.edges, shares[0], "one", "data", filled=True)
    plot.steps(bins.edges, shares[1], "two", "samples").line(places, density, "ink", "density")
    return Card("Data, samples and density", plot.svg())


def _sheet(rows: Tensor, image: tuple[int, int, int], name: str) -> Card:
    shown = sheet(rows[:48].reshape(-1, *image), 8)
    return Card(name, charts.image(png_bytes(shown, max(1, 320 // shown.shape[1])), shown, name))
