"""Table 1: accuracy of the Gaussian-product network by patch size, and of a CNN.

With a folder of MNIST and CIFAR-10 the cells are trained as in `benchmarks.table1`, which asks
for a GPU. Without one, small networks are trained on scikit-learn's digits, of which the paper
says nothing: the claims are then judged on these, and it is said so. What `results/table1.json`
and `results/table1-as-written.json` hold is shown beside, if there are such files, and what is in
the first is judged, too; the equations as they are written are judged in
`kermix.paper.as_written`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from kermix.data.images.labelled import LabelledImages, load_labelled
from kermix.errors import DownloadError, ImageError
from kermix.images.classifier_settings import preset
from kermix.paper.artefact import (
    BLUE,
    GREEN,
    GREY,
    INK_COLOUR,
    ORANGE,
    PINK,
    Artefact,
    Claim,
    Rows,
    Tick,
    ignore,
    read_record,
    sheet,
)
from kermix.paper.table_records import (
    AS_WRITTEN,
    COLUMNS,
    KINDS,
    NAMES,
    PAPER,
    PAPER_TRAIN,
    PATCHES,
    Accuracies,
    Recorded,
    claims,
    recorded,
    train_cell,
)
from kermix.paper.verdicts import of_seeds
from kermix.training.product_settings import ProductSettings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["judged", "run"]

SHOWN = ("train_accuracy", "test_accuracy", "epochs", "parameters", "augmentation", "seconds")
MARKS = ((INK_COLOUR, "D"), ("#777777", "D"), (GREEN, "s"), (PINK, "^"))  # of recorded runs


def run(
    quick: bool = False,
    *,
    data_root: Path | None = None,
    tick: Tick = ignore,
    seeds: int | None = None,
    columns: Sequence[str] = COLUMNS,
    cells: Path | None = None,
    records: Sequence[Path] | None = None,
    images: int | None = None,
    **changes: Any,
) -> Artefact:
    """Compute the table.

    Args:
        quick: Whether to train small networks for few epochs, one seed.
        data_root: Folder of MNIST and CIFAR-10; without it, digits.
        tick: Called with the share that is done.
        seeds: Networks for each cell.
        columns: Which cells.
        cells: A folder whose `table-classification.json` has the cells already, so that nothing is
            trained, and only what is recorded beside them is read anew.
        records: Files of earlier results to show beside; by default `results/table1.json` and
            `results/table1-as-written.json` here or in the checkout, if there are any.
        images: How many of each part, at most; of a quick table 2000.
        changes: Settings of the networks to change.
    """
    images = images or (2000 if quick else None)
    rows = _kept(cells)
    notes: list[str] = []
    if rows:
        columns = tuple(dict.fromkeys(row["column"] for row in rows))
    else:
        data, notes = _read(data_root, images)
        rows = _trained(data, columns, seeds or (1 if quick else 3), quick, changes, tick)
    settings = {
        "quick": quick,
        "images": "all" if images is None else f"at most {images} of each part",
    }
    return _artefact(rows, columns, settings, notes, recorded(records))


def _artefact(
    rows: Rows,
    columns: Sequence[str],
    how: Mapping[str, Any],
    notes: Sequence[str],
    others: tuple[Recorded, list[str]],
) -> Artefact:
    """The table of trained networks, beside recorded ones."""
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    tested = {name: _by_column(rows, name, columns, "test") for name in sets}
    (beside, sources), quick = others, how["quick"]
    settings = _settings(sets[0], "1", quick)
    return Artefact(
        name="table-classification",
        title="Table 1: classification",
        caption="Test accuracy by patch size: Gaussian-product networks of this run (filled), the "
        "paper's (hollow), and those of earlier, recorded runs (small) where there are any. "
        "Dashed: the CNN of the same source.",
        figure=_figure(tested, beside),
        settings={
            "sets": sets, "seeds": len({row["seed"] for row in rows}), "quick": quick,
            "width": settings.width, "depth": settings.depth,
            "output width": settings.output_width,
            "images": how["images"],
            "recorded": sources, **{f"recorded: {kind}": KINDS[kind] for kind in beside},
        },
        tables={"accuracy": _table(rows, columns, beside), "cells": rows},
        claims=_claims(rows, beside),
        notes=[*notes, *_notes(sets == ["digits"], quick, beside, sources)],
    )  # fmt: skip


def _kept(cells: Path | None) -> Rows:
    """The rows of an earlier table in a folder, if there is one."""
    path = None if cells is None else cells / "table-classification.json"
    if path is None or not path.exists():
        return []
    rows: Rows = read_record(path)["tables"]["cells"]
    return rows


def _trained(
    data: Mapping[str, tuple[LabelledImages, LabelledImages]],
    columns: Sequence[str],
    seeds: int,
    quick: bool,
    changes: Mapping[str, Any],
    tick: Tick,
) -> Rows:
    """A row for each set, column and seed."""
    rows: Rows = []
    wanted = list(product(data, columns, range(seeds)))
    for name, column, seed in wanted:
        settings = replace(_settings(name, column, quick), **{**changes, "seed": seed})
        cell = train_cell(*data[name], settings)
        shown = {key: cell[key] for key in SHOWN}
        rows.append({"dataset": name, "column": column, "seed": seed, **shown})
        tick(len(rows) / len(wanted))
    return rows


def judged(tables: Mapping[str, Rows]) -> list[Claim]:
    """The claims of recorded numbers and of those beside them, by the rules of today."""
    return _claims(tables["cells"], recorded()[0])


def _claims(rows: Rows, beside: Recorded) -> list[Claim]:
    """Claims on the networks of this run, then on recorded ones of other sets."""
    sets = list(dict.fromkeys(row["dataset"] for row in rows))
    columns = list(dict.fromkeys(row["column"] for row in rows))
    found: list[Claim] = []
    for name in sets:
        tested, taught = (_by_column(rows, name, columns, part) for part in ("test", "train"))
        found += claims(name, tested, train=taught)
    return found + _recorded_claims(beside, sets)


def _recorded_claims(beside: Recorded, sets: Sequence[str]) -> list[Claim]:
    """Claims on recorded networks, tuned ones, of sets that were not trained in this run."""
    return [
        claim
        for kind, trained in beside.items()
        if not kind.startswith(AS_WRITTEN)
        for name in PAPER
        if name not in sets and set(trained.get(name, {})) >= set(COLUMNS)
        for claim in claims(name, _part(trained[name], 1), kind, _part(trained[name], 0))
    ]


def _read(
    data_root: Path | None, most: int | None
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
        found[name] = (train.first(most), test.first(most))
    if not found:
        raise ImageError(" ".join(missing))
    return found, [*missing, *(note for train, _ in found.values() for note in train.notes)]


def _settings(dataset: str, column: str, quick: bool) -> ProductSettings:
    cnn = column == "CNN"
    settings = preset(dataset, "cnn" if cnn else "gaussian-product", None if cnn else int(column))
    if quick:
        return replace(settings, width=32, depth=2, output_width=64, batch_size=64,
                       epochs=4 if cnn else 15)  # fmt: skip
    if dataset == "digits":
        return replace(settings, width=64, depth=2, output_width=128, batch_size=64,
                       epochs=10 if cnn else 40)  # fmt: skip
    return settings


def _by_column(
    rows: Rows, dataset: str, columns: Sequence[str], part: str
) -> dict[str, list[float]]:
    return of_seeds(rows, f"{part}_accuracy", columns, by="column", dataset=dataset)


def _table(rows: Rows, columns: Sequence[str], beside: Recorded) -> Rows:
    """The table in the paper's form, long: a row for each set, column and source."""
    table: Rows = []
    for name in dict.fromkeys((*(row["dataset"] for row in rows), *PAPER)):
        for column in columns:
            line: dict[str, Any] = {"dataset": name, "model": column}
            for part in ("train", "test"):
                own = _by_column(rows, name, [column], part)[column]
                line[part] = mean(own) if own else None
            for kind, cells in beside.items():
                trained = cells.get(name, {}).get(column)
                train, test = (None, None) if trained is None else map(mean, trained)
                line |= {f"{kind}, train": train, f"{kind}, test": test}
            line["paper train"] = PAPER_TRAIN.get(name, {}).get(column)
            line["paper test"] = PAPER.get(name, {}).get(column)
            table.append(line)
    return table


def _part(
    cells: Mapping[str, tuple[list[float], list[float]]], which: int
) -> dict[str, list[float]]:
    return {column: accuracies[which] for column, accuracies in cells.items()}


def _notes(digits: bool, quick: bool, beside: Recorded, sources: Sequence[str]) -> list[str]:
    notes = []
    if digits:
        notes.append(
            "No --data-root was given: small networks on scikit-learn's digits (8 x 8 pixels), "
            "not the paper's sets: claims on them are ours."
        )
    elif quick:
        notes.append("Quick version: small networks, few images; not the table's accuracies.")
    if beside:
        notes.append(
            f"Beside it: what {' and '.join(sources)} hold, of earlier runs of benchmarks.table1. "
            "Claims judged on them say how they were trained. "
            + " ".join(f"{kind.capitalize()}: {KINDS[kind]}." for kind in beside)
        )
    return notes


def _figure(found: Mapping[str, Accuracies], beside: Recorded) -> "Figure":
    from matplotlib.ticker import MaxNLocator

    names = list(dict.fromkeys((*found, *PAPER)))
    figure, (panels,) = sheet(1, len(names), 2.6 * len(names) + 0.4, 3.2)
    for axes, name in zip(panels, names, strict=True):
        paper = {column: [value] for column, value in PAPER.get(name, {}).items()}
        _series(axes, paper, "paper", BLUE, "o", hollow=True)
        for (kind, cells), (colour, marker) in zip(beside.items(), MARKS, strict=False):
            _series(axes, _part(cells.get(name, {}), 1), kind, colour, marker)
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
        handles.values(), handles.keys(), loc="outside lower center", ncols=3, fontsize=7,
        frameon=False,
    )  # fmt: skip
    return figure


def _series(
    axes: "Axes", values: Accuracies, label: str, colour: str, marker: str, hollow: bool = False
) -> None:
    places = [(i, mean(values[str(p)])) for i, p in enumerate(PATCHES) if str(p) in values]
    if places:
        axes.plot(*zip(*places, strict=True), color=colour, marker=marker,
                  markersize=5 if hollow or marker == "o" else 3.5,
                  linewidth=1, label=label,
                  markerfacecolor="white" if hollow else colour)  # fmt: skip
    if "CNN" in values:
        axes.axhline(mean(values["CNN"]), color=colour, linestyle="--", linewidth=0.9)
