r"""Levels of every public test: how often it rejects at 0.05 when both sides have one source.

`python -m benchmarks levels`, or `python -m benchmarks.levels` for some of the cells, or for fewer
seconds. Cells run in several processes of one thread each, cheap ones first; the result file is
written again whenever a part of a cell ends, so a run that is cut keeps what it has.

A rate is judged by the standard error $s = \sqrt{0.05 \cdot 0.95 / r}$ of a right test in
`r` repetitions: above $0.05 + 3 s$ it is "too high", below $0.05 - 3 s$ "low", which
only cells that say why may be. A rate that is off by 3 to 6 of these is measured again, at most
twice, with as many fresh repetitions, and judged by all of them: of two thousand right tests some
are off by 3.
"""

import argparse
import math
import multiprocessing
import os
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.levels_cells import CELLS, QUICK, Cell
from benchmarks.quality import begun_record
from kermix.environment import environment, machine_name
from kermix.files import write_json

__all__ = [
    "LEVEL",
    "Part",
    "Result",
    "Tally",
    "judged",
    "measured",
    "run",
    "tables",
    "worked",
]

LEVEL = 0.05
ERRORS_ALLOWED, ERRORS_IN_DOUBT = 3, 6
PART_SECONDS = 60.0
ROUNDS = 3
FRESH = 500_000  # repetitions of the next round begin there
FEWEST = 20  # repetitions by which a rate is judged, unless it is far off
ORDER = ("error", "too high", "low", "too few", "right", "low, allowed", "refused")


@dataclass
class Tally:
    """What became of one statistic's p-values."""

    rejected: int = 0
    given: int = 0
    refused: int = 0
    errors: list[str] = field(default_factory=list)

    def add(self, answer: float | str | None) -> None:
        """Count one answer."""
        if answer is None:
            self.refused += 1
        elif isinstance(answer, str):
            self.errors.append(answer)
        elif not 0 < answer <= 1 + 1e-6:  # NaN too
            self.errors.append(f"a p-value of {answer}")
        else:
            self.given += 1
            # A p-value of 5/100 rejects, in float32 too.
            self.rejected += answer <= LEVEL + 1e-6

    def merged(self, other: "Tally") -> "Tally":
        """Both together."""
        return Tally(
            self.rejected + other.rejected,
            self.given + other.given,
            self.refused + other.refused,
            [*self.errors, *other.errors],
        )

    @property
    def rate(self) -> float | None:
        """Share of rejections among the p-values that were given."""
        return self.rejected / self.given if self.given else None

    @property
    def standard_error(self) -> float | None:
        """Standard error of the rate of a right test."""
        return math.sqrt(LEVEL * (1 - LEVEL) / self.given) if self.given else None

    @property
    def off(self) -> float:
        """By how many standard errors the rate is above the level."""
        rate, error = self.rate, self.standard_error
        return 0.0 if rate is None or error is None else (rate - LEVEL) / error


def judged(tally: Tally, why: str = "") -> str:
    """One of "right", "too high", "low", "low, allowed", "too few", "refused" and "error".

    Args:
        tally: What was counted.
        why: Why the cell may have a rate below the level; empty if it may not.

    Example:
        >>> judged(Tally(rejected=60, given=1000)), judged(Tally(rejected=150, given=1000))
        ('right', 'too high')
    """
    if tally.errors:
        return "error"
    if not tally.given:
        return "refused"
    if tally.given < FEWEST and abs(tally.off) < ERRORS_IN_DOUBT:
        return "too few"
    if tally.off > ERRORS_ALLOWED:
        return "too high"
    if tally.off < -ERRORS_ALLOWED:
        return "low, allowed" if why else "low"
    return "right"


class Part(NamedTuple):
    """Every `step`-th repetition of a cell from `first` on, as far as the seconds go."""

    cell: Cell
    first: int
    step: int
    stop: int
    seconds: float


def parts_of(cell: Cell, rounds: int = 0) -> list[Part]:
    """A cell's repetitions in parts of about a minute, after some rounds of them."""
    count = min(max(1, round(cell.budget / PART_SECONDS)), cell.repetitions)
    start = FRESH * rounds
    stop = start + cell.repetitions
    return [Part(cell, start + k, count, stop, cell.budget / count) for k in range(count)]


def measured(part: Part) -> tuple[dict[str, Tally], int, float]:
    """Tallies of a part's statistics, how many repetitions there were, and their seconds."""
    tallies: dict[str, Tally] = {}
    began, done = time.perf_counter(), 0
    # Data of cells that share sizes and sources should not be the same.
    offset = (zlib.crc32(part.cell.name.encode()) | 1) << 21
    for repetition in range(part.first, part.stop, part.step):
        for name, answer in part.cell.answers(offset + repetition, repetition).items():
            tallies.setdefault(name, Tally()).add(answer)
        done += 1
        if time.perf_counter() - began > part.seconds:
            break
    return tallies, done, time.perf_counter() - began


@dataclass
class Result:
    """What is known of a cell so far."""

    cell: Cell
    tallies: dict[str, Tally] = field(default_factory=dict)
    repetitions: int = 0
    seconds: float = 0.0
    waiting: int = 0
    rounds: int = 0
    begun: int = 0  # rounds of an earlier run

    @classmethod
    def resumed(cls, cell: Cell, row: dict[str, Any]) -> "Result":
        """What an earlier run has left to do: fewer repetitions, and with fresh data."""
        tallies = {}
        for name, found in row["raw_statistics"].items():
            given, errors = found["repetitions"], found["errors"]
            rejected = round((found["rate"] or 0.0) * given)
            texts = (row["raw_errors"] * errors)[:errors]
            tallies[name] = Tally(rejected, given, found["refused"], texts)
        done, rounds = row["repetitions"], row["raw_rounds"]
        left = replace(cell, repetitions=max(0, cell.repetitions - done))
        return cls(left, tallies, done, row["raw_seconds"], 0, rounds, rounds)

    @property
    def left(self) -> bool:
        """Whether there is anything to measure."""
        return (self.rounds == self.begun and self.cell.repetitions > 0) or self.in_doubt

    def next_round(self) -> list[Part]:
        """What is to be measured now."""
        cell = self.cell
        if not cell.repetitions:  # all were measured earlier, and a rate is in doubt
            cell = replace(cell, repetitions=self.repetitions)
        parts = parts_of(cell, self.rounds)
        self.waiting, self.rounds = len(parts), self.rounds + 1
        return parts

    def add(self, tallies: dict[str, Tally], repetitions: int, seconds: float) -> None:
        """Add what a part found."""
        for name, tally in tallies.items():
            self.tallies[name] = self.tallies.get(name, Tally()).merged(tally)
        self.repetitions += repetitions
        self.seconds += seconds
        self.waiting -= 1

    @property
    def in_doubt(self) -> bool:
        """Whether a rate is judged wrong, but by so little that chance could have done it."""
        return self.rounds - self.begun < ROUNDS and any(
            judged(t, self.cell.why_low(name)) in ("too high", "low")
            and abs(t.off) < ERRORS_IN_DOUBT
            for name, t in self.tallies.items()
        )

    def row(self) -> dict[str, Any]:
        """The cell's line in the result file: its worst statistic, and all of them."""
        cell = self.cell
        statistics = {
            name: {
                "rate": tally.rate,
                "se": tally.standard_error,
                "repetitions": tally.given,
                "refused": tally.refused,
                "errors": len(tally.errors),
                "judged": judged(tally, cell.why_low(name)),
            }
            for name, tally in self.tallies.items()
        }
        by_severity = sorted(
            statistics, key=lambda s: (ORDER.index(statistics[s]["judged"]), -self.tallies[s].off)
        )
        worst = by_severity[0]
        return {
            "cell": cell.name,
            "data": cell.text,
            "repetitions": self.repetitions,
            "statistics": len(statistics),
            "judged": statistics[worst]["judged"],
            "worst": worst,
            "rate": statistics[worst]["rate"],
            "se": statistics[worst]["se"],
            "why_low": cell.why_low(worst) or None,
            "raw_n_m_d": [*cell.rows, cell.d],
            "raw_permutations": cell.permutations,
            "raw_seconds": self.seconds,
            "raw_rounds": self.rounds,
            "raw_errors": sorted({e for t in self.tallies.values() for e in t.errors}),
            "raw_statistics": statistics,
        }


def worked(
    cells: Iterable[Cell],
    processes: int | None = None,
    begun: Iterable[dict[str, Any]] = (),
) -> Iterator[list[Result]]:
    """Run cells; all that is known, each time a part of a cell has ended.

    Args:
        cells: Which; those with small budgets are begun first.
        processes: How many; one runs in this process. By default as many as there are cores.
        begun: Lines of cells in an earlier run's result file, which is continued.
    """
    earlier = {row["cell"]: row for row in begun}
    results = {
        cell.name: Result.resumed(cell, earlier[cell.name])
        if cell.name in earlier
        else Result(cell)
        for cell in sorted(cells, key=lambda c: c.budget)
    }
    processes = processes or os.cpu_count() or 1
    if processes == 1:
        for result in results.values():
            while result.left:
                for part in result.next_round():
                    result.add(*measured(part))
                    yield list(results.values())
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, context, torch.set_num_threads, (1,)) as pool:
        running: dict[Future[tuple[dict[str, Tally], int, float]], Result] = {}

        def submit(result: Result) -> None:
            running.update({pool.submit(measured, p): result for p in result.next_round()})

        for result in results.values():
            if result.left:
                submit(result)
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                result = running.pop(future)
                result.add(*future.result())
                if not result.waiting and result.left:
                    submit(result)
            yield list(results.values())


def tables(results: Iterable[Result]) -> dict[str, list[dict[str, Any]]]:
    """How many statistics were judged how, those that are wrong, and a line for each cell."""
    rows = [result.row() for result in results if result.tallies]
    counts = dict.fromkeys(ORDER, 0)
    wrong = []
    for row in rows:
        for name, found in row["raw_statistics"].items():
            counts[found["judged"]] += 1
            if found["judged"] in ("error", "too high", "low"):
                wrong.append({"cell": row["cell"], "statistic": name, **found})
    return {"statistics_judged": [counts], **({"wrong": wrong} if wrong else {}), "cells": rows}


def run(quick: bool = False) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """The tables, again and again, each time with more in them."""
    cells: Iterable[Cell] = CELLS
    if quick:
        cells = [replace(c, repetitions=20, budget=5.0) for c in CELLS if c.name in QUICK]
    for results in worked(cells):
        yield tables(results)


def main() -> None:
    """Run some of the cells and write the result file."""
    measure_cells("levels", CELLS, __doc__)


def measure_cells(name: str, cells: Sequence[Cell], about: str) -> None:
    """The command of a benchmark of levels.

    Args:
        name: Of the benchmark.
        cells: Of which those are run that the command line names.
        about: What is told about it.
    """
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    parser.add_argument(
        "--cells", default="",
        help="cells whose names hold this, or one of these by semicolons; default: all",
    )  # fmt: skip
    parser.add_argument("--processes", type=int, default=None)
    parser.add_argument("--repetitions", type=int, default=1000, help="at most")
    parser.add_argument("--budget", type=float, default=1e9, help="most seconds for a cell")
    parser.add_argument(
        "--seconds", type=float, default=None,
        help="of the whole run, shared among the cells in proportion to what they take",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("results/bench"))
    parser.add_argument(
        "--resume", action="store_true",
        help="continue what this commit has begun, in as many calls as it takes; cells that are "
        "not named are kept",
    )  # fmt: skip
    parser.add_argument(
        "--begun", type=Path, default=None,
        help="a record of another machine or commit of the same tests, to be continued likewise",
    )  # fmt: skip
    asked = parser.parse_args()
    chosen = [c for c in cells if any(part in c.name for part in asked.cells.split(";"))]
    path = asked.out / f"{name}-{machine_name()}.json"
    record = {"benchmark": name, "quick": False, **environment()}
    before: dict[str, Any] = {}
    if asked.resume or asked.begun:
        before = begun_record(path, record["commit"], asked.begun)
    if "begun" in before:
        record["begun"] = before["begun"]
    begun = before["tables"]["cells"] if before else []
    done = {row["cell"]: row["repetitions"] for row in begun}
    most = {c.name: min(c.repetitions, asked.repetitions) for c in chosen}
    share = 1.0
    if asked.seconds is not None:
        # What is left of a cell takes its part of the cell's budget.
        left = {n: max(0.0, 1 - done.get(n, 0) / count) for n, count in most.items()}
        whole = sum(cell.budget * left[cell.name] for cell in chosen)
        share = asked.seconds * (asked.processes or 1) / max(whole, 1e-9)
    chosen = [
        replace(
            cell,
            repetitions=most[cell.name],
            budget=min(share * cell.budget, asked.budget),
        )
        for cell in chosen
    ]
    told: dict[str, int] = {}
    others = [Result.resumed(cell, row) for row in begun for cell in cells
              if cell.name == row["cell"] and cell.name not in most]  # fmt: skip
    for results in worked(chosen, asked.processes, begun):
        write_json(path, {**record, "tables": tables([*results, *others])})
        for result in results:
            if not result.waiting and result.repetitions != told.get(result.cell.name, 0):
                told[result.cell.name] = result.repetitions
                row = result.row()
                rate = "" if row["rate"] is None else f" {row['rate']:.3f} +- {row['se']:.3f}"
                sys.stdout.write(
                    f"{row['cell']:36} {row['repetitions']:5} {row['judged']}: "
                    f"{row['worst']}{rate}, {result.seconds / result.repetitions:.2f} s each\n"
                )
                sys.stdout.flush()
    sys.stdout.write(f"Results: {path}\n")


if __name__ == "__main__":
    main()
