"""Singular functions of the kernel between tables, or within one, and the page that shows them."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from kermix.data.sources import Sources
from kermix.errors import OptionError
from kermix.kernels.gaussian import choose_variance
from kermix.kernels.mixed import mixed_kernel
from kermix.pages import figures as plots
from kermix.pages.figures import grid_over
from kermix.pages.report import Report
from kermix.spectrum.decomposition import Decomposition, decompose

__all__ = ["TableSpectrum", "decompose_tables", "spectrum_report"]

# Reasoned, no record.
SHARE_OF_MEDIAN = 10  # finer than what two-sample tests need, to show detail


class TableSpectrum(NamedTuple):
    """A decomposition, and what it is of.

    Attributes:
        result: The singular functions.
        names: Of the tables.
        sets: Rows of each that were used.
        variance: Of the kernel.
        notes: What was left out or chosen.
    """

    result: Decomposition
    names: list[str]
    sets: list[Tensor]
    variance: float | list[float]
    notes: list[str]


def decompose_tables(
    read: Sources,
    variance: float | list[float] | None = None,
    rank: int = 6,
    max_points: int = 4000,
    seed: int = 0,
) -> TableSpectrum:
    """Decompose the kernel within one table, or between two.

    Args:
        read: One table or two, as numbers and codes.
        variance: Of the kernel; by default a tenth of the median heuristic.
        rank: How many singular functions, at most as many as there are rows.
        max_points: How many rows of each to use, drawn at random.
        seed: For drawing them.
    """
    if max_points < 1:
        raise OptionError(f"max_points={max_points}: must be at least 1.")
    layout = None if read.mixed is None else read.mixed.layout
    generator = torch.Generator().manual_seed(seed)
    sets, notes = [], list(read.notes)
    for table in read.tables:
        values = table.values
        if len(table) > max_points:
            values = values[torch.randperm(len(table), generator=generator)[:max_points]]
            notes.append(
                f"{table.name}: using {max_points} of {len(table)} rows, drawn at random."
            )
        sets.append(values)
    if variance is None:
        variance = float(choose_variance(torch.cat(sets), layout=layout)) / SHARE_OF_MEDIAN
        notes.append(f"Variance {variance:.4g}: a tenth of the median heuristic.")
    kernel = mixed_kernel(sets[0], layout, variance)
    other = sets[1] if len(sets) > 1 else None
    result = decompose(sets[0], other, kernel, rank=min(rank, *(len(s) for s in sets)))
    return TableSpectrum(result, [t.name for t in read.tables], sets, variance, notes)


def spectrum_report(
    result: Decomposition,
    names: list[str],
    sets: list[Tensor],
    columns: list[str],
    notes: list[str],
    images: bool = False,
    mixed: bool = False,
) -> Report:
    """The page: the spectrum, and the leading functions in both forms."""
    page = Report(
        f"Spectrum of {' and '.join(names)}",
        f"Leading {len(result)} functions of the kernel, {result.method} decomposition.",
    )
    for note in notes:
        page.text(note)
    page.heading("Singular values")
    page.figure(plots.spectrum(result.singular_values), "Singular values, on a logarithmic scale.")
    if mixed:
        return page
    for k, name in enumerate(names):
        functions = (result.left, result.right)[k]
        what = "Eigenfunctions" if len(names) == 1 else ("Left", "Right")[k] + " functions"
        page.heading(f"{what}: {name}")
        points, shape = _places(torch.cat(sets))
        for form, text in (("probability", "orthonormal under the data's density"),
                           ("lebesgue", "times the root of that density")):  # fmt: skip
            values = functions(points, form)  # type: ignore[arg-type]
            options: dict[str, Any] = {"singular_values": result.singular_values}
            if shape is not None:
                options["shape"] = shape
            page.figure(
                plots.singular_functions(points, values, **options),
                f"{what} 1 to {len(result)}, {text}.",
            )
        if images:
            _image_rows(page, functions(), sets[k])
        elif len(columns) > 2:
            _extreme_rows(page, functions(), sets[k], columns)
    return page


def _places(points: Tensor) -> tuple[Tensor, tuple[int, int] | None]:
    """A grid over the data in one and two dimensions, the data themselves beyond."""
    return grid_over(points) if points.shape[1] <= 2 else (points, None)


def _extreme_rows(page: Report, values: Tensor, points: Tensor, columns: list[str]) -> None:
    shown = columns[:8]
    for k in range(values.shape[1]):
        order = values[:, k].argsort(descending=True)
        ends = [*order[:3].tolist(), *order[-3:].tolist()]
        page.text(f"Function {k + 1}: its three highest and lowest rows.")
        page.table(
            ["value", *shown],
            [[float(values[i, k]), *points[i, : len(shown)].tolist()] for i in ends],
        )


def _image_rows(page: Report, values: Tensor, points: Tensor) -> None:
    """Weighted means of the images: what each function is high and low on."""
    side = math.isqrt(points.shape[1])
    if side**2 != points.shape[1]:
        raise OptionError(f"--images: {points.shape[1]} columns are not a square image.")
    pictures = values.T.to(points) @ points / len(points)
    page.figure(
        plots.singular_functions(points, pictures.T, shape=(side, side), images=True),
        "Each function's mean image: data weighted by the function.",
    )
