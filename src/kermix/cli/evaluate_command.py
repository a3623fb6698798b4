"""`kermix evaluate REAL FAKE`: are samples of a generator as good as real data?"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from kermix.cli.options import AS_FOUND, STRICT, TABLES, check_there, reads_tables
from kermix.cli.output import (
    DIFFERENT,
    check_output,
    parse_variances,
    print_json,
    print_sentence,
    print_table,
    saved_page,
)
from kermix.data.readers.common import Reading
from kermix.errors import OptionError

if TYPE_CHECKING:
    from kermix.tables.evaluate.evaluation_result import Evaluation

__all__ = ["command"]

KERNELS = ("gaussian", "cosine", "polynomial")
EMBEDDINGS = ".npy, .npz, .safetensors"


@reads_tables
def command(
    context: typer.Context,
    real: Annotated[
        str,
        typer.Argument(
            help=f"Training data of the generator: a table ({TABLES}), embeddings "
            f"({EMBEDDINGS}), a folder of images, or a .sketch."
        ),
    ],
    fake: Annotated[str, typer.Argument(help="Samples of the generator, in the same format.")],
    held_out: Annotated[
        str | None,
        typer.Option(
            "--held-out", help="Real rows that the generator has not seen, to find near copies."
        ),
    ] = None,
    variance: Annotated[
        str,
        typer.Option(
            "--variance", "-v", help="Variance of the Gaussian kernel: auto or a number."
        ),
    ] = "auto",
    kernel: Annotated[
        str, typer.Option("--kernel", help=f"{', '.join(KERNELS)} (cubic).")
    ] = "gaussian",
    images: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--images",
            help="Folders of the real and the fake images that were embedded.",
        ),
    ] = None,
    reading: Reading = AS_FOUND,
    eta: Annotated[
        float, typer.Option(help="How many times more frequent a mode must be to count as novel.")
    ] = 1.0,
    neighbors: Annotated[
        int,
        typer.Option(
            help="Number of nearest neighbours for precision, recall, density and coverage."
        ),
    ] = 5,
    rank: Annotated[int, typer.Option(help="Maximum number of kernel features.")] = 512,
    level: Annotated[
        float, typer.Option(help="Maximum probability of rejecting good samples.")
    ] = 0.05,
    permutations: Annotated[
        int | None,
        typer.Option(help="Number of permutations for the p-value. [500, more for small levels]"),
    ] = None,
    fail_if_different: Annotated[
        bool,
        typer.Option(
            "--fail-if-different",
            help=f"Exit with status {DIFFERENT} if there is evidence against the samples.",
        ),
    ] = False,
    strict: Annotated[bool, STRICT] = False,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    report_path: Annotated[
        Path | None, typer.Option("--report", "-o", help="Write a report page to this file.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Are samples of a generator as good as real data? What do they miss, invent and copy?

    Prints one answer and, below it, every score with an error bar, its expected value if both sets
    had the same distribution, and the number of rows it needs.
    """
    if report_path is not None:
        check_output(report_path, ".html", ".htm")
    check_there(real, fake, held_out)
    from kermix.tables.evaluate.evaluate import evaluate
    from kermix.tables.evaluate.evaluation_page import evaluation_report

    options = _kernel(kernel, variance)
    console = Console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=as_json or not console.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task("reading", total=1.0)
        found = evaluate(
            real,
            fake,
            held_out=held_out,
            images=images,
            reading=reading,
            eta=eta,
            neighbors=neighbors,
            rank=rank,
            level=level,
            permutations=permutations,
            seed=seed,
            strict=strict,
            progress=lambda name, share: bar.update(task, description=name, completed=share),
            **options,
        )
    with saved_page(context, lambda: evaluation_report(found), report_path, quiet=as_json):
        if as_json:
            print_json(found.to_dict())
        else:
            _print(found)
    if fail_if_different and found.good is None:
        raise OptionError(f"--fail-if-different needs a verdict. {found.answer}")
    if fail_if_different and not found.good:
        raise typer.Exit(DIFFERENT)


def _kernel(name: str, variance: str) -> dict[str, Any]:
    if name not in KERNELS:
        raise OptionError(f"--kernel {name}: choose one of {', '.join(KERNELS)}.")
    if name == "gaussian":
        return {"v": parse_variances(variance)}
    if variance != "auto":
        raise OptionError(f"--variance {variance}: for the Gaussian kernel, not {name}.")
    from kermix.kernels.others import CosineKernel, PolynomialKernel

    return {"kernel": CosineKernel() if name == "cosine" else PolynomialKernel(3)}


def _print(found: "Evaluation") -> None:
    from kermix.tables.evaluate.evaluation_result import SCORE_HEADS

    print_sentence(found.answer)
    print_sentence()
    print_table("", SCORE_HEADS, found.table(), [f"Kernel: {found.kernel}.", *found.notes])
    print_sentence("", "How to read each score: --report, --json")
