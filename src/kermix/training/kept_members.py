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

    Example:
        >>> layer = nn.Linear(1, 2, bias=False)  # two members
        >>> keeper = MemberKeeper(layer, 2, patience=1)
        >>> keeper.keep(torch.tensor([1.0, 2.0]), epoch=0), keeper.keep(torch.ones(2), epoch=1)
        (False, False)
        >>> keeper.best
        tensor([0, 1])
    """

    def __init__(self, network: nn.Module, members: int, patience: int) -> None:
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

    def tensors(self) -> dict[str, Tensor]:
        """What was kept, by name."""
        kept = {f"kept.{number}": tensor for number, tensor in enumerate(self._kept)}
        return {**kept, "least": self._least, "best": self.best}

    def load(self, tensors: dict[str, Tensor]) -> None:
        """Take what was kept from a checkpoint."""
        for number, kept in enumerate(self._kept):
            kept.copy_(tensors[f"kept.{number}"])
        self._least, self.best = tensors["least"], tensors["best"]
