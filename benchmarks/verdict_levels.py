"""The level of the verdict as a whole: how often sets of one source are called different at 0.05.

`python -m benchmarks verdict-levels`, or `python -m benchmarks.verdict_levels` for some of the
cells or for fewer seconds. Beside the verdict's p-value each cell has the smallest corrected
p-value of all columns and of all pairs: the chance that any of them is named; of a pair it may be
below the level, as two tests must agree on it. Judged and measured
again as in `benchmarks.levels`. Sizes lie on both sides of every switch: 4000 rows (then
blocks change sides), 8000 (then features come from some of the rows), 300 distinct rows (then from
some of these), 8 values of a column (then it has ranks), a ratio of 1.25 of the columns' spreads
(then they are also taken as given), a kurtosis of 6 (then they are also taken as normal scores),
300 pairs of columns (then some are left out), 64 columns (then their scores are found in parts),
and so few rows that all labellings are tried.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.levels import measure_cells, tables, worked
from benchmarks.levels_cells import TIES, TINY, Cell
from benchmarks.levels_data import Draw
from benchmarks.levels_questions import Answers, asked
from kermix.kernels.distances import Layout
from kermix.two_sample.aggregate import aggregate_rows
from kermix.two_sample.column_scores import ColumnPlace

__all__ = ["CELLS", "run"]

GAPS = 0.3


@dataclass(frozen=True)
class Columns:
    """How the columns of drawn rows are taken."""

    codes: int = 0  # the last ones are categories
    gaps: int = 0  # the first ones are missing in some rows
    constant: int = 0  # the last ones, which have one value


def verdict(columns: Columns | None = None) -> Any:
    """Ask the aggregate test."""
    return partial(_asked, columns or Columns())


def _asked(columns: Columns, data: Draw, permutations: int, seed: int) -> Answers:
    def pvalues() -> Answers:
        pooled = torch.cat([data.x, data.y]).double()
        pooled, places, layout = _encoded(pooled, columns, seed)
        found = aggregate_rows(
            pooled, len(data.x), places=places, layout=layout, permutations=permutations,
            seed=seed, groups=data.groups,
            weights=None if data.weights[0] is None else torch.cat([*data.weights]),  # type: ignore[list-item]
        )  # fmt: skip
        answers: Answers = {"verdict": found.pvalue}
        answers["any column"] = min(c.corrected for c in found.columns)
        answers["first column"] = next(c.pvalue for c in found.columns if c.column == "x0")
        if found.pairs:
            answers["any pair"] = min(p.corrected for p in found.pairs)
        return answers

    return asked("verdict", pvalues)


def _encoded(
    rows: Tensor, columns: Columns, seed: int
) -> tuple[Tensor, tuple[ColumnPlace, ...] | None, Layout | None]:
    """Rows of numbers and codes, as those of a typed table: numbers, categories, marks of gaps."""
    rows = rows.clone()
    rows[:, rows.shape[1] - columns.constant :] = 1.5
    if not columns.codes and not columns.gaps:
        return rows, None, None
    d = rows.shape[1]
    # Not the seed of the test: its labellings would be made of the numbers that made the marks.
    generator = torch.Generator().manual_seed(seed + 10**9)
    marks = torch.rand(len(rows), columns.gaps, generator=generator) < GAPS
    rows[:, : columns.gaps][marks] = 0.0
    numbers = d - columns.codes
    places = tuple(
        ColumnPlace(f"x{k}", k, d + k if k < columns.gaps else None)
        if k < numbers
        else ColumnPlace(f"x{k}", None, k)
        for k in range(d)
    )
    layout = Layout(columns.codes + columns.gaps, 2.7, d)
    return torch.cat([rows, marks.double()], 1), places, layout


# Beside the exact test of the pooled rows, that of dependence must find a pair.
NAMED_PAIRS = {"any pair": "a pair is named only if two tests find it"}
SHORT = replace(Cell("", (2, 2), 1, (verdict(),)), budget=300.0, why_of=NAMED_PAIRS)


def _cell(name: str, rows: tuple[int, int], d: int, **more: Any) -> Cell:
    columns = more.pop("columns", None)
    return replace(
        SHORT, **{"name": name, "rows": rows, "d": d, "questions": (verdict(columns),), **more}
    )


CELLS = (
    _cell("4 v 5, all labellings", (4, 5), 2, permutations=199, why=TINY),
    _cell("20 v 20", (20, 20), 1),
    _cell("20 v 20, many columns", (20, 20), 200, budget=500),
    _cell("20 v 800", (20, 800), 5),
    _cell("100 v 100, lognormal", (100, 100), 10, source="lognormal"),
    _cell("60 v 90, Cauchy", (60, 90), 3, source="Cauchy"),
    _cell("200 v 200, clusters", (200, 200), 2, source="four clusters"),
    _cell("149 v 151, 300 rows", (149, 151), 4),
    _cell("150 v 151, 301 rows", (150, 151), 4),
    _cell("150 v 50, 26 columns", (150, 50), 26, budget=500),
    _cell("20 v 20, 500 columns", (20, 20), 500, budget=500),
    _cell("20 v 200, 500 columns", (20, 200), 500, budget=500),
    _cell("50 v 50, 1000 columns", (50, 50), 1000, budget=500),
    _cell("200 v 200, 1000 columns", (200, 200), 1000, budget=500),
    _cell("500 v 500", (500, 500), 10, budget=900),
    _cell("80 v 60, binary", (80, 60), 6, source="binary", why=TIES),
    _cell("80 v 60, four values", (80, 60), 1, source="integers 0 to 3", why=TIES),
    _cell("100 v 80, four copies of each", (100, 80), 3, source="each row about four times"),
    _cell("60 v 60, one row far away", (60, 60), 3, source="normal, one row at 1e10"),
    _cell("60 v 60, scales 1e-6 to 1e6", (60, 60), 5, source="scales 1e-6 to 1e6"),
    _cell("100 v 120, categories", (100, 120), 5, source="integers 0 to 3",
          columns=Columns(codes=5), why=TIES),
    _cell("100 v 120, numbers and categories", (100, 120), 6, source="four numbers and two codes",
          columns=Columns(codes=2)),
    _cell("100 v 120, gaps", (100, 120), 4, columns=Columns(gaps=2)),
    _cell("1000 v 30, Cauchy", (1000, 30), 4, source="Cauchy"),
    _cell("30 v 300, one category", (30, 300), 1, source="integers 0 to 3",
          columns=Columns(codes=1), why=TIES),
    _cell("40 v 50, one column and 9 constants", (40, 50), 10, columns=Columns(constant=9)),
    _cell("30 v 40, groups", (30, 40), 3, groups="of 1 to 9"),
    _cell("60 v 80, weights", (60, 80), 3, weights="drawn"),
    _cell("6 v 7, four values", (6, 7), 2, source="integers 0 to 3", why=TIES),
    _cell("3 v 60, binary", (3, 60), 2, source="binary", why=TIES),
    _cell("5 v 500", (5, 500), 3),
    _cell("8 v 200, four copies of each", (8, 200), 3, source="each row about four times"),
    _cell("12 v 15, Cauchy, 400 columns", (12, 15), 400, source="Cauchy"),
    _cell("25 v 30, lognormal, 200 columns", (25, 30), 200, source="lognormal"),
    _cell("30 v 40, four values, 120 columns", (30, 40), 120, source="integers 0 to 3", why=TIES),
    _cell("8 v 30, groups of copies", (8, 30), 3, source="each row about four times",
          groups="of 1 to 9"),
    _cell("2000 v 2000, rows", (2000, 2000), 3, budget=1500, repetitions=400),
    _cell("2001 v 2000, blocks", (2001, 2000), 3, budget=1500, repetitions=400),
    _cell("200 v 8000", (200, 8000), 10, budget=1500, repetitions=400),
    _cell("20,000 v 20,000", (20_000, 20_000), 5, budget=1500, repetitions=400),
    _cell("20,000 v 500, sorted", (20_000, 500), 4, in_order=True, budget=1500, repetitions=400),
    _cell("3000 v 3000, mixed", (3000, 3000), 6, source="four numbers and two codes",
          columns=Columns(codes=2, gaps=1), budget=1500, repetitions=400),
)  # fmt: skip

QUICK = ("20 v 20", "100 v 120, gaps")


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The tables, again and again, each time with more in them."""
    cells: Iterable[Cell] = CELLS
    if quick:
        cells = [replace(c, repetitions=10, budget=5.0) for c in CELLS if c.name in QUICK]
    for results in worked(cells, 1 if quick else None):
        yield tables(results)


def main() -> None:
    """Run some of the cells and write the result file."""
    measure_cells("verdict-levels", CELLS, __doc__)


if __name__ == "__main__":
    main()
