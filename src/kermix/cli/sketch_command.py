"""`kermix sketch DATA... -o FILE`: files of any size become one small sketch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
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

from kermix.cli.options import AS_FOUND, check_there, reads_tables, takes
from kermix.cli.output import check_output, parse_variances, plain, print_notes
from kermix.data.readers.common import PACKED, READABLE, READABLE_SHOWN, Reading, counted, listed
from kermix.errors import OptionError

if TYPE_CHECKING:
    from kermix.sketches.features import NystromFeatures
    from kermix.sketches.sketch import Sketch

__all__ = ["command"]


@dataclass(frozen=True)
class FeatureOptions:
    """What a sketch keeps of the rows."""

    landmarks_from: Annotated[
        Path | None,
        typer.Option(
            help="Sketch to be comparable with: its landmarks, variance, columns and scales are "
            "reused."
        ),
    ] = None
    variance: Annotated[
        str,
        typer.Option(
            "--variance", "-v", help="Kernel variance: auto, one number, or several: 0.1,1,10."
        ),
    ] = "auto"
    rank: Annotated[
        int | None,
        typer.Option(help="Maximum number of landmarks; more is slower but more accurate. [256]"),
    ] = None
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Stop adding landmarks when the approximation error is below this. [1e-4]"
        ),
    ] = None
    standardize: Annotated[
        bool | None,
        typer.Option(
            help="Standardize columns. By default when standard deviations differ by more than "
            "10x."
        ),
    ] = None
    seed: Annotated[int, typer.Option(help="Random seed of the sample and the landmarks.")] = 0
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: all rows, but at most 64 landmarks.")
    ] = False

    def of_sketch(self) -> dict[str, Any]:
        """What `km.sketch_files` is given of them."""
        first_look = self.quick and self.landmarks_from is None
        usual = {"rank": 64, "tolerance": 1e-3} if first_look else {}
        return {
            "landmarks_from": self.landmarks_from,
            "variance": parse_variances(self.variance),
            "rank": usual.get("rank") if self.rank is None else self.rank,
            "tolerance": usual.get("tolerance") if self.tolerance is None else self.tolerance,
            "standardize": "auto" if self.standardize is None else self.standardize,
            "seed": self.seed,
        }


@dataclass(frozen=True)
class EngineOptions:
    """Where the rows are read."""

    engine: Annotated[
        str, typer.Option(help="local (this process) or dask (several processes or machines).")
    ] = "local"
    scheduler: Annotated[
        str | None,
        typer.Option(
            help="Address of a Dask scheduler, such as tcp://host:8786. By default a cluster is "
            "started on this machine."
        ),
    ] = None
    workers: Annotated[
        int | None,
        typer.Option(help="Number of processes of that cluster. By default one per core."),
    ] = None

    def of_sketch(self) -> dict[str, Any]:
        """What `km.sketch_files` is given of them."""
        many = self.scheduler is not None or self.workers is not None
        return {**asdict(self), "engine": "dask" if many else self.engine}


@reads_tables
@takes(features=FeatureOptions, place=EngineOptions)
def command(
    data: Annotated[
        list[str],
        typer.Argument(
            help=f"Files ({READABLE_SHOWN}), folders, quoted globs ('day/*.parquet'), or fsspec "
            "URLs (s3://bucket/day/*.parquet). All must have the same columns."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, such as a.sketch.")],
    *,
    features: FeatureOptions,
    place: EngineOptions,
    reading: Reading = AS_FOUND,
) -> None:
    """Write a sketch: a small file that stands for all rows.

    Data are read once; comparisons take the sketch instead.

    Make the first sketch of a series without --landmarks-from and the others with it; then
    'kermix compare FIRST SECOND', or 'kermix compare FOLDER' for the drift over a series.
    """
    check_output(out)
    if out.suffix.lower() in (*READABLE, *PACKED):
        raise OptionError(f"--out {out} is named like a data file; call it {out.stem}.sketch.")
    check_there(*data)
    from kermix.tables.sketch_files import sketch_files

    console = Console()
    options = {**features.of_sketch(), **place.of_sketch(), **reading.said()}
    with _progress(console) as (started, tick):
        sketch = sketch_files(data, started=started, tick=tick, **options)
    sketch.save(out)
    for line in (*_told(sketch), f"Sketch: {out}"):
        console.print(plain(line), markup=False, highlight=False, soft_wrap=True)


@contextmanager
def _progress(
    console: Console,
) -> Iterator[tuple[Callable[[Any, "NystromFeatures"], None], Callable[[int], None]]]:
    """A bar of what is read, as what to call when the reading starts and when it goes on."""
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

        yield started, lambda size: progress.advance(bar, size)
        progress.update(bar, completed=progress.tasks[0].total)


def _told(sketch: "Sketch") -> list[str]:
    """What a sketch holds, in lines."""
    assert sketch.origin is not None
    dropped = sum(f.dropped for f in sketch.origin.files)
    return [
        f"{counted(sketch.count, 'row')} of {counted(len(sketch.origin.files), 'file')}, columns "
        f"{listed(sketch.origin.columns)}; {counted(dropped, 'row')} with missing values left "
        "out.",
        f"{sketch.feature_map.kernel}, {counted(sketch.feature_map.rank, 'landmark')}; mean "
        f"residual {float(sketch.moments.residual or 0):.2g} of the kernel.",
    ]
