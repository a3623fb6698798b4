"""Generators of images: all costs on MNIST, stacked MNIST and CIFAR-10, and where a cost acts.

`python -m benchmarks.images --task mnist --data-root FOLDER`. Within a task all methods have the
same network, the same autoencoder and the same number of steps. Tasks:

- mnist: class-conditional; classifiers trained on 60,000 samples, tested on real images
- stacked: three digits as channels: modes and their balance of 26,000 samples
- cifar10: class-conditional; distances in the features of a classifier trained here
- spaces: MNIST, SVD cost in the space of pixels, coarse pixels, random features, codes, several

`scripts/images-on-gpu.sh` runs all of them side by side on one GPU, in about ten minutes.
`--scale small` has narrower networks, for a machine without one: about ten minutes for `mnist`
with `--methods "references;mixture svd+em"`, as long for `stacked`, on two cores; `--scale medium`
is in between, for stacked MNIST on two cores.
"""

import argparse
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.image_tools import Real, classifier_of, distances, encoder_of, read, train
from benchmarks.images_page import sheet_name, write_images_page
from benchmarks.quality import write_record
from kermix.data.loading import stacked_mnist
from kermix.environment import environment, machine_name
from kermix.errors import OptionError
from kermix.files import write_json
from kermix.images.image_quality import parzen, stacked_modes, train_on_synthetic
from kermix.pages.sheets import save_png, sheet
from kermix.training.fit_settings import FitSettings

__all__ = ["METHODS", "SCALES", "SETTINGS", "TASKS", "join", "main", "run", "run_task"]

PAPER = ("svd", "scalar", "vector", "matrix")
DEBIASED = ", debiased"
COSTS = (*PAPER, *(cost + DEBIASED for cost in PAPER), "mmd", "energy", "sinkhorn")
TASKS = ("mnist", "stacked", "cifar10", "spaces")
SETTINGS = {
    "mnist": FitSettings(model="codes", code=16, batch_size=5000, steps=2000),
    "stacked": FitSettings(
        model="codes", code=48, by_channel=True, spaces=("codes", "channels"), batch_size=2000,
        steps=1500, hidden=1024, noise=64,
    ),
    "cifar10": FitSettings(
        model="codes", code=128, width=256, code_noise=0.1, encoder_steps=3000, batch_size=2500,
        steps=1000, hidden=1024, noise=128,
    ),
    "spaces": FitSettings(code=16, batch_size=2000, steps=1000, model="conv", debias=False),
}  # fmt: skip
MIXTURE: dict[str, dict[str, Any]] = {
    "mnist": {"model": "code-mixture", "components": 2000},
    "stacked": {"model": "code-mixture", "components": 4000, "steps": 100, "spaces": ("codes",)},
}
PRODUCTS: dict[str, Any] = {
    "model": "code-mixture",
    "components": 2000,
    "groups": 10,
    "steps": 100,
}
SPACES = {
    "pixels": ("pixels",),
    "coarse": ("coarse",),
    "random": ("random",),
    "codes": ("codes",),
    "several": ("coarse", "random", "codes"),
}
METHODS = {
    "mnist": (*COSTS, "mixture svd", "mixture svd+em"),
    "stacked": (
        "svd",
        "svd, debiased",
        "mixture svd",
        "mixture svd+em",
        "mixture em",
        "mixture svd+em of 16000",
        "mixture em of 16000",
        "products svd+em",
        "products em",
    ),
    "cifar10": tuple(cost for cost in COSTS if cost != "energy"),
    "spaces": (*SPACES, "codes, decoded"),
}
REFERENCES = "references"
SYNTHETIC, STACKED_SAMPLES, CIFAR_SAMPLES = 60_000, 26_000, 10_000
Row = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Attributes:
        settings: What is changed of a task's settings.
        components: Components of mixtures; None keeps those of the task.
        passes: Of expectation-maximization.
        judge: Epochs and width of the classifier that measures.
        students: Epochs and width of the classifiers that learn from samples.
        most: Images and samples; None keeps those of the task.
    """

    settings: dict[str, Any]
    components: int | None
    passes: int
    judge: tuple[int, int] | None
    students: tuple[int, int]
    most: int | None = None


SCALES = {
    "full": Scale({}, None, 25, None, (5, 32)),
    "medium": Scale(
        {"encoder_steps": 2500, "encoder_batch": 128, "steps": 300, "batch_size": 1000,
         "width": 64, "hidden": 256},
        None, 15, (6, 24), (4, 16),
    ),
    "small": Scale(
        {"encoder_steps": 1500, "encoder_batch": 128, "steps": 300, "batch_size": 1000,
         "width": 32, "hidden": 256},
        None, 15, (4, 16), (4, 16),
    ),
    "quick": Scale(
        {"encoder_steps": 10, "steps": 5, "batch_size": 100, "width": 16, "hidden": 64},
        50, 2, (1, 8), (1, 8), 300,
    ),
}  # fmt: skip
CLASSIFIERS = {"mnist": (8, 32, False), "cifar10": (15, 64, True)}


def settings_of(task: str, method: str, scale: Scale) -> FitSettings:
    """What a method of a task is trained with."""
    settings = replace(SETTINGS[task], **scale.settings)
    if task == "spaces":
        if method == "codes, decoded":
            return replace(settings, model="codes")
        return replace(settings, spaces=SPACES[method])  # type: ignore[arg-type]
    kind, _, way = method.partition(" ")
    if kind not in ("mixture", "products"):
        cost = method.removesuffix(DEBIASED)
        return replace(settings, cost=cost, debias=method != cost)  # type: ignore[arg-type]
    mixture = {"steps": settings.steps, **(PRODUCTS if kind == "products" else MIXTURE[task])}
    way, _, components = way.partition(" of ")
    mixture["steps"] = 0 if way == "em" else min(mixture["steps"], settings.steps)
    mixture["refine_steps"] = scale.passes if way.endswith("em") else 0
    if components:
        mixture["components"] = int(components)
    if scale.components is not None:
        mixture["components"] = scale.components
    return replace(settings, **mixture)


def run_task(
    task: str,
    methods: Sequence[str],
    *,
    data_root: Path | None = None,
    device: str = "auto",
    work: Path | None = None,
    pictures: Path | None = None,
    scale: str = "full",
    on_row: Callable[[list[Row]], None] = lambda rows: None,
) -> list[Row]:
    """The table of one task.

    Args:
        task: One of `TASKS`.
        methods: Some of `METHODS` of the task, and "references": the real images and what
            the autoencoder makes of them; none trains only what they share.
        data_root: Where the files of MNIST and CIFAR-10 are.
        device: Where to train.
        work: Folder that keeps the autoencoder and classifier for other processes.
        pictures: Folder for sheets of samples.
        scale: One of `SCALES`; "quick" shows only that it works, on a few images.
        on_row: Called with the table after each new row.
    """
    unknown = [m for m in methods if m not in (*METHODS[task], REFERENCES)]
    if unknown:
        raise OptionError(f"{unknown[0]!r}: {task} has the methods {', '.join(METHODS[task])}.")
    size = SCALES[scale]
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = where if device == "auto" else torch.device(device)
    source = "cifar10" if task == "cifar10" else "mnist"
    real = read(source, data_root, where, size.most)

    def path(name: str) -> Path | None:
        return None if work is None else work / f"{name}.safetensors"

    epochs, width, flips = CLASSIFIERS[source]
    epochs, width = size.judge or (epochs, width)
    classifier, judge = classifier_of(real, epochs, width, flips, path(f"{source}-classifier"))
    shared = settings_of(task, METHODS[task][0], size)
    frequencies = torch.bincount(torch.from_numpy(real.train.labels)).double()
    if task == "stacked":
        made = stacked_mnist(real.train.images, real.train.labels, size.most or 128_000, seed=0)
        held = stacked_mnist(*real.held_out, size.most or 2000, seed=1)
        one_class = replace(made, labels=np.zeros(len(made), np.int64), classes=("",))
        real = replace(real, train=one_class,
                       held_out=(held.images, np.zeros(len(held), np.int64)))  # fmt: skip
    autoencoder, coded = encoder_of(real, replace(shared, spaces=("codes",)), path(f"{source}-ae"))

    def judged(images: Tensor, labels: Tensor) -> Row:
        if task == "stacked":
            return asdict(stacked_modes(classifier, images, frequencies))
        found: Row = {}
        if task != "cifar10":
            scores = train_on_synthetic(
                images, labels, real.images, real.labels, epochs=size.students[0],
                width=size.students[1],
            )  # fmt: skip
            found |= {f"{name}_accuracy": score for name, score in scores.items()}
        found |= distances(real, classifier, images)
        if task == "mnist":
            flat, tenth = real.images.flatten(1), len(real.images) // 10
            found["parzen"] = parzen(images[:10_000].flatten(1), flat[:tenth], flat[tenth:])[0]
        return found

    n = {"stacked": STACKED_SAMPLES, "cifar10": CIFAR_SAMPLES}.get(task, SYNTHETIC)
    n = size.most or n
    table: list[Row] = []
    if REFERENCES in methods:
        for name, images, labels in _references(real, autoencoder, n, task):
            table.append({"method": name, "a_sample_is": "", **judged(images, labels)})
            on_row(table)
    for method in (m for m in methods if m != REFERENCES):
        settings = settings_of(task, method, size)
        trainer, seconds = train(real, settings, autoencoder)
        generator = torch.Generator(where).manual_seed(1)
        drawn = trainer.model.sample(n, generator)
        mixture = trainer.model.is_mixture
        table.append({
            "method": method,
            "a_sample_is": "centre + learned noise" if mixture else "centre",
            **judged(drawn.images, drawn.labels),
            "held_out_energy_of_codes": trainer.task.metric(),
            "steps": settings.steps + settings.refine_steps,
            "seconds": seconds,
            "raw_judge": judge,
            "raw_autoencoder": coded,
        })  # fmt: skip
        on_row(table)
        if pictures is not None:
            classes = torch.arange(len(real.train.classes), device=where)
            columns = classes.repeat(100)[:100] if len(classes) > 1 else None
            shown = trainer.model.sample(100, generator, columns).images
            save_png(sheet(shown), pictures / f"{sheet_name(task, method)}.png")
    return table


def _references(
    real: Real, autoencoder: Any, n: int, task: str
) -> list[tuple[str, Tensor, Tensor]]:
    """Real images, and what the autoencoder makes of them: what to expect at best."""
    images, labels = real.train_tensors(n)
    found = [("real training images", images, labels)]
    if task != "spaces":
        with torch.no_grad():
            again = [autoencoder.decode(autoencoder.encode(i)) for i in images.split(4096)]
        found.append(("their reconstructions", torch.cat(again), labels))
    return found


def protocol_of(task: str, scale: str) -> dict[str, Any]:
    """What all methods of a task share."""
    return {
        "task": task,
        "scale": {"name": scale, **asdict(SCALES[scale])},
        "setting": SETTINGS[task].as_json(),
        "mixture": MIXTURE.get(task, {}),
        **({"products": PRODUCTS} if task == "stacked" else {}),
        "runs": 1,
    }


def join(parts: Sequence[Path], out: Path) -> Path:
    """One result file from those of several processes that shared the methods of a task."""
    records = [json.loads(part.read_text()) for part in parts]
    first = records[0]
    table = [row for record in records for row in record["tables"][first["protocol"]["task"]]]
    commands = [record["command"] for record in records]
    joined = {**first, "command": " & ".join(commands)}
    joined["tables"] = {first["protocol"]["task"]: table}
    return write_json(out, joined)


def run(quick: bool = False) -> dict[str, list[Row]]:
    """All tasks; the environment variable KERMIX_DATA says where MNIST and CIFAR-10 are."""
    root = os.environ.get("KERMIX_DATA")
    return {
        task: run_task(
            task,
            (REFERENCES, *METHODS[task]),
            data_root=None if root is None else Path(root),
            scale="quick" if quick else "full",
        )
        for task in TASKS
    }


def main(arguments: Sequence[str] | None = None) -> Path:
    """Run one task; write its result file after each row, and its sheets of samples."""
    parser = argparse.ArgumentParser(
        "benchmarks.images", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--task", choices=TASKS, default="mnist")
    parser.add_argument("--methods", help="names with semicolons between; 'none' prepares only")
    parser.add_argument("--data-root", type=Path, help="where the files of the sets are")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--work", type=Path, help="folder for what several processes share")
    parser.add_argument("--images", type=Path, default=Path("results/images"))
    parser.add_argument("--scale", choices=list(SCALES), default="full")
    parser.add_argument("--join", type=Path, nargs="+", help="result files to join into one")
    parser.add_argument("--page", type=Path, help="only write this page, from results/")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    if given.page is not None:
        return write_images_page(Path("results"), given.page)
    out = given.out or Path("results/bench") / f"images-{given.task}-{machine_name()}.json"
    if given.join:
        return join(given.join, out)
    methods: tuple[str, ...] = (REFERENCES, *METHODS[given.task])
    if given.methods is not None:
        methods = tuple(m for m in given.methods.split(";") if m != "none")
    quick, protocol = given.scale == "quick", protocol_of(given.task, given.scale)
    record = {"benchmark": "images", "quick": quick, **environment(), "protocol": protocol}

    def keep(rows: list[Row]) -> None:
        write_json(out, {**record, "tables": {given.task: rows}})

    table = run_task(
        given.task,
        methods,
        data_root=given.data_root,
        device=given.device,
        work=given.work,
        pictures=given.images,
        scale=given.scale,
        on_row=keep,
    )
    if not table:
        return out
    tables = {given.task: table}
    return write_record("images", out, tables, protocol, shown=given.task, quick=quick)


if __name__ == "__main__":
    main()
