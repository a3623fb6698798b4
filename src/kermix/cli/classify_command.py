"""`kermix classify` and `kermix predict`."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kermix.cli.options import (
    AS_FOUND,
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
from kermix.cli.output import check_output, print_lines, print_notes
from kermix.cli.tables_command import predict_table, table_run
from kermix.data.readers.common import READABLE_SHOWN, Reading, counted
from kermix.errors import OptionError
from kermix.files import whole_file
from kermix.runs.folder import check_run
from kermix.tables.model.table_settings import TableModelSettings
from kermix.training.product_settings import IMAGES, ProductSettings

__all__ = ["classify", "predict"]


OF_IMAGES, OF_TABLES = ProductSettings.part(IMAGES), TableModelSettings.part()


def _parts(words: Sequence[str]) -> Parts:
    """The settings that can matter: those of images, unless a target is named."""
    return (OF_TABLES,) if value_typed(words, "--target") is not None else (OF_IMAGES,)


SETTINGS = SettingsOptions((OF_IMAGES, OF_TABLES), _parts, without=("target",))


def _of_images(
    data_root: DataRoot = None,
    size: ImageSize = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment",
            rich_help_panel=WHAT,
            help="Whether to shift training images (cifar10: also mirror them). By default on.",
        ),
    ] = None,
) -> dict[str, Any]:
    """Which images are taken."""
    return given(data_root=data_root, size=size, augment=augment)


def _start(
    quick: Quick = False,
    device: Device = "auto",
    precision: Annotated[
        str,
        typer.Option(
            rich_help_panel=WHERE, help="auto (bf16-mixed on a GPU), 32-true, bf16-mixed."
        ),
    ] = "auto",
) -> tuple[bool, str, str]:
    """How the training is started."""
    return quick, device, precision


@reads_tables
@takes(of_images=_of_images, settings=SETTINGS, start=_start)
def classify(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="digits (built in), mnist, cifar10, celeba:ATTRIBUTE, or a folder: "
            "train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png, of which a fifth is "
            f"then held out for testing; or, with --target, a table ({READABLE_SHOWN})."
        ),
    ] = "digits",
    *,
    target: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=WHAT,
            metavar="COLUMN",
            help="Tables: column to predict from all others; for a number, this is a regression. "
            "The settings of its model: kermix classify --target COLUMN --help.",
        ),
    ] = None,
    of_images: dict[str, Any],
    settings: dict[str, Any],
    start: tuple[bool, str, str],
    out: RunOut = None,
    reading: Reading = AS_FOUND,
) -> None:
    """Learn the classes of images, or one column of a table.

    Images (by default scikit-learn's 8 x 8 digits, in under a minute) are classified by a network
    of Gaussian products: each pixel, or the patch around it, is processed on its own, and
    positions interact only in one final exponential. With --target, the table model predicts a
    column of a table from all others; a fifth of the rows is held out for testing. Stop with
    Ctrl-C at any time: nothing is lost, and the command to continue is printed.
    """
    check_there(data)
    from kermix.fitting.fit import begin_fit
    from kermix.images.classifier_run import begin_classify
    from kermix.runs.run import Run, Start

    quick, device, precision = start
    words = typed_command(context)
    run: Run
    if _is_table(data, target, reading):
        _check_of_table(data, {**of_images, **settings})
        run, rows = begin_fit(
            data, out=out, quick=quick, target=target, from_disk=False, model="table",
            device=device, precision="32-true" if precision == "auto" else precision,
            command=words, **reading.said(), **{"target_share": 1.0, **settings},
        )  # fmt: skip
    else:
        run, rows = begin_classify(
            data, settings, folder=out, quick=quick, start=Start(words, device, precision),
            **of_images,
        )  # fmt: skip
    print_notes(run.notes(rows))
    train_and_finish(run, rows)


def _is_table(data: str, target: str | None, reading: Reading) -> bool:
    """Whether a table is meant; then there must be a target, and else there must be none."""
    from kermix.data.loading import is_table

    table = is_table(data, arrays=True)
    if table and target is None:
        raise OptionError(f"{data} is a table: name the column to predict with --target COLUMN.")
    if not table and (target is not None or reading.said()):
        raise OptionError(f"{data}: --target and the reading options are for tables, not images.")
    return table


def _check_of_table(data: str, asked: dict[str, Any]) -> None:
    unused = [name for name in asked if name not in OF_TABLES.names]
    if unused:
        name = unused[0]
        by_set = name in SETTINGS.rare(OF_IMAGES)
        option = name if by_set else f"--{name.replace('_', '-')}"
        raise OptionError(f"{data} is a table; {option} is only for images.")


@reads_tables
def predict(
    run: Annotated[
        Path,
        typer.Argument(help="Run folder of kermix classify, or of the table model."),
    ],
    data: Annotated[
        Path,
        typer.Argument(
            help="An image, a folder of images, an IDX file, or a .npy of images; for the table "
            "model, a table, as for fit."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "-o", "--out", help="File for the predictions (.csv). By default they are printed."
        ),
    ] = None,
    chances: Annotated[
        bool, typer.Option("--all", help="Write the probability of every class.")
    ] = False,
    target: Annotated[
        str | None,
        typer.Option(help="Table model: column to predict. By default the target of the fit."),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option(
            "--id", metavar="COLUMN", help="Table model: column that identifies the rows."
        ),
    ] = None,
    reading: Reading = AS_FOUND,
    device: Annotated[
        str | None,
        typer.Option(
            help="auto, cpu, cuda, mps. By default cpu; for the table model, the device of the "
            "fit."
        ),
    ] = None,
) -> None:
    """Predict classes of images, or a column of a table.

    For images, writes a table of file (or row), class and probability. For the table model, the
    most likely value of a category with all probabilities, or the median, mean and quantiles of a
    number.
    """
    check_run(run)
    check_there(data)
    from kermix.runs.folder import CLASSIFY, TABLE, TARGET, check_kind, kind_of_run

    if kind_of_run(run) in (TABLE, TARGET):
        asked = table_run(run) if device is None else table_run(run).on_device(device)
        predict_table(asked, data, out, target, reading, every=chances, id_column=id_column)
        return
    if target is not None or id_column is not None or reading.said():
        raise OptionError(
            f"{run}: --target, --id and the reading options are for the table model."
        )
    if out is not None:
        check_output(out, ".csv")
    from kermix.fitting import open_run
    from kermix.images.classifier_run import predictions

    check_kind(run, CLASSIFY)
    found = predictions(open_run(run), data, device or "cpu", every=chances)
    rows = [list(found.names), *found.rows]
    if out is None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        print_lines(text.getvalue()[:-1].split("\n"))
    else:
        with whole_file(out) as part, part.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    summary = Console(stderr=True)
    print_notes(found.notes, summary)
    where = "" if out is None else f" in {out}"
    images_found = counted(len(rows) - 1, "image")
    summary.print(f"{images_found}{where}", highlight=False, soft_wrap=True)
