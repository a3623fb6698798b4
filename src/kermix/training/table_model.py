"""Training of the table model: random columns are seen, the others are to be likely."""

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kermix.checks import check_count
from kermix.distributed import Ranks
from kermix.errors import OptionError
from kermix.models.table.drawing import rows_at_once
from kermix.models.table.layout import TableLayout
from kermix.models.table.network import TableNetwork
from kermix.training.averaging import RunningAverage
from kermix.training.schedules import learning_rate
from kermix.training.table_calibration import calibrate
from kermix.training.table_crossing import FEWEST_MEMBERS, Crossing
from kermix.training.table_questions import (
    Questions,
    ordered_questions,
    questions_of,
    random_questions,
)
from kermix.training.table_rows import (
    LARGEST_SHUFFLE,
    OtherRows,
    StoredRows,
    TableRows,
    split_rows,
)
from kermix.training.task import Forward, Row, Task

__all__ = ["TableModelSettings", "TableModelTask", "TableRows", "check_table_shares",
           "table_split"]  # fmt: skip

FEWEST_HELD_OUT, ENOUGH_HELD_OUT, MOST_HELD_OUT = 8, 300, 4096
LOOKS = 4096  # at held-out rows in a report, with different columns seen
REPORTS = 40  # in a training


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
            `kermix.training.table_crossing`.
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

    def as_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "TableModelSettings":
        """The inverse of `as_json`; unknown names are an error."""
        unknown = sorted(set(content) - {field.name for field in fields(cls)})
        if unknown:
            raise OptionError(f"Unknown settings: {', '.join(unknown)}.")
        # Runs before there was an order asked for any columns.
        return cls(**{"order_share": 0.0, **content})


class TableModelTask(Task):
    """A fit of a table network.

    Each row is asked for some of its cells, given others; see `table_questions`.

    Args:
        layout: Codes and numbers of the table.
        rows: The rows.
        settings: How to train.
        network: A trained network to go on with, instead of a new one; it is changed, unless no
            step is better for the rows held out.
    """

    model: TableNetwork
    keeps_best = False

    def __init__(
        self,
        layout: TableLayout,
        rows: TableRows | StoredRows,
        settings: TableModelSettings,
        network: TableNetwork | None = None,
    ) -> None:
        self.settings = settings
        self._rows: TableRows | StoredRows = rows
        self._goes_on = network is not None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.model = self.module = network or TableNetwork(
                layout, settings.width, settings.blocks, settings.components, settings.dropout,
                settings.members,
            )  # fmt: skip
        self._held, self._train = table_split(rows.rows, settings)
        self._calibrating = self._held
        self._crossing: Crossing | None = None
        if settings.crosses(rows.rows):
            self._crossing = Crossing(rows.rows, self.model.members, settings.seed)
            self._held = self._calibrating = self._crossing.judging
        elif settings.calibrates and len(self._held) >= 2 * FEWEST_HELD_OUT:
            # Rows that choose the step are better foretold than new ones.
            self._held, self._calibrating = self._held[::2], self._held[1::2]
        self._order = torch.arange(0)
        self._least, self._best_step = math.inf, 0
        self._kept: dict[str, Tensor] = {}
        self._ranks: Ranks | None = None
        self.generator = torch.Generator().manual_seed(settings.seed)

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Bring the table to the device."""
        device, settings = fabric.device, self.settings
        self.model.to(device)
        self._ranks = ranks
        self._rows = self._rows.to(device)
        here = self._rows.device
        self._train, self._held = self._train.to(here), self._held.to(here)
        self._calibrating = self._calibrating.to(here)
        if self._crossing is not None:
            self._crossing.to(here)
        self._size = min(settings.batch_size, len(self._train))
        if ranks is not None:
            check_table_shares(settings, len(self._train), ranks.size)
        self._batches = max(1, len(self._train) // self._size)
        # On the device, because masks of whole batches are drawn from it.
        self.generator = torch.Generator(device).manual_seed(settings.seed)
        self._choosing = self.generator
        if here != device:  # rows are chosen where they are read
            self._choosing = torch.Generator(here).manual_seed(settings.seed)
        self._judging = self._judged_questions(len(self._held), device)
        self.average = RunningAverage(self.model, min(settings.average, settings.steps / 5))
        if self._goes_on and len(self._held):
            self._forget_calibration()
            self._keep(0, self._held_out_loss())
        decayed = [p for p in self.model.parameters() if p.ndim > 1]
        rest = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [{"params": decayed, "weight_decay": settings.decay},
                  {"params": rest, "weight_decay": 0.0}]  # fmt: skip
        return [torch.optim.AdamW(groups, lr=1.0, betas=(0.9, 0.99))]

    @property
    def total(self) -> int:
        """Steps."""
        return self.settings.steps

    @property
    def reports_every(self) -> int:
        """A fortieth of the whole."""
        return max(1, self.settings.steps // REPORTS)

    def learning_rate(self, step: int) -> float:
        """One rise and fall."""
        share = step / self.settings.steps
        return learning_rate(share, self.settings.learning_rate, warmup=0.05)

    def batch(self, step: int) -> tuple[Tensor, Questions]:  # (n,)
        """Rows of a step, and what they are asked."""
        rows = self._train[self._chosen(step)]
        asked = self._questions(len(rows), self.generator)
        self._masks = self.model.dropout_masks(len(rows), self.generator)
        return rows, asked

    def _chosen(self, step: int) -> Tensor:  # (n,)
        """Which training rows are in a step: the next of a random order, or any of very many."""
        count, source = len(self._train), self._choosing
        if count > LARGEST_SHUFFLE:
            return torch.randint(count, (self._size,), generator=source, device=source.device)
        place = step % self._batches
        if place == 0:
            self._order = torch.randperm(count, generator=source, device=source.device)
        return self._order[place * self._size : (place + 1) * self._size]

    def _questions(self, rows: int, generator: torch.Generator) -> Questions:
        settings, layout, device = self.settings, self.model.layout, generator.device
        asked = random_questions(rows, layout, generator)
        if settings.order_share:
            chance = torch.rand(rows, 1, generator=generator, device=device)
            ordered = ordered_questions(rows, layout, generator)
            asked = ordered.where(chance < settings.order_share, asked)
        if settings.target_share:
            chance = torch.rand(rows, 1, generator=generator, device=device)
            asked = self._of_target(rows, device).where(chance < settings.target_share, asked)
        return asked

    def loss(self, forward: Forward | None, batch: tuple[Tensor, Questions], step: int) -> Tensor:
        """Of all rows of a step; its gradient is that of this process's rows, times processes."""
        assert forward is not None
        rows, asked = batch
        total = len(rows)
        masks = self._masks
        counted: Tensor | None = None  # (members, n)
        if self._crossing is not None:
            counted = self._crossing.factors(rows).to(self.generator.device)
        scale: Tensor | float = 1.0
        if self._rows.weights is not None:
            weights = self._rows.weights[rows]
            scale = weights / weights.mean()
        if self._ranks is not None:
            own = slice(self._ranks.rank, None, self._ranks.size)
            rows, asked = rows[own], asked.part(own)
            masks = None if masks is None else masks[:, own]
            scale = scale[own] if isinstance(scale, Tensor) else scale
            counted = None if counted is None else counted[:, own]
        codes, values = self._rows.take(rows)
        known = self.model.layout.implied(codes, asked.seen)
        parts = forward(codes, values, known, masks, True)
        members = self.model.members
        told = (t.repeat(members, 1) for t in (codes, values, known, asked.factors))
        of_members = self._row_losses(parts, *told).unflatten(0, (members, -1))
        losses = (of_members if counted is None else of_members * counted).mean(0) * scale
        if self._ranks is None:
            return losses.mean()
        # Gradients are averaged over processes, whose shares may differ by a row.
        share = losses.sum() * (self._ranks.size / total)
        return share + (self._ranks.sum(share.detach()) / self._ranks.size - share.detach())

    def _row_losses(
        self, parts: Any, codes: Tensor, values: Tensor, known: Tensor, factors: Tensor
    ) -> Tensor:
        found = self.model.column_log_likelihood(parts, codes, values, known)
        return _row_losses(found, known, factors)

    def _of_target(self, rows: int, device: torch.device) -> Questions:
        target, layout = self.settings.target, self.model.layout
        assert target is not None
        twins = layout.twins_of(target)
        hidden = [k in twins for k in range(layout.table_columns)]
        # Whether the target equals another column is as unknown as the target itself.
        hidden += [link.first in twins or link.second in twins for link in layout.links]
        return questions_of(~torch.tensor([hidden], device=device).expand(rows, -1), layout)

    def _judged_questions(self, held: int, device: torch.device) -> Questions:
        if self.settings.target_share:
            return self._of_target(held, device)
        generator = torch.Generator().manual_seed(self.settings.seed + 1)
        asked = self._questions(held * max(1, LOOKS // max(1, held)), generator)
        return Questions(*(part.to(device) for part in asked))

    @torch.no_grad()
    def _held_out_loss(self) -> float:
        self.model.eval()
        codes, values = self._rows.take(self._held)
        weights = None if self._rows.weights is None else self._rows.weights[self._held]
        looks, held = len(self._judging.seen), len(self._held)
        sums = []
        for begin in range(0, looks, 2048):
            asked = self._judging.part(slice(begin, begin + 2048))
            part = torch.arange(begin, begin + len(asked.seen), device=codes.device) % held
            block = codes[part], values[part]
            known = self.model.layout.implied(block[0], asked.seen)
            if self._crossing is None:
                losses = self._row_losses(self.model(*block, known), *block, known, asked.factors)
            else:
                rows = self._held[part.to(self._held.device)]
                found = self._crossing.log_likelihood(self.model, rows, *block, known)
                losses = _row_losses(found, known, asked.factors)
            sums.append(losses if weights is None else losses * weights[part])
        self.model.train()
        scale = looks / held * (held if weights is None else weights.sum().clamp(min=1e-12))
        return float(torch.cat(sums).sum() / scale)

    def report(self, step: int, loss: Tensor) -> Row:
        """The loss of a batch, and of held-out rows by the averaged weights, which may be kept."""
        row = super().report(step, loss)
        row["metric"] = row["loss"]
        if len(self._held):
            row["metric"] = self._held_out_loss()
            if row["metric"] < self._least:
                self._keep(step, row["metric"])
            waited = (step - self._best_step) / self.reports_every
            self.ended = waited >= self.settings.patience
        return row

    def _keep(self, step: int, metric: float) -> None:
        self._least, self._best_step = metric, step
        self._kept = {n: p.detach().clone() for n, p in self.model.named_parameters()}

    def finish(self) -> None:
        """The best averaged weights, or the last where no rows were held out."""
        if self._kept:
            self.model.load_state_dict(self._kept, strict=False)
        elif self.average is not None:
            self.average.copy_to(self.model)
        self.model.eval()
        if len(self._held) and self.settings.calibrates:
            self._calibrate()

    def _forget_calibration(self) -> None:
        self.model.spread.zero_()
        self.model.heat.zero_()

    @torch.no_grad()
    def _calibrate(self) -> None:
        """By rows held out, with as many questions as fit into memory."""
        held = len(self._calibrating)
        asked = self._judged_questions(held, self.generator.device)
        looks = min(len(asked.seen), rows_at_once(self.model))
        asked = asked.part(slice(looks))
        every = torch.arange(looks, device=self._calibrating.device) % held
        some = self._calibrating[every]
        codes, values = self._rows.take(some)
        known = self.model.layout.implied(codes, asked.seen)
        self._forget_calibration()
        # Looks at a row with other columns seen do not make it several rows.
        weights = asked.factors * min(1.0, held / looks)
        if self._rows.weights is not None:
            own = self._rows.weights[some]
            weights = weights * (own / own.mean()).unsqueeze(1)
        if self._crossing is not None:
            self._crossing.calibrate(self.model, some, codes, values, known, weights)
        else:
            parts = self.model(codes, values, known)
            calibrate(self.model, parts, codes, values, known, weights)

    def final(self) -> TableNetwork:
        """The network."""
        return self.model

    @property
    def best_step(self) -> int:
        """The step whose weights are kept."""
        return self._best_step

    def failure(self, step: int) -> str:
        """Fast steps are what fails."""
        return (
            f"The loss is not finite in step {step + 1}; try a lower learning_rate than "
            f"{self.settings.learning_rate:g}."
        )

    def content(self) -> dict[str, Any]:
        """What has been best so far."""
        least = None if math.isinf(self._least) else self._least
        return {"least": least, "best_step": self._best_step, "ended": self.ended}

    def extras(self) -> dict[str, Tensor]:
        """The order of the epoch, and the best weights."""
        own = {} if self._choosing is self.generator else {"choosing": self._choosing.get_state()}
        return {"order": self._order, **own, **{f"kept.{n}": t for n, t in self._kept.items()}}

    def restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """Take both from a checkpoint."""
        device = self.generator.device
        self._order = tensors["order"].to(self._rows.device)
        if "choosing" in tensors:
            self._choosing.set_state(tensors["choosing"].cpu())
        self._kept = {n.removeprefix("kept."): t.to(device)
                      for n, t in tensors.items() if n.startswith("kept.")}  # fmt: skip
        self._least = math.inf if content["least"] is None else content["least"]
        self._best_step, self.ended = content["best_step"], content["ended"]


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


def _row_losses(found: Tensor, known: Tensor, factors: Tensor) -> Tensor:  # (N, D) -> (N,)
    return -(found.masked_fill(known, 0.0) * factors).sum(1)


def _held_out_rows(share: float, rows: int) -> int:
    """Few rows decide badly, so of small tables more are held out."""
    wanted = max(share * rows, min(3 * share * rows, ENOUGH_HELD_OUT, rows / 2))
    held = min(MOST_HELD_OUT, round(wanted), rows - 1)
    return held if held >= FEWEST_HELD_OUT else 0
