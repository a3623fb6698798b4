"""Training of Gaussian-product networks on tables: members side by side, each stopped in time.

Every member has its own start, its own order of rows and its own rows held out; all of them are
trained in the same matrix products, and each keeps the weights that were best on what it did not
see.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from kermix.checks import check_option
from kermix.errors import OptionError, TrainingError
from kermix.models.product.rows import FORMS, GaussianProduct, ProductForm
from kermix.training.loop import make_fabric
from kermix.training.schedules import learning_rate

__all__ = ["FittedTable", "TableSettings", "fit_table"]

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]

STEPS, SMALLEST_BATCH, LARGEST_BATCH = 16, 16, 256  # of an epoch, where nothing is said


@dataclass(frozen=True)
class TableSettings:
    """Settings of a fit to a table.

    Attributes:
        terms: Products in the sum.
        width: Features of a column in the layers before the last.
        depth: Gaussian layers.
        form: How the columns meet, see :class:`~kermix.models.GaussianProduct`.
        epochs: At most so many passes over the rows.
        batch: Rows for each step; None takes a sixteenth of them, from 16 to 256.
        rate: Peak of the learning rate.
        decay: Weight decay of the affine maps and coefficients.
        patience: Epochs without progress on held-out rows after which a member stops.
        seed: All randomness comes from it.
    """

    terms: int = 32
    width: int = 16
    depth: int = 2
    form: ProductForm = "variational"
    epochs: int = 100
    batch: int | None = None
    rate: float = 5e-3
    decay: float = 0.1
    patience: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        check_option("form", self.form, FORMS)
        for name in ("terms", "width", "depth", "epochs", "batch", "patience"):
            value = getattr(self, name)
            if name == "batch" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise OptionError(f"{name}={value!r} must be a whole number, at least 1.")
        if not 0 < self.rate < math.inf or not 0 <= self.decay < math.inf:
            raise OptionError(f"rate={self.rate}, decay={self.decay}: not negative, rate above 0.")


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


def fit_table(
    rows: Tensor,  # (n, T), scaled
    targets: Tensor,  # (n,) classes, or (n, o) scaled numbers
    outputs: int,
    splits: Sequence[tuple[Tensor, Tensor]],
    settings: TableSettings,
    *,
    device: str = "auto",
) -> FittedTable:
    """Fit one network for each split: the rows that it trains with, and those that it does not.

    Integer targets are classes, learned with the cross-entropy; others with squared errors.

    Example:
        >>> x = torch.linspace(-2, 2, 64)[:, None]
        >>> everything = torch.arange(64)
        >>> split = (everything[::2], everything[1::2])
        >>> fit = fit_table(x, x.square(), 1, [split], TableSettings(epochs=3), device="cpu")
        >>> fit.network(x).shape
        torch.Size([64, 1, 1])
    """
    fabric = make_fabric(device, "32-true")
    place = fabric.device
    start = torch.Generator().manual_seed(settings.seed)
    network = GaussianProduct(
        rows.shape[1],
        outputs,
        terms=settings.terms,
        width=settings.width,
        depth=settings.depth,
        form=settings.form,
        precision="norm" if settings.form == "variational" else "one",
        members=len(splits),
        generator=start,
    ).to(place)
    optimizer = torch.optim.AdamW(_groups(network, settings.decay), lr=1.0)
    loss_of = _class_loss if targets.ndim == 1 else _squared_loss
    rows, targets = rows.to(place), targets.to(place)
    train = torch.stack([s[0] for s in splits], 1).to(place)  # (m, E)
    held = torch.stack([s[1] for s in splits], 1).to(place)
    shuffle = torch.Generator().manual_seed(settings.seed)
    size = settings.batch or min(LARGEST_BATCH, max(SMALLEST_BATCH, len(train) // STEPS))
    batches = math.ceil(len(train) / min(size, len(train)))
    keeper = _Keeper(network, len(splits), settings.patience)
    losses: list[float] = []
    seen: list[float] = []
    for epoch in range(settings.epochs):
        order = torch.rand(train.shape, generator=shuffle).argsort(0).to(place)
        total = torch.zeros((), device=place)
        network.train()
        for step, chosen in enumerate(train.gather(0, order).tensor_split(batches)):
            share = (epoch + step / batches) / settings.epochs
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(share, settings.rate)
            if len(chosen) < 2:  # no batch statistics of a single row
                chosen = chosen.expand(2, -1)
            loss = loss_of(network(rows[chosen]), targets[chosen])  # (E,)
            optimizer.zero_grad(set_to_none=True)
            loss.sum().backward()
            optimizer.step()
            total += loss.detach().mean() / batches
        losses.append(float(total))
        if not math.isfinite(losses[-1]):
            raise TrainingError(
                f"The loss is not finite in epoch {epoch + 1}; try a lower learning rate than "
                f"{settings.rate:g}."
            )
        if len(held):
            network.eval()
            measured = _mean_loss(network, rows, targets, held, loss_of)
            seen.append(float(measured.mean()))
            if keeper.keep(measured, epoch):
                break
    if len(held):
        keeper.restore()
    best = keeper.best.add(1).tolist() if len(held) else [len(losses)] * len(splits)
    return FittedTable(network.cpu().eval(), losses, seen, best)


@torch.no_grad()
def _mean_loss(
    network: GaussianProduct,
    rows: Tensor,
    targets: Tensor,
    chosen: Tensor,  # (m, E)
    loss_of: Loss,
) -> Tensor:  # (E,)
    parts = [
        loss_of(network(rows[part]), targets[part]) * len(part)
        for part in chosen.split(LARGEST_BATCH)
    ]
    return torch.stack(parts).sum(0) / len(chosen)


def _groups(network: nn.Module, decay: float) -> list[dict[str, object]]:
    """Maps and coefficients decay; anchors are places, and scales stay where they are."""
    names = ("weight", "coefficients")
    maps = [p for name, p in network.named_parameters() if name.endswith(names) and p.ndim == 3]
    chosen = {id(p) for p in maps}
    rest = [p for p in network.parameters() if id(p) not in chosen]
    return [{"params": maps, "weight_decay": decay}, {"params": rest, "weight_decay": 0.0}]


def _class_loss(scores: Tensor, labels: Tensor) -> Tensor:  # (n, E, o), (n, E) -> (E,)
    return functional.cross_entropy(scores.transpose(1, 2), labels, reduction="none").mean(0)


def _squared_loss(values: Tensor, targets: Tensor) -> Tensor:  # (n, E, o) twice -> (E,)
    return (values - targets).square().mean((0, 2))


class _Keeper:
    """The best weights of each member so far."""

    def __init__(self, network: nn.Module, members: int, patience: int) -> None:
        # Every tensor of the network has the members first, or folded into its first axis.
        self._tensors = [t for t in network.state_dict().values() if t.ndim]
        self._kept = [t.clone() for t in self._tensors]
        self._members, self._patience = members, patience
        self._least = torch.full((members,), math.inf)
        self.best = torch.zeros(members, dtype=torch.long)

    def keep(self, losses: Tensor, epoch: int) -> bool:
        """Note the members that have improved; returns whether all have stopped improving."""
        losses = losses.detach().cpu()
        better = (losses < self._least) & (epoch - self.best <= self._patience)
        self._least = torch.where(better, losses, self._least)
        self.best = torch.where(better, torch.full_like(self.best, epoch), self.best)
        for kept, now in zip(self._kept, self._tensors, strict=True):
            wide = better.to(now.device).view(-1, *[1] * (now.ndim))
            shape = (self._members, -1, *now.shape[1:])
            kept.copy_(torch.where(wide, now.reshape(shape), kept.reshape(shape)).view_as(now))
        return bool((epoch - self.best > self._patience).all())

    def restore(self) -> None:
        """Give the network what was kept."""
        for kept, now in zip(self._kept, self._tensors, strict=True):
            now.copy_(kept)
