"""`kermix fit`, `resume`, `sample` and `score`."""

import csv
import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from kermix.distributed.launch import check_ranks, is_rank, world_of_environment
from kermix.errors import OptionError, RunError
from kermix.validation import check_option
from kermix.writing import whole_file

from .classify import go_on
from .fit_images import fit_images, resume_images, sample_images, typed_options, wants_images
from .output import (
    check_output,
    end_stopped_run,
    print_lines,
    print_notes,
    resumable,
    show_run,
)

__all__ = ["fit", "resume", "sample", "score"]

console = Console()

SMALLEST_SIDE = 4
ROWS = (".npy", ".csv")  # files that rows are written to

Cost = Annotated[
    str,
    typer.Option(
        help="What is optimised: svd, scalar, vector or matrix (the paper's four costs); mmd, "
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


def fit(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="A built-in set (mixture10, ring8, grid25, moons, circles, rings, swissroll, "
            "8gaussians, checkerboard, pinwheel, 2spirals, digits), a set of images (mnist, "
            "stacked-mnist, cifar10, celeba, celeba:ATTRIBUTE) or a path: .npy, .npz, .csv, "
            ".parquet, a folder of pictures, an IDX file."
        ),
    ] = "mixture10",
    cost: Cost = "svd",
    model: Annotated[
        str | None,
        typer.Option(
            help="mixture: a table of components. network: noise to components. generator, conv: "
            "noise to centres, one for each noise vector. By default mixture. For images of 16 "
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
    variances: Annotated[
        str, typer.Option(help="Variances of a component: isotropic or diagonal.")
    ] = "isotropic",
    prior: Annotated[
        str, typer.Option(help="Noise of networks: uniform, gaussian or hybrid.")
    ] = "hybrid",
    steps: Annotated[int, typer.Option(help="Training steps.")] = 800,
    polish: Annotated[
        int | None,
        typer.Option(help="Steps at the end that sharpen variances; by default 500 for mixtures."),
    ] = None,
    finish: Annotated[
        str, typer.Option(help="What these steps optimise: 'likelihood' or 'closed form'.")
    ] = "likelihood",
    batch: Annotated[int, typer.Option(help="Data points for each step.")] = 256,
    polish_batch: Annotated[int, typer.Option(help="The same in the steps at the end.")] = 2048,
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
    spread: Annotated[
        str, typer.Option(help="Factors of the variances that are used at once.")
    ] = "1,10,100",
    rate: Annotated[float | None, typer.Option(help="Peak of the learning rate.")] = None,
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
    """Fit a mixture to data: train, draw samples, write a report.

    Without arguments, the paper's ten-mode mixture. Stop with Ctrl-C at any moment: nothing is
    lost, and the command to go on is printed.
    """
    from kermix.data.loading import IMAGE_SETS, load
    from kermix.runs.fit_run import Run
    from kermix.runs.folder import check_new_folder, next_free_folder
    from kermix.training.settings import Settings

    if rows is not None and rows < 1:
        raise OptionError(f"--rows {rows}: at least one row is needed.")
    chosen: dict[str, Any] = {
        "cost": cost, "model": model or "mixture", "components": components,
        "variances": variances, "prior": prior, "steps": steps, "polish": polish, "finish": finish,
        "batch": batch,
        "polish_batch": polish_batch, "variance": variance, "start_variance": start_variance,
        "spread": _factors(spread), "rate": rate, "average": average, "seed": seed,
    }  # fmt: skip
    plain = model not in ("codes", "code-mixture")
    settings = Settings(**chosen) if plain else Settings()  # refused before any file is read
    ranks = _ranks(devices, nodes, strategy)
    if out is not None and ranks["devices"] * ranks["nodes"] == 1:
        check_new_folder(
            out
        )  # of several processes, the first one makes it and the others find it
    if data_root is not None and data.partition(":")[0] not in IMAGE_SETS:
        raise OptionError(f"--data-root is for {', '.join(IMAGE_SETS)}; {data} has no use for it.")
    dataset = load(data, seed, rows, data_root=data_root, size=size)
    if size is not None and (dataset.image is None or dataset.image[1:] != (size, size)):
        raise OptionError(f"--size {size}: {data} cannot be brought to a size.")
    if wants_images(dataset, model, cost):
        fit_images(dataset, typed_options(context))
        return
    if not plain or any(o is not None for o in (code, spaces, encoder_steps, chunk)):
        raise OptionError(
            f"{data}: --model codes and code-mixture, --code, --spaces, --encoder-steps and "
            "--chunk are for square images of at least 16 pixels (--size brings them to one size)."
        )
    if model is None and dataset.image is not None and cost != "likelihood" and not polish:
        square = dataset.image[1] == dataset.image[2] >= SMALLEST_SIDE
        settings = replace(settings, model="conv" if square else "generator")
    if quick:
        settings = settings.for_data(len(dataset.values)).quick()
    folder = next_free_folder(dataset.name) if out is None else out
    run = Run.create(folder, data, dataset, settings, device, precision, rows, **ranks)
    if _speaks():
        print_notes(run.config["notes"])
    _train_and_finish(run, dataset)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of a run that was stopped.")],
    devices: Devices = None,
    nodes: Nodes = None,
    strategy: StrategyName = None,
) -> None:
    """Go on with a run from its last checkpoint, to the same result as without the stop.

    The number of processes may be another than before.
    """
    from kermix.runs.classify_run import is_classification

    if is_classification(run):
        go_on(run)
        return
    from kermix.runs.image_run import is_image_run

    if is_image_run(run):
        resume_images(run)
        return
    from kermix.runs.fit_run import Run

    before = Run.open(run)
    asked = (devices or before.ranks[0], nodes or before.ranks[1], strategy or before.ranks[2])
    if is_rank() and devices is nodes is None:
        asked = (*world_of_environment(), asked[2])
    opened = before.with_ranks(**_ranks(*asked))
    _train_and_finish(opened)


def sample(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    out: Annotated[
        Path,
        typer.Option(
            "-o", "--out", help="Where to write: .npy or .csv; of images .npy, .npz or .png."
        ),
    ],
    n: Annotated[int, typer.Option("-n", help="How many samples.")] = 1000,
    seed: Annotated[int, typer.Option(help="Same seed: same samples.")] = 0,
    label: Annotated[
        str | None, typer.Option(help="Images: the class to draw, by its name.")
    ] = None,
) -> None:
    """Draw samples from a fitted model."""
    from kermix.runs.classify_run import is_classification
    from kermix.runs.fit_run import Run
    from kermix.runs.image_run import is_image_run

    if n < 1:
        raise OptionError(f"-n {n}: at least one sample is needed.")
    if is_classification(run):
        raise RunError(
            f"{run}: a classifier, which tells images apart (kermix predict); samples are drawn "
            "of a fit of rows or of images (kermix fit)."
        )
    if is_image_run(run):
        sample_images(run, out, n, seed, label)
        console.print(f"{n} samples in {out}", highlight=False, soft_wrap=True)
        return
    if label is not None:
        raise OptionError(f"--label {label}: the run in {run} has no classes.")
    check_output(out, *ROWS)
    opened = Run.open(run)
    _write_rows(out, opened.sample(n, seed).numpy(), opened.config["columns"])
    console.print(f"{n} samples in {out}", highlight=False, soft_wrap=True)


def score(
    run: Annotated[Path, typer.Argument(help="Folder of a run.")],
    data: Annotated[str, typer.Argument(help="A built-in set or a path, as for fit.")],
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Where to write the log-density of each row."),
    ] = None,
) -> None:
    """Log-density of each row of DATA under a fitted model, in nats."""
    from kermix.data.loading import load
    from kermix.runs.fit_run import Run
    from kermix.runs.image_run import is_image_run

    if is_image_run(run):
        raise RunError(f"{run}: a model of images has no density to score with.")
    if out is not None:
        check_output(out, *ROWS)
    opened = Run.open(run)
    dataset = load(data, seed=1)
    summary = Console(stderr=True)
    print_notes(dataset.notes, summary)
    values = opened.score(dataset.values, dataset.columns).numpy()
    if out is not None:
        _write_rows(out, values[:, None], ["log_density"])
    else:
        print_lines([f"{value:.6f}" for value in values])
    mean, error = values.mean(), values.std() / len(values) ** 0.5
    summary.print(
        f"mean log-density {mean:.4f} ± {error:.4f} nats over {len(values)} rows", highlight=False
    )
    if out is not None:
        summary.print(f"Log-densities: {out}", markup=False, highlight=False, soft_wrap=True)


def _train_and_finish(run: Any, dataset: Any = None) -> None:
    from kermix.runs.fit_ranks import train

    with resumable(run.folder, run.is_main):
        dataset = run.dataset() if dataset is None else dataset
        try:
            outcome = train(run, dataset, show=True)
        finally:
            console.show_cursor()  # a rank that is ended may have hidden it
        if outcome is None:  # the main process, on another node or beside this one, writes
            return
        if not outcome.finished:
            end_stopped_run(run.folder, outcome.step)
        summary = run.finish(dataset, outcome.history)
    show_run(summary.rows, run.folder)


def _ranks(devices: int | None, nodes: int | None, strategy: str | None) -> dict[str, Any]:
    """Numbers of processes that can be, by default what this process is one of."""
    local, there = world_of_environment() if is_rank() else (1, 1)
    strategy = strategy or "auto"
    check_option("strategy", strategy, ("auto", "gather", "shard", "moments"))
    devices = local if devices is None else devices
    nodes = there if nodes is None else nodes
    check_ranks(devices, nodes)
    return {"devices": devices, "nodes": nodes, "strategy": strategy}


def _speaks() -> bool:
    """Whether this process is the one that talks to the user."""
    return not is_rank() or os.environ["RANK"] == "0"


def _factors(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise OptionError(f"--spread {text}: numbers with commas between, as 1,10,100.") from None


def _write_rows(path: Path, values: np.ndarray, columns: list[str]) -> None:
    with whole_file(path) as part:
        if path.suffix.lower() == ".npy":
            with part.open("wb") as binary:
                np.save(binary, values)
        else:
            with part.open("w", newline="") as text:
                writer = csv.writer(text)
                writer.writerow(columns)
                writer.writerows(values.tolist())
