"""Training of Gaussian-product networks on tables: members side by side, each stopped in time.

Every member has its own start, its own order of rows and its own rows held out; all of them are
trained in the same matrix products, and each keeps the weights that were best on what it did not
see.

Where a table's columns are given by few values each (`ColumnBins`), a CPU goes through the layers
once for each value instead of once for each row, if a batch has more rows than a column values.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.checks import check_option
from kermix.distributed import Ranks
from kermix.errors import OptionError
from kermix.models.product.binned import (
    Grid,
    binned_values,
    keep_freed_memory,
    set_binned_statistics,
)
from kermix.models.product.bins import ColumnBins
from kermix.models.product.rows import FORMS, GaussianProduct, ProductForm, VariableLayer
from kermix.models.product.statistics import set_row_statistics
from kermix.renamed import accepts_old_names
from kermix.training.graphs import adam
from kermix.training.kept_members import MemberKeeper
from kermix.training.loop import Trainer
from kermix.training.schedules import learning_rate
from kermix.training.task import Forward, Row, Task

__all__ = ["FittedTable", "TableSettings", "TableTask", "fit_table"]

STEPS, SMALLEST_BATCH, LARGEST_BATCH = 16, 16, 256  # of an epoch, where nothing is said
# With bins, rows cost less than the layers do: few steps, of many rows.
# Of an epoch, and the largest batch: of one or two outputs, and of more.
FEW_OUTPUTS, MORE_OUTPUTS = (10, 2048), (12, 1024)
SHARPNESS = 1.5  # of the first layer's Gaussians with bins: how much narrower they begin
BETAS = (0.9, 0.95)  # a fit is a few hundred steps: torch's 0.999 would still remember the first


@accepts_old_names
@dataclass(frozen=True)
class TableSettings:
    """Settings of a fit to a table.

    Attributes:
        terms: Products in the sum.
        width: Features of a column in the layers before the last.
        depth: Gaussian layers.
        form: How the columns meet, see `kermix.models.GaussianProduct`.
        epochs: At most so many passes over the rows.
        batch_size: Rows in each step; None takes a sixteenth of them, from 16 to 256; with bins a
            tenth of two classes, up to 2048, and a twelfth of more, up to 1024.
        learning_rate: Peak learning rate.
        decay: Weight decay of the affine maps and coefficients.
        patience: Epochs without progress on held-out rows after which a member stops.
        seed: All randomness comes from it.
    """

    terms: int = 32
    width: int = 8
    depth: int = 2
    form: ProductForm = "variational"
    epochs: int = 40
    batch_size: int | None = None
    learning_rate: float = 2e-2
    decay: float = 0.1
    patience: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("form", self.form, FORMS)
        for name in ("terms", "width", "depth", "epochs", "batch_size", "patience"):
            value = getattr(self, name)
            if name == "batch_size" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}={value!r} must be a whole number, at least 1.")
        if self.batch_size == 1:
            raise OptionError(
                "batch_size=1 must be at least 2: a row is compared with the others of its batch. "
                "None takes a fair share of the rows."
            )
        if not 0 < self.learning_rate < math.inf or not 0 <= self.decay < math.inf:
            raise OptionError(
                f"learning_rate={self.learning_rate} must be above 0, and decay={self.decay} not "
                "negative; both must be finite."
            )


@dataclass(frozen=True)
class FittedTable:
    """What a fit ends with.

    Attributes:
        network: The members at their best, on the CPU.
        losses: Mean loss of each epoch on the training rows.
        held_out: Mean loss of each epoch on held-out rows; empty where none were held out.
        best: The epoch, from 1, that each member was best at.
    """

    network: GaussianProduct
    losses: list[float]
    held_out: list[float]
    best: list[int]


class TableTask(Task):
    """A fit to a table, as `fit_table` makes it; a report ends each epoch."""

    model: GaussianProduct

    def __init__(
        self,
        rows: Tensor,  # (n, T), scaled
        targets: Tensor,  # (n,) classes, or (n, o) scaled numbers
        outputs: int,
        splits: Sequence[tuple[Tensor, Tensor]],
        settings: TableSettings,
        bins: ColumnBins | None = None,
    ) -> None:
        self.settings, self._targets = settings, targets
        self._rows = rows if bins is None else bins.inputs(rows.numpy()).float()
        self._grid: Grid | None = None
        if bins is not None:
            assert bins.grid is not None
            assert bins.codes is not None
            self._grid, self._codes = Grid(*(t.float() for t in bins.grid)), bins.codes
        self._loss_of = _class_loss if targets.ndim == 1 else _squared_loss
        self._train = torch.stack([s[0] for s in splits], 1)  # (m, E)
        self._held = torch.stack([s[1] for s in splits], 1)
        count = len(self._train)
        steps, largest = STEPS, LARGEST_BATCH
        if bins is not None:
            steps, largest = FEW_OUTPUTS if outputs <= 2 else MORE_OUTPUTS
        size = settings.batch_size or min(largest, max(SMALLEST_BATCH, count // steps))
        # No batch of one row, which has no statistics.
        self._batches = max(1, min(math.ceil(count / size), count // 2))
        self.model = self.module = GaussianProduct(
            rows.shape[1] if bins is None else [2] * rows.shape[1],
            outputs,
            terms=settings.terms,
            width=settings.width,
            depth=settings.depth,
            form=settings.form,
            precision="norm" if settings.form == "variational" else "one",
            members=len(splits),
            path="whole",
            generator=torch.Generator().manual_seed(settings.seed),
        )
        if bins is not None:
            first = self.model.layers[0]
            assert isinstance(first, VariableLayer)
            with torch.no_grad():
                for tensor in (first.weight, first.anchors):
                    tensor.mul_(SHARPNESS)
        # On the CPU: the order of rows does not depend on the device.
        self.generator = torch.Generator().manual_seed(settings.seed)
        self._order = torch.arange(0)

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Bring the table to the device."""
        device, settings = fabric.device, self.settings
        self.model.to(device)
        self._rows, self._targets = self._rows.to(device), self._targets.to(device)
        self._train, self._held = self._train.to(device), self._held.to(device)
        if device.type != "cpu" or settings.form == "signed" or self._has_more_points_than_rows():
            self._grid = None
        if self._grid is not None:
            keep_freed_memory()
        self._sum = torch.zeros((), device=device)
        self._keeper = MemberKeeper(self.model, self._train.shape[1], settings.patience)
        groups = _groups(self.model, settings.decay)
        return [adam(groups, device, torch.optim.AdamW, fused=True, betas=BETAS)]

    def _has_more_points_than_rows(self) -> bool:
        """Whether the layers see fewer of the rows of a batch than of the values of a column."""
        return self._grid is not None and self._grid.shares.shape[1] > self._rows_of_batch()

    def _rows_of_batch(self) -> int:
        return len(self._train) // self._batches

    @property
    def total(self) -> int:
        """Steps of all epochs."""
        return self.settings.epochs * self._batches

    @property
    def reports_every(self) -> int:
        """Steps of an epoch."""
        return self._batches

    def learning_rate(self, step: int) -> float:
        """One rise and fall."""
        epoch, place = divmod(step, self._batches)
        share = (epoch + place / self._batches) / self.settings.epochs
        return learning_rate(share, self.settings.learning_rate)

    def batch(self, step: int) -> Tensor:  # (n, E)
        """The rows of each member, each once in an epoch."""
        place = step % self._batches
        if place == 0:
            self._order = self._new_order()
            self._sum.zero_()
            self.model.train()
        order = self._order.tensor_split(self._batches)[place].to(self._train.device)
        if len(order) < 2:  # of a table of a single row
            order = order.expand(2, -1)
        return self._train.gather(0, order)

    def _new_order(self) -> Tensor:  # (m, E)
        count, members = self._train.shape
        if self._grid is None:
            return torch.rand(count, members, generator=self.generator).argsort(0)
        # Ten times as fast, and no longer small beside the steps of an epoch.
        orders = [torch.randperm(count, generator=self.generator) for _ in range(members)]
        return torch.stack(orders, 1)

    def loss(self, forward: Forward | None, batch: Tensor, step: int) -> Tensor:  # (E,)
        """Of each member."""
        assert forward is not None
        if self._grid is None:
            found = forward(self._rows[batch])
        else:
            found = binned_values(self.model, self._grid, self._codes[batch])
        loss = self._loss_of(found, self._targets[batch])
        self._sum += loss.detach().mean() / self._batches
        return loss

    def kind(self, step: int) -> Hashable | None:
        """All steps are of one kind."""
        return "rows"

    def report(self, step: int, loss: Tensor) -> Row:
        """Means over an epoch; where rows are held out, the best weights so far are kept."""
        epoch = step // self._batches
        row: Row = {"epoch": epoch, "step": step, "loss": float(self._sum)}
        if len(self._held):
            self._set_statistics()
            measured = self._held_out_losses()
            row["held_out"] = float(measured.mean())
            self.ended = self._keeper.keep(measured, epoch - 1)
        return row

    def finish(self) -> None:
        """Each member at its best."""
        self.model.memory.clear()
        if len(self._held):
            self._keeper.restore()
        else:
            self._set_statistics()

    def _set_statistics(self) -> None:
        """Exactly those of the training rows, for the weights as they are now."""
        self.model.eval()
        if self._grid is None:
            set_row_statistics(self.model, self._rows[self._train])
        else:
            set_binned_statistics(self.model, self._grid, self._codes[self._train])

    def best_epochs(self, epochs: int) -> list[int]:
        """The epoch, from 1, that each member was best at, of so many."""
        best = self._keeper.best
        found: list[int] = best.add(1).tolist() if len(self._held) else [epochs] * len(best)
        return found

    def failure(self, step: int) -> str:
        """Fast steps are what fails."""
        return (
            f"The loss is not finite in epoch {step // self._batches + 1}; try a lower learning "
            f"rate than {self.settings.learning_rate:g}."
        )

    def content(self) -> dict[str, Any]:
        """Whether all members have stopped."""
        return {"ended": self.ended}

    def extras(self) -> dict[str, Tensor]:
        """The epoch so far, and the best weights."""
        return {"order": self._order, "sum": self._sum, **self._keeper.tensors()}

    def restore(self, path: Path, tensors: dict[str, Tensor], content: dict[str, Any]) -> None:
        """Take both from a checkpoint."""
        self.ended, self._order = content["ended"], tensors["order"]
        self._sum.copy_(tensors["sum"])
        self._keeper.load(tensors)
        self.model.train()

    @torch.no_grad()
    def _held_out_losses(self) -> Tensor:  # (E,)
        parts = [
            self._loss_of(self.model(self._rows[part]), self._targets[part]) * len(part)
            for part in self._held.split(LARGEST_BATCH)
        ]
        return torch.stack(parts).sum(0) / len(self._held)


def fit_table(
    rows: Tensor,  # (n, T), scaled
    targets: Tensor,  # (n,) classes, or (n, o) scaled numbers
    outputs: int,
    splits: Sequence[tuple[Tensor, Tensor]],
    settings: TableSettings,
    *,
    bins: ColumnBins | None = None,
    device: str = "auto",
) -> FittedTable:
    """Fit one network for each split: the rows that it trains with, and those that it does not.

    Integer targets are classes, learned with the cross-entropy; others with squared errors. With
    the bins of these rows, the networks take `bins.inputs`: every column and its rank.

    Example:
        >>> x = torch.linspace(-2, 2, 64)[:, None]
        >>> everything = torch.arange(64)
        >>> split = (everything[::2], everything[1::2])
        >>> fit = fit_table(x, x.square(), 1, [split], TableSettings(epochs=3), device="cpu")
        >>> fit.network(x).shape
        torch.Size([64, 1, 1])
    """
    trainer = Trainer(TableTask(rows, targets, outputs, splits, settings, bins), device=device)
    trainer.run()
    task, history = trainer.task, trainer.history
    return FittedTable(
        task.model.cpu().eval(),
        [row["loss"] for row in history],
        [row["held_out"] for row in history if "held_out" in row],
        task.best_epochs(len(history)),
    )


def _groups(network: nn.Module, decay: float) -> list[dict[str, object]]:
    """Maps and coefficients decay; anchors are places, and scales stay where they are."""
    names = ("weight", "coefficients")
    maps = [p for name, p in network.named_parameters() if name.endswith(names) and p.ndim == 3]
    chosen = {id(p) for p in maps}
    rest = [p for p in network.parameters() if id(p) not in chosen]
    return [{"params": maps, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def _class_loss(scores: Tensor, labels: Tensor) -> Tensor:  # (n, E, o), (n, E) -> (E,)
    each = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
    return each.view_as(labels).mean(0)


def _squared_loss(values: Tensor, targets: Tensor) -> Tensor:  # (n, E, o) twice -> (E,)
    return (values - targets).square().mean((0, 2))
