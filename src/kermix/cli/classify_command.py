"""`kermix classify` and `kermix predict`."""

import csv
import io
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from kermix.cli.options import (
    AS_FOUND,
    TABLES,
    check_there,
    reads_tables,
    set_options,
    train_and_finish,
    typed_command,
    typed_options,
)
from kermix.cli.output import check_output, print_lines, print_notes
from kermix.cli.tables_command import predict_table, table_run
from kermix.data.readers.common import counted
from kermix.data.readers.sniff import Reading
from kermix.errors import OptionError
from kermix.files import whole_file
from kermix.runs.folder import check_run

__all__ = ["classify", "predict"]

OF_IMAGES = ("model", "patch", "epochs", "depth", "augment", "data_root", "size")


@reads_tables
def classify(
    context: typer.Context,
    data: Annotated[
        str,
        typer.Argument(
            help="digits (built in), mnist, cifar10, celeba:ATTRIBUTE, or a folder: "
            "train/CLASS/*.png and test/CLASS/*.png, or CLASS/*.png, of which a fifth is "
            f"then held out for testing; or, with --target, a table ({TABLES})."
        ),
    ] = "digits",
    target: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Tables: column to predict from all others; for a number, this is a regression.",
        ),
    ] = None,
    model: Annotated[
        str, typer.Option(help="gaussian-product, or cnn: a plain network for comparison.")
    ] = "gaussian-product",
    patch: Annotated[
        int, typer.Option(help="Side length of the patches in pixels, odd; 1 means single pixels.")
    ] = 3,
    epochs: Annotated[int | None, typer.Option(help="Number of epochs. By default 20.")] = None,
    width: Annotated[
        int | None,
        typer.Option(
            help="Features per position; by default 256, or 64 for few images. Tables: features "
            "per row; by default 128."
        ),
    ] = None,
    depth: Annotated[int | None, typer.Option(help="Number of Gaussian layers.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Batch size: images or rows in each step.")
    ] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Peak learning rate.")] = None,
    augment: Annotated[
        bool, typer.Option(help="Whether to shift training images (cifar10: also mirror them).")
    ] = True,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other setting (repeatable): whitening=null, anchors_at=[3], rotation=10, "
            "cutout=8; for tables steps=2000, dropout=0.2. The report lists all of them.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(help="Random seed; the same seed on the same machine gives the same result."),
    ] = 0,
    data_root: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the files of mnist or cifar10. By default they are downloaded."
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(help="Resize all images to this side length, in pixels.")
    ] = None,
    reading: Reading = AS_FOUND,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    precision: Annotated[
        str, typer.Option(help="auto (bf16-mixed on a GPU), 32-true, bf16-mixed.")
    ] = "auto",
    out: Annotated[
        Path | None,
        typer.Option(help="Run folder, which must not exist. By default runs/NAME."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look: a small network, few steps.")
    ] = False,
    resume: Annotated[
        Path | None, typer.Option(help="Continue this run; all other options are ignored.")
    ] = None,
) -> None:
    """Learn the classes of images, or a column of a table, and write a report.

    Images (by default scikit-learn's 8 x 8 digits, in under a minute) are classified by a network
    of Gaussian products: each pixel, or the patch around it, is processed on its own, and
    positions interact only in one final exponential. With --target, the table model predicts a
    column of a table from all others; a fifth of the rows is held out for testing. Stop with
    Ctrl-C at any time: nothing is lost, and the command to continue is printed.
    """
    check_there(data)
    from kermix.fitting.fit import begin_fit, reopen
    from kermix.images.classifier_run import begin_classify
    from kermix.runs.run import Start

    if resume is not None:
        begun = reopen(resume)
        train_and_finish(begun, begun.dataset())
        return
    if _is_table(data, target, reading):
        typed = typed_options(context)
        _check_of_tables(data, [name for name in OF_IMAGES if name in typed])
        own = {"width": width, "batch_size": batch_size, "learning_rate": learning_rate}
        settings: dict[str, Any] = {n: value for n, value in own.items() if value is not None}
        settings |= {"seed": seed, "target_share": 1.0, **set_options(setting or [])}
        fit, table = begin_fit(
            data, out=out, quick=quick, target=target, from_disk=False, model="table",
            device=device, precision="32-true" if precision == "auto" else precision,
            command=typed_command(context), **reading.said(), **settings,
        )  # fmt: skip
        print_notes(fit.notes(table))
        train_and_finish(fit, table)
        return
    chosen: dict[str, Any] = {
        "epochs": epochs, "width": width, "depth": depth, "batch_size": batch_size,
        "learning_rate": learning_rate,
    }  # fmt: skip
    given = {name: value for name, value in chosen.items() if value is not None}
    given |= {"model": model, "patch": patch, "seed": seed, **set_options(setting or [])}
    run, images = begin_classify(
        data, given, folder=out, augment=augment, quick=quick, data_root=data_root, size=size,
        start=Start(typed_command(context), device, precision),
    )  # fmt: skip
    print_notes(run.config["notes"])
    train_and_finish(run, images)


def _is_table(data: str, target: str | None, reading: Reading) -> bool:
    """Whether a table is meant; then there must be a target, and else there must be none."""
    from kermix.data.loading import is_table

    table = is_table(data, arrays=True)
    if table and target is None:
        raise OptionError(f"{data} is a table: name the column to predict with --target COLUMN.")
    if not table and (target is not None or reading.said()):
        raise OptionError(f"{data}: --target and the reading options are for tables, not images.")
    return table


def _check_of_tables(data: str, unused: list[str]) -> None:
    if unused:
        option = f"--{unused[0].replace('_', '-')}"
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
    """Predict the classes of images, or a column of a table, with probabilities.

    For images, writes a table of file (or row), class and probability. For the table model, the
    most likely value of a category with all probabilities, or the median, mean and quantiles of a
    number.
    """
    check_run(run)
    check_there(data)
    from kermix.images.classifier_run import ClassifyRun
    from kermix.images.predictions import predictions
    from kermix.runs.folder import TABLE, kind_of_run

    if kind_of_run(run) == TABLE:
        asked = table_run(run) if device is None else table_run(run).on_device(device)
        predict_table(asked, data, out, target, reading, every=chances, id_column=id_column)
        return
    if target is not None or id_column is not None or reading.said():
        raise OptionError(
            f"{run}: --target, --id and the reading options are for the table model."
        )
    if out is not None:
        check_output(out, ".csv")
    found = predictions(ClassifyRun.open(run), data, device or "cpu", every=chances)
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
