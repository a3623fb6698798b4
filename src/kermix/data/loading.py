"""One door to all data: a built-in set's name, or a path."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch

from kermix.data.dataset import TOYS, Dataset, column_names, image_rows, toy
from kermix.data.images.image_rows import STACKED, read_idx, read_image_folder, stacked_mnist
from kermix.data.images.image_sets import SIZE, is_idx, read_celeba
from kermix.data.images.labelled import LabelledImages, load_labelled
from kermix.data.readers.numeric_table import read_table
from kermix.errors import TableError

__all__ = ["BUILT_IN", "IMAGE_SETS", "is_table", "load"]

TOY_ROWS = 20_000
IMAGE_SETS = ("mnist", "stacked-mnist", "cifar10", "celeba")
BUILT_IN = (*TOYS, *IMAGE_SETS)


def load(
    source: str,
    seed: int = 0,
    rows: int | None = None,
    *,
    split: Literal["train", "test"] = "train",
    data_root: Path | None = None,
    cache: Path | None = None,
    size: int | None = None,
    workers: int | None = None,
) -> Dataset:
    """Read a built-in data set, an image data set, a table, an IDX file or a folder of images.

    Args:
        source: Name of a data set, or a path. Image data sets are "mnist", "stacked-mnist",
            "cifar10", "celeba" and, with one of its attributes as label, "celeba:Smiling".
        seed: Random seed for a built-in data set, or for a subset of the rows of another.
        rows: Number of rows, drawn at random; by default 20,000 for a built-in data set, 128,000
            for stacked MNIST, and all rows otherwise.
        split: Which part of a set of images, or of a folder that has `train` and `test`.
        data_root: Where the files of such a set are; without them MNIST and CIFAR-10 are
            downloaded.
        cache: Folder for downloads and decoded images; see `kermix.data.images.image_cache`.
        size: Side length of images in pixels; by default unchanged (64 for CelebA).
        workers: Number of processes that decode images; by default as many as are worth starting.

    Example:
        >>> load("moons", rows=100).values.shape
        torch.Size([100, 2])
    """
    if not source.strip():
        raise TableError("The data name is empty; give a built-in data set, a file or a folder.")
    options: dict[str, Any] = {"cache": cache, "workers": workers}
    if source in TOYS:
        chosen = toy(source)
        count = TOY_ROWS if rows is None else rows
        values = chosen.sample(count, torch.Generator().manual_seed(seed))
        image = (1, 8, 8) if source == "digits" else None
        names = column_names(values.shape[1])
        return Dataset(source, values, names, image, chosen.modes, chosen.entropy)
    if source == "celeba":
        side = SIZE if size is None else size
        faces = read_celeba(data_root, split, size=side, **options)
        return _some(image_rows(source, faces.images, faces.notes), rows, seed)
    if source == "stacked-mnist":
        digits = load_labelled("mnist", split, data_root=data_root, size=size, **options)
        count = STACKED if rows is None else rows
        return _from_labelled(stacked_mnist(digits.images, digits.labels, count, seed))
    if source.partition(":")[0] in IMAGE_SETS:
        found = load_labelled(source, split, data_root=data_root, size=size, **options)
        return _some(_from_labelled(found), rows, seed)
    path = Path(source)
    if path.is_dir():
        return _some(read_image_folder(path, split=split, size=size, **options), rows, seed)
    if is_idx(path):
        return _some(read_idx(path), rows, seed)
    if not path.exists() and not path.suffix:
        raise TableError(
            f"{source}: not a file, a folder or a built-in data set; built in are "
            f"{', '.join(BUILT_IN)}."
        )
    table = read_table(path)
    whole = Dataset(path.stem, table.values, table.columns, notes=tuple(table.notes()),
                    numbers=table.numbers)  # fmt: skip
    return _some(whole, rows, seed)


def is_table(data: str | Path, arrays: bool = False) -> bool:
    """Whether a name is that of a table with named columns, or of an array, if these count."""
    path = Path(data)
    known = str(data).partition(":")[0] in BUILT_IN
    if known or path.is_dir() or (path.is_file() and is_idx(path)):
        return False
    if not path.exists() and not path.suffix:
        return False  # refused where built-in sets are listed
    array = path.suffix.lower() in (".npy", ".npz") or ".npz:" in str(data)
    return arrays or not array


def _from_labelled(found: LabelledImages) -> Dataset:
    dataset = image_rows(found.name, found.images, found.notes)
    return replace(dataset, labels=torch.from_numpy(found.labels), classes=found.classes)


def _some(dataset: Dataset, rows: int | None, seed: int) -> Dataset:
    if rows is None or rows >= len(dataset.stored):
        return dataset
    order = torch.randperm(len(dataset.stored), generator=torch.Generator().manual_seed(seed))
    chosen = order[:rows].sort().values
    labels = None if dataset.labels is None else dataset.labels[chosen]
    numbers = None if dataset.numbers is None else dataset.numbers[chosen]
    return replace(dataset, stored=dataset.stored[chosen], labels=labels, numbers=numbers)
