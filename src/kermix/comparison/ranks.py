"""Ranks of numbers among reference rows, of many columns together."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

__all__ = ["MiddleRanks"]


@dataclass(frozen=True)
class MiddleRanks:
    """Share of the reference below each number, half of what is equal to it included.

    Attributes:
        ordered: Columns of the reference in rising order.
        below: Shares of the reference before each place.

    Example:
        >>> reference = torch.tensor([[1.0], [2.0], [2.0], [5.0]]).double()
        >>> ranks = MiddleRanks.of(reference, torch.full((4,), 0.25).double())
        >>> ranks(torch.tensor([[0.0], [2.0], [3.0], [9.0]]).double())[:, 0].tolist()
        [0.0, 0.5, 0.75, 1.0]
    """

    ordered: Tensor  # (C, S)
    below: Tensor  # (C, S + 1)

    @classmethod
    def of(cls, reference: Tensor, shares: Tensor) -> "MiddleRanks":  # (S, C), (S,)
        """Ranks among reference rows with shares whose sum is 1."""
        ordered, order = reference.mT.contiguous().sort(1)
        return cls(ordered, torch.nn.functional.pad(shares[order].cumsum(1), (1, 0)))

    @property
    def values(self) -> Tensor:  # (C,)
        """How many different numbers each column of the reference has."""
        return 1 + (self.ordered[:, 1:] != self.ordered[:, :-1]).sum(1)

    def some(self, columns: Tensor) -> "MiddleRanks":
        """Those of some columns."""
        return MiddleRanks(self.ordered[columns], self.below[columns])

    def __call__(self, columns: Tensor) -> Tensor:  # (N, C) -> (N, C)
        """Ranks of other rows."""
        numbers = columns.mT.contiguous()
        first = torch.searchsorted(self.ordered, numbers)
        if self._tied:
            last = torch.searchsorted(self.ordered, numbers, right=True)
        else:  # a second search would take as long as the first
            near = first.clamp(max=self.ordered.shape[1] - 1)
            last = first + (self.ordered.gather(1, near) == numbers)
        return ((self.below.gather(1, first) + self.below.gather(1, last)) / 2).mT

    @cached_property
    def _tied(self) -> bool:
        return bool((self.values < self.ordered.shape[1]).any())
