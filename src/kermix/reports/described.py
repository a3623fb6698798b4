"""What reports say of the run that they belong to."""

from pathlib import Path
from typing import Any, Protocol

from kermix.data.tables.schema import Schema
from kermix.reports.page import Report

__all__ = ["DescribedRun", "add_machine", "add_schema", "add_settings"]


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


def add_settings(page: Report, run: DescribedRun) -> None:
    """What a run was told, and where it was made."""
    page.heading("Settings")
    page.table(("setting", "value"), list(run.settings.as_json().items()))
    add_machine(page, run)


def add_schema(page: Report, schema: Schema) -> None:
    """What the columns of a table are."""
    page.heading("Schema")
    page.table(("column", "kind", "type", "gaps", "codes", "what it holds"), schema.table(),
               text=True)  # fmt: skip
