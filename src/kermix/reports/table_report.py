"""The page about a fit of the table model."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from kermix.data.tables.schema import EncodedTable, Schema
from kermix.reports.described import DescribedRun, add_schema, add_settings
from kermix.reports.page import Report
from kermix.reports.table_conditionals import Conditional, conditionals_figure
from kermix.reports.table_figures import columns_figure, curve_figure, pairs_figure
from kermix.reports.table_quality import Privacy, TableQuality

__all__ = ["write_table_report"]

DRAWN_PAIRS = 4
NETWORK = "table model"


def write_table_report(
    run: DescribedRun,
    rows: Sequence[tuple[str, str]],
    schema: Schema,
    data: EncodedTable,
    samples: EncodedTable,
    quality: TableQuality,
    history: list[dict[str, float]],
    model: str = NETWORK,
    conditionals: Sequence[Sequence[Conditional]] = (),
) -> None:
    """Write `report.html`: numbers, each column, pairs, privacy, how to repeat it.

    Args:
        run: The run.
        rows: Numbers to begin with, by name.
        schema: What the columns are.
        data: All rows.
        samples: Rows of the model.
        quality: How good they are.
        history: What was reported in training.
        model: What the model is called; another than the table model has no conditionals.
        conditionals: Columns given others, by the model and in the data.
    """
    name = Path(run.config["data"]).name
    what = "Gaussians, better on held-out rows than the table model, fitted by"
    if model == NETWORK:
        what = "One network for the distribution of each column given any others, trained by"
    page = Report(
        f"{model[0].upper()}{model[1:]} of {name}", f"{what} kermix {run.config['kermix']}."
    )
    page.table(("", ""), rows, text=True)
    for note in run.config.get("notes", []):
        page.text(note)
    page.heading("Is it better than a simple model?")
    best = max(value for _, value in quality.references)
    if quality.log_density <= best:
        page.text("No: a simpler model has a higher log-density. Train longer, or use more rows.")
    page.table(
        ("model", "log-density, nats a row", f"{model} is ahead by"),
        [(model, quality.log_density, ""),
         *((what, value, quality.log_density - value) for what, value in quality.references)],
    )  # fmt: skip
    page.text(
        "Log-densities are in the units of the columns: larger is better, and a difference of 1 "
        "means that rows are e times as likely. Categories, atoms and missing values contribute "
        "their log-probability."
    )
    page.heading("Columns")
    page.figure(
        columns_figure(schema, data, samples, quality.columns),
        "Each column, the most different first, with its difference (see below): data filled, "
        "samples as an outline; categories as two bars. Values beyond the ends are counted at "
        "the ends.",
    )
    if conditionals:
        page.heading("One column given another")
        page.figure(
            conditionals_figure(conditionals),
            "The most dependent pairs of columns: the distribution of one given a value of the "
            "other, in the data and according to the model, conditioned on that column only. "
            "Categories as two bars, numbers filled and as an outline.",
        )
    page.heading("What differs most")
    page.text(
        "Total variation between data and samples: 0 if they are equal, 1 if they have nothing "
        f"in common. Two halves of the data differ by about {quality.pair_floor:.3f} in a pair."
    )
    worst = sorted(quality.columns, key=lambda c: -c[1])[:10]
    page.table(("column", "difference"), worst)
    if quality.pairs:
        found = [(f"{p.first} and {p.second}", p.difference) for p in quality.pairs]
        page.table(("pair of columns", "difference"), found)
        page.figure(
            pairs_figure(schema, data, samples, quality.pairs[:DRAWN_PAIRS]),
            "The worst pairs: joint shares (square roots) of groups of both columns, data above "
            "and samples below.",
        )
    page.heading("Can a classifier tell them apart?")
    if quality.detection is None:
        page.text("There are too few rows to tell.")
    else:
        page.text(
            f"Gradient-boosted trees, three folds: score {quality.detection:.3f}. 1 means that "
            "they cannot tell samples from data, 0 that they always can. Given a sample and a row "
            f"of the data, they know which is which {1 - quality.detection / 2:.1%} of the time "
            "(the area under the ROC curve); 50 % is guessing."
        )
    page.heading("Privacy")
    _privacy(page, quality, quality.privacy)
    page.heading("Training")
    page.figure(
        curve_figure(history, quality.density_name.startswith("held-out")),
        "The table model: the loss on batches, each with different columns observed, and on "
        "held-out rows.",
    )
    page.heading("Repeat it")
    page.code(run.command())
    whole = model == NETWORK
    page.text(f"Draw rows{', also with some columns given; fill gaps' * whole}; score"
              f"{'; predict' * whole}:")  # fmt: skip
    folder, form = shlex.quote(str(run.folder)), run.config["form"]
    column = schema.modelled[0].name
    lines = [f"kermix sample {folder} -n 1000 -o more{form}",
             f"kermix score {folder} rows{form} --sort"]  # fmt: skip
    if whole:
        lines += [
            f"kermix sample {folder} -n 1000 -o some{form} --given "
            f"{shlex.quote(column + '=VALUE')}",
            f"kermix impute {folder} gaps{form} -o filled{form}",
            f"kermix predict {folder} rows{form} --target {shlex.quote(column)}",
        ]
    page.code("\n".join(lines))
    add_schema(page, schema)
    add_settings(page, run)
    page.save(run.folder / "report.html")


def _privacy(page: Report, quality: TableQuality, found: Privacy) -> None:
    rows = [("samples", f"{quality.copies:.2%}", *found.samples)]
    if found.held_out is not None:
        rows.append(("held-out rows", f"{quality.copies_held:.2%}", *found.held_out))
    page.table(
        (
            "",
            "exact copies of a training row",
            "distance to the closest one: median",
            "5 % quantile",
        ),
        rows,
    )
    if found.nearer_to_training is not None:
        page.text(
            f"A sample is closer to the training rows than a held-out row in "
            f"{found.nearer_to_training:.1%} of all comparisons; about 50 % if nothing is "
            "memorized. kermix evaluate --held-out looks for near copies."
        )
    page.text(
        "These numbers describe these samples. The model does not provide differential privacy, "
        "a guarantee for every row."
    )
