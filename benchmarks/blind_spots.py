"""Power of the verdict where it once saw little: correlations of many columns, single columns.

`python -m benchmarks blind-spots`. Sets of problems: those by which the weights of the parts of
the aggregate test were chosen (`development`, with those of `benchmarks.power_development`),
others of the same kinds that an earlier choice was measured on (`fresh`), others that none was
(`held out`), and those that Santoro and Panaretos published for the kernel likelihood ratio
(`published`, with the numbers of their files: the best of their tests, and MMDAgg as they have it;
300 permutations), with one of their tests as `benchmarks.kernel_likelihood_ratio` makes it and,
where it is installed, MMDAgg with its defaults.
Beside the verdict stand its own parts, each as if it were the whole test, and, of few columns,
tests of single columns times their number: Kolmogorov and Smirnov's and Mann and Whitney's of
numbers, Fisher's of each value. Where a difference is 1.15 times that of another problem, the
verdict should find it as often as the best of these finds the other.
"""

import argparse
import importlib.util
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from benchmarks.kernel_likelihood_ratio import KLR, likelihood_ratio_test
from benchmarks.power_development import one_of_clusters, waves
from benchmarks.quality import begun_record
from kermix.environment import environment, machine_name
from kermix.files import write_json
from kermix.kernels.distances import Layout
from kermix.two_sample.aggregate import TOGETHER, aggregate_rows
from kermix.two_sample.column_scores import ColumnPlace, places_of_names

__all__ = ["PROBLEMS", "Problem", "run"]

LEVEL, PERMUTATIONS, REPETITIONS = 0.05, 300, 100
FEW_COLUMNS = 50
PART = 10  # repetitions at a time
PEER_OF_FIVE = (0, 1)  # repetitions with tests of peers, which take longer
OURS, PUBLISHED = "kermix", "published "
MMDAGG = "MMDAgg"
# Peers, and the columns that say in how many repetitions they were asked.
PEERS = {KLR: "peer repetitions", MMDAGG: "MMDAgg repetitions"}
# Columns of the record that are no rates.
OTHERS = ("problem", "n", "repetitions", *PEERS.values(), "seconds")
Draw = Callable[[int, Generator], tuple[Tensor, Tensor]]


class Problem(NamedTuple):
    """Two samples of equal size."""

    name: str
    n: int
    draw: Draw
    codes: int = 0  # the last columns
    gaps: int = 0  # first columns of numbers with gaps, whose marks are the last columns
    published: dict[str, float] | None = None
    squared: bool = False  # whether the published kernel is of squared distances

    @property
    def set(self) -> str:
        """Of which set it is."""
        return self.name.split(":")[0]


def _normal(n: int, d: int, g: Generator) -> Tensor:
    return torch.randn(n, d, generator=g, dtype=torch.float64)


def _decreasing(
    d: int, first: float, second: float, n: int, g: Generator
) -> tuple[Tensor, Tensor]:
    """The correlation of two columns falls with their distance."""
    sides = []
    for correlation in (first, second):
        rows = _normal(n, d, g)
        for k in range(1, d):
            noise = math.sqrt(1 - correlation**2) * rows[:, k]
            rows[:, k] = correlation * rows[:, k - 1] + noise
        sides.append(rows)
    return sides[0], sides[1]


def _equal(d: int, first: float, second: float, n: int, g: Generator) -> tuple[Tensor, Tensor]:
    """All pairs of columns have one correlation."""
    x, y = (
        math.sqrt(1 - c) * _normal(n, d, g) + math.sqrt(c) * _normal(n, 1, g)
        for c in (first, second)
    )
    return x, y


def _spheres(d: int, shift: float, noise: float, n: int, g: Generator) -> tuple[Tensor, Tensor]:
    x, y = (
        r * torch.nn.functional.normalize(_normal(n, d, g), dim=1) + noise * _normal(n, d, g)
        for r in (1.0, 1 + shift)
    )
    return x, y


def _cubes(d: int, thin: int, margin: float, n: int, g: Generator) -> tuple[Tensor, Tensor]:
    x, y = torch.rand(2, n, d, generator=g, dtype=torch.float64)
    y[:, :thin] = margin + (1 - 2 * margin) * y[:, :thin]
    return x, y


def _shifted(
    d: int, columns: int, shift: float, laplace: bool, n: int, g: Generator
) -> tuple[Tensor, Tensor]:
    x, y = _normal(n, d, g), _normal(n, d, g)
    if laplace:
        x, y = (
            torch.distributions.Laplace(0.0, 1.0).icdf(torch.special.ndtr(side)) for side in (x, y)
        )
    y[:, :columns] += shift
    return x, y


def _scaled(d: int, columns: int, scale: float, n: int, g: Generator) -> tuple[Tensor, Tensor]:
    x, y = _normal(n, d, g), _normal(n, d, g)
    y[:, :columns] *= scale
    return x, y


def _spiked(d: int, spikes: int, value: float, n: int, g: Generator) -> tuple[Tensor, Tensor]:
    """The last columns of the second sample are one number, of a larger variance."""
    x, y = _normal(n, d, g), _normal(n, d, g)
    y[:, -spikes:] = math.sqrt(value) * _normal(n, 1, g)
    return x, y


def _two_modes(d: int, columns: int, shift: float, n: int, g: Generator) -> tuple[Tensor, Tensor]:
    """Half of the second sample is shifted down, half up."""
    x, y = _normal(n, d, g), _normal(n, d, g)
    y[: n // 2, :columns] -= shift
    y[n // 2 :, :columns] += shift
    return x, y


def _categories(
    d: int, first: list[float], second: list[float], n: int, g: Generator
) -> tuple[Tensor, Tensor]:
    """Normal columns, and a category with these shares."""
    x, y = (
        torch.cat([
            _normal(n, d, g),
            torch.multinomial(torch.tensor(shares), n, True, generator=g)[:, None].double(),
        ], 1)
        for shares in (first, second)
    )  # fmt: skip
    return x, y


def _gaps(d: int, first: float, second: float, n: int, g: Generator) -> tuple[Tensor, Tensor]:
    """Normal columns, of which the first has gaps in these shares of the rows."""
    sides = []
    for share in (first, second):
        rows = _normal(n, d, g)
        missing = torch.rand(n, generator=g) < share
        rows[missing, 0] = 0.0
        sides.append(torch.cat([rows, missing[:, None].double()], 1))
    return sides[0], sides[1]


def _clusters(
    count: int, d: int, sd: float, n: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    x, y = one_of_clusters(n, count, d, sd, generator)
    return x.double(), y.double()


def _waves(d: int, frequency: float, depth: float, n: int, g: Generator) -> tuple[Tensor, Tensor]:
    x, y = waves("normal", d, frequency, depth, g)
    return x[:n].double(), y[:n].double()


def _of(name: str, n: int, draw: Callable[..., Any], *settings: Any, **more: Any) -> Problem:
    return Problem(name, n, partial(draw, *settings), **more)


def _published(best: float, mmdagg: float) -> dict[str, float]:
    return {"best": best, "MMDAgg": mmdagg}


PROBLEMS = (
    _of("development: decreasing correlation", 80, _decreasing, 300, 0.4, 0.5),
    _of("development: decreasing, few columns", 80, _decreasing, 60, 0.3, 0.5),
    _of("development: equal correlations", 80, _equal, 300, 0.3, 0.335),
    _of("development: equal, few columns", 80, _equal, 30, 0.3, 0.42),
    _of("development: spheres", 80, _spheres, 120, 0.025, 0.03),
    _of("development: thin cube", 80, _cubes, 300, 20, 0.12),
    _of("development: shift of 1 of 12", 60, _shifted, 12, 1, 0.72, False),
    _of("development: shift of 1 of 30", 100, _shifted, 30, 1, 0.6, False),
    _of("development: shift of 1 of 1", 120, _shifted, 1, 1, 0.33, False),
    _of("development: shift of 1 of 5", 300, _shifted, 5, 1, 0.27, False),
    _of("development: scale of 1 of 10", 150, _scaled, 10, 1, 1.4),
    _of("development: category", 120, _categories, 9, [0.5, 0.3, 0.2], [0.32, 0.33, 0.35],
        codes=1),
    _of("development: new category", 150, _categories, 9, [0.6, 0.4, 0.0], [0.57, 0.375, 0.055],
        codes=1),
    _of("fresh: decreasing correlation", 60, _decreasing, 800, 0.6, 0.69),
    _of("fresh: equal correlations", 120, _equal, 150, 0.7, 0.73),
    _of("fresh: spheres", 70, _spheres, 400, 0.02, 0.025),
    _of("fresh: thin cube", 90, _cubes, 200, 12, 0.13),
    _of("fresh: shift of 1 of 20", 80, _shifted, 20, 1, 0.65, False),
    _of("fresh: shift of 1 of 1", 150, _shifted, 1, 1, 0.33, False),
    _of("fresh: shift of 1 of 3", 40, _shifted, 3, 1, 0.75, False),
    _of("fresh: shift of 1 of 8, Laplace", 120, _shifted, 8, 1, 0.5, True),
    _of("fresh: category", 100, _categories, 0, [0.7, 0.3], [0.52, 0.48], codes=1),
    _of("fresh: vanished category", 200, _categories, 6, [0.5, 0.455, 0.045], [0.5, 0.5, 0.0],
        codes=1),
    _of("fresh: decreasing, 250 columns", 90, _decreasing, 250, 0.2, 0.36),
    _of("fresh: equal, 90 columns", 110, _equal, 90, 0.5, 0.545),
    _of("fresh: spheres d=160", 90, _spheres, 160, 0.018, 0.022),
    _of("fresh: thin cube d=120", 80, _cubes, 120, 10, 0.1),
    _of("fresh: shift of 1 of 15", 70, _shifted, 15, 1, 0.66, False),
    _of("fresh: shift of 1 of 15, 1.15 times", 70, _shifted, 15, 1, 0.66 * 1.15, False),
    _of("fresh: shift of 1 of 1, 50 rows", 50, _shifted, 1, 1, 0.5, False),
    _of("fresh: shift of 1 of 1, 50 rows, 1.15 times", 50, _shifted, 1, 1, 0.5 * 1.15, False),
    _of("fresh: shift of 1 of 4", 250, _shifted, 4, 1, 0.28, False),
    _of("fresh: shift of 1 of 4, 1.15 times", 250, _shifted, 4, 1, 0.28 * 1.15, False),
    _of("fresh: shift of 1 of 45, Laplace", 150, _shifted, 45, 1, 0.62, True),
    _of("fresh: shift of all of 12", 100, _shifted, 12, 12, 0.17, False),
    _of("fresh: scale of 1 of 7", 180, _scaled, 7, 1, 1.36),
    _of("fresh: one of 4 clusters", 300, _clusters, 4, 3, 0.72),
    _of("fresh: one of 4 clusters, 1.15 times", 300, _clusters, 4, 3, 0.72**1.15),
    _of("fresh: waves", 450, _waves, 2, 3.5, 0.75),
    _of("fresh: waves, 1.15 times", 450, _waves, 2, 3.5, 0.75 * 1.15),
    _of("fresh: category of three", 140, _categories, 3, [0.45, 0.35, 0.2], [0.29, 0.38, 0.33],
        codes=1),
    _of("fresh: rare category", 220, _categories, 5, [0.6, 0.37, 0.03], [0.55, 0.355, 0.095],
        codes=1),
    _of("fresh: vanished category of three", 180, _categories, 14, [0.5, 0.445, 0.055],
        [0.53, 0.47, 0.0], codes=1),
    _of("fresh: gaps that appeared", 160, _gaps, 8, 0.0, 0.05, codes=1, gaps=1),
    _of("held out: decreasing correlation", 120, _decreasing, 350, 0.3, 0.39),
    _of("held out: equal correlations", 70, _equal, 200, 0.4, 0.45),
    _of("held out: spheres", 110, _spheres, 200, 0.012, 0.02),
    _of("held out: thin cube", 110, _cubes, 300, 15, 0.09),
    _of("held out: shift of 1 of 18", 90, _shifted, 18, 1, 0.6, False),
    _of("held out: shift of 1 of 18, 1.15 times", 90, _shifted, 18, 1, 0.6 * 1.15, False),
    _of("held out: shift of 1 of 1", 70, _shifted, 1, 1, 0.42, False),
    _of("held out: shift of 1 of 1, 1.15 times", 70, _shifted, 1, 1, 0.42 * 1.15, False),
    _of("held out: shift of 1 of 6", 200, _shifted, 6, 1, 0.31, False),
    _of("held out: shift of 1 of 6, 1.15 times", 200, _shifted, 6, 1, 0.31 * 1.15, False),
    _of("held out: shift of 1 of 25, Laplace", 130, _shifted, 25, 1, 0.6, True),
    _of("held out: scale of 1 of 9", 170, _scaled, 9, 1, 1.38),
    _of("held out: one of 5 clusters", 280, _clusters, 5, 2, 0.68),
    _of("held out: one of 5 clusters, 1.15 times", 280, _clusters, 5, 2, 0.68**1.15),
    _of("held out: waves", 400, _waves, 2, 4.0, 0.75),
    _of("held out: waves, 1.15 times", 400, _waves, 2, 4.0, 0.75 * 1.15),
    _of("held out: category", 160, _categories, 6, [0.4, 0.4, 0.2], [0.26, 0.4, 0.34], codes=1),
    _of("held out: rare category", 180, _categories, 8, [0.6, 0.365, 0.035],
        [0.545, 0.345, 0.11], codes=1),
    _of("held out: vanished category", 210, _categories, 11, [0.5, 0.452, 0.048],
        [0.53, 0.47, 0.0], codes=1),
    _of("held out: gaps that appeared", 190, _gaps, 5, 0.0, 0.036, codes=1, gaps=1),
    _of("published: decreasing correlation", 100, _decreasing, 500, 0.5, 0.6,
        published=_published(0.955, 0.04)),
    _of("published: equal correlations", 100, _equal, 500, 0.5, 0.525,
        published=_published(0.925, 0.035)),
    _of("published: spheres d=250", 100, _spheres, 250, 0.015, 0.02,
        published=_published(0.905, 0.745)),
    _of("published: thin cube", 100, _cubes, 500, 30, 0.1, published=_published(0.895, 0.665)),
    _of("published: sparse shift", 100, _shifted, 500, 2, 1.0, False,
        published=_published(0.705, 0.695)),
    _of("published: sparse shift, Laplace", 100, _shifted, 500, 4, 1.0, True,
        published=_published(0.755, 0.56), squared=True),
    _of("published: spiked covariance", 100, _spiked, 500, 5, 3.0,
        published=_published(1.0, 0.45), squared=True),
    _of("published: Gaussian mixture", 100, _two_modes, 500, 1, 4.0,
        published=_published(1.0, 0.915), squared=True),
)  # fmt: skip


def _encoding(problem: Problem, width: int) -> tuple[Sequence[ColumnPlace], Layout | None]:
    """Where rows of such a width hold the columns, and which of them are codes."""
    names = [f"x{k}" for k in range(width)]
    if not problem.codes:
        return places_of_names(names), None
    places = [*places_of_names(names, problem.codes)]
    marks = places[width - problem.gaps :]
    for k, mark in enumerate(marks):
        places[k] = places[k]._replace(codes=mark.codes)
    layout = Layout(problem.codes, 2.7, width - problem.gaps)
    return places[: width - problem.gaps], layout


def _of_columns(x: Tensor, y: Tensor, problem: Problem) -> dict[str, float]:
    """Tests of single columns, times their number."""
    from scipy import stats

    a, b = x.numpy(), y.numpy()
    codes, d = problem.codes, a.shape[1] - problem.gaps
    numbers = a.shape[1] - codes
    if d > FEW_COLUMNS:
        return {}
    smallest = {"Kolmogorov-Smirnov": 1.0, "Mann-Whitney": 1.0}
    for p, q in zip(a.T[:numbers], b.T[:numbers], strict=True):
        found = stats.ks_2samp(p, q).pvalue, stats.mannwhitneyu(p, q).pvalue
        for name, pvalue in zip(smallest, found, strict=True):
            smallest[name] = min(smallest[name], d * float(pvalue))
    if not codes:
        return smallest
    fisher = 1.0
    for p, q in zip(a.T[numbers:], b.T[numbers:], strict=True):
        for value in sorted({*p, *q}):
            first, second = int((p == value).sum()), int((q == value).sum())
            table = [[first, len(p) - first], [second, len(q) - second]]
            fisher = min(fisher, d * float(stats.fisher_exact(table).pvalue))
    return {name: min(fisher, p) for name, p in smallest.items()} | {"Fisher": fisher}


@dataclass(frozen=True)
class Tally:
    """How often each test was made of a problem's samples, and how often it rejected."""

    made: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0  # of the verdict

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(
            self.made + other.made, self.rejected + other.rejected, self.seconds + other.seconds
        )

    @classmethod
    def of_row(cls, row: dict[str, Any]) -> "Tally":
        """What a line of a table says."""
        made = row["repetitions"]
        rates = {name: rate for name, rate in row.items() if name not in OTHERS}
        own = [name for name in rates if not name.startswith(PUBLISHED)]
        counts = {name: row[PEERS[name]] if name in PEERS else made for name in own}
        rejected = {name: round(rates[name] * count) for name, count in counts.items()}
        return cls(Counter(counts), Counter(rejected), row["seconds"] * made)

    def row(self, problem: Problem) -> dict[str, Any]:
        """A line of the table."""
        return {
            "problem": problem.name,
            "n": problem.n,
            "repetitions": self.made[OURS],
            **{name: self.rejected[name] / count for name, count in self.made.items()},
            **{column: self.made[peer] for peer, column in PEERS.items() if self.made[peer]},
            **{PUBLISHED + name: rate for name, rate in (problem.published or {}).items()},
            "seconds": self.seconds / self.made[OURS],
        }


def measured(problem: Problem, repetitions: Iterable[int]) -> Tally:
    """Which tests reject in some repetitions."""
    made, rejected, seconds = Counter[str](), Counter[str](), 0.0
    for seed in repetitions:
        x, y = problem.draw(problem.n, torch.Generator().manual_seed(seed + 10**6))
        places, layout = _encoding(problem, x.shape[1])
        began = time.process_time()
        test = aggregate_rows(
            torch.cat([x, y]), problem.n, places=places, layout=layout,
            permutations=PERMUTATIONS, seed=seed, level=LEVEL,
        )  # fmt: skip
        seconds += time.process_time() - began
        parts = {s.name: s.pvalue for s in test.statistics if s.name in TOGETHER.values()}
        pvalues = {OURS: test.pvalue, **parts, **_of_columns(x, y, problem)}
        found = {name: pvalue <= LEVEL for name, pvalue in pvalues.items()}
        if problem.published and seed % 5 in PEER_OF_FIVE:
            found |= _of_peers(problem, x, y, seed)
        made.update([*found])
        rejected.update([name for name, yes in found.items() if yes])
    return Tally(made, rejected, seconds)


def _of_peers(problem: Problem, x: Tensor, y: Tensor, seed: int) -> dict[str, bool]:
    generator = torch.Generator().manual_seed(seed + 10**9)
    found = {KLR: likelihood_ratio_test(x, y, generator, PERMUTATIONS, problem.squared)}
    if importlib.util.find_spec("mmdagg"):
        from mmdagg.np import mmdagg

        found[MMDAGG] = bool(mmdagg(x.numpy(), y.numpy(), seed=seed))
    return found


def _measured(name: str, repetitions: range) -> Tally:
    return measured(next(p for p in PROBLEMS if p.name == name), repetitions)


def tables_of(
    problems: Sequence[Problem],
    repetitions: range,
    processes: int = 1,
    seconds: float = math.inf,
    begun: Mapping[str, Tally] | None = None,
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """A table for each set, again and again, each time with more in it.

    Args:
        problems: Which.
        repetitions: Of each.
        processes: How many run at a time.
        seconds: No part is begun after these.
        begun: What is known of problems by other repetitions.
    """
    began = time.perf_counter()
    known = dict(begun or {})
    parts = iter([
        (p.name, repetitions[start : start + PART])
        for start in range(0, len(repetitions), PART)
        for p in problems
    ])  # fmt: skip

    def add(name: str, new: Tally) -> dict[str, list[dict[str, Any]]]:
        known[name] = known.get(name, Tally()) + new
        tables: dict[str, list[dict[str, Any]]] = {}
        for problem in PROBLEMS:
            if problem.name in known:
                tables.setdefault(problem.set, []).append(known[problem.name].row(problem))
        return tables

    if processes == 1:
        for name, some in parts:
            yield add(name, _measured(name, some))
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        running: dict[Future[Tally], str] = {}
        while True:
            while len(running) < processes + 2 and time.perf_counter() - began < seconds:
                if (part := next(parts, None)) is None:
                    break
                running[pool.submit(_measured, *part)] = part[0]
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield add(running.pop(future), future.result())


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The tables of all sets."""
    chosen = [PROBLEMS[4], PROBLEMS[12]] if quick else PROBLEMS
    yield from tables_of(chosen, range(3 if quick else REPETITIONS))


def main() -> None:
    """Measure some problems, and write what there is after each part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default="", help="by commas: how their names begin")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--first", type=int, default=0, help="number of the first repetition")
    parser.add_argument(
        "--resume", action="store_true", help="add to what this commit has measured of others"
    )
    parser.add_argument(
        "--begun", type=Path, default=None,
        help="a record of another machine or commit of the same test, to be added to likewise",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=math.inf, help="no part begins later")
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    asked = parser.parse_args()
    starts = tuple(asked.problems.split(","))
    path = asked.out / f"blind-spots-{machine_name()}.json"
    chosen = [p for p in PROBLEMS if p.name.startswith(starts)]
    about = {"benchmark": "blind-spots", "quick": False, **environment()}
    before: dict[str, Any] = {}
    if asked.resume or asked.begun:
        before = begun_record(path, about["commit"], asked.begun)
    if "begun" in before:
        about["begun"] = before["begun"]
    rows = [row for rows in before.get("tables", {}).values() for row in rows]
    begun = {row["problem"]: Tally.of_row(row) for row in rows}
    repetitions = range(asked.first, asked.first + asked.repetitions)
    for tables in tables_of(chosen, repetitions, asked.processes, asked.seconds, begun):
        write_json(path, {**about, "tables": tables})
    sys.stdout.write(f"Results: {path}\n")


if __name__ == "__main__":
    main()
