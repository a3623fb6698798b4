"""`kermix sample`."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kermix.cli.output import check_output
from kermix.cli.tables_command import sample_table
from kermix.errors import OptionError, RunError
from kermix.files import whole_file, write_array
from kermix.runs.folder import check_run

if TYPE_CHECKING:
    import numpy as np

__all__ = ["sample"]

ROWS = (".npy", ".csv")  # files that rows are written to


def sample(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="Output file: .npy or .csv; for the table model also .csv.gz, .parquet, "
            ".feather, .jsonl, by default the format of its data; for images .npy, .npz or "
            ".png.",
        ),
    ],
    n: Annotated[int, typer.Option("-n", help="Number of samples.")] = 1000,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    label: Annotated[str | None, typer.Option(help="Images: name of the class to sample.")] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Table model: condition on this value (repeatable); leave the value empty for "
            "missing.",
        ),
    ] = None,
    spreadsheet_safe: Annotated[
        bool,
        typer.Option(
            "--spreadsheet-safe",
            help="Table model: escape text that a spreadsheet would take for a formula.",
        ),
    ] = False,
    deduplicate: Annotated[
        bool,
        typer.Option(
            "--deduplicate", help="Table model: redraw rows that equal a row of the data."
        ),
    ] = False,
    min_distance: Annotated[
        float | None,
        typer.Option(
            help="Table model: redraw rows that are closer than this to a row of the data; the "
            "report has the distances of samples and of held-out rows."
        ),
    ] = None,
) -> None:
    """Draw samples from a fitted model."""
    check_run(run)
    from kermix.fitting.fit import open_run
    from kermix.fitting.samples_run import FitRun
    from kermix.images.classifier_run import ClassifyRun
    from kermix.images.generator_run import ImageRun
    from kermix.tables.runs.table_run import TableRun

    if n < 1:
        raise OptionError(f"-n {n}: must be at least 1.")
    opened = open_run(run)
    if not isinstance(opened, TableRun) and (
        given or spreadsheet_safe or deduplicate or min_distance is not None
    ):
        raise OptionError(
            f"{run}: --given, --spreadsheet-safe, --deduplicate and --min-distance are for the "
            "table model."
        )
    if isinstance(opened, ClassifyRun):
        raise RunError(
            f"{run} is a classifier (use kermix predict); only fits of rows or images (kermix "
            "fit) can be sampled."
        )
    if isinstance(opened, ImageRun):
        check_output(out, ".png", ".npy", ".npz")
        opened.save_samples(out, n, seed, label)
    else:
        if label is not None:
            raise OptionError(f"--label {label}: the run in {run} has no classes.")
        if isinstance(opened, TableRun):
            out = sample_table(opened, out, n, seed, given or [], spreadsheet_safe, deduplicate,
                               min_distance)  # fmt: skip
        else:
            check_output(out, *ROWS)
            assert isinstance(opened, FitRun)
            _write_rows(out, opened.sample(n, seed).numpy(), opened.config["columns"])
    Console().print(f"{n} samples in {out}", highlight=False, soft_wrap=True)


def _write_rows(path: Path, values: "np.ndarray", columns: list[str]) -> None:
    if path.suffix.lower() == ".npy":
        write_array(path, values)
        return
    with whole_file(path) as part, part.open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(values.tolist())
