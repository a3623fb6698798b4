r"""What straight lines through the other numbers tell about a number.

A sum, a mean or an excess of other columns is known to the last digit once these are, but only in
their own units: on the scale of normal scores, on which the network works, it is a curve that a
network knows roughly. So a number that such lines foretell well is looked at relative to them: the
centre of its mixture is the score of the value $m$ that the best line through the numbers
that are seen expects, the unit of its widths is that of the line's error $s$,

$$m = \mu_j + C_{jS} C_{SS}^{-1} (x_S - \mu_S), \quad
    s^2 = C_{jj} - C_{jS} C_{SS}^{-1} C_{Sj},$$

with the covariance $C$ of the table, for whichever columns $S$ are seen.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kermix.data.tables.monotone import LARGEST_WARPED, MonotoneMap
from kermix.data.tables.schema import EncodedTable, Schema

__all__ = ["Expected", "Lines", "StraightLines", "find_lines"]

LOOKED_AT = 20_000
MOST_NUMBERS = 100  # of more, solving for each row takes longer than the network
ROWS_OF_EACH = 10  # for each number, or a line follows the noise
LEAST_GAIN = 2.0  # nats: the error of a line is a seventh of the spread of the number
WORST = -10.0  # nats of a row: a mixture has room for a few that are off the line
LEFT_OUT = 0.01  # share of rows that are farthest from the others
RIDGE = 1e-7
FINEST, WIDEST = 1e-5, 3.0  # errors of lines, in normal scores
SOLVED_AT_ONCE = 2**22  # entries of matrices


class Expected(NamedTuple):
    """What lines tell about each number, on the scale of normal scores; 0 and 1 if nothing."""

    centres: Tensor  # (N, Q)
    scales: Tensor


@dataclass(frozen=True, eq=False)
class Lines:
    """Means and covariances of numbers, and which of them lines foretell.

    Attributes:
        names: The numbers.
        centre: Their means.
        size: Their standard deviations.
        correlation: Their correlations, with a small ridge.
        followed: Whether each is looked at relative to lines.
    """

    names: tuple[str, ...]
    centre: np.ndarray  # (Q,)
    size: np.ndarray  # (Q,)
    correlation: np.ndarray  # (Q, Q)
    followed: np.ndarray  # (Q,), bool

    @classmethod
    def of(cls, names: tuple[str, ...], rows: np.ndarray) -> "Lines | None":
        """Those of complete rows; None where a column is constant or not finite in them.

        Rows that are far from the others, by mistake or in a long tail, would draw the lines to
        them, so the farthest are left out, in two rounds.
        """
        found = cls._of_all(names, rows)
        for _ in range(2):
            if found is None:
                break
            found = cls._of_all(names, rows[found._near(rows)])
        return found

    @classmethod
    def _of_all(cls, names: tuple[str, ...], rows: np.ndarray) -> "Lines | None":
        with np.errstate(over="ignore", invalid="ignore"):
            centre, size = rows.mean(0), rows.std(0)
            if not (np.isfinite(centre).all() and np.isfinite(size).all() and (size > 0).all()):
                return None
            scaled = (rows - centre) / size
        correlation = scaled.T @ scaled / len(rows) + RIDGE * np.eye(len(names))
        return cls(names, centre, size, correlation, np.ones(len(names), bool))

    def _near(self, rows: np.ndarray) -> np.ndarray:  # (N,), bool
        scaled = (rows - self.centre) / self.size
        distance = (np.linalg.solve(self.correlation, scaled.T).T * scaled).sum(1)
        return distance <= np.quantile(distance, 1 - LEFT_OUT)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which keeps every digit."""
        arrays = ("centre", "size", "correlation", "followed")
        return {"names": list(self.names), **{n: getattr(self, n).tolist() for n in arrays}}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Lines":
        """Those that were saved."""
        arrays = (np.array(saved[n]) for n in ("centre", "size", "correlation", "followed"))
        return cls(tuple(saved["names"]), *arrays)


def find_lines(schema: Schema, encoded: EncodedTable) -> Lines | None:
    """Lines of a table, if some number is foretold much better by them than by its own column.

    Half of the rows that have all numbers are for the lines, the others judge them; a number
    follows lines if its log-density rises by two nats.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.exponential(size=(2, 400)) * 100
        >>> table = {"a": a, "b": b, "total": a + b, "c": rng.normal(size=400)}
        >>> schema = Schema.of(table)
        >>> find_lines(schema, schema.encode(table)).followed
        array([ True,  True,  True, False])
    """
    columns = schema.numbers
    names = tuple(column.name for column in columns)
    if not 2 <= len(names) <= MOST_NUMBERS:
        return None
    encoded = encoded[:: max(1, len(encoded) // LOOKED_AT)]
    codes = encoded.codes[:, schema.number_columns]
    known = codes <= np.array([len(column.atoms) for column in columns])
    some = (known & (codes >= 0)).all(1)
    codes, scores = codes[some], schema.positions(encoded)[some]
    if len(scores) < 2 * ROWS_OF_EACH * len(names):
        return None
    maps = tuple(column.map for column in columns)
    values = np.stack([own.inverse(scores[:, k]) for k, own in enumerate(maps)], 1)
    learned = Lines.of(names, values[::2])
    found = Lines.of(names, values)
    if learned is None or found is None:
        return None
    lines = StraightLines(learned, maps).eval()
    judged = torch.from_numpy(scores[1::2])
    gains = _gains(lines, judged)
    continuous = torch.from_numpy(codes[1::2] == 0)
    means = (gains.clamp(min=WORST) * continuous).sum(0) / continuous.sum(0).clamp(min=1)
    enough = continuous.sum(0) >= ROWS_OF_EACH
    followed = ((means > LEAST_GAIN) & enough).numpy()
    if not followed.any():
        return None
    return Lines(names, found.centre, found.size, found.correlation, followed)


def _gains(lines: "StraightLines", scores: Tensor) -> Tensor:  # (N, Q)
    """Nats that each number gains from all others, against a normal distribution of its own."""
    found = []
    for k in range(scores.shape[1]):
        seen = torch.ones_like(scores, dtype=torch.bool)
        seen[:, k] = False
        centres, scales = (part[:, k].double() for part in lines(scores, seen))
        z = (scores[:, k] - centres) / scales
        found.append((scores[:, k].square() - z.square()) / 2 - scales.log())
    return torch.stack(found, 1)


class StraightLines(nn.Module):
    """Solves for the lines of each row.

    Args:
        lines: Means and covariances.
        maps: The scale of normal scores of each number.
    """

    centre: Tensor
    size: Tensor
    correlation: Tensor
    followed: Tensor

    def __init__(self, lines: Lines, maps: tuple[MonotoneMap, ...]) -> None:
        super().__init__()
        self.maps = _Maps(maps)
        for name in ("centre", "size", "correlation", "followed"):
            tensor = torch.from_numpy(np.array(getattr(lines, name)))
            self.register_buffer(name, tensor, persistent=False)

    @torch.no_grad()
    def forward(self, scores: Tensor, seen: Tensor) -> Expected:  # (N, Q), (N, Q) bool
        """What the numbers that are seen tell about each.

        Args:
            scores: Normal scores of the numbers; those that are not seen do not count.
            seen: Which cells count.
        """
        with torch.autocast(scores.device.type, enabled=False):
            scores = scores.double()
            x = (self.maps.inverse(scores) - self.centre) / self.size
            mean, variance = self._solved(x.masked_fill(~seen, 0.0), seen)
            error = variance.clamp(min=RIDGE / 10).sqrt()
            ends = [self.maps((mean + k * error) * self.size + self.centre) for k in (-1, 0, 1)]
            scales = ((ends[2] - ends[0]) / 2).clamp(FINEST, WIDEST)
            centres = torch.where(self.followed, ends[1], 0.0).clamp(-10, 10)
            return Expected(centres.float(), torch.where(self.followed, scales, 1.0).float())

    def _solved(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Means and variances by the numbers that are seen, in units of each column."""
        if not self.training and len(x) and bool((seen == seen[0]).all()):
            weights, variance = self._weights(seen[:1])
            return x @ weights[0], variance.expand(len(x), -1)
        found = []
        size = max(1, SOLVED_AT_ONCE // seen.shape[1] ** 2)
        for rows, some in zip(x.split(size), seen.split(size), strict=True):
            weights, variance = self._weights(some)
            found.append(((rows.unsqueeze(1) @ weights).squeeze(1), variance))
        means, variances = zip(*found, strict=True) if found else ((x,), (x,))
        return torch.cat(means), torch.cat(variances)

    def _weights(self, seen: Tensor) -> tuple[Tensor, Tensor]:  # (n, Q, Q), (n, Q)
        """Factors of the numbers that are seen in what is expected of each, and its variance."""
        there = seen.to(self.correlation.dtype)
        system = self.correlation * there.unsqueeze(2) * there.unsqueeze(1)
        system = system + torch.diag_embed(1 - there)
        factor, _ = torch.linalg.cholesky_ex(system)
        both = self.correlation * there.unsqueeze(2)
        weights = torch.cholesky_solve(both, factor)
        return weights, self.correlation.diagonal() - (weights * both).sum(1)


class _Maps(nn.Module):
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
        return self.middle + self.scale * torch.sinh(u.clamp(-LARGEST_WARPED, LARGEST_WARPED))

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
