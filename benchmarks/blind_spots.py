"""Power of the verdict where it once saw little: correlations in many dimensions, single columns.

`python -m benchmarks blind-spots`. Three sets of problems: those by which the weights of the parts
of the aggregate test were chosen (`development`), others of the same kinds that were measured once
after that (`fresh`), and those that Santoro and Panaretos published for the kernel likelihood
ratio (`published`, with the numbers of their files: the best of their tests, and MMDAgg). Beside
the verdict stand its own parts, each as if it were the whole test, and, of few columns, tests of
single columns times their number: Kolmogorov and Smirnov's and Mann and Whitney's of numbers,
Fisher's of each value.
"""

import argparse
import math
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Generator, Tensor

from kermix.environment import environment, machine_name
from kermix.files import write_json
from kermix.kernels.distances import Layout
from kermix.two_sample.aggregate import aggregate_rows

__all__ = ["PROBLEMS", "Problem", "run"]

LEVEL, PERMUTATIONS, REPETITIONS = 0.05, 300, 100
FEW_COLUMNS = 50
Draw = Callable[[int, Generator], tuple[Tensor, Tensor]]


class Problem(NamedTuple):
    """Two samples of equal size."""

    name: str
    n: int
    draw: Draw
    codes: int = 0  # the last columns
    published: dict[str, float] | None = None

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
        published=_published(0.755, 0.56)),
)  # fmt: skip


def _layout(problem: Problem, columns: int) -> Layout | None:
    return Layout(problem.codes, 2.7, columns) if problem.codes else None


def _of_columns(x: Tensor, y: Tensor, codes: int) -> dict[str, float]:
    """Tests of single columns, times their number."""
    from scipy import stats

    a, b = x.numpy(), y.numpy()
    d = a.shape[1]
    if d > FEW_COLUMNS:
        return {}
    smallest = {"Kolmogorov-Smirnov": 1.0, "Mann-Whitney": 1.0}
    for p, q in zip(a.T[: d - codes], b.T[: d - codes], strict=True):
        found = stats.ks_2samp(p, q).pvalue, stats.mannwhitneyu(p, q).pvalue
        for name, pvalue in zip(smallest, found, strict=True):
            smallest[name] = min(smallest[name], d * float(pvalue))
    if not codes:
        return smallest
    fisher = 1.0
    for p, q in zip(a.T[d - codes :], b.T[d - codes :], strict=True):
        for value in sorted({*p, *q}):
            first, second = int((p == value).sum()), int((q == value).sum())
            table = [[first, len(p) - first], [second, len(q) - second]]
            fisher = min(fisher, d * float(stats.fisher_exact(table).pvalue))
    return {name: min(fisher, p) for name, p in smallest.items()} | {"Fisher": fisher}


def measured(problem: Problem, repetitions: int, first: int = 0) -> dict[str, Any]:
    """A line of the table."""
    rejected: dict[str, int] = {}
    seconds = 0.0
    for seed in range(first, first + repetitions):
        x, y = problem.draw(problem.n, torch.Generator().manual_seed(seed + 10**6))
        began = time.process_time()
        test = aggregate_rows(
            torch.cat([x, y]), problem.n, layout=_layout(problem, x.shape[1]),
            permutations=PERMUTATIONS, seed=seed, level=LEVEL,
        )  # fmt: skip
        seconds += time.process_time() - began
        pvalues = {"kermix": test.pvalue, **_of_columns(x, y, problem.codes)}
        names = (
            "single columns",
            "single values of columns",
            "pairs of columns",
            "depths of rows",
        )
        pvalues |= {s.name: s.pvalue for s in test.statistics if s.name in names}
        for name, pvalue in pvalues.items():
            rejected[name] = rejected.get(name, 0) + (pvalue <= LEVEL)
    return {
        "problem": problem.name,
        "n": problem.n,
        "repetitions": repetitions,
        **{name: count / repetitions for name, count in rejected.items()},
        **{f"published {name}": rate for name, rate in (problem.published or {}).items()},
        "seconds": seconds / repetitions,
    }


def tables_of(
    problems: Iterable[Problem], repetitions: int
) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """A table for each set, again and again, each time with more in it."""
    found: dict[str, list[dict[str, Any]]] = {}
    for problem in problems:
        found.setdefault(problem.set, []).append(measured(problem, repetitions))
        yield found


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The tables of all sets."""
    chosen = [PROBLEMS[4], PROBLEMS[12]] if quick else PROBLEMS
    yield from tables_of(chosen, 3 if quick else REPETITIONS)


def main() -> None:
    """Measure some problems; the others stay in the record as they are."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--problems", default="", help="by commas: how their names begin")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    asked = parser.parse_args()
    starts = tuple(asked.problems.split(","))
    path = asked.out / f"blind-spots-{machine_name()}.json"
    chosen = [p for p in PROBLEMS if p.name.startswith(starts)]
    for tables in tables_of(chosen, asked.repetitions):
        record = {"benchmark": "blind-spots", "quick": False, **environment(), "tables": tables}
        write_json(path, record)


if __name__ == "__main__":
    main()
