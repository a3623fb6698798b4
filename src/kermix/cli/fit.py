"""`kermix fit`, `resume` and `sample`."""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kermix.cli.output import check_output, print_notes
from kermix.cli.reading import AS_FOUND, READING, TABLES, check_there, reads_tables
from kermix.cli.running import train_and_finish, typed_options
from kermix.cli.tables import sample_table
from kermix.data.tables.csv_look import Reading
from kermix.environment import is_rank, speaks, world_of_environment
from kermix.errors import OptionError, RunError
from kermix.files import whole_file, write_array
from kermix.runs.folder import check_run

if TYPE_CHECKING:
    import numpy as np

__all__ = ["fit", "resume", "sample"]

console = Console()

ROWS = (".npy", ".csv")  # files that rows are written to

Cost = Annotated[
    str,
    typer.Option(
        help="What is optimized: svd, scalar, vector or matrix (the paper's four costs); mmd, "
        "energy or likelihood (baselines)."
    ),
]


Devices = Annotated[
    int | None,
    typer.Option(
        help="Processes on each node, each with a GPU or a share of the cores. The batch is "
        "shared among them; the result is that of one process. By default 1; under torchrun, "
        "what it started."
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        help="Machines. Run the same command on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK "
        "(0, 1, ...) in the environment."
    ),
]
StrategyName = Annotated[
    str | None,
    typer.Option(
        help="How the four costs are computed over processes: gather, shard, moments, or auto, "
        "which decides by size."
    ),
]


@reads_tables
def fit(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="A built-in set (mixture10, ring8, grid25, moons, circles, rings, swissroll, "
            "8gaussians, checkerboard, pinwheel, 2spirals, digits), a set of images (mnist, "
            "stacked-mnist, cifar10, celeba, celeba:ATTRIBUTE) or a path: a table "
            f"({TABLES}), a folder of pictures, an IDX file."
        ),
    ] = "mixture10",
    cost: Cost = "svd",
    form: Annotated[
        str | None,
        typer.Option(help="Of --cost matrix: trace (default), data_fixed or logdet."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="By default auto: for a table the table model (table), which gives every column "
            "given any others, or, if all columns are numbers, a closed-form mixture where "
            "held-out rows prefer it; for arrays and few rows mixture. "
            "mixture: a list of components. network: fixed noise to components. continuous: "
            "new noise in each step to components. generator, conv: "
            "noise to centres, one for each noise vector. For images of 16 "
            "pixels or more: codes (default), noise to codes of an autoencoder; code-mixture; "
            "conv, noise to images."
        ),
    ] = None,
    components: Annotated[
        int | None,
        typer.Option(
            help="Components, or centres for each step; by default 128, fewer below 1280 rows."
        ),
    ] = None,
    covariance_type: Annotated[
        str, typer.Option(help="Covariance of each component: isotropic or diagonal.")
    ] = "isotropic",
    prior: Annotated[
        str,
        typer.Option(
            help="Noise of networks: uniform, gaussian, or hybrid (Gaussian beside a choice among "
            "32 states). By default hybrid; gaussian for images."
        ),
    ] = "hybrid",
    steps: Annotated[int, typer.Option(help="Training steps.")] = 800,
    refine_steps: Annotated[
        int | None,
        typer.Option(
            help="Refinement steps after training, which sharpen the variances of a mixture; by "
            "default 500 for mixtures."
        ),
    ] = None,
    refine_with: Annotated[
        str, typer.Option(help="What refinement optimizes: 'likelihood' or 'closed form'.")
    ] = "likelihood",
    batch_size: Annotated[int, typer.Option(help="Data points in each training step.")] = 256,
    refine_batch_size: Annotated[
        int, typer.Option(help="Data points in each refinement step.")
    ] = 2048,
    variance: Annotated[
        float | None,
        typer.Option(
            help="Kernel variance at the end, for data scaled to deviation 1. "
            "Found from the data if not given."
        ),
    ] = None,
    start_variance: Annotated[
        float | None,
        typer.Option(
            help="Kernel variance at the beginning; equal to --variance for a fixed one."
        ),
    ] = None,
    kernel_variance: Annotated[
        float | None,
        typer.Option(
            help="Constant kernel variance in the data's own units (pixels go from 0 to 1), as "
            "the paper has it; instead of --variance and --start-variance."
        ),
    ] = None,
    variance_factors: Annotated[
        str,
        typer.Option(
            help="Average the kernel over several variances: the kernel variance times each of "
            "these factors."
        ),
    ] = "1,10,100",
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    average: Annotated[
        int, typer.Option(help="Steps over which the weights are averaged; 0 for none.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Same seed, same machine: same result.")] = 0,
    rows: Annotated[
        int | None,
        typer.Option(help="Rows to use, drawn at random; by default all, 20000 of built-in sets."),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Where the files of mnist, cifar10 or celeba are.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Side that images are brought to, in pixels.")
    ] = None,
    code: Annotated[
        int | None, typer.Option(help="Images: length of a code of the autoencoder.")
    ] = None,
    spaces: Annotated[
        str | None,
        typer.Option(
            help="Images: where the cost acts, one or several with commas between: pixels, "
            "coarse, random, codes, channels."
        ),
    ] = None,
    encoder_steps: Annotated[
        int | None, typer.Option(help="Images: training steps of the autoencoder.")
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(help="Images: rows that a network makes at once; less takes less memory."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Table model: the column that kermix predict is about."),
    ] = None,
    from_disk: Annotated[
        bool | None,
        typer.Option(
            "--from-disk/--in-memory",
            help="Table model: whether rows are encoded into the run's folder and trained from "
            "there, or held in memory; by default by the memory that is free.",
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Table model: features of a row; by default 256.")
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(help="Table model: residual blocks; by default 3.")
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(help="Table model: share of features left out in training; 0.1."),
    ] = None,
    decay: Annotated[
        float | None, typer.Option(help="Table model: weight decay; by default 0.01.")
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(help="Table model: share of rows that decide which step is kept; 0.05."),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(help="Table model: reports without progress before it ends; 10."),
    ] = None,
    reading: Reading = AS_FOUND,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="32-true, bf16-mixed or 16-mixed.")] = "32-true",
    devices: Devices = None,
    nodes: Nodes = None,
    strategy: StrategyName = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of the run, which must not exist. By default runs/NAME."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A look in seconds: fewer steps and components.")
    ] = False,
) -> None:
    """Fit a mixture, or a table model, to data: train, draw samples, write a report.

    Without arguments, the paper's ten-mode mixture. Stop with Ctrl-C at any moment: nothing is
    lost, and the command to go on is printed.
    """
    check_there(data)
    from kermix.runs.fit import begin_fit

    typed = {"data": data, **typed_options(context)}
    for name, kind in (("variance_factors", float), ("spaces", str)):
        if name in typed:
            typed[name] = _parts(name, typed[name], kind)
    typed = {n: v for n, v in typed.items() if n not in READING} | reading.said()
    run, dataset = begin_fit(**typed)
    if speaks():
        print_notes([*_choice(run.kind, typed), *run.notes(dataset)])
    train_and_finish(run, dataset)


def _choice(kind: str, typed: Mapping[str, Any]) -> list[str]:
    """Why a table was fitted by a mixture, where nobody asked for one."""
    path = Path(typed["data"])
    named = {"model", "cost", "components"} & set(typed)
    if kind != "fit" or named or not path.is_file() or path.suffix in (".npy", ".npz"):
        return []
    return ["Fitted by a mixture, because all columns are plain numbers (else --model table)."]


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was stopped.")],
    devices: Devices = None,
    nodes: Nodes = None,
    strategy: StrategyName = None,
) -> None:
    """Go on with a run from its last checkpoint, to the same result as without the stop.

    The number of processes may be another than before.
    """
    check_run(run)
    from kermix.runs.fit import ranks_of
    from kermix.runs.fit_run import FitRun
    from kermix.runs.kinds import open_run
    from kermix.runs.table_run import TableRun

    opened = open_run(run)
    if isinstance(opened, FitRun | TableRun):
        before = opened.ranks
        asked = (devices or before[0], nodes or before[1], strategy or before[2])
        if is_rank() and devices is nodes is None:
            asked = (*world_of_environment(), asked[2])
        opened = opened.with_ranks(**ranks_of(*asked))
    elif devices or nodes or strategy:
        raise OptionError(f"{run}: only fits of rows and tables are trained by several processes.")
    train_and_finish(opened, opened.dataset())


def sample(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[
        Path,
        typer.Option(
            "-o",
            "--out",
            help="Where to write: .npy or .csv; of the table model also .csv.gz, .parquet, "
            ".feather, .jsonl, by default as its data; of images .npy, .npz or .png.",
        ),
    ],
    n: Annotated[int, typer.Option("-n", help="How many samples.")] = 1000,
    seed: Annotated[int, typer.Option(help="Same seed: same samples.")] = 0,
    label: Annotated[
        str | None, typer.Option(help="Images: the class to draw, by its name.")
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN=VALUE",
            help="Table model: a value that all rows have, again for each; empty for a gap.",
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
            "--deduplicate", help="Table model: draw rows again that equal a row of the data."
        ),
    ] = False,
    min_distance: Annotated[
        float | None,
        typer.Option(
            help="Table model: draw rows again that are nearer than this to a row of the data; "
            "the report has the distances of samples and of held-out rows."
        ),
    ] = None,
) -> None:
    """Draw samples from a fitted model."""
    check_run(run)
    from kermix.runs.classify_run import ClassifyRun
    from kermix.runs.fit_run import FitRun
    from kermix.runs.image_run import ImageRun
    from kermix.runs.kinds import open_run
    from kermix.runs.table_run import TableRun

    if n < 1:
        raise OptionError(f"-n {n}: at least one sample is needed.")
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
            f"{run}: a classifier, which tells images apart (kermix predict); samples are drawn "
            "of a fit of rows or of images (kermix fit)."
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
    console.print(f"{n} samples in {out}", highlight=False, soft_wrap=True)


def _parts(name: str, text: str, kind: type) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        option = f"--{name.replace('_', '-')}"
        raise OptionError(f"{option} {text}: expected numbers such as 1,10,100.") from None


def _write_rows(path: Path, values: "np.ndarray", columns: list[str]) -> None:
    if path.suffix.lower() == ".npy":
        write_array(path, values)
        return
    with whole_file(path) as part, part.open("w", newline="") as text:
        writer = csv.writer(text)
        writer.writerow(columns)
        writer.writerows(values.tolist())
