"""Pairs of samples of the benchmark of power, drawn as the published code draws them.

Mixtures and perturbed uniforms: the code of MMD-FUSE; MNIST averaged to 7 x 7: that of MMDAgg;
blobs: that of the deep kernels, with as many rows as its training and test sets have together.
Real tables (shares of classes, and two periods of one table) and categories are our own. All draws
come from one seed each.
"""

import csv
import gzip
import itertools
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Generator, Tensor

from benchmarks.permutation import four_gaussians
from kermix.data.readers.common import Reading
from kermix.data.sources import read_sources
from kermix.kernels.distances import (
    Layout,
    mismatch_of,
)

__all__ = ["PUBLISHED", "Pair", "Problem", "blobs", "perturbed_uniform", "problems"]

Pair = tuple[Tensor, Tensor]

# Rejection rates published for these protocols, from benchmarks.md.
PUBLISHED: dict[str, dict[str, float]] = {
    "mixture sd=0.5": {"MMD-FUSE": 0.995, "MMDAgg": 0.995},
    "mixture sd=0.6": {"MMD-FUSE": 0.945, "MMDAgg": 0.915},
    "mixture sd=0.7": {"MMD-FUSE": 0.51, "MMDAgg": 0.46, "AutoTST": 0.185},
    "mixture sd=1.6": {"MMD-FUSE": 0.635, "MMDAgg": 0.675, "AutoTST": 0.495},
    "mixture sd=2.0": {"MMD-FUSE": 0.905, "MMDAgg": 0.945},
    "mixture sd=1.3 n=1000": {"MMD-FUSE": 0.38, "MMDAgg": 0.385, "AutoTST": 0.21},
    "mixture sd=1.3 n=3000": {"MMD-FUSE": 0.97, "MMDAgg": 0.99, "AutoTST": 0.87},
    "perturbed uniform d=1": {"MMD-FUSE": 0.825, "MMDAgg": 0.88, "AutoTST": 0.63},
    "perturbed uniform d=2": {"MMD-FUSE": 0.885, "MMDAgg": 0.83, "AutoTST": 0.425},
    "mnist Q1": {"MMDAgg": 1.0, "AutoTST": 1.0},
    "mnist Q2": {"MMDAgg": 1.0, "AutoTST": 1.0},
    "mnist Q3": {"MMDAgg": 0.996, "AutoTST": 0.992},
    "mnist Q4": {"MMDAgg": 0.890, "AutoTST": 0.934},
    "mnist Q5": {"MMDAgg": 0.248, "AutoTST": 0.312},
    "blobs 10": {"RJSD": 0.36, "MMD-D": 0.152, "AutoTST": 0.56},
    "blobs 20": {"RJSD": 0.914, "MMD-D": 0.461, "AutoTST": 0.984},
    "blobs 40": {"RJSD": 1.0, "MMD-D": 0.971},
}
DIGITS = ((1, 3, 5, 7, 9), (0,), (2,), (4,), (6,))
TABLES = ("default", "shoppers", "adult-test")  # of two classes each, the last column
CODES_UP_TO = 12  # values of a column of whole numbers that is taken as a category


class Drift(NamedTuple):
    """Two periods of a real table, and rows of a side."""

    files: tuple[str, ...]
    by: str
    periods: tuple[int, int]
    n: int
    left: tuple[str, ...]  # columns that tell the period, or that a model made


DRIFTS = {
    "employment 2015 v 2018": Drift(
        ("employment-reference.parquet", "employment-analysis.parquet"), "year", (2015, 2018),
        1000, ("id", "employed", "prediction", "predicted_probability"),
    ),
    "flights March v April": Drift(
        ("flights.parquet",), "month", (3, 4), 300, ("rownames", "time_hour"),
    ),
}  # fmt: skip


class Problem(NamedTuple):
    """Samples to be drawn, and what is known of them."""

    name: str
    sizes: str
    draw: Callable[[Generator], Pair]
    layout: Layout | None = None  # of rows with codes


def blobs(n: int, tilted: bool, generator: Generator) -> Tensor:  # (n, 2)
    """Nine Gaussians on {0, 1, 2}^2; `tilted`: rows are `z @ L`, with a covariance of L'L."""
    state = torch.randint(9, (n,), generator=generator)
    centres = torch.stack([state // 3, state % 3], 1)
    noise = torch.randn(n, 2, generator=generator)
    if not tilted:
        return centres + math.sqrt(0.03) * noise
    tilt = torch.tensor([*(-0.02 - 0.002 * k for k in range(4)), 0.0,
                         *(0.02 + 0.002 * k for k in range(4))])  # fmt: skip
    matrix = 0.03 * torch.eye(2).expand(9, 2, 2).clone()
    matrix[:, 0, 1] = matrix[:, 1, 0] = tilt
    return centres + (noise[:, None] @ torch.linalg.cholesky(matrix)[state]).squeeze(1)


def perturbed_uniform(n: int, d: int, scale: float, generator: Generator) -> Tensor:  # (n, d)
    """Uniform rows with two bumps along each axis, up and down in a random pattern of signs."""
    signs = 2.0 * torch.randint(2, (2,) * d, generator=generator) - 1
    kept = torch.empty(0, d)
    while len(kept) < n:
        rows = torch.rand(4 * n, d, generator=generator)
        heights = torch.rand(4 * n, generator=generator) * (1 + scale)
        density = torch.ones(len(rows))
        for cell in itertools.product((1, 2), repeat=d):
            bump = torch.stack([_bump(2 * rows[:, k] - cell[k]) for k in range(d)]).prod(0)
            density += scale * math.exp(d) * signs[tuple(c - 1 for c in cell)] * bump
        kept = torch.cat([kept, rows[heights <= density]])
    return kept[:n]


def _bump(x: Tensor) -> Tensor:
    up, down = (x > -1) & (x < -0.5), (x > -0.5) & (x < 0)
    inside = torch.where(up, 4 * x + 3, torch.where(down, 4 * x + 1, 0.0))
    height = torch.exp(-1 / (1 - inside.square()).clamp(min=1e-12))
    return torch.where(up, height, torch.where(down, -height, 0.0))


def problems(mnist: Path | None = None, tables: Path | None = None) -> Iterator[Problem]:
    """All problems; those of files only if their folders are given."""
    for sd in (1.0, 0.5, 0.6, 0.7, 1.6, 2.0):
        name = "mixture null" if sd == 1 else f"mixture sd={sd}"
        yield Problem(name, "n=m=500", partial(_mixtures, 500, sd))
    for n in (1000, 3000):
        yield Problem(f"mixture sd=1.3 n={n}", f"n=m={n}", partial(_mixtures, n, 1.3))
    for d, scale in ((1, 0.4), (2, 0.8)):
        draw = partial(_perturbed, d, scale)
        yield Problem(f"perturbed uniform d={d}", f"n=m=500, scale {scale}", draw)
    for count in (10, 20, 40):
        sizes = f"n=m={18 * count}: 9 x {count} to train and 9 x {count} to test elsewhere"
        yield Problem(f"blobs {count}", sizes, partial(_blob_pair, 18 * count, True))
    yield Problem("blobs null", "n=m=360", partial(_blob_pair, 360, False))
    for kind in ("shift", "scale", "heavy tails", "correlation"):
        yield Problem(f"normal d=10, {kind}", "n=m=200", partial(_normal, kind))
    yield Problem(
        "categories", "n=m=300, 4 codes, of which 2 depend on each other",
        _categories, Layout(4, 2.7, 4),
    )  # fmt: skip
    if mnist is not None:
        yield from _digits(mnist)
    if tables is not None:
        yield from _classes(tables)


def _mixtures(n: int, sd: float, generator: Generator) -> Pair:
    return four_gaussians(n, 1.0, generator), four_gaussians(n, sd, generator)


def _perturbed(d: int, scale: float, generator: Generator) -> Pair:
    return perturbed_uniform(500, d, scale, generator), torch.rand(500, d, generator=generator)


def _blob_pair(n: int, tilted: bool, generator: Generator) -> Pair:
    return blobs(n, False, generator), blobs(n, tilted, generator)


def _normal(kind: str, generator: Generator) -> Pair:
    x, y = torch.randn(2, 200, 10, generator=generator)
    if kind == "shift":
        y = y + 0.13
    elif kind == "scale":
        y = 1.1 * y
    elif kind == "heavy tails":
        y = y / torch.randn(200, 3, generator=generator).square().mean(1, keepdim=True).sqrt()
        y = y / math.sqrt(3)
    else:
        y[:, 1] = 0.45 * y[:, 0] + math.sqrt(1 - 0.45**2) * y[:, 1]
    return x, y


def _categories(generator: Generator) -> Pair:
    x, y = torch.randint(4, (2, 300, 4), generator=generator).double()
    same = torch.rand(300, generator=generator) < 0.15
    y[same, 1] = y[same, 0]
    return x, y


def _digits(folder: Path) -> Iterator[Problem]:
    images, labels = _mnist(folder)
    every = torch.arange(len(labels))

    def pair(allowed: Tensor, generator: Generator) -> Pair:
        drawn = (
            images[rows[torch.randint(len(rows), (500,), generator=generator)]]
            for rows in (every, allowed)
        )
        return tuple(drawn)  # type: ignore[return-value]

    digits: tuple[int, ...] = ()
    for k, added in enumerate(DIGITS, start=1):
        digits = (*digits, *added)
        chosen = torch.isin(labels, torch.tensor(digits)).nonzero()[:, 0]
        yield Problem(f"mnist Q{k}", "n=m=500", partial(pair, chosen))
    yield Problem("mnist null", "n=m=500", partial(pair, every))


@cache
def _mnist(folder: Path) -> tuple[Tensor, Tensor]:
    """All 70,000 images averaged to 7 x 7, in [0, 1], and their labels."""
    images, labels = [], []
    for part in ("train", "t10k"):
        with gzip.open(folder / f"{part}-images-idx3-ubyte.gz") as file:
            pixels = np.frombuffer(file.read(), np.uint8, offset=16)
        images.append(pixels.reshape(-1, 7, 4, 7, 4).mean((2, 4)).reshape(-1, 49) / 255)
        with gzip.open(folder / f"{part}-labels-idx1-ubyte.gz") as file:
            labels.append(np.frombuffer(file.read(), np.uint8, offset=8).astype(np.int64))
    return torch.from_numpy(np.concatenate(images)), torch.from_numpy(np.concatenate(labels))


def _classes(folder: Path) -> Iterator[Problem]:
    for name in TABLES:
        rows, first, layout = _table(folder / f"{name}.csv.gz")
        draw = partial(_class_pair, rows, first)
        yield Problem(f"table {name}", "n=m=200, half of each class v 62 %", draw, layout)
    for name, drift in DRIFTS.items():
        if all((folder / file).is_file() for file in drift.files):
            before, after, layout = _periods(folder, drift)
            draw = partial(_two_periods, before, after, drift.n)
            yield Problem(name, f"n=m={drift.n}", draw, layout)


def _class_pair(rows: Tensor, first: Tensor, generator: Generator) -> Pair:
    sides = []
    for share in (0.5, 0.62):
        weights = torch.where(first, share / first.sum(), (1 - share) / (~first).sum())
        sides.append(rows[torch.multinomial(weights, 200, generator=generator)])
    return sides[0], sides[1]


def _two_periods(before: Tensor, after: Tensor, n: int, generator: Generator) -> Pair:
    x, y = (t[torch.randperm(len(t), generator=generator)[:n]] for t in (before, after))
    return x, y


@cache
def _periods(folder: Path, drift: Drift) -> tuple[Tensor, Tensor, Layout | None]:
    """Mixed rows of both periods, as `kermix.compare` makes them, and their layout."""
    import pandas as pd

    whole = pd.concat([pd.read_parquet(folder / file) for file in drift.files], join="inner")
    left = [name for name in (*drift.left, drift.by) if name in whole]
    sides = [whole[whole[drift.by] == period].drop(columns=left) for period in drift.periods]
    read = read_sources(sides, Reading())
    first, second = (table.values.double() for table in read.tables)
    return first, second, None if read.mixed is None else read.mixed.layout


@cache
def _table(path: Path) -> tuple[Tensor, Tensor, Layout]:
    """Mixed rows of a table, which of them are of its first class, and their layout."""
    with gzip.open(path, "rt") as file:
        columns = list(zip(*list(csv.reader(file))[1:], strict=True))
    numbers, codes = [], []
    for column in columns[:-1]:
        values, places = np.unique(column, return_inverse=True)
        try:
            found = np.array(column, dtype=float)
        except ValueError:
            found = None
        if found is None or len(values) <= CODES_UP_TO:
            codes.append(torch.from_numpy(places).double())
        else:
            numbers.append(torch.from_numpy((found - found.mean()) / found.std()))
    classes = np.array(columns[-1])
    stacked = torch.stack(codes, 1)
    layout = Layout(len(codes), mismatch_of(stacked), len(columns) - 1)
    rows = torch.cat([torch.stack(numbers, 1), stacked], 1)
    return rows, torch.from_numpy(classes == sorted(set(classes))[0]), layout
