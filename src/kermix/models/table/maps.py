"""Normal scores of several numbers at once."""

import numpy as np
import torch
from torch import Tensor, nn

from kermix.data.tables.monotone import LARGEST_WARPED, MonotoneMap

__all__ = ["SeveralMaps"]


class SeveralMaps(nn.Module):
    """Several monotone maps at once, in each step of a training and on its device.

    The formulas are those of `kermix.data.tables.monotone.MonotoneMap`.
    """

    middle: Tensor
    scale: Tensor
    knots: Tensor
    scores: Tensor
    slopes: Tensor
    last: Tensor

    def __init__(self, maps: tuple[MonotoneMap, ...]) -> None:
        super().__init__()
        most = max(len(own.knots) for own in maps)

        def padded(name: str) -> Tensor:
            return torch.from_numpy(np.stack([
                np.pad(getattr(own, name), (0, most - len(own.knots)), mode="edge") for own in maps
            ]))  # fmt: skip

        for name, tensor in (
            ("middle", torch.tensor([own.middle for own in maps], dtype=torch.float64)),
            ("scale", torch.tensor([own.scale for own in maps], dtype=torch.float64)),
            ("knots", padded("knots")),
            ("scores", padded("scores")),
            ("slopes", padded("slopes")),
            ("last", torch.tensor([len(own.knots) - 2 for own in maps])),
        ):
            self.register_buffer(name, tensor, persistent=False)

    def forward(self, values: Tensor) -> Tensor:  # (N, Q)
        """Normal scores of values."""
        u = torch.asinh((values - self.middle) / self.scale)
        k, (width, height, secant, first, last) = self._pieces(u, self.knots)
        t = ((u - self._at(self.knots, k)) / width).clamp(0, 1)
        rest = t * (1 - t)
        inside = self._at(self.scores, k) + height * (secant * t * t + first * rest) / (
            secant + (first + last - 2 * secant) * rest
        )
        below = self.scores[:, 0] + self.slopes[:, 0] * (u - self.knots[:, 0])
        above = self.scores[:, -1] + self.slopes[:, -1] * (u - self.knots[:, -1])
        found = torch.where(u > self.knots[:, -1], above, inside)
        return torch.where(u < self.knots[:, 0], below, found)

    def inverse(self, scores: Tensor) -> Tensor:  # (N, Q)
        """Values of normal scores."""
        k, (width, height, secant, first, last) = self._pieces(scores, self.scores)
        part = torch.minimum((scores - self._at(self.scores, k)).clamp(min=0), height)
        bend = first + last - 2 * secant
        a, b, c = (
            height * (secant - first) + part * bend,
            height * first - part * bend,
            -secant * part,
        )
        t = 2 * c / (-b - (b * b - 4 * a * c).clamp(min=0).sqrt())
        u = self._at(self.knots, k) + t * width
        below = self.knots[:, 0] + (scores - self.scores[:, 0]) / self.slopes[:, 0]
        above = self.knots[:, -1] + (scores - self.scores[:, -1]) / self.slopes[:, -1]
        u = torch.where(scores > self.scores[:, -1], above, u)
        u = torch.where(scores < self.scores[:, 0], below, u)
        found = self.middle + self.scale * torch.sinh(u.clamp(-LARGEST_WARPED, LARGEST_WARPED))
        largest = torch.finfo(found.dtype).max
        return found.clamp(-largest, largest)

    def _pieces(self, u: Tensor, borders: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        k = torch.searchsorted(borders, u.mT.contiguous(), right=True).mT - 1
        k = torch.minimum(k.clamp(min=0), self.last)
        low, high = (
            self._at(part, k + 1) - self._at(part, k) for part in (self.knots, self.scores)
        )
        return k, (low, high, high / low, self._at(self.slopes, k), self._at(self.slopes, k + 1))

    @staticmethod
    def _at(table: Tensor, k: Tensor) -> Tensor:  # (Q, K), (N, Q) -> (N, Q)
        return table.gather(1, k.mT).mT
