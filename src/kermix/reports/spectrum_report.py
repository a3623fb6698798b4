"""The page of a decomposition of the kernel into singular functions."""

import math
from typing import Any

import torch
from torch import Tensor

from kermix.errors import OptionError
from kermix.reports import figures as plots
from kermix.reports.grids import grid_over
from kermix.reports.page import Report
from kermix.spectrum import Decomposition

__all__ = ["spectrum_report"]


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
