"""The documentation's page of the classification table, written from the result files."""

import json
import statistics
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeAlias

from kermix.paper.table_records import command_of, largest_networks, settings_of

__all__ = ["write_classification_page"]

Record: TypeAlias = dict[str, Any]

COLUMNS: tuple[int | None, ...] = (1, 3, 5, 7, None)
ALONE = "alone"  # how the variant of a training begins that had the machine for itself
TITLES = {"mnist": "MNIST", "cifar10": "CIFAR-10"}
# Of the paper: train and test accuracy. CIFAR-10 there is the original, not a JPEG copy.
PAPER = {
    "mnist": {1: (0.990, 0.974), 3: (0.998, 0.982), 5: (1.0, 0.988), 7: (1.0, 0.989),
              None: (1.0, 0.990)},
    "cifar10": {1: (0.899, 0.600), 3: (0.997, 0.806), 5: (0.998, 0.819), 7: (0.998, 0.820),
                None: (0.999, 0.908)},
}  # fmt: skip
GOALS = {
    "mnist": {1: 0.985, 3: 0.990, 5: 0.993, 7: 0.993, None: 0.990},
    "cifar10": {1: 0.63, 3: 0.83, 5: 0.85, 7: 0.85, None: 0.90},
}


def write_classification_page(results: Path, ablations: Path, page: Path) -> Path:
    """Write `page`, a Markdown file, from `table1.json` and `table1-ablations.json`."""
    records: list[Record] = json.loads(results.read_text()) if results.exists() else []
    lines = [
        "# Classification: the paper's table",
        "",
        "A Gaussian-product network maps every patch of an image separately, by layers "
        "`BN(exp(-(A y - W)^2))`; patches interact only in the last step, "
        "`A_F exp(-(1/T) sum_t (k_t - W_F(t))^2)`. A test changes one position and checks that "
        "the features of all others stay exactly the same.",
        "",
        "Written by `python -m benchmarks.table1 --page docs/classification.md` from "
        "`results/table1.json` and `results/table1-ablations.json`: every number below is in one "
        "of them, with settings, machine, versions and commit. There is no early "
        "stopping: the weights after the last epoch are evaluated. Settings were compared on "
        "held-out training images, as shown at the end, or carried over from one patch size or "
        "data set to another. Test images influenced settings twice: those of MNIST with patch 1 "
        "were first tried on 2000 test images, and compared on held-out images since; and the CNN "
        "of CIFAR-10 got 70 epochs after 45 had not reached the goal.",
        "",
    ]
    compared: list[Record] = json.loads(ablations.read_text()) if ablations.exists() else []
    for dataset in TITLES:
        of_set = [r for r in records if r["dataset"] == dataset]
        if of_set:
            lines += _data_set(dataset, of_set)
    written = results.with_name(f"{results.stem}-as-written.json")
    if written.exists():
        lines += _as_written(json.loads(written.read_text()), records)
    lines += _alone([r for r in compared if r["variant"].startswith(ALONE)])
    lines += _ablations([r for r in compared if not r["variant"].startswith(ALONE)])
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines).rstrip() + "\n")
    return page


def _data_set(dataset: str, records: list[Record]) -> list[str]:
    augmented = [r for r in records if r["augmentation"] != "none"]
    plain = [r for r in records if r["augmentation"] == "none"]
    lines = [f"## {TITLES[dataset]}", ""]
    notes = dict.fromkeys(note for r in records for note in r["notes"])
    lines += [f"Data: {note}" for note in notes] + ([""] if notes else [])
    for title, group in (("With augmentation", augmented), ("Without augmentation", plain)):
        if group:
            lines += [f"**{title}**", "", *_table(dataset, group), ""]
    shared = max((r["processes"] for r in records), default=1)
    lines += [
        f"Accuracies are means over the seeds, ± their standard deviation. {_where(records)}"
        + (f" Up to {shared} training runs shared it at a time." if shared > 1 else ""),
        "",
        "Commands for each cell; `--set` gives settings that differ from the current defaults:",
        "",
    ]
    return [*lines, *_commands(augmented + plain), "", *_missing(dataset, augmented, plain)]


def _table(dataset: str, records: list[Record]) -> list[str]:
    """Rows of the cells that were trained in one way, beside the paper's."""
    heads = ["1 (pixels)", "3", "5", "7", "CNN"]
    lines = ["| patch | " + " | ".join(heads) + " |", "|---|" + "---|" * len(heads)]

    def row(title: str, cell: Callable[[int | None], str]) -> None:
        lines.append(f"| {title} | " + " | ".join(cell(patch) for patch in COLUMNS) + " |")

    def of_cell(title: str, text: Callable[[Record], str]) -> None:
        row(title, lambda patch: _first(records, patch, text))

    goals, shared = GOALS[dataset], any(r["processes"] > 1 for r in records)
    row("paper, train", lambda p: f"{PAPER[dataset][p][0]:.3f}")
    row("paper, test", lambda p: f"{PAPER[dataset][p][1]:.3f}")
    row("goal, test", lambda p: f"{goals[p]:.3f}")
    row("ours, train", lambda p: _mean(records, p, "train_accuracy"))
    row("**ours, test**", lambda p: _mean(records, p, "test_accuracy"))
    if any(r["settings"]["flip_at_test"] for r in records):
        row(
            "ours, test, without the mirror image",
            lambda p: _mean(records, p, "test_accuracy_one_view"),
        )
    row("goal reached", lambda p: _verdict(records, p, goals[p]))
    row("seeds", lambda p: ", ".join(str(r["seed"]) for r in _at(records, p)) or "-")
    of_cell("parameters", lambda r: f"{r['parameters']:,}")
    of_cell("epochs", lambda r: str(r["epochs"]))
    of_cell("positions in a step", lambda r: f"{r['settings'].get('positions', 1):.0%}")
    pace = "seconds per epoch" + (", shared GPU, median of the seeds" if shared else "")
    row(pace, lambda p: _median(records, p, "seconds_per_epoch"))
    of_cell("augmentation", lambda r: r["augmentation"])
    return lines


def _as_written(written: list[Record], records: list[Record]) -> list[str]:
    """Eqs. 25 to 27 to the letter, beside the tuned networks without augmentation."""
    written = largest_networks(written)
    lines = [
        "## Eqs. 25 to 27 as written",
        "",
        "No augmentation, and nothing that is not in the equations: no batch normalization "
        "after positions are joined, no whitening (pixels range from 0 to 1), anchors W(t) for "
        "every position in every layer, initialized at random, and no constant in the scores. "
        "*Element-wise* squares each element of A y - W(t); *vector anchors* takes the distance "
        "to a vector for each Gaussian. The CNN had no augmentation either. From "
        "`results/table1-as-written.json`; "
        "`python -m benchmarks.table1 --as-written element,vector --data-root DATA`.",
        "",
    ]
    for dataset, title in TITLES.items():
        own = [r for r in written if r["dataset"] == dataset]
        plain = [r for r in records if r["dataset"] == dataset and r["augmentation"] == "none"]
        if not own:
            continue
        cnn = [r for r in plain if r["patch"] is None]
        heads = ["1 (pixels)", "3", "5", "7", "CNN"]
        lines += [
            f"**{title}**",
            "",
            "| patch | " + " | ".join(heads) + " |",
            "|---|" + "---|" * 5,
        ]
        for part, place in (("train", 0), ("test", 1)):
            cells = [f"{PAPER[dataset][p][place]:.3f}" for p in COLUMNS]
            lines.append(f"| paper, {part} | " + " | ".join(cells) + " |")
        kinds = {"element-wise": "element", "vector anchors": "vector", "tuned": None}
        for name, reading in kinds.items():
            rows = plain if reading is None else [
                r for r in own if r["settings"]["reading"] == reading]  # fmt: skip
            for part in ("train", "test"):
                cells = [_mean(cnn if p is None else rows, p, f"{part}_accuracy") for p in COLUMNS]
                lines.append(f"| {name}, {part} | " + " | ".join(cells) + " |")
        seeds = [str(len(_at(own, p)) // len({r["variant"] for r in own})) for p in COLUMNS[:-1]]
        lines.append("| seeds, as written | " + " | ".join(seeds) + " | |")
        epochs = [_first(own, p, lambda r: str(r["epochs"])) for p in COLUMNS[:-1]]
        lines.append("| epochs, as written | " + " | ".join(epochs) + " | |")
        lines += ["", _where(own), ""]
    return lines


def _missing(dataset: str, augmented: list[Record], plain: list[Record]) -> list[str]:
    lines = []
    for group, off in ((augmented, False), (plain, True)):
        absent = [patch for patch in COLUMNS if not _at(group, patch)]
        lines += [
            f"- {_name(patch)}{', no augmentation' if off else ''}: `{_line(dataset, patch, off)}`"
            for patch in absent
        ]
    return ["Not measured yet, for lack of GPU time:", "", *lines, ""] if lines else []


def _at(records: Iterable[Record], patch: int | None) -> list[Record]:
    return sorted((r for r in records if r["patch"] == patch), key=lambda r: r["seed"])


def _first(records: Iterable[Record], patch: int | None, text: Callable[[Record], str]) -> str:
    found = _at(records, patch)
    return text(found[0]) if found else "-"


def _pace(record: Record) -> str:
    return f"{record['seconds_per_epoch']:.2f}"


def _mean(records: Iterable[Record], patch: int | None, what: str) -> str:
    values = [r[what] for r in _at(records, patch)]
    if not values:
        return "-"
    if len(values) == 1:
        return f"{values[0]:.4f} (one seed)"
    return f"{statistics.mean(values):.4f} ± {statistics.stdev(values):.4f}"


def _median(records: Iterable[Record], patch: int | None, what: str) -> str:
    values = [r[what] for r in _at(records, patch)]
    return f"{statistics.median(values):.2f}" if values else "-"


def _verdict(records: Iterable[Record], patch: int | None, goal: float) -> str:
    values = [r["test_accuracy"] for r in _at(records, patch)]
    if not values:
        return "not measured"
    gap = statistics.mean(values) - goal
    return "yes" if gap >= 0 else f"no, {-gap:.4f} short"


def _where(records: Iterable[Record]) -> str:
    machines = dict.fromkeys(
        r["machine"]["gpu"] or f"{r['machine']['cores']} cores of {r['machine']['cpu']}"
        for r in records
    )
    commits = dict.fromkeys(f"`{r['commit']}`" for r in records)
    return f"Machine: {', '.join(machines)}; commit {', '.join(commits)}."


def _commands(records: Iterable[Record]) -> list[str]:
    lines = []
    for record in records:
        if record["seed"] != min(r["seed"] for r in records if _cell(r) == _cell(record)):
            continue
        name = _name(record["patch"])
        lines.append(f"- {name}, augmentation {record['augmentation']}: `{command_of(record)}`")
    return lines


def _cell(record: Record) -> tuple[Any, ...]:
    return record["patch"], record["augmentation"]


def _line(dataset: str, patch: int | None, off: bool) -> str:
    model = "cnn" if patch is None else f"gaussian-product --patch {patch}"
    return (
        f"python -m benchmarks.table1 --dataset {dataset} --model {model} --seeds 0,1,2"
        f"{' --augmentation off' if off else ''} --data-root DATA"
    )


def _name(patch: int | None) -> str:
    return "CNN" if patch is None else f"patch {patch}"


def _extent(record: Record) -> tuple[Any, ...]:
    """What the trainings of one table of the page have in common."""
    augmented = record["augmentation"] != "none"
    images = record.get("train_images")
    return record["dataset"], record["patch"], record["epochs"], images, augmented


def _base_name(record: Record) -> str:
    s = record["settings"]
    if record["model"] == "cnn":
        return f"*{s['optimizer']}, {record['augmentation']}*"
    grid = "anchors at every position" if s["anchor_grid"] is None else (
        f"anchors on a grid of {s['anchor_grid']} x {s['anchor_grid']}")  # fmt: skip
    rate = settings_of(record).learning_rate
    return (
        f"*{s['optimizer']}, stride {s['stride']}, width {s['width']}, {s['output_width']} "
        f"Gaussians, {grid}, whitened patches, rate {rate:g}, weight decay "
        f"{s['weight_decay']:g}*"
    )


def _alone(records: list[Record]) -> list[str]:
    """How long an epoch takes when nothing else runs."""
    if not records:
        return []
    lines = [
        "## Seconds per epoch",
        "",
        f"One training run alone; the median epoch. {_where(records)}",
        "",
        "| | patch | layers | Gaussians | images | seconds per epoch |",
        "|---|---|---|---|---|---|",
    ]
    for r in records:
        s, how = r["settings"], r["variant"].removeprefix(ALONE).strip(", ")
        how = how or f"stride {s['stride']}"
        lines.append(
            f"| {TITLES[r['dataset']]}, {how} | {_name(r['patch'])} | "
            f"{s['depth']} of {s['width']} | {s['output_width']} | "
            f"{r['train_images']:,} | {_pace(r)} |"
        )
    return [*lines, ""]


def _ablations(records: list[Record]) -> list[str]:
    if not records:
        return []
    lines = [
        "## What each part contributes",
        "",
        "One seed and few epochs; compare only within a table. If the first row of a table is in "
        "italics, it is the baseline that the other rows change.",
        "",
    ]
    tables = dict.fromkeys(map(_extent, records))
    for extent in tables:
        dataset, patch, epochs, images, augmented = extent
        rows = [r for r in records if _extent(r) == extent]
        if len(rows) == 1:
            continue  # nothing to compare it with
        what = "the CNN" if patch is None else f"patch {patch}"
        few = f", {images} training images" if images else ""
        few += "" if augmented else ", no augmentation"
        lines += [f"**{TITLES.get(dataset, dataset)}, {what}, {epochs} epochs{few}**", ""]
        held = dict.fromkeys(r["evaluated_on"] for r in rows)
        lines += [f"Evaluated on: {', '.join(held)}.", ""]
        lines += [
            "| change | train | evaluated | parameters | s / epoch |",
            "|---|---|---|---|---|",
        ]
        base = [r for r in rows if not r["variant"]]
        for r in base + sorted(
            (r for r in rows if r["variant"]), key=lambda r: -r["test_accuracy"]
        ):
            lines.append(
                f"| {r['variant'] or _base_name(r)} | {r['train_accuracy']:.4f} | "
                f"{r['test_accuracy']:.4f} | {r['parameters']:,} | {_pace(r)} |"
            )
        lines.append("")
    return lines
