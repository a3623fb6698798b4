r"""What straight lines through the other numbers tell about a number.

A sum, a mean or an excess of other columns is known to the last digit once these are, but only in
their own units: on the scale of normal scores, on which the network works, it is a curve that a
network knows roughly. So a number that such lines foretell well is looked at relative to them: the
centre of its mixture is the score of the value $m$ that the best line through the numbers
that are seen expects, the unit of its widths is that of the line's error $s$,

$$m = \mu_j + C_{jS} C_{SS}^{-1} (x_S - \mu_S), \quad
    s^2 = C_{jj} - C_{jS} C_{SS}^{-1} C_{Sj},$$

with the covariance $C$ of the table, for whichever columns $S$ are seen. Where a table has several
regimes with lines of their own, such as kinds of cells in a picture, they are the components of a
Gaussian mixture, and $m$ and $s$ are mean and deviation of what that expects of the number:
each regime counts by its probability given $x_S$.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kermix.data.tables.monotone import MonotoneMap
from kermix.models.table.maps import SeveralMaps

__all__ = ["FINEST", "RIDGE", "Expected", "Lines", "StraightLines"]

RIDGE = 1e-7
FINEST, WIDEST = 1e-5, 3.0  # errors of lines, in normal scores
FARTHEST = 1e100  # in deviations of a column: squares of what is farther are not finite
SLIPS = 1e-5
SOLVED_AT_ONCE = 2**22  # entries of matrices
GROUPS, SMALLEST_GROUP = 16, 16  # of rows that have about as many numbers


class Expected(NamedTuple):
    """What lines tell about each number, on the scale of normal scores; 0 and 1 if nothing."""

    centres: Tensor  # (N, Q)
    scales: Tensor


@dataclass(frozen=True, eq=False)
class Lines:
    """Means and covariances of numbers in each regime, and which of them lines foretell.

    Attributes:
        names: The numbers.
        size: Their standard deviations in the table.
        shares: Of rows that are in each regime.
        centre: Means of the numbers in each regime.
        correlation: Covariances in each regime, in units of `size`, with a small ridge.
        followed: Whether each number is looked at relative to lines.
        closely: Whether its mixture has no component that is not, but for slips.
        slips: Share of rows that may be anywhere, whatever lines expect.
    """

    names: tuple[str, ...]
    size: np.ndarray  # (Q,)
    shares: np.ndarray  # (R,)
    centre: np.ndarray  # (R, Q)
    correlation: np.ndarray  # (R, Q, Q)
    followed: np.ndarray  # (Q,), bool
    closely: np.ndarray  # (Q,), bool
    slips: float = SLIPS

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which keeps every digit."""
        arrays = {n: getattr(self, n).tolist() for n in ARRAYS}
        return {"names": list(self.names), "slips": self.slips, **arrays}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Lines":
        """The inverse of `to_dict`."""
        numbers = len(saved["names"])
        shapes = {"centre": (-1, numbers), "correlation": (-1, numbers, numbers)}
        arrays = {n: np.array(saved[n]).reshape(shapes.get(n, -1)) for n in ARRAYS}
        return cls(tuple(saved["names"]), **arrays, slips=saved["slips"])


ARRAYS = ("size", "shares", "centre", "correlation", "followed", "closely")


class StraightLines(nn.Module):
    """Solves for the lines of each row.

    Args:
        lines: Means and covariances.
        maps: The scale of normal scores of each number.
        solved_at_once: How many entries of matrices.
    """

    size: Tensor
    shares: Tensor
    centre: Tensor
    correlation: Tensor
    followed: Tensor
    closely: Tensor

    def __init__(
        self,
        lines: Lines,
        maps: tuple[MonotoneMap, ...],
        solved_at_once: int = SOLVED_AT_ONCE,
    ) -> None:
        super().__init__()
        self.maps = SeveralMaps(maps)
        self.solved_at_once = solved_at_once
        for name in ARRAYS:
            tensor = torch.from_numpy(np.array(getattr(lines, name)))
            self.register_buffer(name, tensor, persistent=False)
        self.slips = lines.slips

    @torch.no_grad()
    def forward(self, scores: Tensor, seen: Tensor) -> Expected:  # (N, Q), (N, Q) bool
        """What the numbers that are seen tell about each.

        Args:
            scores: Normal scores of the numbers; those that are not seen do not count.
            seen: Which cells count.
        """
        with torch.autocast(scores.device.type, enabled=False):
            values = self.maps.inverse(scores.double())
            mean, variance = self._solved(values, seen)
            error = variance.clamp(min=RIDGE / 10).sqrt()
            centre = self.centre[0]
            ends = [self.maps((mean + k * error) * self.size + centre) for k in (-1, 0, 1)]
            scales = ((ends[2] - ends[0]) / 2).clamp(FINEST, WIDEST)
            centres = torch.where(self.followed, ends[1], 0.0).clamp(-10, 10)
            return Expected(centres.float(), torch.where(self.followed, scales, 1.0).float())

    def _solved(self, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances by the numbers that are seen, in units of each column.

        Means are relative to the centre of the first regime.
        """
        if not len(values):
            return values, values
        if not self.training and bool((seen == seen[0]).all()):
            return self._given(values, *self._factors(seen[:1]))
        regimes, numbers = self.centre.shape
        size = max(1, self.solved_at_once // (regimes * numbers**2))
        order = torch.arange(len(seen), device=seen.device)
        if not seen.is_cuda:  # rows of as many numbers are solved together, without the others
            order = seen.sum(1).argsort(stable=True)
            size = min(size, max(SMALLEST_GROUP, -(-len(seen) // GROUPS)))
        found = [
            self._given(values[rows], *self._factors(seen[rows])) for rows in order.split(size)
        ]
        means, variances = zip(*found, strict=True)
        back = order.argsort()
        return torch.cat(means)[back], torch.cat(variances)[back]

    def _factors(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The numbers that are seen, and what solves for the others given them, in each regime.

        That is the Cholesky factor of their covariances, and its inverse times their covariances
        with all numbers.
        """
        places, there = self._first(seen)  # (n, S)
        counts = there.unsqueeze(1).to(self.correlation.dtype)  # (n, 1, S)
        both = self.correlation[:, places].transpose(0, 1) * counts.unsqueeze(3)  # (n, R, S, Q)
        among = both.gather(3, places[:, None, None, :].expand(-1, *both.shape[1:3], -1))
        factor, _ = torch.linalg.cholesky_ex(
            among * counts.unsqueeze(2) + torch.diag_embed(1 - counts)
        )
        return places, there, factor, torch.linalg.solve_triangular(factor, both, upper=False)

    def _first(self, seen: Tensor) -> tuple[Tensor, Tensor]:  # (n, S) each
        """Places of the numbers that are seen, then of some that are not, and which are which.

        As many as the fullest row has; on a GPU, which would wait for that number, all.
        """
        if seen.is_cuda or len(seen) == 1:
            every = torch.arange(seen.shape[1], device=seen.device)
            return every.expand(len(seen), -1), seen
        places = (~seen).to(torch.uint8).argsort(dim=1, stable=True)
        places = places[:, : max(1, int(seen.sum(1).max()))]
        return places, seen.gather(1, places)

    def _given(
        self, values: Tensor, places: Tensor, there: Tensor, factor: Tensor, known: Tensor
    ) -> tuple[Tensor, Tensor]:  # (N, Q) each
        x = ((values.unsqueeze(1) - self.centre) / self.size).clamp(-FARTHEST, FARTHEST)
        x = x.gather(2, places.unsqueeze(1).expand(len(x), x.shape[1], -1))
        x = x.masked_fill(~there.unsqueeze(1), 0.0)
        if len(factor) == 1:  # the same for all rows, which are columns then
            depth = torch.linalg.solve_triangular(factor[0], x.permute(1, 2, 0), upper=False)
            means = (known[0].mT @ depth).permute(2, 0, 1)
            depth = depth.permute(2, 0, 1)  # (N, R, S)
        else:
            depth = torch.linalg.solve_triangular(factor, x.unsqueeze(-1), upper=False)
            means, depth = (known.mT @ depth).squeeze(-1), depth.squeeze(-1)
        variances = self.correlation.diagonal(dim1=-2, dim2=-1) - known.square().sum(-2)
        if len(self.shares) == 1:
            return means[:, 0], variances[:, 0].expand(len(x), -1)
        means = means + (self.centre - self.centre[0]) / self.size
        logs = self.shares.log() - depth.square().sum(-1) / 2
        logs = logs - factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        chance = logs.softmax(-1).unsqueeze(-1)  # (N, R, 1)
        mean = (chance * means).sum(1)
        spread = (means - mean.unsqueeze(1)).square()
        return mean, (chance * (variances + spread)).sum(1)
