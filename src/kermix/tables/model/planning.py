"""How many steps a training has time for, and of which network: a few of them are measured."""

import time
from dataclasses import replace
from typing import Any, NamedTuple

from kermix.tables.model.layout import TableLayout
from kermix.tables.model.table_settings import TableModelSettings
from kermix.tables.model.table_training import TableModelTask
from kermix.tables.model.training_rows import StoredRows, TableRows
from kermix.training.budget import Course, seconds_of
from kermix.training.loop import Trainer

__all__ = ["SIZES", "Plan", "planned"]

SIZES = {"width", "blocks"}  # of a network: what a time has room for, where they are not given

# Reasoned, no record.
MEASURED = 0.02  # share of the time that a measurement may take, for each network
FEWEST_STEPS = 600  # with fewer, a small network learns more
MANY_STEPS = 6000  # with so many, a large one does
VERY_MANY = 10**6
REPORTING = 0.1  # share of a training that reports take, see `TableModelSettings.looks`


class Plan(NamedTuple):
    """What a training has time for.

    Attributes:
        settings: With the network that suits, and its number of steps.
        seconds: For training and what follows it.
        pace: Seconds a step.
    """

    settings: TableModelSettings
    seconds: float
    pace: float

    def course(self, ending: float = 0.0) -> Course:
        """The course of a training that leaves time for its ending."""
        return Course(self.settings.steps, **self.as_json(ending))

    def as_json(self, ending: float = 0.0) -> dict[str, Any]:
        """What a run keeps of it."""
        return {"seconds": self.seconds, "ending": ending, "pace": self.pace,
                "most": self.settings.best().steps}  # fmt: skip


def planned(
    layout: TableLayout,
    rows: TableRows | StoredRows,
    settings: TableModelSettings,
    *,
    began: float,
    device: str,
    chosen: bool = False,
    ending: float = 0.0,
) -> Plan | None:
    """The plan of a training whose budget is a time; None of others.

    Args:
        layout: The columns.
        rows: The rows.
        settings: What was asked for; its number of steps does not count.
        began: When the time began, as `time.monotonic` has it.
        device: Where it is trained.
        chosen: Whether the size of the network was asked for.
        ending: Seconds that follow the training.
    """
    whole = seconds_of(settings.budget)
    if whole is None:
        return None

    def plan(own: TableModelSettings) -> Plan:
        pace = _pace(layout, rows, own, device, MEASURED * whole)
        left = whole - (time.monotonic() - began)
        steps = max(1, min(int((left - ending) / pace), own.best().steps))
        return Plan(replace(own, steps=steps), left, pace)

    found = plan(settings)
    if chosen:
        return found
    if found.settings.steps < FEWEST_STEPS:
        return plan(settings.quick())
    if found.settings.steps == settings.best().steps and not settings.learns_target_alone:
        larger = plan(settings.best())
        return larger if larger.settings.steps >= MANY_STEPS else found
    return found


def _pace(
    layout: TableLayout,
    rows: TableRows | StoredRows,
    settings: TableModelSettings,
    device: str,
    seconds: float,
) -> float:
    """Seconds a step, reports among them: of some steps of a training that is thrown away."""
    settings = replace(settings, steps=VERY_MANY)
    trainer = Trainer(TableModelTask(layout, rows, settings, looks=1), device)
    trainer.run(should_stop=lambda: True)  # the first step takes longer
    began, first = time.monotonic(), trainer.step
    trainer.run(should_stop=lambda: time.monotonic() - began > seconds)
    return (time.monotonic() - began) / (trainer.step - first) * (1 + REPORTING)
