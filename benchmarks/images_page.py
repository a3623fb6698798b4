"""The documentation's page of the image tables, written from the result files."""

import json
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

__all__ = ["sheet_name", "write_images_page"]

Row: TypeAlias = dict[str, Any]

COLUMNS = {
    "logistic_accuracy": ("logistic", ".1%"),
    "mlp_accuracy": ("MLP", ".1%"),
    "cnn_accuracy": ("CNN", ".1%"),
    "frechet_in_own_features": ("Frechet", ".3g"),
    "precision": ("precision", ".2f"),
    "recall": ("recall", ".2f"),
    "density": ("density", ".2f"),
    "coverage": ("coverage", ".2f"),
    "energy": ("energy", ".3g"),
    "distance_to_training_over_that_of_test": ("to training", ".2f"),
    "parzen": ("Parzen", ".0f"),
    "modes": ("modes", "d"),
    "kl": ("KL from uniform", ".4f"),
    "kl_expected": ("KL from the data's frequencies", ".4f"),
    "steps": ("steps", "d"),
    "a_sample_is": ("a sample is", ""),
}
FOUR = ("svd", "scalar", "vector", "matrix")
# What the costs are compared by, and whether more of it is better.
JUDGING = {
    "logistic_accuracy": True, "mlp_accuracy": True, "cnn_accuracy": True,
    "frechet_in_own_features": False, "precision": True, "recall": True, "coverage": True,
    "energy": False,
}  # fmt: skip
INTRODUCTION = """\
# Images

Written by `python -m benchmarks.images --page docs/images.md` from the files
`results/bench/images-*.json`, one run of each method. Within a table all
methods share the same autoencoder, and all networks have the same architecture and number of
training steps; a mixture is a table of components rather than a network, and *em* refines it by
expectation-maximization. `bash scripts/images-on-gpu.sh DATA OUT` trains everything on one GPU.
For images generated as in the paper, without labels, in pixel space, with one fixed variance and
several seeds, see `fig-images` on the page [The paper](paper.md).

| column | meaning |
|---|---|
| logistic, MLP, CNN | accuracy on real test images of classifiers trained on 60,000 samples |
| Frechet | in features of our own classifier: not FID, which uses another network |
| precision, recall, density, coverage | 5 nearest neighbours in these features, 10,000 images |
| energy | energy distance in these features |
| to training | distance to the nearest training image over that of test images: 0 for copies |
| Parzen | log-likelihood under Parzen windows, for reference only: blur scores higher |
"""


class Part(NamedTuple):
    """A table of the page."""

    task: str
    title: str
    text: str
    by: str
    largest_first: bool
    pictures: tuple[str, ...]


PARTS = (
    Part(
        "mnist",
        "MNIST, by class",
        "Goal: 97 % for the CNN. Published for a Sinkhorn generator: 89.0 / 89.0 / 91.0.",
        "cnn_accuracy",
        True,
        ("mixture svd+em", "svd", "mmd"),
    ),
    Part(
        "stacked",
        "Stacked MNIST",
        "Three digits as the channels of an image; 26,000 samples, labelled by a CNN. Goal: all "
        "1000 modes and a KL of 0.03. Published: PacDCGAN 0.06, RJSD 0.048, EnGAN 0.031. A "
        "perfect sampler of equally frequent digits has 0.0195. *Products* is a sum of products "
        "of mixtures, one factor per channel.",
        "kl",
        False,
        ("products svd+em", "svd"),
    ),
    Part(
        "cifar10",
        "CIFAR-10, by class",
        "Nobody will take these for photographs: the decoder of a plain autoencoder limits "
        "quality, as the reconstructions show. The table compares costs.",
        "frechet_in_own_features",
        False,
        ("vector", "svd", "mmd"),
    ),
    Part(
        "spaces",
        "Where a cost acts",
        "MNIST, a convolutional network from noise to pixels, and the SVD cost computed on "
        "pixels, coarse pixels, random convolutional features, codes of the autoencoder, or "
        "several of them. *Codes, decoded* generates codes, which the autoencoder decodes.",
        "cnn_accuracy",
        True,
        ("pixels", "several", "codes"),
    ),
)


def write_images_page(results: Path, page: Path) -> Path:
    """Write `page`, a Markdown file.

    Args:
        results: The folder that holds `bench/images-*.json` and `images/*.png`.
        page: The file to write.
    """
    lines = [INTRODUCTION]
    for part in PARTS:
        files = sorted((results / "bench").glob(f"images-{part.task}-*.json"))
        if files:
            lines += [f"## {part.title}", "", part.text, ""]
            lines += [line for file in files for line in _table(part, file)]
            lines += _sheets(part, results / "images")
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(lines).rstrip() + "\n")
    return page


def _table(part: Part, file: Path) -> list[str]:
    record = json.loads(file.read_text())
    machine = record["machine"]
    where = machine["gpu"] or f"{machine['cores']} cores of {machine['cpu']}"
    scale = record["protocol"]["scale"]["name"]
    smaller = "" if scale == "full" else f", smaller networks (`--scale {scale}`)"
    rows: list[Row] = record["tables"][part.task]
    rows = sorted(rows, key=lambda row: row[part.by], reverse=part.largest_first)
    shown = {key: title for key, title in COLUMNS.items() if any(row.get(key) for row in rows)}
    judge = next((row["raw_judge"] for row in rows if "raw_judge" in row), None)
    measured = "" if judge is None else (
        f" The judging classifier is right on {judge['accuracy']:.1%} of the test images."
    ).replace("%", " %")  # fmt: skip
    return [
        f"**{where}**{smaller}, commit `{record['commit']}`, "
        f"[{file.name}](../results/bench/{file.name}).{measured}",
        "",
        "| method | " + " | ".join(title for title, _ in shown.values()) + " |",
        "|---|" + "---|" * len(shown),
        *(
            f"| {row['method']} | " + " | ".join(_cell(row, key) for key in shown) + " |"
            for row in rows
        ),
        "",
        *_best_cost(rows, shown),
    ]


def _best_cost(rows: list[Row], shown: dict[str, tuple[str, str]]) -> list[str]:
    """Which of the paper's four costs is best, by every column.

    That is no verdict on the paper: it is one run of each, and the costs act on codes.
    """
    lines = []
    for ending, how in (("", "with the paper's loss"), (", debiased", "debiased")):
        own = {cost: row for row in rows for cost in FOUR if row["method"] == cost + ending}
        keys = [key for key in JUDGING if key in shown and all(key in r for r in own.values())]
        if len(own) < len(FOUR) or not keys:
            continue
        best: dict[str, list[str]] = {}
        for key in keys:
            first = (max if JUDGING[key] else min)(own, key=lambda c, k=key: own[c][k])
            best.setdefault(first, []).append(shown[key][0])
        found = "; ".join(f"{cost} by {', '.join(titles)}" for cost, titles in best.items())
        lines += [f"Best of the paper's four costs, {how}, of one run each: {found}.", ""]
    return lines


def _cell(row: Row, key: str) -> str:
    value = row.get(key)
    return "" if value is None else format(value, COLUMNS[key][1]).replace("%", "\u00a0%")


def _sheets(part: Part, results: Path) -> list[str]:
    """Pictures of samples, those that there are, side by side."""
    found = [m for m in part.pictures if (results / f"{sheet_name(part.task, m)}.png").exists()]
    if not found:
        return []
    pictures = (
        f"![Samples: {part.title}, {m}](../results/images/{sheet_name(part.task, m)}.png)"
        for m in found
    )
    return [
        f"| {' | '.join(found)} |", "|" + "---|" * len(found), f"| {' | '.join(pictures)} |", "",
    ]  # fmt: skip


def sheet_name(task: str, method: str) -> str:
    """The name of a sheet of samples, without its ending.

    Example:
        >>> sheet_name("mnist", "mixture svd+em")
        'mnist-mixture-svd-em'
    """
    return f"{task}-{method}".replace(", ", "-").replace(" ", "-").replace("+", "-")
