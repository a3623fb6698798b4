"""The page about a fit of rows, and its figure."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from kermix.data.loading import Dataset
from kermix.files import whole_file
from kermix.mixtures.mixture import GaussianMixture
from kermix.reports.described import DescribedRun, add_machine
from kermix.reports.fit_figures import curves_figure, fit_figure
from kermix.reports.page import Report, png_of
from kermix.training.build import Split

__all__ = ["of_rows", "write_fit_report"]


def of_rows(metric: str, split: Split) -> str:
    """A metric's name with the rows that it is of."""
    return f"held-out {metric}" if split.apart else f"{metric} of the rows fitted"


def write_fit_report(
    run: DescribedRun,
    rows: Sequence[tuple[str, str]],
    dataset: Dataset,
    split: Split,
    samples: Tensor,
    mixture: GaussianMixture,
    history: list[dict[str, float]],
) -> None:
    """Write `figure.png` and `report.html`: numbers, data and model, how to repeat it."""
    figure = fit_figure(split.train, samples, mixture, dataset.columns, dataset.image)
    picture = png_of(figure)
    with whole_file(run.folder / "figure.png") as part:
        part.write_bytes(picture)
    settings = run.settings
    metric = "NLL" if settings.is_mixture else "energy distance"
    best = min(row["metric"] for row in history)
    curves = curves_figure(history, of_rows(metric, split), best, split.apart)
    page = Report(
        f"Fit of {Path(run.config['data']).name}",
        f"A {settings.model} model trained with the {settings.cost} cost by kermix "
        f"{run.config['kermix']}.",
    )
    page.table(("", ""), rows)
    for note in run.config.get("notes", []):
        page.text(note)
    page.heading("Data and model")
    page.image(picture, "The data, samples of the model and, in two dimensions, its density.")
    page.heading("Training")
    which = "held out" if split.apart else "fitted"
    page.figure(curves, f"Left: the metric, {which}. Right: the loss.")
    page.heading("Repeat it")
    page.code(run.command())
    page.text("More samples, and the log-density of other rows:")
    folder = shlex.quote(str(run.folder))
    page.code(f"kermix sample {folder} -n 1000 -o more.npy\nkermix score {folder} rows.csv")
    page.heading("Settings")
    found = {
        "variance": run.config["variance"]["end"],
        "learning_rate": settings.peak_rate,
        "start_variance": run.config["variance"]["start"],
    }
    page.table(("setting", "value"), list({**settings.as_json(), **found}.items()))
    add_machine(page, run)
    page.save(run.folder / "report.html")
