"""`kermix evaluate REAL FAKE`: are samples of a generator, or of which, as good as real data?"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kermix.cli.options import (
    AS_FOUND,
    AnswerOptions,
    SignificanceOptions,
    Strict,
    check_there,
    reads_tables,
    takes,
)
from kermix.cli.output import DIFFERENT, parse_variances, print_sentence, print_table, stages
from kermix.data.readers.common import READABLE_SHOWN, Reading
from kermix.errors import OptionError

if TYPE_CHECKING:
    from kermix.pages.page import Page
    from kermix.tables.evaluate.evaluation_result import Evaluation

__all__ = ["command"]

KERNELS = ("gaussian", "cosine", "polynomial")
EMBEDDINGS = ".npy, .npz, .safetensors"


@dataclass(frozen=True)
class ScoreOptions:
    """What samples are judged by."""

    held_out: Annotated[
        str | None,
        typer.Option(
            "--held-out", help="Real rows that the generator has not seen, to find near copies."
        ),
    ] = None
    variance: Annotated[
        str,
        typer.Option(
            "--variance", "-v", help="Variance of the Gaussian kernel: auto or a number."
        ),
    ] = "auto"
    kernel: Annotated[str, typer.Option("--kernel", help=f"{', '.join(KERNELS)} (cubic).")] = (
        "gaussian"
    )
    images: Annotated[
        tuple[str, str] | None,
        typer.Option(
            "--images",
            help="Folders of the real and the fake images that were embedded.",
        ),
    ] = None
    eta: Annotated[
        float, typer.Option(help="How many times more frequent a mode must be to count as novel.")
    ] = 1.0
    neighbors: Annotated[
        int,
        typer.Option(
            help="Number of nearest neighbours for precision, recall, density and coverage."
        ),
    ] = 5
    rank: Annotated[int, typer.Option(help="Maximum number of kernel features.")] = 512
    strict: Strict = False

    def of_evaluation(self) -> dict[str, Any]:
        """What `km.evaluate` is given of them."""
        own = {name: getattr(self, name) for name in (
            "held_out", "images", "eta", "neighbors", "rank", "strict")}  # fmt: skip
        return {**own, **_kernel(self.kernel, self.variance)}


@reads_tables
@takes(scores=ScoreOptions, test=SignificanceOptions, answer=AnswerOptions)
def command(
    context: typer.Context,
    real: Annotated[
        str,
        typer.Argument(
            help=f"Training data of the generator: a table ({READABLE_SHOWN}), embeddings "
            f"({EMBEDDINGS}), a folder of images, or a .sketch."
        ),
    ],
    fakes: Annotated[
        list[str],
        typer.Argument(
            metavar="FAKE...",
            help="Samples of the generator, in the same format; several generators are ranked.",
        ),
    ],
    *,
    scores: ScoreOptions,
    test: SignificanceOptions,
    answer: AnswerOptions,
    reading: Reading = AS_FOUND,
) -> None:
    """Are samples as good as real data? What do they miss or copy?

    Prints one answer and, below it, every score with an error bar, its expected value if both sets
    had the same distribution, and the number of rows it needs.
    """
    check_there(real, *fakes, scores.held_out)
    from kermix.tables.evaluate.evaluate import evaluate

    options: dict[str, Any] = {
        "level": test.level, "permutations": test.permutations, "seed": test.seed,
        **scores.of_evaluation(), **reading.said(),
    }  # fmt: skip
    if len(fakes) > 1:
        if scores.images is not None:
            raise OptionError("--images goes with the samples of one generator.")
        _rank(context, real, fakes, options, test, answer)
        return
    with stages(answer.as_json) as progress:
        found = evaluate(real, fakes[0], progress=progress, **options)
    answer.give(context, lambda: _page(found), found.to_dict, lambda: _print(found))
    if test.fail_if_different and found.good is None:
        raise OptionError(f"--fail-if-different needs a verdict. {found.answer}")
    if test.fail_if_different and not found.good:
        raise typer.Exit(DIFFERENT)


def _page(found: "Evaluation") -> "Page":
    from kermix.tables.evaluate.evaluation_page import evaluation_report

    return evaluation_report(found)


def _rank(
    context: typer.Context,
    real: str,
    fakes: list[str],
    options: dict[str, Any],
    test: SignificanceOptions,
    answer: AnswerOptions,
) -> None:
    """Judge several generators, and say which is best."""
    from kermix.tables.evaluate.evaluation_page import ranking_report
    from kermix.tables.evaluate.ranking import RANKING_HEADS, rank_generators

    with stages(answer.as_json) as progress:
        found = rank_generators(real, fakes, progress=progress, **options)

    def show() -> None:
        print_sentence(found.answer)
        print_sentence()
        print_table("", RANKING_HEADS, found.table())
        for name, each in found.evaluations.items():
            print_sentence(f"{name}: {each.answer}")

    answer.give(context, lambda: ranking_report(found), found.to_dict, show)
    if test.fail_if_different and not any(found.evaluations[n].good for n in found.best):
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
