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

__all__ = ["SIZES", "TrainingPlan", "planned"]

SIZES = {"width", "blocks"}  # of a network: what a time has room for, where they are not given

# Reasoned, no record.
MEASURED = 0.02  # share of the time that a measurement may take, for each network
FEWEST_STEPS = 600  # with fewer, a small network learns more
MANY_STEPS = 6000  # with so many, a large one does
VERY_MANY = 10**6
LEAST = 0.3  # share of the time that is trained, even if the report then comes late
JUDGING = 1.6  # all that follows a training, in units of the time for drawing
REPORTING = 0.1  # share of a training that reports take, see `TableModelSettings.looks`


class TrainingPlan(NamedTuple):
    """What a training has time for.

    Attributes:
        settings: With the network that suits, and its number of steps.
        seconds: For training and what follows it.
        pace: Seconds a step.
        ending: Seconds that follow the training.
        least: Seconds that are trained in any case.
    """

    settings: TableModelSettings
    seconds: float
    pace: float
    ending: float
    least: float

    @property
    def too_short(self) -> bool:
        """Whether reading and the ending leave less than the least."""
        return self.seconds - self.ending < self.least

    def course(self) -> Course:
        """The course of a training that leaves time for its ending."""
        return Course(self.settings.steps, **self.as_json())

    def as_json(self) -> dict[str, Any]:
        """What a run keeps of it."""
        return {"seconds": self.seconds, "ending": self.ending, "pace": self.pace,
                "least": self.least, "most": self.settings.best().steps}  # fmt: skip


def planned(
    layout: TableLayout,
    rows: TableRows | StoredRows,
    settings: TableModelSettings,
    *,
    began: float,
    device: str,
    chosen: bool = False,
    drawn: int = 0,
) -> TrainingPlan | None:
    """The plan of a training whose budget is a time; None of others.

    Args:
        layout: The columns.
        rows: The rows.
        settings: What was asked for; its number of steps does not count.
        began: When the time began, as `time.monotonic` has it.
        device: Where it is trained.
        chosen: Whether the size of the network was asked for.
        drawn: How many cells are drawn and scored after the training.
    """
    whole = seconds_of(settings.budget)
    if whole is None:
        return None

    def plan(own: TableModelSettings) -> TrainingPlan:
        pace = _pace(layout, rows, own, device, MEASURED * whole)
        left = whole - (time.monotonic() - began)
        # A row goes through the network for each cell, at a third of its cost in a step.
        ending = JUDGING * drawn * pace / (3 * min(own.batch_size, rows.rows))
        least = LEAST * whole
        steps = max(1, min(int(max(left - ending, least) / pace), own.best().steps))
        return TrainingPlan(replace(own, steps=steps), left, pace, ending, least)

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
