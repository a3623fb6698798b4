"""Singular functions of the kernel between tables, or within one, and the page that shows them."""

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from kermix.data.sources import Sources
from kermix.errors import OptionError
from kermix.kernels.gaussian import choose_variance, mixed_kernel
from kermix.pages.charts import heat_map
from kermix.pages.page import Card, Page
from kermix.pages.plot import Axis, Plot, Svg
from kermix.pages.sheets import grid_over
from kermix.spectrum import Decomposition, decompose

__all__ = ["TableSpectrum", "decompose_tables", "spectrum_report"]


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
        variance = float(choose_variance(torch.cat(sets), layout=layout)) / 10  # to show detail
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
) -> Page:
    """The page: the spectrum, and the leading functions in both forms."""
    values = result.singular_values.double().numpy()
    places = np.arange(1, len(values) + 1)
    up = Axis.over(values, label="singular value", log=True)
    plot = Plot(Axis.over(places, label="k"), up, "Singular values")
    sides = [] if mixed else [
        {"name": name, "what": _what(k, len(names)), **_side(result, k, sets[k], columns, images)}
        for k, name in enumerate(names)
    ]  # fmt: skip
    return Page("spectrum", f"Spectrum of {' and '.join(names)}", {
        "values": values.tolist(),
        "method": result.method,
        "chart": plot.line(places, values, "one").dots(places, values, "one", size=7).svg(),
        "sides": sides,
        "notes": notes,
    })  # fmt: skip


def _what(k: int, count: int) -> str:
    return "Eigenfunctions" if count == 1 else f"{('Left', 'Right')[k]} functions"


def _side(
    result: Decomposition, k: int, points: Tensor, columns: list[str], images: bool
) -> dict[str, Any]:
    """The functions of one table: on a grid over its data, or at the data themselves."""
    functions = (result.left, result.right)[k]
    at, shape = grid_over(points) if points.shape[1] <= 2 else (points, None)
    told = [f"{k + 1}: {s:.3g}" for k, s in enumerate(result.singular_values.tolist())]
    forms = []
    for form, text in (("probability", "orthonormal under the data's density"),
                       ("lebesgue", "times the root of that density")):  # fmt: skip
        values = functions(at, form).double().numpy()  # type: ignore[arg-type]
        charts = [_function_chart(at, v, shape, f"Function {name}")
                  for v, name in zip(values.T, told, strict=True)]  # fmt: skip
        forms.append((text, [Card(name, chart) for name, chart in zip(told, charts, strict=True)]))
    found: dict[str, Any] = {"forms": forms, "images": (), "extremes": (), "heads": ()}
    if images:
        found["images"] = _mean_images(functions(), points, told)
    elif len(columns) > 2:
        found["heads"] = ("value", *columns[:8])
        found["extremes"] = [_extreme_rows(v, points) for v in functions().T]
    return found


def _function_chart(
    points: Tensor, values: np.ndarray, shape: tuple[int, int] | None, about: str
) -> Svg:
    if shape is not None:
        return _signed(values.reshape(shape).T, about)
    if points.shape[1] == 1:
        xs, ys = points[:, 0].double().numpy(), values
        label = ""
    else:
        xs, ys = np.arange(1, len(values) + 1), np.sort(values)[::-1]
        label = "row, by value"
    plot = Plot(Axis.over(xs, label=label), Axis.over(ys, [0.0]), about, 300, 180)
    return plot.rule(y=0).line(xs, ys, "one").svg()


def _signed(values: np.ndarray, about: str) -> Svg:
    """Positive places in one color and negative ones in the other."""
    nothing: tuple[str, tuple[()]] = ("", ())
    return heat_map(values / max(1e-300, float(np.abs(values).max())), nothing, nothing, about)


def _extreme_rows(values: Tensor, points: Tensor) -> list[list[float]]:
    order = values.argsort(descending=True)
    ends = [*order[:3].tolist(), *order[-3:].tolist()]
    return [[float(values[i]), *points[i, :8].tolist()] for i in ends]


def _mean_images(values: Tensor, points: Tensor, told: list[str]) -> list[Card]:
    """Weighted means of the images: what each function is high and low on."""
    side = math.isqrt(points.shape[1])
    if side**2 != points.shape[1]:
        raise OptionError(f"--images: {points.shape[1]} columns are not a square image.")
    means = (values.T.to(points) @ points / len(points)).double().numpy()
    return [Card(name, _signed(mean.reshape(side, side)[::-1], f"Mean image of function {name}"))
            for mean, name in zip(means, told, strict=True)]  # fmt: skip
