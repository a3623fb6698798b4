"""`kermix sketch DATA... -o FILE`: files of any size become one small sketch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from kermix.cli.options import AS_FOUND, TABLES, check_there, reads_tables
from kermix.cli.output import check_output, parse_variances, plain, print_notes
from kermix.data.readers.common import PACKED, READABLE, Reading, counted, listed
from kermix.errors import OptionError

if TYPE_CHECKING:
    from kermix.sketches.features import NystromFeatures

__all__ = ["command"]

QUICK = {"rank": 64, "tolerance": 1e-3}


@reads_tables
def command(
    data: Annotated[
        list[str],
        typer.Argument(
            help=f"Files ({TABLES}), folders, quoted globs ('day/*.parquet'), or fsspec URLs "
            "(s3://bucket/day/*.parquet). All must have the same columns."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, such as a.sketch.")],
    landmarks_from: Annotated[
        Path | None,
        typer.Option(
            help="Sketch to be comparable with: its landmarks, variance, columns and scales are "
            "reused."
        ),
    ] = None,
    variance: Annotated[
        str,
        typer.Option(
            "--variance", "-v", help="Kernel variance: auto, one number, or several: 0.1,1,10."
        ),
    ] = "auto",
    rank: Annotated[
        int | None,
        typer.Option(help="Maximum number of landmarks; more is slower but more accurate. [256]"),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Stop adding landmarks when the approximation error is below this. [1e-4]"
        ),
    ] = None,
    reading: Reading = AS_FOUND,
    standardize: Annotated[
        bool | None,
        typer.Option(
            help="Standardize columns. By default when standard deviations differ by more than "
            "10x."
        ),
    ] = None,
    engine: Annotated[
        str, typer.Option(help="local (this process) or dask (several processes or machines).")
    ] = "local",
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Address of a Dask scheduler, such as tcp://host:8786. By default a cluster is "
            "started on this machine."
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Number of processes of that cluster. By default one per core."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the sample and the landmarks.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: all rows, but at most 64 landmarks.")
    ] = False,
) -> None:
    """Read data once and write a sketch: a small file that represents all rows in comparisons.

    Make the first sketch of a series without --landmarks-from and the others with it; then
    'kermix compare FIRST SECOND', or 'kermix compare FOLDER' for the drift over a series.
    """
    check_output(out)
    if out.suffix.lower() in (*READABLE, *PACKED):
        raise OptionError(f"--out {out} is named like a data file; call it {out.stem}.sketch.")
    check_there(*data)
    from kermix.tables.sketch_files import sketch_files

    options: dict[str, Any] = {"variance": parse_variances(variance), "rank": rank}
    options |= {"tolerance": tolerance, "engine": engine, **reading.said()}
    if quick and landmarks_from is None:
        options |= {k: v for k, v in QUICK.items() if options[k] is None}
    if scheduler is not None or workers is not None:
        options["engine"] = "dask"
    console = Console()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        transient=True,  # gone before an error or the summary is shown
    ) as progress:
        bar = progress.add_task("choosing landmarks", total=None)
        said: list[str] = []

        def started(files: Any, features: "NystromFeatures") -> None:
            notes = list(files.notes)
            if files.ignored:
                notes.append(f"non-numeric columns are ignored: {listed(files.ignored)}.")
            print_notes([n for n in notes if n not in said], progress.console)
            said.extend(notes)
            what = counted(len(files.addresses), "file")
            description = f"sketching {what}, rank {features.rank}"
            progress.update(bar, description=description, total=files.size, completed=0)

        sketch = sketch_files(
            data,
            landmarks_from=landmarks_from,
            standardize="auto" if standardize is None else standardize,
            scheduler=scheduler,
            workers=workers,
            seed=seed,
            started=started,
            tick=lambda size: progress.advance(bar, size),
            **options,
        )
        progress.update(bar, completed=progress.tasks[0].total)
    sketch.save(out)
    assert sketch.origin is not None
    dropped = sum(f.dropped for f in sketch.origin.files)
    lines = [
        f"{counted(sketch.count, 'row')} of {counted(len(sketch.origin.files), 'file')}, columns "
        f"{listed(sketch.origin.columns)}; {counted(dropped, 'row')} with missing values left "
        "out.",
        f"{sketch.feature_map.kernel}, {counted(sketch.feature_map.rank, 'landmark')}; mean "
        f"residual {float(sketch.moments.residual or 0):.2g} of the kernel.",
        f"Sketch: {out}",
    ]
    for line in lines:
        console.print(plain(line), markup=False, highlight=False, soft_wrap=True)
