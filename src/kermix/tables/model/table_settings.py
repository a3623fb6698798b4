"""Settings of the table model."""

from dataclasses import dataclass, replace
from typing import Annotated, ClassVar

from kermix.errors import OptionError
from kermix.settings import (
    AVERAGE,
    BATCH_SIZE,
    BUDGET,
    LEARNING_RATE,
    SEED,
    STEPS,
    WEIGHT_DECAY,
    Family,
    Setting,
    Settings,
)
from kermix.training.budget import BEST, DEFAULT, QUICK, budget_told

__all__ = ["FEWEST_HELD_OUT", "FEWEST_MEMBERS", "TableModelSettings"]

# Reasoned, no record.
FEWEST_HELD_OUT, ENOUGH_HELD_OUT, MOST_HELD_OUT = 8, 300, 4096
REPORTS = 40  # of a training
FEWEST_MEMBERS = 3  # of which some can leave out a row, and others learn it


@dataclass(frozen=True)
class TableModelSettings(Settings):
    """Settings of a table model."""

    families: ClassVar[tuple[Family, ...]] = (Family("tables", "Table model"),)

    width: Annotated[int, Setting("Number of features per row.", least=1)] = 256
    blocks: Annotated[int, Setting("Number of residual blocks.", least=1)] = 3
    components: Annotated[
        int, Setting("Number of Gaussians in the mixture of a number.", least=1)
    ] = 12
    dropout: Annotated[float, Setting("Dropout rate of a block.", least=0, below=1)] = 0.1
    budget: Annotated[str | None, BUDGET] = None
    steps: Annotated[int, STEPS] = 2000
    batch_size: Annotated[int, BATCH_SIZE] = 2048
    learning_rate: Annotated[float, LEARNING_RATE] = 2e-3
    decay: Annotated[float, WEIGHT_DECAY] = 1e-2
    average: Annotated[int, AVERAGE] = 200
    validation_fraction: Annotated[
        float,
        Setting(
            "Share of held-out rows, which decide which step is kept; up to three times larger "
            "for small tables; 0 keeps the last step.",
            least=0,
            below=1,
            of_training=True,
        ),
    ] = 0.05
    patience: Annotated[
        int,
        Setting(
            "Number of reports without improvement before training stops.",
            least=1,
            of_training=True,
        ),
    ] = 10
    order_share: Annotated[
        float,
        Setting(
            "Share of the rows of a step that predict the next cell, in the order in which rows "
            "are drawn, rather than any unobserved cells.",
            least=0,
            most=1,
            rare=True,
        ),
    ] = 0.3
    target: Annotated[int | None, Setting("Index of the target column.", least=0, rare=True)] = (
        None
    )
    target_share: Annotated[
        float,
        Setting(
            "Share of the rows of a step in which all columns but the target are observed; if "
            "there are such rows, only the target's density decides which step is kept.",
            least=0,
            most=1,
            rare=True,
        ),
    ] = 0.0
    members: Annotated[
        int,
        Setting("Number of ensemble members whose mixtures are averaged.", least=1, rare=True),
    ] = 1
    calibrate: Annotated[
        bool | None,
        Setting(
            "Whether to calibrate the width of the mixtures on held-out rows after training: for "
            "many columns, the noise of the factors is as large as their gain.",
            unset="only if the target's density alone decides",
            rare=True,
        ),
    ] = None
    out_of_fold: Annotated[
        bool,
        Setting(
            "Whether, to calibrate three or more members by a table so small that few rows could "
            "be held out, half of the rows are left out by two members each instead, see "
            "`kermix.tables.model.calibration`.",
            rare=True,
        ),
    ] = False
    seed: Annotated[int, SEED] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        budget_told(self.budget)
        if self.steps == 0:
            raise OptionError("steps=0: there is nothing to train.")
        if self.target_share > 0 and self.target is None:
            raise OptionError(f"target_share={self.target_share} needs a target.")

    @property
    def calibrates(self) -> bool:
        """Whether widths and probabilities are calibrated after the training."""
        return self.target_share > 0 if self.calibrate is None else self.calibrate

    def held_out_rows(self, rows: int) -> int:
        """How many rows of so many are held out: few decide badly, so of small tables more."""
        share = self.validation_fraction
        wanted = max(share * rows, min(3 * share * rows, ENOUGH_HELD_OUT, rows / 2))
        held = min(MOST_HELD_OUT, round(wanted), rows - 1)
        return held if held >= FEWEST_HELD_OUT else 0

    def looks(self, rows: int, most: int = 4096, share: float = 0.1) -> int:
        """How many questions a report asks held-out rows.

        Where time is short, they take a small share of it: a look costs a third of a step's row.
        """
        if self.budget in (None, DEFAULT, BEST):
            return most
        asked = 3 * share * min(self.batch_size, rows) * max(1, self.steps // REPORTS)
        return max(1, min(most, int(asked)))

    def is_out_of_fold(self, rows: int) -> bool:
        """Whether different members leave out different rows of a table of so many."""
        few = FEWEST_HELD_OUT <= self.held_out_rows(rows) < ENOUGH_HELD_OUT
        enough = self.members >= FEWEST_MEMBERS
        return self.out_of_fold and self.calibrates and few and enough

    def for_rows(self, rows: int) -> "TableModelSettings":
        """For tables of few rows, a batch is an eighth of them, and no less than 32."""
        return replace(self, batch_size=min(self.batch_size, max(32, rows // 8)))

    def suited(self, gpu: bool) -> "TableModelSettings":
        """What the budget says, or else what suits the device: a GPU has time for more."""
        if self.budget == QUICK:
            return self.quick()
        if self.learns_target_alone:
            return self
        wanted = self.budget == BEST or (gpu and self.budget in (None, DEFAULT))
        return self.best() if wanted else self

    def best(self) -> "TableModelSettings":
        """What a GPU has time for, as results/bench/generated-tables-h200.json has it."""
        return replace(self, width=512, blocks=4, steps=12_000, learning_rate=3e-4, average=500,
                       patience=6, order_share=0.5)  # fmt: skip

    @property
    def learns_target_alone(self) -> bool:
        """Whether all columns but the target are seen in every step: nothing else is learned."""
        return self.target_share == 1

    @classmethod
    def for_target(cls, target: int) -> "TableModelSettings":
        """Settings of a model of one column given all others, as benchmarks/conditional.py has."""
        return cls(target=target, target_share=1.0, width=128, steps=1000, out_of_fold=True)

    def quick(self) -> "TableModelSettings":
        """Settings for a first look: a small network, and many steps of few rows.

        As many rows in batches of 2048 take the same time and teach less.
        """
        if self.learns_target_alone:
            return replace(self, width=64, blocks=2, steps=200)
        return replace(self, width=128, blocks=2, steps=1200, batch_size=min(512, self.batch_size))

    def check_shares(self, rows: int, ranks: int) -> None:
        """Refuse batches that leave a process without a row."""
        if min(self.batch_size, rows) < ranks:
            raise OptionError(
                f"batch_size={self.batch_size} of {rows} rows is shared among {ranks} processes, "
                "leaving one with nothing; use fewer."
            )
