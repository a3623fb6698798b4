"""A cell of the classification table: its settings, its training, its record."""

import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kermix.data.images.labelled import LabelledImages
from kermix.reports.provenance import environment, write_json
from kermix.training.classification import ClassifierTask
from kermix.training.classifier_settings import ClassifierSettings
from kermix.training.loop import Trainer
from kermix.training.presets import preset

__all__ = [
    "AS_WRITTEN",
    "PATCHES",
    "RATE_BEFORE",
    "command_of",
    "hold_out",
    "merge",
    "train_cell",
]

PATCHES = (1, 3, 5, 7)
KEY = ("dataset", "model", "patch", "seed", "augmentation", "variant")
AS_WRITTEN = "as written"  # how the variant of Eqs. 25 to 27 to the letter begins
RATE_BEFORE = 0.005  # what no learning rate meant when the first records were written


def train_cell(
    train: LabelledImages,
    test: LabelledImages,
    settings: ClassifierSettings,
    *,
    variant: str = "",
    device: str = "auto",
    precision: str = "auto",
    processes: int = 1,
) -> dict[str, Any]:
    """Train once and describe it, as a record of the table."""
    torch.set_float32_matmul_precision("high")  # of the whitening, before any bfloat16
    task = ClassifierTask(train, test, settings)
    trainer = Trainer(task, device=device, precision=precision)
    start = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - start
    on_test, on_train = task.evaluate(), task.evaluate(train)
    plain = replace(settings, flip_at_test=False)
    once = on_test if plain == settings else _with(task, plain)
    found = environment()
    epochs = [row["seconds"] for row in trainer.history]
    return {
        "dataset": train.name,
        "model": settings.model,
        "patch": None if settings.model == "cnn" else settings.patch,
        "seed": settings.seed,
        "augmentation": str(settings.augmentation),
        "variant": variant,
        "evaluated_on": "test images" if "held out" not in test.name else test.name,
        "train_accuracy": round(on_train.accuracy, 5),
        "test_accuracy": round(on_test.accuracy, 5),
        "test_accuracy_one_view": round(once.accuracy, 5),
        "test_loss": on_test.loss,
        "epochs": settings.epochs,
        "train_images": len(train),
        "seconds": seconds,
        "seconds_per_epoch": statistics.median(epochs),
        "parameters": task.model.parameter_count,
        "command": found["command"],
        "machine": found["machine"],
        "versions": found["versions"],
        "commit": found["commit"],
        "processes": processes,
        "notes": [*train.notes],
        "settings": {**settings.as_json(), "learning_rate": settings.peak_rate},
        "history": [[round(r["loss"], 4), round(r["train_accuracy"], 4)] for r in trainer.history],
    }


def hold_out(train: LabelledImages, count: int) -> tuple[LabelledImages, LabelledImages]:
    """Split training images, so that settings can be compared without the test images.

    Example:
        >>> from kermix.data.images.labelled import load_labelled
        >>> rest, held_out = hold_out(load_labelled("digits", "train"), 100)
        >>> len(rest), len(held_out), held_out.name
        (1337, 100, '100 training images held out')
    """
    order = np.random.default_rng(0).permutation(len(train))
    few, many = np.sort(order[:count]), np.sort(order[count:])
    return (
        replace(train, images=train.images[many], labels=train.labels[many]),
        replace(
            train,
            name=f"{count} training images held out",
            images=train.images[few],
            labels=train.labels[few],
        ),
    )


def _with(task: ClassifierTask, settings: ClassifierSettings) -> Any:
    kept, task.settings = task.settings, settings
    try:
        return task.evaluate()
    finally:
        task.settings = kept


def command_of(record: dict[str, Any]) -> str:
    """What trains the cell of a record again, with three seeds."""
    augmented = record["augmentation"] != "none"
    model, patch = record["model"], record["patch"]
    today = preset(record["dataset"], model, patch, augmented)
    base = {**today.as_json(), "learning_rate": today.peak_rate}
    wanted = ClassifierSettings.from_json(record["settings"]).as_json()
    if wanted["learning_rate"] is None:
        wanted["learning_rate"] = RATE_BEFORE
    changed = [n for n in base if n not in ("seed", "model", "patch") and wanted[n] != base[n]]
    return " ".join(
        [
            f"python -m benchmarks.table1 --dataset {record['dataset']} --model {model}",
            *([] if patch is None else [f"--patch {patch}"]),
            "--seeds 0,1,2",
            *([] if augmented else ["--augmentation off"]),
            *(f"--set {name}={_text(wanted[name])}" for name in changed),
            "--data-root DATA",
        ]
    )


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else json.dumps(value)


def merge(path: Path, records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put records into a file; one with the same dataset, model, patch, seed, ... is replaced."""
    known = json.loads(path.read_text()) if path.exists() else []
    table = {_key(r): r for r in (*known, *records)}
    ordered = sorted(table.values(), key=lambda r: [str(r[name]) for name in KEY])
    write_json(path, ordered)
    return ordered


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    # A cell of the table has one number of epochs; settings are compared at several.
    compared = record["evaluated_on"] != "test images"
    extent = (record["epochs"], record.get("train_images")) if compared else None
    return (*(record[name] for name in KEY), extent)
