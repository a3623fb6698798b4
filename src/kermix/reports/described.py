"""What reports say of the run that they belong to."""

from pathlib import Path
from typing import Any, Protocol

from kermix.reports.page import Report

__all__ = ["DescribedRun", "add_machine"]


class DescribedRun(Protocol):
    """A run, as far as a report looks at it."""

    @property
    def folder(self) -> Path:
        """Where it is."""

    @property
    def config(self) -> dict[str, Any]:
        """The content of its `config.json`."""

    @property
    def settings(self) -> Any:
        """What the user chose."""

    def command(self) -> str:
        """The command that repeats it."""


def add_machine(page: Report, run: DescribedRun) -> None:
    """Where a run was made, and with which versions."""
    found = run.config["environment"]
    page.heading("Machine")
    page.table(
        ("", ""),
        [
            ("machine", found["machine"]["gpu"] or found["machine"]["cpu"]),
            ("commit", found["commit"]),
            *found["versions"].items(),
        ],
    )
