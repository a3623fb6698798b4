"""Members that are trained side by side, each kept as it was at its best."""

import math

import torch
from torch import Tensor, nn

__all__ = ["MemberKeeper"]


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
        """What was kept, by name."""
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
