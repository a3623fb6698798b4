"""The page of a series of sketches."""

from kermix.comparison.drift import Drift
from kermix.reports import figures as plots
from kermix.reports.page import Report

__all__ = ["DRIFT_COLUMNS", "drift_report"]

DRIFT_COLUMNS = ("sketch", "rows", "SVD cost to first", "Bures", "MMD", "p",
           "Bures to previous", "p")  # fmt: skip


def drift_report(title: str, found: Drift) -> Report:
    """The page: distances to the first sketch and to the one before, drawn and in a table."""
    page = Report(title, f"{len(found.names)} sketches of {sum(found.rows):,} rows in all.")
    page.figure(
        plots.drift(
            found.names,
            {"to the first": [s.mmd for s in found.to_first],
             "to the one before": [s.mmd for s in found.to_previous]},
            if_same=[s.if_same for s in found.to_first],
        ),
        "Distance between kernel means (MMD). Dotted: the expected value for two samples of the "
        "same source.",
    )  # fmt: skip
    page.table(DRIFT_COLUMNS, found.table())
    for note in found.notes:
        page.text(note)
    return page
