"""Sums of batches that forget old ones, each at its own speed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Memories"]


@dataclass
class Memories:
    r"""Weighted sums of the features of batches, a batch of age `a` with $(1 - 1/m)^a$.

    Attributes:
        keep: $1 - 1/m$ for each memory of `m` batches.
        reference_rows: Of the reference that features are measured from.
        sums: Of features, (..., memories, q).
        rows: Weighted number of rows of each memory, (memories,).
        squares: The same with squared weights.
    """

    keep: Tensor
    reference_rows: int
    sums: Tensor
    rows: Tensor
    squares: Tensor

    @classmethod
    def empty(
        cls,
        memories: Sequence[int],
        shape: tuple[int, ...],
        reference_rows: int,
        dtype: torch.dtype = torch.float64,
    ) -> "Memories":
        """No batch yet; features have the last size of the shape."""
        keep = 1 - 1 / torch.tensor(memories, dtype=dtype)
        count = len(memories)
        sums = torch.zeros(*shape[:-1], count, shape[-1], dtype=dtype)
        return cls(
            keep, reference_rows, sums, torch.zeros(count).to(keep), torch.zeros(count).to(keep)
        )

    def add(self, batch: Tensor, rows: int) -> None:  # (..., q)
        """Forget a little, and add the sum of the features of a batch of so many rows."""
        self.sums.mul_(self.keep[:, None]).add_(batch[..., None, :])
        self.rows = self.rows * self.keep + rows
        self.squares = self.squares * self.keep.square() + rows

    def differences(self) -> Tensor:  # (..., memories, q)
        """Sums on a scale on which their covariance without drift is that of one row.

        It is that of independent rows, and of a reference that is a sample too.
        """
        variance = self.squares + self.rows.square() / self.reference_rows
        return self.sums / variance.clamp(min=math.ulp(1.0)).sqrt()[:, None]
