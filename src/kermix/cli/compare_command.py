"""`kermix compare A B`: are two data sets different, how much, and where?"""

from dataclasses import dataclass
from pathlib import Path
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
from kermix.data.readers.common import READABLE_SHOWN, Reading, counted
from kermix.errors import OptionError

if TYPE_CHECKING:
    from kermix.pages.page import Page
    from kermix.tables.compare.result import Comparison

__all__ = ["command"]


@dataclass(frozen=True)
class CostOptions:
    """Which costs are computed, and of what."""

    variance: Annotated[
        str,
        typer.Option(
            "--variance", "-v", help="Kernel variance: auto, one number, or several: 0.1,1,10."
        ),
    ] = "auto"
    standardize: Annotated[
        bool | None,
        typer.Option(
            help="Standardize columns. By default when standard deviations differ by more than "
            "10x."
        ),
    ] = None
    max_points: Annotated[
        int | None,
        typer.Option(
            help="Maximum number of rows; larger sets are subsampled. By default tests use all "
            "rows."
        ),
    ] = None
    jackknife_groups: Annotated[
        int,
        typer.Option(
            help="Number of groups of rows to leave out in turn for error bars; 0 for no error "
            "bars."
        ),
    ] = 20
    details: Annotated[
        bool,
        typer.Option(
            "--details",
            help="Also print every cost, at each variance, with error bars and p-values (of 200 "
            "permutations by default).",
        ),
    ] = False
    strict: Strict = False

    def of_comparison(self) -> dict[str, Any]:
        """What `km.compare` is given of them."""
        return {
            "v": parse_variances(self.variance),
            "standardize": "auto" if self.standardize is None else self.standardize,
            "max_points": self.max_points,
            "jackknife_groups": self.jackknife_groups,
            "strict": self.strict,
        }


@reads_tables
@takes(costs=CostOptions, test=SignificanceOptions, answer=AnswerOptions)
def command(
    context: typer.Context,
    first: Annotated[
        str,
        typer.Argument(
            help=f"A table ({READABLE_SHOWN}), a .sketch, or a folder of sketches: a series, in "
            "the order of their names."
        ),
    ],
    second: Annotated[str | None, typer.Argument(help="The other file.")] = None,
    *,
    costs: CostOptions,
    test: SignificanceOptions,
    answer: AnswerOptions,
    reading: Reading = AS_FOUND,
) -> None:
    """Do two data sets differ, by how much, and where?

    One sentence, and the columns responsible.

    With a folder of sketches, such as one per day: how far each is from the first and from the one
    before.
    """
    if second is None:
        if reading.said():
            raise OptionError(
                f"{', '.join(reading.said())}: these options are for tables; {first} is a folder "
                "of sketches, or a second file is missing."
            )
        _series(context, Path(first), answer)
        return
    check_there(first, second)
    from kermix.tables.compare.compare import compare

    with stages(answer.as_json) as progress:
        result = compare(
            first,
            second,
            level=test.level,
            permutations=test.permutations,
            seed=test.seed,
            progress=progress,
            **costs.of_comparison(),
            **reading.said(),
        )
        if result.has_verdict:
            result.verdict.headline()  # found now, while the bar is there
    if test.fail_if_different and not result.has_verdict:
        raise OptionError("--fail-if-different needs a verdict: remove --permutations 0.")
    whole = costs.details or not result.has_verdict or result.compared is None
    answer.give(
        context,
        lambda: _page(result, whole),
        lambda: result.to_dict(details=whole),
        lambda: _print(result, whole),
    )
    if test.fail_if_different:
        _fail_if_different(result)


def _page(result: "Comparison", whole: bool) -> "Page":
    from kermix.tables.compare.comparison_page import comparison_report

    return comparison_report(result, costs=whole)


def _fail_if_different(result: "Comparison") -> None:
    """End with a status of its own if the sets differ."""
    if result.verdict.too_few_permutations or result.verdict.different is None:
        raise OptionError(f"--fail-if-different needs a verdict. {result.verdict.headline()}")
    if result.verdict.different:
        raise typer.Exit(DIFFERENT)


def _print(result: "Comparison", whole: bool, most_columns: int = 10) -> None:
    from kermix.tables.compare.result import COLUMN_HEADS, HOW_TO_READ, MEASURE_HEADS

    title = f"{result.names[0]} and {result.names[1]}"
    if result.has_verdict:
        verdict = result.verdict
        print_sentence(verdict.headline(), f"{verdict.where()}{verdict.note}")
        if rows := result.column_rows(most_columns):
            more = len(result.verdict.columns) - most_columns
            notes = [f"... and {counted(more, 'more column')}: --json, --report"] * (more > 0)
            print_sentence()
            print_table("", COLUMN_HEADS, rows, notes)
            print_sentence()
        if not whole:
            print_sentence("", "\n".join([*result.reading_notes, "Every cost: --details"]))
    if not whole:
        return
    print_table(title, MEASURE_HEADS, result.rows(), result.notes)
    if result.compared is not None:
        print_sentence("", HOW_TO_READ)


def _series(context: typer.Context, folder: Path, answer: AnswerOptions) -> None:
    if not folder.is_dir():
        raise OptionError(f"{folder} is a single file: name two files, or a folder of sketches.")
    paths = sorted(folder.glob("*.sketch"))
    if len(paths) < 2:
        there = f"{len(paths)} sketch{'' if len(paths) == 1 else 'es'}"
        raise OptionError(
            f"{folder} holds {there}; a series needs at least two. Make them with: "
            "kermix sketch DATA -o FILE.sketch --landmarks-from FIRST.sketch"
        )
    from kermix.sketches.sketch import Sketch
    from kermix.tables.compare.sketch_comparison import drift
    from kermix.tables.drift.drift_page import DRIFT_COLUMNS, drift_report

    found = drift([Sketch.load(path) for path in paths], [path.stem for path in paths])
    title = f"Drift in {folder}"
    answer.give(
        context,
        lambda: drift_report(title, found),
        found.to_dict,
        lambda: print_table(title, DRIFT_COLUMNS, found.table(), found.notes),
    )
