r"""A smooth increasing map of a number to a normal variable, with few knots and unbounded tails.

A map by all empirical quantiles follows the noise of the sample, and gives no density to anything
outside its range. Here values are first warped by $u = \operatorname{asinh}((x - m) / s)$,
which is linear in the middle and logarithmic in both tails. Then comes a rational quadratic spline
through a few quantiles, whose inverse has a closed form, and straight lines beyond the last knots.
Large tables have more of them, because their columns show more than one hump can follow: a knot
for every 300 rows costs the density of a smooth column about 0.001 nats.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

__all__ = ["MonotoneMap", "SeveralMaps", "StraightMap"]

KNOTS, MOST_KNOTS = 16, 64
ROWS_FOR_A_KNOT, MANY_ROWS_FOR_A_KNOT = 8, 300
LARGEST_WARPED = 709.0  # its exponential is finite
STEEPEST_TAIL = 2.0  # slope beyond the last knot against the mean slope


class Piece(NamedTuple):
    """A piece of the spline for each place: arrays of NumPy, or tensors."""

    knot: Any  # where it begins
    score: Any  # there
    width: Any
    height: Any
    first: Any  # slope where it begins
    last: Any  # and where it ends

    def scores(self, warped: Any) -> Any:
        """The scores of warped values within the piece."""
        secant = self.height / self.width
        t = ((warped - self.knot) / self.width).clip(0, 1)
        rest = t * (1 - t)
        return self.score + self.height * (secant * t * t + self.first * rest) / (
            secant + (self.first + self.last - 2 * secant) * rest
        )

    def share(self, scores: Any) -> Any:
        """How far along the piece scores within it are reached, from 0 to 1."""
        secant = self.height / self.width
        part = scores - self.score
        bend = self.first + self.last - 2 * secant
        a = self.height * (secant - self.first) + part * bend
        b = self.height * self.first - part * bend
        c = -secant * part
        return 2 * c / (-b - (b * b - 4 * a * c).clip(0) ** 0.5)

    def slope(self, t: Any) -> Any:
        """The slope so far along the piece."""
        secant, rest = self.height / self.width, t * (1 - t)
        slope = secant**2 * (self.last * t * t + 2 * secant * rest + self.first * (1 - t) ** 2)
        return slope / (secant + (self.first + self.last - 2 * secant) * rest) ** 2


@dataclass(frozen=True, eq=False)
class MonotoneMap:
    """From a number to its normal score and back.

    Example:
        >>> incomes = np.exp(np.random.default_rng(0).normal(10, 1, 5000))
        >>> to_normal = MonotoneMap.of(incomes)
        >>> scores = to_normal(incomes)
        >>> bool(abs(scores.mean()) < 0.02), bool(abs(scores.std() - 1) < 0.02)
        (True, True)
        >>> bool(np.allclose(to_normal.inverse(scores), incomes, rtol=1e-12))
        True
    """

    middle: float
    scale: float
    knots: np.ndarray  # of warped values, increasing
    scores: np.ndarray  # of the knots, increasing
    slopes: np.ndarray  # at the knots, positive

    @classmethod
    def of(cls, values: np.ndarray, counts: np.ndarray | None = None) -> "MonotoneMap":
        """Learn the map from finite values, or from distinct values and how often each occurs."""
        order = np.argsort(values, kind="stable")
        x = np.asarray(values, dtype=np.float64)[order]
        weights = np.ones(len(x)) if counts is None else np.asarray(counts, np.float64)[order]
        total = weights.sum()
        places = (weights.cumsum() - weights / 2) / total  # the middle of each value's share
        middle, low, high = np.interp([0.5, 0.25, 0.75], places, x)
        scale = _scale(x, float(middle), float(_half_distance(high, low)))
        warped = _warp(x, float(middle), scale)
        shares = _knot_shares(float(total), float(places[0]), float(places[-1]))
        knots, scores = _distinct(np.interp(shares, places, warped), _normal_quantile(shares))
        return cls(float(middle), scale, knots, scores, _slopes(knots, scores))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """Normal scores of values, any finite ones."""
        u = _warp(np.asarray(values, dtype=np.float64), self.middle, self.scale)
        inside = self._piece(self._interval(u, self.knots)).scores(u)
        below = self.scores[0] + self.slopes[0] * (u - self.knots[0])
        above = self.scores[-1] + self.slopes[-1] * (u - self.knots[-1])
        return np.where(u < self.knots[0], below, np.where(u > self.knots[-1], above, inside))

    def inverse(self, scores: np.ndarray) -> np.ndarray:
        """The values of normal scores."""
        u = np.clip(self._warped(scores)[0], -LARGEST_WARPED, LARGEST_WARPED)
        largest = np.finfo(np.float64).max
        with np.errstate(over="ignore"):
            return np.clip(self.middle + self.scale * np.sinh(u), -largest, largest)

    def log_derivative(self, scores: np.ndarray) -> np.ndarray:
        """Logarithm of the derivative of the map at the values that have these scores."""
        u, slope = self._warped(scores)
        # The logarithm of cosh, which itself overflows far out.
        log_cosh = np.abs(u) + np.log1p(np.exp(-2 * np.abs(u))) - np.log(2)
        return np.log(slope) - log_cosh - np.log(self.scale)

    def _warped(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Warped values of scores, and the slope of the spline there."""
        z = np.asarray(scores, dtype=np.float64)
        piece = self._piece(self._interval(z, self.scores))
        t = piece.share(np.clip(z, self.scores[0], self.scores[-1]))
        slope = piece.slope(t)
        below, above = z < self.scores[0], z > self.scores[-1]
        u = piece.knot + t * piece.width
        u = np.where(below, self.knots[0] + (z - self.scores[0]) / self.slopes[0], u)
        u = np.where(above, self.knots[-1] + (z - self.scores[-1]) / self.slopes[-1], u)
        slope = np.where(below, self.slopes[0], np.where(above, self.slopes[-1], slope))
        return u, slope

    @staticmethod
    def _interval(values: np.ndarray, borders: np.ndarray) -> np.ndarray:
        return np.clip(np.searchsorted(borders, values, side="right") - 1, 0, len(borders) - 2)

    def _piece(self, k: np.ndarray) -> Piece:
        widths, heights = np.diff(self.knots), np.diff(self.scores)
        ends = self.slopes[k], self.slopes[k + 1]
        return Piece(self.knots[k], self.scores[k], widths[k], heights[k], *ends)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, which keeps every digit."""
        lists = {n: getattr(self, n).tolist() for n in ("knots", "scores", "slopes")}
        return {"middle": self.middle, "scale": self.scale, **lists}

    @classmethod
    def from_dict(cls, saved: dict[str, Any]) -> "MonotoneMap":
        """The map that was saved; ValueError if it does not increase."""
        lists = [np.array(saved[n], dtype=np.float64) for n in ("knots", "scores", "slopes")]
        found = cls(float(saved["middle"]), float(saved["scale"]), *lists)
        sizes = {a.shape for a in lists}
        steps = np.concatenate([np.diff(lists[0]), np.diff(lists[1]), lists[2], [found.scale]])
        if len(sizes) > 1 or lists[0].ndim != 1 or len(lists[0]) < 2 or not np.all(steps > 0):
            raise ValueError("the map of its numbers does not increase")
        return found


class StraightMap(MonotoneMap):
    """A shift and a scale, for models whose numbers are Gaussian in their own units.

    Example:
        >>> float(StraightMap(3.0, 2.0)(np.array(7.0))), float(StraightMap(3.0, 2.0).inverse(2.0))
        (2.0, 7.0)
    """

    def __init__(self, middle: float, scale: float) -> None:
        ends = np.array([-1.0, 1.0])
        super().__init__(middle, scale, ends, ends, np.ones(2))

    def __call__(self, values: np.ndarray) -> np.ndarray:
        """The distance from the middle, in units of the scale."""
        return (np.asarray(values, dtype=np.float64) - self.middle) / self.scale

    def inverse(self, scores: np.ndarray) -> np.ndarray:
        """The values of such distances."""
        return self.middle + self.scale * np.asarray(scores, dtype=np.float64)

    def log_derivative(self, scores: np.ndarray) -> np.ndarray:
        """The same everywhere."""
        return np.full(np.shape(scores), -np.log(self.scale))


class SeveralMaps(nn.Module):
    """Several monotone maps at once, in each step of a training and on its device."""

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
        inside = self._piece(u, self.knots).scores(u)
        below = self.scores[:, 0] + self.slopes[:, 0] * (u - self.knots[:, 0])
        above = self.scores[:, -1] + self.slopes[:, -1] * (u - self.knots[:, -1])
        found = torch.where(u > self.knots[:, -1], above, inside)
        return torch.where(u < self.knots[:, 0], below, found)

    def inverse(self, scores: Tensor) -> Tensor:  # (N, Q)
        """Values of normal scores."""
        piece = self._piece(scores, self.scores)
        within = scores.clamp(self.scores[:, 0], self.scores[:, -1])
        u = piece.knot + piece.share(within) * piece.width
        below = self.knots[:, 0] + (scores - self.scores[:, 0]) / self.slopes[:, 0]
        above = self.knots[:, -1] + (scores - self.scores[:, -1]) / self.slopes[:, -1]
        u = torch.where(scores > self.scores[:, -1], above, u)
        u = torch.where(scores < self.scores[:, 0], below, u)
        found = self.middle + self.scale * torch.sinh(u.clamp(-LARGEST_WARPED, LARGEST_WARPED))
        largest = torch.finfo(found.dtype).max
        return found.clamp(-largest, largest)

    def _piece(self, places: Tensor, borders: Tensor) -> Piece:
        k = torch.searchsorted(borders, places.mT.contiguous(), right=True).mT - 1
        k = torch.minimum(k.clamp(min=0), self.last)
        starts, ends = (
            [self._at(part, at) for part in (self.knots, self.scores, self.slopes)]
            for at in (k, k + 1)
        )
        width, height = ends[0] - starts[0], ends[1] - starts[1]
        return Piece(starts[0], starts[1], width, height, starts[2], ends[2])

    @staticmethod
    def _at(table: Tensor, k: Tensor) -> Tensor:  # (Q, K), (N, Q) -> (N, Q)
        return table.gather(1, k.mT).mT


def _half_distance(x: Any, y: Any) -> np.ndarray:
    """Half of a difference, which neither overflows nor rounds."""
    # Halves of the smallest numbers are not exact, differences of the largest not finite.
    with np.errstate(over="ignore"):
        return np.where(np.abs(x) < 1, (x - y) / 2, x / 2 - y / 2)


def _warp(x: np.ndarray, middle: float, scale: float) -> np.ndarray:
    with np.errstate(over="ignore"):
        ratio = (x - middle) / scale if scale < 1 else (x / 2 - middle / 2) / (scale / 2)
    largest = np.finfo(np.float64).max
    return np.arcsinh(np.clip(ratio, -largest, largest))


def _scale(x: np.ndarray, middle: float, quartiles: float) -> float:
    """Half the distance of the quartiles; if they are equal, the mean distance to the middle."""
    away = np.abs(_half_distance(x, middle))
    most = float(away.max())
    # Not so small that a quotient overflows or rounding of the numbers looks like their spread.
    least = max(abs(middle) * 2.0**-50, most * 1e-300)
    mean = 2 * float((away / most).mean()) * most if most > 0 else 0.0
    for scale in (quartiles, mean, abs(middle)):
        if scale > least:
            return min(scale, 1e300)
    return 1.0


def _knot_shares(total: float, first: float, last: float) -> np.ndarray:
    """Shares of the rows below each knot: even in scores, in large tables even in rows.

    Args:
        total: Rows.
        first: Share below the first knot.
        last: Share below the last.
    """
    wanted = int(np.clip(total / ROWS_FOR_A_KNOT, 2, KNOTS))
    ends = _normal_quantile(np.array([first, last]))
    shares = _normal_probability(np.linspace(ends[0], ends[1], wanted))
    shares[0], shares[-1] = first, last
    count = int(min(total / MANY_ROWS_FOR_A_KNOT, MOST_KNOTS))
    if count <= wanted:
        return shares
    even = np.linspace(0, 1, count + 2)[1:-1]
    tails = shares[(shares < even[0] / 2) | (shares > 1 - even[0] / 2)]
    return np.sort(np.concatenate([even, tails]))


def _distinct(knots: np.ndarray, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Knots apart from each other; where quantiles are equal, one with their mean score."""
    gap = 1e-9 * max(1.0, knots[-1] - knots[0])
    groups = np.concatenate([[0], np.cumsum(np.diff(knots) > gap)])
    counts = np.bincount(groups)
    means = [np.bincount(groups, weights=w) / counts for w in (knots, scores)]
    if len(counts) > 1:
        # Means are inside; the ends are what the tails begin at.
        means[0][0], means[0][-1] = knots[0], knots[-1]
        return means[0], means[1]
    return means[0][0] + np.array([-1.0, 1.0]), np.array([-1.0, 1.0])


def _slopes(knots: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Of a smooth curve through the knots: weighted harmonic means of the slopes on both sides."""
    widths = np.diff(knots)
    secants = np.diff(scores) / widths
    steepest = STEEPEST_TAIL * (scores[-1] - scores[0]) / (knots[-1] - knots[0])
    ends = np.minimum(secants[[0, -1]], steepest)
    left, right = 2 * widths[1:] + widths[:-1], widths[1:] + 2 * widths[:-1]
    inner = (left + right) / (left / secants[:-1] + right / secants[1:])
    return np.concatenate([ends[:1], inner, ends[1:]])


def _normal_quantile(shares: np.ndarray) -> np.ndarray:
    return torch.special.ndtri(torch.from_numpy(shares)).numpy()


def _normal_probability(scores: np.ndarray) -> np.ndarray:
    return torch.special.ndtr(torch.from_numpy(scores)).numpy()
