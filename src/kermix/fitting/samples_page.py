"""The report page of a fit of rows: data against samples, the density, how training went."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from kermix.data.dataset import Dataset
from kermix.mixtures.mixture import GaussianMixture
from kermix.pages import charts
from kermix.pages.page import Card, save_charts
from kermix.pages.plot import Axis, Plot
from kermix.pages.sheets import grid_over, png_bytes, sheet
from kermix.runs.run import Numbers, Run
from kermix.training.loop import Row
from kermix.training.samples_task import Split

__all__ = ["FitQuality", "sample_charts", "write_fit_report"]

SHOWN_POINTS, SHOWN_IMAGES = 2000, 48
MANY_CENTRES = 500


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
    few = min(SHOWN_POINTS, len(data), len(samples))  # as many of each
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
    shown = sheet(rows[:SHOWN_IMAGES].reshape(-1, *image), 8)
    return Card(name, charts.picture(png_bytes(shown, max(1, 320 // shown.shape[1])), shown, name))
