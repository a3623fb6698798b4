"""`kermix spectrum DATA [DATA2]`: what structure does the kernel see in the data?"""

import math
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from kermix.cli.output import (
    check_output,
    parse_variances,
    print_json,
    print_table,
    save_page,
)
from kermix.cli.reading import (
    Columns,
    Decimal,
    Delimiter,
    Encoding,
    Exclude,
    Header,
    Kinds,
    reading_of,
    reading_options,
)
from kermix.comparison.sources import read_sources
from kermix.errors import OptionError
from kermix.kernels.gaussian import bandwidth
from kermix.kernels.mixed import mixed_kernel
from kermix.reports import figures as plots
from kermix.reports.page import Report
from kermix.runs.folder import next_free
from kermix.spectrum import Decomposition, decompose

__all__ = ["command", "report"]

MAP_SIDE = 80


def command(
    data: Annotated[str, typer.Argument(help="A file: .npy, .npz, .csv, .tsv or .parquet.")],
    other: Annotated[
        str | None, typer.Argument(help="A second file; without it, eigenfunctions.")
    ] = None,
    variance: Annotated[
        str, typer.Option("--variance", "-v", help="auto (median / 10) or a variance.")
    ] = "auto",
    rank: Annotated[int, typer.Option("--rank", "-k", help="How many functions.")] = 6,
    columns: Columns = None,
    exclude: Exclude = None,
    kinds: Kinds = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    header: Header = None,
    images: Annotated[bool, typer.Option(help="Columns are the pixels of square images.")] = False,
    max_points: Annotated[int, typer.Option(help="Larger sets are subsampled to this.")] = 4000,
    seed: Annotated[int, typer.Option(help="Seed of the subsample.")] = 0,
    report_path: Annotated[
        Path | None,
        typer.Option(
            "--report",
            help="Where to write the page with pictures. By default spectrum.html, or the next "
            "free name.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Decompose the kernel between data sets into singular functions, and draw them."""
    page_path = next_free(Path(), "spectrum", ".html") if report_path is None else report_path
    check_output(page_path, ".html", ".htm")
    options = reading_options(exclude, kinds, delimiter, decimal, encoding, header)
    read = read_sources([data] if other is None else [data, other], reading_of(columns, options))
    tables, notes = list(read.tables), read.notes
    layout = None if read.mixed is None else read.mixed.layout
    if max_points < 1:
        raise OptionError(f"--max-points {max_points}: at least one point is needed.")
    generator = torch.Generator().manual_seed(seed)
    sets = []
    for table in tables:
        values = table.values
        if len(table) > max_points:
            values = values[torch.randperm(len(table), generator=generator)[:max_points]]
            notes.append(f"{table.name}: {max_points} of {len(table)} rows used, at random.")
        sets.append(values)
    parsed = parse_variances(variance)
    v: float | list[float] = parsed if not isinstance(parsed, str) else 0.0
    if isinstance(parsed, str):
        v = float(bandwidth(torch.cat(sets), layout=layout)) / 10
        notes.append(f"Variance {v:.4g}: a tenth of the median heuristic's.")
    rank = min(rank, *(len(s) for s in sets))
    kernel = mixed_kernel(sets[0], layout, v)
    result = decompose(sets[0], sets[1] if other is not None else None, kernel, rank=rank)
    names = [table.name for table in tables]
    found = result.singular_values.tolist()
    if as_json:
        print_json({"names": names, "variance": v, "singular_values": found,
                    "method": result.method, "notes": notes})  # fmt: skip
    else:
        print_table(
            " and ".join(names),
            ("k", "singular value"),
            [[str(k + 1), f"{s:.5g}"] for k, s in enumerate(found)],
            notes,
        )
    if layout is not None:
        notes.append("Functions of rows with categories or gaps are not drawn.")
    page = report(result, names, sets, tables[0].columns, notes, images, layout is not None)
    save_page(page.save, page_path, quiet=as_json)


def report(
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
    page.figure(plots.spectrum(result.singular_values), "Singular values, logarithmic.")
    if mixed:
        return page
    for k, name in enumerate(names):
        functions = (result.left, result.right)[k]
        what = "Eigenfunctions" if len(names) == 1 else ("Left", "Right")[k] + " functions"
        page.heading(f"{what}: {name}")
        points, shape = _places(sets, columns)
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


def _places(sets: list[Tensor], columns: list[str]) -> tuple[Tensor, tuple[int, int] | None]:
    """A grid over the data in one and two dimensions, the data themselves beyond."""
    pooled = torch.cat(sets)
    if len(columns) > 2:
        return pooled, None
    low, high = pooled.amin(0), pooled.amax(0)
    side = MAP_SIDE if len(columns) == 2 else 400
    axes = [torch.linspace(float(a), float(b), side, dtype=pooled.dtype)
            for a, b in zip(low, high, strict=True)]  # fmt: skip
    grid = torch.cartesian_prod(*axes).reshape(-1, len(columns))
    return grid, (side, side) if len(columns) == 2 else None


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
