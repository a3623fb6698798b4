"""The cells of the benchmark of levels: which data, how many rows, what is asked about them.

Sizes lie on both sides of every switch to another algorithm that is documented: 1000 and 1001 rows
(`km.compare`), 1000 rows of both sides together (the grid of variances), 1500 and 1501 of both
(`km.two_sample_test`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from benchmarks.levels_data import Draw, draw
from benchmarks.levels_questions import Answers, Question, compared, files, sketches, two_samples

__all__ = ["CELLS", "QUICK", "Cell"]

TINY = "so few groups that many of the labellings are equal"
FEW = "few rows for a p-value that is right in the limit of many"
TIES = "few values: labellings with equal statistics count against rejection"
COLUMN_TIES = "columns of few values: labellings with equal statistics count against rejection"


@dataclass(frozen=True)
class Cell:
    """One setting: data, sizes and questions; several statistics share a repetition's data."""

    name: str
    rows: tuple[int, int]  # or groups of rows, if there are groups
    d: int
    questions: tuple[Question, ...] = field(repr=False)
    source: str = "normal"
    budget: float = 100.0  # seconds of one core
    repetitions: int = 1000
    permutations: int = 99
    dtype: torch.dtype = torch.float64
    weights: str = ""
    groups: str = ""
    in_order: bool = False
    why: str = ""  # why rates below the level are allowed here
    why_of: Mapping[str, str] = field(default_factory=dict, repr=False)  # of single statistics

    def why_low(self, statistic: str) -> str:
        """Why this statistic may reject less often than the level; empty if it may not."""
        if statistic in self.why_of:
            return self.why_of[statistic]
        return self.why if self.why != COLUMN_TIES or "column" in statistic else ""

    def answers(self, data_seed: int, seed: int) -> Answers:
        """What one repetition's questions get."""
        generator = torch.Generator().manual_seed(data_seed)
        data: Draw = draw(
            self.source,
            self.rows,
            self.d,
            generator,
            dtype=self.dtype,
            weights=self.weights,
            groups=self.groups,
            in_order=self.in_order,
        )
        found: Answers = {}
        for question in self.questions:
            found |= question(data, self.permutations, seed)
        return found

    @property
    def text(self) -> str:
        """The data in words."""
        n, m = self.rows
        parts = [f"{n} v {m}, d = {self.d}", self.source]
        parts += [f"weights {self.weights}"] if self.weights else []
        parts += [f"groups {self.groups}"] if self.groups else []
        parts += ["sorted"] if self.in_order else []
        parts += ["float32"] if self.dtype == torch.float32 else []
        return ", ".join(parts)


FAST = ("mmd", "energy")
WHITENED = ("svd", "matrix", "vector")
FOUND = two_samples()


def _everything(variance: float) -> tuple[Question, ...]:
    """Every form of every test of samples, at found variances and at a given one."""
    exact = two_samples(variance, form="exact", costs=WHITENED)
    return FOUND, two_samples(variance), exact, compared()


def _tests(*variances: float) -> tuple[Question, ...]:
    return FOUND, *(two_samples(v) for v in variances)


def _tests_and_compare(variance: float) -> tuple[Question, ...]:
    return *_tests(variance), compared()


def _sketched(variance: float, *landmarks: str) -> tuple[Question, ...]:
    return tuple(sketches(name, variance) for name in landmarks)


ALL_LANDMARKS = ("third", "small", "x", "y", "pooled", "fourier")
SLOW_COMPARE = (compared(),)

CELLS: tuple[Cell, ...] = (
    # Sizes, ratios and dimensions, below all switches.
    Cell("10 v 10, d = 1", (10, 10), 1, _everything(0.25), budget=180),
    Cell("10 v 10, d = 50", (10, 10), 50, _everything(12.0), budget=180),
    Cell("10 v 400", (10, 400), 2, _tests_and_compare(0.5), budget=180),
    Cell("400 v 10", (400, 10), 2, _tests_and_compare(0.5), budget=180),
    Cell("60 v 40", (60, 40), 5, _everything(1.0), budget=180),
    Cell("100 v 25, d = 1", (100, 25), 1, _everything(0.25), budget=180),
    Cell("200 v 200", (200, 200), 10, _tests_and_compare(2.0), budget=250),
    Cell("20 v 20, d = 2000", (20, 20), 2000, _tests(500.0, 1e4)),
    Cell(
        "20 v 20, d = 2000, compare", (20, 20), 2000, (compared(),), repetitions=200, budget=150
    ),
    Cell("100 v 60, d = 500", (100, 60), 500, _tests(100.0), budget=120),
    # Awkward data, small.
    Cell("integers", (80, 60), 2, _everything(0.5), "integers 0 to 3", 180, why=COLUMN_TIES),
    Cell("binary", (80, 60), 6, _everything(0.5), "binary", 180, why=COLUMN_TIES),
    Cell("binary, one column", (50, 70), 1, _everything(0.5), "binary", 180, why=TIES),
    Cell("constant columns", (60, 60), 6, _everything(0.5), "half of the columns constant", 150,
         why=COLUMN_TIES),
    Cell("constant", (40, 30), 2, _tests_and_compare(1.0), "constant", 60, 200, why=TIES),
    Cell("outlier", (60, 50), 4, _everything(1.0), "normal, one row at 1e10", 150),
    Cell("outlier, d = 20", (60, 50), 20, _everything(5.0), "normal, one row at 1e10", 150),
    Cell("Cauchy", (80, 50), 3, _everything(1.0), "Cauchy", 150),
    Cell("Cauchy, d = 20", (80, 50), 20, _everything(10.0), "Cauchy", 150),
    Cell("lognormal", (80, 50), 3, (FOUND, compared()), "lognormal", 100),
    Cell("unequal scales", (80, 50), 7, _everything(1.0), "scales 1e-6 to 1e6", 150),
    Cell("offset 1e6", (80, 50), 5, _everything(1.0), "offset 1e6", 150),
    Cell(
        "offset 1e6, float32", (80, 50), 5, _everything(1.0), "offset 1e6", 150, 1000, 99,
        torch.float32,
    ),
    Cell("Unix seconds", (80, 50), 3, _everything(1.0), "one column of Unix seconds", 150),
    Cell(
        "Unix seconds, float32", (80, 50), 3, (FOUND, compared()), "one column of Unix seconds",
        100, 1000, 99, torch.float32,
    ),
    Cell("float32", (60, 90), 4, _everything(1.0), "normal", 150, 1000, 99, torch.float32),
    Cell(
        "duplicates", (80, 60), 3, _everything(0.5), "each row about four times", 150
    ),
    Cell("clusters", (60, 60), 2, _everything(1.0), "four clusters", 150),
    Cell("sorted rows", (120, 60), 2, (FOUND, compared()), in_order=True, budget=120),
    # Weights and groups.
    Cell("weights", (60, 80), 2, _tests(0.5), weights="drawn", budget=120),
    Cell("weights, 200 v 20", (200, 20), 2, _tests(0.5), weights="drawn", budget=120),
    Cell(
        "weights by values", (80, 60), 2, _tests(0.5),
        weights="of the row's values", budget=120,
    ),
    Cell(
        "weights, exact forms", (40, 50), 2, (two_samples(0.5, "exact", WHITENED),),
        weights="drawn", budget=120,
    ),
    Cell("weights with zeros", (60, 80), 2, (FOUND,), weights="a third of them zero"),
    Cell(
        "weights of one side", (20, 200), 2, _tests(0.5),
        weights="of one side only", budget=120,
    ),
    Cell(
        "groups", (14, 20), 2, (*_tests(1.0), two_samples(1.0, "exact", WHITENED)),
        groups="of 5", budget=150,
    ),
    Cell("groups of 1 to 9", (30, 16), 2, _tests(1.0), groups="of 1 to 9", budget=150),
    Cell("4 v 4 groups", (4, 4), 2, (FOUND,), groups="of 5", budget=60, why=TINY),
    # Switches of two_sample_test and of the grid of variances.
    Cell(
        "999 rows together", (600, 399), 3, (two_samples(costs=FAST), two_samples(0.7)),
        budget=150,
    ),
    Cell(
        "1001 rows together", (402, 599), 3, (two_samples(costs=FAST), two_samples(0.7)),
        budget=150,
    ),
    Cell("1500 rows together", (1100, 400), 3, (two_samples(0.7),), budget=180, repetitions=300),
    Cell("1501 rows together", (401, 1100), 3, (two_samples(0.7),), budget=180, repetitions=300),
    Cell(
        "1600 v 40", (1600, 40), 5, (two_samples(1.0), two_samples(costs=FAST)), budget=180,
        repetitions=300,
    ),
    Cell("40 v 1600", (40, 1600), 20, (two_samples(costs=WHITENED),), budget=220, repetitions=200),
    Cell(
        "5000 v 1000", (5000, 1000), 5,
        (two_samples(1.0, costs=FAST), two_samples(costs=("energy",))),
        budget=180, repetitions=200,
    ),
    # Switches and ratios of compare.
    Cell("compare 1000 v 300", (1000, 300), 20, SLOW_COMPARE, budget=220, repetitions=300),
    Cell("compare 1001 v 300", (1001, 300), 20, SLOW_COMPARE, budget=220, repetitions=500),
    Cell("compare 300 v 1500", (300, 1500), 20, SLOW_COMPARE, budget=220, repetitions=500),
    Cell("compare 2000 v 2000", (2000, 2000), 2, SLOW_COMPARE, budget=180, repetitions=300),
    Cell("compare 1600 v 40", (1600, 40), 5, SLOW_COMPARE, budget=150, repetitions=400),
    Cell("compare 4001 v 4001", (4001, 4001), 10, SLOW_COMPARE, budget=150, repetitions=300),
    Cell("compare 20,000 v 2000", (20_000, 2000), 20, SLOW_COMPARE, budget=220, repetitions=300),
    Cell("compare 500 v 20,000", (500, 20_000), 50, SLOW_COMPARE, budget=220, repetitions=300),
    Cell(
        "compare 3000 v 200, binary", (3000, 200), 8, SLOW_COMPARE, "binary", 250, 400,
        why=COLUMN_TIES,
    ),
    Cell("compare 200 v 3000, Cauchy", (200, 3000), 4, SLOW_COMPARE, "Cauchy", 150, 400),
    Cell(
        "compare 2000 v 300, outlier", (2000, 300), 20, SLOW_COMPARE, "normal, one row at 1e10",
        150, 400,
    ),
    Cell("compare 1500 v 500, scales", (1500, 500), 7, SLOW_COMPARE, "scales 1e-6 to 1e6", 150),
    Cell(
        "compare 6000 v 500, sorted", (6000, 500), 5, SLOW_COMPARE, in_order=True, budget=150,
        repetitions=400,
    ),
    Cell(
        "compare 1200 v 400, offset, float32", (1200, 400), 5, SLOW_COMPARE, "offset 1e6", 150,
        400, 99, torch.float32,
    ),
    Cell("compare some of 2000 v 500", (2000, 500), 3, (compared(max_points=150),), budget=150),
    # Sketches.
    Cell("sketches 300 v 200", (300, 200), 2, _sketched(0.5, *ALL_LANDMARKS), budget=120),
    Cell("sketches 30 v 30", (30, 30), 2, _sketched(0.5, *ALL_LANDMARKS), budget=120, why=FEW),
    Cell("sketches 2000 v 50", (2000, 50), 3, _sketched(0.7, *ALL_LANDMARKS), budget=180),
    Cell("sketches 50 v 2000", (50, 2000), 10, _sketched(2.5, *ALL_LANDMARKS), budget=180),
    Cell("sketches 200 v 2000", (200, 2000), 10, _sketched(2.5, *ALL_LANDMARKS), budget=180),
    Cell(
        "sketches 20,000 v 500", (20_000, 500), 5, _sketched(1.2, "third", "y"), budget=180,
        repetitions=400,
    ),
    Cell(
        "sketches, binary", (1000, 400), 6, _sketched(0.5, "third", "y"), "binary", 100
    ),
    Cell("sketches, Cauchy", (1000, 400), 3, _sketched(1.0, "third", "y"), "Cauchy", 100),
    Cell("sketches, sorted", (1000, 400), 3, _sketched(0.7, "third", "x"), in_order=True),
    Cell("sketches, weights", (300, 400), 2, _sketched(0.5, "third"), weights="drawn", budget=60),
    Cell("sketches, narrow kernel", (3000, 30), 10, _sketched(0.5, *ALL_LANDMARKS)),
    Cell("sketched files 60 v 3000", (60, 3000), 10, (files(),)),
    Cell("sketched files 3000 v 100", (3000, 100), 10, (files(),)),
)  # fmt: skip

QUICK = (
    "10 v 10, d = 1",
    "60 v 40",
    "20 v 20, d = 2000",
    "binary",
    "weights",
    "groups",
    "compare 300 v 1500",
    "sketches 300 v 200",
)
