"""`kermix fit` and `kermix resume`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from kermix.cli.options import (
    AS_FOUND,
    READING,
    TABLES,
    check_there,
    reads_tables,
    set_options,
    train_and_finish,
    typed_command,
    typed_options,
)
from kermix.cli.output import print_notes
from kermix.data.readers.common import Reading
from kermix.environment import speaks
from kermix.errors import OptionError
from kermix.runs.folder import check_run

__all__ = ["fit", "resume"]

if TYPE_CHECKING:
    pass

console = Console()

Cost = Annotated[
    str,
    typer.Option(
        help="Cost to optimize: svd, scalar, vector or matrix (the paper's four costs); mmd, "
        "energy or likelihood (baselines)."
    ),
]


Devices = Annotated[
    int | None,
    typer.Option(
        help="Number of processes per node, each with a GPU or a share of the cores. The batch "
        "is split among them; the result is the same as with one process. By default 1, or "
        "the number started by torchrun."
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        help="Number of machines. Run the same command on each, with MASTER_ADDR, MASTER_PORT "
        "and NODE_RANK (0, 1, ...) in the environment."
    ),
]
StrategyName = Annotated[
    str | None,
    typer.Option(
        help="How to compute the four costs over processes: gather, shard, moments, or auto "
        "(depends on the size)."
    ),
]


@reads_tables
def fit(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="A built-in data set (mixture10, ring8, grid25, moons, circles, rings, "
            "swissroll, 8gaussians, checkerboard, pinwheel, 2spirals, digits), an image "
            "data set (mnist, stacked-mnist, cifar10, celeba, celeba:ATTRIBUTE) or a path: "
            f"a table ({TABLES}), a folder of images, an IDX file."
        ),
    ] = "mixture10",
    cost: Cost = "svd",
    form: Annotated[
        str | None,
        typer.Option(help="Form of --cost matrix: trace (default), data_fixed or logdet."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="By default auto: for a table, the table model (table), which models every "
            "column given any others, or, if all columns are numbers, a closed-form "
            "mixture if it is better on held-out rows; for arrays and few rows, mixture. "
            "mixture: a list of components. network: maps fixed noise to components. "
            "continuous: maps new noise to components in each step. generator, conv: map "
            "noise to centres, one for each noise vector. For images of 16 pixels or more: "
            "codes (default), noise to codes of an autoencoder; code-mixture; conv, noise "
            "to images."
        ),
    ] = None,
    components: Annotated[
        int | None,
        typer.Option(
            help="Number of components, or of centres in each step. By default 128, fewer below "
            "1280 rows."
        ),
    ] = None,
    covariance_type: Annotated[
        str, typer.Option(help="Covariance type of the components: isotropic or diagonal.")
    ] = "isotropic",
    prior: Annotated[
        str,
        typer.Option(
            help="Noise prior of networks: uniform, gaussian, or hybrid (Gaussian and a one-hot "
            "choice among 32 states). By default hybrid; gaussian for images."
        ),
    ] = "hybrid",
    steps: Annotated[int, typer.Option(help="Number of training steps.")] = 800,
    refine_steps: Annotated[
        int | None,
        typer.Option(
            help="Number of refinement steps after training, which sharpen the variances of a "
            "mixture. By default 500 for mixtures."
        ),
    ] = None,
    refine_with: Annotated[
        str, typer.Option(help="Objective of the refinement: 'likelihood' or 'closed form'.")
    ] = "likelihood",
    batch_size: Annotated[int, typer.Option(help="Batch size of a training step.")] = 256,
    refine_batch_size: Annotated[
        int, typer.Option(help="Batch size of a refinement step.")
    ] = 2048,
    variance: Annotated[
        float | None,
        typer.Option(
            help="Final kernel variance, for data scaled to standard deviation 1. By default "
            "estimated from the data."
        ),
    ] = None,
    start_variance: Annotated[
        float | None,
        typer.Option(
            help="Initial kernel variance; set it equal to --variance to keep the variance fixed."
        ),
    ] = None,
    kernel_variance: Annotated[
        float | None,
        typer.Option(
            help="Constant kernel variance in the units of the data (pixels range from 0 to 1), "
            "as in the paper; replaces --variance and --start-variance."
        ),
    ] = None,
    variance_factors: Annotated[
        str,
        typer.Option(
            help="Average the kernel over several variances: the kernel variance multiplied by "
            "each of these factors."
        ),
    ] = "1,10,100",
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    average: Annotated[
        int,
        typer.Option(
            help="Number of steps over which to average the weights; 0 for no averaging."
        ),
    ] = 0,
    seed: Annotated[
        int,
        typer.Option(help="Random seed; the same seed on the same machine gives the same result."),
    ] = 0,
    rows: Annotated[
        int | None,
        typer.Option(
            help="Number of rows to use, drawn at random. By default all; 20000 for built-in "
            "data sets."
        ),
    ] = None,
    data_root: Annotated[
        Path | None, typer.Option(help="Folder with the files of mnist, cifar10 or celeba.")
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Resize images to this side length, in pixels.")
    ] = None,
    code: Annotated[
        int | None, typer.Option(help="Images: length of the autoencoder's codes.")
    ] = None,
    spaces: Annotated[
        str | None,
        typer.Option(
            help="Images: spaces in which the cost is computed, separated by commas: pixels, "
            "coarse, random, codes, channels."
        ),
    ] = None,
    encoder_steps: Annotated[
        int | None, typer.Option(help="Images: number of training steps of the autoencoder.")
    ] = None,
    chunk: Annotated[
        int | None,
        typer.Option(help="Images: number of images generated at once; fewer need less memory."),
    ] = None,
    debias: Annotated[
        bool | None,
        typer.Option(
            "--debias/--no-debias",
            help="Images: whether the loss is freed from the bias of a batch; --no-debias is the "
            "paper's own loss. By default debiased.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(help="Table model: column that kermix predict predicts by default."),
    ] = None,
    from_disk: Annotated[
        bool | None,
        typer.Option(
            "--from-disk/--in-memory",
            help="Table model: whether to train from rows encoded in the run folder, or hold "
            "them in memory. By default depends on the free memory.",
        ),
    ] = None,
    width: Annotated[
        int | None, typer.Option(help="Table model: features per row. By default 256.")
    ] = None,
    blocks: Annotated[
        int | None, typer.Option(help="Table model: number of residual blocks. By default 3.")
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(help="Table model: dropout rate. By default 0.1."),
    ] = None,
    decay: Annotated[
        float | None, typer.Option(help="Table model: weight decay. By default 0.01.")
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Table model: share of held-out rows, used for early stopping. By default 0.05."
        ),
    ] = None,
    patience: Annotated[
        int | None,
        typer.Option(
            help="Table model: reports without improvement before training stops. By default 10."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Table model: any other setting (repeatable), such as members=2.",
        ),
    ] = None,
    reading: Reading = AS_FOUND,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    precision: Annotated[str, typer.Option(help="32-true, bf16-mixed or 16-mixed.")] = "32-true",
    devices: Devices = None,
    nodes: Nodes = None,
    strategy: StrategyName = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder, which must not exist. By default runs/NAME."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look in seconds: fewer steps and components.")
    ] = False,
) -> None:
    """Fit a mixture, or a table model, to data: train, draw samples, write a report.

    Without arguments, fits the paper's ten-mode mixture. Stop with Ctrl-C at any time: nothing is
    lost, and the command to continue is printed.
    """
    check_there(data)
    from kermix.fitting.fit import begin_fit

    typed = {"data": data, **typed_options(context)}
    for name, kind in (("variance_factors", float), ("spaces", str)):
        if name in typed:
            typed[name] = _parts(name, typed[name], kind)
    typed |= set_options(typed.pop("setting", None) or [])
    typed = {n: v for n, v in typed.items() if n not in READING} | reading.said()
    run, dataset = begin_fit(**typed, command=typed_command(context))
    if speaks():
        print_notes(run.notes(dataset))
    train_and_finish(run, dataset)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of an interrupted run.")],
    devices: Devices = None,
    nodes: Nodes = None,
    strategy: StrategyName = None,
) -> None:
    """Continue an interrupted run from its last checkpoint, as if it had never stopped.

    The number of processes may change.
    """
    check_run(run)
    from kermix.fitting.fit import reopen

    opened = reopen(run, devices, nodes, strategy)
    train_and_finish(opened, opened.dataset())


def _parts(name: str, text: str, kind: type) -> tuple[Any, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError:
        option = f"--{name.replace('_', '-')}"
        raise OptionError(f"{option} {text}: expected numbers such as 1,10,100.") from None
