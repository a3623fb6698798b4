"""Table 1: accuracy of the Gaussian-product network by patch size, and of a CNN.

With a folder of MNIST and CIFAR-10 the cells are trained as in `benchmarks.table1`, which asks
for a GPU. Without one, small networks are trained on scikit-learn's digits, of which the paper
says nothing: the claims are then judged on these, and it is said so. What
`results/table1.json` holds is shown beside, if there is such a file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any, TypeAlias

from kermix.data.images.labelled import LabelledImages, load_labelled
from kermix.errors import DownloadError, ImageError
from kermix.paper.artefact import Artefact, Rows, Tick, ignore
from kermix.paper.claims import Claim
from kermix.paper.drawing import BLUE, GREY, INK_COLOUR, ORANGE, sheet
from kermix.paper.table_cells import PATCHES, train_cell
from kermix.training.classifier_settings import ClassifierSettings
from kermix.training.presets import preset

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["PAPER", "claims", "recorded", "run"]

Accuracies: TypeAlias = Mapping[str, float]  # by column: a patch size, or "CNN"

COLUMNS = (*map(str, PATCHES), "CNN")
# Test accuracies of the paper's table; and, of training, those it gives beside them.
PAPER: dict[str, dict[str, float]] = {
    "mnist": dict(zip(COLUMNS, (0.974, 0.982, 0.988, 0.989, 0.990), strict=True)),
    "cifar10": dict(zip(COLUMNS, (0.600, 0.806, 0.819, 0.820, 0.908), strict=True)),
}
PAPER_TRAIN: dict[str, dict[str, float]] = {
    "mnist": dict(zip(COLUMNS, (0.990, 0.998, 1.000, 1.000, 1.000), strict=True)),
    "cifar10": dict(zip(COLUMNS, (0.899, 0.997, 0.998, 0.998, 0.999), strict=True)),
}
NAMES = {"mnist": "MNIST", "cifar10": "CIFAR-10", "digits": "digits (8 x 8)"}
# How far the best patch may stay behind the CNN: the paper's own gap, rounded up.
GAPS = {"mnist": 0.005, "cifar10": 0.1, "digits": 0.05}
RECORDED = Path("results/table1.json")
QUICK_IMAGES = 2000


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    seeds: int | None = None,
    columns: Sequence[str] = COLUMNS,
    record: Path | None = None,
    **changes: Any,
) -> Artefact:
    """Compute the table.

    Args:
        quick: Whether to train small networks for few epochs, one seed.
        data_root: Folder of MNIST and CIFAR-10; without it, digits.
        tick: Called with the share that is done.
        seeds: Networks for each cell.
        columns: Which cells.
        record: A file of earlier results to show beside; by default `results/table1.json` here or
            in the checkout, if there is one.
        changes: Settings of the networks to change.
    """
    seeds = seeds or (1 if quick else 3)
    sets, missing = _read(data_root)
    rows: Rows = []
    total = len(sets) * len(columns) * seeds
    for name, (train, test) in sets.items():
        if quick:
            train, test = _fewer(train), _fewer(test)
        for column in columns:
            settings = replace(_settings(name, column, quick), **changes)
            for seed in range(seeds):
                cell = train_cell(train, test, replace(settings, seed=seed))
                kept = ("train_accuracy", "test_accuracy", "epochs", "parameters",
                        "augmentation", "seconds")  # fmt: skip
                shown = {key: cell[key] for key in kept}
                rows.append({"dataset": name, "column": column, "seed": seed, **shown})
                tick(len(rows) / total)
    found = {name: {c: _mean(rows, name, c, "test_accuracy") for c in columns} for name in sets}
    beside, source = recorded(record)
    settings = _settings(next(iter(sets)), "1", quick)
    return Artefact(
        name="table-classification",
        title="Table 1: classification",
        caption="Test accuracy by patch size: Gaussian-product networks of this run (filled), the "
        "paper's (hollow), and those of an earlier, recorded run (diamonds) where there is one. "
        "Dashed: the CNN of the same source.",
        figure=_figure(found, beside),
        settings={
            "sets": list(sets), "seeds": seeds, "quick": quick, "width": settings.width,
            "depth": settings.depth, "output width": settings.output_width,
            "images": "at most 2000 of each part" if quick else "all",
            "recorded": source,
        },
        tables={"accuracy": _table(rows, list(sets), columns, beside), "cells": rows},
        claims=[c for name in sets for c in claims(name, found[name])]
        + [c for name in PAPER if name not in sets and set(beside.get(name, {})) >= set(COLUMNS)
           for c in claims(name, beside[name], f", {source}")],
        notes=[
            *missing, *(note for train, _ in sets.values() for note in train.notes),
            *_notes(data_root is None, quick, source),
        ],
    )  # fmt: skip


def claims(dataset: str, accuracy: Accuracies, source: str = "") -> list[Claim]:
    """Judge what the paper says of its table, for one data set.

    Args:
        dataset: Its name; for MNIST and CIFAR-10 the paper's own numbers count too.
        accuracy: Test accuracy by column.
        source: Where they come from, if not from this run.
    """
    name = NAMES.get(dataset, dataset) + source
    patches = [c for c in COLUMNS[:-1] if c in accuracy]
    best = max(accuracy[c] for c in patches)
    numbers = {f"patch {c}": accuracy[c] for c in patches} | {"CNN": accuracy["CNN"]}
    gap = GAPS.get(dataset, 0.05)
    found = [
        Claim(
            f"Accuracy is high even with pixel-level feature projections ({name}).",
            "patch 1 reaches the paper's test accuracy" if dataset in PAPER
            else "patch 1 is at least 0.8, where chance is 0.1",
            {"patch 1": accuracy["1"]}
            | ({"paper": PAPER[dataset]["1"]} if dataset in PAPER else {}),
            accuracy["1"] >= (PAPER[dataset]["1"] if dataset in PAPER else 0.8),
        ),
        Claim(
            f"Patches are more accurate than pixels ({name}).",
            "every larger patch has a higher test accuracy than patch 1",
            numbers,
            all(accuracy[c] > accuracy["1"] for c in patches if c != "1"),
        ),
        Claim(
            f"With patches the network is competitive with a CNN ({name}).",
            f"the best patch is at most {gap:g} below the CNN",
            {"best patch": best, "CNN": accuracy["CNN"]},
            best >= accuracy["CNN"] - gap,
        ),
    ]  # fmt: skip
    if dataset in PAPER:
        paper = {c: PAPER[dataset][c] for c in patches}
        found.append(
            Claim(
                f"The table's accuracies ({name}).",
                "each patch size reaches the paper's test accuracy, less 0.005",
                numbers | {f"paper {c}": value for c, value in paper.items()},
                all(accuracy[c] >= paper[c] - 0.005 for c in patches),
            )
        )
    return found


def recorded(path: Path | None = None) -> tuple[dict[str, dict[str, float]], str]:
    """Mean test accuracies by set and column of the recorded runs, and which file it was.

    Of several augmentations of one cell, the one with the most seeds counts, and of these the
    most accurate.
    """
    places = [path] if path else [RECORDED, Path(__file__).parents[3] / RECORDED]
    file = next((p for p in places if p.is_file()), None)
    if file is None:
        return {}, "none"
    groups: dict[tuple[str, str, str], list[float]] = {}
    for cell in json.loads(file.read_text()):
        if cell["variant"]:
            continue
        column = "CNN" if cell["model"] == "cnn" else str(cell["patch"])
        key = (cell["dataset"], column, cell["augmentation"])
        groups.setdefault(key, []).append(cell["test_accuracy"])
    found: dict[str, dict[str, float]] = {}
    for (dataset, column, _), values in sorted(
        groups.items(), key=lambda item: (len(item[1]), mean(item[1]))
    ):
        found.setdefault(dataset, {})[column] = mean(values)
    return found, str(RECORDED)


def _read(
    data_root: Path | None,
) -> tuple[dict[str, tuple[LabelledImages, LabelledImages]], list[str]]:
    """Training and test images of each set that is there, and what is said of the others.

    A set that is not in the folder is downloaded; without a network it is left out.
    """
    found, missing = {}, []
    for name in ("digits",) if data_root is None else tuple(PAPER):
        try:
            train, test = (load_labelled(name, s, data_root=data_root) for s in ("train", "test"))
        except (DownloadError, ImageError) as error:
            missing.append(f"{NAMES[name]} is left out: {error}")
            continue
        found[name] = (train, test)
    if not found:
        raise ImageError(" ".join(missing))
    return found, missing


def _settings(dataset: str, column: str, quick: bool) -> ClassifierSettings:
    cnn = column == "CNN"
    settings = preset(dataset, "cnn" if cnn else "gaussian-product", None if cnn else int(column))
    if quick:
        return replace(settings, width=32, depth=2, output_width=64, batch_size=64,
                       epochs=4 if cnn else 15)  # fmt: skip
    if dataset == "digits":
        return replace(settings, width=64, depth=2, output_width=128, batch_size=64,
                       epochs=10 if cnn else 40)  # fmt: skip
    return settings


def _fewer(data: LabelledImages) -> LabelledImages:
    return replace(data, images=data.images[:QUICK_IMAGES], labels=data.labels[:QUICK_IMAGES])


def _mean(rows: Rows, dataset: str, column: str, key: str) -> float:
    return mean(r[key] for r in rows if r["dataset"] == dataset and r["column"] == column)


def _table(
    rows: Rows,
    sets: Sequence[str],
    columns: Sequence[str],
    beside: Mapping[str, Accuracies],
) -> Rows:
    """The table in the paper's form, long: a row for each set, column and source."""
    table: Rows = []
    for name in dict.fromkeys((*sets, *PAPER)):
        for column in columns:
            line: dict[str, Any] = {"dataset": name, "model": column}
            if name in sets:
                line["train"] = _mean(rows, name, column, "train_accuracy")
                line["test"] = _mean(rows, name, column, "test_accuracy")
            else:
                line["train"] = line["test"] = None
            line["recorded test"] = beside.get(name, {}).get(column)
            line["paper train"] = PAPER_TRAIN.get(name, {}).get(column)
            line["paper test"] = PAPER.get(name, {}).get(column)
            table.append(line)
    return table


def _notes(digits: bool, quick: bool, source: str) -> list[str]:
    notes = []
    if digits:
        notes.append(
            "No --data-root was given: small networks on scikit-learn's digits (8 x 8 pixels), "
            "not the paper's sets. The claims are judged on these."
        )
    elif quick:
        notes.append("Quick version: small networks, few images; not the table's accuracies.")
    if source != "none":
        notes.append(
            f"Beside it: what {source} holds, of an earlier run of benchmarks.table1. Claims "
            "judged on it say so."
        )
    return notes


def _figure(found: Mapping[str, Accuracies], beside: Mapping[str, Accuracies]) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys((*found, *PAPER)))
    figure, (panels,) = sheet(1, len(names), 2.6 * len(names) + 0.4, 2.9)
    for axes, name in zip(panels, names, strict=True):
        _series(axes, PAPER.get(name, {}), "paper", BLUE, "o", hollow=True)
        _series(axes, beside.get(name, {}), "recorded run", INK_COLOUR, "D")
        _series(axes, found.get(name, {}), "this run", ORANGE, "o")
        axes.set_title(NAMES.get(name, name), fontsize=8, color=INK_COLOUR)
        axes.set_xticks(range(len(PATCHES)), list(map(str, PATCHES)))
        axes.set_xlabel("patch size", fontsize=8)
        axes.yaxis.set_major_locator(MaxNLocator(6))
        axes.margins(x=0.12, y=0.15)
        axes.grid(axis="y", color=GREY, linewidth=0.5)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("test accuracy", fontsize=8)
    panels[0].plot([], [], color="#777777", linestyle="--", linewidth=0.9, label="CNN")
    handles = {
        label: handle
        for axes in panels
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=7,
        frameon=False,
    )  # fmt: skip
    return figure


def _series(
    axes: "Axes", values: Accuracies, label: str, colour: str, marker: str, hollow: bool = False
) -> None:
    places = [(i, values[str(p)]) for i, p in enumerate(PATCHES) if str(p) in values]
    if places:
        axes.plot(*zip(*places, strict=True), color=colour, marker=marker, markersize=5,
                  linewidth=1, label=label,
                  markerfacecolor="white" if hollow else colour)  # fmt: skip
    if "CNN" in values:
        axes.axhline(values["CNN"], color=colour, linestyle="--", linewidth=0.9)
