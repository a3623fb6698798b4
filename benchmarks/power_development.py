"""Pairs of samples by which settings of the aggregate test are chosen.

None of them is among the problems that `benchmarks.power` reports: they are of the same kinds
(fine waves on a smooth density, clusters of which one is wider, shifts, tails, dependence, classes
of a real table that one side lacks), with other densities, numbers of clusters and columns.
`python -m benchmarks.power --cases development`.
"""

import csv
import gzip
import math
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
from torch import Generator, Tensor

from benchmarks.power_problems import Pair, Problem

__all__ = ["development_problems", "one_of_clusters", "waves"]

# Tables, how many of their classes one side lacks, and rows of a side.
LACKING = (("penbased", 1, 100), ("texture", 1, 300), ("letter", 5, 300))


def development_problems(tables: Path | None = None) -> Iterator[Problem]:
    """All of them; those of files only if their folder is given."""
    for base, d, frequency, depth in (
        ("normal", 1, 5.0, 0.33),
        ("normal", 2, 3.0, 0.7),
        ("disc", 2, 7.0, 0.75),
        ("disc", 2, 11.0, 0.9),
        ("disc", 3, 4.0, 1.0),
    ):
        draw = partial(waves, base, d, frequency, depth)
        yield _named(f"waves {frequency:g} on a {base} d={d}", 500, draw)
    for clusters, d, sd in ((6, 2, 0.6), (3, 5, 0.82), (9, 2, 2.0), (2, 1, 0.77), (5, 3, 1.4)):
        draw = partial(one_of_clusters, 500, clusters, d, sd)
        yield _named(f"one of {clusters} clusters d={d} sd={sd}", 500, draw)
    yield _named("7 clusters turned", 200, partial(_turned, 200))
    for kind in ("shift of one column", "scale", "tails", "dependence"):
        yield _named(f"normal d=6, {kind}", 250, partial(_normal, kind))
    yield _named("shift of 40 columns", 250, _many_shifts)
    if tables is None:
        return
    for name, count, n in LACKING:
        draw = partial(_without, n, tables / f"{name}.csv.gz", count)
        yield _named(f"{name} without {count} classes", n, draw)


def _named(name: str, n: int, draw: Callable[[Generator], Pair]) -> Problem:
    return Problem(f"development: {name}", f"n=m={n}", draw)


def waves(base: str, d: int, frequency: float, depth: float, generator: Generator) -> Pair:
    """One side has a density with waves along all axes, with phases of its own."""
    phases = 2 * math.pi * torch.rand(d, generator=generator)

    def draw(count: int) -> Tensor:
        rows = torch.randn(count, d, generator=generator)
        if base == "disc":
            radii = torch.rand(count, 1, generator=generator) ** (1 / d)
            rows = radii * torch.nn.functional.normalize(rows, dim=1)
        return rows

    kept = torch.empty(0, d)
    while len(kept) < 500:
        rows = draw(2000)
        density = 1 + depth * torch.cos(frequency * rows + phases).prod(1)
        heights = (1 + depth) * torch.rand(len(rows), generator=generator)
        kept = torch.cat([kept, rows[heights <= density]])
    return kept[:500], draw(500)


def _clusters(n: int, count: int, d: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Centres of rows, and which cluster each is of; centres lie on a ring of two axes."""
    state = torch.randint(count, (n,), generator=generator)
    angle = 2 * math.pi * state / count
    centres = torch.zeros(n, d)
    centres[:, 0] = 3 * count * torch.cos(angle)
    if d > 1:
        centres[:, 1] = 3 * count * torch.sin(angle)
    return centres, state


def one_of_clusters(n: int, count: int, d: int, sd: float, generator: Generator) -> Pair:
    """Of the second side, the rows of one cluster have another spread."""
    sides = []
    for other in (1.0, sd):
        centres, state = _clusters(n, count, d, generator)
        scale = torch.where(state == 0, other, 1.0)[:, None]
        sides.append(centres + scale * torch.randn(n, d, generator=generator))
    return sides[0], sides[1]


def _turned(n: int, generator: Generator) -> Pair:
    """Long clusters, each turned by an angle of its own on one side."""
    sides = []
    for turn in (0.0, 0.12):
        centres, state = _clusters(n, 7, 2, generator)
        rows = torch.randn(n, 2, generator=generator) * torch.tensor([2.0, 0.7])
        angle = state + turn * (state - 3)
        cosine, sine = torch.cos(angle), torch.sin(angle)
        turned = [cosine * rows[:, 0] - sine * rows[:, 1], sine * rows[:, 0] + cosine * rows[:, 1]]
        sides.append(centres + torch.stack(turned, 1))
    return sides[0], sides[1]


def _normal(kind: str, generator: Generator) -> Pair:
    x, y = torch.randn(2, 250, 6, generator=generator)
    if kind == "shift of one column":
        y[:, 2] += 0.3
    elif kind == "scale":
        y *= 1.12
    elif kind == "tails":
        y *= torch.where(torch.rand(250, 1, generator=generator) < 0.15, 2.2, 0.85)
    else:
        y[:, 3] = 0.33 * y[:, 5] + math.sqrt(1 - 0.33**2) * y[:, 3]
    return x, y


def _many_shifts(generator: Generator) -> Pair:
    """Columns that all depend on five numbers."""
    mixing = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    x, y = (
        torch.randn(250, 5, generator=generator) @ mixing
        + torch.randn(250, 40, generator=generator)
        for _ in range(2)
    )
    return x, y + 0.08


def _without(n: int, path: Path, count: int, generator: Generator) -> Pair:
    """One side lacks the first classes."""
    rows, classes = _table(path)
    every = torch.arange(len(rows))
    x, y = (
        rows[some[torch.randint(len(some), (n,), generator=generator)]]
        for some in (every, every[classes >= count])
    )
    return x, y


@cache
def _table(path: Path) -> tuple[Tensor, Tensor]:
    """Rows of numbers, and the classes in the order of their names."""
    with gzip.open(path, "rt") as file:
        values = np.array(list(csv.reader(file))[1:])
    classes = np.unique(values[:, -1], return_inverse=True)[1]
    return torch.from_numpy(values[:, :-1].astype(float)), torch.from_numpy(classes)
