"""Training of the table model: random columns are seen, the others are to be likely.

A step asks which cells of a row are seen, and which count.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kermix.distributed.processes import Ranks
from kermix.tables.model.calibration import OutOfFold, calibrate, match_flags
from kermix.tables.model.layout import TableLayout
from kermix.tables.model.network import TableNetwork, network_rows_at_once
from kermix.tables.model.table_settings import FEWEST_HELD_OUT, REPORTS, TableModelSettings
from kermix.tables.model.training_rows import (
    LARGEST_SHUFFLE,
    StoredRows,
    TableRows,
    table_split,
)
from kermix.training.budget import Course
from kermix.training.checkpoints import RunningAverage
from kermix.training.loop import Forward, Row, Task, adam, learning_rate

__all__ = ["MaskBatch", "TableModelTask", "ordered_questions", "questions_of", "random_questions"]

# Reasoned, no record.
LINKS_FIRST = 0.7  # share of rows that see all links


class MaskBatch(NamedTuple):
    """Cells of some rows.

    Attributes:
        seen: Which are seen.
        factors: How often the log-likelihood of each counts.
    """

    seen: Tensor  # (N, D), bool
    factors: Tensor  # (N, D)

    def where(self, chosen: Tensor, other: "MaskBatch") -> "MaskBatch":  # (N, 1), bool
        """These questions for the chosen rows, others for the rest."""
        pairs = zip(self, other, strict=True)
        return MaskBatch(*(torch.where(chosen, a, b) for a, b in pairs))

    def part(self, rows: slice) -> "MaskBatch":
        """Those of some rows."""
        return MaskBatch(self.seen[rows], self.factors[rows])


def questions_of(seen: Tensor, layout: TableLayout) -> MaskBatch:  # (N, D), bool
    """All columns that are not seen count, `d / (d - m)` times if `m` of `d` are.

    With `m` uniform in `0 ... d - 1` this is the mean, over orders of the chain rule, of a row's
    negative log-density, without bias. Links are a chain of their own, before that of the columns,
    which few rows ask for.
    """
    parts = []
    sizes = layout.table_columns, layout.columns - layout.table_columns
    for some, scale in zip((~seen).split(sizes, 1), (1.0, 1 / (1 - LINKS_FIRST)), strict=True):
        count = some.sum(1, keepdim=True).clamp(min=1)
        parts.append(some * (scale * some.shape[1] / count))
    return MaskBatch(seen, torch.cat(parts, 1))


def random_questions(rows: int, layout: TableLayout, generator: torch.Generator) -> MaskBatch:
    """Any columns may be seen: `m` of them, uniform in `0 ... columns - 1`.

    Links come before columns, so most rows see all of them; the others see as many as chance has
    it, because columns may be given first.
    """
    device, columns = generator.device, layout.table_columns
    links = layout.columns - columns
    found = _subsets(rows, columns, generator)
    if links:
        some = _subsets(rows, links, generator)
        first = torch.rand(rows, 1, generator=generator, device=device) < LINKS_FIRST
        found = torch.cat([found, some | first], 1)
    return questions_of(found, layout)


def ordered_questions(rows: int, layout: TableLayout, generator: torch.Generator) -> MaskBatch:
    """The next cell of a row counts whose first ones are seen, as rows are drawn: links first."""
    device, count = generator.device, layout.columns
    place = layout.drawing_ranks.to(device)
    at = torch.randint(count, (rows, 1), generator=generator, device=device)
    return MaskBatch(place < at, (place == at) * float(count))


def _subsets(rows: int, columns: int, generator: torch.Generator) -> Tensor:
    device = generator.device
    order = torch.rand(rows, columns, generator=generator, device=device).argsort(1)
    ranks = torch.arange(columns, device=device).expand(rows, -1)
    count = torch.randint(columns, (rows, 1), generator=generator, device=device)
    return torch.zeros_like(order, dtype=torch.bool).scatter_(1, order, ranks < count)


Asked: TypeAlias = tuple[Tensor, MaskBatch, tuple[Tensor, ...]]  # rows (n,), dropout masks


class TableModelTask(Task):
    """A fit of a table network.

    Each row is asked for some of its cells, given others; see `questions_of`.

    Args:
        layout: Codes and numbers of the table.
        rows: The rows.
        settings: How to train.
        network: A trained network to go on with, instead of a new one; it is changed, unless no
            step is better for the rows held out.
        looks: How often held-out rows are looked at in a report, with different columns seen.
    """

    model: TableNetwork
    keeps_best = False

    def __init__(
        self,
        layout: TableLayout,
        rows: TableRows | StoredRows,
        settings: TableModelSettings,
        network: TableNetwork | None = None,
        looks: int | None = None,
        course: Course | None = None,
    ) -> None:
        self.settings = settings
        self.course = course or Course(settings.steps)
        self._looks = settings.looks(rows.rows) if looks is None else looks
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
        self._out_of_fold: OutOfFold | None = None
        if settings.is_out_of_fold(rows.rows):
            self._out_of_fold = OutOfFold(rows.rows, self.model.members, settings.seed)
            self._held = self._calibrating = self._out_of_fold.judging
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
        if self._out_of_fold is not None:
            self._out_of_fold.to(here)
        self._size = min(settings.batch_size, len(self._train))
        if ranks is not None:
            settings.check_shares(len(self._train), ranks.size)
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
        return [adam(groups, device, torch.optim.AdamW, fused=True, betas=(0.9, 0.99))]

    @property
    def total(self) -> int:
        """Steps."""
        return self.course.total

    @property
    def reports_every(self) -> int:
        """Steps between two reports, of those that were planned at first."""
        return max(1, self.settings.steps // REPORTS)

    def begin(self) -> None:
        """The time begins."""
        self.course.begin()

    def learning_rate(self, step: int) -> float:
        """One rise and fall."""
        return learning_rate(self.course.share(step), self.settings.learning_rate, warmup=0.05)

    def kind(self, step: int) -> str | None:
        """All steps are of one kind, unless lines are solved for or rows are in a file."""
        plain = self.model.lines is None and self.model.layout.exact is None
        return "rows" if plain and isinstance(self._rows, TableRows) else None

    def batch(self, step: int) -> Asked:
        """Rows of a step, what they are asked, and which features are left out."""
        rows = self._train[self._chosen(step)]
        asked = self._questions(len(rows), self.generator)
        masks = self.model.dropout_masks(len(rows), self.generator)
        return rows, asked, () if masks is None else (masks,)

    def _chosen(self, step: int) -> Tensor:  # (n,)
        """Which training rows are in a step: the next of a random order, or any of very many."""
        count, source = len(self._train), self._choosing
        if count > LARGEST_SHUFFLE:
            return torch.randint(count, (self._size,), generator=source, device=source.device)
        place = step % self._batches
        if place == 0:
            self._order = torch.randperm(count, generator=source, device=source.device)
        return self._order[place * self._size : (place + 1) * self._size]

    def _questions(self, rows: int, generator: torch.Generator) -> MaskBatch:
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

    def loss(self, forward: Forward | None, batch: Asked, step: int) -> Tensor:
        """Of all rows of a step; its gradient is that of this process's rows, times processes."""
        assert forward is not None
        rows, asked, drawn = batch
        total, masks, scale = len(rows), drawn[0] if drawn else None, self._scale(rows)
        if self._ranks is not None:
            own = slice(self._ranks.rank, None, self._ranks.size)
            rows, asked, scale = rows[own], asked.part(own), scale[:, own]
            masks = None if masks is None else masks[:, own]
        codes, values = self._rows.take(rows)
        known = self.model.layout.implied(codes, asked.seen)
        parts = forward(codes, values, known, masks, True)
        members = self.model.members
        told = (t.repeat(members, 1) for t in (codes, values, known, asked.factors))
        of_members = self._row_losses(parts, *told).unflatten(0, (members, -1))
        losses = (of_members * scale).mean(0)
        if self._ranks is None:
            return losses.mean()
        # Gradients are averaged over processes, whose shares may differ by a row.
        share = losses.sum() * (self._ranks.size / total)
        return share + (self._ranks.sum(share.detach()) / self._ranks.size - share.detach())

    def _scale(self, rows: Tensor) -> Tensor:  # (members or 1, n)
        """How much each row of a step counts for each member, 1 on average."""
        scale = torch.ones(1, len(rows), device=self.generator.device)
        if self._rows.weights is not None:
            weights = self._rows.weights[rows]
            scale = scale * (weights / weights.mean())
        if self._out_of_fold is not None:
            scale = scale * self._out_of_fold.factors(rows).to(scale.device)
        return scale

    def _row_losses(
        self, parts: Any, codes: Tensor, values: Tensor, known: Tensor, factors: Tensor
    ) -> Tensor:
        found = self.model.column_log_likelihood(parts, codes, values, known)
        return _row_losses(found, known, factors)

    def _of_target(self, rows: int, device: torch.device) -> MaskBatch:
        target, layout = self.settings.target, self.model.layout
        assert target is not None
        equal = layout.equal_to(target)
        # Whether the target equals another column is as unknown as the target itself.
        closed = {*equal, *layout.about(equal)}
        hidden = [k in closed for k in range(layout.columns)]
        return questions_of(~torch.tensor([hidden], device=device).expand(rows, -1), layout)

    def _judged_questions(self, held: int, device: torch.device) -> MaskBatch:
        if self.settings.target_share:
            return self._of_target(held, device)
        generator = torch.Generator().manual_seed(self.settings.seed + 1)
        asked = self._questions(held * max(1, self._looks // max(1, held)), generator)
        return MaskBatch(*(part.to(device) for part in asked))

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
            if self._out_of_fold is None:
                losses = self._row_losses(self.model(*block, known), *block, known, asked.factors)
            else:
                rows = self._held[part.to(self._held.device)]
                found = self._out_of_fold.log_likelihood(self.model, rows, *block, known)
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
        self.course.report(step)
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
        layout = self.model.layout
        if layout.columns > layout.table_columns and not self.settings.learns_target_alone:
            self._match_flags()
        if len(self._held) and self.settings.calibrates:
            self._calibrate()

    def _match_flags(self, most_rows: int = 100_000) -> None:
        """By all rows, or by those of a large table that are evenly apart."""
        count = self._rows.rows
        some = torch.arange(0, count, max(1, count // most_rows), device=self._rows.device)
        weights = None if self._rows.weights is None else self._rows.weights[some]
        match_flags(self.model, self._rows.take(some)[0], weights)

    def _forget_calibration(self) -> None:
        self.model.log_scale_offset.zero_()
        self.model.log_temperature.zero_()

    @torch.no_grad()
    def _calibrate(self) -> None:
        """By rows held out, with as many questions as fit into memory."""
        held = len(self._calibrating)
        asked = self._judged_questions(held, self.generator.device)
        looks = min(len(asked.seen), network_rows_at_once(self.model))
        asked = asked.part(slice(looks))
        every = torch.arange(looks, device=self._calibrating.device) % held
        some = self._calibrating[every]
        # Looks at a row with other columns seen do not make it several rows.
        weights = asked.factors * min(1.0, held / looks)
        if len(absent := self._absent()):
            more = self._judged_questions(len(absent), self.generator.device)
            asked = MaskBatch(*(torch.cat(pair) for pair in zip(asked, more, strict=True)))
            some = torch.cat([some, absent])
            weights = torch.cat([weights, more.factors * (looks / self._rows.rows)])
        codes, values = self._rows.take(some)
        known = self.model.layout.implied(codes, asked.seen)
        self._forget_calibration()
        if self._rows.weights is not None:
            own = self._rows.weights[some]
            weights = weights * (own / own.mean()).unsqueeze(1)
        if self._out_of_fold is not None:
            self._out_of_fold.calibrate(self.model, some, codes, values, known, weights)
        else:
            parts = self.model(codes, values, known)
            calibrate(self.model, parts, codes, values, known, weights)

    def _absent(self) -> Tensor:
        """Rows of values of the target that none to calibrate by has: they count for their share.

        Without them, answers that rule a rare value out are the likelier the surer they are.
        """
        target = self.settings.target
        if target is None or not self.settings.target_share or self._out_of_fold is not None:
            return self._calibrating[:0]
        if not isinstance(self._rows, TableRows):  # so many that no value is left out by chance
            return self._calibrating[:0]
        codes = self._rows.codes[:, target]
        there = torch.zeros(self.model.layout.counts[target], device=codes.device)
        there[codes[self._calibrating]] = 1
        return (there[codes] == 0).nonzero().flatten()

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
        return {"least": least, "best_step": self._best_step, "ended": self.ended,
                "course": self.course.content()}  # fmt: skip

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
        self.course.restore(content["course"], int(content["step"]))


def _row_losses(found: Tensor, known: Tensor, factors: Tensor) -> Tensor:  # (N, D) -> (N,)
    return -(found.masked_fill(known, 0.0) * factors).sum(1)
