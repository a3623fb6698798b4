"""`kermix fit` and `kermix resume`."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import typer

from kermix.cli.options import (
    AS_FOUND,
    MODEL,
    WHAT,
    WHERE,
    DataRoot,
    Device,
    ImageSize,
    Parts,
    Quick,
    RunOut,
    SettingsOptions,
    check_there,
    given,
    reads_tables,
    takes,
    train_and_finish,
    typed_command,
    value_typed,
)
from kermix.cli.output import print_notes
from kermix.data.readers.common import READABLE_SHOWN, Reading
from kermix.environment import is_main_process
from kermix.runs.folder import check_run
from kermix.tables.model.table_settings import TableModelSettings
from kermix.training.fit_settings import (
    IMAGES,
    ROWS,
    FitSettings,
    ImageModelName,
    RowModelName,
)

__all__ = ["SETTINGS", "fit", "resume"]

Model: TypeAlias = Literal["auto", "table", RowModelName, ImageModelName]
Devices = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=WHERE,
        help="Number of processes per node, each with a GPU or a share of the cores. The batch "
        "is split among them; the result is the same as with one process. By default 1, or "
        "the number started by torchrun.",
    ),
]
Nodes = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=WHERE,
        help="Number of machines. Run the same command on each, with MASTER_ADDR, MASTER_PORT "
        "and NODE_RANK (0, 1, ...) in the environment.",
    ),
]
StrategyName = Annotated[
    str | None,
    typer.Option(
        rich_help_panel=WHERE,
        help="How to compute the four costs over processes: gather, shard, moments, or auto "
        "(depends on the size).",
    ),
]
FromDisk = Annotated[
    bool | None,
    typer.Option(
        "--from-disk/--in-memory",
        rich_help_panel=WHAT,
        help="Table model: whether to train from rows encoded in the run folder, or hold them in "
        "memory. By default depends on the free memory.",
    ),
]


PARTS = {
    RowModelName: FitSettings.part(ROWS),
    Literal["table"]: TableModelSettings.part(),
    ImageModelName: FitSettings.part(IMAGES),
}


def _parts(words: Sequence[str]) -> Parts:
    """The settings that can matter: all, unless a model is named."""
    model = value_typed(words, "--model")
    named = tuple(part for models, part in PARTS.items() if model in get_args(models))
    return named or tuple(PARTS.values())


SETTINGS = SettingsOptions(tuple(PARTS.values()), _parts, without=("model", "target"))


def _of_data(
    rows: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=WHAT,
            help="Number of rows to use, drawn at random. By default all; 20000 for built-in "
            "data sets.",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=WHAT,
            metavar="COLUMN",
            help="Table model: column that kermix predict predicts by default.",
        ),
    ] = None,
    data_root: DataRoot = None,
    size: ImageSize = None,
    from_disk: FromDisk = None,
) -> dict[str, Any]:
    """Which data are fitted."""
    return given(rows=rows, target=target, data_root=data_root, size=size, from_disk=from_disk)


def _start(
    device: Device = "auto",
    precision: Annotated[
        str, typer.Option(rich_help_panel=WHERE, help="32-true, bf16-mixed or 16-mixed.")
    ] = "32-true",
    devices: Devices = None,
    nodes: Nodes = None,
    strategy: StrategyName = None,
) -> dict[str, Any]:
    """How the training is started."""
    return given(
        device=device, precision=precision, devices=devices, nodes=nodes, strategy=strategy
    )


def _of_run(out: RunOut = None, quick: Quick = False) -> dict[str, Any]:
    """Where the run is kept, and how much is done."""
    return {**given(out=out), "quick": quick}


@reads_tables
@takes(of_data=_of_data, settings=SETTINGS, of_run=_of_run, start=_start)
def fit(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="A table, a folder of images, an IDX file, or the name of a data set. Tables are "
            f"{READABLE_SHOWN}; built in are mixture10, ring8, grid25, moons, circles, rings, "
            "swissroll, 8gaussians, checkerboard, pinwheel, 2spirals, digits; sets of images are "
            "mnist, stacked-mnist, cifar10, celeba, celeba:ATTRIBUTE."
        ),
    ] = "mixture10",
    *,
    of_data: dict[str, Any],
    model: Annotated[
        Model | None,
        typer.Option(
            rich_help_panel=MODEL,
            metavar="NAME",
            help="Which model to fit, by default what suits the data. That is auto: for a table, "
            "the table model (table), which models every column given any others, or, if all "
            "columns are numbers, a closed-form mixture if it is better on held-out rows; for "
            "arrays and few rows, mixture; for images of 16 pixels or more, codes. All are "
            "mixture, network, continuous, generator, small-conv; codes, code-mixture, conv; "
            "table. Their settings: kermix fit --model NAME --help.",
        ),
    ] = None,
    settings: dict[str, Any],
    of_run: dict[str, Any],
    reading: Reading = AS_FOUND,
    start: dict[str, Any],
) -> None:
    """Learn a table or samples: train, draw samples, write a report.

    Without arguments, fits the paper's ten-mode mixture. Stop with Ctrl-C at any time: nothing is
    lost, and the command to continue is printed.
    """
    began = time.monotonic()
    check_there(data)
    from kermix.fitting.fit import begin_fit

    options = {**of_data, **given(model=model), **settings, **of_run, **start, **reading.said()}
    run, dataset = begin_fit(data, **options, command=typed_command(context), began=began)
    if is_main_process():
        print_notes(run.notes(dataset))
    train_and_finish(run, dataset)


def resume(
    run: Annotated[Path, typer.Argument(help="Folder of an interrupted run.")],
    devices: Devices = None,
    nodes: Nodes = None,
    strategy: StrategyName = None,
) -> None:
    """Continue an interrupted run from its last checkpoint.

    It ends as if it had never stopped. The number of processes may change.
    """
    check_run(run)
    from kermix.fitting.fit import reopen

    opened = reopen(run, devices, nodes, strategy)
    train_and_finish(opened, opened.dataset())
