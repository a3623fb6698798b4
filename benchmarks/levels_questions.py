"""Every public function that gives a p-value, asked about one pair of samples.

A question has a name for each p-value it gets. Answers are p-values, None where the library
refuses one (by None or by a named error), or the text of an error that it should not have raised.
"""

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import kermix as km
from benchmarks.levels_data import Draw
from kermix.errors import KermixError
from kermix.tables.compare.sketch_comparison import drift
from kermix.two_sample.mean_test import mean_test

__all__ = [
    "COSTS",
    "Answers",
    "Question",
    "asked",
    "compared",
    "files",
    "sketches",
    "two_samples",
]

Answers = dict[str, float | str | None]
Question = Callable[[Draw, int, int], Answers]  # data, permutations, seed

COSTS = ("svd", "matrix", "vector", "scalar", "mmd", "energy")
SKETCH_RANK = 50
SMALL_FILE, LARGE_FILE = 60, 2000  # rows that landmarks are chosen among
FAULTS = (RuntimeError, ArithmeticError, ValueError, LookupError, TypeError, AttributeError)


def two_samples(
    variance: float | None = None, form: str = "local", costs: tuple[str, ...] = COSTS
) -> Question:
    """Ask `km.two_sample_test` with each cost; without a variance, those it finds itself."""
    return partial(_two_samples, variance, form, costs)


def compared(variance: float | None = None, max_points: int | None = None) -> Question:
    """Ask `km.compare`: over all variances, at two of them, and for some of the columns."""
    return partial(_compared, variance, max_points)


def sketches(landmarks: str, variance: float) -> Question:
    """Ask `mean_test`, `km.compare` and `drift` about sketches.

    Args:
        landmarks: What they come from: `"third"`, other rows of the source; `"small"`, few of
            those; `"x"`, `"y"`, `"pooled"`; `"fourier"`, nothing.
        variance: Of the kernel.
    """
    return partial(_sketches, landmarks, variance)


def files() -> Question:
    """Ask `km.compare` about sketches of files, the second with the first one's landmarks."""
    return _files


def _two_samples(
    variance: float | None,
    form: str,
    costs: tuple[str, ...],
    data: Draw,
    permutations: int,
    seed: int,
) -> Answers:
    answers: Answers = {}
    for cost in costs:
        if cost == "energy" and variance is not None and len(costs) > 1:
            continue  # it has no variance: asked once, without
        name = f"test {cost}" + (", exact" if form == "exact" else "")
        name += "" if variance is None else f", v = {variance:g}"

        def pvalues(cost: Any = cost, name: str = name) -> Answers:
            found = km.two_sample_test(
                data.x,
                data.y,
                cost,
                "auto" if variance is None else variance,
                permutations,
                seed=seed,
                groups=data.groups,
                weights_x=data.weights[0],
                weights_y=data.weights[1],
                form=form,  # type: ignore[arg-type]
            )
            singles = found.pvalues if len(found.pvalues) > 1 else ()
            answers: Answers = {name: found.pvalue}
            if singles:
                answers |= {f"{name}, finest": singles[0], f"{name}, coarsest": singles[-1]}
            return answers

        answers |= asked(name, pvalues)
    return answers


def _compared(
    variance: float | None,
    max_points: int | None,
    data: Draw,
    permutations: int,
    seed: int,
) -> Answers:
    prefix = "compare" if max_points is None else f"compare {max_points} of them,"

    def pvalues() -> Answers:
        found = km.compare(
            data.x,
            data.y,
            "auto" if variance is None else variance,
            max_points=max_points,
            jackknife_groups=0,
            permutations=permutations,
            seed=seed,
        )
        answers: Answers = {f"{prefix} {k}": test.pvalue for k, test in found.tests.items()}
        if len(found.variances) > 1:
            ends = {found.variances[0]: "finest", found.variances[-1]: "coarsest"}
            for m in found.measures:
                # The measures that are no test of their own have the p-values of these.
                if m.name in found.tests and m.variance in ends:
                    answers[f"{prefix} {m.name}, {ends[m.variance]}"] = m.pvalue
        return answers

    return asked(prefix, pvalues)


def _sketches(
    landmarks: str, variance: float, data: Draw, permutations: int, seed: int
) -> Answers:
    del permutations
    prefix = f"sketches, landmarks from {landmarks}:"

    def pvalues() -> Answers:
        if landmarks == "fourier":
            features: Any = km.fourier_features(data.x.shape[1], variance, SKETCH_RANK, seed=seed)
        else:
            looked_at = {
                "third": data.more(LARGE_FILE),
                "small": data.more(SMALL_FILE),
                "x": data.x,
                "y": data.y,
                "pooled": torch.cat([data.x, data.y]),
            }[landmarks]
            features = km.nystrom_features(looked_at, variance, rank=SKETCH_RANK, seed=seed)
        first, second = (
            km.Sketch(features).update(side, weights)
            for side, weights in zip((data.x, data.y), data.weights, strict=True)
        )
        later = km.Sketch(features).update(data.more(len(data.y)))
        series = drift([first, second, later], ["a", "b", "c"])
        return {
            f"{prefix} mean_test": mean_test(first, second).pvalue,
            f"{prefix} drift, b to a": series.to_first[0].pvalue,
            f"{prefix} drift, c to b": series.to_previous[-1].pvalue,
            **_of_measures(f"{prefix} compare", km.compare(first, second)),
        }

    return asked(prefix, pvalues)


def _files(data: Draw, permutations: int, seed: int) -> Answers:
    del permutations

    def pvalues() -> Answers:
        with tempfile.TemporaryDirectory() as folder:
            paths = [Path(folder) / name for name in ("a.npy", "b.npy")]
            for path, side in zip(paths, (data.x, data.y), strict=True):
                np.save(path, side.numpy())
            first = km.sketch_files(paths[0], rank=SKETCH_RANK, seed=seed)
            second = km.sketch_files(paths[1], landmarks_from=first)
        return _of_measures("sketched files: compare", km.compare(first, second))

    return asked("sketched files", pvalues)


def _of_measures(prefix: str, found: Any) -> Answers:
    """The p-values of a comparison of sketches, of the measures that have one."""
    answers = {f"{prefix} {m.name}": m.pvalue for m in found.measures if m.pvalue is not None}
    return answers or {prefix: None}


def asked(name: str, call: Callable[[], Answers]) -> Answers:
    """What a call answers: p-values, None if it refuses, or the error it should not raise."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return call()
    except KermixError:
        return {name: None}
    except FAULTS as error:  # the cell goes on: the error is a finding
        return {name: f"{type(error).__name__}: {error}"[:200]}
