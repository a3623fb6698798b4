"""The paper's table of classification: Gaussian-product networks and a CNN, several seeds.

`python -m benchmarks.table1 --dataset mnist --patch 1,3 --model gaussian-product --seeds 0,1,2
--data-root FOLDER --out results/table1.json` trains each cell of the table and merges its record
into the file as soon as it is there, so that a run that was cut short loses one cell at most.
`--set NAME=VALUE` changes a setting, and `--variant "TEXT: NAME=VALUE, NAME=VALUE"` names a
change, for ablations. `--as-written element,vector` trains Eqs. 25 to 27 to the letter, without
augmentation, in one or both readings of their norm. `--page docs/classification.md` writes the
page.
"""

import argparse
import hashlib
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from kermix.data.images.labelled import load_labelled
from kermix.errors import OptionError, RunError, TrainingError
from kermix.images.classifier_settings import as_written, preset
from kermix.paper.table_records import AS_WRITTEN, PATCHES, hold_out, merge, train_cell
from kermix.training.product_settings import ProductSettings

__all__ = ["main", "run"]

AUGMENTED = {"on": [True], "off": [False], "both": [True, False]}


def run(quick: bool = False) -> dict[str, list[dict[str, Any]]]:
    """Every cell with seed 0; the quick version is small networks on scikit-learn's digits."""
    sets = ("digits",) if quick else ("mnist", "cifar10")
    rows = []
    for name in sets:
        train, test = load_labelled(name, "train"), load_labelled(name, "test")
        for patch in (*((3,) if quick else PATCHES), None):
            settings = preset(name, "cnn" if patch is None else "gaussian-product", patch)
            if quick:
                settings = replace(
                    settings, width=16, output_width=32, depth=2, epochs=3, batch_size=64
                )
            record = train_cell(train, test, settings)
            shown = {
                "dataset": "dataset", "model": "model", "patch": "patch",
                "train": "train_accuracy", "test": "test_accuracy", "epochs": "epochs",
                "s/epoch": "seconds_per_epoch", "parameters": "parameters",
            }  # fmt: skip
            rows.append({title: record[key] for title, key in shown.items()})
    return {"classification": rows}


def main(arguments: Sequence[str] | None = None) -> Path:
    """Train what was asked for and merge it into the result file."""
    given = _parser().parse_args(arguments)
    if given.page is not None:
        from benchmarks.table1_page import write_classification_page

        return write_classification_page(given.out, given.ablations, given.page)
    if given.merge:
        for path in given.merge:
            merge(given.out, json.loads(path.read_text()))
        return _written(given.out)
    start = time.perf_counter()
    reader = {"data_root": given.data_root, "cache": given.cache, "workers": given.workers}
    names = dict.fromkeys(given.dataset.split(","))
    data = {
        name: (load_labelled(name, "train", **reader), load_labelled(name, "test", **reader))
        for name in names
    }
    if given.hold_out:
        data = {name: hold_out(train, given.hold_out) for name, (train, _) in data.items()}
    if given.images:
        data = {name: (hold_out(a, given.images)[1], b) for name, (a, b) in data.items()}
        data = {name: (replace(a, name=name), b) for name, (a, b) in data.items()}
    cells = _cells(given)

    def train(index: int) -> None:
        dataset, settings, variant = cells[index]
        if time.perf_counter() - start > given.stop_after:
            sys.stdout.write(f"out of time: cell {index + 1} of {len(cells)} is left out\n")
            return
        torch.compiler.reset()  # the compiler keeps a limited number of sizes
        try:
            images, held_out = data[dataset]
            record = train_cell(
                images,
                held_out,
                settings,
                variant=variant,
                device=given.device,
                precision=given.precision,
                processes=given.jobs + given.beside,
            )
        except TrainingError as error:
            sys.stdout.write(f"{variant}: {error}\n")
            return
        with _locked(given.out):
            merge(given.out, [record])
        _say(record)

    _side_by_side(train, len(cells), given.jobs)
    return _written(given.out)


def _cells(given: argparse.Namespace) -> list[tuple[str, ProductSettings, str]]:
    """What to train: dataset, settings and the name of a change, seeds in the outer loop."""
    if given.as_written:
        return _cells_as_written(given)
    named = [_variant(text) for text in given.variant]
    changes = [("", {}), *named] if given.with_base or not named else named
    common = dict(pair.split("=", 1) for pair in given.set)
    found = []
    for seed in map(int, given.seeds.split(",")):
        for dataset in given.dataset.split(","):
            for model in given.model.split(","):
                patches = [None] if model == "cnn" else [int(p) for p in given.patch.split(",")]
                for patch in patches:
                    for augmented in AUGMENTED[given.augmentation]:
                        base = preset(dataset, model, patch, augmented)
                        for name, change in changes:
                            options = _typed({**common, **change})
                            found.append((dataset, replace(base, **options, seed=seed), name))
    return found


def _cells_as_written(given: argparse.Namespace) -> list[tuple[str, ProductSettings, str]]:
    options = _typed(dict(pair.split("=", 1) for pair in given.set))
    return [
        (dataset, replace(as_written(dataset, int(patch), reading), **options, seed=int(seed)),
         f"{AS_WRITTEN}, {reading}")
        for seed in given.seeds.split(",")
        for dataset in given.dataset.split(",")
        for reading in given.as_written.split(",")
        for patch in given.patch.split(",")
    ]  # fmt: skip


def _side_by_side(train: Callable[[int], None], count: int, jobs: int) -> None:
    """Train all cells, several at once in forked processes, which share the data."""
    if jobs == 1:
        for index in range(count):
            train(index)
        return
    context = multiprocessing.get_context("fork")
    taken = context.Value("i", 0)

    def work() -> None:
        while True:
            with taken.get_lock():
                index, taken.value = taken.value, taken.value + 1
            if index >= count:
                return
            train(index)

    workers = [context.Process(target=work) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    failed = sum(worker.exitcode != 0 for worker in workers)
    if failed:
        raise RunError(f"{failed} of {jobs} processes failed; what they finished is in the file.")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Let one process at a time change a file."""
    import fcntl

    # Beside other temporary files: a folder of results holds results only.
    mark = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    with (Path(tempfile.gettempdir()) / f"kermix-{mark}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _say(record: dict[str, Any]) -> None:
    sys.stdout.write(
        "{dataset} {model} patch {patch} seed {seed} [{augmentation}] {variant}: train "
        "{train_accuracy:.4f} test {test_accuracy:.4f} (one view {test_accuracy_one_view:.4f}), "
        "{epochs} epochs of {seconds_per_epoch:.2f} s, {seconds:.0f} s in all, "
        "{parameters} parameters\n".format(**record)
    )
    sys.stdout.flush()


def _written(path: Path) -> Path:
    sys.stdout.write(f"written: {path}\n")
    return path


def _variant(text: str) -> tuple[str, dict[str, str]]:
    name, _, changes = text.partition(":")
    pairs = (pair.strip().split("=", 1) for pair in changes.split(",") if pair.strip())
    return name.strip(), {pair[0]: pair[1] for pair in pairs}


def _typed(options: dict[str, str]) -> dict[str, Any]:
    known = {field.name for field in fields(ProductSettings)}
    found: dict[str, Any] = {}
    for name, text in options.items():
        if name not in known:
            raise OptionError(
                f"There is no setting {name!r}; there are {', '.join(sorted(known))}."
            )
        try:
            value = json.loads(text.lower() if text in ("True", "False", "None") else text)
        except json.JSONDecodeError:
            value = None if text == "none" else text
        if name == "anchors_at":
            value = tuple(int(i) for i in str(text).split("+") if i)
        found[name] = value
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("benchmarks.table1", description=__doc__)
    parser.add_argument("--dataset", default="cifar10", help="mnist, cifar10, digits; with commas")
    parser.add_argument(
        "--model", default="gaussian-product", help="gaussian-product, cnn; with commas"
    )
    parser.add_argument("--patch", default="1,3,5,7", help="patch sizes with commas between")
    parser.add_argument("--seeds", default="0,1,2", help="seeds with commas between")
    parser.add_argument("--augmentation", default="on", choices=("on", "off", "both"))
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--variant", action="append", default=[], metavar="TEXT: NAME=VALUE, ...")
    parser.add_argument("--as-written", metavar="READING", help="element, vector; with commas")
    parser.add_argument("--with-base", action="store_true", help="also train without a variant")
    parser.add_argument("--data-root", type=Path, help="where the files of MNIST or CIFAR-10 are")
    parser.add_argument("--cache", type=Path, help="where decoded pictures are kept")
    parser.add_argument(
        "--hold-out", type=int, default=0, help="evaluate on this many training images instead"
    )
    parser.add_argument("--images", type=int, default=0, help="train on this many images only")
    parser.add_argument("--workers", type=int, help="processes that decode pictures")
    parser.add_argument("--jobs", type=int, default=1, help="trainings side by side")
    parser.add_argument(
        "--beside", type=int, default=0, help="trainings of other programs meanwhile, to record"
    )
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=Path("results/table1.json"))
    parser.add_argument("--merge", type=Path, nargs="*", help="only merge these files into --out")
    parser.add_argument("--page", type=Path, help="only write this page")
    parser.add_argument("--ablations", type=Path, default=Path("results/table1-ablations.json"))
    return parser


if __name__ == "__main__":
    main()
