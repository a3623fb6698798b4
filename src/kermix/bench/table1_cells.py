"""A cell of the classification table: its settings, its training, its record."""

import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from kermix.data.labelled import LabelledImages
from kermix.records import environment, write_json
from kermix.training.augmentation import Augmentation
from kermix.training.classification import ClassifierTrainer
from kermix.training.classifier_settings import ClassifierSettings

__all__ = [
    "PATCHES",
    "RATE_BEFORE",
    "cell_settings",
    "command_of",
    "hold_out",
    "merge",
    "train_cell",
]

PATCHES = (1, 3, 5, 7)
KEY = ("dataset", "model", "patch", "seed", "augmentation", "variant")
# What serves each set as far as it was compared; a record holds the settings that it had.
COMMON: dict[str, Any] = {"evaluate_every": 0}
PRODUCT: dict[str, dict[str, Any]] = {
    "mnist": {"stride": 2, "optimizer": "muon", "rate": 0.01, "epochs": 25},
    "cifar10": {
        "stride": 2,
        "optimizer": "muon",
        "rate": 0.01,
        "anchor_grid": 8,
        "output_width": 2048,
        "epochs": 60,
    },
}
# A pixel is one to three numbers: all depends on the output's anchors.
PIXELS: dict[str, Any] = {
    "stride": 1, "width": 64, "batch": 256, "rate": 0.02, "score_rate": 0.03, "epochs": 30,
}  # fmt: skip
BY_PATCH: dict[tuple[str, int], dict[str, Any]] = {
    ("mnist", 1): {
        **PIXELS,
        "depth": 1,
        "output_width": 1024,
        "image_anchors": True,
        "weight_decay": 0.1,
    },
    ("cifar10", 1): {**PIXELS, "depth": 2, "anchor_grid": 16, "weight_decay": 0.05},
    # As many positions in a step as with stride 2, but all of them count in the end.
    ("cifar10", 3): {"stride": 1, "positions": 0.25},
}
CNN: dict[str, dict[str, Any]] = {
    "mnist": {"weight_decay": 0.05, "epochs": 8},
    "cifar10": {"weight_decay": 0.05, "epochs": 70},
}
AUGMENTATION: dict[str, dict[str, Any]] = {
    "mnist": {"shift": 2, "rotation": 10.0, "zoom": 0.1},
    "cifar10": {"shift": 4, "flip": True, "flip_at_test": True, "colour": 0.2},
    "digits": {"shift": 1},
}
OTHER_AUGMENTATION: dict[tuple[str, int | None], dict[str, Any]] = {
    # Rotated images have grey pixels where the others have none, which a pixel's features see.
    ("mnist", 1): {"shift": 1, "rotation": 0.0, "zoom": 0.0},
    ("cifar10", 1): {"shift": 3, "colour": 0.0},
    ("cifar10", 5): {"rotation": 10.0, "zoom": 0.15},
    ("cifar10", 7): {"rotation": 10.0, "zoom": 0.15},
    ("cifar10", None): {"cutout": 8, "colour": 0.0},
}
# The same images again and again are soon known by heart.
PLAIN: dict[str, dict[str, Any]] = {"mnist": {"epochs": 10}, "cifar10": {"epochs": 15}}
# Patches of which a part is left out in turn are not; single pixels are needed all.
PLAIN_PATCHES: dict[str, dict[str, Any]] = {
    "mnist": {"stride": 1, "positions": 0.25},
    "cifar10": {"stride": 1, "positions": 0.1, "epochs": 30},
}
RATE_BEFORE = 0.005  # what no rate meant when the first records were written
NONE = {field.name: field.default for field in fields(Augmentation)}


def cell_settings(
    dataset: str, model: str, patch: int | None, augmented: bool = True
) -> ClassifierSettings:
    """The settings of a cell of the table, with seed 0.

    Example:
        >>> cell_settings("mnist", "gaussian-product", 3).patch
        3
    """
    options: dict[str, Any] = {**COMMON, "model": model}
    if model == "cnn":
        patch = None  # it has none, whatever was said
        options |= CNN.get(dataset, {})
    else:
        assert patch is not None
        options |= PRODUCT.get(dataset, {}) | {"patch": patch}
        options |= BY_PATCH.get((dataset, patch), {})
    if augmented:
        options |= AUGMENTATION.get(dataset, {}) | OTHER_AUGMENTATION.get((dataset, patch), {})
    else:
        options |= PLAIN.get(dataset, {}) | NONE
        options |= PLAIN_PATCHES.get(dataset, {}) if patch not in (None, 1) else {}
    return ClassifierSettings(**options)


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
    trainer = ClassifierTrainer(train, test, settings, device=device, precision=precision)
    start = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - start
    on_test, on_train = trainer.evaluate(), trainer.evaluate(train)
    plain = replace(settings, flip_at_test=False)
    once = on_test if plain == settings else _with(trainer, plain)
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
        "parameters": trainer.model.parameter_count,
        "command": found["command"],
        "machine": found["machine"],
        "versions": found["versions"],
        "commit": found["commit"],
        "processes": processes,
        "notes": [*train.notes],
        "settings": {**settings.as_json(), "rate": settings.peak_rate},
        "history": [[round(r["loss"], 4), round(r["train_accuracy"], 4)] for r in trainer.history],
    }


def hold_out(train: LabelledImages, count: int) -> tuple[LabelledImages, LabelledImages]:
    """Split training images, so that settings can be compared without the test images.

    Example:
        >>> from kermix.data.labelled import load_labelled
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


def _with(trainer: ClassifierTrainer, settings: ClassifierSettings) -> Any:
    kept, trainer.settings = trainer.settings, settings
    try:
        return trainer.evaluate()
    finally:
        trainer.settings = kept


def command_of(record: dict[str, Any]) -> str:
    """What trains the cell of a record again, with three seeds."""
    augmented = record["augmentation"] != "none"
    model, patch = record["model"], record["patch"]
    today = cell_settings(record["dataset"], model, patch, augmented)
    base = {**today.as_json(), "rate": today.peak_rate}
    wanted = ClassifierSettings.from_json(record["settings"]).as_json()
    if wanted["rate"] is None:
        wanted["rate"] = RATE_BEFORE
    changed = [n for n in base if n not in ("seed", "model", "patch") and wanted[n] != base[n]]
    return " ".join(
        [
            f"python -m kermix.bench.table1 --dataset {record['dataset']} --model {model}",
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
