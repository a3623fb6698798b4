r"""What straight lines through the other numbers tell about a number, and which they foretell.

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
each regime counts by its probability given $x_S$. What lines foretell less closely than to a
fiftieth of its spread, a network learns as well by itself: see
`results/bench/relations-ablation-h200.json`.
"""

import warnings
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
FARTHEST = 1e100  # in deviations of a column: squares of what is farther are not finite
SLIPS = 1e-5
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
        slips: Share of rows that may be anywhere, whatever lines expect.
    """

    names: tuple[str, ...]
    size: np.ndarray  # (Q,)
    shares: np.ndarray  # (R,)
    centre: np.ndarray  # (R, Q)
    correlation: np.ndarray  # (R, Q, Q)
    followed: np.ndarray  # (Q,), bool
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


ARRAYS = ("size", "shares", "centre", "correlation", "followed")


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
        size = rows_at_once(regimes * numbers**2, self.solved_at_once)
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


# Reasoned, no record.
LOOKED_AT, SORTED, JUDGED = 20_000, 5000, 2000  # rows for lines, for regimes, for their gains
MOST_NUMBERS, MOST_WORK = 64, 8 * 40**3  # work: regimes times the cube of numbers
LEAST_FILLED = 0.5  # share of rows: columns with more gaps have no part in lines
ROWS_OF_EACH = 10  # for each number, or a line follows the noise
REGIMES = (2, 4, 8)  # that are tried
ROWS_OF_REGIMES = 4  # for each number and regime: too many regimes are seen by the other rows
LEAST_MORE = 0.5  # nats of a row that more regimes must tell
# results/bench/relations-ablation-h200.json: with looser ones, and without any.
CLOSE_GAIN = 4.0  # nats: the error is a fiftieth of the spread, as in sums with a few slips
WORST = -10.0  # nats of a row: a mixture has room for a few that are off the line
LEFT_OUT = 0.01  # share of rows that are farthest from the others


def find_lines(
    schema: Schema, encoded: EncodedTable, rows_of_each: int = ROWS_OF_EACH
) -> Lines | None:
    """Lines of a table, if some number is foretold closely by them.

    Half of the rows that have all numbers are for the lines, the others judge them; a number
    follows lines if its log-density rises by four nats.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.exponential(size=(2, 400)) * 100
        >>> table = {"a": a, "b": b, "total": a + b, "c": rng.normal(size=400)}
        >>> schema = Schema.infer(table)
        >>> find_lines(schema, schema.encode(table)).followed
        array([ True,  True,  True, False])
    """
    names = tuple(column.name for column in schema.numbers)
    if not 2 <= len(names) <= MOST_NUMBERS:
        return None
    encoded = encoded[:: max(1, len(encoded) // LOOKED_AT)]
    values, scores, continuous = _complete_rows(schema, encoded)
    if len(values) < 2 * rows_of_each * len(names):
        return None
    maps = tuple(column.map for column in schema.numbers)
    others = slice(1, None, 2 * max(1, len(values) // (2 * JUDGED)))
    best = _best_regimes(names, maps, values, scores[others], continuous[others])
    if best is None:
        return None
    followed = (best[1].numpy() > CLOSE_GAIN) & (continuous[others].sum(0) >= rows_of_each)
    found = lines_of(names, values, best[0]) if followed.any() else None
    return None if found is None else replace(found, followed=followed)


def _best_regimes(
    names: tuple[str, ...],
    maps: tuple[MonotoneMap, ...],
    values: np.ndarray,
    scores: np.ndarray,
    continuous: np.ndarray,
) -> tuple[int, Tensor] | None:
    """How many regimes tell the rows that judge most, and what each number gains."""
    best: tuple[int, Tensor] | None = None
    for regimes in _regimes_to_try(len(values), len(names)):
        learned = lines_of(names, values[::2], regimes)
        if learned is None:
            break
        gains = _mean_gains(learned, maps, scores, continuous)
        if best is None or gains.clamp(min=0).sum() > best[1].clamp(min=0).sum() + LEAST_MORE:
            best = regimes, gains
    return best


def _complete_rows(
    schema: Schema, encoded: EncodedTable
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers, their scores, and which are no atoms, of rows without gaps where these are few."""
    codes = encoded.codes[:, schema.number_columns]
    known = (codes <= np.array([len(column.atoms) for column in schema.numbers])) & (codes >= 0)
    filled = known.mean(0) >= LEAST_FILLED
    some = known[:, filled].all(1)
    codes, scores = codes[some], schema.positions(encoded)[some]
    values = np.stack([own.map.inverse(scores[:, k]) for k, own in enumerate(schema.numbers)], 1)
    values[:, ~filled] = 0.0  # no line goes through them
    return values, scores, (codes == 0) & filled


def _regimes_to_try(rows: int, numbers: int) -> list[int]:
    """One, and more of them where half of the rows are enough."""
    return [1, *(r for r in REGIMES if rows // 2 >= ROWS_OF_REGIMES * r * numbers
                 and r * numbers**3 <= MOST_WORK)]  # fmt: skip


def lines_of(names: tuple[str, ...], rows: np.ndarray, regimes: int = 1) -> Lines | None:
    """Those of complete rows; None where all columns are constant or not finite in them.

    Rows that are far from the others, by mistake or in a long tail, would draw the lines to
    them, so the farthest are left out, in two rounds.
    """
    found, near = lines_of_all(names, rows), rows
    for _ in range(2):
        if found is None:
            return None
        near = rows[_near(found, rows)]
        found = lines_of_all(names, near)
    return found if found is None or regimes == 1 else _in_regimes(found, near, regimes)


def lines_of_all(names: tuple[str, ...], rows: np.ndarray) -> Lines | None:
    """Lines of one regime, of all rows; columns without a spread, or too wide, are on none."""
    with np.errstate(over="ignore", invalid="ignore"):
        centre, size = rows.mean(0), rows.std(0)
    spread = np.isfinite(centre) & np.isfinite(size) & (size > 0)
    if not spread.any():
        return None
    centre, size = np.where(spread, centre, 0.0), np.where(spread, size, 1.0)
    scaled = np.where(spread, rows - centre, 0.0) / size
    correlation = scaled.T @ scaled / len(rows) + np.diag(np.where(spread, RIDGE, 1.0))
    every = np.ones(len(names), bool)
    return Lines(names, size, np.ones(1), centre[None], correlation[None], every)


def _near(lines: Lines, rows: np.ndarray) -> np.ndarray:  # (N,), bool
    scaled = _scaled(lines, rows)
    distance = (np.linalg.solve(lines.correlation[0], scaled.T).T * scaled).sum(1)
    return distance <= np.quantile(distance, 1 - LEFT_OUT)


def _scaled(lines: Lines, rows: np.ndarray) -> np.ndarray:  # (N, Q)
    """In deviations from the mean; 0 in columns that no line goes through."""
    linked = lines.correlation[0] - np.diag(np.diag(lines.correlation[0]))
    return np.where(linked.any(0), rows - lines.centre[0], 0.0) / lines.size


def _in_regimes(lines: Lines, rows: np.ndarray, regimes: int) -> Lines | None:
    """Several regimes by expectation-maximization; None where one of them has no spread."""
    try:
        from sklearn.mixture import GaussianMixture
    except ImportError:
        return None
    mixture = GaussianMixture(regimes, reg_covar=RIDGE, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # regimes need not be the best there are: rows judge them
        try:
            some = rows[:: max(1, len(rows) // SORTED)]
            scaled = _scaled(lines, some)
            mixture.fit(scaled)
        except ValueError:
            return None
    centre = lines.centre[0] + mixture.means_ * lines.size
    alone = np.diag(np.where(scaled.any(0), 0.0, 1.0))
    correlation = mixture.covariances_ + alone
    return replace(lines, shares=mixture.weights_, centre=centre, correlation=correlation)


def _mean_gains(
    lines: Lines, maps: tuple[MonotoneMap, ...], scores: np.ndarray, continuous: np.ndarray
) -> Tensor:  # (Q,)
    """Nats that each number gains from all others, against a normal distribution of its own."""
    solver, places = StraightLines(lines, maps).eval(), torch.from_numpy(scores)
    found = []
    for k in range(places.shape[1]):
        seen = torch.ones_like(places, dtype=torch.bool)
        seen[:, k] = False
        centres, scales = (part[:, k].double() for part in solver(places, seen))
        z = (places[:, k] - centres) / scales
        found.append((places[:, k].square() - z.square()) / 2 - scales.log())
    gains, counted = torch.stack(found, 1).clamp(min=WORST), torch.from_numpy(continuous)
    return (gains * counted).sum(0) / counted.sum(0).clamp(min=1)
