"""What a comparison found: measures, tests, columns; it prints as a table and becomes JSON."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor

from kermix.comparison.pooled import bures_witness, pooled_features
from kermix.comparison.twosample import TwoSampleResult
from kermix.errors import OptionError
from kermix.kernels.mixed import Layout, mixed_kernel

__all__ = ["TITLES", "ColumnDifference", "Comparison", "Measure"]

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


@dataclass(frozen=True)
class Measure:
    """One number between the two data sets.

    `normalized` is the form in [0, 1] where there is one. `error` is one standard error of
    `normalized`, or of `value` where nothing is normalized, and None where the samples cannot tell
    it (a vector cost very near to 1); for sketches it is the certificate.
    `if_same` is what the same number would be, on average, were the two sets one. `rows` is how
    many of each set the number is of: costs depend on it, and of more rows some are drawn.
    """

    name: str
    variance: float | None
    value: float
    normalized: float | None = None
    error: float | None = None
    if_same: float | None = None
    pvalue: float | None = None
    rows: tuple[int, int] | None = None  # None for sketches


@dataclass(frozen=True)
class ColumnDifference:
    r"""How much one column differs: its energy distance in standard deviations.

    Of a category it is :math:`\sum (p - q)^2 / (p + q)`, between 0 and 2.

    Means are those of numbers. `change` says in words what changed most in a category, a time, or
    the share of missing values.
    """

    column: str
    distance: float
    pvalue: float | None  # None without permutations
    mean_x: float | None
    mean_y: float | None
    kind: str = "number"
    change: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; of a number that has nothing else to tell, distance and means."""
        found = asdict(self)
        if self.kind == "number" and not self.change:
            del found["kind"], found["change"]
        return found


@dataclass(frozen=True)
class Comparison:
    """What :func:`compare` found. It prints as a table.

    `x` and `y` are the points that were used, or 1000 of them drawn at random, with columns scaled
    if they were; :meth:`raw` brings them back to the units of the data.
    """

    names: tuple[str, str]
    sizes: tuple[int, int]
    used: tuple[int, int]
    columns: tuple[str, ...]
    variances: tuple[float, ...]
    measures: tuple[Measure, ...]
    tests: dict[str, TwoSampleResult]
    column_differences: tuple[ColumnDifference, ...]
    notes: tuple[str, ...]
    x: Tensor | None = field(default=None, repr=False, compare=False)
    y: Tensor | None = field(default=None, repr=False, compare=False)
    _scale: tuple[Tensor, Tensor] | None = field(default=None, repr=False, compare=False)
    _layout: Layout | None = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        header = ("measure", "variance", "value", "in [0, 1]", "+-", "if same", "p")
        rows = [[str(cell) for cell in row] for row in (header, *self.rows())]
        widths = [max(len(row[k]) for row in rows) for k in range(len(header))]
        lines = [
            "  ".join(c.ljust(w) if k == 0 else c.rjust(w)
                      for k, (c, w) in enumerate(zip(row, widths, strict=True))).rstrip()
            for row in rows
        ]  # fmt: skip
        return "\n".join([*lines, *self.notes])

    def rows(self) -> list[list[str]]:
        """The table: one line for each measure and variance, as text."""
        return [
            [TITLES[m.name], *(
                "" if n is None else f"{n:.{digits}g}"
                for n, digits in ((m.variance, 4), (m.value, 4), (m.normalized, 4), (m.error, 2),
                                  (m.if_same, 4), (m.pvalue, 3))
            )]
            for m in self.measures
        ]  # fmt: skip

    def measure(self, name: str, variance: float | None = None) -> Measure:
        """One measure by name, and by variance where there are several."""
        found = [m for m in self.measures if m.name == name and variance in (None, m.variance)]
        if not found:
            raise OptionError(f"There is no measure {name!r} at variance {variance}.")
        return found[0]

    def witness(self, points: Tensor, variance: float | None = None) -> Tensor:  # (M, d) -> (M,)
        """Where the sets differ: positive where `x` has more mass, negative where `y` has.

        The derivative of the SVD cost's local form with respect to mass at a point, which is given
        in the units of the data; by default at the variance whose test rejects most clearly.
        """
        if self.x is None or self.y is None:
            raise OptionError("Sketches hold no points, so there is no witness function.")
        if variance is None:
            variance = self.sharpest_variance
        pooled = torch.cat([self.x, self.y])
        terms = mixed_kernel(pooled, self._layout, variance).cross_terms(pooled.shape[1])
        features, _ = pooled_features(pooled, terms, None, torch.Generator().manual_seed(0))
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
        """Whether rows hold codes beside numbers; points are then in no units of the data."""
        return self._layout is not None

    @property
    def sharpest_variance(self) -> float:
        """The variance at which the SVD test has its smallest p-value."""
        if "svd" not in self.tests:
            return self.variances[len(self.variances) // 2]
        by_p = zip(self.tests["svd"].pvalues, self.variances, strict=True)
        return min(by_p, key=lambda pair: pair[0])[1]

    def to_dict(self) -> dict[str, Any]:
        """Everything but the points, ready for JSON."""
        tests = {
            name: {k: getattr(t, k) for k in ("statistic", "pvalue", "variances", "statistics",
                                              "pvalues", "permutations", "n", "m", "method")}
            for name, t in self.tests.items()
        }  # fmt: skip
        return {
            "names": self.names,
            "rows": self.sizes,
            "rows_used": self.used,
            "columns": self.columns,
            "variances": self.variances,
            "measures": [asdict(m) for m in self.measures],
            "tests": tests,
            "column_differences": [c.to_dict() for c in self.column_differences],
            "notes": self.notes,
        }
