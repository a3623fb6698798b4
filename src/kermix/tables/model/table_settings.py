"""Settings of the table model, and which rows it holds out."""

import math
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from torch import Tensor

from kermix.checks import check_count, check_settings
from kermix.errors import OptionError
from kermix.tables.model.calibration import FEWEST_MEMBERS
from kermix.tables.model.training_rows import OtherRows, split_rows

__all__ = ["FEWEST_HELD_OUT", "TableModelSettings", "check_table_shares", "table_split"]

# Reasoned, no record.
FEWEST_HELD_OUT, ENOUGH_HELD_OUT, MOST_HELD_OUT = 8, 300, 4096


@dataclass(frozen=True)
class TableModelSettings:
    """Settings of a table model.

    Attributes:
        width: Number of features per row.
        blocks: Number of residual blocks.
        components: Number of Gaussians in the mixture of a number.
        dropout: Dropout rate of a block.
        steps: Number of training steps.
        batch_size: Batch size.
        learning_rate: Peak learning rate.
        decay: Weight decay.
        average: Number of steps covered by the running average of the weights.
        held_out: Share of held-out rows, which decide which step is kept; up to three times larger
            for small tables; 0 keeps the last.
        patience: Early stopping: number of reports without improvement.
        order_share: Share of the rows of a step that predict the next cell, in the order in which
            rows are drawn, rather than any unobserved cells.
        target: Index of the target column.
        target_share: Share of the rows of a step in which all columns but the target are observed;
            if there are such rows, only the target's density decides which step is kept.
        members: Number of ensemble members whose mixtures are averaged.
        calibrate: Whether to calibrate the width of the mixtures on held-out rows after training;
            None means only if the target's density alone decides. For many columns, the noise of
            the factors is as large as their gain.
        crossed: Whether, to calibrate three or more members by a table so small that few rows
            could be held out, half of the rows are left out by two members each instead, see
            `kermix.tables.model.calibration`.
        seed: All randomness comes from it.
    """

    width: int = 256
    blocks: int = 3
    components: int = 12
    dropout: float = 0.1
    steps: int = 2000
    batch_size: int = 2048
    learning_rate: float = 2e-3
    decay: float = 1e-2
    average: int = 200
    held_out: float = 0.05
    patience: int = 10
    order_share: float = 0.3
    target: int | None = None
    target_share: float = 0.0
    members: int = 1
    calibrate: bool | None = None
    crossed: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(self)
        for name in ("width", "blocks", "components", "steps", "batch_size", "patience",
                     "members"):  # fmt: skip
            check_count(name, getattr(self, name), 1)
        check_count("average", self.average, 0)
        if not 0 <= self.dropout < 1 or not 0 <= self.held_out < 1:
            raise OptionError(
                f"dropout={self.dropout} and held_out={self.held_out} must be between 0 and 1 "
                "(exclusive)."
            )
        if not 0 <= self.order_share <= 1:
            raise OptionError(f"order_share={self.order_share} must be a share.")
        if not 0 <= self.target_share <= 1 or (self.target_share > 0 and self.target is None):
            raise OptionError(
                f"target_share={self.target_share} must be between 0 and 1, and above 0 only "
                f"with a target, which is {self.target}."
            )
        if not 0 < self.learning_rate < math.inf or not 0 <= self.decay < math.inf:
            raise OptionError(
                f"learning_rate={self.learning_rate} must be above 0, and decay={self.decay} not "
                "negative; both must be finite."
            )

    @property
    def calibrates(self) -> bool:
        """Whether widths and probabilities are calibrated after the training."""
        return self.target_share > 0 if self.calibrate is None else self.calibrate

    def crosses(self, rows: int) -> bool:
        """Whether different members leave out different rows of a table of so many."""
        few = FEWEST_HELD_OUT <= _held_out_rows(self.held_out, rows) < ENOUGH_HELD_OUT
        enough = self.members >= FEWEST_MEMBERS
        return self.crossed and self.calibrates and few and enough

    def for_rows(self, rows: int) -> "TableModelSettings":
        """For tables of few rows, a batch is an eighth of them, and no less than 32."""
        return replace(self, batch_size=min(self.batch_size, max(32, rows // 8)))

    @property
    def learns_target_alone(self) -> bool:
        """Whether all columns but the target are seen in every step: nothing else is learned."""
        return self.target_share == 1

    @classmethod
    def for_target(cls, target: int) -> "TableModelSettings":
        """Settings of a model of one column given all others, as benchmarks/conditional.py has."""
        return cls(target=target, target_share=1.0, width=128, steps=1000, crossed=True)

    def quick(self) -> "TableModelSettings":
        """Settings for a first look: a small network, few steps."""
        if self.learns_target_alone:
            return replace(self, width=64, blocks=2, steps=200)
        return replace(self, width=128, blocks=2, steps=300)

    def as_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "TableModelSettings":
        """The inverse of `as_json`; unknown names are an error."""
        unknown = sorted(set(content) - {field.name for field in fields(cls)})
        if unknown:
            raise OptionError(f"Unknown settings: {', '.join(unknown)}.")
        return cls(**content)


def check_table_shares(settings: TableModelSettings, rows: int, ranks: int) -> None:
    """Refuse batches that leave a process without a row."""
    if min(settings.batch_size, rows) < ranks:
        raise OptionError(
            f"batch_size={settings.batch_size} of {rows} rows is shared among {ranks} processes, "
            "leaving one with nothing; use fewer."
        )


def table_split(rows: int, settings: TableModelSettings) -> tuple[Tensor, Tensor | OtherRows]:
    """Numbers of the rows that are held out, and of those to train with.

    None is held out by all members where each row is learned by some.
    """
    held = 0 if settings.crosses(rows) else _held_out_rows(settings.held_out, rows)
    return split_rows(rows, held, settings.seed)


def _held_out_rows(share: float, rows: int) -> int:
    """Few rows decide badly, so of small tables more are held out."""
    wanted = max(share * rows, min(3 * share * rows, ENOUGH_HELD_OUT, rows / 2))
    held = min(MOST_HELD_OUT, round(wanted), rows - 1)
    return held if held >= FEWEST_HELD_OUT else 0
