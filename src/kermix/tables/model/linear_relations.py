r"""What straight lines through the other numbers tell about a number, and which they foretell.

A sum, a mean or an excess of other columns is known to the last digit once these are, but only in
their own units: on the scale of normal scores, on which the network works, it is a curve that a
network knows roughly. So a number that such lines foretell well is looked at relative to them: the
centre of its mixture is the score of the value $m$ that the best line through the numbers
that are seen expects, the unit of its widths is that of the line's error $s$,

$$m = \mu_j + C_{jS} C_{SS}^{-1} (x_S - \mu_S), \quad
    s^2 = C_{jj} - C_{jS} C_{SS}^{-1} C_{Sj},$$

with the covariance $C$ of the table, for whichever columns $S$ are seen. Only numbers that lines
foretell to a fiftieth of their spread are looked at like this: what is looser, a network learns as
well by itself (`results/bench/relations-ablation-h200.json`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from kermix.checks import NUMBERS_AT_ONCE, rows_at_once
from kermix.data.schema.monotone import MonotoneMap, SeveralMaps
from kermix.data.schema.schema import EncodedTable, Schema

__all__ = [
    "FINEST",
    "RIDGE",
    "Expected",
    "Lines",
    "StraightLines",
    "find_lines",
]


# Reasoned, no record.
RIDGE = 1e-7
FINEST, WIDEST = 1e-5, 3.0  # errors of lines, in normal scores


class Expected(NamedTuple):
    """What lines tell about each number, on the scale of normal scores; 0 and 1 if nothing."""

    centres: Tensor  # (N, Q)
    scales: Tensor


@dataclass(frozen=True, eq=False)
class Lines:
    """Means and covariances of numbers, and which of them lines foretell.

    Attributes:
        names: The numbers.
        size: Their standard deviations in the table.
        centre: Their means.
        correlation: Their covariances, in units of `size`, with a small ridge.
        followed: Whether each number is looked at relative to lines.
        slips: Share of rows that may be anywhere, whatever lines expect.
    """

    names: tuple[str, ...]
    size: np.ndarray  # (Q,)
    centre: np.ndarray  # (Q,)
    correlation: np.ndarray  # (Q, Q)
    followed: np.ndarray  # (Q,), bool
    slips: float = 1e-5

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which keeps every digit."""
        arrays = {n: getattr(self, n).tolist() for n in ARRAYS}
        return {"names": list(self.names), "slips": self.slips, **arrays}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> "Lines":
        """The inverse of `to_dict`."""
        arrays = {n: np.array(saved[n]) for n in ARRAYS}
        return cls(tuple(saved["names"]), **arrays, slips=saved["slips"])


ARRAYS = ("size", "centre", "correlation", "followed")


class StraightLines(nn.Module):
    """Solves for the lines of each row.

    Args:
        lines: Means and covariances.
        maps: The scale of normal scores of each number.
        solved_at_once: How many entries of matrices.
    """

    size: Tensor
    centre: Tensor
    correlation: Tensor
    followed: Tensor

    def __init__(
        self,
        lines: Lines,
        maps: tuple[MonotoneMap, ...],
        solved_at_once: int = NUMBERS_AT_ONCE,
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
            ends = [self.maps((mean + k * error) * self.size + self.centre) for k in (-1, 0, 1)]
            scales = ((ends[2] - ends[0]) / 2).clamp(FINEST, WIDEST)
            centres = torch.where(self.followed, ends[1], 0.0).clamp(-10, 10)
            return Expected(centres.float(), torch.where(self.followed, scales, 1.0).float())

    def _solved(self, values: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Means, relative to the centre, and variances by the numbers that are seen, in `size`."""
        if not len(values):
            return values, values
        if not self.training and bool((seen == seen[0]).all()):
            return self._given(values, *self._factors(seen[:1]))
        size = rows_at_once(len(self.centre) ** 2, self.solved_at_once)
        order = torch.arange(len(seen), device=seen.device)
        if not seen.is_cuda:  # rows of as many numbers are solved together, without the others
            order = seen.sum(1).argsort(stable=True)
            size = min(size, max(16, -(-len(seen) // 16)))
        found = [
            self._given(values[rows], *self._factors(seen[rows])) for rows in order.split(size)
        ]
        means, variances = zip(*found, strict=True)
        back = order.argsort()
        return torch.cat(means)[back], torch.cat(variances)[back]

    def _factors(self, seen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The numbers that are seen, and what solves for the others given them.

        That is the Cholesky factor of their covariances, and its inverse times their covariances
        with all numbers.
        """
        places, there = self._first(seen)  # (n, S)
        counts = there.to(self.correlation.dtype)
        both = self.correlation[places] * counts.unsqueeze(2)  # (n, S, Q)
        among = both.gather(2, places.unsqueeze(1).expand(-1, both.shape[1], -1))
        factor, _ = torch.linalg.cholesky_ex(
            among * counts.unsqueeze(1) + torch.diag_embed(1 - counts)
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
        # Squares of what is farther are not finite.
        x = ((values - self.centre) / self.size).clamp(-1e100, 1e100)
        x = x.gather(1, places.expand(len(x), -1)).masked_fill(~there, 0.0)
        if len(factor) == 1:  # the same for all rows, which are columns then
            depth = torch.linalg.solve_triangular(factor[0], x.mT, upper=False)
            means = (known[0].mT @ depth).mT
        else:
            depth = torch.linalg.solve_triangular(factor, x.unsqueeze(-1), upper=False)
            means = (known.mT @ depth).squeeze(-1)
        variances = self.correlation.diagonal() - known.square().sum(-2)
        return means, variances.expand(len(x), -1)


def find_lines(
    schema: Schema,
    encoded: EncodedTable,
    rows_of_each: int = 10,
    most_numbers: int = 64,
    most_rows: int = 20_000,
    least_filled: float = 0.5,
    least_gain: float = 4.0,
) -> Lines | None:
    """Lines of a table, if some number is foretold closely by them.

    Half of the rows that have all numbers are for the lines, the others judge them.

    Args:
        schema: What the columns are.
        encoded: The table.
        rows_of_each: Rows for each number, at least, or a line follows the noise.
        most_numbers: Of a table, beyond which solving takes longer than the network.
        most_rows: That are looked at, every so many of all.
        least_filled: Share of rows: columns with more gaps have no part in lines.
        least_gain: Nats of a row by which its log-density has to rise: by default the error of a
            line is a fiftieth of the spread, as in sums with a few slips.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.exponential(size=(2, 400)) * 100
        >>> table = {"a": a, "b": b, "total": a + b, "c": rng.normal(size=400)}
        >>> schema = Schema.infer(table)
        >>> find_lines(schema, schema.encode(table)).followed
        array([ True,  True,  True, False])
    """
    names = tuple(column.name for column in schema.numbers)
    if not 2 <= len(names) <= most_numbers:
        return None
    encoded = encoded[:: max(1, len(encoded) // most_rows)]
    values, scores, continuous = _complete_rows(schema, encoded, least_filled)
    learned = None
    if len(values) >= 2 * rows_of_each * len(names):
        learned = lines_of(names, values[::2])
    if learned is None:
        return None
    others = slice(1, None, 2 * max(1, len(values) // 4000))
    maps = tuple(column.map for column in schema.numbers)
    gains = _mean_gains(learned, maps, scores[others], continuous[others]).numpy()
    followed = (gains > least_gain) & (continuous[others].sum(0) >= rows_of_each)
    found = lines_of(names, values) if followed.any() else None
    return None if found is None else replace(found, followed=followed)


def _complete_rows(
    schema: Schema, encoded: EncodedTable, least_filled: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, their scores, and which are no atoms, of rows without gaps where these are few."""
    codes = encoded.codes[:, schema.number_columns]
    known = (codes <= np.array([len(column.atoms) for column in schema.numbers])) & (codes >= 0)
    filled = known.mean(0) >= least_filled
    some = known[:, filled].all(1)
    codes, scores = codes[some], schema.positions(encoded)[some]
    values = np.stack([own.map.inverse(scores[:, k]) for k, own in enumerate(schema.numbers)], 1)
    values[:, ~filled] = 0.0  # no line goes through them
    return values, scores, (codes == 0) & filled


def lines_of(names: tuple[str, ...], rows: np.ndarray) -> Lines | None:
    """Those of complete rows; None where all columns are constant or not finite in them.

    Rows that are far from the others, by mistake or in a long tail, would draw the lines to
    them, so the farthest are left out, in two rounds.
    """
    found = lines_of_all(names, rows)
    for _ in range(2):
        if found is None:
            return None
        found = lines_of_all(names, rows[_near(found, rows)])
    return found


def lines_of_all(names: tuple[str, ...], rows: np.ndarray) -> Lines | None:
    """Lines of all rows; columns without a spread, or too wide, are on none."""
    with np.errstate(over="ignore", invalid="ignore"):
        centre, size = rows.mean(0), rows.std(0)
    spread = np.isfinite(centre) & np.isfinite(size) & (size > 0)
    if not spread.any():
        return None
    centre, size = np.where(spread, centre, 0.0), np.where(spread, size, 1.0)
    scaled = np.where(spread, rows - centre, 0.0) / size
    correlation = scaled.T @ scaled / len(rows) + np.diag(np.where(spread, RIDGE, 1.0))
    every = np.ones(len(names), bool)
    return Lines(names, size, centre, correlation, every)


def _near(lines: Lines, rows: np.ndarray) -> np.ndarray:  # (N,), bool
    scaled = _scaled(lines, rows)
    distance = (np.linalg.solve(lines.correlation, scaled.T).T * scaled).sum(1)
    return distance <= np.quantile(distance, 0.99)


def _scaled(lines: Lines, rows: np.ndarray) -> np.ndarray:  # (N, Q)
    """In deviations from the mean; 0 in columns that no line goes through."""
    linked = lines.correlation - np.diag(np.diag(lines.correlation))
    return np.where(linked.any(0), rows - lines.centre, 0.0) / lines.size


def _mean_gains(
    lines: Lines,
    maps: tuple[MonotoneMap, ...],
    scores: np.ndarray,
    continuous: np.ndarray,
    worst: float = -10.0,
) -> Tensor:  # (Q,)
    """Nats that each number gains from all others, against a normal distribution of its own.

    A row counts as `worst` at least: a mixture has room for a few that are off the line.
    """
    solver, places = StraightLines(lines, maps).eval(), torch.from_numpy(scores)
    found = []
    for k in range(places.shape[1]):
        seen = torch.ones_like(places, dtype=torch.bool)
        seen[:, k] = False
        centres, scales = (part[:, k].double() for part in solver(places, seen))
        z = (places[:, k] - centres) / scales
        found.append((places[:, k].square() - z.square()) / 2 - scales.log())
    gains, counted = torch.stack(found, 1).clamp(min=worst), torch.from_numpy(continuous)
    return (gains * counted).sum(0) / counted.sum(0).clamp(min=1)
