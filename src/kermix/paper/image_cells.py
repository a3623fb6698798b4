"""Cells of the figure of images: one network of one cost, variance and seed, and its numbers.

A cell is a file, written as soon as it is trained, so that several processes can share the work on
one machine and a run that was cut short goes on: `python -m kermix.paper.image_cells --set mnist
--cost svd --seeds 0,1,2 --data-root DATA --cells FOLDER`, and at the end
`kermix reproduce fig-images --data-root DATA --cells FOLDER`, which trains what is not there.
"""

import argparse
import base64
import functools
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from kermix.costs.baselines import energy_distance
from kermix.data.images.image_sets import celeba_folder
from kermix.data.images.labelled import load_labelled
from kermix.data.loading import load
from kermix.environment import environment
from kermix.errors import ImageError, OptionError
from kermix.evaluation.sample_distances import frechet_distance
from kermix.files import write_json
from kermix.images.generator_training import ImageTask
from kermix.images.image_quality import (
    accuracy,
    class_balance,
    fit_classifier,
    neighbourhoods,
    predict,
)
from kermix.images.spaces import RandomFeatures
from kermix.networks.image_networks import PlainCNN
from kermix.paper.generation import NOISE
from kermix.training.fit_settings import FitSettings
from kermix.training.loop import Trainer

__all__ = [
    "COSTS",
    "DATA",
    "Cell",
    "CellTraining",
    "Pictures",
    "cell_file",
    "data_cell",
    "measured",
    "read_pictures",
    "sets_in",
    "shown_in",
    "train_image_cell",
]

Cell: TypeAlias = dict[str, Any]

COSTS = ("svd", "scalar", "vector", "matrix")
DATA = "data"  # the method that draws training images: what to expect at best
FACES = Path("faces") / "orl-faces.npz"


@dataclass(frozen=True)
class CellTraining:
    """How each network is trained, and how its samples are looked at."""

    steps: int = 2000
    batch_size: int = 400
    width: int = 128
    compared: int = 5000
    judge_epochs: int = 4
    judge_width: int = 32
    learning_rate: float = 0.002

    @classmethod
    def quick(cls) -> "CellTraining":
        """Small networks on few images, for a moment."""
        return cls(steps=120, batch_size=150, width=16, compared=400, judge_epochs=6,
                   judge_width=8)  # fmt: skip


@dataclass(frozen=True)
class Pictures:
    """Images of a set: bytes (N, c, h, w) to train with and others to compare with."""

    name: str
    train: np.ndarray
    test: np.ndarray
    labels: tuple[np.ndarray, np.ndarray] | None = None
    notes: tuple[str, ...] = ()


def sets_in(data_root: Path | None) -> tuple[str, ...]:
    """The sets that a folder has files of; without one, the digits of scikit-learn.

    Example:
        >>> sets_in(None)
        ('digits',)
    """
    if data_root is None:
        return ("digits",)
    found = ["mnist"]  # which is downloaded where it is not
    if (data_root / FACES).exists():
        found.append("faces")
    with suppress(ImageError):  # it is not there
        celeba_folder(data_root)
        found.append("celeba")
    return tuple(found)


def read_pictures(
    name: str, data_root: Path | None, most: int | None = None, side: int = 32
) -> Pictures:
    """The images of a set.

    Args:
        name: `"digits"`, `"mnist"`, `"faces"` (the AT&T faces, `faces/orl-faces.npz`) or
            `"celeba"`.
        data_root: Where its files are.
        most: Images of each part.
        side: Of a face, in pixels.
    """
    if name in ("digits", "mnist"):
        train, test = (
            load_labelled(name, part, data_root=data_root) for part in ("train", "test")
        )
        return Pictures(
            name, train.images[:most], test.images[:most],
            (train.labels[:most], test.labels[:most]), train.notes,
        )  # fmt: skip
    if name == "celeba":
        train_rows, test_rows = (
            load(name, 0, most, split=part, data_root=data_root, size=side)
            for part in ("train", "test")
        )
        shape = train_rows.image
        assert shape is not None
        images = [rows.stored.numpy().reshape(-1, *shape) for rows in (train_rows, test_rows)]
        return Pictures(name, images[0], images[1], notes=tuple(train_rows.notes))
    if name != "faces" or data_root is None:
        raise OptionError(f"set {name!r}: there are digits and, in a data root, mnist, faces and "
                          "celeba.")  # fmt: skip
    return _faces(data_root / FACES, most, side)


def _faces(path: Path, most: int | None, wanted: int, held_out: int = 2) -> Pictures:
    """The AT&T faces, so many of each person held out, as squares with sides as wanted."""
    try:
        with np.load(path) as file:
            pictures, person = file["images"], file["person"]
    except (OSError, KeyError, ValueError) as error:
        raise ImageError(f"{path}: expected the arrays images and person ({error}).") from None
    down, across = pictures.shape[1:]
    side = min(down, across)
    top, left = (down - side) // 2, (across - side) // 2
    square = torch.from_numpy(pictures[:, top : top + side, left : left + side]).float()[:, None]
    small = functional.interpolate(square, (wanted, wanted), mode="area").round().byte().numpy()
    # The number of a picture among those of its person.
    number = np.array([int((person[:i] == person[i]).sum()) for i in range(len(person))])
    held = number < held_out
    note = "faces: the 400 grey faces of the AT&T (ORL) set, AT&T Laboratories Cambridge."
    return Pictures("faces", small[~held][:most], small[held][:most], notes=(note,))


def train_image_cell(
    pictures: Pictures, method: str, variance: float, seed: int, training: CellTraining,
    device: str = "auto",
) -> Cell:  # fmt: skip
    """Train one network from uniform noise to pixels, and measure it."""
    settings = FitSettings(
        cost=method,  # type: ignore[arg-type]
        form="data_fixed" if method == "matrix" else None,
        model="conv",
        spaces=("pixels",),
        prior="uniform",
        noise=NOISE,
        kernel_variance=variance,
        variance_factors=(1.0,),
        debias=False,
        width=training.width,
        steps=training.steps,
        batch_size=min(training.batch_size, len(pictures.train)),
        learning_rate=training.learning_rate,
        seed=seed,
    )
    trainer = Trainer(ImageTask(pictures.train, None, 1, settings), device=device)
    start = time.perf_counter()
    trainer.run()
    seconds = time.perf_counter() - start
    where = trainer.task.rows.device
    generator = torch.Generator(where).manual_seed(10_000 + seed)
    samples = trainer.model.sample(training.compared, generator).images
    return {
        **_head(pictures, method, variance, seed, training),
        "numbers": measured(pictures, samples, training),
        "seconds": seconds,
        **_packed(samples),
    }


def data_cell(pictures: Pictures, training: CellTraining, device: str = "auto") -> Cell:
    """Numbers of training images, and how far the mean image is from the test images."""
    where = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = where if device == "auto" else torch.device(device)
    order = np.random.default_rng(0).permutation(len(pictures.train))[: training.compared]
    images = torch.from_numpy(pictures.train[order]).to(where).float() / 255
    mean = images.mean(0, keepdim=True).expand(len(pictures.test), -1, -1, -1)
    test = torch.from_numpy(pictures.test).to(where).float() / 255
    numbers = measured(pictures, images, training)
    numbers["energy of the mean image"] = _energy(test.flatten(1), mean.flatten(1))
    return {
        **_head(pictures, DATA, 0.0, 0, training),
        "numbers": numbers,
        "seconds": 0.0,
        **_packed(images),
    }


def measured(pictures: Pictures, samples: Tensor, training: CellTraining) -> dict[str, float]:
    """How samples compare with test images, in pixels, random features, and by a classifier."""
    device = samples.device
    test = torch.from_numpy(pictures.test[: training.compared]).to(device).float() / 255
    space = RandomFeatures(test[:512], 16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x, y = (torch.cat([space(part) for part in z.split(1000)]) for z in (test, samples))
    near = neighbourhoods(x, y)
    found = {
        "energy": _energy(test.flatten(1), samples.flatten(1)),
        "energy in features": _energy(x, y),
        "frechet in random features": frechet_distance(x, y),
        "precision": near.precision,
        "recall": near.recall,
        "coverage": near.coverage,
    }
    if pictures.labels is None:
        return found
    judge, right = _judge(pictures, training, str(device))
    scores = predict(judge, samples)
    balance = class_balance(scores.argmax(1), scores.shape[1])
    shares = torch.bincount(scores.argmax(1), minlength=scores.shape[1]) / len(scores)
    return found | {
        "least frequent class": float(shares.min()),
        "kl of classes": balance.kl,
        "recognized": float((scores.softmax(1).amax(1) > 0.9).float().mean()),
        "accuracy of the judge": right,
    }


def _energy(x: Tensor, y: Tensor) -> float:
    return float(energy_distance(x, y)) / x.shape[1] ** 0.5


@functools.cache
def _judge_of(name: str, count: int, epochs: int, width: int, device: str) -> list[Any]:
    return []  # a place for each judge, filled by the first who needs it


def _judge(pictures: Pictures, training: CellTraining, device: str) -> tuple[PlainCNN, float]:
    place = _judge_of(
        pictures.name, len(pictures.train), training.judge_epochs, training.judge_width, device
    )
    if not place:
        assert pictures.labels is not None
        (images, labels), (test, classes) = (
            (torch.from_numpy(part).to(device).float() / 255, torch.from_numpy(own).to(device))
            for part, own in zip((pictures.train, pictures.test), pictures.labels, strict=True)
        )
        width = training.judge_width
        shape = (images.shape[1], images.shape[2], images.shape[3])
        network = PlainCNN(
            shape, int(labels.max()) + 1, widths=(width, 2 * width, 4 * width),
            generator=torch.Generator().manual_seed(7),
        ).to(device)  # fmt: skip
        generator = torch.Generator(device).manual_seed(7)
        fit_classifier(network, images, labels, training.judge_epochs, generator=generator)
        place.extend([network.eval(), accuracy(network, test, classes)])
    return place[0], place[1]


def _head(
    pictures: Pictures, method: str, variance: float, seed: int, training: CellTraining
) -> Cell:
    found = environment()
    return {
        "set": pictures.name,
        "method": method,
        "variance": variance,
        "seed": seed,
        "training": asdict(training),
        "images": len(pictures.train),
        **{key: found[key] for key in ("machine", "versions", "commit")},
    }


def _packed(images: Tensor, most: int = 24) -> Cell:
    """The first images as bytes, for a JSON file."""
    pixels = images[:most].clamp(0, 1).mul(255).round().byte().cpu().numpy()
    text = base64.b64encode(pixels.tobytes()).decode()
    return {"shown": {"shape": list(pixels.shape), "bytes": text}}


def shown_in(cell: Cell) -> Tensor:  # (n, c, h, w)
    """The images that a cell keeps, with values in [0, 1]."""
    packed = cell["shown"]
    pixels = np.frombuffer(base64.b64decode(packed["bytes"]), np.uint8).reshape(packed["shape"])
    return torch.from_numpy(pixels.copy()).float() / 255


def cell_file(folder: Path, name: str, method: str, variance: float, seed: int) -> Path:
    """Where a cell is kept.

    Example:
        >>> cell_file(Path("cells"), "mnist", "svd", 0.01, 2).name
        'mnist-svd-v0.01-2.json'
    """
    kind = DATA if method == DATA else f"{method}-v{variance:g}-{seed}"
    return folder / f"{name}-{kind}.json"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the cells that are asked for and not there."""
    parser = argparse.ArgumentParser("kermix.paper.image_cells")
    parser.add_argument("--set", required=True)
    parser.add_argument("--cost", default=",".join(COSTS), help="with commas between; data")
    parser.add_argument("--variance", default="0.01,0.001")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--cells", type=Path, required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=CellTraining.steps)
    parser.add_argument("--width", type=int, default=CellTraining.width)
    parser.add_argument("--compared", type=int, default=CellTraining.compared, help="samples")
    parser.add_argument("--images", type=int, help="of each part; by default all")
    parser.add_argument("--stop-after", type=float, default=float("inf"), metavar="SECONDS")
    given = parser.parse_args(arguments)
    start = time.perf_counter()
    pictures = read_pictures(given.set, given.data_root, given.images)
    training = CellTraining(steps=given.steps, width=given.width, compared=given.compared)
    for seed in map(int, given.seeds.split(",")):
        for variance in map(float, given.variance.split(",")):
            for method in given.cost.split(","):
                path = cell_file(given.cells, given.set, method, variance, seed)
                if path.exists() or time.perf_counter() - start > given.stop_after:
                    continue
                if method == DATA:
                    cell = data_cell(pictures, training, given.device)
                else:
                    cell = train_image_cell(
                        pictures, method, variance, seed, training, given.device
                    )
                write_json(path, cell)
                numbers = json.dumps(cell["numbers"])
                sys.stdout.write(f"{path.name} {numbers} {cell['seconds']:.0f} s\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
