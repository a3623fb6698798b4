"""What a comparison found: a verdict, and on demand every measure; it prints and becomes JSON."""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from html import escape
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from kermix.data.readers.common import counted
from kermix.errors import OptionError
from kermix.kernels.distances import Layout
from kermix.kernels.gaussian import mixed_kernel
from kermix.sketches.kernel_features import principal_features
from kermix.tables.compare.column_changes import NAMED, ComparedRows
from kermix.tables.compare.verdict import Judgement, Verdict, p_text
from kermix.two_sample.cost_statistics import bures_witness
from kermix.two_sample.cost_test import TwoSampleResult
from kermix.two_sample.error_bars import Measure

__all__ = ["TITLES", "AnswerFirst", "Comparison", "Details", "Known", "Shown", "aligned"]

TITLES = {
    "svd": "SVD cost",
    "matrix": "matrix-matrix cost",
    "vector": "vector-matrix cost",
    "scalar": "scalar cost",
    "bures": "Bures distance",
    "cauchy_schwarz": "Cauchy-Schwarz divergence",
    "mmd": "MMD",
    "energy": "energy distance",
}
MEASURE_HEADS = ("measure", "variance", "value", "in [0, 1]", "+-", "if same", "p")
HOW_TO_READ = (
    "Compare each number with 'if same', its average when the same rows are split into two sets "
    "at random: costs between two halves of one set are not 1, and distances are not 0."
)
COLUMN_HEADS = ("column", "p, corrected", "what changed")


class Shown(NamedTuple):
    """What is shown of a result at once: the answer, a table, and where the rest is."""

    answer: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    rest: str = "All of it: .summary()"


class AnswerFirst(ABC):
    """A result whose text begins with the answer.

    A prompt shows as much of it as fits a screen, and a notebook the same with a table.
    """

    @abstractmethod
    def shown(self) -> Shown:
        """What is shown at once."""

    def summary(self) -> str:
        """All of the text, the answer first; `print` shows it."""
        return str(self)

    def __repr__(self) -> str:
        shown = self.shown()
        lines = textwrap.wrap(shown.answer, 100)
        if shown.rows:
            lines += ["", *aligned((shown.heads, *shown.rows[:12]))]
        return "\n".join([*lines, "", shown.rest])

    def _repr_html_(self) -> str:
        shown = self.shown()
        lines = [f"<p><strong>{escape(shown.answer)}</strong></p>"]
        if shown.rows:
            lines += ["<table>", _html_row("th", shown.heads)]
            lines += [*(_html_row("td", row) for row in shown.rows[:12]), "</table>"]
        return "\n".join([*lines, f"<p>{escape(shown.rest)}</p>"])


def _html_row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


@dataclass(frozen=True)
class Details:
    """Every measure, and the tests behind them.

    `x` and `y` are the points that were used, or 1000 of them drawn at random, with columns scaled
    if they were; sketches have none.
    """

    measures: tuple[Measure, ...]
    tests: dict[str, TwoSampleResult]
    notes: tuple[str, ...]
    x: Tensor | None = field(default=None, repr=False, compare=False)
    y: Tensor | None = field(default=None, repr=False, compare=False)


Found = TypeVar("Found", covariant=True)


class DeferredResult(Protocol[Found]):
    """Something that is found when somebody asks for it."""

    def find(self) -> Found:
        """Find it."""


class DeferredDetails(DeferredResult[Details], Protocol):
    """Details of costs whose variances are found by themselves."""

    @property
    def variances(self) -> tuple[float, ...]:
        """Of the kernels."""


@dataclass(frozen=True)
class Known:
    """Something that is known already."""

    result: Any
    variances: tuple[float, ...] = ()

    def find(self) -> Any:
        """It is there."""
        return self.result


@dataclass(frozen=True, repr=False)
class Comparison(AnswerFirst):
    """The result of `compare`. It prints as its verdict and the columns that differ.

    The verdict, and every cost with its error bar and p-value (`measures`, `tests`,
    `rows`, `details`), are each computed on first use, and cached.

    Attributes:
        names: Names of the two sets.
        sizes: Number of rows of each.
        used: Number of rows used of each.
        columns: Names of the columns.
        reading_notes: What was assumed and ignored when the sets were read.
        compared: The rows; None for sketches.
    """

    names: tuple[str, str]
    sizes: tuple[int, int]
    used: tuple[int, int]
    columns: tuple[str, ...]
    reading_notes: tuple[str, ...]
    _details: DeferredDetails = field(repr=False, compare=False)
    _judge: DeferredResult[Judgement] | None = field(default=None, repr=False, compare=False)
    compared: ComparedRows | None = field(default=None, repr=False, compare=False)
    _scale: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    _layout: Layout | None = field(default=None, repr=False, compare=False)

    @cached_property
    def judgement(self) -> Judgement:
        """The verdict, and the classifier behind it."""
        if self._judge is None:
            raise OptionError("permutations=0: without permutations there is no verdict.")
        return self._judge.find()

    @property
    def verdict(self) -> Verdict:
        """Whether the sets differ, by how much, and where."""
        return self.judgement.verdict

    @property
    def pvalue(self) -> float | None:
        """That of the verdict."""
        return self.verdict.pvalue if self.has_verdict else None

    @property
    def different(self) -> bool | None:
        """Whether the sets differ; None: no verdict, or copies may be all that differs."""
        return self.verdict.different if self.has_verdict else None

    @property
    def has_verdict(self) -> bool:
        """Whether there is a verdict: not without permutations."""
        return self._judge is not None

    @property
    def variances(self) -> tuple[float, ...]:
        """Variances of the kernels of the costs."""
        return self._details.variances

    @cached_property
    def found(self) -> Details:
        """Every measure, and what is behind them."""
        return self._details.find()

    @property
    def measures(self) -> tuple[Measure, ...]:
        """Every measure at each variance."""
        return self.found.measures

    @property
    def tests(self) -> dict[str, TwoSampleResult]:
        """A permutation test for each cost."""
        return self.found.tests

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed, left out and drawn."""
        return (*self.reading_notes, *self.found.notes)

    @property
    def x(self) -> Tensor | None:
        """Points of the first set, at most 1000; `raw` gives them in the units of the data."""
        return self.found.x

    @property
    def y(self) -> Tensor | None:
        """Points of the second set."""
        return self.found.y

    def __str__(self) -> str:
        if not self.has_verdict:
            return self.details()
        lines = [self.verdict.sentence()]
        if self.compared is None:
            return "\n".join([*lines, "", self.details()])
        if rows := self.column_rows(10):
            lines += ["", *aligned((COLUMN_HEADS, *rows))]
            more = len(self.verdict.columns) - 10
            lines += [f"... and {counted(more, 'more column')}, in .verdict.columns"] * (more > 0)
        return "\n".join([*lines, "", *self.reading_notes, "Every cost: .details()"])

    def shown(self) -> Shown:
        """The verdict and the columns that differ most; without rows, or a verdict, the costs."""
        answer = self.verdict.sentence() if self.has_verdict else "Costs, without a verdict."
        if self.compared is None or not self.has_verdict:
            return Shown(answer, MEASURE_HEADS, self.rows())
        return Shown(answer, COLUMN_HEADS, self.column_rows(10))

    def column_rows(self, most: int | None = None) -> list[list[str]]:
        """Columns by themselves, the most different first: name, corrected p, what changed.

        Pairs of columns that differ together come after the columns that differ alone.
        """
        verdict = self.verdict
        lines = [[c.column, p_text(c.pvalue), verdict.description_of(c)]
                 for c in verdict.columns[:most]]  # fmt: skip
        pairs = [[" with ".join(p.columns), p_text(p.pvalue), f"{p.short}: {p.change}"]
                 for p in verdict.different_pairs[:NAMED]]  # fmt: skip
        at = len(verdict.different_columns)
        return [*lines[:at], *pairs, *lines[at:]]

    def details(self) -> str:
        """Every measure and variance as a table, with notes."""
        return "\n".join([*aligned((MEASURE_HEADS, *self.rows())), *self.notes])

    def rows(self) -> list[list[str]]:
        """The table as text: one line for each measure and variance."""
        return [
            [TITLES[m.name], *(
                "" if n is None else f"{n:.{digits}g}"
                for n, digits in ((m.variance, 4), (m.value, 4), (m.normalized, 4), (m.error, 2),
                                  (m.if_same, 4))
            ), "" if m.pvalue is None else p_text(m.pvalue, 3)]
            for m in self.measures
        ]  # fmt: skip

    def measure(self, name: str, variance: float | None = None) -> Measure:
        """One measure by name, and by variance where there are several."""
        found = [m for m in self.measures if m.name == name and variance in (None, m.variance)]
        if not found:
            raise OptionError(f"There is no measure {name!r} at variance {variance}.")
        return found[0]

    def witness(self, points: Tensor, variance: float | None = None) -> Tensor:  # (M, d) -> (M,)
        """Where the sets differ: positive where `x` has more mass, negative where `y` does.

        The derivative of the SVD cost's local form with respect to mass at a point, which is given
        in the units of the data; by default at the variance whose test rejects most clearly.
        """
        if self.x is None or self.y is None:
            raise OptionError("Sketches hold no points, so there is no witness function.")
        if variance is None:
            variance = self.sharpest_variance
        pooled = torch.cat([self.x, self.y])
        kernel = mixed_kernel(pooled, self._layout, variance)
        features, _ = principal_features(pooled, kernel, None, torch.Generator().manual_seed(0))
        sign = torch.cat(
            [torch.full((len(s),), w / len(s)) for s, w in ((self.x, 1), (self.y, -1))]
        )
        at = points.to(pooled)
        if self._scale is not None:
            at = (at - self._scale[0].to(at)) / self._scale[1].to(at)
        return bures_witness(features, at, sign.to(pooled))

    def raw(self, points: Tensor) -> Tensor:  # (M, d) -> (M, d)
        """Points of `x` or `y` in the units of the data."""
        return points if self._scale is None else points * self._scale[1] + self._scale[0]

    @property
    def mixed(self) -> bool:
        """Whether rows hold codes; points are then not in the units of the data."""
        return self._layout is not None

    @property
    def sharpest_variance(self) -> float:
        """The variance at which the SVD test has its smallest p-value."""
        if "svd" not in self.tests:
            return self.variances[len(self.variances) // 2]
        by_p = zip(self.tests["svd"].pvalues, self.variances, strict=True)
        return min(by_p, key=lambda pair: pair[0])[1]

    def to_dict(self, details: bool = True) -> dict[str, Any]:
        """Everything but the points, ready for JSON; without details, only the verdict."""
        found: dict[str, Any] = {
            "verdict": self.verdict.to_dict() if self.has_verdict else None,
            "names": self.names,
            "rows": self.sizes,
            "rows_used": self.used,
            "columns": self.columns,
            "notes": self.notes if details else self.reading_notes,
        }
        if not details:
            return found
        tests = {
            name: {k: getattr(t, k) for k in ("statistic", "pvalue", "variances", "statistics",
                                              "pvalues", "permutations", "n", "m", "method")}
            for name, t in self.tests.items()
        }  # fmt: skip
        return found | {
            "variances": self.variances,
            "measures": [asdict(m) for m in self.measures],
            "tests": tests,
        }


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, the first column to the left and the others to the right."""
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return [
        "  ".join(c.ljust(w) if k == 0 else c.rjust(w)
                  for k, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip
