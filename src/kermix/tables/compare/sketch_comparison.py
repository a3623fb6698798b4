"""Compare sketches: two of them, or a series, one for each day."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from kermix.costs.functions import matrix_cost, scalar_cost, svd_cost, vector_cost
from kermix.costs.moments import fidelity
from kermix.errors import SketchError
from kermix.sketches.sketch import Sketch, check_comparable
from kermix.tables.compare.result import TITLES, Comparison, Details, Known
from kermix.tables.compare.verdict import judge_sketches
from kermix.two_sample.error_bars import Measure
from kermix.two_sample.mean_test import mean_test

__all__ = ["Drift", "DriftStep", "compare_sketches", "drift", "open_sketches"]


@dataclass(frozen=True)
class DriftStep:
    """One sketch of a series against an earlier one."""

    against: str
    svd: float  # in [0, 1]
    error_bound: float | None
    bures: float
    mmd: float
    if_same: float
    pvalue: float | None


@dataclass(frozen=True)
class Drift:
    """A series of sketches, each against the first and against the one before."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    to_first: tuple[DriftStep, ...]  # one fewer than names
    to_previous: tuple[DriftStep, ...]
    notes: tuple[str, ...]

    def table(self) -> list[list[str]]:
        """One line for each sketch, as text."""
        lines = [[self.names[0], f"{self.rows[0]:,}", *[""] * 6]]
        for k, (a, b) in enumerate(zip(self.to_first, self.to_previous, strict=True), start=1):
            numbers = (a.svd, a.bures, a.mmd, a.pvalue, b.bures, b.pvalue)
            shown = ["" if n is None else f"{n:.3g}" for n in numbers]
            lines.append([self.names[k], f"{self.rows[k]:,}", *shown])
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def open_sketches(
    x: Any, y: Any, unnamed: tuple[str, str]
) -> tuple[tuple[str, str], tuple[Sketch, Sketch]]:
    """Two sketches with their names, those of their files if they come from files."""
    names = [Path(s).name if isinstance(s, str | Path) else k
             for s, k in zip((x, y), unnamed, strict=True)]  # fmt: skip
    opened = [Sketch.load(s) if isinstance(s, str | Path) else s for s in (x, y)]
    return (names[0], names[1]) if names[0] != names[1] else unnamed, (opened[0], opened[1])


@torch.no_grad()
def compare_sketches(x: Any, y: Any, level: float = 0.05, widest: float = 0.1) -> Comparison:
    """Sketches go to the costs as they are: they know their kernel and carry a certificate.

    A cost whose certificate is wider than the difference that it shows, and than `widest` from end
    to end, is left out, with a note.
    """
    names, (x, y) = open_sketches(x, y, ("x", "y"))
    measures, refused = [], []
    costs: dict[str, Any] = {
        "svd": svd_cost,
        "matrix": matrix_cost,
        "vector": vector_cost,
        "scalar": scalar_cost,
    }
    for name, cost in costs.items():
        value = float(cost(x, y, None))
        normalized, info = cost(x, y, None, normalized=True, return_info=True)
        bound = getattr(info, "error_bound", None)
        error = None if bound is None else float(bound)
        if error is not None and not 2 * error <= max(1 - float(normalized), widest):
            refused.append(
                f"{TITLES[name]}: no number, because its certificate, +- {error:.2g}, is wider "
                f"than the difference it shows, {max(0.0, 1 - float(normalized)):.2g}; the "
                "features capture too little of the kernel. Use more landmarks (--rank), or a "
                "larger variance."
            )
            continue
        measures.append(Measure(name, None, value, float(normalized), error))
    measures.append(Measure("bures", None, _bures(x, y)))
    scalar = next((m.normalized for m in measures if m.name == "scalar"), None)
    if scalar:
        measures.append(Measure("cauchy_schwarz", None, max(0.0, -math.log(scalar))))
    test = mean_test(x, y)
    measures.append(Measure("mmd", None, test.mmd, None, None, test.if_same, test.pvalue))
    notes = [
        *refused,
        f"{x.feature_map.kernel}, {x.feature_map.rank} features.",
        "+- of sketches is the certificate: a bound, not a standard error. The Bures distance "
        "is for the part of the kernel that the features capture.",
        "p: equal kernel means, for independent rows, from the sketches' own covariances."
        if test.note is None
        else f"p: {test.note}",
    ]
    rows = x.count, y.count
    return Comparison(
        names=names,
        sizes=rows,
        used=rows,
        columns=() if x.origin is None else x.origin.columns,
        reading_notes=(),
        _details=Known(Details(tuple(measures), {}, tuple(notes))),
        _judge=Known(judge_sketches(test, names, rows, level)),
    )


@torch.no_grad()
def drift(sketches: Sequence[Sketch], names: Sequence[str]) -> Drift:
    """Each sketch of a series against the first and against the one before it.

    Example:
        >>> x = torch.randn(3000, 1, generator=torch.Generator().manual_seed(0))
        >>> features = km.nystrom_features(x, 0.5, rank=20, tolerance=1e-6)
        >>> days = [km.Sketch(features).update(x[k::3] + 0.2 * (k == 2)) for k in range(3)]
        >>> [step.pvalue < 0.001 for step in drift(days, ["mon", "tue", "wed"]).to_first]
        [False, True]
    """
    _check_series(sketches, names)
    first = [_step(s, sketches[0], names[0]) for s in sketches[1:]]
    previous = [
        _step(b, a, name) for a, b, name in zip(sketches, sketches[1:], names, strict=False)
    ]
    remarks = dict.fromkeys(
        f"p of {name} against {step.against}: {note.partition('; ')[2] or note}"
        for steps in (first, previous)
        for name, (step, note) in zip(names[1:], steps, strict=True)
        if note is not None
    )
    return Drift(
        tuple(names),
        tuple(s.count for s in sketches),
        tuple(step for step, _ in first),
        tuple(step for step, _ in previous),
        (
            "p: equal kernel means, for independent rows; not corrected for the number of "
            "comparisons.",
            "Bures distance: for the part of the kernel that the features capture.",
            *remarks,
        ),
    )


def _check_series(sketches: Sequence[Sketch], names: Sequence[str]) -> None:
    if len(sketches) < 2:
        there = "is one" if sketches else "are none"
        raise SketchError(f"A series needs at least two sketches, but there {there}.")
    for name, sketch in zip(names[1:], sketches[1:], strict=True):
        try:
            check_comparable(sketches[0], sketch)
        except SketchError as error:
            raise SketchError(f"{names[0]} and {name}: {error}") from None


def _step(sketch: Sketch, earlier: Sketch, name: str) -> tuple[DriftStep, str | None]:
    value, info = svd_cost(sketch, earlier, None, normalized=True, return_info=True)
    bound = None if info.error_bound is None else float(info.error_bound)
    test = mean_test(sketch, earlier)
    bures = _bures(sketch, earlier)
    step = DriftStep(name, float(value), bound, bures, test.mmd, test.if_same, test.pvalue)
    return step, test.note


def _bures(x: Sketch, y: Sketch) -> float:
    a, b = x.moments.second, y.moments.second
    return math.sqrt(max(0.0, float(a.trace() + b.trace() - 2 * fidelity(a, b))))
