"""`kermix compare A B`: are two data sets different, how much, and where?"""

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
    split_names,
)
from kermix.cli.reading import (
    Columns,
    Decimal,
    Delimiter,
    Encoding,
    Exclude,
    Header,
    Kinds,
    reading_options,
)
from kermix.comparison.compare import compare
from kermix.comparison.drift import Drift, drift
from kermix.comparison.result import Comparison
from kermix.errors import OptionError
from kermix.reports import figures as plots
from kermix.reports.page import Report
from kermix.sketches.sketch import Sketch

__all__ = ["command", "report"]

COLUMNS = ("measure", "variance", "value", "in [0, 1]", "+-", "if same", "p")
DRIFT_COLUMNS = ("sketch", "rows", "SVD cost to first", "Bures", "MMD", "p",
                 "Bures to previous", "p")  # fmt: skip
MAP_SIDE = 80


def command(
    first: Annotated[
        str,
        typer.Argument(
            help="A table (.csv, .tsv, .parquet, .feather, .jsonl, .xlsx, .npy, .npz; text also "
            "as .gz or .zst), a .sketch, or a folder of sketches in the order of their names: a "
            "series."
        ),
    ],
    second: Annotated[
        str | None, typer.Argument(help="The other file, with the same columns.")
    ] = None,
    variance: Annotated[
        str, typer.Option("--variance", "-v", help="auto, one variance, or several: 0.1,1,10")
    ] = "auto",
    columns: Columns = None,
    exclude: Exclude = None,
    kinds: Kinds = None,
    delimiter: Delimiter = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
    header: Header = None,
    standardize: Annotated[
        bool | None,
        typer.Option(help="Divide columns by their spread; by default when it differs tenfold."),
    ] = None,
    max_points: Annotated[
        int | None,
        typer.Option(help="Larger sets are subsampled to this; by default tests use all rows."),
    ] = None,
    bootstrap: Annotated[int, typer.Option(help="Splits into halves behind each error bar.")] = 20,
    permutations: Annotated[int, typer.Option(help="Permutations behind each p-value.")] = 200,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    report_path: Annotated[
        Path | None, typer.Option("--report", help="Write a page with pictures to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Compare two data sets: every cost, error bars, p-values, and where they differ.

    With a folder of sketches, one a day say: how far each is from the first and from the one
    before.
    """
    if report_path is not None:
        check_output(report_path, ".html", ".htm")
    if second is None:
        _series(Path(first), report_path, as_json)
        return
    options: dict[str, Any] = {"v": parse_variances(variance), "columns": split_names(columns)}
    options |= reading_options(exclude, kinds, delimiter, decimal, encoding, header)
    result = compare(
        first,
        second,
        standardize="auto" if standardize is None else standardize,
        max_points=max_points,
        bootstrap=bootstrap,
        permutations=permutations,
        seed=seed,
        **options,
    )
    if as_json:
        print_json(result.to_dict())
    else:
        title = f"{result.names[0]} and {result.names[1]}"
        print_table(title, COLUMNS, result.rows(), result.notes)
        if len(result.column_differences) > 1:
            heads = ("column", "energy distance / sd", "p", "mean of first", "mean of second",
                     "what changed")  # fmt: skip
            rows = _column_rows(result)[:10]
            shown = [[c if isinstance(c, str) else f"{c:.4g}" for c in row] for row in rows]
            print_table("\nWhich columns differ most", heads, shown)
    if report_path is not None:
        save_page(report(result).save, report_path, quiet=as_json)


def _column_rows(result: Comparison) -> list[list[str | float]]:
    return [
        [c.column, c.distance, *("" if v is None else v for v in (c.pvalue, c.mean_x, c.mean_y)),
         c.change]
        for c in result.column_differences
    ]  # fmt: skip


def _series(folder: Path, report_path: Path | None, as_json: bool) -> None:
    if not folder.is_dir():
        raise OptionError(f"{folder} alone: name two files, or a folder of sketches.")
    paths = sorted(folder.glob("*.sketch"))
    if len(paths) < 2:
        raise OptionError(
            f"{folder} holds {len(paths)} sketches; a series needs two. Make them with: kermix "
            "sketch DATA -o FILE.sketch --landmarks-from FIRST.sketch"
        )
    found = drift([Sketch.load(path) for path in paths], [path.stem for path in paths])
    if as_json:
        print_json(found.to_dict())
    else:
        print_table(f"Drift in {folder}", DRIFT_COLUMNS, found.table(), found.notes)
    if report_path is not None:
        save_page(_drift_report(folder, found).save, report_path, quiet=as_json)


def _drift_report(folder: Path, found: Drift) -> Report:
    page = Report(
        f"Drift in {folder}", f"{len(found.names)} sketches of {sum(found.rows):,} rows in all."
    )
    page.figure(
        plots.drift(
            found.names,
            {"to the first": [s.mmd for s in found.to_first],
             "to the one before": [s.mmd for s in found.to_previous]},
            if_same=[s.if_same for s in found.to_first],
        ),
        "Distance between kernel means (MMD). Dotted: what two samples of one source would give.",
    )  # fmt: skip
    page.table(DRIFT_COLUMNS, found.table())
    for note in found.notes:
        page.text(note)
    return page


def report(result: Comparison) -> Report:
    """The page: the table, values against variance, the samples, and where they differ."""
    one, two = result.names
    page = Report(
        f"{one} and {two}",
        f"{result.sizes[0]} and {result.sizes[1]} rows, {len(result.columns)} columns; "
        f"{result.used[0]} and {result.used[1]} rows used.",
    )
    page.table(COLUMNS, result.rows())
    for note in result.notes:
        page.text(note)
    if len(result.variances) > 1:
        page.heading("Values against variance")
        page.figure(_against_variance(result), "Normalised costs with one standard error; dotted: "
                    "the average if both sets were one. The further apart, the more they "
                    "differ.")  # fmt: skip
    if result.x is None or result.y is None:
        return page
    page.heading("Where they differ")
    d = len(result.columns)
    if d <= 2 and not result.mixed:
        _maps(page, result, result.x, result.y)
    else:
        names = [c.column for c in result.column_differences]
        page.figure(plots.witness_bars(names, [c.distance for c in result.column_differences]),
                    "Columns by how much they differ on their own.")  # fmt: skip
        page.table(
            ("column", "energy distance / sd", "p", f"mean of {one}", f"mean of {two}",
             "what changed"),
            _column_rows(result),
        )  # fmt: skip
        if result.mixed:
            return page
        best = [result.columns.index(name) for name in names[:2]]
        page.figure(
            plots.samples(result.raw(result.x)[:, best], result.raw(result.y)[:, best],
                          labels=(one, two), axes_labels=names[:2]),
            "The two columns that differ most.",
        )  # fmt: skip
    _rows(page, result, result.x, result.y)
    return page


def _against_variance(result: Comparison) -> Any:
    names = ("svd", "matrix", "vector", "scalar")
    by_name = {n: [m for m in result.measures if m.name == n] for n in names}
    return plots.cost_against_variance(
        result.variances,
        {n: [m.normalized for m in ms] for n, ms in by_name.items()},
        errors={n: [m.error or 0.0 for m in ms] for n, ms in by_name.items()},
        if_same={n: [m.if_same for m in ms] for n, ms in by_name.items()
                 if ms[0].if_same is not None},
    )  # fmt: skip


def _maps(page: Report, result: Comparison, x: Tensor, y: Tensor) -> None:
    x, y = result.raw(x), result.raw(y)
    pooled = torch.cat([x, y])
    low, high = pooled.amin(0), pooled.amax(0)
    margin = 0.05 * (high - low)
    axes = [torch.linspace(float(a), float(b), MAP_SIDE if len(low) > 1 else 400)
            for a, b in zip(low - margin, high + margin, strict=True)]  # fmt: skip
    labels, columns = result.names, result.columns
    page.figure(plots.samples(x, y, labels=labels, axes_labels=columns), "The samples.")
    grid = torch.cartesian_prod(*axes).reshape(-1, len(low))
    witness = result.witness(grid)
    shape = (MAP_SIDE, MAP_SIDE) if len(low) > 1 else None
    page.figure(
        plots.witness_map(grid, witness, shape=shape, labels=labels),
        f"Witness of the SVD cost at variance {result.sharpest_variance:.3g}: positive where "
        f"{labels[0]} has more mass, negative where {labels[1]} has.",
    )


def _rows(page: Report, result: Comparison, x: Tensor, y: Tensor) -> None:
    """The rows at which the witness is largest, on either side."""
    for name, points, sign in ((result.names[0], x, 1.0), (result.names[1], y, -1.0)):
        raw = result.raw(points)
        witness = result.witness(raw)
        order = (sign * witness).argsort(descending=True)[:8].tolist()
        page.text(f"Rows most typical of {name} alone:")
        shown = list(result.columns[:8])
        page.table(
            ["witness", *shown],
            [[float(witness[i]), *raw[i, : len(shown)].tolist()] for i in order],
        )
