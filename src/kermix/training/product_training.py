"""Training of Gaussian-product networks on tables: members side by side, each stopped in time.

Every member has its own start, its own order of rows and its own rows held out; all of them are
trained in the same matrix products, and each keeps the weights that were best on what it did not
see. Where a table's columns are given by few values each (`ColumnBins`), a CPU goes through the
layers once for each value instead of once for each row, if a batch has more rows than a column
values.
"""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.distributed.processes import Ranks
from kermix.networks.product_binned import (
    ColumnBins,
    Grid,
    binned_values,
    fit_inverse_temperature,
    retain_heap,
    set_binned_statistics,
    set_row_statistics,
    shrink_to_rates,
)
from kermix.networks.product_rows import GaussianProduct, VariableLayer
from kermix.training.loop import Forward, Row, Task, Trainer, adam, learning_rate
from kermix.training.product_settings import ProductSettings

__all__ = ["FittedTable", "MemberKeeper", "TableTask", "fit_table"]


class MemberKeeper:
    """The best weights of each member so far.

    Args:
        network: Every tensor of it has the members first, or folded into its first axis.
        members: How many there are.
        patience: Epochs without progress after which a member stops.
        margin: Standard errors by which the last epoch must be worse than the best one, or else a
            member stays as it was last: the best of many epochs is partly so by chance.

    Example:
        >>> layer = nn.Linear(1, 2, bias=False)  # two members
        >>> keeper = MemberKeeper(layer, 2, patience=1)
        >>> keeper.keep(torch.tensor([[1.0, 2.0]]), epoch=0)  # one row that was held out
        False
        >>> keeper.keep(torch.tensor([[3.0, 1.0]]), epoch=1)
        False
        >>> keeper.best
        tensor([0, 1])
    """

    def __init__(
        self, network: nn.Module, members: int, patience: int, margin: float = 0.0
    ) -> None:
        self._tensors = [t for t in network.state_dict().values() if t.ndim]
        self._kept = [t.clone() for t in self._tensors]
        self._members, self._patience, self._margin = members, patience, margin
        # Of each row that was held out, (m, E), at the best epoch of each member and at the last.
        self._least = self._latest = torch.full((1, members), math.inf)
        self.best = torch.zeros(members, dtype=torch.long)
        self._epoch = 0

    def keep(self, losses: Tensor, epoch: int) -> bool:  # (m, E)
        """Note the members that have improved; returns whether all have stopped improving."""
        self._latest, self._epoch = losses.detach().cpu(), epoch
        better = self._latest.mean(0) < self._least.mean(0)
        better &= epoch - self.best <= self._patience
        self._least = torch.where(better, self._latest, self._least)
        self.best = torch.where(better, epoch, self.best)
        for kept, now in zip(self._kept, self._tensors, strict=True):
            kept.copy_(self._chosen(better, now, kept))
        return bool((epoch - self.best > self._patience).all())

    def restore(self) -> None:
        """Give the network what was kept, where that is better."""
        worse = self._latest - self._least
        error = worse.std(0, correction=0) / math.sqrt(len(worse))
        back = worse.mean(0) > self._margin * error
        self.best = torch.where(back, self.best, self._epoch)
        for kept, now in zip(self._kept, self._tensors, strict=True):
            now.copy_(self._chosen(back, kept, now))

    def _chosen(self, members: Tensor, one: Tensor, other: Tensor) -> Tensor:
        """One of two tensors for these members, and the other for the rest."""
        wide = members.to(one.device).view(-1, *[1] * one.ndim)
        shape = (self._members, -1, *one.shape[1:])
        return torch.where(wide, one.reshape(shape), other.reshape(shape)).view_as(one)

    def tensors(self) -> dict[str, Tensor]:
        """The best weights and their losses, by name."""
        kept = {f"kept.{number}": tensor for number, tensor in enumerate(self._kept)}
        epoch = torch.tensor(self._epoch)
        found = {"least": self._least, "latest": self._latest, "best": self.best, "epoch": epoch}
        return {**kept, **found}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take what was kept from a checkpoint."""
        for number, kept in enumerate(self._kept):
            kept.copy_(tensors[f"kept.{number}"])
        self._least, self._latest = tensors["least"], tensors["latest"]
        self.best, self._epoch = tensors["best"], int(tensors["epoch"])


STEPS, SMALLEST_BATCH, LARGEST_BATCH = 16, 16, 256  # of an epoch, where nothing is said
# With bins, rows cost less than the layers do: few steps, of many rows.
# Of an epoch, and the largest batch: of one or two outputs, and of more.
FEW_OUTPUTS, MORE_OUTPUTS = (10, 2048), (12, 1024)


@dataclass(frozen=True)
class FittedTable:
    """The result of a fit.

    Attributes:
        network: The members at their best, on the CPU.
        losses: Mean loss of each epoch on the training rows.
        held_out: Mean loss of each epoch on held-out rows; empty where none were held out.
        best: The epoch, from 1, that each member was best at.
        inverse_temperature: How sure the answers of classifiers may be, from 0 to 1.
        rates: The share of each class among all rows, if there are classes.
    """

    network: GaussianProduct
    losses: list[float]
    held_out: list[float]
    best: list[int]
    inverse_temperature: float
    rates: Tensor


class TableTask(Task):
    """A fit to a table, as `fit_table` makes it; a report ends each epoch."""

    model: GaussianProduct

    def __init__(
        self,
        rows: Tensor,  # (n, T), scaled
        targets: Tensor,  # (n,) classes, or (n, o) scaled numbers
        outputs: int,
        splits: Sequence[tuple[Tensor, Tensor]],
        settings: ProductSettings,
        bins: ColumnBins | None = None,
        weights: Tensor | None = None,
    ) -> None:
        self.settings, self._targets, self._weights = settings, targets, weights
        self._rows = rows if bins is None else bins.inputs(rows.numpy()).float()
        self._grid: Grid | None = None
        if bins is not None:
            assert bins.grid is not None
            assert bins.codes is not None
            self._grid, self._codes = Grid(*(t.float() for t in bins.grid)), bins.codes
        self._has_classes = targets.ndim == 1
        self._losses_of = _class_losses if self._has_classes else _squared_losses
        self.rates = self._class_rates(outputs)
        self._train = torch.stack([s[0] for s in splits], 1)  # (m, E)
        self._held = torch.stack([s[1] for s in splits], 1)
        self._standing = self._standing_of_rare() if self._has_classes else None
        self._batches = self._batches_of_an_epoch(outputs)
        self.model = self.module = self._new_network(rows.shape[1], outputs)
        # On the CPU: the order of rows does not depend on the device.
        self.generator = torch.Generator().manual_seed(settings.seed)
        self._order = torch.arange(0)

    def _new_network(self, columns: int, outputs: int, sharpness: float = 1.5) -> GaussianProduct:
        """The network at its start; with bins, its first Gaussians are so much narrower."""
        settings = self.settings
        made = GaussianProduct(
            columns if self._grid is None else [2] * columns,
            outputs,
            sizes=[*[settings.width] * (settings.depth - 1), settings.terms],
            form=settings.form,
            precision="norm" if settings.form == "variational" else "one",
            members=self._train.shape[1],
            generator=torch.Generator().manual_seed(settings.seed),
        ).float()  # whatever torch's default is
        if self._grid is not None:
            first = made.layers[0]
            assert isinstance(first, VariableLayer)
            with torch.no_grad():
                for tensor in (first.weight, first.anchors):
                    tensor.mul_(sharpness)
        return made

    def _class_rates(self, classes: int) -> Tensor:
        """The share of each class among the rows, if there are classes."""
        if not self._has_classes:
            return torch.empty(0)
        counts = torch.bincount(self._targets, self._weights, minlength=classes).float()
        return counts / counts.sum()

    def _batches_of_an_epoch(self, outputs: int) -> int:
        count = len(self._train)
        steps, largest = STEPS, LARGEST_BATCH
        if self._grid is not None:
            steps, largest = FEW_OUTPUTS if outputs <= 2 else MORE_OUTPUTS
        size = self.settings.batch_size or min(largest, max(SMALLEST_BATCH, count // steps))
        # No batch of one row, which has no statistics.
        return max(1, min(math.ceil(count / size), count // 2))

    def prepare(self, fabric: Any, ranks: Ranks | None) -> list[torch.optim.Optimizer]:
        """Bring the table to the device."""
        device, settings = fabric.device, self.settings
        self.model.to(device)
        self._rows, self._targets = self._rows.to(device), self._targets.to(device)
        self._train, self._held = self._train.to(device), self._held.to(device)
        if device.type != "cpu" or settings.form == "signed" or self._has_more_points_than_rows():
            self._grid = None
        if self._grid is not None:
            retain_heap()
        self._sum = torch.zeros((), device=device)
        self.rates = self.rates.to(device)
        if self._weights is not None:
            self._weights = self._weights.to(device)
        # Classifiers stop at one epoch, judged by the rows of all: each one's alone are few, and
        # an epoch that is best by chance has the high learning rate of the middle. An earlier
        # epoch must be better by two standard errors.
        stopped, margin = (1, 2.0) if self._has_classes else (self._train.shape[1], 0.0)
        self._keeper = MemberKeeper(self.model, stopped, settings.patience, margin)
        groups = _groups(self.model, settings.weight_decay)
        # A fit is a few hundred steps: torch's 0.999 would still remember the first.
        return [adam(groups, device, torch.optim.AdamW, fused=True, betas=(0.9, 0.95))]

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
        return learning_rate(share, self.settings.peak_rate)

    def batch(self, step: int) -> Tensor:  # (n, E)
        """The rows of each member, each once in an epoch, or as often as its weight says."""
        place = step % self._batches
        if place == 0:
            self._order = self._new_order()
            self._sum.zero_()
            self.model.train()
        order = self._order.tensor_split(self._batches)[place].to(self._train.device)
        if len(order) < 2:  # of a table of a single row
            order = order.expand(2, -1)
        return self._train.gather(0, order)

    def _standing_of_rare(self) -> Tensor | None:  # (classes,)
        """How many rows one that is held out stands for, where some classes have too few of them.

        Of a class of which less than one row is expected, one is held out all the same.
        """
        classes, rows = len(self.rates), self._targets.numel()
        expected = torch.bincount(self._targets, minlength=classes) * self._held.numel() / rows
        held = torch.bincount(self._targets[self._held].flatten(), minlength=classes)
        members = self._held.shape[1]
        rare = (held > 0) & (expected < members) & (expected.max() >= members)
        return torch.where(rare, expected / held.clamp(min=1), 1.0) if bool(rare.any()) else None

    def _new_order(self) -> Tensor:  # (m, E)
        count, members = self._train.shape
        if self._grid is None:
            order = torch.rand(count, members, generator=self.generator).argsort(0)
        else:  # ten times as fast, and no longer small beside the steps of an epoch
            orders = [torch.randperm(count, generator=self.generator) for _ in range(members)]
            order = torch.stack(orders, 1)
        if self._weights is None:
            return order
        return self._by_weight(torch.rand(members, generator=self.generator)).gather(0, order)

    def _by_weight(self, offsets: Tensor) -> Tensor:  # (E,) -> (m, E)
        """Places among a member's rows, as many as there are, each as often as its weight says."""
        assert self._weights is not None
        reached = self._weights[self._train].cpu().double().cumsum(0).T.contiguous()
        count = reached.shape[1]
        marks = (torch.arange(count) + offsets.double().unsqueeze(1)) / count * reached[:, -1:]
        return torch.searchsorted(reached, marks, right=True).clamp(max=count - 1).T

    def loss(self, forward: Forward | None, batch: Tensor, step: int) -> Tensor:  # (E,)
        """Of each member."""
        assert forward is not None
        if self._grid is None:
            found = forward(self._rows[batch])
        else:
            found = binned_values(self.model, self._grid, self._codes[batch])
        loss = self._losses_of(found, self._targets[batch]).mean(0)
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
            self._set_statistics(4096)  # those at the end are of all rows
            measured = self._held_out_losses()
            row["held_out"] = float(measured.mean())
            by_keeper = measured.reshape(-1, len(self._keeper.best))
            self.ended = self._keeper.keep(by_keeper, epoch - 1)
        return row

    def finish(self) -> None:
        """Each member at its best."""
        if len(self._held):
            self._keeper.restore()
        self._set_statistics(len(self._train))

    def _set_statistics(self, most: int) -> None:
        """Those of the training rows, or evenly some of them, for the weights as they are now."""
        self.model.eval()
        chosen = self._train
        if self._weights is not None:
            evenly = self._by_weight(torch.full((chosen.shape[1],), 0.5))
            chosen = chosen.gather(0, evenly.to(chosen.device))
        chosen = chosen[:: -(-len(chosen) // most)]
        if self._grid is None:
            set_row_statistics(self.model, self._rows[chosen])
        else:
            set_binned_statistics(self.model, self._grid, self._codes[chosen])

    def best_epochs(self, epochs: int) -> list[int]:
        """The epoch, from 1, that each member was best at, of so many."""
        best = self._keeper.best if len(self._held) else torch.tensor([epochs - 1])
        found: list[int] = best.add(1).expand(self._train.shape[1]).tolist()
        return found

    def failure(self, step: int) -> str:
        """Fast steps are what fails."""
        return (
            f"The loss is not finite in epoch {step // self._batches + 1}; try a lower learning "
            f"rate than {self.settings.peak_rate:g}."
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
    def _held_out_losses(self) -> Tensor:  # (m, E)
        """Of classes, as sure as is best: how sure an answer is, is settled at the end."""
        values, targets, weights = self._unseen()
        if self._has_classes:
            inverse_temperature = fit_inverse_temperature(values, targets, weights, self.rates)
            values = shrink_to_rates(values, inverse_temperature, self.rates)
        losses = self._losses_of(values, targets)
        return losses if weights is None else losses * (weights / weights.mean(0))

    @torch.no_grad()
    def inverse_temperature(self) -> float:
        """How sure answers may be, by all rows that were held out."""
        if not self._has_classes or not len(self._held):
            return 1.0
        return float(fit_inverse_temperature(*self._unseen(), self.rates))

    def _unseen(self) -> tuple[Tensor, Tensor, Tensor | None]:  # (m, E, outputs), (m, E, ...)
        """Each member's values, the targets and the weights of the rows that it holds out."""
        parts = self._held.split(LARGEST_BATCH)
        if self._grid is None:
            values = [self.model(self._rows[part]) for part in parts]
        else:
            values = [binned_values(self.model, self._grid, self._codes[part]) for part in parts]
        weights = None if self._weights is None else self._weights[self._held]
        targets = self._targets[self._held]
        if self._standing is not None:
            standing = self._standing.to(targets.device)[targets]
            weights = standing if weights is None else weights * standing
        return torch.cat(values), targets, weights


def fit_table(
    rows: Tensor,  # (n, T), scaled
    targets: Tensor,  # (n,) classes, or (n, o) scaled numbers
    outputs: int,
    splits: Sequence[tuple[Tensor, Tensor]],
    settings: ProductSettings,
    *,
    bins: ColumnBins | None = None,
    weights: Tensor | None = None,
    device: str = "auto",
) -> FittedTable:
    """Fit one network for each split: the rows that it trains with, and those that it does not.

    Integer targets are classes, learned with the cross-entropy; others with squared errors. With
    the bins of these rows, the networks take `bins.inputs`: every column and its rank. Weights of
    the rows, (n,) and above 0, say how often each is drawn.

    Example:
        >>> x = torch.linspace(-2, 2, 64)[:, None]
        >>> everything = torch.arange(64)
        >>> split = (everything[::2], everything[1::2])
        >>> settings = ProductSettings(model="rows", epochs=3)
        >>> fit = fit_table(x, x.square(), 1, [split], settings, device="cpu")
        >>> fit.network(x).shape
        torch.Size([64, 1, 1])
    """
    task = TableTask(rows, targets, outputs, splits, settings, bins, weights)
    trainer = Trainer(task, device=device)
    trainer.run()
    history, inverse_temperature = trainer.history, task.inverse_temperature()
    return FittedTable(
        task.model.cpu().eval(),
        [row["loss"] for row in history],
        [row["held_out"] for row in history if "held_out" in row],
        task.best_epochs(len(history)),
        inverse_temperature,
        task.rates.cpu(),
    )


def _groups(network: nn.Module, decay: float) -> list[dict[str, object]]:
    """Maps and coefficients decay; anchors are places, and scales stay where they are."""
    names = ("weight", "coefficients")
    maps = [p for name, p in network.named_parameters() if name.endswith(names) and p.ndim == 3]
    chosen = {id(p) for p in maps}
    rest = [p for p in network.parameters() if id(p) not in chosen]
    return [{"params": maps, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def _class_losses(scores: Tensor, labels: Tensor) -> Tensor:  # (n, E, o), (n, E) -> (n, E)
    each = functional.cross_entropy(scores.flatten(0, 1), labels.flatten(), reduction="none")
    return each.view_as(labels)


def _squared_losses(values: Tensor, targets: Tensor) -> Tensor:  # (n, E, o) twice -> (n, E)
    return (values - targets).square().mean(2)
