"""The part of `kermix fit`, `resume` and `sample` that is about images."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import typer
from rich.console import Console

from kermix.cli.output import check_output, end_stopped_run, print_notes, resumable, show_run
from kermix.data.loading import Dataset
from kermix.errors import OptionError
from kermix.files import whole_file

__all__ = ["fit_images", "resume_images", "sample_images", "typed_options", "wants_images"]

console = Console()

LOADING = ("rows", "data_root", "size")
ELSEWHERE = (*LOADING, "data", "device", "precision", "out", "quick")


def wants_images(dataset: Dataset, model: str | None, cost: str) -> bool:
    """Whether data are fitted as images: they are some, and no model of rows is asked for."""
    from kermix.runs.image_run import MODEL_OPTIONS, suits_images

    if model is not None and model not in MODEL_OPTIONS.values():
        return False
    return suits_images(dataset) and cost != "likelihood"


def typed_options(context: typer.Context) -> dict[str, Any]:
    """The options that the user typed, by name."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    typed = [n for n, source in sources.items() if source and source.name == "COMMANDLINE"]
    return {name: context.params[name] for name in typed}


def fit_images(dataset: Dataset, typed: dict[str, Any]) -> None:
    """Fit a model of images: train, draw samples, write a report."""
    from kermix.runs.folder import next_free_folder
    from kermix.runs.image_run import ASKED, MODEL_OPTIONS, ImageRun
    from kermix.training.image_settings import ImageSettings

    source = typed.get("data", dataset.name)
    chosen = {name: value for name, value in typed.items() if name not in ELSEWHERE}
    unused = sorted(set(chosen) - set(ASKED))
    if unused:
        raise OptionError(
            f"--{unused[0].replace('_', '-')} does not apply to a fit of images; these take "
            f"{', '.join('--' + name.replace('_', '-') for name in ASKED)}."
        )
    if "model" in chosen:
        chosen["model"] = {v: k for k, v in MODEL_OPTIONS.items()}[chosen["model"]]
    for name, kind in (("spread", float), ("spaces", str)):
        if name in chosen:
            chosen[name] = _parts(name, chosen[name], kind)
    assert dataset.image is not None
    settings = ImageSettings.for_images(dataset.name, dataset.image)
    if chosen.get("model") == "mixture":
        settings = replace(settings, spaces=("codes",), model="mixture", polish=25)
    quick = bool(typed.get("quick"))
    settings = replace(settings.quick() if quick else settings, **chosen)
    print_notes(dataset.notes)
    folder = typed.get("out") or next_free_folder(dataset.name.replace(":", "-"))
    options = {name: typed[name] for name in LOADING if typed.get(name) is not None}
    if "data_root" in options:
        options["data_root"] = str(Path(options["data_root"]).resolve())
    run = ImageRun.create(
        folder, source, dataset, settings, quick=quick, options=options,
        device=typed.get("device", "auto"), precision=typed.get("precision", "32-true"),
    )  # fmt: skip
    with resumable(run.folder):
        _train_and_finish(run, dataset)


def resume_images(folder: Path) -> None:
    """Go on with a run of images from its last checkpoint."""
    from kermix.runs.image_run import ImageRun

    run = ImageRun.open(folder)
    with resumable(folder):
        _train_and_finish(run, run.dataset())


def _train_and_finish(run: Any, dataset: Dataset) -> None:
    from kermix.runs.interruptions import interruptions
    from kermix.training.progress import live_progress

    trainer = run.trainer(dataset)
    print_notes(run.notes(trainer))
    with interruptions() as interrupted, live_progress(trainer, "energy", console) as live:
        finished = run.train(
            trainer, on_step=live.on_step, on_report=live.on_report, should_stop=interrupted
        )
    if not finished:
        end_stopped_run(run.folder, trainer.step)
    show_run(run.finish(trainer), run.folder)


def sample_images(folder: Path, out: Path, n: int, seed: int, label: str | None) -> None:
    """Write images of a run: a sheet (.png), or bytes (n, c, h, w) with their classes (.npz)."""
    import torch

    from kermix.reports.image_sheets import save_png, sheet
    from kermix.runs.image_run import ImageRun

    run = ImageRun.open(folder)
    check_output(out, ".png", ".npy", ".npz")
    labels, classes = None, run.config["classes"]
    if label is not None:
        if label not in classes:
            known = ", ".join(classes) or "none"
            raise OptionError(f"--label {label}: the classes of this run are {known}.")
        labels = torch.full((n,), classes.index(label))
    drawn = run.sample(n, seed, labels)
    if out.suffix.lower() == ".png":
        save_png(sheet(drawn.images), out)
        return
    images = drawn.images.mul(255).round().byte().numpy()
    with whole_file(out) as part, part.open("wb") as file:
        if out.suffix.lower() == ".npy":
            np.save(file, images)
        else:
            np.savez_compressed(file, images=images, labels=drawn.labels.numpy())


def _parts(name: str, text: str, kind: type) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--{name} {text}: numbers with commas between, as 1,10,100.") from None
